"""Model families: BERT and its descendants, their configurations, and what else is specific to each.

To add one, write its configuration and a `Family` here, and its names in Hugging Face's files in
huggingface_layouts.py. Neither TensorFlow nor Keras is imported here.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import ClassVar

from bert_tf.families.config import BertConfig, arguments_of_size
from bert_tf.families.recipe import Recipe
from bert_tf.system.checks import check_model_type
from bert_tf.text.library_tokenizer import ByteBpeTokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import ElectraTokenizer, FullTokenizer


@dataclasses.dataclass(eq=False)
class DistilBertConfig(BertConfig):
    """Sizes and rates of a DistilBERT; the defaults are those of the released models.

    The arguments are those of `BertConfig`, without those that this family lacks.
    """

    num_hidden_layers: int = 6
    hidden_act: str | None = "gelu_erf"
    type_vocab_size: ClassVar[int] = 0
    attention: ClassVar[str] = "bidirectional"

    model_type = "distilbert"
    unwritten = ()
    has_pooler = False
    attention_output_dropout_prob = 0.0
    classifier_act = "relu"
    classifier_dropout = 0.2
    span_dropout = 0.1
    # train.py of the research project's folder distillation; its optimizer is PyTorch's AdamW.
    pretraining_recipe = Recipe(
        learning_rate=5e-4, warmup_proportion=0.05, warmup="precedes_from_zero", weight_decay_rate=0.0,
        adam_beta_2=0.98, bias_correction=True, epsilon_after_correction=True, clip_norm=5.0,
    )  # fmt: skip
    draws_normal_weights = True
    sizes: ClassVar = {"distilbert_base": arguments_of_size(6, 768)}


@dataclasses.dataclass(eq=False)
class RobertaConfig(BertConfig):
    """Sizes and rates of a RoBERTa; the defaults are those of the released base model.

    The arguments are those of `BertConfig` but attention, and:

    max_position_embeddings: rows of the position table: the longest sequence, and pad_token_id + 1 before it.
    pad_token_id: the id that pads rows. Positions count the other tokens, and begin at the row behind pad_token_id.
    masked_lm_act: the activation of the masked-LM head, one of ACTIVATIONS; None: hidden_act.
    """

    vocab_size: int = 50265
    hidden_act: str | None = "gelu_erf"
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    attention: ClassVar[str] = "bidirectional"
    pad_token_id: int = 1
    masked_lm_act: str | None = None

    model_type = "roberta"
    unwritten = ("masked_lm_act",)
    has_pooler = False
    padding_has_a_position = True
    classifier_act = "tanh"
    hidden_layer_dropout = True
    # fairseq's recipe for pre-training (base.yaml); its Adam decays all variables. Its README has the one for GLUE.
    pretraining_recipe = Recipe(
        learning_rate=5e-4, warmup_proportion=0.08, warmup="precedes", exclude_from_weight_decay=(),
        adam_beta_2=0.98, bias_correction=True, clip_norm=0.0,
    )  # fmt: skip
    recipe = dataclasses.replace(pretraining_recipe, learning_rate=1e-5, warmup_proportion=0.06, weight_decay_rate=0.1)
    draws_normal_weights = True
    mask_rule = "roberta"
    released_vocab_size = 50265
    sizes: ClassVar = {"roberta_base": arguments_of_size(12, 768), "roberta_large": arguments_of_size(24, 1024)}

    @property
    def first_position(self) -> int:
        return self.pad_token_id + 1


_ELECTRA_FINE_TUNING = Recipe(learning_rate=1e-4, warmup="multiplies", layerwise_lr_decay=0.8, sum_loss=True)
_ELECTRA_PRETRAINING = Recipe(learning_rate=5e-4, warmup_proportion=0.01, warmup="multiplies")


@dataclasses.dataclass(eq=False)
class ElectraConfig(BertConfig):
    """Sizes and rates of a discriminator or of a generator; the defaults are those of the small discriminator.

    The arguments are those of `BertConfig` but attention, and:

    embedding_size: width of the embedding tables. If it is not hidden_size, a dense layer follows them. A generator
    has its discriminator's tables, and thus its embedding_size.
    masked_lm_act: the activation of a generator's masked-LM head, one of ACTIVATIONS; None: hidden_act.
    """

    hidden_size: int = 256
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    hidden_act: str | None = "gelu_erf"
    type_vocab_size: int = 2
    attention: ClassVar[str] = "bidirectional"
    embedding_size: int = 128
    masked_lm_act: str | None = None

    model_type = "electra"
    unwritten = ("masked_lm_act",)
    has_pooler = False
    detects_replaced_tokens = True
    head_initializer_range = None
    hidden_layer_dropout = True
    choice_act = "gelu_erf"
    sizes: ClassVar = {
        "electra_small": arguments_of_size(12, 256, embedding_size=128),
        "electra_base": arguments_of_size(12, 768, embedding_size=768),
        "electra_large": arguments_of_size(24, 1024, embedding_size=1024),
    }

    @property
    def recipe(self) -> Recipe:
        """The original's recipe, which depends on the size (configure_finetuning.py)."""
        large = dataclasses.replace(_ELECTRA_FINE_TUNING, learning_rate=5e-5, layerwise_lr_decay=0.9)
        return _ELECTRA_FINE_TUNING if self.hidden_size < 1024 else large

    @property
    def pretraining_recipe(self) -> Recipe:
        """The original's recipe, which depends on the size (configure_pretraining.py)."""
        small = self.hidden_size <= 256
        return _ELECTRA_PRETRAINING if small else dataclasses.replace(_ELECTRA_PRETRAINING, learning_rate=2e-4)

    def generator(self, size: float) -> "ElectraConfig":
        """The configuration of a generator whose width is this share of the discriminator's.

        It has as many layers, and a head for each 64 units of width (the original's pretrain_helpers.py).
        """
        width = round(self.hidden_size * size)
        sizes = {"hidden_size": width, "num_attention_heads": max(1, width // 64), "intermediate_size": 4 * width}
        return type(self).from_dict({**self.to_dict(), **sizes}, allow_unknown=True, source=f"generator_size={size:g}")


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
    attention: ClassVar[str] = "bidirectional"
    embedding_size: int = 128
    num_hidden_groups: int = 1
    inner_group_num: int = 1

    model_type = "albert"
    unwritten = ("layer_norm_eps",)
    # In the configurations of the released models, but never used.
    idle_keys = (
        "down_scale_factor",
        "gap_size",
        "layers_to_keep",
        "net_structure_type",
        "num_memory_blocks",
        "pad_token_id",
    )
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


# --- families --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Family:
    """Everything specific to a model family.

    Attributes:
      config_class: class of its configurations.
      tokenizer_class: class of its tokenizers. tokenizer_name: the class's name in tokenizer_config.json.
      has_tf1: whether the original wrote checkpoints of TensorFlow 1.
      parts: models that are trained together -> a variable that only this one has.
    """

    config_class: type[BertConfig]
    tokenizer_class: type[Tokenizer]
    tokenizer_name: str
    has_tf1: bool = False
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def model_type(self) -> str:
        """Its name in config.json, of the encoder as a Keras model, and of its scope in checkpoints."""
        return self.config_class.model_type

    @property
    def has_word_pieces(self) -> bool:
        """Whether its tokenizers read a vocab.txt with a casing, as BERT's do."""
        return issubclass(self.tokenizer_class, FullTokenizer)

    @property
    def formats(self) -> tuple[str, ...]:
        return ("bert_tf", "tf1", "huggingface") if self.has_tf1 else ("bert_tf", "huggingface")


BERT = Family(BertConfig, FullTokenizer, "BertTokenizer", has_tf1=True)
DISTILBERT = Family(DistilBertConfig, FullTokenizer, "DistilBertTokenizer")
ROBERTA = Family(RobertaConfig, ByteBpeTokenizer, "RobertaTokenizer")
REPLACED_TOKEN_HEAD = "discriminator_predictions/dense/kernel"
_PARTS = {"discriminator": REPLACED_TOKEN_HEAD, "generator": "cls/predictions/output_bias"}
ELECTRA = Family(ElectraConfig, ElectraTokenizer, "ElectraTokenizer", has_tf1=True, parts=_PARTS)
ALBERT = Family(AlbertConfig, SentencePieceTokenizer, "AlbertTokenizer", has_tf1=True)
FAMILIES = (BERT, DISTILBERT, ROBERTA, ELECTRA, ALBERT)


def family_named(model_type: str, source: str = "config") -> Family:
    check_model_type(model_type, source)
    return next(family for family in FAMILIES if family.model_type == model_type)


def config_of_dict(values: Mapping) -> BertConfig:
    """A configuration of any family from what its `to_dict` returned."""
    family = family_named(values.get("model_type", BERT.model_type))
    return family.config_class.from_dict(values, allow_unknown=True)


def as_config(config: BertConfig | Mapping) -> BertConfig:
    """The argument `config` of a model, which may be the dict of a saved model."""
    return config_of_dict(config) if isinstance(config, Mapping) else config


def config_of_size(size: str, vocab_size: int | None = None) -> BertConfig:
    """The configuration of a named size of any family (--bert_size), of the family's class.

        config = config_of_size("albert_base_v2", vocab_size=30000)

    size: a name; of BERT, L-<layers>_H-<hidden size> may have its usual _A-<heads>.
    vocab_size: None: that of the family's released models.
    """
    kinds = [family.config_class for family in FAMILIES]
    for kind in kinds:
        with contextlib.suppress(KeyError):
            return kind.from_size(size, vocab_size)
    files = ", ".join(f"{kind.file_name} ({kind.title})" for kind in kinds)
    raise ValueError(
        f"--bert_size={size} is not one of {', '.join(name for kind in kinds for name in kind.sizes)}. For any other "
        f"size, write a --bert_config_file, whose name says the family: {files}."
    )


def family_of(config: BertConfig) -> Family:
    return family_named(config.model_type)


def family_of_variables(names: Iterable[str]) -> Family:
    """The family whose scope the variable names have; BERT if they have none, as those of a head alone."""
    scopes = {name.split("/")[0] for name in names}
    return next((family for family in FAMILIES if family.model_type in scopes), BERT)


def is_encoder_variable(name: str) -> bool:
    """Whether a name in a checkpoint belongs to the encoder, not to a head or an optimizer."""
    return name.split("/")[0] in {family.model_type for family in FAMILIES}
