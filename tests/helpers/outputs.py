"""Outputs of models, beside an oracle's and with dropout, and losses in plain NumPy."""

import numpy as np
import tensorflow as tf

from bert_tf.models.dropout import dropout_scope

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
