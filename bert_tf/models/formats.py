"""The weight formats: a `Format` for each, and the list of all.

To add a format, write functions that find, open and save it, and add it to `FORMATS`. The scripts' --init_checkpoint,
`from_pretrained`, `save_pretrained` and the converter all use this list.

TensorFlow is imported inside the functions, since the names are needed before.
"""

import dataclasses
import json
import posixpath
from collections.abc import Callable
from types import ModuleType

from bert_tf.models.config import BertConfig
from bert_tf.models.families import FAMILIES, family_of
from bert_tf.models.head_config import HEAD_CONFIG, NO_HEAD, HeadConfig
from bert_tf.system.literal_paths import names_in
from bert_tf.system.messages import some
from bert_tf.system.text_files import exists, is_folder
from bert_tf.weights import released_models
from bert_tf.weights.mapping import Weights, base_name, renamed

HUGGINGFACE_CONFIG = "config.json"


def config_files(config: BertConfig, head: HeadConfig, weights: Weights | None = None) -> dict[str, str]:
    """name -> content of the configuration file, and of head_config.json unless it would be empty."""
    del weights
    # The head goes first: once the configuration exists, everything is there.
    files = {} if head == NO_HEAD else {HEAD_CONFIG: head.to_json()}
    return {**files, config.file_name: config.to_json_string()}


@dataclasses.dataclass(frozen=True)
class Format:
    """How weights of one format are found, read and written.

    Attributes:
      name: its --format value.
      help: one sentence for --format.
      looked_for: what a directory must have, for the message that it has nothing of the kind.
      find: (directory or file path) -> the argument of `open`, or None if there are no weights of this format.
      open: (result of `find`) -> Weights; reads names and shapes, but no tensors.
      save: (path, weights, configuration, head) -> {the original's name: name in the file} of everything written; None:
        the format is only read.
      file_name: the file's name in a directory.
      takes_prefix: a target may be a prefix such as out/bert_model.ckpt, not only a directory.
      holds_optimizer: can store Adam moments and the step.
      holds_variants: can record that a model is causal or has a BiLSTM on top; other formats would be read as BERT.
      knows_exact_gelu: the format's own programs have hidden_act "gelu_erf".
      config_files: (configuration, head, weights) -> {name: content} of the files that describe the model.
    """

    name: str
    help: str
    looked_for: tuple[str, ...]
    find: Callable[[str], str | None]
    open: Callable[[str], Weights]
    save: Callable[[str, Weights, BertConfig, HeadConfig], dict[str, str]] | None = None
    file_name: str = ""
    takes_prefix: bool = False
    holds_optimizer: bool = False
    holds_variants: bool = False
    knows_exact_gelu: bool = True
    config_files: Callable[[BertConfig, HeadConfig, Weights], dict[str, str]] = config_files


def format_named(name: str) -> Format:
    """The format of a --format value.

    Raises:
      ValueError: there is none.
    """
    if name not in FORMATS:
        raise ValueError(f"format={name} is not one of {', '.join(FORMATS)}.")
    return FORMATS[name]


def _layout(name: str, config: BertConfig) -> ModuleType:
    """The module for another library's layout of the configuration's family."""
    return family_of(config).layout(name)


# --- tf1: checkpoints of the original --------------------------------------------------------------------------------

_BUNDLE = "bert_model.ckpt"
# The encoder's scope in TF1 Hub modules.
_HUB_SCOPE = "module/"


def _find_tf1(path: str) -> str | None:
    from bert_tf.weights import find, object_graph

    prefix = find.find_bundle(path, _BUNDLE)
    return None if prefix is None or object_graph.is_object_checkpoint(prefix) else prefix


def _open_tf1(prefix: str) -> Weights:
    from bert_tf.weights import bundle

    reader = bundle.open_bundle(prefix)
    shapes = reader.get_variable_to_shape_map()
    origins = {name.removeprefix(_HUB_SCOPE): name for name in sorted(shapes)}
    weights = Weights(
        prefix,
        "tf1",
        {name: tuple(shapes[origin]) for name, origin in origins.items()},
        origins,
        lambda name: bundle.read_tensor(reader, prefix, origins[name]),
    )
    layouts = [family.layout("tf1") for family in FAMILIES if family.layouts.get("tf1")]
    return next((layout.open_weights(weights) for layout in layouts if layout.is_here(weights)), weights)


def _save_tf1(path: str, weights: Weights, config: BertConfig, head: HeadConfig) -> dict[str, str]:
    from bert_tf.weights import bundle

    del head
    layout = family_of(config).layouts["tf1"] and _layout("tf1", config)
    names = {name: name for name in weights}
    if layout:
        there = layout.names_there({base_name(name) for name in weights}, config)
        names = {name: there[base_name(name)] + name.removeprefix(base_name(name)) for name in weights}
    bundle.write_bundle(path, renamed(weights, {there: name for name, there in names.items()}, {}))
    return names


# --- huggingface -----------------------------------------------------------------------------------------------------


_HUGGINGFACE_FILES = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
_HUGGINGFACE_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".index.json")


def _find_huggingface(path: str) -> str | None:
    from bert_tf.weights import find

    file = find.find_file(path, _HUGGINGFACE_FILES, _HUGGINGFACE_ENDINGS)
    return None if file == path and _find_bert_tf(path) else file


def _open_huggingface(file: str) -> Weights:
    from bert_tf.models import huggingface

    layouts = {family.model_type: family.layout("huggingface").LAYOUT for family in FAMILIES}
    return huggingface.open_weights(file, layouts)


def _save_huggingface(path: str, weights: Weights, config: BertConfig, head: HeadConfig) -> dict[str, str]:
    from bert_tf.models import huggingface

    return huggingface.save(_layout("huggingface", config).LAYOUT, path, weights, config, head)


def _huggingface_config_files(config: BertConfig, head: HeadConfig, weights: Weights) -> dict[str, str]:
    from bert_tf.models import huggingface

    values = huggingface.config_values(_layout("huggingface", config).LAYOUT, config, weights, head)
    return {HUGGINGFACE_CONFIG: json.dumps(values, indent=2, sort_keys=True) + "\n"}


# --- model_garden: TF2 checkpoints of tf-models-official, SavedModels of TensorFlow Hub ------------------------------


def _find_model_garden(path: str) -> str | None:
    from bert_tf.weights import find, object_graph

    prefix = find.find_bundle(path, _BUNDLE)
    return prefix if prefix is not None and object_graph.is_object_checkpoint(prefix) else None


def _open_model_garden(prefix: str) -> Weights:
    from bert_tf.models import model_garden

    return model_garden.open_weights(prefix)


# --- bert_tf: safetensors under the original's names -----------------------------------------------------------------

_BERT_TF_FILE = "bert_model.safetensors"


def _find_bert_tf(path: str) -> str | None:
    from bert_tf.weights import find, safetensors_files

    file = find.find_file(path, (_BERT_TF_FILE,), (".safetensors",))
    if file is None or posixpath.basename(file) == _BERT_TF_FILE:
        return file
    return file if safetensors_files.open_safetensors(file)[1].get("format") == "bert_tf" else None


def _open_bert_tf(file: str) -> Weights:
    from bert_tf.weights import safetensors_files

    shapes, _, read = safetensors_files.open_safetensors(file)
    return Weights(file, "bert_tf", shapes, {name: name for name in shapes}, read)


def _save_bert_tf(path: str, weights: Weights, config: BertConfig, head: HeadConfig) -> dict[str, str]:
    from bert_tf.weights import safetensors_files

    del config, head
    safetensors_files.write_safetensors(path, weights, {"format": "bert_tf"})
    return {name: name for name in weights}


# --- the list --------------------------------------------------------------------------------------------------------

# By name, in the order in which a directory is searched.
FORMATS = {
    entry.name: entry
    for entry in (
        Format(
            name="bert_tf",
            help="safetensors under the original's names.",
            looked_for=(_BERT_TF_FILE,),
            find=_find_bert_tf,
            open=_open_bert_tf,
            save=_save_bert_tf,
            file_name=_BERT_TF_FILE,
            holds_optimizer=True,
            holds_variants=True,
        ),
        Format(
            name="huggingface",
            help="config.json and model.safetensors.",
            looked_for=_HUGGINGFACE_FILES,
            find=_find_huggingface,
            open=_open_huggingface,
            save=_save_huggingface,
            file_name=_HUGGINGFACE_FILES[0],
            config_files=_huggingface_config_files,
        ),
        Format(
            name="model_garden",
            help="the format of tf-models-official, only read.",
            looked_for=("variables/variables.index",),
            find=_find_model_garden,
            open=_open_model_garden,
        ),
        Format(
            name="tf1",
            help="the format of the original's scripts.",
            looked_for=(f"{_BUNDLE}.index",),
            find=_find_tf1,
            open=_open_tf1,
            save=_save_tf1,
            file_name=_BUNDLE,
            takes_prefix=True,
            holds_optimizer=True,
            knows_exact_gelu=False,
        ),
    )
}


def may_hold_weights(path: str) -> bool:
    """Whether there is anything at a path that `find_weights` may take, by the names of files alone."""
    if is_folder(path):
        there = any(name.endswith(".index") or name == "checkpoint" for name in names_in(path))
        return there or any(exists(posixpath.join(path, name)) for kind in FORMATS.values() for name in kind.looked_for)
    is_file = path.endswith((*_HUGGINGFACE_ENDINGS, ".index")) or ".data-" in path
    return exists(path + ".index") or (is_file and exists(path))


def no_weights(path: str) -> FileNotFoundError:
    """The error that there are no weights of a known format at a path; says what was looked for."""
    if is_folder(path):
        looked_for = ", ".join(name for kind in FORMATS.values() for name in kind.looked_for)
        holds = some(names_in(path)) or "nothing"
        return FileNotFoundError(f"{path} has no weights: none of {looked_for}. It contains {holds}.")
    if path.endswith(".zip") and exists(path):
        return FileNotFoundError(f"{path} is a zip file: unpack it and give the directory.")
    if exists(path):
        return FileNotFoundError(
            f"{path} is not a known kind of weight file: a TensorFlow checkpoint has "
            f"{posixpath.basename(path)}.index and .data files, others end in .safetensors or .bin."
        )
    if advice := released_models.hint(path):
        return FileNotFoundError(f"{path} does not exist.{advice}")
    return FileNotFoundError(
        f"{path}: no weights found: it is no directory, no weight file, and no checkpoint "
        f"({path.removesuffix('.index')}.index does not exist). For a checkpoint give the directory or the prefix "
        "without .index or .data, e.g. uncased_L-12_H-768_A-12/bert_model.ckpt."
    )
