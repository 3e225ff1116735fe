"""Floating-point operations of a model's matrix products."""

from bert_tf.models.config import BertConfig


def encoder_flops_per_example(config: BertConfig, length: float) -> float:
    """Floating-point operations of the encoder's matrix products, forward, for one sequence of `length` tokens."""
    hidden, inner = config.hidden_size, config.intermediate_size
    block = 2 * length * (4 * hidden * hidden + 2 * hidden * inner) + 4 * length * length * hidden
    return len(config.block_order) * block + 2.0 * hidden * hidden


def pretraining_flops_per_example(config: BertConfig, max_seq_length: int, max_predictions_per_seq: int) -> float:
    """Floating-point operations of the matrix products for one training example; backward counts twice forward."""
    hidden = config.hidden_size
    predictions = 2 * max_predictions_per_seq * (hidden * hidden + hidden * config.vocab_size)
    return 3.0 * (encoder_flops_per_example(config, max_seq_length) + predictions + 4 * hidden)
