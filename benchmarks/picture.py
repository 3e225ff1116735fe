"""Draws the picture of README.md, docs/images/same_numbers_faster.svg, from docs/measured/benchmarks.jsonl.

    python benchmarks/picture.py

Left: held-out masked-LM loss of one pre-training run, the original's graph and bert_tf on the same text. Right: the
speed-up of bert_tf for each job over what it was compared with. Nothing is measured here.
"""

import re
from collections.abc import Mapping

import matplotlib
from matplotlib.figure import Figure
from measured import RATIO, ROOT, Row, read_rows

PICTURE = ROOT / "docs" / "images" / "same_numbers_faster.svg"
BLUE, GREY = "#1f77b4", "#8a8a8a"


def measurements(rows: Mapping[tuple[str, str, str], Row]) -> tuple[list[tuple[int, float, float]], dict[str, float]]:
    """(step, loss, the original's loss) of the pre-training run; and job -> times as fast.

    Args:
      rows: what `read_rows` returns.
    """
    losses = [
        (int(row.title.split()[0]), float(row.figures["masked_lm_loss"]), float(row.figures["the original's"]))
        for (table, _, _), row in rows.items()
        if table == "losses"
    ]

    def ratio(table: str, title: str, column: str = RATIO) -> float:
        return float(re.search(r"[\d.]+", rows[table, title, "A"].figures[column])[0])

    return losses, {
        "pre-training step\n(tf-models-official)": ratio(
            "a pre-training step", "bert, 12 layers, H 768, S 128, P 20, batch 16, bfloat16"
        ),
        "questions served\n(transformers)": ratio("serving questions", "bfloat16"),
        "fine-tuning on SST-2\n(transformers)": ratio("fine-tuning", "SST-2, 1 epoch"),
        "fine-tuning on MRPC\n(transformers)": ratio("fine-tuning", "MRPC, 3 epochs"),
        "SQuAD prediction\n(transformers)": ratio("predicting SQuAD", "all of the file"),
        "sentences served\n(transformers)": ratio("serving sentences", "bfloat16"),
        "features of words\n(the original's procedure)": ratio(
            "features of words", "extract_features, json", "times as fast by CPU time"
        ),
        "creating training data\n(the original's procedure)": ratio("training records", "S 128, P 20"),
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
    PICTURE.parent.mkdir(exist_ok=True)
    draw(*measurements(read_rows("benchmarks"))).savefig(PICTURE, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
