"""Hugging Face directories: config.json and weights, in and out.

Their BERT is the same model with other names: linear layers hold [out, in] where the original's kernels are [in, out],
and the encoder's names carry the prefix `bert.` when a head is on top. Their "gelu" is the exact one, "gelu_new" the
original's tanh form.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping

import numpy as np

from bert_tf.models.config import BertConfig
from bert_tf.models.head_config import HeadConfig
from bert_tf.models.variable_names import HEAD_NAMES, expected_shapes
from bert_tf.system.messages import some
from bert_tf.weights import safetensors_files
from bert_tf.weights.mapping import Weights, is_model_variable
from bert_tf.weights.torch_files import SHARD_INDEX_SUFFIX, open_file, open_shards

_ACTIVATIONS_IN = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}
_ACTIVATIONS_OUT = {"gelu": "gelu_new", "gelu_erf": "gelu", "relu": "relu", "tanh": "tanh", "linear": "linear"}

# The defaults of their BertConfig, for keys that a config.json leaves out.
_CONFIG_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}
CLASSIFIERS = ("BertForSequenceClassification", "BertForTokenClassification", "BertForMultipleChoice")

_FIXED_NAMES = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
_LAST_PARTS = {"kernel": "weight", "gamma": "weight", "beta": "bias"}


def huggingface_name(name: str) -> str:
    """Their name, with the prefix `bert.` for the encoder, of a variable of the original."""
    if name in _FIXED_NAMES:
        return _FIXED_NAMES[name]
    scope, last = name.rsplit("/", 1)
    last = last + ".weight" if last.endswith("_embeddings") else _LAST_PARTS.get(last, last)
    return re.sub(r"layer_(\d+)", r"layer.\1", scope).replace("/", ".") + "." + last


def _is_transposed(name: str) -> bool:
    return name.endswith("/kernel")


# --- config.json -----------------------------------------------------------------------------------------------------


def config_from_huggingface(values: Mapping, source: str) -> BertConfig:
    """A BertConfig from the keys of a config.json.

    Raises:
      ValueError: another kind of model, or a variant of BERT that isn't the original's architecture; names `source`.
    """
    kind = values.get("model_type", "bert")
    if kind != "bert":
        raise ValueError(f"{source}: model_type is {kind!r}; only 'bert' has the architecture of this project.")
    refused = {
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False, None),
        "add_cross_attention": (False, None),
        "embedding_size": (values.get("hidden_size"), None),
        "is_encoder_decoder": (False, None),
    }
    for key, allowed in refused.items():
        if values.get(key) not in allowed:
            raise ValueError(f"{source}: {key}={values[key]!r} is a variant of BERT that this project doesn't have.")
    sizes = {key: values.get(key, default) for key, default in _CONFIG_DEFAULTS.items()}
    activation = sizes["hidden_act"]
    if activation not in _ACTIVATIONS_IN:
        raise ValueError(f"{source}: hidden_act={activation!r} is not one of {', '.join(_ACTIVATIONS_IN)}.")
    sizes["hidden_act"] = _ACTIVATIONS_IN[activation]
    if values.get("pad_token_id"):
        sizes["pad_token_id"] = values["pad_token_id"]
    return BertConfig.from_dict(sizes, source=source)


def head_from_huggingface(values: Mapping, source: str) -> HeadConfig:
    """What the keys of a config.json say of the head; LABEL_0, LABEL_1 and so on are not names of labels.

    Raises:
      ValueError: see `HeadConfig.from_config`.
    """
    values, names = dict(values), values.get("architectures")
    if isinstance(names, list):
        values["architectures"] = [name for name in names if name in CLASSIFIERS]
    head = HeadConfig.from_config(values, source)
    named = any(label != f"LABEL_{number}" for number, label in enumerate(head.labels or ()))
    return head if named else dataclasses.replace(head, labels=None)


def architecture_of(names, head: HeadConfig) -> str:
    """Their class for a model with these variables, e.g. BertForPreTraining.

    The classifiers of sequences, tokens and choices have the same variables; the head says which it is.
    """
    names = set(names)
    if "output_weights" in names:
        return head.architecture if head.architecture in CLASSIFIERS else CLASSIFIERS[0]
    if "cls/squad/output_weights" in names:
        return "BertForQuestionAnswering"
    masked = "cls/predictions/output_bias" in names
    following = "cls/seq_relationship/output_weights" in names
    if masked:
        return "BertForPreTraining" if following else "BertForMaskedLM"
    return "BertForNextSentencePrediction" if following else "BertModel"


def config_to_huggingface(config: BertConfig, weights: Weights, head: HeadConfig) -> dict:
    """The keys and values of a config.json for a model with these weights."""
    values = {key: getattr(config, key) for key in _CONFIG_DEFAULTS}
    values["hidden_act"] = _ACTIVATIONS_OUT[config.activation]
    values |= {"model_type": "bert", "architectures": [architecture_of(weights.shapes, head)]}
    values |= {"pad_token_id": getattr(config, "pad_token_id", 0), "position_embedding_type": "absolute"}
    if head.problem_type:
        values["problem_type"] = head.problem_type
    labels = head.labels
    # Their classes take the number of labels from id2label. A multiple-choice head has one output whatever it says.
    if not labels and values["architectures"] != ["BertForMultipleChoice"]:
        labels = [f"LABEL_{number}" for number in range(weights.shapes.get("output_weights", (0,))[0])]
    if labels:
        values["id2label"] = {str(number): label for number, label in enumerate(labels)}
        values["label2id"] = {label: number for number, label in enumerate(labels)}
    return values


# --- weights ---------------------------------------------------------------------------------------------------------


def open_weights(file: str) -> Weights:
    """Opens a weight file (safetensors or a pickle of PyTorch, in one piece or in shards).

    Encoder names may carry `bert.` or not; the pooler and any head may be missing.

    Raises:
      FileNotFoundError: no such file, or a shard is missing. ValueError: damaged, no BERT, or a pickle without PyTorch.
    """
    shapes, read, half = open_shards(file) if file.endswith(SHARD_INDEX_SUFFIX) else open_file(file)
    weights = _translate(file, shapes, read)
    weights.hints["half_precision"] = half
    return weights


def _translate(file: str, shapes: dict[str, tuple], read: Callable[[str], np.ndarray]) -> Weights:
    """The file's entries under the original's names."""
    plain = {_plain_name(name): name for name in shapes}
    table = "embeddings.word_embeddings.weight"
    tables = [name for name in plain if name == table or name.endswith("." + table)]
    # The prefix before the encoder: "bert." under a head, none for a bare encoder; "module.bert." by DataParallel.
    prefixes = [name.removesuffix(table) for name in tables]
    prefixes = [prefix for prefix in prefixes if prefix == "" or prefix.split(".")[-2] in ("bert", "module", "model")]
    if len(prefixes) != 1:
        raise ValueError(f"{file}: no BERT; it holds {some(sorted(shapes))}.")
    encoder_prefix = prefixes[0]
    head_prefix = encoder_prefix.removesuffix("bert.")
    numbers = [int(match[1]) for match in (re.search(r"encoder\.layer\.(\d+)\.", name) for name in plain) if match]
    layout = BertConfig(1, 1, max(numbers, default=0) + 1, 1, 1)

    def their_name(name: str) -> str:
        theirs = huggingface_name(name)
        return encoder_prefix + theirs[5:] if theirs.startswith("bert.") else head_prefix + theirs

    origins = {name: their_name(name) for name in (*expected_shapes(layout), *HEAD_NAMES)}
    decoder_bias = head_prefix + "cls.predictions.decoder.bias"
    if origins["cls/predictions/output_bias"] not in plain and decoder_bias in plain:
        origins["cls/predictions/output_bias"] = decoder_bias
    origins = {name: plain[theirs] for name, theirs in origins.items() if theirs in plain}

    def shape_of(name):
        shape = shapes[origins[name]]
        return shape[::-1] if _is_transposed(name) else shape

    def original(name: str) -> np.ndarray:
        value = read(origins[name])
        return np.ascontiguousarray(value.T) if _is_transposed(name) else value

    unused = {}
    for name in sorted(set(shapes) - set(origins.values())):
        unused[name] = _reason(name, head_prefix, plain, read, origins, file)
    return Weights(file, "huggingface", {name: shape_of(name) for name in origins}, origins, original, unused)


def _plain_name(name: str) -> str:
    """Without the spelling of the oldest files, which call a layer norm's variables gamma and beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _reason(name, head_prefix, plain, read, origins, file) -> str:
    """Why an entry is not used; an output matrix that is not tied to the word table is an error."""
    if name.endswith("position_ids"):
        return "a constant, 0 to max_position_embeddings"
    copies = {
        "cls.predictions.decoder.weight": "bert/embeddings/word_embeddings",
        "cls.predictions.decoder.bias": "cls/predictions/output_bias",
    }
    original = copies.get(name.removeprefix(head_prefix))
    if original in origins:
        if not np.array_equal(read(name), read(origins[original])):
            raise ValueError(
                f"{file}: {name} differs from {origins[original]}. In BERT they are one variable; the original's "
                "format can't hold a model that was trained with two."
            )
        return f"the same as {origins[original]}"
    return "not in BERT as the original has it"


def save(path: str, weights: Weights) -> dict[str, str]:
    """Writes a model.safetensors.

    Args:
      path: the file. weights: Adam moments and the step are left out, since the format has no entries for them.

    Returns:
      the original's name -> theirs, of all that was written.
    """
    names = [name for name in weights.shapes if is_model_variable(name) and _has_place(name)]
    bare = all(name.startswith("bert/") for name in names)
    written, tensors = {}, {}
    for name in names:
        theirs = huggingface_name(name)
        written[name] = theirs.removeprefix("bert.") if bare else theirs
        value = weights.read(name)
        tensors[written[name]] = np.ascontiguousarray(value.T) if _is_transposed(name) else value
    safetensors_files.write_safetensors(path, tensors, {"format": "pt"})
    return written


def _has_place(name: str) -> bool:
    return name.startswith("bert/") or name in _FIXED_NAMES or name.startswith("cls/predictions/transform/")
