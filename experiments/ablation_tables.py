"""The results of the ablations as records and as tables."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from bert_tf.families import config_of_size
from experiments.ablation_grid import Cell

_TITLES = {
    5: "Table 5: pre-training objectives",
    6: "Table 6: model sizes",
    8: "Table 8: masking of the tokens to predict (% [MASK] / random / same)",
}
_NOTES = {
    5: "The losses of masked and left-to-right models measure different predictions: compare the last columns.",
    6: "",
    8: "Each held-out loss uses the row's own kind of masks.",
}


def parameters_of(size: str, vocab_size: int) -> int:
    """The number of a model's parameters in pre-training, including heads."""
    from bert_tf.families.family import expected_shapes

    return sum(math.prod(shape) for shape in expected_shapes(config_of_size(size, vocab_size)).values())


def estimate(groups: Sequence[Sequence[float]]) -> dict[str, float | None]:
    """Mean and standard error of scores, as {"mean": ..., "standard_error": ...}.

    Args:
      groups: for each pre-training, a score for each fine-tuning; groups of one size.

    The standard error is that of the pre-trainings' means, which contains the spread of fine-tuning; of a single
    pre-training's fine-tunings; None for a single score. It does not contain the choice of the dev set.
    """
    means = [statistics.mean(group) for group in groups]
    independent = means if len(means) > 1 else groups[0]
    spread = statistics.stdev(independent) / math.sqrt(len(independent)) if len(independent) > 1 else None
    return {"mean": statistics.mean(means), "standard_error": spread}


def _estimates(results: Sequence[Mapping[str, list[float]]]) -> dict[str, dict]:
    return {
        name: {**estimate([values[name] for values in results]), "scores": [values[name] for values in results]}
        for name in results[0]
        if name != "global_step"
    }


def create_records(
    cells: Iterable[Cell], results: Mapping[str, dict], vocab_size: int, repetitions: Sequence[str]
) -> list[dict]:
    """The content of ablations.json: a record for each cell.

    Args:
      results: from `runs.do_runs`. repetitions: from `ablation_grid.repetitions`.

    Returns:
      Dicts with "pretraining", "fine_tuning" and "squad": metric -> mean, standard_error, scores; None if not done.
    """
    records = []
    for cell in cells:
        config = config_of_size(cell.pretraining.bert_size, vocab_size)

        def runs_of(kind: str, name: str) -> list[dict]:
            names = [f"{kind}-{name}-{repetition}" for repetition in repetitions]
            return [results[name] for name in names if name in results]

        pretraining = [] if cell.from_scratch else runs_of("pretraining", cell.pretraining.name)
        fine_tuning = runs_of("fine_tuning", cell.fine_tuning_name)
        squad = runs_of("squad", cell.fine_tuning_name) if cell.table == 5 else []
        before = [{name: [value] for name, value in run["results"].items() if value is not None} for run in pretraining]
        record = {
            "table": cell.table,
            "name": cell.name,
            "layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "heads": config.num_attention_heads,
            "parameters": parameters_of(cell.pretraining.bert_size, vocab_size),
            **dataclasses.asdict(cell.pretraining),
            "pretraining": _estimates(before) if before else None,
            "pretraining_seconds": [run["seconds"] for run in pretraining],  # of their last starts
            "fine_tuning": _estimates([run["results"] for run in fine_tuning]),
            "fine_tuning_seconds": [run["seconds"] for run in fine_tuning],
            "squad": _estimates([run["results"] for run in squad]) if squad else None,
        }
        records.append(record)
    return records


def cell(values: Mapping | None, scale: float = 100.0, digits: int = 1) -> str:
    """mean ± standard error of a metric; empty without it."""
    if values is None:
        return ""
    error = values["standard_error"]
    return f"{scale * values['mean']:.{digits}f}" + (f" ± {scale * error:.{digits}f}" if error is not None else "")


def create_tables(records: Iterable[dict], metric: str, title: str) -> str:
    """The tables as Markdown.

    Args:
      records: from `create_records`. metric: of fine-tuning, e.g. "eval_accuracy". title: of its column.
    """
    records = list(records)
    text = ""
    for table in dict.fromkeys(record["table"] for record in records):
        rows = [record for record in records if record["table"] == table]
        with_squad = any(record["squad"] for record in rows)
        columns = ["", *(["layers", "hidden", "heads", "parameters"] if table == 6 else []), "held-out loss"]
        columns += ["perplexity", *(["next sentence, %"] if table == 5 else []), title]
        columns += ["SQuAD F1, %"] if with_squad else []
        text += f"## {_TITLES[table]}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
        for record in rows:
            row = [record["name"]]
            if table == 6:
                row += [str(record[name]) for name in ("layers", "hidden_size", "heads")]
                row += [f"{record['parameters'] / 1e6:.1f} M"]
            before = record["pretraining"] or {}
            loss = before.get("token_loss")
            row += [cell(loss, 1.0, 3), f"{math.exp(loss['mean']):.1f}" if loss else ""]
            row += [cell(before.get("next_sentence_accuracy"))] if table == 5 else []
            row += [cell(record["fine_tuning"][metric])]
            row += [cell((record["squad"] or {}).get("eval_f1"), 1.0)] if with_squad else []
            text += f"| {' | '.join(row)} |\n"
        text += f"\n{_NOTES[table]}\n\n" if _NOTES[table] else "\n"
    return text + _note_on_errors(records[0]["fine_tuning"][metric]["scores"]) + "\n"


def _note_on_errors(scores: list[list[float]]) -> str:
    pretrainings, fine_tunings = len(scores), len(scores[0])
    if pretrainings > 1:
        return (
            f"± is one standard error over {pretrainings} pre-trainings with different seeds, each fine-tuned "
            f"{fine_tunings} times with different seeds."
        ).replace(" 1 times with different seeds", " once")
    if fine_tunings > 1:
        return f"± is one standard error over {fine_tunings} seeds of fine-tuning; each model is pre-trained once."
    return "Each cell is one run: differences may be chance."
