"""How long the paper's pre-training takes: computed from operations and peak rates, not measured.

    python -m experiments.recipe_time --bert_sizes=base,large --utilization=0.4

Prints a Markdown table. The operations are those of the matrix products (bert_tf/models/encoder.py), forward and
backward; the peak rates are the manufacturers', for dense bfloat16 products.

Paper: Devlin et al. 2019, appendix A.2.
"""

from collections.abc import Iterable

from absl import flags

from bert_tf.families import config_of_size
from bert_tf.families.config import BertConfig
from bert_tf.models.encoder import pretraining_flops_per_example
from bert_tf.system import script as system_script

BATCH_SIZE = 256
# Steps, max_seq_length, max_predictions_per_seq.
PHASES = ((900_000, 128, 20), (100_000, 512, 77))

# Operations per second of dense bfloat16 products, from the manufacturers' data sheets: v5e 197e12 per chip; H100 and
# H200 (SXM) 989e12 (their 1,979e12 counts sparse products).
PEAK_RATES = {"v5e-8": 8 * 197e12, "8 x H100": 8 * 989e12, "1 x H200": 989e12}


def phase_flops(config: BertConfig) -> list[float]:
    """Floating-point operations of each phase of the recipe."""
    return [
        steps * BATCH_SIZE * pretraining_flops_per_example(config, length, predictions)
        for steps, length, predictions in PHASES
    ]


def hours(operations: float, peak_rate: float, utilization: float) -> float:
    """Hours that the operations take at a share of the peak rate (operations per second)."""
    return operations / (peak_rate * utilization) / 3600


def create_table(sizes: Iterable[str], utilization: float) -> str:
    """The table as Markdown.

    Args:
      sizes: as in `families.config_of_size`. utilization: share of the peak rate that training reaches.

    Raises:
      ValueError: no such size.
    """
    columns = ["size", *(f"operations at {length} tokens" for _, length, _ in PHASES), "together"]
    columns += [f"{name}, hours" for name in PEAK_RATES]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for size in sizes:
        parts = phase_flops(config_of_size(size))
        row = [size, *(f"{part:.2e}" for part in [*parts, sum(parts)])]
        row += [f"{hours(sum(parts), rate, utilization):.1f}" for rate in PEAK_RATES.values()]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def define_flags() -> None:
    flags.DEFINE_list("bert_sizes", ["base", "large"], "Sizes as in run_pretraining.py.")
    flags.DEFINE_float(
        "utilization", 0.4, "Assumed share of the peak rate: the log's model_flops_per_second / the peak rate.", 0.01, 1
    )


def main(_):
    print(create_table(flags.FLAGS.bert_sizes, flags.FLAGS.utilization))


if __name__ == "__main__":
    define_flags()
    system_script.run(main)
