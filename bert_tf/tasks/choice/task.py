"""Multiple choice for the fine-tuning run: examples, model, metrics and files of run_swag.py."""

import posixpath
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.data.token_rows import GroupedRows
from bert_tf.models import task_models
from bert_tf.store.head_config import HeadConfig, softmax
from bert_tf.system.messages import naming_flag
from bert_tf.tasks import rows as task_rows
from bert_tf.tasks.choice import data
from bert_tf.tasks.choice.data import ChoiceExample, describe
from bert_tf.tasks.classification import metrics
from bert_tf.tasks.classification.data import Task
from bert_tf.tasks.table import TASKS
from bert_tf.tasks.task import LOGGED_EXAMPLES, ExampleSet, FineTuningTask


class ChoiceTask(FineTuningTask):
    """One of N continuations is right. settings: `ChoiceSettings`."""

    name = "multiple_choice"
    write_records = staticmethod(task_rows.write_group_records)

    def load(self, run, files, tokenizer, newest):
        files.head = HeadConfig(TASKS[self.name].architecture)
        self.files, self.main_metric = files, "eval_accuracy"
        settings = self.settings

        def read(kind: str) -> ExampleSet:
            flag, path = f"--{kind}_file", getattr(settings, f"{kind}_file")
            options = {"first_label": settings.first_label, "table": settings.of_set(kind)}
            with naming_flag(flag):
                examples = data.read_examples(path, settings.columns, labels_needed=kind != "test", **options)
            rows = data.encode_examples(examples, tokenizer, run.max_seq_length)
            count, trained = rows.rows_per_example, self.train_rows and self.train_rows.rows_per_example
            logging.info("%s: %d examples of %d choices", flag, len(rows), count)
            if trained and count != trained:
                logging.warning("%s has %d choices, --train_file %d.", flag, count, trained)
            return ExampleSet(kind, rows, examples)

        if run.do_train:
            self.train_rows = read("train").rows
            task_rows.log_groups(self.train_rows, tokenizer, LOGGED_EXAMPLES)
        if run.do_eval:
            self.dev_sets = [read("dev")]
        if run.do_predict:
            self.test_sets = [read("test")]

    def create_model(self, dtype):
        return task_models.BertForMultipleChoice(self.files.config, dtype=dtype)

    def score(self, examples, logits, batch_size):
        return evaluate(examples.rows, logits, batch_size)

    def texts_of(self, examples):
        return [examples[0].context, *examples[0].choices]

    def write_analysis(self, output_dir, examples, logits, results):
        title = self.title_of("Place of the right choice, dev set", output_dir, results)
        write_confusion_matrix(output_dir, examples.rows, logits, title)

    def write_predictions(self, output_dir, examples, logits):
        paths = write_predictions(output_dir, examples.examples, logits)
        logging.info("Wrote the choices in %d examples to %s.", len(examples.rows), " and ".join(paths))


# --- evaluation and predictions ---------------------------------------------------------------------------------------


def evaluate(rows: GroupedRows, logits: np.ndarray, batch_size: int) -> dict[str, float]:
    """eval_accuracy, eval_loss (mean over examples) and loss (over batches), see `classification.metrics.evaluate`."""
    task = Task("multiple choice", tuple(map(str, range(rows.rows_per_example))), None)
    return metrics.evaluate(task, logits, rows.labels["label_ids"], batch_size)


def write_confusion_matrix(output_dir: str, rows: GroupedRows, logits: np.ndarray, title: str) -> None:
    """Writes confusion_matrix.png: the positions of the right choices and of the chosen ones."""
    from bert_tf.training import plots

    labels, chosen = rows.labels["label_ids"], np.argmax(logits, -1)
    path = posixpath.join(output_dir, "confusion_matrix.png")
    plots.plot_confusion_matrix(labels, chosen, list(map(str, range(rows.rows_per_example))), path, title=title)


def write_predictions(output_dir: str, examples: Sequence[ChoiceExample], logits: np.ndarray) -> list[str]:
    """Writes predictions.jsonl (see `outcome.write_predictions`) and test_results.tsv; returns their paths.

    The first has for each example its number `guid`, what `describe` gives, and the `label` if there is one. The second
    has the probabilities, as run_classifier.py writes them.
    """
    from bert_tf.tasks.rows import write_predictions as write  # serving writes none

    probabilities = softmax(np.asarray(logits, np.float32))
    described = []
    for example, row in zip(examples, probabilities, strict=True):
        record = describe(example, row)
        if example.label is not None:
            record["label"] = example.label
        described.append(record)
    return write(output_dir, "", examples, described, probabilities)
