"""A corpus as one stream of text, whatever its files are, in bounded memory and in ranges that workers share.

The text has one sentence (or paragraph) per line and a blank line between documents. It comes from plain text files,
from JSON lines with one document each, both also as .gz:

    corpus = Corpus(list_files("wiki/*/wiki_*"), TextSettings(split_sentences=True))
    for shard in range(64):
        for piece in corpus.blocks(*corpus.shard_range(shard, 64)):
            ...  # together the pieces are the text of this shard's documents

Plain text files are one text, as in the original: by default a document at the end of a file continues in the next
one. A compressed file and JSON lines hold whole documents.
"""

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from absl import logging

from bert_tf.system import text_files
from bert_tf.system.declare import check_values, setting
from bert_tf.system.messages import warn_once
from bert_tf.system.storage import gfile, is_remote
from bert_tf.system.text_files import Progress, TextFile, whole_lines, with_newlines
from bert_tf.system.workers import in_threads

PIECE_CHARACTERS = 1 << 20
LONGEST_LINE = 2 << 20  # bytes; a longer line of plain text comes in several pieces
_LOOK_BACK = 4096  # bytes before a range, for the blank lines before its first document
_LONGEST_PARAGRAPH = 100_000  # characters; the sentence splitter's time is quadratic in what it gets


@dataclasses.dataclass(frozen=True)
class TextSettings:
    """What the files hold.

    joins_files: a document at the end of a plain text file continues in the next one; no flag.
    """

    input_format: str = setting(
        "auto",
        "The format. auto: JSONL by the name (.jsonl, .json, .ndjson, before .gz) or the first line, else text.",
        heading="Kinds of text",
        choices=("auto", "text", "jsonl"),
    )
    text_key: str = setting("text", "JSONL: the key of the document's text.")
    split_sentences: bool = setting(False, "Lines are paragraphs: split them into sentences.")
    language: str = setting("en", "Language for --split_sentences, as in Wikipedia's addresses: en, de, ko, zh, ...")
    errors: str = setting(
        "strict",
        "What is invalid in UTF-8, or in --encoding. strict: an error that names the place. replace: counted and "
        "replaced with U+FFFD, which the tokenizer drops.",
        choices=("strict", "replace"),
    )
    encoding: str = text_files.encoding_setting("--input_file")
    blanks_separate_docs: bool = setting(True, "A blank line ends a document of plain text. false: each file is one.")
    joins_files: bool = True

    def __post_init__(self):
        check_values(self)
        if not self.blanks_separate_docs and self.input_format == "jsonl":
            raise ValueError("--blanks_separate_docs=false is for plain text: JSON lines are a document each")


class Reading:
    """The state of one pass over a range."""

    def __init__(self, settings: TextSettings, counts: Counter, progress: Progress | None):
        self.settings, self.counts, self.progress = settings, counts, progress
        self.splitter = sentence_splitter(settings.language) if settings.split_sentences else None

    def decode(self, file: TextFile, offset: int, block: bytes) -> str:
        if self.settings.errors == "strict":
            return file.decode(offset, block)
        text = with_newlines(block.decode("utf-8", "replace"))
        for line in block.split(b"\n") if "\ufffd" in text else ():
            known = 0 if file.is_converted else line.count("\ufffd".encode())
            self.count_replaced(file, line.decode("utf-8", "replace").count("\ufffd") - known)
        return text

    def count_replaced(self, file: TextFile, characters: int) -> None:
        if characters:
            encoding = file.encoding if file.is_converted else "UTF-8"
            warn_once(("bad text", file.path), "%s is not all %s; the rest becomes U+FFFD", file.path, encoding)
            self.counts.update(replaced_characters=characters, lines_with_bad_utf8=1)

    def paragraphs(self, pieces: Iterable[str]) -> Iterator[str]:
        """Plain text, its lines cut into sentences on request."""
        if self.splitter is None:
            yield from pieces
            return
        held = ""  # of a line too long to come in one piece: its last sentence, which may continue
        for piece in pieces:
            *lines, rest = (held + piece).split("\n")
            cut = [self.lines_of(line) or "\n" for line in lines]
            held = ""
            if rest and (sentences := self.splitter(rest)):
                held = sentences.pop() + " "
                cut += [sentence + "\n" for sentence in sentences]
            yield "".join(cut)

    def lines_of(self, text: str) -> str:
        """The lines of a text, or their sentences, without blank ones; each with its newline."""
        lines = [line for line in text.split("\n") if line and not line.isspace()]
        if self.splitter is not None:
            lines = [sentence for line in lines for sentence in self.splitter(line)]
        return "\n".join([*lines, ""])


@dataclasses.dataclass(frozen=True)
class _Source:
    """A file of the corpus; `begin` and `end` are offsets in all files, end to end as they are on the disk."""

    file: TextFile
    is_jsonl: bool
    begin: int
    end: int


class Corpus:
    """The documents of a list of files, in order; it can be pickled, so that workers need not inspect these again.

    total_bytes: of all files on the disk. Those of 0 bytes are skipped with a warning.
    """

    def __init__(self, files: Sequence[str], settings: TextSettings | None = None):
        if any(map(is_remote, files)):
            gfile()  # imports TensorFlow before threads do
        self.settings = settings = settings or TextSettings()
        if settings.split_sentences:
            sentence_splitter(settings.language)  # fail now if the library is missing
        # Inspecting a file on cloud storage takes a while, nearly all of it waiting.
        looks = in_threads(lambda path: _inspect_file(path, settings), files)
        ends = [*itertools.accumulate(size for _, _, size in looks)]
        self.total_bytes = ends[-1] if ends else 0
        placed = zip(looks, ends, strict=True)
        self._sources = [_Source(file, is_jsonl, end - size, end) for (file, is_jsonl, size), end in placed if size]
        if empty := [file.path for file, _, size in looks if not size]:
            logging.warning("%d of %d files are empty: %s", len(empty), len(files), empty[0])

    @property
    def marks_documents(self) -> bool:
        return any(source.is_jsonl for source in self._sources)

    def warn_of_tables(self) -> None:
        text_files.warn_of_tables(source.file.path for source in self._sources if not source.is_jsonl)

    def shard_range(self, shard: int, num_shards: int) -> tuple[int, int]:
        """(begin, end) of shard `shard` of `num_shards` of nearly equal size, for `blocks`."""
        return self.total_bytes * shard // num_shards, self.total_bytes * (shard + 1) // num_shards

    def blocks(
        self, begin: int = 0, end: int | None = None, counts: Counter | None = None, progress: Progress | None = None
    ) -> Iterator[str]:
        """The text of the documents that begin in a range of bytes, in pieces of about a megabyte.

        A document begins at its first line that is not blank; a JSON line at its beginning; and all documents of a
        compressed file at the beginning of the file. So adjoining ranges together have every document once, whole
        and in order. Only the range itself is read, except for a little at its ends.

        A piece ends with a newline, or, within a line of plain text of more than 2 MB, with a space. Of JSON lines,
        blank lines and documents without text are left out.

        begin, end: from 0 to total_bytes (None); the bytes of the files end to end, as they are on the disk.
        counts: counters to increase: `lines_with_bad_utf8`, `replaced_characters`, `documents_without_text`.
        """
        end = self.total_bytes if end is None else end
        reading = Reading(self.settings, Counter() if counts is None else counts, progress)
        held, size = [], 0
        for text in self._texts(begin, end, reading):
            held.append(text)
            size += len(text)
            if size >= PIECE_CHARACTERS:
                yield "".join(held)
                held, size = [], 0
        if size:
            yield "".join(held)

    def _texts(self, begin: int, end: int, reading: Reading) -> Iterator[str]:
        joins = self.settings.joins_files and self.settings.blanks_separate_docs
        groups = itertools.groupby(
            enumerate(self._sources),
            # Uncompressed plain text files that adjoin are one text; every other file is separate.
            lambda item: -1 if joins and not item[1].is_jsonl and item[1].file.starts_anywhere else item[0],
        )
        for _, group in groups:
            sources = [source for _, source in group]
            first, last, file = sources[0].begin, sources[-1].end, sources[0].file
            is_document = not (sources[0].is_jsonl or self.settings.blanks_separate_docs)
            is_whole = is_document or not file.starts_anywhere
            if max(begin, first) >= min(end, last) or (is_whole and begin > first):
                continue
            if sources[0].is_jsonl:
                start, stop = (0, None) if is_whole else (_record_start(sources[0], at - first) for at in (begin, end))
                yield from _record_texts(sources[0], start, stop, reading)
            elif is_whole:
                blocks = _finished(whole_lines(file, file.chunks(progress=reading.progress), LONGEST_LINE))
                texts = (reading.decode(file, offset, block) for offset, block in blocks)
                yield from reading.paragraphs(_without_blank_lines(texts) if is_document else texts)
                yield "\n"
            else:
                start, stop = _document_start(sources, begin), _document_start(sources, end)
                blocks = _text_blocks(sources, start, stop, reading.progress)
                texts = (reading.decode(of.file, offset - of.begin, block) for offset, of, block in blocks)
                yield from reading.paragraphs(texts)
                if start < stop == last < self.total_bytes:
                    yield "\n"  # what follows is another document


def _inspect_file(path: str, settings: TextSettings) -> tuple[TextFile, bool, int]:
    """(file, whether it holds JSON lines, bytes on the disk)."""
    is_gzip, name = text_files.gzip_of(path)
    file, size = TextFile(path, is_gzip, settings.encoding, settings.errors), text_files.size_of(path)
    if settings.input_format != "auto":
        return file, settings.input_format == "jsonl", size
    if name.lower().endswith((".jsonl", ".json", ".ndjson")):
        return file, True, size
    begin = b""  # up to the end of the first line, and no further if it is long and not JSON
    for _, block in whole_lines(file, file.chunks(), LONGEST_LINE) if size else ():
        begin += block
        is_json = begin.removeprefix(b"\xef\xbb\xbf").startswith(b"{")
        if b"\n" in block or not is_json or len(begin) > 64 << 20:
            break
    line = begin.decode("utf-8", "replace").removeprefix("\ufeff").split("\n", 1)[0]
    if line.startswith("<doc "):
        raise ValueError(f"{path} has WikiExtractor's <doc> form: let it write JSON lines (--json), which are read.")
    if line.startswith("{"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and settings.text_key in record:
            return file, True, size
        if record:
            logging.warning(f"{path} is JSON without {settings.text_key!r} (--text_key): it is read as plain text")
    return file, False, size


# ---- where documents begin -------------------------------------------------------------------------------------------

_BEFORE_DOCUMENT = re.compile(r"\n[^\S\n]*\n\s*(?=\S)")
_BLANK_LINE = re.compile(r"^[^\S\n]*\n", re.MULTILINE)


def _document_start(sources: Sequence[_Source], position: int) -> int:
    """Where the first document that begins at or after `position` does: at a line with text, after a blank one."""
    first, end = sources[0].begin, sources[-1].end
    if position <= first or position >= end:
        return min(max(position, first), end)
    # Reading begins a little before, to see the blank lines that precede `position`: `newlines` are those of the run of
    # whitespace that ends at the current offset, and `line_start` is where the line after it begins.
    start = line_start = max(first, position - _LOOK_BACK)
    newlines = 2 if start == first else 0
    for offset, source, block in _text_blocks(sources, start, end):
        if offset == source.begin:
            line_start = offset
        text = block.decode("utf-8", "replace")
        body = text.lstrip()
        indent = len(text) - len(body)
        if number := text.count("\n", 0, indent):
            newlines += number
            line_start = offset + _after_newline(block, number)
        if not body:
            continue
        if newlines >= 2 and line_start >= position:
            return line_start
        for match in _BEFORE_DOCUMENT.finditer(text, indent, len(text.rstrip())):
            begin = offset + _after_newline(block, text.count("\n", 0, match.end()))
            if begin >= position:
                return begin
        newlines = text.count("\n", len(text.rstrip()))
        line_start = offset + block.rfind(b"\n") + 1
    return end


def _after_newline(block: bytes, number: int) -> int:
    return len(block) - len(block.split(b"\n", number)[number])


def _record_start(source: _Source, position: int) -> int:
    """Where the first record begins at or after `position`; both in the file."""
    size = source.end - source.begin
    if position <= 0 or position >= size:
        return max(0, min(position, size))
    offset = position - 1
    for chunk in source.file.chunks(offset, size):
        if (newline := chunk.find(b"\n")) >= 0:
            return offset + newline + 1
        offset += len(chunk)
    return size


# ---- texts -----------------------------------------------------------------------------------------------------------


def _text_blocks(sources: Sequence[_Source], begin: int, end: int, progress: Progress | None = None):
    """(offset in the corpus, source, block) of plain text; a file's last line gets a newline if it lacks one."""
    for source in sources:
        if source.begin >= end or source.end <= begin:
            continue
        first, last = max(begin - source.begin, 0), min(end, source.end) - source.begin
        blocks = whole_lines(source.file, source.file.chunks(first, last, progress), LONGEST_LINE, offset=first)
        yield from ((source.begin + offset, source, block) for offset, block in _finished(blocks))


def _finished(blocks: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The same blocks, with a newline after the last line if it has none; carriage returns alone are not a line."""
    held, unfinished = None, False
    for offset, block in blocks:
        if held:
            yield held
        held = offset, block
        if kept := block.rstrip(b"\r"):
            unfinished = not kept.endswith(b"\n")
    if held:
        yield (held[0], held[1] + b"\n") if unfinished else held


def _without_blank_lines(texts: Iterable[str]) -> Iterator[str]:
    held = ""  # a visible character for the beginning of the line that the last text left open, if that has one
    for text in texts:
        yield _BLANK_LINE.sub("", held + text).removeprefix(held)
        *lines, rest = text.split("\n")
        held = "x" if rest.strip() or (held and not lines) else ""


def _record_texts(source: _Source, start: int, stop: int | None, reading: Reading) -> Iterator[str]:
    file, key = source.file, reading.settings.text_key
    for offset, block in whole_lines(file, file.chunks(start, stop, reading.progress), offset=start):
        decoded = reading.decode(file, offset, block)
        for index, line in enumerate((decoded if offset else decoded.removeprefix("\ufeff")).split("\n")):
            if not line.strip():
                continue
            try:
                text = with_newlines(json.loads(line)[key])
                # JSON can contain half a character (a lone surrogate), which UTF-8 can't encode.
                text, halves = re.subn("[\ud800-\udfff]", "\ufffd", text) if "\\u" in line else (text, 0)
                if halves and reading.settings.errors == "strict":
                    raise ValueError("half a character, see --errors")
            except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
                where = f"{file.path}, line {file.line_number(offset) + index}"
                raise ValueError(f"{where}: no text in {key!r} (--text_key) of {line:.100}: {error!r:.200}") from None
            reading.count_replaced(file, halves)
            if document := reading.lines_of(text):
                yield document + "\n"
            else:
                reading.counts["documents_without_text"] += 1


def sentence_splitter(language: str = "en") -> Callable[[str], list[str]]:
    """A function that splits a paragraph; also one in another language, some of whose abbreviations end a sentence."""
    import sentencex

    language = language.lower()
    # The library accepts any name and falls back to general rules.
    if not re.fullmatch(r"[a-z]{2,3}(-[a-z]+)*", language):
        raise ValueError(f"--language={language}: it is a code such as en, de, ko or zh")

    def split(paragraph: str) -> list[str]:
        sentences: list[str] = []
        while paragraph:
            cut = len(paragraph)
            if cut > _LONGEST_PARAGRAPH:
                cut = paragraph.rfind(" ", 0, _LONGEST_PARAGRAPH) + 1 or _LONGEST_PARAGRAPH
            parts = sentencex.segment(language, paragraph[:cut])
            paragraph = paragraph[cut:]
            if paragraph and len(parts) > 1:
                paragraph = parts.pop() + paragraph  # it may continue behind the cut
            sentences += filter(None, map(str.strip, parts))
        return sentences

    return split
