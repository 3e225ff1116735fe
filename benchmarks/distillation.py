"""What a teacher costs in a step of fine-tuning, compared with its own inference, in one run on one batch.

    python benchmarks/distillation.py --dtype=bfloat16

Three things take turns, so that a machine whose speed drifts favours none: a step of the student without a teacher, the
same step with one, and a batch of the teacher's predictions as the scripts make them. What the teacher costs is the
difference of the first two; quote its ratio to the third, not the seconds. On a CPU that others use, too, the time that
the process had the CPU says more than the clock.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import statistics
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

from bert_tf.families.config import BertConfig
from bert_tf.models.distillation import DistillationObjective, TaughtModel
from bert_tf.models.task_models import BertForSequenceClassification
from bert_tf.training.optimization import create_optimizer
from bert_tf.training.settings import TrainingSettings
from bert_tf.training.step import Trainer, make_predict_function

FLAGS = flags.FLAGS
flags.DEFINE_enum("dtype", "bfloat16", ["bfloat16", "float32"], "Arithmetic of the matrix products.")
flags.DEFINE_integer("hidden_size", 768, "Width of both models; each head has 64.")
flags.DEFINE_integer("teacher_layers", 12, "Encoder layers of the teacher.")
flags.DEFINE_integer("student_layers", 6, "Encoder layers of the student.")
flags.DEFINE_integer("batch_size", 32, "Examples per step.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens per example.")
flags.DEFINE_integer("rounds", 9, "Timed steps of each, in turn.")

LABELS = 3


def random_batch(vocab_size: int) -> dict:
    """A batch of random ids with labels."""
    generator = np.random.default_rng(0)
    shape = (FLAGS.batch_size, FLAGS.max_seq_length)
    features = {
        "input_ids": generator.integers(5, vocab_size, shape), "input_mask": np.ones(shape),
        "segment_ids": np.zeros(shape), "label_ids": generator.integers(0, LABELS, FLAGS.batch_size),
    }  # fmt: skip
    return {name: tf.constant(value, tf.int32) for name, value in features.items()}


def main(_):
    dtype = "mixed_bfloat16" if FLAGS.dtype == "bfloat16" else "float32"
    strategy = tf.distribute.OneDeviceStrategy("/gpu:0" if tf.config.list_logical_devices("GPU") else "/cpu:0")

    def create_model(layers: int) -> BertForSequenceClassification:
        size = FLAGS.hidden_size
        config = BertConfig(30522, size, layers, size // 64, 4 * size, type_vocab_size=2)
        with strategy.scope():
            model = BertForSequenceClassification(config, LABELS, dtype=dtype)
            model.build()
        return model

    teacher = create_model(FLAGS.teacher_layers)
    batch = random_batch(teacher.config.vocab_size)
    settings = TrainingSettings(train_batch_size=FLAGS.batch_size)

    def step_of(taught: bool):
        model = create_model(FLAGS.student_layers)
        with strategy.scope():
            optimizer = create_optimizer("adamw", 1e-5, 1000, 10)
            optimizer.build(model.trainable_variables)
        objective = model.objective
        if taught:
            model, objective = TaughtModel(model, teacher), DistillationObjective(objective, 0.5, 2.0)
        run = Trainer(model, optimizer, objective, strategy, settings).steps
        iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
        return lambda: float(run(iterator, tf.constant(1))["loss"])

    predict = make_predict_function(teacher, strategy)
    tasks = {
        "student alone": step_of(False),
        "with a teacher": step_of(True),
        "teacher's inference": lambda: list(predict([batch])),
    }
    clocks = {"by the clock": time.perf_counter, "time of the CPU": time.process_time}
    seconds = {clock: {name: [] for name in tasks} for clock in clocks}
    for number in range(FLAGS.rounds + 2):
        for name, run in tasks.items():
            started = {clock: now() for clock, now in clocks.items()}
            run()
            for clock, now in clocks.items() if number >= 2 else ():  # the first two rounds compile
                seconds[clock][name].append(now() - started[clock])
    for clock, times in seconds.items():
        for name, values in times.items():
            print(
                f"{clock}, {name}: median {statistics.median(values):.4f} s, {min(values):.4f} to {max(values):.4f} s"
            )
        alone, taught, inference = map(np.array, times.values())
        costs = (taught - alone) / inference
        low, middle, high = np.quantile(costs, [0.25, 0.5, 0.75])
        print(f"{clock}, the teacher costs {middle:.3f} of its own inference (quartiles {low:.3f} and {high:.3f})")


if __name__ == "__main__":
    app.run(main)
