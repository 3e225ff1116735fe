"""Examples to token ids.

Original: run_classifier.py, convert_single_example and file_based_input_fn_builder. The ids are the same; what differs
is the padding (data/token_rows.py), and that long texts can be read in windows.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.token_rows import TokenRows, WindowRows, document_spans, flatten, watch_unknown
from bert_tf.models.head_config import MAX_WINDOWS, HeadConfig
from bert_tf.tasks.classification.data import InputExample, Task
from bert_tf.text.tokenizer import Tokenizer

# Starting processes takes seconds; one core tokenizes this much text (characters) meanwhile.
_CHARACTERS_FOR_PROCESSES = 30_000_000
_TEXTS_PER_CHUNK = 20_000


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """How the windows of a text lie.

    Attributes:
      stride: tokens of the text from the start of a window to that of the next.
      most: windows of a text; what comes after them is lost.
    """

    stride: int
    most: int = MAX_WINDOWS


def windows_of(
    stride: int | None, most: int | None, tokenizer: Tokenizer, max_seq_length: int, name: str = "--window_stride"
) -> TextWindows:
    """The windows for a tokenizer and a length, with the defaults for what is None: half a window, MAX_WINDOWS.

    Args:
      name: of the stride, for errors.

    Raises:
      ValueError: there is no room for a text, or between two windows there would be tokens that are in neither.
    """
    token_rows.check_room(tokenizer, max_seq_length)
    room = max_seq_length - tokenizer.num_special_tokens(pair=False)
    stride = max(room // 2, 1) if stride is None else stride
    if stride > room:
        raise ValueError(
            f"{name}={stride}: a window of max_seq_length={max_seq_length} has {room} tokens of the text, so that "
            "those between two windows would be lost."
        )
    return TextWindows(stride, MAX_WINDOWS if most is None else most)


def windows_of_model(head: HeadConfig, tokenizer: Tokenizer, max_seq_length: int) -> TextWindows | None:
    """The windows in which a trained model reads texts; None for a model that reads each as one row.

    Raises:
      ValueError: see `windows_of`.
    """
    if not head.window_pooling:
        return None
    return windows_of(head.window_stride, head.max_windows, tokenizer, max_seq_length, "the model's window_stride")


@dataclasses.dataclass(frozen=True)
class EncodedExamples(TokenRows):
    """Token rows of examples; `labels` holds `label_ids`, where there are labels: int32 [n]; float32 [n] for a
    regression, float32 [n, C] where several labels may hold.

    Attributes:
      guids: [n]. truncated: how many examples were longer than max_seq_length.
    """

    guids: list[str]
    truncated: int = 0

    @property
    def label_ids(self) -> np.ndarray | None:
        """The labels; None without."""
        return self.labels.get("label_ids")


@dataclasses.dataclass(frozen=True)
class EncodedWindows(WindowRows, EncodedExamples):
    """The same where an example is all windows of its text; `truncated`: how many lost their ends all the same."""


def encode_examples(
    examples: Sequence[InputExample],
    task: Task,
    tokenizer: Tokenizer,
    max_seq_length: int,
    num_processes: int | None = None,
    windows: TextWindows | None = None,
    warn: Callable = logging.warning,
) -> EncodedExamples:
    """Tokenizes examples: [CLS] a [SEP], or [CLS] a [SEP] b [SEP] where b has any token.

    Args:
      max_seq_length: longer examples lose tokens as in the original.
      num_processes: processes for large data; by default one for each core.
      windows: a text of more tokens than max_seq_length becomes several rows of that length.
      warn: logs a message and its arguments: how many examples were cut, and how many have a text without any token.

    Raises:
      ValueError: max_seq_length has no room for [CLS] and [SEP]; with windows, there is a second text.
    """
    token_rows.check_room(tokenizer, max_seq_length)
    if windows:
        return _encode_windows(examples, task, tokenizer, max_seq_length, num_processes, windows, warn)
    texts = [example.text_a for example in examples]
    pairs = [number for number, example in enumerate(examples) if example.text_b]
    texts += [examples[number].text_b for number in pairs]
    encoded = _encode_texts(texts, tokenizer, num_processes)
    second = dict(zip(pairs, encoded[len(examples) :], strict=True))
    rows, starts, truncated = [], [], 0
    for number in range(len(examples)):
        a, b = encoded[number], second.get(number)
        ids, segments = tokenizer.build_inputs(a, b, max_seq_length)
        truncated += len(a) + len(b or ()) + tokenizer.num_special_tokens(pair=bool(b)) > max_seq_length
        starts.append(segments.count(0))
        rows.append(ids)
    if truncated:
        warn(
            "Longer than the maximum sequence length, %d tokens, of which the last are lost: %d of %d examples.",
            max_seq_length,
            truncated,
            len(examples),
        )
    numbers = [*range(len(examples)), *(n for n, example in enumerate(examples) if example.text_b is not None)]
    token_counts = map(len, (*encoded[: len(examples)], *(second.get(n, ()) for n in numbers[len(examples) :])))
    _warn_of_empty(examples, [n for n, count in zip(numbers, token_counts, strict=True) if not count], warn)
    flat, offsets = flatten(rows)
    watch_unknown(tokenizer, flat)
    label_ids = _label_ids(examples, task)
    labels = {} if label_ids is None else {"label_ids": label_ids}
    guids = [example.guid for example in examples]
    return EncodedExamples(flat, offsets, np.array(starts, np.int32), labels, guids, truncated, pad_id=tokenizer.pad_id)


def _encode_windows(
    examples: Sequence[InputExample],
    task: Task,
    tokenizer: Tokenizer,
    max_seq_length: int,
    num_processes: int | None,
    windows: TextWindows,
    warn: Callable,
) -> EncodedWindows:
    for example in examples:
        if example.text_b:
            raise ValueError(
                f"Example {example.guid} is a pair; a model that reads windows (--long_texts) takes single texts."
            )
    room = max_seq_length - tokenizer.num_special_tokens(pair=False)
    rows, counts, truncated, lost, total = [], [], 0, 0, 0
    encoded = _encode_texts([example.text_a for example in examples], tokenizer, num_processes)
    _warn_of_empty(examples, [number for number, ids in enumerate(encoded) if not len(ids)], warn)
    for ids in encoded:
        spans = document_spans(len(ids), room, windows.stride)[: windows.most] or [(0, 0)]
        rows += [tokenizer.build_inputs(ids[start : start + size])[0] for start, size in spans]
        counts.append(len(spans))
        beyond = len(ids) - sum(spans[-1])
        truncated, lost, total = truncated + (beyond > 0), lost + beyond, total + len(ids)
    logging.info(
        "%d of %d texts are longer than --max_seq_length=%d; all texts together make %d windows, at most %d each.",
        sum(count > 1 for count in counts), len(counts), max_seq_length, len(rows), max(counts, default=0),
    )  # fmt: skip
    if truncated:
        warn(
            "%d of %d texts need more than max_windows=%d windows and lost their ends: %d of %d tokens (%.1f %%).",
            truncated, len(counts), windows.most, lost, total, 100 * lost / total,
        )  # fmt: skip
    flat, offsets = flatten(rows)
    watch_unknown(tokenizer, flat)
    label_ids = _label_ids(examples, task)
    return EncodedWindows(
        flat,
        offsets,
        np.diff(offsets).astype(np.int32),
        {} if label_ids is None else {"label_ids": label_ids},
        [example.guid for example in examples],
        truncated,
        first_rows=np.cumsum([0, *counts], dtype=np.int64),
        window_length=max_seq_length,
        pad_id=tokenizer.pad_id,
    )


def _warn_of_empty(examples: Sequence[InputExample], numbers: Sequence[int], warn: Callable) -> None:
    """Warns of texts without tokens. numbers: of their examples."""
    if numbers:
        first = examples[min(numbers)]
        line = f", line {first.line} of its file" if first.line else ""
        warn(
            "A text without any token (empty, or of dropped characters) is in %d of %d examples; the first is %s%s.",
            len(set(numbers)), len(examples), first.guid, line,
        )  # fmt: skip


def _label_ids(examples: Sequence[InputExample], task: Task) -> np.ndarray | None:
    if any(example.label is None for example in examples):
        return None
    if task.is_regression:
        return np.array([example.label for example in examples], np.float32)
    number = {label: index for index, label in enumerate(task.labels)}
    if task.multi_label:
        ids = np.zeros((len(examples), len(number)), np.float32)
        for row, example in enumerate(examples):
            ids[row, [number[label] for label in example.label]] = 1.0
        return ids
    return np.array([number[example.label] for example in examples], np.int32)


# --- tokenization on several cores -----------------------------------------------------------------------------------


def _encode_chunk(texts: list[str], tokenizer: Tokenizer) -> list[list[int]]:
    return tokenizer.encode_batch(texts)


def _encode_texts(texts: list[str], tokenizer: Tokenizer, num_processes: int | None) -> list[list[int]]:
    num_processes = num_processes or os.cpu_count() or 1
    if num_processes == 1 or sum(map(len, texts)) < _CHARACTERS_FOR_PROCESSES:
        return tokenizer.encode_batch(texts)
    from bert_tf.system.workers import map_tasks

    chunks = [(texts[start : start + _TEXTS_PER_CHUNK],) for start in range(0, len(texts), _TEXTS_PER_CHUNK)]
    encoded = map_tasks(_encode_chunk, chunks, num_processes, shared=(tokenizer,))
    return [ids for chunk in encoded for ids in chunk]


# --- the original's record files -------------------------------------------------------------------------------------


def write_records(path: str, encoded: EncodedExamples, max_seq_length: int) -> None:
    """Writes the TFRecord file that the original's script writes (train.tf_record and the like), complete or not at
    all.

    Features: those of `token_rows.write_records`, and label_ids, is_real_example, int64 scalars; the label of a
    regression is a float, that of examples without label 0. Of windows, each is a record, an example's one after the
    other, with the int64 scalars example and window.
    """
    none = np.zeros(len(encoded), np.int32)
    columns = {"label_ids": encoded.labels.get("label_ids", none), "is_real_example": none + 1}
    if isinstance(encoded, WindowRows):
        numbers = np.repeat(np.arange(len(encoded)), encoded.windows)
        columns = {name: values[numbers] for name, values in columns.items()}
        columns |= {"example": numbers, "window": np.arange(len(numbers)) - encoded.first_rows[numbers]}
    token_rows.write_records(path, encoded.rows, max_seq_length, columns)
