"""The settings of run_classifier.py beyond those that all fine-tuning scripts share; checked without TensorFlow."""

import collections
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.data.tables import INTEGER, NAMES_OF_TEXTS, TableSettings
from bert_tf.store.head_config import MAX_WINDOWS
from bert_tf.system.checks import check_different, check_file
from bert_tf.system.declare import ORIGINAL, declared_in, setting, setting_group
from bert_tf.system.messages import abbreviated_list, naming_flag
from bert_tf.system.text_files import UTF_8
from bert_tf.tasks.classification.data import find_task, read_split, split_path
from bert_tf.tasks.rows import InputExample, Split, Task, number_of
from bert_tf.text.characters import plain_name
from bert_tf.training.settings import FineTuningSettings

BALANCED = "balanced"


def class_weights_setting(of: str):
    return setting(
        None,
        f"Weights of the classes in the loss, LABEL=WEIGHT,LABEL=WEIGHT (1 for the others), or balanced: the number of "
        f"{of} divided by the number of classes and by the {of} of the class, so that rare classes count as much as "
        "frequent ones. The loss is the sum of the weighted losses divided by the sum of their weights.",
        heading="What is trained",
        check=lambda text, _: parse_class_weights(text),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationSettings(TableSettings):
    """A task of classification or regression, and which model learns it. Of the model, None means: as it was trained.

    labels: None: those of the training set.
    """

    task_name: str | None = setting(
        None,
        "cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, ax, xnli, or custom (--train_file and so on).",
        heading=ORIGINAL,
    )
    data_dir: str | None = setting(None, "Directory with the task's files, as in the GLUE download.")
    text_a: str | None = setting(
        None, "Column of the text, by name or number from 0.", heading="Your files, with --task_name=custom"
    )
    text_b: str | None = setting(None, "Column of the second text, if there are two.")
    label: str | None = setting(None, "Column of the label.")
    labels: list[str] | None = setting(None, "The classes in the order of their ids. If unset, those of --train_file.")
    regression: bool = setting(False, "Labels are numbers to predict.")
    multi_label: bool = setting(
        False,
        "An example can have any number of labels, separated by commas. With several columns in --label, such as "
        "--label=toxic,obscene, each is a label of its own and has 1 where it holds, or else 0.",
    )
    language: str = setting(
        "", "xnli: the language, e.g. ko, de, en. If unset, zh, as in the original.", heading="Other tasks"
    )
    long_texts: str | None = setting(
        "cut",
        "Texts of more than --max_seq_length tokens. cut: they lose their last tokens, as in the original. windows: "
        "they are read as windows of that length that overlap, and one output layer judges all of them. For single "
        "texts, not for pairs. If unset, as the model was trained, or else cut.",
        heading="Long texts",
        choices=("cut", "windows"),
        unset=True,
    )
    window_stride: int | None = setting(
        None,
        "windows: tokens from the start of a window to that of the next. If unset, half of those in a window.",
        least=1,
    )
    max_windows: int | None = setting(
        MAX_WINDOWS,
        "windows: a text is read up to the end of this many; the log says how many texts are longer. A training step "
        "takes time and memory for --train_batch_size times as many rows: see --gradient_accumulation_steps. If unset, "
        "as the model was trained, or else 8.",
        least=1,
        unset=True,
    )
    window_pooling: str | None = setting(
        "mean",
        "windows: how their pooled outputs become one: the mean, the maximum, or a mean with learned weights. If "
        "unset, as the model was trained, or else mean.",
        choices=("mean", "max", "attention"),
        unset=True,
    )
    class_weights: str | None = class_weights_setting("examples")
    best_metric: str | None = setting(
        None,
        "Which metric on the dev set chooses the best model: accuracy, macro_f1, matthews, f1 (two classes); micro_f1, "
        "macro_f1 (several labels); pearson, spearman, f1_at_3 (scores). If unset, the task's first in "
        "eval_results.txt; with --class_weights macro_f1 in place of accuracy, which rare classes hardly change.",
    )

    @property
    def is_custom(self) -> bool:
        return (self.task_name or "").lower() == "custom"

    def check(self, run: FineTuningSettings) -> None:
        run.check(self)
        if not self.task_name:
            raise ValueError("Which task? Give --task_name.")
        if self.is_custom:
            if not self.text_a:
                raise ValueError("--task_name=custom needs --text_a, the column of the text, by name or number.")
            for name in ("data_dir", "language"):
                if getattr(self, name):
                    raise ValueError(f"--{name} is for GLUE's tasks, not for --task_name=custom.")
            if (run.do_train or run.do_eval) and not self.label:
                raise ValueError("--task_name=custom needs --label, the column of the label, to train or evaluate.")
            run.check_files(train_file=self.train_file, dev_file=self.dev_file, test_file=self.test_file)
            if run.do_train:
                run.check_dev_set(bool(self.dev_file), ": give --dev_file")
            needed = {"train": run.do_train, "dev": run.do_train or run.do_eval, "test": run.do_predict}
            files = [(f"--{kind}_file", getattr(self, f"{kind}_file")) for kind in needed if needed[kind]]
            check_different({f"--{name}": getattr(self, name) for name in ("text_a", "text_b", "label")})
            declared_task(self)
        else:
            task = find_task(self.task_name, self.language)
            for name in _CUSTOM:
                if (value := getattr(self, name)) and value != UTF_8:
                    own = f"--task_name={self.task_name} has its own files"
                    raise ValueError(f"--{name} is for --task_name=custom; {own}.")
            if not self.data_dir:
                raise ValueError(f"--task_name={self.task_name} needs --data_dir, the folder with its files.")
            dev, test = (next(iter(splits.values()), None) for splits in (task.dev, task.test))
            read = {"do_train": task.train, "do_eval": dev, "do_predict": test}
            read = [split for action, split in read.items() if split and getattr(run, action)]
            files = [("--data_dir", split_path(task, split, self.data_dir)) for split in read]
        for flag, path in files:
            check_file(path, flag)


_CUSTOM = (
    *setting_group(ClassificationSettings, "Your files, with --task_name=custom"),
    *declared_in(TableSettings),
)
# What says how windows are made and used; only for --long_texts=windows.
_, *WINDOW_FLAGS = setting_group(ClassificationSettings, "Long texts")


# --- the user's files ------------------------------------------------------------------------------------------------


def declared_task(settings: ClassificationSettings) -> Task:
    """The task that settings declare; no file is read. Files have a header unless columns are given by number."""
    if settings.regression and (settings.multi_label or settings.labels):
        raise ValueError("--regression has no classes: leave --multi_label and --labels out.")
    names = settings.label.split(",") if settings.multi_label and settings.label else [settings.label]
    columns = [name and plain_name(name) for name in (settings.text_a, settings.text_b, *names)]
    columns = [int(name) if name and INTEGER.fullmatch(name) else name for name in columns]
    has_header = not all(isinstance(column, int | None) for column in columns)
    if has_header and any(isinstance(column, int) for column in columns):
        raise ValueError("--text_a, --text_b and --label: give all columns by name, or all by number.")

    def split(set_name: str) -> Split | None:
        if not (file := getattr(settings, f"{set_name}_file")):
            return None
        file, label = file.replace("{", "{{").replace("}", "}}"), tuple(columns[2:]) if len(names) > 1 else columns[2]
        label = None if set_name == "test" else label
        return Split(file, *columns[:2], label, set_name, has_header, table=settings.of_set(set_name))

    train, dev, test = map(split, ("train", "dev", "test"))
    labels = settings.labels or (names if len(names) > 1 else ())
    several = ("micro_f1", "macro_f1") if settings.multi_label else ("accuracy", "macro_f1")
    return Task(
        name="custom",
        labels=None if settings.regression else tuple(map(plain_name, labels)),
        any_case=bool(labels),
        train=train,
        dev={"dev": dev} if dev else {},
        test={"test": test} if test else {},
        metrics=("pearson", "spearman") if settings.regression else several,
        multi_label=settings.multi_label,
    )


def _with_labels_found(
    task: Task, settings: ClassificationSettings, examples: Sequence[InputExample], marked: Sequence[str]
) -> Task:
    """The task with the labels of the training file. marked: see `read_split`."""
    train_file = settings.train_file
    check_training_labels(train_file, examples, by_number=not task.train.has_header)
    labels = {label for row in examples for label in (row.label if task.multi_label else (row.label,))} | {*marked}
    ordered = sorted(labels, key=int if all(map(INTEGER.fullmatch, labels)) else None)
    if len(ordered) < (1 if task.multi_label else 2):
        found = f"{len(ordered)} classes in the column {settings.label!r}"
        raise ValueError(f"--train_file: {train_file}: {found}: there is nothing to learn.")
    logging.info("%d classes in %s: %s", len(ordered), train_file, ", ".join(ordered[:20]))
    return dataclasses.replace(task, labels=tuple(ordered), marks=bool(marked))


def read_sets(
    settings: ClassificationSettings, run: FineTuningSettings
) -> tuple[Task, dict[str, dict[str, list[InputExample]]]]:
    """The task, with its labels, and the examples of the "train", "dev" and "test" sets of a run, by their names; only
    the further ones (mismatched) may be missing. Labels are by default those of the training file, numbers by size,
    others by name."""
    task = declared_task(settings) if settings.is_custom else find_task(settings.task_name, settings.language)
    has_labels = task.is_regression or bool(task.labels)
    if not has_labels and task.train is None:
        raise ValueError("Which classes are there? Give --train_file, or --labels=first,second,...")
    needed = {"train": run.do_train, "dev": run.do_eval, "test": run.do_predict}
    is_read = needed | {"train": run.do_train or not has_labels, "dev": run.do_train or run.do_eval}
    splits = {"train": {"train": task.train} if task.train else {}, "dev": task.dev, "test": task.test}
    sets: dict[str, dict[str, list[InputExample]]] = {"train": {}, "dev": {}, "test": {}}
    for kind, action in (("train", "do_train"), ("dev", "do_eval"), ("test", "do_predict")):
        read = sets[kind]
        if not is_read[kind]:
            continue
        for name, split in splits[kind].items():
            try:
                with naming_flag(f"--{kind}_file" if settings.is_custom else "--data_dir"):
                    examples, marked = read_split(task, split, settings.data_dir or "")
                    if not has_labels:
                        task, has_labels = _with_labels_found(task, settings, examples, marked), True
            except FileNotFoundError as error:
                if read:
                    logging.info("%s does not exist and is left out.", split_path(task, split, settings.data_dir))
                    continue
                if kind != "dev" or needed[kind] or settings.dev_file:
                    raise
                logging.info("No evaluation while training: %s", error)
                break
            logging.info("%s: %d examples", name, len(examples))
            if kind != "test" and any(row.label is None for row in examples):
                raise ValueError(f"--{action}: the set {name} has examples without label.")
            read[name] = examples
        if needed[kind] and not read:
            raise ValueError(f"--{action}: the task {task.name} has no {kind} set here.")
    if not run.do_train:
        sets["train"] = {}
    elif settings.is_custom:
        for dev in sets["dev"].values():
            warn_of_known_texts(sets["train"]["train"], dev)
    return with_best_metric(task, settings.best_metric, settings.class_weights is not None), sets


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


_NAMES_OF_LABELS = {"category", "class", "gold_label", "label", "labels", "score", "sentiment", "target"}
_FEWEST_ROWS = 5  # fewer rows may well have a class each
_MANY_NUMBERS = 20  # more numbers than this are probably not classes
_MANY_KNOWN = 0.01  # of the rows of a dev set; short texts are often the same by chance


def check_training_labels(path: str, examples: Sequence, by_number: bool) -> None:
    """Raises for, or warns about, labels of a training file that are probably not classes.

    examples: `InputExample`s in the order of the file. by_number: its columns are given by number, without header.
    """
    label_sets = [row.label if isinstance(row.label, tuple) else (row.label,) for row in examples]
    labels = [label for label_set in label_sets for label in label_set]
    counts = collections.Counter(labels)
    if by_number and isinstance(examples[0].label, str):
        _check_first_row(path, examples[0], counts)
    known = {}  # hash of texts -> labels of the first row that has them
    rows = zip((hash((row.text_a, row.text_b)) for row in examples), map(set, label_sets), strict=True)
    if different := sum(known.setdefault(texts, label_set) != label_set for texts, label_set in rows):
        logging.warning("%s: rows with the text of an earlier row and another label: %d.", path, different)
    if "-" in counts:  # as SNLI has where its annotators disagreed
        logging.warning("%s: '-' is taken for a class; --labels=first,second,... leaves its rows out.", path)
    numbers = isinstance(examples[0].label, str) and all(map(is_number, counts))
    if len(counts) == len(labels) >= _FEWEST_ROWS and len(labels) == len(examples):
        raise ValueError(
            f"{path}: each of the {len(labels)} rows has a label of its own, as {examples[0].label!r}: is --label the "
            f"column of the classes?{' For scores give --regression.' if numbers else ''}"
        )
    fractions = [label for label in counts if not float(label).is_integer()] if numbers else []
    if fractions or (numbers and len(counts) > _MANY_NUMBERS):
        message = "%s: %d numbers as classes, such as %r: if they are scores, give --regression."
        logging.warning(message, path, len(counts), (fractions or [*counts])[0])


def _check_first_row(path: str, first, counts: collections.Counter) -> None:
    others = [label for label in counts if label != first.label]
    if counts[first.label] > 1 or not others:
        return
    message = (
        f"{path}: the label of the first row, {first.label!r}, is not found in any other row; if the row is a header, "
        f"name the columns by it: --text_a={first.text_a} --label={first.label}"
    )
    differs = all(map(is_number, others)) and not is_number(first.label)
    if differs or first.label.casefold() in _NAMES_OF_LABELS or first.text_a.casefold() in NAMES_OF_TEXTS:
        raise ValueError(message)
    if all(counts[label] > 1 for label in others):
        logging.warning("%s", message)


def warn_of_known_texts(train: Sequence, dev: Sequence) -> None:
    """Warns if `InputExample`s of a dev set share texts with others; `is_trained_on` of the task handles equal sets."""
    trained, others = ([hash((row.text_a, row.text_b)) for row in rows] for rows in (train, dev))
    known = set(trained)
    shared = sum(text in known for text in others)
    if shared > _MANY_KNOWN * len(dev) and trained != others:
        message = "Of %d rows of --dev_file %d are also in --train_file: results on them say nothing about other texts."
        logging.warning(message, len(dev), shared)


# --- --class_weights --------------------------------------------------------------------------------------------------


def is_number(text: str) -> bool:
    return not math.isnan(number_of(text))


def parse_class_weights(text: str) -> dict[str, float]:
    """Label -> weight; empty for "balanced"."""
    weights = {}
    for part in [] if text == BALANCED else text.split(","):
        label, _, number = (value.strip() for value in part.rpartition("="))
        if not label or label in weights or not is_number(number) or float(number) <= 0:
            raise ValueError(
                f"--class_weights={text}: {part!r} is not LABEL=WEIGHT with a label of its own and a positive number; "
                f"or give {BALANCED}."
            )
        weights[label] = float(number)
    return weights


def class_weights(text: str, labels: Sequence[str], label_ids: np.ndarray) -> list[float]:
    """The weights of the classes, which are logged.

    text: --class_weights. labels: the names of the classes. label_ids: the class of all that is trained on, from 0.
    """
    weights_by_label = parse_class_weights(text)
    if unknown := [label for label in weights_by_label if label not in labels]:
        raise ValueError(
            f"--class_weights={text}: no such label: {abbreviated_list(unknown)}. "
            f"The labels are {abbreviated_list(labels)}."
        )
    counts = np.bincount(np.asarray(label_ids).reshape(-1), minlength=len(labels))
    if text == BALANCED:
        weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
        without = [label for label, count in zip(labels, counts, strict=True) if not count]
        weights = [float(weight) if count else 1.0 for weight, count in zip(weights, counts, strict=True)]
        reason = "occur nowhere in the training data"
    else:
        weights = [weights_by_label.get(label, 1.0) for label in labels]
        without = [label for label in labels if label not in weights_by_label]
        reason = "are not named"
    if without:
        logging.warning("--class_weights: these labels %s and have weight 1: %s.", reason, abbreviated_list(without))
    shown = ", ".join(f"{label} {weight:.4g}" for label, weight in zip(labels, weights, strict=True))
    logging.info("--class_weights: %s", shown)
    return weights
