"""Checkpoints of the TensorFlow Model Garden (tf-models-official), read without importing it.

They are object-based (TF2) checkpoints of its BertEncoder, BertEncoderV2, AlbertEncoder, BertPretrainerV2,
BertPretrainer, ElectraPretrainer, BertClassifier, BertSpanLabeler and BertTokenClassifier, those of its trainer, and
the `variables/variables` files of the SavedModels that TensorFlow Hub and Kaggle offer. The keys of the tensors depend
on which object was saved and how. The full names that the layers gave the variables do not, so variables are found by
those. Where full names are ambiguous (an optimizer's copies, output layers of different heads, the two encoders of an
ElectraPretrainer), edges of the object graph decide.

Whether an encoder was pre-norm (`norm_first`) can't be seen in a checkpoint, since it has the same variables; only a
SavedModel records it.
"""

import dataclasses
import posixpath
import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_tf.models.electra import model_garden as electra
from bert_tf.models.variable_names import config_of_shapes, expected_shapes
from bert_tf.system.messages import some
from bert_tf.weights import bundle
from bert_tf.weights.mapping import Weights, is_model_variable, renamed
from bert_tf.weights.object_graph import KEY_SUFFIX, ObjectGraph, open_object_checkpoint, read_graph

# --- names -----------------------------------------------------------------------------------------------------------

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
# Elsewhere in the encoder and in its MaskedLM.
_SCOPES = {
    "embeddings/layer_norm": "bert/embeddings/LayerNorm",
    "pooler_transform": "bert/pooler/dense",
    "cls/predictions/transform/dense": "cls/predictions/transform/dense",
    "cls/predictions/transform/LayerNorm": "cls/predictions/transform/LayerNorm",
    "embedding_postprocessor/layer_norm": "bert/embeddings/LayerNorm",  # before 2021
    **electra.SCOPES,
}
# Full names here -> names in the original.
_NAMES = {
    "word_embeddings/embeddings": "bert/embeddings/word_embeddings",
    "position_embedding/embeddings": "bert/embeddings/position_embeddings",
    "type_embeddings/embeddings": "bert/embeddings/token_type_embeddings",
    "cls/predictions/output_bias/bias": "cls/predictions/output_bias",
    # Before 2021.
    "position_embeddings/embeddings": "bert/embeddings/position_embeddings",
    "embedding_postprocessor/position_embeddings": "bert/embeddings/position_embeddings",
    "embedding_postprocessor/type_embeddings": "bert/embeddings/token_type_embeddings",
    "cls/predictions/output_bias": "cls/predictions/output_bias",
    **electra.NAMES,
}

# The families whose encoders are read. Until the last step, all have the names of a BERT here.
_BERT, _ALBERT, _ELECTRA = "bert", "albert", "electra"
_PROJECTION = "bert/embeddings_project"
_SCOPES["embedding_projection"] = _PROJECTION
# The block that all layers of an AlbertEncoder share.
_SHARED_BLOCK = re.compile(r"(?:^|/)transformer/(?!layer_\d)(.+)/([^/]+)$")
_IN_LAYER = re.compile(r"(?:^|/)(?:transformer|encoder)/layer_(\d+)/(.+)$")
# The output layer of a head, and the dense layer before it, the head's own pooler.
_HEAD = re.compile(r"(?:(?:^|/)([^/]+)/)?(?:predictions/transform/)?logits/(kernel|bias)$")
_HEAD_POOLER = re.compile(r"(?:^|/)([^/]+)/pooler_dense/(kernel|bias)$")
_NEXT_SENTENCE = "next_sentence"
# The name of a head's own pooler until it is clear which pooler was trained.
_POOLER, _HEADS_POOLER = "bert/pooler/dense", "(pooler of the head)"

_WORDS = "bert/embeddings/word_embeddings"
_ATTENTION = re.compile(r"/attention/self/(query|key|value)/kernel$")
_TRANSPOSED = {"cls/seq_relationship/output_weights", "output_weights", "cls/squad/output_weights"}
# Tensors that are useful only together.
_HEADS_ON_THE_POOLER = ("cls/seq_relationship/", "output_")
_HEAD_GROUPS = (
    "cls/predictions/", "cls/seq_relationship/", "cls/squad/", "output_", "discriminator_predictions/", _POOLER,
    _HEADS_POOLER,
)  # fmt: skip


def _original_name(full_name: str, edges: set[str]) -> str | None:
    """What the original calls a variable.

    Args:
      full_name: e.g. "bert_encoder_v2/transformer/layer_0/output/kernel".
      edges: names of the edges that lead to it.
    """
    if name := electra.head_variable(full_name, edges):
        return name
    match = _IN_LAYER.search(full_name)
    if match:
        scope, _, leaf = match[2].rpartition("/")
        return f"bert/encoder/layer_{match[1]}/{_LAYER_SCOPES[scope]}/{leaf}" if scope in _LAYER_SCOPES else None
    match = _SHARED_BLOCK.search(full_name)
    if match and match[1] in _LAYER_SCOPES:
        return f"bert/encoder/layer_0/{_LAYER_SCOPES[match[1]]}/{match[2]}"
    scope, _, leaf = full_name.rpartition("/")
    for known, original in _NAMES.items():
        if full_name == known or full_name.endswith("/" + known):
            return original
    for known, original in _SCOPES.items():
        if scope == known or scope.endswith("/" + known):
            return f"{original}/{leaf}"
    match = _HEAD_POOLER.search(full_name)
    if match:
        other = "classification_heads" in edges and match[1] != _NEXT_SENTENCE
        return None if other else f"{_HEADS_POOLER}/{match[2]}"
    match = _HEAD.search(full_name)
    if match is None:
        return None
    leaf = "output_weights" if match[2] == "kernel" else "output_bias"
    if match[1] == _NEXT_SENTENCE or "classification" in edges:
        return f"cls/seq_relationship/{leaf}"
    if "span_labeling" in edges:
        return f"cls/squad/{leaf}"
    return leaf if "classifier" in edges else None


def _find_variables(graph: ObjectGraph, path: str) -> dict[str, tuple[int, str]]:
    """Node and key of each of the original's variables.

    Raises:
      ValueError: no BERT, or one that the original's variables can't express.
    """
    found: dict[str, tuple[int, str]] = {}
    names, strays = [], []
    for number, full_name, key in graph.variables():
        names.append(full_name or key)
        original = _original_name(full_name, graph.edges_to(number))
        if original is None:
            if _IN_LAYER.search(full_name):
                strays.append(full_name)
        elif original in found:
            raise ValueError(
                f"{path} has two candidates for {original}: {found[original][1]} and {key}. Are there two encoders in "
                "it? Save the one you want on its own."
            )
        else:
            found[original] = (number, key)
    heads = [name for name in found if name.startswith(_HEADS_ON_THE_POOLER)]
    if f"{_PROJECTION}/kernel" in found and heads and not _is_albert(graph):
        raise ValueError(
            f"{path}: the word embeddings are projected to another width (embedding_projection), as in small ELECTRA "
            f"models, which have no pooler for {found[heads[0]][1]}. BERT has no such matrix. Save the encoder alone."
        )
    if _WORDS not in found:
        raise ValueError(
            f"{path} is not a checkpoint of a BERT of tf-models-official: no word embeddings "
            f"(word_embeddings/embeddings) among its {len(names)} variables: {some(sorted(names)) or 'none'}."
        )
    if strays:
        raise ValueError(
            f"{path}: encoder layers of another kind than BERT's, with variables it doesn't have: {some(strays)}."
        )
    return found


def _family(graph: ObjectGraph, found: Mapping[str, tuple[int, str]], is_part: bool) -> str:
    """The scope of the family of an encoder. is_part: it was trained in an ElectraPretrainer."""
    if _is_albert(graph):
        return _ALBERT
    return _ELECTRA if is_part or f"{_PROJECTION}/kernel" in found else _BERT


def _is_albert(graph: ObjectGraph) -> bool:
    """Whether the layers of the encoder share one block."""
    matches = (_SHARED_BLOCK.search(full_name) for _, full_name, _ in graph.variables())
    return any(match[1] in _LAYER_SCOPES for match in matches if match)


# --- shapes ----------------------------------------------------------------------------------------------------------


def _original_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Heads merged into one axis; output layers transposed."""
    if "/attention/self/" in name:
        split = 1 if name.endswith("/kernel") else 0
        return (*shape[:split], int(np.prod(shape[split:])))
    if name.endswith("/attention/output/dense/kernel"):
        return (int(np.prod(shape[:-1])), shape[-1])
    return shape[::-1] if name in _TRANSPOSED else shape


def _expected_shapes(shapes: dict[str, tuple[int, ...]], num_attention_heads: int, family: str) -> dict:
    """The shapes of all variables of a model of the size that some of its variables show; names are a BERT's."""
    shapes = {_moved(name, _BERT, family): shape for name, shape in shapes.items()}
    expected = expected_shapes(config_of_shapes(shapes, num_attention_heads))
    return {_moved(name, family, _BERT): shape for name, shape in expected.items()}


def _moved(name: str, family: str, new: str) -> str:
    """A name with the scope of another family, if it has that of this one."""
    return f"{new}/{name.removeprefix(family + '/')}" if name.startswith(family + "/") else name


def _check_encoder(
    path: str, shapes: dict[str, tuple[int, ...]], num_attention_heads: int, family: str = _BERT
) -> dict:
    """Refuses an incomplete encoder; returns the shapes that all variables must have for it.

    Raises:
      ValueError: lists what is missing or has another shape.
    """
    # What the configuration is read off -> its number of dimensions.
    sizes = {
        _WORDS: 2,
        "bert/embeddings/token_type_embeddings": 2,
        "bert/embeddings/position_embeddings": 2,
        "bert/encoder/layer_0/intermediate/dense/bias": 1,
    }
    missing = [name for name in sizes if name not in shapes]
    if missing:
        raise ValueError(f"{path}: no whole BERT encoder: it lacks {', '.join(missing)}.")
    flat = [name for name, rank in sizes.items() if len(shapes[name]) != rank]
    if flat:
        raise ValueError(f"{path}: no BERT encoder: {flat[0]} has shape {list(shapes[flat[0]])}.")
    hidden_size = shapes[_WORDS][1]
    query = shapes.get("bert/encoder/layer_0/attention/self/query/kernel", (hidden_size,))
    if query[0] != hidden_size and family == _BERT:
        raise ValueError(
            f"{path}: the word embeddings have width {hidden_size}, the encoder layers {query[0]}: a model with a "
            "smaller embedding table (ALBERT, ELECTRA), which BERT can't express."
        )
    try:
        expected = _expected_shapes(shapes, num_attention_heads, family)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    scopes = ("bert/embeddings/", "bert/encoder/", _PROJECTION)
    wrong = [
        f"{name}: expected {list(shape)}, " + (f"found {list(shapes[name])}" if name in shapes else "not there")
        for name, shape in expected.items()
        if name.startswith(scopes) and shapes.get(name) != shape
    ]
    wrong += [
        f"{name}: not expected, found {list(shape)}"
        for name, shape in shapes.items()
        if name.startswith(scopes) and name not in expected and is_model_variable(name)
    ]
    if wrong:
        raise ValueError(f"{path}: no BERT encoder, {len(wrong)} of its variables don't fit: {some(wrong, '; ')}.")
    return expected


# --- open ------------------------------------------------------------------------------------------------------------


def open_weights(prefix: str, path: str | None = None) -> Weights:
    """Opens an object-based checkpoint of tf-models-official; reads names, shapes and at most two poolers.

    A head of BertPretrainerV2 or BertClassifier may have a pooler of its own, and then the encoder's was not trained.
    Such a pooler is `bert/pooler/dense` here, and the encoder's own is listed as unused if it is another.

    Of an ElectraPretrainer it is the discriminator; `Weights.parts` has the generator, too. An encoder alone with a
    narrower word table is an ELECTRA's.

    Args:
      prefix: the checkpoint's files without .index and .data; of a SavedModel `<directory>/variables/variables`.
      path: what errors call it; the prefix if None.

    Raises:
      FileNotFoundError: no index, or a data file is missing.
      ValueError: damaged, no BERT, or a kind of BERT that the original's variables can't express.
    """
    path = path or prefix
    reader = open_object_checkpoint(prefix, path)
    graph = read_graph(reader, path)
    _check_not_pre_norm(prefix, path)
    graphs = electra.parts_of(graph)
    if not graphs:
        return _open(reader, path, graph)
    parts = {part: _open(reader, path, seen, is_part=True) for part, seen in graphs.items()}
    for part, other in zip(parts, reversed(parts), strict=True):
        others = parts[other].origins.values()
        parts[part].unused |= {key: f"of the {other}" for key in parts[part].unused if key in others}
    parts["generator"].hints["sizes_from_weights"] = True  # a configuration beside the file is the discriminator's
    return dataclasses.replace(parts["discriminator"], parts=parts)


def _open(reader, path: str, graph: ObjectGraph, is_part: bool = False) -> Weights:
    """`open_weights` of one encoder and its heads; `graph` has no other."""
    found = _find_variables(graph, path)
    family = _family(graph, found, is_part)
    reasons = {}
    if family == _ELECTRA:
        reasons = {found.pop(name)[1]: "no pooler in ELECTRA" for name in list(found) if name.startswith(_POOLER)}
    keys = {name: key for name, (_, key) in found.items()}
    stored = {key: tuple(shape) for key, shape in reader.get_variable_to_shape_map().items()}
    lost = [key for key in keys.values() if key not in stored]
    if lost:
        raise ValueError(f"{path}: the object graph names tensors that are missing: {some(lost)}.")
    shapes = {name: _original_shape(name, stored[key]) for name, key in keys.items()}
    heads = {stored[key][1] for name, key in keys.items() if _ATTENTION.search(name) and len(stored[key]) == 3}
    if len(heads) > 1:
        raise ValueError(f"{path}: the encoder layers have different numbers of attention heads: {sorted(heads)}.")
    expected = _check_encoder(path, shapes, max(heads, default=1), family)
    reasons |= _drop_unfit_heads(keys, shapes, expected)

    def read(name: str) -> np.ndarray:
        value = bundle.read_tensor(reader, path, keys[name])
        if value.dtype in (np.float16, tf.bfloat16.as_numpy_dtype):
            value = value.astype(np.float32)
        return np.ascontiguousarray(value.T) if name in _TRANSPOSED else value.reshape(shapes[name])

    reasons |= _choose_pooler(keys, shapes, read)
    # How many layers share an ALBERT's block can't be seen.
    hints: dict = {"num_attention_heads": heads.pop()} if heads and family != _ALBERT else {}
    if family == _ELECTRA:
        hints["hidden_act"] = "gelu"  # the original has the exact form, which Model Garden's encoders don't know
    lower_case = graph.children(0).get("do_lower_case")
    for number, full_name, key in graph.variables():
        if number == lower_case:
            hints["do_lower_case"] = bool(bundle.read_tensor(reader, path, key))
            reasons[key] = "no weight: read as do_lower_case"
        elif key not in keys.values():
            reasons.setdefault(key, f"the original has no variable for {full_name or 'it'}")
    weights = Weights(
        path,
        "model_garden",
        {name: shapes[name] for name in sorted(keys)},
        {name: keys[name] for name in sorted(keys)},
        read,
        {key: _reason(key, reasons) for key in sorted(set(stored) - set(keys.values()) - {bundle.OBJECT_GRAPH})},
        hints,
    )
    return renamed(weights, {_moved(name, _BERT, family): name for name in weights}, {})


def _reason(key: str, reasons: dict[str, str]) -> str:
    if key.removesuffix(KEY_SUFFIX) in ("save_counter", "global_step"):
        return "a counter"
    # Whatever the walk through the graph did not reach belongs to an optimizer.
    return reasons.get(key, "optimizer state, in another form than the original's")


def _drop_unfit_heads(keys: dict[str, str], shapes: dict, expected: dict) -> dict[str, str]:
    """Takes heads out that the original's variables can't express; returns why, by key."""
    hidden = expected["bert/encoder/layer_0/output/dense/bias"][0]
    expected = expected | {f"{_HEADS_POOLER}/kernel": (hidden, hidden), f"{_HEADS_POOLER}/bias": (hidden,)}
    for scope, classes in (("", shapes.get("output_bias", (0,))[0]), ("cls/squad/", 2)):
        expected |= {f"{scope}output_weights": (classes, hidden), f"{scope}output_bias": (classes,)}
    reasons = {}
    for group in _HEAD_GROUPS:
        members = {name: shapes[name] for name in keys if name.startswith(group)}
        if members != {name: shape for name, shape in expected.items() if name.startswith(group)}:
            for name, shape in members.items():
                reasons[keys.pop(name)] = f"a head of another shape than the original's: {list(shape)}"
    return reasons


def _choose_pooler(keys: dict[str, str], shapes: dict, read) -> dict[str, str]:
    """Decides which pooler becomes `bert/pooler/dense`; returns why the other is not used, by key."""
    leaves = ("kernel", "bias")
    if f"{_HEADS_POOLER}/kernel" not in keys:
        return {}
    own, heads = ([f"{scope}/{leaf}" for leaf in leaves] for scope in (_POOLER, _HEADS_POOLER))
    reasons = {}
    if own[0] in keys:
        if all(np.array_equal(read(one), read(other)) for one, other in zip(own, heads, strict=True)):
            return {keys.pop(name): "the same values as the encoder's pooler" for name in heads}
        reasons = {keys[name]: f"the head has a pooler of its own, the trained one: {keys[heads[0]]}" for name in own}
    for one, other in zip(own, heads, strict=True):
        keys[one], shapes[one] = keys.pop(other), shapes[other]
    return reasons


def _check_not_pre_norm(prefix: str, path: str) -> None:
    # In a SavedModel this file holds, among other things, the layers' settings as JSON.
    settings = posixpath.join(posixpath.dirname(posixpath.dirname(prefix)), "keras_metadata.pb")
    if posixpath.basename(prefix) == "variables" and tf.io.gfile.exists(settings):
        with tf.io.gfile.GFile(settings, "rb") as file:
            if b'"norm_first": true' in file.read():
                raise ValueError(f"{path}: a pre-norm encoder (norm_first), which BERT can't express.")
