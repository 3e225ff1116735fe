"""A pre-training run: records in, a model directory out. run_pretraining.py adds the flags.

settings = PretrainingSettings("train.tfrecord", "model", bert_size="tiny", do_train=True, num_train_steps=1000)
results = pretrain(settings)
"""

import dataclasses
import math

import tensorflow as tf
from absl import logging

from bert_tf.data import records
from bert_tf.families import config_of_size, tokenizer_of_model
from bert_tf.families.config import BertConfig, shallower
from bert_tf.families.distilbert import DistilBertConfig
from bert_tf.families.recipe import with_recipe
from bert_tf.pretraining import model_vocabulary
from bert_tf.store.description import read_config
from bert_tf.store.open import OpenedModel, open_local
from bert_tf.system.declare import with_models
from bert_tf.system.messages import naming_flag
from bert_tf.training import distribution, loop, run_directory
from bert_tf.training.pretraining_settings import WARMUP_STEPS, PretrainingSettings, student_family
from bert_tf.training.pretraining_tasks import LeftToRightTask, PretrainingTask
from bert_tf.training.pretraining_two_models import DistillationTask, ElectraTask

TASKS: dict[str, type[PretrainingTask]] = {"mlm": PretrainingTask, "ltr": LeftToRightTask, "electra": ElectraTask}


def pretrain(settings: PretrainingSettings) -> dict[str, float]:
    """Trains and evaluates as the settings say; resumes the run in output_dir, if any.

    Returns the results of the last evaluation, with `global_step`; only `global_step` without `do_eval`.

    Raises:
      ValueError, OSError: settings, records, vocabulary or weights are invalid or don't match; names the flag.
      loop.NonFiniteLossError, SystemExit: see `loop.train`.
    """
    return run(with_models(settings, PretrainingSettings.check, settings.output_dir))


def run(settings: PretrainingSettings) -> dict[str, float]:
    """`pretrain` of settings that were checked, and name no model on the hub.

    Before a step, the vocabulary and the first records are checked against the model. Pairs that another family learns
    from, whose labels look the same, are warned of, by the summary next to the records.
    """
    settings, earlier, opened, config, name = _resolve(settings)
    with distribution.set_up_run(settings) as strategy:
        task = _kind_of_task(settings)(settings, config, name, strategy, earlier, opened)
        if settings.do_train:
            run_directory.Manifest(earlier, task.recorded, [settings]).check_fixed()
        masking, is_new = task.masking, not (settings.init_checkpoint or settings.teacher)
        knows_size = model_vocabulary.check_size(settings.vocab_file, task.summaries, config, name, is_new)
        if masking and masking.all_ids.max() >= config.vocab_size:  # records name another file; a GPU notices nothing
            raise ValueError(f"--vocab_file={settings.vocab_file} has more tokens than {name}.")
        count = 1 if knows_size else 64  # batches in which an id beyond the model's is looked for
        for flag, data in task.data.items():
            index = data.index
            batches = records.evaluation_batches(index, data.features, batch_size=64, repeat=False, max_steps=count)
            with records.explained_errors(index, data.features, flag):
                batch, *_ = batches  # all are read
            second = batch["segment_lengths"][:, 1::2] if data.pairs else batch["segment_ids"]
            if settings.nsp and not tf.reduce_any(second > 0):
                raise ValueError(f"--{flag} holds single sequences, without a second segment: give --nsp=false.")
            if masking and data.pairs and (problem := masking.problem(batch)):
                raise ValueError(f"--{flag} {problem}: the records were made with another vocabulary (--vocab_file).")
            for path, summary in data.summaries.items() if settings.nsp else ():
                if (made := summary.get("flags", {}).get("next_sentence", "random")) != config.pairs:
                    logging.warning(
                        "%s learns from pairs of --next_sentence=%s, those of --%s are of --next_sentence=%s (%s).",
                        *(config.title, config.pairs, flag, made, path),
                    )
        loop.set_seed(settings.seed, settings.deterministic)
        return task.execute()


def _resolve(
    settings: PretrainingSettings,
) -> tuple[PretrainingSettings, run_directory.EarlierRun, OpenedModel | None, BertConfig, str]:
    """What follows from the settings, checked against the run in output_dir, if any.

    Returns the settings with the family's recipe; what is in output_dir; the model that the run begins with, or else
    its teacher; the configuration, and its name in messages.
    """
    earlier = run_directory.find_earlier_run(settings.output_dir, vars(settings), trains=settings.do_train)
    if settings.student_layers:
        settings = dataclasses.replace(settings, init_checkpoint=settings.teacher)
    if not (settings.do_train or settings.init_checkpoint or earlier.newest):
        where = f"--output_dir={settings.output_dir}"
        raise ValueError(f"Nothing to evaluate: no checkpoint in {where}, and no --init_checkpoint.")
    path = settings.init_checkpoint or settings.teacher
    is_teacher, has_config = path == settings.teacher, bool(settings.bert_size or settings.bert_config_file)
    try:
        with naming_flag("--teacher" if is_teacher else "--init_checkpoint"):
            opened = open_local(path, is_checked=is_teacher or not has_config) if path else None
    except FileNotFoundError:
        if not (earlier.newest and has_config):
            raise
        opened = None  # the run goes on without the model that it began with
    if settings.bert_config_file:
        config, name = read_config(settings.bert_config_file), settings.bert_config_file
    elif settings.bert_size:
        config, name = config_of_size(settings.bert_size), f"--bert_size={settings.bert_size}"
    elif settings.init_checkpoint:
        config, name = opened.needed_config(), f"the configuration next to {path}"
        logging.info("Configuration from %s.", opened.config_file or path)
    else:
        raise ValueError("Give --bert_config_file, or --init_checkpoint with a configuration next to it.")
    if settings.student_layers:
        family, config = student_family(settings, config), shallower(config, settings.layers)
        if family == DistilBertConfig.model_type != config.model_type:
            config = DistilBertConfig.of_teacher(config)
    kind = _kind_of_task(settings)
    kind.configure(settings, config, name)
    if settings.nsp and not config.has_pooler:
        raise ValueError(f"--nsp needs a model with a pooler, but {name} is that of {config.title}: leave it out.")
    recipe, warmup = kind.recipe or config.pretraining_recipe, WARMUP_STEPS
    if recipe != BertConfig.pretraining_recipe:
        warmup = math.ceil(recipe.warmup_proportion * settings.num_train_steps)
    whose = f"As {DistilBertConfig.title if settings.teacher else config.title} was pre-trained"
    settings = with_recipe(settings, recipe, whose if settings.do_train else None, num_warmup_steps=warmup)
    nsp, predictions = config.has_pooler and not settings.teacher, kind.default_predictions(settings, config)
    settings = with_recipe(settings, recipe, None, nsp=nsp, max_predictions_per_seq=predictions)
    if settings.bert_size and settings.vocab_file:
        config.vocab_size = tokenizer_of_model(settings.vocab_file, config).vocab_size
    earlier.check_model(config)
    return settings, earlier, opened, config, name


def _kind_of_task(settings: PretrainingSettings) -> type[PretrainingTask]:
    return DistillationTask if settings.teacher else TASKS[settings.objective]
