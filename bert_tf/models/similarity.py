"""The model that learns vectors of texts: an example is two or three texts, and an objective says which are near.

Source: Reimers and Gurevych 2019, "Sentence-BERT", section 3; negatives of the same batch: Henderson et al. 2017.

Shape legend: B batch, N texts of an example, S sequence length, H hidden size, C candidates.
"""

from types import MappingProxyType

from keras import ops

from bert_tf.models.dropout import several_rows
from bert_tf.models.heads import Pretrained, TaskModel
from bert_tf.models.inputs import ROW_INPUTS, flat_rows, require
from bert_tf.models.layers import normalized, sentence_vectors
from bert_tf.models.objectives import ClassificationObjective, cross_entropy, means
from bert_tf.store.description import check_pooling
from bert_tf.system import checks

RANKING_SCALE, TRIPLET_MARGIN = 20.0, 1.0


class CosineObjective(ClassificationObjective):
    """Squared error of the cosine of two texts, mean over the batch.

    Outputs: vectors [B, 2, H]. Features: `scores` [B], the cosine that is wanted.
    Metrics: `mean_absolute_error`, `example_loss`.
    """

    label_names = ("scores",)
    ratios = means("mean_absolute_error", example_loss="metric_loss")

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        scores = ops.reshape(ops.cast(features["scores"], "float32"), (-1,))
        possible, weights = ops.abs(scores) <= 1.0 + 1e-6, cls.weights(features)  # as rounding may leave it
        expected = "the cosine of two texts, from -1 to 1; divide yours by the largest"
        scores, wrong = require("scores", scores, possible, expected, weights=weights)
        cosines = ops.sum(normalized(outputs[:, 0]) * normalized(outputs[:, 1]), axis=-1)
        errors = cosines - (scores + wrong)
        return errors * errors, {"mean_absolute_error": ops.abs(errors)}


class RankingObjective(ClassificationObjective):
    """Softmax cross-entropy of finding a text's partner among the partners of other texts of the batch.

    The scores are cosines times `scale`. Candidates are the second texts of all examples and, where examples have
    three, all third ones, except other copies of the text or of its partner, and partners of other copies.

    Outputs: vectors [B, 2 or 3, H]. Features: `text_ids` [B, 2 or 3], equal numbers for equal texts;
    optional `negatives_batch` [B], the candidates of an example are those of the examples with its number.
    Metrics: `accuracy`, `example_loss`.
    """

    label_names = ("text_ids",)
    optional_names = (*ClassificationObjective.optional_names, "negatives_batch")
    scale = RANKING_SCALE

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        outputs, ids = ops.cast(outputs, "float32"), ops.cast(features["text_ids"], "int32")
        others = outputs.shape[1] - 1

        def of_candidates(values):
            """[B, N - 1, ...] -> [C, ...]: first the second texts of all examples, then the third ones."""
            return ops.concatenate([values[:, number] for number in range(others)], axis=0)

        vectors = normalized(outputs)
        logits = cls.scale * ops.matmul(vectors[:, 0], ops.transpose(of_candidates(vectors[:, 1:])))
        count = ops.shape(ids)[0]
        partner = ops.equal(ops.arange(count)[:, None], ops.arange(count * others)[None, :])
        candidates = of_candidates(ids[:, 1:])[None, :]
        # A third text is a negative for all copies of its first one.
        no_text = [-ops.ones_like(ids[:, 0])] * (others - 1)
        firsts = ops.concatenate([ids[:, 0], *no_text], axis=0)[None, :]
        excluded = ops.equal(firsts, ids[:, :1])
        for number in (0, 1):
            excluded = excluded | ops.equal(candidates, ids[:, number : number + 1])
        for name, differs in (("negatives_batch", ops.not_equal), ("example_weights", lambda _, weights: weights == 0)):
            if name in features:
                values = ops.reshape(features[name], (-1,))
                excluded = excluded | differs(values[:, None], ops.tile(values, (others,))[None, :])
        logits = ops.where(excluded & ~partner, -1e9, logits)
        labels = ops.arange(count, dtype="int32")
        correct = ops.cast(ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), labels), "float32")
        return cross_entropy(logits, labels), {"accuracy": correct}


class TripletObjective(ClassificationObjective):
    """Distance to the second text minus that to the third plus `margin`, at least 0, mean over the batch; Euclidean.

    Outputs: vectors [B, 3, H]. Features: `text_ids` [B, 3], which only show the size of the batch.
    Metrics: `accuracy` (the second text is nearer), `example_loss`.
    """

    label_names = ("text_ids",)
    margin = TRIPLET_MARGIN

    @classmethod
    def values(cls, outputs, features: dict) -> tuple:
        squares = (ops.square(outputs[:, 0] - outputs[:, number]) for number in (1, 2))
        near, far = (ops.sqrt(ops.sum(each, axis=-1) + 1e-12) for each in squares)
        return ops.relu(near - far + cls.margin), {"accuracy": ops.cast(near < far, "float32")}


LOSSES = {"cosine": CosineObjective, "ranking": RankingObjective, "triplet": TripletObjective}


def similarity_objective(loss: str, scale: float = RANKING_SCALE, margin: float = TRIPLET_MARGIN) -> type:
    """The objective of one of LOSSES. scale, margin: of "ranking" and "triplet"."""
    checks.check_number(scale, "scale")
    checks.check_number(margin, "margin")
    return type(LOSSES[loss].__name__, (LOSSES[loss],), {"scale": scale, "margin": margin})


class BertForSimilarity(TaskModel):
    """Encoder, pooled to one vector for each text, and an objective on the vectors of the texts of an example.

        model = BertForSimilarity.from_pretrained("uncased_L-12_H-768_A-12", loss="cosine")
        model.compile(optimizer=AdamWeightDecay(2e-5))
        model.fit(rows)  # input_ids, input_mask, segment_ids [B, 2, S], scores [B]

    `Embedder` opens what `save_pretrained` writes.

    Args:
      config: of any family, or its dict.
      loss: "cosine", "ranking" or "triplet". scale, margin: see `RankingObjective` and `TripletObjective`.
      pooling: see `description.SentenceSettings`.
      seed: see `BertModel`. dtype: Keras dtype policy.
    """

    exported_inputs = MappingProxyType(dict.fromkeys(Pretrained.exported_inputs, 3))
    encoder_inputs = ROW_INPUTS
    reads_pooler = False
    further_inputs = ("text_ids", "scores")  # a dev set may have other labels than the training set

    def __init__(
        self,
        config,
        loss: str = "ranking",
        *,
        pooling: str = "mean",
        scale: float = RANKING_SCALE,
        margin: float = TRIPLET_MARGIN,
        seed: int | None = None,
        name="similarity",
        **kwargs,
    ):
        check_pooling(pooling)
        super().__init__(similarity_objective(loss, scale, margin), config, seed, name=name, **kwargs)
        self.loss_name, self.pooling, self.scale, self.margin = loss, pooling, scale, margin
        self.tokens_read = 1 if pooling == "cls" else None

    def get_config(self) -> dict:
        return {**super().get_config(), "loss": self.loss_name}  # Keras's own `loss` is that of `compile`

    def build_head(self):
        pass  # the pooling has no variables

    def call(self, inputs, training=False):
        """float32 vectors [B, N, H], not normalized, of input_ids, input_mask and segment_ids [B, N, S]."""
        rows, texts = flat_rows(inputs)
        rows.setdefault("input_mask", ops.ones_like(rows["input_ids"]))
        with several_rows(texts):
            vectors = sentence_vectors(self.bert, rows, self.pooling, training=training)
        return ops.reshape(vectors, (-1, texts, vectors.shape[-1]))
