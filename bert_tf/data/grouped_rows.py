"""Examples of several token rows each: the choices of a question, texts that are compared, the windows of a text.

Shape legend: B batch, n examples, N rows of an example, W most windows of an example of the batch, S sequence length.
"""

import dataclasses
from collections.abc import Sequence

import google_crc32c
import numpy as np

from bert_tf.data.token_rows import TokenRows


@dataclasses.dataclass(frozen=True)
class GroupedRows(TokenRows):
    """Examples of N token rows each; `labels` has arrays [n, ...], one value for each example.

    ids, offsets and second_starts are those of all rows, N for each example one after the other; length, `lengths` and
    `batch` are of examples.

    Attributes:
      rows_per_example: N. truncated: how many rows were longer than max_seq_length.
    """

    rows_per_example: int
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.second_starts) // self.rows_per_example

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of the longest row of each example [n]."""
        return self.rows.lengths.reshape(-1, self.rows_per_example).max(1)

    def shape_of(self, length: int | None) -> tuple[int | None, ...]:
        return (self.rows_per_example, length)

    def batch(self, rows: Sequence[int], length: int) -> dict[str, np.ndarray]:
        """Padded arrays of some examples: input_ids, input_mask, segment_ids int32 [B, N, length], and the labels."""
        examples = np.asarray(rows)
        every = (examples[:, None] * self.rows_per_example + np.arange(self.rows_per_example)).reshape(-1)
        arrays = self.rows.batch(every, length)
        arrays = {name: values.reshape(len(examples), -1, length) for name, values in arrays.items()}
        return arrays | {name: values[examples] for name, values in self.labels.items()}


@dataclasses.dataclass(frozen=True)
class WindowRows(TokenRows):
    """Examples of one or more token rows, the windows of one text; `labels` has arrays [n, ...].

    ids, offsets and second_starts are those of all windows, an example's one after the other; length, `lengths` and
    `batch` are of examples. All windows of an example are full but the last one, so that its tokens, counted over all
    its windows, tell how many these are: by that number examples are sorted, padded and batched.

    Attributes:
      first_rows: int64 [n + 1]: with which window each example begins, and the number of all windows.
      window_length: tokens of a full window.
    """

    first_rows: np.ndarray = dataclasses.field(kw_only=True)
    window_length: int = dataclasses.field(kw_only=True)

    def __len__(self) -> int:
        return len(self.first_rows) - 1

    @property
    def windows(self) -> np.ndarray:
        """The number of windows of each example [n]."""
        return np.diff(self.first_rows)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example in all its windows [n]."""
        return np.diff(self.offsets[self.first_rows]).astype(np.int32)

    @property
    def row_lengths(self) -> np.ndarray:
        """Tokens of each window."""
        return self.rows.lengths

    @property
    def checksum(self) -> str:
        checksum = google_crc32c.Checksum(super().checksum.encode())
        checksum.update(np.ascontiguousarray(self.first_rows).tobytes())
        return checksum.hexdigest().decode()

    def shape_of(self, length: int | None) -> tuple[int | None, ...]:
        """(W, S): one window that is as long as needed, or several full ones."""
        if length is None:
            return None, None
        return -(-length // self.window_length), min(length, self.window_length)

    def padded_lengths(self, max_seq_length: int, static_padding: bool = False, whole_step: bool = False) -> list[int]:
        """Those of single windows, and several full windows: 2, 3, 4, 6, 8, 12, and so on, to the most there are."""
        most = int(self.windows.max())
        if static_padding:
            return [most * self.window_length]
        counts = {most} | {factor << power for factor in (2, 3) for power in range(most.bit_length())}
        several = [count * self.window_length for count in sorted(counts) if 1 < count <= most]
        return super().padded_lengths(self.window_length, False, whole_step) + several

    def batch(self, rows: Sequence[int], length: int) -> dict[str, np.ndarray]:
        """Padded arrays of some examples: input_ids, input_mask, segment_ids int32 [B, W, S], and the labels.

        The windows that an example does not have are padding with a mask of zeros. W and S follow from `length`.
        """
        examples = np.asarray(rows)
        most, width = self.shape_of(length)
        numbers = self.first_rows[examples][:, None] + np.arange(most)  # [B, W]
        real = numbers < self.first_rows[examples + 1][:, None]
        arrays = self.rows.batch(np.where(real, numbers, 0).reshape(-1), width)
        empty = {"input_ids": self.pad_id, "input_mask": 0, "segment_ids": 0}
        arrays = {
            name: np.where(real[:, :, None], values.reshape(*real.shape, width), empty[name]).astype(np.int32)
            for name, values in arrays.items()
        }
        return arrays | {name: values[examples] for name, values in self.labels.items()}
