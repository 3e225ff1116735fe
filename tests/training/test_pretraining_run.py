"""A pre-training run from Python: settings in, a complete model directory out."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.record_files import create
from helpers.training_steps import prepared, trainer_of

from bert_tf import BertConfig, BertForMaskedLM, BertForPreTraining, fill_mask, read_tokenizer
from bert_tf.conversion import convert
from bert_tf.families.distilbert import DistilBertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.models import initialize
from bert_tf.models.distillation import LanguageDistillation, TaughtLanguageModel
from bert_tf.pretraining import model_vocabulary
from bert_tf.store.open import open_weights
from bert_tf.training import run_directory
from bert_tf.training.pretraining_run import pretrain
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.pretraining_tasks import PretrainingTask
from bert_tf.training.settings import FineTuningSettings

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the house stands on a hill .".split()  # noqa: SIM905
CONFIG = {"vocab_size": len(PIECES), "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG |= {"intermediate_size": 8, "max_position_embeddings": 16, "type_vocab_size": 2}
PADDED = BertConfig.from_dict({**CONFIG, "vocab_size": 16})


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> str:
    """Records of a small text; the vocabulary is elsewhere."""
    folder = tmp_path_factory.mktemp("records")
    text = "The house stands.\nOn a hill.\n\nA hill.\nThe house.\n" * 10
    create(folder, text, PIECES, "a.tfrecord", max_seq_length=16, max_predictions_per_seq=3)
    return str(folder / "a.tfrecord")


def test_another_vocab_size_stops_at_the_start(records, tmp_path):
    """From the vocabulary, the summary beside the records, or the largest id; the advice works."""
    alone = shutil.copy(records, tmp_path / "alone.tfrecord")

    def message_of(vocab_size: int, records: str = records, **settings) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**CONFIG, "vocab_size": vocab_size}))
        settings = PretrainingSettings(
            records, str(tmp_path / "model"), bert_config_file=str(path), do_train=True, max_seq_length=16,
            max_predictions_per_seq=3, num_train_steps=1, **settings,
        )  # fmt: skip
        with pytest.raises(ValueError) as caught:
            pretrain(settings)
        assert not (tmp_path / "model").exists() and "\n" not in str(caught.value)
        return str(caught.value)

    vocab_file = str(pathlib.Path(records).parent / "vocab.txt")
    for given in ({}, {"vocab_file": vocab_file}):
        message = message_of(500, **given)
        assert f"{vocab_file} has 12 lines but {tmp_path}/config.json has vocab_size 500" in message
        assert "set vocab_size to 12, or give the vocabulary" in message
        assert "vocab_size=11" in message_of(11, **given)  # from the first records
    assert "vocab_size=11" in message_of(11, str(alone))
    assert "has 12 lines but" in message_of(500, str(alone), vocab_file=vocab_file)
    assert model_vocabulary.check_size(vocab_file, {}, PADDED, "config.json", is_new=True)


def test_a_padded_table_stays_usable(records, tmp_path):
    """vocab_size as a multiple of 8 above the vocabulary: saved, opened, converted; padded rows are no guesses."""
    model, vocab_file = BertForPreTraining(PADDED), str(pathlib.Path(records).parent / "vocab.txt")
    model.build()
    bias = next(variable for variable in model.weights if variable.name == "output_bias" and variable.shape == (16,))
    bias.assign([0.0] * 12 + [9.0] * 4)
    model.save_pretrained(str(tmp_path / "model"), vocab_file=vocab_file, do_lower_case=True)
    convert.convert(str(tmp_path / "model"), str(tmp_path / "converted"), "huggingface")
    for path in (tmp_path / "model", tmp_path / "converted"):
        tokenizer, opened = read_tokenizer(str(path)), BertForPreTraining.from_pretrained(str(path))
        ((guesses,),) = fill_mask(opened, tokenizer, ["The [MASK]."], top_k=12)
        assert {token for token, _ in guesses} == set(PIECES)
    more = [*PIECES, *(f"[row{number}]" for number in range(12, 20))]
    (tmp_path / "model" / "vocab.txt").write_text("\n".join(more) + "\n")
    with pytest.raises(ValueError, match=r"vocab\.txt has 20 lines but .*bert_config\.json has vocab_size 16"):
        read_tokenizer(str(tmp_path / "model"))


def test_a_warning_if_the_training_records_are_evaluated(records, tmp_path, caplog):
    other = shutil.copy(records, tmp_path / "other.tfrecord")
    config = BertConfig.from_dict(CONFIG)
    for trains, evaluated, file, warnings in ((1, 1, other, 0), (1, 0, None, 0), (0, 1, None, 0), (1, 1, None, 1),
                                              (1, 0, records, 1), (1, 1, records, 2)):  # fmt: skip
        flags = {"do_train": bool(trains), "do_eval": bool(evaluated), "eval_input_file": file and str(file)}
        settings = PretrainingSettings(records, "", max_seq_length=16, max_predictions_per_seq=3, **flags)
        PretrainingTask(settings, config, "", tf.distribute.OneDeviceStrategy("CPU:0"), run_directory.EarlierRun(""))
        assert caplog.text.count("The evaluation reads the training records") == warnings


def test_a_teacher_may_move_but_not_change_its_weights():
    """Another one, and other adapters: scripts/test_run_pretraining.py and test_flags.py."""
    taught, changed = ({"teacher": "a", run_directory.TEACHER_CHECKSUM: checksum} for checksum in "12")
    for newest, now in (("model.ckpt-1", {**taught, "teacher": "moved"}), (None, changed)):  # none to resume
        run_directory.Manifest(run_directory.EarlierRun("out", newest, taught), now, []).check_fixed()
    with pytest.raises(ValueError, match="this one is with --teacher=a, which has other weights"):
        run_directory.Manifest(run_directory.EarlierRun("out", "model.ckpt-1", taught), changed, []).check_fixed()


def test_a_changed_setting_is_reported_but_for_one_that_may_change(tmp_path, caplog):
    def manifest(**values) -> run_directory.Manifest:
        run = FineTuningSettings(output_dir=str(tmp_path), **values)
        earlier = run_directory.find_earlier_run(str(tmp_path), vars(run), trains=False)
        return run_directory.Manifest(earlier, dataclasses.asdict(run), [run])

    manifest(clip_norm=1.0).record(resumed=False, **{run_directory.FINISHED: 3})
    manifest(clip_norm=1.0, log_every_steps=7).warn_of_changes()
    assert not caplog.records
    manifest(clip_norm=0.5).warn_of_changes()
    assert "clip_norm 1.0 -> 0.5" in caplog.text


def test_a_configuration_that_another_family_left_goes(tmp_path):
    for kind in (ElectraConfig, BertConfig):
        run_directory.write_model_description(str(tmp_path), kind(vocab_size=10, hidden_size=8, num_attention_heads=2))
    assert [path.name for path in tmp_path.iterdir()] == ["bert_config.json"]
    assert json.loads((tmp_path / "bert_config.json").read_text())["hidden_size"] == 8


@pytest.mark.slow  # in small: test_objectives.py, test_equal_steps.py
def test_all_updates(shared, golden):
    arrays = dict(np.load(golden / "distilbert" / "training_batches.npz"))
    mask, labels = arrays["attention_mask"], arrays["mlm_labels"]
    labels = np.where(mask == 1, labels, -100)
    rows = 1.0 / (2 * mask.sum((1, 2)))
    places = np.argsort(labels < 0, axis=-1, kind="stable")[..., :12]
    chosen = np.take_along_axis(labels, places, -1)
    assert (labels >= 0).sum() == (chosen >= 0).sum()
    counts = 2 * (labels >= 0).sum((1, 2))
    weights = (chosen >= 0) / (counts * rows)[:, None, None]
    features = {
        "input_ids": arrays["input_ids"], "input_mask": mask, "segment_ids": np.ones_like(mask),
        "masked_lm_positions": places, "masked_lm_ids": np.maximum(chosen, 0), "masked_lm_weights": weights,
        "example_weights": np.repeat(rows[:, None], 4, axis=1),
    }  # fmt: skip
    batches = {  # the eight of four rows, two by two: features [4, 8, ...]
        name: np.reshape(value, (4, 8, *value.shape[2:])).astype("float32" if "weight" in name else "int32")
        for name, value in features.items()
    }
    oracle = shared / "golden" / "distilbert"
    settings = json.loads((golden / "distilbert" / "training_steps.json").read_text())
    student, teacher = (BertForMaskedLM.from_pretrained(str(oracle / name)) for name in ("student_init", "teacher"))
    names = ("alpha_ce", "alpha_mlm", "alpha_cos", "temperature")
    objective = LanguageDistillation(**{name: settings[name] for name in names})
    assert objective == LanguageDistillation()  # the defaults are those of the research project's README
    model = TaughtLanguageModel(student, teacher, objective)
    recipe = DistilBertConfig.pretraining_recipe
    steps, warmup = settings["num_training_steps"], settings["warmup_steps"]
    assert (recipe.learning_rate, recipe.clip_norm) == (settings["learning_rate"], settings["max_grad_norm"])
    model, optimizer = prepared(model, recipe.learning_rate, steps, warmup, recipe, recipe.optimizer)
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
