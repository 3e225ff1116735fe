"""The file of what LoRA has trained: the adapters and the head, without the encoder that they belong to.

`lora.safetensors` has their variables by checkpoint name, a pooler that the head reads among them; its metadata, as
strings: `rank`, `alpha`, `base`, the checksum of the encoder's variables (`base_checksum`), and `labels`, in JSON.
"""

import dataclasses
import json
import posixpath

import keras
import numpy as np
import tensorflow as tf

from bert_tf.families import is_encoder_variable
from bert_tf.families.family import pooler
from bert_tf.models import initialize
from bert_tf.store import head_config
from bert_tf.store.description import read_head
from bert_tf.store.head_config import HeadConfig
from bert_tf.store.tensor_files import Weights, open_safetensors, with_tensors, write_safetensors
from bert_tf.store.variable_names import ADAPTER_ALPHA, adapted_kernels, is_adapter, merged
from bert_tf.system import hub
from bert_tf.system.messages import abbreviated_list
from bert_tf.system.text_files import parse_json

FILE = "lora.safetensors"


def base_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """The variables of a model's encoder that LoRA leaves as they are; the pooler is trained, or nothing reads it."""
    head = pooler(model.config.model_type) + "/"
    variables = initialize.model_variables(model).items()
    return {name: value for name, value in variables if is_encoder_variable(name) and not name.startswith(head)}


def base_checksum(model: keras.Model) -> str:
    return initialize.variables_as_weights(model.name, base_variables(model)).checksum


def write_lora(path: str, model: keras.Model) -> None:
    """Writes what a model that is trained with LoRA has learned: adapters and head."""
    variables = {name: value for name, value in initialize.all_variables(model).items() if value.trainable}
    settings = model.bert.lora
    metadata = {"rank": str(settings.rank), "alpha": str(settings.alpha), "base": base_checksum(model)}
    if labels := model.head_config.labels:
        metadata["labels"] = json.dumps(labels)
    write_safetensors(path, initialize.variables_as_weights(model.name, variables), metadata)


def load_lora(model: keras.Model, path: str) -> None:
    """Adds what LoRA has trained to a model with the weights that the training started from.

        model = BertForSequenceClassification.from_pretrained("uncased_L-12_H-768_A-12", labels=["no", "yes"])
        load_lora(model, "output/best_model")

    The kernels become W + alpha / rank A B, and the head gets the trained values, with its outputs in the order of the
    model's labels: the model is then that of the training, and can be used and saved like any other.

    model: of the class that was trained, built. path: a lora.safetensors, or its folder.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is damaged or of another kind; the model's encoder is not that from which the training
        started (or already has an adapter), or its head has other variables or labels. The model stays as it was.

    Source: Hu et al. 2021 (arXiv:2106.09685), section 4.1.
    """
    path = hub.local(path, with_weights=False)
    path = posixpath.join(path, FILE) if tf.io.gfile.isdir(path) else path
    shapes, metadata, read = open_safetensors(path)
    kernels, alpha = adapted_kernels(shapes), float(metadata["alpha"])
    variables = initialize.model_variables(model)
    heads = [{name for name in names if not is_encoder_variable(name)} for names in (shapes, variables)]
    changed = [*kernels, *(name for name in shapes if not is_adapter(name))]  # the last: the head, its pooler
    if different := sorted((heads[0] ^ heads[1]) | (set(changed) - set(variables))):
        raise ValueError(f"{path} is of another kind of model: only one of the two has {abbreviated_list(different)}.")
    if metadata["base"] != base_checksum(model):
        advice = "give the model the weights that the training started from, without another adapter."
        raise ValueError(f"{path} was trained on another encoder: {advice}")
    # The model's kernels and what the file adds, as a checkpoint of the training has them.
    tensors = {name: keras.ops.convert_to_numpy(variables[name].value) for name in kernels}
    tensors[f"{kernels[0].split('/')[0]}/{ADAPTER_ALPHA}"] = np.float32(alpha)
    file = Weights(path, "bert_tf", shapes, {name: name for name in shapes}, read)
    trained, wanted = merged(with_tensors(file, tensors)), model.head_config.labels
    # Earlier versions did not write labels into the file.
    labels = parse_json(metadata["labels"], path) if "labels" in metadata else None
    labels = HeadConfig(labels=labels).labels or read_head(path).labels
    outputs = trained.shapes.get(head_config.OUTPUT_LAYER, (None,))[0]
    if outputs and wanted and outputs == len(wanted):
        order = head_config.order_of(labels, wanted, path, "Load the encoder with these labels.")
        trained = head_config.reordered(trained, order) if order else trained
    for name in changed:  # all are found right before any is assigned
        trained.read_finite(name)
    initialize.initialize({name: variables[name] for name in changed}, trained, must_have_all=True)
    if labels and not wanted:
        model.head_config = dataclasses.replace(model.head_config, labels=labels)
        vars(model.config)["id2label"] = model.id2label
