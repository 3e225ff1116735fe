"""LoRA: an encoder stays as it is, and small matrices beside its projections learn (Hu et al. 2021, arXiv:2106.09685).

A projection with the kernel W [in, out] computes x W + alpha / rank (x A) B, with A [in, rank], random at first, and
B [rank, out], at first zero: training starts from exactly the model that was given. Its result is one more kernel,
W + alpha / rank A B. The paper multiplies from the left, so that its A and B are the transposes of these.

Checkpoints of a run hold W, A and B (`.../lora_a`, `.../lora_b`) and alpha; what is opened, saved or used anywhere else
has the sum (`merged`). `lora_file` reads and writes A and B alone.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from bert_tf.models.config import BertConfig
from bert_tf.models.variable_names import ADAPTER_A as A
from bert_tf.models.variable_names import ADAPTER_ALPHA as ALPHA
from bert_tf.models.variable_names import ADAPTER_B as B
from bert_tf.models.variable_names import is_adapter
from bert_tf.system.checks import whole_number
from bert_tf.weights.tensor_files import Weights, base_name


@dataclasses.dataclass(frozen=True)
class Lora:
    """How an encoder is adapted.

    Attributes:
      rank: of the adapters. alpha: is divided by it, so that a learning rate suits several ranks.
      train_pooler: whether the pooler is trained itself, as a part of the head.
    """

    rank: int
    alpha: float
    train_pooler: bool = False

    @property
    def scale(self) -> float:
        """The factor of A B."""
        return self.alpha / self.rank


def check_lora_rank(config: BertConfig, rank: int | None) -> None:
    """Refuses a rank that no adapter can have; None is no LoRA.

    Raises:
      ValueError: names the flag and the largest rank.
    """
    if rank is not None:
        whole_number(rank, "lora_rank", 0)
    if rank is not None and not 1 <= rank <= config.hidden_size:
        raise ValueError(f"lora_rank={rank}: from 1 to the hidden_size of this {config.title}, {config.hidden_size}.")


def clear_adapters(model) -> None:
    """Makes a Keras model compute with its kernels alone: every B becomes zero."""
    for variable in model.weights:
        if variable.path.endswith("/" + B):
            variable.assign(np.zeros(variable.shape, np.float32))


def merged_kernel(kernel, a, b, scale: float):
    """W + scale A B, float32 [in, out]."""
    from keras import ops  # not needed to describe a model

    return kernel + ops.matmul(a, b) * scale


def adapted_kernels(names: Iterable[str]) -> list[str]:
    """The kernels to which adapters of these names in a checkpoint belong, each once."""
    scopes = [name.rpartition("/")[0] for name in names if name.endswith(("/" + A, "/" + B))]
    return [f"{scope}/kernel" for scope in dict.fromkeys(scopes)]


def merged(weights: Weights) -> Weights:
    """Weights with each adapter added to its kernel; without adapters they are returned as they are.

    Moments of the adapters are left out, those of other variables stay.

    Raises:
      ValueError: there are adapters without their kernels or their alpha, or of shapes that don't fit.
    """
    adapted = adapted_kernels(weights.shapes)
    if not adapted:
        return weights
    alpha = next((name for name in weights.shapes if name.endswith("/" + ALPHA)), None)
    if alpha is None or not weights.shapes.keys() >= set(adapted):
        raise ValueError(
            f"{weights.path} has adapters of LoRA without the encoder that they belong to: give the model that was "
            "saved with them, or in Python the encoder's weights and load_lora."
        )
    for kernel in adapted:
        names = [kernel, *(kernel.removesuffix("kernel") + factor for factor in (A, B))]
        sizes = [size for name in names for size in weights.shapes.get(name, ())]
        if len(sizes) != 6 or sizes != [sizes[0], sizes[1], sizes[0], sizes[3], sizes[3], sizes[1]] or not sizes[3]:
            found = ", ".join(f"{name} {list(weights.shapes.get(name, ['missing']))}" for name in names)
            raise ValueError(f"{weights.path} has an adapter of LoRA that does not fit its kernel: {found}.")

    def read(name: str) -> np.ndarray:
        value = weights.read(name)
        if name not in adapted:
            return value
        a, b = (weights.read(name.removesuffix("kernel") + factor) for factor in (A, B))
        scale = float(weights.read(alpha)) / a.shape[1]
        from keras import ops

        return ops.convert_to_numpy(merged_kernel(value, a, b, scale))

    return dataclasses.replace(
        weights,
        shapes={name: shape for name, shape in weights.shapes.items() if not is_adapter(base_name(name))},
        origins={name: origin for name, origin in weights.origins.items() if not is_adapter(base_name(name))},
        reader=read,
        parts={name: merged(part) for name, part in weights.parts.items()},
    )
