"""Vectors of texts: the objectives beside their formulas, dropout, gradients, and the model in Keras."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.dropped import in_training
from helpers.tiny import ONE_LAYER

from bert_tf import BertForSimilarity, BertModel
from bert_tf.models.config import BertConfig
from bert_tf.models.similarity import LOSSES, similarity_objective

CONFIG = BertConfig.from_dict(ONE_LAYER)


def vectors_of(count, texts, seed=0, size=5):
    return np.random.default_rng(seed).normal(size=(count, texts, size)).astype(np.float32)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def loss_of(objective, vectors, **features):
    sums = objective.sums(tf.constant(vectors), features)
    metrics = {name: float(value) for name, value in objective.metrics(sums).items()}
    return float(objective.loss(sums, sums)), metrics


def test_cosine():
    vectors, scores = vectors_of(4, 2), np.array([0.1, 0.9, 0.5, 1.0], np.float32)
    normal = unit(vectors)
    errors = (normal[:, 0] * normal[:, 1]).sum(-1) - scores
    loss, metrics = loss_of(similarity_objective("cosine"), vectors, scores=scores)
    assert loss == pytest.approx((errors**2).mean(), rel=1e-5)
    assert metrics["mean_absolute_error"] == pytest.approx(np.abs(errors).mean(), rel=1e-5)


def ranking_by_hand(vectors, ids, scale, batches):
    """Example by example, with lists."""
    normal, losses, right = unit(vectors), [], []
    count, texts = ids.shape
    for one in range(count):
        candidates = []
        for text in range(1, texts):
            for other in range(count):
                own = (other, text) == (one, 1)
                copy = ids[other, text] in (ids[one, 1], ids[one, 0]) or (text == 1 and ids[other, 0] == ids[one, 0])
                if own or (not copy and batches[other] == batches[one]):
                    candidates.append((float(scale * normal[one, 0] @ normal[other, text]), own))
        scores = np.array([score for score, _ in candidates])
        mine = next(score for score, own in candidates if own)
        losses.append(np.log(np.exp(scores).sum()) - mine)
        right.append(mine == scores.max())
    return np.mean(losses), np.mean(right)


@pytest.mark.parametrize("texts", [2, 3])
@pytest.mark.parametrize("batches", [[0] * 6, [0, 0, 0, 1, 1, 1]])
def test_ranking(texts, batches):
    """Copies of a text or of its partner are no negatives; nor are the texts of another negatives batch."""
    vectors = vectors_of(6, texts, seed=texts)
    ids = np.arange(6 * texts).reshape(6, texts).astype(np.int32)
    ids[1, 0] = ids[0, 0]  # a text with two partners
    ids[4, 1] = ids[3, 1]  # a partner of two texts
    ids[5, -1] = ids[2, 0]  # a text that is itself a candidate
    expected, accuracy = ranking_by_hand(vectors, ids, 7.0, batches)
    objective = similarity_objective("ranking", scale=7.0)
    loss, metrics = loss_of(objective, vectors, text_ids=ids, negatives_batch=np.array(batches, np.int32))
    assert loss == pytest.approx(expected, rel=1e-5) and metrics["accuracy"] == pytest.approx(accuracy)
    if not any(batches):
        assert loss_of(objective, vectors, text_ids=ids)[0] == pytest.approx(expected, rel=1e-5)
        # Rows that only pad a batch count neither as texts nor as candidates.
        more, weights = np.concatenate([vectors, vectors[:2] + 1]), np.array([1.0] * 6 + [0.0] * 2, np.float32)
        padded = np.concatenate([ids, 100 + ids[:2]])
        assert loss_of(objective, more, text_ids=padded, example_weights=weights)[0] == pytest.approx(
            expected, rel=1e-5
        )


def test_triplet():
    vectors, ids = vectors_of(5, 3), np.zeros((5, 3), np.int32)
    near, far = (np.linalg.norm(vectors[:, 0] - vectors[:, number], axis=-1) for number in (1, 2))
    loss, metrics = loss_of(similarity_objective("triplet", margin=0.5), vectors, text_ids=ids)
    assert loss == pytest.approx(np.maximum(near - far + 0.5, 0).mean(), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx((near < far).mean())


def features_of(loss, count=4, length=8):
    texts = 3 if loss == "triplet" else 2
    generator = np.random.default_rng(1)
    ids = generator.integers(5, CONFIG.vocab_size, (count, texts, length)).astype(np.int32)
    mask = (np.arange(length) < generator.integers(3, length + 1, (count, texts, 1))).astype(np.int32)
    features = {"input_ids": ids * mask, "input_mask": mask, "segment_ids": np.zeros_like(ids)}
    if loss == "cosine":
        return {**features, "scores": generator.random(count).astype(np.float32)}
    return {**features, "text_ids": np.arange(count * texts, dtype=np.int32).reshape(count, texts)}


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_each_text_gets_the_vector_that_it_has_alone(pooling):
    features = features_of("triplet")
    model = BertForSimilarity(CONFIG, "triplet", pooling=pooling)
    model.build()
    together = np.asarray(model(features))
    for number in range(3):
        alone = np.asarray(model({name: features[name][:, number : number + 1] for name in list(features)[:3]}))
        np.testing.assert_allclose(together[:, number], alone[:, 0], atol=1e-6)
    outputs = np.asarray(BertModel.__call__(model.bert, {name: features[name][:, 0] for name in list(features)[:3]})
                         ["sequence_output"])  # fmt: skip
    mask = features["input_mask"][:, 0, :, None]
    expected = {
        "mean": (outputs * mask).sum(1) / mask.sum(1),
        "cls": outputs[:, 0],
        "max": np.where(mask > 0, outputs, -np.inf).max(1),
    }[pooling]
    np.testing.assert_allclose(together[:, 0], expected, atol=1e-5)
    # Two texts of an example have different dropout.
    same = {name: np.repeat(value[:, :1], 3, axis=1) for name, value in features.items()}
    noisy = np.asarray(in_training(model, same, [3, 4]))
    assert np.abs(noisy[:, 0] - noisy[:, 1]).max() > 1e-3


def test_the_configuration_keeps_the_loss():
    for loss in LOSSES:
        model = BertForSimilarity(CONFIG, loss, pooling="cls", scale=3.0, margin=2.0)
        again = BertForSimilarity.from_config(model.get_config())
        assert again.get_config() == model.get_config() and again.objective.__name__ == LOSSES[loss].__name__
        assert (again.objective.scale, again.objective.margin) == (3.0, 2.0)
