"""`python -m demo --quick`, a small `make demo`: its files, resuming, starting over, bad input."""

import json
import os
import sys

import pytest
from helpers import warm
from helpers.paths import ROOT
from helpers.slow import exhaustive, slow

from demo import folder as demo_folder
from demo import report
from demo.families import FAMILIES

PNG_HEADER = b"\x89PNG\r\n\x1a\n"
OFTEN = ("electra", "distilbert")  # of the descendants


def run(output_dir, *arguments, cwd=ROOT):
    command = [sys.executable, "-m", "demo", f"--output_dir={output_dir}", *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)}
    return warm.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_demo(tmp_path):
    """From docstrings to filled masks; run again, it resumes or starts over, depending on the folder's state."""
    output = tmp_path / "output"
    result = run(output, "--quick")
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ("vocab.txt", "train.txt", "heldout.txt", "train.tfrecord", "model/eval_results.txt"):
        assert (output / name).stat().st_size > 0, name
    assert (output / "loss_curve.png").read_bytes().startswith(PNG_HEADER)
    for script in ("create_vocab.py", "create_pretraining_data.py", "run_pretraining.py"):
        assert f"{script} \\\n    --input_file=" in result.stdout
    results = json.loads((output / "results.json").read_text())
    # It learned: it beats word frequencies on documents that are not in the training text.
    assert results["heldout"]["masked_lm_loss"] < results["baselines"]["masked_lm_loss"] - 0.05
    training = set((output / "train.txt").read_text().splitlines()) - {""}
    assert not training & set((output / "heldout.txt").read_text().splitlines())
    assert len(results["fill_mask"]) > len(report.FIXED_SENTENCES)
    for row in results["fill_mask"]:
        assert len(row["guesses"]) == 3
        assert row["text"].count("[MASK]") == 1
    assert json.loads((output / "demo.json").read_text())["finished"]

    # Interrupted after the records: existing files are kept.
    state = json.loads((output / "demo.json").read_text())
    (output / "demo.json").write_text(json.dumps({**state, "finished": False}))
    before = (output / "train.tfrecord").stat().st_mtime_ns
    again = run(output, "--quick")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Resuming the interrupted demo" in again.stdout
    assert (output / "train.tfrecord").stat().st_mtime_ns == before
    assert json.loads((output / "results.json").read_text())["heldout"] == results["heldout"]


@pytest.mark.parametrize(
    "family", [*slow(*OFTEN), *exhaustive(*(name for name in FAMILIES if name not in ("bert", *OFTEN)))]
)
def test_demo_of_a_descendant(tmp_path, family):
    result = run(tmp_path, "--quick", f"--family={family}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "loss_curve.png").read_bytes().startswith(PNG_HEADER)
    results = json.loads((tmp_path / "results.json").read_text())
    heldout, guessing = results["heldout"]["masked_lm_loss"], results["baselines"]["masked_lm_loss"]
    # In so few steps an ALBERT and a student of a hardly trained teacher don't get beyond frequencies.
    assert heldout < guessing + (-0.1 if family in ("electra", "roberta") else 0.1)
    assert len(results["fill_mask"]) > len(report.FIXED_SENTENCES)
    if family == "electra":
        assert 0 < results["heldout"]["disc_recall"] < 1 and len(results["replaced"]) > 3
    if family == "distilbert":
        assert results["teacher"]["masked_lm_loss"] > 0


@pytest.mark.parametrize("family", exhaustive(*FAMILIES))
def test_the_whole_demo_learns_more_than_frequencies(tmp_path, family):
    result = run(tmp_path / "output", f"--family={family}")
    assert result.returncode == 0, result.stdout + result.stderr
    results = json.loads((tmp_path / "output" / "results.json").read_text())
    assert results["heldout"]["masked_lm_loss"] < results["baselines"]["masked_lm_loss"] - 0.3


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


def test_claim_output_dir(tmp_path, capsys):
    """A demo goes on or is replaced; a folder of anything else is left as it is."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("precious")
    for state in (None, "{}", "[]", '{"settings": {}, "finished": true}', "[" * 50_000, "torn"):
        if state:
            (tmp_path / "mine" / "demo.json").write_text(state)
        with pytest.raises(demo_folder.DemoError, match=r"mine has files that are not a demo's \(\w"):
            demo_folder.claim_output_dir(str(tmp_path / "mine"), {})
        assert sorted(os.listdir(tmp_path / "mine")) == [*["demo.json"] * bool(state), "letter"]
    folder = str(tmp_path / "output")
    demo_folder.claim_output_dir(folder, {"a": 1})
    for settings, finished, said in (
        ({"a": 1}, False, "Resuming"),
        ({"a": 2}, False, "other text or sizes: starting over"),
        ({"a": 2}, True, "a finished demo: starting over"),
    ):
        (tmp_path / "output" / "vocab.txt").write_text("x")
        (tmp_path / "output" / "model").mkdir()
        if finished:
            demo_folder.write_state(folder, settings, finished=True)
        demo_folder.claim_output_dir(folder, settings)
        resumed = said == "Resuming"
        assert sorted(os.listdir(folder)) == ["demo.json", *["model", "vocab.txt"] * resumed]
        assert said in capsys.readouterr().out
        if resumed:
            (tmp_path / "output" / "model").rmdir()
