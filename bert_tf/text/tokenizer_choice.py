"""Which tokenizer a vocabulary belongs to: what its files say, and the model's family where they say nothing.

`tokenizer_class` in tokenizer_config.json or config.json comes first, then the kind of the file. Everything that reads
a vocabulary chooses by these functions.
"""

import importlib
import posixpath
import re

import numpy as np
from absl import logging

from bert_tf.system.text_files import read_json, read_json_if_there, understood
from bert_tf.text.added_tokens import TOKENIZER
from bert_tf.text.tokenizer import Tokenizer, special_tokens_of
from bert_tf.text.tokenizer_files import (
    JSON_VOCAB,
    MERGES,
    VOCAB,
    WORD_START,
    Casing,
    find_model,
    first_existing,
    kind_of_model,
    named_class,
    read_tokens,
)
from bert_tf.text.wordpiece import CONTINUATION, FullTokenizer

_WORD_PIECES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "BertTokenizerLegacy")
# Class -> its module here. Only that of a chosen one is imported, since many need a library of their own.
_MODULES = {
    **dict.fromkeys(("FullTokenizer", "ElectraTokenizer", "RobertaWordPieceTokenizer"), "wordpiece"),
    (_JAPANESE := "JapaneseTokenizer"): "japanese",
    (_BYTE_BPE := "ByteBpeTokenizer"): "byte_bpe",
    (_SENTENCE_PIECE := "SentencePieceTokenizer"): "sentence_piece",
    (_KO_BERT := "KoBertTokenizer"): "sentence_piece",
    (_UNIGRAM := "HuggingFaceSentencePiece"): "library_tokenizer",
}
_BY_NAME = {
    **dict.fromkeys(_WORD_PIECES, "FullTokenizer"),
    "BertJapaneseTokenizer": _JAPANESE,
    "AlbertTokenizer": _SENTENCE_PIECE,
    "RobertaTokenizer": _BYTE_BPE,
    **dict.fromkeys(("KoBertTokenizer", "KoBERTTokenizer", "XLNetTokenizer"), _KO_BERT),
}
# They say nothing but that the other files do.
_NAMES_OF_ANY = {"PreTrainedTokenizer", "TokenizersBackend", "PythonBackend"}


def tokenizer_class(name: str) -> type[Tokenizer]:
    """The tokenizer class of this name."""
    return getattr(importlib.import_module(f"bert_tf.text.{_MODULES[name]}"), name)


def find_vocabulary(directory: str, default: type[Tokenizer]) -> str | None:
    """The vocabulary file of a model's directory; None if it has none.

    Args:
      default: the tokenizer of the model's family.

    Raises:
      ValueError: tokenizer_class names a tokenizer that is not supported, several files may be meant, or only a part
        of what is needed is there; names the files.
    """
    named = _named(directory, default)
    names = [] if named is None else [*tokenizer_class(_of_word_pieces(named, directory, default)).vocab_files]
    for name in (*names, *default.vocab_files, TOKENIZER, VOCAB, JSON_VOCAB):
        if found := find_model(directory) if name == "*.model" else first_existing(directory, (name,)):
            return found
    if default.__name__ == _BYTE_BPE and first_existing(directory, (MERGES,)):
        raise ValueError(
            f"{directory} has a {MERGES} but no {JSON_VOCAB}: put the {JSON_VOCAB} of the same model beside it."
        )
    return None


def tokenizer_class_of(vocab_file: str, default: type[Tokenizer] = FullTokenizer) -> type[Tokenizer]:
    """Which tokenizer reads a vocabulary file.

    A .model is SentencePiece, as ALBERT has; a vocab.json is byte-level BPE, as RoBERTa has; a tokenizer.json says what
    it is. Everything else is a list of word pieces, unless tokenizer_class beside it says more.

    Args:
      default: the tokenizer of the model's family.

    Raises:
      ValueError: tokenizer_class names a tokenizer that is not supported; a file that ends in .json is not JSON; or it
        is a merges.txt, half of a vocabulary. Names the file.
    """
    directory, name = posixpath.split(vocab_file)
    if name == MERGES:
        needed = posixpath.join(directory, JSON_VOCAB)
        raise ValueError(f"vocab_file={vocab_file} has only the merges of byte-level BPE: give {needed}, beside it.")
    named = _named(directory, default)
    if named == _JAPANESE:
        return tokenizer_class(named)
    found = "FullTokenizer"
    if name.endswith((".model", ".txt")) and (named == _KO_BERT or _has_sentence_pieces(vocab_file)):
        return tokenizer_class(_KO_BERT)
    if name.endswith(".model"):
        found = _SENTENCE_PIECE
    elif name.endswith(".json"):
        model = read_json(vocab_file).get("model")
        kinds = {"BPE": _BYTE_BPE, "Unigram": _UNIGRAM}
        with understood(vocab_file):
            found = kinds.get(kind_of_model(model), found) if isinstance(model, dict) else _BYTE_BPE
    # A RoBERTa's tokenizer refuses a Unigram model, an ALBERT's a BPE.
    if default.__name__ in (_BYTE_BPE, _SENTENCE_PIECE) and found in (_BYTE_BPE, _UNIGRAM):
        return tokenizer_class(_BYTE_BPE if default.__name__ == _BYTE_BPE else _UNIGRAM)
    return tokenizer_class(_of_word_pieces(found, directory, default))


def tokenizer_of_file(vocab_file: str, casing: Casing, default: type[Tokenizer] = FullTokenizer) -> Tokenizer:
    """The tokenizer of a vocabulary file, with what belongs to it beside it.

    Raises:
      ValueError: see `tokenizer_class_of` and `Tokenizer.from_file`.
    """
    kind = tokenizer_class_of(vocab_file, default)
    tokenizer = kind.from_file(vocab_file, casing)
    if hasattr(tokenizer, "take_rows") and issubclass(default, FullTokenizer):  # a `LibraryTokenizer`
        tokenizer.take_rows(read_json(vocab_file).get("post_processor"), vocab_file)
    if (kind.__name__, default.__name__) == (_JAPANESE, _BYTE_BPE):
        # A RoBERTa has one segment, and its positions leave out the padding token.
        tokenizer.second_segment, tokenizer.pad_id = 0, tokenizer.special_id(tokenizer.pad_token)
    return tokenizer


def _has_sentence_pieces(vocab_file: str) -> bool:
    """Whether a vocab.txt is one of SentencePiece, whose pieces begin words by ▁ and continue none by ##."""
    if vocab_file.endswith(".model"):
        return False
    tokens = read_tokens(vocab_file)
    begin = sum(token.startswith(WORD_START) and len(token) > 1 for token in tokens)
    if not begin or any(token.startswith(CONTINUATION) for token in tokens):
        return False
    # Few pieces of a script without spaces begin words.
    return begin > len(tokens) / 10 or find_model(posixpath.dirname(vocab_file)) is not None


def _named(directory: str, default: type[Tokenizer]) -> str | None:
    """The name of the class that tokenizer_class stands for; None if nothing names one."""
    name, path = named_class(directory)
    is_xlnet = name == "XLNetTokenizer" and not issubclass(default, FullTokenizer)
    if name and name not in _NAMES_OF_ANY and (name not in _BY_NAME or is_xlnet):
        known = ", ".join(name for name in _BY_NAME if name != "BertTokenizerLegacy")
        raise ValueError(f"{path}: tokenizer_class is {name}, which is not supported: {known} are.")
    return _BY_NAME.get(name)


def _of_word_pieces(found: str, directory: str, default: type[Tokenizer]) -> str:
    """`found`, or of word pieces the class of the model's family."""
    if found != "FullTokenizer":
        return found
    if issubclass(default, FullTokenizer) and default is not FullTokenizer:
        return default.__name__
    if named_class(directory)[0] == "ElectraTokenizer":
        return "ElectraTokenizer"
    config = read_json_if_there(posixpath.join(directory, "config.json")) or {}
    is_roberta = default.__name__ == _BYTE_BPE or config.get("model_type") == "roberta"
    return "RobertaWordPieceTokenizer" if is_roberta else found


# --- a vocabulary that does not fit the texts -------------------------------------------------------------------------

_MANY = 0.05  # of all tokens of texts
_FEWEST = 3  # fewer say nothing, unless all are unknown


def watch_unknown(tokenizer: Tokenizer, ids: np.ndarray) -> None:
    """Counts the unknown tokens of texts that were just encoded; warns, once for each tokenizer, if they are many.

    Args:
      ids: of whole rows or of texts alone, without [UNK] for words that have no piece.
    """
    found = tokenizer.__dict__.setdefault("_watched", {"tokens": 0, "unknown": 0, "is_warned": False})
    if found["is_warned"]:
        return
    ids = np.asarray(ids)
    special = [tokenizer.vocab.get(token) for token in special_tokens_of(tokenizer) if token != tokenizer.unk_token]
    special = [index for index in special if index is not None]
    found["tokens"] += len(ids) - np.count_nonzero(np.isin(ids, special))
    found["unknown"] += np.count_nonzero(ids == tokenizer.vocab.get(tokenizer.unk_token))
    share, unknown = found["unknown"] / max(found["tokens"], 1), found["unknown"]
    if share > _MANY and (unknown >= _FEWEST or unknown == found["tokens"]):
        found["is_warned"] = True
        logging.warning(
            f"{100 * share:.0f} % of the tokens of the texts are {tokenizer.unk_token}: "
            f"{tokenizer.vocab_file or 'the vocabulary'} does not fit them{_reason(tokenizer)}. The multilingual "
            "models know 104 languages, for example multi_cased_L-12_H-768_A-12."
        )


def _reason(tokenizer: Tokenizer) -> str:
    """What may be wrong with how texts are read, and the setting that changes it."""
    words = [token for token in tokenizer.vocab if not re.fullmatch(r"\[.*\]|<.*>", token)]
    has_capitals = any(re.search("[A-Z]", token) for token in words)
    is_latin = sum(re.search("[a-z]", token) is not None for token in words) > len(words) / 2
    if has_capitals and not tokenizer.cased:
        return " as they are read (lower-cased, but its pieces have capital letters; do_lower_case=False keeps them)"
    if tokenizer.cased and tokenizer.takes_strip_accents and is_latin and not has_capitals:
        return " as they are read (capital letters stay, but its pieces have none; do_lower_case=True lowers them)"
    if tokenizer.takes_strip_accents and tokenizer.basic_tokenizer.strip_accents:
        way = "accents are stripped, Korean syllables taken apart"
        return f" as they are read ({way}; strip_accents=False keeps them)"
    return ""
