"""RobertaConfig: the sizes of a RoBERTa."""

import dataclasses
from types import MappingProxyType

from bert_tf.models.config import BertConfig, arguments_of_size
from bert_tf.models.recipe import Recipe


class RobertaConfig(BertConfig):
    """Sizes and rates of a RoBERTa; the defaults are those of the released base model.

    The arguments are those of `BertConfig`, and:

    Args:
      max_position_embeddings: rows of the position table: the longest sequence, and pad_token_id + 1 before it.
      pad_token_id: the id that pads rows. Positions count the other tokens, and begin at the row behind pad_token_id.
      masked_lm_act: the activation of the masked-LM head, one of ACTIVATIONS; None: hidden_act.

    Raises:
      ValueError: an invalid value; names the key.
    """

    title = "RoBERTa"
    model_type = "roberta"
    unwritten = MappingProxyType({"masked_lm_act": None})
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
    sizes = MappingProxyType({"roberta_base": arguments_of_size(12, 768), "roberta_large": arguments_of_size(24, 1024)})

    def __init__(
        self,
        vocab_size: int = 50265,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        hidden_act: str | None = "gelu_erf",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 514,
        type_vocab_size: int = 1,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-5,
        pad_token_id: int = 1,
        masked_lm_act: str | None = None,
    ):
        self._set(locals())

    @property
    def first_position(self) -> int:
        """See `BertConfig`; the row of padding is that of its id."""
        return self.pad_token_id + 1

    def validate(self) -> None:
        super().validate()
        if not isinstance(self.pad_token_id, int) or not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id must be the id of a token, 0 to vocab_size - 1, not {self.pad_token_id!r}")
        if self.max_length < 1:
            raise ValueError(
                f"max_position_embeddings={self.max_position_embeddings} leaves no position: the first is "
                f"pad_token_id + 1 = {self.first_position}"
            )
