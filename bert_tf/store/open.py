"""One way in: a model's path, or its name on the hub, is opened once, and what was found is passed on.

    opened = open_model("klue/bert-base")
    opened.config, opened.head, opened.weights["bert/pooler/dense/bias"], opened.make_tokenizer()

To add a format of weights, add it to `FORMATS`, read it in `open_weights`, and write it in `save.py`. Keras is never
imported here, TensorFlow for paths that only it opens (gs://...) and for the Model Garden's checkpoints.
"""

import contextlib
import dataclasses
import functools
import posixpath
from typing import Any

from absl import logging

from bert_tf.families import family_of, family_of_variables, is_encoder_variable
from bert_tf.families.family import Family, config_of_shapes
from bert_tf.store import variable_names
from bert_tf.store.description import (
    ModelFiles,
    check_other_vocabulary,
    find_config,
    read_config,
    read_head,
    read_model_files,
    read_settings,
)
from bert_tf.store.tensor_files import Weights, open_safetensors
from bert_tf.system.hub import path_of
from bert_tf.system.messages import abbreviated_list, naming_flag
from bert_tf.system.storage import finish_replacing, is_remote, names_in
from bert_tf.system.text_files import exists, is_folder
from bert_tf.text.tokenizer_files import directory_of, first_existing, is_there, read_casing, resolve_casing

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
    takes_prefix: a target may be a prefix such as out/bert_model.ckpt, not only a directory.
    holds_optimizer: can store Adam moments and the step.
    holds_variants: can record that a model is causal or reads windows; in other formats it would be read as BERT.
    knows_exact_gelu: the format's own programs have hidden_act "gelu_erf".
    """

    name: str
    help: str
    looked_for: tuple[str, ...]
    file_name: str | None = None
    takes_prefix: bool = False
    holds_optimizer: bool = False
    holds_variants: bool = False
    knows_exact_gelu: bool = True


BERT_TF = Format(
    name="bert_tf",
    help="safetensors under the original's names.",
    looked_for=("bert_model.safetensors",),
    file_name="bert_model.safetensors",
    holds_optimizer=True,
    holds_variants=True,
)
HUGGINGFACE = Format(
    name="huggingface",
    help="config.json and model.safetensors.",
    looked_for=(
        "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    ),
    file_name="model.safetensors",
)  # fmt: skip
MODEL_GARDEN = Format(
    name="model_garden", help="the format of tf-models-official, only read.", looked_for=("variables/variables.index",)
)
TF1 = Format(
    name="tf1",
    help="the format of the original's scripts.",
    looked_for=("bert_model.ckpt.index",),
    file_name="bert_model.ckpt",
    takes_prefix=True,
    holds_optimizer=True,
    knows_exact_gelu=False,
)
# By name, in the order in which a directory is searched.
FORMATS = {format.name: format for format in (BERT_TF, HUGGINGFACE, MODEL_GARDEN, TF1)}


def find_weights(path: str) -> tuple[Format, str]:
    """The format of the weights at a path, and their file, or the prefix of a TensorFlow checkpoint."""
    finish_replacing(path if is_folder(path) else posixpath.dirname(path))
    file = path if path.endswith(_ENDINGS) and exists(path) else None
    if is_folder(path):
        file = first_existing(path, (*BERT_TF.looked_for, *HUGGINGFACE.looked_for))
    if file:
        is_ours = posixpath.basename(file) == BERT_TF.file_name
        if not is_ours and file == path and file.endswith(".safetensors"):
            is_ours = open_safetensors(file)[1].get("format") == BERT_TF.name
        return (BERT_TF if is_ours else HUGGINGFACE), file
    from bert_tf.store import bundle  # other formats don't need it

    prefix = bundle.find_bundle(path, TF1.file_name or "")
    if prefix:
        return (MODEL_GARDEN if bundle.CheckpointReader(prefix).has_tensor(bundle.OBJECT_GRAPH) else TF1), prefix
    if is_folder(path):
        if file := first_existing(path, ("tf_model.h5",)):  # the last, as any other may be newer
            return HUGGINGFACE, file
        looked_for = ", ".join(name for kind in FORMATS.values() for name in kind.looked_for)
        there = abbreviated_list(names_in(path)) or "nothing"
        raise FileNotFoundError(f"{path} has no weights: none of {looked_for}. It contains {there}.")
    from bert_tf.system.released_models import hint

    formats = "no directory, .safetensors, .bin or .h5 file, and no prefix of a checkpoint (PREFIX.index)"
    raise FileNotFoundError(f"{path}: no weights found: it is {formats}.{hint(path)}")


def has_weights(folder: str) -> bool:
    try:
        find_weights(folder)
    except (FileNotFoundError, ValueError) as error:
        return isinstance(error, ValueError)  # damaged ones
    return True


def is_light(path: str) -> bool:
    """Whether names and shapes of the weights at a path are read without TensorFlow."""
    return not is_remote(path) and find_weights(path)[0] is not MODEL_GARDEN


def open_weights(path: str, *, merge: bool = True) -> Weights:
    """Opens the weights at a path, of several models in a file the first; reads only names and shapes.

    merge: adapters of LoRA, which checkpoints of a run have, are added to their kernels. False: as they are stored.
    """
    format, file = find_weights(path)
    if format is BERT_TF:
        weights = open_ours(file)
    elif format is HUGGINGFACE:
        from bert_tf.store import huggingface

        weights = huggingface.open_file(file)
    elif format is MODEL_GARDEN:
        from bert_tf.store import model_garden

        weights = model_garden.open_checkpoint(file)
    else:
        from bert_tf.store import bundle

        weights = bundle.open_checkpoint(file)
    if merge and any(map(variable_names.is_adapter, weights.shapes)):
        weights = variable_names.merged(weights)
    return weights


def open_ours(file: str) -> Weights:
    shapes, _, read = open_safetensors(file)
    return Weights(file, BERT_TF.name, shapes, {name: name for name in shapes}, read)


def has_optimizer_state(weights: Weights) -> bool:
    """Whether weights have the Adam moments, without which training can't continue from them."""
    return any(name.endswith("/adam_m") for name in weights)


# --- a model ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class OpenedModel(ModelFiles):
    """A model that was opened: `ModelFiles`, its weights, and where it was. Everything that takes a model takes this.

    path: the local one that was opened: a folder, a file of weights, or the prefix of a checkpoint; "" if the model
      begins with random weights.
    weights: a mapping that reads a tensor on each access, see `Weights`; None if the model was opened without.
    export: the folder of a SavedModel or ONNX export, see `open_model`. Of a SavedModel nothing else is known.
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
    path,
    *,
    part: str | None = None,
    config_file: str | None = None,
    with_weights: bool = True,
    for_vectors: bool = False,
    or_export: bool = False,
    is_checked: bool = True,
) -> OpenedModel:
    """Opens a model, whose configuration is checked against the names and shapes of its weights.

    For a SavedModel, Model Garden checkpoint or Google's ELECTRA without a configuration, sizes are inferred from the
    weights, and a log line says what can't be inferred.

    Args:
      path: a folder of any format, a file of weights, the prefix of a checkpoint, or a name on the hub.
      part: which of the models that are trained together, if the family has any, see `Family.parts`.
      config_file: a configuration to use instead of the one there.
      with_weights: False: they are neither fetched nor opened, unless nothing else says the family.
      for_vectors: also `sentences`; a folder of sentence-transformers may have its encoder in another one, which is
        then opened.
      or_export: an export there, the newest version in the folder, is taken instead of weights.
      is_checked: False: weights and configuration may differ, as where training begins with a part of a model.

    Raises:
      FileNotFoundError: there is nothing.
      ValueError: files are damaged, contradict each other, or are of a family that is not known here.
    """
    path = path_of(path, read_head, with_weights)
    opened, sentences = OpenedModel(directory_of(path), path=path), None
    if for_vectors:
        sentences = read_settings(opened.directory)
        if sentences.described:
            opened.path = sentences.directory
    if or_export and (export := find_export(opened.path)):
        opened.path = opened.export = opened.directory = export
        if not opened.is_onnx:
            return dataclasses.replace(opened, sentences=sentences)
        files, sentences = read_model_files(export), read_settings(export) if for_vectors else None
    elif with_weights:
        opened.weights = open_weights(opened.path)
        if part in family_of_variables(opened.weights).parts:
            opened.weights = _part_of(opened.weights, part)
        files = _files_beside(opened.weights, config_file, is_checked)
    else:
        files = read_model_files(opened.path, config_file=config_file)
        if not files.config:
            files = _without_configuration(opened)
    described: dict[str, Any] = {**vars(files), "sentences": sentences}
    return dataclasses.replace(opened, **described)


def open_local(path: str, *, is_checked: bool = True) -> OpenedModel:
    """`open_model` of a local path, where no name on the hub is meant."""
    weights = open_weights(path)
    return OpenedModel(**vars(_files_beside(weights, None, is_checked)), path=path, weights=weights)


def _part_of(weights: Weights, part: str) -> Weights:
    """One of the models in a file; the file's only one where nothing shows which it is."""
    if part in weights.parts:
        return weights.parts[part]
    family = family_of_variables(weights)
    for other, variable in family.parts.items():
        if other != part and variable in weights:
            title = family.config_class.title
            raise ValueError(f"{weights.path} is the {other} of an {title}: give the weights of a {part}.")
    return weights


def _without_configuration(opened: OpenedModel) -> ModelFiles:
    """The files of a model whose family the weights say, if they are there."""
    if not is_there(opened.path):
        from bert_tf.system.released_models import hint

        raise FileNotFoundError(f"{opened.path} does not exist.{hint(opened.path)}")
    with contextlib.suppress(FileNotFoundError):
        opened.weights = open_weights(opened.path)
    return read_model_files(opened.path, family=opened.family)


def _files_beside(weights: Weights, config_file: str | None, is_checked: bool) -> ModelFiles:
    hints, family = weights.hints, family_of_variables(weights)
    if hints.get("sizes_from_weights") and not config_file:
        # Runs of run_pretraining.py keep the configuration of a generator in a separate folder.
        of_generator = posixpath.join(directory_of(weights.path), "generator", family.config_class.file_name)
        config_file = of_generator if exists(of_generator) else None
    files = read_model_files(weights.path, hints, config_file, family)
    beside, heads = files.config, hints.get("num_attention_heads")
    if heads and (beside is None or (hints.get("sizes_from_weights") and not config_file)):
        files.config = config_of_shapes(weights.path, weights.shapes, heads, beside)
    if files.config is None:
        return files
    config, title = files.config, files.config.title
    if beside is None:
        config.hidden_act = hints.get("hidden_act", config.hidden_act)
        assumed = f'{heads} attention heads, hidden_act "{config.hidden_act}", and dropout 0.1'
        _warn_once(f"{files.directory} has no {config.file_name}: sizes are those of the weights, with {assumed}.")
    name = files.config_file or "The configuration inferred from the weights"
    if is_checked or beside is None:
        if family is not files.family and any(map(is_encoder_variable, weights)):
            raise ValueError(f"{name} is of a {title}, but {weights.path} of a {family.config_class.title}.")
        variable_names.check_shapes(weights, config, name)
    # Versions have the same variables, the second no dropout: names of directories tell which they are.
    if released := files.family.released:
        paths = files.config_file or "", weights.path
        named, version = ((match := released.search(path)) and match[1] for path in paths)
        if (named and version and named != version) or (version == "2" and config.hidden_dropout_prob):
            _warn_once(f"{paths[0]} is not of version {version} of {title}, of which {paths[1]} is by its directory.")
    return files


@functools.cache
def _warn_once(text: str) -> None:
    logging.warning("%s", text)


def open_for_script(
    path: str | None,
    *,
    bert_config_file: str | None,
    vocab_file: str | None,
    do_lower_case: bool | None,
    strip_accents: bool | None,
    flag: str = "--init_checkpoint",
    is_checked: bool = False,
) -> OpenedModel:
    """The model of a script, with configuration, vocabulary and casing by its flags of these names.

    path: of the weights; None: it begins with random ones. flag: that names them. is_checked: see `open_model`.
    """
    if path:
        with naming_flag(flag):
            weights = open_weights(path)
        files = _files_beside(weights, bert_config_file, is_checked)
        opened = OpenedModel(**vars(files), path=path, weights=weights)
    elif bert_config_file:
        head = read_head(posixpath.dirname(bert_config_file), bert_config_file)
        opened = OpenedModel("", read_config(bert_config_file), bert_config_file, head=head)
    else:
        opened = OpenedModel("")
    config, weights = opened.needed_config(), opened.weights
    if weights is not None:
        # Weights trained with causal attention are to be used with it, which their shapes don't show.
        beside = find_config(opened.directory) if bert_config_file else None
        if beside and (attention := read_config(beside).attention) != config.attention:
            raise ValueError(
                f"--bert_config_file={bert_config_file} says attention={config.attention}, but the configuration "
                f"next to {weights.path} {attention}."
            )
        if opened.family.parts.get("generator") in weights and "discriminator" not in weights.parts:
            _warn_once(
                f"{weights.path} is the generator of an {config.title}: the authors fine-tune the discriminator."
            )
    check_other_vocabulary(vocab_file, opened)
    opened.vocab_file = vocab_file or opened.vocab_file
    if not opened.vocab_file:
        name = opened.family.tokenizer_class.vocab_name
        raise ValueError(f"{opened.directory or 'The model'} has no {name} or tokenizer.json: give --vocab_file.")
    beside_vocabulary = read_casing(directory_of(opened.vocab_file))
    opened.casing = resolve_casing(do_lower_case, strip_accents, opened.casing, beside_vocabulary)
    return opened


# --- exports ----------------------------------------------------------------------------------------------------------


def find_export(path: str) -> str | None:
    """The SavedModel or ONNX export at `path`, if any: this directory, or the newest version in it."""
    versions = sorted((int(name) for name in names_in(path) if name.isdigit()), reverse=True)
    for candidate in (path, *(posixpath.join(path, str(version)) for version in versions)):
        if first_existing(candidate, (EXPORT_FILE,)) and first_existing(candidate, (GRAPH_FILE, *ONNX_FILES)):
            return candidate
    return None


def onnx_file(directory: str) -> str | None:
    """The path of the ONNX file in the directory of an export; None if that is a SavedModel."""
    return first_existing(directory, ONNX_FILES)
