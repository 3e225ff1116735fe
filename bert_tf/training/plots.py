"""Plots of a training run (from train_log.jsonl) and of predictions.

Each returns a matplotlib Figure, which a notebook shows (after `%matplotlib inline`), and writes a PNG if asked to.
Names in a script for which no font is installed are numbers there; a confusion matrix is then also written as SVG, with
the names as text, for which a browser has fonts.
They use Figure directly, not pyplot, which would need a window system and affect a notebook's own figures.
"""

import contextlib
import io
import json
import posixpath
import warnings
from collections.abc import Iterator, Mapping, Sequence

from absl import logging

from bert_tf.system.checks import missing_packages
from bert_tf.system.storage import write_file
from bert_tf.system.text_files import read_bytes

# Pre-training: the title of each panel, and the value it shows.
_PRETRAINING_PANELS = {
    "Masked LM loss (nats)": "masked_lm_loss",
    "Masked LM accuracy": "masked_lm_accuracy",
    "Next token loss (nats)": "next_token_loss",
    "Next token accuracy": "next_token_accuracy",
    "Next sentence accuracy": "next_sentence_accuracy",
    "Sentence order accuracy": "sentence_order_accuracy",
    "Replaced tokens: loss (nats)": "disc_loss",
    "Replaced tokens that are found": "disc_recall",
    "Divergence from the teacher (nats)": "divergence",
}
_KINDS = {"train": "training", "eval": "evaluation"}  # the legend's names for the two kinds of record


def _can_draw(function: str) -> bool:
    if missing := missing_packages("plots"):
        logging.warning("%s draws nothing: pip install 'bert-tf[plots]'", function)
    return not missing


@contextlib.contextmanager
def _drawn(path: str | None, width: float, height: float, fonts: Sequence[str] = ()) -> Iterator:
    """A Figure of some inches to draw into, which is laid out at the end and written if there is a path: as SVG, if it
    says so, or else as PNG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Otherwise matplotlib takes text between two dollar signs for a formula.
    settings = {"text.parse_math": False, "svg.fonttype": "none", **({"font.family": fonts} if fonts else {})}
    with rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from|Matplotlib currently does not support")
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        if path is None:
            figure.draw_without_rendering()  # fixes the fonts and settings of texts now, not when the figure is shown
            return
        content = io.BytesIO()
        figure.savefig(content, format="svg" if path.endswith(".svg") else "png", dpi=120)
    write_file(path, content.getvalue())


# Common system fonts with Chinese, Japanese and Korean characters.
_CJK_FONTS = (
    "Noto Sans CJK", "Noto Sans KR", "Noto Sans JP", "Noto Sans SC", "NanumGothic", "UnDotum", "Malgun Gothic",
    "AppleGothic", "Apple SD Gothic Neo", "Hiragino Sans", "Yu Gothic", "PingFang SC", "Microsoft YaHei", "SimHei",
    "WenQuanYi", "IPAexGothic", "TakaoGothic", "Droid Sans Fallback", "Arial Unicode MS",
)  # fmt: skip


def _fonts_for(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Fonts for the names, and the names; their numbers instead if no installed font has all the characters."""
    from matplotlib import font_manager, ft2font

    wanted = {ord(char) for name in names for char in name}
    files, others = {"DejaVu Sans": font_manager.findfont("DejaVu Sans")}, font_manager.fontManager.ttflist
    files |= {entry.name: entry.fname for entry in others if entry.name.startswith(_CJK_FONTS)}
    fonts: list[str] = []
    for font, file in files.items():
        wanted -= set(ft2font.FT2Font(file).get_charmap())
        fonts.append(font)
        if not wanted:
            return fonts, list(names)
    logging.warning(
        "No installed font has all characters of the names: the plot shows their numbers (%s). Install a font such as "
        "Noto Sans CJK.",
        ", ".join(f"{number}: {name}" for number, name in enumerate(names)),
    )
    return fonts[:1], [str(number) for number in range(len(names))]


# --- training ---------------------------------------------------------------------------------------------------------


def read_training_log(train_log: str) -> dict[str, list[dict]]:
    """The records of a train_log.jsonl by kind ("train", "eval"), in the order of their steps.

    Of a step that a resumed run repeated, the later record counts. An incomplete last line is ignored.
    """
    *lines, _ = read_bytes(train_log).split(b"\n")
    records: dict[str, dict[int, dict]] = {kind: {} for kind in _KINDS}
    for record in map(json.loads, filter(bytes.strip, lines)):
        records.setdefault(record["kind"], {})[record["step"]] = record
    return {kind: [by_step[step] for step in sorted(by_step)] for kind, by_step in records.items()}


def plot_training_log(
    train_log: str,
    png: str | None,
    baselines: Mapping[str, tuple[str, float]] | None = None,
    *,
    title: str | None = None,
):
    """Draws loss and metrics over the steps, of training and evaluation.

        plot_training_log("runs/pretraining/train_log.jsonl", "loss.png")

    Pre-training has panels for the losses and accuracies of its objectives, fine-tuning for the loss and the first two
    metrics of its evaluations.

    Args:
      train_log: the file that a training script writes into its output_dir.
      png: the file to write; None for none.
      baselines: for comparison, name of a value -> (label, value), drawn as a dotted line; e.g.
        {"masked_lm_loss": ("unigram", 6.5)}.
      title: above all panels.

    Returns:
      The matplotlib Figure.

    Raises:
      ValueError: the log has nothing to draw. KeyError, json.JSONDecodeError: it is not a training log.
    """
    if not _can_draw("plot_training_log"):
        return None
    records = read_training_log(train_log)
    panels = _panels(records)
    if not panels:
        raise ValueError(f"{train_log} has no step to draw.")
    with _drawn(png, 4.6 * len(panels), 3.8) as figure:
        if title:
            figure.suptitle(title)
        for axes, (name, values) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            for kind, label in _KINDS.items():
                points = [(record["step"], record[values[kind]]) for record in records[kind] if values[kind] in record]
                if points:
                    marker = "o" if kind == "eval" or len(points) == 1 else None
                    axes.plot(*zip(*points, strict=True), label=label, marker=marker, markersize=4)
            axes.set_xlabel("step")
            axes.grid(alpha=0.3)
            if baselines and values["train"] in baselines:
                label, value = baselines[values["train"]]
                axes.axhline(value, label=label, color="gray", linestyle=":")
            axes.set_title(name)
            axes.legend()
    return figure


def _panels(records: dict[str, list[dict]]) -> dict[str, dict[str, str]]:
    recorded = {name for kind in _KINDS for record in records[kind] for name in record}
    panels = {title: dict.fromkeys(_KINDS, name) for title, name in _PRETRAINING_PANELS.items() if name in recorded}
    if panels or "loss" not in recorded:
        return panels
    # An evaluation's "loss" is the mean over batches, as in the original; eval_loss is the mean over examples.
    panels = {"Loss": {"train": "loss", "eval": "eval_loss" if "eval_loss" in recorded else "loss"}}
    shown = [name for record in records["eval"][:1] for name in record]
    metrics = [name for name in shown if name not in ("kind", "step", "time", "global_step", "loss", "eval_loss")]
    for name in metrics[:2]:
        panels[name.removeprefix("eval_")] = {"train": name.removeprefix("eval_"), "eval": name}
    return panels


# --- predictions ------------------------------------------------------------------------------------------------------


def plot_confusion_matrix(
    labels, predictions, names: Sequence[str], png: str | None = None, *, title: str | None = None
):
    """Draws a confusion matrix: how often each class was predicted for each true class.

    If no installed font has all characters of the names, the PNG shows their numbers, and a file of the same name that
    ends in .svg shows the names, in the fonts of the browser that opens it.

    Args:
      labels, predictions: class indices [n]. names: of the classes. png: the file to write; None for none.
      title: e.g. "mrpc, dev set, step 343: accuracy 0.863".
    """
    if not _can_draw("plot_confusion_matrix"):
        return None
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    matrix = confusion_matrix(labels, predictions, labels=list(range(len(names))))
    side, rotation = min(20.0, 3.0 + 0.6 * len(names)), "horizontal" if len(names) <= 4 else "vertical"
    fonts, shown = _fonts_for(names)
    pictures = [(png, shown)]
    if png and shown != list(names):
        svg = posixpath.splitext(png)[0] + ".svg"
        logging.info("%s shows the names, in the fonts of the browser that opens it.", svg)
        pictures.insert(0, (svg, names))
    for path, ticks in pictures:
        with _drawn(path, side, side, fonts) as figure:
            display = ConfusionMatrixDisplay(matrix, display_labels=ticks)
            display.plot(
                ax=figure.subplots(), colorbar=False, cmap="Blues", xticks_rotation=rotation, values_format="d"
            )
            display.ax_.set_title(title or "", wrap=True)
            if ticks is shown and len(pictures) > 1:
                display.ax_.set_xlabel(f"Predicted label ({posixpath.basename(svg)} has the names)")
    return figure
