"""Records and record files of given contents."""

import os

import tensorflow as tf

_KINDS = {
    int: lambda values: {"int64_list": tf.train.Int64List(value=values)},
    float: lambda values: {"float_list": tf.train.FloatList(value=values)},
    bytes: lambda values: {"bytes_list": tf.train.BytesList(value=values)},
}


def example_of(values: dict[str, list]) -> bytes:
    """A record with these lists of integers, floats or bytes; an empty one is of no kind."""
    features = {
        name: tf.train.Feature(**_KINDS[type(value[0])](value) if value else {}) for name, value in values.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_records(path, payloads) -> list[int]:
    """Writes the records and returns the byte offset of each, followed by the file's length."""
    offsets = [0]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
            offsets.append(offsets[-1] + len(payload) + 16)
    assert os.path.getsize(path) == offsets[-1]
    return offsets
