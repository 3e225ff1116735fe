"""The settings of run_classifier.py beyond those that all fine-tuning scripts share; checked without TensorFlow."""

import dataclasses
from collections.abc import Mapping, Sequence

from absl import logging

from bert_tf.data.tables import FileSettings, TableSettings
from bert_tf.models.head_config import BASELINE_LAYER, MAX_WINDOWS, TOKEN_READERS, WITHOUT_BERT, HeadConfig, spelled_as
from bert_tf.system.checks import check_extra, check_file, check_output_dir
from bert_tf.system.declare import ORIGINAL, group, setting, value_of
from bert_tf.system.messages import named_by, unheard
from bert_tf.system.text_files import UTF_8
from bert_tf.tasks.classification import data
from bert_tf.tasks.classification.label_checks import check_class_weights, check_labels_of, class_weights_setting
from bert_tf.tasks.table import TASKS
from bert_tf.training.beginning import StartingHead, stored_head
from bert_tf.training.run_directory import settings_of_model
from bert_tf.training.settings import FineTuningSettings, features_setting, lstm_setting

_CUSTOM = (
    "train_file", "dev_file", "test_file", "text_a", "text_b", "label", "labels", "regression", "multi_label",
    "csv_delimiter", "encoding", "skip_short_rows", "id_column", "copy_columns",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationSettings(TableSettings, FileSettings):
    """A task of classification or regression, and which model learns it. Of the model, None means: as it was trained.

    Attributes:
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
    multi_label: bool = setting(False, "An example can have any number of labels, separated by commas.")
    language: str = setting(
        "", "xnli: the language, e.g. ko, de, en. If unset, zh, as in the original.", heading="Other tasks"
    )
    tfds_name: str | None = setting(None, "Load this dataset with tensorflow-datasets instead, e.g. glue/mrpc.")
    glue_submission: str | None = setting(
        None,
        "With --do_predict, add the task's predictions to this directory in the form that GLUE's leaderboard takes "
        "(MNLI: also those of diagnostic.tsv). Once all 11 files are there, submission.zip is written beside them.",
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
    features: str | None = features_setting("the model of --model_on_top")
    model_on_top: str | None = setting(
        "bilstm",
        "--features: what reads them, of width --hidden_size. If unset, as the model was trained, or else bilstm.",
        choices=("bilstm", "cnn"),
        unset=True,
    )
    lstm_on_top: bool = lstm_setting("the classifier")
    class_weights: str | None = class_weights_setting("examples")
    model: str | None = setting(
        "bert",
        "bilstm, cnn: a model without BERT, trained from random word-piece embeddings. It needs --vocab_file instead "
        "of --init_checkpoint, more epochs, and a --learning_rate of about 1e-3, which is its default. If unset, as "
        "the model in --init_checkpoint or --output_dir was trained, or else bert.",
        choices=("bert", "bilstm", "cnn"),
        unset=True,
    )
    embedding_size: int | None = setting(
        300,
        "bilstm, cnn: width of the embeddings. If unset, as the model was trained, or else 300.",
        least=1,
        unset=True,
    )
    hidden_size: int | None = setting(
        300,
        "bilstm: width of both directions together; cnn: convolutions of widths 3, 4 and 5 together; in --model or "
        "--model_on_top. If unset, as the model was trained, or else 300.",
        least=1,
        unset=True,
    )

    @property
    def is_custom(self) -> bool:
        """Whether the data is in the user's own files."""
        return (self.task_name or "").lower() == "custom"

    @property
    def other_labels(self) -> tuple[str, ...]:
        """Further names of the labels, in the order of their ids, that a model may know them by."""
        is_glue = self.task_name and not self.is_custom
        return _glue_task(self.task_name, self.language).other_names if is_glue else ()

    def with_labels_of(self, stored: StartingHead) -> "ClassificationSettings":
        """The settings of a run that uses a model, with its labels where the settings have none.

        Raises:
          ValueError: nothing says which classes there are.
        """
        others = stored.head.architecture not in (None, TASKS["classification"].architecture, *WITHOUT_BERT)
        if not self.is_custom or self.labels or self.regression or others or stored.head.problem_type == "regression":
            return self
        if not stored.labels and not self.train_file:
            raise ValueError(data.NO_CLASSES)
        return dataclasses.replace(self, labels=stored.labels and list(stored.labels))

    def check(self, run: FineTuningSettings) -> HeadConfig | None:
        """Refuses contradictions, missing files, and files that lack a column.

        Returns:
          The head of the run's models, without labels if they are not known before all data is read; None: it is not
          known.

        Raises:
          ValueError, FileNotFoundError: names flag, or file and line.
        """
        if self.glue_submission:
            self._check_submission(run)
        self._check_features(run)
        run.check_trains_bert(not self.features and self.model in (None, "bert"))
        check_class_weights(self.class_weights, run.do_train)
        for name in ("regression", "multi_label") if self.class_weights else ():
            if getattr(self, name):
                raise ValueError(f"--class_weights is for one class an example; leave it out with --{name}.")
        if self.long_texts == "windows":
            self.check_windows(run)
        if self.long_texts == "cut":
            self.check_no_windows()
        self.check_predictions(run.do_predict)
        if self.tfds_name:
            check_extra("datasets", f"--tfds_name={self.tfds_name}")
            if self.text_b and not self.text_a:
                raise ValueError(f"--text_b={self.text_b} is the second text: give --text_a, too.")
            for name in (*{*_CUSTOM} - {"text_a", "text_b", "label", "labels"}, "data_dir", "language"):
                if (value := getattr(self, name)) and value != UTF_8:
                    raise ValueError(f"--{name} is for files of your own, not for --tfds_name={self.tfds_name}.")
            return None
        if not self.task_name:
            raise ValueError("Which task? Give --task_name or --tfds_name.")
        task = self._check_own_files(run) if self.is_custom else self._check_glue(run)
        if task.labels:
            check_labels_of(self.class_weights, task.labels)
        return HeadConfig(TASKS["classification"].architecture, task.labels or None, task.problem_type)

    def _check_submission(self, run: FineTuningSettings) -> None:
        from bert_tf.tasks.classification import glue

        glue.check_submission(None if self.tfds_name else self.task_name)
        if not run.do_predict:
            raise ValueError("--glue_submission needs --do_predict.")
        if run.num_seeds > 1 or run.search is not None:
            name = "num_seeds" if run.num_seeds > 1 else "search"
            raise ValueError(
                f"--glue_submission takes the predictions of one model: train with --{name} first, then predict with "
                "--init_checkpoint=OUTPUT_DIR/best_model."
            )
        check_output_dir(self.glue_submission, "--glue_submission")

    def _check_features(self, run: FineTuningSettings) -> None:
        flag = "--model" if self.model in TOKEN_READERS else "--model_on_top" if self.features else None
        reader = flag and (self.model if flag == "--model" else value_of(self, "model_on_top"))
        if flag and self.hidden_size is not None and self.hidden_size % (parts := TOKEN_READERS[reader]):
            raise ValueError(f"--hidden_size={self.hidden_size} must be a multiple of {parts} for {flag}={reader}.")
        if self.model_on_top and not self.features and run.do_train:
            raise ValueError("--model_on_top is for the feature-based way: give --features.")
        if self.features and self.lstm_on_top:
            raise ValueError("--lstm_on_top trains all of BERT, --features freezes it: give one.")
        if self.features and self.model in ("bilstm", "cnn"):
            raise ValueError(f"--features={self.features} needs a BERT: give --model_on_top={self.model}, not --model.")

    def check_texts(self, source: str) -> None:
        """Compares the columns with those that a model was trained on, where its run.json tells them.

        Args:
          source: the weights that are used.

        Raises:
          ValueError: a column of texts is that of the labels; names the flag. One text instead of two is a warning.
        """
        earlier = settings_of_model(source)
        for name in ("text_a", "text_b"):
            if (column := getattr(self, name)) and column == earlier.get("label"):
                raise ValueError(
                    f"--{name}={column} is no column of texts: in the training of {source} it had the labels."
                )
        pairs = trained_on_pairs(source) if self.is_custom else None
        if pairs not in (None, bool(self.text_b)):
            was, now = ("two texts", "one") if pairs else ("one text", "two")
            logging.warning("%s was trained on %s an example, and this run gives it %s (--text_b).", source, was, now)

    def check_sizes(self, has_features: bool) -> None:
        """Refuses sizes of other models with a BERT.

        Args:
          has_features: whether another model reads its outputs.

        Raises:
          ValueError: names the flag.
        """
        for name in ("embedding_size", *(() if has_features else ("hidden_size",))):
            if getattr(self, name) is not None:
                raise ValueError(f"--{name} is for --model=bilstm and --model=cnn; a BERT has the size of its weights.")

    def check_no_windows(self) -> None:
        """Refuses settings of windows where texts are cut.

        Raises:
          ValueError: names the flag.
        """
        for name in WINDOW_FLAGS:
            if (value := getattr(self, name)) is not None:
                raise ValueError(f"--{name}={value} is for --long_texts=windows.")

    def check_windows(self, run: FineTuningSettings) -> None:
        """Refuses what does not go together with windows of long texts.

        Raises:
          ValueError: names the other flag.
        """
        if self.text_b:
            raise ValueError(f"--long_texts=windows is for single texts; leave out --text_b={self.text_b}.")
        for name in ("features", "lstm_on_top", "model_on_top"):
            if getattr(self, name):
                raise ValueError(f"--long_texts=windows combines the pooled outputs of BERT; leave out --{name}.")
        if self.model in ("bilstm", "cnn"):
            raise ValueError(f"--long_texts=windows is for --model=bert; this is a {self.model}.")
        if run.teacher:
            raise ValueError("--teacher reads a text as one row, so that --long_texts=windows can't learn from it.")

    def _check_own_files(self, run: FineTuningSettings) -> data.Task:
        if not self.text_a:
            raise ValueError("--task_name=custom needs --text_a, the column of the text, by name or number.")
        for name in ("data_dir", "language"):
            if getattr(self, name):
                raise ValueError(
                    f"--{name} is for GLUE's tasks; --task_name=custom has --train_file, --dev_file, --test_file."
                )
        if (run.do_train or run.do_eval) and not self.label:
            raise ValueError("--task_name=custom needs --label, the column of the label, to train or evaluate.")
        run.check_files(train_file=self.train_file, dev_file=self.dev_file, test_file=self.test_file)
        if run.do_train:
            run.check_dev_set(bool(self.dev_file), ": give --dev_file")
        needed = {"train": run.do_train, "dev": run.do_train or run.do_eval, "test": run.do_predict}
        files = {kind: getattr(self, f"{kind}_file") if needed[kind] else None for kind in needed}
        for kind, file in files.items():
            check_file(file, f"--{kind}_file")
        declared = {name: getattr(self, name) for name in ("text_a", "text_b", "label", "labels", "regression",
                                                           "multi_label")}  # fmt: skip
        task = data.declared_task(*files.values(), **declared, table=self)
        splits, count = {"train": task.train, **task.dev, **task.test}, None
        for kind in filter(splits.get, splits):
            with unheard():
                with named_by(f"--{kind}_file"):
                    examples, are_all = data.check_examples(task, splits[kind])
                count = len(examples) if kind == "train" and are_all else count
                if kind != "train" or task.is_regression or task.labels or not examples:
                    continue
                if are_all or len({one.label for one in examples}) == 1:  # the rest may have others
                    task = data.custom_task(*files.values(), **declared, table=self)
                else:
                    self._check_known(run, examples)
        if count:
            run.check_steps(count)
        return task

    def _check_known(self, run: FineTuningSettings, examples: Sequence[data.InputExample]) -> None:
        """Refuses labels of the training file's beginning that a model to go on from can't have learned."""
        stored = stored_head(run, OUTPUT_LAYERS)
        others = (None, TASKS["classification"].architecture, *WITHOUT_BERT)
        if not (stored and stored.labels and stored.head.architecture in others):
            return
        found = sorted({label for one in examples for label in (one.label if self.multi_label else (one.label,))})
        known = spelled_as(stored.labels, found)
        if unknown := [label for label in found if label not in known]:
            raise stored.does_not_know("labels", "--train_file", unknown, run.do_train)

    def _check_glue(self, run: FineTuningSettings) -> data.Task:
        task = _glue_task(self.task_name, self.language)
        for name in _CUSTOM:
            if (value := getattr(self, name)) and value != UTF_8:
                raise ValueError(f"--{name} is for --task_name=custom; --task_name={self.task_name} has its own files.")
        if not self.data_dir:
            raise ValueError(f"--task_name={self.task_name} needs --data_dir, the folder with its files.")
        for needed, split in (
            (run.do_train, task.train),
            (run.do_eval, _main(task.dev)),
            (run.do_predict, _main(task.test)),
        ):
            if needed and split:
                try:
                    with unheard():
                        examples, are_all = data.check_examples(task, split, self.data_dir)
                except ValueError as error:
                    raise ValueError(f"--data_dir: {error}") from None
                if split is task.train and are_all:
                    run.check_steps(len(examples))
        return task


# Those of BERT's models, and of those without it.
OUTPUT_LAYERS = (*TASKS["classification"].output_layers, BASELINE_LAYER)

# What says how windows are made and used; only for --long_texts=windows.
_, *WINDOW_FLAGS = group(ClassificationSettings, "Long texts")


def trained_on_pairs(source: str) -> bool | None:
    """Whether weights were trained on two texts an example; None where no run.json tells it."""
    earlier = settings_of_model(source)
    if not isinstance(name := earlier.get("task_name"), str):
        return None
    return bool(earlier.get("text_b")) if name.lower() == "custom" else _glue_task(name).train.text_b is not None


def _glue_task(name: str, language: str = "") -> data.Task:
    from bert_tf.tasks.classification import glue  # files of your own don't need it

    return glue.find_task(name, language)


def _main(splits: Mapping[str, data.Split]) -> data.Split | None:
    return next(iter(splits.values()), None)
