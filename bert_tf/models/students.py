"""What a student takes from its teacher: the choice of the teacher's layers.

Source: extract_distilbert.py and extract.py of DistilBERT. No TensorFlow is imported here.
"""

import copy
import re
from collections.abc import Sequence

from bert_tf.models.configuration.config import BertConfig
from bert_tf.models.configuration.families import DistilBertConfig, is_encoder_variable
from bert_tf.weights.tensor_files import Weights, is_model_variable, renamed

_LAYER = re.compile(r"(\w+/encoder/layer_)(\d+)(/.+)")


def shallower(config: BertConfig, layers: Sequence[int]) -> BertConfig:
    """The teacher's configuration with as many layers as are chosen."""
    flag, order = f"--student_layers={','.join(map(str, layers))}", config.block_order
    if len(set(order)) != len(order):
        raise ValueError(f"{flag}: the layers of this {config.title} share their weights; there are none to choose.")
    if len(set(layers)) < len(layers) or not set(layers) <= set(range(len(order))):
        raise ValueError(f"{flag}: the teacher has the layers 0 to {len(order) - 1}; name each once at most.")
    config = copy.deepcopy(config)
    config.num_hidden_layers = len(layers)
    return config


def as_distilbert(config: BertConfig) -> DistilBertConfig:
    """A configuration of BERT as that of a DistilBERT: without segments and pooler."""
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
      weights: of a model for which `shallower` passes.
      student: of a model to pre-train, which may be a DistilBERT: it gets the masked-LM head, too, and only what its
        family has. None: heads are left out.
      transform: with the hidden layer of the masked-LM head (--vocab_transform).
    """
    numbers = {layer: number for number, layer in enumerate(layers)}
    names, head = {}, ("cls/predictions/output_bias", *["cls/predictions/transform/"] * transform)
    for name in filter(is_model_variable, weights):
        layer = _LAYER.fullmatch(name)
        if layer and int(layer[2]) in numbers:
            names[f"{layer[1]}{numbers[int(layer[2])]}{layer[3]}"] = name
        elif (not layer and is_encoder_variable(name)) or (student and name.startswith(head)):
            names[name] = name
    if student:
        names = {
            f"{student.model_type}/{new.partition('/')[2]}" if is_encoder_variable(new) else new: old
            for new, old in names.items()
            if student.type_vocab_size or not new.endswith("/token_type_embeddings")
            if student.has_pooler or "/pooler/" not in new
        }
    reasons = dict.fromkeys([name for name in weights if name not in names.values()], "not what a student takes over")
    return renamed(weights, names, reasons)
