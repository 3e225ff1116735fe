"""Sentences in rows of Parquet or JSON, tokens and ner_tags as in Hugging Face's data sets, as lines in CoNLL style."""

import re
from collections.abc import Iterator

from bert_tf.data.tables import class_name, quoted, raw_rows


def lines_of_rows(path: str, word_column: int, tag_column: int, encoding: str) -> Iterator[tuple[int, str]]:
    """(row, line) of a file whose columns are the lists of each row, and a blank line after each row.

    Lists of another length, which are neither the words nor the tags, have "_" where they are too short.

    Args:
      word_column, tag_column: numbers among the columns of lists, from 0; negative ones count from the end.
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
