"""The vocabulary of a model to be pre-trained, of any family, found by the summary next to its records.

No TensorFlow is imported here for local files.
"""

import contextlib
import dataclasses
import hashlib
import operator
import posixpath
from collections.abc import Mapping, Sequence

from absl import logging

from bert_tf.families import family_of, tokenizer_of_model
from bert_tf.families.config import BertConfig, check_vocab_size
from bert_tf.pretraining.record_settings import InstanceSettings, RecordSettings
from bert_tf.store.description import ModelFiles, vocabulary_mismatch
from bert_tf.store.open import OpenedModel
from bert_tf.system.messages import naming_flag
from bert_tf.system.storage import names_in
from bert_tf.system.text_files import exists, file_sha256, list_folder, naming_file, read_json
from bert_tf.text import tokenizer_class_of, tokenizer_of_file
from bert_tf.text.characters import TOKENIZER
from bert_tf.text.library_tokenizer import MERGES, ByteBpeTokenizer
from bert_tf.text.sentence_piece import KoBertTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import Casing, find_model, read_casing, resolve_casing
from bert_tf.text.wordpiece import ElectraTokenizer, FullTokenizer

Summaries = Mapping[str, Mapping[str, dict]]  # flag -> `summaries_of` the records that it names


@dataclasses.dataclass(frozen=True)
class _Source:
    """What a summary says about the vocabulary of some records."""

    summary: str
    vocab_file: str
    vocab_sha256: str
    casing: Casing

    @property
    def is_other(self) -> str:
        return f"is not the vocabulary that the records were made with, {self.vocab_file} ({self.summary})"


def choose_vocabulary(
    vocab_file: str | None,
    start: OpenedModel | None,
    summaries: Summaries,
    config: BertConfig,
    from_teacher: bool = False,
) -> ModelFiles | None:
    """Vocabulary and casing of a model to be pre-trained, if any: of vocab_file, `start` or the records.

    start: the model that it starts from, or its teacher.
    from_teacher: `start` is what --teacher names, which must have the vocabulary of the records.
    """
    made_with, tokenizer_class = _source_of(summaries), family_of(config).tokenizer_class
    known = _find(vocab_file, start, made_with, tokenizer_class, from_teacher)
    if known is None:
        return None
    largest = max(tokenizer_of_model(known.vocab_file, config, known.casing).inv_vocab)
    if largest >= config.vocab_size:
        raise ValueError(f"--vocab_file={known.vocab_file} has token id {largest}, but vocab_size={config.vocab_size}.")
    return dataclasses.replace(known, config=config)


def check_size(vocab_file: str | None, summaries: Summaries, config: BertConfig, name: str, is_new: bool) -> bool:
    """Whether the size of the vocabulary is known, by the summaries next to the records, else by vocab_file."""
    sizes = {}
    for path, summary in (pair for of_flag in summaries.values() for pair in of_flag.items()):
        if "vocab_size" in summary:
            with naming_file(path):
                sizes[str(summary["flags"]["vocab_file"])] = operator.index(summary["vocab_size"])
    if vocab_file and not sizes:
        sizes[vocab_file] = tokenizer_of_model(vocab_file, config).vocab_size
    for file, size in sizes.items():
        check_vocab_size(config, size, file, name, is_new=is_new)
    return bool(sizes)


def _find(vocab_file, start, made_with: _Source | None, kind, from_teacher: bool) -> ModelFiles | None:
    if vocab_file:
        # As where the encoder is to learn another language.
        if start and not from_teacher and (problem := vocabulary_mismatch(vocab_file, start)):
            logging.warning("--vocab_file: %s. Its tokens begin with the embeddings of others.", problem)
        if made_with and vocabulary_sha256(vocab_file) != made_with.vocab_sha256:
            raise ValueError(f"--vocab_file={vocab_file} {made_with.is_other}.")
        casing = made_with.casing if made_with else read_casing(vocab_file)
        return ModelFiles("", vocab_file=vocab_file, casing=casing)
    if start and start.vocab_file:
        if made_with and start.casing.do_lower_case is None:
            start.casing = made_with.casing
        same = not made_with or vocabulary_sha256(start.vocab_file) == made_with.vocab_sha256
        if not same and not _same_tokens(start.vocab_file, made_with, kind):
            if from_teacher:
                raise ValueError(f"--teacher: {start.vocab_file} {made_with.is_other}; give this as --vocab_file.")
            logging.warning(f"--init_checkpoint: {start.vocab_file} {made_with.is_other}. Do their tokens differ?")
        return start
    known = "nothing names that"
    if made_with:
        beside = posixpath.join(posixpath.dirname(made_with.summary), posixpath.basename(made_with.vocab_file))
        for path in (made_with.vocab_file, beside):
            if exists(path) and vocabulary_sha256(path) == made_with.vocab_sha256:
                return ModelFiles("", vocab_file=path, casing=made_with.casing)
        known = f"{made_with.vocab_file} ({made_with.summary}) is no longer there"
    logging.warning(f"The model will have no vocabulary of the records next to it, as {known}: give --vocab_file.")
    return None


def _source_of(summaries: Summaries) -> _Source | None:
    """The vocabulary that all records were made with, if a summary says it."""
    sources = []
    for path, summary in (pair for of_flag in summaries.values() for pair in of_flag.items()):
        if "vocab_sha256" in summary:
            with naming_file(path):
                flags = summary["flags"]
                casing = Casing(flags["do_lower_case"], flags["strip_accents"], path)
                sources.append(_Source(path, flags["vocab_file"], summary["vocab_sha256"], casing))
    for source in sources[1:]:
        if source.vocab_sha256 != sources[0].vocab_sha256:
            raise ValueError(f"{' and '.join(summaries)}: {source.vocab_file} {sources[0].is_other}.")
    return sources[0] if sources else None


def _same_tokens(vocab_file: str, made_with: _Source, tokenizer_class: type[Tokenizer]) -> bool:
    """Whether a file in another format has the tokens of the records' vocabulary, if that is there."""

    def tokens(path: str) -> dict[str, int]:
        return tokenizer_of_file(path, made_with.casing, tokenizer_class).vocab

    with contextlib.suppress(ValueError):  # of another kind
        return exists(made_with.vocab_file) and tokens(vocab_file) == tokens(made_with.vocab_file)
    return False


def summaries_of(record_files: Sequence[str]) -> dict[str, dict]:
    """The summaries next to records, by their paths, in the order of the files."""
    summaries: dict[str, dict] = {}
    for directory in dict.fromkeys(map(posixpath.dirname, record_files)):
        here = {posixpath.basename(path) for path in record_files if posixpath.dirname(path) == directory}
        for name in names_in(directory):
            if name.startswith("pretraining_data.") and name.endswith(".json"):
                summary = read_json(path := posixpath.join(directory, name))
                # By their names alone: records may have been moved together with their summary.
                with naming_file(path):
                    if here & set(map(posixpath.basename, summary.get("output_files", ()))):
                        summaries[path] = summary
    return summaries


def data_tokenizer(
    vocab_file: str, do_lower_case: bool | None, strip_accents: bool | None = None, electra: bool = False
) -> Tokenizer:
    """The tokenizer of a vocabulary file, checked. electra: take word pieces for ELECTRA's, whatever is next to it."""
    default = ElectraTokenizer if electra else FullTokenizer
    tokenizer = tokenizer_of_file(vocab_file, Casing(do_lower_case, strip_accents), default)
    tokenizer.check_vocabulary()
    return tokenizer


def tokenizer_of(records: RecordSettings, settings: InstanceSettings) -> Tokenizer:
    """The tokenizer of the settings' vocabulary; casing that is None the files next to it say, or else the original."""
    vocab_file, do_lower_case, strip_accents = records.vocab_file, records.do_lower_case, records.strip_accents
    casing = resolve_casing(do_lower_case, strip_accents, read_casing(vocab_file))
    with naming_flag("--vocab_file"):
        tokenizer = data_tokenizer(vocab_file, casing.do_lower_case, casing.strip_accents, settings.rows == "electra")
    tokenizer.check_casing(vocab_file, do_lower_case, strip_accents)
    words = records.word_boundaries or records.segmenter
    if words and not (isinstance(tokenizer, FullTokenizer) and not tokenizer.basic_tokenizer.never_split):
        raise ValueError("--word_boundaries, --segmenter: they find the words of word pieces (vocab.txt).")
    if settings.rows == "electra" and not isinstance(tokenizer, FullTokenizer):
        raise ValueError("--rows=electra makes ELECTRA's rows, of word pieces (vocab.txt).")
    if settings.nsp and len(tokenizer.between_tokens) > 1:
        raise ValueError(f"--nsp: models of {tokenizer.vocab_kind} have one segment: give --nsp=false.")
    return tokenizer


def vocabulary_sha256(vocab_file: str) -> str:
    """SHA-256 of a vocabulary file, of the merges.txt or .model that belongs to it, and of the added tokens."""
    digest, kind, other = file_sha256(vocab_file), tokenizer_class_of(vocab_file), None
    directory = posixpath.dirname(vocab_file)
    if kind is KoBertTokenizer and not vocab_file.endswith(".model"):
        other = find_model(list_folder(vocab_file))
    elif kind is ByteBpeTokenizer and not isinstance(read_json(vocab_file).get("model"), dict):
        other = posixpath.join(directory, MERGES)  # which a tokenizer.json has in it
    if other and exists(other):
        digest = hashlib.sha256(f"{digest} {file_sha256(other)}".encode()).hexdigest()
    if vocab_file.endswith(TOKENIZER):
        return digest
    added = kind.from_file(vocab_file, Casing(False)).added_tokens.tokens
    return hashlib.sha256(f"{digest} {added}".encode()).hexdigest() if added else digest
