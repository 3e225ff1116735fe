"""What other libraries compute from files in their formats: the outputs that conversions are compared with.

The libraries are imported inside the functions: a conversion does not need those that are not installed.
"""

import posixpath
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from bert_tf.models.albert.config import AlbertConfig
from bert_tf.models.bert.model_garden import ENCODER_MODULES, HEADS_POOLER, NEXT_SENTENCE, TABLES, find_variables
from bert_tf.models.config import BertConfig
from bert_tf.models.electra import model_garden as electra
from bert_tf.models.families import family_of_variables
from bert_tf.models.formats import HUGGINGFACE_CONFIG
from bert_tf.models.variable_names import REPLACED_TOKEN_HEAD, pooler
from bert_tf.system.local_files import local_copies
from bert_tf.system.text_files import read_json
from bert_tf.text.casing import directory_of
from bert_tf.weights.bundle import readable_prefix
from bert_tf.weights.mapping import Weights
from bert_tf.weights.object_graph import ObjectGraph, open_object_checkpoint, read_graph
from bert_tf.weights.torch_files import SHARD_INDEX_SUFFIX

# --- transformers ----------------------------------------------------------------------------------------------------


# By a class's name, or its second half: the outputs here -> theirs.
_HEAD_OUTPUTS = {
    "ElectraForPreTraining": {"replaced_token_logits": "logits"},
    "AlbertForPreTraining": {"masked_lm_logits": "prediction_logits", "next_sentence_logits": "sop_logits"},
    "PreTraining": {"masked_lm_logits": "prediction_logits", "next_sentence_logits": "seq_relationship_logits"},
    "MaskedLM": {"masked_lm_logits": "logits"},
    "NextSentencePrediction": {"next_sentence_logits": "logits"},
}


def transformers_outputs(
    weights: Weights, config: BertConfig, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The outputs of transformers' own model.

    Args:
      weights: as opened from a directory of Hugging Face. config: says whether there are segments.
      inputs: input_ids, input_mask, segment_ids [B, S].

    Returns:
      sequence_output [B, S, H], and pooled_output [B, H] where the file has a pooler; masked_lm_logits [B, S, V],
      next_sentence_logits [B, 2] and replaced_token_logits [B, S] where it has those heads.

    Raises:
      ImportError: transformers or torch is not installed.
    """
    import torch
    import transformers

    file, directory = weights.path, directory_of(weights.path)
    values = read_json(posixpath.join(directory, HUGGINGFACE_CONFIG))
    architecture = (values.get("architectures") or [""])[0]
    heads = _HEAD_OUTPUTS.get(architecture) or _HEAD_OUTPUTS.get(architecture.partition("For")[2])
    model_class = getattr(transformers, architecture) if heads else transformers.AutoModel
    has_pooler = pooler(family_of_variables(weights.shapes).scope) + "/kernel" in weights
    # It is compared with outputs in float32, whatever the file holds.
    with local_copies([posixpath.join(directory, name) for name in _files_of(directory, file)]) as copies:
        local = posixpath.dirname(copies[0]) or "."
        model = model_class.from_pretrained(local, dtype=torch.float32).eval()
    names = {"input_ids": "input_ids", "attention_mask": "input_mask"}
    if config.type_vocab_size:
        names["token_type_ids"] = "segment_ids"
    with torch.no_grad():
        arguments = {theirs: torch.from_numpy(np.asarray(inputs[ours], np.int64)) for theirs, ours in names.items()}
        encoded = model.base_model(**arguments)
        outputs = {"sequence_output": encoded.last_hidden_state}
        if has_pooler:
            outputs["pooled_output"] = encoded.pooler_output
        if heads:
            result = model(**arguments)
            outputs |= {ours: getattr(result, theirs) for ours, theirs in heads.items()}
    return {name: value.numpy() for name, value in outputs.items() if value is not None}


def _files_of(directory: str, file: str) -> list[str]:
    """The names of the files that transformers reads: the configuration, the weights, and their shards if any."""
    names = [HUGGINGFACE_CONFIG, posixpath.relpath(file, directory)]
    if file.endswith(SHARD_INDEX_SUFFIX):
        names += sorted(set(read_json(file)["weight_map"].values()))
    return names


# --- tf-models-official ----------------------------------------------------------------------------------------------


def model_garden_outputs(
    weights: Weights, config: BertConfig, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The outputs of tf-models-official's own layers, which restore the checkpoint themselves.

    The encoder is a BertEncoderV2, or the functional BertEncoder for a file that only has that one's edges; the heads
    are its MaskedLM, its ClassificationHead and, of a discriminator, the dense layers of its ElectraPretrainer.

    Args:
      weights: from `model_garden.open_weights`; its path is the prefix.
      config: hidden_act "gelu" is the tanh form, "gelu_erf" the exact one; layer_norm_eps is set in their layers, which
        otherwise have 1e-12.
      inputs: `input_ids` [B, S], and optionally `input_mask`, `segment_ids` [B, S] and `masked_lm_positions` [B, P].

    Returns:
      float32 `sequence_output` [B, S, H]; `pooled_output` [B, H], of the head's own pooler if it has one; where there
      are such heads `masked_lm_logits` [B, P, V] (given positions), `next_sentence_logits` [B, 2] and
      `replaced_token_logits` [B, S].

    Raises:
      ImportError: tf-models-official is not installed.
      AssertionError: the library does not find all of its variables in the file.
    """
    from official.nlp.modeling import layers

    checkpoint = _OfficialCheckpoint(weights, config)
    encoder = checkpoint.encoder()
    ids = tf.constant(inputs["input_ids"], tf.int32)
    outputs = encoder(
        {
            "input_word_ids": ids,
            "input_mask": tf.constant(inputs.get("input_mask", tf.ones_like(ids)), tf.int32),
            "input_type_ids": tf.constant(inputs.get("segment_ids", tf.zeros_like(ids)), tf.int32),
        },
        training=False,
    )
    sequence_output, pooled_output = outputs["sequence_output"], outputs["pooled_output"]
    result = {"sequence_output": sequence_output}

    dense = checkpoint.edges_to(f"{HEADS_POOLER}/kernel", "kernel")
    head = layers.ClassificationHead(config.hidden_size if dense else 0, 2, name=NEXT_SENTENCE)
    head(sequence_output if dense else pooled_output, training=False)
    if dense:
        checkpoint.restore(head.dense, dense)
        pooled_output = head(sequence_output, only_project=True)
    result["pooled_output"] = pooled_output
    edges = checkpoint.edges_to("cls/seq_relationship/output_weights", "kernel")
    if edges is not None:
        checkpoint.restore(head.out_proj, edges)
        result["next_sentence_logits"] = head(sequence_output if dense else pooled_output, training=False)
    edges = checkpoint.edges_to("cls/predictions/output_bias", "bias")
    if edges is not None and "masked_lm_positions" in inputs:
        positions = tf.constant(inputs["masked_lm_positions"], tf.int32)
        masked_lm = layers.MaskedLM(
            encoder.get_embedding_table(), activation=checkpoint.activation, name="cls/predictions"
        )
        masked_lm(sequence_output, masked_positions=positions)
        checkpoint.restore(masked_lm, edges)
        result["masked_lm_logits"] = masked_lm(sequence_output, masked_positions=positions)
    if REPLACED_TOKEN_HEAD in weights:
        hidden = checkpoint.dense("discriminator_predictions/dense", checkpoint.activation)(sequence_output)
        result["replaced_token_logits"] = checkpoint.dense("discriminator_predictions/dense_1")(hidden)[..., 0]
    return {name: np.asarray(value, np.float32) for name, value in result.items()}


class _OfficialCheckpoint:
    """A checkpoint from which layers of tf-models-official restore themselves."""

    def __init__(self, weights: Weights, config: BertConfig):
        import tf_keras

        self.prefix, self.config, self.shapes = weights.path, config, weights.shapes
        graph = read_graph(open_object_checkpoint(self.prefix, self.prefix), self.prefix)
        used = set(weights.origins.values())
        graphs = list(electra.parts_of(graph).values()) or [graph]
        self.graph = next(part for part in graphs if used <= {key for *_, key in part.variables()})
        found = find_variables(self.graph, self.prefix)
        self.found = {name: place for name, place in found.items() if place[1] in used}
        activations = {
            "gelu": lambda x: tf_keras.activations.gelu(x, approximate=True),
            "gelu_erf": lambda x: tf_keras.activations.gelu(x, approximate=False),
        }
        self.activation = activations.get(config.activation, config.activation)

    def restore(self, layer, edges: tuple[str, ...]):
        """Makes a layer read its variables from the object that `edges` lead to; returns the layer."""
        import tf_keras

        for module in layer.submodules:
            if isinstance(module, tf_keras.layers.LayerNormalization):
                module.epsilon = self.config.layer_norm_eps
        root = layer
        for edge in reversed(edges):
            root = tf.train.Checkpoint(**{edge: root})
        root = root if isinstance(root, tf.train.Checkpoint) else tf.train.Checkpoint(root)
        prefix, links = readable_prefix(self.prefix)
        root.read(prefix).expect_partial().assert_existing_objects_matched()
        if links:
            links.cleanup()
        return layer

    def dense(self, scope: str, activation=None):
        """A dense layer, restored; `scope` is that of its variables here."""
        import tf_keras

        rows, columns = self.shapes[f"{scope}/kernel"]
        layer = tf_keras.layers.Dense(columns, activation)
        layer.build((None, None, rows))
        return self.restore(layer, self.edges_to(f"{scope}/kernel", "kernel"))

    def edges_to(self, name: str, attribute: str) -> tuple[str, ...] | None:
        """The edges that lead to the layer whose attribute a variable is; None if there is no such variable."""
        if name not in self.found:
            return None
        parents = self.graph.parents[self.found[name][0]]
        return next(self.graph.paths[parent] for parent, edge in parents if edge == attribute)

    def encoder(self):
        """The encoder, restored."""
        from official.nlp.modeling import networks

        config = self.config
        numbered, edges = _encoder_edges(self.graph, self.prefix)
        sizes = {**model_garden_sizes(config), **({"dict_outputs": True} if numbered else {})}
        if isinstance(config, AlbertConfig):
            own = {"intermediate_size": config.intermediate_size, "activation": self.activation}
            encoder = networks.AlbertEncoder(embedding_width=config.embedding_size, **own, **sizes)
        else:
            build = networks.BertEncoder if numbered else networks.BertEncoderV2
            own = {"inner_dim": config.intermediate_size, "inner_activation": self.activation}
            encoder = build(embedding_width=config.embedding_size, **own, **sizes)
        ids = tf.zeros([1, 1], tf.int32)
        encoder({"input_word_ids": ids, "input_mask": ids, "input_type_ids": ids}, training=False)
        return self.restore(encoder, edges)


def model_garden_sizes(config: BertConfig) -> dict[str, int]:
    """The arguments that all encoders of tf-models-official have in common."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "max_sequence_length": config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size,
    }


def _encoder_edges(graph: ObjectGraph, path: str) -> tuple[bool, tuple[str, ...]]:
    """Whether the encoder has numbered layers only, and the edges that lead to it."""
    named = {edge for *_, edge in (*TABLES, *ENCODER_MODULES)} | {"_transformer_layers"}
    for number in graph.paths:
        if named <= graph.children(number).keys():
            return False, graph.paths[number]
    for number in graph.paths:
        first = graph.children(number).get("layer_with_weights-0")
        if first is not None and "embeddings" in graph.children(first):
            return True, graph.paths[number]
    raise ValueError(f"{path}: its encoder is not structured like those of tf-models-official.")


# format -> (library, its outputs)
REFERENCES: dict[str, tuple[str, Callable]] = {
    "huggingface": ("transformers", transformers_outputs),
    "model_garden": ("tf-models-official", model_garden_outputs),
}
