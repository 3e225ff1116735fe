"""What this project needs of Keras that is not public, in one place.

- `register_tree_node_class`: the outputs of a model are a mapping of its own class, which `ops.map_structure` and `fit`
  must walk through. If it moves, `keras.tree` may offer it; without it, outputs are a plain dict without attributes.
- `AutocastScope`: `AutocastScope(None)` reads variables in their own dtype, to cast many at once. If it moves, the
  variables' `_value` is the same.
- `MetricsList`: `compile` wraps the metrics of a model in it, and an objective has its own in its place. If it moves,
  look for the class that `Trainer.compile` sets `_compile_metrics` to.
"""

from keras.src.backend import AutocastScope
from keras.src.trainers.compile_utils import MetricsList
from keras.src.tree import register_tree_node_class

__all__ = ["AutocastScope", "MetricsList", "register_tree_node_class"]
