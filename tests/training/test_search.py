"""--search: how a grid is written, what is refused, its table and files; and --class_weights."""

import json

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from bert_tf.families.recipe import SEARCHED, folder_of, grid_points
from bert_tf.tasks.classification.label_checks import class_weights
from bert_tf.tasks.outcome import Trial, best_of, table_text, write_search
from bert_tf.training import run_directory
from bert_tf.training.settings import FineTuningSettings


def test_the_papers_grid():
    combinations = grid_points("learning_rate=2e-5, 3e-5,5e-5; train_batch_size=16,32")
    pairs = [(rate, size) for rate in (2e-5, 3e-5, 5e-5) for size in (16, 32)]
    assert combinations == [{"learning_rate": rate, "train_batch_size": size} for rate, size in pairs]
    assert folder_of(combinations[1]) == "search-learning_rate=2e-05-train_batch_size=32"
    assert folder_of({"learning_rate": 1.2345678e-5}) == "search-learning_rate=1.2345678e-05"
    assert grid_points(None) == [{}] and set(SEARCHED) <= set(FineTuningSettings.__dataclass_fields__)


@pytest.mark.parametrize(("search", "message"), [
    ("max_seq_length=64,128", "--search: 'max_seq_length' can't be searched; learning_rate, train_batch"),
    ("learning_rate", "--search: could not convert string to float: ''"),
    ("learning_rate=1e-5,nan", "--search: --learning_rate=nan must be"),
    ("learning_rate=1e-5,2e-5;learning_rate=3e-5", "--search: learning_rate appears twice"),
    ("learning_rate=1e-5,2", "--search: --learning_rate=2 must be "),
])  # fmt: skip
def test_wrong_grids_are_refused(search, message):
    with pytest.raises(ValueError) as caught:
        FineTuningSettings(output_dir="out", do_train=True, search=search).check_flags()
    assert message in str(caught.value) and "\n" not in str(caught.value)


TRIED = [
    Trial({"learning_rate": 2e-5, "train_batch_size": 16}, {1: {"eval_f1": 0.5, "eval_loss": 1.0, "global_step": 9},
                                                            2: {"eval_f1": 0.9, "eval_loss": 3.0, "global_step": 9}}),
    Trial({"learning_rate": 2e-5, "train_batch_size": 8}, {1: {"eval_f1": 0.75, "eval_loss": 1.0, "global_step": 9},
                                                           2: {"eval_f1": 0.75, "eval_loss": 2.0, "global_step": 9}}),
]  # fmt: skip


def test_the_best_mean_is_kept_not_the_best_seed(tmp_path):
    for one in TRIED:
        folder = tmp_path / folder_of(one.values)
        (folder / "best_model" / "1_Pooling").mkdir(parents=True)
        (folder / "best_model" / "1_Pooling" / "config.json").write_text(json.dumps(one.values))
        (folder / "best_model" / "vocab.txt").write_text("")
        (folder / "eval_results.txt").write_text(folder.name)
    table = write_search(str(tmp_path), TRIED, "eval_f1")
    assert (tmp_path / "search.md").read_text() == table
    best = "search-learning_rate=2e-05-train_batch_size=8"
    assert (tmp_path / "eval_results.txt").read_text() == best
    assert json.loads((tmp_path / "best_model" / "1_Pooling" / "config.json").read_text())["train_batch_size"] == 8
    content = json.loads((tmp_path / "search.json").read_text())
    assert content["best"] == {"learning_rate": 2e-5, "train_batch_size": 8} and content["metric"] == "eval_f1"
    assert [one["folder"] for one in content["combinations"]] == [folder_of(one.values) for one in TRIED]
    assert content["combinations"][0]["summary"]["eval_f1"]["mean"] == pytest.approx(0.7)
    assert content["combinations"][0]["seeds"]["2"]["eval_f1"] == 0.9


def test_nothing_behind_a_link_is_removed(tmp_path):
    """A link in the place of a folder that runs write leads to what may be someone else's."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "vocab.txt").write_text("precious")
    (tmp_path / "victim" / ".vocab.txt.0123456789ab.tmp").write_text("precious")
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.json").write_text("{}")
    for name in ("best_model", "eval", "seed-7"):
        (out / name).symlink_to(tmp_path / "victim")
    run_directory.remove_leftovers(str(out), 1)
    source = out / folder_of(TRIED[0].values)
    (source / "best_model").mkdir(parents=True)
    (source / "best_model" / "vocab.txt").write_text("new")
    write_search(str(out), TRIED[:1], "eval_f1")
    assert (out / "best_model" / "vocab.txt").read_text() == "new" and not (out / "best_model").is_symlink()
    assert sorted(path.read_text() for path in (tmp_path / "victim").iterdir()) == ["precious"] * 2


def test_the_table_can_be_read_on_a_console():
    lines = table_text(TRIED, "eval_f1").splitlines()
    assert lines[0] == "| learning_rate | train_batch_size | eval_f1 |    std |    min |    max | eval_loss |"
    assert lines[3] == "|         2e-05 |                8 |  0.7500 | 0.0000 | 0.7500 | 0.7500 |    1.5000 |"
    assert {len(line) for line in lines[:4]} == {len(lines[0])}
    end = "The best by eval_f1, the mean of 2 seeds, is learning_rate=2e-05, train_batch_size=8."
    assert lines[4:] == ["", end]
    alone = table_text([Trial(one.values, {1: one.results[1]}) for one in TRIED], "eval_f1")
    assert "std" not in alone and " seeds" not in alone and "One seed each: what differs little" in alone
    assert best_of([TRIED[0], TRIED[0]], "eval_f1") is TRIED[0]


LABELS = ["긍정", "부정", "b=c"]


def test_balanced_as_in_scikit_learn_where_a_class_that_never_occurs_is_said(caplog):
    ids = np.array([0] * 7 + [1] * 2 + [2])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=ids)
    np.testing.assert_allclose(class_weights("balanced", LABELS, ids), expected)
    with caplog.at_level("INFO", logger="absl"):
        found = class_weights("balanced", LABELS, np.array([0, 0, 0, 1]))
    assert found == pytest.approx([4 / (2 * 3), 2.0, 1.0])
    assert "occur nowhere in the training data and have weight 1: b=c" in caplog.text


def test_weights_by_name(caplog):
    with caplog.at_level("INFO", logger="absl"):
        assert class_weights("부정=2.5, b=c=0.5", LABELS, np.array([0])) == [1.0, 2.5, 0.5]
    assert "are not named and have weight 1: 긍정" in caplog.text and "긍정 1, 부정 2.5, b=c 0.5" in caplog.text


@pytest.mark.parametrize("text, message", [
    ("good=1", "no such label: good. The labels are 긍정, 부정, b=c"),
    *((text, f"{text}: .* is not LABEL=WEIGHT with a label of its own and a positive number; or give balanced")
      for text in ("긍정", "긍정=x", "긍정=nan", "긍정=0", "긍정=1,긍정=2")),
])  # fmt: skip
def test_class_weights_that_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        class_weights(text, LABELS, np.array([0]))
