"""The names of the original's modeling.py that have a meaning in Keras; docs/names.md has all of them."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

import keras

from bert_tf.families.config import BertConfig
from bert_tf.models.initialize import checkpoint_name
from bert_tf.models.kernels import ACTIVATIONS
from bert_tf.models.layers import truncated_normal
from bert_tf.models.task_models import BertModel
from bert_tf.store.open import open_weights
from bert_tf.system import hub

__all__ = [
    "BertConfig",
    "BertModel",
    "create_initializer",
    "gelu",
    "get_activation",
    "get_assignment_map_from_checkpoint",
]


def gelu(x):
    """Gaussian error linear unit in its tanh form, element-wise: the "gelu" of bert_config.json."""
    return ACTIVATIONS["gelu"](x)


def get_activation(activation_string: str | Callable | None) -> Callable | None:
    """The function of a hidden_act in any case; None for "linear", "" and None. Other types are returned unchanged."""
    if activation_string and not isinstance(activation_string, str):
        return activation_string
    name = (activation_string or "linear").lower()
    if name not in ACTIVATIONS:
        raise ValueError(f"Unsupported activation: {activation_string!r} is not one of {', '.join(ACTIVATIONS)}.")
    return None if name == "linear" else ACTIVATIONS[name]


def get_assignment_map_from_checkpoint(
    tvars: Iterable[keras.Variable], init_checkpoint: str
) -> tuple[OrderedDict[str, str], dict[str, int]]:
    """Which variables a checkpoint has values for; `bert_tf.load_weights(model, init_checkpoint)` assigns them.

    Args:
      tvars: `model.trainable_variables`, of a model that is built.
      init_checkpoint: weights of any format, or the name of a model on the hub.

    Returns:
      name -> the same name, for each variable that both have, in the order of the checkpoint; and name -> 1, also for
      the name with ":0".
    """
    names = {checkpoint_name(variable) for variable in tvars}
    path = hub.local(init_checkpoint)
    assignment_map = OrderedDict((name, name) for name in open_weights(path) if name in names)
    return assignment_map, dict.fromkeys([spelling for name in assignment_map for spelling in (name, f"{name}:0")], 1)


def create_initializer(initializer_range: float = 0.02) -> keras.initializers.Initializer:
    """Normal distribution with this standard deviation, values beyond two deviations redrawn."""
    return truncated_normal(initializer_range)
