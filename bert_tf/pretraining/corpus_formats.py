"""The texts of one file of a corpus, by its format: plain text, JSON lines."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from bert_tf.system.declare import check_values, setting
from bert_tf.system.messages import warn_once
from bert_tf.system.text_files import Progress, TextFile, encoding_setting, with_newlines

_LONGEST_PARAGRAPH = 100_000  # characters; the sentence splitter's time is quadratic in what it gets


@dataclasses.dataclass(frozen=True)
class TextSettings:
    """What the files hold.

    Attributes:
      joins_files: a document at the end of a plain text file continues in the next one; no flag.
      encoding: a file that is not UTF-8 is read from its start, as a compressed one is.
    """

    input_format: str = setting(
        "auto",
        "The format of the files. auto: JSONL by the name (.jsonl, .json, .ndjson, before .gz and the like) or the "
        "first line, else text.",
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
    encoding: str = encoding_setting("--input_file")
    blanks_separate_docs: bool = setting(
        True, "A blank line ends a document of plain text. false: each file is one document."
    )
    joins_files: bool = True

    def __post_init__(self):
        check_values(self)
        if not self.blanks_separate_docs and self.input_format == "jsonl":
            raise ValueError("--blanks_separate_docs=false is for plain text: JSON lines are a document each")


class Reading:
    """The state of one pass over a range: settings, counts, the sentence splitter."""

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
        """Counts a line of which so many characters became U+FFFD, if any; warns of the first of a file."""
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


# A line and where to look for its number, should that be needed: the offset of its block and its index there.
_PlacedLine = tuple[str, int, int]


def numbered_lines(file: TextFile, blocks: Iterable[tuple[int, bytes]], reading: Reading) -> Iterator[_PlacedLine]:
    for offset, block in blocks:
        text = reading.decode(file, offset, block)
        if not offset:
            text = text.removeprefix("\ufeff")
        for index, line in enumerate(text.split("\n")):
            if line.strip():
                yield line, offset, index


def jsonl_texts(file: TextFile, lines: Iterable[_PlacedLine], reading: Reading) -> Iterator[str]:
    key = reading.settings.text_key
    for line, offset, index in lines:
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


def sentence_splitter(language: str) -> Callable[[str], list[str]]:
    """A function that gives the sentences of a paragraph, stripped."""
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
