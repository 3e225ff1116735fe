"""Models as TFLite files, for LiteRT on phones and small devices: token ids in, the task's outputs out."""

import posixpath

import tensorflow as tf
from absl import logging

from bert_tf.serving import detect_task, graphs
from bert_tf.serving.graph_windows import ServedWindowClassifier
from bert_tf.system.atomic import write_file
from bert_tf.tasks.table import TASKS

FILE_NAMES = {False: "model.tflite", True: "model_int8.tflite"}


def export_tflite(
    model_dir: str,
    export_dir: str,
    *,
    task: str | None = None,
    int8: bool = False,
    max_seq_length: int | None = None,
) -> str:
    """Writes `export_dir/model.tflite`, or `model_int8.tflite`, complete or not at all.

    Its inputs are input_ids, input_mask and segment_ids, int32 [1, S] with S = max_seq_length, padded with 0
    (multiple choice, [1, N, S], is not supported). Its outputs are the model's: logits, or pooled and sequence output.

    Args:
      model_dir, task, max_seq_length: as for `export.export_saved_model`.
      int8: weights in 8 bits ("dynamic range": activations stay float32 outside the products).

    Returns:
      The file written.

    Raises:
      ValueError: TFLite does not support the task or the model. FileNotFoundError, ValueError: there is no model.
    """
    task = task or detect_task.task_in(model_dir)
    possible = [name for name, entry in TASKS.items() if entry.tflite]
    if task not in possible:
        raise ValueError(f"--task={task}: TFLite supports {', '.join(possible[:-1])} and {possible[-1]}")
    served = graphs.create_served_model(model_dir, task, max_seq_length=max_seq_length, ids_only=True)
    if isinstance(served, ServedWindowClassifier):
        raise ValueError(f"--format=tflite: {model_dir} reads long texts in windows; a TFLite model takes one row.")
    length = served.max_seq_length
    specs = [tf.TensorSpec([1, length], tf.int32, name) for name in ("input_ids", "input_mask", "segment_ids")]

    def call(input_ids, input_mask, segment_ids):
        outputs = served.run({"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids})
        return outputs if isinstance(outputs, dict) else {"logits": outputs}

    function = tf.function(call, specs, autograph=False).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], served)
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    content = converter.convert()
    target = posixpath.join(export_dir, FILE_NAMES[int8])
    tf.io.gfile.makedirs(export_dir)
    write_file(target, content)
    logging.info("%s: %s of %s, %.1f MB%s", target, task, model_dir, len(content) / 1e6, ", int8" if int8 else "")
    return target
