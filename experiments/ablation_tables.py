"""The results of the ablations as records and as tables."""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from bert_tf.models.config import BertConfig
from experiments.ablation_grid import Cell

_TITLES = {
    5: "Table 5: pre-training objectives",
    6: "Table 6: model sizes",
    8: "Table 8: masking of the tokens to predict (% [MASK] / random / same)",
}
_NOTES = {
    5: "The losses of masked and left-to-right models measure different predictions: compare the last column.",
    6: "",
    8: "Each held-out loss uses the row's own kind of masks.",
}


def parameters_of(size: str, vocab_size: int) -> int:
    """The number of a model's parameters in pre-training, including heads."""
    from bert_tf.models.bert.variable_names import expected_shapes

    return sum(math.prod(shape) for shape in expected_shapes(BertConfig.from_size(size, vocab_size)).values())


def create_records(cells: Iterable[Cell], results: Mapping[str, dict], vocab_size: int) -> list[dict]:
    """The content of ablations.json: a record for each cell.

    Args:
      results: from `do_runs`.
    """
    records = []
    for cell in cells:
        config = BertConfig.from_size(cell.pretraining.bert_size, vocab_size)
        pretraining = results[f"pretraining-{cell.pretraining.name}"]
        fine_tuning = results[f"fine_tuning-{cell.fine_tuning_name}"]
        record = {
            "table": cell.table,
            "name": cell.name,
            "layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "heads": config.num_attention_heads,
            "parameters": parameters_of(cell.pretraining.bert_size, vocab_size),
            **dataclasses.asdict(cell.pretraining),
            "lstm_on_top": cell.lstm_on_top,
            "pretraining": None if cell.from_scratch else pretraining["results"],
            "pretraining_seconds": 0 if cell.from_scratch else pretraining["seconds"],  # of its last start
            "fine_tuning": fine_tuning["results"],
            "fine_tuning_seconds": fine_tuning["seconds"],
        }
        records.append(record)
    return records


def create_tables(records: Iterable[dict], metric: str, title: str) -> str:
    """The tables as Markdown.

    Args:
      records: from `create_records`. metric: of fine-tuning, e.g. "eval_accuracy". title: of the last column.
    """
    records = list(records)
    text = ""
    for table in dict.fromkeys(record["table"] for record in records):
        sizes = ["layers", "hidden", "heads", "parameters"] if table == 6 else []
        columns = ["", *sizes, "held-out loss", "perplexity", *(["next sentence, %"] if table == 5 else []), title]
        text += f"## {_TITLES[table]}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
        for record in (record for record in records if record["table"] == table):
            row = [record["name"]]
            if table == 6:
                row += [str(record[name]) for name in ("layers", "hidden_size", "heads")]
                row += [f"{record['parameters'] / 1e6:.1f} M"]
            before, after = record["pretraining"], record["fine_tuning"][metric]
            row += [f"{before['token_loss']:.3f}", f"{math.exp(before['token_loss']):.1f}"] if before else ["", ""]
            if table == 5:
                accuracy = before and before["next_sentence_accuracy"]
                row += [f"{100 * accuracy:.1f}" if accuracy is not None else ""]
            spread = f" ({100 * after['min']:.1f} to {100 * after['max']:.1f})" if after["min"] != after["max"] else ""
            row += [f"{100 * after['mean']:.1f}{spread}"]
            text += f"| {' | '.join(row)} |\n"
        text += f"\n{_NOTES[table]}\n\n" if _NOTES[table] else "\n"
    return text.rstrip() + "\n"
