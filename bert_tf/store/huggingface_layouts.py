"""How Hugging Face's files of each family differ from the names and keys used here.

Their models are the same with other names: linear layers hold [out, in] where the original's kernels are [in, out], and
the encoder's names carry the family's prefix (`bert.`) when a head is on top.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping

from bert_tf.families.config import BertConfig
from bert_tf.families.families import AlbertConfig, DistilBertConfig, ElectraConfig, RobertaConfig
from bert_tf.store.variable_names import HIDDEN_LAYER

FIXED_NAMES = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
_LAST_PARTS = {"kernel": "weight", "gamma": "weight", "beta": "bias"}


@dataclasses.dataclass(frozen=True)
class Layout:
    """How Hugging Face's files of a family differ from the names and keys used here.

    Attributes:
      config_class: of the family's configurations.
      defaults: of their configuration class, by our keys: for keys that a config.json leaves out.
      keys: our key -> theirs, where they differ.
      refused: their key -> the values that are understood.
      written: keys and values that a config.json has besides. carried: further keys, in and out as they are.
      block: how the scope of a transformer block ends, by its number, or by those of its group and within the group.
      inner_group_num: the blocks of a group.
      adds_pooler: their encoder has a pooler, which the family's original doesn't have.
      always_projects: there is a layer behind the embeddings even if it needn't change their width.
      parts: (a part of a name as their BERT has it, this family's), replaced in this order.
      heads: classifier as `HeadConfig.architecture` -> its names, where it has a hidden layer under names of its own.
      masked_lm_act: the activation of their masked-LM head, if it isn't hidden_act.
      classifier_act: the activation of that layer of a classifier of texts, if the family's original has no such layer.
    """

    config_class: type[BertConfig]
    defaults: Mapping[str, object]
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refused: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    written: Mapping[str, object] = dataclasses.field(default_factory=dict)
    carried: tuple[str, ...] = ()
    block: str = "layer.{number}"
    inner_group_num: int = 1
    adds_pooler: bool = False
    always_projects: bool = False
    parts: tuple[tuple[str, str], ...] = ()
    heads: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    masked_lm_act: str | None = None
    classifier_act: str | None = None

    @property
    def title(self) -> str:
        return self.config_class.title

    @property
    def class_prefix(self) -> str:
        """The beginning of its classes' names, here and there, as in BertForMaskedLM."""
        return self.config_class.__name__.removesuffix("Config")

    @property
    def scope(self) -> str:
        return self.config_class.model_type

    def renamed(self, name: str) -> str:
        """The family's name for a name of Hugging Face's BERT."""
        for old, new in self.parts:
            name = name.replace(old, new)
        return name

    def name_of(self, name: str, architecture: str | None = None) -> str:
        """Hugging Face's name, with the encoder's prefix, of a variable of a model with this one of `heads`."""
        if name in self.heads.get(architecture, ()):
            return self.heads[architecture][name]
        if name in FIXED_NAMES:
            return self.renamed(FIXED_NAMES[name])

        def block(match: re.Match) -> str:
            group, inner = divmod(int(match[1]), self.inner_group_num)
            return self.block.format(number=match[1], group=group, inner=inner)

        scope, last = name.rsplit("/", 1)
        last = last + ".weight" if last.endswith("_embeddings") else _LAST_PARTS.get(last, last)
        return self.renamed(re.sub(r"layer_(\d+)", block, scope).replace("/", ".") + "." + last)

    def fitted(self, names: Iterable[str]) -> "Layout":
        """The layout with the number of blocks in a group that a file's names show."""
        pattern = re.escape(self.block).replace(r"\{group\}", r"\d+").replace(r"\{inner\}", r"(\d+)") + r"\."
        if "{inner}" not in self.block:
            return self
        numbers = [int(match[1]) for name in names if (match := re.search(pattern, name))]
        return dataclasses.replace(self, inner_group_num=1 + max(numbers, default=0))


# The defaults of their BertConfig; those of other classes differ in a few keys.
_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}
# Values of `Layout.refused` for encoders with absolute positions.
_PLAIN_ENCODER = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
}
_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}


def _classifier(hidden: str, output: str) -> dict[str, str]:
    """Variables of a classifier with a hidden layer -> Hugging Face's names; its two layers are called so there."""
    names = (f"{layer}.{part}" for layer in (hidden, output) for part in ("weight", "bias"))
    return dict(zip((*HIDDEN_LAYER, "output_weights", "output_bias"), names, strict=True))


_BERT = Layout(
    config_class=BertConfig,
    defaults=_DEFAULTS,
    refused={**_PLAIN_ENCODER, "is_encoder_decoder": (False, None)},
    written={"position_embedding_type": "absolute"},
)
_DISTILBERT = Layout(
    config_class=DistilBertConfig,
    defaults={
        **{key: _DEFAULTS[key] for key in _DEFAULTS if key not in ("type_vocab_size", "layer_norm_eps")},
        "num_hidden_layers": 6,
    },
    keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    parts=(
        ("distilbert.encoder.layer.", "distilbert.transformer.layer."),
        (".attention.self.query.", ".attention.q_lin."),
        (".attention.self.key.", ".attention.k_lin."),
        (".attention.self.value.", ".attention.v_lin."),
        (".attention.output.dense.", ".attention.out_lin."),
        (".attention.output.LayerNorm.", ".sa_layer_norm."),
        (".intermediate.dense.", ".ffn.lin1."),
        (".output.dense.", ".ffn.lin2."),
        (".output.LayerNorm.", ".output_layer_norm."),
        ("cls.predictions.transform.dense.", "vocab_transform."),
        ("cls.predictions.transform.LayerNorm.", "vocab_layer_norm."),
        ("cls.predictions.decoder.", "vocab_projector."),
        ("cls.predictions.bias", "vocab_projector.bias"),
    ),
)
_ROBERTA = Layout(
    config_class=RobertaConfig,
    # Theirs, not those of the released models.
    defaults={**_DEFAULTS, "vocab_size": 50265, "pad_token_id": 1},
    refused=_PLAIN_ENCODER,
    written={"position_embedding_type": "absolute", "bos_token_id": 0, "eos_token_id": 2},
    parts=(
        ("cls.predictions.transform.dense.", "lm_head.dense."),
        ("cls.predictions.transform.LayerNorm.", "lm_head.layer_norm."),
        ("cls.predictions.decoder.", "lm_head.decoder."),
        ("cls.predictions.bias", "lm_head.bias"),
    ),
    heads={
        "BertForSequenceClassification": _classifier("classifier.dense", "classifier.out_proj"),
        # Choices are scored on the output of a pooler.
        "BertForMultipleChoice": _classifier("roberta.pooler.dense", "classifier"),
    },
    adds_pooler=True,
    masked_lm_act="gelu_erf",
)
# ElectraForPreTraining is a discriminator, ElectraForMaskedLM a generator.
_ELECTRA = Layout(
    config_class=ElectraConfig,
    defaults={
        **_DEFAULTS,
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    refused={**_PLAIN_ENCODER, **{key: (value, None) for key, value in _SUMMARY.items()}},
    written={"position_embedding_type": "absolute", "summary_last_dropout": 0.1, **_SUMMARY},
    parts=(
        ("discriminator_predictions.dense_1.", "discriminator_predictions.dense_prediction."),
        ("cls.predictions.transform.dense.", "generator_predictions.dense."),
        ("cls.predictions.transform.LayerNorm.", "generator_predictions.LayerNorm."),
        ("cls.predictions.decoder.", "generator_lm_head."),
        ("cls.predictions.bias", "generator_lm_head.bias"),
    ),
    # Their classifier of texts has a hidden layer that the original's doesn't have; the original has no choices.
    heads={
        "BertForSequenceClassification": _classifier("classifier.dense", "classifier.out_proj"),
        "BertForMultipleChoice": _classifier("sequence_summary.summary", "classifier"),
    },
    masked_lm_act="gelu_erf",
    classifier_act="gelu_erf",
)
_ALBERT = Layout(
    config_class=AlbertConfig,
    defaults={
        **_DEFAULTS,
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_groups": 1,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "inner_group_num": 1,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
    },
    refused={"position_embedding_type": ("absolute", None)},
    carried=("down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type", "num_memory_blocks"),
    written={
        "position_embedding_type": "absolute",
        "bos_token_id": 2,
        "eos_token_id": 3,
        "classifier_dropout_prob": AlbertConfig.classifier_dropout,
    },
    block="albert_layer_groups.{group}.albert_layers.{inner}",
    parts=(
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

# By model_type.
LAYOUTS = {layout.scope: layout for layout in (_BERT, _DISTILBERT, _ROBERTA, _ELECTRA, _ALBERT)}
