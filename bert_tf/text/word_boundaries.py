"""Which pieces belong to the same word where "##" does not say it: in Chinese, Japanese, and segmented text.

For whole-word masking only: words decide which pieces are masked together, and never change the pieces.
"""

import bisect
import re

from bert_tf.text.characters import is_punctuation
from bert_tf.text.segmenters import SEGMENTERS, check_segmenter
from bert_tf.text.wordpiece import CONTINUATION, FullTokenizer


class WordBoundaries:
    """Which pieces of a text continue a word.

    A piece continues the word of the piece before it if that one's last character and its own first character are in
    the same segment, and neither piece is a punctuation mark. Segments are what whitespace separates, divided further
    by a segmenter. "##" has no meaning here: a piece that begins a segment begins a word, and a piece that lies in two
    segments joins them.

    Args:
      tokenizer: makes the pieces.
      segmenter: a name in SEGMENTERS; None: whitespace alone.

    Raises:
      ValueError: see `check_segmenter`.
    """

    def __init__(self, tokenizer: FullTokenizer, segmenter: str | None):
        self._basic_tokenizer, self._added_tokens = tokenizer.basic_tokenizer, tokenizer.added_tokens
        self._cut = tokenizer.wordpiece_tokenizer.cut
        self._unknown = [tokenizer.wordpiece_tokenizer.unk_token]
        self._segment = None
        if segmenter:
            check_segmenter(segmenter)
            self._segment = SEGMENTERS[segmenter].load()

    def segment_starts(self, text: str) -> list[int]:
        """The characters of `text` at which segments begin, increasing."""
        starts = set()
        for part in re.finditer(r"\S+", text):
            begin, end = part.span()
            starts.add(begin)
            at = 0
            for word in self._segment(part.group()) if self._segment else ():
                found = part.group().find(word, at) if word else -1
                if found >= 0:
                    at = found + len(word)
                    starts.update((begin + found, begin + at))
            starts.discard(end)
        return sorted(starts)

    def continuations(self, text: str) -> list[bool]:
        """For each piece of `FullTokenizer.tokenize(text)` whether it continues a word; an added token is one."""
        parts = self._added_tokens.parts(text)
        return [flag for part in parts for flag in ([False] if part.token else self._continuations(part.text))]

    def _continuations(self, text: str) -> list[bool]:
        starts = self.segment_starts(text)
        flags, before = [], None  # the segment of the last character, unless that is punctuation
        for token, places in self._basic_tokenizer.tokenize_with_origins(text):
            if len(token) == 1 and is_punctuation(token):
                flags.append(False)
                before = None
                continue
            pieces, begin = self._cut(token), 0
            for number, piece in enumerate(pieces):
                size = len(token) if pieces == self._unknown else len(piece) - (len(CONTINUATION) if number else 0)
                own = places[begin : begin + size]
                begin += size
                flags.append(before is not None and bisect.bisect(starts, min(own)) == before)
                before = bisect.bisect(starts, max(own))
        return flags
