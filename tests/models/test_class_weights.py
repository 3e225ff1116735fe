"""Weights of classes in the loss: PyTorch's, however a batch is split, and in Keras `fit`."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import MODELS, inputs
from helpers.training_steps import feed, mirrored, one_device, trainer_of

from bert_tf.models.class_weights import with_class_weights
from bert_tf.models.objectives import ClassificationObjective, TokenClassificationObjective
from bert_tf.training.optimization import create_optimizer

WEIGHTS = [0.25, 3.0, 1.0, 2.0, 0.5]


def cases():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 5, 8)
    yield ClassificationObjective, generator.normal(size=(8, 5)).astype("float32"), labels
    labels = generator.integers(-1, 5, (8, 6))
    labels[0, :2] = -100
    yield TokenClassificationObjective, generator.normal(size=(8, 6, 5)).astype("float32"), labels


@pytest.mark.parametrize("objective, logits, labels", cases())
def test_the_loss_is_that_of_pytorch(objective, logits, labels):
    torch = pytest.importorskip("torch")
    loss = torch.nn.CrossEntropyLoss(weight=torch.tensor(WEIGHTS), ignore_index=-1)
    wanted = np.where(labels == -100, -1, labels).reshape(-1)
    expected = float(loss(torch.tensor(logits.reshape(-1, 5)), torch.tensor(wanted)))
    weighted = with_class_weights(objective, WEIGHTS)
    features = {"label_ids": labels}
    totals, sums = weighted.totals(features), weighted.sums(logits, features)
    assert float(weighted.loss(sums, totals)) == pytest.approx(expected, rel=1e-5)
    # In parts: what is divided by is of the whole batch.
    parts = [weighted.sums(logits[part], {"label_ids": labels[part]}) for part in (slice(0, 3), slice(3, 8))]
    assert sum(float(weighted.loss(part, totals)) for part in parts) == pytest.approx(expected, rel=1e-5)
    plain = objective.sums(logits, features)
    assert weighted.metrics(sums) == objective.metrics(plain)
    assert float(objective.loss(plain, plain)) != pytest.approx(expected, rel=1e-3)
    assert with_class_weights(objective, None) is objective


@pytest.mark.parametrize("name", ["classifier", "tagger"])
def test_micro_batches_and_replicas_make_the_same_step(name):
    create, features = MODELS[name]
    labels = np.random.default_rng(1).integers(0, 5, features["label_ids"].shape).astype("int32")
    batch, weights = {**features, "label_ids": labels}, []
    for strategy, parts in ((one_device(), 1), (one_device(), 2), (mirrored(2), 1)):
        with strategy.scope():
            model = create()
            model.dropout_rate = 0.0
            model.build()
            for number, variable in enumerate(model.trainable_variables):
                draw = np.random.default_rng(number).normal(scale=0.1, size=variable.shape)
                variable.assign(draw)
            optimizer = create_optimizer("adamw", 1e-2, 3, 0)
            optimizer.build(model.trainable_variables)
        objective = with_class_weights(model.objective, WEIGHTS)
        options = {"batch_size": 4, "gradient_accumulation_steps": parts, "seed": 1}
        run = trainer_of(model, optimizer, objective, strategy, **options).steps
        run(feed(strategy, tf.data.Dataset.from_tensors(batch).repeat()), 1)
        weights.append(np.asarray(model.head.output_weights))
    np.testing.assert_allclose(weights[0], weights[1], atol=1e-5)
    np.testing.assert_allclose(weights[0], weights[2], atol=1e-5)


def test_weights_in_fit():
    """Keras's class_weight, and sample_weight, for examples and for tokens."""
    model, features = MODELS["classifier"][0](), inputs()
    labels = np.array([0, 1, 3, 1])
    model.compile(optimizer="sgd", run_eagerly=True)
    losses = np.asarray(model.objective.values(model(features), {"label_ids": labels})[0])
    given = np.array(WEIGHTS)[labels]
    expected = (losses * given).sum() / given.sum()
    model.optimizer.learning_rate = 0.0
    model.dropout_rate, model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob = 0.0, 0.0, 0.0
    by_class = dict(enumerate(WEIGHTS))
    data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(4)
    for arguments in (
        {"x": features, "y": labels, "class_weight": by_class},
        {"x": data, "class_weight": by_class},
        {"x": features, "y": labels, "sample_weight": given},
    ):
        loss = model.fit(**arguments, verbose=0, shuffle=False).history["loss"][0]
        assert loss == pytest.approx(expected, rel=1e-4), arguments.keys()
    assert model.train_on_batch(features, labels, class_weight=by_class)[0] == pytest.approx(expected, rel=1e-4)

    model, labels = MODELS["tagger"][0](), np.random.default_rng(2).integers(-1, 5, (4, 6))
    model.compile(optimizer="sgd", run_eagerly=True)
    sums = with_class_weights(model.objective, WEIGHTS).sums(model(features), {"label_ids": labels})
    expected = float(model.objective.loss(sums, sums))
    given = np.array(WEIGHTS)[np.maximum(labels, 0)]
    found = model.evaluate(features, labels, sample_weight=given, verbose=0, return_dict=True)["loss"]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["tagger", "labels", "questions", "similarity", "masked"])
def test_class_weight_where_an_example_has_no_class(name):
    model, features = MODELS[name][0](), MODELS[name][1]
    model.compile(optimizer="sgd", run_eagerly=True)
    with pytest.raises(ValueError, match="one class an example, which .* give weights as sample_weight"):
        model.fit(features, class_weight={0: 1.0, 1: 2.0}, verbose=0)
