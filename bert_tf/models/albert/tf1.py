"""ALBERT in the original's TF1 checkpoints: under BERT's scope, with other names for the shared transformer blocks."""

import re
from collections.abc import Iterable

from bert_tf.models.albert.config import AlbertConfig
from bert_tf.models.config import BertConfig
from bert_tf.models.variable_names import all_names
from bert_tf.weights.mapping import Weights, base_name, renamed

_BLOCK_THERE = re.compile(r"bert/encoder/transformer/group_(\d+)/inner_group_(\d+)/")
# The layers of `question_answering.AlbertForQuestionAnswering`: here -> there.
_HEAD = {
    "cls/squad_start/": "start_logits/dense/",
    "cls/squad_end_hidden/": "end_logits/dense_0/",
    "cls/squad_end_LayerNorm/": "end_logits/LayerNorm/",
    "cls/squad_end/": "end_logits/dense_1/",
    "cls/squad_answerable_hidden/": "answer_class/dense_0/",
    "cls/squad_answerable/": "answer_class/dense_1/",
}
# Parts of names: here -> there. Each part of a name is replaced once, by the first of these that it begins with.
_PARTS = {
    "albert/embeddings_project/": "bert/encoder/embedding_hidden_mapping_in/",
    "albert/": "bert/",
    "/attention/self/": "/attention_1/self/",
    "/attention/output/dense/": "/attention_1/output/dense/",
    "/attention/output/LayerNorm/": "/LayerNorm/",
    "/intermediate/dense/": "/ffn_1/intermediate/dense/",
    "/output/dense/": "/ffn_1/intermediate/output/dense/",
    "/output/LayerNorm/": "/LayerNorm_1/",
    **_HEAD,
}
_ANY_PART = re.compile("|".join(map(re.escape, _PARTS)))


def _name_there(name: str, inner_group_num: int) -> str:
    def block(match: re.Match) -> str:
        group, inner = divmod(int(match[1]), inner_group_num)
        return f"encoder/transformer/group_{group}/inner_group_{inner}/"

    return re.sub(r"encoder/layer_(\d+)/", block, _ANY_PART.sub(lambda match: _PARTS[match[0]], name))


def is_here(names: Iterable[str]) -> bool:
    """Whether these are the variables of an ALBERT."""
    return any(map(_BLOCK_THERE.match, names))


def open_weights(weights: Weights) -> Weights:
    """A checkpoint's variables under the names used here."""
    number = 1 + max(int(match[2]) for match in map(_BLOCK_THERE.match, weights) if match)
    names = all_names(AlbertConfig, lambda name: _name_there(name, number) in weights)
    names += [layer + leaf for layer in _HEAD for leaf in ("kernel", "bias", "gamma", "beta")]
    here = {_name_there(name, number): name for name in names}

    def name_here(name: str) -> str:
        base = base_name(name)
        return here.get(base, re.sub("^bert/", "albert/", base)) + name.removeprefix(base)

    return renamed(weights, {name_here(name): name for name in weights}, {})


def names_there(names: Iterable[str], config: BertConfig) -> dict[str, str]:
    """The original's names for a model's variables."""
    return {name: _name_there(name, config.inner_group_num) for name in names}
