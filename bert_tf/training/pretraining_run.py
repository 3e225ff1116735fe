"""A pre-training run: records in, a model directory out. run_pretraining.py adds the flags.

settings = PretrainingSettings("train.tfrecord", "model", bert_size="tiny", do_train=True, num_train_steps=1000)
results = pretrain(settings)
"""

import dataclasses
import functools
import math
import posixpath
import textwrap
from collections.abc import Callable, Mapping

import keras
import tensorflow as tf
from absl import logging

from bert_tf.data import records
from bert_tf.data.token_rows import Share
from bert_tf.models import layers, students
from bert_tf.models.configuration.config import BertConfig
from bert_tf.models.configuration.families import AlbertConfig, DistilBertConfig, config_of_size
from bert_tf.models.configuration.variable_names import pooler
from bert_tf.models.files import card, initialize, pretrained, saving
from bert_tf.models.files import directory as model_directory
from bert_tf.models.files.card import NO_FACTS, CardFacts
from bert_tf.pretraining import mask_rules, model_vocabulary
from bert_tf.system.declare import value_of, with_models
from bert_tf.text import find_vocabulary
from bert_tf.training import checkpoints, distribution, loop, optimization, run_directory
from bert_tf.training.pretraining_settings import PretrainingSettings, student_family
from bert_tf.training.pretraining_tasks import LeftToRightTask, OpenedRecords, PretrainingTask, open_all_records
from bert_tf.training.pretraining_two_models import DistillationTask, ElectraTask
from bert_tf.training.step import Trainer, make_evaluate_function

TASKS: dict[str, type[PretrainingTask]] = {"mlm": PretrainingTask, "ltr": LeftToRightTask, "electra": ElectraTask}

_BATCHES_WITHOUT_VOCABULARY = 64  # in which an id beyond the model's is looked for


def pretrain(settings: PretrainingSettings) -> dict[str, float]:
    """Trains and evaluates as the settings say; resumes the run in output_dir, if any.

    Returns:
      The results of the last evaluation, with `global_step`; only `global_step` without `do_eval`.

    Raises:
      ValueError, OSError: settings, records, vocabulary or weights are invalid or don't match; names the flag.
      loop.NonFiniteLossError, SystemExit: see `loop.train`.
    """
    settings = with_models(settings, PretrainingSettings.check, settings.output_dir)
    folder = settings.output_dir
    run_directory.check_script(folder, vars(settings))
    if settings.do_train:
        checkpoints.check_newest(folder)
    if settings.student_layers:
        settings = dataclasses.replace(settings, init_checkpoint=settings.teacher)
    config, config_name = _configure(settings)
    settings = _with_recipe(settings, config)
    run_directory.check_output_dir(folder, config)
    if not (settings.do_train or settings.init_checkpoint or checkpoints.latest_checkpoint(folder)):
        raise ValueError(f"Nothing to evaluate: no checkpoint in --output_dir={folder}, and no --init_checkpoint.")
    with distribution.set_up_run(settings) as strategy:
        loop.set_seed(settings.seed, settings.deterministic)
        data = open_all_records(settings, config, config_name)
        task = _kind_of_task(settings)(settings, config, config_name, data)
        if settings.do_train:
            run_directory.check_fixed(folder, task.recorded)
        _check_records(task, data)
        return _run(task, data, strategy)


def _run(
    task: PretrainingTask, data: Mapping[str, OpenedRecords], strategy: tf.distribute.Strategy
) -> dict[str, float]:
    """The run of a task and records that were checked; see `pretrain`."""
    settings, chief = task.settings, distribution.is_chief(strategy)
    folder, tokenizer_class = settings.output_dir, task.family.tokenizer_class
    last_step = settings.stop_at_step or settings.num_train_steps
    model, optimizer, trained, step = _build_and_restore(task, strategy)
    # A run that was killed after its last step has yet to write them; the weights it began from may be gone by now.
    writes_cards = chief and settings.do_train and (step < last_step or card.read_ours(folder) is None)
    facts = _card_facts(task, data) if writes_cards else NO_FACTS
    if chief and settings.do_train and step < last_step:
        recorded = _recorded(task, data) | {run_directory.BEGINNING: facts.beginning}
        run_directory.record_settings(folder, recorded, resumed=step > 0)
        # A run that goes on keeps its vocabulary, which was complete before its first checkpoint.
        is_there = checkpoints.latest_checkpoint(folder) and find_vocabulary(folder, tokenizer_class)
        task.claim_output_dir(saving.description_of(task.vocabulary) if task.vocabulary and not is_there else {})
    evaluate = _make_evaluate(trained, task, strategy, data)
    if settings.do_train:
        opened = data["input_file"]
        newest = checkpoints.latest_checkpoint(folder)
        trainer = Trainer(trained, optimizer, task.objective, strategy, settings, checkpoint=newest)
        if chief and step < last_step and newest is None:
            # Before the first step, as in the original.
            checkpoints.save(folder, step, trainer.tensors, settings.keep_checkpoint_max)
        every = settings.eval_every_steps
        with records.explained_errors(opened.index, opened.features, opened.flag):
            step = loop.train(
                trainer,
                last_step,
                distribution.distribute(strategy, functools.partial(_training_batches, task, opened, step)),
                folder,
                evaluate=lambda step: evaluate(step) if every and step % every == 0 else None,
                eval_every_steps=every,
                cost_of_example=(settings.max_seq_length, task.flops_per_example),
            )
    results = {"global_step": step}
    if settings.do_eval:
        logging.info("Evaluation of step %d:", step)
        results |= evaluate(step)
        if chief:
            tf.io.gfile.makedirs(folder)
            run_directory.write_eval_results(posixpath.join(folder, "eval_results.txt"), results)
    if writes_cards:
        task.write_parts(model, dataclasses.replace(facts, results=results))
        files = dataclasses.replace(model_directory.read_model_files(folder), config=task.config, card=facts)
        run_directory.describe_end(folder, initialize.model_weights(model), files, results)
    if chief and settings.do_train:
        use = _usage(task, folder, find_vocabulary(folder, tokenizer_class) is not None)
        logging.info("The model is in %s. To use it:\n%s", folder, use)
    return results


@layers.drawn_late()
def _build_and_restore(
    task: PretrainingTask, strategy: tf.distribute.Strategy
) -> tuple[keras.Model, keras.optimizers.Optimizer | None, keras.Model, int]:
    """The model, its optimizer (None: no training), what is trained (the model, or more around it), and the step."""
    settings, optimizer = task.settings, None
    with strategy.scope():
        model = task.create_model(settings.dtype_policy)
        model.build()
        if task.config.draws_normal_weights:
            initialize.draw_normal_weights(model)
        if settings.do_train:
            recipe = dataclasses.replace(task.recipe(task.config), lr_decay_power=settings.lr_decay_power)
            optimizer = optimization.create_optimizer(
                settings.optimizer, settings.learning_rate, settings.num_train_steps, settings.num_warmup_steps, recipe
            )
            optimizer.build(model.trainable_variables)
        trained = task.trained(model, settings.dtype_policy)
    logging.info("Model with %s parameters; %s.", f"{model.count_params():,}", settings.dtype)
    # Without next-sentence prediction its head and the pooler are not read. Many an ELECTRA is published without its
    # generator; a warning says that it is random.
    unread = ("generator/", "generator_predictions/")
    unread += () if settings.nsp else ("cls/seq_relationship/", pooler(task.config.model_type) + "/")
    start = task.start()
    step = loop.restore(model, optimizer, settings.output_dir, start, settings.init_with_optimizer, unread=unread)
    return model, optimizer, trained, step


def _kind_of_task(settings: PretrainingSettings) -> type[PretrainingTask]:
    return DistillationTask if settings.teacher else TASKS[settings.objective]


# --- configuration ---------------------------------------------------------------------------------------------------


def _configure(settings: PretrainingSettings) -> tuple[BertConfig, str]:
    """The model's configuration, and its name in messages."""
    if settings.bert_size:
        config, name = config_of_size(settings.bert_size), f"--bert_size={settings.bert_size}"
        if settings.vocab_file:
            config.vocab_size = model_vocabulary.tokenizer_of_model(settings.vocab_file, config).vocab_size
    else:
        config = pretrained.read_config(settings.bert_config_file, settings.init_checkpoint)
        name = settings.bert_config_file or f"the configuration beside {settings.init_checkpoint}"
    if settings.student_layers:
        family, config = student_family(settings, config), students.shallower(config, settings.layers)
        if family == "distilbert" and config.model_type != DistilBertConfig.model_type:
            config = students.as_distilbert(config)
    _kind_of_task(settings).configure(settings, config, name)
    if settings.nsp and not config.has_pooler:
        raise ValueError(f"--nsp needs a model with a pooler, but {name} is that of {config.title}: leave it out.")
    return config, name


def _with_recipe(settings: PretrainingSettings, config: BertConfig) -> PretrainingSettings:
    """The settings, with how the family's authors pre-trained it where they say nothing, which is logged.

    With a teacher they are those of DistilBERT.
    """
    kind = _kind_of_task(settings)
    recipe, warmup = kind.recipe(config), value_of(settings, "num_warmup_steps")
    if differs := recipe != BertConfig.pretraining_recipe:
        warmup = math.ceil(recipe.warmup_proportion * settings.num_train_steps)
    of_family = {
        "nsp": config.has_pooler and not settings.teacher,
        "max_predictions_per_seq": kind.default_predictions(settings, config),
    }
    of_authors = {"num_warmup_steps": warmup, "learning_rate": recipe.learning_rate, "optimizer": recipe.optimizer}
    filled = {name: value for name, value in {**of_family, **of_authors}.items() if getattr(settings, name) is None}
    chosen = [f"--{name}={filled[name]}" for name in of_authors if name in filled and differs]
    if settings.do_train and chosen:
        whose = DistilBertConfig.title if settings.teacher else config.title
        logging.info("As %s was pre-trained by its authors, unless you say otherwise: %s.", whose, " ".join(chosen))
    return dataclasses.replace(settings, **filled)


def _recorded(task: PretrainingTask, data: Mapping[str, OpenedRecords]) -> dict:
    """The content of run.json: all settings that matter to this run, and the data and vocabulary it used."""
    fingerprint = data["input_file"].index.fingerprint
    recorded = {**dataclasses.asdict(task.settings), "input_file_fingerprint": fingerprint, **task.recorded}
    if task.vocabulary:
        recorded["vocab_file"] = task.vocabulary.vocab_file
    if task.masking:
        recorded["vocab_file_fingerprint"] = task.masking.fingerprint
    return {name: value for name, value in recorded.items() if name not in task.unused_settings}


def _card_facts(task: PretrainingTask, data: Mapping[str, OpenedRecords]) -> CardFacts:
    """What is known of the run for the card of its model."""
    settings, index, is_served = task.settings, data["input_file"].index, task.vocabulary is not None
    usage = textwrap.dedent(_usage(task, card.PLACE, is_served))
    facts = {"data": f"{index.total_records:,} records, fingerprint {index.fingerprint}", "usage": usage}
    recorded = _recorded(task, data)
    return run_directory.card_facts(settings.output_dir, recorded, [settings], is_served=is_served, **facts)


def _usage(task: PretrainingTask, folder: str, has_vocabulary: bool) -> str:
    """Lines that use the model in a folder."""
    if has_vocabulary:
        return task.advice(folder)
    return f'  from bert_tf import BertForPreTraining\n  BertForPreTraining.from_pretrained("{folder}")'


# --- records ---------------------------------------------------------------------------------------------------------


def _check_records(task: PretrainingTask, data: Mapping[str, OpenedRecords]) -> None:
    """Checks the vocabulary, and the first records, against the model; warns of pairs that another family learns from.

    Labels of such pairs look the same; the summary beside the records tells them apart.
    """
    settings, masking = task.settings, task.masking
    files = {f"--{flag}": opened.index.files for flag, opened in data.items()}
    is_new = not (settings.init_checkpoint or settings.teacher)
    knows_size = model_vocabulary.check_size(settings.vocab_file, files, task.config, task.config_name, is_new)
    if masking and masking.all_ids.max() >= task.config.vocab_size:  # records name another file; a GPU notices nothing
        raise ValueError(f"--vocab_file={settings.vocab_file} has more tokens than {task.config_name}.")
    count = 1 if knows_size else _BATCHES_WITHOUT_VOCABULARY
    usual = "order" if task.config.model_type == AlbertConfig.model_type else "random"
    for flag, opened in data.items():
        index = opened.index
        batches = records.evaluation_batches(index, opened.features, batch_size=64, repeat=False, max_steps=count)
        with records.explained_errors(index, opened.features, flag):
            batch, *_ = batches  # all are read
        second = batch["segment_lengths"][:, 1::2] if opened.pairs else batch["segment_ids"]
        if settings.nsp and not tf.reduce_any(second > 0):
            raise ValueError(f"--{flag} holds single sequences, without a second segment: give --nsp=false.")
        if masking and opened.pairs and (problem := masking.problem(batch)):
            raise ValueError(f"--{flag} {problem}: the records were made with another vocabulary (--vocab_file).")
        for path, summary in model_vocabulary.summaries_of(index.files).items() if settings.nsp else ():
            made = summary.get("flags", {}).get("next_sentence", "random")
            if made != usual:
                logging.warning(
                    "%s learns from pairs of --next_sentence=%s, those of --%s are of --next_sentence=%s (%s).",
                    *(task.config.title, usual, flag, made, path),
                )


# --- training and evaluation -----------------------------------------------------------------------------------------


def _make_evaluate(
    model, task: PretrainingTask, strategy, data: Mapping[str, OpenedRecords]
) -> Callable[[int], dict[str, float]]:
    """Builds evaluate(step) -> results, which evaluates each step only once."""
    settings = task.settings
    opened = data.get("eval_input_file") or data["input_file"]
    compiled = distribution.compiles_steps(settings.use_xla, strategy)
    evaluate_batches = make_evaluate_function(model, task.evaluation_objective, strategy, compiled)
    evaluated: dict[int, dict] = {}

    def evaluate(step: int) -> dict[str, float]:
        if step not in evaluated:
            batches = records.evaluation_batches(
                opened.index,
                opened.features,
                batch_size=settings.eval_batch_size,
                repeat=not settings.eval_input_file,
                max_steps=settings.max_eval_steps,
                prepare=task.labeller(opened, mask_rules.EVALUATION_SEED),
            )
            with records.explained_errors(opened.index, opened.features, opened.flag):
                evaluated[step] = evaluate_batches(batches)
        return evaluated[step]

    return evaluate


def _training_batches(task: PretrainingTask, opened: OpenedRecords, first_step: int, share: Share) -> tf.data.Dataset:
    settings = task.settings
    return records.training_batches(
        opened.index,
        opened.features,
        batch_size=settings.train_batch_size,
        seed=settings.seed,
        start_step=first_step,
        shuffle_window=settings.shuffle_window,
        prepare=task.labeller(opened, settings.seed),
        prepares_whole_batches=task.token_weights is not None,
        share=share,
    )
