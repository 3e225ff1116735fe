"""Weights under this project's names, and what they hold besides a model: adapters, and slots of optimizers.

The names are in families/family.py, those of other originals' checkpoints in the families' folders.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable

import numpy as np

from bert_tf.families import FAMILIES, family_of, family_of_variables
from bert_tf.families.config import BertConfig
from bert_tf.families.family import base_name, is_model_variable, word_table
from bert_tf.store.tensor_files import Weights, renamed

# What LoRA trains next to a kernel.
ADAPTER_A, ADAPTER_B, ADAPTER_ALPHA = "lora_a", "lora_b", "lora_alpha"


def is_adapter(name: str) -> bool:
    """Whether a variable's path, or its name in a checkpoint, is of an adapter."""
    return name.rsplit("/", 1)[-1] in (ADAPTER_A, ADAPTER_B, ADAPTER_ALPHA)


def has_adapters(model) -> bool:
    return any(is_adapter(variable.path) for variable in model.weights)


def other_slots(names: Collection[str]) -> list[str]:
    """Values of variables that optimizers and averages keep under their names; Adam's moments are not among them."""
    others = [name for name in names if base_name(name) == name and not is_adapter(name)]
    return [name for name in others if any(name[: slash.start()] in names for slash in re.finditer("/", name))]


# --- TF1 checkpoints of other originals -------------------------------------------------------------------------------

_BOTH = "both"  # among `Weights.parts`: all models of a checkpoint, under the names of their original


def with_our_names(weights: Weights) -> Weights:
    """A checkpoint's variables under the names used here; those of a BERT have them already.

    `Weights.parts` has each model that is there, if the family trains several together, and where all are, under _BOTH,
    all variables with their own names.
    """
    for family in FAMILIES:
        opened, table = {}, word_table(family.model_type)
        for part, of in family.parts_in_original(weights).items():
            opened[part] = renamed(weights, of.names, of.unused, of.transposed)
            shapes, hints = opened[part].shapes, opened[part].hints
            if of.has_other_sizes:
                hints["sizes_from_weights"] = True
            if of.units_per_head and table in shapes:
                width = shapes.get(f"{family.model_type}/encoder/layer_0/output/dense/bias", (1,))[0]
                hints["num_attention_heads"] = max(1, width // of.units_per_head)
        if opened:
            parts = {part: opened[part] for part in family.parts if part in opened}
            parts |= {_BOTH: weights} if len(parts) > 1 else {}
            return dataclasses.replace(next(iter(opened.values())), parts=parts)
    return weights


def names_there(names: Iterable[str], config: BertConfig) -> dict[str, str]:
    """Names of a model's variables and of their moments -> the names in the checkpoints of its family's original."""
    names = list(names)
    originals = family_of(config).names_in_original({base_name(name) for name in names}, config.inner_group_num)
    return {name: originals[base_name(name)] + name.removeprefix(base_name(name)) for name in names}


def weights_of_both(weights: Weights) -> Weights:
    """The weights of generator and discriminator, or one of them, under their original's names."""
    if _BOTH in weights.parts:
        return weights.parts[_BOTH]
    bases = {base_name(name) for name in weights if is_model_variable(base_name(name))}
    originals = family_of_variables(weights).names_in_original(bases)
    return renamed(weights, {originals[name]: name for name in weights if name in originals}, {})


# --- LoRA -------------------------------------------------------------------------------------------------------------
# An encoder stays as it is, and small matrices next to its projections learn (Hu et al. 2021, arXiv:2106.09685). A
# projection with the kernel W [in, out] computes x W + alpha / rank (x A) B, with A [in, rank], random at first, and
# B [rank, out], at first zero. Its result is one more kernel, W + alpha / rank A B. The paper multiplies from the left,
# so that its A and B are the transposes of these. Checkpoints of a run hold W, A, B and alpha; what is opened, saved or
# used anywhere else has the sum. `lora_file` reads and writes A and B alone.


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
        if variable.path.endswith(f"/{ADAPTER_B}"):
            variable.assign(np.zeros(variable.shape, np.float32))


def merged_kernel(kernel, a, b, scale: float):
    """W + scale A B, float32 [in, out]."""
    from keras import ops  # not needed to describe a model

    return kernel + ops.matmul(a, b) * scale


def adapted_kernels(names: Iterable[str]) -> list[str]:
    """The kernels to which adapters of these names in a checkpoint belong, each once."""
    scopes = [name.rpartition("/")[0] for name in names if name.endswith((f"/{ADAPTER_A}", f"/{ADAPTER_B}"))]
    return [f"{scope}/kernel" for scope in dict.fromkeys(scopes)]


def merged(weights: Weights) -> Weights:
    """Weights with each adapter, if there are any, added to its kernel. Moments of the adapters are left out."""
    adapted = adapted_kernels(weights.shapes)
    if not adapted:
        return weights
    alpha = next((name for name in weights.shapes if name.endswith(f"/{ADAPTER_ALPHA}")), None)
    if alpha is None or not weights.shapes.keys() >= set(adapted):
        advice = "give its weights, and load_lora this file"
        raise ValueError(f"{weights.path} has adapters of LoRA without their encoder: {advice}.")

    def read(name: str) -> np.ndarray:
        value = weights[name]
        if name not in adapted:
            return value
        a, b = (weights[name.removesuffix("kernel") + factor] for factor in (ADAPTER_A, ADAPTER_B))
        scale = float(weights[alpha]) / a.shape[1]
        from keras import ops

        return ops.convert_to_numpy(merged_kernel(value, a, b, scale))

    shapes = {name: shape for name, shape in weights.shapes.items() if not is_adapter(base_name(name))}
    origins = {name: weights.origins[name] for name in weights.origins if not is_adapter(base_name(name))}
    parts = {name: merged(part) for name, part in weights.parts.items()}
    return dataclasses.replace(weights, shapes=shapes, origins=origins, reader=read, parts=parts)
