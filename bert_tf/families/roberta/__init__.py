"""RoBERTa (Liu et al. 2019): BERT with byte-level BPE, trained without sentence pairs."""

import dataclasses
from typing import ClassVar

from bert_tf.families.config import BertConfig, arguments_of_size
from bert_tf.families.family import PLAIN_ENCODER, Family, two_layers
from bert_tf.families.recipe import Recipe
from bert_tf.text.library_tokenizer import ByteBpeTokenizer


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
    attention: ClassVar[str] = "bidirectional"  # pyrefly: ignore[bad-override]  # it is no field here
    pad_token_id: int = 1
    masked_lm_act: str | None = None  # pyrefly: ignore[bad-override]  # it is a field here

    model_type, title = "roberta", "RoBERTa"
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
    def first_position(self) -> int:  # pyrefly: ignore[bad-override]  # it depends on a field
        return self.pad_token_id + 1


FAMILY = Family(
    config_class=RobertaConfig,
    tokenizer_class=ByteBpeTokenizer,
    # Theirs, not those of the released models.
    other_defaults={"type_vocab_size": 2, "max_position_embeddings": 512, "layer_norm_eps": 1e-12},
    refused=PLAIN_ENCODER,
    written={"position_embedding_type": "absolute", "bos_token_id": 0, "eos_token_id": 2},
    renames=(
        ("cls.predictions.transform.dense.", "lm_head.dense."),
        ("cls.predictions.transform.LayerNorm.", "lm_head.layer_norm."),
        ("cls.predictions.decoder.", "lm_head.decoder."),
        ("cls.predictions.bias", "lm_head.bias"),
    ),
    heads={
        "BertForSequenceClassification": two_layers("classifier.dense", "classifier.out_proj"),
        # Choices are scored on the output of a pooler.
        "BertForMultipleChoice": two_layers("roberta.pooler.dense", "classifier"),
    },
    adds_pooler=True,
    masked_lm_act="gelu_erf",
)
