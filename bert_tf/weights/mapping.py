"""Weights of any format under the original's names, read one tensor at a time.

A file of any format is opened as `Weights`: names and shapes are the original's (TF1), whatever the file calls them,
and tensors are read only on request, so that a large model is never in memory twice.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import google_crc32c
import numpy as np

_MOMENT_SUFFIXES = ("/adam_m", "/adam_v")
_BLOCK_BYTES = 1 << 23


@dataclasses.dataclass(eq=False)
class Weights(Mapping[str, np.ndarray]):
    """The tensors of a file under the original's names: a mapping that reads a tensor on each access.

    Attributes:
      path: the file or prefix, as shown in errors.
      format: its name (see models/open_weights.py).
      shapes: by the original's name.
      origins: the original's name -> what the file calls it.
      unused: entries of the file without an equivalent in the original's format -> why.
      reader: reads one tensor by the original's name, in the original's layout.
      hints: what the file itself says about the model: `num_attention_heads`, `hidden_act`, `do_lower_case`.
      parts: by name, the models in a file that has several: this one, and the others.
    """

    path: str
    format: str
    shapes: dict[str, tuple[int, ...]]
    origins: dict[str, str]
    reader: Callable[[str], np.ndarray]
    unused: dict[str, str] = dataclasses.field(default_factory=dict)
    hints: dict = dataclasses.field(default_factory=dict)
    parts: dict[str, "Weights"] = dataclasses.field(default_factory=dict)

    def read(self, name: str) -> np.ndarray:
        """One tensor.

        Raises:
          KeyError: there is no such tensor.
          ValueError: the file is damaged.
        """
        if name not in self.shapes:
            raise KeyError(f"{self.path} has no {name}")
        value = self.reader(name)
        if tuple(value.shape) != self.shapes[name]:
            raise ValueError(f"{self.path}: {name} has shape {list(value.shape)}, expected {list(self.shapes[name])}")
        return value

    @property
    def checksum(self) -> str:
        """Of names and values of the model's variables; reads them all."""
        names = sorted(filter(is_model_variable, self.shapes))
        return checksum_of(part for name in names for part in (name.encode(), *blocks(self.read(name))))

    __getitem__ = read

    def __contains__(self, name) -> bool:
        return name in self.shapes  # without reading the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def is_model_variable(name: str) -> bool:
    """Whether a name of the original is a variable of the model, not of its optimizer."""
    return name != "global_step" and not name.endswith(_MOMENT_SUFFIXES)


def blocks(tensor: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of a tensor in blocks of some megabytes, to copy or compare it without a second one in memory."""
    rows = tensor if tensor.ndim else tensor.reshape(1)
    count = max(1, _BLOCK_BYTES // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), count):
        yield rows[start : start + count]


def checksum_of(parts: Iterable[bytes | np.ndarray]) -> str:
    """CRC-32C of bytes and of the values of arrays, 8 hexadecimal digits."""
    checksum = google_crc32c.Checksum()
    for part in parts:
        checksum.update(part if isinstance(part, bytes) else part.tobytes())
    return checksum.hexdigest().decode()


def base_name(name: str) -> str:
    """The variable that a moment belongs to; of other names, the name itself."""
    for suffix in _MOMENT_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def renamed(
    weights: Weights, names: Mapping[str, str], unused: Mapping[str, str], transposed: Collection[str] = ()
) -> Weights:
    """Some of the tensors under other names.

    Args:
      names: new name -> old one. unused: see `Weights`. transposed: new names of matrices that are transposed.
    """

    def shape_of(new: str) -> tuple[int, ...]:
        shape = weights.shapes[names[new]]
        return shape[::-1] if new in transposed else shape

    def read(new: str) -> np.ndarray:
        value = weights.read(names[new])
        return value.T if new in transposed else value

    return dataclasses.replace(
        weights,
        shapes={new: shape_of(new) for new in names},
        origins={new: weights.origins[old] for new, old in names.items()},
        reader=read,
        unused={**weights.unused, **unused},
        hints=dict(weights.hints),
    )


def with_tensors(weights: Weights, tensors: Mapping[str, np.ndarray]) -> Weights:
    """The weights and some tensors more, which are in memory."""
    return dataclasses.replace(
        weights,
        shapes={**weights.shapes, **{name: value.shape for name, value in tensors.items()}},
        origins={**dict.fromkeys(tensors, ""), **weights.origins},
        reader=lambda name: tensors[name] if name in tensors else weights.read(name),
    )
