"""What came of run_domain.py: domain.json (see `recipe.adapt`) as Markdown."""

from collections.abc import Iterable, Mapping, Sequence

_WORDS_SHOWN = 20
_SECTION = "#" * 2  # which Markdown and word pieces have in common
_TEXTS = {"heldout": "the domain", "other": "the other text"}
_STARTS = {"released": "the released weights", "domain": "the domain's model"}


def create_page(content: dict) -> str:
    """domain.json as Markdown."""
    training, counts = content["training"], content["texts"].items()
    passes = training["steps"] * training["train_batch_size"] / training["records"]
    sizes = ([name, f"{of['documents']:,}", f"{of['sentences']:,}", f"{of['bytes'] / 1e6:.2f}"] for name, of in counts)
    lines = [
        "# A domain's model\n",
        f"From `{content['init_checkpoint']}`, trained for {training['steps']:,} steps of "
        f"{training['train_batch_size']} rows ({passes:.2g} passes over {training['records']:,} records), with a "
        f"learning rate of {training['learning_rate']:g}.\n",
        *_table(["text", "documents", "sentences", "MB"], sizes),
        f"\n{_SECTION} New words",
        *_words(content["new_words"], content["pieces_per_word"]),
        *_losses(content["losses"], content["notes"]),
    ]
    if scores := content["fine_tuning"]:
        metrics = _metrics(scores["released"])
        rows = ([_STARTS[start], *(_spread(of[name]) for name in metrics)] for start, of in scores.items())
        lines += [
            f"\n{_SECTION} Fine-tuning, from both starts",
            *_table(["", *metrics], rows),
            f"\nMean of {len(scores['released'][metrics[0]])} seeds, lowest to highest: what differs less may be "
            "chance.",
        ]
    lines.append(
        f"\nTo use it: `python run_classifier.py --init_checkpoint={content['model']} ...`, or any other script that "
        f'takes `--init_checkpoint`; in Python `from_pretrained("{content["model"]}")`.'
    )
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in (header, *rows)]
    return [lines[0], f"|{'---|' * len(header)}", *lines[1:]]


def _metrics(results: Mapping[str, object]) -> list[str]:
    """The names of the results that are shown."""
    return [name for name in results if name not in ("global_step", "loss", "eval_loss")]


def _words(words: Sequence[Mapping], pieces: Mapping[str, float]) -> list[str]:
    if not words:
        return ["None."]
    rows = ([new["word"], f"{new['count']:,}", " ".join(new["pieces"])] for new in words[:_WORDS_SHOWN])
    return [
        f"{len(words)} words that were cut into several pieces now are one each: {pieces['after']:.3f} pieces per "
        f"word of the training text instead of {pieces['before']:.3f}. The first, by what they save:\n",
        *_table(["word", "times", "was"], rows),
    ]


def _losses(losses: Mapping[str, Mapping[str, Mapping]], notes: Sequence[str]) -> list[str]:
    columns = {f"{_TEXTS[text]}, {when}": scores for text, of in losses.items() for when, scores in of.items()}
    names = _metrics(losses["heldout"]["after"])
    lines = [
        f"\n{_SECTION} Losses on text that it was not trained on",
        *_table(["", *columns], ([name, *(f"{of[name]:.3f}" for of in columns.values())] for name in names)),
        "\n![Losses](pretrained/loss.png)\n",
        *notes,
    ]
    if "before" in losses["heldout"]:
        lines.append(
            "Both models have the same vocabulary, new words included, so their losses can be compared. Those of a "
            "model with another vocabulary can't: it predicts other tokens."
        )
        if "other" in losses:
            lines.append("An increase of the losses of the other text measures what was forgotten.")
    return lines


def _spread(values: Sequence[float]) -> str:
    mean = f"{sum(values) / len(values):.4f}"
    return f"{mean} ({min(values):.4f} to {max(values):.4f})" if len(values) > 1 else mean
