"""Outputs of models, next to an oracle's and with dropout, losses in plain NumPy, and conversions there and back."""

import contextlib
import pathlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from bert_tf.conversion import convert
from bert_tf.models.dropout import dropout_scope
from bert_tf.store.bundle import CheckpointReader
from bert_tf.text.graph_wordpiece import graph_of

TOLERANCE = 2e-5  # of outputs in float32, at tokens that are not padding


def enlarge(model, seed=7):
    if not model.built:
        model.build()
    generator = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        noise = generator.normal(size=variable.shape) * (0.3 if len(variable.shape) > 1 else 0.02)
        variable.assign(noise + (1 if variable.name == "gamma" else 0))
    return model


def assert_close(actual, expected, mask=slice(None)):
    """Outputs [B, S, ...] or [B, ...] are equal where mask [B, S] or [B] is True; by default everywhere."""
    np.testing.assert_allclose(np.asarray(actual)[mask], expected[mask], atol=TOLERANCE, rtol=0)


def assert_drawn_independently(model):
    values = [v.numpy().ravel() for v in model.trainable_variables if len(v.shape) > 1]
    size = min(64, *(value.size for value in values))
    correlations = np.corrcoef([value[:size] for value in values if value[:size].any()])
    np.fill_diagonal(correlations, 0.0)
    assert abs(correlations).max() < 0.9


def in_training(model, inputs, seed=(1, 2), first_row=0, **arguments):
    """A model's outputs; seed: of the run, and the step. first_row: where inputs begin in the whole batch."""
    with dropout_scope(seed, first_row):
        return model(inputs, training=True, **arguments)


def loss_and_gradients(model, features, seed=(1, 2)) -> tuple:
    with tf.GradientTape() as tape:
        sums = model.objective.sums(in_training(model, features, seed), features)
        loss = model.objective.loss(sums, sums)
    variables = [variable.value for variable in model.trainable_variables]
    found = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return loss, [tf.convert_to_tensor(gradient) for gradient in found]


def softmax_losses(logits, labels):
    shifted = logits - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    known = (labels >= 0) & (labels < logits.shape[-1])
    losses = -np.take_along_axis(log_probabilities, np.where(known, labels, 0)[..., None], -1)[..., 0]
    return np.where(known, losses, 0.0)


def as_floats(values):
    return {name: float(value) for name, value in values.items()}


def example_inputs(config, seed=0):
    generator = np.random.default_rng(seed)
    length = min(24, config.max_length)
    lengths = np.linspace(length, max(1, length // 3), 3).astype(int)[:, None]
    positions = np.arange(length)[None, :]
    mask = positions < lengths
    arrays = {"input_ids": generator.integers(0, config.vocab_size, mask.shape) * mask, "input_mask": mask}
    arrays |= {"segment_ids": (positions >= lengths // 2) * mask * (config.type_vocab_size > 1)}
    arrays |= {"masked_lm_positions": np.broadcast_to(positions, mask.shape)}
    return {name: np.ascontiguousarray(value, np.int32) for name, value in arrays.items()}


def assert_same_bits(arrays, expected):
    assert set(arrays) == set(expected)
    for name, value in expected.items():
        assert (arrays[name].dtype, arrays[name].shape) == (value.dtype, value.shape), name
        assert arrays[name].tobytes() == value.tobytes(), name


def there_and_back(prefix: pathlib.Path, folder: pathlib.Path, files: tuple, part=None, own="") -> None:
    """tf1 -> huggingface -> tf1 -> bert_tf -> huggingface: the same bytes.

    Of the original's checkpoint the variables that begin with `own` go with the part.
    """
    source = prefix.parent
    for number, format in enumerate(("huggingface", "tf1", "bert_tf", "huggingface")):
        asked = part if format == "huggingface" or not number else None
        report = convert.convert(str(source), str(folder / f"{number}"), format, part=asked, do_lower_case=True)
        source = folder / f"{number}"
        assert not report.missing and (not part or "bert/" not in report.text())
    for file in ("model.safetensors", "config.json", *files):
        assert (folder / "0" / file).read_bytes() == (source / file).read_bytes(), file
    old, new = (CheckpointReader(str(path)) for path in (prefix, folder / "1" / "bert_model.ckpt"))
    shapes = {name: shape for name, shape in old.get_variable_to_shape_map().items() if name.startswith(own)}
    assert new.get_variable_to_shape_map() == shapes
    for name in shapes:
        np.testing.assert_array_equal(new.get_tensor(name), old.get_tensor(name), err_msg=name)


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
