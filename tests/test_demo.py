"""`python -m demo --quick`, as `make demo` runs it but small: its files, going on, starting over, bad input; plots."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import demo
from bert_tf.plots import plot_training_log, read_training_log

ROOT = pathlib.Path(__file__).resolve().parents[1]
PNG_HEADER = b"\x89PNG\r\n\x1a\n"


def run(output_dir, *arguments, cwd=ROOT):
    command = [sys.executable, "-m", "demo", f"--output_dir={output_dir}", *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_demo(tmp_path):
    """From docstrings to filled masks; then the same again goes on or starts over, as the folder's state says."""
    output = tmp_path / "output"
    result = run(output, "--quick")
    assert result.returncode == 0, result.stdout + result.stderr
    for name in (
        "vocab.txt",
        "train.txt",
        "heldout.txt",
        "train.tfrecord",
        "bert_config.json",
        "model/eval_results.txt",
    ):
        assert (output / name).stat().st_size > 0, name
    assert (output / "loss_curve.png").read_bytes().startswith(PNG_HEADER)
    for script in ("create_vocab.py", "create_pretraining_data.py", "run_pretraining.py"):
        assert f"{script} \\\n    --input_file=" in result.stdout
    results = json.loads((output / "results.json").read_text())
    # It learned: better than the frequencies of words on documents that are not in the training text.
    assert results["heldout"]["masked_lm_loss"] < results["baselines"]["masked_lm_loss"] - 0.05
    training = set((output / "train.txt").read_text().splitlines()) - {""}
    assert not training & set((output / "heldout.txt").read_text().splitlines())
    assert len(results["fill_mask"]) > len(demo.FIXED_SENTENCES)
    for row in results["fill_mask"]:
        assert len(row["guesses"]) == 3
        assert row["text"].count("[MASK]") == 1
    assert json.loads((output / "demo.json").read_text())["finished"]

    # Interrupted after the records: what is there is kept.
    state = json.loads((output / "demo.json").read_text())
    (output / "demo.json").write_text(json.dumps({**state, "finished": False}))
    before = (output / "train.tfrecord").stat().st_mtime_ns
    again = run(output, "--quick")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Going on with the demo" in again.stdout
    assert (output / "train.tfrecord").stat().st_mtime_ns == before
    assert json.loads((output / "results.json").read_text())["heldout"] == results["heldout"]


@pytest.mark.slow
def test_demo_with_text_of_another_script(tmp_path):
    """Korean keeps its syllables: the scripts are told not to strip accents."""
    syllables = "가나다라마바사아자차카타파하거너더러머버서어저처커터퍼허"
    sentences = [
        " ".join(syllables[(i * k + k) % 28] + syllables[(i + 3 * k) % 28] for k in range(1, 8)) + "."
        for i in range(1500)
    ]
    (tmp_path / "ko.txt").write_text("\n".join(sentences))
    result = run(tmp_path / "output", "--quick", f"--text={tmp_path}/*.txt")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("--strip_accents=False") == 3
    assert "가" in (tmp_path / "output" / "vocab.txt").read_text().splitlines()


def test_no_text_too_little_text_and_a_foreign_folder(tmp_path):
    result = run(tmp_path / "output", f"--text={tmp_path}/*.txt")
    assert result.returncode == 1
    assert f"--text: no file matches '{tmp_path}/*.txt'" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "output").exists()

    (tmp_path / "a.txt").write_text("A few words only.\n" * 100)
    result = run(tmp_path / "output", f"--text={tmp_path}/*.txt")
    assert result.returncode == 1
    assert "too little text in 1 files: 1,8" in result.stderr
    assert "At least 50,000" in result.stderr
    assert "Traceback" not in result.stderr

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("precious")
    with pytest.raises(demo.DemoError, match="holds files, but no demo"):
        demo.claim_output_dir(str(tmp_path / "mine"), {})
    assert os.listdir(tmp_path / "mine") == ["letter"]


def test_claim_output_dir(tmp_path, capsys):
    folder = str(tmp_path / "output")
    demo.claim_output_dir(folder, {"a": 1})
    (tmp_path / "output" / "vocab.txt").write_text("x")
    (tmp_path / "output" / "model").mkdir()
    demo.claim_output_dir(folder, {"a": 1})
    assert sorted(os.listdir(folder)) == ["demo.json", "model", "vocab.txt"]
    assert "Going on" in capsys.readouterr().out
    demo.claim_output_dir(folder, {"a": 2})
    assert os.listdir(folder) == ["demo.json"]
    assert "other text or sizes: starting over" in capsys.readouterr().out
    demo.write_state(folder, {"a": 2}, finished=True)
    (tmp_path / "output" / "vocab.txt").write_text("x")
    demo.claim_output_dir(folder, {"a": 2})
    assert os.listdir(folder) == ["demo.json"]
    assert "a finished demo: starting over" in capsys.readouterr().out


def test_guesses_table():
    rows = [
        {"text": "Return the [MASK].", "answer": None, "guesses": [("list", 0.25), ("end", 0.125)]},
        {"text": "x" * 50 + " [MASK]" + "y" * 50, "answer": "word", "guesses": [("a", 1.0)]},
    ]
    table = demo.guesses_table(rows).splitlines()
    assert table[0].split() == ["sentence", "was", "guesses"]
    assert table[2].split() == ["Return", "the", "[MASK].", "list", "25%", "end", "12%"]
    assert "..." + "x" * 36 + " [MASK]" + "y" * 37 + "..." in table[3]
    assert len({line.index(word) for line, word in ((table[2], "list"), (table[3], "a 100%"))}) == 1


def write_log(path, records, end=""):
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)
    return str(path)


def test_plot_training_log(tmp_path):
    records = [
        {"kind": "train", "step": 10, "masked_lm_loss": 9.0, "masked_lm_accuracy": 0.1},
        {"kind": "eval", "step": 10, "masked_lm_loss": 8.5},
        {"kind": "train", "step": 20, "masked_lm_loss": 7.5},
        {"kind": "train", "step": 20, "masked_lm_loss": 7.0},  # the run was killed, went on, and came by again
    ]
    log = write_log(tmp_path / "log.jsonl", records, end='{"kind": "tr')
    read = read_training_log(log)
    assert [record["masked_lm_loss"] for record in read["train"]] == [9.0, 7.0]
    assert [record["step"] for record in read["eval"]] == [10]
    png = tmp_path / "curve.png"
    plot_training_log(log, str(png), {"masked_lm_loss": ("guessing", 8.0)})
    assert png.read_bytes().startswith(PNG_HEADER)
    assert sorted(os.listdir(tmp_path)) == ["curve.png", "log.jsonl"]


def test_plot_of_a_bad_log(tmp_path):
    with pytest.raises(ValueError, match=r"empty.jsonl has no step to draw"):
        plot_training_log(write_log(tmp_path / "empty.jsonl", []), str(tmp_path / "curve.png"))
    log = write_log(tmp_path / "bad.jsonl", [{"kind": "train", "step": 1}, {"step": 2}, {"kind": "eval", "step": 3}])
    with pytest.raises(ValueError, match=r"bad.jsonl, line 2: not a record of a training run \(KeyError\('kind'\)\)"):
        plot_training_log(log, str(tmp_path / "curve.png"))
    assert not (tmp_path / "curve.png").exists()
