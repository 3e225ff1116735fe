"""Training objectives: the loss and metrics of each kind of head, computed from sums.

All have the same form: `label_names` and `optional_names` of the features they read, `sum_names`, `totals`, `sums`,
`loss`, `metrics`. The sums of replicas, micro-batches and evaluation batches are added up before anything is divided.

Two features say which rows of a batch count, both [B] and optional:

* `example_weights`: weights of the rows; 0 for rows that only pad a batch, which count nowhere. Where tokens are
  classified, they may be [B, S].
* `is_real_example`: in the original's records, 0 for an example made up to pad the last batch. As in the original it
  counts in the loss that is minimised, but not in the metrics.

Labels out of range are errors (ranges.py), unless their weight is 0.

Shape legend: B batch, S sequence length, C classes, N choices, P predictions per sequence, V vocabulary.
"""

from collections.abc import Mapping

from keras import ops

from bert_tf.models import ranges

# Features that weight the rows of a batch; see above.
_ROW_WEIGHTS = ("example_weights", "is_real_example")

# Logits below this are of positions where no answer can begin or end: heads lower these by 1,000 or more.
_EXCLUDED = -500.0

# The minimum of a sum of weights used as a divisor: a batch without any gives 0, not 0/0.
_TINY = 1e-5
# Added to the number of predictions, so that a batch without any has loss 0, not 0/0 (original: 1e-5).
MASKED_LM_EPSILON = 1e-5


def features_with_labels(objective, x, y=None, sample_weight=None) -> dict:
    """The features that an objective reads, from the arguments of Keras `fit`.

    Args:
      objective: one of this module's. x: the inputs; a dict may include the labels.
      y: labels: a dict by feature name; or one array for each of `objective.label_names`, in that order.
      sample_weight: [B] or None; multiplied into `example_weights`.

    Raises:
      ValueError: a label is missing; names the feature.
    """
    features = dict(x) if isinstance(x, Mapping) else {}
    names = objective.label_names
    if isinstance(y, dict):
        features |= y
    elif y is not None:
        values = list(y) if isinstance(y, list | tuple) else [y]
        if len(values) != len(names):
            raise ValueError(f"y must be {len(names)} arrays ({', '.join(names)}) or a dict, not {len(values)} arrays.")
        features |= zip(names, values, strict=True)
    missing = [name for name in names if name not in features]
    if missing:
        raise ValueError(
            f"No labels: {', '.join(missing)} is neither among the features nor given as y. "
            f"The features are {', '.join(sorted(map(str, features))) or 'none'}."
        )
    if sample_weight is not None:
        weights = ops.cast(sample_weight, "float32")
        if "example_weights" in features:
            weights = weights * ops.cast(features["example_weights"], "float32")
        features["example_weights"] = weights
    return features


def _example_weights(features: dict, like) -> object:
    """[B] float32, ones by default; [B, S] if such weights are given. `like`: any feature of the batch."""
    if "example_weights" in features:
        weights = ops.cast(features["example_weights"], "float32")
        return weights if len(weights.shape) == 2 and weights.shape[1] != 1 else ops.reshape(weights, (-1,))
    return ops.ones((ops.shape(like)[0],), "float32")


def _real_weights(features: dict, like) -> object:
    """[B] float32: the weights of examples in metrics."""
    weights = _example_weights(features, like)
    if "is_real_example" in features:
        weights = weights * ops.reshape(ops.cast(features["is_real_example"], "float32"), (-1,))
    return weights


def _equal(one, other):
    """1.0 where two integer tensors are equal, else 0.0."""
    return ops.cast(ops.equal(ops.cast(one, "int32"), ops.cast(other, "int32")), "float32")


def _divide(total, weight):
    return total / ops.maximum(weight, _TINY)


def require_zero_or_one(name: str, labels, weights):
    """Refuses labels other than 0 and 1 where their weight is not 0; see `ranges.require`.

    Args:
      name: the feature. labels: numbers. weights: of a shape that broadcasts to theirs.

    Returns:
      The labels in float32; NaN for what is refused.
    """
    labels = ops.cast(labels, "float32")
    allowed = ops.logical_or(ops.equal(labels, 0.0), ops.equal(labels, 1.0))
    allowed = ops.logical_or(allowed, ops.equal(weights, 0.0))
    return ranges.require(name, labels, allowed, "0 or 1") + ranges.poison(allowed)


def _require_weights(name: str, weights) -> None:
    ranges.require(name, weights, ops.logical_not(ops.less(weights, 0)), "0 or more")


def _size(logits):
    """Of the last axis."""
    return logits.shape[-1] or ops.shape(logits)[-1]


# --- one loss an example ---------------------------------------------------------------------------------------------


def cross_entropy(logits, labels):
    """Negative log-likelihood of each label, in float32.

    Args:
      logits: [..., C]. labels: integers [...]; one outside [0, C) gives loss 0 (the original's all-zero one-hot row).

    Returns:
      [...] float32.
    """
    logits = ops.cast(logits, "float32")
    labels = ops.cast(labels, "int32")
    known = ranges.below(labels, _size(logits))
    safe = ops.where(known, labels, ops.zeros_like(labels))
    losses = ops.sparse_categorical_crossentropy(safe, logits, from_logits=True)
    return ops.where(known, losses, ops.zeros_like(losses))


# What a label is, for errors; then what follows the range of them.
_CLASS = ("a class, from 0 to", ranges.FROM_ZERO)
_PLACE, _TOKEN = ("a place in the row, from 0 to", ""), ("a token of the vocabulary, from 0 to", "")


def cross_entropy_of(name: str, logits, labels, weights, kind: tuple[str, str] = _CLASS):
    """`cross_entropy`, which refuses labels outside [0, C) where their weight is not 0; see `ranges.require`.

    Args:
      name: the feature. logits: [..., C]. labels, weights: [...]. kind: one of the above.

    Returns:
      [...] float32; NaN for what is refused.
    """
    labels = ops.convert_to_tensor(labels)
    allowed = ops.logical_or(ranges.below(labels, _size(logits)), ops.equal(weights, 0.0))
    labels = ranges.require(name, labels, allowed, kind[0], _size(logits), kind[1])
    return cross_entropy(logits, labels) + ranges.poison(allowed)


def softened_divergence(logits, targets, temperature: float):
    """KL(softmax(targets / T) || softmax(logits / T)) T^2 over the last axis, in float32 (Hinton et al. 2015).

    Args:
      logits, targets: [..., C] of a student and its teacher. temperature: T.

    Returns:
      [...] float32. Without the factor, the gradient would be smaller by T^2 than that of the labels.
    """
    logits, targets = (ops.cast(x, "float32") / temperature for x in (logits, targets))
    goal = ops.log_softmax(targets)
    return ops.sum(ops.exp(goal) * (goal - ops.log_softmax(logits)), axis=-1) * temperature**2


class PretrainingObjective:
    """Loss and metrics of masked LM plus next sentence, computed from sums.

    Replicas, micro-batches and evaluation batches are added up as sums before dividing, so that the masked-LM loss of a
    batch does not depend on how the batch was split.
    """

    label_names = ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels")
    optional_names = ("next_sentence_weights", "example_weights")
    sum_names = (
        "masked_lm_loss",
        "masked_lm_correct",
        "masked_lm_weight",
        "next_sentence_loss",
        "next_sentence_correct",
        "examples",
    )

    @staticmethod
    def totals(features: dict) -> dict:
        """The loss's divisors, from the features of a whole batch: `masked_lm_weight` and `examples` (pairs)."""
        weights = PretrainingObjective._next_sentence_weights(features)
        if weights is None:
            examples = ops.cast(ops.shape(features["next_sentence_labels"])[0], "float32")
        else:
            examples = ops.sum(weights)
        return {
            "masked_lm_weight": ops.sum(ops.cast(features["masked_lm_weights"], "float32")),
            "examples": examples,
        }

    @staticmethod
    def _next_sentence_weights(features: dict):
        """[B] or, in packed rows, [B * M] float32: 0 for examples that are only padding; None if all count."""
        weights = None
        if "example_weights" in features:
            weights = ops.cast(features["example_weights"], "float32")
        if "next_sentence_weights" in features:
            pairs = ops.cast(features["next_sentence_weights"], "float32")
            pairs = pairs if weights is None else pairs * ops.expand_dims(weights, 1)
            weights = ops.reshape(pairs, (-1,))
        return weights

    @staticmethod
    def sums(outputs: dict, features: dict) -> dict:
        """Sums over a batch or a part of one.

        Args:
          outputs: `masked_lm_logits` [B, P, V], `next_sentence_logits` [B, 2], for packed rows [B, M, 2].
          features: `masked_lm_ids` [B, P], `masked_lm_weights` [B, P], `next_sentence_labels` [B, 1] or [B], and
            optionally `example_weights` [B]; for packed rows `next_sentence_labels` and `next_sentence_weights` [B, M].

        Returns:
          dict of float32 scalars: `masked_lm_loss`, `masked_lm_correct`, `next_sentence_loss`,
          `next_sentence_correct` and those of `totals`.
        """
        logits = outputs["masked_lm_logits"]
        ids = ops.cast(features["masked_lm_ids"], "int32")
        weights = ops.cast(features["masked_lm_weights"], "float32")
        _require_weights("masked_lm_weights", weights)
        masked_loss = cross_entropy_of("masked_lm_ids", logits, ids, weights, _TOKEN)
        correct = _equal(ops.argmax(logits, axis=-1), ids)
        next_logits = outputs["next_sentence_logits"]
        if "next_sentence_weights" in features:
            next_logits = ops.reshape(next_logits, (-1, 2))
        labels = ops.reshape(ops.cast(features["next_sentence_labels"], "int32"), (-1,))
        next_correct = _equal(ops.argmax(next_logits, axis=-1), labels)
        examples = PretrainingObjective._next_sentence_weights(features)
        counted = ops.ones_like(next_correct) if examples is None else examples
        next_loss = cross_entropy_of("next_sentence_labels", next_logits, labels, counted)
        if examples is not None:
            next_loss, next_correct = next_loss * examples, next_correct * examples
        return {
            "masked_lm_loss": ops.sum(weights * masked_loss),
            "masked_lm_correct": ops.sum(weights * correct),
            "next_sentence_loss": ops.sum(next_loss),
            "next_sentence_correct": ops.sum(next_correct),
            **PretrainingObjective.totals(features),
        }

    @staticmethod
    def loss(sums: dict, totals: dict):
        """Masked-LM loss plus next-sentence loss; with a batch's totals, the losses of its parts add up to its loss."""
        masked_lm = sums["masked_lm_loss"] / (totals["masked_lm_weight"] + MASKED_LM_EPSILON)
        return masked_lm + sums["next_sentence_loss"] / totals["examples"]

    @staticmethod
    def metrics(sums: dict) -> dict:
        """The original's four evaluation metrics, from sums over any number of batches."""
        return {
            "masked_lm_accuracy": _divide(sums["masked_lm_correct"], sums["masked_lm_weight"]),
            "masked_lm_loss": _divide(sums["masked_lm_loss"], sums["masked_lm_weight"]),
            "next_sentence_accuracy": _divide(sums["next_sentence_correct"], sums["examples"]),
            "next_sentence_loss": _divide(sums["next_sentence_loss"], sums["examples"]),
        }


class ClassificationObjective:
    """Softmax cross-entropy of one label per example, mean over the batch (original: run_classifier.create_model).

    Outputs: logits [B, C]. Features: `label_ids` [B].
    Metrics: `accuracy`, `example_loss` (the original's eval_accuracy, eval_loss).
    """

    label_names = ("label_ids",)
    optional_names = _ROW_WEIGHTS
    metric_names = ("accuracy",)
    sum_names = ("loss_sum", "examples", "metric_examples", "example_loss", "accuracy")

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        """For every example: the loss [B], and a dict of the values that metrics average, each [B]."""
        return cls.of_classes(outputs, features, cls.label_names[0])

    @classmethod
    def of_classes(cls, logits, features: dict, name: str, kind=_CLASS) -> tuple:
        """The same for logits [B, C] and the labels of this name."""
        labels = ops.reshape(features[name], (-1,))
        losses = cross_entropy_of(name, logits, labels, cls.weights(features), kind)
        return losses, {"accuracy": _equal(ops.argmax(logits, axis=-1), labels)}

    @classmethod
    def soft_losses(cls, outputs, targets, temperature: float):
        """[B]: the loss of each example against a teacher's outputs, of the form of `outputs`, instead of labels."""
        return softened_divergence(outputs, targets, temperature)

    @classmethod
    def weights(cls, features: dict):
        """[B] float32: the weights of the losses; `totals` has their sum."""
        return _example_weights(features, features[cls.label_names[0]])

    @classmethod
    def totals(cls, features: dict) -> dict:
        """The loss's divisor, from the features of a whole batch: `examples`."""
        return {"examples": ops.sum(cls.weights(features))}

    @classmethod
    def sums(cls, outputs, features: dict) -> dict:
        """Adds up over a batch or a part of one: float32 scalars under `sum_names`."""
        losses, measures = cls.values(outputs, features)
        real = _real_weights(features, losses)
        return {
            "loss_sum": ops.sum(cls.weights(features) * losses),
            "metric_examples": ops.sum(real),
            "example_loss": ops.sum(real * losses),
            **{name: ops.sum(real * value) for name, value in measures.items()},
            **cls.totals(features),
        }

    @staticmethod
    def loss(sums: dict, totals: dict):
        """Mean over the batch; with a batch's totals, the losses of its parts add up to its loss."""
        return _divide(sums["loss_sum"], totals["examples"])

    @classmethod
    def metrics(cls, sums: dict) -> dict:
        """Means over the real examples, from sums over any number of batches."""
        return {name: _divide(sums[name], sums["metric_examples"]) for name in (*cls.metric_names, "example_loss")}


def sum_names(metric_names: tuple) -> tuple:
    """The `sum_names` of an objective with one loss an example and these metrics."""
    return ("loss_sum", "examples", "metric_examples", "example_loss", *metric_names)


class NextSentenceObjective(ClassificationObjective):
    """The same for next sentence prediction. Outputs: logits [B, 2]. Features: `next_sentence_labels` [B] or [B, 1]."""

    label_names = ("next_sentence_labels",)


class MultipleChoiceObjective(ClassificationObjective):
    """The same for one of several choices. Outputs: logits [B, N]. Features: `label_ids` [B], index of the choice."""


class RegressionObjective(ClassificationObjective):
    """Squared error, mean over the batch.

    Outputs: predictions [B, 1]. Features: `label_ids` [B], real numbers.
    Metrics: `mean_absolute_error`, `example_loss` (the mean squared error).
    """

    metric_names = ("mean_absolute_error",)
    sum_names = sum_names(metric_names)

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        targets = ops.reshape(ops.cast(features[cls.label_names[0]], "float32"), (-1,))
        errors = ops.reshape(ops.cast(outputs, "float32"), (-1,)) - targets
        return errors * errors, {"mean_absolute_error": ops.abs(errors)}

    @classmethod
    def soft_losses(cls, outputs, targets, temperature):
        return ops.square(ops.cast(outputs, "float32") - ops.cast(targets, "float32"))[:, 0]


class MultiLabelObjective(ClassificationObjective):
    """Sigmoid cross-entropy of labels that do not exclude each other, mean over labels and batch.

    Outputs: logits [B, C]. Features: `label_ids` [B, C], 0 or 1.
    Metrics: `accuracy` (share of correct decisions), `exact_match` (share of examples with all decisions correct),
    `example_loss`.
    """

    metric_names = ("accuracy", "exact_match")
    sum_names = sum_names(metric_names)

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        logits = ops.cast(outputs, "float32")
        labels = ops.cast(features[cls.label_names[0]], "float32")
        if len(labels.shape) != 2:
            raise ValueError(
                f"label_ids of several labels must be [batch, {_size(logits)}], not {tuple(labels.shape)}."
            )
        labels = require_zero_or_one(cls.label_names[0], labels, cls.weights(features)[:, None])
        losses = ops.softplus(logits) - logits * labels
        right = _equal(logits > 0, labels > 0.5)
        measures = {"accuracy": ops.mean(right, axis=-1), "exact_match": ops.min(right, axis=-1)}
        return ops.mean(losses, axis=-1), measures

    @classmethod
    def soft_losses(cls, outputs, targets, temperature):
        # A decision is one of two classes with the logits 0 and x.
        pairs = (ops.stack([ops.zeros_like(x), x], axis=-1) for x in (outputs, targets))
        return ops.mean(softened_divergence(*pairs, temperature), axis=-1)


class SpanObjective(ClassificationObjective):
    """Mean of the cross-entropies of first and last token of an answer, mean over the batch (original: run_squad.py).

    Outputs: dict of `start_logits`, `end_logits` [B, S]. Features: `start_positions`, `end_positions` [B], places
    in the row.
    Metrics: `start_accuracy`, `end_accuracy`, `exact_match` (both correct), `example_loss`.
    """

    label_names = ("start_positions", "end_positions")
    metric_names = ("start_accuracy", "end_accuracy", "exact_match")
    sum_names = sum_names(metric_names)

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        losses, right = [], []
        for logits, name in zip((outputs["start_logits"], outputs["end_logits"]), cls.label_names, strict=True):
            loss, measures = cls.of_classes(logits, features, name, _PLACE)
            losses.append(loss)
            right.append(measures["accuracy"])
        measures = {"start_accuracy": right[0], "end_accuracy": right[1], "exact_match": right[0] * right[1]}
        return (losses[0] + losses[1]) / 2.0, measures

    @classmethod
    def soft_losses(cls, outputs, targets, temperature):
        def divergence(name):
            # Positions that the student excludes are excluded of the teacher's, too: it may be of another kind of head.
            excluded = outputs[name] < _EXCLUDED
            possible = ops.where(excluded, ops.cast(outputs[name], "float32"), ops.cast(targets[name], "float32"))
            return softened_divergence(outputs[name], ops.stop_gradient(possible), temperature)

        return (divergence("start_logits") + divergence("end_logits")) / 2.0


# --- one loss a token ------------------------------------------------------------------------------------------------


# In place of a label: none. The first is this project's, the other that of Hugging Face and PyTorch.
NO_LABEL = (-1, -100)


class TokenClassificationObjective:
    """Softmax cross-entropy of one label per token, mean over the tokens that have one.

    Outputs: logits [B, S, C]. Features: `label_ids` [B, S], one of NO_LABEL where a token has none.
    Metrics: `accuracy`, `token_loss`.
    """

    label_names = ("label_ids",)
    label_kind = _CLASS
    optional_names = _ROW_WEIGHTS
    sum_names = ("loss_sum", "tokens", "metric_tokens", "token_loss", "accuracy")

    @classmethod
    def token_weights(cls, features: dict, example_weights):
        """[B, S] float32: 0 for tokens that do not count."""
        labels = ops.cast(features[cls.label_names[0]], "int32")
        without = ops.logical_or(*(ops.equal(labels, number) for number in NO_LABEL))
        if len(example_weights.shape) == 1:
            example_weights = ops.expand_dims(example_weights, 1)
        return ops.cast(ops.logical_not(without), "float32") * example_weights

    @classmethod
    def soft_losses(cls, outputs, targets, temperature: float):
        """[B, S]: the loss of each token against a teacher's outputs [B, S, C] instead of labels."""
        return softened_divergence(outputs, targets, temperature)

    @classmethod
    def weights(cls, features: dict):
        """[B, S] float32: the weights of the losses; `totals` has their sum."""
        return cls.token_weights(features, _example_weights(features, features[cls.label_names[0]]))

    @classmethod
    def totals(cls, features: dict) -> dict:
        """The loss's divisor, from the features of a whole batch: `tokens`."""
        return {"tokens": ops.sum(cls.weights(features))}

    @classmethod
    def sums(cls, outputs, features: dict) -> dict:
        """Adds up over a batch or a part of one: float32 scalars under `sum_names`."""
        labels = ops.cast(features[cls.label_names[0]], "int32")
        weights = cls.weights(features)
        losses = cross_entropy_of(cls.label_names[0], outputs, labels, weights, cls.label_kind)  # [B, S]
        real = cls.token_weights(features, _real_weights(features, labels))
        return {
            "loss_sum": ops.sum(weights * losses),
            "metric_tokens": ops.sum(real),
            "token_loss": ops.sum(real * losses),
            "accuracy": ops.sum(real * _equal(ops.argmax(outputs, axis=-1), labels)),
            **cls.totals(features),
        }

    @staticmethod
    def loss(sums: dict, totals: dict):
        """Mean over the tokens; with a batch's totals, the losses of its parts add up to its loss."""
        return _divide(sums["loss_sum"], totals["tokens"])

    @staticmethod
    def metrics(sums: dict) -> dict:
        """Means over the tokens, from sums over any number of batches."""
        return {name: _divide(sums[name], sums["metric_tokens"]) for name in ("accuracy", "token_loss")}


class MaskedLanguageModelObjective(TokenClassificationObjective):
    """The masked-LM part of `PretrainingObjective`.

    Outputs: logits [B, P, V]. Features: `masked_lm_ids` [B, P], one of NO_LABEL for none, and optionally
    `masked_lm_weights` [B, P]. P is S if the model scores all tokens.
    Metrics: `masked_lm_accuracy`, `masked_lm_loss`.
    """

    label_names = ("masked_lm_ids",)
    label_kind = _TOKEN
    optional_names = ("masked_lm_weights", *_ROW_WEIGHTS)

    @classmethod
    def token_weights(cls, features: dict, example_weights):
        weights = super().token_weights(features, example_weights)
        if "masked_lm_weights" in features:
            given = ops.cast(features["masked_lm_weights"], "float32")
            _require_weights("masked_lm_weights", given)
            weights = weights * given
        return weights

    @staticmethod
    def loss(sums: dict, totals: dict):
        """Mean over the predictions, slightly reduced by the original's epsilon."""
        return sums["loss_sum"] / (totals["tokens"] + MASKED_LM_EPSILON)

    @staticmethod
    def metrics(sums: dict) -> dict:
        weight = sums["metric_tokens"]
        return {
            "masked_lm_accuracy": _divide(sums["accuracy"], weight),
            "masked_lm_loss": _divide(sums["token_loss"], weight),
        }


class MeanMaskedLanguageModelObjective(MaskedLanguageModelObjective):
    """`MaskedLanguageModelObjective` whose loss is the mean over the predictions, as in fairseq and Hugging Face; 0 if
    there are none."""

    @staticmethod
    def loss(sums: dict, totals: dict):
        """The mean over the predictions."""
        return _divide(sums["loss_sum"], totals["tokens"])


# --- pre-training of the paper's ablations ----------------------------------------------------------------------------


class LanguageModelObjective(MaskedLanguageModelObjective):
    """`PretrainingObjective` without next sentence prediction ("No NSP" of Table 5).

    Outputs and features: those of `task_models.BertForPreTraining`; pooler and next-sentence head get no gradient, so
    they do not change. Metrics: `masked_lm_accuracy`, `masked_lm_loss`.
    """

    @classmethod
    def sums(cls, outputs: dict, features: dict) -> dict:
        """Adds up over a batch or a part of one: float32 scalars under `sum_names`."""
        return super().sums(outputs["masked_lm_logits"], features)


class NextTokenObjective(LanguageModelObjective):
    """The same for the labels of `mask_rules.left_to_right`. Metrics: `next_token_accuracy`, `_loss`."""

    @staticmethod
    def metrics(sums: dict) -> dict:
        return _named_next_token(LanguageModelObjective.metrics(sums))


class NextTokenAndSentenceObjective(PretrainingObjective):
    """`PretrainingObjective` for the labels of `mask_rules.left_to_right`."""

    @staticmethod
    def metrics(sums: dict) -> dict:
        return _named_next_token(PretrainingObjective.metrics(sums))


class SentenceOrderObjective(PretrainingObjective):
    """`PretrainingObjective` with ALBERT's names of metrics: next_sentence_labels is 1 where A and B are swapped."""

    @staticmethod
    def metrics(sums: dict) -> dict:
        metrics = PretrainingObjective.metrics(sums)
        return {name.replace("next_sentence", "sentence_order"): value for name, value in metrics.items()}


def _named_next_token(metrics: dict) -> dict:
    return {name.replace("masked_lm", "next_token"): value for name, value in metrics.items()}


def pretraining_objective(objective: str, nsp: bool):
    """The objective that run_pretraining.py's flags --objective ("mlm" or "ltr") and --nsp select."""
    if objective == "mlm":
        return PretrainingObjective if nsp else LanguageModelObjective
    return NextTokenAndSentenceObjective if nsp else NextTokenObjective
