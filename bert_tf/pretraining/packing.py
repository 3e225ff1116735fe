"""Which pairs share a row with --pack_sequences (best fit, decreasing length; Krell et al. 2021, arXiv 2107.02027)."""

import random

import numpy as np

from bert_tf.pretraining.mersenne_twister import generator_state, restore, shuffle
from bert_tf.system.numba_compile import compiled


def pack(lengths: np.ndarray, row_length: int, max_items: int, rng: random.Random) -> tuple[np.ndarray, np.ndarray]:
    """Puts items into rows, as few as best fit gives.

    Args:
      lengths: integers [n], each from 1 to row_length.
      row_length: room of a row. max_items: most items in a row.
      rng: for the order of the rows, which is random.

    Returns:
      (members, row_ends), int64: row k holds the items members[row_ends[k - 1]:row_ends[k]].
    """
    order = np.argsort(-lengths, kind="stable")
    row_of, num_rows = _best_fit(lengths[order].astype(np.int64), row_length, max_items)
    new_number = np.arange(num_rows, dtype=np.int64)
    state = generator_state(rng)
    shuffle(state, new_number, num_rows)
    restore(rng, state)
    row_of = new_number[row_of]
    members = order[np.argsort(row_of, kind="stable")]
    return members.astype(np.int64), np.cumsum(np.bincount(row_of, minlength=num_rows)).astype(np.int64)


@compiled
def _best_fit(lengths, row_length, max_items):
    """The row of each item; lengths are decreasing."""
    row_of = np.empty(len(lengths), np.int64)
    # Rows that can take more, as a linked list for each amount of room left.
    newest = np.full(row_length + 1, -1, np.int64)
    older = np.empty(len(lengths), np.int64)
    items = np.zeros(len(lengths), np.int32)
    num_rows = 0
    for k in range(len(lengths)):
        length = lengths[k]
        room = length
        while room <= row_length and newest[room] < 0:
            room += 1
        if room > row_length:
            row, room = num_rows, row_length
            num_rows += 1
        else:
            row = newest[room]
            newest[room] = older[row]
        row_of[k] = row
        items[row] += 1
        if items[row] < max_items:
            older[row] = newest[room - length]
            newest[room - length] = row
    return row_of, num_rows
