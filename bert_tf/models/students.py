"""What a student takes from its teacher: the choice of the teacher's layers.

Source: extract_distilbert.py and extract.py of DistilBERT. No TensorFlow is imported here.
"""

import copy
import re
from collections.abc import Sequence

from bert_tf.models.config import BertConfig
from bert_tf.models.families import DistilBertConfig, is_encoder_variable
from bert_tf.weights.tensor_files import Weights, is_model_variable, renamed

_TRANSFORM = "cls/predictions/transform/"
_LAYER = re.compile(r"(\w+/encoder/layer_)(\d+)(/.+)")


def check_layers(config: BertConfig, layers: Sequence[int]) -> None:
    """Refuses layers that a student can't take over from a teacher.

    Raises:
      ValueError: the teacher has no such layer, or its layers share their weights; names --student_layers.
    """
    flag, order = f"--student_layers={','.join(map(str, layers))}", config.block_order
    if len(set(order)) != len(order):
        raise ValueError(f"{flag}: the layers of this {config.title} share their weights; there are none to choose.")
    if len(set(layers)) < len(layers) or not set(layers) <= set(range(len(order))):
        raise ValueError(f"{flag}: the teacher has the layers 0 to {len(order) - 1}; name each once at most.")


def check_compared(student: BertConfig, teacher: BertConfig, alpha_cos: float) -> None:
    """Refuses two models whose outputs can't be compared in pre-training.

    Args:
      alpha_cos: the weight of the distance of their vectors.

    Raises:
      ValueError: their vocabularies, or the vectors to be compared, differ in size; or the teacher is causal.
    """
    if teacher.is_causal:
        raise ValueError("--teacher has causal attention: it does not score masked tokens.")
    for key, needed in (("vocab_size", True), ("hidden_size", alpha_cos)):
        sizes = getattr(teacher, key), getattr(student, key)
        if needed and sizes[0] != sizes[1]:
            advice = " (--alpha_cos=0 compares no vectors)" if key == "hidden_size" else ""
            raise ValueError(f"--teacher has {key} {sizes[0]}, the student {sizes[1]}: they must agree{advice}.")


def shallower(config: BertConfig, layers: Sequence[int]) -> BertConfig:
    """The teacher's configuration with as many layers as are chosen.

    Raises:
      ValueError: see `check_layers`.
    """
    check_layers(config, layers)
    config = copy.deepcopy(config)
    config.num_hidden_layers = len(layers)
    config.validate()
    return config


def as_distilbert(config: BertConfig) -> DistilBertConfig:
    """A configuration of BERT as that of a DistilBERT: without segments and pooler.

    Raises:
      ValueError: it is of another family, or causal.
    """
    if config.model_type != BertConfig.model_type or config.is_causal:
        kind = "one with causal attention" if config.is_causal else f"a {config.title}"
        raise ValueError(f"--student_family=distilbert needs a BERT as teacher, not {kind}.")
    keys = DistilBertConfig.keys()
    return DistilBertConfig(**{key: getattr(config, key) for key in keys})


def chosen_layers(
    weights: Weights, layers: Sequence[int], student: BertConfig | None = None, *, transform: bool = False
) -> Weights:
    """A teacher's weights for a student: the encoder with these layers only, numbered from 0.

    Args:
      weights: of a model for which `check_layers` passes.
      student: of a model to pre-train, which may be a DistilBERT: it gets the masked-LM head, too, and only what its
        family has. None: heads are left out.
      transform: with the hidden layer of the masked-LM head (--vocab_transform).
    """
    numbers = {layer: number for number, layer in enumerate(layers)}
    names = {}
    for name in filter(is_model_variable, weights):
        layer = _LAYER.fullmatch(name)
        if layer and int(layer[2]) in numbers:
            names[f"{layer[1]}{numbers[int(layer[2])]}{layer[3]}"] = name
        elif (not layer and is_encoder_variable(name)) or (student and _is_of_head(name, transform)):
            names[name] = name
    if student:
        names = {
            f"{student.model_type}/{new.partition('/')[2]}" if is_encoder_variable(new) else new: old
            for new, old in names.items()
            if student.type_vocab_size or not new.endswith("/token_type_embeddings")
            if student.has_pooler or "/pooler/" not in new
        }
    reasons = {name: _reason(name, student) for name in weights if name not in names.values()}
    return renamed(weights, names, reasons)


def _reason(name: str, student: BertConfig | None) -> str:
    """Why a student does not get a variable."""
    if is_encoder_variable(name) or not is_model_variable(name):
        return "not chosen"
    if student and name.startswith(_TRANSFORM):
        return "only --vocab_transform takes them from the teacher"
    return "a student does not take them from the teacher"


def _is_of_head(name: str, transform: bool) -> bool:
    return name == "cls/predictions/output_bias" or (transform and name.startswith(_TRANSFORM))
