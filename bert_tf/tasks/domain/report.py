"""What run_domain.py found: domain.json, domain.md and domain.png, and the lines that it ends with."""

import json
import posixpath
from collections.abc import Mapping, Sequence

from bert_tf.system.atomic import write_text_file
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.tasks.domain.texts import Vocabulary
from bert_tf.training import plots
from bert_tf.training.loop import LOG_FILE

_WORDS_SHOWN = 20
_TEXTS = {"heldout": "the domain", "other": "the other text"}
_NOT_SHOWN = ("global_step", "loss", "eval_loss")
# Of the results of an evaluation, the one that the picture shows: the first that is there.
_LOSSES = {"disc_loss": "Replaced tokens: loss (nats)", "masked_lm_loss": "Masked LM loss (nats)"}


def create_content(
    settings: DomainSettings,
    notes: Sequence[str],
    model: str,
    texts: Mapping[str, Mapping[str, int]],
    vocabulary: Vocabulary,
    rows: int,
    results: Mapping[str, Mapping],
) -> dict:
    """The content of domain.json.

    Args:
      notes: on the losses. model: the directory to use. rows: the number of records of the training text.
      results: name of a run -> `script_runs.result_of`.

    Returns:
      `init_checkpoint`, `model`, `notes`, `texts`; `new_words` with `word`, `count`, `pieces`; `pieces_per_word`
      `before` and `after`; `training` with `records`, `steps`, `train_batch_size`, `learning_rate`, `seconds` (of its
      last start); `losses`: text -> `before`, unless the weights lacked the head, and `after` -> results;
      `fine_tuning`: start -> metric -> a value for each seed, empty without a task.
    """
    training = results["pretraining"]
    return {
        "init_checkpoint": settings.init_checkpoint,
        "model": model,
        "notes": list(notes),
        "texts": dict(texts),
        "new_words": [{"word": new.word, "count": new.count, "pieces": list(new.pieces)} for new in vocabulary.words],
        "pieces_per_word": {"before": vocabulary.pieces_before, "after": vocabulary.pieces_after},
        "training": {
            "records": rows, "steps": training["results"]["steps"], "train_batch_size": settings.train_batch_size,
            "learning_rate": settings.learning_rate, "seconds": training["seconds"],
        },
        "losses": {
            name: {
                when: results[run]["results"]
                for when in ("before", "after") if (run := f"evaluation-{name}-{when}") in results
            }
            for name in _TEXTS if name in texts
        },
        "fine_tuning": {
            start: results[f"fine_tuning-{start}"]["results"]
            for start in ("released", "domain") if f"fine_tuning-{start}" in results
        },
    }  # fmt: skip


def write(output_dir: str, content: dict) -> None:
    """Writes domain.json, domain.md and domain.png."""
    write_text_file(posixpath.join(output_dir, "domain.json"), json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    name, title = next(
        (name, title) for name, title in _LOSSES.items() if name in content["losses"]["heldout"]["after"]
    )
    plots.plot_before_and_after(
        {
            _TEXTS[text]: {when: scores[name] for when, scores in found.items()}
            for text, found in content["losses"].items()
        },
        posixpath.join(output_dir, "pretrained", LOG_FILE),
        name,
        posixpath.join(output_dir, "domain.png"),
        title=title,
    )
    write_text_file(posixpath.join(output_dir, "domain.md"), create_page(content))


def create_page(content: dict) -> str:
    """domain.json as Markdown."""
    training, texts = content["training"], content["texts"]
    passes = training["steps"] * training["train_batch_size"] / training["records"]
    parts = [
        "# A domain's model\n",
        f"From `{content['init_checkpoint']}`, trained for {training['steps']:,} steps of "
        f"{training['train_batch_size']} rows ({passes:.2g} passes over {training['records']:,} records), with a "
        f"learning rate of {training['learning_rate']:g}.\n",
        "| text | documents | sentences | MB |\n|---|---|---|---|",
        *(
            f"| {name} | {counts['documents']:,} | {counts['sentences']:,} | {counts['bytes'] / 1e6:.2f} |"
            for name, counts in texts.items()
        ),
        _words_part(content),
        _losses_part(content),
        _fine_tuning_part(content["fine_tuning"]) if content["fine_tuning"] else "",
        f"{_heading('What lies where')}\n{_places(content)}",
    ]
    return "\n".join(filter(None, parts)) + "\n"


def _heading(title: str) -> str:
    return f"\n{'#' * 2} {title}"


def _words_part(content: dict) -> str:
    words, pieces = content["new_words"], content["pieces_per_word"]
    if not words:
        return f"{_heading('New words')}\nNone."
    rows = [f"| {new['word']} | {new['count']:,} | {' '.join(new['pieces'])} |" for new in words[:_WORDS_SHOWN]]
    return "\n".join(
        [
            _heading("New words"),
            f"{len(words)} words that were cut into several pieces now are one each: {pieces['after']:.3f} pieces per "
            f"word of the training text instead of {pieces['before']:.3f}. The first, by what they save:\n",
            "| word | times | was |\n|---|---|---|",
            *rows,
        ]
    )


def _losses_part(content: dict) -> str:
    losses = content["losses"]
    header = "".join(f" {_TEXTS[name]}, {' | '.join(found)} |" for name, found in losses.items())
    metrics = [name for name in losses["heldout"]["after"] if name not in _NOT_SHOWN]
    rows = [
        f"| {metric} |" + "".join(f" {scores[metric]:.3f} |" for found in losses.values() for scores in found.values())
        for metric in metrics
    ]
    has_before = "before" in losses["heldout"]
    lines = [
        _heading(f"{'Before and after' if has_before else 'After'}, on text that it was not trained on"),
        f"| |{header}\n|---|{'---|' * sum(map(len, losses.values()))}",
        *rows,
        "\n![Losses](domain.png)\n",
    ]
    if has_before:
        lines.append(
            "Both models have the same vocabulary, new words included, so their losses can be compared. Those of a "
            "model with another vocabulary can't: it predicts other tokens."
        )
    lines += content["notes"]
    if "other" in losses and has_before:
        lines.append("An increase of the losses of the other text measures what was forgotten.")
    return "\n".join(lines)


def _fine_tuning_part(scores: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    names = {"released": "the released weights", "domain": "the domain's model"}
    metrics = [name for name in scores["released"] if name not in _NOT_SHOWN]
    rows = [
        f"| {names[start]} |" + "".join(f" {_spread(found[metric])} |" for metric in metrics)
        for start, found in scores.items()
    ]
    count = len(scores["released"][metrics[0]])
    return "\n".join(
        [
            _heading("Fine-tuning, from both starts"),
            f"| |{''.join(f' {metric} |' for metric in metrics)}\n|---|{'---|' * len(metrics)}",
            *rows,
            f"\nMean over {count} seeds, lowest to highest: what differs less may be chance."
            if count > 1
            else "\nOne seed: what differs little may be chance.",
        ]
    )


def _spread(values: Sequence[float]) -> str:
    mean = f"{sum(values) / len(values):.4f}"
    return f"{mean} ({min(values):.4f} to {max(values):.4f})" if len(values) > 1 else mean


def _places(content: dict) -> str:
    model = content["model"]
    start = ["- `start/`: the released weights"]
    if content["new_words"]:
        start = [
            "- `start/`: the released weights with the new words, untrained; `start.txt`: each row",
            "- `words.txt`: the new words; `words.json`: their counts and pieces",
        ]
    results = "- `evaluation/`, `fine_tuning/`: of each model" if content["fine_tuning"] else "- `evaluation/`: results"
    lines = [
        f"- `{model}`: the model, with its vocabulary",
        *start,
        "- `text/`, `records/`: the texts as sentences in documents, and their records",
        results,
        "- `logs/`, `results/`: of each script that ran",
        f"\nTo use it: `python run_classifier.py --init_checkpoint={model} ...`, or any other script that takes "
        f'`--init_checkpoint`; in Python `from_pretrained("{model}")`.',
    ]
    return "\n".join(lines)


def closing_lines(output_dir: str, content: dict) -> str:
    """What the script prints at its end."""
    lines = []
    for name, found in content["losses"].items():
        for metric in (metric for metric in found["after"] if metric not in _NOT_SHOWN):
            values = " -> ".join(f"{scores[metric]:.3f}" for scores in found.values())
            lines.append(f"{_TEXTS[name]}, {metric}: {values}")
    for start, scores in content["fine_tuning"].items():
        shown = ", ".join(
            f"{metric} {_spread(values)}" for metric, values in scores.items() if metric not in _NOT_SHOWN
        )
        lines.append(f"fine-tuned from {start}: {shown}")
    lines += [
        *content["notes"],
        f"Report: {posixpath.join(output_dir, 'domain.md')}, with domain.json and domain.png.",
        f"Model: {content['model']}. To use it:",
        f"  python run_classifier.py --init_checkpoint={content['model']} --task_name=... --do_train --output_dir=...",
    ]
    return "\n".join(lines)
