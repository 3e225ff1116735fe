"""The content of plots, read back from the figures; files are written completely or not at all."""

import json
import os
import xml.etree.ElementTree

import numpy as np
from matplotlib import font_manager

from bert_tf.training.plots import plot_confusion_matrix, plot_training_log, read_training_log

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
