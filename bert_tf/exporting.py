"""Fine-tuned models as SavedModels for TensorFlow Serving: strings in, answers out.

    export_dir/VERSION/saved_model.pb, variables/        loads with TensorFlow and tensorflow_text only
                      /assets/vocab.txt, labels.txt
                      /assets.extra/tf_serving_warmup_requests
                      /export.json                       what was exported, and which ops it takes

What the signatures do is in `serving_tasks` and `serving_squad`.
"""

import json
import posixpath
from collections.abc import Mapping

import keras
import tensorflow as tf
from absl import logging

from bert_tf import baseline_models, exports, model_files, serving_ops, serving_tasks, task_models, weight_files
from bert_tf.modeling import BertModel
from bert_tf.predictor import task_of
from bert_tf.serving_ner import ServedTagger
from bert_tf.text_files import write_text_file
from bert_tf.tokenization import FullTokenizer

TASKS = ("encoder", "classification", "regression", "squad", "ner", "multiple_choice", "masked_lm")
# In bfloat16 the weights of matrix products are kept in it, too; tables and layer norms stay in float32.
DTYPES = ("float32", "bfloat16")
_ARCHITECTURES = {
    "classification": "BertForSequenceClassification",
    "regression": "BertForSequenceClassification",
    "ner": "BertForTokenClassification",
    "multiple_choice": "BertForMultipleChoice",
}
MOST_FROZEN_BYTES = 1_900_000_000  # a graph is a protocol buffer, which is less than 2 GiB


def export_saved_model(
    model_dir: str,
    export_dir: str,
    *,
    task: str | None = None,
    dtype: str = "float32",
    freeze: bool | None = None,
    version: int | None = None,
    max_seq_length: int | None = None,
    text_pairs: bool = False,
    top_k: int = 5,
    warm_up: bool = True,
) -> str:
    """Writes a model's directory as `export_dir/VERSION`, whole or not at all.

    Args:
      model_dir: a directory that describes itself: weights, configuration, vocabulary; of any format.
      task: one of TASKS; seen from the output layer, if None.
      dtype: "float32" or "bfloat16", in which the matrix products are computed.
      freeze: weights become constants of the graph, which lets oneDNN pack them once; None: where that is faster,
        and they are not too large.
      version: a positive integer; by default one more than the newest in export_dir.
      max_seq_length: longer texts are cut (answers to questions: windowed); by default as trained.
      text_pairs: a classifier's `serving_default` takes pairs. top_k: guesses for each [MASK].
      warm_up: write requests that a server runs before it says that it is ready.

    Returns:
      The directory written.

    Raises:
      FileNotFoundError, ValueError: no model there, or none for the task; a version that exists; an op that a server
        does not have.
    """
    if dtype not in DTYPES:
        raise ValueError(f"--dtype={dtype}: it is one of {', '.join(DTYPES)}")
    version = _new_version(export_dir, version)
    task = task or task_in(model_dir)
    if task not in TASKS:
        raise ValueError(f"--task={task}: it is one of {', '.join(TASKS)}")
    served = create_served_model(
        model_dir, task, dtype=dtype, max_seq_length=max_seq_length, text_pairs=text_pairs, top_k=top_k
    )
    if freeze is None:
        # The long rows of questions gain nothing in float32 (docs/benchmarks.md, Serving).
        freeze = served.weight_bytes < MOST_FROZEN_BYTES and (task, dtype) != ("squad", "float32")
    if freeze:
        if served.weight_bytes >= MOST_FROZEN_BYTES:
            raise ValueError(
                f"--freeze: the weights take {served.weight_bytes / 1e9:.1f} GB, and a graph holds less than 2 of "
                "constants: --nofreeze"
            )
        served.freeze()
    functions = {name: function.get_concrete_function() for name, function in served.signatures().items()}
    ops = used_ops(functions)
    lowest = serving_ops.lowest_version(ops)
    target = posixpath.join(export_dir, str(version))
    temporary = posixpath.join(export_dir, f".{version}.tmp")
    if tf.io.gfile.exists(temporary):
        tf.io.gfile.rmtree(temporary)
    try:
        files = model_files.read_model_files(model_dir)
        labels = labels_of(served)
        with_assets = _write_assets(temporary, files, labels)
        served.assets = [tf.saved_model.Asset(path) for path in with_assets]
        tf.saved_model.save(served, temporary, signatures=functions)
        for path in with_assets:
            tf.io.gfile.remove(path)
        if warm_up:
            _write_warm_up(temporary, served)
        description = {
            "task": task,
            "dtype": dtype,
            "frozen": freeze,
            "max_seq_length": served.max_seq_length,
            "labels": labels,
            "signatures": _describe(functions),
            "ops": sorted(ops),
            "lowest_serving_version": lowest,
        }
        write_text_file(posixpath.join(temporary, exports.EXPORT_FILE), json.dumps(description, indent=2) + "\n")
        tf.io.gfile.rename(temporary, target)
    except BaseException:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.rmtree(temporary)
        raise
    logging.info(
        "%s: %s of %s, %s%s; %d ops, all in TensorFlow Serving %s or later",
        target,
        task,
        model_dir,
        dtype,
        ", frozen" if freeze else "",
        len(ops),
        lowest,
    )
    return target


def task_in(model_dir: str) -> str:
    """The task that a model's output layer is for.

    Raises:
      ValueError: it could be for several; names --task.
    """
    weights = weight_files.open_weights(model_dir)
    if "cls/squad/output_weights" in weights:
        return "squad"
    if "output_weights" in weights:
        if tf.io.gfile.exists(posixpath.join(model_files.directory_of(model_dir), "token_classification.json")):
            return "ner"
        config = model_files.read_model_files(model_dir).config
        outputs = weights.shapes["output_weights"][0]
        problem_type = getattr(config, "problem_type", None)
        if getattr(config, "architectures", None) == ["BertForMultipleChoice"]:
            return "multiple_choice"
        if outputs == 1 and problem_type is None:
            raise ValueError(f"{model_dir} has one output: give --task=regression or --task=multiple_choice.")
        return "regression" if problem_type == "regression" else "classification"
    return "masked_lm" if "cls/predictions/output_bias" in weights else "encoder"


def create_served_model(
    model_dir: str,
    task: str,
    *,
    dtype: str = "float32",
    max_seq_length: int | None = None,
    text_pairs: bool = False,
    top_k: int = 5,
) -> serving_tasks.ServedModel:
    """The model of a directory with what it takes to answer; see `export_saved_model`."""
    tokenizer = FullTokenizer.from_pretrained(model_dir)
    files = model_files.read_model_files(model_dir)
    architecture = (getattr(files.config, "architectures", None) or [""])[0]
    if not architecture and getattr(files.config, "problem_type", None):  # which only classifiers of whole texts have
        architecture = _ARCHITECTURES["classification"]
    if architecture in baseline_models.ARCHITECTURES.values():
        raise ValueError(f"{model_dir} is a {architecture}, a model without BERT: only models with one are exported.")
    needed = {"squad": "cls/squad/output_weights", "masked_lm": "cls/predictions/output_bias"}.get(
        task, None if task == "encoder" else "output_weights"
    )
    if needed and needed not in weight_files.open_weights(model_dir):
        raise ValueError(f"--task={task}: {model_dir} has no output layer for it ({needed}).")
    # Several tasks have the same output layer.
    if architecture in _ARCHITECTURES.values() and architecture != _ARCHITECTURES.get(task, architecture):
        raise ValueError(f"--task={task}: {model_dir} is a {architecture}.")
    if task == "regression":
        outputs = weight_files.open_weights(model_dir).shapes["output_weights"][0]
        if outputs != 1:
            raise ValueError(f"--task=regression: {model_dir} has {outputs} outputs, and a regression has one.")

    def load(model_class: type, **arguments) -> keras.Model:
        return model_class.from_pretrained(model_dir, dtype=dtype, **arguments)

    def length(config, default: int | None = None) -> int:
        limit = config.max_position_embeddings
        chosen = max_seq_length or min(files.max_seq_length or default or limit, limit)
        if not 3 <= chosen <= limit:
            raise ValueError(f"--max_seq_length={chosen}: the model takes 3 to {limit} (max_position_embeddings)")
        return chosen

    if task == "encoder":
        model = load(BertModel)
        return serving_tasks.ServedEncoder(model, tokenizer, length(model.config))
    if task == "masked_lm":
        model = load(task_models.BertForMaskedLM)
        return serving_tasks.ServedMaskedLM(model, tokenizer, length(model.config), top_k)
    if task == "multiple_choice":
        model = load(task_models.BertForMultipleChoice)
        return serving_tasks.ServedMultipleChoice(model, tokenizer, length(model.config))
    if task == "squad":
        return serving_tasks.ServedQuestionAnswering.from_pretrained(model_dir, dtype, max_seq_length)
    if task == "ner":
        return ServedTagger.from_pretrained(model_dir, dtype, max_seq_length)
    arguments = {"problem_type": "regression"} if task == "regression" else {}
    model = load(task_models.BertForSequenceClassification, **arguments)
    labels = task_of(model.config, model.num_labels, model.problem_type).labels or ()
    return serving_tasks.ServedClassifier(
        model, tokenizer, length(model.config), labels, model.problem_type, text_pairs
    )


def labels_of(served) -> list[str]:
    """The names of the classes of a served model; none if it has no classes."""
    return list(getattr(served, "labels", ()))


# ---- ops -------------------------------------------------------------------------------------------------------------


def used_ops(functions: Mapping[str, tf.types.experimental.ConcreteFunction]) -> set[str]:
    """The names of the ops in graphs and in the functions that they call."""
    names = set()
    for function in functions.values():
        graph = function.graph.as_graph_def()
        names |= {node.op for node in graph.node}
        names |= {node.op for inner in graph.library.function for node in inner.node_def}
    library = {inner.signature.name for f in functions.values() for inner in f.graph.as_graph_def().library.function}
    return names - library


# ---- files -----------------------------------------------------------------------------------------------------------


def _new_version(export_dir: str, version: int | None) -> int:
    existing = []
    if tf.io.gfile.exists(export_dir):
        names = (name.rstrip("/") for name in tf.io.gfile.listdir(export_dir))
        existing = [int(name) for name in names if name.isdigit()]
    if version is None:
        return max(existing, default=0) + 1
    if version < 1:
        raise ValueError(f"--version={version} must be at least 1")
    if version in existing:
        raise ValueError(f"--version={version}: {posixpath.join(export_dir, str(version))} exists already")
    return version


def _write_assets(directory: str, files: model_files.ModelFiles, labels: list[str]) -> list[str]:
    """Writes vocab.txt, and labels.txt where there are labels; tf.saved_model.save copies them into assets/."""
    tf.io.gfile.makedirs(directory)
    contents = {"vocab.txt": model_files.vocabulary_lines(files.vocab_file)}
    if labels:
        contents["labels.txt"] = labels
    paths = []
    for name, lines in contents.items():
        paths.append(posixpath.join(directory, name))
        write_text_file(paths[-1], "".join(line + "\n" for line in lines))
    return paths


def _write_warm_up(directory: str, served) -> None:
    """Requests in the form that TensorFlow Serving reads when it loads a version (SavedModel Warmup)."""
    from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

    folder = posixpath.join(directory, "assets.extra")
    tf.io.gfile.makedirs(folder)
    with tf.io.TFRecordWriter(posixpath.join(folder, "tf_serving_warmup_requests")) as writer:
        for signature, inputs in served.warm_up_requests():
            request = predict_pb2.PredictRequest(
                model_spec=model_pb2.ModelSpec(signature_name=signature),
                inputs={name: tf.make_tensor_proto(value) for name, value in inputs.items()},
            )
            log = prediction_log_pb2.PredictLog(request=request)
            writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())


def _describe(functions: Mapping) -> dict:
    """Names, dtypes and shapes of the inputs and outputs of each signature."""

    def shape(spec) -> list:
        return [None if size is None else int(size) for size in spec.shape]

    described = {}
    for name, function in functions.items():
        inputs = function.structured_input_signature
        specs = {spec.name: spec for spec in [*inputs[0], *inputs[1].values()]}
        outputs = function.structured_outputs
        described[name] = {
            "inputs": {key: [spec.dtype.name, shape(spec)] for key, spec in specs.items()},
            "outputs": {key: [spec.dtype.name, shape(spec)] for key, spec in outputs.items()},
        }
    return described
