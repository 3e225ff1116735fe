"""Draws the picture of README.md, docs/images/same_numbers_faster.svg, from the tables of docs/benchmarks.md.

    python benchmarks/picture.py

Left: held-out masked-LM loss of one pre-training run, the original's graph and bert_tf on the same text. Right: the
speed-up of bert_tf for each job over what it was compared with. Nothing is measured here.
"""

import pathlib
import re

import matplotlib
from matplotlib.figure import Figure

ROOT = pathlib.Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "same_numbers_faster.svg"
BLUE, GREY = "#1f77b4", "#8a8a8a"


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of all table rows below a heading of a page in Markdown, without bold type."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0].replace("**", "")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]


def cell(rows: list[list[str]], first: str, column: int) -> float:
    """The number at the start of a cell of the first row that begins with `first`."""
    row = next(row for row in rows if row[0].startswith(first))
    return float(re.match(r"[\d.,]+", row[column])[0].replace(",", ""))


def measurements(page: str) -> tuple[list[tuple[int, float, float]], dict[str, float]]:
    """(step, loss, the original's loss) of the pre-training run; and job -> times as fast.

    Args:
      page: the text of docs/benchmarks.md.
    """
    losses = [
        (int(row[0]), float(row[1]), float(row[2]))
        for row in rows_of(page, "Pre-training reaches what the original reaches")
        if row[0].isdigit()
    ]
    step, tuning = rows_of(page, "One training step"), rows_of(page, "Fine-tuning on MRPC and SST-2")
    squad, data = rows_of(page, "SQuAD"), rows_of(page, "Data creation and reading")
    features, serving = rows_of(page, "Features of words"), rows_of(page, "Serving")
    garden = next(row for row in step if row[1] == "tf-models-official")
    answered = [float(re.search(r"\((.*)x\)", row[3])[1]) for row in serving if row[0] == "bert_tf, bfloat16"]
    return losses, {
        "pre-training step\n(tf-models-official)": cell(step, "bfloat16", 3) / float(garden[3]),
        "questions served\n(transformers)": answered[1],
        "fine-tuning on SST-2\n(transformers)": cell(tuning, "SST-2", 1) / cell(tuning, "SST-2", 2),
        "fine-tuning on MRPC\n(transformers)": cell(tuning, "MRPC", 1) / cell(tuning, "MRPC", 2),
        "SQuAD prediction\n(transformers)": cell(squad, "transformers", 1) / cell(squad, "bert_tf", 1),
        "sentences served\n(transformers)": answered[0],
        "features of words\n(the original's procedure)": cell(features, "the original's way", 2)
        / cell(features, "extract_features.py", 2),
        "creating training data\n(the original's procedure)": cell(data, "S 128, P 20", 7),
    }


def draw(losses: list[tuple[int, float, float]], ratios: dict[str, float]) -> Figure:
    """The picture, from what `measurements` returns."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    steps, ours, original = zip(*losses, strict=True)
    left.plot(steps, original, "s-", color=GREY, label="the original's graph")
    left.plot(steps, ours, "o--", color=BLUE, label="bert_tf")
    left.set(title="Same numbers", xlabel="pre-training step", ylabel="held-out masked-LM loss", xticks=steps)
    left.margins(y=0.4)
    left.legend(frameon=False)
    bars = right.barh(list(ratios), list(ratios.values()), color=BLUE)
    right.bar_label(bars, [f"{ratio:.2f}x" if ratio < 5 else f"{ratio:.3g}x" for ratio in ratios.values()], padding=3)
    right.set(title="Faster", xlabel="times as fast (2 CPU cores)", xscale="log", xlim=(1, 60))
    right.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    right.minorticks_off()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "bert-tf", "svg.fonttype": "path"})  # the same file each time
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    PICTURE.parent.mkdir(exist_ok=True)
    draw(*measurements(page)).savefig(PICTURE, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
