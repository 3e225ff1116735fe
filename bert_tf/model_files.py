"""What lies beside the weights and must travel with them: configuration, vocabulary, casing.

A model's directory describes itself, in whichever of the four formats: bert_config.json or config.json, vocab.txt or
tokenizer.json, and the casing in tokenizer_config.json.
"""

import dataclasses
import json
import posixpath
import re

from absl import logging

from bert_tf.config import BertConfig
from bert_tf.text_files import read_text_lines, write_text_file
from bert_tf.tokenization import casing_of_released_model, load_vocab

BERT_CONFIG = "bert_config.json"
VOCAB = "vocab.txt"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

# The later releases of Google (24 sizes, whole-word masking) keep to this pattern.
_RELEASED_NAME = re.compile(r"(?:wwm_|bert_)?(un)?cased_L-\d+_H-\d+_A-\d+(?:-\d+)?")

_SPECIAL_TOKENS = {
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
}


@dataclasses.dataclass(frozen=True)
class Casing:
    """How a model's text is normalised before it is cut into pieces.

    Attributes:
      do_lower_case: None if unknown. strip_accents: None to follow do_lower_case.
      source: where this was found, for messages.
    """

    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    source: str = ""


@dataclasses.dataclass
class ModelFiles:
    """The files beside a model's weights; None for what isn't there.

    Attributes:
      directory: where they lie. config, casing: read. config_file, vocab_file: paths.
      max_seq_length: of the examples that the model was fine-tuned on, where tokenizer_config.json tells.
    """

    directory: str
    config: BertConfig | None = None
    config_file: str | None = None
    vocab_file: str | None = None
    casing: Casing = Casing()
    max_seq_length: int | None = None


def _first_existing(directory: str, names) -> str | None:
    import tensorflow as tf

    paths = (posixpath.join(directory, name) for name in names)
    return next((path for path in paths if tf.io.gfile.exists(path)), None)


def directory_of(path: str) -> str:
    """The directory that describes the model whose weights are at `path` (see `weight_files.find_weights`)."""
    import tensorflow as tf

    if tf.io.gfile.isdir(path):
        return path
    directory = posixpath.dirname(path) or "."
    # A SavedModel has its weights one folder below.
    return posixpath.dirname(directory) or "." if posixpath.basename(path).startswith("variables") else directory


def is_there(path: str) -> bool:
    """Whether there is a directory, a file, or a checkpoint whose files begin with this path."""
    import tensorflow as tf

    return tf.io.gfile.exists(path) or bool(tf.io.gfile.glob(f"{path}.*"))


def read_model_files(path: str, hints: dict | None = None, config_file: str | None = None) -> ModelFiles:
    """Reads what lies beside the weights at `path`.

    Args:
      config_file: a configuration to read instead.
      hints: `Weights.hints`, asked for the casing where no file tells it.

    Raises:
      ValueError: a file that is there can't be understood; names it.
    """
    directory = directory_of(path)
    config_file = config_file or _first_existing(directory, (BERT_CONFIG, "config.json"))
    vocab_file = _first_existing(directory, (VOCAB, f"assets/{VOCAB}", TOKENIZER))
    casing = read_casing(directory)
    if casing.do_lower_case is None and "do_lower_case" in (hints or {}):
        casing = Casing(bool(hints["do_lower_case"]), None, f"{directory} (its variable do_lower_case)")
    config = read_config(config_file) if config_file else None
    return ModelFiles(directory, config, config_file, vocab_file, casing, _read_max_length(directory))


def _read_max_length(directory: str) -> int | None:
    import tensorflow as tf

    path = posixpath.join(directory, TOKENIZER_CONFIG)
    length = _read_json(path).get("model_max_length") if tf.io.gfile.exists(path) else None
    # Hugging Face writes 10^30 for "no limit".
    return length if isinstance(length, int) and 0 < length < 1_000_000 else None


def read_config(path: str, allow_unknown: bool = False) -> BertConfig:
    """Reads a bert_config.json, or a config.json of Hugging Face.

    Raises:
      ValueError: see `BertConfig.from_json_file` and `huggingface.config_from_huggingface`.
    """
    from bert_tf import huggingface

    values = _read_json(path)
    if isinstance(values, dict) and (posixpath.basename(path) == "config.json" or "model_type" in values):
        return huggingface.config_from_huggingface(values, path)
    return BertConfig.from_json_file(path, allow_unknown)


def _read_json(path: str):
    import tensorflow as tf

    with tf.io.gfile.GFile(path, "rb") as file:
        try:
            return json.loads(file.read().decode("utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: no JSON in UTF-8: {error}") from None


# --- casing ----------------------------------------------------------------------------------------------------------


def read_casing(directory: str) -> Casing:
    """What tokenizer_config.json, or else tokenizer.json, or else the directory's name says of a model's casing."""
    import tensorflow as tf

    path = posixpath.join(directory, TOKENIZER_CONFIG)
    if tf.io.gfile.exists(path):
        values = _read_json(path)
        if values.get("tokenize_chinese_chars") is False:
            logging.warning(
                "%s: tokenize_chinese_chars is false; this tokenizer always makes each Chinese character a word of its "
                "own, as the original does.",
                path,
            )
        if isinstance(values.get("do_lower_case"), bool):
            return Casing(values["do_lower_case"], values.get("strip_accents"), path)
    path = posixpath.join(directory, TOKENIZER)
    if tf.io.gfile.exists(path):
        normalizer = _read_json(path).get("normalizer") or {}
        if normalizer.get("type") == "BertNormalizer":
            return Casing(bool(normalizer.get("lowercase")), normalizer.get("strip_accents"), path)
    name = posixpath.basename(directory.rstrip("/"))
    released = casing_of_released_model(name)
    if released is None and (match := _RELEASED_NAME.fullmatch(name)):
        released = bool(match[1])
    return Casing(released, None, f"the name of {directory}") if released is not None else Casing()


def resolve_casing(do_lower_case: bool | None, strip_accents: bool | None, *known: Casing) -> Casing:
    """The casing to use: that of the model, which flags may repeat but not contradict.

    Args:
      do_lower_case, strip_accents: from the flags of these names; None if not given.
      known: what the model's directories say, the first that says anything counts.

    Returns:
      a casing with do_lower_case True or False (True, the original's default, where nobody says anything).

    Raises:
      ValueError: a flag contradicts the directory; names both.
    """
    found = next((casing for casing in known if casing.do_lower_case is not None), None)
    if found is None:
        chosen = True if do_lower_case is None else do_lower_case
        return Casing(chosen, strip_accents, "the flag" if do_lower_case is not None else "the default")
    if do_lower_case is not None and do_lower_case != found.do_lower_case:
        raise ValueError(
            f"--do_lower_case={do_lower_case} contradicts {found.source}, by which the model was trained with "
            f"do_lower_case={found.do_lower_case}. Leave the flag out, or correct that file if it is wrong."
        )
    if strip_accents is None:
        strip_accents = found.strip_accents
    elif strip_accents != (found.do_lower_case if found.strip_accents is None else found.strip_accents):
        raise ValueError(
            f"--strip_accents={strip_accents} contradicts {found.source}, which says strip_accents="
            f"{found.strip_accents} with do_lower_case={found.do_lower_case}. Leave the flag out, or correct that file "
            "if it is wrong."
        )
    logging.info("Casing from %s: do_lower_case=%s.", found.source, found.do_lower_case)
    return Casing(found.do_lower_case, strip_accents, found.source)


def casing_of_vocabulary(vocab_file: str) -> Casing:
    """Cased if the vocabulary has a piece with an upper-case letter A-Z, else uncased; says that it is a guess."""
    cased = any(re.search("[A-Z]", token) for token in load_vocab(vocab_file) if not re.fullmatch(r"\[.*\]", token))
    return Casing(not cased, None, f"a guess by the pieces of {vocab_file}")


def write_tokenizer_config(path: str, files: ModelFiles) -> None:
    """Writes a tokenizer_config.json, which Hugging Face's tokenizers read as well."""
    values = {
        "do_lower_case": files.casing.do_lower_case,
        "strip_accents": files.casing.strip_accents,
        "tokenize_chinese_chars": True,
        "tokenizer_class": "BertTokenizer",
        "model_max_length": files.max_seq_length or files.config.max_position_embeddings,
        **_SPECIAL_TOKENS,
    }
    write_text_file(path, json.dumps(values, indent=2, sort_keys=True) + "\n")


# --- vocabulary ------------------------------------------------------------------------------------------------------


def vocabulary_lines(vocab_file: str) -> list[str]:
    """The lines of a vocab.txt, or the tokens of a tokenizer.json in the order of their ids."""
    if not vocab_file.endswith(".json"):
        return list(read_text_lines(vocab_file))
    vocab = load_vocab(vocab_file)
    return sorted(vocab, key=vocab.get)
