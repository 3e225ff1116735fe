"""Pre-training and fine-tuning of ELECTRA, RoBERTa and DistilBERT: the originals' outputs, gradients and steps.

Oracles of ELECTRA's pre-training: tests/golden/electra/uneven and training (and others in the data folder), from given
draws. Of fine-tuning: tests/golden/electra/finetuning for MNLI; of questions, STS-B and chunking (outputs only) in the
data folder; on one batch: the loss is the sum over the batch, the norm counts a word's rows unmerged, layer-wise decay
is 0.8. The last row is padding.
"""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import GOLDEN, slow
from helpers.outputs import assert_close, assert_drawn_independently
from helpers.training_steps import assert_variables, follow, prepared, same, trainer_of

from bert_tf import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bert_tf.families.distilbert import DistilBertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.families.recipe import Recipe
from bert_tf.families.roberta import RobertaConfig
from bert_tf.models import encoder, initialize, kernels
from bert_tf.models.electra import ElectraPretrainer, ReplacedTokenEvaluation, replace_tokens
from bert_tf.store import bundle, variable_names
from bert_tf.store.open import open_weights

pytestmark = pytest.mark.numbers

OPTIONS = {"disallow_correct": True, "temperature": 0.5, "generator_weight": 0.7, "discriminator_weight": 3.0}


def pretrainer(folder, **arguments) -> ElectraPretrainer:
    """A model with a golden folder's weights, all of which it has."""
    options = json.loads((folder / "hparams.json").read_text())
    untied = options["untied_generator_embeddings"]
    sizes = {"hidden_act": "gelu_erf", "embedding_size": options["embedding_size"] or 32}
    own = {**sizes, "embedding_size": options["generator_config"]["hidden_size"]} if untied else sizes
    config, generator = (
        ElectraConfig(**options[f"{name}_config"] | of) for name, of in (("discriminator", sizes), ("generator", own))
    )
    model = ElectraPretrainer(config, generator, untied_generator_embeddings=untied, **arguments)
    model.build()
    reader = bundle.CheckpointReader(str(folder / "model.ckpt"))
    variables = initialize.model_variables(model)
    assert set(variables) == set(reader.get_variable_to_shape_map())
    for name, variable in variables.items():
        variable.assign(reader.get_tensor(name))
    return model


def features_of(inputs, masks) -> dict[str, np.ndarray]:
    features = {"input_ids": masks["masked_input_ids"], "original_ids": inputs["input_ids"]}
    features |= {name: inputs[name] for name in ("input_mask", "segment_ids")}
    features |= {name: masks[name] for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")}
    return features | {"sampling_uniform": inputs["draw_gumbel_uniform"]}


@pytest.mark.parametrize("name, suffix, arguments", [
    ("uneven", "", {}), *slow(("uneven", "_disallow_correct", OPTIONS), ("even", "", {}),
                              ("options/untied_generator_embeddings", "", {})),
])  # fmt: skip
def test_outputs_are_the_originals(golden, name, suffix, arguments, request):
    root = golden if (name, suffix) == ("uneven", "") else request.getfixturevalue("shared") / "golden"
    folder = root / "electra" / name
    model = pretrainer(folder, **arguments)
    inputs, expected = (dict(np.load(folder / f"{part}{suffix}.npz")) for part in ("inputs", "outputs"))
    features = features_of(inputs, expected)
    outputs = model(features)
    names = {"sampled_ids": "sampled_ids", "corrupted_ids": "fake_input_ids", "is_replaced": "is_fake"}
    for output, there in names.items():
        np.testing.assert_array_equal(outputs[output], expected[there], err_msg=output)
    assert_close(outputs["masked_lm_logits"], expected["mlm_logits"])
    assert_close(outputs["discriminator_logits"], expected["disc_logits"], inputs["input_mask"].astype(bool))
    sums = model.objective.sums(outputs, features)
    assert set(sums) == set(model.objective.sum_names)
    np.testing.assert_allclose(model.objective.loss(sums, sums), expected["total_loss"], atol=2e-4)
    there = json.loads((folder / f"eval_metrics{suffix}.json").read_text())
    sums = ReplacedTokenEvaluation.sums(outputs, features)
    metrics = ReplacedTokenEvaluation.metrics(sums)
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(there, abs=2e-5)


OUTPUT_LAYER = {"output_weights": "task_specific/mnli/dense/kernel", "output_bias": "task_specific/mnli/dense/bias"}


def in_original(name: str, value) -> tuple[str, np.ndarray]:
    """A variable's or moment's name and value in the original's files."""
    value = tf.convert_to_tensor(value).numpy()
    base, *moment = name.split("/adam_")
    value = value.T if base == "output_weights" else value
    base = OUTPUT_LAYER.get(base) or variable_names.names_there([base], ElectraConfig(9))[base]
    return "/adam_".join([base, *moment]), value


def assert_gradients(model, features, file, there=same, *, mean: bool):
    expected, variables = dict(np.load(file)), initialize.model_variables(model)
    with tf.GradientTape() as tape:
        sums = model.objective.sums(model(features, training=True), features)
        loss = model.objective.loss(sums, model.objective.totals(features)) if mean else sums["loss_sum"]
    gradients = tape.gradient(loss, [variable.value for variable in variables.values()])
    for variable, gradient in zip(variables, gradients, strict=True):
        name, value = there(variable, gradient)
        np.testing.assert_allclose(value, expected.pop(name.replace("/", ".")), atol=2e-5, err_msg=name)
    assert not expected
    return sums


KEY_BIAS = {"key/bias": 1e-4}  # their gradients are rounding noise, of which Adam makes steps
FOLDER = GOLDEN / "electra" / "training"
BATCHES = features_of(*[dict(np.load(FOLDER / "batches.npz"))] * 2)


def test_gradients_of_the_first_step(golden):
    features = {name: value[0] for name, value in BATCHES.items()}
    assert_gradients(pretrainer(golden / "electra" / "uneven"), features, FOLDER / "grads_step0.npz", mean=True)


@pytest.mark.slow  # in small: test_gradients_of_the_first_step
@pytest.mark.parametrize("parts", [1, 3])
def test_eight_steps(golden, parts):
    expected = json.loads((FOLDER / "steps.json").read_text())
    model = pretrainer(golden / "electra" / "uneven")
    rates = (expected[name] for name in ("learning_rate", "num_train_steps", "num_warmup_steps"))
    model, optimizer = prepared(model, *rates, model.config.pretraining_recipe)
    trainer = trainer_of(model, optimizer, batch_size=6, gradient_accumulation_steps=parts)
    data = iter(tf.data.Dataset.from_tensor_slices(BATCHES))
    for step, result in follow(trainer, data, expected["steps"], atol=2e-4):
        mlm_loss = result["masked_lm_loss"] / result["masked_lm_weight"]
        np.testing.assert_allclose(mlm_loss, step["mlm_loss"], atol=2e-5)
        np.testing.assert_allclose(result["discriminator_loss"] / result["tokens"], step["disc_loss"], atol=2e-5)
    assert_variables(initialize.training_variables(model, optimizer), FOLDER / "model.ckpt-8", 2e-5, KEY_BIAS)


@pytest.mark.parametrize("fused", [True, False])
def test_what_is_drawn(fused, monkeypatch):
    """Tokens come as often as the softmax says, and what a row gets depends only on its own seeds."""
    logits = np.tile(np.log([0.5, 0.25, 0.125, 0.125]).astype("float32"), (300, 20, 1))
    seeds = np.random.default_rng(0).integers(-(2**31), 2**31, (300, 2)).astype("int32")
    monkeypatch.setitem(kernels._switches, "fused", fused)
    drawn = kernels.sample(tf.constant(logits), tf.constant(seeds)).numpy()
    part = kernels.sample(tf.constant(logits[:7]), tf.constant(seeds[:7])).numpy()
    shares = np.bincount(drawn.ravel(), minlength=4) / drawn.size
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.125, 0.125], atol=4 * np.sqrt(0.25 / drawn.size))
    np.testing.assert_array_equal(part, drawn[:7])
    assert len({row.tobytes() for row in drawn}) == 300 and drawn[:, 0].tolist() != drawn[:, 1].tolist()


def test_the_temperature_and_where_tokens_go():
    config = ElectraConfig(4, 8, 1, 2, 16, embedding_size=8, max_position_embeddings=8)
    usual, cold = (ElectraPretrainer(config, config, temperature=value) for value in (1.0, 0.5))
    generator = np.random.default_rng(0)
    logits, given = generator.normal(size=(2, 9, 4)), {"sampling_uniform": generator.random((2, 9, 4))}
    logits, given = tf.constant(logits, tf.float32), {name: tf.constant(u, tf.float32) for name, u in given.items()}
    np.testing.assert_array_equal(cold.draw(logits, given), usual.draw(2.0 * logits, given))
    assert np.any(cold.draw(logits, given) != usual.draw(logits, given))
    ids, places, drawn = (tf.constant([row]) for row in ([5, 6, 7], [0, 1], [9, 9]))
    new, replaced = replace_tokens(ids, places, tf.ones((1, 2)), drawn)
    assert (new.numpy().tolist(), replaced.numpy().tolist()) == ([[5, 9, 7]], [[False, True, False]])


def test_model_flops_are_those_of_the_products():
    """Two for each weight and token that a kernel or the output table multiplies, and attention; three passes.

    Of the generator's last layer, the predictions and [CLS] are read: all but keys and values is computed for these.
    """
    config = ElectraConfig(260, 32, 2, 2, 128, embedding_size=24, max_position_embeddings=40)
    generator, length, predictions = config.generator(0.5), 40, 6
    model = ElectraPretrainer(config, generator)
    model.build()
    total = 2 * predictions * 260 * 24
    for name, variable in initialize.model_variables(model).items():
        if name.endswith("kernel"):
            tokens = predictions if name.startswith("generator_pred") else length
            if name.startswith("generator/encoder/layer_1/") and "/self/key/" not in name and "/value/" not in name:
                tokens = predictions + 1
            total += 2 * np.prod(variable.shape) * tokens
    total += 4 * length**2 * (2 * config.hidden_size + generator.hidden_size)
    total += 4 * length * (predictions + 1) * generator.hidden_size
    assert encoder.replaced_token_flops_per_example(config, generator, length, predictions) == pytest.approx(3 * total)
    with pytest.raises(ValueError, match="generator_size=0.01: hidden_size must be an integer"):
        config.generator(0.01)


FINETUNING = GOLDEN / "electra" / "finetuning"
HPARAMS = json.loads((GOLDEN / "electra" / "uneven" / "hparams.json").read_text())
CONFIG = ElectraConfig(**HPARAMS["discriminator_config"] | {"embedding_size": 24, "hidden_act": "gelu_erf"})


@pytest.fixture
def further(shared):
    return shared / "golden" / "electra" / "finetuning"


def model_and_batch() -> tuple:
    path = str(FINETUNING / "mnli.ckpt")
    model = BertForSequenceClassification.from_pretrained(path, config=CONFIG, dropout_rate=0.0)
    inputs = dict(np.load(FINETUNING / "mnli_inputs.npz"))
    real = inputs["task_id"] == 0
    batch = {name: inputs[name][real] for name in ("input_ids", "input_mask", "segment_ids")}
    return model, {**batch, "label_ids": inputs["mnli_label_ids"][real]}


def test_outputs_and_gradients_of_fine_tuning():
    model, batch = model_and_batch()
    expected = dict(np.load(FINETUNING / "mnli_outputs.npz"))
    np.testing.assert_allclose(model(batch, training=True), expected["training_logits"][:-1], atol=2e-5, rtol=0)
    sums = assert_gradients(model, batch, FINETUNING / "mnli_grads_step0.npz", in_original, mean=False)
    np.testing.assert_allclose(sums["loss_sum"], expected["training_total_loss"], atol=2e-5)


@pytest.mark.slow  # in small: the test above, and test_recipes.py for schedule, layers and sums
def test_all_steps_of_fine_tuning():
    expected, (model, batch) = json.loads((FINETUNING / "mnli_steps.json").read_text()), model_and_batch()
    recipe = model.config.recipe
    assert (recipe.layerwise_lr_decay, recipe.sum_loss) == (expected["layerwise_lr_decay"], True)
    steps, total = expected["steps"], expected["num_train_steps"]
    warmup = total * expected["warmup_proportion"]
    model, optimizer = prepared(model, expected["learning_rate"], total, warmup, recipe)
    trainer = trainer_of(model, optimizer, batch_size=5, sum_loss=recipe.sum_loss)
    data = iter(tf.data.Dataset.from_tensors({name: value.astype("int32") for name, value in batch.items()}).repeat())
    assert len([*follow(trainer, data, steps, atol=2e-5, factor=5)]) == len(steps)
    variables = initialize.training_variables(model, optimizer)
    assert int(variables.pop("global_step")) == len(steps)
    assert_variables(variables, FINETUNING / f"mnli.ckpt-{len(steps)}", 2e-5, KEY_BIAS, in_original)


def read_oracles(folder, task) -> tuple[dict, dict, dict]:
    """Model inputs, the task's own inputs, and outputs; without the row of padding."""
    files = (dict(np.load(folder / f"{task}_{name}.npz")) for name in ("inputs", "outputs"))
    inputs, outputs = ({name: value[:-1] if value.ndim else value for name, value in file.items()} for file in files)
    return {name: inputs[name] for name in ("input_ids", "input_mask", "segment_ids")}, inputs, outputs


def test_regression(further):
    """The original divides the scores by 5 before it computes these targets; here they are those of the file."""
    batch, inputs, expected = read_oracles(further, "sts")
    model = BertForSequenceClassification.from_pretrained(str(further / "sts.ckpt"), config=CONFIG, num_labels=1)
    predictions = model(batch)
    assert_close(predictions[:, 0], expected["predictions"])
    sums = model.objective.sums(predictions, {**batch, "label_ids": inputs["sts_targets"]})
    np.testing.assert_allclose(sums["loss_sum"], expected["total_loss"], atol=2e-5)


def test_tags(further):
    """The original gathers the words' first tokens; here the labels of all others are negative."""
    batch, inputs, expected = read_oracles(further, "chunk")
    model = BertForTokenClassification.from_pretrained(str(further / "chunk.ckpt"), config=CONFIG, num_labels=5)
    rows, words = np.nonzero(inputs["chunk_labels_mask"])
    positions = inputs["chunk_labeled_positions"][rows, words]
    labels = np.full(batch["input_ids"].shape, -1)
    labels[rows, positions] = inputs["chunk_labels"][rows, words]
    logits = model(batch)
    assert_close(np.asarray(logits)[rows, positions], expected["logits"][rows, words])
    sums = model.objective.sums(logits, {**batch, "label_ids": labels})
    np.testing.assert_allclose(sums["loss_sum"], expected["total_loss"], atol=2e-5)


def test_independent_head(further):
    """The original without joint prediction and answerability scores starts and ends as BERT's head does."""
    inputs, _, expected = read_oracles(further, "squadv1_plain")
    model = BertForQuestionAnswering.from_pretrained(str(further / "squadv1_plain.ckpt"), config=CONFIG)
    reader = bundle.CheckpointReader(str(further / "squadv1_plain.ckpt"))
    variables = initialize.model_variables(model)
    for last, axis in (("kernel", 1), ("bias", 0)):
        parts = [reader.get_tensor(f"task_specific/squadv1/{layer}/{last}") for layer in ("dense", "dense_1")]
        name = "cls/squad/output_" + ("weights" if axis else "bias")
        variables[name].assign(np.concatenate(parts, axis).T)
    outputs = model(inputs)
    for name in ("start_logits", "end_logits"):
        in_answers = expected[name] > -500  # the original adds -1000 elsewhere
        assert in_answers.any(1).all()
        np.testing.assert_allclose(np.asarray(outputs[name])[in_answers], expected[name][in_answers], atol=2e-5)


@pytest.mark.parametrize("config, pads", [
    (RobertaConfig(2000, 64, 2, 2, 128, max_position_embeddings=50), ([1], [1])),
    (DistilBertConfig(2000, 64, 2, 2, 128, max_position_embeddings=50), ([0], [])),
])  # fmt: skip
def test_weights_are_drawn_from_a_normal(config, pads):
    """It is not truncated at two deviations; biases and rows of padding are 0."""
    assert config.draws_normal_weights and not BertConfig.draws_normal_weights
    keras.utils.set_random_seed(3)
    model = BertForMaskedLM(config)
    model.build()
    initialize.draw_normal_weights(model)
    assert_drawn_independently(model)
    weights = {variable.path: variable.numpy() for variable in model.trainable_variables}
    values = np.concatenate([value.ravel() for value in weights.values() if value.ndim > 1])
    assert abs(values.std() - 0.02) < 1e-4 and abs(values).max() > 0.08
    for name, value in weights.items():
        assert value.ndim > 1 or (value == ("gamma" in name)).all(), name
    words, positions = model.bert.embeddings.word_embeddings, model.bert.embeddings.position_embeddings
    for table, rows in zip((words, positions), pads, strict=True):
        assert np.nonzero((table.numpy() == 0).all(axis=1))[0].tolist() == rows
    again = words.numpy()
    keras.utils.set_random_seed(3)
    other = BertForMaskedLM(model.config)
    other.build()
    initialize.draw_normal_weights(other)
    np.testing.assert_array_equal(other.bert.embeddings.word_embeddings.numpy(), again)


@pytest.mark.parametrize("name, tolerance", [("adamw", 2e-5), *slow(("lamb", 5e-5))])
def test_six_steps(golden, name, tolerance):
    folder = golden / "albert" / "training"
    expected, batches = json.loads((folder / f"{name}_steps.json").read_text()), dict(np.load(folder / "batches.npz"))
    model = BertForPreTraining.from_pretrained(str(golden / "albert" / "config1" / "model.ckpt"))
    rates = (expected[key] for key in ("learning_rate", "num_train_steps", "num_warmup_steps"))
    model, optimizer = prepared(model, *rates, Recipe(bias_correction=False), name)
    trainer = trainer_of(model, optimizer, batch_size=batches["input_ids"].shape[1])
    data = iter(tf.data.Dataset.from_tensor_slices(batches))
    assert len([*follow(trainer, data, expected["steps"], atol=2e-5)]) == 6
    weights, variables = open_weights(str(folder / f"{name}.ckpt-6")), initialize.training_variables(model, optimizer)
    assert set(variables) == set(weights)
    for variable, value in variables.items():
        allowed = 2e-4 if "key/bias" in variable else tolerance
        np.testing.assert_allclose(value.numpy(), weights[variable], atol=allowed, err_msg=variable)
