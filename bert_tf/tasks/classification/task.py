"""Classification and regression for the fine-tuning run: examples, model, metrics and files of run_classifier.py."""

import dataclasses
from collections.abc import Callable

from absl import logging

from bert_tf.models import task_models
from bert_tf.store.description import read_head, read_max_length
from bert_tf.store.head_config import MAX_WINDOWS, NO_HEAD, HeadConfig
from bert_tf.system.declare import value_of
from bert_tf.system.messages import naming_flag
from bert_tf.tasks.classification import data, encode
from bert_tf.tasks.classification.label_checks import class_weights, warn_of_known_texts
from bert_tf.tasks.classification.settings import WINDOW_FLAGS, ClassificationSettings
from bert_tf.tasks.table import TASKS
from bert_tf.tasks.task import LOGGED_EXAMPLES, ExampleSet, FineTuningTask
from bert_tf.text import tokenizer_files
from bert_tf.training import run_directory
from bert_tf.training.settings import FineTuningSettings


class ClassificationTask(FineTuningTask):
    """Single-label, multi-label or regression: GLUE, XNLI, the user's own data. settings: `ClassificationSettings`."""

    name = "classification"
    dev_records, test_records = "eval", "predict"
    write_records = staticmethod(encode.write_records)
    windows: encode.TextWindows | None = None
    takes_pairs = False

    def resolve(self, run, newest):
        settings, source = self.settings, newest or run.init_checkpoint
        earlier = run_directory.read_settings(run.output_dir) if newest else {}
        then, now = earlier.get("task_name"), settings.task_name
        if earlier and str(then).lower() != now.lower():
            raise ValueError(
                f"--output_dir={run.output_dir} holds a run of --task_name={then}, this one is {now}. Choose another "
                f"directory; to use that run's model, give --init_checkpoint={run.output_dir}."
            )
        if not run.do_train and source:
            settings.check_texts(source)
        self.settings = settings = _with_windows(settings, run, newest)
        if settings.long_texts and source and not run.do_train:
            # With another length it would give other answers than `Predictor` and the exports.
            length = read_max_length(tokenizer_files.directory_of(source)) or run.max_seq_length
            if length != run.max_seq_length:
                logging.info("Windows of %d tokens, as in training; --max_seq_length is not used.", length)
            run = dataclasses.replace(run, max_seq_length=length)
        return run

    @property
    def other_labels(self):
        return self.task.other_names

    @property
    def answers(self):
        return TASKS[self.name].answers_of_pairs if self.takes_pairs else super().answers

    def texts_of(self, examples):
        return [text for text in (examples[0].text_a, examples[0].text_b) if text is not None]

    def describe(self, run, newest):
        files, tokenizer = super().describe(run, newest)
        if self.settings.long_texts:
            settings, length = self.settings, run.max_seq_length
            self.windows = encode.windows_of(settings.window_stride, settings.max_windows, tokenizer, length)
            self.settings = dataclasses.replace(settings, window_stride=self.windows.stride)
        windows = {name: getattr(self.settings, name) for name in WINDOW_FLAGS}
        files.head = HeadConfig(labels=files.head.labels, hidden_act=files.head.hidden_act, **windows)
        return files, tokenizer

    def load(self, run, files, tokenizer, newest):
        self.task, read = self._open(run)
        weights = self.settings.class_weights
        self.task = encode.with_best_metric(self.task, self.settings.best_metric, weights is not None)
        files.head = dataclasses.replace(
            files.head,
            architecture=TASKS[self.name].architecture,
            labels=self.task.labels, problem_type=self.task.problem_type,
        )  # fmt: skip
        self.files, self.main_metric, trained = files, f"eval_{self.task.metrics[0]}", []

        def encoded(kind: str, action: str) -> list[ExampleSet]:
            sets = []
            for name, examples in read(kind).items():
                logging.info("%s: %d examples", name, len(examples))
                self.takes_pairs |= bool(examples) and examples[0].text_b is not None
                rows = encode.encode_examples(examples, self.task, tokenizer, run.max_seq_length, windows=self.windows)
                if kind != "test" and rows.label_ids is None:
                    raise ValueError(f"--{action}: the set {name} has examples without label.")
                if kind == "dev" and trained:
                    warn_of_known_texts(trained, examples)
                if kind == "train":
                    if self.settings.is_custom:
                        trained.extend(examples)
                    encode.log_examples(examples[:LOGGED_EXAMPLES], rows, tokenizer)
                sets.append(ExampleSet(name, rows, examples, f"_{name}" if sets else ""))
            if not sets and getattr(run, action):
                raise ValueError(f"--{action}: the task {self.task.name} has no {kind} set here.")
            return sets

        if run.do_train:
            self.train_rows = next(split.rows for split in encoded("train", "do_train") if split.name == "train")
            files.head = dataclasses.replace(files.head, pairs=self.takes_pairs)
            if weights is not None:
                if self.task.problem_type != "single_label_classification":
                    raise ValueError("--class_weights is for tasks with one class an example.")
                self.class_weights = class_weights(weights, self.task.labels, self.train_rows.label_ids)
        if run.do_eval:
            self.dev_sets = encoded("dev", "do_eval")
        elif run.do_train:
            try:
                self.dev_sets = encoded("dev", "do_eval")
            except FileNotFoundError as error:
                if self.settings.dev_file:
                    raise
                logging.info("No evaluation while training: %s", error)
        if run.do_train:
            run.check_dev_set(bool(self.dev_sets), ", and the task has no dev set")
        if run.do_predict:
            self.test_sets = encoded("test", "do_predict")

    def _open(self, run) -> tuple[data.Task, Callable[[str], dict]]:
        """The task, and a function that reads its examples: "train", "dev" or "test" -> {name: examples}."""
        settings = self.settings
        if settings.is_custom:
            stored = None if run.do_train or settings.regression else self.starting_head
            if not settings.labels and stored and stored.labels:
                settings = dataclasses.replace(settings, labels=stored.labels)  # predicting needs no train file
            task = data.custom_task(settings)
        else:
            from bert_tf.tasks.classification import glue

            task = glue.find_task(settings.task_name, settings.language)

        def read(kind: str) -> dict:
            splits = {"train": {"train": task.train} if task.train else {}, "dev": task.dev, "test": task.test}[kind]
            sets = {}
            for number, (name, split) in enumerate(splits.items()):
                try:
                    with naming_flag(f"--{kind}_file" if settings.is_custom else "--data_dir"):
                        sets[name] = data.read_examples(task, split, settings.data_dir or "")
                except FileNotFoundError:
                    if number == 0:
                        raise  # only the further sets (mismatched) may be missing
                    logging.info("%s does not exist and is left out.", data.split_path(task, split, settings.data_dir))
            return sets

        return task, read

    def create_model(self, dtype):
        config, head = self.files.config, self.files.head
        num_labels = 1 if self.task.is_regression else len(self.task.labels)
        arguments = {"labels": head.labels, "problem_type": head.problem_type, "dtype": dtype}
        arguments |= {name: getattr(head, name) for name in ("hidden_act", *WINDOW_FLAGS)}
        return task_models.BertForSequenceClassification(config, num_labels, **arguments)

    def cost_of_example(self, tokens, flops, model):
        count = float(self.train_rows.windows.mean()) if self.windows else 1.0  # the cost is that of one window
        return tokens * count, flops * count

    def score(self, examples, outputs, batch_size):
        return encode.evaluate(self.task, outputs, examples.rows.label_ids, batch_size)

    def write_analysis(self, output_dir, examples, outputs, results):
        title = self.title_of(f"{self.task.name}, {examples.name}", output_dir, results)
        encode.write_analysis(output_dir, examples.suffix, self.task, outputs, examples.rows.label_ids, title=title)

    def write_predictions(self, output_dir, examples, outputs):
        encode.write_predictions(output_dir, examples.suffix, self.task, examples.examples, outputs)


def _with_windows(settings, run: FineTuningSettings, newest: str | None) -> ClassificationSettings:
    """The settings with the windows of the model that is resumed, used or trained on; long_texts "windows" or None."""
    source = newest or run.init_checkpoint
    head = read_head(tokenizer_files.directory_of(source)) if source else NO_HEAD
    windows = settings.long_texts == "windows" or (settings.long_texts is None and bool(head.window_pooling))
    goes_on = bool(source) and (bool(newest) or not run.do_train)
    if goes_on and windows != bool(head.window_pooling):
        was = f"on windows, pooled by {head.window_pooling}" if head.window_pooling else "on texts that are cut"
        raise ValueError(f"--long_texts={settings.long_texts} contradicts {source}, which was trained {was}.")
    if not windows:
        for name in WINDOW_FLAGS:
            if (value := getattr(settings, name)) is not None:
                raise ValueError(f"--{name}={value} is for --long_texts=windows.")
        return dataclasses.replace(settings, long_texts=None)
    pooling = settings.window_pooling or head.window_pooling or value_of(settings, "window_pooling")
    if goes_on and pooling != head.window_pooling:
        raise ValueError(
            f"--window_pooling={pooling} contradicts {source}, which was trained with {head.window_pooling}."
        )
    if settings.text_b:
        raise ValueError(f"--long_texts=windows is for single texts; leave out --text_b={settings.text_b}.")
    if run.teacher:
        raise ValueError("--teacher reads a text as one row, so that --long_texts=windows can't learn from it.")
    return dataclasses.replace(
        settings,
        long_texts="windows",
        window_pooling=pooling,
        window_stride=settings.window_stride or head.window_stride,
        max_windows=settings.max_windows or head.max_windows or MAX_WINDOWS,
    )
