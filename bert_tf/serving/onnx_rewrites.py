"""Chains of an ONNX graph that are one operator of ONNX: layer norm and GELU.

TensorFlow has no such operators, so the converter writes each as a chain of ten, which passes over memory ten times.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # an optional package
    import onnx

_COMMUTATIVE = ("Add", "Mul")

# A pattern is an operator with the patterns of its inputs; a number, for a constant; or a name, for any tensor, which
# is the same one wherever the name occurs.
_Pattern = tuple | float | str

_CENTERED = ("Sub", "x", ("ReduceMean", "x"))
_VARIANCE = ("ReduceMean", ("Mul", _CENTERED, _CENTERED))
_INVERSE = ("Reciprocal", ("Sqrt", ("Add", _VARIANCE, "epsilon")))
# TensorFlow's graph optimizer multiplies the two factors first.
_LAYER_NORMS = (
    ("Add", ("Mul", _CENTERED, ("Mul", _INVERSE, "gamma")), "beta"),
    ("Add", ("Mul", ("Mul", _CENTERED, _INVERSE), "gamma"), "beta"),
)

_CUBE = ("Mul", ("Mul", ("Mul", 0.044715, "x"), "x"), "x")
_INNER = ("Mul", float(np.sqrt(2 / np.pi)), ("Add", "x", _CUBE))
_GELU_TANH = ("Mul", ("Mul", 0.5, "x"), ("Add", 1.0, ("Tanh", _INNER)))
_GELU_ERF = ("Mul", ("Mul", 0.5, "x"), ("Add", 1.0, ("Erf", ("Mul", "x", float(np.sqrt(0.5))))))


class _Graph:
    """A graph with its nodes by their outputs, and its constants by name."""

    def __init__(self, graph: "onnx.GraphProto"):
        self.graph = graph
        self.producers = {name: node for node in graph.node for name in node.output}
        self.constants = {tensor.name: tensor for tensor in graph.initializer}

    def scalar(self, name: str) -> float | None:
        """The value of a constant with one element; None if the tensor is not one."""
        from onnx import TensorProto, numpy_helper

        tensor = self.constants.get(name)
        if tensor is None or tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) != 1:
            return None
        return float(numpy_helper.to_array(tensor).reshape(()))

    def matches(self, name: str, pattern: _Pattern, found: dict[str, str]) -> Iterator[dict[str, str]]:
        """The ways in which a tensor fits a pattern: names of the pattern -> tensors."""
        if isinstance(pattern, str):
            if found.get(pattern, name) == name:
                yield {**found, pattern: name}
        elif isinstance(pattern, float):
            value = self.scalar(name)
            if value is not None and np.isclose(value, pattern, rtol=1e-6):
                yield found
        else:
            yield from self._matches_of_node(self.producers.get(name), pattern, found)

    def _matches_of_node(self, node, pattern: tuple, found: dict[str, str]) -> Iterator[dict[str, str]]:
        kind, *parts = pattern
        if node is None or node.op_type != kind:
            return
        # The further inputs of a reduction are its axes.
        orders = [list(node.input)[: len(parts)]]
        if kind in _COMMUTATIVE:
            orders.append(orders[0][::-1])
        for names in orders:
            ways = [found]
            for name, part in zip(names, parts, strict=True):
                ways = [further for way in ways for further in self.matches(name, part, way)]
            yield from ways


def fuse(model: "onnx.ModelProto") -> dict[str, int]:
    """Replaces the chains by `LayerNormalization` (opset 17) and `Gelu` (opset 20), in place.

    Returns:
      how many of each operator there are now.
    """
    graph = _Graph(model.graph)
    counts = {"LayerNormalization": 0, "Gelu": 0}
    for node in model.graph.node:
        if node.op_type not in _COMMUTATIVE:
            continue
        ways = (way for pattern in _LAYER_NORMS for way in graph.matches(node.output[0], pattern, {}))
        if found := next(ways, None):
            epsilon = graph.scalar(found["epsilon"])
            vectors = [graph.constants.get(found[name]) for name in ("gamma", "beta")]
            if epsilon is not None and all(vector is not None and len(vector.dims) == 1 for vector in vectors):
                inputs = [found[name] for name in ("x", "gamma", "beta")]
                _become(node, "LayerNormalization", inputs, axis=-1, epsilon=epsilon)
                counts["LayerNormalization"] += 1
            continue
        for pattern, approximation in ((_GELU_TANH, "tanh"), (_GELU_ERF, "none")):
            if found := next(graph.matches(node.output[0], pattern, {}), None):
                _become(node, "Gelu", [found["x"]], approximate=approximation)
                counts["Gelu"] += 1
                break
    _remove_unused(model.graph)
    return counts


def _become(node: "onnx.NodeProto", kind: str, inputs: list[str], **attributes) -> None:
    """Makes a node another operator with the same output."""
    from onnx import helper

    node.CopyFrom(helper.make_node(kind, inputs, list(node.output), node.name, **attributes))


def _remove_unused(graph: "onnx.GraphProto") -> None:
    """Removes nodes and constants that no output depends on."""
    needed = {entry.name for entry in graph.output}
    kept = []
    for node in reversed(graph.node):  # in the order of the computation
        if needed & set(node.output):
            kept.append(node)
            needed.update(_read_by(node))
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    shapes = [entry for entry in graph.value_info if entry.name in needed]
    for field, values in ((graph.node, kept[::-1]), (graph.initializer, constants), (graph.value_info, shapes)):
        del field[:]
        field.extend(values)


def _read_by(node: "onnx.NodeProto") -> Iterator[str]:
    """The names of the tensors that a node reads, also in the graphs of a loop or a branch."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read_by(inner)
            yield from (entry.name for entry in graph.output)
