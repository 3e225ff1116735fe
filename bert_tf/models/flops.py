"""Floating-point operations of a model's matrix products."""

from bert_tf.models.config import BertConfig


def encoder_flops_per_example(config: BertConfig, length: float) -> float:
    """Floating-point operations of the encoder's matrix products, forward, for one sequence of `length` tokens."""
    hidden, inner = config.hidden_size, config.intermediate_size
    block = 2 * length * (4 * hidden * hidden + 2 * hidden * inner) + 4 * length * length * hidden
    projection = 2.0 * length * config.embedding_size * hidden if config.embedding_size != hidden else 0.0
    pooler = 2.0 * hidden * hidden if config.has_pooler else 0.0
    return len(config.block_order) * block + projection + pooler


def pretraining_flops_per_example(config: BertConfig, max_seq_length: int, max_predictions_per_seq: int) -> float:
    """Floating-point operations of the matrix products for one training example; backward counts twice forward."""
    hidden, width = config.hidden_size, config.embedding_size
    predictions = 2 * max_predictions_per_seq * (hidden * width + width * config.vocab_size)
    following = 4 * hidden if config.has_pooler else 0
    return 3.0 * (encoder_flops_per_example(config, max_seq_length) + predictions + following)


def electra_flops_per_example(
    config: BertConfig, generator_config: BertConfig, max_seq_length: int, max_predictions_per_seq: int
) -> float:
    """The same for a discriminator of `config` and its generator."""
    generator = pretraining_flops_per_example(generator_config, max_seq_length, max_predictions_per_seq)
    head = 2.0 * max_seq_length * config.hidden_size * (config.hidden_size + 1)
    return generator + 3.0 * (encoder_flops_per_example(config, max_seq_length) + head)
