"""Writes weights, and the files that describe the model, in each format."""

import json
import posixpath

from bert_tf.models import huggingface
from bert_tf.models.config import BertConfig
from bert_tf.models.families import family_of
from bert_tf.models.formats import BERT_TF, HUGGINGFACE, HUGGINGFACE_CONFIG, Format, config_files
from bert_tf.models.head_config import HeadConfig
from bert_tf.models.huggingface_layouts import LAYOUTS
from bert_tf.system.atomic import write_text_file
from bert_tf.weights import bundle, safetensors_files
from bert_tf.weights.mapping import Weights, base_name, renamed


def write_weights(path: str, format: Format, weights: Weights, config: BertConfig, head: HeadConfig) -> dict[str, str]:
    """Writes weights to a file or prefix, and configuration and head beside it.

    Returns:
      {the original's name: name in the file} of everything written.

    Raises:
      ValueError: the format can't hold the model. OSError, tf.errors.OpError: it could not be written.
    """
    texts = config_files(config, head)
    if format is BERT_TF:
        names = {name: name for name in weights}
        safetensors_files.write_safetensors(path, weights, {"format": "bert_tf"})
    elif format is HUGGINGFACE:
        layout = LAYOUTS[config.model_type]
        names = huggingface.save(layout, path, weights, config, head)
        values = huggingface.config_values(layout, config, weights, head)
        texts = {HUGGINGFACE_CONFIG: json.dumps(values, indent=2, sort_keys=True) + "\n"}
    else:
        names = _names_of_tf1(weights, config)
        bundle.write_bundle(path, renamed(weights, {there: name for name, there in names.items()}, {}))
    for name, text in texts.items():
        write_text_file(posixpath.join(posixpath.dirname(path), name), text)
    return names


def _names_of_tf1(weights: Weights, config: BertConfig) -> dict[str, str]:
    """The names in the checkpoints of a family's original."""
    layout = family_of(config).tf1_layout
    if not layout:
        return {name: name for name in weights}
    there = layout.names_there({base_name(name) for name in weights}, config)
    return {name: there[base_name(name)] + name.removeprefix(base_name(name)) for name in weights}
