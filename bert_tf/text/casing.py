"""Whether a model is cased, according to its files."""

import dataclasses
import posixpath
import re

from absl import logging

from bert_tf.system.local_files import paths_beginning_with
from bert_tf.system.text_files import exists, is_folder, read_json, read_json_if_there
from bert_tf.text.vocab import VOCAB, load_vocab

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

_CASED_TOKENIZERS = ("BertJapaneseTokenizer", "KoBertTokenizer", "KoBERTTokenizer", "XLNetTokenizer")  # by default

# Google's later releases (24 sizes, whole-word masking) follow this pattern.
_RELEASED_NAME = re.compile(r"(?:wwm_|bert_)?(un)?cased_L-\d+_H-\d+_A-\d+(?:-\d+)?")


@dataclasses.dataclass(frozen=True)
class Casing:
    """How a model's text is normalised before it is split into pieces.

    Attributes:
      do_lower_case: None if unknown. strip_accents: None to follow do_lower_case.
      source: where the casing was found, for messages.
    """

    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    source: str = ""


def first_existing(directory: str, names) -> str | None:
    paths = (posixpath.join(directory, name) for name in names)
    return next((path for path in paths if exists(path)), None)


def find_vocab_file(directory: str) -> str | None:
    """The vocabulary of a model's directory, in any of the formats; None if there is none."""
    return first_existing(directory, (VOCAB, f"assets/{VOCAB}", TOKENIZER))


def directory_of(path: str) -> str:
    """The directory that describes the model whose weights are at `path` (see `open_weights.find_weights`)."""
    if is_folder(path):
        return path
    directory = posixpath.dirname(path) or "."
    # A SavedModel keeps its weights in a subfolder.
    return posixpath.dirname(directory) or "." if posixpath.basename(path).startswith("variables") else directory


def is_there(path: str) -> bool:
    """Whether there is a directory, a file, or a checkpoint with this prefix."""
    return exists(path) or bool(paths_beginning_with(f"{path}."))


def named_class(directory: str) -> tuple[str, str]:
    """The tokenizer_class of a directory, without "Fast", and the file that names it; ("", "") if none does."""
    for name in (TOKENIZER_CONFIG, "config.json"):
        path = posixpath.join(directory, name)
        found = (read_json_if_there(path) or {}).get("tokenizer_class")
        if found:
            return str(found).removesuffix("Fast"), path
    return "", ""


def read_casing(directory: str) -> Casing:
    """A model's casing by tokenizer_config.json, else tokenizer.json, else the directory's name."""
    path = posixpath.join(directory, TOKENIZER_CONFIG)
    if exists(path):
        values = read_json(path)
        if isinstance(values.get("do_lower_case"), bool):
            return Casing(values["do_lower_case"], values.get("strip_accents"), path)
    name, source = named_class(directory)
    if name in _CASED_TOKENIZERS:
        return Casing(False, None, source)
    path = posixpath.join(directory, TOKENIZER)
    if exists(path):
        normalizer = read_json(path).get("normalizer") or {}
        if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
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
      known: casings of the model's directories; the first known one counts.

    Returns:
      a casing with do_lower_case True or False; the default is True, as in the original.

    Raises:
      ValueError: a flag contradicts the directory; names both.
    """
    found = next((casing for casing in known if casing.do_lower_case is not None), None)
    if found is None:
        chosen = True if do_lower_case is None else do_lower_case
        return Casing(chosen, strip_accents, "the flag" if do_lower_case is not None else "the default")
    if do_lower_case is not None and do_lower_case != found.do_lower_case:
        raise ValueError(
            f"do_lower_case={do_lower_case} contradicts {found.source}, by which the model was trained with "
            f"do_lower_case={found.do_lower_case}. Leave it out, or correct that file if it is wrong."
        )
    if strip_accents is None:
        strip_accents = found.strip_accents
    elif strip_accents != (found.do_lower_case if found.strip_accents is None else found.strip_accents):
        raise ValueError(
            f"strip_accents={strip_accents} contradicts {found.source}, which says strip_accents="
            f"{found.strip_accents} with do_lower_case={found.do_lower_case}. Leave it out, or correct that file if it "
            "is wrong."
        )
    logging.info("Casing from %s: do_lower_case=%s.", found.source, found.do_lower_case)
    return Casing(found.do_lower_case, strip_accents, found.source)


def casing_of_vocabulary(vocab_file: str) -> Casing:
    """Cased if a piece of the vocabulary has an upper-case letter A-Z, else uncased; `source` says it is a guess."""
    cased = any(re.search("[A-Z]", token) for token in load_vocab(vocab_file) if not re.fullmatch(r"\[.*\]", token))
    return Casing(not cased, None, f"a guess from the pieces of {vocab_file}")


# Released models whose directory name implies the casing (original: validate_case_matches_checkpoint).
_UNCASED_MODELS = (
    "uncased_L-24_H-1024_A-16",
    "uncased_L-12_H-768_A-12",
    "multilingual_L-12_H-768_A-12",
    "chinese_L-12_H-768_A-12",
    "electra_small",
    "electra_base",
    "electra_large",
)

_CASED_MODELS = ("cased_L-12_H-768_A-12", "cased_L-24_H-1024_A-16", "multi_cased_L-12_H-768_A-12")


def casing_of_released_model(name: str) -> bool | None:
    """do_lower_case of a model that Google released under this name; None for any other name."""
    return True if name in _UNCASED_MODELS else False if name in _CASED_MODELS else None


def validate_case_matches_checkpoint(do_lower_case: bool, init_checkpoint: str | None) -> None:
    """Refuses a casing that contradicts the name of a released model in the checkpoint's path.

    Raises:
      ValueError: the path contains a known model's `<name>/bert_model.ckpt` and do_lower_case is the other casing.
    """
    match = re.match(r".*?([A-Za-z0-9_-]+)/bert_model.ckpt", init_checkpoint or "")
    needed = casing_of_released_model(match.group(1)) if match else None
    if needed is None or needed == bool(do_lower_case):
        return
    name, actual = match.group(1), "lower-cased" if do_lower_case else "cased"
    raise ValueError(
        f"--do_lower_case={do_lower_case} makes {actual} text, but --init_checkpoint={init_checkpoint} belongs to "
        f"{name}, which was trained the other way. Use --do_lower_case={needed} (or rename the directory if this is on "
        "purpose)."
    )
