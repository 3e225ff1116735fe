"""The grid of the paper's ablations: its cells, their commands, resuming after any end, and the tables."""

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import select
import signal
import sys

import pytest
from helpers import warm
from helpers.paths import GOLDEN, ROOT

from experiments import ablation_grid, ablation_tables, script_runs
from experiments.ablation_grid import Pretraining, Settings
from experiments.script_runs import Run

# Replacements of the scripts: they take no time, and count their starts.
SCRIPT = """
import os, sys
flags = dict(part.lstrip("-").split("=", 1) for part in sys.argv[1:])
with open(os.path.join(os.path.dirname(__file__), "starts"), "a") as file:
    file.write(os.path.basename(__file__) + " " + flags.get("output_dir", "") + chr(10))
if os.environ.get("FAIL_IN", "nowhere") in flags.get("output_dir", ""):
    print("the last words")
    sys.exit(3)
if "output_dir" in flags:
    os.makedirs(flags["output_dir"], exist_ok=True)
    kind = "next_token" if flags.get("objective") == "ltr" else "masked_lm"
    lines = {
        "run_pretraining.py": {kind + "_loss": 2.0, kind + "_accuracy": 0.25, "loss": 2.5, "global_step": 7},
        "run_squad.py": {"eval_f1": 12.5, "global_step": 9},
        "run_classifier.py": {"eval_accuracy": 0.75 + 0.01 * ("no_nsp" in flags["output_dir"]), "global_step": 9},
    }[os.path.basename(__file__)]
    if kind == "masked_lm" and flags.get("nsp") == "True":
        lines["next_sentence_accuracy"] = 0.625
    with open(os.path.join(flags["output_dir"], "eval_results.txt"), "w") as file:
        file.writelines(f"{key} = {value}" + chr(10) for key, value in lines.items())
elif flags["output_file"].endswith("vocab.txt"):
    open(flags["output_file"], "w").write(chr(10).join("[PAD] [UNK] [CLS] [SEP] [MASK] a b".split()) + chr(10))
"""
NAMES = ("create_vocab.py", "create_pretraining_data.py", "run_pretraining.py", "run_classifier.py", "run_squad.py")


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """A folder with such scripts; `starts()` returns those started since the last call."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(SCRIPT)
    monkeypatch.setattr(script_runs, "SCRIPTS", folder)
    return folder


def starts(folder) -> list[str]:
    lines = (folder / "starts").read_text().splitlines() if (folder / "starts").exists() else []
    (folder / "starts").write_text("")
    return lines


def settings(output_dir, **changes) -> Settings:
    values = {
        "train_text": "train.txt", "heldout_text": "heldout.txt", "task_name": "MRPC", "data_dir": "glue/MRPC",
        "output_dir": str(output_dir), "vocab_file": None, "vocab_size": 600, "do_lower_case": True,
        "initializer_range": 0.05, "dropout": 0.0,
        "max_seq_length": 64, "num_train_steps": 50, "train_batch_size": 8, "learning_rate": 1e-3,
        "masked_lm_prob": 0.15, "max_eval_steps": 4, "fine_tuning_batch_size": 16, "fine_tuning_learning_rate": 1e-4,
        "num_train_epochs": 2.0, "num_pretraining_seeds": 1, "num_seeds": 1, "seed": 5,
    }  # fmt: skip
    return Settings(**values | changes)


def test_cells_are_those_of_the_paper():
    cells = ablation_grid.create_grid([5, 6, 8], "tiny", ["mini", "L-6_H-768_A-3"])
    assert "; ".join(cell.name for cell in cells) == (
        "BERT; No NSP; LTR & No NSP; no pre-training; mini; L-6_H-768_A-3; "
        "80 / 10 / 10; 100 / 0 / 0; 80 / 20 / 0; 80 / 0 / 20; 0 / 80 / 20; 0 / 100 / 0"
    )
    assert all(sum(cell.pretraining.rates) == 1 for cell in cells)
    assert cells[2].pretraining == Pretraining("tiny", "ltr", nsp=False)
    assert cells[0].pretraining == cells[3].pretraining == cells[6].pretraining == Pretraining("tiny")
    # Different things have different file names.
    assert len({cell.pretraining.name for cell in cells}) == len({cell.pretraining for cell in cells}) == 10
    assert len({cell.fine_tuning_name for cell in cells}) == 11


def test_commands(tmp_path):
    """A cell's pre-trainings differ in their seeds, and no two of its fine-tunings share one."""
    squad = {"squad_train_file": "train.json", "squad_dev_file": "dev.json", "squad_flag": ("--doc_stride=32",)}
    seeds = {"num_pretraining_seeds": 3, "num_seeds": 2}
    chosen = settings(tmp_path, pretraining_flag=("--dtype=bfloat16",), vocab_file="v.txt", **seeds, **squad)
    assert not ablation_grid.create_vocabulary_runs(chosen)
    grid = ablation_grid.create_grid([5, 6], "tiny", ["mini"])
    by_name = {run.name: run for run in ablation_grid.create_runs(grid, chosen)}
    names = list(by_name)
    assert len(names) == 4 + 3 * (4 + 5 + 4) and not any(name.startswith("squad-mini") for name in names)
    assert names.index("squad-tiny-from_scratch-seed_5") < names.index("pretraining-tiny-mlm-seed_6")
    commands = {name: run.command() for name, run in by_name.items()}
    assert all("--vocab_file=v.txt" in command for command in commands.values())
    mlm, ltr = commands["pretraining-tiny-mlm-seed_5"], commands["pretraining-tiny-ltr-no_nsp-seed_5"]
    config_file = f"--bert_config_file={tmp_path}/configurations/tiny-initializer_0.05-dropout_0.json"
    assert {config_file, "--objective=mlm", "--nsp=True", "--mask_rate=0.8", "--max_predictions_per_seq=10"} < set(mlm)
    assert {"--objective=ltr", "--nsp=False", f"--input_file={tmp_path}/data/train-single.tfrecord"} < set(ltr)
    assert not any(("_rate=" in part and "learning_rate" not in part) or "masked_lm" in part for part in ltr)
    assert mlm[-1] == ltr[-1] == "--dtype=bfloat16"
    scratch = commands["fine_tuning-tiny-from_scratch-seed_5"]
    assert config_file in scratch and not any("init_checkpoint" in part for part in scratch)
    kinds = {"pretraining": [5, 6, 7], "fine_tuning": [5, 7, 9], "squad": [5, 7, 9]}
    for kind, seeds in kinds.items():
        assert [by_name[f"{kind}-tiny-mlm-seed_{seed}"].flags["seed"] for seed in (5, 6, 7)] == seeds
    last = commands["squad-tiny-ltr-no_nsp-seed_7"]
    assert {"--dev_file=dev.json", "--num_seeds=2"} < set(last) and last[-1] == "--doc_stride=32"
    assert f"--init_checkpoint={tmp_path}/pretraining/tiny-ltr-no_nsp-seed_7" in last


def test_configurations(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
    chosen = settings(tmp_path)
    ablation_grid.write_configurations(ablation_grid.create_grid([6], "tiny", ["mini"]), chosen)
    config = json.loads(pathlib.Path(chosen.configuration_file("mini")).read_text())
    sizes = {"vocab_size": 6, "hidden_size": 256, "initializer_range": 0.05, "hidden_dropout_prob": 0.0}
    assert (sizes | {"attention_probs_dropout_prob": 0.0}).items() <= config.items()


def test_a_grid_is_run_once_and_goes_on(scripts, tmp_path, monkeypatch):
    cells = ablation_grid.create_grid([5, 8], "tiny", [])
    chosen = settings(tmp_path / "out", squad_train_file="train.json", squad_dev_file="dev.json")
    runs = ablation_grid.create_vocabulary_runs(chosen) + ablation_grid.create_runs(cells, chosen)
    monkeypatch.setenv("FAIL_IN", "fine_tuning/tiny-mlm-no_nsp")
    with pytest.raises(
        ChildProcessError, match=r"(?s)run_classifier.py of .* failed with exit code 3; .*the last words"
    ):
        script_runs.do_runs(runs, chosen.output_dir)
    assert len(starts(scripts)) == 10
    monkeypatch.delenv("FAIL_IN")
    results = script_runs.do_runs(runs, chosen.output_dir)
    known = json.loads((GOLDEN / "flags.json").read_text())
    assert all(run.flags.keys() <= known[run.script.removesuffix(".py")].keys() for run in runs)
    # Five runs of data, eight of pre-training, nine of fine-tuning, four of SQuAD; nine were done.
    started = starts(scripts)
    assert len(results) == 26 and len(started) == 17
    assert started[0] == f"run_classifier.py {tmp_path}/out/fine_tuning/tiny-mlm-no_nsp-seed_5"
    ltr = {"token_loss": 2.0, "token_accuracy": 0.25, "next_sentence_accuracy": None}
    assert results["pretraining-tiny-ltr-no_nsp-seed_5"]["results"] == ltr
    assert script_runs.do_runs(runs, chosen.output_dir) == results and starts(scripts) == []

    records = ablation_tables.create_records(cells, results, 7, ablation_grid.repetitions(chosen))
    assert [record["fine_tuning"]["eval_accuracy"]["mean"] for record in records[:4]] == [0.75, 0.76, 0.76, 0.75]
    table = ablation_tables.create_tables(records, "eval_accuracy", "MRPC accuracy, %")
    assert "| BERT | 2.000 | 7.4 | 62.5 | 75.0 | 12.5 |" in table
    assert "| LTR & No NSP | 2.000 | 7.4 |  | 76.0 | 12.5 |" in table
    assert "| no pre-training |  |  |  | 75.0 | 12.5 |" in table
    assert "| 0 / 80 / 20 | 2.000 | 7.4 | 75.0 |" in table
    assert table.count("\n## ") + table.startswith("## ") == 2
    assert table.endswith("Each cell is one run: differences may be chance.\n")

    other = ablation_grid.create_runs(cells, dataclasses.replace(chosen, num_train_steps=60))
    with pytest.raises(ValueError, match=r"has results for other flags \(pretraining-.*now --num_train_steps=60"):
        script_runs.do_runs(other, chosen.output_dir)
    assert starts(scripts) == []


def test_seeds_become_a_mean_with_its_standard_error():
    # Two seeds of fine-tuning: their standard deviation, 0.1414, divided by the root of 2.
    assert ablation_tables.estimate([[0.5, 0.7]]) == pytest.approx({"mean": 0.6, "standard_error": 0.1})
    # Two pre-trainings: only their means are independent.
    assert ablation_tables.estimate([[0.5, 0.7], [0.6, 0.64]]) == pytest.approx({"mean": 0.61, "standard_error": 0.01})
    assert ablation_tables.estimate([[0.5]]) == {"mean": 0.5, "standard_error": None}
    assert ablation_tables.parameters_of("tiny", 30522) == 4_433_468


def test_runs_without_results_give_none(scripts, tmp_path):
    run = Run("data", "create_pretraining_data.py", {"output_file": "x", "nothing": None})
    assert run.command() == ["create_pretraining_data.py", "--output_file=x"]
    assert script_runs.result_of(run, str(tmp_path)) is None
    assert script_runs.do_run(run, str(tmp_path))["results"] == {}
    assert script_runs.result_of(run, str(tmp_path))["command"] == run.command()


BAR = "train:  40%|████      | 40/100 [00:10<00:15,  4.0step/s, loss=7.56]"
WARNS = """
import sys
sys.stderr.write("W1125 06:33:25.632243 140062272501440 script.py:343] Only 3 training steps.\\n")
sys.stderr.write("W0000 00:00:1795587920.719 4711 cpu.cc:12] Nothing that anyone can change.\\n")
sys.stderr.write("W1125 06:33:26.632243 140062272501440 script.py:343] Only 3 training steps.\\n")
sys.exit(len(sys.argv) - 1)
"""


def test_the_last_bar_of_a_log_is_its_progress():
    for log, progress in {
        "": "",
        f"{BAR}\r{BAR.replace('40', '41')}\nI1125 Saved\n": "train 41/100, 00:15 left",
        "train:   0%|          | 0/700 [00:00<?, ?step/s]": "",
        "write records: 100%|██████████| 8/8 [1:02:03<00:00]": "write records 8/8, 00:00 left",
    }.items():
        assert script_runs.progress_in(log) == progress


def test_warnings_and_the_end_of_this_starts_log_are_repeated_once(tmp_path, caplog, monkeypatch):
    (tmp_path / "warns.py").write_text(WARNS)
    monkeypatch.setattr(script_runs, "SCRIPTS", tmp_path)
    (tmp_path / "logs").mkdir()
    for name in ("one", "two"):
        line = "W1125 06:33:25.6 140062272501440 old.py:1] Of an earlier start.\n"
        (tmp_path / "logs" / f"{name}.log").write_text(line)
    with caplog.at_level(logging.WARNING):
        script_runs.do_runs([Run("one", "warns.py", {})], str(tmp_path))
    assert [record.getMessage() for record in caplog.records] == ["one: Only 3 training steps."]
    failing = Run("two", "warns.py", {"a": 1})
    with pytest.raises(ChildProcessError, match="of the run two failed with exit code 1") as raised:
        script_runs.do_run(failing, str(tmp_path))
    assert "Only 3" in str(raised.value) and "earlier" not in str(raised.value)
    assert script_runs.result_of(failing, str(tmp_path)) is None
    (tmp_path / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ChildProcessError, match="dies.py of the run three was killed, probably for memory; "):
        script_runs.do_run(Run("three", "dies.py", {}), str(tmp_path))


def test_a_script_ends_with_a_killed_starter(tmp_path):
    """What it held, such as the lock of its output, is free then: the same command can go on."""
    held, place = tmp_path / "held", str(tmp_path)
    os.mkfifo(held)
    (tmp_path / "hangs.py").write_text(
        "import os, signal\nfrom bert_tf.system import script\n"
        f"def main(_):\n    os.write(os.open({str(held)!r}, os.O_WRONLY), b'%d' % os.getpid())\n    signal.pause()\n"
        "script.run(main)\n"
    )
    program = f"""
import pathlib
from experiments import script_runs
script_runs.SCRIPTS = pathlib.Path({place!r})
script_runs.do_run(script_runs.Run("hanging", "hangs.py", {{}}), {place!r})
"""
    reader, events = os.open(held, os.O_RDONLY | os.O_NONBLOCK), select.poll()
    events.register(reader)
    starter = warm.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert events.poll(1000 * warm.HANG_SECONDS)
    child = int(os.read(reader, 20))
    try:
        starter.kill()
        assert starter.wait() == -signal.SIGKILL
        assert events.poll(1000 * warm.HANG_SECONDS) == [(reader, select.POLLHUP)]  # nobody holds it any more
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
