"""Distillation: a model (the student) learns from the outputs of a trained one (the teacher), and from labels.

`TaughtModel` computes both models, `DistillationObjective` adds the loss against the teacher to that of a task. Both
stand in a training step where a model and its objective do; what is saved and used afterwards is the student alone.

    model = TaughtModel(student, teacher)
    objective = DistillationObjective(student.objective, weight=0.5, temperature=2.0)

`TaughtLanguageModel` and `LanguageDistillation` do the same in pre-training. `chosen_layers` are what a student takes
from its teacher at the start.

Sources: Hinton et al. 2015 (arXiv:1503.02531); Sanh et al. 2019 (arXiv:1910.01108); run_squad_w_distillation.py,
distiller.py, extract.py and extract_distilbert.py of DistilBERT (huggingface/transformers-research-projects).

Shape legend: B batch, S sequence length, P predictions per sequence, N tokens, H hidden size, E embedding size,
V vocabulary.
"""

import dataclasses
import re
from collections.abc import Sequence

import keras
from keras import ops

from bert_tf.families import is_encoder_variable
from bert_tf.families.config import BertConfig
from bert_tf.families.family import is_model_variable
from bert_tf.models import kernels
from bert_tf.models.inputs import select
from bert_tf.models.layers import gather_positions
from bert_tf.models.objectives import MaskedLanguageModelObjective, divide
from bert_tf.store.tensor_files import Weights, renamed

# Tokens whose scores are computed at a time.
_ROWS = 512
_LAYER = re.compile(r"([\w-]+/encoder/layer_)(\d+)(/.+)")


class TaughtModel:
    """A student and its teacher, called on the same features.

    The teacher gets those that it knows, and runs as in inference: without dropout, and without a gradient. It is not
    among the variables, so that optimizers and checkpoints see the student only.
    """

    def __init__(self, student: keras.Model, teacher: keras.Model):
        for model in (student, teacher):
            if not model.built:
                model.build()
        teacher.trainable = False
        self.student, self.teacher = student, teacher

    @property
    def trainable_variables(self) -> list:
        return self.student.trainable_variables

    @property
    def weights(self) -> list:
        return self.student.weights

    def __call__(self, features: dict, training: bool = False) -> dict:
        """The outputs of both: `student` and `teacher`; arguments as for a model with a head."""
        with kernels.fused_inference():
            targets = self.teacher(select(features, self.teacher.known_inputs), training=False)
        targets = keras.tree.map_structure(ops.stop_gradient, targets)
        return {"student": self.student(features, training=training), "teacher": targets}


class DistillationObjective:
    """The loss of a task against labels and against a teacher's outputs: (1 - weight) labels + weight teacher.

    Outputs: those of a `TaughtModel`. Features, labels and metrics are those of the task, and the metric `soft_loss`.

    objective: one of objectives.py that has `soft_losses`. weight: of the teacher, 0 to 1.
    temperature: see `objectives.softened_divergence`; a regression has none.
    """

    def __init__(self, objective, weight: float, temperature: float):
        self.objective, self.weight, self.temperature = objective, weight, temperature
        self.label_names, self.optional_names = objective.label_names, objective.optional_names
        self.totals = objective.totals
        self.sum_names = (*objective.sum_names, "soft_loss_sum")

    def sums(self, outputs: dict, features: dict) -> dict:
        losses = self.objective.soft_losses(outputs["student"], outputs["teacher"], self.temperature)
        soft = ops.sum(self.objective.weights(features) * losses)
        return {**self.objective.sums(outputs["student"], features), "soft_loss_sum": soft}

    def loss(self, sums: dict, totals: dict):
        soft = self.objective.loss({**sums, "loss_sum": sums["soft_loss_sum"]}, totals)
        return (1.0 - self.weight) * self.objective.loss(sums, totals) + self.weight * soft

    def metrics(self, sums: dict) -> dict:
        soft = self.objective.loss({**sums, "loss_sum": sums["soft_loss_sum"]}, sums)
        return {**self.objective.metrics(sums), "soft_loss": soft}


@dataclasses.dataclass(frozen=True)
class LanguageDistillation:
    """Loss and metrics of a masked language model and its teacher, computed from sums; see `objectives`.

    Outputs: those of a `TaughtLanguageModel`. Features: `masked_lm_ids`, `masked_lm_weights` [B, P], `input_mask`
    [B, S], and optionally `example_weights` [B].

    The weights: alpha_ce of the divergence of the student's distribution over the vocabulary from the teacher's,
    alpha_mlm of the masked-LM loss, alpha_cos of 1 - cos of the last hidden states, alpha_mse of the squared difference
    of the scores, summed over the vocabulary. All but alpha_mlm's are means over all tokens.
    temperature: of the divergence, which is multiplied by its square.
    restrict_ce_to_mask: divergence and squared difference are means over the masked tokens.
    """

    alpha_ce: float = 5.0
    alpha_mlm: float = 2.0
    alpha_cos: float = 1.0
    alpha_mse: float = 0.0
    temperature: float = 2.0
    restrict_ce_to_mask: bool = False

    label_names = MaskedLanguageModelObjective.label_names
    optional_names = MaskedLanguageModelObjective.optional_names
    sum_names = (
        "soft_loss", "divergence", "squared_error", "cosine_distance", "masked_lm_loss", "masked_lm_correct",
        "masked_lm_weight", "tokens",
    )  # fmt: skip

    @property
    def reads_all(self) -> bool:
        """Whether the last hidden states are read everywhere, not only at the masked tokens."""
        return bool(self.alpha_cos) or not self.restrict_ce_to_mask

    def compared_weights(self, features: dict):
        """[B, S] or [B, P] float32: the weights of the tokens whose scores are compared."""
        return (MaskedLanguageModelObjective.weights if self.restrict_ce_to_mask else _token_weights)(features)

    def totals(self, features: dict) -> dict:
        weights = MaskedLanguageModelObjective.weights(features)
        return {"masked_lm_weight": ops.sum(weights), "tokens": ops.sum(_token_weights(features))}

    def sums(self, outputs: dict, features: dict) -> dict:
        masked = MaskedLanguageModelObjective.sums(outputs["masked_lm_logits"], features)
        distance = ops.zeros(())
        if self.alpha_cos:
            states, targets = (ops.cast(outputs[name], "float32") for name in ("states", "teacher_states"))
            cosine = ops.sum(states * targets, axis=-1)
            for x in (states, targets):
                cosine = cosine * ops.rsqrt(ops.sum(ops.square(x), axis=-1) + 1e-12)
            distance = ops.sum(_token_weights(features) * (1.0 - cosine))
        return {
            **dict(zip(self.sum_names[:3], ops.unstack(outputs["soft_sums"], 3), strict=True)),
            "cosine_distance": distance,
            "masked_lm_loss": masked["loss_sum"],
            "masked_lm_correct": masked["accuracy"],
            **self.totals(features),
        }

    @property
    def _compared(self) -> str:
        return "masked_lm_weight" if self.restrict_ce_to_mask else "tokens"

    def loss(self, sums: dict, totals: dict):
        soft = divide(sums["soft_loss"], totals[self._compared])
        masked = self.alpha_mlm * sums["masked_lm_loss"]
        cosine = self.alpha_cos * sums["cosine_distance"]
        return soft + divide(masked, totals["masked_lm_weight"]) + divide(cosine, totals["tokens"])

    def metrics(self, sums: dict) -> dict:
        """Accuracy and loss of masked LM, and the parts of the loss against the teacher that have a weight."""
        parts = {
            "masked_lm_accuracy": ("masked_lm_correct", "masked_lm_weight", True),
            "masked_lm_loss": ("masked_lm_loss", "masked_lm_weight", True),
            "divergence": ("divergence", self._compared, self.alpha_ce),
            "squared_error": ("squared_error", self._compared, self.alpha_mse),
            "cosine_distance": ("cosine_distance", "tokens", self.alpha_cos),
        }
        return {name: divide(sums[part], sums[whole]) for name, (part, whole, used) in parts.items() if used}


def _token_weights(features: dict):
    """[B, S] float32: 1 for tokens, 0 for padding, times the weight of the row."""
    weights = ops.cast(features["input_mask"], "float32")
    if "example_weights" in features:
        weights = weights * ops.cast(features["example_weights"], "float32")[:, None]
    return weights


class TaughtLanguageModel(TaughtModel):
    """A student and its teacher, both `BertForMaskedLM`; the objective says what is compared.

    The teacher sees segments only if the student does.
    """

    def __init__(self, student: keras.Model, teacher: keras.Model, objective: LanguageDistillation):
        super().__init__(student, teacher)
        self.objective = objective

    def __call__(self, features: dict, training: bool = False) -> dict:
        """Scores the masked tokens, and compares the scores of all.

        features: those of `BertForMaskedLM`, with `masked_lm_positions` [B, P], and of the objective.

        Returns a dict with the student's `masked_lm_logits` [B, P, V] float32; the last hidden states of both, `states`
        and `teacher_states` [B, S, H], or [B, P, H] if no others are read; `soft_sums`, see `vocabulary_divergence`.
        """
        objective, positions = self.objective, features["masked_lm_positions"]
        read, positions = (None, positions) if objective.reads_all else (positions, None)  # None: all that there are
        compared_positions = positions if objective.restrict_ce_to_mask else None
        # A student without segments can't tell them apart: what the teacher knows of them could not be learned.
        hidden = () if self.student.config.type_vocab_size else ("segment_ids",)
        seen = {name: value for name, value in features.items() if name not in hidden}
        with kernels.fused_inference():
            targets = self.teacher.encode(seen, training=False, read_positions=read)["sequence_output"]
            teacher_factors = self._scoring(self.teacher, targets, compared_positions, False)
        targets, *teacher_factors = (ops.stop_gradient(ops.convert_to_tensor(x)) for x in (targets, *teacher_factors))
        encoded = self.student.encode(features, training=training, read_positions=read)
        states, compared, masked = kernels.ordered_fan_out(encoded["sequence_output"], 3)
        vectors, table, bias = self._scoring(self.student, compared, compared_positions, training)
        table, compared_table = kernels.ordered_fan_out(table, 2)  # and the lookup of the tokens is a third use
        # A custom gradient takes no variables; outside of graphs the bias still is one.
        factors = [kernels.ordered_fan_out(x, 1)[0] for x in (vectors, compared_table, bias)]
        soft = ops.zeros((3,), "float32")
        alphas = objective.alpha_ce, objective.alpha_mse
        if any(alphas):
            weights = ops.reshape(objective.compared_weights(features), (-1,))
            soft = vocabulary_divergence(factors, teacher_factors, weights, objective.temperature, alphas, training)
        logits = self.student.head(masked, table, positions, training=training)
        return {"masked_lm_logits": logits, "states": states, "teacher_states": targets, "soft_sums": soft}

    @staticmethod
    def _scoring(model: keras.Model, states, positions, training: bool) -> tuple:
        """The factors of the scores of the compared tokens: vectors [N, E], table [V, E], bias [V]."""
        if positions is not None:
            states = gather_positions(states, positions)
        vectors = model.head.transform(states, training=training)
        vectors = ops.reshape(vectors, (-1, model.config.embedding_size))
        return vectors, model.bert.get_embedding_table(), model.head.output_bias


def vocabulary_divergence(
    student: Sequence, teacher: Sequence, weights, temperature: float, factors: tuple[float, float], training: bool
):
    """Sums over tokens of KL(softmax(t / T) || softmax(s / T)) T^2 and of |s - t|^2, for the scores s and t [V].

    The scores are computed for a few tokens at a time, and only for those with a weight. Since they are linear in the
    upstream gradient, the gradients are computed with them, and nothing is computed again.

    student, teacher: vectors [N, E], table [V, E] and bias [V], whose scores are vectors table^T + bias.
    weights: [N] float32, of the tokens. temperature: T. factors: of both sums in the loss.
    training: whether gradients of the student's tensors are needed.

    Returns float32 [3]: both sums times their factors added up, which alone has a gradient; the two sums.
    """

    def compute(*ours):
        sums, gradients = _sums_and_gradients(ours, teacher, weights, temperature, factors, training)

        def backward(*arguments, upstream=None):
            upstream = arguments[-1] if upstream is None else upstream
            return tuple(ops.cast(upstream[0] * gradient, x.dtype) for x, gradient in zip(ours, gradients, strict=True))

        return sums, backward

    if not training:
        return compute(*student)[0]
    return ops.custom_gradient(compute)(*student)


def _sums_and_gradients(student, teacher, weights, temperature: float, factors: tuple[float, float], training: bool):
    """The sums of `vocabulary_divergence`, and float32 gradients of the first with respect to `student`."""
    student, teacher = ([ops.stop_gradient(x) for x in tensors] for tensors in (student, teacher))
    # Those with a weight first. A sort would do, but on TPUs its result has a size that is not known beforehand.
    counted = ops.cast(weights > 0, "int32")
    count = ops.sum(counted)
    positions = ops.where(counted > 0, ops.cumsum(counted), count + ops.cumsum(1 - counted)) - 1
    total = ops.shape(weights)[0]
    order = ops.scatter(positions[:, None], ops.arange(total, dtype="int32"), (total,))

    def sorted_rows(x):
        return ops.pad(ops.take(x, order, axis=0), [(0, _ROWS)] + [(0, 0)] * (len(x.shape) - 1))

    inputs, targets, weights = sorted_rows(student[0]), sorted_rows(teacher[0]), sorted_rows(weights)
    tables = [ops.cast(tensors[1], tensors[0].dtype) for tensors in (student, teacher)]

    def scores(vectors, tensors, table):
        return ops.cast(ops.matmul(vectors, ops.transpose(table)), "float32") + tensors[2]

    def body(start, sums, *gradients):
        def rows(x):
            return ops.slice(x, [start] + [0] * (len(x.shape) - 1), [_ROWS, *x.shape[1:]])

        vectors, weight = rows(inputs), rows(weights)
        ours, goal = scores(vectors, student, tables[0]), scores(rows(targets), teacher, tables[1])
        log_ours, log_goal = (ops.log_softmax(x / temperature) for x in (ours, goal))
        difference, probability = ours - goal, ops.exp(log_goal)
        divergence = temperature**2 * ops.sum(probability * (log_goal - log_ours), axis=-1)
        new = ops.stack([ops.sum(weight * divergence), ops.sum(weight * ops.sum(difference**2, axis=-1))])
        if training:
            slope = factors[0] * temperature * (ops.exp(log_ours) - probability)
            if factors[1]:
                slope = slope + 2.0 * factors[1] * difference
            slope = weight[:, None] * slope  # [rows, V]
            narrow = ops.cast(slope, vectors.dtype)
            of_vectors = ops.cast(ops.matmul(narrow, tables[0]), "float32")
            of_table = ops.cast(ops.matmul(ops.transpose(narrow), vectors), "float32")
            all_vectors = ops.slice_update(gradients[0], [start, 0], of_vectors)
            gradients = (all_vectors, gradients[1] + of_table, gradients[2] + ops.sum(slope, axis=0))
        return start + _ROWS, sums + new, *gradients

    start = [ops.zeros_like(ops.cast(x, "float32")) for x in (inputs, student[1], student[2])] if training else []
    _, sums, *gradients = ops.while_loop(lambda start, *_: start < count, body, (0, ops.zeros((2,)), *start))
    if training:
        gradients[0] = ops.take(gradients[0], positions, axis=0)
    return ops.concatenate([ops.sum(sums * ops.convert_to_tensor(factors), keepdims=True), sums]), gradients


# --- what a student takes from its teacher ----------------------------------------------------------------------------


def chosen_layers(
    weights: Weights, layers: Sequence[int], student: BertConfig | None = None, *, transform: bool = False
) -> Weights:
    """A teacher's weights for a student: the encoder with these layers only, numbered from 0.

    student: of a model to pre-train, which gets the masked-LM head, too, and only what its family has. None: no heads.
    transform: with the hidden layer of the masked-LM head (--vocab_transform).
    """
    numbers = {layer: number for number, layer in enumerate(layers)}
    names, head = {}, ("cls/predictions/output_bias", *["cls/predictions/transform/"] * transform)
    for name in filter(is_model_variable, weights):
        layer = _LAYER.fullmatch(name)
        if layer and int(layer[2]) in numbers:
            names[f"{layer[1]}{numbers[int(layer[2])]}{layer[3]}"] = name
        elif (not layer and is_encoder_variable(name)) or (student and name.startswith(head)):
            names[name] = name
    if student:
        names = {
            f"{student.model_type}/{new.partition('/')[2]}" if is_encoder_variable(new) else new: old
            for new, old in names.items()
            if student.type_vocab_size or not new.endswith("/token_type_embeddings")
            if student.has_pooler or "/pooler/" not in new
        }
    reasons = dict.fromkeys([name for name in weights if name not in names.values()], "not what a student takes over")
    return renamed(weights, names, reasons)
