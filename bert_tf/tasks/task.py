"""What a fine-tuning run needs to know of a task: its data, its model, its metrics and what it writes."""

import abc
import dataclasses
import posixpath
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.token_rows import TokenRows
from bert_tf.families.config import shallower
from bert_tf.models import task_models
from bert_tf.store.description import ModelFiles, read_head
from bert_tf.store.head_config import NO_HEAD, OUTPUT_LAYER
from bert_tf.tasks.table import TASKS
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training import fine_tuning, plots, run_directory, starting_model
from bert_tf.training.settings import FineTuningSettings
from bert_tf.training.starting_model import Adjustment, StartingHead
from bert_tf.training.teacher import Teacher, open_teacher

LOGGED_EXAMPLES = 3


@dataclasses.dataclass
class ExampleSet:
    """Examples to evaluate on or to predict.

    name: of the set, for messages. rows: encoded. examples: as the task read them.
    suffix: of the names of its files: "" for the main set.
    """

    name: str
    rows: TokenRows
    examples: object = None
    suffix: str = ""


class FineTuningTask(abc.ABC):
    """What a task contributes to the run; subclasses set the attributes in `load`.

    name: in the table of tasks. is_chief: whether this process writes files.
    num_replicas: over which a batch is divided. main_metric: chooses the best model.
    files: that are written next to the weights; `head` says which task the model is trained for.
    earlier: what is in output_dir. source: the path of the weights that the run goes on from, uses or begins with.
    source_head: next to them. starting_head, teacher: what `describe` opens: their output layer, and the teacher.
    adjust: of the weights, so that their output layer is that of the labels; see `adjustment_of`.
    train_rows: token rows to train on; None without --do_train.
    class_weights: of the classes in the loss; None: 1.
    other_labels: further names of the labels, in the order of their ids, that a model may know them by.
    dev_sets, test_sets: the first one is the main set. test_records: first part of the names of their record files,
      None: none are written; dev_records likewise.
    """

    name: str
    other_labels: tuple[str, ...] = ()
    dev_records: str | None = None
    test_records: str | None = None

    def __init__(self, settings):
        self.settings = settings
        self.is_chief, self.num_replicas = True, 1
        self.main_metric = ""
        self.files: ModelFiles | None = None
        self.earlier, self.source, self.source_head = run_directory.EarlierRun(""), None, NO_HEAD
        self.starting_head: StartingHead | None = None
        self.teacher: Teacher | None = None
        self.adjust: Adjustment = starting_model.unchanged
        self.train_rows: TokenRows | None = None
        self.class_weights = None
        self.dev_sets: list[ExampleSet] = []
        self.test_sets: list[ExampleSet] = []

    @property
    def answers(self) -> str | None:
        """The line of Python that answers with a trained model at {path}, if any."""
        return TASKS[self.name].answers

    @abc.abstractmethod
    def texts_of(self, examples) -> list[str]:
        """The texts of the first of an `ExampleSet`'s examples, in the order in which `answers` has its own."""

    def known_texts(self) -> list[str]:
        """`texts_of` the main dev set; empty without one."""
        return self.texts_of(self.dev_sets[0].examples) if self.dev_sets else []

    def describe(
        self, run: FineTuningSettings, earlier: run_directory.EarlierRun
    ) -> tuple[FineTuningSettings, ModelFiles, Tokenizer]:
        """Opens all models that the run reads; returns its settings with what follows from them, and what describes its
        model, see `starting_model.describe_model`."""
        newest, layer = earlier.newest, TASKS[self.name].output_layer
        files, tokenizer = starting_model.describe_model(run, newest, layer)
        if run.layers:
            files.config = shallower(files.config, run.layers)
        self.earlier, self.source = earlier, newest or run.init_checkpoint
        self.source_head = read_head(self.source) if self.source else NO_HEAD
        self.starting_head = starting_model.find_head(run, files, self.source_head, newest, layer)
        # Several tasks have the layer of classifiers.
        architecture = TASKS[self.name].architecture if layer == OUTPUT_LAYER else None
        like = (tokenizer, run.max_seq_length, layer, architecture)
        self.teacher = open_teacher(run.teacher, *like) if run.teacher else None
        return run, files, tokenizer

    @abc.abstractmethod
    def load(self, run: FineTuningSettings, files: ModelFiles, tokenizer: Tokenizer) -> None:
        """Reads, checks and encodes all data, and sets the attributes."""

    def is_trained_on(self, examples: ExampleSet) -> bool:
        """Whether a dev set has the texts of the training set, and no others."""
        trained_on, other = self.train_rows, examples.rows
        return all(np.array_equal(getattr(trained_on, name), getattr(other, name)) for name in ("ids", "offsets"))

    @abc.abstractmethod
    def create_model(self, dtype: str) -> keras.Model:
        """The model, not built yet."""

    def create_teacher(self, teacher: Teacher, dtype: str) -> keras.Model:
        """A teacher's model, built, with its outputs in the order of the student's."""
        kind = getattr(task_models, TASKS[self.name].architecture)
        labels = {"labels": teacher.labels} if teacher.labels else {}
        return kind.from_pretrained(teacher.files, dtype=dtype, trained=True, **labels)

    def num_training_examples(self) -> int:
        return len(self.train_rows)

    @property
    def rows_of_example(self) -> float:
        """The mean number of rows that the encoder reads for a training example."""
        return getattr(self.train_rows, "rows_per_example", 1)

    def training_batches(self, **arguments) -> tf.data.Dataset:
        return token_rows.training_batches(self.train_rows, **arguments)

    def begin(self, run: FineTuningSettings) -> None:  # noqa: B027
        """Called before each run, and before the first for all of them: none depends on what an earlier one chose."""

    def write_beside_training(self, output_dir: str) -> None:  # noqa: B027
        """Writes the training's own files, once everything has been checked."""

    @abc.abstractmethod
    def write_records(self, path: str, rows: TokenRows, max_seq_length: int) -> None:
        """Writes token rows as the original's record files."""

    def outputs_of(self, predict: Callable, examples: ExampleSet, *, batch_size: int, **padding):
        """The model's outputs for a set: by default logits [n, ...] in the order of its rows."""
        batches = token_rows.evaluation_batches(examples.rows, batch_size=batch_size, **padding)
        return token_rows.in_order(examples.rows, batch_size, predict(batches))

    @abc.abstractmethod
    def score(self, examples: ExampleSet, outputs, batch_size: int) -> dict[str, float]:
        """`eval_<metric>` of the outputs for a set."""

    def further_files(self, examples: ExampleSet, outputs) -> dict[str, str]:
        """name -> content of further files of the model that had these outputs for the main dev set."""
        return {}

    def evaluate(self, examples: ExampleSet, outputs, batch_size: int):
        """(outputs, results) that are reported for a dev set: a function of the outputs, whatever was before."""
        return outputs, self.score(examples, outputs, batch_size)

    def title_of(self, what: str, output_dir: str, results: Mapping[str, float]) -> str:
        """The title of a picture: the step, and the metric that chooses the best one."""
        step, metric = results["global_step"], self.main_metric
        best = (fine_tuning.read_best_results(output_dir) or {}).get("step", step)
        beside = "" if best == step else f" (the best is {best})"
        return f"{what}, step {step}{beside}: {metric.removeprefix('eval_')} {results[metric]:.3f}"

    def plot_confusion(self, output_dir: str, what: str, gold, predicted, names: list[str], results, suffix="") -> None:
        """Draws confusion_matrix<suffix>.png. gold, predicted: numbers of classes. what, results: see `title_of`."""
        path = posixpath.join(output_dir, f"confusion_matrix{suffix}.png")
        title = self.title_of(what, output_dir, results)
        plots.plot_confusion_matrix(gold, predicted, names, path, title=title)

    def write_analysis(self, output_dir: str, examples: ExampleSet, outputs, results: dict) -> None:  # noqa: B027
        """Writes more about a dev set than its results: a report, a confusion matrix. results: with global_step."""

    @abc.abstractmethod
    def write_predictions(self, output_dir: str, examples: ExampleSet, outputs) -> None:
        """Writes what is predicted for a test set."""

    def score_predictions(self, output_dir: str, examples: ExampleSet, outputs, step: int, batch_size: int) -> None:
        if examples.rows.labels.keys() & {"label_ids", "scores"}:
            logging.info("Step %d, %s:", step, examples.name)
            path = posixpath.join(output_dir, f"test_results{examples.suffix}.txt")
            scores = self.score(examples, outputs, batch_size)
            results = {name.replace("eval_", "test_"): value for name, value in scores.items()}
            run_directory.write_eval_results(path, {**results, "global_step": step})
