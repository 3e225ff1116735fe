"""Questions and paragraphs to windows of token ids (original: run_squad.py, convert_examples_to_features).

A context that does not fit next to its question is split into windows that overlap. Token ids, labels and the
choice of the best window for each token are the original's. Arrays hold all windows end to end, without padding.
"""

import dataclasses
import functools
import hashlib
import json
import os
import posixpath
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.token_rows import TokenRows, best_spans, document_spans
from bert_tf.system.checks import check_integer
from bert_tf.system.messages import progress_bar, warn_once
from bert_tf.system.storage import arrays_as_bytes, gfile, load_arrays, write_file
from bert_tf.system.workers import map_tasks
from bert_tf.tasks.rows import write_token_rows
from bert_tf.tasks.squad.data import Paragraph, SquadExample
from bert_tf.text import watch_unknown
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import WordCache

FIRST_UNIQUE_ID = 1_000_000_000

# Starting processes takes a second or two; one core cuts this much text (characters) meanwhile.
_CHARACTERS_FOR_PROCESSES = 8_000_000
_QUESTIONS_PER_CHUNK = 2_000
_CACHE_VERSION = 3
_ARRAYS = (
    "ids", "words", "max_context", "starts", "ends", "lengths", "second_starts", "labels", "example_index",
    "doc_span_index", "is_impossible",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Windows(TokenRows):
    """Token rows [CLS] question [SEP] part of the context [SEP].

    `labels` are start_positions and end_positions, int32 [n], in training: positions in the row, 0 where the window
    has no answer.

    words: int32, aligned with `ids`: which word of the context a token belongs to; -1 for all others.
    max_context: bool, aligned with `ids`: whether no other window shows more text around this token.
    starts, ends: int32, aligned with `ids`: the characters of the context that a token covers; None unless requested.
    example_index: int32 [n]. doc_span_index: int32 [n]: the number within the example. is_impossible: bool [n].
    """

    words: np.ndarray
    max_context: np.ndarray
    starts: np.ndarray | None
    ends: np.ndarray | None
    example_index: np.ndarray
    doc_span_index: np.ndarray
    is_impossible: np.ndarray

    @property
    def unique_ids(self) -> np.ndarray:
        return FIRST_UNIQUE_ID + np.arange(len(self), dtype=np.int64)

    def of_examples(self, order: Sequence[int]) -> "Windows":
        """The windows in another order of their examples; `order[k]` is the number of the example that becomes k."""
        new_number = np.empty(len(order), np.int32)
        new_number[np.asarray(order, np.int64)] = np.arange(len(order), dtype=np.int32)
        example_index = new_number[self.example_index]
        rows = np.argsort(example_index, kind="stable")
        lengths = self.lengths[rows].astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        sources = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        of_tokens = ("ids", "words", "max_context", *(("starts", "ends") if self.starts is not None else ()))
        changed = {name: getattr(self, name)[sources] for name in of_tokens}
        changed |= {name: getattr(self, name)[rows] for name in ("second_starts", "doc_span_index", "is_impossible")}
        labels = {name: values[rows] for name, values in self.labels.items()}
        return dataclasses.replace(self, offsets=offsets, labels=labels, example_index=example_index[rows], **changed)


@dataclasses.dataclass(frozen=True)
class WindowSettings:
    """How contexts are split: the flags of these names."""

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    answer_from: str = "words"

    def __post_init__(self):
        for name in ("max_seq_length", "doc_stride", "max_query_length"):
            check_integer(getattr(self, name), name)
        if self.answer_from not in ("words", "offsets"):
            raise ValueError(f"answer_from={self.answer_from!r} is neither words nor offsets.")

    def check_room(self, tokenizer: Tokenizer) -> None:
        """Raises if windows are full with a question and the tokenizer's special tokens."""
        special = tokenizer.num_special_tokens(pair=True)
        if self.max_seq_length <= self.max_query_length + special:
            raise ValueError(
                f"max_seq_length={self.max_seq_length} must be greater than max_query_length={self.max_query_length} + "
                f"{special}, or no window has room for any of the context."
            )


class _EncodedParagraph:
    """Pieces of a paragraph, their words and (offsets only) characters.

    first_pieces: of each word; for a word without pieces, the next word's (words only).
    """

    def __init__(self, paragraph: Paragraph, tokenizer: Tokenizer, with_offsets: bool, encoded_words: WordCache):
        ids, words, first_pieces, starts, ends = [], [], [], [], []
        separator = tokenizer.word_separator
        if with_offsets and (separator or tokenizer.added_tokens.span_words):
            # Spaces are parts of pieces, so they matter as they are in the context.
            ids, offsets = _encoded(tokenizer, True, paragraph.context)
            words = [max(paragraph.word_at(first), 0) for first, _ in offsets]
            starts, ends = [first for first, _ in offsets], [last for _, last in offsets]
        else:
            for number, (word, begin) in enumerate(zip(paragraph.words, paragraph.word_starts, strict=True)):
                pieces, offsets = encoded_words[separator + word if number else word]
                first_pieces.append(len(ids))
                ids += pieces
                words += [number] * len(pieces)
                if offsets is not None:
                    starts += [begin + first for first, _ in offsets]
                    ends += [begin + last for _, last in offsets]
        self.ids, self.piece_words, self.first_pieces, self.starts, self.ends = ids, words, first_pieces, starts, ends


def _encoded(tokenizer: Tokenizer, with_offsets: bool, text: str) -> tuple[list[int], list[tuple[int, int]] | None]:
    """The ids of a text and, with_offsets, the characters that each covers."""
    return tokenizer.encode_with_offsets(text, split_unknown=True) if with_offsets else (tokenizer.encode(text), None)


def _answer_pieces(example: SquadExample, encoded: _EncodedParagraph, tokenizer: Tokenizer) -> tuple[int, int]:
    """First and last piece of an answer: by its characters where those of pieces are known; else by its words, narrowed
    down to its own pieces where these are found."""
    text = example.orig_answer_text
    if encoded.starts:
        begin = example.answer_start + len(text) - len(text.lstrip())
        end = example.answer_start + len(text.rstrip())
        first = next((k for k, last in enumerate(encoded.ends) if last > begin), len(encoded.ends) - 1)
        last = next((k for k in range(len(encoded.starts) - 1, -1, -1) if encoded.starts[k] < end), 0)
        return first, max(first, last)
    first = encoded.first_pieces[example.start_position]  # -1 is the last word, as in the original
    last = [*encoded.first_pieces, len(encoded.ids)][example.end_position + 1] - 1
    # As the answer's pieces are at the beginning of a word, or of the context and behind an opening bracket.
    forms = [tokenizer.encode(form) for form in dict.fromkeys((text, tokenizer.word_separator + text.lstrip()))]
    for start in range(first, last + 1):
        for wanted in filter(None, forms):
            end = start + len(wanted) - 1
            if end <= last and encoded.ids[start : end + 1] == wanted:
                return start, end
    return first, last


def build_windows(
    examples: Sequence[SquadExample],
    tokenizer: Tokenizer,
    settings: WindowSettings,
    is_training: bool,
    num_processes: int | None = None,
    cache_dir: str | None = None,
) -> Windows:
    """Windows of all examples in their order; an empty context has none.

    num_processes: for large data. cache_dir: may have them in a file from an earlier call, and keeps them in one.
    Its name is a hash of everything the windows depend on. A file that can't be read is replaced.
    """
    name = cache_dir and f"windows-{_content_hash(examples, tokenizer, settings, is_training)}.npz"
    path = posixpath.join(cache_dir, name) if cache_dir else ""
    arrays = load_arrays(path, _ARRAYS) if path else None
    if arrays:
        logging.info("%d windows from %s.", len(arrays["lengths"]), path)
    else:
        arrays = _arrays_of(examples, tokenizer, settings, is_training, num_processes or os.cpu_count() or 1)
        if path:
            gfile().makedirs(cache_dir)
            write_file(path, arrays_as_bytes(arrays))
    offsets = np.concatenate([[0], np.cumsum(arrays.pop("lengths"), dtype=np.int64)])
    starts, ends = arrays.pop("labels").T
    labels = {"start_positions": starts, "end_positions": ends} if is_training else {}
    arrays |= {} if settings.answer_from == "offsets" else {"starts": None, "ends": None}
    return Windows(offsets=offsets, labels=labels, pad_id=tokenizer.pad_id, **arrays)


def _arrays_of(examples, tokenizer, settings, is_training: bool, num_processes: int) -> dict[str, np.ndarray]:
    """The arrays of `Windows`, with `lengths` instead of offsets."""
    contexts = {id(example.paragraph): example.paragraph.context for example in examples}.values()
    characters = sum(map(len, contexts)) + sum(len(example.question_text) for example in examples)
    begins = range(0, max(len(examples), 1), _QUESTIONS_PER_CHUNK)
    chunks = [(examples[begin : begin + _QUESTIONS_PER_CHUNK], begin) for begin in begins]
    workers = num_processes if len(chunks) > 1 and characters >= _CHARACTERS_FOR_PROCESSES else 1
    encoded_words = WordCache(functools.partial(_encoded, tokenizer, settings.answer_from == "offsets"))
    shared = (tokenizer, encoded_words, settings, is_training)
    parts = []
    with progress_bar(total=len(examples), desc="windows", unit=" questions", leave=False, delay=2) as bar:
        for (chunk, _), part in zip(chunks, map_tasks(_chunk_windows, chunks, workers, shared=shared), strict=True):
            parts.append(part)
            bar.update(len(chunk))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    watch_unknown(tokenizer, whole["ids"])
    return whole


def _chunk_windows(examples, first_example: int, tokenizer, encoded_words, settings, is_training: bool) -> dict:
    """The arrays of `Windows` (`lengths` instead of offsets) for some examples; `first_example` is their number."""
    special = tokenizer.num_special_tokens(pair=True)
    after = [-1] * len(tokenizer.end_ids)
    with_offsets = settings.answer_from == "offsets"
    ids, words, max_context, starts, ends = [], [], [], [], []
    lengths, second_starts, labels, example_index, span_index, impossible = [], [], [], [], [], []
    paragraph, encoded = None, None
    for number, example in enumerate(examples, first_example):
        if example.paragraph is not paragraph:
            paragraph = example.paragraph
            encoded = _EncodedParagraph(paragraph, tokenizer, with_offsets, encoded_words)
        query = _encoded(tokenizer, with_offsets, example.question_text)[0][: settings.max_query_length]
        count = len(encoded.ids)
        spans = document_spans(count, settings.max_seq_length - len(query) - special, settings.doc_stride)
        best = best_spans(spans, np.arange(count), 0.01) if len(spans) > 1 else None
        is_answered = is_training and not example.is_impossible and count
        answer = _answer_pieces(example, encoded, tokenizer) if is_answered else None
        before = len(query) + special - len(after)
        outside = [-1] * before
        for span, (start, size) in enumerate(spans):
            end = start + size
            row, segments = tokenizer.build_inputs(query, encoded.ids[start:end])
            ids += row
            words += outside
            words += encoded.piece_words[start:end]
            words += after
            max_context += [False] * before
            max_context += [True] * size if best is None else (best[start:end] == span).tolist()
            max_context += [False] * len(after)
            if with_offsets:
                starts += [*outside, *encoded.starts[start:end], *after]
                ends += [*outside, *encoded.ends[start:end], *after]
            lengths.append(len(row))
            second_starts.append(segments.count(0))
            example_index.append(number)
            span_index.append(span)
            impossible.append(example.is_impossible)
            is_inside = answer and answer[0] >= start and answer[1] < end
            labels.append([piece - start + before for piece in answer] if is_inside else [0, 0])
    arrays = {
        "ids": ids, "words": words, "starts": starts, "ends": ends, "lengths": lengths, "second_starts": second_starts,
        "example_index": example_index, "doc_span_index": span_index,
    }  # fmt: skip
    result = {name: np.array(values, np.int32) for name, values in arrays.items()}
    result["labels"] = np.array(labels, np.int32).reshape(-1, 2)
    return result | {"max_context": np.array(max_context, bool), "is_impossible": np.array(impossible, bool)}


def warn_of_cut_questions(
    examples: Sequence[SquadExample], tokenizer: Tokenizer, settings: WindowSettings, warn: Callable = logging.warning
) -> None:
    """Warns of truncated questions. warn: logs a message and its arguments."""
    most, with_offsets = settings.max_query_length, settings.answer_from == "offsets"
    # No tokenizer makes more tokens than a text has bytes.
    long = [example.question_text for example in examples if len(example.question_text.encode(errors="replace")) > most]
    cut = sum(len(_encoded(tokenizer, with_offsets, question)[0]) > most for question in long)
    if cut:
        message = "Longer than max_query_length=%d tokens, of which the last are lost: %d of %d questions."
        warn(message, most, cut, len(examples))


def warn_of_gaps(windows: Windows, settings: WindowSettings) -> None:
    """Warns, once in a process, of a doc_stride that is more than a window of a context that has several."""
    for row in np.flatnonzero(windows.doc_span_index == 1) - 1:
        room = np.count_nonzero(windows.words[windows.offsets[row] : windows.offsets[row + 1]] >= 0)
        if room < settings.doc_stride:
            warn_once("doc_stride", token_rows.GAPS, settings.doc_stride, settings.max_seq_length, room)
            return


def _content_hash(examples, tokenizer: Tokenizer, settings: WindowSettings, is_training: bool) -> str:
    digest = hashlib.sha256()

    def add(*values) -> None:
        digest.update(json.dumps(values).encode())

    add(_CACHE_VERSION, dataclasses.asdict(settings), is_training, tokenizer.settings(), list(tokenizer.vocab.items()))
    for name, content in tokenizer.files().items():
        add(name, hashlib.sha256(content).hexdigest())
    previous = None
    for example in examples:
        if example.paragraph is not previous:
            previous = example.paragraph
            add("context", previous.context)
        add("question", example.question_text)
        if is_training:
            add("answer", example.orig_answer_text, example.start_position, example.end_position, example.answer_start)
    return digest.hexdigest()[:32]


# --- the original's records and objects ------------------------------------------------------------------------------


def write_records(path: str, windows: Windows, max_seq_length: int) -> None:
    """Writes train.tf_record or eval.tf_record as the original does.

    Features: those of `write_token_rows`, unique_ids; to train start_positions, end_positions, is_impossible.
    """
    columns = {"unique_ids": windows.unique_ids, **windows.labels}
    if windows.labels:
        columns["is_impossible"] = windows.is_impossible.astype(np.int32)
    write_token_rows(path, windows, max_seq_length, columns)


def describe_windows(windows: Windows, tokenizer: Tokenizer, rows: Sequence[int]) -> Iterator[dict]:
    """The attributes of the original's InputFeatures for some windows, without padding; for logs and tests."""
    for row in rows:
        part = slice(int(windows.offsets[row]), int(windows.offsets[row + 1]))
        words, best = windows.words[part], windows.max_context[part]
        positions = np.flatnonzero(words >= 0).tolist()
        yield {
            "unique_id": FIRST_UNIQUE_ID + int(row),
            "example_index": int(windows.example_index[row]),
            "doc_span_index": int(windows.doc_span_index[row]),
            "tokens": tokenizer.convert_ids_to_tokens(windows.ids[part].tolist()),
            "token_to_orig_map": {position: int(words[position]) for position in positions},
            "token_is_max_context": {position: bool(best[position]) for position in positions},
            "input_ids": windows.ids[part].tolist(),
            "start_position": int(windows.labels["start_positions"][row]) if windows.labels else None,
            "end_position": int(windows.labels["end_positions"][row]) if windows.labels else None,
            "is_impossible": bool(windows.is_impossible[row]),
        }
