"""AlbertConfig: the sizes of an ALBERT."""

import posixpath
import re
from types import MappingProxyType

from bert_tf.models.config import BertConfig, arguments_of_size
from bert_tf.models.recipe import Recipe

# A file in the directory of a released model, as Google and Hugging Face call it.
_RELEASE = re.compile(r"(?:^|[/-])albert[_-](?:base|large|xlarge|xxlarge)[_-]v([12])(?:/snapshots/[^/]+)?/[^/]+$")


class AlbertConfig(BertConfig):
    """Sizes and rates of an ALBERT, as in albert_config.json; the defaults are those of the original's constructor.

    The arguments are those of `BertConfig`, and:

    Args:
      embedding_size: width of the embedding tables. If it is not hidden_size, a dense layer follows them.
      num_hidden_groups: layers in a row that share their weights are a group; 1: all layers do.
      inner_group_num: transformer blocks in each of the num_hidden_layers layers.

    Raises:
      ValueError: an invalid value; names the key.
    """

    title = "ALBERT"
    model_type = "albert"
    unwritten = MappingProxyType({"layer_norm_eps": 1e-12})
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
    embedding_size = 128
    # The defaults of the original's run_pretraining.py, whose LAMB does not correct the moments.
    pretraining_recipe = Recipe(
        optimizer="lamb", learning_rate=0.00176, warmup_proportion=0.025, bias_correction=False
    )  # fmt: skip
    released_vocab_size = 30000
    sizes = MappingProxyType(
        {
            f"albert_{name}_{version}": arguments_of_size(*size, embedding_size=128, **dropout)
            for version, dropout in (
                ("v2", {}),  # models of version 2 were trained without dropout
                ("v1", {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}),
            )
            for name, size in (
                ("base", (12, 768)),
                ("large", (24, 1024)),
                ("xlarge", (24, 2048, 16)),
                ("xxlarge", (12, 4096)),
            )
        }
    )

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int = 128,
        hidden_size: int = 4096,
        num_hidden_layers: int = 12,
        num_hidden_groups: int = 1,
        num_attention_heads: int = 64,
        intermediate_size: int = 16384,
        inner_group_num: int = 1,
        hidden_act: str | None = "gelu",
        hidden_dropout_prob: float = 0,
        attention_probs_dropout_prob: float = 0,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-12,
    ):
        self._set(locals())

    @property
    def block_order(self) -> list[int]:
        """The number of the transformer block of each layer: blocks of a group follow each other."""
        layers, groups, inner = self.num_hidden_layers, self.num_hidden_groups, self.inner_group_num
        return [int(layer / layers * groups) * inner + block for layer in range(layers) for block in range(inner)]

    def doubt(self, config_file: str, weights_path: str) -> str | None:
        """Whether this seems to be of another version of the released models: these have the same variables, but those
        of version 2 were trained without dropout. Only the names of directories and dropout tell versions apart.
        """
        named, found = (_version(path) for path in (config_file, weights_path))
        has_dropout = self.hidden_dropout_prob > 0 or self.attention_probs_dropout_prob > 0
        if found and named and named != found:
            reason = f"is in a directory of version {named}"
        elif found == "2" and has_dropout:
            reason = "has dropout, which models of version 2 don't have"
        else:
            return None
        return (
            f"{config_file} {reason}, but by the name of its directory {weights_path} is version {found} of ALBERT: "
            f"unless this is meant, take the {posixpath.basename(config_file)} of the release with the weights."
        )

    def validate(self) -> None:
        super().validate()
        if self.num_hidden_groups > self.num_hidden_layers:
            raise ValueError(
                f"num_hidden_groups={self.num_hidden_groups} is more than num_hidden_layers={self.num_hidden_layers}: "
                "some groups would never be used"
            )


def _version(path: str) -> str | None:
    """The version that a directory's name says; None: it doesn't."""
    match = _RELEASE.search(path)
    return match and match[1]
