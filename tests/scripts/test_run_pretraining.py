"""run_pretraining.py as users run it: resuming, two phases, bad input, a teacher, and ELECTRA.

ELECTRA starts from tests/golden/electra/training/model.ckpt-8, saved by the original after eight steps.
"""

import json
import re

import numpy as np
import pytest
from helpers.basics import GOLDEN, directory_of
from helpers.scenarios import STEPS, assert_bit_identical, command, flags_of, run, values
from helpers.script_cases import pattern_of, run_and_refuse, run_cases, weights_of
from helpers.tiny import ONE_LAYER, save_model, tiny_config, write_pretraining_records
from helpers.warm import kill_after_rename

from bert_tf import BertConfig, BertForMaskedLM, BertForSequenceClassification, ElectraDiscriminator
from bert_tf.families.distilbert import DistilBertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.store.open import open_model
from bert_tf.training import checkpoints


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "bert_config.json").write_text(json.dumps(ONE_LAYER))
    for number, count in enumerate((70, 45)):
        write_pretraining_records(folder / f"train-{number}.tfrecord", count, seed=number)
    write_pretraining_records(folder / "heldout.tfrecord", 21, seed=9)
    return folder


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """An undisturbed run, with evaluation on held-out records at its end: its folder, and what it wrote to stderr."""
    output_dir = tmp_path_factory.mktemp("finished")
    return output_dir, run(command(data, output_dir, do_eval=True, eval_input_file=f"{data}/heldout.tfrecord"))


def test_a_run_says_what_it_decided_and_writes_its_files(finished):
    output_dir, log = finished
    assert "starting from random weights" in log and "115 records in 2 files" in log
    lines = (output_dir / "eval_results.txt").read_text().splitlines()
    keys = [line.split(" = ")[0] for line in lines]
    metrics = [f"{task}_{metric}" for task in ("masked_lm", "next_sentence") for metric in ("accuracy", "loss")]
    assert keys == ["global_step", "loss", *metrics] and lines[0] == f"global_step = {STEPS}"
    kept = {path.name for path in output_dir.glob("model.ckpt-*.index")}
    assert kept == {f"model.ckpt-{step}.index" for step in (20, 30, 40, 50, 60)}
    assert json.loads((output_dir / "bert_config.json").read_text()) == ONE_LAYER


def test_run_that_is_killed_resumes_bit_for_bit(finished, data, tmp_path):
    output_dir, _ = finished
    # Killed when the next checkpoint is there, but not yet named.
    kill_after_rename(tmp_path / "model.ckpt-20.index", command(data, tmp_path))
    # Half-written files after the kill must do no harm.
    (tmp_path / "model.ckpt-999.writing").mkdir()
    assert "Resuming at step 10" in run(command(data, tmp_path))
    assert_bit_identical(values(output_dir), values(tmp_path))


def test_finished_run_started_again_only_evaluates(finished, data):
    output_dir, _ = finished
    before = values(output_dir)
    log = run(command(data, output_dir, do_eval=True, max_eval_steps=2, init_checkpoint="elsewhere"))
    assert f"Nothing to train: step {STEPS}" in log and "so --init_checkpoint=elsewhere is not used" in log
    assert_bit_identical(before, values(output_dir))


@pytest.mark.slow  # in small: the resumed run above, and test_recipes.py
def test_short_sequences_then_long_ones_are_one_run_with_one_schedule(data, tmp_path):
    for length in (16, 32):
        write_pretraining_records(tmp_path / f"{length}.tfrecord", 40, max_seq_length=length, seed=length)
    shared = {"num_train_steps": 5, "num_warmup_steps": 2, "log_every_steps": 1, "gradient_accumulation_steps": 2}
    short = {"input_file": tmp_path / "16.tfrecord", "stop_at_step": 4, **shared}
    long = {"input_file": tmp_path / "32.tfrecord", "max_seq_length": 32, **shared}
    folder = tmp_path / "run"
    cases = {"short": flags_of(data, folder, **short), "long": flags_of(data, folder, **long)}
    outcomes, logs = run_cases("run_pretraining", {**cases, "short again": cases["short"]})
    assert set(outcomes.values()) == {"done"}, outcomes
    assert "Resuming at step 4" in logs["long"]
    assert "max_seq_length 16 -> 32" in logs["long"] and "stop_at_step" not in logs["long"].split("Not as in")[1]
    assert "Nothing to train: step 5 is reached, and the run ends at step 4" in logs["short again"]
    lines = [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]
    # The original's: warm-up from 0, then the line from the peak at step 0; the log has the rate of the next update.
    rates = [line["learning_rate"] for line in lines if line["kind"] == "train"]
    assert rates == pytest.approx([1e-3 * (step / 2 if step < 2 else 1 - step / 5) for step in range(1, 6)], abs=1e-9)
    # Positions that only long sequences have begin to learn.
    before, after = (values(folder, step)["bert/embeddings/position_embeddings/adam_m"] for step in (4, 5))
    assert not before[16:].any() and (after[16:32] != 0).any(axis=1).all()


def test_bad_input_is_named(data, tmp_path):
    write_pretraining_records(tmp_path / "odd.tfrecord", 40, mask_of_last=2)
    DistilBertConfig(100).save(str(tmp_path / "distilbert_config.json"))
    checkpoints.save(str(tmp_path), 3, {"bert/pooler/dense/bias": np.full(32, np.nan, "float32")})
    cases = {
        "--nsp needs a model with a pooler*distilbert_config.json is that of DistilBERT":
            {"nsp": True, "bert_config_file": tmp_path / "distilbert_config.json"},
        "model.ckpt-3: bert/pooler/dense/bias has NaN or infinite": {"init_checkpoint": tmp_path / "model.ckpt-3"},
        "--input_file: *odd.tfrecord: record 39 (at byte*has 2 in feature 'input_mask', exp":
            {"input_file": tmp_path / "odd.tfrecord", "train_batch_size": 40},
    }  # fmt: skip
    flags = {
        message: flags_of(data, tmp_path / f"{number}", **change)
        for number, (message, change) in enumerate(cases.items())
    }
    outcomes, _ = run_cases("run_pretraining", flags)
    for message, outcome in outcomes.items():
        assert re.match(f"\\w*Error: .*{pattern_of(message)}", outcome), outcome
    assert not list(tmp_path.glob("*/model.ckpt-*"))


TAUGHT_STEPS = 6


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teachers")
    for family in ("bert", "roberta"):
        save_model(folder / family, family, BertForMaskedLM)
    save_model(folder / "other", "bert", BertForMaskedLM, seed=8)
    save_model(folder / "electra", "electra", BertForSequenceClassification)
    save_model(folder / "electra" / "generator", "electra", BertForMaskedLM)
    tiny_config("distilbert", 30522, 64, dropout=0.0).save(str(folder / "distilbert_config.json"))
    corpus, vocab = str(GOLDEN / "pretraining" / "corpus_*.txt"), str(GOLDEN / "vocab.txt")
    made = {"max_seq_length": 32, "show_progress": False, "num_workers": 1}
    create_pretraining_data(corpus, f"{folder}/rows.tfrecord", vocab, masking="dynamic", nsp=False, **made)
    create_pretraining_data(corpus, f"{folder}/masked.tfrecord", vocab, max_predictions_per_seq=8, **made)
    directory_of(folder / "bare", folder / "rows.tfrecord")  # nothing beside them says which vocabulary they have
    words = str(GOLDEN / "tokenization" / "roberta" / "vocab.json")
    create_pretraining_data(corpus, f"{folder}/roberta.tfrecord", words, masking="dynamic", nsp=False, **made)
    flags = {
        "input_file": f"{folder}/rows.tfrecord", "do_train": True, "max_seq_length": 32, "max_predictions_per_seq": 8,
        "train_batch_size": 8, "num_train_steps": TAUGHT_STEPS, "learning_rate": 1e-2, "save_checkpoints_steps": 3,
        "deterministic": True, "teacher": folder / "bert",
    }  # fmt: skip
    student = {**flags, "student_layers": "1"}
    smoothed = {**student, "mask_smoothing": 0.7}
    own = {**flags, "bert_config_file": folder / "distilbert_config.json", "vocab_file": GOLDEN / "vocab.txt"}
    same = {"student_family": "same", "vocab_transform": True, "restrict_ce_to_mask": True, "alpha_mse": 0.01}
    done = {
        "whole": smoothed,
        "beginning": {**student, "learning_rate": 1e-30, "num_train_steps": 1},
        "same": {**student, **same, "do_eval": True, "max_eval_steps": 2, "learning_rate": 1e-30, "num_train_steps": 1},
        "unnamed": {**own, "vocab_file": None, "input_file": f"{folder}/bare/rows.tfrecord", "num_train_steps": 1},
        "roberta": {**flags, "teacher": folder / "roberta", "student_layers": "0,1", "num_train_steps": 1,
                    "input_file": f"{folder}/roberta.tfrecord", "dtype": "bfloat16", "use_xla": True},
    }  # fmt: skip
    refused = {
        "another teacher": ({**smoothed, "teacher": folder / "other", "output_dir": folder / "out" / "whole"},
                            "out/whole holds a run with --teacher=*bert; this one is with --teacher=*other."),
        "discriminator": ({**student, "teacher": folder / "electra"},
                          "electra has no output layer for this task (cls/predictions/output_bias)."),
        "no BERT": ({**student, "teacher": folder / "roberta", "student_family": "distilbert"},
                    "--student_family=distilbert needs a BERT as teacher, not a RoBERTa."),
        "masked records": ({**smoothed, "input_file": f"{folder}/masked.tfrecord"}, "--mask_smoothing is for unmasked"),
    }  # fmt: skip
    return folder, run_and_refuse("run_pretraining", folder / "out", done, refused)


@pytest.mark.slow  # in small: models/test_objectives.py
@pytest.mark.parametrize("case", ["same", "beginning"])
def test_the_student_starts_from_the_teacher(ran, case):
    folder, *_ = ran
    scope, count = {"beginning": ("distilbert", 4 + 16 + 1), "same": ("bert", 5 + 16 + 2 + 5)}[case]
    teacher, student, found = weights_of(folder / "bert"), values(folder / "out" / case, 1), 0
    for name, value in student.items():
        source = name.replace(f"{scope}/", "bert/").replace("layer_0", "layer_1")
        same = source in teacher and (value == teacher[source]).all()
        assert same == ("/transform/" not in name or case == "same") or "adam" in name or name == "global_step"
        found += same
    assert found == count
    config = json.loads((folder / "out" / case / f"{scope}_config.json").read_text())
    assert config["num_hidden_layers"] == 1


@pytest.mark.slow  # in small: models/test_objectives.py
def test_only_the_student_is_saved_and_can_be_used(ran):
    folder, logs = ran
    out = folder / "out" / "whole"
    recorded = json.loads((out / "run.json").read_text())
    assert recorded["teacher"] == str(folder / "bert") and len(recorded["teacher_checksum"]) == 8
    assert {"alpha_ce": 5.0, "mask_smoothing": 0.7, "student_layers": ["1"]}.items() <= recorded.items()
    assert recorded["num_warmup_steps"] == 1  # 5 % of the steps, rounded up
    model = BertForSequenceClassification.from_pretrained(str(out), num_labels=2)
    assert model.config.model_type == "distilbert"
    whole = BertForMaskedLM.from_pretrained(str(out))
    assert {name for name in values(out, TAUGHT_STEPS) if "adam" not in name} == {
        *weights_of(out).keys() - {name for name in weights_of(out) if "adam" in name}
    }
    assert len(whole.trainable_variables) == 4 + 16 + 5
    assert (out / "vocab.txt").read_bytes() == (folder / "bert" / "vocab.txt").read_bytes()
    assert recorded["student_family"] == "distilbert" and recorded["vocab_file"] == str(folder / "bert" / "vocab.txt")
    assert "BertForMaskedLM.from_pretrained" in logs["whole"]


ELECTRA = GOLDEN / "electra"
CONFIG = ElectraConfig(260, 32, 2, 2, 128, embedding_size=24, max_position_embeddings=40)
# Two heads, which nothing in a checkpoint shows.
GENERATOR = ElectraConfig(260, 16, 2, 2, 64, embedding_size=24, max_position_embeddings=40)


@pytest.fixture(scope="module")
def electra(tmp_path_factory):
    folder = tmp_path_factory.mktemp("electra")
    for name, config in (("model", CONFIG), ("generator", GENERATOR)):
        (folder / name).mkdir()
        config.save(str(folder / name / "electra_config.json"))
    BertConfig(260, 32, 1, 2, 64).save(str(folder / "bert_config.json"))
    made = {"max_seq_length": 32, "show_progress": False, "num_workers": 1}
    packed = {"masking": "dynamic", "short_seq_prob": 1.0, "pack_sequences": True, "dupe_factor": 1}
    for name, rows in {"packed": packed, "electra": {"rows": "electra"}}.items():
        files = str(GOLDEN / "pretraining" / "corpus_*.txt"), f"{folder}/{name}.tfrecord", str(ELECTRA / "vocab.txt")
        create_pretraining_data(*files, **made, **rows)
    left = (ELECTRA / "training").glob("model.ckpt-8.*")
    directory_of(folder / "place", *left, checkpoint='model_checkpoint_path: "model.ckpt-8"\n')
    usual = {
        "objective": "electra", "input_file": folder / "packed.tfrecord", "vocab_file": ELECTRA / "vocab.txt",
        "bert_config_file": folder / "model" / "electra_config.json", "do_train": True, "train_batch_size": 8,
        "generator_config_file": folder / "generator" / "electra_config.json", "max_seq_length": 32,
        "num_train_steps": 20, "num_warmup_steps": 4, "learning_rate": 1e-3, "deterministic": True,
    }  # fmt: skip
    own, begun = {**usual, "generator_config_file": None}, folder / "run"
    short, others = {"num_train_steps": 1, "num_warmup_steps": 1}, {"input_file": folder / "electra.tfrecord"}
    start = {"init_checkpoint": ELECTRA / "training" / "model.ckpt-8", "init_with_optimizer": True}
    untied = {"untied_generator_embeddings": True, "num_train_steps": 2, "num_warmup_steps": 2, "lr_decay_power": 2.0}
    done = {
        "run": {**usual, **start, "stop_at_step": 10, "save_checkpoints_steps": 10},
        "place": {**usual, "num_train_steps": 9},
        "both": {**own, **short, "init_checkpoint": begun},
        "one": {**usual, **short, **others, "init_checkpoint": begun / "discriminator"},
        "other": {**usual, **short, "init_checkpoint": begun / "generator"},
        "untied": {**own, **untied, "use_xla": True, "dtype": "bfloat16", "disallow_correct": True},
    }
    smaller = {**own, "generator_size": 0.5, "stop_at_step": 11, "output_dir": begun}
    heads = "another configuration of the generator (num_attention_heads: 2 there, 1 now). Choose"
    bert = {**usual, "bert_config_file": folder / "bert_config.json"}
    refused = {"smaller": (smaller, heads), "BERT": (bert, "--objective=electra is for ELECTRA, but")}
    return folder, run_and_refuse("run_pretraining", folder, done, refused)


@pytest.mark.slow  # in small: training/test_electra.py
def test_the_originals_run_goes_on(electra):
    folder, _ = electra
    there, before, here = values(ELECTRA / "training", 8), *(values(folder / "run", step) for step in (8, 10))
    np.testing.assert_equal(before, there)
    shapes, expected = ({name: value.shape for name, value in some.items()} for some in (here, there))
    assert shapes == expected and here["global_step"] == 10
    name = "generator/encoder/layer_0/output/dense/kernel/adam_m"
    assert not np.array_equal(here[name], there[name])
    line = [json.loads(line) for line in (folder / "run" / "train_log.jsonl").read_text().splitlines()][-1]
    assert {"masked_lm_loss", "disc_loss", "disc_accuracy", "disc_precision", "disc_recall"} <= line.keys()
    kept = json.loads((folder / "run" / "run.json").read_text())
    assert kept["disc_weight"] == 50 and kept["max_predictions_per_seq"] == 4 and "mask_rate" not in kept


@pytest.mark.slow  # in small: training/test_electra.py
def test_a_run_leaves_two_models(electra):
    folder, _ = electra
    checkpoint = values(folder / "run", 10)
    for part, model_class, config, scope in (
        ("discriminator", ElectraDiscriminator, CONFIG, "electra/"),
        ("generator", BertForMaskedLM, GENERATOR, "generator/"),
    ):
        model_dir = folder / "run" / part
        names = {"bert_model.safetensors", "electra_config.json", "tokenizer_config.json", "vocab.txt", "README.md"}
        assert {path.name for path in model_dir.iterdir()} == names
        assert f"{model_class.__name__}.from_pretrained" in (model_dir / "README.md").read_text() or part != "generator"
        model = model_class.from_pretrained(str(model_dir))
        assert model.config == config
        kernel = model.bert.blocks[1].block_output.dense.kernel
        np.testing.assert_array_equal(kernel, checkpoint[scope + "encoder/layer_1/output/dense/kernel"])
        # The checkpoint itself has both.
        assert open_model(str(folder / "run"), part=part).config == config


@pytest.mark.slow
def test_where_a_run_may_begin(electra):
    folder, logs = electra
    assert "begins random" not in logs["both"]
    both = values(folder / "both", 0)
    for name, value in values(folder / "run", 10).items():
        if name in both and not name.endswith(("adam_m", "adam_v", "global_step")):
            np.testing.assert_array_equal(both[name], value, err_msg=name)
    for case, missing, scope in (("one", "generator", "electra/"), ("other", "discriminator", "generator/")):
        assert f"has no {missing}: its unshared variables begin random" in logs[case]
        found = values(folder / case, 0)
        for name, value in both.items():
            if name.startswith((f"{scope}encoder", "electra/embeddings/")) and "adam" not in name:
                np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert "Resuming at step 8" in logs["place"]
    untied = values(folder / "untied", 2)
    assert untied["generator/embeddings/word_embeddings"].shape == (260, 8)
    model = BertForMaskedLM.from_pretrained(str(folder / "untied" / "generator"))
    assert model.config.embedding_size == model.config.hidden_size == 8
