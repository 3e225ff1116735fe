"""Learns vocabularies from text: word pieces, byte-level BPE as RoBERTa has it, SentencePiece as ALBERT has it.

The tokenizer that will use a vocabulary also prepares or splits the text, so cleaning, casing, accents and punctuation
are the same. Pieces come from the trainers of other packages: that of `tokenizers` merges the most frequent pair of
neighbours, again and again (Radford et al. 2019, section 2.2; docs/vocabulary.md has the comparison behind this choice
for word pieces); `sentencepiece` learns a unigram model (Kudo 2018).
"""

import collections
import functools
import io
import json
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import sentencepiece
import tokenizers
from absl import logging
from tokenizers import models, pre_tokenizers, trainers

from bert_tf.system.messages import progress_bar
from bert_tf.system.text_files import UTF_8, gzip_of, read_text_lines, size_of
from bert_tf.text.characters import WHITESPACE, is_cjk, is_punctuation
from bert_tf.text.library_tokenizer import ByteBpeTokenizer
from bert_tf.text.sentence_piece import preprocess_text
from bert_tf.text.tokenizer_files import JSON_VOCAB, MERGES
from bert_tf.text.wordpiece import BasicTokenizer

_REPEATS_PER_TEXT = 4096

# Writing systems in which accent stripping drops or decomposes characters that matter.
_HURT_BY_STRIPPING = {
    "Hangul (each syllable is taken apart into Jamo)": (0x1100, 0x11FF),
    "Japanese kana (voiced sounds lose their mark)": (0x3041, 0x30FF),
    "Thai and Lao (vowel and tone signs are lost)": (0x0E01, 0x0EFF),
    "Indic scripts (vowel signs are lost)": (0x0900, 0x0DFF),
}

# In the order of their ids, which fairseq's dictionaries have; <mask> is last, after all pieces.
_FIRST_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
# Before the space of a word, where the text is split whatever stands on either side.
_BEFORE_SPACE = re.compile(r"(?<=\S)(?= \S)")
_splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)

_SENTENCE_CHARACTERS = 1000  # at most 4 bytes each; the trainer leaves out what has more


def _warn_of_fewer(tokens: int, vocab_size: int, advice: str) -> None:
    if tokens < vocab_size:
        logging.warning(f"The text gives only {tokens} of {vocab_size} tokens: the model's vocab_size. {advice}")


def _trained(model, trainer, counts: Iterable[tuple[str, int]]) -> dict:
    """The model that a trainer of `tokenizers` makes of words, as its JSON describes it."""

    def texts() -> Iterator[str]:  # that repeat each word as often as it was counted: trainers take no counts
        for word, count in counts:
            while count > 0:
                yield (word + " ") * min(count, _REPEATS_PER_TEXT)
                count -= _REPEATS_PER_TEXT

    learner = tokenizers.Tokenizer(model)
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(texts(), trainer)
    return json.loads(learner.to_str())["model"]


def learn_vocabulary(
    files: Sequence[str],
    vocab_size: int = 30522,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    num_unused: int = 99,
    min_frequency: int = 2,
    max_characters: int | None = None,
    max_words: int = 2_000_000,
    show_progress: bool = True,
    encoding: str = UTF_8,
) -> list[str]:
    """Learns a WordPiece vocabulary; the same files and arguments always give the same list.

        vocabulary = learn_vocabulary(["novel.txt"], vocab_size=8000)
        write_text_file("vocab.txt", "".join(token + "\\n" for token in vocabulary))

    The order is that of the released vocabularies: [PAD] with id 0, the unused slots, [UNK], [CLS], [SEP], [MASK] (ids
    100 to 103 with 99 slots), then single characters by code point, those with "##", and pieces in the order learned,
    the most frequent first. Every character of the text is included, alone and, unless it is always a separate token
    (punctuation, CJK ideographs), with "##": no word of the text of up to 200 characters becomes [UNK].

    The arguments are the flags of create_vocab.py; a short text gives fewer tokens than vocab_size, which is logged.
    """
    tokenizer = BasicTokenizer(do_lower_case, strip_accents)
    reserved = ["[PAD]", *(f"[unused{i}]" for i in range(num_unused)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

    room = vocab_size - len(reserved)
    # What has been read may prove that there is no room for the characters long before all has been.
    check = None if max_characters else lambda words: _check_room(words.characters(), room)
    words = count_words(files, tokenizer.tokenize, max_words, show_progress, encoding, check)
    characters = words.characters()
    for name, (first, last) in _HURT_BY_STRIPPING.items() if tokenizer.strip_accents else ():
        if seen := sum(count for char, count in characters.items() if first <= ord(char) <= last):
            advice = "--strip_accents=false keeps them, here and wherever the vocabulary is used"
            logging.warning(f"Stripping accents changes {name}: {seen} characters of this text; {advice}.")
    alphabet = set(sorted(characters, key=lambda char: (-characters[char], char))[:max_characters])
    if (single := _check_room(alphabet, room)) > room / 2:
        logging.warning(f"Single characters take {single} of {vocab_size} places: --max_characters drops rare ones.")
    start = time.monotonic()
    learned = learn_pieces(words.counts, alphabet, room, min_frequency, show_progress)
    vocabulary = [*reserved, *learned]
    logging.info("Learned %d pieces in %.1f s", len(learned), time.monotonic() - start)
    _warn_of_fewer(len(vocabulary), vocab_size, "More text or a lower --min_frequency gives more.")
    return vocabulary


def _check_room(characters: Iterable[str], room: int) -> int:
    single = sum(map(len, _single_pieces(set(characters))))
    if single > room:
        missing = f"--vocab_size is too small by {single - room}: single characters take {single} tokens, some with ##"
        raise ValueError(f"{missing}. Raise it, or keep only the frequent ones with --max_characters.")
    return single


def learn_pieces(
    counts: Mapping[str, int], characters: set[str], vocab_size: int, min_frequency: int, show_progress: bool
) -> list[str]:
    """At most vocab_size pieces from word counts: single characters, these with "##", then longer ones as learned.

    Words with a character that is not among `characters` are ignored.
    """
    alone, continuing = _single_pieces(characters)
    # Pieces of equal frequency are merged by their ids, and the trainer numbers "##" characters in the order of a hash
    # table, which differs from run to run. Passing them as special tokens, which come first, fixes their ids.
    options = {"vocab_size": vocab_size, "min_frequency": min_frequency, "show_progress": show_progress}
    trainer = trainers.WordPieceTrainer(special_tokens=continuing, initial_alphabet=alone, **options)
    # WordpieceTokenizer turns longer words into [UNK].
    usable = [word for word in counts if len(word) <= 200 and characters.issuperset(word)]
    ids = _trained(models.WordPiece(unk_token="[UNK]"), trainer, ((word, counts[word]) for word in usable))["vocab"]
    single = {*alone, *continuing}
    return [*alone, *continuing, *sorted((piece for piece in ids if piece not in single), key=ids.get)]


def _single_pieces(characters: set[str]) -> tuple[list[str], list[str]]:
    alone = sorted(characters)
    # A character that is always a separate token continues no word; for Chinese this saves thousands of rows.
    return alone, ["##" + char for char in alone if not is_punctuation(char) and not is_cjk(char)]


def learn_byte_bpe(
    files: Sequence[str],
    vocab_size: int = 50265,
    min_frequency: int = 2,
    max_words: int = 2_000_000,
    show_progress: bool = True,
    encoding: str = UTF_8,
) -> dict[str, bytes]:
    """Learns byte-level BPE; the same files and arguments always give the same result.

        for name, content in learn_byte_bpe(["novel.txt"], vocab_size=8000).items():
            write_file(f"runs/{name}", content)

    Case is kept, and no text has an unknown token, since each of the 256 bytes is a piece. The ids are in RoBERTa's
    order: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, the bytes, longer pieces in the order learned, the most frequent
    first, and `<mask>` last. Whitespace at the ends of a line is left out. A word's space and its letters are one word,
    as is a run of punctuation marks.

    Returns the content of vocab.json and merges.txt, which `ByteBpeTokenizer` and Hugging Face's tokenizers read.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    needed = len(_FIRST_TOKENS) + len(alphabet) + 1
    if vocab_size < needed:
        raise ValueError(f"--vocab_size={vocab_size} is too small: special tokens and bytes need {needed}.")
    words = count_words(files, _words_of, max_words, show_progress, encoding)
    start = time.monotonic()
    options = {"vocab_size": vocab_size - 1, "min_frequency": min_frequency, "show_progress": show_progress}
    trainer = trainers.BpeTrainer(special_tokens=list(_FIRST_TOKENS), initial_alphabet=alphabet, **options)
    model = _trained(models.BPE(), trainer, words.counts.items())
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    vocab[ByteBpeTokenizer.mask_token] = len(vocab)
    logging.info("Learned %d merges in %.1f s", len(model["merges"]), time.monotonic() - start)
    _warn_of_fewer(len(vocab), vocab_size, "More text or a lower --min_frequency gives more.")
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    vocab_json = json.dumps(vocab, ensure_ascii=False).encode()
    return {JSON_VOCAB: vocab_json, MERGES: "".join(line + "\n" for line in merges).encode()}


def _words_of(line: str) -> list[str]:
    """The parts of a line within which pieces are merged, their bytes written as pieces write them."""
    return [word for part in _BEFORE_SPACE.split(line.strip(WHITESPACE)) for word in _split(part)]


@functools.lru_cache(1 << 18)  # most words recur; splitting one takes longer than looking it up
def _split(text: str) -> tuple[str, ...]:
    return tuple(word for word, _ in _splitter.pre_tokenize_str(text))


def learn_sentence_piece(
    files: Sequence[str],
    vocab_size: int = 30000,
    do_lower_case: bool = True,
    character_coverage: float = 0.99995,
    max_sentences: int = 10_000_000,
    show_progress: bool = True,
    encoding: str = UTF_8,
) -> bytes:
    """Learns the content of a spiece.model; the same files and arguments always give the same one.

        write_file("runs/spiece.model", learn_sentence_piece(["novel.txt"], vocab_size=8000))

    Each line is a sentence. The bar is for reading; how far the training is can't be shown.
    """
    sentences = _Sentences(read_lines(files, "reading sentences", show_progress, encoding), do_lower_case)
    start, model = time.monotonic(), io.BytesIO()
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    sentencepiece.set_random_generator_seed(12345)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            **ids,
            control_symbols=["[CLS]", "[SEP]", "[MASK]"],  # as the released models (30k-clean.model)
            user_defined_symbols=["(", ")", '"', "-", ".", "–", "£", "€"],
            character_coverage=character_coverage,
            input_sentence_size=max_sentences,
            shuffle_input_sentence=True,
            max_sentence_length=4 * _SENTENCE_CHARACTERS,
            num_threads=16,  # the order of floating-point sums, so that equal texts give equal models
            minloglevel=1,
        )
    except RuntimeError as error:
        if sentences.error:
            raise sentences.error from None
        if not sentences.count:
            raise ValueError(f"The input files contain no words: {', '.join(files)}") from None
        raise ValueError(f"--vocab_size={vocab_size}: {error}") from None
    size = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).get_piece_size()
    logging.info("Learned %d pieces from %d sentences in %.1f s", size, sentences.count, time.monotonic() - start)
    _warn_of_fewer(size, vocab_size, "More text gives more.")
    _warn_about_marks(sentences.characters)
    return model.getvalue()


class _Sentences:
    """The prepared sentences of files, for the trainer.

    count: how many there were. error: what went wrong in reading, which the trainer would only describe.
    characters: how often each character was there, in lines with other characters than ASCII's.
    """

    def __init__(self, lines: Iterable[str], do_lower_case: bool):
        self.lines, self.do_lower_case = lines, do_lower_case
        self.count, self.characters = 0, collections.Counter()
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self.lines:
                if not line.isascii():
                    self.characters.update(line)
                for sentence in _cut(preprocess_text(line, self.do_lower_case)):
                    self.count += 1
                    yield sentence
        except Exception as error:
            self.error = error
            raise


def _cut(line: str) -> Iterator[str]:
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
    lost = {
        char: count
        for char, count in characters.items()
        if char > "\u036f" and any(map(unicodedata.combining, unicodedata.normalize("NFKD", char)))
    }
    if lost:
        examples, count = " ".join(sorted(lost, key=lambda char: (-lost[char], char))[:5]), sum(lost.values())
        what = f"{count} characters of this text lose combining marks ({examples}), as in ALBERT's original"
        logging.warning(f"{what}: --kind=byte_bpe keeps them.")
    if any("\uac00" <= char <= "\ud7a3" for char in characters):
        reads = "transformers' tokenizer of an ALBERT reads Hangul as <unk>"
        logging.warning(f"{reads}: a model for it needs another --kind.")


# ---- words and how often they occur, in bounded memory ---------------------------------------------------------------


class WordCounts:
    """Counts words in bounded memory: beyond max_words the rarest are dropped, but their characters are still counted.

    counts: word -> count; too low for a word that was dropped and occurred again.
    dropped: occurrences of dropped words.
    """

    def __init__(self, max_words: int):
        self.max_words, self.dropped = max_words, 0
        self.counts, self._characters_of_dropped = collections.Counter(), collections.Counter()

    def add(self, words: Sequence[str]) -> None:
        self.counts.update(words)
        if len(self.counts) <= self.max_words:
            return
        # Down to half the limit, so that this is not needed again right away.
        limit = sorted(self.counts.values(), reverse=True)[self.max_words // 2]
        rare = {word: count for word, count in self.counts.items() if count <= limit}
        for word in rare:
            del self.counts[word]
        self.dropped += sum(rare.values())
        self._characters_of_dropped += characters_of(rare)
        logging.info(f"More than {self.max_words} different words: dropped {len(rare)} seen at most {limit} times.")

    def characters(self) -> collections.Counter:
        """The count of each character, including those of dropped words."""
        return self._characters_of_dropped + characters_of(self.counts)


def characters_of(counts: Mapping[str, int]) -> collections.Counter:
    characters = collections.Counter()
    for word, count in counts.items():
        for char in word:
            characters[char] += count
    return characters


def count_words(
    files: Sequence[str],
    split: Callable[[str], Sequence[str]],
    max_words: int = 2_000_000,
    show_progress: bool = True,
    encoding: str = UTF_8,
    check: Callable[[WordCounts], object] | None = None,
) -> WordCounts:
    """Counts the words of text files; memory is bounded by max_words and the longest line.

    split: the words of a line. check: called with what was counted so far when the number of lines has doubled.
    """
    start = time.monotonic()
    words = WordCounts(max_words)
    for number, line in enumerate(read_lines(files, "counting words", show_progress, encoding), start=1):
        words.add(split(line))
        if check and number >= 1 << 12 and not number & (number - 1):
            check(words)
    if not words.counts:
        raise ValueError(f"The input files contain no words: {', '.join(files)}")
    total, seconds = words.counts.total() + words.dropped, time.monotonic() - start
    logging.info("Counted %d words, %d different, in %.1f s", total, len(words.counts), seconds)
    return words


def read_lines(files: Sequence[str], title: str, show_progress: bool = True, encoding: str = UTF_8) -> Iterator[str]:
    """The lines of text files, which may be compressed, with a progress bar in bytes."""
    total = sum(map(size_of, files))
    with progress_bar(total=total, unit="B", unit_scale=True, desc=title, disable=not show_progress) as bar:
        for path in files:
            for line in read_text_lines(path, bar.update, encoding, gzip_of(path)[0]):
                yield line.lstrip("\ufeff")
