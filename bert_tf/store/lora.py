"""LoRA: an encoder stays as it is, and small matrices next to its projections learn (Hu et al. 2021, arXiv:2106.09685).

A projection with the kernel W [in, out] computes x W + alpha / rank (x A) B, with A [in, rank], random at first, and
B [rank, out], at first zero: training starts from exactly the model that was given. Its result is one more kernel,
W + alpha / rank A B. The paper multiplies from the left, so that its A and B are the transposes of these.

Checkpoints of a run hold W, A and B (`.../lora_a`, `.../lora_b`) and alpha; what is opened, saved or used anywhere else
has the sum (`merged`). `lora_file` reads and writes A and B alone.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from bert_tf.families.names import base_name
from bert_tf.store.tensor_files import Weights
from bert_tf.store.variable_names import ADAPTER_A as A
from bert_tf.store.variable_names import ADAPTER_ALPHA as ALPHA
from bert_tf.store.variable_names import ADAPTER_B as B
from bert_tf.store.variable_names import is_adapter


@dataclasses.dataclass(frozen=True)
class Lora:
    """How an encoder is adapted. alpha: is divided by the rank. train_pooler: it is trained itself, as the head is."""

    rank: int
    alpha: float
    train_pooler: bool = False

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def clear_adapters(model) -> None:
    """Makes a Keras model compute with its kernels alone."""
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
    """Weights with each adapter, if there are any, added to its kernel. Moments of the adapters are left out."""
    adapted = adapted_kernels(weights.shapes)
    if not adapted:
        return weights
    alpha = next((name for name in weights.shapes if name.endswith("/" + ALPHA)), None)
    if alpha is None or not weights.shapes.keys() >= set(adapted):
        raise ValueError(
            f"{weights.path} has adapters of LoRA without their encoder: give its weights, and load_lora this file."
        )

    def read(name: str) -> np.ndarray:
        value = weights.read(name)
        if name not in adapted:
            return value
        a, b = (weights.read(name.removesuffix("kernel") + factor) for factor in (A, B))
        scale = float(weights.read(alpha)) / a.shape[1]
        from keras import ops

        return ops.convert_to_numpy(merged_kernel(value, a, b, scale))

    shapes = {name: shape for name, shape in weights.shapes.items() if not is_adapter(base_name(name))}
    origins = {name: weights.origins[name] for name in weights.origins if not is_adapter(base_name(name))}
    parts = {name: merged(part) for name, part in weights.parts.items()}
    return dataclasses.replace(weights, shapes=shapes, origins=origins, reader=read, parts=parts)
