"""Calls of models in training, with the dropout of a step."""

from bert_tf.models.dropout import dropout_scope


def in_training(model, inputs, seed=(1, 2), first_row=0, **arguments):
    """A model's outputs; seed: of the run, and the step. first_row: where inputs begin in the whole batch."""
    with dropout_scope(seed, first_row):
        return model(inputs, training=True, **arguments)
