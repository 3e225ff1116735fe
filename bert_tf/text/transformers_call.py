"""A tokenizer called with the arguments of transformers: the names, cuts and numbers of its fast tokenizers.

Shape legend: B batch, S sequence length.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_tf.system.checks import check_list, list_of_strings

# What an argument may be -> what it means; None: nothing is done.
_PADDINGS = {"longest": "longest", "max_length": "max_length", True: "longest", False: None, "do_not_pad": None}
_TRUNCATIONS = {name: name for name in ("longest_first", "only_first", "only_second")} | {
    True: "longest_first", None: "longest_first", False: None, "do_not_truncate": None,
}  # fmt: skip
_TENSORS = {None: None, "np": "np", "tf": "tf"}
_COLUMNS = ("input_ids", "token_type_ids", "attention_mask", "offset_mapping", "word_ids")  # in the order of `_row`


class Encoding(dict):
    """Arrays by name, which are attributes, too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def tree_flatten(self) -> tuple:
        """Children, what else is needed, and the children's names, as Keras takes a dict apart."""
        names = sorted(self)
        return [self[name] for name in names], tuple(self), names

    @classmethod
    def tree_unflatten(cls, names: Sequence[str], values: Sequence) -> "Encoding":
        by_name = dict(zip(sorted(names), values, strict=True))
        return cls({name: by_name[name] for name in names})


def as_transformers(
    tokenizer,
    /,
    texts: str | Sequence,
    pairs: str | Sequence | None = None,
    max_length: int | None = None,
    padding: str | bool = "longest",
    truncation: str | bool | None = None,
    text_pair: str | Sequence | None = None,
    return_tensors: str | None = None,
    is_split_into_words: bool = False,
    add_special_tokens: bool = True,
    return_token_type_ids: bool = True,
    return_attention_mask: bool = True,
    return_offsets_mapping: bool = False,
    return_word_ids: bool = False,
    **unknown,
) -> Encoding:
    """The result of a call with any of the arguments from `truncation` on.

    Returns dict of int32 [B, S]: `input_ids`, `token_type_ids`, `attention_mask`; on request `offset_mapping` [B, S,
    2], for each token the first character of its text (or word) and the one after the last, and `word_ids` [B, S]. (0,
    0) and -1 stand for special tokens.
    """
    if unknown:
        advice = "scripts and predictors cut long texts, labels go into a model's call; docs/from-transformers.md"
        raise TypeError(f"a tokenizer's call has no {', '.join(unknown)}: {advice}")
    asked = True, return_token_type_ids, return_attention_mask, return_offsets_mapping, return_word_ids
    padding, strategy = _one_of(_PADDINGS, "padding", padding), _one_of(_TRUNCATIONS, "truncation", truncation)
    tensors, is_words = _one_of(_TENSORS, "return_tensors", return_tensors), is_split_into_words
    if pairs is not None and text_pair is not None:
        raise ValueError("pairs and text_pair are two names of one argument: give one")
    pairs = text_pair if pairs is None else pairs
    pairs = None if isinstance(pairs, str) and not pairs else pairs  # as transformers; lists of "" are pairs
    if truncation and strategy and max_length is None and (max_length := tokenizer.max_length) is None:
        raise ValueError(f"truncation={truncation!r} needs a max_length; read_tokenizer knows that of a model")
    if return_word_ids and not is_words:
        raise ValueError("return_word_ids=True needs texts that are lists of words, and is_split_into_words=True")
    special = (tokenizer.begin_ids, tokenizer.between_ids, tokenizer.end_ids) if add_special_tokens else [()] * 3
    number = sum(map(len, special[:: 1 if pairs is not None else 2]))
    check_lengths(max_length, padding, number, pairs is not None)
    room = max_length - number if max_length and strategy else None
    rows = []
    for both in zip(*batches_of(texts, pairs, is_words), strict=True):
        pieces = [_pieces(tokenizer, text, is_words, return_offsets_mapping) for text in both if text is not None]
        rows.append(_row(_cut(pieces, room, strategy, tokenizer.kept), special, tokenizer.second_segment))
    chosen = itertools.compress(enumerate(_COLUMNS), asked)
    columns = {name: [[token[position] for token in row] for row in rows] for position, name in chosen}
    fill = {"input_ids": tokenizer.pad_token_id, "offset_mapping": (0, 0), "word_ids": -1}
    return Encoding(_in_form(columns, fill, padding, max_length, tensors))


def encode_plus(tokenizer, text, text_pair=None, *, padding: str | bool = False, **others) -> Encoding:
    """The call of transformers for one text: rows, not a batch of one, but with return_tensors."""
    encoded = as_transformers(tokenizer, text, text_pair, padding=padding, **others)
    if others.get("return_tensors"):
        return encoded
    return Encoding({name: np.asarray(rows[0]).tolist() for name, rows in encoded.items()})


def batch_encode_plus(tokenizer, texts: Sequence, *, padding: str | bool = False, **others) -> Encoding:
    """The call of transformers 4 for a list of texts or of pairs (text, text_pair): rows."""
    texts = check_list(texts, "texts", "strings or pairs of strings")
    if texts and all(isinstance(text, tuple) for text in texts):
        texts, others["text_pair"] = map(list, zip(*texts, strict=True))
    return as_transformers(tokenizer, texts, padding=padding, **others)


def _pieces(tokenizer, text, is_words: bool, with_offsets: bool) -> list[tuple]:
    """(id, offsets, number of the word) of each piece of a text."""
    pieces = []
    texts = text if is_words else [tokenizer.as_text(text)]
    for number, part in enumerate(tokenizer.words_in_text(texts) if is_words else texts):
        if is_words or with_offsets:
            if tokenizer.mask_token in part:
                raise ValueError(f"{tokenizer.mask_token} in a text can't be told with offsets or words: {part!r:.80}")
            ids, offsets = tokenizer.encode_with_offsets(part, dropped_marks=False)
            before = len(part) - len(texts[number])  # the space before a word
            offsets = [(max(begin - before, 0), max(end - before, 0)) for begin, end in offsets]
        else:
            ids, offsets = tokenizer.encode_masked(part), itertools.repeat((0, 0))
        pieces += zip(ids, offsets, itertools.repeat(number), strict=False)
    return pieces


def _row(pieces: list[list[tuple]], special: Sequence[Sequence[int]], second_segment: int) -> list[tuple]:
    """(id, segment, 1, offsets, number of the word) of each token of a row of one or two texts."""
    begin, between, end = ([(index, (0, 0), -1) for index in ids] for ids in special)
    first, second = [*begin, *pieces[0]], end
    if len(pieces) == 2:
        first, second = [*first, *between], [*pieces[1], *end]
    segments = [0] * len(first) + [second_segment if len(pieces) == 2 else 0] * len(second)
    return [(index, segment, 1, *rest) for (index, *rest), segment in zip([*first, *second], segments, strict=True)]


def _one_of(meanings: Mapping, name: str, value):
    if isinstance(value, str | bool | None) and value in meanings:
        return meanings[value]
    raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, meanings))}")


def _cut(pieces: list[list], room: int | None, strategy: str | None, kept: Callable) -> list[list]:
    """The pieces of one or two texts, of which `room` are kept together; None: all. kept: see `Tokenizer`."""
    first, second = map(len, (*pieces, [])[:2])
    if room is None or first + second <= room:
        return pieces
    if strategy == "longest_first":
        shorter = min(first, second, room // 2)
        sizes = (shorter, room - shorter) if first <= second else (room - shorter, shorter)
    else:
        sizes = (room - second, second) if strategy == "only_first" else (first, room - first)
        if sizes[strategy == "only_second"] < 1:
            raise ValueError(f"truncation={strategy!r} can't make a row fit: its other text alone has no room")
    return [kept(each, size) for each, size in zip(pieces, sizes, strict=False)]


def check_lengths(max_length: int | None, padding: str | None, special: int, is_pair: bool) -> None:
    """Raises if max_length has no room for the special tokens and a token of each text."""
    if padding == "max_length" and max_length is None:
        raise ValueError('padding="max_length" needs a max_length')
    least = special + 1 + is_pair
    if max_length is not None and max_length < least:
        raise ValueError(f"max_length={max_length} is less than {least}: special tokens and a token of each text")


def batches_of(texts, pairs, is_split_into_words: bool = False) -> tuple[list, list]:
    """The texts and their pairs, if there are none None for each: strings, or lists of words."""

    def batch_of(batch, name: str) -> list:
        if is_split_into_words:
            rows = check_list(batch, name, "lists of words")
            rows = [rows] if rows and isinstance(rows[0], str) else rows
            return [list_of_strings(row, f"{name}[{number}]") for number, row in enumerate(rows)]
        return [batch] if isinstance(batch, str | bytes) else list_of_strings(batch, name, kind=str | bytes)

    first = batch_of(texts, "texts")
    second = [None] * len(first) if pairs is None else batch_of(pairs, "pairs")
    if len(first) != len(second):
        raise ValueError(f"{len(first)} texts and {len(second)} pairs: there must be one pair per text")
    return first, second


def padded(columns: Mapping[str, Sequence[Sequence]], fill: Mapping, width: int | None = None) -> dict[str, np.ndarray]:
    """Rows of different lengths as arrays.

    columns: name -> rows, of the same lengths for each name. fill: name -> what pads its rows; others: 0.
    width: of the arrays; None: the length of the longest row.

    Returns name -> int32 [B, S], or [B, S, N] of rows of N numbers.
    """
    lengths = np.array([len(row) for row in columns["input_ids"]], np.int64)
    mask = np.arange(width or int(lengths.max(initial=1))) < lengths[:, None]
    arrays = {}
    for name, rows in columns.items():
        size = np.shape(fill.get(name, 0))
        arrays[name] = np.full((*mask.shape, *size), fill.get(name, 0), np.int32)
        values = itertools.chain.from_iterable(rows)
        arrays[name][mask] = np.fromiter(values, np.dtype((np.int32, size)), int(lengths.sum()))
    return arrays


def _in_form(columns: dict, fill: Mapping, padding: str | None, max_length: int | None, tensors: str | None) -> dict:
    """Lists of rows, or arrays or tensors of padded rows."""
    if padding is None:
        if tensors is None:
            return columns
        if len({len(row) for row in columns["input_ids"]}) > 1:
            raise ValueError("padding=False: rows of several lengths are not an array: padding=True")
    arrays = padded(columns, fill, max_length if padding == "max_length" else None)
    if tensors == "tf":
        import tensorflow as tf

        arrays = {name: tf.constant(array) for name, array in arrays.items()}
    return arrays


def lengths_that_fit(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each of two texts are kept if the longer (else the second) loses one until they fit."""
    half = (room + 1) // 2
    kept = min(first, max(room - second, half))
    return kept, min(second, room - kept)
