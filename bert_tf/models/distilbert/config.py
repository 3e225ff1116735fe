"""DistilBertConfig: the sizes of a DistilBERT."""

from types import MappingProxyType

from bert_tf.models.config import BertConfig, arguments_of_size


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
