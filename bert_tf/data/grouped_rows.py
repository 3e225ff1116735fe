"""Examples of several token rows each: the choices of a question, or texts that are compared.

Shape legend: B batch, n examples, N rows of an example, S sequence length.
"""

import dataclasses
from collections.abc import Sequence

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
    def rows(self) -> TokenRows:
        """All rows, without labels."""
        return TokenRows(self.ids, self.offsets, self.second_starts, {}, pad_id=self.pad_id)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of the longest row of each example [n]."""
        return self.rows.lengths.reshape(-1, self.rows_per_example).max(1)

    @property
    def inner_shape(self) -> tuple[int, ...]:
        return (self.rows_per_example,)

    def batch(self, rows: Sequence[int], length: int) -> dict[str, np.ndarray]:
        """Padded arrays of some examples: input_ids, input_mask, segment_ids int32 [B, N, length], and the labels."""
        examples = np.asarray(rows)
        every = (examples[:, None] * self.rows_per_example + np.arange(self.rows_per_example)).reshape(-1)
        arrays = self.rows.batch(every, length)
        arrays = {name: values.reshape(len(examples), -1, length) for name, values in arrays.items()}
        return arrays | {name: values[examples] for name, values in self.labels.items()}
