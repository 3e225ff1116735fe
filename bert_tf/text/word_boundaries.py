"""Which pieces belong to the same word where "##" does not say it: in Chinese, Japanese, and segmented text.

For whole-word masking only: words decide which pieces are masked together, and never change the pieces. Segmenters find
the words of text whose spaces don't show them; each is an extra, imported on demand.
"""

import bisect
import re
from collections.abc import Callable

from bert_tf.text.characters import is_mark, is_punctuation
from bert_tf.text.japanese import load_mecab, normalize_with_spans
from bert_tf.text.wordpiece import FullTokenizer

# Text without whitespace -> its words, in order; what is left between two words counts as a word.
Segment = Callable[[str], list[str]]


def _load_jieba() -> Segment:
    import jieba

    tokenizer = jieba.Tokenizer()
    # Jieba would load (marshal) a dictionary that any user may have put into the shared temporary folder.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer.lcut


# By name: what loads it in seconds.
SEGMENTERS: dict[str, Callable[[], Segment]] = {"jieba": _load_jieba, "fugashi": load_mecab}


class WordBoundaries:
    """Which pieces of a text continue a word.

    A piece continues the word of the piece before it if that one's last character and its own first character are in
    the same segment, and neither piece is a punctuation mark. Segments are what whitespace separates, divided further
    by a segmenter. "##" has no meaning here: a piece that begins a segment begins a word; one in two joins them.

    tokenizer: makes the pieces.
    segmenter: a name in SEGMENTERS; None: whitespace alone.
    """

    def __init__(self, tokenizer: FullTokenizer, segmenter: str | None):
        self._basic_tokenizer, self._added_tokens = tokenizer.basic_tokenizer, tokenizer.added_tokens
        self._cut = tokenizer.wordpiece_tokenizer.cut_with_sizes
        self._segment = SEGMENTERS[segmenter]() if segmenter else None

    def segment_starts(self, text: str) -> list[int]:
        """The characters of `text` at which segments begin, increasing."""
        starts = set()
        for part in re.finditer(r"\S+", text):
            begin = part.start()
            starts.add(begin)
            # Segmenters know composed characters; a mark that can't be composed continues the word, too.
            composed, spans = normalize_with_spans("NFC", part.group()) if self._segment else ("", [])
            at = 0
            for word in self._segment(composed) if self._segment else ():
                start = composed.find(word, at) if word else -1
                if start >= 0:
                    at = start + len(word)
                    edges = [edge for edge in (start, at) if edge < len(composed) and not is_mark(composed[edge])]
                    starts.update(begin + spans[edge][0] for edge in edges)
        return sorted(starts)

    def continuations(self, text: str) -> list[bool]:
        """For each piece of `FullTokenizer.tokenize(text)` whether it continues a word; an added token is one."""
        parts = self._added_tokens.parts(text)
        return [flag for part in parts for flag in ([False] if part.token else self._continuations(part.text))]

    def _continuations(self, text: str) -> list[bool]:
        starts = self.segment_starts(text)
        flags, before = [], None  # the segment of the last character, unless that is punctuation
        for token, positions in self._basic_tokenizer.tokenize_with_origins(text):
            if len(token) == 1 and is_punctuation(token):
                flags.append(False)
                before = None
                continue
            begin = 0
            for _, size in self._cut(token):
                covered = positions[begin : begin + size]
                begin += size
                flags.append(before is not None and bisect.bisect(starts, min(covered)) == before)
                before = bisect.bisect(starts, max(covered))
        return flags
