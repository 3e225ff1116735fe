"""Words of texts and how often they occur, counted line by line within bounded memory."""

import collections
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from absl import logging

from bert_tf.system.messages import progress_bar
from bert_tf.system.text_files import UTF_8, gzip_of, read_text_lines, size_of

_FIRST_CHECK = 1 << 12  # lines


class WordCounts:
    """Counts words in bounded memory: beyond max_words the rarest are dropped, but their characters are still counted.

    Attributes:
      counts: word -> count; too low for a word that was dropped and occurred again.
      dropped: occurrences of dropped words.
    """

    def __init__(self, max_words: int):
        self.max_words = max_words
        self.counts = collections.Counter()
        self.dropped = 0
        self._characters_of_dropped = collections.Counter()

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
    check: Callable[[WordCounts], None] | None = None,
) -> WordCounts:
    """Counts the words of text files; memory is bounded by max_words and the longest line.

    Args:
      files: paths, read in order. split: the words of a line.
      max_words: how many different words are kept at a time, about 150 bytes each.
      show_progress: a bar in bytes, with rate and remaining time. encoding: see `text_files.TextFile`.
      check: called with what was counted so far, each time that the number of lines has doubled; may raise.
    """
    start = time.monotonic()
    words = WordCounts(max_words)
    for number, line in enumerate(read_lines(files, "counting words", show_progress, encoding), start=1):
        words.add(split(line))
        if check and number >= _FIRST_CHECK and not number & (number - 1):
            check(words)
    if not words.counts:
        raise ValueError(f"The input files contain no words: {', '.join(files)}")
    total, seconds = words.counts.total() + words.dropped, time.monotonic() - start
    logging.info("Counted %d words, %d different, in %.1f s", total, len(words.counts), seconds)
    return words


def read_lines(files: Sequence[str], title: str, show_progress: bool = True, encoding: str = UTF_8) -> Iterator[str]:
    """The lines of text files, which may be compressed, with a progress bar in bytes; see `read_text_lines`."""
    total = sum(map(size_of, files))
    with progress_bar(total=total, unit="B", unit_scale=True, desc=title, disable=not show_progress) as bar:
        for path in files:
            for line in read_text_lines(path, bar.update, encoding, gzip_of(path)[0]):
                yield line.lstrip("\ufeff")
