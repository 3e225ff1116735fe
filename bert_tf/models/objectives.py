"""Training objectives: the loss and metrics of each kind of head, computed from sums.

An objective is what stands next to a model in a training step: a class of this module, or an object of the same form.
`label_names` and `optional_names` are the features that it reads, `sum_names` the keys of its sums. The sums of
replicas, micro-batches and evaluation batches are added up before anything is divided, so that it does not matter how
a batch was split:

* `sums(outputs, features)` adds up over a batch or a part of one: float32 scalars under `sum_names`.
* `totals(features)`: the loss's divisors, from the features of a whole batch; some of `sums`.
* `loss(sums, totals)`: a mean over the batch; with a batch's totals, the losses of its parts add up to its loss.
* `metrics(sums)`: means, from sums over any number of batches.

Two features say which rows of a batch count, both [B] and optional:

* `example_weights`: weights of the rows; 0 for rows that only pad a batch, which count nowhere. Where tokens are
  classified, they may be [B, S].
* `is_real_example`: in the original's records, 0 for an example made up to pad the last batch. As in the original it
  counts in the loss that is minimised, but not in the metrics.

Labels out of range are errors (`inputs.require`), unless their weight is 0.

Shape legend: B batch, S sequence length, C classes, N choices, P predictions per sequence, V vocabulary.
"""

from keras import ops

from bert_tf.models.inputs import below, known_shape, require

# Features that weight the rows of a batch; see above.
_ROW_WEIGHTS = ("example_weights", "is_real_example")

# The minimum of a sum of weights used as a divisor: a batch without any gives 0, not 0/0.
_TINY = 1e-5
# Added to the number of predictions, so that a batch without any has loss 0, not 0/0 (original: 1e-5).
_MASKED_LM_EPSILON = 1e-5


def divide(total, weight):
    """A mean; 0 where nothing counts."""
    return total / ops.maximum(weight, _TINY)


def row_weights(features: dict, like, in_metrics: bool = False):
    """[B] float32, ones by default; [B, S] if such `example_weights` are given.

    like: any feature of the batch. in_metrics: examples that are not real count 0.
    """
    if "example_weights" in features:
        weights = ops.cast(features["example_weights"], "float32")
        if len(weights.shape) != 2 or weights.shape[1] == 1:
            weights = ops.reshape(weights, (-1,))
    else:
        weights = ops.ones((ops.shape(like)[0],), "float32")
    if in_metrics and "is_real_example" in features:
        weights = weights * ops.reshape(ops.cast(features["is_real_example"], "float32"), (-1,))
    return weights


def _equal(first, other):
    return ops.cast(ops.equal(ops.cast(first, "int32"), ops.cast(other, "int32")), "float32")


def require_zero_or_one(name: str, labels, weights):
    """The labels of a feature in float32; `inputs.require`s 0 or 1 where their weight is not 0."""
    labels = ops.cast(labels, "float32")
    allowed = ops.logical_or(ops.equal(labels, 0.0), ops.equal(labels, 1.0))
    labels, wrong = require(name, labels, allowed, "0 or 1", weights=weights)
    return labels + wrong


def _prediction_weights(features: dict):
    """`masked_lm_weights`, [B, P] float32; they must not be negative."""
    weights = ops.cast(features["masked_lm_weights"], "float32")
    # TensorFlow's graph optimizer makes "at least 0" of "not below 0", which NaN is not: the step says what that means.
    allowed = ops.logical_or(ops.greater_equal(weights, 0), ops.isnan(weights))
    require("masked_lm_weights", weights, allowed, "0 or more")
    return weights


# --- losses ----------------------------------------------------------------------------------------------------------


def cross_entropy(logits, labels):
    """Negative log-likelihood of each label, in float32.

    logits: [..., C]. labels: integers [...]; one outside [0, C) gives loss 0 (the original's all-zero one-hot row).
    """
    logits = ops.cast(logits, "float32")
    labels = ops.cast(labels, "int32")
    known = below(labels, ops.shape(logits)[-1])
    safe = ops.where(known, labels, ops.zeros_like(labels))
    losses = ops.sparse_categorical_crossentropy(safe, logits, from_logits=True)
    return ops.where(known, losses, ops.zeros_like(losses))


# What a label is, for errors; then what follows the range of them.
_CLASS = ("a class, from 0 to", "; ids count from 0: from labels 1 to N subtract 1")
_POSITION, _TOKEN = ("a place in the row, from 0 to", ""), ("a token of the vocabulary, from 0 to", "")


def _known_classes(name: str, logits, labels, weights, kind: tuple[str, str]) -> tuple:
    """`cross_entropy`, and 1.0 where the label has the largest logit, [...] float32.

    Labels outside [0, C) raise where their weight is not 0 (see `inputs.require`), and have the loss NaN.

    name: the feature. logits: [..., C]. labels, weights: [...]. kind: one of the above.
    """
    labels, size = ops.convert_to_tensor(labels), ops.shape(logits)[-1]
    labels, wrong = require(name, labels, below(labels, size), kind[0], size, kind[1], weights)
    return cross_entropy(logits, labels) + wrong, _equal(ops.argmax(logits, axis=-1), labels)


def sigmoid_cross_entropy(logits, labels):
    """The loss of each logit and its label, both float32 of one shape."""
    return ops.softplus(logits) - logits * labels


def softened_divergence(logits, targets, temperature: float):
    """KL(softmax(targets / T) || softmax(logits / T)) T^2 over the last axis, in float32 (Hinton et al. 2015).

    logits, targets: [..., C] of a student and its teacher. temperature: T; without the factor, the gradient would be
    smaller by T^2 than that of the labels.
    """
    logits, targets = (ops.cast(x, "float32") / temperature for x in (logits, targets))
    goal = ops.log_softmax(targets)
    return ops.sum(ops.exp(goal) * (goal - ops.log_softmax(logits)), axis=-1) * temperature**2


# --- one loss an example or token ------------------------------------------------------------------------------------


class SumObjective:
    """The base of all objectives of this module, used as classes.

    ratios: of each metric its name, the sum, and the sum of weights by which it is divided.
    loss_sums: what `sums` has besides.
    one_class: whether a row's label is its class, so that Keras's class_weight can weight it; not inherited.
    """

    ratios: tuple[tuple[str, str, str], ...]
    loss_sums: tuple[str, ...] = ()
    sum_names: tuple[str, ...]
    one_class = False

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.one_class = vars(cls).get("one_class", False)
        cls.sum_names = tuple(dict.fromkeys([*cls.loss_sums, *(name for ratio in cls.ratios for name in ratio[1:])]))

    @classmethod
    def metrics(cls, sums: dict) -> dict:
        return {name: divide(sums[part], sums[whole]) for name, part, whole in cls.ratios}


def with_metric_names(objective: type[SumObjective], old: str, new: str) -> type[SumObjective]:
    """An objective with `new` in place of `old` in the names of its metrics."""
    ratios = tuple((name.replace(old, new), *sums) for name, *sums in objective.ratios)
    return type(objective.__name__, (objective,), {"ratios": ratios})


def means(*measures: str, **sums: str) -> tuple:
    """The `ratios` of a `ClassificationObjective`: measures under their names, and its sums under others."""
    named = {name: name for name in measures} | sums
    return tuple((name, part, "metric_weight") for name, part in named.items())


class ClassificationObjective(SumObjective):
    """Softmax cross-entropy of one label per example, mean over the batch (original: run_classifier.create_model).

    Outputs: logits [B, C]. Features: `label_ids` [B].
    Metrics: `accuracy`, `example_loss` (the original's eval_accuracy, eval_loss).
    """

    label_names = ("label_ids",)
    optional_names = _ROW_WEIGHTS
    ratios = means("accuracy", example_loss="metric_loss")
    loss_sums = ("loss_sum", "weight")
    one_class = True

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        """For every example: the loss [B], and a dict of the values that metrics average, each [B]."""
        return cls.of_classes(outputs, features, cls.label_names[0])

    @classmethod
    def of_classes(cls, logits, features: dict, name: str, kind=_CLASS) -> tuple:
        """`values` for logits [B, C] and the labels of this name."""
        labels = ops.reshape(features[name], (-1,))
        losses, right = _known_classes(name, logits, labels, cls.weights(features), kind)
        return losses, {"accuracy": right}

    @classmethod
    def soft_losses(cls, outputs, targets, temperature: float):
        """[B]: the loss of each example against a teacher's outputs, of the form of `outputs`, instead of labels."""
        return softened_divergence(outputs, targets, temperature)

    @classmethod
    def weights(cls, features: dict, in_metrics: bool = False):
        """[B] float32: the weights of the losses, or those in the metrics."""
        return row_weights(features, features[cls.label_names[0]], in_metrics)

    @classmethod
    def totals(cls, features: dict) -> dict:
        return {"weight": ops.sum(cls.weights(features))}

    @classmethod
    def sums(cls, outputs, features: dict) -> dict:
        losses, measures = cls.values(outputs, features)
        counted = cls.weights(features, in_metrics=True)
        return {
            "loss_sum": ops.sum(cls.weights(features) * losses),
            "metric_weight": ops.sum(counted),
            "metric_loss": ops.sum(counted * losses),
            **{name: ops.sum(counted * value) for name, value in measures.items()},
            **cls.totals(features),
        }

    @classmethod
    def loss(cls, sums: dict, totals: dict):
        return divide(sums["loss_sum"], totals["weight"])


class NextSentenceObjective(ClassificationObjective):
    """Next sentence prediction. Outputs: logits [B, 2]. Features: `next_sentence_labels` [B] or [B, 1]."""

    label_names = ("next_sentence_labels",)
    one_class = True


class MultipleChoiceObjective(ClassificationObjective):
    """The choice of one of several texts. Outputs: logits [B, N]. Features: `label_ids` [B], index of the choice."""

    one_class = True


class RegressionObjective(ClassificationObjective):
    """Squared error, mean over the batch.

    Outputs: predictions [B, 1]. Features: `label_ids` [B], real numbers.
    Metrics: `mean_absolute_error`, `example_loss` (the mean squared error).
    """

    ratios = means("mean_absolute_error", example_loss="metric_loss")

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
    Metrics: `accuracy` (share of correct decisions), `exact_match` (examples with all correct), `example_loss`.
    """

    ratios = means("accuracy", "exact_match", example_loss="metric_loss")

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        logits = ops.cast(outputs, "float32")
        labels = ops.cast(features[cls.label_names[0]], "float32")
        shape, classes = known_shape(labels), logits.shape[-1]
        if shape and (len(shape) != 2 or shape[1] not in (None, classes)):
            raise ValueError(f"{cls.label_names[0]} must be [batch, {classes}], not {shape}.")
        labels = require_zero_or_one(cls.label_names[0], labels, cls.weights(features)[:, None])
        right = _equal(logits > 0, labels > 0.5)
        measures = {"accuracy": ops.mean(right, axis=-1), "exact_match": ops.min(right, axis=-1)}
        return ops.mean(sigmoid_cross_entropy(logits, labels), axis=-1), measures

    @classmethod
    def soft_losses(cls, outputs, targets, temperature):
        # A decision is one of two classes with the logits 0 and x.
        pairs = (ops.stack([ops.zeros_like(x), x], axis=-1) for x in (outputs, targets))
        return ops.mean(softened_divergence(*pairs, temperature), axis=-1)


class SpanObjective(ClassificationObjective):
    """Mean of the cross-entropies of first and last token of an answer, mean over the batch (original: run_squad.py).

    Outputs: dict of `start_logits`, `end_logits` [B, S]. Features: `start_positions`, `end_positions` [B].
    Metrics: `start_accuracy`, `end_accuracy`, `exact_match` (both correct), `example_loss`.
    """

    label_names = ("start_positions", "end_positions")
    ratios = means("start_accuracy", "end_accuracy", "exact_match", example_loss="metric_loss")

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        start, first = cls.of_classes(outputs["start_logits"], features, "start_positions", _POSITION)
        end, last = cls.of_classes(outputs["end_logits"], features, "end_positions", _POSITION)
        first, last = first["accuracy"], last["accuracy"]
        return (start + end) / 2.0, {"start_accuracy": first, "end_accuracy": last, "exact_match": first * last}

    @classmethod
    def soft_losses(cls, outputs, targets, temperature):
        pairs = ((outputs[name], targets[name]) for name in ("start_logits", "end_logits"))
        first, last = (softened_divergence(*pair, temperature) for pair in pairs)
        return (first + last) / 2.0


# In place of a label: none. The first is this project's, the other that of Hugging Face and PyTorch.
NO_LABEL = (-1, -100)


class TokenClassificationObjective(ClassificationObjective):
    """Softmax cross-entropy of one label per token, mean over the tokens that have one.

    Outputs: logits [B, S, C]. Features: `label_ids` [B, S], one of NO_LABEL where a token has none.
    Metrics: `accuracy`, `token_loss`. The values of tokens, their weights and soft losses are [B, S].
    """

    label_kind = _CLASS
    ratios = means("accuracy", token_loss="metric_loss")

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        name = cls.label_names[0]
        labels = ops.cast(features[name], "int32")
        losses, right = _known_classes(name, outputs, labels, cls.weights(features), cls.label_kind)
        return losses, {"accuracy": right}

    @classmethod
    def weights(cls, features, in_metrics=False):
        labels = ops.cast(features[cls.label_names[0]], "int32")
        without = ops.logical_or(*(ops.equal(labels, number) for number in NO_LABEL))
        weights = row_weights(features, labels, in_metrics)
        weights = ops.expand_dims(weights, 1) if len(weights.shape) == 1 else weights
        return ops.cast(ops.logical_not(without), "float32") * weights


# --- pre-training ----------------------------------------------------------------------------------------------------


class MaskedLanguageModelObjective(TokenClassificationObjective):
    """The masked-LM part of `PretrainingObjective`. The loss is slightly reduced by the original's epsilon.

    Outputs: logits [B, P, V]. Features: `masked_lm_ids` [B, P], one of NO_LABEL for none, and optionally
    `masked_lm_weights` [B, P]. P is S if the model scores all tokens.
    Metrics: `masked_lm_accuracy`, `masked_lm_loss`.
    """

    label_names = ("masked_lm_ids",)
    label_kind = _TOKEN
    optional_names = ("masked_lm_weights", *_ROW_WEIGHTS)
    ratios = means(masked_lm_accuracy="accuracy", masked_lm_loss="metric_loss")

    @classmethod
    def weights(cls, features, in_metrics=False):
        weights = super().weights(features, in_metrics)
        return weights * _prediction_weights(features) if "masked_lm_weights" in features else weights

    @classmethod
    def loss(cls, sums: dict, totals: dict):
        return sums["loss_sum"] / (totals["weight"] + _MASKED_LM_EPSILON)


class MeanMaskedLanguageModelObjective(MaskedLanguageModelObjective):
    """`MaskedLanguageModelObjective` whose loss is the mean over the predictions, as in fairseq; 0 without any."""

    loss = ClassificationObjective.loss


class LanguageModelObjective(MaskedLanguageModelObjective):
    """`PretrainingObjective` without next sentence prediction ("No NSP" of Table 5 of the paper).

    Outputs and features: those of `task_models.BertForPreTraining`; pooler and next-sentence head get no gradient, so
    they do not change. Metrics: `masked_lm_accuracy`, `masked_lm_loss`.
    """

    @classmethod
    def sums(cls, outputs: dict, features: dict) -> dict:
        return super().sums(outputs["masked_lm_logits"], features)


class PretrainingObjective(SumObjective):
    """Masked LM plus next sentence. The metrics are the original's four.

    Outputs: `masked_lm_logits` [B, P, V], `next_sentence_logits` [B, 2], for packed rows [B, M, 2].
    Features: `masked_lm_ids`, `masked_lm_weights` [B, P], `next_sentence_labels` [B, 1] or [B], and optionally
    `example_weights` [B], which weight the pairs only; for packed rows `next_sentence_labels` and
    `next_sentence_weights` [B, M].
    """

    label_names = ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels")
    optional_names = ("next_sentence_weights", "example_weights")
    ratios = (
        ("masked_lm_accuracy", "masked_lm_correct", "masked_lm_weight"),
        ("masked_lm_loss", "masked_lm_loss", "masked_lm_weight"),
        ("next_sentence_accuracy", "next_sentence_correct", "examples"),
        ("next_sentence_loss", "next_sentence_loss", "examples"),
    )

    @classmethod
    def totals(cls, features: dict) -> dict:
        weights = ops.cast(features["masked_lm_weights"], "float32")
        return {"masked_lm_weight": ops.sum(weights), "examples": ops.sum(cls._pair_weights(features))}

    @staticmethod
    def _pair_weights(features: dict):
        """[B] or, in packed rows, [B * M] float32: 0 for examples that are only padding."""
        weights = row_weights(features, features["next_sentence_labels"])
        if "next_sentence_weights" in features:
            pairs = ops.cast(features["next_sentence_weights"], "float32") * ops.expand_dims(weights, 1)
            weights = ops.reshape(pairs, (-1,))
        return weights

    @classmethod
    def sums(cls, outputs: dict, features: dict) -> dict:
        weights = _prediction_weights(features)
        ids = ops.cast(features["masked_lm_ids"], "int32")
        losses, right = _known_classes("masked_lm_ids", outputs["masked_lm_logits"], ids, weights, _TOKEN)
        pairs = cls._pair_weights(features)
        following, logits = ops.cast(features["next_sentence_labels"], "int32"), outputs["next_sentence_logits"]
        following, logits = ops.reshape(following, (-1,)), ops.reshape(logits, (-1, 2))
        pair_losses, pair_right = _known_classes("next_sentence_labels", logits, following, pairs, _CLASS)
        return {
            "masked_lm_loss": ops.sum(weights * losses),
            "masked_lm_correct": ops.sum(weights * right),
            "next_sentence_loss": ops.sum(pair_losses * pairs),
            "next_sentence_correct": ops.sum(pair_right * pairs),
            **cls.totals(features),
        }

    @staticmethod
    def loss(sums: dict, totals: dict):
        masked_lm = sums["masked_lm_loss"] / (totals["masked_lm_weight"] + _MASKED_LM_EPSILON)
        return masked_lm + sums["next_sentence_loss"] / totals["examples"]


# With ALBERT's names of metrics: next_sentence_labels is 1 where A and B are swapped.
SentenceOrderObjective = with_metric_names(PretrainingObjective, "next_sentence", "sentence_order")
