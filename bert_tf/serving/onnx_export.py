"""Models as files for ONNX Runtime: token ids in, the task's answers or the model's outputs out.

export_dir/VERSION/model.onnx or model_int8.onnx    operators of ONNX only; any number of rows of any length
                  /export.json                      what was exported: task, labels, inputs and outputs
                  /bert_config.json, vocab.txt, ... the files of a model directory but the weights
                  /labels.txt                       the names of the classes
"""

import dataclasses
import posixpath
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from absl import logging
from onnx import ModelProto

from bert_tf.models.initialize import model_weights
from bert_tf.serving import export, graph_models
from bert_tf.serving.onnx_graph import OPSET, EncoderGraph
from bert_tf.serving.onnx_runtime import OnnxModel, messages_in
from bert_tf.store import save
from bert_tf.store.description import config_files
from bert_tf.store.open import ONNX_FILES, OpenedModel
from bert_tf.system.storage import write_file
from bert_tf.system.text_files import exists, read_bytes
from bert_tf.tasks import table
from bert_tf.tasks.table import TASKS

_TOLERANCE = 1e-3
_AXES = {2: ("batch", "length"), 3: ("batch", "choices", "length")}
# The second axis of outputs, if not the length.
_SECOND_AXIS = {"multiple_choice": "choices", "masked_lm": "masks"}


def export_onnx(
    model_dir: str | OpenedModel,
    export_dir: str,
    *,
    task: str | None = None,
    int8: bool = False,
    version: int | None = None,
    max_seq_length: int | None = None,
    top_k: int = 5,
) -> str:
    """Writes `export_dir/VERSION` with model.onnx, or model_int8.onnx, complete or not at all; returns that directory.

    Its inputs are those of the SavedModel's signature `serve_ids`: input_ids, input_mask and segment_ids, int32 [B, S]
    (multiple choice: [B, N, S]), and so are its outputs, but for those that repeat an input. Where the answers are made
    of logits, these are an output, too: `logits`.

    Args:
      model_dir, task, version, top_k: as for `export.export_saved_model`.
      int8: the weights of the matrix products and the word embeddings in 8 bits, a column or row each with its scale.
      max_seq_length: recorded for those who cut texts; the file takes rows up to what the model can take.
    """
    export.new_version(export_dir, version)
    opened = export.open_for(model_dir, task)
    task = task or table.task_in(opened)
    served = export.create_served_model(opened, task, ids_only=True, max_seq_length=max_seq_length, top_k=top_k)
    if isinstance(served, graph_models.ServedWindowClassifier):
        raise ValueError(f"--format=onnx: {opened.path} reads long texts in windows; the format takes one row each.")
    served.folds = False
    function = _function(served)
    signatures = export.describe({"serve_ids": function})
    content = _model(served, task, signatures["serve_ids"]).SerializeToString()  # to be compared
    description = {"task": task, "format": "onnx", "dtype": "int8" if int8 else "float32", "opset": OPSET}
    description |= {"max_seq_length": served.encoder.max_seq_length, "labels": list(served.labels)}
    description |= {"problem_type": served.problem_type, "signatures": signatures}
    with export.version_folder(export_dir) as folder:
        tf.io.gfile.makedirs(folder)
        _write_files_of_model(folder, opened, task, served)
        path = posixpath.join(folder, ONNX_FILES[False])
        write_file(path, content)
        export.write_description(folder, description)
        _check_outputs(folder, function, served)
        if int8:
            tf.io.gfile.remove(path)
            path = posixpath.join(folder, ONNX_FILES[True])
            content = _model(served, task, signatures["serve_ids"], int8).SerializeToString()
            write_file(path, content)
        export.write_description(folder, {**description, "ops": sorted(_checked(content))})
        target = export.publish(folder, export_dir, version)
    name = posixpath.join(target, posixpath.basename(path))
    logging.info("%s: %s of %s, %.1f MB, opset %d", name, task, opened.path, len(content) / 1e6, OPSET)
    if (entry := TASKS[task]).answers:
        logging.info("In Python: from bert_tf import %s; %s", entry.answerer, entry.answers.format(path=target))
    logging.info('With ONNX Runtime alone: onnxruntime.InferenceSession("%s")', name)
    return target


def _function(served: graph_models.ServedModel) -> tf.types.experimental.ConcreteFunction:
    """The signature `serve_ids` as a function whose outputs repeat no input, with the logits."""
    specs = served.signatures()["serve_ids"].input_signature
    names = [spec.name for spec in specs]

    def call(*values):
        features = dict(zip(names, values, strict=True))
        if isinstance(served, graph_models.ServedLogits):
            logits = tf.cast(served.run(features), tf.float32)
            outputs = {"logits": logits, **served.answers(logits, features)}
        else:
            outputs = served.outputs(features)
        return {name: value for name, value in outputs.items() if name not in names}

    return tf.function(call, specs, autograph=False).get_concrete_function()


def _model(
    served: graph_models.ServedModel, task: str, described: Mapping[str, Mapping], int8: bool = False
) -> ModelProto:
    """The file, whose inputs and outputs are described as in export.json."""
    graph = EncoderGraph(served.model.config, model_weights(served.model), int8=int8)
    if task == "encoder":
        outputs = graph.vectors()
    elif task == "squad":
        outputs = graph.span_logits()
    elif task == "masked_lm":
        outputs = _guesses(graph, served.encoder.tokenizer.mask_id, served.pieces, served.top_k)
    else:
        logits = graph.logits(task, served.model.head_config)
        outputs = {"logits": logits, **_answers(graph, logits, task, served)}
    for name, tensor in outputs.items():
        graph.op("Identity", tensor, name=name)
    axes = ("batch", _SECOND_AXIS.get(task, "length"))
    outputs = {name: (kind, _named(shape, axes)) for name, (kind, shape) in described["outputs"].items()}
    inputs = {name: (kind, _named(shape, _AXES[len(shape)])) for name, (kind, shape) in described["inputs"].items()}
    return graph.model(task, inputs, outputs)


def _named(shape: Sequence[int | None], axes: Sequence[str]) -> list[int | str]:
    return [size or (axes[number] if number < len(axes) else f"axis_{number}") for number, size in enumerate(shape)]


def _answers(graph: EncoderGraph, logits: str, task: str, served: graph_models.ServedModel) -> dict[str, str]:
    """What the task's `ServedLogits.answers` makes of logits."""
    first = graph.constant(0, np.int64)
    if served.problem_type == "regression":
        name, score = ("probability", graph.op("Sigmoid", logits)) if served.gives_probability else ("score", logits)
        return {name: graph.op("Gather", score, first, axis=-1)}
    names = graph.constant(list(served.labels), object)
    if served.problem_type == "multi_label_classification":
        probabilities = graph.op("Sigmoid", logits)
        holds = graph.op("Greater", probabilities, graph.constant(0.5, np.float32))
        return {"labels": graph.repeated(names, logits), "probabilities": probabilities, "holds": holds}
    probabilities = graph.op("Softmax", logits, axis=-1)
    best, score = graph.op("ArgMax", logits, axis=-1, keepdims=0), graph.largest(probabilities)
    if task == "multiple_choice":
        return {"choice": graph.cast(best, "int32"), "score": score, "probabilities": probabilities}
    label = graph.op("Gather", names, best)
    if task == "ner":
        real = graph.cast(graph.inputs[1], "bool")
        return {"tags": graph.where(real, label, ""), "scores": graph.where(real, score, np.float32(0))}
    return {"label": label, "score": score, "labels": graph.repeated(names, logits), "probabilities": probabilities}


def _guesses(graph: EncoderGraph, mask_id: int, pieces: Sequence[str], top_k: int) -> dict[str, str]:
    """What `ServedMaskedLM.outputs` returns."""
    zero, one = graph.constant(0, np.int64), graph.constant([1], np.int64)
    is_mask = graph.op("Equal", graph.inputs[0], graph.constant(mask_id, np.int32))
    counts = graph.op("ReduceSum", graph.cast(is_mask, "int64"), one)  # [B, 1]
    length = graph.size(graph.inputs[0], 1)
    # Counted from the end, so that the first is largest. At least one place, which some operators need.
    from_end = graph.where(is_mask, graph.op("Sub", length, graph.range(length)), np.int64(0))
    most = graph.op("Max", graph.op("Reshape", graph.op("ReduceMax", counts, keepdims=0), one), one)
    from_end, _ = graph.ops("TopK", from_end, most, names=("from_end", "from_end_indices"))  # [B, M]
    places = graph.op("Sub", length, from_end)
    positions = graph.where(graph.op("Greater", from_end, zero), places, np.int64(0))
    logits = graph.masked_lm(positions)
    logits = graph.op(
        "Slice",
        logits,
        graph.constant([0], np.int64),
        graph.constant([len(pieces)], np.int64),
        graph.constant([2], np.int64),
    )
    probabilities = graph.op("Softmax", logits, axis=-1)
    scores, best = graph.ops("TopK", probabilities, graph.constant([top_k], np.int64), names=("best_scores", "best"))
    real = graph.op("Less", graph.range(most), counts)  # [B, M]
    tokens = graph.op("Gather", graph.constant(list(pieces), object), best)
    return {
        "tokens": graph.where(graph.axis(real, 2), tokens, ""),
        "scores": graph.where(graph.axis(real, 2), scores, np.float32(0)),
        "positions": graph.cast(graph.where(real, positions, np.int64(-1)), "int32"),
    }


def _checked(content: bytes) -> set[str]:
    """The names of the operators of an ONNX file, which is sound and has only ONNX's own."""
    import onnx

    model = onnx.load_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    nodes = [part for part in messages_in(model) if isinstance(part, onnx.NodeProto)]  # of loops and branches, too
    if foreign := {f"{node.domain}.{node.op_type}" for node in nodes if node.domain not in ("", "ai.onnx")}:
        raise RuntimeError(f"the graph has operators that are not ONNX's: {', '.join(sorted(foreign))}")
    return {node.op_type for node in nodes}


def _check_outputs(directory: str, function, served: graph_models.ServedModel) -> None:
    """Compares a small batch of ONNX Runtime with TensorFlow's."""
    tokenizer, rank = served.encoder.tokenizer, len(function.structured_input_signature[0][0].shape)
    shape = (2, 2, served.encoder.max_seq_length)[-rank:]
    ids = np.random.default_rng(0).integers(0, tokenizer.vocab_size, shape, np.int32)
    ids[..., 1::8] = tokenizer.mask_id
    mask = np.ones_like(ids)
    mask[0, ..., shape[-1] // 2 :] = 0
    features = {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}
    outputs = OnnxModel(directory).run(features)
    for name, value in function(**{name: tf.constant(value) for name, value in features.items()}).items():
        if value.dtype.is_floating:
            np.testing.assert_allclose(outputs[name], value, _TOLERANCE, _TOLERANCE, err_msg=f"{name} in ONNX Runtime")


def _write_files_of_model(directory: str, opened: OpenedModel, task: str, served: graph_models.ServedModel) -> None:
    """Writes what a model directory has next to its weights, so that predictors open it like one."""
    name = TASKS[task].settings_file
    sentences = opened.sentences if task == "encoder" and opened.sentences.described else None
    files = dataclasses.replace(opened, max_seq_length=served.encoder.max_seq_length, sentences=sentences)
    contents = {name: text.encode() for name, text in config_files(files.config, files.head).items()}
    contents |= {**save.description_of(files), **export.labels_file(served.labels)}
    if task == "squad":
        contents[name] = served.settings.to_json().encode()
    elif name and exists(path := posixpath.join(opened.directory, name)):
        contents[name] = read_bytes(path)
    save.write_beside(directory, contents)
