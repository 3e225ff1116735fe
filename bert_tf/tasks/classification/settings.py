"""The settings of run_classifier.py beyond those that all fine-tuning scripts share; checked without TensorFlow."""

import dataclasses

from absl import logging

from bert_tf.data.tables import FileSettings, TableSettings
from bert_tf.store.description import read_head
from bert_tf.store.head_config import MAX_WINDOWS
from bert_tf.system.checks import check_file
from bert_tf.system.declare import ORIGINAL, setting, setting_group
from bert_tf.system.storage import is_remote
from bert_tf.system.text_files import UTF_8
from bert_tf.tasks.classification import data
from bert_tf.tasks.classification.label_checks import class_weights_setting
from bert_tf.text.tokenizer_files import directory_of
from bert_tf.training.run_directory import settings_of_model
from bert_tf.training.settings import FineTuningSettings

_CUSTOM = (
    "train_file", "dev_file", "test_file", "text_a", "text_b", "label", "labels", "regression", "multi_label",
    "csv_delimiter", "encoding", "skip_short_rows", "copy_columns",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationSettings(TableSettings, FileSettings):
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
        self.check_predictions(run.do_predict)
        if not self.task_name:
            raise ValueError("Which task? Give --task_name.")
        if self.is_custom:
            self._check_own_files(run)
        else:
            self._check_glue(run)

    def check_texts(self, source: str) -> None:
        """Compares the columns with those that the weights at `source` were trained on, where run.json tells them."""
        pairs = trained_on_pairs(source) if self.is_custom else None
        if pairs not in (None, bool(self.text_b)):
            was, now = ("two texts", "one") if pairs else ("one text", "two")
            logging.warning("%s was trained on %s an example, and this run gives it %s (--text_b).", source, was, now)

    def _check_own_files(self, run: FineTuningSettings) -> None:
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
        for kind, is_needed in needed.items():
            check_file(getattr(self, f"{kind}_file") if is_needed else None, f"--{kind}_file")
        data.declared_task(self)

    def _check_glue(self, run: FineTuningSettings) -> None:
        task = _glue_task(self.task_name, self.language)
        for name in _CUSTOM:
            if (value := getattr(self, name)) and value != UTF_8:
                raise ValueError(f"--{name} is for --task_name=custom; --task_name={self.task_name} has its own files.")
        if not self.data_dir:
            raise ValueError(f"--task_name={self.task_name} needs --data_dir, the folder with its files.")
        dev, test = (next(iter(splits.values()), None) for splits in (task.dev, task.test))
        for action, split in {"do_train": task.train, "do_eval": dev, "do_predict": test}.items():
            if getattr(run, action) and split and not is_remote(self.data_dir):
                check_file(data.split_path(task, split, self.data_dir), "--data_dir")


# What says how windows are made and used; only for --long_texts=windows.
_, *WINDOW_FLAGS = setting_group(ClassificationSettings, "Long texts")


def trained_on_pairs(source: str) -> bool | None:
    """Whether weights were trained on two texts an example; None where nothing beside them says it."""
    if (pairs := read_head(directory_of(source)).pairs) is not None:
        return pairs
    earlier = settings_of_model(source)
    if not isinstance(name := earlier.get("task_name"), str):
        return None
    return bool(earlier.get("text_b")) if name.lower() == "custom" else _glue_task(name).train.text_b is not None


def _glue_task(name: str, language: str = "") -> data.Task:
    from bert_tf.tasks.classification import glue  # files of your own don't need it

    return glue.find_task(name, language)
