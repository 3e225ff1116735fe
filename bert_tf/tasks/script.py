"""The fine-tuning run of all tasks: restore, train, keep the best model, evaluate, predict; with one seed or several.

    from bert_tf.tasks.classification.settings import ClassificationSettings
    from bert_tf.tasks.classification.task import ClassificationTask
    from bert_tf.tasks.script import fine_tune
    from bert_tf.training.settings import FineTuningSettings

    task = ClassificationTask(ClassificationSettings(
        task_name="custom", train_file="train.csv", dev_file="dev.csv", text_a="review", label="stars"))
    run = FineTuningSettings(output_dir="reviews", init_checkpoint="uncased_L-4_H-256_A-4", do_train=True, do_eval=True)
    results = fine_tune(task, run)

The scripts do the same: run_*.py fill the settings from their flags. A task supplies its own part in a subclass of
`FineTuningTask`. In output_dir: checkpoints while it runs, best_model/, run.json, results; the same call resumes a
run that was killed.
"""

import abc
import contextlib
import dataclasses
import posixpath
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.shares import Share
from bert_tf.data.token_rows import TokenRows
from bert_tf.models import card, flops, task_models, teacher_layers
from bert_tf.models.card import CardFacts
from bert_tf.models.class_weights import with_class_weights
from bert_tf.models.config import BertConfig
from bert_tf.models.directory import ModelFiles
from bert_tf.models.distillation import DistillationObjective, TaughtModel
from bert_tf.models.recipe import Recipe
from bert_tf.system.atomic import write_text_file
from bert_tf.tasks import last_words, search, seeds
from bert_tf.tasks.table import TASKS
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training import best_model, card_facts, checkpoints, distribution, fine_tuning, loop, plots, run_directory
from bert_tf.training import step as train_step
from bert_tf.training.log import LOG_FILE
from bert_tf.training.settings import FineTuningSettings
from bert_tf.training.starting_head import Adjustment, adjustment_of
from bert_tf.training.step import TrainingPlan
from bert_tf.training.teacher import Teacher, check_resumed, open_teacher, with_labels_of

LOGGED_EXAMPLES = 3
_FEW_STEPS = 50


@dataclasses.dataclass
class ExampleSet:
    """Examples to evaluate on or to predict.

    Attributes:
      name: of the set, for messages. rows: encoded. examples: as the task read them.
      suffix: of the names of its files: "" for the main set.
    """

    name: str
    rows: TokenRows
    examples: object = None
    suffix: str = ""


class FineTuningTask(abc.ABC):
    """What a task contributes to the run; subclasses set the attributes in `load`.

    Attributes:
      name: in the table of tasks. settings: the task's own, a dataclass. is_chief: whether this process writes files.
      num_replicas: over which a batch is divided.
      main_metric: chooses the best model.
      files: what goes with the model; `head` says which task the model is trained for.
      adjust: of the weights, so that their output layer is that of the labels; see `adjustment_of`.
      train_rows: token rows to train on; None without --do_train.
      class_weights: of the classes in the loss; None: 1.
      dev_sets, test_sets: the first one is the main set. test_records: first part of the names of their record files,
        None: none are written; dev_records likewise.
    """

    name: str
    dev_records: str | None = None
    test_records: str | None = None

    def __init__(self, settings):
        self.settings = settings
        self.is_chief, self.num_replicas = True, 1
        self.main_metric = ""
        self.files: ModelFiles | None = None
        self.adjust: Adjustment | None = None
        self.train_rows: TokenRows | None = None
        self.class_weights = None
        self.dev_sets: list[ExampleSet] = []
        self.test_sets: list[ExampleSet] = []

    @property
    def output_layer(self) -> str | None:
        """The variable without which a checkpoint can't evaluate or predict; None: an encoder alone can."""
        return TASKS[self.name].output_layer

    @property
    def answers(self) -> str | None:
        """The line of Python that answers with a trained model at {path}; None if there is none."""
        return TASKS[self.name].answers

    @abc.abstractmethod
    def texts_of(self, examples) -> list[str]:
        """The texts of the first of an `ExampleSet`'s examples, in the order in which `answers` has its own."""

    @property
    def trains_bert(self) -> bool:
        """Whether BERT is trained, not only what is on top of it; known after `resolve`."""
        return not getattr(self.settings, "features", None)

    def recipe_of(self, config: BertConfig) -> Recipe:
        """The recipe of the model's family, or BERT's where what is trained is not of that family."""
        return config.recipe if self.trains_bert else Recipe()

    def resolve(self, run: FineTuningSettings, newest: str | None) -> FineTuningSettings:
        """The run's settings with what follows from the task's.

        Args:
          newest: checkpoint in output_dir, if any.
        """
        return run

    def describe(self, run: FineTuningSettings, newest: str | None) -> tuple[ModelFiles, Tokenizer]:
        """What goes with the model; see `fine_tuning.describe_model`."""
        return fine_tuning.describe_model(run, newest, self.output_layer)

    @abc.abstractmethod
    def load(self, run: FineTuningSettings, files: ModelFiles, tokenizer: Tokenizer, newest: str | None) -> None:
        """Reads, checks and encodes all data, and sets the attributes."""

    @abc.abstractmethod
    def create_model(self, dtype: str) -> keras.Model:
        """The model, not built yet."""

    def open_teacher(self, run: FineTuningSettings, tokenizer: Tokenizer) -> Teacher:
        """The run's teacher; see `teacher.open_teacher`."""
        return open_teacher(run.teacher, tokenizer, run.max_seq_length, self.teacher_layers, self.teacher_architecture)

    @property
    def other_labels(self) -> tuple[str, ...]:
        """Further names of the labels, in the order of their ids, that a model may know them by."""
        return ()

    @property
    def teacher_layers(self) -> tuple[str, ...]:
        """The output layers of the models that `create_teacher` can open."""
        return tuple(filter(None, (TASKS[self.name].output_layer, TASKS[self.name].other_layer)))

    @property
    def teacher_architecture(self) -> str | None:
        """The class of a teacher's model, as head_config.json names it; None if its output layer shows it."""
        return TASKS[self.name].architecture

    def create_teacher(self, teacher: Teacher, dtype: str) -> keras.Model:
        """A teacher's model, built, with its outputs in the order of the student's."""
        kind = getattr(task_models, TASKS[self.name].architecture)
        labels = {"labels": teacher.labels} if teacher.labels else {}
        return kind.from_pretrained(teacher.path, dtype=dtype, trained=True, **labels)

    def num_training_examples(self) -> int:
        """What an epoch counts."""
        return len(self.train_rows)

    def change_plan(self, plan: TrainingPlan, model: keras.Model) -> TrainingPlan:
        """The plan, corrected by a task that knows better what an example costs."""
        return plan

    def training_batches(self, **arguments) -> tf.data.Dataset:
        """See `token_rows.training_batches`."""
        return token_rows.training_batches(self.train_rows, **arguments)

    def begin(self, run: FineTuningSettings) -> None:  # noqa: B027
        """Called before each run, and before the first for all of them: none depends on what an earlier one chose.

        Raises:
          ValueError: the settings don't fit the data; names the flag.
        """

    def write_beside_training(self, output_dir: str) -> None:  # noqa: B027
        """Writes what goes with the training, once everything has been checked."""

    @abc.abstractmethod
    def write_records(self, path: str, rows: TokenRows, max_seq_length: int) -> None:
        """Writes token rows as the original's record files."""

    def outputs_of(self, predict: Callable, examples: ExampleSet, *, batch_size: int, max_seq_length: int,
                static_padding: bool):  # fmt: skip
        """The model's outputs for a set: by default logits [n, ...] in the order of its rows.

        Args:
          predict: of `step.make_predict_function`.
        """
        return predict_logits(
            predict, examples.rows, batch_size=batch_size, max_seq_length=max_seq_length, static_padding=static_padding
        )

    @abc.abstractmethod
    def score(self, examples: ExampleSet, outputs, batch_size: int) -> dict[str, float]:
        """`eval_<metric>` of the outputs for a set."""

    def further_files(self, examples: ExampleSet, outputs) -> dict[str, str]:
        """name -> content of further files of the model that had these outputs for the main dev set."""
        return {}

    def evaluate(self, examples: ExampleSet, outputs, batch_size: int):
        """(outputs, results) that are reported for a dev set: a function of the outputs, whatever was before."""
        return outputs, self.score(examples, outputs, batch_size)

    def write_analysis(self, output_dir: str, examples: ExampleSet, outputs, results: dict) -> None:  # noqa: B027
        """Writes more about a dev set than its results: a report, a confusion matrix. results: with global_step."""

    @abc.abstractmethod
    def write_predictions(self, output_dir: str, examples: ExampleSet, outputs) -> None:
        """Writes what is predicted for a test set."""

    def score_predictions(self, output_dir: str, examples: ExampleSet, outputs, step: int, batch_size: int) -> None:  # noqa: B027
        """Scores a test set that has labels, and writes the results."""


def predict_logits(
    predict: Callable, rows: TokenRows, *, batch_size: int, max_seq_length: int, static_padding: bool
) -> np.ndarray:
    """Logits [n, ...] of all rows in their order.

    Args:
      predict: of `step.make_predict_function`.
    """
    batches = token_rows.evaluation_batches(
        rows, batch_size=batch_size, max_seq_length=max_seq_length, static_padding=static_padding
    )
    return token_rows.in_order(rows, batch_size, predict(batches))


def fine_tune(task: FineTuningTask, run: FineTuningSettings) -> dict[str, float]:
    """Trains, evaluates and predicts, as the settings say.

    Everything is read and checked before anything is computed or written.

    Returns:
      The results on the main dev set with `global_step`; of several seeds those of the best one, of several
      combinations of settings those of the best one's best seed. Empty without any.

    Raises:
      FileNotFoundError, OSError, ValueError: a setting, a file or the model does not fit; names the flag.
      NonFiniteLossError, SystemExit: see `loop.train`.
    """
    run.check()
    task.settings.check(run)
    grid, newest = run.combinations, None
    run = dataclasses.replace(run, **grid[0])
    if run.overwrite_output_dir:
        settings = {**dataclasses.asdict(task.settings), **dataclasses.asdict(run)}
        run_directory.check_removable(run.output_dir, settings)
    else:
        if run.do_train:
            checkpoints.check_newest(run.output_dir, run.resume_from_older)
        newest = checkpoints.latest_checkpoint(run.output_dir)
        if newest and run.search:
            raise ValueError(f"--output_dir={run.output_dir} holds a run of its own: choose another one for --search.")
    if run.layers:
        run = dataclasses.replace(run, init_checkpoint=run.teacher)
    run = task.resolve(run, newest)
    for name in ("freeze_layers", "lora_rank", "layerwise_lr_decay", "classifier_dropout", "recompute"):
        is_given = getattr(run, name) is not None and getattr(run, name) is not False
        if is_given and not task.trains_bert:
            raise ValueError(f"--{name} is for models whose BERT is trained; here it is frozen, or there is none.")
    if run.teacher and task.trains_bert and not (run.layers or run.init_checkpoint or run.bert_config_file or newest):
        raise ValueError(
            "--teacher: there is no student. Give --student_layers for one made of the teacher's layers, or "
            "--init_checkpoint or --bert_config_file for one of its own."
        )
    if run.lora_rank is not None and not (run.init_checkpoint or newest):
        raise ValueError("--lora_rank adapts a trained encoder: give --init_checkpoint.")
    files, tokenizer = task.describe(run, newest)
    if run.layers:
        files.config = teacher_layers.shallower(files.config, run.layers)
    recipe = task.recipe_of(files.config)
    run = fine_tuning.with_recipe(run, files.config, recipe)
    runs = [fine_tuning.with_recipe(dataclasses.replace(run, **values), files.config, recipe) for values in grid]
    strategy = fine_tuning.set_up_devices(run)
    task.is_chief, task.num_replicas = distribution.is_chief(strategy), strategy.num_replicas_in_sync
    if run.do_train and task.is_chief:
        run_directory.check_free(run.output_dir)
    teacher = task.open_teacher(run, tokenizer) if run.teacher else None
    task.load(run, files, tokenizer, newest)
    if teacher:
        teacher = with_labels_of(teacher, task.files.head, task.other_labels, run.distillation_temperature)
    task.adjust = adjustment_of(run, newest, task.output_layer, task.files.head, task.other_labels)
    steps = [0]
    if run.do_train:
        run.check_dev_set(bool(task.dev_sets), ", and the task has no dev set")
        count = task.num_training_examples()
        steps = [fine_tuning.number_of_steps(count, one.train_batch_size, one.num_train_epochs) for one in runs]
        warn_of_few_steps(min(steps))
    for one in runs:
        task.begin(one)
    with contextlib.ExitStack() as stack:
        if run.do_train and task.is_chief:
            stack.enter_context(run_directory.owned(run.output_dir, run.checkpoints_while_training))
        stack.enter_context(distribution.naming_lost_workers(strategy))
        if run.overwrite_output_dir:
            run_directory.remove_run(run.output_dir)
        if run.search:
            results, table = search.try_all(
                runs,
                lambda one, number: _run_seeds(task, one, strategy, steps[number], teacher)[0],
                task.main_metric,
            )
        else:
            results, table = _run_seeds(task, run, strategy, steps[0], teacher)
        best = seeds.best_of(results, task.main_metric)
        if task.is_chief:
            print(table, end="")
            last_words.tell(task, run, results[best], best, max(steps))
        return results[best]


def _run_seeds(
    task: FineTuningTask, run: FineTuningSettings, strategy, num_train_steps: int, teacher: Teacher | None
) -> tuple[dict[int, dict[str, float]], str]:
    """Runs with one seed or several; returns the results by seed, and, of several, a table of them."""
    if run.num_seeds == 1:
        alone = _Run(task, run, strategy, num_train_steps, run.seed, run.output_dir, teacher)
        return {run.seed: alone.execute()}, ""
    results = {}
    for seed in range(run.seed, run.seed + run.num_seeds):
        folder = posixpath.join(run.output_dir, f"seed-{seed}")
        results[seed] = _Run(task, run, strategy, num_train_steps, seed, folder, teacher).execute()
        keras.backend.clear_session()
    table = seeds.write_summary(run.output_dir, results, task.main_metric) + "\n" if task.is_chief else ""
    return results, table


def warn_of_few_steps(num_train_steps: int) -> None:
    """Warns of a run that makes a bad model without any other sign."""
    if num_train_steps < _FEW_STEPS:
        logging.warning(
            "Only %d training step%s: the model will hardly learn. A smaller --train_batch_size or more "
            "--num_train_epochs make more of them.",
            num_train_steps,
            "" if num_train_steps == 1 else "s",
        )


class _Run:
    """One run: a seed and its directory."""

    def __init__(self, task: FineTuningTask, run: FineTuningSettings, strategy, num_train_steps: int, seed: int,
                 output_dir: str, teacher: Teacher | None):  # fmt: skip
        self.task, self.run, self.strategy, self.teacher = task, run, strategy, teacher
        self.num_train_steps, self.seed, self.output_dir = num_train_steps, seed, output_dir
        self.chief, self.files = task.is_chief, task.files
        self.evaluated = {}  # step -> outputs on the main dev set, of the newest and the best evaluation

    def execute(self) -> dict[str, float]:
        """Trains, evaluates and predicts; returns the results on the main dev set."""
        task, run = self.task, self.run
        task.begin(run)
        loop.set_seed(self.seed, run.deterministic)
        if run.do_train:
            checkpoints.check_newest(self.output_dir, run.resume_from_older)
        run_directory.check_output_dir(self.output_dir, task.files.config, task.files.head, trains=run.do_train)
        if run.do_train:
            check_resumed(self.output_dir, self.recorded_settings())
            fine_tuning.check_resumed_lora(self.output_dir, run)
        finished = run.do_train and run_directory.is_finished(
            self.output_dir, self.recorded_settings(), self.num_train_steps
        )
        if run.do_train and self.chief:
            self.files = dataclasses.replace(task.files, card=self.card_facts())
        model, optimizer, step = fine_tuning.build_and_restore(
            run, self.strategy, lambda: task.create_model(run.dtype_policy), 0 if finished else self.num_train_steps,
            self.output_dir, task.recipe_of(task.files.config), task.adjust,
        )  # fmt: skip
        self.predict = train_step.make_predict_function(model, self.strategy)
        self.keeper = best_model.BestModel(
            self.output_dir, self.files, task.main_metric, patience=run.early_stopping_patience, active=self.chief
        )
        self.keeper.forget_after(step)
        if finished:
            logging.info("Nothing to train: the run in %s finished at step %d.", self.output_dir, step)
            self.make_up_for_lost_evaluation(model, step)
        elif run.do_train:
            step = self.train(model, optimizer, step)
        last_step = step
        if run.use_best_model:
            step = fine_tuning.use_best_model(model, self.keeper)
        tf.io.gfile.makedirs(self.output_dir)
        return self.evaluate_and_predict(step, is_last=step == last_step)

    def recorded_settings(self) -> dict:
        """What run.json keeps: all settings, and what the training data was."""
        task = self.task
        data = f"{task.num_training_examples()} examples, checksum {task.train_rows.checksum}"
        settings = {**dataclasses.asdict(task.settings), **dataclasses.asdict(self.run), "seed": self.seed}
        if self.teacher:
            settings |= self.teacher.recorded
            if self.run.student_layers:  # the teacher's path, which may change
                settings.pop("init_checkpoint")
        return {**settings, run_directory.TRAINING_DATA: data}

    def card_facts(self) -> CardFacts:
        """What is known of the run for the cards of its models."""
        task, run, recorded = self.task, self.run, self.recorded_settings()
        fields = (*dataclasses.fields(run), *dataclasses.fields(task.settings))
        others = {"seeds": run.num_seeds, "combinations of settings": len(run.combinations)}
        notes = (f"It is one of {number} {kind} that were tried." for kind, number in others.items() if number > 1)
        return CardFacts(
            card_facts.beginning_of_run(self.output_dir, run.init_checkpoint),
            data=recorded[run_directory.TRAINING_DATA],
            settings=card_facts.settings_shown(recorded, {field.name: field.default for field in fields}),
            notes=tuple(notes),
            usage="from bert_tf import {}\n\n{}".format(*last_words.usage(task, card.PLACE)) if task.answers else None,
            is_served=task.answers is not None,
        )

    # --- train

    @property
    def eval_every_steps(self) -> int:
        """Steps between two evaluations, an epoch by default; 0 without a dev set."""
        steps_per_epoch = max(len(self.task.train_rows) // self.run.train_batch_size, 1)
        return (self.run.eval_every_steps or steps_per_epoch) if self.task.dev_sets else 0

    def train(self, model: keras.Model, optimizer: keras.optimizers.Optimizer, step: int) -> int:
        """Trains from the step that was restored; returns the step reached."""
        task, run, evaluates = self.task, self.run, bool(self.task.dev_sets)
        plan = fine_tuning.training_plan(
            run, task.files.config, task.train_rows.row_lengths, self.num_train_steps,
            eval_every_steps=self.eval_every_steps, seed=self.seed, tokens_read=model.tokens_read,
        )  # fmt: skip
        plan = task.change_plan(plan, model)
        trained, objective = model, with_class_weights(model.objective, task.class_weights)
        if self.teacher:
            with self.strategy.scope():
                teacher = task.create_teacher(self.teacher, run.dtype_policy)
                trained = TaughtModel(model, teacher)
            objective = DistillationObjective(objective, run.soft_weight, run.temperature)
            length = plan.tokens_per_example
            further = flops.encoder_flops_per_example(self.teacher.files.config, length, teacher.tokens_read)
            plan = dataclasses.replace(plan, flops_per_example=plan.flops_per_example + further)
        self.make_up_for_lost_evaluation(model, step)
        if step >= plan.num_train_steps:
            run_directory.warn_of_changes(self.output_dir, self.recorded_settings())
        elif self.chief:
            settings = {**self.recorded_settings(), **card_facts.recorded_beginning(self.files.card)}
            fine_tuning.claim(self.output_dir, task.files, settings, resumed=step > 0)
            task.write_beside_training(self.output_dir)
            self.write_records("train", task.train_rows)

        def training_batches(first_step: int, share: Share) -> tf.data.Dataset:
            return task.training_batches(
                batch_size=run.train_batch_size,
                seed=self.seed,
                start_step=first_step,
                whole_step=run.use_xla,
                share=share,
                **run.padding,
            )

        step = loop.train(
            trained, optimizer, objective, self.strategy, plan, training_batches, self.output_dir,
            (lambda step: self.evaluate(step, model)) if evaluates else None, self.keeper.should_stop,
        )  # fmt: skip
        if evaluates and step not in self.keeper.steps:
            self.evaluate(step, model)  # stopped early before, and its evaluation lost
        if self.chief:
            facts = dataclasses.replace(self.files.card, results={"step": step, **(self.keeper.results_of(step) or {})})
            files = dataclasses.replace(self.files, card=facts)
            fine_tuning.finish(self.output_dir, model, files, step, run.keeps_optimizer)
            log = posixpath.join(self.output_dir, LOG_FILE)
            if tf.io.gfile.exists(log):
                plots.plot_training_log(log, posixpath.join(self.output_dir, "loss.png"), title=self.output_dir)
        return step

    def evaluate(self, step: int, model: keras.Model) -> dict[str, float]:
        """On the main dev set, while training."""
        examples, batch_size = self.task.dev_sets[0], self.eval_batch_size
        outputs = self.outputs_of(examples, batch_size)
        outputs, results = self.task.evaluate(examples, outputs, batch_size)
        self.keeper.further_files = self.task.further_files(examples, outputs)
        self.write_further_files(self.keeper.further_files)
        self.keeper.update(step, results, model)
        kept = (step, self.keeper.best["step"])
        self.evaluated = {key: value for key, value in {**self.evaluated, step: outputs}.items() if key in kept}
        return results

    def make_up_for_lost_evaluation(self, model: keras.Model, step: int) -> None:
        """Evaluates a step that an earlier run saved but was killed before evaluating."""
        every = self.eval_every_steps
        due = every and step and (step % every == 0 or step >= self.num_train_steps)
        if due and step not in self.keeper.steps:
            logging.info("Step %d was saved, but the earlier run ended before its evaluation.", step)
            self.evaluate(step, model)

    # --- evaluate and predict

    @property
    def eval_batch_size(self) -> int:
        return self.run.eval_batch_size or self.run.predict_batch_size

    def outputs_of(self, examples: ExampleSet, batch_size: int):
        return self.task.outputs_of(self.predict, examples, batch_size=batch_size, **self.run.padding)

    def write_further_files(self, files: Mapping[str, str]) -> None:
        for name, content in files.items() if self.chief else ():
            write_text_file(posixpath.join(self.output_dir, name), content)

    def write_records(self, name: str | None, rows: TokenRows) -> None:
        """Writes the original's record file of a set, if it has one and records are to be written."""
        if name and self.run.write_tf_records:
            path = posixpath.join(self.output_dir, f"{name}.tf_record")
            self.task.write_records(path, rows, self.run.max_seq_length)

    def evaluate_and_predict(self, step: int, is_last: bool) -> dict[str, float]:
        """Writes the results of all dev sets and the predictions of all test sets; returns the main results.

        Args:
          is_last: the model is that of the last step. The best model has its own further files, in best_model/.
        """
        task, run = self.task, self.run
        main, known = self.keeper.results_of(step) or {}, {}
        for number, examples in enumerate(task.dev_sets if run.do_eval else ()):
            logging.info("Evaluation of step %d on %s:", step, examples.name)
            outputs = self.evaluated.get(step) if number == 0 else None  # a step is not evaluated twice
            if outputs is None:
                outputs = self.outputs_of(examples, self.eval_batch_size)
            outputs, results = task.evaluate(examples, outputs, self.eval_batch_size)
            results = {**results, "global_step": step}
            known[id(examples)] = outputs
            if self.chief:
                path = posixpath.join(self.output_dir, f"eval_results{examples.suffix}.txt")
                run_directory.write_eval_results(path, results)
                task.write_analysis(self.output_dir, examples, outputs, results)
                self.write_records(task.dev_records and task.dev_records + examples.suffix, examples.rows)
            if number == 0:
                main = results
                if is_last:
                    self.write_further_files(task.further_files(examples, outputs))
        if task.test_sets and step and not run.do_train:
            logging.info("Predictions of step %d:", step)
        for examples in task.test_sets:
            outputs = known.get(id(examples))
            if outputs is None:
                outputs = self.outputs_of(examples, run.predict_batch_size)
            if self.chief:
                task.write_predictions(self.output_dir, examples, outputs)
                self.write_records(task.test_records and task.test_records + examples.suffix, examples.rows)
                if id(examples) not in known:
                    task.score_predictions(self.output_dir, examples, outputs, step, run.predict_batch_size)
        return main
