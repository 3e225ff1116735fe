"""Files in CoNLL style, read into sentences and written back with predicted tags.

One word per line with its columns, a blank line after each sentence, a line that begins with -DOCSTART- before each
document. Whatever the file's scheme, a model learns IOB2 or, from the two schemes that mark ends, BIOES; predictions
are written in the file's own, and spelled as its tags are (`metrics.py`).

Source: Tjong Kim Sang & De Meulder 2003 (CoNLL-2003).
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
from absl import logging

from bert_tf.data.tables import has_names, quoted, raw_rows
from bert_tf.system.checks import check_input_files
from bert_tf.system.declare import changeable_setting, setting
from bert_tf.system.messages import is_first
from bert_tf.system.storage import write_text_file
from bert_tf.system.text_files import encoding_setting, read_text_lines
from bert_tf.tasks.classification.settings import class_weights_setting
from bert_tf.tasks.ner import metrics as ner_tags
from bert_tf.tasks.rows import class_name
from bert_tf.text.characters import plain_name, trimmed
from bert_tf.training.settings import FineTuningSettings

DOCUMENT_START = "-DOCSTART-"
_HEADERS = {"label", "labels", "ner", "ner_tag", "pos", "tag", "tags", "text", "token", "tokens", "word", "words"}
# CoNLL-U has ten columns; in the first, 2-3 numbers a range of words that are one in the text, 4.1 an empty node.
_CONLL_U, _NO_WORD = 10, re.compile(r"\d+[-.]\d+")
_LONG_SENTENCE = 200  # words: a file of so many has more than one


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    column_separator: str = setting(
        "auto",
        "The column separator. space: any run of spaces and tabs. auto: tab if the first word's line has one.",
        heading="How your files are read",
        choices=("auto", "tab", "space"),
    )
    word_column: int = setting(0, "Column of the word, from 0; -1 is the last one.")
    tag_column: int = setting(-1, "Column of the tag, from 0; -1 is the last one.")
    tag_scheme: str = setting(
        "iob2",
        "How tags mark entities. iob2: B- begins each, I- continues it (most datasets). iob1: B- only between two "
        "adjacent ones (CoNLL-2003 as published). bioes, bilou: ends and single words are marked, too. plain: tags "
        "that mark no entities, such as parts of speech; accuracy is measured.",
        choices=("iob2", "iob1", "bioes", "bilou", "plain"),
    )
    repair_tags: bool = setting(
        False, "Read tags that violate --tag_scheme like the program conlleval; by default an error."
    )
    comment_prefix: str = setting(
        "", "Lines with this prefix are not words, e.g. '# ' in CoNLL-U. Beware of hashtags in tweets."
    )
    encoding: str = encoding_setting("your files")

    def is_comment(self, line: str) -> bool:
        return bool(self.comment_prefix) and line.startswith(self.comment_prefix)


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The words of a sentence and their tags, if any, in the scheme that a model learns.

    lines: of the words, from 1. document: its number, from 0.
    raw_tags: as the file has them, where they broke the scheme and `tags` are repaired.
    """

    words: list[str]
    tags: list[str] | None
    lines: list[int]
    document: int = 0
    path: str = ""
    raw_tags: list[str] | None = None


@dataclasses.dataclass(frozen=True)
class ConllFile:
    """A file's lines, without byte order marks, and the sentences in them.

    separator: of columns, a tab or a space. notation: of its tags. no_words: lines left out.
    """

    path: str
    lines: list[str]
    sentences: list[Sentence]
    separator: str
    notation: ner_tags.Notation = ner_tags.STANDARD
    no_words: tuple[int, ...] = ()


def split_of(sentences: Iterable[Sentence], added_tokens: Collection[str] = ()) -> str:
    """What the words are, judged by their lengths: one of `text.characters.SPLITS`. Added tokens don't count."""
    words = {word for sentence in sentences for word in sentence.words} - {*added_tokens}
    if any(len(word) > 1 for word in words):
        return "words"
    return "characters_and_spaces" if any(word.isspace() for word in words) else "characters"


# --- reading -------------------------------------------------------------------------------------------------------


def read_conll(path: str, layout: Layout, scheme: str | None = None, has_tags: bool = True) -> ConllFile:
    """Reads a file in CoNLL style.

    scheme: of the sentences' tags: iob2, bioes or plain; by default `learned_scheme(layout.tag_scheme)`.
    has_tags: whether there is a column of tags; never so in a file of one column.
    """
    reader = _Reader(path, layout, scheme or ner_tags.learned_scheme(layout.tag_scheme), has_tags)
    if has_names(path):
        found = list(lines_of_rows(path, layout.word_column, layout.tag_column, layout.encoding))
        reader.rows, lines = [row for row, _ in found], [line for _, line in found]
        reader.separator = "\t"
    else:  # byte order marks are also inside, in files that were joined
        lines = [line.lstrip("\ufeff") for line in read_text_lines(path, encoding=layout.encoding)]
    for number, line in enumerate(lines, start=1):
        reader.add(line, number)
    reader.end_sentence()
    if not reader.sentences:
        raise ValueError(f"{path} has no words.")
    first, labels = reader.sentences[0], [tag for sentence in reader.sentences for tag in sentence.tags or ()]
    if labels and {first.words[0].casefold(), labels[0].casefold()} <= _HEADERS and labels.count(labels[0]) == 1:
        raise ValueError(f"{path}, line {first.lines[0]}: {first.words[0]!r}, {labels[0]!r} is a header: remove it.")
    reader.finish()
    if len(reader.sentences) == 1 and (length := len(reader.sentences[0].words)) > _LONG_SENTENCE:
        logging.warning("%s: no blank line ends a sentence, so that it is one sentence of %d words.", path, length)
    if no_words := reader.no_words:
        message = "%s: left out %d lines of CoNLL-U, ranges of words (2-3) and empty nodes (4.1); the first is line %d."
        logging.warning(message, path, len(no_words), no_words[0])
    if reader.repaired:
        message = "%s: the tags of %d sentences break the scheme %s and were read as conlleval reads them."
        logging.warning(message, path, reader.repaired, layout.tag_scheme)
    return ConllFile(path, lines, reader.sentences, reader.separator, reader.notation, tuple(reader.no_words))


class _Reader:
    def __init__(self, path: str, layout: Layout, scheme: str, has_tags: bool):
        self.path, self.layout, self.scheme, self.has_tags = path, layout, scheme, has_tags
        self.sentences: list[Sentence] = []
        self.notation = ner_tags.STANDARD
        self.separator = {"auto": None, "tab": "\t", "space": " "}[layout.column_separator]
        self.repaired = 0
        self.no_words: list[int] = []  # lines
        self.rows: list[int] = []  # of a file of rows: the row that each line is made of
        self._columns = 0  # in the first word's line, and so in every line
        self._first_line = 0
        self._document = 0
        self._words, self._tags, self._lines = [], [], []

    def at(self, number: int) -> str:
        return f"{self.path}, line {self.rows[number - 1] if self.rows else number}"

    def add(self, line: str, number: int) -> None:
        if not trimmed(line):
            self.end_sentence()
        elif self.layout.is_comment(line):
            return
        elif line.startswith(DOCUMENT_START):
            self.end_sentence()
            self._document = self.sentences[-1].document + 1 if self.sentences else 0
        else:
            self._add_word(line, number)

    def _add_word(self, line: str, number: int) -> None:
        if self.separator is None:
            self.separator = "\t" if "\t" in line else " "
            logging.info("%s: columns are separated by %s.", self.path, "tabs" if self.separator == "\t" else "spaces")
        columns = self._columns_of(line)
        if not self._columns:
            self._columns, self._first_line = len(columns), number
            self._check_columns(number)
        if len(columns) != self._columns:
            raise ValueError(
                f"{self.at(number)}: {len(columns)} columns, but line {self._first_line} has {self._columns}: "
                f"{line!r:.80}. Columns are separated by {'tabs' if self.separator == chr(9) else 'spaces'} "
                f"(--column_separator, --comment_prefix)."
            )
        if len(columns) >= _CONLL_U and self.layout.word_column % len(columns) and _NO_WORD.fullmatch(columns[0]):
            self.no_words.append(number)
            return
        word = columns[self.layout.word_column]
        word = trimmed(word) or word  # a space can be a word, too
        tag = plain_name(columns[self.layout.tag_column]) if self.has_tags else "none"
        if not (word and tag):
            raise ValueError(f"{self.at(number)}: the {'tag' if word else 'word'} is empty.")
        self._words.append(word)
        self._lines.append(number)
        self._tags.append(tag)

    def _columns_of(self, line: str) -> list[str]:
        if self.separator == "\t":
            columns = line.split("\t")
            while self._columns and len(columns) > self._columns and not trimmed(columns[-1]):
                columns.pop()
            return columns
        columns = re.split("[ \t]+", line.strip(" \t"))
        if len(columns) != (self._columns or len(columns)) or len(columns) == 1:
            columns = re.split("[ \t\u00a0]+", line.strip(" \t\u00a0"))
        return columns

    def _check_columns(self, number: int) -> None:
        if self._columns == 1 and self.layout.tag_column == -1:
            self.has_tags = False  # words and nothing else
        elif not self.has_tags and self._columns > 1 and is_first("columns", self.path):
            message = "%s: of the %d columns of a line only the word is read; sentences are to have one word a line."
            logging.warning(message, self.path, self._columns)
        for name in ("word_column", "tag_column") if self.has_tags else ("word_column",):
            if not -self._columns <= (column := getattr(self.layout, name)) < self._columns:
                raise ValueError(f"{self.at(number)}: no column --{name}={column}, there are {self._columns}.")
        if self.has_tags and not (self.layout.word_column - self.layout.tag_column) % self._columns:
            raise ValueError(f"{self.at(number)}: --word_column and --tag_column are the same column.")

    def end_sentence(self) -> None:
        if self._words:
            tags = self._tags if self.has_tags else None
            self.sentences.append(Sentence(self._words, tags, self._lines, self._document, self.path))
            self._words, self._tags, self._lines = [], [], []

    def finish(self) -> None:
        """Reads the tags of all sentences, now that it is known how the file spells them."""
        numbers = [str(number) for number in range(max((len(each.words) for each in self.sentences), default=0) + 1)]
        for start in (0, 1) if self._columns > 2 and len(numbers) > 2 else ():
            if all(each.words == numbers[start : start + len(each.words)] for each in self.sentences):
                raise ValueError(
                    f"{self.at(self._first_line)}: column {self.layout.word_column} only numbers the words: "
                    "give --word_column."
                )
        if not self.has_tags:
            return
        if self.layout.tag_scheme == "plain":
            tags = {tag for sentence in self.sentences for tag in sentence.tags}
            if tags > {ner_tags.OUTSIDE} and all(map(ner_tags.STANDARD.has, tags)) and is_first("plain"):
                message = "%s: its tags, such as %s, mark entities, which --tag_scheme=plain does not score."
                logging.warning(message, self.path, min(tags - {ner_tags.OUTSIDE}))
            return
        self.notation = ner_tags.notation_of(tag for sentence in self.sentences for tag in sentence.tags)
        self.sentences = list(map(self._with_learned_tags, self.sentences))

    def _with_learned_tags(self, sentence: Sentence) -> Sentence:
        scheme, raw = self.layout.tag_scheme, None
        tags = [self.notation.read(tag) for tag in sentence.tags]
        try:
            entities = ner_tags.entities_of(tags, scheme)
        except ner_tags.BrokenTags as error:
            if not self.layout.repair_tags or not all(map(ner_tags.STANDARD.has, tags)):
                raise ValueError(
                    f"{self.at(sentence.lines[error.index])}: {error}. See --tag_scheme, --repair_tags and "
                    "--comment_prefix."
                ) from None
            self.repaired += 1
            entities = ner_tags.lenient_entities(tags)
            raw = tags if scheme == self.scheme else None
        return dataclasses.replace(sentence, tags=ner_tags.tags_of(entities, len(tags), self.scheme), raw_tags=raw)


# --- writing -------------------------------------------------------------------------------------------------------


def write_conll(path: str, file: ConllFile, predicted: Sequence[Sequence[str]], layout: Layout) -> None:
    """Writes a file's lines as they were, with the predicted tag as one more column, as conlleval reads it.

    -DOCSTART- gets the tag O. predicted: the tags of each sentence, in the scheme of the file, not in its spelling.
    """
    spell = str if layout.tag_scheme == "plain" else file.notation.write
    tag_at = {
        line: spell(tag)
        for sentence, tags in zip(file.sentences, predicted, strict=True)
        for line, tag in zip(sentence.lines, tags, strict=True)
    }
    tag_at |= dict.fromkeys(file.no_words, "_")
    lines = []
    for number, line in enumerate(file.lines, start=1):
        tag = tag_at.get(number)
        if tag is None and line.startswith(DOCUMENT_START) and not layout.is_comment(line):
            tag = spell(ner_tags.OUTSIDE)
        stripped = line.rstrip(" ") if file.separator == "\t" else line.rstrip(" \t")
        lines.append(line if tag is None else f"{stripped}{file.separator}{tag}")
    write_text_file(path, "".join(line + "\n" for line in lines))


# --- rows of lists, as lines ------------------------------------------------------------------------------------------


def lines_of_rows(path: str, word_column: int, tag_column: int, encoding: str) -> Iterator[tuple[int, str]]:
    """(row, line) of a file whose columns are the lists of each row, and a blank line after each row.

    Lists of another length, which are neither the words nor the tags, have "_" where they are too short.
    """
    names: list[str] = []
    for number, row in raw_rows(path, None, None, encoding):
        start = f"{path}, line {number}"
        lists = {name: cells for name, cells in row.items() if isinstance(cells, list)}
        for flag, column in {"word_column": word_column, "tag_column": tag_column}.items():
            if not -len(lists) <= column < len(lists):
                raise ValueError(f"{start}: no column --{flag}={column}; those of lists are {quoted(lists)}, from 0.")
        names = names or [*lists]
        if lists.keys() != {*names}:
            raise ValueError(f"{start}: the lists are {quoted(lists)}, in the first row {quoted(names)}.")
        name, tag_name = names[word_column], names[tag_column]
        if len(words := lists[name]) != len(tags := lists[tag_name]):
            raise ValueError(f"{start}: {len(words)} words in {name!r}, {len(tags)} tags in {tag_name!r}.")
        for k in range(len(words)):
            if isinstance(inner := words[k], list | dict) or isinstance(inner := tags[k], list | dict):
                raise ValueError(f"{start}: word {k} has {inner!r:.80}, where text is expected.")
            cells = (lists[each][k] if k < len(lists[each]) else "_" for each in names)
            cells = ("" if cell is None else cell if isinstance(cell, str) else class_name(cell) for cell in cells)
            line = "\t".join(re.sub(r"[\t\r\n]", " ", cell) for cell in cells)
            if not line.strip():  # would end the sentence
                raise ValueError(f"{start}: word {k} is blank, which only rows with tags may have.")
            yield number, line
        yield number, ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NerSettings(Layout):
    train_file: str | None = setting(
        None, "Words and tags to train on; files separated by commas, or a glob.", heading="Your files"
    )
    dev_file: str | None = setting(None, "Words and tags to evaluate on (or several files).")
    test_file: str | None = changeable_setting(None, "One file to tag; tags, if it has any, are scored.")
    test_has_tags: bool = changeable_setting(
        True, "Whether --test_file has a tag column. A file with a single column has none."
    )
    doc_stride: int | None = setting(
        None,
        "Tokens from the start of one window of a long sentence or document to the next. If unset, half a window.",
        heading="Windows",
        least=1,
    )
    document_context: bool | None = setting(
        False,
        "Encode a sentence with its neighbours in the document (-DOCSTART- lines), as in the paper; use it with a "
        "large --max_seq_length. If unset, as the model was trained, or else false.",
        unset=True,
    )
    metric: str = changeable_setting(
        "entities",
        "How tags are scored. entities: precision, recall and F1 of whole entities, as conlleval. klue: also the "
        "scores of KLUE-NER, for files with a character a line: mean F1 over types of entities, which chooses the best "
        "model, and over tags of characters.",
        heading="Evaluation",
        choices=("entities", "klue"),
    )
    character_tokens: bool = setting(
        False,
        "Of files with a character a line and spaces among them (KLUE-NER), each character is a token of its own, for "
        "models of characters. If false, the texts are cut into the model's pieces, each of which has the tag of its "
        "first character, and characters get the tags of their pieces. Models of run_ner.py stay as they were trained.",
        heading="Windows",
    )
    class_weights: str | None = class_weights_setting("tagged words")

    def check(self, run: FineTuningSettings) -> None:
        run.check(self)
        run.check_sets(self, check_input_files)
        if self.metric == "klue" and self.tag_scheme == "plain":
            raise ValueError("--metric=klue scores entities: --tag_scheme=plain has none.")


def tags_by_sentence(sentences: Sequence[Sentence], tags: Sequence[str]) -> list[list[str]]:
    ends = np.cumsum([len(sentence.words) for sentence in sentences]).tolist()
    return [list(tags[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def raw_tags(sentences: Sequence[Sentence], logits: np.ndarray, labels: Sequence[str]) -> list[list[str]]:
    """The most probable tag of each word, by sentence; together they may break the scheme."""
    return tags_by_sentence(sentences, [labels[number] for number in logits.argmax(-1)])


def predicted_tags(
    sentences: Sequence[Sentence], logits: np.ndarray, labels: Sequence[str], scheme: str
) -> list[list[str]]:
    """`raw_tags` as valid tags of `scheme`; incomplete entities are read as conlleval reads them."""
    return [ner_tags.valid_tags(tags, scheme) for tags in raw_tags(sentences, logits, labels)]
