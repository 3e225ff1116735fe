"""The vocabulary that pre-training data are made with."""

import hashlib
import os
import posixpath

from bert_tf.system.checks import check_file
from bert_tf.system.messages import named_by, unheard
from bert_tf.system.text_files import file_sha256, read_json
from bert_tf.text.added_tokens import TOKENIZER
from bert_tf.text.byte_bpe import MERGES, ByteBpeTokenizer
from bert_tf.text.sentence_piece import KoBertTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_choice import tokenizer_class_of, tokenizer_of_file
from bert_tf.text.tokenizer_files import Casing, find_model, is_there
from bert_tf.text.wordpiece import ElectraTokenizer, FullTokenizer


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
    default = ElectraTokenizer if electra else FullTokenizer
    tokenizer = tokenizer_of_file(vocab_file, Casing(do_lower_case, strip_accents), default)
    tokenizer.check_vocabulary()
    return tokenizer


def check_vocabulary(vocab_file: str | None) -> None:
    """`read_tokenizer` of the local file that --vocab_file names, if any, before TensorFlow is imported.

    Raises:
      FileNotFoundError: it is not there. ValueError: see `read_tokenizer`. Names the flag.
    """
    check_file(vocab_file, "--vocab_file")
    if vocab_file and os.path.isfile(vocab_file):
        with named_by("--vocab_file"), unheard():
            read_tokenizer(vocab_file, None)


def vocabulary_sha256(vocab_file: str) -> str:
    """SHA-256 of a vocabulary file; of a vocab.json, of its own and that of the merges.txt beside it, as of a KoBERT's
    vocab.txt with the .model. Added tokens that other files beside it name count, too."""
    own, kind = file_sha256(vocab_file), tokenizer_class_of(vocab_file)
    if other := _other_file(vocab_file, kind):
        own = hashlib.sha256(f"{own} {file_sha256(other)}".encode()).hexdigest()
    if vocab_file.endswith(TOKENIZER):
        return own
    added = kind.from_file(vocab_file, Casing(False)).added_tokens.tokens
    return hashlib.sha256(f"{own} {added}".encode()).hexdigest() if added else own


def _other_file(vocab_file: str, kind: type[Tokenizer]) -> str | None:
    """The file beside a vocabulary that is half of it."""
    directory = posixpath.dirname(vocab_file)
    if kind is KoBertTokenizer and not vocab_file.endswith(".model"):
        return find_model(directory)
    merges_file = posixpath.join(directory, MERGES)
    # A tokenizer.json has the merges in it.
    is_half = kind is ByteBpeTokenizer and not isinstance(read_json(vocab_file).get("model"), dict)
    return merges_file if is_half and is_there(merges_file) else None
