"""DistilBertConfig: the sizes of a DistilBERT."""

from types import MappingProxyType

from bert_tf.models.config import BertConfig, arguments_of_size
from bert_tf.models.recipe import Recipe


class DistilBertConfig(BertConfig):
    """Sizes and rates of a DistilBERT; the defaults are those of the released models.

    The arguments are those of `BertConfig`, less what this family doesn't have.

    Raises:
      ValueError: an invalid value; names the key.
    """

    title = "DistilBERT"
    model_type = "distilbert"
    unwritten = MappingProxyType({})
    has_pooler = False
    type_vocab_size = 0
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
    sizes = MappingProxyType({"distilbert_base": arguments_of_size(6, 768)})

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int = 768,
        num_hidden_layers: int = 6,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        hidden_act: str | None = "gelu_erf",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-12,
    ):
        self._set(locals())
