"""Speed of a full pre-training step compared with tf-models-official's, in one run on the same batches.

    python benchmarks/train_step.py --dtype=bfloat16
    python benchmarks/train_step.py --dtype=bfloat16 --records=train.tfrecord
    python benchmarks/train_step.py --dtype=bfloat16 --packed_texts=novels/train-00.txt --max_seq_length=512 \\
      --max_predictions_per_seq=77 --batch_size=8
    python benchmarks/train_step.py --dtype=bfloat16 --model=albert
    python benchmarks/train_step.py --dtype=bfloat16 --model=electra --hidden_size=256 --max_predictions_per_seq=19

The peer is BertPretrainerV2, for ALBERT with its AlbertEncoder; or for ELECTRA the ElectraPretrainer as its electra
task builds it.

By default both train on one batch of random tokens without padding; with --records on the same batches of these records
in the same order; with --packed_texts on the pairs of these texts, several a row here and one a row there, as the peer
has no packing. Figures are pairs (examples) per second: those really trained, not rows.

A step is forward, backward with dropout, clipping, and the optimizer. The two take turns, so that a machine whose speed
drifts favours neither; quote the ratio, not the seconds. Model FLOPs are those of the matrix products that the pairs
need without any padding, with backward counted as twice forward; the machine's rate is that of a matrix product of the
model's shape in the same dtype. The line "limit" has the time of these operations at that rate. Last come what does not
depend on other programs: processor time, pages of memory that the system had to clear, and the process's peak. With
TF_ENABLE_ONEDNN_OPTS=0 in the environment memory is that of processors for which TensorFlow does not use oneDNN; add
TF_CPU_ALLOCATOR_USE_BFC=1, as scripts do there.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pathlib
import resource
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import app, flags, logging
from machine import matmul_rate
from measured import add
from model_garden import bert_peer_step, electra_peer_step
from pretraining_batches import batches_of_records, contents, electra_batch, random_batch, records_of_texts, repeated

from bert_tf.families.albert import AlbertConfig
from bert_tf.families.config import BertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.models.electra import ElectraPretrainer
from bert_tf.models.encoder import pretraining_flops_per_example, replaced_token_flops_per_example
from bert_tf.models.task_models import BertForPreTraining
from bert_tf.training.optimization import create_optimizer
from bert_tf.training.settings import TrainingSettings
from bert_tf.training.step import Trainer

ROOT = pathlib.Path(__file__).resolve().parents[1]
FLAGS = flags.FLAGS
flags.DEFINE_enum("dtype", "bfloat16", ["bfloat16", "float32"], "Arithmetic of the matrix products.")
flags.DEFINE_enum("model", "bert", ["bert", "albert", "electra"], "electra: a generator and a discriminator.")
flags.DEFINE_float("generator_size", 0.25, "ELECTRA: width of the generator, as a share of hidden_size.")
flags.DEFINE_integer("num_hidden_layers", 12, "Encoder layers; 12 of width 768 are BERT-Base.")
flags.DEFINE_integer("hidden_size", 768, "Width of the model; each head has 64.")
flags.DEFINE_integer("batch_size", 16, "Rows per step.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens per row.")
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked positions per row.")
flags.DEFINE_integer("rounds", 7, "Timed steps of each, in turn.")
flags.DEFINE_bool("peer", True, "Also run tf-models-official.")
flags.DEFINE_string("records", None, "For BERT: train on these records of create_pretraining_data.py, of any kind.")
flags.DEFINE_string("packed_texts", None, "For BERT: train on the pairs of these texts, packed here and not there.")
flags.DEFINE_string(
    "vocab_file", str(ROOT / "tests" / "golden" / "vocab.txt"), "Vocabulary of unmasked records and of --packed_texts."
)

_WARM_UP = 2  # steps that are not timed


def our_step(create_model, batches: tf.data.Dataset, dtype: str, recompute: bool = False) -> Callable[[], float]:
    """A function that runs one step of ours, on the next of some batches of fixed size.

    create_model: a Keras dtype policy -> the model.
    """
    strategy = tf.distribute.OneDeviceStrategy("/gpu:0" if tf.config.list_logical_devices("GPU") else "/cpu:0")
    with strategy.scope():
        model = create_model("mixed_bfloat16" if dtype == "bfloat16" else "float32")
        model.build()
        optimizer = create_optimizer("adamw", 1e-4, 1000, 10)
        optimizer.build(model.trainable_variables)
    rows = batches.element_spec["input_ids"].shape[0]
    settings = TrainingSettings(train_batch_size=rows, recompute=recompute)
    run = Trainer(model, optimizer, model.objective, strategy, settings).steps
    iterator = iter(batches)
    return lambda: float(run(iterator, tf.constant(1))["loss"])


class Comparison:
    """The model that the flags name, its batches, and how to build a step of each side.

    Attributes:
      config: of the model (of ELECTRA's discriminator).
      batches: of ours and of the peer's, by the names of the sides.
      flops: (tokens, predictions) of an example -> operations that it needs.
    """

    def __init__(self, folder: str):
        """folder: for records that are made for this run."""
        sizes = {
            "vocab_size": 30522,
            "hidden_size": FLAGS.hidden_size,
            "num_hidden_layers": FLAGS.num_hidden_layers,
            "num_attention_heads": max(1, FLAGS.hidden_size // 64),
            "intermediate_size": 4 * FLAGS.hidden_size,
            "type_vocab_size": 2,
        }
        self.config, self._generator = BertConfig(**sizes), None
        self.flops = lambda *size: pretraining_flops_per_example(self.config, *size)
        self.batches = self._read_batches(folder)
        if FLAGS.model == "albert":
            self.config = AlbertConfig(**sizes, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
        if FLAGS.model == "electra":
            self.config = ElectraConfig(**sizes, embedding_size=128 if FLAGS.hidden_size <= 256 else FLAGS.hidden_size)
            self._generator = self.config.generator(FLAGS.generator_size)
            self.flops = lambda *size: replaced_token_flops_per_example(self.config, self._generator, *size)

    def _read_batches(self, folder: str) -> dict[str, tf.data.Dataset]:
        size = FLAGS.batch_size, FLAGS.max_seq_length, FLAGS.max_predictions_per_seq
        if not FLAGS.records and not FLAGS.packed_texts:
            batch = random_batch(self.config, *size)
            batches = repeated(electra_batch(batch) if FLAGS.model == "electra" else batch)
            return {"bert_tf": batches, "tf-models-official": batches}
        if FLAGS.model != "bert" or (FLAGS.records and FLAGS.packed_texts):
            raise app.UsageError("--records, --packed_texts: give one of them, with --model=bert.")
        files = FLAGS.records, FLAGS.records
        if FLAGS.packed_texts:
            files = records_of_texts(FLAGS.packed_texts, folder, FLAGS.vocab_file, FLAGS.max_seq_length)
        ours, peers = (batches_of_records(file, self.config, *size, FLAGS.vocab_file) for file in files)
        return {"bert_tf": ours, "tf-models-official": peers}

    def our_step(self) -> Callable[[], float]:
        """A function that runs one step of bert_tf."""
        kind = lambda dtype: BertForPreTraining(self.config, dtype=dtype)  # noqa: E731
        if self._generator:
            kind = lambda dtype: ElectraPretrainer(self.config, self._generator, dtype=dtype)  # noqa: E731
        return our_step(kind, self.batches["bert_tf"], FLAGS.dtype)

    def peer_step(self) -> Callable[[], float]:
        """The same of tf-models-official."""
        batches = self.batches["tf-models-official"]
        if self._generator:
            return electra_peer_step(self.config, self._generator, batches, FLAGS.dtype)
        return bert_peer_step(self.config, batches, FLAGS.dtype)


def used() -> np.ndarray:
    """Processor seconds of this process so far, and pages that the system cleared for it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return np.array([usage.ru_utime + usage.ru_stime, usage.ru_minflt])


def measure(steps: dict[str, Callable], config: BertConfig) -> tuple[dict[str, list[float]], dict, float]:
    """Seconds of each side's timed steps, what a step `used`, and the rate of matrix products, FLOP/s."""
    for name, step in steps.items():
        start = time.perf_counter()
        for _ in range(_WARM_UP):
            step()
        print(f"{name}: compiled in {time.perf_counter() - start:.0f} s", flush=True)
    seconds, usage, rates = {name: [] for name in steps}, dict.fromkeys(steps, 0), []
    for _ in range(FLAGS.rounds):
        rates.append(matmul_rate(config, FLAGS.batch_size * FLAGS.max_seq_length, FLAGS.dtype))
        for name, step in steps.items():
            start, before = time.perf_counter(), used()
            step()
            seconds[name].append(time.perf_counter() - start)
            usage[name] += (used() - before) / FLAGS.rounds
    return seconds, usage, statistics.median(rates)


def main(_):
    logging.set_verbosity(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(folder)
        steps = {"bert_tf": comparison.our_step()}
        if FLAGS.peer:
            steps["tf-models-official"] = comparison.peer_step()
        seconds, usage, rate = measure(steps, comparison.config)
        trained = {name: contents(comparison.batches[name], _WARM_UP, FLAGS.rounds) for name in steps}
    length, rows = FLAGS.max_seq_length, FLAGS.rounds * FLAGS.batch_size
    title = (f"{FLAGS.model}, {FLAGS.num_hidden_layers} layers, H {FLAGS.hidden_size}, S {length}, P "
             f"{FLAGS.max_predictions_per_seq}, batch {FLAGS.batch_size}, {FLAGS.dtype}")  # fmt: skip
    print(f"\n{title}; matrix products here: {rate / 1e12:.3f} TFLOP/s")
    print(f"{'':20} {'s/step':>8} {'min':>8} {'padding':>8} {'pairs/step':>11} {'pairs/s':>8} {'model TFLOP/s':>14} "
          f"{'of matmul rate':>15}")  # fmt: skip
    pairs, figures = {}, {}
    for name, values in seconds.items():
        sizes = [size for batch in trained[name] for size in batch]
        padding = 1 - sum(tokens for tokens, _ in sizes) / (rows * length)
        pairs[name], flops = (total / FLAGS.rounds for total in (len(sizes), sum(comparison.flops(*s) for s in sizes)))
        for side, taken in ((name, values), ("  its limit", [flops / rate])):
            median = statistics.median(taken)
            print(f"{side:20} {median:8.3f} {min(taken):8.3f} {padding:8.1%} {pairs[name]:11.2f} "
                  f"{pairs[name] / median:8.2f} {flops / median / 1e12:14.3f} "
                  f"{flops / median / rate:15.1%}")  # fmt: skip
        median = statistics.median(values)
        figures |= {f"{name}, s": median, f"{name}, examples/s": pairs[name] / median}
        figures.setdefault("the limit, s", flops / rate)
    ratios = []
    if FLAGS.peer:
        more = pairs["bert_tf"] / pairs["tf-models-official"]
        ratios = [more * b / a for a, b in zip(seconds["bert_tf"], seconds["tf-models-official"], strict=True)]
        print(f"bert_tf is {statistics.median(ratios):.2f} times as fast as tf-models-official "
              f"(pair by pair {min(ratios):.2f} to {max(ratios):.2f})")  # fmt: skip
    title += ", real records" if FLAGS.records else ", packed pairs" if FLAGS.packed_texts else ""
    add("a pre-training step", title, figures, ["tf-models-official"] if FLAGS.peer else [], ratios)
    for name, (processor, pages) in usage.items():
        print(f"{name}: {processor:.3f} processor seconds and {pages:,.0f} cleared pages per step")
    print(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB of memory")


if __name__ == "__main__":
    app.run(main)
