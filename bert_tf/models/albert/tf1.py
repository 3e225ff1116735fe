"""ALBERT in the original's TF1 checkpoints: under BERT's scope, with other names for the shared transformer blocks."""

import re
from collections.abc import Iterable

from bert_tf.models.config import BertConfig
from bert_tf.weights.mapping import Weights, renamed

_HERE, _THERE = "albert/", "bert/"
_PROJECTION_HERE, _PROJECTION_THERE = "albert/embeddings_project/", "bert/encoder/embedding_hidden_mapping_in/"
_BLOCK_HERE = re.compile(r"albert/encoder/layer_(\d+)/")
_BLOCK_THERE = re.compile(r"bert/encoder/transformer/group_(\d+)/inner_group_(\d+)/")
# Scopes in a block: here -> there.
_SCOPES = {
    "attention/self/": "attention_1/self/",
    "attention/output/dense/": "attention_1/output/dense/",
    "attention/output/LayerNorm/": "LayerNorm/",
    "intermediate/dense/": "ffn_1/intermediate/dense/",
    "output/dense/": "ffn_1/intermediate/output/dense/",
    "output/LayerNorm/": "LayerNorm_1/",
}
# Layers of `question_answering.AlbertForQuestionAnswering`: here -> there.
_HEAD = {
    "cls/squad_start/": "start_logits/dense/",
    "cls/squad_end_hidden/": "end_logits/dense_0/",
    "cls/squad_end_LayerNorm/": "end_logits/LayerNorm/",
    "cls/squad_end/": "end_logits/dense_1/",
    "cls/squad_answerable_hidden/": "answer_class/dense_0/",
    "cls/squad_answerable/": "answer_class/dense_1/",
}


def is_here(names: Iterable[str]) -> bool:
    """Whether these are the variables of an ALBERT."""
    return any(map(_BLOCK_THERE.match, names))


def open_weights(weights: Weights) -> Weights:
    """A checkpoint's variables under the names used here."""
    inner_group_num = 1 + max(int(match[2]) for match in map(_BLOCK_THERE.match, weights) if match)

    def here(name: str) -> str:
        if match := _BLOCK_THERE.match(name):
            number = int(match[1]) * inner_group_num + int(match[2])
            rest = name[match.end() :]
            ours, theirs = next((pair for pair in _SCOPES.items() if rest.startswith(pair[1])), ("", ""))
            return f"albert/encoder/layer_{number}/{ours}{rest.removeprefix(theirs)}"
        if name.startswith(_PROJECTION_THERE):
            return _PROJECTION_HERE + name.removeprefix(_PROJECTION_THERE)
        for ours, theirs in {**_HEAD, _HERE: _THERE}.items():
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        return name

    return renamed(weights, {here(name): name for name in weights}, {})


def names_there(names: Iterable[str], config: BertConfig) -> dict[str, str]:
    """The original's names for a model's variables."""

    def there(name: str) -> str:
        if match := _BLOCK_HERE.match(name):
            group, inner = divmod(int(match[1]), config.inner_group_num)
            rest = name[match.end() :]
            ours, theirs = next(pair for pair in _SCOPES.items() if rest.startswith(pair[0]))
            block = f"bert/encoder/transformer/group_{group}/inner_group_{inner}/"
            return block + theirs + rest.removeprefix(ours)
        if name.startswith(_PROJECTION_HERE):
            return _PROJECTION_THERE + name.removeprefix(_PROJECTION_HERE)
        for ours, theirs in {**_HEAD, _HERE: _THERE}.items():
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
        return name

    return {name: there(name) for name in names}
