"""RoBERTa: eight updates of pre-training are those of transformers' model with fairseq's optimizer, however cut.

The reference is computed here by PyTorch: transformers' RobertaForMaskedLM, the plain mean over the masked tokens of
the whole update, and fairseq's Adam written out.
"""

import shutil

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from helpers.outputs import assert_drawn_independently
from helpers.paths import ROOT
from helpers.training_steps import trainer_of

from bert_tf.models import initialize
from bert_tf.models.config import BertConfig
from bert_tf.models.families import DistilBertConfig, RobertaConfig
from bert_tf.models.objectives import MaskedLanguageModelObjective, MeanMaskedLanguageModelObjective
from bert_tf.models.task_models import BertForMaskedLM
from bert_tf.training.optimization import WarmupLinearDecay, create_optimizer

pytestmark = pytest.mark.numbers

STEPS, ROWS, LENGTH, MOST, RATE, WARMUP = 8, 4, 24, 6, 5e-3, 3
ORACLE = ROOT.parent / "shared" / "golden" / "roberta"


@pytest.fixture
def directory(golden, tmp_path):
    """The model of the oracle without dropout, in Hugging Face's form."""
    source, target = golden / "descendants" / "roberta", tmp_path / "theirs"
    target.mkdir()
    tensors = safetensors.numpy.load_file(source / "encoder.safetensors")
    tensors |= safetensors.numpy.load_file(source / "masked_lm" / "head.safetensors")
    safetensors.numpy.save_file(tensors, str(target / "model.safetensors"), {"format": "pt"})
    shutil.copy(source / "masked_lm" / "config.json", target)
    return str(target)


def create_batches() -> dict[str, np.ndarray]:
    """[STEPS, ROWS, ...]: rows of different lengths with 0 to MOST predictions."""
    generator = np.random.default_rng(5)
    shape = (STEPS, ROWS)
    lengths = generator.integers(8, LENGTH + 1, (*shape, 1))
    mask = (np.arange(LENGTH) < lengths).astype("int32")
    counts = generator.integers(0, MOST + 1, (*shape, 1))
    counts[0, :2] = 0  # a part of an update without any
    positions = np.argsort(generator.random((*shape, 8)), axis=-1)[..., :MOST]
    weights = (np.arange(MOST) < counts).astype("float32")
    return {
        "input_ids": np.where(mask, generator.integers(0, 600, (*shape, LENGTH)), 1).astype("int32"),
        "input_mask": mask,
        "masked_lm_positions": (positions * weights).astype("int32"),
        "masked_lm_ids": (generator.integers(0, 601, (*shape, MOST)) * weights).astype("int32"),
        "masked_lm_weights": weights,
    }


def reference(directory, batches) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses, and the weights after the last update, by their names in Hugging Face's files."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.RobertaForMaskedLM.from_pretrained(directory, dtype=torch.float32)
    model.eval()  # no dropout
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in parameters.items()}
    losses = []
    for step in range(STEPS):
        rows = {name: torch.tensor(values[step]) for name, values in batches.items()}
        labels = torch.full(rows["input_ids"].shape, -100)
        for row, place in torch.nonzero(rows["masked_lm_weights"]).tolist():
            labels[row, rows["masked_lm_positions"][row, place]] = rows["masked_lm_ids"][row, place].long()
        logits = model(input_ids=rows["input_ids"].long(), attention_mask=rows["input_mask"]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        model.zero_grad()
        loss.backward()
        losses.append(float(loss))
        # The first update has the rate of the second: lr * t / W from t = 1 while t <= W.
        update = max(step, 1)
        rate = RATE * (update / WARMUP if update <= WARMUP else (20 - update) / (20 - WARMUP))
        t = step + 1
        with torch.no_grad():
            for name, value in parameters.items():
                m, v = moments[name]
                gradient = torch.zeros_like(value) if value.grad is None else value.grad
                m.mul_(0.9).add_(gradient, alpha=0.1)
                v.mul_(0.98).addcmul_(gradient, gradient, value=0.02)
                value.mul_(1 - rate * 0.01)
                value.addcdiv_(m, v.sqrt() + 1e-6, value=-rate * (1 - 0.98**t) ** 0.5 / (1 - 0.9**t))
    return losses, {name: value.detach().numpy() for name, value in model.state_dict().items()}


@pytest.mark.slow  # in small: test_loss_is_the_oracles
@pytest.mark.parametrize("parts", [1, 4])
def test_eight_updates(directory, tmp_path, parts):
    batches = create_batches()
    losses, expected = reference(directory, batches)
    model = BertForMaskedLM.from_pretrained(directory)
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
    recipe = RobertaConfig.pretraining_recipe
    optimizer = create_optimizer(recipe.optimizer, RATE, 20, WARMUP, recipe)
    assert isinstance(optimizer._learning_rate, WarmupLinearDecay)
    optimizer.build(model.trainable_variables)
    options = {"batch_size": ROWS, "gradient_accumulation_steps": parts}
    train = trainer_of(model, optimizer, MeanMaskedLanguageModelObjective, **options).steps
    data = iter(tf.data.Dataset.from_tensor_slices(batches))
    for loss in losses:
        result = train(data, tf.constant(1))
        np.testing.assert_allclose(result["loss"], loss, rtol=1e-5)
    model.save_pretrained(str(tmp_path / "ours"), format="huggingface")
    found = safetensors.numpy.load_file(tmp_path / "ours" / "model.safetensors")
    compared = 0
    for name, value in found.items():
        if name in expected:
            np.testing.assert_allclose(value, expected[name], atol=2e-4 if "key.bias" in name else 2e-5, err_msg=name)
            compared += 1
    assert compared > 30


@pytest.mark.parametrize(
    "config, pads",
    [
        (RobertaConfig(2000, 64, 2, 2, 128, max_position_embeddings=50), ([1], [1])),
        (DistilBertConfig(2000, 64, 2, 2, 128, max_position_embeddings=50), ([0], [])),
    ],
)
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
        if value.ndim > 1:
            continue
        assert (value == ("gamma" in name)).all(), name
    words, positions = (model.bert.embeddings.word_embeddings, model.bert.embeddings.position_embeddings)
    for table, rows in zip((words, positions), pads, strict=True):
        empty = np.nonzero((table.numpy() == 0).all(axis=1))[0]
        assert empty.tolist() == rows
    again = words.numpy()
    keras.utils.set_random_seed(3)
    other = BertForMaskedLM(model.config)
    other.build()
    initialize.draw_normal_weights(other)
    np.testing.assert_array_equal(other.bert.embeddings.word_embeddings.numpy(), again)


def test_loss_is_the_plain_mean():
    """Also of one prediction, where BERT's epsilon would show; without any it is 0."""
    logits = np.random.default_rng(1).normal(size=(3, 2, 7)).astype("float32") * 3
    ids = np.array([[1, 2], [3, 0], [5, 6]])
    weights = np.array([[0, 1], [0, 0], [0, 0]], "float32")
    for kept in (weights, np.ones((3, 2), "float32"), np.zeros((3, 2), "float32")):
        features = {"masked_lm_ids": ids, "masked_lm_weights": kept}
        totals = MeanMaskedLanguageModelObjective.totals(features)
        sums = MeanMaskedLanguageModelObjective.sums(logits, features)
        nll = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, ids[..., None], -1)[..., 0]
        wanted = (nll * kept).sum() / max(kept.sum(), 1e-9)
        found = float(MeanMaskedLanguageModelObjective.loss(sums, totals))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert (found > float(MaskedLanguageModelObjective.loss(sums, totals))) == (kept.sum() > 0)


def test_loss_is_the_oracles(directory):
    if not ORACLE.exists():
        pytest.skip("needs the oracles beside the project")
    inputs, outputs = (np.load(ORACLE / name) for name in ("inputs.npz", "masked_lm_outputs.npz"))
    model = BertForMaskedLM.from_pretrained(directory)
    logits = model({"input_ids": inputs["input_ids"], "input_mask": inputs["attention_mask"]})
    features = {"masked_lm_ids": np.where(inputs["labels"] < 0, -1, inputs["labels"])}
    objective = MeanMaskedLanguageModelObjective
    loss = objective.loss(objective.sums(logits, features), objective.totals(features))
    np.testing.assert_allclose(float(loss), float(outputs["loss"]), rtol=1e-5)
