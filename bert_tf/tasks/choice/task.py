"""Multiple choice for the fine-tuning run: examples, model, metrics and files of run_swag.py."""

import numpy as np
from absl import logging

from bert_tf.models import task_models
from bert_tf.store.head_config import HeadConfig, softmax
from bert_tf.system.messages import naming_flag
from bert_tf.tasks import outcome
from bert_tf.tasks import rows as task_rows
from bert_tf.tasks.choice import data
from bert_tf.tasks.classification import metrics
from bert_tf.tasks.rows import Task
from bert_tf.tasks.table import TASKS
from bert_tf.tasks.task import LOGGED_EXAMPLES, ExampleSet, FineTuningTask


class ChoiceTask(FineTuningTask):
    """One of N continuations is right. settings: `ChoiceSettings`."""

    name = "multiple_choice"
    write_records = staticmethod(task_rows.write_group_records)

    def load(self, run, files, tokenizer):
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
        task = Task("multiple choice", tuple(map(str, range(examples.rows.rows_per_example))), None)
        return metrics.evaluate(task, logits, examples.rows.labels["label_ids"], batch_size)

    def texts_of(self, examples):
        return [examples[0].context, *examples[0].choices]

    def write_analysis(self, output_dir, examples, logits, results):
        names, what = list(map(str, range(examples.rows.rows_per_example))), "Place of the right choice, dev set"
        labels = examples.rows.labels["label_ids"]
        self.plot_confusion(output_dir, what, labels, np.argmax(logits, -1), names, results)

    def write_predictions(self, output_dir, examples, logits):
        probabilities, described = softmax(np.asarray(logits, np.float32)), []
        for example, row in zip(examples.examples, probabilities, strict=True):
            described.append(data.describe(example, row) | ({} if example.label is None else {"label": example.label}))
        paths = outcome.write_predictions(output_dir, "", examples.examples, described, probabilities)
        logging.info("Wrote the choices in %d examples to %s.", len(described), " and ".join(paths))
