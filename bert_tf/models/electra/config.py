"""ElectraConfig: the sizes of an ELECTRA, discriminator or generator."""

import dataclasses
from types import MappingProxyType

from bert_tf.models.config import BertConfig, arguments_of_size
from bert_tf.models.recipe import Recipe

_RECIPE = Recipe(learning_rate=1e-4, warmup="multiplies", layerwise_lr_decay=0.8, sum_loss=True)
_LARGE, _LARGE_RECIPE = 1024, dataclasses.replace(_RECIPE, learning_rate=5e-5, layerwise_lr_decay=0.9)
_PRETRAINING = Recipe(learning_rate=5e-4, warmup_proportion=0.01, warmup="multiplies")
_SMALL, _LARGER_PRETRAINING = 256, dataclasses.replace(_PRETRAINING, learning_rate=2e-4)


class ElectraConfig(BertConfig):
    """Sizes and rates of a discriminator or of a generator; the defaults are those of the small discriminator.

    The arguments are those of `BertConfig`, and:

    Args:
      embedding_size: width of the embedding tables. If it is not hidden_size, a dense layer follows them. A generator
        has its discriminator's tables, and thus its embedding_size.
      masked_lm_act: the activation of a generator's masked-LM head, one of ACTIVATIONS; None: hidden_act.

    Raises:
      ValueError: an invalid value; names the key.
    """

    title = "ELECTRA"
    model_type = "electra"
    unwritten = MappingProxyType({"masked_lm_act": None})
    has_pooler = False
    detects_replaced_tokens = True
    head_initializer_range = None
    hidden_layer_dropout = True
    choice_act = "gelu_erf"
    embedding_size = 128
    sizes = MappingProxyType(
        {
            "electra_small": arguments_of_size(12, 256, embedding_size=128),
            "electra_base": arguments_of_size(12, 768, embedding_size=768),
            "electra_large": arguments_of_size(24, 1024, embedding_size=1024),
        }
    )

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int = 128,
        hidden_size: int = 256,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 4,
        intermediate_size: int = 1024,
        hidden_act: str | None = "gelu_erf",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-12,
        masked_lm_act: str | None = None,
    ):
        self._set(locals())

    @property
    def recipe(self) -> Recipe:
        """The original's, which depends on the size (configure_finetuning.py)."""
        return _RECIPE if self.hidden_size < _LARGE else _LARGE_RECIPE

    @property
    def pretraining_recipe(self) -> Recipe:
        """The original's, which depends on the size (configure_pretraining.py)."""
        return _PRETRAINING if self.hidden_size <= _SMALL else _LARGER_PRETRAINING

    def generator(self, size: float) -> "ElectraConfig":
        """The configuration of a generator for a discriminator of this one.

        Args:
          size: of its width, as a share of the discriminator's. It has as many layers, and a head for each 64 units of
            width (the original's pretrain_helpers.py).

        Raises:
          ValueError: no generator has such a width.
        """
        width = round(self.hidden_size * size)
        heads = max(1, width // 64)
        if width < 1 or width % heads:
            raise ValueError(
                f"--generator_size={size:g} of hidden_size {self.hidden_size} is {width}, which {heads} attention "
                "heads can't share: choose another, or give --generator_config_file."
            )
        sizes = {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": 4 * width}
        return type(self).from_dict({**self.to_dict(), **sizes}, allow_unknown=True)
