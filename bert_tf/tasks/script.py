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

import contextlib
import dataclasses
import functools
import posixpath
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data.token_rows import Share
from bert_tf.families import recipe
from bert_tf.families.recipe import OptimizerSettings, Recipe, number_of_steps
from bert_tf.models import encoder, initialize, lora_file
from bert_tf.models.distillation import DistillationObjective, TaughtModel, chosen_layers
from bert_tf.models.heads import with_class_weights
from bert_tf.store import card, head_config, save, variable_names
from bert_tf.store.bundle import latest_checkpoint
from bert_tf.store.description import CardFacts, ModelFiles
from bert_tf.store.open import has_optimizer_state, open_weights
from bert_tf.system.declare import declared_in, value_of, with_models
from bert_tf.system.messages import announced
from bert_tf.system.storage import write_text_file
from bert_tf.tasks import outcome
from bert_tf.tasks.outcome import Trial
from bert_tf.tasks.table import TASKS
from bert_tf.tasks.task import ExampleSet, FineTuningTask
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training import checkpoints, distribution, fine_tuning, loop, run_directory, starting_model
from bert_tf.training.settings import FineTuningSettings
from bert_tf.training.step import BATCHES_OF_A_PROGRAM, Trainer, make_predict_function

_FEW_STEPS = 50
_STEPS_OF_TWO_PROGRAMS = 1000  # from so many, shorter batches save more time than their program takes to compile


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
    task.settings.check(run)
    return run_task(task, with_models(run, begun=run.output_dir))


def run_task(task: FineTuningTask, run: FineTuningSettings) -> dict[str, float]:
    """`fine_tune` with settings that were checked, and name no model on the hub."""
    combinations = run.combinations
    run, runs, files, tokenizer = _prepare(task, run)
    tried, table, several = [], "", run.num_seeds * len(runs) > 1
    with distribution.set_up_run(*runs) as strategy:
        task.is_chief, task.num_replicas = distribution.is_chief(strategy), strategy.num_replicas_in_sync
        task.load(run, files, tokenizer)
        # The labels of the model and its teacher are matched with the data's; a run that goes on has its own.
        head, others, task.adjust = task.files.head, task.other_labels, starting_model.unchanged
        task.files.description = save.description_files(task.files) if run.do_train else None
        task.teacher = task.teacher and starting_model.with_labels_of(task.teacher, head, others)
        if run.new_head and TASKS[task.name].output_layer and not task.earlier.newest:
            task.adjust = functools.partial(head_config.without, reason="--new_head")
        elif not (run.do_train and task.earlier.newest):
            task.adjust = starting_model.adjustment_of(task.starting_head, head, others, trains=run.do_train)
        for examples in filter(task.is_trained_on, task.dev_sets if run.do_train else ()):
            message = "The set %s is the training set: results on it say nothing about other texts."
            logging.warning(message, examples.name)
        steps = [0] * len(runs)
        if run.do_train:
            count = task.num_training_examples()
            steps = [number_of_steps(count, each.train_batch_size, each.num_train_epochs) for each in runs]
            if min(steps) < _FEW_STEPS:
                logging.warning("Only %d training steps: the model will hardly learn; train longer.", min(steps))
        # All folders are checked before the first of several runs is trained.
        described = zip(combinations, runs, steps, strict=True)
        plan = [_runs_of_seeds(task, values, each, strategy, number) for values, each, number in described]
        for number, (values, of_seeds) in enumerate(zip(combinations, plan, strict=True), start=1):
            if run.search:
                logging.info("Combination %d of %d: %s.", number, len(runs), recipe.combination_text(values))
            results, best_models = {}, {}
            for seed, seed_run in of_seeds.items():
                loop.set_seed(seed, run.deterministic)
                results[seed], best_models[seed] = seed_run.execute(), seed_run.keeper.best
                if several:
                    keras.backend.clear_session()
            tried.append(Trial(values, results, best_models))
            if run.num_seeds > 1 and task.is_chief:
                table = outcome.write_seeds(_folder_of(run, values), tried[-1], task.main_metric)
        if run.search:
            table = outcome.write_search(run.output_dir, tried, task.main_metric)
        best = outcome.best_of(tried, task.main_metric)
        if task.is_chief:
            print(table, end="")
            outcome.log_summary(task, run, best, max(steps))
        return best.results[best.best_seed(task.main_metric)]


def _prepare(
    task: FineTuningTask, run: FineTuningSettings
) -> tuple[FineTuningSettings, list[FineTuningSettings], ModelFiles, Tokenizer]:
    own, trains = vars(task.settings), run.do_train
    earlier = run_directory.find_earlier_run(run.output_dir, own, trains=trains, may_have_files=not trains)
    if run.search and earlier.newest:
        raise ValueError(f"--output_dir={run.output_dir} already holds a run: choose another one for --search.")
    combinations = run.combinations
    run = dataclasses.replace(run, **combinations[0])
    if run.layers:
        run = dataclasses.replace(run, init_checkpoint=run.teacher)
    run, files, tokenizer = task.describe(run, earlier)
    files.max_seq_length = run.max_seq_length
    whose = f"As {files.config.title} was fine-tuned" if run.do_train else None
    run = recipe.with_recipe(run, files.config.recipe, whose)
    if run.lora_rank is not None and run.lora_alpha is None:  # as in microsoft/LoRA, examples/NLU
        run = dataclasses.replace(run, lora_alpha=2.0 * run.lora_rank)
    runs = [dataclasses.replace(run, **values) for values in combinations]
    return run, runs, files, tokenizer


def _folder_of(run: FineTuningSettings, values: recipe.Values) -> str:
    return posixpath.join(run.output_dir, recipe.folder_of(values)) if values else run.output_dir


def _runs_of_seeds(
    task: FineTuningTask, values: recipe.Values, run: FineTuningSettings, strategy: tf.distribute.Strategy, steps: int
) -> dict[int, "_Run"]:
    """Seed -> run of a combination of settings, which is checked against what is in its folder."""
    runs, folder = {}, _folder_of(run, values)
    for seed in range(run.seed, run.seed + run.num_seeds):
        output_dir = posixpath.join(folder, f"seed-{seed}") if run.num_seeds > 1 else folder
        settings = dataclasses.replace(run, seed=seed, output_dir=output_dir)
        runs[seed] = _Run(task, settings, strategy, steps)
        runs[seed].check_output_dir()
    return runs


def _preload_evaluation_modules() -> None:
    with contextlib.suppress(ImportError):  # it takes a second; matplotlib is optional
        import matplotlib.figure  # noqa: F401
        import sklearn.metrics  # noqa: F401


class _Run(loop.Run):
    def __init__(self, task: FineTuningTask, run: FineTuningSettings, strategy: tf.distribute.Strategy, steps: int):
        super().__init__(run, strategy, steps)
        self.task, self.teacher, self.files, self.earlier = task, task.teacher, task.files, task.earlier
        self.was_finished = False
        self.eval_batch_size = run.eval_batch_size or run.predict_batch_size
        self.eval_every_steps = 0
        if run.do_train and task.dev_sets:  # an epoch by default
            distribution.check_batch_sizes(strategy, dataclasses.replace(run, do_eval=True))
            self.eval_every_steps = run.eval_every_steps or max(len(task.train_rows) // run.train_batch_size, 1)

    def check_output_dir(self) -> None:
        """Raises if the run does not fit what is in its directory; notes whether it is finished there."""
        task, run = self.task, self.settings
        task.begin(run)
        self.earlier = run_directory.find_earlier_run(self.output_dir, vars(task.settings), trains=run.do_train)
        self.earlier.check_model(task.files.config, task.files.head, trains=run.do_train)
        if run.do_train:
            self.manifest = run_directory.Manifest(self.earlier, self.recorded_settings(), [run, task.settings])
            self.manifest.check_fixed()
            self.trains = not self.manifest.is_finished(self.num_train_steps)
            self.was_finished = not self.trains and self.manifest.earlier.get(run_directory.FINISHED) is not None

    def common_facts(self) -> dict[str, object]:
        task = self.task
        named = {"train set": task.train_rows} if task.train_rows is not None else {}
        for kind, sets in (("dev set", task.dev_sets), ("test set", task.test_sets)):
            named |= {f"{kind} {examples.name}": examples.rows for examples in sets}
        facts = {name: f"{len(rows)} examples, checksum {rows.checksum}" for name, rows in named.items()}
        facts |= {"labels": task.files.head.labels, **(self.teacher.recorded if self.teacher else {})}
        configs = {"model": task.files.config, **({"teacher": self.teacher.files.config} if self.teacher else {})}
        return super().common_facts() | distribution.facts_of(task.settings, **configs) | facts

    def recorded_settings(self) -> dict:
        task = self.task
        data = f"{task.num_training_examples()} examples, checksum {task.train_rows.checksum}"
        settings = {**dataclasses.asdict(task.settings), **dataclasses.asdict(self.settings)}
        if task.files.head.window_stride:
            settings["window_stride"] = task.files.head.window_stride
        if self.teacher:
            settings |= self.teacher.recorded
            if self.settings.student_layers:  # the teacher's path, which may change
                settings.pop("init_checkpoint")
        return {**settings, run_directory.TRAINING_DATA: data}

    def card_facts(self) -> CardFacts:
        task, run, data = self.task, self.settings, self.manifest.noted[run_directory.TRAINING_DATA]
        others = {"seeds": run.num_seeds, "combinations of settings": len(run.combinations)}
        notes = (f"It is one of {number} {kind} that were tried." for kind, number in others.items() if number > 1)
        facts = {"notes": tuple(notes), "is_served": bool(task.answers)}
        if task.answers:
            usage = outcome.usage(task, card.PLACE, outcome.samples(task))
            facts["usage"] = "from bert_tf import {}\n\n{}".format(*usage)
        return self.manifest.card_facts(data, run.init_checkpoint, task.files.weights, **facts)

    # --- restore

    def create_model(self) -> keras.Model:
        """The task's, not built yet, with adapters if these are what is trained."""
        task, run = self.task, self.settings
        task.begin(run)
        model = task.create_model(run.dtype_policy)
        if run.lora_rank is not None and self.trains:
            model.bert.add_lora(run.lora_rank, run.lora_alpha, model.reads_pooler)
        return model

    def schedule(self) -> tuple[Recipe, int, float]:
        """The recipe, the steps, and those of the warm-up; see `optimization.optimizer_of`."""
        run, recipe = self.settings, self.task.files.config.recipe
        recipe = dataclasses.replace(recipe, **{name: getattr(run, name) for name in declared_in(OptimizerSettings)})
        warmup_steps = self.num_train_steps * run.warmup_proportion
        if recipe.warmup != "multiplies":
            warmup_steps = int(warmup_steps)
        return recipe, self.num_train_steps, warmup_steps

    def restore(self, model: keras.Model, optimizer: keras.optimizers.Optimizer | None) -> int:
        """`checkpoints.restore`; also what of the model does not learn, or at another rate."""
        task, run, newest = self.task, self.settings, self.earlier.newest
        start = run.init_checkpoint
        if self.trains and run.classifier_dropout is not None:
            model.dropout_rate = run.classifier_dropout
        if self.trains and run.freeze_layers is not None:
            model.bert.freeze_layers(run.freeze_layers)
        if start and not newest:
            start = task.files.weights
        if run.layers:
            start = chosen_layers(task.files.weights, run.layers)
        if variable_names.has_adapters(model):
            if not newest:
                fine_tuning.check_base(model, start)
            fine_tuning.log_lora(model, run.learning_rate, task.files.config.recipe.learning_rate)
        adjust = starting_model.unchanged if run.do_train and newest else task.adjust
        return checkpoints.restore(model, optimizer, self.output_dir, start, run.init_with_optimizer, adjust=adjust)

    # --- train

    def create_trainer(self, optimizer: keras.optimizers.Optimizer) -> tuple[Trainer, dict]:
        """The trainer, with --teacher of both models; further arguments of `loop.train`."""
        task, run, model = self.task, self.settings, self.model
        trained, objective = model, with_class_weights(model.objective, task.class_weights)
        lengths = task.train_rows.row_lengths
        cost = fine_tuning.cost_of_example(run, task.files.config, lengths, model.tokens_read)
        tokens, operations = (task.rows_of_example * of_row for of_row in cost)
        if self.teacher:
            with self.strategy.scope():
                teacher = task.create_teacher(self.teacher, run.dtype_policy)
                trained = TaughtModel(model, teacher)
            objective = DistillationObjective(objective, value_of(run, "distillation_weight"), run.temperature)
            operations += encoder.encoder_flops_per_example(self.teacher.files.config, tokens, teacher.tokens_read)
        options = {
            "eval_every_steps": self.eval_every_steps,
            "should_stop": lambda: self.keeper.should_stop(),
            "final_optimizer_state": self.final_optimizer_state(optimizer),
            "cost_of_example": (tokens, operations),
            "background_work": _preload_evaluation_modules,
        }
        sum_loss = task.files.config.recipe.sum_loss
        newest = latest_checkpoint(self.output_dir)
        return Trainer(trained, optimizer, objective, self.strategy, run, sum_loss, newest), options

    def begin(self, step: int, trainer: Trainer | None) -> None:
        """Evaluates the step that was restored, if that was missed, and claims output_dir for the training."""
        run, metric = self.settings, self.task.main_metric
        if run.do_train and self.chief:
            self.files = dataclasses.replace(self.files, card=self.card_facts())
        self.keeper = fine_tuning.BestModel(
            self.output_dir, self.files, metric, step, patience=run.early_stopping_patience, active=self.chief
        )
        kept = self.keeper.best, [*self.keeper.evaluations.values()]
        self.keeper.best, evaluations = distribution.gather(self.strategy, kept)[0]
        self.keeper.evaluations = {values["step"]: values for values in evaluations}
        self.predict = make_predict_function(self.model, self.strategy, compiled=self.compiles)
        if run.do_train and step and self.is_due(step) and step not in self.keeper.evaluations:
            logging.info("Step %d was saved, but the earlier run ended before its evaluation.", step)
            self.evaluate(step)
        if trainer:
            if step >= self.num_train_steps:
                self.manifest.warn_of_changes()
            elif self.chief:
                task, files = self.task, self.task.files
                # First, since it marks the directory as that of a run; see `run_directory.find_earlier_run`.
                notes = {run_directory.BEGINNING: self.files.card.beginning, run_directory.FINISHED: None}
                self.manifest.record(resumed=step > 0, **notes)
                run_directory.write_model_description(self.output_dir, files.config, files.head, files.description)
                task.write_beside_training(self.output_dir)
            if run.use_best_model:  # which will be read from there
                distribution.await_written(self.strategy, [posixpath.join(self.output_dir, run_directory.SETTINGS)])
        if self.chief and run.write_tf_records:
            self.write_records(self.trains and step < self.num_train_steps)
        if run.do_train and not self.trains:
            logging.info("Nothing to train: the run in %s finished at step %d.", self.output_dir, step)

    def write_records(self, trains: bool) -> None:
        task, run = self.task, self.settings
        records = {"train": task.train_rows} if trains else {}
        for name, sets in ((task.dev_records, task.dev_sets), (task.test_records, task.test_sets)):
            records |= {name + examples.suffix: examples.rows for examples in sets if name}
        tf.io.gfile.makedirs(self.output_dir)
        for name, rows in records.items():
            path = posixpath.join(self.output_dir, f"{name}.tf_record")
            task.write_records(path, rows, run.max_seq_length)

    def training_batches(self, first_step: int, share: Share) -> tf.data.Dataset:
        run = self.settings
        programs = None if not self.compiles else 1 if self.num_train_steps < _STEPS_OF_TWO_PROGRAMS else 2
        steps = {"batch_size": run.train_batch_size, "seed": run.seed, "start_step": first_step, "share": share}
        return self.task.training_batches(programs=programs, **steps, **run.padding)

    def final_optimizer_state(self, optimizer: keras.optimizers.Optimizer) -> Callable[[], Mapping] | None:
        """What the last checkpoint has, which is there before the last evaluation; None: the optimizer's state, too.

        With LoRA `end_training` removes that: a run that is killed before needs the adapters for their own file.
        """
        if self.settings.keeps_optimizer or variable_names.has_adapters(self.model):
            return None
        return lambda: {**initialize.model_variables(self.model), "global_step": optimizer.iterations}

    def end_training(self, step: int) -> None:
        """Evaluates the last step, if that is yet to be done, and leaves what a finished run has in its directory.

        Unless the run keeps its optimizer state, only the last weights are kept, with LoRA's adapters added to them.
        """
        if self.was_finished:
            return
        if self.task.dev_sets and step not in self.keeper.evaluations:
            self.evaluate(step)  # stopped early before, and its evaluation lost
        if not self.chief:
            return
        weights = initialize.model_weights(self.model)
        if variable_names.has_adapters(self.model):
            lora_file.write_lora(posixpath.join(self.output_dir, lora_file.FILE), self.model)
        newest = latest_checkpoint(self.output_dir)
        if not self.settings.keeps_optimizer and has_optimizer_state(open_weights(newest)):
            tensors = {name: weights[name] for name in weights} | {"global_step": np.int64(step)}
            with announced(f"Saving the weights of the last step in {self.output_dir} ..."):
                checkpoints.save(self.output_dir, step, tensors, keep_max=1)
        results = self.keeper.evaluations.get(step, {"step": step})
        run_directory.describe_end(self.output_dir, weights, self.files, results)
        run_directory.mark_as_finished(self.output_dir, step)

    def evaluate(self, step: int) -> dict[str, float]:
        """On the main dev set, while training."""
        examples, batch_size = self.task.dev_sets[0], self.eval_batch_size
        outputs = self.outputs_of(examples, batch_size)
        outputs, results = self.task.evaluate(examples, outputs, batch_size)
        results = distribution.gather(self.strategy, results)[0]  # all choose the same best model
        self.keeper.update(step, results, self.model, self.task.further_files(examples, outputs))
        kept = (step, self.keeper.best["step"])
        self.evaluated = {key: value for key, value in {**self.evaluated, step: outputs}.items() if key in kept}
        return results

    def is_due(self, step: int) -> bool:
        """Whether a step ends an epoch, --eval_every_steps or the run; an epoch a few steps before that is its end."""
        run, every, left = self.settings, self.eval_every_steps, self.num_train_steps - step
        if not every or left <= 0:
            return every > 0
        return step % every == 0 and (run.eval_every_steps > 0 or left >= min(run.num_train_epochs, every))

    # --- evaluate and predict

    def outputs_of(self, examples: ExampleSet, batch_size: int):
        padding = dict(self.settings.padding)
        if self.compiles and len(examples.rows) >= BATCHES_OF_A_PROGRAM * batch_size:
            padding["static_padding"] = True  # one program for all
        return self.task.outputs_of(self.predict, examples, batch_size=batch_size, **padding)

    def finish(self, step: int) -> dict[str, float]:
        """Writes the results of all dev sets and the predictions of all test sets; returns the main results."""
        task, run, last_step = self.task, self.settings, step
        if run.do_train:
            self.end_training(step)
        if run.use_best_model:
            adjust = starting_model.unchanged if run.do_train else task.adjust
            distribution.await_written(self.strategy, self.keeper.paths)
            step = fine_tuning.use_best_model(self.model, self.keeper, adjust)
        tf.io.gfile.makedirs(self.output_dir)
        main, outputs_of_sets = {}, {}
        for number, examples in enumerate(task.dev_sets):
            logging.info("Evaluation of step %d on %s:", step, examples.name)
            outputs = self.evaluated.get(step) if number == 0 else None  # a step is not evaluated twice
            if outputs is None:
                outputs = self.outputs_of(examples, self.eval_batch_size)
            outputs, results = task.evaluate(examples, outputs, self.eval_batch_size)
            results = {**results, "global_step": step}
            outputs_of_sets[id(examples)] = outputs
            if self.chief:
                path = posixpath.join(self.output_dir, f"eval_results{examples.suffix}.txt")
                run_directory.write_eval_results(path, results)
                task.write_analysis(self.output_dir, examples, outputs, results)
            main = main or results
        if task.test_sets and step and not run.do_train:
            logging.info("Predictions of step %d:", step)
        for examples in task.test_sets:
            outputs = outputs_of_sets.get(id(examples))
            if outputs is None:
                outputs = self.outputs_of(examples, run.predict_batch_size)
            if self.chief:
                task.write_predictions(self.output_dir, examples, outputs)
                if id(examples) not in outputs_of_sets:
                    task.score_predictions(self.output_dir, examples, outputs, step, run.predict_batch_size)
        if task.dev_sets and step == last_step and self.chief:  # the best model has its own, in best_model/
            for name, content in task.further_files(task.dev_sets[0], outputs_of_sets[id(task.dev_sets[0])]).items():
                write_text_file(posixpath.join(self.output_dir, name), content)
        return main
