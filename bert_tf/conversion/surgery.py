"""New words and longer sequences for an existing model: rows are added to its tables, the rest stays.

    weights, vocabulary, report = add_tokens(weights, vocabulary, ["kubernetes"], do_lower_case=True)
    weights, report = extend_positions(weights, 1024)

New rows must be trained: continue pre-training on text that needs them.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping

import numpy as np

from bert_tf.models.families import family_of_variables
from bert_tf.models.variable_names import position_table, word_table
from bert_tf.system.text_files import read_text_lines
from bert_tf.text.characters import clean, is_punctuation
from bert_tf.text.wordpiece import CONTINUATION, BasicTokenizer, WordpieceTokenizer
from bert_tf.weights.tensor_files import Weights, base_name

OUTPUT_BIAS = "cls/predictions/output_bias"

_STANDARD_DEVIATION = 0.02  # initializer_range of the released models
_UNUSED = re.compile(r"\[unused\d+\]")
_SPECIAL = re.compile(r"\[[^\]]+\]|<[^>]+>")
_LONGEST_WORD = 200  # code points; a longer word becomes [UNK] whatever the vocabulary holds
_WORD_START = "\0"  # represents any beginning of a word before a ## piece: no token has it, since text is cleaned of it


def read_new_tokens(file: str) -> list[str]:
    """The tokens of a file, one per line; blank lines are left out.

    Raises:
      ValueError: whitespace inside a token, one that appears twice, or no token at all; names file and line. Bytes that
        are not UTF-8: see `text_files.read_text_lines`.
    """
    lines_of = {}
    for number, line in enumerate(read_text_lines(file), start=1):
        token = line.removeprefix("\ufeff").strip()
        if len(token.split()) > 1:
            raise ValueError(f"{file}, line {number}: {token!r} has whitespace in it; a token is one word or piece.")
        if token in lines_of:
            raise ValueError(f"{file}, line {number}: {token!r} appears twice, first in line {lines_of[token]}.")
        if token:
            lines_of[token] = number
    if not lines_of:
        raise ValueError(f"{file} has no token in it.")
    return list(lines_of)


def add_tokens(
    weights: Weights,
    vocabulary: list[str],
    tokens: list[str],
    *,
    do_lower_case: bool,
    strip_accents: bool | None = None,
    tokenize: Callable[[str], list[str]] | None = None,
    use_unused: bool = False,
    initialization: str = "pieces",
) -> tuple[Weights, list[str], list[str]]:
    """Gives tokens rows of the word table and entries of the masked-LM bias; their Adam moments start at zero.

    Args:
      vocabulary: lines of vocab.txt. tokens: different ones; those already in it are left out and reported.
      do_lower_case, strip_accents: casing of the model.
      tokenize: of a tokenizer without a list of word pieces, to which all tokens are added tokens; None: word pieces,
        of which `is_cut_out` says which are.
      use_unused: replace [unused...] lines by them instead of appending them.
      initialization: "pieces": mean of the rows of the pieces that the token was cut into so far (the mean of the table
        where it came out as [UNK]), a ## token as the rest of a word; "mean": mean of all rows but [unused...] and
        special ones; "random": truncated normal of standard deviation 0.02, bias 0. Means are taken in float64 and
        rounded once.

    Returns:
      the weights (tables are changed when they are read), the new vocabulary, and lines that say what was done.

    Raises:
      ValueError: a token that the tokenizer can never produce, too few unused slots, or a vocabulary that does not fit
        the tables; names tokens and numbers.
    """
    name = word_table(family_of_variables(weights.shapes).scope)
    table_rows = _fitting_rows(weights, name, vocabulary)
    ids = {token.strip(): number for number, token in enumerate(vocabulary)}
    new = [token for token in tokens if token not in ids]
    report = [f"Token {token!r} is in the vocabulary already, row {ids[token]}." for token in tokens if token in ids]
    if not new:
        return weights, list(vocabulary), report
    basic = BasicTokenizer(do_lower_case, strip_accents)
    words = [] if tokenize else [token for token in new if not is_cut_out(token)]
    cutter = WordpieceTokenizer({**dict.fromkeys(words, -1), **ids, _WORD_START: -1})
    for word in words:
        _check_reachable(word, basic, cutter)
    rows = _unused_rows(vocabulary, len(new)) if use_unused else itertools.count(len(vocabulary))
    places = dict(zip(new, rows, strict=False))
    pieces = {}
    for token in new:
        cut = [] if initialization != "pieces" else tokenize(token) if tokenize else _pieces_of(token, ids, basic)
        pieces[token] = [piece for piece in cut if piece in ids]
        start = "random" if initialization == "random" else "mean of " + (" ".join(pieces[token]) or "the table")
        place = _place_of_row(places[token], vocabulary, table_rows)
        report.append(f"Token {token!r}: row {places[token]}, {place}; starts as {start}.")
    size = max(table_rows, *(row + 1 for row in places.values()))
    changed = [*vocabulary, *[""] * (max(places.values()) + 1 - len(vocabulary))]
    for token, row in places.items():
        changed[row] = token
    ordinary = np.array([not _SPECIAL.fullmatch(token.strip()) for token in vocabulary])
    own = {places[token]: [ids[piece] for piece in pieces[token]] for token in new}
    change = _table_changer(own, size, ordinary if ordinary.any() else ~ordinary, initialization == "random")
    return _with_changes(weights, (name, OUTPUT_BIAS), change, size), changed, report


def _fitting_rows(weights: Weights, name: str, vocabulary: list[str]) -> int:
    """The rows of the word table, which bias and vocabulary must fit."""
    rows = _rows_of(weights, name)
    bias = weights.shapes.get(OUTPUT_BIAS, (rows,))[0]
    for other, count, fits in (
        (OUTPUT_BIAS, bias, bias == rows),
        ("the vocabulary", len(vocabulary), len(vocabulary) <= rows),
    ):
        if not fits:
            raise ValueError(
                f"{weights.path}: the word table has {rows} rows, but {other} has {count}: they are not of one model."
            )
    return rows


def _unused_rows(vocabulary: list[str], needed: int) -> list[int]:
    rows = [number for number, token in enumerate(vocabulary) if _UNUSED.fullmatch(token.strip())]
    if len(rows) < needed:
        raise ValueError(
            f"{needed} tokens, but the vocabulary has only {len(rows)} [unused...] slots: append rows instead (without "
            "--use_unused_slots), or add fewer."
        )
    return rows


def _place_of_row(row: int, vocabulary: list[str], table_rows: int) -> str:
    if row < len(vocabulary):
        return f"instead of {vocabulary[row].strip()}"
    return "appended" if row >= table_rows else "an unused row of the table"


def _table_changer(own: Mapping[int, list[int]], size: int, ordinary: np.ndarray, is_random: bool) -> Callable:
    """A function (table, whether it is a moment) -> the table of `size` rows with the new ones.

    Args:
      own: new row -> the old ones whose mean it is; none: that of all `ordinary` ones, a mask of the first rows.
    """

    def change(table: np.ndarray, is_moment: bool) -> np.ndarray:
        grown = np.zeros((size, *table.shape[1:]), table.dtype)
        grown[: len(table)] = table
        generator, mean = np.random.default_rng([0, 0]), None
        if not is_moment and not is_random and not all(own.values()):
            # By a mask and not by an index, which would copy a table that takes a large part of the memory.
            mask = ordinary.reshape(-1, *[1] * (table.ndim - 1))
            mean = np.add.reduce(table[: len(mask)], axis=0, dtype=np.float64, where=mask) / ordinary.sum()
        for row, pieces in own.items():
            if is_moment or (is_random and table.ndim == 1):
                grown[row] = 0.0
            elif is_random:
                grown[row] = _truncated_normal(generator, table.shape[1:])
            else:
                grown[row] = table[pieces].mean(axis=0, dtype=np.float64) if pieces else mean
        return grown

    return change


def extend_positions(weights: Weights, max_position_embeddings: int) -> tuple[Weights, list[str]]:
    """Gives the position table more rows, which repeat the learned ones from the start; their Adam moments start at
    zero.

    Raises:
      ValueError: the table has as many rows or more.
    """
    name = position_table(family_of_variables(weights.shapes).scope)
    old = _rows_of(weights, name)
    if max_position_embeddings <= old:
        raise ValueError(f"--max_position_embeddings={max_position_embeddings}: the model has {old} positions already.")

    def longer(table: np.ndarray, is_moment: bool) -> np.ndarray:
        table = table[np.arange(max_position_embeddings) % old]
        if is_moment:
            table[old:] = 0.0
        return table

    report = [f"Positions {old} to {max_position_embeddings - 1} are new; they repeat rows 0 to {old - 1}."]
    return _with_changes(weights, (name,), longer, max_position_embeddings), report


def _with_changes(weights: Weights, tables: tuple[str, ...], change: Callable, size: int) -> Weights:
    """Weights whose tables and their moments are changed as they are read; the rest passes through unread.

    Args:
      change: (table, whether it is a moment) -> the table with another number of rows, `size`.
    """

    def read(name: str) -> np.ndarray:
        value = weights.read(name)
        return change(value, name not in tables) if base_name(name) in tables else value

    shapes = {n: (size, *shape[1:]) if base_name(n) in tables else shape for n, shape in weights.shapes.items()}
    return dataclasses.replace(weights, shapes=shapes, reader=read)


def _rows_of(weights: Weights, name: str) -> int:
    if name not in weights.shapes:
        raise ValueError(f"{weights.path} has no {name}.")
    return weights.shapes[name][0]


def is_cut_out(token: str) -> bool:
    """Whether a token between punctuation marks, such as [E1] or <e1>, is to be an added token: the marks are words of
    their own otherwise."""
    if token.startswith(CONTINUATION) or _UNUSED.fullmatch(token) or not any(map(str.isalnum, token)):
        return False
    is_clean = all(clean(char) is not None and not char.isspace() for char in token)
    return is_clean and is_punctuation(token[0]) and is_punctuation(token[-1])


def _check_reachable(token: str, basic: BasicTokenizer, cutter: WordpieceTokenizer) -> None:
    """Refuses a token that the tokenizer can never produce, by running the tokenizer on it.

    Args:
      cutter: has the new vocabulary and _WORD_START.

    Raises:
      ValueError: says what the tokenizer makes of it instead.
    """
    text = token.removeprefix(CONTINUATION)
    if not text:
        raise ValueError(f"Token {token!r} is empty.")
    # A ## piece follows the beginning of a word; "a" shows whether it stays one piece.
    word, expected = (text, [token]) if text == token else ("a" + text, [_WORD_START, token])
    if len(word) > _LONGEST_WORD:
        raise ValueError(
            f"Token {token[:20]!r}... has {len(text)} characters; words over {_LONGEST_WORD} are unknown, and at "
            f"least one character precedes {CONTINUATION}."
        )
    words = basic.tokenize(word)
    if words != [word] or cutter.cut(word if text == token else _WORD_START + text) != expected:
        advice = " Add it in that form, or the words one by one." if words and text == token else ""
        raise ValueError(
            f"Token {token!r} can never come out of the tokenizer, which makes {' '.join(words) or 'nothing'!r} of "
            f"{word!r}.{advice}"
        )


def _pieces_of(token: str, ids: Mapping[str, int], basic: BasicTokenizer) -> list[str]:
    """What the old vocabulary cuts a token into; nothing where that is unknown."""
    cutter = WordpieceTokenizer({**ids, _WORD_START: -1})
    if is_cut_out(token):
        found = [piece for word in basic.tokenize(token) for piece in cutter.cut(word)]
    else:
        rest = token.removeprefix(CONTINUATION)
        found = cutter.cut(token if rest == token else _WORD_START + rest)
    return [piece for piece in found if piece not in (_WORD_START, cutter.unk_token)]


def _truncated_normal(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal of standard deviation 0.02, values beyond two deviations drawn again."""
    values = generator.standard_normal(shape)
    while (outside := np.abs(values) > 2.0).any():
        values[outside] = generator.standard_normal(int(outside.sum()))
    return (values * _STANDARD_DEVIATION).astype(np.float32)
