"""Examples to token ids, and a model's outputs to what run_classifier.py writes: metrics, predictions, reports.

Metrics are those of scikit-learn and SciPy.
Original: run_classifier.py, convert_single_example and file_based_input_fn_builder. The ids are the same; what differs
is the padding (data/token_rows.py), and that long texts can be read in windows.
"""

import dataclasses
import os
import posixpath
from collections.abc import Callable, Sequence

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.token_rows import TokenRows, WindowRows, document_spans, flatten
from bert_tf.store.head_config import MAX_WINDOWS, HeadConfig, softmax
from bert_tf.system.messages import warn_once
from bert_tf.system.storage import write_text_file
from bert_tf.tasks.classification.data import InputExample, Task
from bert_tf.text import shown, watch_unknown
from bert_tf.text.tokenizer import Tokenizer

# Starting processes takes seconds; one core tokenizes this much text (characters) meanwhile.
_CHARACTERS_FOR_PROCESSES = 30_000_000
_TEXTS_PER_CHUNK = 20_000


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """How the windows of a text lie.

    stride: tokens of the text from the start of a window to that of the next.
    most: windows of a text; what comes after them is lost.
    """

    stride: int
    most: int = MAX_WINDOWS


def windows_of(stride: int | None, most: int | None, tokenizer: Tokenizer, max_seq_length: int) -> TextWindows:
    """The windows for a tokenizer and a length, with the defaults for what is None: half a window, MAX_WINDOWS."""
    token_rows.check_room(tokenizer, max_seq_length)
    room = max_seq_length - tokenizer.num_special_tokens(pair=False)
    stride = max(room // 2, 1) if stride is None else stride
    if stride > room:
        raise ValueError(
            f"window_stride={stride}: a window of max_seq_length={max_seq_length} has {room} tokens of the text, so "
            "that those between two windows would be lost."
        )
    return TextWindows(stride, MAX_WINDOWS if most is None else most)


def windows_of_model(head: HeadConfig, tokenizer: Tokenizer, max_seq_length: int) -> TextWindows | None:
    """The windows in which a trained model reads texts; None for a model that reads each as one row."""
    if not head.window_pooling:
        return None
    return windows_of(head.window_stride, head.max_windows, tokenizer, max_seq_length)


@dataclasses.dataclass(frozen=True)
class EncodedExamples(TokenRows):
    """Token rows of examples; `labels` holds `label_ids`, where there are labels: int32 [n]; float32 [n] for a
    regression, float32 [n, C] where several labels may hold.

    guids: [n]. truncated: how many examples were longer than max_seq_length.
    """

    guids: list[str]
    truncated: int = 0

    @property
    def label_ids(self) -> np.ndarray | None:
        return self.labels.get("label_ids")


@dataclasses.dataclass(frozen=True)
class EncodedWindows(WindowRows, EncodedExamples):
    """`EncodedExamples` of all windows of each text; `truncated`: how many texts were truncated."""


def encode_examples(
    examples: Sequence[InputExample],
    task: Task,
    tokenizer: Tokenizer,
    max_seq_length: int,
    num_processes: int | None = None,
    windows: TextWindows | None = None,
    warn: Callable = logging.warning,
) -> EncodedExamples:
    """Tokenizes examples: [CLS] a [SEP], or [CLS] a [SEP] b [SEP] where b has any token.

    Args:
      max_seq_length: longer examples lose tokens as in the original.
      num_processes: processes for large data; by default one for each core.
      windows: a text of more tokens than max_seq_length becomes several rows of that length.
      warn: logs a message and its arguments: how many examples were cut, and how many have a text without any token.
    """
    token_rows.check_room(tokenizer, max_seq_length)
    if windows:
        return _encode_windows(examples, task, tokenizer, max_seq_length, num_processes, windows, warn)
    texts = [example.text_a for example in examples]
    pairs = [number for number, example in enumerate(examples) if example.text_b]
    texts += [examples[number].text_b for number in pairs]
    encoded = _encode_texts(texts, tokenizer, num_processes)
    second = dict(zip(pairs, encoded[len(examples) :], strict=True))
    rows, starts, truncated = [], [], 0
    for number in range(len(examples)):
        a, b = encoded[number], second.get(number)
        ids, segments = tokenizer.build_inputs(a, b, max_seq_length)
        truncated += len(a) + len(b or ()) + tokenizer.num_special_tokens(pair=bool(b)) > max_seq_length
        starts.append(segments.count(0))
        rows.append(ids)
    if truncated:
        message = "Longer than the maximum sequence length, %d tokens, of which the %s are lost: %d of %d examples."
        warn(message, max_seq_length, tokenizer.lost, truncated, len(examples))
    numbers = [*range(len(examples)), *(n for n, example in enumerate(examples) if example.text_b is not None)]
    token_counts = map(len, (*encoded[: len(examples)], *(second.get(n, ()) for n in numbers[len(examples) :])))
    _warn_of_empty(examples, [n for n, count in zip(numbers, token_counts, strict=True) if not count], warn)
    flat, offsets = flatten(rows)
    watch_unknown(tokenizer, flat)
    labels, guids = _labels(examples, task), [example.guid for example in examples]
    return EncodedExamples(flat, offsets, np.array(starts, np.int32), labels, guids, truncated, pad_id=tokenizer.pad_id)


def _encode_windows(examples, task, tokenizer, max_seq_length: int, num_processes, windows, warn) -> EncodedWindows:
    for example in examples:
        if example.text_b:
            raise ValueError(
                f"Example {example.guid} is a pair; a model that reads windows (--long_texts) takes single texts."
            )
    room = max_seq_length - tokenizer.num_special_tokens(pair=False)
    rows, counts, truncated, lost, total = [], [], 0, 0, 0
    encoded = _encode_texts([example.text_a for example in examples], tokenizer, num_processes)
    _warn_of_empty(examples, [number for number, ids in enumerate(encoded) if not len(ids)], warn)
    for ids in encoded:
        spans = document_spans(len(ids), room, windows.stride)[: windows.most] or [(0, 0)]
        rows += [tokenizer.build_inputs(ids[start : start + size])[0] for start, size in spans]
        counts.append(len(spans))
        beyond = len(ids) - sum(spans[-1])
        truncated, lost, total = truncated + (beyond > 0), lost + beyond, total + len(ids)
    message = "%d of %d texts are longer than --max_seq_length=%d; all texts together make %d windows, at most %d each."
    longer, most = sum(count > 1 for count in counts), max(counts, default=0)
    logging.info(message, longer, len(counts), max_seq_length, len(rows), most)
    if truncated:
        message = "%d of %d texts need more than max_windows=%d windows and lost their ends: %d of %d tokens (%.1f %%)."
        warn(message, truncated, len(counts), windows.most, lost, total, 100 * lost / total)
    flat, offsets = flatten(rows)
    watch_unknown(tokenizer, flat)
    labels, guids = _labels(examples, task), [example.guid for example in examples]
    return EncodedWindows(
        flat, offsets, np.diff(offsets).astype(np.int32), labels, guids, truncated,
        first_rows=np.cumsum([0, *counts], dtype=np.int64), window_length=max_seq_length, pad_id=tokenizer.pad_id,
    )  # fmt: skip


def _warn_of_empty(examples: Sequence[InputExample], numbers: Sequence[int], warn: Callable) -> None:
    if numbers:
        first = examples[min(numbers)]
        line = f", line {first.line} of its file" if first.line else ""
        empty = "A text without any token (empty, or of dropped characters) is in %d of %d examples; the first is %s%s."
        warn(empty, len(set(numbers)), len(examples), first.guid, line)


def _labels(examples: Sequence[InputExample], task: Task) -> dict[str, np.ndarray]:
    if any(example.label is None for example in examples):
        return {}
    if task.is_regression:
        return {"label_ids": np.array([example.label for example in examples], np.float32)}
    number = {label: index for index, label in enumerate(task.labels)}
    if not task.multi_label:
        return {"label_ids": np.array([number[example.label] for example in examples], np.int32)}
    ids = np.zeros((len(examples), len(number)), np.float32)
    for row, example in enumerate(examples):
        ids[row, [number[label] for label in example.label]] = 1.0
    return {"label_ids": ids}


# --- tokenization on several cores -----------------------------------------------------------------------------------


def _encode_chunk(texts: list[str], tokenizer: Tokenizer) -> list[list[int]]:
    return tokenizer.encode_batch(texts)


def _encode_texts(texts: list[str], tokenizer: Tokenizer, num_processes: int | None) -> list[list[int]]:
    num_processes = num_processes or os.cpu_count() or 1
    if num_processes == 1 or sum(map(len, texts)) < _CHARACTERS_FOR_PROCESSES:
        return tokenizer.encode_batch(texts)
    from bert_tf.system.workers import map_tasks

    chunks = [(texts[start : start + _TEXTS_PER_CHUNK],) for start in range(0, len(texts), _TEXTS_PER_CHUNK)]
    encoded = map_tasks(_encode_chunk, chunks, num_processes, shared=(tokenizer,))
    return [ids for chunk in encoded for ids in chunk]


# --- the original's record files -------------------------------------------------------------------------------------


def write_records(path: str, encoded: EncodedExamples, max_seq_length: int) -> None:
    """Writes the TFRecord file that the original's script writes (train.tf_record and the like).

    Features: those of `token_rows.write_records`, and label_ids, is_real_example, int64 scalars; the label of a
    regression is a float, that of examples without label 0. Of windows, each is a record, an example's one after the
    other, with the int64 scalars example and window.
    """
    none = np.zeros(len(encoded), np.int32)
    columns = {"label_ids": encoded.labels.get("label_ids", none), "is_real_example": none + 1}
    if isinstance(encoded, WindowRows):
        numbers = np.repeat(np.arange(len(encoded)), encoded.windows)
        columns = {name: values[numbers] for name, values in columns.items()}
        columns |= {"example": numbers, "window": np.arange(len(numbers)) - encoded.first_rows[numbers]}
    token_rows.write_records(path, encoded.rows, max_seq_length, columns)


# --- what a model's outputs mean, and what is written of them ---------------------------------------------------------


def _by_scikit_learn(name: str, **options):
    def score(labels, predictions, /, **more):
        from sklearn import metrics

        return getattr(metrics, name)(labels, predictions, **options, **more)

    return score


def _f1(average: str):
    return _by_scikit_learn("f1_score", average=average, zero_division=0.0)


def _correlation(name: str):
    def score(labels, predictions):
        from scipy import stats

        if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
            warn_once(name, "%s is not defined, as all scores or all predictions are equal: 0.", name)
            return 0.0
        return getattr(stats, name)(labels, predictions).statistic

    return score


# name -> function (labels, predictions); classes as numbers, of several labels as rows of 0 and 1.
METRICS = {
    "accuracy": _by_scikit_learn("accuracy_score"),
    "f1": _f1("binary"),
    "macro_f1": _f1("macro"),
    "micro_f1": _f1("micro"),
    "matthews": _by_scikit_learn("matthews_corrcoef"),
    "pearson": _correlation("pearsonr"),
    "spearman": _correlation("spearmanr"),
    # KLUE-STS's: two texts mean the same from 3 of 5 on.
    "f1_at_3": lambda labels, scores: _f1("binary")(np.asarray(labels) >= 3.0, np.asarray(scores) >= 3.0),
}


def with_best_metric(task: Task, best: str | None, weighted: bool) -> Task:
    """The task, with the metric that chooses its best model first.

    best: --best_metric, with or without "eval_". weighted: whether classes have weights in the loss.
    """
    metrics = ["accuracy", "macro_f1", "matthews"] + ["f1"] * (len(task.labels or ()) == 2)
    if task.is_regression:
        metrics = ["pearson", "spearman", "f1_at_3"]
    elif task.multi_label:
        metrics = ["micro_f1", "macro_f1"]
    if best is None and weighted and task.metrics[0] == "accuracy":
        best = "macro_f1"
    if best is None:
        return task
    best = best.removeprefix("eval_")
    if best not in metrics:
        raise ValueError(f"--best_metric={best}: this task has {', '.join(metrics)}.")
    return dataclasses.replace(task, metrics=tuple(dict.fromkeys((best, *task.metrics))))


def probabilities(task: Task, logits: np.ndarray) -> np.ndarray:
    """The probability of each label [n, C], float32; for a regression the predicted numbers [n, 1]."""
    logits = np.asarray(logits, np.float32)
    if task.is_regression:
        return logits
    if not task.multi_label:
        return softmax(logits)
    from scipy.special import expit

    return expit(logits)


def predictions_of(task: Task, logits: np.ndarray) -> np.ndarray:
    """Predicted class numbers [n]; numbers [n] for a regression; rows of 0 and 1 where several labels may hold."""
    if task.is_regression:
        return np.asarray(logits).reshape(-1)
    if task.multi_label:
        return (np.asarray(logits) > 0).astype(np.int32)
    return np.argmax(logits, -1)


def describe_predictions(task: Task, logits: np.ndarray) -> list[dict]:
    """`label` and `probabilities` of each example; `labels` where several may hold; `score` of a regression."""
    predicted = predictions_of(task, logits)
    if task.is_regression:
        return [{"score": float(value)} for value in predicted]
    described = []
    for row, prediction in zip(probabilities(task, logits), predicted, strict=True):
        if task.multi_label:
            record = {"labels": [task.labels[number] for number in np.flatnonzero(prediction)]}
        else:
            record = {"label": task.labels[prediction]}
        record["probabilities"] = {label: float(value) for label, value in zip(task.labels, row, strict=True)}
        described.append(record)
    return described


def example_losses(task: Task, logits: np.ndarray, label_ids: np.ndarray) -> np.ndarray:
    """The loss of each example [n], as the objectives define it."""
    logits = np.asarray(logits, np.float64)
    if task.is_regression:
        return (logits.reshape(-1) - label_ids) ** 2
    if task.multi_label:
        return (np.logaddexp(0.0, logits) - logits * label_ids).mean(-1)
    from scipy.special import log_softmax

    return -log_softmax(logits, axis=-1)[np.arange(len(label_ids)), label_ids]


def evaluate(task: Task, logits: np.ndarray, label_ids: np.ndarray, batch_size: int) -> dict[str, float]:
    """eval_<metric> for each metric of the task, eval_loss, and loss.

    `loss` is the plain mean over batches of `batch_size` in the order of the examples, as the original reports it; with
    a last batch that is not full it differs a little from `eval_loss`, the mean over the examples.
    """
    predicted = predictions_of(task, logits)
    results = {}
    for name in task.metrics:
        every = {"labels": range(len(task.labels))} if name == "macro_f1" else {}  # also those that never occur
        results[f"eval_{name}"] = float(METRICS[name](label_ids, predicted, **every))
    losses = example_losses(task, logits, label_ids)
    batches = [losses[start : start + batch_size].mean() for start in range(0, len(losses), batch_size)]
    return {**results, "eval_loss": float(losses.mean()), "loss": float(np.mean(batches))}


def report(task: Task, logits: np.ndarray, label_ids: np.ndarray) -> str:
    """Precision, recall, F1 and number of examples of each class, as a table of text."""
    from sklearn.metrics import classification_report

    names = list(task.labels)
    options = {"labels": list(range(len(names))), "target_names": names, "digits": 4, "zero_division": 0.0}
    return classification_report(label_ids, predictions_of(task, logits), **options)


# --- files -----------------------------------------------------------------------------------------------------------


def log_examples(examples: Sequence[InputExample], encoded: EncodedExamples, tokenizer: Tokenizer) -> None:
    """Shows the first examples as the model will see them, as the original does; of long texts the first window."""
    for row, example in enumerate(examples):
        first = encoded.first_rows[row] if isinstance(encoded, WindowRows) else row
        ids = encoded.ids[encoded.offsets[first] : encoded.offsets[first + 1]].tolist()
        logging.info("Example %s, label %s: %s", example.guid, example.label, shown(tokenizer, ids))


def write_predictions(
    output_dir: str, name: str, task: Task, examples: Sequence[InputExample], logits: np.ndarray
) -> None:
    """Writes test_results<name>.tsv as the original does, and predictions<name>.jsonl; see `outcome.write_predictions`.

    The first has one line an example, the probabilities in the order of the labels (of a regression the number). The
    second has `guid`, the chosen columns of its row, and what `describe_predictions` gives.
    """
    from bert_tf.tasks.outcome import write_predictions as write  # serving writes none

    path, _ = write(output_dir, name, examples, describe_predictions(task, logits), probabilities(task, logits))
    logging.info("Wrote %d predictions to %s; in test_results%s.tsv their bare numbers.", len(examples), path, name)


def write_analysis(
    output_dir: str, name: str, task: Task, logits: np.ndarray, label_ids: np.ndarray, title: str = ""
) -> None:
    """Writes classification_report<name>.txt and, for one label an example, confusion_matrix<name>.png with a title."""
    if task.is_regression:
        return
    text = report(task, logits, label_ids)
    write_text_file(posixpath.join(output_dir, f"classification_report{name}.txt"), text)
    logging.info("Each class:\n%s", text)
    predicted = predictions_of(task, logits)
    if len(predicted) > 1 and not np.ptp(predicted, 0).any() and np.ptp(label_ids, 0).any():
        first = np.array(task.labels)[np.flatnonzero(predicted[0]) if task.multi_label else predicted[0]].tolist()
        logging.warning("All %d predictions are %r: the model tells no classes apart.", len(predicted), first)
    if not task.multi_label:
        from bert_tf.training import plots

        path = posixpath.join(output_dir, f"confusion_matrix{name}.png")
        plots.plot_confusion_matrix(label_ids, predicted, list(task.labels), path, title=title)
