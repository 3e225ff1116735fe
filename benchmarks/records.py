"""Records per second of the pre-training input, compared with plain tf.data on the same file.

    python benchmarks/records.py --max_seq_length=128 --batch_size=32

Plain tf.data is TFRecordDataset, shuffle with a buffer of the same number of records, batch, one parse per batch,
prefetch. Its position can't be computed, so to resume, a run must save the buffer in its checkpoint or read the data
again from the start.
"""

import os
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from absl import app, flags

from bert_tf.data import record_files, records

FLAGS = flags.FLAGS
flags.DEFINE_integer("max_seq_length", 128, "Tokens per record.")
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked positions per record.")
flags.DEFINE_integer("batch_size", 32, "Records per batch.")
flags.DEFINE_integer("num_records", 100_000, "Number of records written for the measurement.")
flags.DEFINE_integer("num_files", 4, "Number of files for them.")
flags.DEFINE_float("seconds", 8.0, "Duration of each measurement, after the first batch.")
flags.DEFINE_bool(
    "deterministic", False, "Turn TensorFlow's op determinism on, as --deterministic of run_pretraining does."
)


def write_files(directory: str) -> list[str]:
    """Writes random records: only their size matters for speed."""
    generator = np.random.default_rng(0)
    length, predictions = FLAGS.max_seq_length, FLAGS.max_predictions_per_seq

    def ints(high: int, count: int) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=generator.integers(0, high, count)))

    payloads = []
    for _ in range(500):  # written repeatedly, since making them takes longer than reading them
        features = {name: ints(2, length) for name in ("input_mask", "segment_ids")}
        features |= {
            "input_ids": ints(30522, length),
            "masked_lm_positions": ints(length, predictions),
            "masked_lm_ids": ints(30522, predictions),
            "masked_lm_weights": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0] * predictions)),
            "next_sentence_labels": ints(2, 1),
        }
        payloads.append(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    files = [os.path.join(directory, f"{number}.tfrecord") for number in range(FLAGS.num_files)]
    for number, name in enumerate(files):
        with tf.io.TFRecordWriter(name) as writer:
            for record in range(number, FLAGS.num_records, FLAGS.num_files):
                writer.write(payloads[record % len(payloads)])
    return files


def report(name: str, dataset: tf.data.Dataset) -> None:
    start = time.perf_counter()
    iterator = iter(dataset)
    next(iterator)
    first = time.perf_counter() - start
    start, batches = time.perf_counter(), 0
    while time.perf_counter() - start < FLAGS.seconds:
        next(iterator)
        batches += 1
    rate = batches * FLAGS.batch_size / (time.perf_counter() - start)
    print(f"{name:44s} {rate:10,.0f} records/s   first batch after {first:6.2f} s", flush=True)


def main(_) -> None:
    if FLAGS.deterministic:
        tf.config.experimental.enable_op_determinism()
        tf.random.set_seed(0)
    features = record_files.pretraining_features(FLAGS.max_seq_length, FLAGS.max_predictions_per_seq)
    with tempfile.TemporaryDirectory() as directory:
        files = write_files(directory)
        size = sum(os.path.getsize(name) for name in files)
        start = time.perf_counter()
        index = records.index_records(files, features)
        seconds = time.perf_counter() - start
        print(
            f"{index.total_records:,} records, {size / 1e6:,.0f} MB, sequence length {FLAGS.max_seq_length}, "
            f"batch {FLAGS.batch_size}, {os.cpu_count()} cores; indexing {seconds:.2f} s, "
            f"{index.total_records / seconds:,.0f} records/s"
        )
        batches = {"batch_size": FLAGS.batch_size, "seed": 0}
        report("training_batches", records.training_batches(index, features, **batches))
        late = 10**9 // FLAGS.batch_size
        report(
            "training_batches, from record 1,000,000,000",
            records.training_batches(index, features, start_step=late, **batches),
        )
        plain = tf.data.TFRecordDataset(files).repeat().shuffle(records.SHUFFLE_WINDOW, seed=0)
        plain = plain.batch(FLAGS.batch_size, drop_remainder=True)
        kinds = {name: tf.io.FixedLenFeature([feature.length], feature.dtype) for name, feature in features.items()}
        plain = plain.map(lambda serialized: tf.io.parse_example(serialized, kinds), tf.data.AUTOTUNE)
        report("plain tf.data", plain.prefetch(tf.data.AUTOTUNE))


if __name__ == "__main__":
    app.run(main)
