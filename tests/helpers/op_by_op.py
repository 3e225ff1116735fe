"""Runs TensorFlow functions without tracing them; compares graphs of tokenizers with the tokenizers."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from bert_tf.text.graph_wordpiece import graph_of


@contextlib.contextmanager
def op_by_op(wanted: bool = True) -> Iterator[None]:
    """Runs the ops of tf.functions one by one: on a small input, tracing takes longer than running all of them.

    Only for some of the tests of a function: another must trace it."""
    tf.config.run_functions_eagerly(wanted)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def assert_graph_equal(tokenizer, texts, graph=None, split_unknown=False) -> int:
    """A tokenizer's graph gives its ids and offsets for `texts`, str or bytes; returns the number of ids."""
    graph = graph or graph_of(tokenizer, split_unknown)
    outputs = graph.tokenize(tf.constant(texts, tf.string))
    assert all(part.dtype == tf.int32 for part in outputs)
    ids, starts, ends = (part.to_list() for part in outputs)
    assert graph.encode(tf.constant(texts, tf.string)).to_list() == ids
    for text, *row in zip(texts, ids, starts, ends, strict=True):
        decoded = text if isinstance(text, str) else text.decode("utf-8", "ignore")
        expected, offsets = tokenizer.encode_with_offsets(decoded, split_unknown)
        assert row == [expected, [start for start, _ in offsets], [end for _, end in offsets]], f"{text[:100]!r}"
    return sum(map(len, ids))
