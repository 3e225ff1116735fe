"""What came of run_domain.py: domain.json (see `recipe.adapt`), domain.md, and the lines at its end."""

import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence

from bert_tf.system.storage import write_text_file

_WORDS_SHOWN = 20
_TEXTS = {"heldout": "the domain", "other": "the other text"}
_STARTS = {"released": "the released weights", "domain": "the domain's model"}


def write(output_dir: str, content: dict) -> None:
    """Writes domain.json and domain.md."""
    write_text_file(posixpath.join(output_dir, "domain.json"), json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_text_file(posixpath.join(output_dir, "domain.md"), create_page(content))


def create_page(content: dict) -> str:
    """domain.json as Markdown."""
    training = content["training"]
    passes = training["steps"] * training["train_batch_size"] / training["records"]
    counts = content["texts"].items()
    lines = [
        "# A domain's model\n",
        f"From `{content['init_checkpoint']}`, trained for {training['steps']:,} steps of "
        f"{training['train_batch_size']} rows ({passes:.2g} passes over {training['records']:,} records), with a "
        f"learning rate of {training['learning_rate']:g}.\n",
        *_table(
            ["text", "documents", "sentences", "MB"],
            ([name, f"{of['documents']:,}", f"{of['sentences']:,}", f"{of['bytes'] / 1e6:.2f}"] for name, of in counts),
        ),
        *_words(content["new_words"], content["pieces_per_word"]),
        *_losses(content["losses"], content["notes"]),
        *(_fine_tuning(content["fine_tuning"]) if content["fine_tuning"] else ()),
        *_places(content["model"], bool(content["new_words"])),
    ]
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["".join(f" {cell} |" if cell else " |" for cell in cells) for cells in (header, *rows)]
    return [f"|{lines[0]}", f"|{'---|' * len(header)}", *(f"|{line}" for line in lines[1:])]


def _heading(title: str) -> str:
    return f"\n{'#' * 2} {title}"


def _metrics(results: Mapping[str, object]) -> list[str]:
    """The names of the results that are shown."""
    return [name for name in results if name not in ("global_step", "loss", "eval_loss")]


def _words(words: Sequence[Mapping], pieces: Mapping[str, float]) -> list[str]:
    if not words:
        return [_heading("New words"), "None."]
    rows = ([new["word"], f"{new['count']:,}", " ".join(new["pieces"])] for new in words[:_WORDS_SHOWN])
    return [
        _heading("New words"),
        f"{len(words)} words that were cut into several pieces now are one each: {pieces['after']:.3f} pieces per "
        f"word of the training text instead of {pieces['before']:.3f}. The first, by what they save:\n",
        *_table(["word", "times", "was"], rows),
    ]


def _losses(losses: Mapping[str, Mapping[str, Mapping]], notes: Sequence[str]) -> list[str]:
    has_before, columns = "before" in losses["heldout"], [one for found in losses.values() for one in found.values()]
    header = [
        when if number else f"{_TEXTS[name]}, {when}"
        for name, found in losses.items()
        for number, when in enumerate(found)
    ]
    rows = ([name, *(f"{scores[name]:.3f}" for scores in columns)] for name in _metrics(losses["heldout"]["after"]))
    lines = [
        _heading(f"{'Before and after' if has_before else 'After'}, on text that it was not trained on"),
        *_table(["", *header], rows),
        "\n![Losses](pretrained/loss.png)\n",
    ]
    if has_before:
        lines.append(
            "Both models have the same vocabulary, new words included, so their losses can be compared. Those of a "
            "model with another vocabulary can't: it predicts other tokens."
        )
    forgotten = "An increase of the losses of the other text measures what was forgotten."
    return [*lines, *notes, *([forgotten] if "other" in losses and has_before else ())]


def _fine_tuning(scores: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    metrics = _metrics(scores["released"])
    count = len(scores["released"][metrics[0]])
    return [
        _heading("Fine-tuning, from both starts"),
        *_table(
            ["", *metrics], ([_STARTS[start], *(_spread(of[name]) for name in metrics)] for start, of in scores.items())
        ),
        f"\nMean over {count} seeds, lowest to highest: what differs less may be chance."
        if count > 1
        else "\nOne seed: what differs little may be chance.",
    ]


def _spread(values: Sequence[float]) -> str:
    mean = f"{sum(values) / len(values):.4f}"
    return f"{mean} ({min(values):.4f} to {max(values):.4f})" if len(values) > 1 else mean


def _places(model: str, has_words: bool) -> list[str]:
    words = ["- `words.txt`: the new words"]
    return [
        _heading("What lies where"),
        f"- `{model}`: the model, with its vocabulary",
        f"- `start/`: the released weights{', and rows for new words' if has_words else ''}; `start.txt`: each row",
        *(words if has_words else ()),
        "- `text/`, `records/`: the texts as sentences in documents, and their records",
        "- `evaluation/`, and of a task `fine_tuning/`: results of each model",
        "- `results/`: settings and results of each step",
        f"\nTo use it: `python run_classifier.py --init_checkpoint={model} ...`, or any other script that takes "
        f'`--init_checkpoint`; in Python `from_pretrained("{model}")`.',
    ]


def closing_lines(output_dir: str, content: dict) -> str:
    """What the script prints at its end."""
    lines = []
    for name, found in content["losses"].items():
        for metric in _metrics(found["after"]):
            values = " -> ".join(f"{scores[metric]:.3f}" for scores in found.values())
            lines.append(f"{_TEXTS[name]}, {metric}: {values}")
    for start, scores in content["fine_tuning"].items():
        shown = ", ".join(f"{metric} {_spread(scores[metric])}" for metric in _metrics(scores))
        lines.append(f"fine-tuned from {start}: {shown}")
    lines += [
        *content["notes"],
        f"Report: {posixpath.join(output_dir, 'domain.md')}, with domain.json.",
        f"Model: {content['model']}. To use it:",
        f"  python run_classifier.py --init_checkpoint={content['model']} --task_name=... --do_train --output_dir=...",
    ]
    return "\n".join(lines)
