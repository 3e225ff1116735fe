"""The limit of this machine: the time of the matrix products that some work needs, at the rate of a large one."""

import collections
import statistics
import time
from collections.abc import Iterable

import tensorflow as tf

from bert_tf.families.config import BertConfig
from bert_tf.models.encoder import encoder_flops_per_example


def matmul_rate(config: BertConfig, rows: int, dtype: str, times: int = 30) -> float:
    """FLOP/s of the intermediate layer's product, the model's largest; the median of many.

    Args:
      rows: tokens that are multiplied at once. dtype: "float32" or "bfloat16".
    """
    left = tf.cast(tf.random.normal((rows, config.hidden_size)), dtype)
    right = tf.cast(tf.random.normal((config.hidden_size, config.intermediate_size)), dtype)
    product = tf.function(lambda: tf.reduce_sum(tf.linalg.matmul(left, right)[0, :1]))
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        float(product())
        seconds.append(time.perf_counter() - start)
    return 2 * rows * config.hidden_size * config.intermediate_size / statistics.median(seconds)


class Limit:
    """The least time for the matrix products that some work needs, by rates measured before and after it.

    Args:
      config: of the model. flops: operations. rows, dtype: see `matmul_rate`.
    """

    def __init__(self, config: BertConfig, flops: float, rows: int, dtype: str = "bfloat16"):
        self._flops, self._product, self._rates = flops, (config, rows, dtype), []

    def measure(self) -> None:
        """Measures the rate."""
        self._rates.append(matmul_rate(*self._product))

    def seconds(self) -> float:
        """The least time."""
        return self._flops / statistics.median(self._rates)

    def __str__(self) -> str:
        rate = statistics.median(self._rates)
        return (f"limit: {self.seconds():.4g} s for {self._flops / 1e12:.4g} TFLOP of matrix products without "
                f"padding, at {rate / 1e12:.3f} TFLOP/s")  # fmt: skip


def encoder_flops(config: BertConfig, lengths: Iterable[int], read: int | None = None) -> float:
    """Operations of an encoder forward for rows of these lengths; read: see `encoder_flops_per_example`."""
    counts = collections.Counter(map(int, lengths))
    return sum(count * encoder_flops_per_example(config, length, read) for length, count in counts.items())
