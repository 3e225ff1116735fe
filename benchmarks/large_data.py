"""The start of a run on 10^9 records in 1,000 files: seconds, and bytes of memory.

    python benchmarks/large_data.py

The files have the size of real ones, but hold only the bytes that a start reads: their first record, and where the last
block begins; the rest takes no room on the disk. Each has the index that
create_pretraining_data.py would have left beside it. What a network would add is not measured: each file costs a start
one look-up and five small reads, 32 files at a time.
"""

import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from absl import app, flags

from bert_tf.data import record_files, records
from bert_tf.data.record_files import RECORDS_PER_BLOCK, index_path, written_index

FLAGS = flags.FLAGS
flags.DEFINE_integer("num_files", 1000, "Files.", lower_bound=1)
flags.DEFINE_integer("blocks_per_file", 977, "Blocks of 1,024 records in each file.", lower_bound=1)
flags.DEFINE_integer("max_seq_length", 512, "Tokens per record.", lower_bound=8)
flags.DEFINE_integer("batch_size", 4096, "Records per step, for the step that is looked up.", lower_bound=1)
flags.DEFINE_string("folder", None, "Where to write the files, 2 MB for each one of them; by default a temporary one.")


def block_of_records(length: int) -> bytes:
    """1,024 unmasked records of one pair with their frames."""
    generator = np.random.default_rng(0)
    lists = {
        "input_ids": generator.integers(5, 30522, length),
        "segment_lengths": [length - length // 2, length // 2],
        "next_sentence_labels": [0],
    }
    features = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=value)) for name, value in lists.items()}
    payload = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    with tempfile.NamedTemporaryFile() as file:
        with tf.io.TFRecordWriter(file.name) as writer:
            for _ in range(RECORDS_PER_BLOCK):
                writer.write(payload)
        return pathlib.Path(file.name).read_bytes()


def write_files(folder: str) -> list[str]:
    """The files and the indexes beside them."""
    block, blocks = block_of_records(FLAGS.max_seq_length), FLAGS.blocks_per_file
    index = written_index(np.tile([len(block), RECORDS_PER_BLOCK], (blocks, 1)))
    names = [os.path.join(folder, f"{number:05d}.tfrecord") for number in range(FLAGS.num_files)]
    for name in names:
        pathlib.Path(index_path(name)).write_bytes(index)
        first_record = block[: len(block) // RECORDS_PER_BLOCK]
        with open(name, "wb") as file:
            file.truncate(blocks * len(block))
            file.write(first_record)
            file.seek((blocks - 1) * len(block))
            file.write(first_record)
    return names


def memory() -> float:
    """Bytes in use by this process."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measured(what: str, function):
    """Calls a function, prints how long it took and what memory it took, and returns its result."""
    before, started = memory(), time.perf_counter()
    result = function()
    seconds = time.perf_counter() - started
    print(f"{what}: {seconds:.2f} s, {(memory() - before) / 1e6:.0f} MB")
    return result


def main(_):
    with tempfile.TemporaryDirectory(dir=FLAGS.folder) as folder:
        names = write_files(folder)

        def start():
            index = records.index_records(names, None)
            record_files.features_of(index.first_payloads(), FLAGS.max_seq_length, 20)
            return index

        index = measured("start", start)
        print(f"{index.total_records:,} records in {len(names):,} files, {sum(index.file_sizes) / 1e12:.2f} TB")
        measured("fingerprint", lambda: index.fingerprint)
        for epoch in (0, 2):
            record = epoch * index.total_records + index.total_records // 2
            step = record // FLAGS.batch_size
            windows = records.shuffled_windows(index, 1, records.SHUFFLE_WINDOW, step * FLAGS.batch_size)
            measured(f"finding step {step:,}", lambda windows=windows: next(windows))
        print(f"an index beside a file: {os.path.getsize(index_path(names[0])):,} bytes")


if __name__ == "__main__":
    app.run(main)
