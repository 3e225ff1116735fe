"""Random initial weights, which are not drawn if a checkpoint has the values.

A model is built before its checkpoint is read. To draw weights that are then replaced would take longer than to read
them. A value depends on its own seed only, not on when it is drawn, so that the numbers are the same in either order.
"""

import contextlib
from collections.abc import Iterator

import keras

# id -> (variable, its values) of variables that are still zero; None outside of `drawn_late`.
_undrawn: dict[int, tuple[keras.Variable, keras.initializers.Initializer]] | None = None


def truncated_normal(standard_deviation: float | None) -> keras.initializers.Initializer:
    """Normal distribution, values beyond two standard deviations redrawn (original: create_initializer).

    None: Glorot's uniform distribution, TensorFlow's default, instead.
    """
    if standard_deviation is None:
        return keras.initializers.GlorotUniform()
    return keras.initializers.TruncatedNormal(stddev=standard_deviation)


def add_random_weight(
    layer: keras.Layer, name: str, shape: tuple, standard_deviation: float | None, **arguments
) -> keras.Variable:
    """Adds a weight of `truncated_normal` to a layer. arguments: of Keras `add_weight`."""
    initializer = truncated_normal(standard_deviation)  # takes its seed here; a second use would draw the same values
    if _undrawn is None:
        return layer.add_weight(name=name, shape=shape, initializer=initializer, **arguments)
    variable = layer.add_weight(name=name, shape=shape, initializer="zeros", **arguments)
    _undrawn[id(variable)] = variable, initializer
    return variable


@contextlib.contextmanager
def drawn_late() -> Iterator[None]:
    """Layers built in this context have random weights of zero until its end.

    Then they are drawn, except of variables of which `has_value` was told. For scripts and functions that build a model
    and set it from a checkpoint.
    """
    global _undrawn
    outer, _undrawn = _undrawn, {}
    try:
        yield
        for variable, initializer in _undrawn.values():
            variable.assign(initializer(variable.shape, variable.dtype))
    finally:
        _undrawn = outer


def has_value(variable: keras.Variable) -> None:
    """Says that a variable has been given a value, in place of the one that would be drawn."""
    if _undrawn is not None:
        _undrawn.pop(id(variable), None)
