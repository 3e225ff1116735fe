"""New words and longer sequences for an existing model: rows are added to its tables, the rest stays.

    weights, vocabulary, report = add_tokens(weights, vocabulary, ["kubernetes"], do_lower_case=True)
    weights, report = extend_positions(weights, 1024)

New rows must be trained: continue pre-training on text that needs them.
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Callable, Mapping

import numpy as np

from bert_tf.models.families import family_of_variables
from bert_tf.models.variable_names import position_table, word_table
from bert_tf.system.text_files import read_text_lines
from bert_tf.text.characters import clean, is_punctuation
from bert_tf.text.wordpiece import CONTINUATION, BasicTokenizer, WordpieceTokenizer
from bert_tf.weights.mapping import Weights, base_name

OUTPUT_BIAS = "cls/predictions/output_bias"
TOKEN_INITIALIZATIONS = ("pieces", "mean", "random")

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
        if not token:
            continue
        if len(token.split()) > 1:
            raise ValueError(f"{file}, line {number}: {token!r} has whitespace in it; a token is one word or piece.")
        if token in lines_of:
            raise ValueError(f"{file}, line {number}: {token!r} appears twice, first in line {lines_of[token]}.")
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
      vocabulary: lines of vocab.txt. tokens: those already in it are left out and reported.
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
      ValueError: a token that the tokenizer can never produce or that is given twice, too few unused slots, or a
        vocabulary that does not fit the tables; names tokens and numbers.
    """
    if initialization not in TOKEN_INITIALIZATIONS:
        raise ValueError(f"--new_rows={initialization} is not one of {', '.join(TOKEN_INITIALIZATIONS)}.")
    name = word_table(family_of_variables(weights.shapes).scope)
    table_rows = _check_tables(weights, name, vocabulary, tokens)
    ids = {token.strip(): number for number, token in enumerate(vocabulary)}
    known = [token for token in tokens if token in ids]
    new = [token for token in tokens if token not in ids]
    report = [f"Token {token!r} is in the vocabulary already, row {ids[token]}." for token in known]
    basic = BasicTokenizer(do_lower_case, strip_accents)
    if not tokenize:
        _check_words([token for token in new if not is_cut_out(token)], ids, basic)
    rows = _choose_rows(vocabulary, new, use_unused)
    cut = tokenize or functools.partial(_pieces_of, ids=ids, basic=basic)
    pieces = {token: [] if initialization != "pieces" else [one for one in cut(token) if one in ids] for token in new}
    ordinary = np.array([not _SPECIAL.fullmatch(token.strip()) for token in vocabulary])
    if not ordinary.any():
        ordinary[:] = True
    size = max(table_rows, *(row + 1 for row in rows.values())) if rows else table_rows
    changed = list(vocabulary) + [""] * (max([len(vocabulary), *(row + 1 for row in rows.values())]) - len(vocabulary))
    for token, row in rows.items():
        changed[row] = token
        report.append(_said_of(token, row, vocabulary, table_rows, pieces[token], initialization))

    def changed_table(table: np.ndarray, is_moment: bool) -> np.ndarray:
        grown = np.zeros((size, *table.shape[1:]), table.dtype)
        grown[: len(table)] = table
        generator, mean = np.random.default_rng([0, 0]), None
        if not is_moment and initialization != "random" and not all(pieces.values()):
            mean = _mean_of_rows(table, ordinary)
        for token, row in rows.items():
            if is_moment:
                grown[row] = 0.0
            elif initialization == "random":
                grown[row] = _truncated_normal(generator, table.shape[1:]) if table.ndim > 1 else 0.0
            else:
                own = [ids[piece] for piece in pieces[token]]
                grown[row] = table[own].mean(axis=0, dtype=np.float64) if own else mean
        return grown

    if not rows:
        return weights, list(vocabulary), report
    return _with_changes(weights, (name, OUTPUT_BIAS), changed_table, size), changed, report


def _check_tables(weights: Weights, name: str, vocabulary: list[str], tokens: list[str]) -> int:
    """Refuses a vocabulary that does not fit the tables, and a token given twice; returns the word table's rows."""
    table_rows = _rows_of(weights, name)
    if OUTPUT_BIAS in weights.shapes and _rows_of(weights, OUTPUT_BIAS) != table_rows:
        raise ValueError(
            f"{weights.path}: the word table has {table_rows} rows, but {OUTPUT_BIAS} has "
            f"{_rows_of(weights, OUTPUT_BIAS)} entries: they are not of one model."
        )
    if len(vocabulary) > table_rows:
        raise ValueError(
            f"The vocabulary has {len(vocabulary)} lines, but the word table of {weights.path} has {table_rows} rows: "
            "they are not of one model."
        )
    twice = [token for token, count in collections.Counter(tokens).items() if count > 1]
    if twice:
        raise ValueError(f"Token {twice[0]!r} is given twice.")
    return table_rows


def _said_of(
    token: str, row: int, vocabulary: list[str], table_rows: int, pieces: list[str], initialization: str
) -> str:
    place = "appended" if row >= table_rows else "an unused row of the table"
    if row < len(vocabulary):
        place = f"instead of {vocabulary[row].strip()}"
    start = {"random": "random", "mean": "mean of the table"}.get(initialization)
    start = start or ("mean of " + " ".join(pieces) if pieces else "mean of the table")
    return f"Token {token!r}: row {row}, {place}; starts as {start}."


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


def _mean_of_rows(table: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Mean over the first axis of the rows where `chosen` (of the first len(chosen)) is True, in float64."""
    # By a mask and not by an index, which would copy a table that takes a large part of the memory.
    table = table[: len(chosen)]
    mask = chosen.reshape(-1, *[1] * (table.ndim - 1))
    return np.add.reduce(table, axis=0, dtype=np.float64, where=mask) / chosen.sum()


def is_cut_out(token: str) -> bool:
    """Whether a token between punctuation marks, such as [E1] or <e1>, is to be an added token: the marks are words of
    their own otherwise."""
    if token.startswith(CONTINUATION) or _UNUSED.fullmatch(token) or not any(map(str.isalnum, token)):
        return False
    is_clean = all(clean(char) is not None and not char.isspace() for char in token)
    return is_clean and is_punctuation(token[0]) and is_punctuation(token[-1])


def _check_words(words: list[str], ids: Mapping[str, int], basic: BasicTokenizer) -> None:
    cutter = WordpieceTokenizer({**dict.fromkeys(words, -1), **ids, _WORD_START: -1})
    for word in words:
        _check_reachable(word, basic, cutter)


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


def _choose_rows(vocabulary: list[str], tokens: list[str], use_unused: bool) -> dict[str, int]:
    """The row of each new token."""
    if not use_unused:
        return {token: len(vocabulary) + number for number, token in enumerate(tokens)}
    slots = [number for number, token in enumerate(vocabulary) if _UNUSED.fullmatch(token.strip())]
    if len(slots) < len(tokens):
        raise ValueError(
            f"{len(tokens)} tokens, but the vocabulary has only {len(slots)} [unused...] slots: append rows instead "
            "(without --use_unused_slots), or add fewer."
        )
    return dict(zip(tokens, slots, strict=False))


def _pieces_of(token: str, ids: Mapping[str, int], basic: BasicTokenizer) -> list[str]:
    """What the old vocabulary cuts a token into; nothing where that is unknown."""
    cutter = WordpieceTokenizer({**ids, _WORD_START: -1})
    if is_cut_out(token):
        found = [piece for word in basic.tokenize(token) for piece in cutter.cut(word)]
        return [piece for piece in found if piece != cutter.unk_token]
    rest = token.removeprefix(CONTINUATION)
    found = cutter.cut(token) if rest == token else cutter.cut(_WORD_START + rest)
    return [] if found == [cutter.unk_token] else [piece for piece in found if piece != _WORD_START]


def _truncated_normal(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal of standard deviation 0.02, values beyond two deviations drawn again."""
    values = generator.standard_normal(shape)
    while (outside := np.abs(values) > 2.0).any():
        values[outside] = generator.standard_normal(int(outside.sum()))
    return (values * _STANDARD_DEVIATION).astype(np.float32)
