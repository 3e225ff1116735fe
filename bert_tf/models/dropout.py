"""Dropout whose masks depend on the run's seed, the step, the place's name, the row of the batch and the element alone.

So a resumed run repeats them without a saved generator, they are the same for any number of replicas and micro-batches,
and the backward pass draws them again instead of storing them. The first two and the row come from a scope:

    with dropout_scope((seed, step), first_row):
        outputs = model(features, training=True)

A model called for training outside of one (Keras `fit`) opens its own, with a seed of its generator. Names are paths:
layers that share their weights, and models that share their layers, drop at places of their own.
"""

import contextvars
import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import ops

if keras.config.backend() == "tensorflow":
    import tensorflow as tf

_GOLDEN_RATIO = 0x9E3779B9  # its multiples, modulo 2^32, are far apart


@dataclasses.dataclass(frozen=True)
class Drop:
    """Dropout at one place, in one step, with the probability `rate` of a zero, in (0, 1).

    key: int32 [3]: two words for step and place, and the row of the whole batch at which this part of it begins.
    """

    rate: float
    key: keras.KerasTensor


@dataclasses.dataclass(frozen=True)
class _Scope:
    """The key, int32 [3] (see `Drop`), and the path of a place; within a loop over layers the path in each turn."""

    key: keras.KerasTensor
    paths: tuple[str, ...] = ("",)
    turn: keras.KerasTensor | int = 0


_scope: contextvars.ContextVar[_Scope | None] = contextvars.ContextVar("dropout_scope", default=None)


class _Within:
    """Sets the scope in its context. It can be entered again, as by a layer that the backward pass computes again."""

    def __init__(self, scope: _Scope | None):
        self._entered, self._token = scope, None

    def __enter__(self):
        self._token = _scope.set(self._entered)

    def __exit__(self, *_):
        _scope.reset(self._token)


def dropout_scope(seed, first_row=0) -> _Within:
    """In this context models drop for one step.

    Open it within the function that is traced: a seed from outside of it is a constant of its graph.

    seed: int32 [2]: the seed of the run, and the step.
    first_row: where in the whole batch the rows begin that the model is called on.
    """
    row = ops.reshape(ops.cast(first_row, "int32"), (1,))
    return _Within(_Scope(ops.concatenate([ops.convert_to_tensor(seed, "int32"), row])))


def name_scope(name: str) -> _Within:
    """In this context the names of places begin with this one."""
    scope = _scope.get()
    return _Within(scope and dataclasses.replace(scope, paths=tuple(f"{path}/{name}" for path in scope.paths)))


def layer_name_scope(names: Sequence[str]) -> Callable[..., _Within]:
    """turn -> a context in which the names of places begin with names[turn], an int32 scalar of a loop over layers."""
    scope = _scope.get()
    paths = tuple(f"{path}/{name}" for path in (scope.paths if scope else ()) for name in names)
    return lambda turn: _Within(scope and dataclasses.replace(scope, paths=paths, turn=turn))


def several_rows(count) -> _Within:
    """In this context an input has `count` rows for each row of the batch (choices of a question)."""
    scope = _scope.get()
    return _Within(scope and dataclasses.replace(scope, key=scope.key * ops.convert_to_tensor([1, 1, count], "int32")))


def in_scope(call: Callable) -> Callable:
    """A decorator for `call(self, inputs, training=False, ...)` of a model with a `seed_generator`.

    Without a scope a call for training gets one of its own.
    """

    @functools.wraps(call)
    def scoped(self, inputs, training=False, **arguments):
        if not training or _scope.get():
            return call(self, inputs, training=training, **arguments)
        number = 0
        if keras.config.backend() == "tensorflow":
            # Under tf.distribute all replicas' generators give the same seeds, so each replica folds in its number.
            context = tf.distribute.get_replica_context()
            number = 0 if context is None else context.replica_id_in_sync_group
        replica = ops.convert_to_tensor(number, "int32") * _signed(_GOLDEN_RATIO)
        with dropout_scope(ops.cast(self.seed_generator.next(), "int32") + replica):
            return call(self, inputs, training=training, **arguments)

    return scoped


def _signed(word: int) -> int:
    """The int32 of the same bits as a uint32."""
    return (word + 2**31) % 2**32 - 2**31


def dropout_at(name: str, rate: float, training: bool) -> Drop | None:
    """The dropout at a place; None if nothing is dropped."""
    if not training or not rate:
        return None
    scope = _scope.get()
    if scope is None:
        raise RuntimeError(f"Dropout of {name} outside of a model: open a bert_tf.models.dropout.dropout_scope.")
    words = [[_signed(zlib.crc32(f"{path}/{name}".encode())), 0, 0] for path in scope.paths]
    # One operation outside of a loop, since there are many places.
    place = np.array(words[0], "int32") if len(words) == 1 else ops.take(np.array(words, "int32"), scope.turn, axis=0)
    return Drop(rate, scope.key + place)


def dropout(x, rate: float, name: str, training: bool):
    """Inverted dropout, computed in float32; x itself where nothing drops."""
    drop = dropout_at(name, rate, training)
    return x if drop is None else ops.cast(apply_dropout(ops.cast(x, "float32"), drop), x.dtype)


def apply_dropout(x, drop: Drop | None):
    """A float32 tensor whose kept elements are divided by the probability to keep them."""
    if drop is None:
        return x
    kept = keep_mask(ops.shape(x), drop)
    return ops.where(kept, x * (1.0 / (1.0 - drop.rate)), ops.zeros_like(x))


def keep_mask(shape, drop: Drop):
    """Boolean tensor of a shape, static or dynamic, True for what is kept; the first axis is rows of the batch."""
    *leading, size = shape
    starts = ops.arange(_product(leading), dtype="int32") * size + drop.key[2] * (_product(leading[1:]) * size)
    threshold = np.uint32(min(round(drop.rate * 2**32), 2**32 - 1))
    return ops.reshape(ops.greater_equal(random_bits(drop.key, starts, size), threshold), shape)


def _product(sizes):
    if all(isinstance(size, int) for size in sizes):
        return math.prod(sizes)
    return ops.prod(ops.cast(ops.stack(list(sizes)), "int32"))


def _mix(value, shift, multiplier):
    value = value * np.uint32(multiplier)
    return ops.bitwise_xor(value, ops.right_shift(value, np.uint32(shift)))


def random_bits(seed, starts, size):
    """Uniform uint32 [..., size] for rows of a tensor whose last axis has `size` elements: a counter-based hash.

    seed: int32 [2 or more], of which two words are read, perhaps with leading axes that broadcast to the rows.
    starts: int32 [...], the number of each row's first element, counted over the whole tensor.
    """
    seed = ops.cast(seed, "uint32")
    # Two keys, before and between the rounds: with one, the masks of two seeds would be shifted copies of each other.
    first_key = _mix(_mix(seed[..., 0], 16, 0x7FEB352D), 15, 0x846CA68B)
    second_key = _mix(_mix(ops.bitwise_xor(seed[..., 1], first_key), 16, 0x21F0AAAD), 15, 0xD35A2D97)
    # The elements' numbers. The key comes first: XLA would make numbers without it a constant of the tensor's size.
    starts = ops.expand_dims(ops.cast(starts, "uint32") + first_key, -1)
    bits = _mix(starts + ops.cast(ops.arange(size, dtype="int32"), "uint32"), 16, 0x85EBCA6B)
    second_key = ops.expand_dims(second_key, -1) if len(seed.shape) > 1 else second_key
    bits = _mix(ops.bitwise_xor(bits, second_key), 13, 0xC2B2AE35)
    return _mix(bits, 16, 0x9E3779B1)
