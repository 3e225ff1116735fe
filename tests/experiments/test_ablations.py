"""The grid of the paper's ablations: its cells, their commands, resuming after any end, and the tables."""

import json
import os
import signal
import sys
import textwrap
import time

import pytest
from helpers import warm

from experiments import ablation_grid, ablation_tables
from experiments import runs as script_runs
from experiments.ablation_grid import Pretraining, Settings
from experiments.runs import Run

# Replacements of the scripts: they take no time, and count their starts.
SCRIPT = """
import os, sys, time
flags = dict(part.lstrip("-").split("=", 1) for part in sys.argv[1:])
with open(os.path.join(os.path.dirname(__file__), "starts"), "a") as file:
    file.write(os.path.basename(__file__) + " " + flags.get("output_dir", "") + chr(10))
if os.environ.get("FAIL_IN", "nowhere") in flags.get("output_dir", ""):
    print("the last words")
    sys.exit(3)
if os.environ.get("HANG_IN", "nowhere") in flags.get("output_dir", ""):
    open(os.path.join(os.path.dirname(__file__), "hangs"), "w").write(str(os.getpid()))
    time.sleep(600)
if "output_dir" in flags:
    os.makedirs(flags["output_dir"], exist_ok=True)
    kind = "next_token" if flags.get("objective") == "ltr" else "masked_lm"
    lines = {
        "run_pretraining.py": {kind + "_loss": 2.0, kind + "_accuracy": 0.25, "loss": 2.5, "global_step": 7},
        "run_classifier.py": {"eval_accuracy": 0.75 + 0.01 * ("no_nsp" in flags["output_dir"]), "global_step": 9},
    }[os.path.basename(__file__)]
    if kind == "masked_lm" and flags.get("nsp") == "True":
        lines["next_sentence_accuracy"] = 0.625
    with open(os.path.join(flags["output_dir"], "eval_results.txt"), "w") as file:
        file.writelines(f"{key} = {value}" + chr(10) for key, value in lines.items())
elif flags["output_file"].endswith("vocab.txt"):
    open(flags["output_file"], "w").write(chr(10).join("[PAD] [UNK] [CLS] [SEP] [MASK] a b".split()) + chr(10))
"""
NAMES = ("create_vocab.py", "create_pretraining_data.py", "run_pretraining.py", "run_classifier.py")


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
        "max_seq_length": 64, "num_train_steps": 50, "train_batch_size": 8, "learning_rate": 1e-3,
        "masked_lm_prob": 0.15, "max_eval_steps": 4, "fine_tuning_batch_size": 16, "fine_tuning_learning_rate": 1e-4,
        "num_train_epochs": 2.0, "num_seeds": 1, "seed": 5,
    }  # fmt: skip
    return Settings(**values | changes)


def test_cells_are_those_of_the_paper():
    cells = ablation_grid.create_grid([5, 6, 8], "tiny", ["mini", "L-6_H-768_A-3"])
    assert [(cell.table, cell.name) for cell in cells] == [
        (5, "BERT"), (5, "No NSP"), (5, "LTR & No NSP"), (5, "+ BiLSTM"), (5, "no pre-training"),
        (6, "mini"), (6, "L-6_H-768_A-3"),
        (8, "80 / 10 / 10"), (8, "100 / 0 / 0"), (8, "80 / 20 / 0"), (8, "80 / 0 / 20"), (8, "0 / 80 / 20"),
        (8, "0 / 100 / 0"),
    ]  # fmt: skip
    assert all(sum(cell.pretraining.rates) == 1 for cell in cells)
    ltr, lstm = cells[2], cells[3]
    assert ltr.pretraining == lstm.pretraining == Pretraining("tiny", "ltr", nsp=False)
    assert (ltr.lstm_on_top, lstm.lstm_on_top) == (False, True)
    assert cells[0].pretraining == cells[4].pretraining == cells[7].pretraining == Pretraining("tiny")
    # Different things have different file names.
    assert len({cell.pretraining.name for cell in cells}) == len({cell.pretraining for cell in cells}) == 10
    assert len({cell.fine_tuning_name for cell in cells}) == 12
    with pytest.raises(ValueError, match="--tables=7 is not one of 5, 6, 8"):
        ablation_grid.create_grid([5, 7], "tiny", [])
    with pytest.raises(ValueError, match="--bert_size=huge is not one of tiny, mini"):
        ablation_grid.create_grid([6], "tiny", ["huge"])


def test_commands(tmp_path):
    cells = ablation_grid.create_grid([5], "tiny", [])
    runs = ablation_grid.create_runs(cells, settings(tmp_path, pretraining_flag=("--dtype=bfloat16",)))
    by_name = {run.name: run.command() for run in runs}
    assert list(by_name) == [
        "vocabulary", "data-train-single", "data-heldout-single", "data-train-pairs", "data-heldout-pairs",
        "pretraining-tiny-mlm", "fine_tuning-tiny-mlm",
        "pretraining-tiny-mlm-no_nsp", "fine_tuning-tiny-mlm-no_nsp",
        "pretraining-tiny-ltr-no_nsp", "fine_tuning-tiny-ltr-no_nsp", "fine_tuning-tiny-ltr-no_nsp-lstm",
        "fine_tuning-tiny-from_scratch",
    ]  # fmt: skip
    mlm, ltr = by_name["pretraining-tiny-mlm"], by_name["pretraining-tiny-ltr-no_nsp"]
    assert {"--objective=mlm", "--nsp=True", "--mask_rate=0.8", "--max_predictions_per_seq=10"} < set(mlm)
    assert {"--objective=ltr", "--nsp=False", f"--input_file={tmp_path}/data/train-single.tfrecord"} < set(ltr)
    assert not any(("_rate=" in part and "learning_rate" not in part) or "masked_lm" in part for part in ltr)
    assert mlm[-1] == ltr[-1] == "--dtype=bfloat16"
    lstm, scratch = by_name["fine_tuning-tiny-ltr-no_nsp-lstm"], by_name["fine_tuning-tiny-from_scratch"]
    assert {"--lstm_on_top=True", f"--init_checkpoint={tmp_path}/pretraining/tiny-ltr-no_nsp"} < set(lstm)
    assert f"--bert_config_file={tmp_path}/pretraining/tiny-mlm/bert_config.json" in scratch
    assert not any("init_checkpoint" in part for part in scratch)
    given = ablation_grid.create_runs(cells, settings(tmp_path, vocab_file="v.txt"))
    assert given[0].name == "data-train-single"
    assert all("--vocab_file=v.txt" in run.command() for run in given)


def test_flags_are_those_of_the_scripts(tmp_path):
    """Every script knows the flags of its command, and accepts their values."""
    runs = ablation_grid.create_runs(ablation_grid.create_grid([5, 8], "tiny", []), settings(tmp_path))
    program = """
        import importlib, json, sys
        from absl import flags
        for line in sys.stdin:
            script, *arguments = json.loads(line)
            for name in list(flags.FLAGS):
                delattr(flags.FLAGS, name)
            sys.modules.pop(script[:-3], None)
            importlib.reload(sys.modules["bert_tf.training.flags"]) if "bert_tf.training.flags" in sys.modules else None
            importlib.import_module(script[:-3])
            flags.FLAGS.mark_as_parsed()
            flags.FLAGS([script, *arguments])
    """
    lines = "".join(json.dumps(run.command()) + "\n" for run in runs)
    result = warm.run(
        [sys.executable, "-c", textwrap.dedent(program)], input=lines, text=True, capture_output=True,
        cwd=script_runs.SCRIPTS,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]


def test_a_grid_is_run_once_and_goes_on(scripts, tmp_path, monkeypatch):
    cells = ablation_grid.create_grid([5, 8], "tiny", [])
    chosen = settings(tmp_path / "out")
    runs = ablation_grid.create_runs(cells, chosen)
    monkeypatch.setenv("FAIL_IN", "fine_tuning/tiny-mlm-no_nsp")
    with pytest.raises(ChildProcessError, match=r"(?s)run_classifier.py failed with exit code 3 .*the last words"):
        script_runs.do_runs(runs, chosen.output_dir)
    assert len(starts(scripts)) == 9
    monkeypatch.delenv("FAIL_IN")
    results = script_runs.do_runs(runs, chosen.output_dir)
    # Five runs of data, eight of pre-training, ten of fine-tuning; eight were done.
    started = starts(scripts)
    assert len(results) == 23 and len(started) == 15
    assert started[0] == f"run_classifier.py {tmp_path}/out/fine_tuning/tiny-mlm-no_nsp"
    assert results["pretraining-tiny-ltr-no_nsp"]["results"] == {
        "token_loss": 2.0, "token_accuracy": 0.25, "next_sentence_accuracy": None,
    }  # fmt: skip
    assert script_runs.do_runs(runs, chosen.output_dir) == results
    assert starts(scripts) == []

    records = ablation_tables.create_records(cells, results, vocab_size=7)
    assert [record["fine_tuning"]["eval_accuracy"]["mean"] for record in records[:5]] == [0.75, 0.76, 0.76, 0.76, 0.75]
    table = ablation_tables.create_tables(records, "eval_accuracy", "MRPC accuracy, %")
    assert "| BERT | 2.000 | 7.4 | 62.5 | 75.0 |" in table
    assert "| LTR & No NSP | 2.000 | 7.4 |  | 76.0 |" in table
    assert "| no pre-training |  |  |  | 75.0 |" in table
    assert "| 0 / 80 / 20 | 2.000 | 7.4 | 75.0 |" in table
    assert table.count("\n## ") + table.startswith("## ") == 2

    other = ablation_grid.create_runs(cells, settings(tmp_path / "out", num_train_steps=60))
    with pytest.raises(ValueError, match=r"has results for other flags \(pretraining-.*now --num_train_steps=60"):
        script_runs.do_runs(other, chosen.output_dir)
    assert starts(scripts) == []


def test_a_signal_ends_the_script_too(scripts, tmp_path):
    program = f"""
        import pathlib
        from experiments import runs
        runs.SCRIPTS = pathlib.Path({str(scripts)!r})
        run = runs.Run("hanging", "run_pretraining.py", {{"output_dir": {str(tmp_path / "hang")!r}}})
        runs.do_runs([run], {str(tmp_path)!r})
    """
    environment = os.environ | {"HANG_IN": "hang"}
    process = warm.Popen([sys.executable, "-c", textwrap.dedent(program)], env=environment)
    end = time.monotonic() + 60
    while not (scripts / "hangs").exists() or not (scripts / "hangs").read_text():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    child = int((scripts / "hangs").read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not (tmp_path / "results" / "hanging.json").exists()


def test_seeds_become_a_mean_with_its_range(tmp_path):
    chosen = settings(tmp_path, num_seeds=2)
    cells = ablation_grid.create_grid([6], "tiny", ["tiny"])
    run = ablation_grid.create_runs(cells, chosen)[-1]
    folder = tmp_path / "fine_tuning" / "tiny-mlm"
    folder.mkdir(parents=True)
    summary = {"eval_f1": {"mean": 0.5, "min": 0.4, "max": 0.625, "standard_deviation": 0.1}}
    (folder / "seeds.json").write_text(json.dumps({"summary": summary}))
    results = {
        "pretraining-tiny-mlm": {"results": {"token_loss": 1.0, "next_sentence_accuracy": 0.5}, "seconds": 3.0},
        run.name: {"results": run.read(), "seconds": 4.0},
    }
    records = ablation_tables.create_records(cells, results, vocab_size=30522)
    assert records[0]["parameters"] == 4_433_468
    row = "| tiny | 2 | 128 | 2 | 4.4 M | 1.000 | 2.7 | 50.0 (40.0 to 62.5) |"
    assert row in ablation_tables.create_tables(records, "eval_f1", "F1, %")


def test_wrong_flags(tmp_path):
    command = [sys.executable, "-m", "experiments.ablations", "--train_text=a", "--heldout_text=b", "--task_name=MRPC"]
    command += [f"--output_dir={tmp_path}"]
    cases = {"--tables=five": "--tables=five must be numbers", "--sizes=huge": "--bert_size=huge is not one of tiny"}
    for flag, message in cases.items():
        result = warm.run([*command, flag], capture_output=True, text=True, cwd=script_runs.SCRIPTS)
        assert result.returncode == 1 and message in result.stderr
        assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_runs_without_results_give_none(scripts, tmp_path):
    run = Run("data", "create_pretraining_data.py", {"output_file": "x", "nothing": None})
    assert run.command() == ["create_pretraining_data.py", "--output_file=x"]
    assert script_runs.result_of(run, str(tmp_path)) is None
    assert script_runs.do_run(run, str(tmp_path))["results"] == {}
    assert script_runs.result_of(run, str(tmp_path))["command"] == run.command()
