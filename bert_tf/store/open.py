"""One way in: a model's path, or its name on the hub, is opened once, and what was found is passed on.

    opened = open_model("klue/bert-base")
    opened.config, opened.head, opened.weights["bert/pooler/dense/bias"], opened.make_tokenizer()

To add a format of weights, add it to `FORMATS`, read it in `open_weights`, and write it in `save.py`. Keras is never
imported here, TensorFlow for paths that only it opens (gs://...) and for the Model Garden's checkpoints.
"""

import contextlib
import dataclasses
import itertools
import posixpath

from bert_tf.families import family_of, family_of_variables
from bert_tf.families.family import Family
from bert_tf.store import bundle, description, huggingface, variable_names
from bert_tf.store.tensor_files import Weights, open_safetensors
from bert_tf.system import hub
from bert_tf.system.messages import abbreviated_list, naming_flag, warn_once
from bert_tf.system.released_models import check_there, hint
from bert_tf.system.storage import is_remote, names_in
from bert_tf.system.text_files import Folder, directory_of, list_folder, read_json
from bert_tf.text.tokenizer import Tokenizer

# How the names of files other than TensorFlow's checkpoints end.
_ENDINGS = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".h5")
# What export_saved_model.py writes.
EXPORT_FILE, GRAPH_FILE = "export.json", "saved_model.pb"
ONNX_FILES = ("model.onnx", "model_int8.onnx")


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of weights, and what it can hold.

    name, help: of --format. looked_for: what a directory must have one of.
    file_name: of the weights in a directory that is written; None: the format is only read.
    """

    name: str
    help: str
    looked_for: tuple[str, ...]
    file_name: str | None = None


_OURS, _THEIRS, _TF1 = "bert_model.safetensors", "model.safetensors", "bert_model.ckpt"
_THEIR_FILES = (_THEIRS, f"{_THEIRS}.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
BERT_TF = Format("bert_tf", "safetensors under the original's names.", (_OURS,), _OURS)
HUGGINGFACE = Format("huggingface", f"config.json and {_THEIRS}.", _THEIR_FILES, _THEIRS)
MODEL_GARDEN = Format("model_garden", "the format of tf-models-official, only read.", ("variables/variables.index",))
TF1 = Format("tf1", "the format of the original's scripts.", (f"{_TF1}.index",), _TF1)
# By name, in the order in which a directory is searched.
FORMATS = {format.name: format for format in (BERT_TF, HUGGINGFACE, MODEL_GARDEN, TF1)}


def find_weights(folder: Folder, path: str) -> tuple[Format, str]:
    """The format of the weights at a path, and their file, or the prefix of a TensorFlow checkpoint."""
    is_folder = path == folder.path
    if is_folder:
        names = [name for name in (*BERT_TF.looked_for, *HUGGINGFACE.looked_for) if name in folder.names]
        file = posixpath.join(path, names[0]) if names else None
    else:
        file = path if path.endswith(_ENDINGS) and posixpath.basename(path) in folder.names else None
    if file:
        is_ours = posixpath.basename(file) == BERT_TF.file_name
        if not is_ours and file == path and file.endswith(".safetensors"):
            is_ours = open_safetensors(file)[1].get("format") == BERT_TF.name
        return (BERT_TF if is_ours else HUGGINGFACE), file
    prefix = bundle.find_bundle(path, folder, TF1.file_name or "")
    if prefix:
        return (MODEL_GARDEN if bundle.CheckpointReader(prefix).has_tensor(bundle.OBJECT_GRAPH) else TF1), prefix
    if is_folder:
        if "tf_model.h5" in folder.names:  # the last, as any other may be newer
            return HUGGINGFACE, posixpath.join(path, "tf_model.h5")
        looked_for = ", ".join(name for kind in FORMATS.values() for name in kind.looked_for)
        there = abbreviated_list([name for name in folder.names if "/" not in name]) or "nothing"
        raise FileNotFoundError(f"{path} has no weights: none of {looked_for}. It contains {there}.")
    formats = "no directory, .safetensors, .bin or .h5 file, and no prefix of a checkpoint (PREFIX.index)"
    raise FileNotFoundError(f"{path}: no weights found: it is {formats}.{hint(path)}")


def has_weights(folder: str) -> bool:
    try:
        find_weights(list_folder(folder), folder)
    except (FileNotFoundError, ValueError) as error:
        return isinstance(error, ValueError)  # damaged ones
    return True


def is_light(path: str) -> bool:
    """Whether names and shapes of the weights at a path are read without TensorFlow."""
    return not is_remote(path) and find_weights(list_folder(path), path)[0] is not MODEL_GARDEN


def open_weights(path: str, *, merge: bool = True) -> Weights:
    """Opens the weights at a path, of several models in a file the first; reads only names and shapes.

    merge: adapters of LoRA, which checkpoints of a run have, are added to their kernels. False: as they are stored.
    """
    return _open_in(list_folder(path), path, merge)


def _open_in(folder: Folder, path: str, merge: bool = True) -> Weights:
    format, file = find_weights(folder, path)
    if format is BERT_TF:
        weights = open_ours(file)
    elif format is HUGGINGFACE:
        weights = huggingface.open_file(file)
    elif format is MODEL_GARDEN:
        from bert_tf.store import model_garden

        weights = model_garden.open_checkpoint(file)
    else:
        weights = bundle.open_checkpoint(file)
    if merge and any(map(variable_names.is_adapter, weights.shapes)):
        weights = variable_names.merged(weights)
    return weights


def open_ours(file: str) -> Weights:
    shapes, _, read = open_safetensors(file)
    return Weights(file, BERT_TF.name, shapes, {name: name for name in shapes}, read)


def has_optimizer_state(weights: Weights) -> bool:
    return any(name.endswith("/adam_m") for name in weights)


# --- a model ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class OpenedModel(description.ModelFiles):
    """A model that was opened: `ModelFiles`, its weights, and where it was. Everything that takes a model takes this.

    path: the local one that was opened: a folder, a file of weights, or the prefix of a checkpoint; "" if the model
      begins with random weights.
    weights: a mapping that reads a tensor on each access, see `Weights`; None if the model was opened without.
    export: the folder of a SavedModel or ONNX export, see `open_answerer`. Of a SavedModel nothing else is known.
    """

    path: str = ""
    weights: Weights | None = None
    export: str | None = None

    @property
    def family(self) -> Family:
        """By the configuration, else by the names of the weights, else BERT."""
        return family_of(self.config) if self.config else family_of_variables(self.weights or ())

    @property
    def is_onnx(self) -> bool:
        return self.export is not None and onnx_file(self.export) is not None


def open_model(
    path, *, part: str | None = None, config_file: str | None = None, with_weights: bool = True
) -> OpenedModel:
    """Opens a model, whose configuration is checked against the names and shapes of its weights.

    For a SavedModel, Model Garden checkpoint or Google's ELECTRA without a configuration, sizes are inferred from the
    weights, and a log line says what can't be inferred.

    Args:
      path: a folder of any format, a file of weights, the prefix of a checkpoint, or a name on the hub.
      part: which of the models that are trained together, if the family has any, see `Family.parts`.
      config_file: a configuration to use instead of the one there.
      with_weights: False: they are neither fetched nor opened, unless nothing else says the family.
    """
    path = hub.local(path, with_weights=with_weights)
    folder = list_folder(path)
    opened = OpenedModel(folder.path, path=path)
    is_bare = not config_file and description.CONFIG_FILES.isdisjoint(folder.names)
    if with_weights or is_bare:  # the names of its weights say the family
        if not with_weights:
            check_there(path)
        with contextlib.nullcontext() if with_weights else contextlib.suppress(FileNotFoundError):
            opened.weights = _open_in(folder, path)
        if with_weights and part:
            weights, family = opened.weights, family_of_variables(opened.weights)
            others = [other for other, variable in family.parts.items() if other != part and variable in weights]
            if others and part not in weights.parts:
                kind = f"is the {others[0]} of an {family.title}"
                raise ValueError(f"{weights.path} {kind}: give the weights of a {part}.")
            opened.weights = weights.parts.get(part, weights)  # if nothing shows which it is, the file's only one
    weights = opened.weights if with_weights else None
    return dataclasses.replace(opened, **vars(description.files_in(folder, weights, config_file, family=opened.family)))


def open_answerer(path) -> OpenedModel:
    """`open_model`, or the newest version of an export in a folder, which is taken instead of weights."""
    folder = list_folder(path := hub.local(path))
    export = find_export(folder) if path == folder.path else None
    if not export:
        return open_model(path)
    opened = OpenedModel(export.path, path=export.path, export=export.path)
    return dataclasses.replace(opened, **vars(description.files_in(export))) if opened.is_onnx else opened


def open_encoder(path, *, or_export: bool = False) -> OpenedModel:
    """`open_model` or `open_answerer`, with `sentences`; a folder of sentence-transformers may have its encoder in
    another one, which is then opened."""
    sentences = description.read_sentence_settings(directory_of(path := hub.local(path)))
    path = sentences.directory if sentences.described else path
    opened = open_answerer(path) if or_export else open_model(path)
    opened.sentences = description.read_sentence_settings(opened.directory) if opened.is_onnx else sentences
    return opened


def open_local(path: str, *, is_checked: bool) -> OpenedModel:
    """`open_model` of a local path, where no name on the hub is meant.

    is_checked: False: weights and configuration may differ, as where training begins with a part of a model.
    """
    weights = _open_in(folder := list_folder(path), path)
    return OpenedModel(**vars(description.files_in(folder, weights, None, is_checked)), path=path, weights=weights)


def read_tokenizer(path: str) -> Tokenizer:
    """The tokenizer of a model directory (or of weights in it), of the kind that its family has.

        tokenizer = read_tokenizer("roberta-base")
        model(tokenizer(["one", "two words"]))  # arrays of input_ids, input_mask, segment_ids

    Raises:
      FileNotFoundError, ValueError: there is no model, or no vocabulary that fits it.
    """
    return open_model(path, with_weights=False).make_tokenizer()


def open_for_script(
    path: str | None, settings, *, flag: str = "--init_checkpoint", is_checked: bool = False
) -> OpenedModel:
    """The model of a script, with configuration, vocabulary and casing by its `ModelSettings`.

    path: of the weights; None: it begins with random ones. flag: that names them. is_checked: see `open_local`.
    """
    folder, weights = Folder("", ()), None
    if path:
        with naming_flag(flag):
            folder = list_folder(path)
            weights = _open_in(folder, path)
    files = description.files_in(folder, weights, settings.bert_config_file, is_checked)
    opened = OpenedModel(**vars(files), path=path or "", weights=weights)
    config = opened.needed_config()
    if weights is not None:
        # Weights trained with causal attention are to be used with it, which their shapes don't show.
        beside = description.find_config(list_folder(opened.directory)) if settings.bert_config_file else None
        if beside and (attention := description.read_config(beside).attention) != config.attention:
            raise ValueError(
                f"--bert_config_file={settings.bert_config_file} says attention={config.attention}, but the "
                f"configuration next to {weights.path} {attention}."
            )
        if opened.family.parts.get("generator") in weights and "discriminator" not in weights.parts:
            text = f"{weights.path} is the generator of an {config.title}: the authors fine-tune the discriminator."
            warn_once("weights", text)
    opened.take_vocabulary(settings.vocab_file, settings.do_lower_case, settings.strip_accents)
    if not opened.vocab_file:
        name = opened.family.tokenizer_class.vocab_name
        raise ValueError(f"{opened.directory or 'The model'} has no {name} or tokenizer.json: give --vocab_file.")
    return opened


# --- exports ----------------------------------------------------------------------------------------------------------


def find_export(folder: Folder) -> Folder | None:
    """The SavedModel or ONNX export in a folder, if any: the folder itself, or the newest version in it."""
    versions = sorted((int(name) for name in folder.names if name.isdigit()), reverse=True)
    paths = (posixpath.join(folder.path, str(version)) for version in versions)
    for candidate in itertools.chain([folder], (Folder(path, names_in(path)) for path in paths)):
        if EXPORT_FILE in candidate.names and not {GRAPH_FILE, *ONNX_FILES}.isdisjoint(candidate.names):
            return candidate
    return None


def onnx_file(directory: str) -> str | None:
    names = names_in(directory)
    return next((posixpath.join(directory, name) for name in ONNX_FILES if name in names), None)


def description_of(directory: str) -> dict:
    """The content of export.json; what it lacks is an error that names the file."""
    path = posixpath.join(directory, EXPORT_FILE)

    class Described(dict):
        def __missing__(self, key):
            raise ValueError(f"{path} does not say {key!r} where exports do: is it damaged?")

    return read_json(path, object_hook=Described)
