"""The names of the original's optimization.py."""

from bert_tf.training.optimization import AdamWeightDecay, Lamb, WarmupLinearDecay, create_optimizer

__all__ = ["AdamWeightDecay", "Lamb", "WarmupLinearDecay", "create_optimizer"]
