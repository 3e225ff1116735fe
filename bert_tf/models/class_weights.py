"""Objectives in whose loss classes have weights.

Shape legend: B batch, S sequence length, C classes.
"""

from collections.abc import Sequence

from keras import ops

from bert_tf.models import objectives

# Of these, Keras's class_weight can be had: it weights examples by their class.
OF_ONE_CLASS = (
    objectives.ClassificationObjective, objectives.NextSentenceObjective, objectives.MultipleChoiceObjective,
)  # fmt: skip


def with_class_weights(objective: type, weights: Sequence[float] | None) -> type:
    """An objective whose loss is the sum of the weighted losses divided by the sum of their weights.

    That is the mean of PyTorch's `CrossEntropyLoss(weight)`. The metrics are those without weights.

    Args:
      objective: of classes of examples [B] or tokens [B, S]. weights: of the C classes; None: the objective itself.
    """
    if weights is None:
        return objective

    class Weighted(objective):
        @classmethod
        def weights(cls, features: dict):
            others = super().weights(features)
            labels = ops.reshape(ops.cast(features[cls.label_names[0]], "int32"), ops.shape(others))
            table = ops.convert_to_tensor(list(weights), "float32")
            return others * ops.take(table, ops.clip(labels, 0, len(weights) - 1), axis=0)

    return Weighted
