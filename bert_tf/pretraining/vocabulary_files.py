"""The vocabulary that pre-training data are made with."""

import hashlib
import os
import posixpath

from bert_tf.pretraining.record_settings import InstanceSettings, RecordSettings
from bert_tf.system.checks import check_file
from bert_tf.system.messages import named_by, unheard
from bert_tf.system.text_files import file_sha256, read_json
from bert_tf.text.added_tokens import TOKENIZER
from bert_tf.text.byte_bpe import MERGES, ByteBpeTokenizer
from bert_tf.text.sentence_piece import KoBertTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_choice import tokenizer_class_of, tokenizer_of_file
from bert_tf.text.tokenizer_files import Casing, directory_of, find_model, is_there, read_casing, resolve_casing
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


def tokenizer_of(
    records: RecordSettings, settings: InstanceSettings, do_lower_case: bool | None, strip_accents: bool | None
) -> Tokenizer:
    """The tokenizer of the settings' vocabulary.

    Args:
      do_lower_case, strip_accents: None: the files beside the vocabulary say it, or else as in the original.

    Raises:
      ValueError: see `read_tokenizer`; a flag contradicts the files, or means nothing with the tokenizer: names it.
    """
    vocab_file = records.vocab_file
    casing = resolve_casing(do_lower_case, strip_accents, read_casing(directory_of(vocab_file)))
    tokenizer = read_tokenizer(vocab_file, casing.do_lower_case, casing.strip_accents, settings.rows == "electra")
    tokenizer.check_casing(vocab_file, do_lower_case, strip_accents)
    words = records.word_boundaries or records.segmenter
    if words and not (isinstance(tokenizer, FullTokenizer) and not tokenizer.basic_tokenizer.never_split):
        raise ValueError(
            "--word_boundaries, --segmenter: they find the words of word pieces (vocab.txt); the pieces of this "
            "--vocab_file say themselves where a word begins."
        )
    if settings.rows == "electra" and not isinstance(tokenizer, FullTokenizer):
        raise ValueError(
            "--rows=electra makes ELECTRA's rows, of word pieces (vocab.txt), but this --vocab_file is "
            f"{tokenizer.vocab_kind}."
        )
    if settings.nsp and len(tokenizer.between_tokens) > 1:
        raise ValueError(
            f"--nsp: models of {tokenizer.vocab_kind} have one segment, and no next sentence to predict: give "
            "--nsp=false."
        )
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
