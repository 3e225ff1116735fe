"""Floating-point operations of a model's matrix products: those that its outputs need.

Of the last layer, that is keys and values of all tokens, and the rest only for the tokens that are read.
"""

from bert_tf.models.config import BertConfig


def reads_few(count: float, length: float) -> bool:
    """Whether the last layer is computed only for the `count` tokens of `length` that are read: clearly fewer."""
    return 4 * count <= 3 * length


def layer_flops(
    config: BertConfig, length: float, read: float | None = None, *, with_attention: bool = True
) -> list[float]:
    """Floating-point operations of each layer's matrix products, forward, for one sequence.

    Args:
      length: tokens of the sequence. read: of how many tokens the last layer's outputs are read; None: of all.
      with_attention: also of the products of queries, keys and values, which have no weights.
    """
    hidden, inner = config.hidden_size, config.intermediate_size

    def block(queries):
        projections = 4 * length * hidden * hidden + 2 * queries * (2 * hidden * hidden + 2 * hidden * inner)
        return projections + (4.0 * queries * length * hidden if with_attention else 0.0)

    last = read if read is not None and reads_few(read, length) else length
    return [block(length)] * (len(config.block_order) - 1) + [block(last)]


def encoder_flops_per_example(config: BertConfig, length: float, read: float | None = None) -> float:
    """Floating-point operations of the encoder's matrix products, forward; arguments as for `layer_flops`."""
    hidden = config.hidden_size
    projection = 2.0 * length * config.embedding_size * hidden if config.embedding_size != hidden else 0.0
    pooler = 2.0 * hidden * hidden if config.has_pooler else 0.0
    return sum(layer_flops(config, length, read)) + projection + pooler


def pretraining_flops_per_example(
    config: BertConfig, max_seq_length: int, max_predictions_per_seq: int, reads_all: bool = False
) -> float:
    """Floating-point operations of the matrix products for one training example; backward counts twice forward.

    Args:
      reads_all: the last layer is read everywhere, not only at the predictions and the first token.
    """
    hidden, width = config.hidden_size, config.embedding_size
    predictions = 2 * max_predictions_per_seq * (hidden * width + width * config.vocab_size)
    following = 4 * hidden if config.has_pooler else 0
    encoder = encoder_flops_per_example(config, max_seq_length, None if reads_all else max_predictions_per_seq + 1)
    return 3.0 * (encoder + predictions + following)


def electra_flops_per_example(
    config: BertConfig, generator_config: BertConfig, max_seq_length: int, max_predictions_per_seq: int
) -> float:
    """The same for a discriminator of `config`, which judges all tokens, and its generator."""
    generator = pretraining_flops_per_example(generator_config, max_seq_length, max_predictions_per_seq)
    head = 2.0 * max_seq_length * config.hidden_size * (config.hidden_size + 1)
    return generator + 3.0 * (encoder_flops_per_example(config, max_seq_length) + head)
