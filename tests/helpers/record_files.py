"""Record files of given contents."""

import os

import tensorflow as tf


def write_records(path, payloads) -> list[int]:
    """Writes the records and returns the byte offset of each, followed by the file's length."""
    offsets = [0]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
            offsets.append(offsets[-1] + len(payload) + 16)
    assert os.path.getsize(path) == offsets[-1]
    return offsets
