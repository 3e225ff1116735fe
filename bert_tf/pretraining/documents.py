"""Text in the form that create_pretraining_data.py reads (sentences in documents), from text files of any other.

A document is a list of sentences.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence

from bert_tf.pretraining.corpus import Corpus, TextSettings, sentence_splitter
from bert_tf.system.messages import progress_bar
from bert_tf.system.text_files import UTF_8

Document = list[str]

_SHORTEST_DOCUMENT, _LONGEST_DOCUMENT = 20, 200  # in sentences, for text whose documents are not marked
_ENDS = frozenset(".!?…؟۔।。！？")  # of sentences


def documents_of_lines(lines: Sequence[str]) -> Iterator[Document]:
    """The documents of a file's lines, which may be sentences or paragraphs, or broken: that is detected.

    A document ends at a blank line, but not before it has 20 sentences; it is cut after 200.
    """
    broken, split = _has_broken_lines(lines), sentence_splitter()
    document: Document = []
    for _, block in itertools.groupby(lines, bool):
        for unit in [" ".join(block)] if broken else block:
            document += split(unit)
        while len(document) >= _LONGEST_DOCUMENT:
            yield document[:_LONGEST_DOCUMENT]
            document = document[_LONGEST_DOCUMENT:]
        if len(document) >= _SHORTEST_DOCUMENT:
            yield document
            document = []
    if document:
        yield document


def _has_broken_lines(lines: Sequence[str]) -> bool:
    """Whether lines are broken at a fixed width, rather than at the end of a sentence or paragraph."""
    followed = [line for line, following in itertools.pairwise(lines) if line and following]
    if not followed:
        return False
    lengths = sorted(map(len, followed))
    width = lengths[len(lengths) * 9 // 10]
    full = sum(length >= 0.7 * width for length in lengths)
    ended = sum(not _ENDS.isdisjoint(line[-3:]) for line in followed)
    return width <= 120 and full > 0.6 * len(followed) and ended < 0.5 * len(followed)


def all_documents(files: Sequence[str], show_progress: bool = True, encoding: str = UTF_8) -> Iterator[Document]:
    """The documents of all text in files of any format that create_pretraining_data.py reads.

    A JSON line is a document; of plain text see `documents_of_lines`. A file of plain text is in memory at a time.
    """
    corpora, split = [Corpus([path], TextSettings(encoding=encoding)) for path in files], sentence_splitter()
    total = sum(corpus.total_bytes for corpus in corpora)
    with progress_bar(total=total, desc="reading texts", unit="B", unit_scale=True, disable=not show_progress) as bar:
        for corpus in corpora:
            corpus.warn_of_tables()
            lines = _lines_of(corpus.blocks(progress=bar.update))
            if corpus.marks_documents:
                for is_text, block in itertools.groupby(lines, bool):
                    if is_text:
                        yield [sentence for line in block for sentence in split(line)]
            else:
                yield from documents_of_lines(list(lines))


def _lines_of(pieces: Iterable[str]) -> Iterator[str]:
    held = ""
    for piece in pieces:
        *lines, held = (held + piece).split("\n")
        yield from map(str.strip, lines)
    yield held.strip()


def marked_held_out(documents: Iterable[Document], every: int = 20) -> Iterator[tuple[Document, bool]]:
    """Each document, and whether it is held out: every `every`-th one is, at least the last."""
    count, last = 0, []
    for document in documents:
        if count:
            yield last, count % every == 0
        count, last = count + 1, document
    if count < 2:
        raise ValueError(f"{count} documents can't be split into training and held-out ones: give 40 sentences.")
    yield last, count % every == 0 or count < every


def to_text(documents: Iterable[Document]) -> str:
    """One sentence per line, a blank line after each document."""
    return "".join("".join(sentence + "\n" for sentence in document) + "\n" for document in documents)
