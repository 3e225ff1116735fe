"""Names and shapes of variables in checkpoints: those of the original, with a family's own scope in place of `bert`.

Where the originals of BERT's descendants, or other libraries, use other names, the modules of `models/NAME/` translate.
"""

import itertools
import re
import types
from collections.abc import Callable, Iterable, Mapping

from bert_tf.models.config import BertConfig
from bert_tf.system.messages import some
from bert_tf.weights.mapping import Weights, is_model_variable

# The output layers of the original's run_classifier.py (root scope) and run_squad.py, and the hidden layer that some
# families have before the former.
HIDDEN_LAYER = ("pre_classifier/kernel", "pre_classifier/bias")
HEAD_NAMES = ("output_weights", "output_bias", "cls/squad/output_weights", "cls/squad/output_bias", *HIDDEN_LAYER)
# The heads for questions: BERT's, and that of a `joint_spans.JointSpanModel`.
INDEPENDENT_HEAD, JOINT_HEAD = "cls/squad/output_weights", "cls/squad_start/kernel"
REPLACED_TOKEN_HEAD = "discriminator_predictions/dense/kernel"

_LAYER = re.compile(r"\w+/encoder/layer_(\d+)/")


def word_table(scope: str) -> str:
    """The table that grows with the vocabulary."""
    return f"{scope}/embeddings/word_embeddings"


def position_table(scope: str) -> str:
    """The table that grows with the length."""
    return f"{scope}/embeddings/position_embeddings"


def pooler(scope: str) -> str:
    """The scope of the pooler's dense layer."""
    return f"{scope}/pooler/dense"


def num_blocks_of(names: Iterable[str]) -> int:
    """The number of transformer blocks among names of variables."""
    numbers = [int(match[1]) for match in map(_LAYER.match, names) if match]
    return 1 + max(numbers, default=-1)


def config_of_shapes(
    path: str, shapes: Mapping[str, tuple], num_attention_heads: int, like: BertConfig | None = None
) -> BertConfig:
    """The configuration of a model whose variables have these shapes.

    Args:
      path: of the weights.
      like: of the same family; gives the values that shapes don't show. None: its class's defaults.

    Raises:
      ValueError: one of the variables that show them is not there or no table or vector, or the sizes don't fit; names
        the path.
    """
    config_class = next(BertConfig.classes[scope] for scope in BertConfig.classes if word_table(scope) in shapes)
    scope = config_class.model_type
    tables = ("word_embeddings", "token_type_embeddings", "position_embeddings")
    vectors = ("intermediate/dense/bias", "output/dense/bias")
    ranks = {f"{scope}/embeddings/{name}": 2 for name in tables}
    for name, rank in (ranks | {f"{scope}/encoder/layer_0/{name}": 1 for name in vectors}).items():
        if len(shapes.get(name, ())) != rank:
            found = f"has shape {list(shapes[name])}" if name in shapes else "is not there"
            raise ValueError(f"{path} has no whole encoder: {name} {found}.")
    vocab_size, embedding_size = shapes[word_table(scope)]
    hidden_size, keys = embedding_size, config_class.keys()
    if "embedding_size" in keys:
        hidden_size = shapes[f"{scope}/encoder/layer_0/output/dense/bias"][0]
    sizes = {
        "vocab_size": vocab_size,
        "embedding_size": embedding_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_blocks_of(shapes),
        "num_attention_heads": num_attention_heads,
        "intermediate_size": shapes[f"{scope}/encoder/layer_0/intermediate/dense/bias"][0],
        "max_position_embeddings": shapes[position_table(scope)][0],
        "type_vocab_size": shapes[f"{scope}/embeddings/token_type_embeddings"][0],
    }
    sizes = {key: size for key, size in sizes.items() if key in keys}
    return config_class.from_dict({**(like.to_dict() if like else {}), **sizes}, allow_unknown=True, source=path)


def expected_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every variable of a pre-training model, in the order of the original's checkpoints.

    Source: original run_pretraining.py; the heads of its other scripts have shapes of their own: see HEAD_NAMES.
    """
    scope, hidden, inner, width = config.model_type, config.hidden_size, config.intermediate_size, config.embedding_size

    def norm(size):
        return {"LayerNorm/beta": (size,), "LayerNorm/gamma": (size,)}

    def dense(rows, columns, name="dense"):
        return {f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)}

    def under(scope, shapes):
        return {f"{scope}/{name}": shape for name, shape in shapes.items()}

    projections = {}
    for name in ("query", "key", "value"):
        projections |= dense(hidden, hidden, name)
    layer = under("attention/self", projections)
    layer |= under("attention/output", dense(hidden, hidden) | norm(hidden))
    layer |= under("intermediate", dense(hidden, inner))
    layer |= under("output", dense(inner, hidden) | norm(hidden))
    tables = {"word_embeddings": config.vocab_size, "token_type_embeddings": config.type_vocab_size}
    tables |= {"position_embeddings": config.max_position_embeddings}
    shapes = under(f"{scope}/embeddings", {name: (rows, width) for name, rows in tables.items() if rows} | norm(width))
    if width != hidden:
        shapes |= under(scope, dense(width, hidden, "embeddings_project"))
    for number in range(1 + max(config.block_order)):
        shapes |= under(f"{scope}/encoder/layer_{number}", layer)
    if config.has_pooler:
        shapes |= under(f"{scope}/pooler", dense(hidden, hidden))
    shapes |= under("cls/predictions/transform", dense(hidden, width) | norm(width))
    shapes["cls/predictions/output_bias"] = (config.vocab_size,)
    if config.has_pooler:
        shapes["cls/seq_relationship/output_weights"] = (2, hidden)
        shapes["cls/seq_relationship/output_bias"] = (2,)
    if config.detects_replaced_tokens:
        shapes |= under("discriminator_predictions", dense(hidden, hidden) | dense(hidden, 1, "dense_1"))
    return shapes


def all_names(config_class: type[BertConfig], is_there: Callable[[str], bool]) -> list[str]:
    """The names of all variables that a pre-trained model of a family may have, for as many blocks as are there.

    Args:
      is_there: whether a name is.
    """
    key = f"{config_class.model_type}/encoder/layer_%d/attention/self/key/kernel"
    blocks = next(number for number in itertools.count() if not is_there(key % number))
    sizes = dict.fromkeys(BertConfig.keys(), 1)
    kinds = ("model_type", "has_pooler", "detects_replaced_tokens")
    sizes |= {"embedding_size": 2, **{kind: getattr(config_class, kind) for kind in kinds}}
    return list(expected_shapes(types.SimpleNamespace(**sizes, block_order=range(max(blocks, 1)))))


def check_depth(weights: Weights, config: BertConfig, config_name: str) -> None:
    """Refuses a configuration of more layers than the weights have: these would stay random.

    Raises:
      ValueError: says how many there are.
    """
    there, wanted = num_blocks_of(weights.shapes), 1 + max(config.block_order)
    if 0 < there < wanted == config.num_hidden_layers:
        raise ValueError(
            f"{config_name} does not fit the weights of {weights.path}: num_hidden_layers is {wanted}, but they have "
            f"{there} layers."
        )


def check_shapes(weights: Weights, config: BertConfig, config_name: str) -> None:
    """Refuses a configuration that doesn't fit the weights.

    Raises:
      ValueError: lists names, expected and found shapes, also of encoder variables that only one of the two has.
    """
    check_depth(weights, config, config_name)
    expected = expected_shapes(config)
    encoder, head = f"{config.model_type}/", pooler(config.model_type)  # a model without a pooler can still be used
    wrong = [
        f"{name}: expected {list(shape)}, found {list(weights.shapes[name])}"
        for name, shape in expected.items()
        if name in weights.shapes and weights.shapes[name] != shape
    ]
    for name, shape in weights.shapes.items():
        if is_model_variable(name) and name.startswith(f"{config.model_type}/") and name not in expected:
            wrong.append(f"{name}: not expected, found {list(shape)}")
        elif name in HEAD_NAMES and name.endswith("weights") and shape[-1:] != (config.hidden_size,):
            wrong.append(f"{name}: expected [classes, {config.hidden_size}], found {list(shape)}")
    for name, shape in expected.items():
        if name.startswith(encoder) and not name.startswith(head) and name not in weights.shapes:
            wrong.append(f"{name}: expected {list(shape)}, not there")
    if wrong:
        raise ValueError(
            f"{config_name} does not fit the weights of {weights.path}, {len(wrong)} variables differ: "
            f"{some(wrong, '; ')}."
        )
