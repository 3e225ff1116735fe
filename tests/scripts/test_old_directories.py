"""Runs of a version before head_config.json: resumed, used, exported, and refused, like runs of today."""

import json
import shutil

import numpy as np
import pytest
from helpers.old_directories import make_old, numbered
from helpers.script_cases import run_cases
from helpers.tiny import TINY_CONFIG

from bert_tf import Predictor
from bert_tf.models import open_weights
from bert_tf.models.config import BertConfig
from bert_tf.models.head_config import HeadConfig
from bert_tf.models.task_models import BertModel

pytestmark = pytest.mark.slow  # in small: models/test_head_config.py and serving/test_old_directories.py

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(95))]
SINGLE = {"problem_type": "single_label_classification"}
# What bert_config.json of each run had besides the model.
OLD_KEYS = {
    "lstm": {**numbered("down", "up"), **SINGLE, "lstm_on_top": True},
    "cnn": {**numbered("down", "up"), **SINGLE, "architectures": ["CnnClassifier"]},
    "tags": {**numbered("O", "B-X", "I-X"), "architectures": ["BertForTokenClassification"]},
}


def write_data(folder) -> None:
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
    encoder = BertModel(BertConfig.from_dict(TINY_CONFIG))
    encoder.save_pretrained(str(folder / "encoder"), vocab_file=str(folder / "vocab.txt"), do_lower_case=True)
    lines = [f"w{number} w{number + 1}\t{('down', 'up')[number % 2]}\n" for number in range(16)]
    (folder / "labels.tsv").write_text("text\tlabel\n" + "".join(lines))
    (folder / "tags.conll").write_text("".join(f"w{number} O\nw{number + 1} B-X\n\n" for number in range(16)))


def runs_of(folder) -> dict[str, dict]:
    """Run -> flags of its training, which ends with the best model's predictions."""
    train = {
        "max_seq_length": 16, "train_batch_size": 8, "num_train_epochs": 1, "write_tf_records": False, "seed": 1,
        "keep_checkpoint_max": 1, "do_train": True, "do_eval": True, "do_predict": True, "use_best_model": True,
    }  # fmt: skip
    bert = {"init_checkpoint": folder / "encoder"}
    custom = {"task_name": "custom", "text_a": "text", "label": "label"}
    files = {
        name: {f"{part}_file": folder / name for part in ("train", "dev", "test")}
        for name in ("labels.tsv", "tags.conll")
    }
    return {
        "lstm": {**train, **bert, **custom, **files["labels.tsv"], "lstm_on_top": True},
        "cnn": {**train, **custom, **files["labels.tsv"], "model": "cnn", "embedding_size": 8, "hidden_size": 9,
                "vocab_file": folder / "vocab.txt"},
        "tags": {**train, **bert, **files["tags.conll"]},
    }  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder with new/ and old/, outcomes, and what was logged."""
    folder = tmp_path_factory.mktemp("old_directories")
    write_data(folder)
    runs, outcomes, logs = runs_of(folder), {}, {}

    def run(cases: dict[str, dict]) -> None:
        for script in ("run_classifier", "run_ner"):
            chosen = {key: flags for key, flags in cases.items() if ("tags" in key) == (script == "run_ner")}
            done = run_cases(script, chosen)
            outcomes.update(done[0])
            logs.update(done[1])

    run({f"new/{name}": {**flags, "output_dir": folder / "new" / name} for name, flags in runs.items()})
    shutil.copytree(folder / "new", folder / "old")
    cases = {}
    for name, flags in runs.items():
        old = folder / "old" / name
        make_old(old, **OLD_KEYS[name])
        make_old(old / "best_model", **OLD_KEYS[name])
        # Labels and the kind of head come from the directory.
        kept = ("max_seq_length", "task_name", "text_a", "label", "test_file", "do_predict")
        predict = {key: flags[key] for key in kept if key in flags}
        predicted = folder / "predicted" / name
        cases[f"{name} predicted"] = {**predict, "init_checkpoint": old / "best_model", "output_dir": predicted}
    without = {key: value for key, value in runs["lstm"].items() if key != "lstm_on_top"}
    cases["other labels"] = {**runs["lstm"], "labels": "up,down", "output_dir": folder / "old" / "lstm"}
    cases["no lstm"] = {**without, "output_dir": folder / "old" / "lstm"}
    longer = {"num_train_epochs": 2, "do_predict": False}
    cases |= {f"{key} resumed": {**runs[key], **longer, "output_dir": folder / "old" / key} for key in runs}
    cases["lstm resumed today"] = {**runs["lstm"], **longer, "output_dir": folder / "new" / "lstm"}
    run(cases)
    return folder, outcomes, logs


@pytest.mark.parametrize("name", OLD_KEYS)
def test_they_predict_and_resume_as_runs_of_today(ran, name):
    folder, outcomes, logs = ran
    assert {outcomes[case] for case in (f"new/{name}", f"{name} predicted", f"{name} resumed")} == {"done"}
    predictions = [(folder / path / name / "predictions.jsonl").read_text() for path in ("new", "predicted")]
    assert predictions[0] == predictions[1] and predictions[0].count("\n") == 16
    assert "Resuming at step 2 from" in logs[f"{name} resumed"]
    assert int(open_weights.open_weights(str(folder / "old" / name))["global_step"]) == 4
    # A resumed run writes a current directory.
    for file in ("bert_config.json", "head_config.json"):
        assert (folder / "old" / name / file).read_bytes() == (folder / "new" / name / file).read_bytes()
    for path in (folder / "new" / name, folder / "new" / name / "best_model"):
        assert not json.loads((path / "bert_config.json").read_text()).keys() - TINY_CONFIG.keys()
        assert HeadConfig.read(str(path / "head_config.json")).labels


def test_the_resumed_run_takes_the_same_steps(ran):
    one, other = (open_weights.open_weights(str(ran[0] / age / "lstm")) for age in ("new", "old"))
    assert ran[1]["lstm resumed today"] == "done" and any("bilstm" in name for name in one)
    for variable in one:
        np.testing.assert_array_equal(one[variable], other[variable], err_msg=variable)


def test_another_models_run_is_refused(ran):
    _, outcomes, _ = ran
    assert "labels: ['down', 'up'] there, ['up', 'down'] now" in outcomes["other labels"]
    assert "holds a run of another configuration (lstm_on_top: True there, None now)" in outcomes["no lstm"]


def test_a_classifier_without_bert_is_known(ran, tmp_path):
    shutil.copytree(ran[0] / "new" / "cnn" / "best_model", tmp_path / "old")
    make_old(tmp_path / "old", **OLD_KEYS["cnn"])
    with pytest.raises(ValueError, match="is a CnnClassifier, a model without BERT"):
        Predictor(str(tmp_path / "old"))
