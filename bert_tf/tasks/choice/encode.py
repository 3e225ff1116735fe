"""Multiple choice to token ids: [CLS] context [SEP] question choice [SEP] for each choice (paper, section 4.4).

Shape legend: n examples, N choices, S sequence length.
"""

import posixpath
from collections.abc import Callable, Sequence

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.token_rows import GroupedRows, flatten
from bert_tf.store.head_config import softmax
from bert_tf.tasks.choice.data import ChoiceExample
from bert_tf.tasks.classification import encode as classification_encode
from bert_tf.tasks.classification.data import Task
from bert_tf.text import shown, watch_unknown
from bert_tf.text.tokenizer import Tokenizer


def encode_examples(
    examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_seq_length: int, warn: Callable = logging.warning
) -> GroupedRows:
    """Token rows of examples with the same number of choices.

    max_seq_length: a longer row loses the last tokens of context, or of question and choice, whichever is longer.
    warn: logs a message and its arguments.
    """
    special = tokenizer.num_special_tokens(pair=True)
    if max_seq_length < special + 2:
        raise ValueError(f"max_seq_length={max_seq_length} has no room for two texts beside {special} special tokens.")
    num_choices = len(examples[0].choices)
    texts = []
    for example in examples:
        # A choice follows its question as a word follows another.
        separator = tokenizer.word_separator if example.question else ""
        texts += [example.context, example.question, *(separator + choice for choice in example.choices)]
    encoded = iter(tokenizer.encode_batch(texts))
    rows, starts, truncated = [], [], 0
    for _ in examples:
        context, question = next(encoded), next(encoded)
        for _ in range(num_choices):
            # As in classification, a choice without any token (control characters only) does not count as a text.
            second = [*question, *next(encoded)]
            ids, segments = tokenizer.build_inputs(context, second, max_seq_length)
            uncut = len(context) + len(second) + tokenizer.num_special_tokens(pair=bool(second))
            truncated += uncut > max_seq_length
            rows.append(ids)
            starts.append(segments.count(0))
    if truncated:
        message = "Longer than max_seq_length=%d tokens, of which the %s are lost: %d of %d choices with their context."
        warn(message, max_seq_length, tokenizer.lost, truncated, len(rows))
    ids, offsets = flatten(rows)
    watch_unknown(tokenizer, ids)
    labels = {}
    if None not in (right := [example.label for example in examples]):
        labels["label_ids"] = np.array(right, np.int32)
    starts = np.array(starts, np.int32)
    return GroupedRows(ids, offsets, starts, labels, num_choices, truncated, pad_id=tokenizer.pad_id)


def log_examples(rows: GroupedRows, tokenizer: Tokenizer, count: int = 2, row: str = "choice") -> None:
    """Logs the first examples as the model will see them. row: what a row is called."""
    for number in range(min(count, len(rows)) * rows.rows_per_example):
        example, position = divmod(number, rows.rows_per_example)
        label = " (right)" if "label_ids" in rows.labels and rows.labels["label_ids"][example] == position else ""
        label = f", score {rows.labels['scores'][example]:.3f}" if "scores" in rows.labels else label
        tokens = shown(tokenizer, rows.ids[rows.offsets[number] : rows.offsets[number + 1]].tolist())
        logging.info("Example %d, %s %d%s: %s", example, row, position, label, tokens)


def write_records(path: str, rows: GroupedRows, max_seq_length: int, row: str = "choice") -> None:
    """Writes a TFRecord file, a record for each row, the N of an example one after the other.

    Features: those of `token_rows.write_records`; int64 scalars example and, named by `row`, the position in it; where
    there are labels, int64 label_ids, the number of the right choice, or float score.
    """
    numbers = np.arange(len(rows.second_starts))
    columns = {"example": numbers // rows.rows_per_example, row: numbers % rows.rows_per_example}
    for label, feature in (("label_ids", "label_ids"), ("scores", "score")):
        if label in rows.labels:
            columns[feature] = np.repeat(rows.labels[label], rows.rows_per_example)
    token_rows.write_records(path, rows.rows, max_seq_length, columns)


# --- evaluation and predictions ---------------------------------------------------------------------------------------


def evaluate(rows: GroupedRows, logits: np.ndarray, batch_size: int) -> dict[str, float]:
    """eval_accuracy, eval_loss (mean over examples) and loss (over batches), see `classification.encode.evaluate`."""
    task = Task("multiple choice", tuple(map(str, range(rows.rows_per_example))), None)
    return classification_encode.evaluate(task, logits, rows.labels["label_ids"], batch_size)


def write_confusion_matrix(output_dir: str, rows: GroupedRows, logits: np.ndarray, title: str) -> None:
    """Writes confusion_matrix.png: the positions of the right choices and of the chosen ones."""
    from bert_tf.training import plots

    labels, chosen = rows.labels["label_ids"], np.argmax(logits, -1)
    path = posixpath.join(output_dir, "confusion_matrix.png")
    plots.plot_confusion_matrix(labels, chosen, list(map(str, range(rows.rows_per_example))), path, title=title)


def describe(example: ChoiceExample, probabilities: np.ndarray) -> dict:
    """`choice`, the likeliest one's number, its `text`, and all `probabilities` [N]."""
    choice = int(probabilities.argmax())
    return {"choice": choice, "text": example.choices[choice], "probabilities": probabilities.tolist()}


def write_predictions(output_dir: str, examples: Sequence[ChoiceExample], logits: np.ndarray) -> list[str]:
    """Writes predictions.jsonl (see `outcome.write_predictions`) and test_results.tsv; returns their paths.

    The first has for each example its number `guid`, what `describe` gives, and the `label` if there is one. The second
    has the probabilities, as run_classifier.py writes them.
    """
    from bert_tf.tasks.outcome import write_predictions as write  # serving writes none

    probabilities = softmax(np.asarray(logits, np.float32))
    described = []
    for example, row in zip(examples, probabilities, strict=True):
        record = describe(example, row)
        if example.label is not None:
            record["label"] = example.label
        described.append(record)
    return write(output_dir, "", examples, described, probabilities)
