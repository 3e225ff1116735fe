"""Vocabulary files."""

from collections.abc import Mapping, Sequence

from absl import logging

from bert_tf.system.messages import some
from bert_tf.system.text_files import read_bytes, read_json, read_text_lines, understood

MASK = "[MASK]"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", MASK)
VOCAB = "vocab.txt"


def vocabulary_lines(vocab_file: str) -> list[str]:
    """The lines of a vocab.txt, or the tokens of a tokenizer.json in the order of their ids.

    A byte order mark before the first token is no part of it, other than in the original.
    """
    if vocab_file.endswith(".json"):
        return list(_load_tokenizer_json(vocab_file))
    lines = list(read_text_lines(vocab_file))
    return [line.removeprefix("\ufeff") or line for line in lines[:1]] + lines[1:]


def vocabulary_bytes(vocab_file: str) -> bytes:
    """The content of a vocab.txt with this vocabulary: of a vocab.txt its own bytes."""
    if not vocab_file.endswith(".json"):
        return read_bytes(vocab_file)
    return "".join(token + "\n" for token in vocabulary_lines(vocab_file)).encode()


def read_tokens(vocab_file: str) -> list[str]:
    """The token of each id: `vocabulary_lines` without the whitespace around each, as the original reads them.

    What is left of a token that only looks blank (U+2028 in Google's Chinese vocabulary) is the empty string.
    """
    lines = vocabulary_lines(vocab_file)
    return lines if vocab_file.endswith(".json") else [line.strip() for line in lines]


def load_vocab(vocab_file: str) -> dict[str, int]:
    """Reads a vocabulary: one token per line, the id is the line number from 0 (original: load_vocab).

    Only a newline ends a line, and whitespace around a token is stripped. A token that looks blank gives its id to the
    empty string; a token that appears twice keeps its first place in the order and its last id, as in the original.

    A name that ends in .json is a Hugging Face tokenizer.json, from which the vocabulary is taken.

    Raises:
      ValueError: the file is not UTF-8 (names the line and the byte offset), or is a tokenizer.json of another kind.
    """
    return {token: index for index, token in enumerate(read_tokens(vocab_file))}


def _load_tokenizer_json(path: str) -> dict[str, int]:
    """token -> id of a tokenizer.json, in the order of the ids, with the added tokens that are between the others."""
    values = read_json(path)
    model = values.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict) or model.get("type") != "WordPiece":
        raise ValueError(f"{path} is not a tokenizer.json with a WordPiece vocabulary, as BERT needs.")
    with understood(path):
        last = max(model["vocab"].values(), default=-1)
        between = [token for token in values.get("added_tokens") or () if token["id"] <= last]
        vocab = {**model["vocab"], **{token["content"]: token["id"] for token in between}}
        ids = sorted(vocab.values())
    if ids != list(range(len(ids))):
        raise ValueError(f"{path}: the ids of its {len(ids)} tokens are not 0 to {len(ids) - 1}, each once.")
    return dict(sorted(vocab.items(), key=lambda item: item[1]))


def check_vocab(vocab: Mapping[str, int], vocab_file: str, required: Sequence[str] = SPECIAL_TOKENS) -> None:
    """Refuses a vocabulary that would fail later or does not mean what its author thinks; warns of repeated tokens.

    The scripts call this; `FullTokenizer` does not, since the original reads any file.

    Args:
      vocab: the result of `load_vocab(vocab_file)`.
      vocab_file: its path, read again to name lines.
      required: tokens that it must have.

    Raises:
      ValueError: an empty file, a missing required token, or an empty line; names the file and the lines. A line with a
        token that only looks blank is none.
    """
    if not vocab:
        raise ValueError(f"{vocab_file} is empty: a vocabulary has one token per line")
    missing = [token for token in required if token not in vocab]
    if missing:
        raise ValueError(f"{vocab_file} lacks {', '.join(missing)}, which a vocabulary of word pieces must have")
    if len(vocab) != max(vocab.values()) + 1 or "" in vocab:
        _check_lines(vocab_file)


def _check_lines(vocab_file: str) -> None:
    empty, repeated, first_lines = [], [], {}
    for number, line in enumerate(vocabulary_lines(vocab_file), start=1):
        token = line.strip()
        if not line:
            empty.append(f"line {number}")
        elif token and token in first_lines:
            repeated.append(f"line {number} repeats {token!r} of line {first_lines[token]}")
        first_lines.setdefault(token, number)
    if empty:
        raise ValueError(
            f"{vocab_file}: {some(empty)} {'is' if len(empty) == 1 else 'are'} empty, which shifts the ids of the "
            "tokens below: each line must have a token."
        )
    if repeated:
        logging.warning("%s: %s; such a token has the id of its last line.", vocab_file, some(repeated, "; "))
