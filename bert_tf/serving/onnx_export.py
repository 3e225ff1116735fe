"""Models as files for ONNX Runtime: token ids in, the task's answers or the model's outputs out.

export_dir/VERSION/model.onnx or model_int8.onnx    operators of ONNX only; any number of rows of any length
                  /export.json                      what was exported: task, labels, inputs and outputs
                  /bert_config.json, vocab.txt, ... the files of a model directory but the weights
                  /labels.txt                       the names of the classes
"""

import dataclasses
import itertools
import logging as python_logging
import os
import posixpath
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.serving import export, graph_models
from bert_tf.serving.loaded_export import OnnxModel, messages_in
from bert_tf.store import save
from bert_tf.store.description import config_files
from bert_tf.store.open import ONNX_FILES, OpenedModel
from bert_tf.system import storage
from bert_tf.system.messages import without_notes
from bert_tf.system.storage import write_file
from bert_tf.system.text_files import exists, read_bytes
from bert_tf.tasks import table
from bert_tf.tasks.table import TASKS

OPSET = 20  # the first with Gelu; ONNX Runtime 1.17 or later
_CONVERTED_OPSET = 18  # the newest of tf2onnx; the operators that it writes are the same in opset 20
_IR_VERSION = 9  # of opset 20
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
      int8: the weights of the matrix products and the word embeddings in 8 bits, by ONNX Runtime's dynamic quantizer.
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
    content = _converted(function, task)
    description = {"task": task, "format": "onnx", "dtype": "int8" if int8 else "float32", "opset": OPSET}
    description |= {"max_seq_length": served.encoder.max_seq_length, "labels": list(served.labels)}
    description |= {"problem_type": served.problem_type, "signatures": export.describe({"serve_ids": function})}
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
            content = _quantized(content)
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


def _converted(function: tf.types.experimental.ConcreteFunction, task: str) -> bytes:
    """The content of the ONNX file of a function."""
    from tf2onnx import optimizer, tf_loader, tfonnx

    inputs = {tensor.name: tensor.name.split(":")[0] for tensor in function.inputs if tensor.dtype != tf.resource}
    outputs = {tensor.name: name for name, tensor in function.structured_outputs.items()}
    # All of the library's that do something here, but not the one for chains of reshapes: it removes the first of two
    # even if the second one has a 0, which stands for a size of the first one's result.
    chosen = ("ConstFold", "Loop", "MergeDuplicatedNodes", "Reshape", "Identity")
    optimizers = {name: getattr(optimizer, f"{name}Optimizer") for name in chosen}
    with export.quiet(python_logging.WARNING), without_notes(), tf.device("CPU:0"):
        graph_def = tf_loader.from_function(function, list(inputs), list(outputs))
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
            converted = tfonnx.process_tf_graph(
                graph,
                continue_on_error=True,  # an operator that is left is found by the check of the file
                opset=_CONVERTED_OPSET,
                input_names=list(inputs),
                output_names=list(outputs),
                tensors_to_rename={**inputs, **outputs},
            )
            converted = optimizer.optimize_graph(converted, optimizers=optimizers)
            _fuse(converted)
            model = converted.make_model(task)
    del model.opset_import[:]
    model.opset_import.add(domain="", version=OPSET)
    model.ir_version = _IR_VERSION
    model.doc_string, model.graph.name, model.graph.doc_string = "", task, ""
    _number(model.graph)
    for entries, is_input in ((model.graph.input, True), (model.graph.output, False)):
        for entry in entries:
            sizes = entry.type.tensor_type.shape.dim
            names = _AXES[len(sizes)] if is_input else ("batch", _SECOND_AXIS.get(task, "length"))
            for number, size in enumerate(sizes):
                if not size.HasField("dim_value"):
                    size.dim_param = names[number] if number < len(names) else f"axis_{number}"
    return model.SerializeToString()


def _number(graph) -> None:
    """Sorts a graph by what its outputs need, and numbers its parts: the converter's order and names change from run to
    run, and the same model is to have the same bytes."""
    made_by = {name: node for node in graph.node for name in node.output}
    names = {entry.name: entry.name for entry in (*graph.input, *graph.output)}
    positions, waiting = {"": 0}, [entry.name for entry in reversed(graph.output)]
    while waiting:
        node = made_by.get(waiting[-1])
        missing = [name for name in node.input if name not in positions] if node else []
        waiting += reversed(missing)
        if not missing:
            for name in node.output if node else waiting[-1:]:
                positions.setdefault(name, len(positions))
            waiting.pop()
    names = {name: f"tensor_{position}" if name else "" for name, position in positions.items()} | names
    graph.node.sort(key=lambda node: positions[node.output[0]])
    graph.initializer.sort(key=lambda tensor: positions[tensor.name])
    del graph.value_info[:]
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
    for number, node in enumerate(graph.node):
        node.name, node.doc_string = f"{node.op_type}_{number}", ""
        node.input[:], node.output[:] = ([names[name] for name in part] for part in (node.input, node.output))


def _checked(content: bytes) -> set[str]:
    """The names of the operators of an ONNX file, which is sound and has only ONNX's own."""
    import onnx

    model = onnx.load_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    nodes = [part for part in messages_in(model) if isinstance(part, onnx.NodeProto)]  # of loops and branches, too
    if foreign := {f"{node.domain}.{node.op_type}" for node in nodes if node.domain not in ("", "ai.onnx")}:
        raise RuntimeError(f"the graph has operators that are not ONNX's: {', '.join(sorted(foreign))}")
    return {node.op_type for node in nodes}


def _quantized(content: bytes) -> bytes:
    """The ONNX file with the weights of matrix products and of word embeddings in 8 bits."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with storage.private_folder() as folder:
        source, target = (os.path.join(folder, name) for name in ONNX_FILES)
        with open(source, "wb") as file:
            file.write(content)
        options = {"op_types_to_quantize": ["MatMul", "Gather"], "per_channel": True, "weight_type": QuantType.QInt8}
        with export.quiet(python_logging.WARNING):
            quantize_dynamic(source, target, **options)
        with open(target, "rb") as file:
            return file.read()


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


# ---- chains that are one operator of ONNX ----------------------------------------------------------------------------

# TensorFlow has no operators for layer norm and GELU, so the converter writes each as a chain of ten, which passes over
# memory ten times. A pattern is an operator with the patterns of its inputs; a number, for a constant; or a name, for
# any tensor, which is the same one wherever the name occurs.
_Pattern = tuple | float | str

_CENTERED = ("Sub", "x", ("ReduceMean", "x"))
_INVERSE = ("Reciprocal", ("Sqrt", ("Add", ("ReduceMean", ("Mul", _CENTERED, _CENTERED)), "epsilon")))
_INNER = ("Mul", float(np.sqrt(2 / np.pi)), ("Add", "x", ("Mul", ("Mul", ("Mul", 0.044715, "x"), "x"), "x")))
_HALF = ("Mul", 0.5, "x")
_CHAINS: tuple[tuple[str, _Pattern, dict], ...] = (
    ("LayerNormalization", ("Add", ("Mul", _CENTERED, ("Mul", _INVERSE, "gamma")), "beta"), {"axis": -1}),
    # TensorFlow's graph optimizer multiplies the two factors first.
    ("LayerNormalization", ("Add", ("Mul", ("Mul", _CENTERED, _INVERSE), "gamma"), "beta"), {"axis": -1}),
    ("Gelu", ("Mul", _HALF, ("Add", 1.0, ("Tanh", _INNER))), {"approximate": "tanh"}),
    ("Gelu", ("Mul", _HALF, ("Add", 1.0, ("Erf", ("Mul", "x", float(np.sqrt(0.5)))))), {"approximate": "none"}),
)


def _fuse(graph) -> None:
    """Replaces the chains of a graph of tf2onnx by `LayerNormalization` (opset 17) and `Gelu` (opset 20)."""
    for node, (kind, pattern, attributes) in itertools.product(graph.get_nodes(), _CHAINS):
        tensors = next(_matches(graph, node.output[0], pattern, {}), None) if node.output else None
        if tensors is None:
            continue
        inputs, attributes = [tensors["x"]], dict(attributes)
        if kind == "LayerNormalization":
            epsilon, *vectors = (_constant(graph, tensors[name]) for name in ("epsilon", "gamma", "beta"))
            if epsilon is None or epsilon.size != 1 or any(vector is None or vector.ndim != 1 for vector in vectors):
                continue
            inputs += [tensors["gamma"], tensors["beta"]]
            attributes["epsilon"] = float(epsilon.item())
        (output,) = node.output
        known = {"shapes": [graph.get_shape(output)], "dtypes": [graph.get_dtype(output)]}
        graph.remove_node(node.name)
        graph.make_node(kind, inputs, attributes, outputs=[output], name=node.name, **known)
    graph.delete_unused_nodes(graph.outputs)


def _constant(graph, name: str) -> np.ndarray | None:
    """The value of a tensor; None if it is not a constant."""
    return graph.get_tensor_value(name, as_list=False) if graph.is_const(name) else None


def _matches(graph, name: str, pattern: _Pattern, known: dict[str, str]) -> Iterator[dict[str, str]]:
    """The ways in which a tensor fits a pattern: names of the pattern -> tensors."""
    if isinstance(pattern, str):
        if known.get(pattern, name) == name:
            yield {**known, pattern: name}
        return
    if isinstance(pattern, float):
        value = _constant(graph, name)
        if value is not None and value.size == 1 and np.isclose(value.item(), pattern, rtol=1e-6):
            yield known
        return
    kind, *parts = pattern
    node = graph.get_node_by_output(name)
    if node is None or node.type != kind:
        return
    inputs = node.input[: len(parts)]  # the further inputs of a reduction are its axes
    for names in (inputs, inputs[::-1]) if kind in ("Add", "Mul") else (inputs,):
        ways = [known]
        for tensor, part in zip(names, parts, strict=True):
            ways = [further for way in ways for further in _matches(graph, tensor, part, way)]
        yield from ways
