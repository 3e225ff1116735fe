"""Which tokenizer belongs to a vocabulary: `tokenizer_class` of its directory, the kind of the file, or the family."""

import posixpath
import unicodedata
from collections.abc import Iterable

import numpy as np
from absl import logging

from bert_tf.system.hub import name_of
from bert_tf.system.text_files import Folder, list_folder, naming_file, read_json, read_text_lines
from bert_tf.text import tokenizer_files as files
from bert_tf.text.characters import TOKENIZER
from bert_tf.text.japanese import JapaneseTokenizer
from bert_tf.text.library_tokenizer import ByteBpeTokenizer, LibraryTokenizer
from bert_tf.text.sentence_piece import HuggingFaceSentencePiece, KoBertTokenizer, SentencePieceTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import CONTINUATION, ElectraTokenizer, FullTokenizer, RobertaWordPieceTokenizer

Tokenizer.by_name.update({"BertTokenizerLegacy": FullTokenizer, "BertJapaneseTokenizer": JapaneseTokenizer})
Tokenizer.by_name.update(dict.fromkeys(("KoBertTokenizer", "KoBERTTokenizer", "XLNetTokenizer"), KoBertTokenizer))
# They say nothing but that the other files do.
_NAMES_OF_ANY = {"PreTrainedTokenizer", "TokenizersBackend", "PythonBackend"}


def find_vocabulary(path: str, default: type[Tokenizer]) -> str | None:
    """The vocabulary file of the model at a path, if any. default: the tokenizer of the model's family."""
    return vocabulary_of(files.read_facts(list_folder(path)), default)


def vocabulary_of(facts: files.TokenizerFacts, default: type[Tokenizer]) -> str | None:
    named, folder = _named(facts, default), facts.folder
    names = _of_word_pieces(named, facts, default).vocab_files if named else ()
    for name in (*names, *default.vocab_files, TOKENIZER, files.VOCAB, files.JSON_VOCAB):
        if name in folder.names:
            return posixpath.join(folder.path, name)
        if name == "*.model" and (path := files.find_model(folder)):
            return path
    return None


def tokenizer_class_of(vocab_file: str, default: type[Tokenizer] = FullTokenizer) -> type[Tokenizer]:
    """Which tokenizer reads a vocabulary file. default: that of the model's family.

    A .model is SentencePiece, a vocab.json byte-level BPE; a tokenizer.json says what it is. Everything else is a list
    of word pieces, unless tokenizer_class next to it says more.
    """
    return _class_of(
        files.read_facts(list_folder(vocab_file)),
        read_json(vocab_file) if vocab_file.endswith(".json") else read_text_lines(vocab_file),
        vocab_file,
        default,
    )


def _class_of(facts: files.TokenizerFacts, content, vocab_file: str, default: type[Tokenizer]) -> type[Tokenizer]:
    """content: the values of a .json, else the lines, which are read only if they are needed."""
    named = _named(facts, default)
    if named is JapaneseTokenizer:
        return named
    kind = FullTokenizer
    if vocab_file.endswith(".model"):
        of_file = (one for one in Tokenizer.by_name.values() if one.vocab_name == posixpath.basename(vocab_file))
        kinds = (one for one in (named, default, *of_file) if one and issubclass(one, SentencePieceTokenizer))
        kind = next(kinds, SentencePieceTokenizer)
    elif vocab_file.endswith(".txt") and (named is KoBertTokenizer or _has_sentence_pieces(content, facts.folder)):
        kind = KoBertTokenizer
    elif vocab_file.endswith(".json"):
        model = content.get("model")
        kinds = {"BPE": ByteBpeTokenizer, "Unigram": HuggingFaceSentencePiece}
        kind = kinds.get(files.kind_of_model(model), kind) if isinstance(model, dict) else ByteBpeTokenizer
    if kind in (ByteBpeTokenizer, HuggingFaceSentencePiece):
        # A RoBERTa's tokenizer rejects a Unigram model, an ALBERT's a BPE.
        is_named = named is not None and issubclass(named.in_json or FullTokenizer, kind)
        return default.in_json or (named.in_json if is_named else None) or kind
    return _of_word_pieces(kind, facts, default)


def tokenizer_of_file(vocab_file: str, casing: files.Casing, default: type[Tokenizer] = FullTokenizer) -> Tokenizer:
    tokenizer = tokenizer_class_of(vocab_file, default).from_file(vocab_file, casing)
    if isinstance(tokenizer, LibraryTokenizer) and issubclass(default, FullTokenizer):
        with naming_file(vocab_file):
            tokenizer.take_rows()
    if isinstance(tokenizer, JapaneseTokenizer) and default is ByteBpeTokenizer:
        # A RoBERTa has one segment, and its positions leave out the padding token.
        tokenizer.second_segment, tokenizer.pad_id = 0, tokenizer.special_id(tokenizer.pad_token)
    return tokenizer


def _of_directory(path: str, default: type[Tokenizer], do_lower_case: bool | None, strip_accents: bool | None):
    facts = files.read_facts(list_folder(path))
    if not (vocab_file := vocabulary_of(facts, default)):
        raise ValueError(f"{name_of(facts.folder.path)} has no {default.vocab_name} and no {TOKENIZER}.")
    casing = files.resolve_casing(do_lower_case, strip_accents, files.casing_of(facts))
    tokenizer = tokenizer_of_file(vocab_file, casing, default)
    tokenizer.check_casing(vocab_file, do_lower_case, strip_accents)
    return tokenizer


Tokenizer.of_directory = staticmethod(_of_directory)


def _has_sentence_pieces(lines: Iterable[str], folder: Folder) -> bool:
    """Whether a vocab.txt is one of SentencePiece, whose pieces begin words by ▁ and continue none by ##."""
    tokens = [line.strip() for line in lines]
    begin = sum(token.startswith(files.WORD_START) and len(token) > 1 for token in tokens)
    if not begin or any(token.startswith(CONTINUATION) for token in tokens):
        return False
    # Few pieces of a script without spaces begin words.
    return begin > len(tokens) / 10 or files.find_model(folder) is not None


def _named(facts: files.TokenizerFacts, default: type[Tokenizer]) -> type[Tokenizer] | None:
    """The class that tokenizer_class stands for, if a file names one; else that of config.json's family, if any."""
    name, path = facts.named, facts.source
    is_xlnet = name == "XLNetTokenizer" and not issubclass(default, FullTokenizer)
    if name and name not in _NAMES_OF_ANY and (name not in Tokenizer.by_name or is_xlnet):
        known = ", ".join(Tokenizer.by_name)
        raise ValueError(f"{path}: tokenizer_class is {name}, which is not supported: {known} are.")
    return Tokenizer.by_name.get(name) if name else Tokenizer.by_model_type.get(str(facts.model.get("model_type")))


def _of_word_pieces(kind: type[Tokenizer], facts: files.TokenizerFacts, default: type[Tokenizer]) -> type[Tokenizer]:
    """`kind`, or of word pieces the class of the model's family."""
    if kind is not FullTokenizer:
        return kind
    if issubclass(default, FullTokenizer) and default is not FullTokenizer:
        return default
    if facts.named == "ElectraTokenizer":
        return ElectraTokenizer
    is_roberta = default is ByteBpeTokenizer or facts.model.get("model_type") == "roberta"
    return RobertaWordPieceTokenizer if is_roberta else kind


def shown(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """The pieces of ids as people read them, for a log: Hangul that was decomposed is composed."""
    return unicodedata.normalize("NFC", " ".join(map(tokenizer.spell, tokenizer.convert_ids_to_tokens(ids))))


# --- a vocabulary that does not fit the texts -------------------------------------------------------------------------


def watch_unknown(tokenizer: Tokenizer, ids: np.ndarray) -> None:
    """Counts the unknown tokens among the ids of rows or texts; warns, once for each tokenizer, if they are many."""
    counts = tokenizer.__dict__.setdefault("_watched", {"tokens": 0, "unknown": 0, "is_warned": False})
    if counts["is_warned"]:
        return
    ids = np.asarray(ids)
    unk_id = tokenizer.vocab.get(tokenizer.unk_token)
    special = sum(np.count_nonzero(ids == index) for index in tokenizer.special_ids if index != unk_id)
    counts["tokens"] += len(ids) - special
    counts["unknown"] += np.count_nonzero(ids == unk_id)
    share, unknown = counts["unknown"] / max(counts["tokens"], 1), counts["unknown"]
    if share > 0.05 and (unknown >= 3 or unknown == counts["tokens"]):  # fewer say nothing
        counts["is_warned"] = True
        advice = f"do {tokenizer.vocab_file or 'the vocabulary'}, do_lower_case and strip_accents fit them?"
        known = "klue/bert-base knows Korean, multi_cased_L-12_H-768_A-12 104 languages."
        logging.warning(f"{100 * share:.0f} % of the tokens of the texts are {tokenizer.unk_token}: {advice} {known}")
