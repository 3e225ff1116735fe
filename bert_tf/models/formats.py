"""The weight formats: what each can hold, and what its files are called.

To add a format, add it to `FORMATS`, read it in `open_weights.py`, and write it in `saving.py`. The scripts'
--init_checkpoint, `from_pretrained`, `save_pretrained` and the converter all use these. Nothing here needs TensorFlow.
"""

import dataclasses
import posixpath

from bert_tf.models.config import BertConfig
from bert_tf.models.head_config import HEAD_CONFIG, NO_HEAD, HeadConfig
from bert_tf.system.local_files import names_in
from bert_tf.system.messages import some
from bert_tf.system.text_files import exists, is_folder
from bert_tf.weights import released_models

HUGGINGFACE_CONFIG = "config.json"
# How the names of files other than TensorFlow's checkpoints end.
ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".index.json")


@dataclasses.dataclass(frozen=True)
class Format:
    """What weights of one format are and can hold.

    Attributes:
      name: its --format value.
      help: one sentence for --format.
      looked_for: what a directory must have one of.
      file_name: of the weights in a directory that is written; None: the format is only read.
      takes_prefix: a target may be a prefix such as out/bert_model.ckpt, not only a directory.
      holds_optimizer: can store Adam moments and the step.
      holds_variants: can record that a model is causal or has a BiLSTM on top; other formats would be read as BERT.
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
    name="model_garden",
    help="the format of tf-models-official, only read.",
    looked_for=("variables/variables.index",),
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


def format_named(name: str) -> Format:
    """The format of a --format value.

    Raises:
      ValueError: there is none.
    """
    if name not in FORMATS:
        raise ValueError(f"format={name} is not one of {', '.join(FORMATS)}.")
    return FORMATS[name]


def config_files(config: BertConfig, head: HeadConfig) -> dict[str, str]:
    """name -> content of this project's configuration file, and of head_config.json unless it would be empty."""
    # The head goes first: once the configuration exists, everything is there.
    files = {} if head == NO_HEAD else {HEAD_CONFIG: head.to_json()}
    return {**files, config.file_name: config.to_json_string()}


def may_hold_weights(path: str) -> bool:
    """Whether there is anything at a path that `find_weights` may take, by the names of files alone."""
    if is_folder(path):
        there = any(name.endswith(".index") or name == "checkpoint" for name in names_in(path))
        return there or any(exists(posixpath.join(path, name)) for kind in FORMATS.values() for name in kind.looked_for)
    is_file = path.endswith((*ENDINGS, ".index")) or ".data-" in path
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
