"""Checkpoints of the TensorFlow Model Garden (tf-models-official), in and out, without importing it.

In: object-based (TF2) checkpoints of its BertEncoder, BertEncoderV2, AlbertEncoder, BertPretrainerV2, BertPretrainer,
ElectraPretrainer, BertClassifier, BertSpanLabeler and BertTokenClassifier, those of its trainer, and the
`variables/variables` files of the SavedModels that TensorFlow Hub and Kaggle offer. The keys of the tensors depend on
which object was saved and how. The full names that the layers gave the variables do not, so variables are found by
those. Where full names are ambiguous (an optimizer's copies, output layers of different heads, the two encoders of an
ElectraPretrainer), edges of the object graph decide.

Out: one graph whose nodes carry the edges by which each of those classes looks for its parts, so that all of them
restore the same tensors.

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
from bert_tf.models.variable_names import config_of_shapes, expected_shapes, num_blocks_of
from bert_tf.system.messages import some
from bert_tf.weights import bundle
from bert_tf.weights.mapping import Weights, is_model_variable, renamed
from bert_tf.weights.object_graph import KEY_SUFFIX, ObjectGraph, open_object_checkpoint, read_graph

# --- names -----------------------------------------------------------------------------------------------------------

# (scope in the original, scope in the full names here, edges here below a TransformerEncoderBlock)
_LAYER_MODULES = (
    ("attention/self/query", "self_attention/query", "_attention_layer/_query_dense"),
    ("attention/self/key", "self_attention/key", "_attention_layer/_key_dense"),
    ("attention/self/value", "self_attention/value", "_attention_layer/_value_dense"),
    ("attention/output/dense", "self_attention/attention_output", "_attention_layer/_output_dense"),
    ("attention/output/LayerNorm", "self_attention_layer_norm", "_attention_layer_norm"),
    ("intermediate/dense", "intermediate", "_intermediate_dense"),
    ("output/dense", "output", "_output_dense"),
    ("output/LayerNorm", "output_layer_norm", "_output_layer_norm"),
)
# The same below a BertEncoderV2.
ENCODER_MODULES = (
    ("bert/embeddings/LayerNorm", "embeddings/layer_norm", "_embedding_norm_layer"),
    ("bert/pooler/dense", "pooler_transform", "_pooler_layer"),
)
TABLES = (
    ("bert/embeddings/word_embeddings", "word_embeddings", "_embedding_layer"),
    ("bert/embeddings/position_embeddings", "position_embedding", "_position_embedding_layer"),
    ("bert/embeddings/token_type_embeddings", "type_embeddings", "_type_embedding_layer"),
)
# And below its MaskedLM.
_MASKED_LM_MODULES = (
    ("cls/predictions/transform/dense", "cls/predictions/transform/dense", "dense"),
    ("cls/predictions/transform/LayerNorm", "cls/predictions/transform/LayerNorm", "layer_norm"),
)
_MASKED_LM_BIAS = ("cls/predictions/output_bias", "cls/predictions/output_bias/bias")

# Full names of releases before 2021.
_OLDER_LAYER_SCOPES = {"self_attention_output": "attention/output/dense"}
_OLDER_SCOPES = {"embedding_postprocessor/layer_norm": "bert/embeddings/LayerNorm"}
_OLDER_NAMES = {
    "position_embeddings/embeddings": "bert/embeddings/position_embeddings",
    "embedding_postprocessor/position_embeddings": "bert/embeddings/position_embeddings",
    "embedding_postprocessor/type_embeddings": "bert/embeddings/token_type_embeddings",
    "cls/predictions/output_bias": "cls/predictions/output_bias",
}

_LAYER_SCOPES = {scope: original for original, scope, _ in _LAYER_MODULES} | _OLDER_LAYER_SCOPES
_SCOPES = {scope: original for original, scope, _ in ENCODER_MODULES + _MASKED_LM_MODULES} | _OLDER_SCOPES
_SCOPES |= electra.SCOPES
_NAMES = {scope + "/embeddings": original for original, scope, _ in TABLES} | _OLDER_NAMES | electra.NAMES
_NAMES[_MASKED_LM_BIAS[1]] = _MASKED_LM_BIAS[0]

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
NEXT_SENTENCE = "next_sentence"
# The name of a head's own pooler until it is clear which pooler was trained.
_POOLER, HEADS_POOLER = "bert/pooler/dense", "(pooler of the head)"

_WORDS = "bert/embeddings/word_embeddings"
_ATTENTION = re.compile(r"/attention/self/(query|key|value)/kernel$")
_TRANSPOSED = {"cls/seq_relationship/output_weights", "output_weights", "cls/squad/output_weights"}
# Tensors that are useful only together.
_HEADS_ON_THE_POOLER = ("cls/seq_relationship/", "output_")
_HEAD_GROUPS = (
    "cls/predictions/", "cls/seq_relationship/", "cls/squad/", "output_", "discriminator_predictions/", _POOLER,
    HEADS_POOLER,
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
        other = "classification_heads" in edges and match[1] != NEXT_SENTENCE
        return None if other else f"{HEADS_POOLER}/{match[2]}"
    match = _HEAD.search(full_name)
    if match is None:
        return None
    leaf = "output_weights" if match[2] == "kernel" else "output_bias"
    if match[1] == NEXT_SENTENCE or "classification" in edges:
        return f"cls/seq_relationship/{leaf}"
    if "span_labeling" in edges:
        return f"cls/squad/{leaf}"
    return leaf if "classifier" in edges else None


def find_variables(graph: ObjectGraph, path: str) -> dict[str, tuple[int, str]]:
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


def _shape_here(name: str, shape: tuple[int, ...], num_attention_heads: int) -> tuple[int, ...]:
    """The opposite of `_original_shape`."""
    if "/attention/self/" in name:
        return (*shape[:-1], num_attention_heads, shape[-1] // num_attention_heads)
    if name.endswith("/attention/output/dense/kernel"):
        return (num_attention_heads, shape[0] // num_attention_heads, shape[1])
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


# --- in --------------------------------------------------------------------------------------------------------------


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
    found = find_variables(graph, path)
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
    expected = expected | {f"{HEADS_POOLER}/kernel": (hidden, hidden), f"{HEADS_POOLER}/bias": (hidden,)}
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
    if f"{HEADS_POOLER}/kernel" not in keys:
        return {}
    own, heads = ([f"{scope}/{leaf}" for leaf in leaves] for scope in (_POOLER, HEADS_POOLER))
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


# --- out -------------------------------------------------------------------------------------------------------------


def _places(names) -> dict[str, list[tuple[str, tuple[str, ...], str]]]:
    """Where each of the original's names goes: (part, edges below that part, full name), some to two places."""
    places: dict[str, list] = {}
    for original, scope, edge in TABLES:
        places[original] = [("encoder", (edge, "embeddings"), f"{scope}/embeddings")]
    modules = [("encoder", original, scope, (edge,)) for original, scope, edge in ENCODER_MODULES]
    modules += [("masked_lm", original, scope, (edge,)) for original, scope, edge in _MASKED_LM_MODULES]
    for number in range(num_blocks_of(names)):
        for original, scope, edges in _LAYER_MODULES:
            below = ("_transformer_layers", str(number), *edges.split("/"))
            modules.append(
                ("encoder", f"bert/encoder/layer_{number}/{original}", f"transformer/layer_{number}/{scope}", below)
            )
    for part, original, scope, edges in modules:
        for leaf in ("kernel", "bias", "gamma", "beta"):
            places[f"{original}/{leaf}"] = [(part, (*edges, leaf), f"{scope}/{leaf}")]
    places[_MASKED_LM_BIAS[0]] = [("masked_lm", ("bias",), _MASKED_LM_BIAS[1])]
    heads = {
        "cls/seq_relationship/": (NEXT_SENTENCE, ("out_proj",), f"{NEXT_SENTENCE}/logits"),
        "": ("classifier", ("out_proj",), "sentence_prediction/logits"),
        "cls/squad/": ("span_labeling", ("layer_with_weights-0",), "span_labeling/predictions/transform/logits"),
    }
    for prefix, (part, edges, scope) in heads.items():
        places[prefix + "output_weights"] = [(part, (*edges, "kernel"), f"{scope}/kernel")]
        places[prefix + "output_bias"] = [(part, (*edges, "bias"), f"{scope}/bias")]
    if "cls/seq_relationship/output_weights" in names:
        # Not shared with the encoder's: restoring one saved variable into two Python objects is an error.
        for leaf in ("kernel", "bias"):
            full_name = f"{NEXT_SENTENCE}/pooler_dense/{leaf}"
            places[f"{_POOLER}/{leaf}"].append((NEXT_SENTENCE, ("dense", leaf), full_name))
    return {name: places[name] for name in names if name in places}


def save(prefix: str, weights: Weights, num_attention_heads: int) -> dict[str, str]:
    """Writes an object-based checkpoint that tf-models-official restores, with `assert_existing_objects_matched`.

    The usual ways all work, where `encoder` is a BertEncoder or a BertEncoderV2:

        tf.train.Checkpoint(encoder=encoder)
        tf.train.Checkpoint(model=encoder, encoder=encoder)  # what its scripts and its Hub export do
        tf.train.Checkpoint(**BertPretrainerV2(...).checkpoint_items)
        tf.train.Checkpoint(model=BertPretrainerV2(...))  # whose head is called next_sentence, if the weights have one
        tf.train.Checkpoint(model=BertClassifier(...))  # or BertSpanLabeler, if the weights have their output layer

    What `model` restores, `load_weights` of that object restores as well. With the output layer of a classifier or span
    labeler `model` alone can't be an encoder.

    Optimizer state is not written: their optimizer defines it differently.

    Args:
      prefix: written exactly there, replacing existing files; the state file `checkpoint` is left alone.
      weights: read one tensor at a time; all of them are held in memory once.
      num_attention_heads: into how many heads the attention kernels are cut.

    Returns:
      The original's name -> the key in the checkpoint. Names missing from it have no equivalent there.

    Raises:
      ValueError: the encoder is not whole, or its width is not a multiple of the heads.
    """
    if _WORDS not in weights.shapes:
        raise ValueError(f"{weights.path}: no {_WORDS}: there is no encoder to write to {prefix}.")
    _check_encoder(weights.path, weights.shapes, num_attention_heads)
    places = _places(weights.shapes)
    parts: dict[str, dict] = {}
    with tf.device("CPU:0"):
        for name, targets in places.items():
            value = weights.read(name)
            value = value.T if name in _TRANSPOSED else value
            value = value.reshape(_shape_here(name, weights.shapes[name], num_attention_heads))
            for part, edges, full_name in targets:
                node = parts.setdefault(part, {})
                for edge in edges[:-1]:
                    node = node.setdefault(edge, {})
                node[edges[-1]] = tf.Variable(value, name=full_name)
            del value
        root = _trackable(_root(parts), {})
        # `Checkpoint.restore` expects a counter of saves; reading the attribute creates it.
        _ = root.save_counter
        root.write(prefix)
    del root, parts
    return {name: key for name, key in open_weights(prefix).origins.items() if name in places}


def _root(parts: dict[str, dict]) -> dict:
    """The edges of the whole graph. A dict is a node; the same dict in two places is one node with two paths to it."""
    encoder = parts["encoder"]
    # The functional BertEncoder numbers its layers instead.
    layers = [encoder[edge] for *_, edge in (*TABLES, ENCODER_MODULES[0])]
    transformer_layers = encoder["_transformer_layers"]
    layers += [transformer_layers[str(number)] for number in range(len(transformer_layers))]
    layers += [encoder["_pooler_layer"]] if "_pooler_layer" in encoder else []
    encoder |= {f"layer_with_weights-{number}": layer for number, layer in enumerate(layers)}
    heads = {edge: parts[edge] for edge in ("classifier", "span_labeling") if edge in parts}
    # A node of its own, not `encoder`: where `model` is a pretrainer the two are different objects. The functional
    # classifier's first numbered layer is the encoder, so where there is one it can't be an encoder as well.
    model = heads | {"_network": encoder} if heads else dict(encoder)
    model["encoder_network"] = encoder
    root = {"encoder": encoder, "model": model}
    if "masked_lm" in parts:
        masked_lm = parts["masked_lm"]
        masked_lm["embedding_table"] = encoder["_embedding_layer"]["embeddings"]
        if "bias" in masked_lm:
            masked_lm["output_bias/bias"] = masked_lm["bias"]
        root["masked_lm"] = model["masked_lm"] = masked_lm
    if NEXT_SENTENCE in parts:
        model["classification_heads"] = {"0": parts[NEXT_SENTENCE]}
        if "dense" in parts[NEXT_SENTENCE]:
            root[f"{NEXT_SENTENCE}.pooler_dense"] = parts[NEXT_SENTENCE]["dense"]
    return model | root


def _trackable(node, made: dict):
    if isinstance(node, tf.Variable):
        return node
    if id(node) not in made:
        made[id(node)] = tf.train.Checkpoint(**{edge: _trackable(child, made) for edge, child in node.items()})
    return made[id(node)]
