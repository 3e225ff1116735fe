"""Adam's update in one pass over memory, which writes where it has read: for training on a CPU.

An operation of TensorFlow, or a program of XLA, writes each of the three results into new memory, in a loop of its own,
and so moves twice as many bytes. Here the gradient of a table that is only looked up stays what it is: a row for each
token of the batch.
"""

import concurrent.futures
import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from bert_tf.system.numba_compile import compiled
from bert_tf.system.workers import available_cores
from bert_tf.training.optimization import AdamWeightDecay

_SMALL = 2**14  # numbers that one thread updates alone
_SMALLEST = np.finfo(np.float32).tiny
_NO_ROWS = np.zeros(0, np.bool_)
_MOST_THREADS = 8  # they wait for memory, more would wait for each other


class InPlaceAdam:
    """Updates an optimizer's variables, and their moments, in their own memory.

    TensorFlow hands the memory of tensors to a function of NumPy arrays, and does not know that it is written to. So
    nothing else may hold a variable's memory: see `own_memory`.

    addresses: of the memory that is written to -> that memory: while it is held here, nothing else can get it.
    """

    def __init__(self, optimizer: AdamWeightDecay, variables: Sequence):
        self._optimizer, self._parts = optimizer, range(min(_MOST_THREADS, available_cores()))
        self._variables = [*variables, *optimizer.first_moments, *optimizer.second_moments]
        self.addresses, self._reached = {}, {}  # address of a table's second moment -> rows whose moments are not 0
        self._threads = concurrent.futures.ThreadPoolExecutor(len(self._parts))
        self._is_owner = tf.function(lambda: self._read_by(self._owns, tf.bool), autograph=False)

    def own_memory(self) -> None:
        """Needed before a step if one of the variables was assigned, or if what was read of it may still be held."""
        if self.addresses and self._is_owner():
            return
        self.addresses.clear()
        self._reached.clear()
        for variable in self._variables:
            copy = tf.raw_ops.DeepCopy(x=variable.value)
            tf.raw_ops.DisableCopyOnRead(resource=variable.value.handle)  # since a `scatter_update` each read is a copy
            variable.assign(copy)
            array = np.asarray(memoryview(copy))
            self.addresses[_address(array)] = array

    def check(self) -> tf.Operation:
        """An operation of a graph, which fails if `own_memory` is needed."""
        return self._read_by(self._check, [])

    def _read_by(self, function: Callable, result_type):
        return tf.numpy_function(function, [*map(tf.convert_to_tensor, self._variables)], result_type)

    def _check(self, *arrays: np.ndarray) -> None:
        if not self._owns(*arrays):
            raise RuntimeError("A variable's memory is not its own: see `Trainer.own_memory`.")

    def _owns(self, *arrays: np.ndarray) -> np.bool_:
        """Whether no two arrays share memory, as after `b.assign(a)`, and all of it is held here."""
        found = [_address(array) for array in arrays if array.size]
        return np.bool_(len({*found}) == len(found) and self.addresses.keys() >= {*found})

    def update_steps(self, gradients: Sequence, variables: Sequence, learning_rate, factor, counts, step) -> None:
        optimizer, flat = self._optimizer, []
        scale, epsilon = optimizer.correction(step, optimizer.constants)
        beta_1, beta_2 = optimizer.beta_1, optimizer.beta_2
        numbers = (learning_rate, factor, scale, epsilon, beta_1, 1.0 - beta_1, beta_2, 1.0 - beta_2)
        indices = [optimizer._get_variable_index(variable) for variable in variables]
        are_tables = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
        for index, variable, gradient, is_table in zip(indices, variables, gradients, are_tables, strict=True):
            rows = tf.cast(gradient.indices, tf.int64) if is_table else tf.zeros([0], tf.int64)
            tensors = variable, optimizer.first_moments[index], optimizer.second_moments[index]
            flat += [*map(tf.convert_to_tensor, tensors), gradient.values if is_table else gradient, rows]
        rates = [np.float32([optimizer.layer_rates[index], optimizer.decay_rate(index) or 0.0]) for index in indices]
        numbers = tf.stack([tf.cast(number, tf.float32) for number in numbers])
        tf.numpy_function(lambda *arrays: self._update(are_tables, rates, *arrays), [counts, numbers, *flat], [])
        # Compiled while TensorFlow optimizes the graph.
        matrices, rows = [np.zeros((1, 1), np.float32)] * 4, np.zeros(0, np.int64)
        numbers, rate = np.zeros(8, np.float32), np.zeros(2, np.float32)
        self._threads.submit(_update_rows, *matrices, rows, rows, _NO_ROWS, numbers, rate, 0, 0)

    def _update(self, are_tables: list[bool], rates: list, counts: np.bool_, numbers: np.ndarray, *arrays) -> None:
        """arrays: of each variable itself, m, v, the gradient, and the rows that the gradient's slices belong to."""
        groups = [arrays[first : first + 5] for first in range(0, len(arrays), 5)]
        self._check(*(array for group in groups for array in group[:3]))
        if not counts:
            return
        work = []
        for (*matrices, rows), is_table, rate in zip(groups, are_tables, rates, strict=True):
            order, moment, reached = np.argsort(rows, axis=None, kind="stable"), _address(matrices[2]), _NO_ROWS
            matrices, rows = [matrix.reshape(-1, matrix.shape[-1]) for matrix in matrices], rows.reshape(-1)[order]
            if is_table:
                if rows.size and not 0 <= rows[0] <= rows[-1] < len(matrices[0]):
                    raise ValueError(f"Rows {rows[0]} to {rows[-1]} are not all in a table of {len(matrices[0])}.")
                if moment not in self._reached:
                    self._reached[moment] = matrices[1].any(axis=1) | matrices[2].any(axis=1)
                reached = self._reached[moment]
            work.append((*matrices, rows, order, reached, numbers, rate))

        def update(part):
            for index, arguments in enumerate(work):
                rows, parts = len(arguments[0]), len(self._parts)
                if arguments[0].size > _SMALL:
                    _update_rows(*arguments, rows * part // parts, rows * (part + 1) // parts)
                elif index % parts == part:
                    _update_rows(*arguments, 0, rows)

        list(self._threads.map(update, self._parts))


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


_compiled = functools.partial(compiled, error_model="numpy")  # which divides by 0 as NumPy does


@_compiled
def _update_rows(variable, m, v, gradient, rows, order, reached, numbers, rate, begin, end):
    """Updates rows begin to end of a matrix.

    rows: those that gradient[order] belong to, sorted. reached: rows whose moments are not 0; none: not a table.
    """
    width, at = variable.shape[1], np.searchsorted(rows, begin)
    if not reached.size:
        first, last = begin * width, end * width
        variable, m, v, gradient = variable.reshape(-1), m.reshape(-1), v.reshape(-1), gradient.reshape(-1)
        _move(variable[first:last], m[first:last], v[first:last], gradient[first:last], numbers, rate)
        return
    total, learning_rate, decay = np.zeros(width, np.float32), numbers[0] * rate[0], rate[1]
    for row in range(begin, end):
        first = at
        while at < rows.size and rows[at] == row:
            total += gradient[order[at]]
            at += 1
        reached[row] |= at > first
        if reached[row]:
            _move(variable[row], m[row], v[row], total, numbers, rate)
        else:  # all that is left of the update: the word pieces that the data lacks are most of a table
            values = variable[row]
            for i in range(width):
                values[i] -= learning_rate * (decay * values[i])
        if at > first:
            total[:] = 0


@_compiled
def _move(variable, m, v, gradient, numbers, rate):
    learning_rate, factor, scale, epsilon = numbers[0] * rate[0], numbers[1], numbers[2], numbers[3]
    beta_1, rest_1, beta_2, rest_2, decay = numbers[4], numbers[5], numbers[6], numbers[7], rate[1]
    for i in range(variable.size):
        g = gradient[i] * factor
        new_m = beta_1 * m[i] + rest_1 * g
        new_v = beta_2 * v[i] + rest_2 * g * g
        # As TensorFlow's threads do it: the moments of a rare word piece would end as denormal numbers, which are slow.
        new_m = np.float32(0) if abs(new_m) < _SMALLEST else new_m
        new_v = np.float32(0) if new_v < _SMALLEST else new_v
        m[i], v[i] = new_m, new_v
        variable[i] -= learning_rate * (new_m / (np.sqrt(new_v) + epsilon) * scale + decay * variable[i])
