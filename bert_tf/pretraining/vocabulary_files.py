"""The vocabulary that pre-training data are made with: its file says which family's tokenizer reads it."""

import hashlib
import posixpath

from bert_tf.models.families import ELECTRA
from bert_tf.system.text_files import file_sha256, read_json, read_json_if_there
from bert_tf.text.byte_bpe import MERGES, VOCAB, ByteBpeTokenizer
from bert_tf.text.casing import TOKENIZER_CONFIG, Casing, is_there
from bert_tf.text.library_tokenizer import kind_of_model
from bert_tf.text.sentence_piece import HuggingFaceSentencePiece, SentencePieceTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import ElectraTokenizer, FullTokenizer

_OF_TOKENIZER_JSON = {"BPE": ByteBpeTokenizer, "Unigram": HuggingFaceSentencePiece}


def tokenizer_class_of(vocab_file: str) -> type[Tokenizer]:
    """Which tokenizer reads a vocabulary file.

    A .model is SentencePiece, as ALBERT has; a vocab.json is byte-level BPE, as RoBERTa has; a tokenizer.json says what
    it is. Everything else is a list of word pieces: ELECTRA's if tokenizer_config.json beside it says so, else BERT's.

    Raises:
      ValueError: a file that ends in .json is not JSON, or it is a merges.txt, half of a vocabulary; names it.
    """
    if posixpath.basename(vocab_file) == MERGES:
        needed = posixpath.join(posixpath.dirname(vocab_file), VOCAB)
        raise ValueError(f"--vocab_file={vocab_file} has only the merges of byte-level BPE: give {needed}, beside it.")
    if vocab_file.endswith(".model"):
        return SentencePieceTokenizer
    found: type[Tokenizer] = FullTokenizer
    if vocab_file.endswith(".json"):
        values = read_json(vocab_file)
        model = values.get("model")
        if not isinstance(model, dict):
            return ByteBpeTokenizer
        found = _OF_TOKENIZER_JSON.get(kind_of_model(model), FullTokenizer)
    if found is FullTokenizer:
        config = read_json_if_there(posixpath.join(posixpath.dirname(vocab_file), TOKENIZER_CONFIG)) or {}
        if str(config.get("tokenizer_class")).startswith(ELECTRA.tokenizer_name):
            return ElectraTokenizer
    return found


def read_tokenizer(
    vocab_file: str, do_lower_case: bool | None, strip_accents: bool | None = None, electra: bool = False
) -> Tokenizer:
    """The tokenizer of a vocabulary file, checked.

    Args:
      do_lower_case, strip_accents: for files that don't say it themselves.
      electra: take word pieces for ELECTRA's, whatever is beside them.

    Raises:
      ValueError: the file, or one that belongs to it, is missing, damaged, or lacks what rows need; names it.
    """
    kind = tokenizer_class_of(vocab_file)
    kind = ElectraTokenizer if electra and kind is FullTokenizer else kind
    tokenizer = kind.from_file(vocab_file, Casing(do_lower_case, strip_accents))
    tokenizer.check_vocabulary()
    return tokenizer


def vocabulary_sha256(vocab_file: str) -> str:
    """SHA-256 of a vocabulary file; of a vocab.json, of its own and that of the merges.txt beside it."""
    own = file_sha256(vocab_file)
    merges_file = posixpath.join(posixpath.dirname(vocab_file), MERGES)
    if tokenizer_class_of(vocab_file) is not ByteBpeTokenizer or _is_complete(vocab_file) or not is_there(merges_file):
        return own
    return hashlib.sha256(f"{own} {file_sha256(merges_file)}".encode()).hexdigest()


def _is_complete(vocab_file: str) -> bool:
    """Whether a JSON file is a tokenizer.json, which has the merges in it."""
    return isinstance(read_json(vocab_file).get("model"), dict)
