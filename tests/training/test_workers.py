"""Workers that do not agree are refused before a step, each with one line; what one writes, the others wait for."""

import json
import shutil

import numpy as np
import pytest
from helpers import cluster
from helpers.pretraining_runs import command, flags_of, write_inputs
from helpers.scenarios import fine_tuning_flags
from helpers.slow import slow
from helpers.tiny import ONE_LAYER, write_pretraining_records

from bert_tf.training import distribution

SEVERAL = {"distribution_strategy": "multi_worker_mirrored"}


def assert_agreed(outcomes: list[dict], expected: dict[str, str]) -> None:
    """Asserts that all workers have the same outcomes: "done" where nothing is expected, or one line that names it."""
    assert all(found == outcomes[0] for found in outcomes[1:])
    start = "ValueError: the workers do not agree: "
    said = {name: text.removeprefix(start) for name, text in outcomes[0].items()}
    assert not {name: said[name] for name, text in expected.items() if not said[name].startswith(text or "done")}


def test_the_code_is_compared(monkeypatch, tmp_path):
    facts = []
    for text in ("a = 1\n", "a = 2\n"):
        (tmp_path / "module.py").write_text(text)
        monkeypatch.setattr(distribution, "__file__", str(tmp_path / "training" / "distribution.py"))
        distribution._checksum_of_code.cache_clear()
        facts.append(distribution.facts_of())
    distribution._checksum_of_code.cache_clear()
    assert [name for name in facts[0] if facts[0][name] != facts[1][name]] == ["checksum of the code in bert_tf/"]


def test_another_list_of_workers_is_one_line(tmp_path):
    flags = {**SEVERAL, "num_train_steps": 10, "train_batch_size": 12}  # which two and three workers divide
    arguments = command(write_inputs(tmp_path), tmp_path / "out", **flags)
    with cluster.workers([arguments] * 2, tmp_path, more_of_last=["localhost:1"]) as processes:
        assert [process.wait() for process in processes] == [1, 1]
    last = [(tmp_path / f"worker-{number}.log").read_text().splitlines()[-1] for number in range(2)]
    assert all(line.startswith("run_pretraining.py: error: ") for line in last), last
    assert any("the workers do not agree on how many they or their devices are" in line for line in last), last
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("count", [2, *slow(3)])
def test_pretraining_is_refused_where_the_last_worker_differs(count, tmp_path):
    data = write_inputs(tmp_path)
    shutil.copytree(data, copy := tmp_path / "copy")
    shutil.copytree(data, other := tmp_path / "other")
    write_pretraining_records(other / "train-0.tfrecord", 40, seed=1)  # of the same size
    (other / "bert_config.json").write_text(json.dumps({**ONE_LAYER, "hidden_dropout_prob": 0.3}))
    flags = flags_of(data, tmp_path / "out", **SEVERAL, num_train_steps=10, train_batch_size=12, eval_batch_size=8)
    often = {"iterations_per_loop": 3, "log_every_steps": 7, "save_checkpoints_steps": 4, "keep_checkpoint_max": 1}
    at_end = {"num_train_steps": 20, "init_checkpoint": tmp_path / "out" / "model.ckpt-10"}
    new, step = {"output_dir": tmp_path / "new"}, "step in --output_dir: "
    cases = {  # flags of all, those of the last, and what the others and it say
        "harmless": ({}, {**often, "input_file": copy / "train-*", "bert_config_file": copy / "bert_config.json"}, ""),
        "rate": (new, {"learning_rate": 0.002}, "--learning_rate: 0.001 on worker 0 (localhost:"),
        "seed": (new, {"seed": 2}, "--seed: 12345"),
        "batch": (new, {"train_batch_size": 24}, "--train_batch_size: 12"),
        "records": (new, {"input_file": other / "train-*"}, "--input_file: 40 records in "),
        "dropout": (new, {"bert_config_file": other / "bert_config.json"}, "hidden_dropout_prob of the model: 0.1"),
        "parts": (new, {"gradient_accumulation_steps": 2}, "--gradient_accumulation_steps: 1"),
        "type": (new, {"dtype": "bfloat16"}, "--dtype: float32"),
        "steps": (new, {"num_train_steps": 20}, "--num_train_steps: 10"),
        "evaluations": (new, {"eval_every_steps": 5, "eval_batch_size": 12}, "--eval_every_steps: 0"),
        "folder": ({"num_train_steps": 20}, new, f"{step}10 on worker 0"),
        "first's folder": ({**new, "num_train_steps": 20}, {"output_dir": tmp_path / "out"}, f"{step}0 on worker 0"),
        "weights": ({**new, "num_train_steps": 20}, at_end, "checksum of the weights to begin with: "),
    }
    steps = {}
    for name, (of_all, of_last, _) in cases.items():
        steps[name] = "run_pretraining", [*[{**flags, **of_all}] * (count - 1), {**flags, **of_all, **of_last}]
    outcomes = cluster.run_mains(steps, tmp_path)
    assert_agreed(outcomes, {name: message for name, (*_, message) in cases.items()})
    assert f"), 0.002 on worker {count - 1} (localhost:" in outcomes[0]["rate"]
    assert not (tmp_path / "new").exists()
    assert len(list((tmp_path / "out").glob("model.ckpt-*.index"))) == 2  # as the first worker's flags say


def test_fine_tuning_waits_for_the_best_model_and_is_refused_where_the_second_worker_differs(tmp_path):
    """The best model of the last step, which the first worker holds back, is the one that all predict with."""
    for folder in ("data", "other"):
        (tmp_path / folder).mkdir()
    own = {**SEVERAL, "do_predict": True, "use_best_model": True, "eval_every_steps": 2, "output_dir": tmp_path / "out"}
    flags = fine_tuning_flags("run_classifier", tmp_path / "data", **own)
    other = fine_tuning_flags("run_classifier", tmp_path / "other")
    for name in ("train", "dev", "test"):
        path = tmp_path / "other" / f"{name}.csv"
        path.write_text(path.read_text().replace("w1", "w2"))
    vocabulary = tmp_path / "other" / "encoder" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("w1\nw2\n", "w2\nw1\n"))
    best, new = tmp_path / "out" / "best_model", {"output_dir": tmp_path / "new"}
    (teacher := tmp_path / "teacher").mkdir()  # with the weights of the best model
    (teacher / "bert_config.json").write_text(json.dumps({**ONE_LAYER, "hidden_act": "relu"}))
    for name in ("bert_model.safetensors", "vocab.txt", "tokenizer_config.json", "head_config.json"):
        (teacher / name).symlink_to(best / name)
    check = {"do_train": False, "do_eval": False, "use_best_model": False, "init_checkpoint": best}
    cases = {
        "held back": ({}, {}, ""),
        "again": ({**check, "output_dir": tmp_path / "again"}, {"log_every_steps": 3}, ""),
        **{file: (new, {f"{file}_file": other[f"{file}_file"]}, f"{file} set") for file in ("train", "dev", "test")},
        "labels": ({**new, "labels": "up,down"}, {"labels": "down,up"}, "--labels: ['up', 'down'] on"),
        "vocabulary": (new, {"init_checkpoint": other["init_checkpoint"]}, "train set: 32 examples, "),
        "length": (new, {"max_seq_length": 12}, "--max_seq_length: 24"),
        "epochs": (new, {"num_train_epochs": 2}, "--num_train_epochs: 1"),
        "patience": (new, {"early_stopping_patience": 1}, "--early_stopping_patience: 0"),
        "training": ({**new, "init_checkpoint": best}, {"do_train": False}, "--do_train: True"),
        "predictions": (new, {"do_predict": False}, "--do_predict: True"),
        "seeds": (new, {"num_seeds": 2}, "--num_seeds: 1"),
        "teacher": ({**new, "teacher": best}, {"teacher": teacher}, "hidden_act of the teacher: gelu on worker 0"),
        "weights": (new, {"init_checkpoint": best}, "checksum of the weights to begin with: "),
        "folder": (new, {"output_dir": tmp_path / "own"}, "run.json: "),
    }
    pairs = {name: [{**flags, **of_all}, {**flags, **of_all, **own}] for name, (of_all, own, _) in cases.items()}
    steps = {name: ("run_classifier", given) for name, given in pairs.items()}
    outcomes = cluster.run_mains(steps, tmp_path, "helpers.cluster")
    assert_agreed(outcomes, {name: message for name, (*_, message) in cases.items()})
    expected, found = (np.loadtxt(tmp_path / name / "test_results.tsv") for name in ("again", "out"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
