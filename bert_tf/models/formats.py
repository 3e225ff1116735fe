"""The formats that weights come in: one `Format` each, and the one list of them.

To add a format, write how it is found, opened and saved, and put it in `FORMATS`. --init_checkpoint of the scripts,
`from_pretrained`, `save_pretrained` and the converter know no other list.

TensorFlow is imported inside the functions: the names are needed before it is.
"""

import dataclasses
import json
import posixpath
from collections.abc import Callable
from types import ModuleType

from bert_tf.models.config import BertConfig
from bert_tf.models.head_config import HEAD_CONFIG, NO_HEAD, HeadConfig
from bert_tf.weights.mapping import Weights

BERT_CONFIG = "bert_config.json"
HUGGINGFACE_CONFIG = "config.json"


def config_files(config: BertConfig, head: HeadConfig, weights: Weights | None = None) -> dict[str, str]:
    """name -> content of bert_config.json, and of head_config.json where there is something to say."""
    del weights
    # The head goes first: who reads bert_config.json may take it that all is there.
    files = {} if head == NO_HEAD else {HEAD_CONFIG: head.to_json()}
    return {**files, BERT_CONFIG: config.to_json_string()}


@dataclasses.dataclass(frozen=True)
class Format:
    """How weights of one kind are found, read and written.

    Attributes:
      name: what --format calls it.
      help: one sentence for --format.
      looked_for: what a directory must have, for the message that it has none of it.
      find: (directory or path of a file) -> what `open` takes, or None if there are no weights of this format.
      open: (what `find` gave) -> Weights; names and shapes are read, and no tensor.
      save: (path, weights, configuration) -> the original's name -> name in the file, of all that was written.
      file_name: what the file is called in a directory.
      takes_prefix: a target may be a prefix such as out/bert_model.ckpt, not only a directory.
      state_file: a `checkpoint` file beside the weights names them.
      holds_optimizer: has a place for Adam moments and the step.
      holds_variants: can say that a model looks only backwards or has a BiLSTM on top; others would be read as BERT.
      knows_exact_gelu: the format's own programs have hidden_act "gelu_erf".
      config_files: (configuration, head, weights) -> name -> content of the files that say what the model is.
    """

    name: str
    help: str
    looked_for: tuple[str, ...]
    find: Callable[[str], str | None]
    open: Callable[[str], Weights]
    save: Callable[[str, Weights, BertConfig], dict[str, str]]
    file_name: str
    takes_prefix: bool = False
    state_file: bool = False
    holds_optimizer: bool = False
    holds_variants: bool = False
    knows_exact_gelu: bool = True
    config_files: Callable[[BertConfig, HeadConfig, Weights], dict[str, str]] = config_files


def format_named(name: str) -> Format:
    """The format that --format calls `name`.

    Raises:
      ValueError: there is none.
    """
    if name not in FORMATS:
        raise ValueError(f"--format={name} is not one of {', '.join(FORMATS)}.")
    return FORMATS[name]


def _layout(name: str, config: BertConfig | None = None) -> ModuleType:
    """The module that knows another library's layout for the configuration's family; for BERT without one."""
    from bert_tf.models.families import BERT, family_of  # which need Keras

    return (family_of(config) if config else BERT).layout(name)


# --- tf1: checkpoints of the original --------------------------------------------------------------------------------

_BUNDLE = "bert_model.ckpt"
# TF1 Hub modules keep the encoder under this scope.
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
    return Weights(
        prefix,
        "tf1",
        {name: tuple(shapes[origin]) for name, origin in origins.items()},
        origins,
        lambda name: bundle.read_tensor(reader, prefix, origins[name]),
    )


def _save_tf1(path: str, weights: Weights, config: BertConfig) -> dict[str, str]:
    from bert_tf.weights import bundle

    del config
    bundle.write_bundle(path, weights)
    return {name: name for name in weights}


# --- huggingface -----------------------------------------------------------------------------------------------------


_HUGGINGFACE_FILES = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip


def _find_huggingface(path: str) -> str | None:
    from bert_tf.weights import find

    file = find.find_file(path, _HUGGINGFACE_FILES, (".safetensors", ".bin", ".pt", ".pth", ".index.json"))
    return None if file == path and _find_bert_tf(path) else file


def _save_huggingface(path: str, weights: Weights, config: BertConfig) -> dict[str, str]:
    return _layout("huggingface", config).save(path, weights)


def _huggingface_config_files(config: BertConfig, head: HeadConfig, weights: Weights) -> dict[str, str]:
    values = _layout("huggingface", config).config_to_huggingface(config, weights, head)
    return {HUGGINGFACE_CONFIG: json.dumps(values, indent=2, sort_keys=True) + "\n"}


# --- model_garden: TF2 checkpoints of tf-models-official, SavedModels of TensorFlow Hub ------------------------------


def _find_model_garden(path: str) -> str | None:
    from bert_tf.weights import find, object_graph

    prefix = find.find_bundle(path, _BUNDLE)
    return prefix if prefix is not None and object_graph.is_object_checkpoint(prefix) else None


def _save_model_garden(path: str, weights: Weights, config: BertConfig) -> dict[str, str]:
    return _layout("model_garden", config).save(path, weights, config.num_attention_heads)


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


def _save_bert_tf(path: str, weights: Weights, config: BertConfig) -> dict[str, str]:
    from bert_tf.weights import safetensors_files

    del config
    safetensors_files.write_safetensors(path, weights, {"format": "bert_tf"})
    return {name: name for name in weights}


# --- the list --------------------------------------------------------------------------------------------------------

# By name, in the order in which a directory is searched for them.
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
            open=lambda file: _layout("huggingface").open_weights(file),
            save=_save_huggingface,
            file_name=_HUGGINGFACE_FILES[0],
            config_files=_huggingface_config_files,
        ),
        Format(
            name="model_garden",
            help="what tf-models-official reads.",
            looked_for=("variables/variables.index",),
            find=_find_model_garden,
            open=lambda prefix: _layout("model_garden").open_weights(prefix),
            save=_save_model_garden,
            file_name=_BUNDLE,
            takes_prefix=True,
            state_file=True,
            knows_exact_gelu=False,
        ),
        Format(
            name="tf1",
            help="what the original's scripts read.",
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
