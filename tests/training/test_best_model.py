"""The best model of a run, when to stop, the state after a kill at any moment; --search, --class_weights and plots."""

import json
import os
import xml.etree.ElementTree

import numpy as np
import pytest
from helpers.tiny import TINY_CONFIG
from matplotlib import font_manager
from sklearn.utils.class_weight import compute_class_weight

from bert_tf import BertConfig, BertForSequenceClassification
from bert_tf.families.recipe import SEARCHED, folder_of, grid_points
from bert_tf.store import save
from bert_tf.store.description import ModelFiles
from bert_tf.tasks.classification.settings import class_weights
from bert_tf.tasks.outcome import Trial, best_of, table_text, write_search
from bert_tf.text.tokenizer_files import Casing
from bert_tf.training import fine_tuning, run_directory
from bert_tf.training.fine_tuning import BestModel
from bert_tf.training.plots import plot_confusion_matrix, plot_training_log, read_training_log
from bert_tf.training.settings import FineTuningSettings


@pytest.fixture(scope="module")
def model():
    model = BertForSequenceClassification(BertConfig.from_dict(TINY_CONFIG), num_labels=2)
    model.build()
    return model


@pytest.fixture
def make(model, tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"t{number}\n" for number in range(100)))
    files = ModelFiles("", model.config, None, str(vocab), Casing(True), max_seq_length=17)
    (tmp_path / "run").mkdir()

    def make(step=0, **options) -> BestModel:
        return BestModel(str(tmp_path / "run"), files, "eval_f1", step, **options)

    return make


def evaluate(keeper, model, *evaluations) -> None:
    for step, f1 in evaluations:
        model.head.output_bias.assign([float(step), 0.0])  # so that the saved weights say their step
        keeper.update(step, {"eval_f1": f1, "eval_loss": -f1}, model, {})


def saved_step(run) -> tuple:
    """The step according to the saved weights, and to the saved results."""
    directory = run / "best_model"
    weights = BertForSequenceClassification.from_pretrained(str(directory)).head.output_bias.numpy()[0]
    return int(weights), json.loads((directory / "eval_results.json").read_text())["step"]


def test_the_first_of_equals_is_kept_and_describes_itself(make, model, tmp_path):
    keeper = make()
    assert keeper.best is None and not keeper.should_stop()
    evaluate(keeper, model, (10, 0.5), (20, 0.8), (30, 0.8), (40, 0.7))
    assert keeper.best == {"step": 20, "eval_f1": 0.8, "eval_loss": -0.8}
    assert saved_step(tmp_path / "run") == (20, 20)
    names = {path.name for path in (tmp_path / "run" / "best_model").iterdir()}
    described = {"bert_config.json", "vocab.txt", "tokenizer_config.json", "eval_results.json", "README.md"}
    assert described < names and len(names) == 6
    tokenizer = json.loads((tmp_path / "run" / "best_model" / "tokenizer_config.json").read_text())
    assert tokenizer["model_max_length"] == 17 and tokenizer["do_lower_case"] is True
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 30, 40]
    assert not [path for path in (tmp_path / "run").iterdir() if path.name not in ("best_model", "evaluations.jsonl")]


def test_patience_counts_evaluations_since_the_best(make, model):
    keeper = make(patience=2)
    told = []
    for evaluation in ((1, 0.5), (2, 0.4), (3, 0.6), (4, 0.6), (5, 0.1)):
        evaluate(keeper, model, evaluation)
        told.append(keeper.should_stop())
    assert told == [False, False, False, False, True]
    assert make(5, patience=2).should_stop()  # a restarted run stays stopped
    assert not make(5, patience=3).should_stop() and not make(5).should_stop()
    assert not make(4, patience=2).should_stop()  # step 5 must be repeated


def test_workers_that_write_nothing_decide_alike(make, model, tmp_path):
    keeper = make(active=False, patience=1)
    evaluate(keeper, model, (1, 0.5), (2, 0.4))
    assert keeper.should_stop() and keeper.best["step"] == 1 and not list((tmp_path / "run").iterdir())


def test_after_a_kill_the_model_that_lies_there_stays_the_best_until_another_is_better(make, model, tmp_path):
    keeper = make()
    evaluate(keeper, model, (10, 0.5), (20, 0.8), (30, 0.7))
    again = make(15)  # the newest checkpoint was older than the best model
    assert [*again.evaluations] == [10] and again.best["step"] == 20
    evaluate(again, model, (20, 0.6))  # without deterministic kernels the same step may come out worse
    assert again.best["step"] == 20 and again.best["eval_f1"] == 0.8
    assert saved_step(tmp_path / "run") == (20, 20)
    (tmp_path / "run" / "best_model" / "bert_model.safetensors").unlink()  # a kill may leave a mix of files
    evaluate(again, model, (20, 0.8))
    assert saved_step(tmp_path / "run") == (20, 20)
    evaluate(again, model, (30, 0.81))
    assert again.best["step"] == 30 and saved_step(tmp_path / "run") == (30, 30)
    fresh = make(0)  # a run that starts anew
    assert fresh.best is None and not fresh.evaluations
    evaluate(fresh, model, (5, 0.1))
    assert saved_step(tmp_path / "run") == (5, 5)


@pytest.mark.parametrize("moment", ["before the weights", "after the weights", "before the list"])
def test_a_kill_while_the_best_model_is_written(make, model, tmp_path, monkeypatch, moment):
    """Weights and results always belong together, and the repeated evaluation ends as if undisturbed."""
    evaluate(make(), model, (10, 0.5))
    write_model, write_text_file = save.write_model, fine_tuning.write_text_file

    def write_model_or_die(*arguments, **options):
        if moment == "before the weights":
            raise KeyboardInterrupt
        write_model(*arguments, **options)

    def write_text_or_die(path, text):
        if moment == "after the weights" or path.endswith("evaluations.jsonl"):
            raise KeyboardInterrupt
        write_text_file(path, text)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(save, "write_model", write_model_or_die)
        patch.setattr(fine_tuning, "write_text_file", write_text_or_die)
        evaluate(make(10), model, (20, 0.8))
    again = make(15)
    if again.best:
        assert saved_step(tmp_path / "run") == (20, 20)
    evaluate(again, model, (20, 0.8), (30, 0.7))
    assert again.best["step"] == 20 and saved_step(tmp_path / "run") == (20, 20)
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 30]


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
    with run_directory.lock_output_dir(str(out), 1):
        pass
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


PNG_HEADER = b"\x89PNG\r\n\x1a\n"


def texts_of(labels) -> list[str]:
    return [label.get_text() for label in labels]


def test_names_for_which_no_font_is_installed_are_text_for_a_browser(tmp_path, monkeypatch, recwarn, capfd):
    names = ["ポジティブ", "中立", "부정", "a", "$x$"]
    default = [entry for entry in font_manager.fontManager.ttflist if entry.name.startswith("DejaVu")]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", default)
    labels = list(range(len(names)))
    figure = plot_confusion_matrix(labels, labels, names, str(tmp_path / "matrix.png"), title="개발 집합: 1.0")
    assert texts_of(figure.axes[0].get_xticklabels()) == list(map(str, labels))
    assert figure.axes[0].get_xlabel() == "Predicted label (matrix.svg has the names)"
    assert (tmp_path / "matrix.png").read_bytes().startswith(PNG_HEADER)
    root = xml.etree.ElementTree.fromstring((tmp_path / "matrix.svg").read_text(encoding="utf-8"))
    elements = list(root.iter("{http://www.w3.org/2000/svg}text"))
    width = float(root.get("viewBox").split()[2])
    assert all(0 < float(element.get("x", 1)) < width for element in elements)  # vertical ones have none
    texts = ["".join(element.itertext()) for element in elements]
    for name in names:  # on both axes
        assert texts.count(name) == 2
    assert "개발 집합: 1.0" in texts
    # Nor does a training log with such a title warn.
    write_log(tmp_path / "log.jsonl", [{"kind": "train", "step": 1, "loss": 1.0}])
    plot_training_log(str(tmp_path / "log.jsonl"), str(tmp_path / "loss.png"), title="실행/감성")
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]
    assert "Glyph" not in capfd.readouterr().err


def test_confusion_matrix(tmp_path):
    png = tmp_path / "confusion.png"
    labels, predictions, title = [0, 0, 1, 2, 2, 2], [0, 1, 1, 2, 2, 0], "task, dev set, step 7: accuracy 0.667 $1$"
    figure = plot_confusion_matrix(labels, predictions, ["no", "yes", "$x$"], str(png), title=title)
    (axes,) = figure.axes
    assert axes.get_title() == title
    np.testing.assert_array_equal(axes.get_images()[0].get_array(), [[1, 1, 0], [0, 1, 0], [1, 0, 2]])
    assert texts_of(axes.get_xticklabels()) == ["no", "yes", "$x$"]
    assert texts_of(axes.texts) == ["1", "1", "0", "0", "1", "0", "1", "0", "2"]
    assert not any(label.get_parse_math() for label in axes.get_yticklabels())
    assert png.read_bytes().startswith(PNG_HEADER)


def write_log(path, records, end=""):
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)
    return str(path)


def test_plot_training_log(tmp_path):
    records = [
        {"kind": "train", "step": 10, "masked_lm_loss": 9.0, "masked_lm_accuracy": 0.1},
        {"kind": "eval", "step": 10, "masked_lm_loss": 8.5},
        {"kind": "train", "step": 20, "masked_lm_loss": 7.5},
        {"kind": "train", "step": 20, "masked_lm_loss": 7.0},  # the run was killed, resumed, and repeated this step
    ]
    log = write_log(tmp_path / "log.jsonl", records, end='{"kind": "tr')
    read = read_training_log(log)
    assert [record["masked_lm_loss"] for record in read["train"]] == [9.0, 7.0]
    assert [record["step"] for record in read["eval"]] == [10]
    png = tmp_path / "curve.png"
    figure = plot_training_log(log, str(png), {"masked_lm_loss": ("guessing", 8.0)}, title="$5 of text")
    assert [axes.get_title() for axes in figure.axes] == ["Masked LM loss (nats)", "Masked LM accuracy"]
    assert figure.get_suptitle() == "$5 of text" and png.read_bytes().startswith(PNG_HEADER)
    assert sorted(os.listdir(tmp_path)) == ["curve.png", "log.jsonl"]


def test_plot_of_a_fine_tuning_log(tmp_path):
    """The training loss with that of the evaluations, and the first two metrics."""
    scores = {"eval_accuracy": 0.5, "eval_f1": 0.4, "eval_mcc": 0.1, "eval_loss": 0.9, "loss": 0.8, "time": 3.0}
    records = [
        {"kind": "train", "step": 1, "loss": 1.5, "accuracy": 0.2, "example_loss": 1.5, "learning_rate": 1e-5},
        {"kind": "eval", "step": 1, **scores},
        {"kind": "train", "step": 2, "loss": 1.0, "accuracy": 0.3},
        {"kind": "eval", "step": 2, **scores, "eval_loss": 0.7},
    ]
    figure = plot_training_log(write_log(tmp_path / "log.jsonl", records), None, title="mrpc")
    assert [axes.get_title() for axes in figure.axes] == ["Loss", "accuracy", "f1"]
    lines = [
        {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axes.get_lines()}
        for axes in figure.axes
    ]
    assert lines[0] == {"training": [(1, 1.5), (2, 1.0)], "evaluation": [(1, 0.9), (2, 0.7)]}
    assert lines[1] == {"training": [(1, 0.2), (2, 0.3)], "evaluation": [(1, 0.5), (2, 0.5)]}
    assert lines[2] == {"evaluation": [(1, 0.4), (2, 0.4)]}
