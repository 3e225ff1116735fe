"""Checkpoints of the TensorFlow Model Garden (tf-models-official), read without importing it.

They are object-based (TF2) checkpoints of its BertEncoder, BertEncoderV2, AlbertEncoder, BertPretrainerV2,
BertPretrainer, ElectraPretrainer, BertClassifier, BertSpanLabeler and BertTokenClassifier, those of its trainer, and
the `variables/variables` files of the SavedModels that TensorFlow Hub and Kaggle offer. The keys of the tensors depend
on which object was saved and how. The full names that the layers gave the variables do not, so variables are found by
those. Where full names are ambiguous (an optimizer's copies, output layers of different heads, the two encoders of an
ElectraPretrainer), the object graph decides: each of its nodes is a saved Python object, and each edge an attribute by
which one object holds another.

Whether an encoder was pre-norm (`norm_first`) can't be seen in a checkpoint, but in a SavedModel.

Source: tf-models-official 2.20, nlp/modeling/models/electra_pretrainer.py and nlp/tasks/electra_task.py for ELECTRA,
whose encoders are BertEncoders with poolers that nothing trains; only the word table may be shared.
"""

import dataclasses
import posixpath
import re

import numpy as np
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from bert_tf.families import family_of_variables
from bert_tf.families.family import check_shapes, config_of_shapes, expected_shapes, pooler, word_table
from bert_tf.store import bundle
from bert_tf.store.tensor_files import Weights
from bert_tf.system.messages import abbreviated_list
from bert_tf.system.text_files import exists, read_bytes

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

_VALUE = "VARIABLE_VALUE"
# Only optimizers have an attribute of this name.
_OPTIMIZER_EDGES = {"learning_rate", "_learning_rate", "_current_learning_rate"}

_ATTENTION = re.compile(r"/attention/self/(query|key|value)/kernel$")
_TRANSPOSED = {"cls/seq_relationship/output_weights", "output_weights", "cls/squad/output_weights"}


def open_checkpoint(path: str) -> Weights:
    """Opens an object-based checkpoint, by its prefix; reads names, shapes and at most two poolers.

    A head of BertPretrainerV2 or BertClassifier may have a pooler of its own, and then the encoder's was not trained.
    Such a pooler is `bert/pooler/dense` here, and the encoder's own is listed as unused if it is another.

    Of an ElectraPretrainer it is the discriminator; `Weights.parts` has the generator, too. An encoder alone with a
    narrower word table is an ELECTRA's.
    """
    reader = bundle.CheckpointReader(path)
    variables = _read_variables(reader)
    # In a SavedModel this file holds, among other things, the layers' settings as JSON.
    settings = posixpath.join(posixpath.dirname(posixpath.dirname(path)), "keras_metadata.pb")
    if posixpath.basename(path) == "variables" and exists(settings) and b'"norm_first": true' in read_bytes(settings):
        raise ValueError(f"{path}: a pre-norm encoder (norm_first), which BERT can't express.")
    networks = {edges[0] for edges in _PARTS.values()}
    if not networks <= set().union(*(variable.edges for variable in variables)):
        return _open(reader, path, variables)
    parts = {
        part: _open(reader, path, [entry for entry in variables if entry.edges & {*edges}], True)
        for part, edges in _PARTS.items()
    }
    for part, other in zip(parts, reversed(parts), strict=True):
        others = parts[other].origins.values()
        parts[part].unused |= {key: f"of the {other}" for key in parts[part].unused if key in others}
    parts["generator"].hints["sizes_from_weights"] = True  # a configuration next to the file is the discriminator's
    return dataclasses.replace(parts["discriminator"], parts=parts)


@dataclasses.dataclass(frozen=True)
class _Variable:
    """A variable in the object graph: its full name, its key, and the names of all edges on all paths to it."""

    full_name: str
    key: str
    edges: set[str]


def _read_variables(reader) -> list[_Variable]:
    """The variables in the graph of an open checkpoint, without those of optimizers."""
    nodes = TrackableObjectGraph.FromString(reader.get_tensor(bundle.OBJECT_GRAPH)).nodes
    # Newer optimizers name their moments like the variables.
    optimizers = {
        number
        for number, node in enumerate(nodes)
        if node.slot_variables or any(child.local_name in _OPTIMIZER_EDGES for child in node.children)
    }
    edges: dict[int, set[str]] = {0: set()} if nodes else {}
    queue = list(edges)  # a node comes again when more edges lead to it
    for number in queue:
        for child in nodes[number].children:
            known, leading = edges.get(child.node_id, set()), edges[number] | {child.local_name}
            if child.node_id not in optimizers and not leading <= known:
                edges[child.node_id] = known | leading
                queue.append(child.node_id)
    return [
        _Variable(attribute.full_name, attribute.checkpoint_key, edges[number])
        for number in sorted(edges)
        for attribute in nodes[number].attributes
        if attribute.name == _VALUE
    ]


def _open(reader, path: str, variables: list[_Variable], is_part: bool = False) -> Weights:
    """`open_checkpoint` of one encoder and its heads. is_part: of an ElectraPretrainer."""
    names = [variable.full_name for variable in variables]
    scope = "electra" if is_part or any("embedding_projection/kernel" in name for name in names) else "bert"
    if any(match[1] in _LAYER_SCOPES for match in map(_SHARED_BLOCK.search, names) if match):
        scope = "albert"
    keys, reasons = _find_variables(variables, path, scope), {}
    if scope == "electra":
        reasons = {keys.pop(name): "no pooler in ELECTRA" for name in list(keys) if name.startswith(pooler(scope))}
    stored = {key: tuple(shape) for key, shape in reader.get_variable_to_shape_map().items()}
    shapes = {name: _original_shape(name, stored[key]) for name, key in keys.items()}
    heads = {stored[key][1] for name, key in keys.items() if _ATTENTION.search(name) and len(stored[key]) == 3}
    kind = family_of_variables(shapes).config_class
    config = config_of_shapes(kind, path, shapes, max(heads, default=1))
    reasons |= _drop_unfit_heads(keys, shapes, expected_shapes(config))

    def read(name: str) -> np.ndarray:
        value = reader.get_tensor(keys[name])
        value = value.astype(np.float32) if value.dtype == np.float16 else value
        return np.ascontiguousarray(value.T) if name in _TRANSPOSED else value.reshape(shapes[name])

    reasons |= _choose_pooler(keys, shapes, read, pooler(scope))
    # How many layers share an ALBERT's block can't be seen.
    hints: dict = {"num_attention_heads": heads.pop()} if heads and scope != "albert" else {}
    if scope == "electra":
        hints["hidden_act"] = "gelu"  # the original has the exact form, which Model Garden's encoders don't know
    for variable in variables:
        if "do_lower_case" in variable.edges:
            hints["do_lower_case"] = bool(reader.get_tensor(variable.key))
            reasons[variable.key] = "no weight: read as do_lower_case"
        elif variable.key not in keys.values():
            reasons.setdefault(variable.key, f"the original has no variable for {variable.full_name or 'it'}")
    reasons |= {f"{name}/.ATTRIBUTES/{_VALUE}": "a counter" for name in ("save_counter", "global_step")}
    # Variables that the graph reaches only through an optimizer belong to one.
    others = "optimizer state, in another form than the original's"
    unused = {key: reasons.get(key, others) for key in sorted({*stored} - {*keys.values()} - {bundle.OBJECT_GRAPH})}
    origins = dict(sorted(keys.items()))
    weights = Weights(path, "model_garden", {name: shapes[name] for name in origins}, origins, read, unused, hints)
    check_shapes(path, weights.shapes, config, "The configuration that some of the variables show")
    return weights


def _find_variables(variables: list[_Variable], path: str, scope: str) -> dict[str, str]:
    keys: dict[str, str] = {}
    strays = []
    for variable in variables:
        original = _original_name(variable.full_name, variable.edges, scope)
        if original is None:
            strays += [variable.full_name] if _IN_LAYER.search(variable.full_name) else []
        elif original in keys:
            raise ValueError(f"{path} has two candidates for {original}: {keys[original]} and {variable.key}.")
        else:
            keys[original] = variable.key
    heads = [name for name in keys if name.startswith(("cls/seq_relationship/", "output_"))]
    if scope == "electra" and heads and f"{scope}/embeddings_project/kernel" in keys:
        raise ValueError(f"{path}: an ELECTRA (embedding_projection) with a pooler for {keys[heads[0]]}.")
    if word_table(scope) not in keys:
        names = sorted(variable.full_name or variable.key for variable in variables)
        raise ValueError(f"{path} has no word_embeddings/embeddings, but {abbreviated_list(names) or 'no variables'}.")
    if strays:
        raise ValueError(f"{path}: encoder layers of another kind than BERT's, with {abbreviated_list(strays)}.")
    return keys


def _original_name(full_name: str, edges: set[str], scope: str) -> str | None:
    """The original's name of, say, bert_encoder_v2/transformer/layer_0/output/kernel. edges: those that lead to it."""
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


def _choose_pooler(keys: dict[str, str], shapes: dict, read, encoder_pooler: str) -> dict[str, str]:
    """Makes one of two poolers that of the encoder; returns why the other is not used, by key."""
    pairs = [(f"{encoder_pooler}/{leaf}", f"{_HEADS_POOLER}/{leaf}") for leaf in ("kernel", "bias")]
    if pairs[0][1] not in keys:
        return {}
    reasons = {}
    if pairs[0][0] in keys:
        if all(np.array_equal(read(name), read(other)) for name, other in pairs):
            return {keys.pop(other): "the same values as the encoder's pooler" for _, other in pairs}
        trained = f"the head has a pooler of its own, the trained one: {keys[pairs[0][1]]}"
        reasons = {keys[name]: trained for name, _ in pairs}
    for name, other in pairs:
        keys[name], shapes[name] = keys.pop(other), shapes[other]
    return reasons
