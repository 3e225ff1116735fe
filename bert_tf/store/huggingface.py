"""Hugging Face directories: config.json and weights, in and out.

What differs between families is in each `Family`. Their "gelu" is the exact one, "gelu_new" that of the original.
"""

import dataclasses
import posixpath
import re
from collections.abc import Callable, Mapping

import numpy as np
from absl import logging

from bert_tf.families import FAMILIES, family_named, family_of
from bert_tf.families.config import BertConfig
from bert_tf.families.family import (
    FIXED_NAMES,
    HEAD_NAMES,
    HIDDEN_LAYER,
    REPLACED_TOKEN_HEAD,
    Family,
    all_names,
    is_model_variable,
    pooler,
    word_table,
)
from bert_tf.store.head_config import CLASSIFIERS, HUGGINGFACE_CONFIG, HeadConfig, named_labels, placeholders
from bert_tf.store.tensor_files import Weights, open_tensors, renamed, with_tensors, write_safetensors
from bert_tf.system.messages import abbreviated_list
from bert_tf.system.text_files import read_json_if_there

_ACTIVATIONS_IN = dict.fromkeys(("gelu", "gelu_python"), "gelu_erf")
_ACTIVATIONS_IN |= dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu")
_ACTIVATIONS_IN |= {name: name for name in ("relu", "tanh", "linear")}
_ACTIVATIONS_OUT = {"gelu": "gelu_new", "gelu_erf": "gelu", "relu": "relu", "tanh": "tanh", "linear": "linear"}

# Their keys for dropout before a classifier's output layer in training, which no configuration here has.
_CLASSIFIER_DROPOUT = ("classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout", "summary_last_dropout")

# Beginnings of names of their classes are the families'; here they are those of BERT.
_CLASSES = "Bert"
# Of these, those whose encoders have no pooler.
_WITHOUT_POOLER = ("BertForMaskedLM", "BertForQuestionAnswering", "BertForTokenClassification")

# --- config.json -----------------------------------------------------------------------------------------------------


def read_config(values: Mapping, source: str) -> BertConfig:
    """A configuration from the keys of a config.json."""
    family = family_named(values.get("model_type", BertConfig.model_type), source)
    refused = dict(family.refused)
    if "embedding_size" not in family.defaults:
        refused["embedding_size"] = (None, values.get("hidden_size"))
    for key, allowed in refused.items():
        if values.get(key) not in allowed:
            raise ValueError(f"{source}: {key}={values[key]!r} is a variant of {family.title} that is not known here.")
    keys = {key: values.get(family.keys.get(key, key), default) for key, default in family.defaults.items()}
    if (activation := keys["hidden_act"]) not in [*_ACTIVATIONS_IN]:
        key = family.keys.get("hidden_act", "hidden_act")
        raise ValueError(f"{source}: {key}={activation!r} is not one of {', '.join(_ACTIVATIONS_IN)}.")
    keys["hidden_act"] = _ACTIVATIONS_IN[activation]
    if family.masked_lm_act not in (None, keys["hidden_act"]):
        keys["masked_lm_act"] = family.masked_lm_act
    if values.get("pad_token_id"):
        keys["pad_token_id"] = values["pad_token_id"]
    keys |= {key: values[key] for key in family.carried if values.get(key) is not None}
    for key in _CLASSIFIER_DROPOUT:
        if values.get(key) not in (None, family.config_class.classifier_dropout):
            message = "%s: %s=%s is not taken over; --classifier_dropout=%s has it."
            logging.warning(message, source, key, values[key], values[key])
    return family.config_class.from_dict(keys, source=source)


def read_head(values: Mapping, source: str, family: Family | None = None) -> HeadConfig:
    """What the keys of a family's config.json say of the head; LABEL_0 and so on are no names."""
    family = family or family_named(values.get("model_type", BertConfig.model_type), source)
    values, names = dict(values), values.get("architectures")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        names = [re.sub(f"^{family.class_prefix}(?=For)", _CLASSES, name) for name in names]
        values["architectures"] = [name for name in names if name in CLASSIFIERS]
    head = HeadConfig.from_config(values, source)
    act = family.classifier_act if head.architecture == CLASSIFIERS[0] else None
    return dataclasses.replace(head, labels=named_labels(head.labels), hidden_act=act)


def architecture_of(names, head: HeadConfig) -> str:
    """Hugging Face's class for a BERT with these variables, e.g. BertForPreTraining.

    The classifiers of sequences, tokens and choices have the same variables; the head says which it is.
    """
    names = set(names)
    if "output_weights" in names:
        return head.architecture if head.architecture in CLASSIFIERS else CLASSIFIERS[0]
    if "cls/squad/output_weights" in names:
        return "BertForQuestionAnswering"
    if REPLACED_TOKEN_HEAD in names:
        return "BertForPreTraining"
    following = "cls/seq_relationship/output_weights" in names
    if "cls/predictions/output_bias" in names:
        return "BertForPreTraining" if following else "BertForMaskedLM"
    return "BertForNextSentencePrediction" if following else "BertModel"


_ACTIVATIONS_OF_PAIRS = {
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "identity": "torch.nn.modules.linear.Identity",
}


def config_values(config: BertConfig, weights: Weights, head: HeadConfig) -> dict:
    """The keys and values of a config.json for a model with these weights."""
    family, architecture = family_of(config), architecture_of(weights.shapes, head)
    values = {family.keys.get(key, key): getattr(config, key) for key in family.defaults}
    values[family.keys.get("hidden_act", "hidden_act")] = _ACTIVATIONS_OUT[config.activation]
    values |= {key: getattr(config, key) for key in family.carried if hasattr(config, key)}
    values |= {"model_type": config.model_type, "pad_token_id": getattr(config, "pad_token_id", 0), **family.written}
    values["architectures"] = [family.class_prefix + architecture.removeprefix(_CLASSES)]
    kept = {"problem_type": head.problem_type, "untrained": list(head.untrained) or None, "pairs": head.pairs}
    values |= {key: value for key, value in kept.items() if value is not None}
    if activation := _ACTIVATIONS_OF_PAIRS.get(head.activation or "", head.activation):
        values["sentence_transformers"] = {"activation_fn": activation}
    labels = head.labels
    # Their classes take the number of labels from id2label. A multiple-choice head has one output whatever it says.
    if not labels and architecture != "BertForMultipleChoice":
        labels = placeholders(weights.shapes.get("output_weights", (0,))[0])
    if labels:
        values["id2label"] = {str(number): label for number, label in enumerate(labels)}
        values["label2id"] = {label: number for number, label in enumerate(labels)}
    return values


# --- weights ---------------------------------------------------------------------------------------------------------

# What TensorFlow, Flax and the oldest files of PyTorch call `weight` and `bias`.
_LAST_PARTS = {**dict.fromkeys(("kernel", "gamma", "scale", "embedding", "embeddings"), "weight"), "beta": "bias"}


def _name_in_pytorch(name: str) -> str:
    """The name in today's files of PyTorch; TensorFlow's are like mlm___cls/predictions/bias:0, encoder/layer_._0."""
    name = re.sub(r"^\w+___", "", name.removesuffix(":0")).replace("/", ".").replace("_._", ".")
    scope, dot, last = name.rpartition(".")
    return scope + dot + _LAST_PARTS.get(last, last)


def open_file(file: str) -> Weights:
    """Opens a weight file of PyTorch, TensorFlow or Flax (safetensors, .bin or .h5, in one piece or in shards).

    The family is that of the config.json next to it or else of the encoder's names, which may carry its
    prefix or not; the pooler and any head may be missing.
    """
    stored_shapes, stored, half = open_tensors(file)
    kernels = {name for name in stored_shapes if re.search(r"[./]kernel(:0)?$", name)}
    shapes = {name: shape[::-1] if name in kernels else shape for name, shape in stored_shapes.items()}
    plain = {_name_in_pytorch(name): name for name in shapes}

    def read(name: str) -> np.ndarray:
        return stored(name).T if name in kernels else stored(name)

    config_file = posixpath.join(posixpath.dirname(file), HUGGINGFACE_CONFIG)
    config = read_json_if_there(config_file) or {}
    stated = config.get("model_type")
    family = None if stated is None else family_named(stated, config_file)
    # The encoder's names begin with "bert." under a head, with nothing otherwise, with "module.bert." by DataParallel.
    table = "embeddings.position_embeddings.weight"
    prefixes = [name.removesuffix(table) for name in plain if f".{name}".endswith(f".{table}")]
    scopes = {prefix: prefix.rstrip(".").rpartition(".")[2] for prefix in prefixes}
    families = {known.prefix: known for known in reversed(FAMILIES)}  # the first of those with one prefix
    fitting = [prefix for prefix in prefixes if scopes[prefix] in ("", "module", "model", *families)]
    if len(fitting) != 1:
        names = ", ".join(known.model_type for known in FAMILIES)
        raise ValueError(f"{file}: none of {names}; it holds {abbreviated_list(sorted(plain.values()))}.")
    scope = scopes[fitting[0]] if scopes[fitting[0]] in families else None
    if scope and family and scope != family.prefix:
        raise ValueError(f"{file} is of a {scope!r}, but its config.json says model_type {stated!r}.")
    family = (family or families[scope or BertConfig.model_type]).with_blocks_of(plain)
    weights = _translate(file, family, read_head(config, file, family).architecture, fitting[0], shapes, plain, read)
    weights.hints["half_precision"] = half
    return weights


def _translate(file: str, family: Family, stated_head, encoder_prefix: str, shapes, plain, read: Callable) -> Weights:
    """The file's entries under the original's names."""
    scope = family.prefix + "."
    head_prefix = encoder_prefix.removesuffix(scope)

    def name_in_file(theirs: str) -> str:
        return encoder_prefix + theirs.removeprefix(scope) if theirs.startswith(scope) else head_prefix + theirs

    # A file without a config.json has the head of which all names are there.
    heads = [head for head in family.heads if stated_head in (None, head)]
    complete = [head for head in heads if all(name_in_file(name) in plain for name in family.heads[head].values())]
    architecture = complete[0] if complete else None
    names = all_names(family.config_class, lambda name: name_in_file(family.name_of(name, architecture)) in plain)
    origins = {name: name_in_file(family.name_of(name, architecture)) for name in (*names, *HEAD_NAMES)}
    # Of two names of one tensor a file may have either. TensorFlow's ALBERT never trains the first of its two biases.
    copies = {
        head_prefix + family.name_in_family("cls.predictions.decoder.weight"): word_table(family.model_type),
        head_prefix + family.name_in_family("cls.predictions.decoder.bias"): "cls/predictions/output_bias",
    }
    for copy, name in copies.items():
        if copy in plain and (origins[name] not in plain or "/" in plain[copy]):
            origins[name] = copy
    if origins[word_table(family.model_type)] not in plain:
        raise ValueError(f"{file} has no table of words; it holds {abbreviated_list(sorted(plain))}.")
    origins = {name: plain[theirs] for name, theirs in origins.items() if theirs in plain}

    unused, second = {}, None
    project = f"{family.model_type}/embeddings_project"
    kernel_name = origins.get(f"{project}/kernel")
    if kernel_name and shapes[kernel_name][0] == shapes[kernel_name][1]:  # the original has none there
        layer = [origins.pop(f"{project}/{last}") for last in ("kernel", "bias")]
        kernel, bias = map(read, layer)
        if bias.any() or not np.array_equal(kernel, np.eye(len(kernel), dtype=kernel.dtype)):
            raise ValueError(f"{file}: {kernel_name} is a layer between embeddings and encoder of one width.")
        unused |= dict.fromkeys(layer, "the identity: embeddings and encoder have one width")
    for name in sorted(set(shapes) - set(origins.values()) - set(unused)):
        unused[name], differs = _reason(name, family, copies, read, origins)
        second = second or (name if differs else None)

    def read_tied(name: str) -> np.ndarray:
        """Raises for the bias of an output matrix of its own; models that don't read it never need to know."""
        if second and name == origins.get("cls/predictions/output_bias"):
            raise ValueError(f"{file}: {second} is trained apart from the word table, which is one with it here.")
        return read(name)

    entries = Weights(file, "huggingface", dict(shapes), {name: name for name in shapes}, read_tied)
    return renamed(entries, origins, unused, [name for name in origins if name.endswith("/kernel")])


def _reason(name: str, family: Family, copies: Mapping, read: Callable, origins: Mapping) -> tuple[str, bool]:
    """Why an entry is not used; and whether it is an output matrix, or its bias, that differs from what it copies."""
    if name.endswith("position_ids"):
        return "a constant, 0 to max_position_embeddings", False
    original = copies.get(name)
    if original in origins:
        differs = not np.array_equal(read(name), read(origins[original]))
        return f"{'trained apart from' if differs else 'the same as'} {origins[original]}", differs
    return f"not in {family.title} as the original has it", False


def with_class_variables(weights: Weights, config: BertConfig, head: HeadConfig) -> tuple[Weights, list[str]]:
    """The same model with the variables of its class, and what was changed, as sentences.

    A pooler that the class doesn't have is left out. A classifier of one layer becomes two where it has two: since
    gelu(x) - gelu(-x) = x, the hidden layer has its scores and their negatives, the output layer takes the difference.

    weights: of the model, which `names_there` accepts.
    """
    family, architecture, lines = family_of(config), architecture_of(weights.shapes, head), []
    class_name = family.class_prefix + architecture.removeprefix(_CLASSES)
    unread = [name for name in weights if name.startswith(pooler(family.model_type))]
    if architecture in _WITHOUT_POOLER and unread:
        weights = renamed(weights, {name: name for name in weights if name not in unread}, {})
        lines.append(f"The pooler is left out: {class_name} has none.")
    if "output_weights" in weights and architecture in family.heads and HIDDEN_LAYER[0] not in weights:
        kernel, bias = weights["output_weights"].T, weights["output_bias"]
        free, signs = config.hidden_size - 2 * len(bias), np.eye(len(bias), dtype=np.float32)
        layers = {
            HIDDEN_LAYER[0]: np.pad(np.hstack([kernel, -kernel]), ((0, 0), (0, free))),
            HIDDEN_LAYER[1]: np.pad(np.hstack([bias, -bias]), (0, free)),
            "output_weights": np.pad(np.hstack([signs, -signs]), ((0, 0), (0, free))),
            "output_bias": np.zeros_like(bias),
        }
        weights = with_tensors(weights, layers)
        lines.append(f"The classifier is written as the two layers that {class_name} has, with the same outputs.")
    return weights, lines


def save(path: str, weights: Weights, config: BertConfig, head: HeadConfig) -> dict[str, str]:
    """Writes a model.safetensors, which has no entries for Adam moments and the step.

    Returns the original's name -> theirs, of all that was written.
    """
    family = dataclasses.replace(family_of(config), inner_group_num=config.inner_group_num)
    scope, written = family.prefix + ".", names_there(weights, config, head)
    bare = all(name.startswith(f"{family.model_type}/") for name in written)
    transposed = [theirs for name, theirs in written.items() if name.endswith("/kernel")]
    tensors = renamed(weights, {theirs: name for name, theirs in written.items()}, {}, transposed)
    size, added = config.hidden_size, ["pooler.dense."] * (family.adds_pooler and bare)  # without one they warn
    if family.always_projects and config.embedding_size == size:
        added.append(family.name_in_family(f"{scope}embeddings_project.").removeprefix(scope * bare))
    for layer in added:
        identity = {layer + "weight": np.eye(size, dtype=np.float32), layer + "bias": np.zeros(size, np.float32)}
        tensors = with_tensors(tensors, identity)
    write_safetensors(path, tensors, {"format": "pt"})
    return written


def names_there(weights: Weights, config: BertConfig, head: HeadConfig) -> dict[str, str]:
    """The original's name -> Hugging Face's, of all that `save` writes."""
    family = dataclasses.replace(family_of(config), inner_group_num=config.inner_group_num)
    scope = family.prefix + "."
    regular = (f"{family.model_type}/", "cls/predictions/transform/", "discriminator_predictions/")
    names = [name for name in weights.shapes if is_model_variable(name)]
    names = [name for name in names if name.startswith(regular) or name in FIXED_NAMES or name in HIDDEN_LAYER]
    architecture = architecture_of(names, head) if "output_weights" in names else None
    outputs = weights.shapes.get("output_weights", (0,))[0]
    is_split = family.classifier_act == "gelu_erf" and 2 * outputs <= config.hidden_size
    if architecture in family.heads and HIDDEN_LAYER[0] not in names and not is_split:
        has = f"{weights.path} has a classifier of one layer"
        raise ValueError(f"format=huggingface: {has}, transformers' {family.title} of two.")
    following, masked = "cls/seq_relationship/output_weights" in names, "cls/predictions/output_bias" in names
    if following and not (config.has_pooler if masked else family.class_prefix == _CLASSES):
        lacks = f"transformers has no {family.title} with the heads of {weights.path}"
        raise ValueError(f"format=huggingface: {lacks}: use bert_tf.")
    act = family.masked_lm_act
    if masked and act not in (None, config.masked_lm_act or config.activation):
        differs = f'the masked-LM head of a {family.title} has hidden_act "{act}" there'
        advice = f"use bert_tf, or give hidden_act={act}, which changes outputs."
        raise ValueError(f"format=huggingface: {differs}: {advice}")
    bare = all(name.startswith(f"{family.model_type}/") for name in names)
    return {name: family.name_of(name, architecture).removeprefix(scope * bare) for name in names}
