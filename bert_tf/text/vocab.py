"""Vocabulary files."""

from collections.abc import Mapping, Sequence

from absl import logging

from bert_tf.system.text_files import read_json, read_text_lines, understood

MASK = "[MASK]"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", MASK)
VOCAB = "vocab.txt"


def vocabulary_lines(vocab_file: str) -> list[str]:
    """The lines of a vocab.txt, or the tokens of a tokenizer.json in the order of their ids."""
    if not vocab_file.endswith(".json"):
        return list(read_text_lines(vocab_file))
    vocab = load_vocab(vocab_file)
    return sorted(vocab, key=vocab.get)


def load_vocab(vocab_file: str) -> dict[str, int]:
    """Reads a vocabulary: one token per line, the id is the line number from 0 (original: load_vocab).

    Whitespace around a token is stripped. A blank line gives an id to the empty string; a token that appears twice
    keeps its first place in the order and its last id, as in the original. `check_vocab` reports both.

    A name that ends in .json is a Hugging Face tokenizer.json, from which the vocabulary is taken.

    Raises:
      ValueError: the file is not UTF-8 (names the line and the byte offset), or is a tokenizer.json of another kind.
    """
    if vocab_file.endswith(".json"):
        return _load_tokenizer_json(vocab_file)
    vocab = {}
    for index, line in enumerate(read_text_lines(vocab_file)):
        vocab[line.strip()] = index
    return vocab


def _load_tokenizer_json(path: str) -> dict[str, int]:
    """token -> id of a tokenizer.json, including added tokens, in the order of the ids."""
    values = read_json(path)
    model = values.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict) or model.get("type") != "WordPiece":
        raise ValueError(f"{path} is not a tokenizer.json with a WordPiece vocabulary, as BERT needs.")
    with understood(path):
        vocab = {**model["vocab"], **{token["content"]: token["id"] for token in values.get("added_tokens") or ()}}
        ids = sorted(vocab.values())
    if ids != list(range(len(ids))):
        raise ValueError(f"{path}: the ids of its {len(ids)} tokens are not 0 to {len(ids) - 1}, each once.")
    return dict(sorted(vocab.items(), key=lambda item: item[1]))


def check_vocab(
    vocab: Mapping[str, int],
    vocab_file: str,
    required: Sequence[str] = SPECIAL_TOKENS,
    allow_duplicates: bool = False,
) -> None:
    """Refuses a vocabulary that would fail later or does not mean what its author thinks.

    The scripts call this; `FullTokenizer` does not, since the original reads any file.

    Args:
      vocab: the result of `load_vocab(vocab_file)`.
      vocab_file: its path, read again to name the lines of duplicates.
      required: tokens that it must have.
      allow_duplicates: only warn of duplicates and blank lines, for a published vocabulary that has them.

    Raises:
      ValueError: an empty file, a missing required token, a duplicate or a blank line; names the file and the lines.
    """
    if not vocab:
        raise ValueError(f"{vocab_file} is empty: a vocabulary has one token per line")
    missing = [token for token in required if token not in vocab]
    if missing:
        raise ValueError(f"{vocab_file} lacks {', '.join(missing)}, which a vocabulary of word pieces must have")
    flaws = []
    if len(vocab) != max(vocab.values()) + 1 or "" in vocab:
        first_lines = {}
        for number, line in enumerate(read_text_lines(vocab_file), start=1):
            token = line.strip()
            if not token:
                flaws.append(f"line {number} is blank")
            elif token in first_lines:
                flaws.append(f"line {number} repeats {token!r} of line {first_lines[token]}")
            first_lines.setdefault(token, number)
    if flaws:
        more = f" and {len(flaws) - 5} more" if len(flaws) > 5 else ""
        message = f"{vocab_file}: {'; '.join(flaws[:5])}{more}. Each line must have a different token"
        if not allow_duplicates:
            raise ValueError(message)
        logging.warning("%s; a repeated token gets its id from its last line", message)
    if vocab.get("[PAD]", 0) != 0:
        # Only a warning: padding is masked out, so such a model works, and renumbering would break its weights.
        logging.warning(
            "%s: [PAD] has id %d, but sequences are padded with id 0 as in the original", vocab_file, vocab["[PAD]"]
        )
