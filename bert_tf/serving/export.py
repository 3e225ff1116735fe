"""Fine-tuned models as SavedModels for TensorFlow Serving: strings in, answers out.

export_dir/VERSION/saved_model.pb, variables/        loads with TensorFlow and tensorflow_text only
                  /assets/vocab.txt, labels.txt       the tokenizer's files, and the names of the classes
                  /assets.extra/tf_serving_warmup_requests
                  /export.json                       what was exported, and which ops it needs
"""

import contextlib
import json
import logging as python_logging
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf
from absl import logging

from bert_tf.models import task_models
from bert_tf.models.initialize import check_trained
from bert_tf.serving import graph_models, safe_graph
from bert_tf.serving.graph_inputs import TextEncoder
from bert_tf.serving.graph_ner import ServedTagger
from bert_tf.serving.graph_squad import ServedQuestionAnswering
from bert_tf.serving.keras_runtime import MODELS
from bert_tf.store.description import read_sentence_settings
from bert_tf.store.open import EXPORT_FILE, GRAPH_FILE, ONNX_FILES, OpenedModel, open_encoder, open_model
from bert_tf.store.save import files_below, write_beside
from bert_tf.system import storage
from bert_tf.system.example_bytes import field
from bert_tf.system.storage import is_remote, names_in, write_text_file
from bert_tf.tasks import table
from bert_tf.tasks.ner.metrics import TaggingSettings, standard_tags
from bert_tf.tasks.squad.metrics import answer_settings
from bert_tf.tasks.table import TASKS
from bert_tf.text.graph_wordpiece import NoGraphError, graph_of

_MODELS = frozenset((GRAPH_FILE, *ONNX_FILES))


def export_saved_model(
    model_dir: str | OpenedModel,
    export_dir: str,
    *,
    task: str | None = None,
    dtype: str = "float32",
    freeze: bool = False,
    version: int | None = None,
    max_seq_length: int | None = None,
    text_pairs: bool = False,
    top_k: int = 5,
    warm_up: bool = True,
    ids_only: bool = False,
) -> str:
    """Exports the model in a directory as `export_dir/VERSION`, complete or not at all; returns that directory.

    Args:
      model_dir: a complete model directory of any format: weights, configuration, vocabulary.
      task: a name of `tasks.table.TASKS`; None: detected from the output layer.
      dtype: "float32" or "bfloat16", in which the matrix products are computed and their weights stored; embedding
        tables and layer norms stay in float32.
      freeze: turn weights into constants of the graph. A process that loads it then needs many times their size.
      version: a positive integer; by default one more than the newest in export_dir.
      max_seq_length: longer texts are cut (answers to questions: windowed); by default as trained.
      text_pairs: a classifier's `serving_default` takes pairs. top_k: guesses for each [MASK].
      warm_up: write requests that a server runs before it reports that it is ready.
      ids_only: nothing takes texts, so that it loads without tensorflow_text; so, too, if a tokenizer has no graph.
    """
    new_version(export_dir, version)  # raises before the work
    opened, task = open_for(model_dir, task)
    arguments = {"dtype": dtype, "max_seq_length": max_seq_length, "text_pairs": text_pairs, "top_k": top_k}
    served = create_served_model(opened, task, **arguments, ids_only=ids_only)
    ids_only = served.encoder.graph is None
    if freeze:
        served.freeze()
    of_ids = served.id_signatures()
    signatures = {"serving_default": of_ids["serve_ids"], **of_ids} if ids_only else served.signatures()
    functions = {name: function.get_concrete_function() for name, function in signatures.items()}
    description = {"task": task, "dtype": dtype, "frozen": freeze, "max_seq_length": served.encoder.max_seq_length}
    description |= {**served.facts, "labels": list(served.labels), "signatures": describe(functions)}
    ops = used_ops(functions)
    description |= {"ops": sorted(ops), "lowest_serving_version": safe_graph.lowest_version(ops)}
    with version_folder(export_dir) as folder:
        _write_version(folder, served, functions, warm_up and not ids_only)
        write_description(folder, description)
        target = publish(folder, export_dir, version)
    _log_export(target, opened.path, description)
    return target


def _log_export(target: str, model_dir: str, description: Mapping) -> None:
    entry, ops, frozen = TASKS[description["task"]], description["ops"], ", frozen" * description["frozen"]
    what = f"{entry.name} of {model_dir}, {description['dtype']}{frozen}; {len(ops)} ops"
    logging.info("%s: %s, all in TensorFlow Serving %s or later", target, what, description["lowest_serving_version"])
    inputs = description["signatures"]["serving_default"]["inputs"]
    if "text" in inputs and description.get("pairs") not in (None, "text_pair" in inputs):
        was, advice = ("pairs", "give") if description["pairs"] else ("single texts", "leave out")
        logging.warning("%s was trained on %s: %s --text_pairs.", model_dir, was, advice)
    answers = entry.answers_of_pairs if "text_pair" in inputs else entry.answers
    if answers and "input_ids" not in inputs:
        logging.info("In Python: from bert_tf import %s; %s", entry.answerer, answers.format(path=target))
    else:
        modules = "tf" if "input_ids" in inputs else "tf, tensorflow_text"
        call = f'tf.saved_model.load("{target}").signatures["serving_default"]'
        logging.info("In Python: import tensorflow as %s; %s", modules, call)
    versions = posixpath.dirname(target)
    versions = versions if is_remote(versions) else os.path.abspath(versions)
    command = "tensorflow_model_server --rest_api_port=8501 --model_name=NAME --model_base_path="
    logging.info("On a server: %s%s", command, versions)


def open_for(model_dir: str | OpenedModel, task: str | None) -> tuple[OpenedModel, str]:
    """A model, and the task that it was trained for: the one given, or else that of its output layer."""
    if isinstance(model_dir, OpenedModel):
        opened = model_dir
    else:
        part = task_models.BertForMaskedLM.part if task == "masked_lm" else None
        opened = open_encoder(model_dir) if task == "encoder" else open_model(model_dir, part=part)
    task = task or table.task_in(opened)
    table.check_task(opened, task)
    if task == "encoder":
        opened.sentences = opened.sentences or read_sentence_settings(opened.directory)
    return opened, task


def create_served_model(
    opened: OpenedModel,
    task: str,
    *,
    dtype: str = "float32",
    max_seq_length: int | None = None,
    text_pairs: bool = False,
    top_k: int = 5,
    ids_only: bool = False,
) -> graph_models.ServedModel:
    """A model of `open_for` with its tokenizer and signatures; see `export_saved_model`.

    ids_only: signatures that take texts can't be traced; so, too, if the tokenizer has no graph, which is logged.
    """
    labels = standard_tags(opened.head.labels) if task == "ner" else ()
    tagging = TaggingSettings.of_model(opened.directory, labels) if task == "ner" else None
    tokenizer = opened.make_tokenizer()
    settings = answer_settings(opened, tokenizer, max_seq_length=max_seq_length) if task == "squad" else None
    length = settings.windows.max_seq_length if settings else table.choose_max_seq_length(opened, max_seq_length)
    try:
        graph = None if ids_only else graph_of(tokenizer, split_unknown=task == "squad")
    except NoGraphError as error:
        if text_pairs:
            raise ValueError(f"--text_pairs: {error}") from None
        logging.warning("%s serve_client.py --tokenizer=%s makes them of texts.", error, opened.path)
        graph = None
    encoder = TextEncoder(tokenizer, length, graph)
    if task == "encoder":
        model = task_models.BertModel.from_pretrained(opened, dtype=dtype)
        check_trained(model)  # the pooler may be missing, which is warned of: only `pooled_output` depends on it
        return graph_models.ServedEncoder(model, encoder, opened.sentences)
    given = {"problem_type": "regression"} if task == "regression" else {}
    model = MODELS[task].from_pretrained(opened, dtype=dtype, trained=True, **given)
    if settings:
        return ServedQuestionAnswering(model, encoder, settings)
    if tagging:
        return ServedTagger(model, encoder, labels, tagging)
    if task == "multiple_choice":
        return graph_models.ServedMultipleChoice(model, encoder)
    if task == "masked_lm":
        return graph_models.ServedMaskedLM(model, encoder, top_k)
    if not model.head_config.window_pooling:
        return graph_models.ServedClassifier(model, encoder, opened.head, text_pairs)
    if text_pairs:
        raise ValueError(f"--text_pairs: {opened.path} reads windows of single texts.")
    return graph_models.ServedWindowClassifier(model, encoder, opened.head)


def used_ops(functions: Mapping[str, tf.types.experimental.ConcreteFunction]) -> set[str]:
    """Of the graphs and of the functions that these call."""
    names, library = set(), set()
    for function in functions.values():
        graph = function.graph.as_graph_def()
        names |= {node.op for node in graph.node}
        names |= {node.op for inner in graph.library.function for node in inner.node_def}
        library |= {inner.signature.name for inner in graph.library.function}
    return names - library


# ---- files -----------------------------------------------------------------------------------------------------------


def new_version(export_dir: str, version: int | None) -> int:
    """The number of a new export: the one given, else one more than the highest there, which servers take as newest."""
    names = [name for name in names_in(export_dir) if name.isdigit()]
    existing = [int(name) for name in names if not _is_half(posixpath.join(export_dir, name))]
    if version is None:
        return max(existing, default=0) + 1
    if version in existing:
        raise ValueError(f"--version={version}: {posixpath.join(export_dir, str(version))} already exists")
    return version


@contextlib.contextmanager
def version_folder(export_dir: str) -> Iterator[str]:
    """Yields the name of a local folder that no other export writes, for `publish`; it does not exist yet.

    What is left in it at the end is removed, as is what killed exports left.
    """
    tf.io.gfile.makedirs(export_dir)
    for name in filter(str.isdigit, names_in(export_dir) if is_remote(export_dir) else ()):
        left = posixpath.join(export_dir, name)
        for file in filter(storage.is_temporary_name, names_in(left)):
            tf.io.gfile.remove(posixpath.join(left, file))
    storage.remove_left_behind(parent := None if is_remote(export_dir) else export_dir)
    with storage.private_folder(parent) as folder:
        yield posixpath.join(folder, "version")


def publish(folder: str, export_dir: str, version: int | None) -> str:
    """Moves a complete folder to `export_dir/VERSION`, and returns that; without a version, to the next free one.

    This is one rename. To a remote folder files are copied, export.json first, and the model, without which a version
    does not count, last: a server that polls in between answers with the version before. One export at a time.
    """
    while True:
        target = posixpath.join(export_dir, str(new_version(export_dir, version)))
        if is_remote(target):
            names = sorted(files_below(folder), key=lambda name: (name in _MODELS, name != EXPORT_FILE))
            if there := files_below(target):
                logging.info("%s is of an export that was interrupted: it is made anew.", target)
            obsolete = [posixpath.join(target, name) for name in there if name not in names]
            moves = {posixpath.join(folder, name): posixpath.join(target, name) for name in names}
            storage.replace_files(moves, obsolete)
            return target
        try:
            tf.io.gfile.rename(folder, target)
            return target
        except tf.errors.OpError:
            if not tf.io.gfile.exists(target):
                raise


def _is_half(directory: str) -> bool:
    """Whether a remote version is one that `publish` has begun to write, or an empty folder."""
    names = {name for name in names_in(directory) if not storage.is_temporary_name(name)}
    is_begun = not names or EXPORT_FILE in names
    return is_remote(directory) and tf.io.gfile.isdir(directory) and is_begun and _MODELS.isdisjoint(names)


def write_description(directory: str, description: Mapping) -> None:
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    write_text_file(posixpath.join(directory, EXPORT_FILE), text)


def labels_file(labels: Sequence[str]) -> dict[str, bytes]:
    return {"labels.txt": "".join(label + "\n" for label in labels).encode()} if labels else {}


def _write_version(
    directory: str,
    served: graph_models.ServedModel,
    functions: Mapping[str, tf.types.experimental.ConcreteFunction],
    warm_up: bool,
) -> None:
    """Writes the SavedModel with its assets: the tokenizer's files, and labels.txt if there are labels."""
    contents = {**served.encoder.tokenizer.files(), **labels_file(served.labels)}
    root = tf.Module(name="served")
    root.variables_of_model = served.variables
    with storage.private_folder() as folder:
        write_beside(folder, contents)
        root.assets = [tf.saved_model.Asset(posixpath.join(folder, name)) for name in contents]
        python_logging.disable(python_logging.INFO)  # of what is saved
        try:
            tf.saved_model.save(root, directory, signatures=functions)  # copies the assets
        finally:
            python_logging.disable(python_logging.NOTSET)
    if warm_up:  # requests in the form that TensorFlow Serving reads when it loads a version (SavedModel Warmup)
        folder = posixpath.join(directory, "assets.extra")
        tf.io.gfile.makedirs(folder)
        with tf.io.TFRecordWriter(posixpath.join(folder, "tf_serving_warmup_requests")) as writer:
            for rows in (1, 8):
                writer.write(warm_up_request({name: [value] * rows for name, value in served.example().items()}))


def warm_up_request(inputs: Mapping[str, Sequence]) -> bytes:
    """A request for `serving_default` as a `PredictionLog` of TensorFlow Serving, whose classes are not needed.

    The field numbers: PredictionLog.predict_log 6, PredictLog.request 1, PredictRequest.model_spec 1 and inputs 2 (a
    map: key 1, value 2), ModelSpec.signature_name 3.
    """
    request = field(b"\x0a", field(b"\x1a", b"serving_default"))
    for name, values in inputs.items():
        tensor = tf.make_tensor_proto(values).SerializeToString()
        request += field(b"\x12", field(b"\x0a", name.encode()) + field(b"\x12", tensor))
    return field(b"\x32", field(b"\x0a", request))


def describe(functions: Mapping[str, tf.types.experimental.ConcreteFunction]) -> dict:
    """Names, dtypes and shapes of the inputs and outputs of each signature."""

    def forms(specs: Mapping) -> dict:
        return {name: [spec.dtype.name, spec.shape.as_list()] for name, spec in specs.items()}

    inputs = {name: {spec.name: spec for spec in of.structured_input_signature[0]} for name, of in functions.items()}
    return {
        name: {"inputs": forms(inputs[name]), "outputs": forms(function.structured_outputs)}
        for name, function in functions.items()
    }
