"""Names and shapes of a model's variables, as the original's checkpoints have them.

A descendant of BERT has its own scope in place of `bert`.
"""

import itertools
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from bert_tf.families.config import BertConfig

# The output layers of the original's run_classifier.py (root scope) and run_squad.py, and some families' hidden layer.
HIDDEN_LAYER = ("pre_classifier/kernel", "pre_classifier/bias")
REPLACED_TOKEN_HEAD = "discriminator_predictions/dense/kernel"
HEAD_NAMES = ("output_weights", "output_bias", "cls/squad/output_weights", "cls/squad/output_bias", *HIDDEN_LAYER)

_LAYER = re.compile(r"[\w-]+/encoder/layer_(\d+)/")


def is_model_variable(name: str) -> bool:
    """Whether a name of the original is a variable of the model, not of its optimizer."""
    return name != "global_step" and not name.endswith(("/adam_m", "/adam_v"))


def base_name(name: str) -> str:
    """The variable that a moment belongs to; of other names, the name itself."""
    return name.removesuffix("/adam_m").removesuffix("/adam_v")


def word_table(scope: str) -> str:
    return f"{scope}/embeddings/word_embeddings"


def pooler(scope: str) -> str:
    return f"{scope}/pooler/dense"


def num_blocks_of(names: Iterable[str]) -> int:
    """The number of transformer blocks among names of variables."""
    numbers = [int(match[1]) for match in map(_LAYER.match, names) if match]
    return 1 + max(numbers, default=-1)


def config_of_shapes(
    path: str, shapes: Mapping[str, tuple], num_attention_heads: int, like: BertConfig | None = None
) -> BertConfig:
    """The configuration of a model whose variables have these shapes.

    path: of the weights. like: of the same family; gives what shapes don't show. None: its class's defaults.
    """
    config_class = next(BertConfig.classes[scope] for scope in BertConfig.classes if word_table(scope) in shapes)
    embeddings, layer = (f"{config_class.model_type}/{part}" for part in ("embeddings", "encoder/layer_0"))
    axes = {
        "vocab_size": (f"{embeddings}/word_embeddings", 0),
        "embedding_size": (f"{embeddings}/word_embeddings", 1),
        "hidden_size": (f"{layer}/output/dense/bias", 0),
        "intermediate_size": (f"{layer}/intermediate/dense/bias", 0),
        "max_position_embeddings": (f"{embeddings}/position_embeddings", 0),
        "type_vocab_size": (f"{embeddings}/token_type_embeddings", 0),
    }
    sizes = {key: shapes[name][axis] for key, (name, axis) in axes.items() if key in config_class.keys()}  # noqa: SIM118
    sizes |= {"num_hidden_layers": num_blocks_of(shapes), "num_attention_heads": num_attention_heads}
    return config_class.from_dict({**(like.to_dict() if like else {}), **sizes}, allow_unknown=True, source=path)


def expected_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every variable of a pre-training model, in the order of the original's checkpoints.

    Source: original run_pretraining.py; the heads of its other scripts have shapes of their own: see HEAD_NAMES.
    """
    scope, hidden, inner, width = config.model_type, config.hidden_size, config.intermediate_size, config.embedding_size
    shapes: dict[str, tuple[int, ...]] = {}

    def dense(name: str, rows: int, columns: int, norm: str | None = None) -> None:
        shapes.update({f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)})
        if norm:
            shapes.update({f"{norm}/LayerNorm/{leaf}": (columns,) for leaf in ("beta", "gamma")})

    tables = {"word_embeddings": config.vocab_size, "token_type_embeddings": config.type_vocab_size}
    tables |= {"position_embeddings": config.max_position_embeddings}
    shapes |= {f"{scope}/embeddings/{name}": (rows, width) for name, rows in tables.items() if rows}
    shapes |= {f"{scope}/embeddings/LayerNorm/{leaf}": (width,) for leaf in ("beta", "gamma")}
    if width != hidden:
        dense(f"{scope}/embeddings_project", width, hidden)
    for number in range(1 + max(config.block_order)):
        layer = f"{scope}/encoder/layer_{number}"
        for name in ("query", "key", "value"):
            dense(f"{layer}/attention/self/{name}", hidden, hidden)
        dense(f"{layer}/attention/output/dense", hidden, hidden, norm=f"{layer}/attention/output")
        dense(f"{layer}/intermediate/dense", hidden, inner)
        dense(f"{layer}/output/dense", inner, hidden, norm=f"{layer}/output")
    if config.has_pooler:
        dense(pooler(scope), hidden, hidden)
    dense("cls/predictions/transform/dense", hidden, width, norm="cls/predictions/transform")
    shapes["cls/predictions/output_bias"] = (config.vocab_size,)
    if config.has_pooler:
        shapes |= {"cls/seq_relationship/output_weights": (2, hidden), "cls/seq_relationship/output_bias": (2,)}
    if config.detects_replaced_tokens:
        dense("discriminator_predictions/dense", hidden, hidden)
        dense("discriminator_predictions/dense_1", hidden, 1)
    return shapes


def all_names(config_class: type[BertConfig], is_there: Callable[[str], bool]) -> list[str]:
    """The names of all variables that a pre-trained model of a family may have, for as many blocks as `is_there`."""
    key = f"{config_class.model_type}/encoder/layer_%d/attention/self/key/kernel"
    blocks = next(number for number in itertools.count() if not is_there(key % number))
    sizes = dict.fromkeys(BertConfig.keys(), 1)
    kinds = ("model_type", "has_pooler", "detects_replaced_tokens")
    sizes |= {"embedding_size": 2, **{kind: getattr(config_class, kind) for kind in kinds}}
    config = types.SimpleNamespace(**sizes, block_order=range(max(blocks, 1)))
    return list(expected_shapes(cast(BertConfig, config)))
