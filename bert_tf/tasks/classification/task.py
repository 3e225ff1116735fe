"""Classification and regression for the fine-tuning run: examples, model, metrics and files of run_classifier.py."""

import dataclasses
import posixpath

import numpy as np
from absl import logging

from bert_tf.models import task_models
from bert_tf.store.head_config import MAX_WINDOWS, HeadConfig
from bert_tf.system.declare import value_of
from bert_tf.system.storage import write_text_file
from bert_tf.tasks import outcome
from bert_tf.tasks import rows as task_rows
from bert_tf.tasks.classification import metrics
from bert_tf.tasks.classification.settings import WINDOW_FLAGS, ClassificationSettings, class_weights, read_sets
from bert_tf.tasks.table import TASKS
from bert_tf.tasks.task import LOGGED_EXAMPLES, ExampleSet, FineTuningTask


class ClassificationTask(FineTuningTask):
    """Single-label, multi-label or regression: GLUE, XNLI, the user's own data. settings: `ClassificationSettings`."""

    name = "classification"
    dev_records, test_records = "eval", "predict"
    write_records = staticmethod(task_rows.write_records)
    windows: task_rows.TextWindows | None = None
    takes_pairs = False

    def describe(self, run, earlier):
        now = self.settings.task_name
        then = earlier.settings.get("task_name", now) if earlier.newest else now
        if then.lower() != now.lower():
            raise ValueError(
                f"--output_dir={run.output_dir} holds a run of --task_name={then}, this one is {now}. Choose another "
                f"directory; to use that run's model, give --init_checkpoint={run.output_dir}."
            )
        run, files, tokenizer = super().describe(run, earlier)
        self.settings = settings = self._with_windows()
        trained_with, goes_on = self.source_head.window_pooling, earlier.newest or not run.do_train
        if self.source and goes_on and settings.window_pooling != trained_with:
            is_of = "window_pooling" if settings.window_pooling and trained_with else "long_texts"
            was = f"on windows, pooled by {trained_with}" if trained_with else "on texts that are cut"
            given = f"--{is_of}={getattr(settings, is_of) or 'cut'}"
            raise ValueError(f"{given} contradicts {self.source}, which was trained {was}.")
        if settings.long_texts and run.teacher:
            raise ValueError("--teacher reads a text as one row, so that --long_texts=windows can't learn from it.")
        pairs = self.source_head.pairs
        if not run.do_train and settings.is_custom and pairs not in (None, bool(settings.text_b)):
            message = "%s was trained on %s an example, and this run gives it %s (--text_b)."
            logging.warning(message, self.source, *(("two texts", "one") if pairs else ("one text", "two")))
        windows = {name: getattr(settings, name) for name in WINDOW_FLAGS}
        if settings.long_texts:
            trained_on = None if run.do_train else files.max_seq_length
            # With another length it would give other answers than `Predictor` and the exports.
            if trained_on not in (None, run.max_seq_length):
                logging.info("Windows of %d tokens, as in training; --max_seq_length is not used.", trained_on)
                run = dataclasses.replace(run, max_seq_length=trained_on)
            stride, most = settings.window_stride, settings.max_windows
            self.windows = task_rows.windows_of(stride, most, tokenizer, run.max_seq_length)
            windows["window_stride"] = self.windows.stride
        files.head = HeadConfig(labels=files.head.labels, hidden_act=files.head.hidden_act, **windows)
        return run, files, tokenizer

    def _with_windows(self) -> ClassificationSettings:
        """The settings with the windows of the model that is resumed, used or trained on; long_texts "windows" or
        None."""
        settings, head = self.settings, self.source_head
        if settings.long_texts == "cut" or not (settings.long_texts or head.window_pooling):
            for name in WINDOW_FLAGS:
                if (value := getattr(settings, name)) is not None:
                    raise ValueError(f"--{name}={value} is for --long_texts=windows.")
            return dataclasses.replace(settings, long_texts=None)
        if settings.text_b:
            raise ValueError(f"--long_texts=windows is for single texts; leave out --text_b={settings.text_b}.")
        return dataclasses.replace(
            settings,
            long_texts="windows",
            window_pooling=settings.window_pooling or head.window_pooling or value_of(settings, "window_pooling"),
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
        if settings.is_custom and not (run.do_train or settings.regression or settings.labels):
            labels = self.starting_head and self.starting_head.labels  # predicting needs no train file
            settings = dataclasses.replace(settings, labels=labels)
        self.task, read = read_sets(settings, run)
        task = self.task
        if weights is not None:
            if task.problem_type != "single_label_classification":
                raise ValueError("--class_weights is for tasks with one class an example.")
            ids = task_rows.label_ids(task, [example.label for example in read["train"]["train"]])
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

    @property
    def rows_of_example(self):
        return float(self.train_rows.windows.mean()) if self.windows else 1.0

    def score(self, examples, outputs, batch_size):
        return metrics.evaluate(self.task, outputs, examples.rows.labels["label_ids"], batch_size)

    def write_analysis(self, output_dir, examples, outputs, results):
        """Writes classification_report<suffix>.txt and, for one label an example, confusion_matrix<suffix>.png."""
        task, labels = self.task, examples.rows.labels["label_ids"]
        if task.is_regression:
            return
        text, predicted = metrics.report(task, outputs, labels), metrics.predictions_of(task, outputs)
        write_text_file(posixpath.join(output_dir, f"classification_report{examples.suffix}.txt"), text)
        logging.info("Each class:\n%s", text)
        if len(predicted) > 1 and not np.ptp(predicted, 0).any() and np.ptp(labels, 0).any():
            first = np.array(task.labels)[np.flatnonzero(predicted[0]) if task.multi_label else predicted[0]].tolist()
            logging.warning("All %d predictions are %r: the model tells no classes apart.", len(predicted), first)
        if not task.multi_label:
            what, names = f"{task.name}, {examples.name}", list(task.labels)
            self.plot_confusion(output_dir, what, labels, predicted, names, results, examples.suffix)

    def write_predictions(self, output_dir, examples, outputs):
        described, name = metrics.describe_predictions(self.task, outputs), examples.suffix
        numbers = metrics.probabilities(self.task, outputs)
        path, _ = outcome.write_predictions(output_dir, name, examples.examples, described, numbers)
        logging.info("Wrote %d predictions to %s; test_results%s.tsv has their numbers.", len(described), path, name)
