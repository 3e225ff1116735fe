"""Object-based (TF2) checkpoints: their variables, and how the saved Python objects were connected.

Such a checkpoint is a bundle of tensors that includes a `TrackableObjectGraph`. Each node of the graph is a saved
object, each edge an attribute by which one object holds another.
"""

import copy
from collections.abc import Collection, Iterator

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from bert_tf.system.messages import some
from bert_tf.weights import bundle

_VALUE = "VARIABLE_VALUE"
KEY_SUFFIX = "/.ATTRIBUTES/" + _VALUE
# Only optimizers have an attribute of this name.
_OPTIMIZER_EDGES = {"learning_rate", "_learning_rate", "_current_learning_rate"}


class ObjectGraph:
    """The object graph of a checkpoint: its variables, and the edges that lead to them."""

    def __init__(self, serialized: bytes):
        self.nodes = trackable_object_graph_pb2.TrackableObjectGraph.FromString(serialized).nodes
        self._walk([0] if self.nodes else [])

    def _walk(self, start: list[int], edges: Collection[str] | None = None) -> None:
        """Finds the nodes that can be reached. edges: those to follow from the start; None: all.

        It never goes into an optimizer: newer ones name their moments like the variables.
        """
        self.reached, self.parents = set(start), {}
        queue = list(start)
        for number in queue:
            for child in self.nodes[number].children:
                followed = edges is None or number not in start or child.local_name in edges
                if not followed or self._is_optimizer(child.node_id):
                    continue
                self.parents.setdefault(child.node_id, []).append((number, child.local_name))
                if child.node_id not in self.reached:
                    self.reached.add(child.node_id)
                    queue.append(child.node_id)

    def below(self, number: int, edges: Collection[str]) -> "ObjectGraph":
        """The part of the graph that some of an object's edges lead to."""
        part = copy.copy(self)
        part._walk([number], edges)
        return part

    def _is_optimizer(self, number: int) -> bool:
        node = self.nodes[number]
        return bool(node.slot_variables) or any(child.local_name in _OPTIMIZER_EDGES for child in node.children)

    def variables(self) -> Iterator[tuple[int, str, str]]:
        """Yields node, full name and key of every variable outside optimizers."""
        for number in sorted(self.reached):
            for attribute in self.nodes[number].attributes:
                if attribute.name == _VALUE:
                    yield number, attribute.full_name, attribute.checkpoint_key

    def edges_to(self, number: int) -> set[str]:
        """The names of all edges on all paths from the root to a node."""
        edges, seen, queue = set(), {number}, [number]
        for node in queue:
            for parent, edge in self.parents.get(node, ()):
                edges.add(edge)
                if parent not in seen:
                    seen.add(parent)
                    queue.append(parent)
        return edges

    def children(self, number: int) -> dict[str, int]:
        return {child.local_name: child.node_id for child in self.nodes[number].children}


def read_graph(reader, path: str) -> ObjectGraph:
    """The graph of an open checkpoint, which errors call `path`.

    Raises:
      ValueError: it has none, or its file is damaged.
    """
    if not reader.has_tensor(bundle.OBJECT_GRAPH):
        raise ValueError(
            f"{path} is not an object-based checkpoint (no {bundle.OBJECT_GRAPH}). It contains "
            f"{some(sorted(reader.get_variable_to_shape_map()))}."
        )
    try:
        # Not through NumPy, whose byte strings lose trailing zeros.
        return ObjectGraph(reader.get_tensor(bundle.OBJECT_GRAPH))
    except (tf.errors.OpError, RuntimeError, DecodeError, IndexError) as error:
        raise ValueError(f"{path}: its {bundle.OBJECT_GRAPH} is damaged, or its .data is missing: {error}") from error
