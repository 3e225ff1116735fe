"""Weights of any format under the original's names, read one tensor at a time.

A file of whatever format is opened as `Weights`: the names and shapes are the original's (TF1), whatever the file calls
them, and nothing is read before it is asked for, so that a large model is never in memory twice.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

FORMATS = ("tf1", "huggingface", "model_garden", "bert_tf")


@dataclasses.dataclass
class Weights:
    """The tensors of a file under the original's names.

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
