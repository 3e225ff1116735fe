"""Classification and regression for the fine-tuning run: examples, model, metrics and files of run_classifier.py."""

import dataclasses

from absl import logging

from bert_tf.models import task_models
from bert_tf.store.head_config import MAX_WINDOWS, HeadConfig
from bert_tf.system.declare import value_of
from bert_tf.tasks import rows as task_rows
from bert_tf.tasks.classification import data, metrics
from bert_tf.tasks.classification.settings import (
    WINDOW_FLAGS,
    ClassificationSettings,
    class_weights,
    declared_task,
    read_sets,
    with_best_metric,
)
from bert_tf.tasks.table import TASKS
from bert_tf.tasks.task import LOGGED_EXAMPLES, ExampleSet, FineTuningTask
from bert_tf.training.settings import FineTuningSettings


class ClassificationTask(FineTuningTask):
    """Single-label, multi-label or regression: GLUE, XNLI, the user's own data. settings: `ClassificationSettings`."""

    name = "classification"
    dev_records, test_records = "eval", "predict"
    write_records = staticmethod(task_rows.write_records)
    windows: task_rows.TextWindows | None = None
    takes_pairs = False

    def describe(self, run, earlier):
        settings, begun = self.settings, earlier.settings if earlier.newest else {}
        then, now = begun.get("task_name"), settings.task_name
        if begun and str(then).lower() != now.lower():
            raise ValueError(
                f"--output_dir={run.output_dir} holds a run of --task_name={then}, this one is {now}. Choose another "
                f"directory; to use that run's model, give --init_checkpoint={run.output_dir}."
            )
        run, files, tokenizer = super().describe(run, earlier)
        settings = self._with_windows(run)
        if not run.do_train:
            settings.check_texts(self.source)
        if settings.long_texts:
            length = run.max_seq_length
            if not run.do_train:  # with another length it would give other answers than `Predictor` and the exports
                length = files.max_seq_length or length
            if length != run.max_seq_length:
                logging.info("Windows of %d tokens, as in training; --max_seq_length is not used.", length)
                run = dataclasses.replace(run, max_seq_length=length)
            self.windows = task_rows.windows_of(settings.window_stride, settings.max_windows, tokenizer, length)
            settings = dataclasses.replace(settings, window_stride=self.windows.stride)
        self.settings = settings
        windows = {name: getattr(settings, name) for name in WINDOW_FLAGS}
        files.head = HeadConfig(labels=files.head.labels, hidden_act=files.head.hidden_act, **windows)
        return run, files, tokenizer

    def _with_windows(self, run: FineTuningSettings) -> ClassificationSettings:
        """The settings with the windows of the model that is resumed, used or trained on; long_texts "windows" or
        None."""
        settings, source, head = self.settings, self.source, self.source_head
        windows = settings.long_texts == "windows" or (settings.long_texts is None and bool(head.window_pooling))
        goes_on = bool(source) and (bool(self.earlier.newest) or not run.do_train)
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
            raise ValueError(f"--window_pooling={pooling} contradicts {source}, trained with {head.window_pooling}.")
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

    @property
    def other_labels(self):
        return self.task.other_names

    @property
    def answers(self):
        return TASKS[self.name].answers_of_pairs if self.takes_pairs else super().answers

    def texts_of(self, examples):
        return [text for text in (examples[0].text_a, examples[0].text_b) if text is not None]

    def load(self, run, files, tokenizer):
        settings, weights = self.settings, self.settings.class_weights
        if not settings.is_custom:
            task = data.find_task(settings.task_name, settings.language)
        else:
            stored = None if run.do_train or settings.regression else self.starting_head
            if not settings.labels and stored and stored.labels:
                settings = dataclasses.replace(settings, labels=stored.labels)  # predicting needs no train file
            task = declared_task(settings)
        task, read = read_sets(task, settings, run)
        self.task = task = with_best_metric(task, settings.best_metric, weights is not None)
        if weights is not None:
            if task.problem_type != "single_label_classification":
                raise ValueError("--class_weights is for tasks with one class an example.")
            numbers = {label: number for number, label in enumerate(task.labels)}
            ids = [numbers[example.label] for example in read["train"]["train"]]
            self.class_weights = class_weights(weights, task.labels, ids)
        run.check_dev_set(bool(read["dev"]) or not run.do_train, ", and the task has no dev set")
        encoded = {kind: [] for kind in read}
        for kind, sets in read.items():
            for name, examples in sets.items():
                self.takes_pairs |= examples[0].text_b is not None
                rows = task_rows.encode_examples(examples, task, tokenizer, run.max_seq_length, windows=self.windows)
                encoded[kind].append(ExampleSet(name, rows, examples, f"_{name}" if encoded[kind] else ""))
        self.dev_sets, self.test_sets, self.main_metric = encoded["dev"], encoded["test"], f"eval_{task.metrics[0]}"
        what = {"architecture": TASKS[self.name].architecture, "problem_type": task.problem_type}
        self.files, files.head = files, dataclasses.replace(files.head, labels=task.labels, **what)
        for train in encoded["train"]:
            task_rows.log_examples(train.examples[:LOGGED_EXAMPLES], train.rows, tokenizer)
            self.train_rows, files.head = train.rows, dataclasses.replace(files.head, pairs=self.takes_pairs)

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
        return metrics.evaluate(self.task, outputs, examples.rows.labels["label_ids"], batch_size)

    def write_analysis(self, output_dir, examples, outputs, results):
        title = self.title_of(f"{self.task.name}, {examples.name}", output_dir, results)
        metrics.write_analysis(
            output_dir, examples.suffix, self.task, outputs, examples.rows.labels["label_ids"], title=title
        )

    def write_predictions(self, output_dir, examples, outputs):
        described, name = metrics.describe_predictions(self.task, outputs), examples.suffix
        numbers = metrics.probabilities(self.task, outputs)
        path, _ = task_rows.write_predictions(output_dir, name, examples.examples, described, numbers)
        logging.info("Wrote %d predictions to %s; test_results%s.tsv has their numbers.", len(described), path, name)
