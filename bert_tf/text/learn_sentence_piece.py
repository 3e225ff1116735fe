"""Learns a SentencePiece model from text, with the settings of ALBERT's.

The text is prepared as `sentence_piece.SentencePieceTokenizer` will prepare it; the `sentencepiece` package learns a
unigram model (Kudo 2018).
"""

import collections
import io
import re
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

import sentencepiece
from absl import logging

from bert_tf.system.text_encodings import UTF_8
from bert_tf.text.sentence_piece import preprocess_text
from bert_tf.text.word_counts import no_words, read_lines, warn_of_fewer

# Of the released models (30k-clean.model). Ids: <pad> 0, <unk> 1, then these.
_CONTROL_SYMBOLS = ("[CLS]", "[SEP]", "[MASK]")
_USER_SYMBOLS = ("(", ")", '"', "-", ".", "–", "£", "€")
_SENTENCE_CHARACTERS = 1000  # at most 4 bytes each; the trainer leaves out what exceeds _SENTENCE_BYTES
_SENTENCE_BYTES = 4 * _SENTENCE_CHARACTERS
_LAST_LATIN = "\u036f"  # with the marks that follow Latin letters
# The samples, and the order in which floating-point sums are made, so that equal texts give equal models.
_SEED, _THREADS = 12345, 16


def learn_sentence_piece(
    files: Sequence[str],
    vocab_size: int = 30000,
    do_lower_case: bool = True,
    character_coverage: float = 0.99995,
    max_sentences: int = 10_000_000,
    show_progress: bool = True,
    encoding: str = UTF_8,
) -> bytes:
    """Learns a SentencePiece model; the same files and arguments always give the same model.

        write_file("runs/spiece.model", learn_sentence_piece(["novel.txt"], vocab_size=8000))

    Args:
      files: text files, see `bert_tf.system.text_files.list_files`; each line is a sentence.
      vocab_size: maximum number of pieces; a short text gives fewer, which is logged. The defaults are ALBERT's.
      do_lower_case: lower-case the text, like the model's inputs later.
      character_coverage: share of the text whose characters get pieces; those of the rest are unknown.
      max_sentences: how many are in memory; of more, a random sample is learned from.
      show_progress: a bar for reading; how far the training is can't be shown.
      encoding: of the files, see `text_files.TextFile`.

    Returns:
      The content of a spiece.model.

    Raises:
      ValueError: a file is not UTF-8, the files contain no words, or vocab_size is too small for the characters.
    """
    sentences = _Sentences(files, do_lower_case, show_progress, encoding)
    start, model = time.monotonic(), io.BytesIO()
    sentencepiece.set_random_generator_seed(_SEED)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=list(_CONTROL_SYMBOLS),
            user_defined_symbols=list(_USER_SYMBOLS),
            character_coverage=character_coverage,
            input_sentence_size=max_sentences,
            shuffle_input_sentence=True,
            max_sentence_length=_SENTENCE_BYTES,
            num_threads=_THREADS,
            minloglevel=1,
        )
    except RuntimeError as error:
        if sentences.error:
            raise sentences.error from None
        if not sentences.count:
            raise no_words(files) from None
        raise _explained(error, vocab_size) from None
    size = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).get_piece_size()
    logging.info("Learned %d pieces from %d sentences in %.1f s", size, sentences.count, time.monotonic() - start)
    warn_of_fewer(size, vocab_size, "More text gives more.")
    _warn_about_marks(sentences.characters)
    return model.getvalue()


class _Sentences:
    """The prepared sentences of files, for the trainer.

    Attributes:
      count: how many there were. error: what went wrong in reading, which the trainer would only describe.
      characters: how often each character was there, in lines with other characters than ASCII's.
    """

    def __init__(self, files: Sequence[str], do_lower_case: bool, show_progress: bool, encoding: str):
        self.files, self.do_lower_case = files, do_lower_case
        self.show_progress, self.encoding = show_progress, encoding
        self.count, self.error, self.characters = 0, None, collections.Counter()

    def __iter__(self) -> Iterator[str]:
        try:
            for line in read_lines(self.files, "reading sentences", self.show_progress, self.encoding):
                if not line.isascii():
                    self.characters.update(line)
                for sentence in _cut(preprocess_text(line, self.do_lower_case)):
                    self.count += 1
                    yield sentence
        except Exception as error:
            self.error = error
            raise


def _cut(line: str) -> Iterator[str]:
    """A line as sentences that the trainer takes: none if it is empty, several if it is too long."""
    begin = 0
    while len(line) - begin > _SENTENCE_CHARACTERS:
        end = line.rfind(" ", begin, begin + _SENTENCE_CHARACTERS)
        end = end if end > begin else begin + _SENTENCE_CHARACTERS
        yield line[begin:end]
        begin = end
    if begin < len(line):
        yield line[begin:]


def _warn_about_marks(characters: Mapping[str, int]) -> None:
    """Warns if characters lose marks that tell words apart: of other scripts than Latin, whose accents matter less."""
    lost = {char: count for char, count in characters.items() if char > _LAST_LATIN and _has_mark(char)}
    if lost:
        examples = " ".join(sorted(lost, key=lambda char: (-lost[char], char))[:5])
        logging.warning(
            "ALBERT's preparation of text drops combining marks: %d characters of this text lose them (%s). If that "
            "changes words, --kind=byte_bpe keeps them.",
            sum(lost.values()),
            examples,
        )


def _has_mark(char: str) -> bool:
    return any(map(unicodedata.combining, unicodedata.normalize("NFKD", char)))


def _explained(error: RuntimeError, vocab_size: int) -> Exception:
    """What the trainer's error means, in terms of flags."""
    if match := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
        return ValueError(
            f"--vocab_size={vocab_size} is too small: special tokens and single characters need {match[1]}. Raise it, "
            "or leave out rare characters with a lower --character_coverage."
        )
    return error
