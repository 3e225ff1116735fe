"""Weights of any format under the original's names, read one tensor at a time.

A file of whatever format is opened as `Weights`: the names and shapes are the original's (TF1), whatever the file calls
them, and nothing is read before it is asked for, so that a large model is never in memory twice.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from bert_tf.config import BertConfig

FORMATS = ("tf1", "huggingface", "model_garden", "bert_tf")

# The output layers of the original's run_classifier.py (root scope) and run_squad.py.
HEAD_NAMES = ("output_weights", "output_bias", "cls/squad/output_weights", "cls/squad/output_bias")

_LAYER = re.compile(r"bert/encoder/layer_(\d+)/")
_MOMENT_SUFFIXES = ("/adam_m", "/adam_v")
_NAMES_SHOWN = 8


@dataclasses.dataclass(eq=False)
class Weights(Mapping[str, np.ndarray]):
    """The tensors of a file under the original's names: a mapping that reads a tensor each time it is asked for one.

    Attributes:
      path: the file or prefix, as errors should call it.
      format: one of FORMATS.
      shapes: by the original's name.
      origins: the original's name -> what the file calls it.
      unused: entries of the file that have no place in the original's format -> why.
      reader: reads one tensor by the original's name, in the original's layout.
      hints: what the file itself tells about the model: `num_attention_heads`, `do_lower_case`.
    """

    path: str
    format: str
    shapes: dict[str, tuple[int, ...]]
    origins: dict[str, str]
    reader: Callable[[str], np.ndarray]
    unused: dict[str, str] = dataclasses.field(default_factory=dict)
    hints: dict = dataclasses.field(default_factory=dict)

    def read(self, name: str) -> np.ndarray:
        """One tensor.

        Raises:
          KeyError: there is no such tensor.
          ValueError: it can't be read: the file is damaged.
        """
        if name not in self.shapes:
            raise KeyError(f"{self.path} has no {name}")
        value = self.reader(name)
        if tuple(value.shape) != self.shapes[name]:
            raise ValueError(f"{self.path}: {name} has shape {list(value.shape)}, announced {list(self.shapes[name])}")
        return value

    def __getitem__(self, name: str) -> np.ndarray:
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def is_model_variable(name: str) -> bool:
    """Whether a name of the original is a variable of the model, not of its optimizer."""
    return name != "global_step" and not name.endswith(_MOMENT_SUFFIXES)


def num_layers_of(names) -> int:
    """The number of encoder layers that names of the original speak of."""
    numbers = [int(match[1]) for match in map(_LAYER.match, names) if match]
    return 1 + max(numbers, default=-1)


def expected_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every variable of a pre-training model in the original's checkpoints, in its order.

    Source: original run_pretraining.py; the heads of its other scripts have shapes of their own: see HEAD_NAMES.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    norm = {"LayerNorm/beta": (hidden,), "LayerNorm/gamma": (hidden,)}

    def dense(rows, columns):
        return {"dense/kernel": (rows, columns), "dense/bias": (columns,)}

    def under(scope, shapes):
        return {f"{scope}/{name}": shape for name, shape in shapes.items()}

    projections = {}
    for name in ("query", "key", "value"):
        projections |= {f"{name}/kernel": (hidden, hidden), f"{name}/bias": (hidden,)}
    layer = under("attention/self", projections)
    layer |= under("attention/output", dense(hidden, hidden) | norm)
    layer |= under("intermediate", dense(hidden, inner))
    layer |= under("output", dense(inner, hidden) | norm)
    embeddings = {
        "word_embeddings": (config.vocab_size, hidden),
        "token_type_embeddings": (config.type_vocab_size, hidden),
        "position_embeddings": (config.max_position_embeddings, hidden),
        **norm,
    }
    shapes = under("bert/embeddings", embeddings)
    for number in range(config.num_hidden_layers):
        shapes |= under(f"bert/encoder/layer_{number}", layer)
    shapes |= under("bert/pooler", dense(hidden, hidden))
    shapes |= under("cls/predictions/transform", dense(hidden, hidden) | norm)
    shapes |= {
        "cls/predictions/output_bias": (config.vocab_size,),
        "cls/seq_relationship/output_weights": (2, hidden),
        "cls/seq_relationship/output_bias": (2,),
    }
    return shapes


def check_shapes(weights: Weights, config: BertConfig, config_name: str) -> None:
    """Refuses a configuration that the weights don't fit.

    Raises:
      ValueError: lists name, expected and found shape of what differs, and encoder variables one has and the other not.
    """
    expected = expected_shapes(config)
    wrong = [
        f"{name}: expected {list(shape)}, found {list(weights.shapes[name])}"
        for name, shape in expected.items()
        if name in weights.shapes and weights.shapes[name] != shape
    ]
    for name, shape in weights.shapes.items():
        if is_model_variable(name) and name.startswith("bert/") and name not in expected:
            wrong.append(f"{name}: not expected, found {list(shape)}")
        elif name in HEAD_NAMES and name.endswith("weights") and shape[-1:] != (config.hidden_size,):
            wrong.append(f"{name}: expected [classes, {config.hidden_size}], found {list(shape)}")
    for name, shape in expected.items():
        if name.startswith(("bert/embeddings/", "bert/encoder/")) and name not in weights.shapes:
            wrong.append(f"{name}: expected {list(shape)}, not there")
    if wrong:
        raise ValueError(
            f"{config_name} does not fit the weights of {weights.path}, {len(wrong)} variables differ: "
            f"{some(wrong, '; ')}."
        )


def some(names: list[str], separator: str = ", ") -> str:
    """The first names of a list, and how many more there are."""
    shown = separator.join(names[:_NAMES_SHOWN])
    return shown + (f"{separator}and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")
