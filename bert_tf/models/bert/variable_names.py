"""Names and shapes of the variables in the original's checkpoints."""

import re
from collections.abc import Mapping

from bert_tf.models.config import BertConfig
from bert_tf.system.messages import some
from bert_tf.weights.mapping import Weights, is_model_variable

# The output layers of the original's run_classifier.py (root scope) and run_squad.py.
HEAD_NAMES = ("output_weights", "output_bias", "cls/squad/output_weights", "cls/squad/output_bias")

# The scope of the encoder's variables.
SCOPE = "bert"
# The tables that grow with vocabulary and length.
WORD_TABLE = "bert/embeddings/word_embeddings"
POSITION_TABLE = "bert/embeddings/position_embeddings"
POOLER = "bert/pooler/dense"

_LAYER = re.compile(r"bert/encoder/layer_(\d+)/")


def num_layers_of(names) -> int:
    """The number of encoder layers among names of the original's variables."""
    numbers = [int(match[1]) for match in map(_LAYER.match, names) if match]
    return 1 + max(numbers, default=-1)


def config_of_shapes(shapes: Mapping[str, tuple], num_attention_heads: int) -> BertConfig:
    """The configuration of an encoder whose variables have these shapes, with the original's activation and dropout."""
    vocab_size, hidden_size = shapes[WORD_TABLE]
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers_of(shapes),
        num_attention_heads=num_attention_heads,
        intermediate_size=shapes["bert/encoder/layer_0/intermediate/dense/bias"][0],
        max_position_embeddings=shapes[POSITION_TABLE][0],
        type_vocab_size=shapes["bert/embeddings/token_type_embeddings"][0],
    )


def expected_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every variable of a pre-training model in the original's checkpoints, in its order.

    Source: original run_pretraining.py; the heads of its other scripts have shapes of their own: see HEAD_NAMES.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    norm = {"LayerNorm/beta": (hidden,), "LayerNorm/gamma": (hidden,)}

    def dense(rows, columns):
        return {"dense/kernel": (rows, columns), "dense/bias": (columns,)}

    def under(scope, shapes):
        return {f"{scope}/{name}": shape for name, shape in shapes.items()}

    projections = {}
    for name in ("query", "key", "value"):
        projections |= {f"{name}/kernel": (hidden, hidden), f"{name}/bias": (hidden,)}
    layer = under("attention/self", projections)
    layer |= under("attention/output", dense(hidden, hidden) | norm)
    layer |= under("intermediate", dense(hidden, inner))
    layer |= under("output", dense(inner, hidden) | norm)
    embeddings = {
        "word_embeddings": (config.vocab_size, hidden),
        "token_type_embeddings": (config.type_vocab_size, hidden),
        "position_embeddings": (config.max_position_embeddings, hidden),
        **norm,
    }
    shapes = under("bert/embeddings", embeddings)
    for number in range(config.num_hidden_layers):
        shapes |= under(f"bert/encoder/layer_{number}", layer)
    shapes |= under("bert/pooler", dense(hidden, hidden))
    shapes |= under("cls/predictions/transform", dense(hidden, hidden) | norm)
    shapes |= {
        "cls/predictions/output_bias": (config.vocab_size,),
        "cls/seq_relationship/output_weights": (2, hidden),
        "cls/seq_relationship/output_bias": (2,),
    }
    return shapes


def check_shapes(weights: Weights, config: BertConfig, config_name: str) -> None:
    """Refuses a configuration that doesn't fit the weights.

    Raises:
      ValueError: lists names, expected and found shapes, also of encoder variables that only one of the two has.
    """
    expected = expected_shapes(config)
    wrong = [
        f"{name}: expected {list(shape)}, found {list(weights.shapes[name])}"
        for name, shape in expected.items()
        if name in weights.shapes and weights.shapes[name] != shape
    ]
    for name, shape in weights.shapes.items():
        if is_model_variable(name) and name.startswith("bert/") and name not in expected:
            wrong.append(f"{name}: not expected, found {list(shape)}")
        elif name in HEAD_NAMES and name.endswith("weights") and shape[-1:] != (config.hidden_size,):
            wrong.append(f"{name}: expected [classes, {config.hidden_size}], found {list(shape)}")
    for name, shape in expected.items():
        if name.startswith(("bert/embeddings/", "bert/encoder/")) and name not in weights.shapes:
            wrong.append(f"{name}: expected {list(shape)}, not there")
    if wrong:
        raise ValueError(
            f"{config_name} does not fit the weights of {weights.path}, {len(wrong)} variables differ: "
            f"{some(wrong, '; ')}."
        )
