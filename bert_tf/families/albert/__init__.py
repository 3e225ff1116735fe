"""ALBERT (Lan et al. 2019): layers share their weights, and the embeddings are narrower than the encoder."""

import dataclasses
import re
from collections.abc import Collection
from typing import ClassVar

from bert_tf.families.config import BertConfig, arguments_of_size
from bert_tf.families.family import Family, PartNames, all_names, base_name
from bert_tf.families.recipe import Recipe
from bert_tf.text.sentence_piece import HuggingFaceSentencePiece, SentencePieceTokenizer
from bert_tf.text.wordpiece import FullTokenizer

# In the configurations of the released models, but never used.
_IDLE_KEYS = ("down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type", "num_memory_blocks")
_ALBERT_SIZES = {"base": (12, 768), "large": (24, 1024), "xlarge": (24, 2048, 16), "xxlarge": (12, 4096)}


@dataclasses.dataclass(eq=False)
class AlbertConfig(BertConfig):
    """Sizes and rates of an ALBERT, as in albert_config.json; the defaults are those of the original's constructor.

    The arguments are those of `BertConfig` but attention, and:

    embedding_size: width of the embedding tables. If it is not hidden_size, a dense layer follows them.
    num_hidden_groups: layers in a row that share their weights are a group; 1: all layers do.
    inner_group_num: transformer blocks in each of the num_hidden_layers layers.
    """

    hidden_size: int = 4096
    num_attention_heads: int = 64
    intermediate_size: int = 16384
    hidden_dropout_prob: float = 0
    attention_probs_dropout_prob: float = 0
    type_vocab_size: int = 2
    attention: ClassVar[str] = "bidirectional"  # pyrefly: ignore[bad-override]  # it is no field here
    embedding_size: int = 128
    num_hidden_groups: int = 1
    inner_group_num: int = 1

    model_type, title = "albert", "ALBERT"
    unwritten = ("layer_norm_eps",)
    idle_keys = (*_IDLE_KEYS, "pad_token_id")
    pairs = "order"
    looks_up_types = True
    # The defaults of the original's run_pretraining.py, whose LAMB does not correct the moments.
    pretraining_recipe = Recipe(optimizer="lamb", learning_rate=0.00176, warmup_proportion=0.025, bias_correction=False)
    released_vocab_size = 30000
    sizes: ClassVar = {
        f"albert_{name}_{version}": arguments_of_size(*size, embedding_size=128, **dropout)
        for version, dropout in (
            ("v2", {}),  # models of version 2 were trained without dropout
            ("v1", {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}),
        )
        for name, size in _ALBERT_SIZES.items()
    }

    @property
    def block_order(self) -> list[int]:
        """The number of the transformer block of each layer: blocks of a group follow each other."""
        layers, groups, inner = self.num_hidden_layers, self.num_hidden_groups, self.inner_group_num
        return [int(layer / layers * groups) * inner + block for layer in range(layers) for block in range(inner)]


# --- checkpoints of the original: under BERT's scope, with other names for the shared transformer blocks --------------

# Parts of names: ours -> theirs. Each part of a name is replaced once, by the first of these that begins it.
_PARTS = {
    "albert/embeddings_project/": "bert/encoder/embedding_hidden_mapping_in/",
    "albert/": "bert/",
    "/attention/self/": "/attention_1/self/",
    "/attention/output/dense/": "/attention_1/output/dense/",
    "/attention/output/LayerNorm/": "/LayerNorm/",
    "/intermediate/dense/": "/ffn_1/intermediate/dense/",
    "/output/dense/": "/ffn_1/intermediate/output/dense/",
    "/output/LayerNorm/": "/LayerNorm_1/",
}
_PART = re.compile("|".join(map(re.escape, _PARTS)))
_BLOCK = re.compile(r"bert/encoder/transformer/group_(\d+)/inner_group_(\d+)/")


def _name_in_original(name: str, inner_group_num: int) -> str:
    def block(match: re.Match) -> str:
        group, inner = divmod(int(match[1]), inner_group_num)
        return f"encoder/transformer/group_{group}/inner_group_{inner}/"

    return re.sub(r"encoder/layer_(\d+)/", block, _PART.sub(lambda match: _PARTS[match[0]], name))


class _Albert(Family):
    def parts_in_original(self, names: Collection[str]) -> dict[str, PartNames]:
        inner = [int(match[2]) for match in map(_BLOCK.match, names) if match]
        if not inner:
            return {}
        number = 1 + max(inner)
        ours = all_names(self.config_class, lambda name: _name_in_original(name, number) in names)
        ours = {_name_in_original(name, number): name for name in ours}
        bases = ((name, base_name(name)) for name in names)
        kept = ((name, base, ours.get(base, re.sub("^bert/", "albert/", base))) for name, base in bases)
        return {"": PartNames({new + name.removeprefix(base): name for name, base, new in kept})}

    def names_in_original(self, names: Collection[str], inner_group_num: int = 1) -> dict[str, str]:
        return {name: _name_in_original(name, inner_group_num) for name in names}


FAMILY = _Albert(
    config_class=AlbertConfig,
    tokenizer_class=SentencePieceTokenizer,
    other_tokenizers=(HuggingFaceSentencePiece, FullTokenizer),  # word pieces: the Chinese models
    has_tf1=True,
    # As Google and Hugging Face call the folders.
    released=re.compile(r"(?:^|[/-])albert[_-](?:base|x*large)[_-]v([12])(?:/snapshots/[^/]+)?/[^/]+$"),
    refused={"position_embedding_type": ("absolute", None)},
    other_defaults={"hidden_act": "gelu_new"},
    carried=_IDLE_KEYS,
    written={
        "position_embedding_type": "absolute",
        "bos_token_id": 2,
        "eos_token_id": 3,
        "classifier_dropout_prob": AlbertConfig.classifier_dropout,
    },
    block="albert_layer_groups.{group}.albert_layers.{inner}",
    renames=(
        (".attention.self.", ".attention."),
        (".attention.output.dense.", ".attention.dense."),
        (".attention.output.LayerNorm.", ".attention.LayerNorm."),
        (".intermediate.dense.", ".ffn."),
        (".output.dense.", ".ffn_output."),
        (".output.LayerNorm.", ".full_layer_layer_norm."),
        ("albert.embeddings_project.", "albert.encoder.embedding_hidden_mapping_in."),
        ("albert.pooler.dense.", "albert.pooler."),
        ("cls.predictions.transform.", "predictions."),
        ("cls.predictions.", "predictions."),
        ("cls.seq_relationship.", "sop_classifier.classifier."),
    ),
    always_projects=True,
)
