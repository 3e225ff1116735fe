"""Vectors of texts: the objectives beside their formulas, dropout; and classifiers of texts in windows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.outputs import in_training
from helpers.tiny import ONE_LAYER, TINY_CONFIG
from scipy.special import softmax

from bert_tf import BertConfig, BertForSequenceClassification, BertForSimilarity
from bert_tf.conversion.convert import convert
from bert_tf.models import kernels
from bert_tf.models.dropout import dropout_scope
from bert_tf.models.initialize import model_variables
from bert_tf.models.similarity import similarity_objective
from bert_tf.store.head_config import WINDOW_POOLINGS

CONFIG = BertConfig.from_dict(ONE_LAYER)


def loss_of(objective, vectors, **features):
    sums = objective.sums(tf.constant(vectors), features)
    metrics = {name: float(value) for name, value in objective.metrics(sums).items()}
    return float(objective.loss(sums, sums)), metrics


def ranking_by_hand(vectors, ids, scale, batches):
    """Example by example, with lists."""
    normal, losses, right = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), [], []
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
    vectors = np.random.default_rng(texts).normal(size=(6, texts, 5)).astype(np.float32)
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
        found = loss_of(objective, more, text_ids=padded, example_weights=weights)[0]
        assert found == pytest.approx(expected, rel=1e-5)


def windows_of(counts, length=12, seed=0):
    generator = np.random.default_rng(seed)
    shape = (len(counts), max(counts), length)
    real = np.arange(max(counts)) < np.array(counts)[:, None]
    lengths = np.where(real, generator.integers(3, length + 1, shape[:2]), 0)
    mask = (np.arange(length) < lengths[:, :, None]).astype(np.int32)
    ids = generator.integers(5, CONFIG.vocab_size, shape).astype(np.int32) * mask
    return {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_each_text_gets_the_vector_that_it_has_alone(pooling):
    features = windows_of([3] * 4)
    model = BertForSimilarity(CONFIG, "triplet", pooling=pooling)
    model.build()
    together = np.asarray(model(features))
    for number in range(3):
        alone = np.asarray(model({name: value[:, number : number + 1] for name, value in features.items()}))
        np.testing.assert_allclose(together[:, number], alone[:, 0], atol=1e-6)
    outputs = np.asarray(model.bert({name: value[:, 0] for name, value in features.items()})["sequence_output"])
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


def model_with(pooling, config=CONFIG, **arguments):
    keras.utils.set_random_seed(0)
    model = BertForSequenceClassification(config, 3, window_pooling=pooling, **arguments)
    model.build()
    if pooling == "attention":
        assert not np.asarray(model.windows.scores).any()  # at first, all windows weigh the same
        model.windows.scores.assign(np.random.default_rng(5).normal(size=config.hidden_size) * 3)
    return model


def gradients_of(model, features, **arguments):
    with tf.GradientTape() as tape:
        logits = model(features, **arguments)
        loss = tf.reduce_sum(logits * tf.reshape(tf.range(tf.size(logits), dtype=tf.float32), tf.shape(logits)))
    variables = model_variables(model)
    found = tape.gradient(loss, [variable.value for variable in variables.values()])
    return logits, {name: tf.convert_to_tensor(g) for name, g in zip(variables, found, strict=True) if g is not None}


@pytest.mark.parametrize("pooling", ["attention", *slow("mean", "max")])
@pytest.mark.parametrize(("fused", "dtype"), [(True, "float32"), *slow((False, "float32"), (True, "mixed_bfloat16"))])
def test_texts_of_one_window_are_as_in_an_ordinary_classifier(request, pooling, fused, dtype):
    kernels.set_fused(fused)
    request.addfinalizer(lambda: kernels.set_fused(True))
    model = model_with(pooling, BertConfig.from_dict(TINY_CONFIG), dtype=dtype)
    ordinary = BertForSequenceClassification(BertConfig.from_dict(TINY_CONFIG), 3, dtype=dtype)
    ordinary.build()
    known = model_variables(model)
    for name, variable in model_variables(ordinary).items():
        variable.assign(known[name])
    windows = windows_of([1] * 5)
    plain = {name: value[:, 0] for name, value in windows.items()}
    for training in (False, True):
        with dropout_scope([3, 4], 10):  # the part of a batch that begins at row 10
            logits, gradients = gradients_of(model, windows, training=training)
            expected, ordinary_gradients = gradients_of(ordinary, plain, training=training)
            again = model(plain, training=training)  # without an axis of windows
        np.testing.assert_allclose(logits, expected, atol=1e-6)
        np.testing.assert_allclose(again, expected, atol=1e-6)
        for name, value in ordinary_gradients.items():
            np.testing.assert_allclose(gradients[name], value, atol=1e-6, err_msg=name)
        assert not np.any(gradients.get("window_pooling/scores", 0.0))


@pytest.mark.parametrize("pooling", WINDOW_POOLINGS)
def test_pooling_by_hand_and_empty_windows(pooling):
    counts = [3, 1, 2, 4]
    model, features = model_with(pooling), windows_of(counts)
    flat = {name: value.reshape(-1, value.shape[-1]) for name, value in features.items()}
    vectors = np.asarray(model.bert(flat)["pooled_output"]).reshape(len(counts), max(counts), -1)
    texts = [windows[:count] for windows, count in zip(vectors, counts, strict=True)]
    if pooling == "attention":
        pooled = [softmax(windows @ np.asarray(model.windows.scores)) @ windows for windows in texts]
    else:
        pooled = [getattr(windows, pooling)(0) for windows in texts]
    expected = np.stack(pooled) @ np.asarray(model.head.output_weights).T + np.asarray(model.head.output_bias)
    logits = np.asarray(model(features))
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    # A text's result does not depend on how many empty windows it has, nor on what is in them.
    for number, count in enumerate(counts):
        alone = {name: value[number : number + 1, :count] for name, value in features.items()}
        np.testing.assert_allclose(np.asarray(model(alone))[0], logits[number], atol=1e-5)
    odd = features["input_ids"] + 7 * (features["input_mask"].sum(-1, keepdims=True) == 0)
    np.testing.assert_allclose(np.asarray(model({**features, "input_ids": odd})), logits, atol=1e-6)


def test_the_model_is_saved(tmp_path):
    features, model = windows_of([3, 1, 2, 4]), model_with("attention", window_stride=4, max_windows=6)
    expected = np.asarray(model(features))
    model.save_pretrained(str(tmp_path / "folder"))
    convert(str(tmp_path / "folder"), str(tmp_path / "again"), "bert_tf")
    again = BertForSequenceClassification.from_pretrained(str(tmp_path / "again"))
    assert again.head_config == model.head_config and again.head_config.max_windows == 6
    np.testing.assert_array_equal(np.asarray(again(features)), expected)
    model.export(str(tmp_path / "exported"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(loaded.serve(features), expected, atol=1e-5)
    with pytest.raises(ValueError, match="reads long texts in windows"):
        convert(str(tmp_path / "folder"), str(tmp_path / "theirs"), "huggingface")
