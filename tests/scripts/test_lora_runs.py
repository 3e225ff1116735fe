"""Runs of the fine-tuning scripts with --lora_rank: killed and resumed, what they leave, what is refused."""

import json
import shutil

import numpy as np
import pytest
from helpers.script_cases import kill_at_checkpoint, results_of, run_cases, selected_cases, weights_of
from helpers.slow import slow
from helpers.small_data import PIECES, WORLDS, texts_of
from helpers.tiny import write_encoder

from bert_tf import BertForSequenceClassification, Predictor, load_lora
from bert_tf.models import open_weights

STEPS, KILLED_AT = 24, 10  # 32 examples, 8 per step, 6 epochs
RANK = 4


def write_world(script, folder):
    write, ending, _ = WORLDS[script]
    write_encoder(folder, PIECES)
    for seed, (name, count) in enumerate((("train", 32), ("dev", 11), ("test", 7))):
        write(folder / f"{name}.{ending}", list(texts_of(count, seed)))


def training_flags(script, folder) -> dict:
    _, ending, own = WORLDS[script]
    return {
        **own, "init_checkpoint": folder / "encoder", "do_train": True, "do_eval": True, "max_seq_length": 24,
        "train_file": folder / f"train.{ending}", "dev_file": folder / f"dev.{ending}", "train_batch_size": 8,
        "predict_batch_size": 4, "num_train_epochs": 6, "learning_rate": 1e-2, "eval_every_steps": 8, "seed": 3,
        "deterministic": True, "write_tf_records": False, "lora_rank": RANK,
    }  # fmt: skip


def without(flags, *names) -> dict:
    return {name: value for name, value in flags.items() if name not in names}


def cases_of(folder, flags) -> dict:
    out = folder / "out"
    short = {**flags, "num_train_epochs": 1}
    evaluate = without(flags, "do_train", "lora_rank", "init_checkpoint")
    return {
        "kept": {**flags, "keep_checkpoint_max": 2},
        "killed": {**flags, "keep_checkpoint_max": 2, "save_checkpoints_steps": 5, "iterations_per_loop": 1},
        "whole": {**flags, "use_best_model": True},
        "unfinished": {**evaluate, "output_dir": out / "unfinished"},
        "best": {**evaluate, "init_checkpoint": out / "whole" / "best_model"},
        "full": without(short, "lora_rank"),
        "without dev set": without(short, "do_eval", "dev_file"),
        "again": {**without(short, "do_eval", "dev_file"), "output_dir": out / "without dev set"},
        "overwritten": {**short, "lora_rank": 2, "overwrite_output_dir": True, "output_dir": out / "without dev set"},
        # --- refused
        "resumed without": {**without(flags, "lora_rank"), "output_dir": out / "unfinished"},
        "other rank": {**flags, "lora_rank": 2, "output_dir": out / "unfinished"},
        "other alpha": {**flags, "lora_alpha": 3, "output_dir": out / "unfinished"},
        "began without": {**short, "output_dir": out / "full"},
        "too large": {**flags, "lora_rank": 33},
        "frozen layers": {**flags, "freeze_layers": 1},
        "frozen": {**flags, "features": "last"},
        "no BERT": {**without(flags, "init_checkpoint"), "model": "bilstm", "vocab_file": folder / "vocab.txt"},
        "random": {**without(flags, "init_checkpoint"), "vocab_file": folder / "vocab.txt",
                   "bert_config_file": folder / "encoder" / "bert_config.json"},
        "no training": {**evaluate, "lora_rank": RANK, "output_dir": out / "whole"},
        "no rank": {**without(flags, "lora_rank"), "lora_alpha": 4},
        "with optimizer": {**flags, "init_with_optimizer": True},
        "adapters alone": {**evaluate, "init_checkpoint": out / "whole" / "lora.safetensors"},
    }  # fmt: skip


# In small: "overwritten" of test_fine_tuning_runs.py, and "no dev file" of test_run_classifier_cases.py.
SLOW = {"full", "began without", "without dev set", "again", "overwritten"}


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """The folder, outcomes and logs by case, and the index files at the kill."""
    folder = tmp_path_factory.mktemp("lora")
    write_world("run_classifier", folder)
    out, cases = folder / "out", cases_of(folder, training_flags("run_classifier", folder))
    cases = selected_cases(request, cases, SLOW)
    cases = {name: {"output_dir": out / name, **flags} for name, flags in cases.items()}
    killed_at = kill_at_checkpoint("run_classifier", cases["killed"], step=KILLED_AT)
    shutil.copytree(out / "killed", out / "unfinished")
    (out / "unfinished" / "run.lock").unlink(missing_ok=True)
    outcomes, logs = run_cases("run_classifier", cases)
    return folder, outcomes, logs, killed_at


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def stored(prefix) -> dict:
    weights = open_weights.open_weights(str(prefix), merge=False)
    return {name: weights[name] for name in weights}


def test_a_killed_run_resumes_bit_for_bit(ran):
    folder, outcomes, _, killed_at = ran
    assert f"model.ckpt-{KILLED_AT}.index" in killed_at and f"model.ckpt-{STEPS}.index" not in killed_at
    assert outcomes["kept"] == outcomes["killed"] == "done"
    kept, killed = (folder / "out" / name for name in ("kept", "killed"))
    whole = stored(kept / f"model.ckpt-{STEPS}")
    assert "bert/encoder/layer_0/output/dense/lora_a/adam_m" in whole and float(whole["bert/lora_alpha"]) == 2 * RANK
    assert not [name for name in whole if name.endswith("kernel/adam_m") and "/pooler/" not in name]
    assert_same_bits(whole, stored(killed / f"model.ckpt-{STEPS}"))
    for name in ("lora.safetensors", "best_model/lora.safetensors", "best_model/bert_model.safetensors",
                 "evaluations.jsonl", "eval_results.txt"):  # fmt: skip
        assert (kept / name).read_bytes() == (killed / name).read_bytes(), name


def test_a_finished_run_leaves_ordinary_models(ran):
    folder, outcomes, *_ = ran
    assert outcomes["whole"] == outcomes["best"] == "done"
    out, start = folder / "out", weights_of(folder / "encoder")
    last, best = (weights_of(out / "whole" / name) for name in (f"model.ckpt-{STEPS}", "best_model"))
    assert not [name for name in stored(out / "whole" / f"model.ckpt-{STEPS}") if "lora" in name or "adam" in name]
    opened = weights_of(out / "kept" / f"model.ckpt-{STEPS}")
    assert_same_bits(last, {name: value for name, value in opened.items() if "adam" not in name})
    for weights in (last, best):
        changed = {name for name in start if not np.array_equal(start[name], weights[name])}
        pooler = {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"}
        assert pooler < changed and len(changed - pooler) == 6
        assert all(name.endswith("/kernel") and "/layer_0/" in name for name in changed - pooler)
    # --use_best_model evaluates it in the run, where the adapters are, and "best" as a model of its own.
    kept = json.loads((out / "whole" / "best_model" / "eval_results.json").read_text())
    for name in ("whole", "best"):
        results = results_of(out / name)
        assert results["eval_accuracy"] == pytest.approx(kept["eval_accuracy"])
        assert results["eval_loss"] == pytest.approx(kept["eval_loss"], rel=1e-5)
    assert results_of(out / "whole")["global_step"] == kept["step"]
    assert Predictor(str(out / "whole" / "best_model"))("good w1 w2")["label"] in ("down", "up")


def test_the_file_of_adapters_makes_the_same_model(ran):
    folder, *_ = ran
    for path, model in (("best_model", "best_model"), ("lora.safetensors", f"model.ckpt-{STEPS}")):
        base = BertForSequenceClassification.from_pretrained(str(folder / "encoder"), labels=["down", "up"])
        load_lora(base, str(folder / "out" / "whole" / path))
        base.save_pretrained(str(folder / "saved"), overwrite=True)
        assert_same_bits(weights_of(folder / "saved"), without(weights_of(folder / "out/whole" / model), "global_step"))
    size = (folder / "out" / "whole" / "best_model" / "lora.safetensors").stat().st_size
    assert size < (folder / "out" / "whole" / "best_model" / "bert_model.safetensors").stat().st_size / 2


def test_a_run_that_is_not_finished_is_evaluated_with_its_adapters(ran):
    folder, outcomes, *_ = ran
    assert outcomes["unfinished"] == "done"
    step = int(results_of(folder / "out" / "unfinished")["global_step"])
    assert KILLED_AT <= step < STEPS
    kernel = "bert/encoder/layer_0/output/dense/kernel"
    prefix = folder / "out" / "unfinished" / f"model.ckpt-{step}"
    assert np.abs(weights_of(prefix)[kernel] - stored(prefix)[kernel]).max() > 1e-3


def test_the_log_says_how_little_is_trained(ran):
    folder, _, logs, _ = ran
    trained = RANK * (4 * 2 * 32 + 2 * (32 + 64)) + 32 * 32 + 32 + 2 * 32 + 2  # the pooler and the head, too
    total = sum(value.size for name, value in weights_of(folder / "out" / "whole" / "best_model").items())
    line = next(line for line in logs["whole"].splitlines() if "LoRA of rank" in line)
    assert "is one for whole models" not in logs["whole"]
    assert f"LoRA of rank 4, alpha 8: {trained:,} parameters are trained, {100 * trained / total:.2f} %" in line


@pytest.mark.slow
def test_full_training_says_nothing_of_it(ran):
    assert ran[1]["full"] == "done" and "LoRA" not in ran[2]["full"]


@pytest.mark.slow
def test_without_a_dev_set_the_adapters_of_the_last_step_are_kept(ran):
    folder, outcomes, logs, _ = ran
    assert outcomes["without dev set"] == outcomes["again"] == outcomes["overwritten"] == "done"
    assert "finished at step 4" in logs["again"] and "LoRA" not in logs["again"]  # its model has no adapters
    out = folder / "out" / "without dev set"
    assert {"lora.safetensors", "best_model"} <= {path.name for path in out.iterdir()}  # of "overwritten"
    assert json.loads((out / "run.json").read_text())["lora_rank"] == 2


REFUSED = {
    "resumed without": ["holds a run with --lora_rank=4 --lora_alpha=8.0; this one is without --lora_rank"],
    "other rank": ["--lora_rank=4 --lora_alpha=8.0; this one is with --lora_rank=2 --lora_alpha=4.0"],
    "other alpha": ["--lora_alpha=8.0; this one is with --lora_rank=4 --lora_alpha=3.0"],
    "began without": ["holds a run without --lora_rank; this one is with --lora_rank=4"],
    "too large": ["lora_rank=33: from 1 to the hidden_size of this BERT, 32"],
    "frozen layers": ["--lora_rank", "--freeze_layers", "give one"],
    "frozen": ["--lora_rank is for models whose BERT is trained"],
    "no BERT": ["--lora_rank is for models whose BERT is trained"],
    "random": ["--lora_rank adapts a trained encoder: give --init_checkpoint"],
    "no training": ["--lora_rank is for training: give --do_train"],
    "no rank": ["--lora_alpha is for LoRA: give --lora_rank"],
    "with optimizer": ["--lora_rank", "--init_with_optimizer"],
    "adapters alone": ["lora.safetensors"],
}


@pytest.mark.parametrize("case", [slow(case)[0] if case in SLOW else case for case in REFUSED])
def test_refused(ran, case):
    folder, outcomes, *_ = ran
    assert "Error: " in outcomes[case] and "\n" not in outcomes[case], outcomes[case]
    for part in REFUSED[case]:
        assert part in outcomes[case], outcomes[case]
    assert not (folder / "out" / case).exists()


def test_every_case_is_looked_at(ran):
    done, refused = {name for name, outcome in ran[1].items() if outcome == "done"}, set(ran[1]) & set(REFUSED)
    assert set(ran[1]) == done | refused and not done & refused and set(REFUSED) <= refused | SLOW


@pytest.mark.slow
def test_a_rate_for_whole_models_is_told(tmp_path):
    write_world("run_classifier", tmp_path)
    flags = without(training_flags("run_classifier", tmp_path), "learning_rate", "do_eval", "dev_file")
    flags = {**flags, "num_train_epochs": 1, "output_dir": tmp_path / "out"}
    outcomes, logs = run_cases("run_classifier", {"usual": flags})
    assert outcomes == {"usual": "done"}, logs
    assert "--learning_rate=5e-05 is one for whole models; adapters need about ten times as much" in logs["usual"]


@pytest.mark.slow
@pytest.mark.parametrize("script", [script for script in WORLDS if script != "run_classifier"])
def test_the_other_scripts(script, tmp_path):
    write_world(script, tmp_path)
    flags = {**training_flags(script, tmp_path), "num_train_epochs": 2, "output_dir": tmp_path / "out"}
    outcomes, logs = run_cases(script, {"whole": flags})
    assert outcomes == {"whole": "done"}, logs
    start, best = weights_of(tmp_path / "encoder"), weights_of(tmp_path / "out" / "best_model")
    changed = {name for name in start if name in best and not np.array_equal(start[name], best[name])}
    changed = {name for name in changed if "/pooler/" not in name}
    assert len(changed) == 6 and all(name.endswith("/kernel") for name in changed)
    assert (tmp_path / "out" / "best_model" / "lora.safetensors").exists()
