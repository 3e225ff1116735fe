"""Distillation in pre-training: four updates of the project's own step are those of DistilBERT's distiller.py.

The student's beginning and the teacher are in the data folder; they have no dropout. The research project averages the
losses of two batches of four rows, each a mean over its own tokens; here a batch is eight rows, and a row's and a
prediction's weight make the same of them.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from helpers.training_steps import trainer_of

from bert_tf import BertForMaskedLM, create_optimizer
from bert_tf.families.distilbert import DistilBertConfig
from bert_tf.models import initialize
from bert_tf.models.distillation import LanguageDistillation, TaughtLanguageModel
from bert_tf.store.open import open_weights

PREDICTIONS = 12


@pytest.fixture
def oracle(shared):
    return shared / "golden" / "distilbert"


@pytest.fixture
def batches(golden):
    """The eight batches of four rows, two by two: features [4, 8, ...]."""
    arrays = dict(np.load(golden / "distilbert" / "training_batches.npz"))
    mask, labels = arrays["attention_mask"], arrays["mlm_labels"]
    labels = np.where(mask == 1, labels, -100)
    rows = 1.0 / (2 * mask.sum((1, 2)))
    places = np.argsort(labels < 0, axis=-1, kind="stable")[..., :PREDICTIONS]
    chosen = np.take_along_axis(labels, places, -1)
    assert (labels >= 0).sum() == (chosen >= 0).sum()
    counts = 2 * (labels >= 0).sum((1, 2))
    weights = (chosen >= 0) / (counts * rows)[:, None, None]
    features = {
        "input_ids": arrays["input_ids"], "input_mask": mask, "segment_ids": np.ones_like(mask),
        "masked_lm_positions": places, "masked_lm_ids": np.maximum(chosen, 0), "masked_lm_weights": weights,
        "example_weights": np.repeat(rows[:, None], 4, axis=1),
    }  # fmt: skip
    return {
        name: np.reshape(value, (4, 8, *value.shape[2:])).astype("float32" if "weight" in name else "int32")
        for name, value in features.items()
    }


@pytest.mark.slow  # in small: test_distillation.py, test_equal_steps.py
def test_all_updates(oracle, golden, batches):
    settings = json.loads((golden / "distilbert" / "training_steps.json").read_text())
    student, teacher = (BertForMaskedLM.from_pretrained(str(oracle / name)) for name in ("student_init", "teacher"))
    names = ("alpha_ce", "alpha_mlm", "alpha_cos", "temperature")
    objective = LanguageDistillation(**{name: settings[name] for name in names})
    assert objective == LanguageDistillation()  # the defaults are those of the research project's README
    model = TaughtLanguageModel(student, teacher, objective)
    recipe = DistilBertConfig.pretraining_recipe
    steps, warmup = settings["num_training_steps"], settings["warmup_steps"]
    assert (recipe.learning_rate, recipe.clip_norm) == (settings["learning_rate"], settings["max_grad_norm"])
    optimizer = create_optimizer(recipe.optimizer, recipe.learning_rate, steps, warmup, recipe)
    optimizer.build(model.trainable_variables)
    train = trainer_of(model, optimizer, objective, batch_size=8, gradient_accumulation_steps=2).steps
    data = iter(tf.data.Dataset.from_tensor_slices(batches))
    for number in range(settings["updates"]):
        expected = settings["batches"][2 * number : 2 * number + 2]
        rate = float(optimizer.learning_rate)
        result = train(data, tf.constant(1))
        np.testing.assert_allclose(rate, expected[1]["learning_rate"], rtol=1e-6)
        np.testing.assert_allclose(result["gradient_norm"], expected[1]["gradient_norm"], rtol=1e-3)
        metrics = {"loss": result["loss"], **objective.metrics(result)}
        there = {"loss": "loss", "divergence": "loss_ce", "masked_lm_loss": "loss_mlm", "cosine_distance": "loss_cos"}
        for here, name in there.items():
            mean = np.mean([batch[name] for batch in expected])
            np.testing.assert_allclose(metrics[here], mean, rtol=1e-4, err_msg=f"{number} {here}")
    weights = open_weights(str(oracle / "training_after_8_batches.safetensors"))
    for name, variable in initialize.model_variables(student).items():
        # The true gradient of a key bias is zero; Adam turns its rounding noise into steps.
        tolerance = 2e-3 if "key/bias" in name else 2e-5
        np.testing.assert_allclose(variable.numpy(), weights[name], atol=tolerance, rtol=0, err_msg=name)
