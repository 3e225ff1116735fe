"""Examples to token ids, and token ids to batches that are as short as their examples allow.

Original: run_classifier.py, convert_single_example and file_based_input_fn_builder. The ids are the same; what differs
is the padding: to the longest of a batch, rounded up to one of a few lengths, instead of max_seq_length always.
"""

import concurrent.futures
import dataclasses
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from absl import logging

from bert_tf.tasks.classification_data import InputExample, Task
from bert_tf.tokenization import FullTokenizer

# Starting processes takes seconds; one core tokenizes this much text (characters) meanwhile.
_CHARACTERS_FOR_PROCESSES = 30_000_000
_TEXTS_PER_CHUNK = 20_000


@dataclasses.dataclass(frozen=True)
class EncodedExamples:
    """Token ids of examples, without padding.

    Attributes:
      ids: int32, all examples one after the other. offsets: int64 [n + 1]: where each begins in `ids`.
      second_starts: int32 [n]: position of the second text in its example; its length where there is none.
      label_ids: int32 [n]; float32 [n] for a regression, float32 [n, C] where several labels may hold; None without.
      guids: [n]. truncated: how many examples were longer than max_seq_length.
    """

    ids: np.ndarray
    offsets: np.ndarray
    second_starts: np.ndarray
    label_ids: np.ndarray | None
    guids: list[str]
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.guids)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, [CLS] and [SEP] included."""
        return np.diff(self.offsets).astype(np.int32)

    def batch(self, rows: Sequence[int], length: int) -> dict[str, np.ndarray]:
        """Padded arrays of some examples: input_ids, input_mask, segment_ids int32 [B, length], and label_ids."""
        rows = np.asarray(rows)
        positions = np.arange(length)[None, :]
        lengths = (self.offsets[rows + 1] - self.offsets[rows])[:, None]
        mask = positions < lengths
        where = np.minimum(self.offsets[rows][:, None] + positions, len(self.ids) - 1)
        arrays = {
            "input_ids": np.where(mask, self.ids[where], 0).astype(np.int32),
            "input_mask": mask.astype(np.int32),
            "segment_ids": (mask & (positions >= self.second_starts[rows][:, None])).astype(np.int32),
        }
        if self.label_ids is not None:
            arrays["label_ids"] = self.label_ids[rows]
        return arrays


def truncate_pair(first: list, second: list, max_length: int) -> None:
    """Takes tokens off the end of the longer list, of the second if both are equally long, until both fit.

    Original: _truncate_seq_pair.
    """
    while len(first) + len(second) > max_length:
        (first if len(first) > len(second) else second).pop()


def encode_examples(
    examples: Sequence[InputExample],
    task: Task,
    tokenizer: FullTokenizer,
    max_seq_length: int,
    num_processes: int | None = None,
) -> EncodedExamples:
    """Tokenizes examples: [CLS] a [SEP], or [CLS] a [SEP] b [SEP] where b has any token.

    Args:
      max_seq_length: longer examples lose tokens as in the original; how many did is logged once.
      num_processes: processes for large data; by default one for each core.

    Raises:
      ValueError: max_seq_length has no room for [CLS] and [SEP].
    """
    if max_seq_length < 3:
        raise ValueError(f"--max_seq_length={max_seq_length}: [CLS] and two [SEP] alone are 3 tokens.")
    texts = [example.text_a for example in examples]
    pairs = [number for number, example in enumerate(examples) if example.text_b]
    texts += [examples[number].text_b for number in pairs]
    encoded = _encode_texts(texts, tokenizer, num_processes)
    second = dict(zip(pairs, encoded[len(examples) :], strict=True))
    begin, end = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
    rows, starts, truncated = [], [], 0
    for number in range(len(examples)):
        a, b = list(encoded[number]), list(second.get(number, ()))
        room = max_seq_length - (3 if b else 2)
        truncated += len(a) + len(b) > room
        if b:
            truncate_pair(a, b, room)
        else:
            del a[room:]
        row = [begin, *a, end]
        starts.append(len(row))
        rows.append([*row, *b, end] if b else row)
    if truncated:
        logging.warning(
            "%d of %d examples are longer than --max_seq_length=%d and lost their last tokens.",
            truncated,
            len(examples),
            max_seq_length,
        )
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    flat = np.fromiter((index for row in rows for index in row), np.int32, int(offsets[-1]))
    return EncodedExamples(
        flat,
        offsets,
        np.array(starts, np.int32),
        _label_ids(examples, task),
        [example.guid for example in examples],
        truncated,
    )


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

_worker_tokenizer = None


def _start_worker(tokenizer: FullTokenizer) -> None:
    global _worker_tokenizer  # one tokenizer a process: its word cache pays over many chunks
    _worker_tokenizer = tokenizer


def _encode_chunk(texts: list[str]) -> list[list[int]]:
    return _worker_tokenizer.encode_batch(texts)


def _encode_texts(texts: list[str], tokenizer: FullTokenizer, num_processes: int | None) -> list[list[int]]:
    num_processes = num_processes or os.cpu_count() or 1
    if num_processes == 1 or sum(map(len, texts)) < _CHARACTERS_FOR_PROCESSES:
        return tokenizer.encode_batch(texts)
    chunks = [texts[start : start + _TEXTS_PER_CHUNK] for start in range(0, len(texts), _TEXTS_PER_CHUNK)]
    with concurrent.futures.ProcessPoolExecutor(
        num_processes,
        multiprocessing.get_context("spawn"),  # a fork of a process that runs TensorFlow may hang
        _start_worker,
        (tokenizer,),
    ) as pool:
        return [ids for chunk in pool.map(_encode_chunk, chunks) for ids in chunk]


# --- batches ---------------------------------------------------------------------------------------------------------


def padded_lengths(max_seq_length: int, step: int = 32) -> list[int]:
    """The few lengths that batches are padded to: multiples of `step`, and max_seq_length."""
    return [*range(step, max_seq_length, step), max_seq_length]


def _pad_to(longest: int, allowed: Sequence[int]) -> int:
    return next(length for length in allowed if length >= longest)


def training_rows(
    lengths: np.ndarray, batch_size: int, seed: int, start_step: int, window_batches: int = 50
) -> Iterator[np.ndarray]:
    """Rows of each batch from a step on: a function of (lengths, batch size, seed, step) and nothing else.

    Epochs follow each other without a gap, each a permutation of its own, as in the original's repeated data set.
    Within a window of `window_batches` batches, examples of similar length go together and the batches then are
    shuffled. window_batches=1: no sorting by length.
    """
    from bert_tf.records import permutation

    count = len(lengths)
    size = window_batches * batch_size
    window, skip = divmod(start_step, window_batches)
    while True:
        positions = np.arange(window * size, (window + 1) * size)
        epochs = positions // count
        rows = np.empty(size, np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            order = permutation(count, seed, epoch, 0)
            here = epochs == epoch
            rows[here] = order[positions[here] % count]
        if window_batches > 1:
            rows = rows[np.argsort(lengths[rows], kind="stable")]
        batches = rows.reshape(window_batches, batch_size)
        order = permutation(window_batches, seed, window, 1)
        for number in order[skip:]:
            yield batches[number]
        window, skip = window + 1, 0


def training_batches(
    encoded: EncodedExamples,
    *,
    batch_size: int,
    seed: int,
    start_step: int,
    max_seq_length: int,
    static_padding: bool = False,
):
    """An endless tf.data.Dataset of batches {name: [B, ...]} from a step on.

    Args:
      static_padding: pad every batch to max_seq_length, and don't put similar lengths together.
    """
    import tensorflow as tf

    allowed = [max_seq_length] if static_padding else padded_lengths(max_seq_length)
    lengths = encoded.lengths

    def batches():
        for rows in training_rows(lengths, batch_size, seed, start_step, 1 if static_padding else 50):
            yield encoded.batch(rows, _pad_to(int(lengths[rows].max()), allowed))

    width = max_seq_length if static_padding else None
    return _dataset(tf, batches, encoded, batch_size, width).prefetch(tf.data.AUTOTUNE)


def evaluation_rows(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """All rows in batches of similar length, longest first; the last batch may be short."""
    order = np.argsort(-lengths, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def evaluation_batches(encoded: EncodedExamples, *, batch_size: int, max_seq_length: int, static_padding: bool = False):
    """A tf.data.Dataset of all examples in the order of `evaluation_rows`; copies of a row fill up the last batch."""
    import tensorflow as tf

    allowed = [max_seq_length] if static_padding else padded_lengths(max_seq_length)
    lengths = encoded.lengths

    def batches():
        for rows in evaluation_rows(lengths, batch_size):
            full = np.concatenate([rows, np.repeat(rows[-1:], batch_size - len(rows))])
            yield encoded.batch(full, _pad_to(int(lengths[full].max()), allowed))

    width = max_seq_length if static_padding else None
    dataset = _dataset(tf, batches, encoded, batch_size, width)
    count = -(-len(encoded) // batch_size)
    return dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(tf.data.AUTOTUNE)


def in_order(encoded: EncodedExamples, batch_size: int, outputs: Iterable[np.ndarray]) -> np.ndarray:
    """The model's outputs [n, ...] for all examples in their order, from those of `evaluation_batches`."""
    values = None
    for rows, output in zip(evaluation_rows(encoded.lengths, batch_size), outputs, strict=True):
        if values is None:
            values = np.empty((len(encoded), *output.shape[1:]), np.float32)
        values[rows] = output[: len(rows)]
    return values


def _dataset(tf, batches, encoded: EncodedExamples, batch_size: int, width: int | None):
    specs = {name: tf.TensorSpec([batch_size, width], tf.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    if encoded.label_ids is not None:
        labels = encoded.label_ids
        specs["label_ids"] = tf.TensorSpec([batch_size, *labels.shape[1:]], tf.as_dtype(labels.dtype))
    return tf.data.Dataset.from_generator(batches, output_signature=specs)


# --- the original's record files -------------------------------------------------------------------------------------


def write_records(path: str, encoded: EncodedExamples, max_seq_length: int) -> None:
    """Writes the TFRecord file that the original's script writes (train.tf_record and the like), whole or not at all.

    Features: input_ids, input_mask, segment_ids int64 [S], label_ids, is_real_example int64 scalars; the label of a
    regression is a float, that of examples without label 0.
    """
    import tensorflow as tf

    def ints(values) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with tf.io.TFRecordWriter(temporary) as writer:
            for row in range(len(encoded)):
                arrays = encoded.batch([row], max_seq_length)
                label = np.ravel(arrays.get("label_ids", [0]))
                floats = label.dtype.kind == "f"
                features = {name: ints(arrays[name][0]) for name in ("input_ids", "input_mask", "segment_ids")}
                features["label_ids"] = (
                    tf.train.Feature(float_list=tf.train.FloatList(value=label)) if floats else ints(label)
                )
                features["is_real_example"] = ints([1])
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
        tf.io.gfile.rename(temporary, path, overwrite=True)
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)
