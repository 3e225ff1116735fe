"""--class_weights in runs of run_classifier.py and run_ner.py, on files in UTF-16."""

import json

import numpy as np
import pytest
from helpers.script_cases import run_cases, weights_of
from helpers.slow import slow
from helpers.tiny import TINY_CONFIG, write_encoder

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(95))]
# 6 of a class and 2 of the other, in texts and in tags.
TEXTS = "text,label\n" + "".join(f"w{n} w{n + 1},{'rare' if n % 4 == 0 else 'usual'}\n" for n in range(8))
WORDS = "".join(f"w{n} {'rare' if n % 4 == 0 else 'usual'}\n" + "\n" * (n % 2) for n in range(8))
SCRIPTS = {
    "run_classifier": ("train.csv", TEXTS, {"task_name": "custom", "text_a": "text", "label": "label"}),
    "run_ner": ("train.conll", WORDS, {"tag_scheme": "plain"}),
}
CASES = {
    "plain": None,
    "equal": "rare=3,usual=3",  # the loss is divided by the sum of the weights
    "balanced": "balanced",
    "by name": "rare=2",
    "unknown": "rare=2,seldom=3",
}


@pytest.mark.parametrize("script", ["run_classifier", *slow("run_ner")])
def test_weights_of_classes_in_a_run(tmp_path, script):
    write_encoder(tmp_path, PIECES, TINY_CONFIG)
    name, content, own = SCRIPTS[script]
    (tmp_path / name).write_bytes(content.encode("utf-16"))
    shared = {
        "do_train": True, "train_file": tmp_path / name, "init_checkpoint": tmp_path / "encoder", "max_seq_length": 8,
        "train_batch_size": 4, "num_train_epochs": 1, "learning_rate": 1e-2, "seed": 1, "encoding": "utf-16", **own,
    }  # fmt: skip
    cases = {case: {**shared, "output_dir": tmp_path / case, "class_weights": text} for case, text in CASES.items()}
    del cases["plain"]["class_weights"]
    outcomes, logs = run_cases(script, cases)
    assert "no such label: seldom. The labels are rare, usual" in outcomes.pop("unknown")
    assert set(outcomes.values()) == {"done"}
    assert "--class_weights: rare 2, usual 0.6667" in logs["balanced"]
    assert "are not named and have weight 1: usual" in logs["by name"]
    learned = {case: weights_of(tmp_path / case)["output_weights"] for case in outcomes}
    np.testing.assert_allclose(learned["equal"], learned["plain"], atol=1e-6)
    assert np.abs(learned["balanced"] - learned["plain"]).max() > 1e-4
    assert json.loads((tmp_path / "balanced" / "run.json").read_text())["class_weights"] == "balanced"
    assert "class_weights" in (tmp_path / "balanced" / "README.md").read_text()
