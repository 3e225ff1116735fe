"""Models as files for ONNX Runtime: token ids in, the task's answers or the model's outputs out.

export_dir/VERSION/model.onnx or model_int8.onnx    operators of ONNX only; any number of rows of any length
                  /export.json                      what was exported: task, labels, inputs and outputs
                  /bert_config.json, vocab.txt, ... the files of a model directory but the weights
                  /labels.txt                       the names of the classes
"""

import dataclasses
import posixpath
from collections.abc import Sequence

import numpy as np
import onnx
from absl import logging

from bert_tf.families.family import pooler
from bert_tf.serving import export
from bert_tf.serving.onnx_graph import CLASSIFICATIONS, OPSET, EncoderGraph, described
from bert_tf.store import save
from bert_tf.store.description import config_files
from bert_tf.store.head_config import OUTPUT_LAYER
from bert_tf.store.open import ONNX_FILES, OpenedModel
from bert_tf.system.text_files import exists, read_bytes
from bert_tf.tasks import table
from bert_tf.tasks.ner.metrics import standard_tags
from bert_tf.tasks.rows import Task
from bert_tf.tasks.squad.metrics import answer_settings
from bert_tf.tasks.table import TASKS
from bert_tf.text.tokenizer import Tokenizer

# Types of outputs, if not float32.
_STRINGS = dict.fromkeys(("label", "labels", "tags", "tokens"), "string")
_TYPES = {**_STRINGS, "holds": "bool", "choice": "int32", "positions": "int32"}


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
    (choices and windows: [B, N, S]), and so are its outputs, but for those that repeat an input. Where the answers are
    made of logits, these are an output, too: `logits`.

    model_dir, task, version, top_k: as for `export.export_saved_model`.
    int8: the weights of the matrix products and the word embeddings in 8 bits, a column or row each with its scale.
    max_seq_length: recorded for those who cut texts; the file takes rows up to what the model can take.
    """
    export.new_version(export_dir, version)
    opened, task = export.open_for(model_dir, task)
    tokenizer, kind = opened.make_tokenizer(), _kind_of(opened, task)
    settings = answer_settings(opened, tokenizer, max_seq_length=max_seq_length) if task == "squad" else None
    length = settings.windows.max_seq_length if settings else table.choose_max_seq_length(opened, max_seq_length)
    graph = EncoderGraph(opened, task, int8)
    outputs = _outputs(graph, kind, opened, tokenizer, min(top_k, tokenizer.vocab_size))
    for name, (tensor, shape) in outputs.items():
        graph.output(name, tensor, _TYPES.get(name, "float32"), shape)
    model = graph.model(task)
    onnx.checker.check_model(model, full_check=True)
    content, labels = model.SerializeToString(), kind.labels or ()
    signature = {"inputs": described(model.graph.input), "outputs": described(model.graph.output)}
    description = {"task": task, "format": "onnx", "dtype": "int8" if int8 else "float32", "opset": OPSET}
    description |= {"max_seq_length": length, "labels": list(labels)}
    description |= {"problem_type": kind.problem_type if task in CLASSIFICATIONS else None}
    description |= {"signatures": {"serve_ids": signature}, "ops": sorted({node.op_type for node in model.graph.node})}
    with export.version_folder(export_dir) as folder:
        files = _files_of_model(opened, task, length) | export.labels_file(labels)
        if settings:
            files[TASKS[task].settings_file] = settings.to_json().encode()
        save.write_beside(folder, {**files, ONNX_FILES[int8]: content})
        export.write_description(folder, description)
        target = export.publish(folder, export_dir, version)
    name = posixpath.join(target, ONNX_FILES[int8])
    logging.info("%s: %s of %s, %.1f MB, opset %d", name, task, opened.path, len(content) / 1e6, OPSET)
    if (entry := TASKS[task]).answers:
        logging.info("In Python: from bert_tf import %s; %s", entry.answerer, entry.answers.format(path=target))
    logging.info('With ONNX Runtime alone: onnxruntime.InferenceSession("%s")', name)
    return target


# ---- outputs: name -> (tensor, dimensions) ---------------------------------------------------------------------------

Outputs = dict[str, tuple[str, Sequence[int | str]]]


def _kind_of(opened: OpenedModel, task: str) -> Task:
    """The labels of the outputs, if any."""
    head = opened.head if task != "regression" else dataclasses.replace(opened.head, problem_type="regression")
    if task in CLASSIFICATIONS:
        return Task.of_model(head, opened.weights.shapes[OUTPUT_LAYER][0])
    return Task("", tuple(standard_tags(head.labels)) if task == "ner" else (), None)


def _outputs(graph: EncoderGraph, kind: Task, opened: OpenedModel, tokenizer: Tokenizer, top_k: int) -> Outputs:
    if graph.task == "encoder":
        x, size, outputs = graph.encoder(), graph.config.hidden_size, {}
        if not graph.config.has_pooler or graph.has(f"{pooler(graph.config.model_type)}/kernel"):
            outputs["pooled_output"] = graph.pooled(graph.pooled_token(x)), ["batch", size]
        else:
            logging.warning("%s has no trained pooler: the export has no pooled_output.", opened.path)
        return {**outputs, "sequence_output": (x, ["batch", "length", size])}
    if graph.task == "squad":
        return {name: (tensor, graph.axes) for name, tensor in graph.span_logits().items()}
    if graph.task == "masked_lm":
        return _guesses(graph, tokenizer, top_k)
    return _answers(graph, kind, kind.is_regression and opened.head.gives_probability())


def _answers(graph: EncoderGraph, task: Task, gives_probability: bool) -> Outputs:
    """As of the `ServedModel` of the graph's task. task: its labels."""
    logits, rows = graph.logits(), graph.axes if graph.task == "ner" else ["batch"]
    each = [*rows, "choices" if graph.task == "multiple_choice" else len(task.labels or "1")]
    outputs = {"logits": (logits, each)}
    if task.is_regression:
        name, score = ("probability", graph.op("Sigmoid", logits)) if gives_probability else ("score", logits)
        return {**outputs, name: (graph.op("Gather", score, graph.constant(0, np.int64), axis=-1), rows)}
    if task.multi_label:
        names = graph.constant(list(task.labels), object)
        probabilities = graph.op("Sigmoid", logits)
        holds = graph.op("Greater", probabilities, graph.constant(0.5, np.float32))
        labels = {"labels": (graph.repeated(names, logits), each)}
        return {**outputs, **labels, "probabilities": (probabilities, each), "holds": (holds, each)}
    probabilities = graph.op("Softmax", logits, axis=-1)
    best, score = graph.op("ArgMax", logits, axis=-1, keepdims=0), graph.largest(probabilities)
    answers = {"score": (score, rows), "probabilities": (probabilities, each)}
    if graph.task == "multiple_choice":
        return {**outputs, "choice": (graph.cast(best, "int32"), rows), **answers}
    names = graph.constant(list(task.labels), object)
    label = graph.op("Gather", names, best)
    if graph.task == "ner":
        real = graph.cast(graph.inputs[1], "bool")
        tags, scores = graph.where(real, label, ""), graph.where(real, score, np.float32(0))
        return {**outputs, "tags": (tags, rows), "scores": (scores, rows)}
    labels = {"label": (label, rows), "score": (score, rows), "labels": (graph.repeated(names, logits), each)}
    return {**outputs, **labels, **answers}


def _guesses(graph: EncoderGraph, tokenizer: Tokenizer, top_k: int) -> Outputs:
    """As of `ServedMaskedLM`."""
    pieces = [tokenizer.spell(tokenizer.inv_vocab[index]) for index in range(tokenizer.vocab_size)]
    zero, one = graph.constant(0, np.int64), graph.constant([1], np.int64)
    is_mask = graph.op("Equal", graph.inputs[0], graph.constant(tokenizer.mask_id, np.int32))
    counts = graph.op("ReduceSum", graph.cast(is_mask, "int64"), one)  # [B, 1]
    length = graph.size(graph.inputs[0], 1)
    # Counted from the end, so that the first is largest. At least one place, which some operators need.
    from_end = graph.where(is_mask, graph.op("Sub", length, graph.range(length)), np.int64(0))
    most = graph.op("Max", graph.op("Reshape", graph.op("ReduceMax", counts, keepdims=0), one), one)
    from_end, _ = graph.ops("TopK", from_end, most, names=("from_end", "from_end_indices"))  # [B, M]
    places = graph.op("Sub", length, from_end)
    positions = graph.where(graph.op("Greater", from_end, zero), places, np.int64(0))
    first, count, axis = (graph.constant([number], np.int64) for number in (0, len(pieces), 2))
    logits = graph.op("Slice", graph.masked_lm(positions), first, count, axis)
    probabilities = graph.op("Softmax", logits, axis=-1)
    scores, best = graph.ops("TopK", probabilities, graph.constant([top_k], np.int64), names=("best_scores", "best"))
    real = graph.op("Less", graph.range(most), counts)  # [B, M]
    tokens = graph.op("Gather", graph.constant(pieces, object), best)
    rows, each = ["batch", "masks"], ["batch", "masks", top_k]
    return {
        "tokens": (graph.where(graph.axis(real, 2), tokens, ""), each),
        "scores": (graph.where(graph.axis(real, 2), scores, np.float32(0)), each),
        "positions": (graph.cast(graph.where(real, positions, np.int64(-1)), "int32"), rows),
    }


def _files_of_model(opened: OpenedModel, task: str, length: int) -> dict[str, bytes]:
    """What a model directory has next to its weights, so that predictors open the export like one."""
    name, sentences = TASKS[task].settings_file, opened.sentences if task == "encoder" else None
    described = sentences if sentences and sentences.described else None
    files = dataclasses.replace(opened, max_seq_length=length, sentences=described)
    contents = {name: text.encode() for name, text in config_files(files.config, files.head).items()}
    if name and exists(path := posixpath.join(opened.directory, name)):
        contents[name] = read_bytes(path)
    return contents | save.description_files(files)
