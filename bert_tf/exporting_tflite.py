"""Models as TFLite files, for LiteRT on phones and small machines: token ids in, the task's outputs out."""

import posixpath

import tensorflow as tf
from absl import logging

from bert_tf import exporting

FILE_NAMES = {False: "model.tflite", True: "model_int8.tflite"}
# Strings are no business of a phone's interpreter: of these tasks the outputs are numbers, or can be left to be.
TASKS = ("encoder", "classification", "regression", "squad", "ner", "multiple_choice")


def export_tflite(
    model_dir: str,
    export_dir: str,
    *,
    task: str | None = None,
    int8: bool = False,
    max_seq_length: int | None = None,
) -> str:
    """Writes `export_dir/model.tflite`, or `model_int8.tflite`, whole or not at all.

    Its inputs are input_ids, input_mask and segment_ids, int32 [1, S] with S = max_seq_length (padded with 0; of
    multiple choice [1, N, S] is not supported), its outputs those of the model: logits, or pooled and sequence output.

    Args:
      model_dir, task, max_seq_length: as for `exporting.export_saved_model`.
      int8: weights in 8 bits ("dynamic range": activations stay float32 outside of the products).

    Returns:
      The file written.

    Raises:
      ValueError: a task that is not for TFLite; FileNotFoundError, ValueError: no model there.
    """
    task = task or exporting.task_in(model_dir)
    if task not in TASKS or task == "multiple_choice":
        raise ValueError(f"--task={task}: TFLite files are for encoder, classification, regression, squad and ner")
    served = exporting.create_served_model(model_dir, task, max_seq_length=max_seq_length)
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
    temporary = posixpath.join(export_dir, f".{FILE_NAMES[int8]}.tmp")
    tf.io.gfile.makedirs(export_dir)
    try:
        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(content)
        tf.io.gfile.rename(temporary, target, overwrite=True)
    except BaseException:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)
        raise
    logging.info("%s: %s of %s, %.1f MB%s", target, task, model_dir, len(content) / 1e6, ", int8" if int8 else "")
    return target
