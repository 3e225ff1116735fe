"""`python -m demo --quick`, a small `make demo`: its files, resuming, bad input; and documents from docstrings."""

import json
import os
import sys

import pytest
from helpers import warm
from helpers.basics import ROOT, directory_of, exhaustive, slow

from bert_tf.pretraining.documents import to_text
from demo import folder as demo_folder
from demo import report, sample_text
from demo.families import FAMILIES

OFTEN = ("electra", "distilbert")  # of the descendants


def run(output_dir, *arguments):
    command = [sys.executable, "-m", "demo", f"--output_dir={output_dir}", *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)}
    result = warm.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (output_dir / "loss_curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    results = json.loads((output_dir / "results.json").read_text())
    assert len(results["fill_mask"]) > len(report.FIXED_SENTENCES)
    return result.stdout, results


def learned(results):
    """By how much the loss on held-out text is below that of guesses by word frequencies."""
    return results["baselines"]["masked_lm_loss"] - results["heldout"]["masked_lm_loss"]


@pytest.mark.slow
def test_demo(tmp_path):
    """From docstrings to filled masks; run again, it resumes or starts over, depending on the folder's state."""
    output = tmp_path / "output"
    printed, results = run(output, "--quick")
    for name in ("vocab.txt", "train.txt", "heldout.txt", "train.tfrecord", "model/eval_results.txt"):
        assert (output / name).stat().st_size > 0, name
    for script in ("create_vocab.py", "create_pretraining_data.py", "run_pretraining.py"):
        assert f"{script} \\\n    --input_file=" in printed
    assert learned(results) > 0.05
    training = set((output / "train.txt").read_text().splitlines()) - {""}
    assert not training & set((output / "heldout.txt").read_text().splitlines())
    for row in results["fill_mask"]:
        assert len(row["guesses"]) == 3 and row["text"].count("[MASK]") == 1
    state = json.loads((output / "demo.json").read_text())
    assert state["finished"]

    # Interrupted after the records: existing files are kept.
    (output / "demo.json").write_text(json.dumps({**state, "finished": False}))
    before = (output / "train.tfrecord").stat().st_mtime_ns
    printed, again = run(output, "--quick")
    assert "Resuming the interrupted demo" in printed
    assert (output / "train.tfrecord").stat().st_mtime_ns == before
    assert again["heldout"] == results["heldout"]


@pytest.mark.parametrize(
    "family", [*slow(*OFTEN), *exhaustive(*(name for name in FAMILIES if name not in ("bert", *OFTEN)))]
)
def test_demo_of_a_descendant(tmp_path, family):
    _, results = run(tmp_path, "--quick", f"--family={family}")
    # In so few steps an ALBERT and a student of a hardly trained teacher don't get beyond frequencies.
    assert learned(results) > (0.1 if family in ("electra", "roberta") else -0.1)
    if family == "electra":
        assert 0 < results["heldout"]["disc_recall"] < 1 and len(results["replaced"]) > 3
    if family == "distilbert":
        assert results["teacher"]["masked_lm_loss"] > 0


@pytest.mark.parametrize("family", exhaustive(*FAMILIES))
def test_the_whole_demo_learns_more_than_frequencies(tmp_path, family):
    assert learned(run(tmp_path / "output", f"--family={family}")[1]) > 0.3


@pytest.mark.slow
def test_demo_with_text_of_another_script(tmp_path):
    """Korean keeps its syllables: the scripts are told not to strip accents."""
    syllables = "가나다라마바사아자차카타파하거너더러머버서어저처커터퍼허"
    words = ([syllables[(i * k + k) % 28] + syllables[(i + 3 * k) % 28] for k in range(1, 8)] for i in range(1500))
    (tmp_path / "ko.txt").write_text("\n".join(" ".join(sentence) + "." for sentence in words))
    printed, _ = run(tmp_path / "output", "--quick", f"--text={tmp_path}/*.txt")
    assert printed.count("--strip_accents=False") == 3
    assert "가" in (tmp_path / "output" / "vocab.txt").read_text().splitlines()


def test_claim_output_dir(tmp_path, capsys):
    mine, output = tmp_path / "mine", tmp_path / "output"
    directory_of(mine, letter="precious")
    for state in (None, "{}", "[]", '{"settings": {}, "finished": true}', "[" * 50_000, "torn"):
        if state:
            (mine / "demo.json").write_text(state)
        with pytest.raises(demo_folder.DemoError, match=r"mine has files that are not a demo's \(\w"):
            demo_folder.lock_and_record_output_dir(str(mine), {})
        assert sorted(os.listdir(mine)) == [*["demo.json"] * bool(state), "letter"]
    demo_folder.lock_and_record_output_dir(str(output), {"a": 1})
    for settings, finished, said in (
        ({"a": 1}, False, "Resuming"),
        ({"a": 2}, False, "other text or sizes: starting over"),
        ({"a": 2}, True, "a finished demo: starting over"),
    ):
        (output / "vocab.txt").write_text("x")
        (output / "model").mkdir(exist_ok=True)
        if finished:
            demo_folder.write_state(str(output), settings, finished=True)
        demo_folder.lock_and_record_output_dir(str(output), settings)
        assert sorted(os.listdir(output)) == ["demo.json", *["model", "vocab.txt"] * (said == "Resuming")]
        assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "needed"),
    [("Crème brûlée is good.", False), ("이것은 책입니다", True), ("ひらがな", True), ("中文", False)],
)
def test_needs_accents(text, needed):
    assert sample_text.needs_accents(text) is needed and not sample_text.needs_accents(text + "x" * 10_000)


MODULE = '''"""A module that reads `files` of :class:`~a.Reader` kind.

It has ``two`` sentences in here. This is the second one of them.

    This is code, and it is indented here.

Example of the use in code::

    This is a block that is after the colons.

>>> This is a doctest and it is left out.

=======  =====
This is  a table
=======  =====
"""

def function(x):
    """Return the *first* of the items.

    Args:
      x: This is a parameter that is left out.

    def not_prose(self, x): return the x in it.
    """

class Thing:
    async def method(self):
        """This is the method of a class."""

    def other(self):
        """Dies ist kein englischer Satz."""
'''


def test_module_sentences(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    assert " ".join(sample_text._module_sentences(str(path))) == (
        "A module that reads files of a.Reader kind. It has two sentences in here. This is the second one of them. "
        "Example of the use in code: Return the first of the items. This is the method of a class."
    )
    for broken in (b'"""broken""" (', b'"""\xff\xfe"""'):
        path.write_bytes(broken)
        assert sample_text._module_sentences(str(path)) == []


@pytest.mark.slow
def test_docstring_documents():
    documents = sample_text.docstring_documents(100_000, show_progress=False)
    assert documents == sample_text.docstring_documents(100_000, show_progress=False)
    assert 100_000 <= len(to_text(documents)) < 200_000
    sentences = [sentence.lower() for document in documents for sentence in document]
    assert len(sentences) == len(set(sentences)) and min(map(len, documents)) >= 2
