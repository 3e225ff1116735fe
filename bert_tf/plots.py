"""Plots of a training run, drawn from the train_log.jsonl that it writes."""

import io
import json
import posixpath
from collections.abc import Mapping

import tensorflow as tf
from absl import logging

# Title of each panel, the value it shows, and how the two kinds of record are called in the legend.
_PANELS = (
    ("Masked LM loss (nats)", "masked_lm_loss"),
    ("Masked LM accuracy", "masked_lm_accuracy"),
    ("Next sentence accuracy", "next_sentence_accuracy"),
)
_KINDS = {"train": "training", "eval": "held-out"}


def read_training_log(train_log: str) -> dict[str, list[dict]]:
    """The records of a train_log.jsonl by kind ("train", "eval"), in the order of their steps.

    A run that was killed and went on has some steps twice; the later record counts. A last line that was cut off in
    the middle is left out.

    Raises:
      ValueError: another line is no record; names file and line.
    """
    with tf.io.gfile.GFile(train_log, "rb") as file:
        *lines, end = file.read().split(b"\n")
    records: dict[str, dict[int, dict]] = {kind: {} for kind in _KINDS}
    for number, line in enumerate([*lines, end], start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            kind, step = record["kind"], int(record["step"])
        except (ValueError, KeyError, TypeError) as error:
            if number > len(lines):
                break
            raise ValueError(f"{train_log}, line {number}: not a record of a training run ({error!r})") from error
        records.setdefault(kind, {})[step] = record
    return {kind: [by_step[step] for step in sorted(by_step)] for kind, by_step in records.items()}


def plot_training_log(train_log: str, png: str, baselines: Mapping[str, tuple[str, float]] | None = None) -> None:
    """Draws loss and accuracies over the steps, of training and held-out data, as a PNG.

        plot_training_log("runs/pretraining/train_log.jsonl", "loss.png")

    Args:
      train_log: what run_pretraining.py writes into its output_dir.
      png: the picture to write.
      baselines: for comparison, name of a value -> (label, value), drawn as a dotted line; e.g.
        {"masked_lm_loss": ("unigram", 6.5)}.

    Raises:
      ValueError: the log has nothing to draw, or is no such log; names file and line.
    """
    # Figure itself, not pyplot: no window system is asked for, and a notebook's own figures stay as they are.
    from matplotlib.figure import Figure

    records = read_training_log(train_log)
    panels = [panel for panel in _PANELS if any(panel[1] in record for kind in _KINDS for record in records[kind])]
    if not panels:
        raise ValueError(f"{train_log} has no step to draw.")
    figure = Figure(figsize=(4.6 * len(panels), 3.8), layout="constrained")
    for axes, (title, name) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for kind, label in _KINDS.items():
            points = [(record["step"], record[name]) for record in records[kind] if name in record]
            if points:
                marker = "o" if kind == "eval" or len(points) == 1 else None
                axes.plot(*zip(*points, strict=True), label=label, marker=marker, markersize=4)
        if baselines and name in baselines:
            label, value = baselines[name]
            axes.axhline(value, label=label, color="gray", linestyle=":")
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        axes.legend()
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    _write_bytes(png, content.getvalue())


def _write_bytes(path: str, content: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}.tmp")
    try:
        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(content)
        tf.io.gfile.rename(temporary, path, overwrite=True)
    except BaseException:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)
        raise


# Fonts with Chinese, Japanese and Korean letters, as systems have them.
_CJK_FONTS = (
    "Noto Sans CJK", "Noto Sans KR", "Noto Sans JP", "Noto Sans SC", "NanumGothic", "UnDotum", "Malgun Gothic",
    "AppleGothic", "Apple SD Gothic Neo", "Hiragino Sans", "Yu Gothic", "PingFang SC", "Microsoft YaHei", "SimHei",
    "WenQuanYi", "IPAexGothic", "TakaoGothic", "Droid Sans Fallback", "Arial Unicode MS",
)  # fmt: skip


def _fonts_for(names: list[str]) -> tuple[list[str], list[str]]:
    """Fonts to write names in, and the names; numbers instead of them if no font here has their letters."""
    from matplotlib import font_manager, ft2font

    wanted = {ord(char) for name in names for char in name}
    fonts = ["DejaVu Sans"]
    known = set(ft2font.FT2Font(font_manager.findfont(fonts[0])).get_charmap())
    for entry in font_manager.fontManager.ttflist:
        if wanted <= known:
            break
        if entry.name.startswith(_CJK_FONTS) and entry.name not in fonts:
            fonts.append(entry.name)
            known |= set(ft2font.FT2Font(entry.fname).get_charmap())
    if wanted <= known:
        return fonts, names
    logging.warning(
        "No font here has all letters of the classes' names: the picture shows their numbers (%s). Install Noto Sans "
        "CJK, for example.",
        ", ".join(f"{number}: {name}" for number, name in enumerate(names)),
    )
    return fonts[:1], [str(number) for number in range(len(names))]


def plot_confusion_matrix(labels, predictions, names: list[str], png: str) -> None:
    """Draws how often each class was taken for each, as a PNG.

    Args:
      labels, predictions: numbers of classes [n]. names: of the classes. png: the picture to write.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    fonts, names = _fonts_for(names)
    matrix = confusion_matrix(labels, predictions, labels=list(range(len(names))))
    side = min(20.0, 3.0 + 0.6 * len(names))
    rotation = "horizontal" if len(names) <= 4 else "vertical"
    content = io.BytesIO()
    with rc_context({"font.family": fonts}):
        figure = Figure(figsize=(side, side), layout="constrained")
        display = ConfusionMatrixDisplay(matrix, display_labels=names)
        display.plot(ax=figure.subplots(), colorbar=False, cmap="Blues", xticks_rotation=rotation, values_format="d")
        figure.savefig(content, format="png", dpi=120)
    _write_bytes(png, content.getvalue())
