"""Checkpoints of the TensorFlow Model Garden (tf-models-official), read without importing it.

They are object-based (TF2) checkpoints of its BertEncoder, BertEncoderV2, AlbertEncoder, BertPretrainerV2,
BertPretrainer, ElectraPretrainer, BertClassifier, BertSpanLabeler and BertTokenClassifier, those of its trainer, and
the `variables/variables` files of the SavedModels that TensorFlow Hub and Kaggle offer. The keys of the tensors depend
on which object was saved and how. The full names that the layers gave the variables do not, so variables are found by
those. Where full names are ambiguous (an optimizer's copies, output layers of different heads, the two encoders of an
ElectraPretrainer), edges of the object graph decide.

Whether an encoder was pre-norm (`norm_first`) can't be seen in a checkpoint, since it has the same variables; only a
SavedModel records it.

Source: tf-models-official 2.20, nlp/modeling/models/electra_pretrainer.py and nlp/tasks/electra_task.py for ELECTRA,
whose encoders are BertEncoders with poolers that nothing trains; only the word table may be shared.
"""

import dataclasses
import posixpath
import re

import numpy as np
import tensorflow as tf

from bert_tf.models.variable_names import check_shapes, config_of_shapes, expected_shapes, pooler, word_table
from bert_tf.system.messages import some
from bert_tf.weights import bundle
from bert_tf.weights.mapping import Weights
from bert_tf.weights.object_graph import KEY_SUFFIX, ObjectGraph, read_graph

# Scope in the full names here, below a layer -> scope in the original.
_LAYER_SCOPES = {
    "self_attention/query": "attention/self/query",
    "self_attention/key": "attention/self/key",
    "self_attention/value": "attention/self/value",
    "self_attention/attention_output": "attention/output/dense",
    "self_attention_layer_norm": "attention/output/LayerNorm",
    "intermediate": "intermediate/dense",
    "output": "output/dense",
    "output_layer_norm": "output/LayerNorm",
    "self_attention_output": "attention/output/dense",  # before 2021
}
# Ends of full names, or of their scopes, elsewhere -> names or scopes here; @ is the scope of the encoder's family.
_ENDS = {
    "word_embeddings/embeddings": "@/embeddings/word_embeddings",
    "position_embedding/embeddings": "@/embeddings/position_embeddings",
    "type_embeddings/embeddings": "@/embeddings/token_type_embeddings",
    "embeddings/layer_norm": "@/embeddings/LayerNorm",
    "embedding_projection": "@/embeddings_project",
    "pooler_transform": "@/pooler/dense",
    "cls/predictions/transform/dense": "cls/predictions/transform/dense",
    "cls/predictions/transform/LayerNorm": "cls/predictions/transform/LayerNorm",
    "cls/predictions/output_bias/bias": "cls/predictions/output_bias",
    "generator_masked_lm/transform/dense": "cls/predictions/transform/dense",
    "generator_masked_lm/transform/LayerNorm": "cls/predictions/transform/LayerNorm",
    "generator_masked_lm/output_bias/bias": "cls/predictions/output_bias",
    # Before 2021.
    "position_embeddings/embeddings": "@/embeddings/position_embeddings",
    "embedding_postprocessor/position_embeddings": "@/embeddings/position_embeddings",
    "embedding_postprocessor/type_embeddings": "@/embeddings/token_type_embeddings",
    "embedding_postprocessor/layer_norm": "@/embeddings/LayerNorm",
    "cls/predictions/output_bias": "cls/predictions/output_bias",
}
# Of an ElectraPretrainer: its edges to the objects of each part.
_PARTS = {
    "discriminator": ("discriminator_network", "discriminator_projection", "discriminator_head"),
    "generator": ("generator_network", "masked_lm"),
}
# Edges to a head's last dense layer -> its scope here; the layers have no names of their own, or one name for all.
_EDGES_TO_HEADS = {
    "discriminator_projection": "discriminator_predictions/dense/",
    "discriminator_head": "discriminator_predictions/dense_1/",
    "classification": "cls/seq_relationship/output_",
    "span_labeling": "cls/squad/output_",
    "classifier": "output_",
}

_IN_LAYER = re.compile(r"(?:^|/)(?:transformer|encoder)/layer_(\d+)/(.+)/([^/]+)$")
# The block that all layers of an AlbertEncoder share.
_SHARED_BLOCK = re.compile(r"(?:^|/)transformer/(?!layer_\d)(.+)/([^/]+)$")
# The output layer of a head, and the dense layer before it, the head's own pooler.
_HEAD = re.compile(r"(?:(?:^|/)([^/]+)/)?(?:predictions/transform/)?logits/(kernel|bias)$")
_HEAD_POOLER = re.compile(r"(?:^|/)([^/]+)/pooler_dense/(kernel|bias)$")
_NEXT_SENTENCE = "next_sentence"
# The scope of a head's own pooler until it is clear which pooler was trained.
_HEADS_POOLER = "(pooler of the head)"

_ATTENTION = re.compile(r"/attention/self/(query|key|value)/kernel$")
_TRANSPOSED = {"cls/seq_relationship/output_weights", "output_weights", "cls/squad/output_weights"}


def open_weights(path: str) -> Weights:
    """Opens an object-based checkpoint of tf-models-official; reads names, shapes and at most two poolers.

    A head of BertPretrainerV2 or BertClassifier may have a pooler of its own, and then the encoder's was not trained.
    Such a pooler is `bert/pooler/dense` here, and the encoder's own is listed as unused if it is another.

    Of an ElectraPretrainer it is the discriminator; `Weights.parts` has the generator, too. An encoder alone with a
    narrower word table is an ELECTRA's.

    Args:
      path: the checkpoint's files without .index and .data; of a SavedModel `<directory>/variables/variables`.

    Raises:
      ValueError: a file is missing or damaged, no BERT, or a kind of BERT that the original's variables can't express.
    """
    reader = bundle.open_bundle(path)
    graph = read_graph(reader, path)
    _check_not_pre_norm(path)
    networks = {edges[0] for edges in _PARTS.values()}
    pretrainer = next((node for node in sorted(graph.reached) if networks <= graph.children(node).keys()), None)
    if pretrainer is None:
        return _open(reader, path, graph)
    parts = {part: _open(reader, path, graph.below(pretrainer, edges), True) for part, edges in _PARTS.items()}
    for part, other in zip(parts, reversed(parts), strict=True):
        others = parts[other].origins.values()
        parts[part].unused |= {key: f"of the {other}" for key in parts[part].unused if key in others}
    parts["generator"].hints["sizes_from_weights"] = True  # a configuration beside the file is the discriminator's
    return dataclasses.replace(parts["discriminator"], parts=parts)


def _open(reader, path: str, graph: ObjectGraph, is_part: bool = False) -> Weights:
    """`open_weights` of one encoder and its heads; `graph` has no other. is_part: of an ElectraPretrainer."""
    scope = _scope(graph, is_part)
    keys, reasons = _find_variables(graph, path, scope), {}
    if scope == "electra":
        reasons = {keys.pop(name): "no pooler in ELECTRA" for name in list(keys) if name.startswith(pooler(scope))}
    stored = {key: tuple(shape) for key, shape in reader.get_variable_to_shape_map().items()}
    lost = [key for key in keys.values() if key not in stored]
    if lost:
        raise ValueError(f"{path}: the object graph names tensors that are missing: {some(lost)}.")
    shapes = {name: _original_shape(name, stored[key]) for name, key in keys.items()}
    heads = {stored[key][1] for name, key in keys.items() if _ATTENTION.search(name) and len(stored[key]) == 3}
    if len(heads) > 1:
        raise ValueError(f"{path}: the encoder layers have different numbers of attention heads: {sorted(heads)}.")
    config = config_of_shapes(path, shapes, max(heads, default=1))
    reasons |= _drop_unfit_heads(keys, shapes, expected_shapes(config))

    def read(name: str) -> np.ndarray:
        value = bundle.read_tensor(reader, path, keys[name])
        if value.dtype in (np.float16, tf.bfloat16.as_numpy_dtype):
            value = value.astype(np.float32)
        return np.ascontiguousarray(value.T) if name in _TRANSPOSED else value.reshape(shapes[name])

    reasons |= _choose_pooler(keys, shapes, read, pooler(scope))
    # How many layers share an ALBERT's block can't be seen.
    hints: dict = {"num_attention_heads": heads.pop()} if heads and scope != "albert" else {}
    if scope == "electra":
        hints["hidden_act"] = "gelu"  # the original has the exact form, which Model Garden's encoders don't know
    lower_case = graph.children(0).get("do_lower_case")
    for number, full_name, key in graph.variables():
        if number == lower_case:
            hints["do_lower_case"] = bool(bundle.read_tensor(reader, path, key))
            reasons[key] = "no weight: read as do_lower_case"
        elif key not in keys.values():
            reasons.setdefault(key, f"the original has no variable for {full_name or 'it'}")
    counters = [name + KEY_SUFFIX for name in ("save_counter", "global_step")]
    reasons |= dict.fromkeys(counters, "a counter")
    # Whatever the walk through the graph did not reach belongs to an optimizer.
    others = "optimizer state, in another form than the original's"
    unused = {key: reasons.get(key, others) for key in sorted({*stored} - {*keys.values()} - {bundle.OBJECT_GRAPH})}
    names = sorted(keys)
    weights = Weights(
        path, "model_garden", {name: shapes[name] for name in names}, {name: keys[name] for name in names}, read,
        unused, hints,
    )  # fmt: skip
    check_shapes(weights, config, "The configuration that some of the variables show")
    return weights


def _scope(graph: ObjectGraph, is_part: bool) -> str:
    """The scope of the family of an encoder."""
    names = [full_name for _, full_name, _ in graph.variables()]
    if any(match[1] in _LAYER_SCOPES for match in map(_SHARED_BLOCK.search, names) if match):
        return "albert"
    return "electra" if is_part or any("embedding_projection/kernel" in name for name in names) else "bert"


def _find_variables(graph: ObjectGraph, path: str, scope: str) -> dict[str, str]:
    """The key of each of the original's variables.

    Raises:
      ValueError: no BERT, or one that the original's variables can't express.
    """
    found: dict[str, str] = {}
    names, strays = [], []
    for number, full_name, key in graph.variables():
        names.append(full_name or key)
        original = _original_name(full_name, graph.edges_to(number), scope)
        if original is None:
            if _IN_LAYER.search(full_name):
                strays.append(full_name)
        elif original in found:
            raise ValueError(
                f"{path} has two candidates for {original}: {found[original]} and {key}. Are there two encoders in "
                "it? Save the one you want on its own."
            )
        else:
            found[original] = key
    heads = [name for name in found if name.startswith(("cls/seq_relationship/", "output_"))]
    if scope == "electra" and heads and f"{scope}/embeddings_project/kernel" in found:
        raise ValueError(
            f"{path}: the word embeddings are projected to another width (embedding_projection), as in small ELECTRA "
            f"models, which have no pooler for {found[heads[0]]}. BERT has no such matrix. Save the encoder alone."
        )
    if word_table(scope) not in found:
        raise ValueError(
            f"{path} is not a checkpoint of a BERT of tf-models-official: no word embeddings "
            f"(word_embeddings/embeddings) among its {len(names)} variables: {some(sorted(names)) or 'none'}."
        )
    if strays:
        raise ValueError(
            f"{path}: encoder layers of another kind than BERT's, with variables it doesn't have: {some(strays)}."
        )
    return found


def _original_name(full_name: str, edges: set[str], scope: str) -> str | None:
    """What the original calls a variable.

    Args:
      full_name: e.g. "bert_encoder_v2/transformer/layer_0/output/kernel".
      edges: names of the edges that lead to it. scope: the encoder's.
    """
    edge = next((edge for edge in _EDGES_TO_HEADS if edge in edges), None)
    above, _, leaf = full_name.rpartition("/")
    if edge and edge.startswith("discriminator_"):
        return _EDGES_TO_HEADS[edge] + leaf
    if match := _IN_LAYER.search(full_name):
        inner = _LAYER_SCOPES.get(match[2])
        return inner and f"{scope}/encoder/layer_{match[1]}/{inner}/{leaf}"
    if (match := _SHARED_BLOCK.search(full_name)) and match[1] in _LAYER_SCOPES:
        return f"{scope}/encoder/layer_0/{_LAYER_SCOPES[match[1]]}/{leaf}"
    for end, original in _ENDS.items():
        for whole, name in ((full_name, original), (above, f"{original}/{leaf}")):
            if f"/{whole}".endswith(f"/{end}"):
                return name.replace("@", scope)
    if match := _HEAD_POOLER.search(full_name):
        other = "classification_heads" in edges and match[1] != _NEXT_SENTENCE
        return None if other else f"{_HEADS_POOLER}/{leaf}"
    match = _HEAD.search(full_name)
    if match and match[1] == _NEXT_SENTENCE:
        edge = "classification"
    return _EDGES_TO_HEADS[edge] + {"kernel": "weights", "bias": "bias"}[leaf] if match and edge else None


def _original_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Heads merged into one axis; output layers transposed."""
    if "/attention/self/" in name:
        split = 1 if name.endswith("/kernel") else 0
        return (*shape[:split], int(np.prod(shape[split:])))
    if name.endswith("/attention/output/dense/kernel"):
        return (int(np.prod(shape[:-1])), shape[-1])
    return shape[::-1] if name in _TRANSPOSED else shape


def _drop_unfit_heads(keys: dict[str, str], shapes: dict, expected: dict) -> dict[str, str]:
    """Takes heads out that the original's variables can't express; returns why, by key."""
    scope = next(iter(expected)).split("/")[0]
    hidden = expected[f"{scope}/encoder/layer_0/output/dense/bias"][0]
    expected = expected | {f"{_HEADS_POOLER}/kernel": (hidden, hidden), f"{_HEADS_POOLER}/bias": (hidden,)}
    for head, classes in (("", shapes.get("output_bias", (0,))[0]), ("cls/squad/", 2)):
        expected |= {f"{head}output_weights": (classes, hidden), f"{head}output_bias": (classes,)}
    reasons = {}
    # Tensors that are useful only together.
    heads = ("cls/predictions/", "cls/seq_relationship/", "cls/squad/", "output_", "discriminator_predictions/")
    for group in (*heads, pooler(scope), _HEADS_POOLER):
        members = {name: shapes[name] for name in keys if name.startswith(group)}
        if members != {name: shape for name, shape in expected.items() if name.startswith(group)}:
            for name, shape in members.items():
                reasons[keys.pop(name)] = f"a head of another shape than the original's: {list(shape)}"
    return reasons


def _choose_pooler(keys: dict[str, str], shapes: dict, read, own: str) -> dict[str, str]:
    """Decides which pooler becomes that of the encoder, `own`; returns why the other is not used, by key."""
    pairs = [(f"{own}/{leaf}", f"{_HEADS_POOLER}/{leaf}") for leaf in ("kernel", "bias")]
    if pairs[0][1] not in keys:
        return {}
    reasons = {}
    if pairs[0][0] in keys:
        if all(np.array_equal(read(one), read(other)) for one, other in pairs):
            return {keys.pop(other): "the same values as the encoder's pooler" for _, other in pairs}
        trained = f"the head has a pooler of its own, the trained one: {keys[pairs[0][1]]}"
        reasons = {keys[one]: trained for one, _ in pairs}
    for one, other in pairs:
        keys[one], shapes[one] = keys.pop(other), shapes[other]
    return reasons


def _check_not_pre_norm(path: str) -> None:
    # In a SavedModel this file holds, among other things, the layers' settings as JSON.
    settings = posixpath.join(posixpath.dirname(posixpath.dirname(path)), "keras_metadata.pb")
    if posixpath.basename(path) == "variables" and tf.io.gfile.exists(settings):
        with tf.io.gfile.GFile(settings, "rb") as file:
            if b'"norm_first": true' in file.read():
                raise ValueError(f"{path}: a pre-norm encoder (norm_first), which BERT can't express.")
