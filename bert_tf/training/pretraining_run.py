"""A pre-training run: records in, a model directory out. run_pretraining.py adds the flags.

settings = PretrainingSettings("train.tfrecord", "model", bert_size="tiny", do_train=True, num_train_steps=1000)
results = pretrain(settings)
"""

import dataclasses
import posixpath
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import records
from bert_tf.models import flops, objectives, pretrained, task_models
from bert_tf.models.config import BertConfig
from bert_tf.models.directory import ModelFiles
from bert_tf.pretraining import dynamic_masking, model_vocabulary
from bert_tf.pretraining.settings import MASK_FLAGS, PretrainingSettings, check_settings
from bert_tf.text.casing import find_vocab_file
from bert_tf.text.vocab import MASK, load_vocab
from bert_tf.training import checkpoints, distribution, loop, optimization, run_directory
from bert_tf.training.pretraining_records import OpenedRecords, open_all_records
from bert_tf.training.settings import DeviceSettings, TrainingSettings
from bert_tf.training.step import TrainingPlan, make_evaluate_function


def pretrain(
    settings: PretrainingSettings,
    training: TrainingSettings = TrainingSettings(),  # noqa: B008
    devices: DeviceSettings = DeviceSettings(),  # noqa: B008
) -> dict[str, float]:
    """Trains and evaluates as the settings say; resumes the run in output_dir, if any.

    Returns:
      The results of the last evaluation, with `global_step`; only `global_step` without `do_eval`.

    Raises:
      ValueError, OSError: settings, records, vocabulary or weights are invalid or don't match; names the flag.
      loop.NonFiniteLossError, SystemExit: see `loop.train`.
    """
    check_settings(settings)
    config, config_name = _configure(settings, training.allow_unknown_config_keys)
    strategy = distribution.set_up_devices(devices)
    parts = training.gradient_accumulation_steps
    distribution.check_batch_size(settings.train_batch_size, strategy, parts, "train_batch_size")
    distribution.check_batch_size(settings.eval_batch_size, strategy, 1, "eval_batch_size")
    loop.set_seed(training.seed, training.deterministic)
    chief = distribution.is_chief(strategy)
    _check_output_dir(settings, config)
    if chief:
        tf.io.gfile.makedirs(settings.output_dir)

    data = open_all_records(settings, chief)
    masking = _create_masking(settings, config, data)
    for opened in data.values():
        _check_first_batch(opened, settings, config, config_name, masking)
    objective = objectives.pretraining_objective(settings.objective, settings.nsp)
    with strategy.scope():
        model = task_models.BertForPreTraining(config, dtype=training.dtype_policy)
        model.build()
        optimizer = None
        if settings.do_train:
            optimizer = optimization.create_optimizer(
                training.optimizer, settings.learning_rate, settings.num_train_steps, settings.num_warmup_steps
            )
            optimizer.build(model.trainable_variables)
    logging.info(
        "Model with %s parameters; batch %d = %d replicas x %d micro-batches x %d examples; %s%s.",
        f"{model.count_params():,}",
        settings.train_batch_size,
        strategy.num_replicas_in_sync,
        parts,
        settings.train_batch_size // (strategy.num_replicas_in_sync * parts),
        training.dtype,
        ", XLA" if training.use_xla else "",
    )
    step = loop.restore(model, optimizer, settings.output_dir, settings.init_checkpoint, training.init_with_optimizer)
    if chief and settings.do_train and step < (settings.stop_at_step or settings.num_train_steps):
        vocabulary = _find_vocabulary(settings, data, config)
        run_directory.claim_output_dir(settings.output_dir, config)
        if vocabulary:
            pretrained.write_description(settings.output_dir, vocabulary)
        recorded = _recorded(settings, training, devices, data, masking)
        run_directory.record_settings(settings.output_dir, recorded, resumed=step > 0)
    evaluate = _make_evaluate(model, objective, strategy, settings, data, masking)
    if settings.do_train:
        step = _train(model, optimizer, objective, strategy, settings, training, data["input_file"], masking, evaluate)
    results = {"global_step": step}
    if settings.do_eval:
        logging.info("Evaluation of step %d:", step)
        results |= evaluate(step)
        if chief:
            run_directory.write_eval_results(posixpath.join(settings.output_dir, "eval_results.txt"), results)
    if chief and settings.do_train:
        _log_ending(settings)
    return results


# --- configuration ---------------------------------------------------------------------------------------------------


def _configure(settings: PretrainingSettings, allow_unknown_keys: bool) -> tuple[BertConfig, str]:
    """The model's configuration, and its name in messages.

    Raises:
      ValueError: it does not suit the objective, or the sequence length.
    """
    if settings.bert_size:
        size = {"vocab_size": max(load_vocab(settings.vocab_file).values()) + 1} if settings.vocab_file else {}
        config, name = config_of_size(settings.bert_size, **size), f"--bert_size={settings.bert_size}"
    else:
        config = pretrained.read_config(settings.bert_config_file, settings.init_checkpoint, allow_unknown_keys)
        name = settings.bert_config_file or f"the configuration beside {settings.init_checkpoint}"
    if config.model_type != BertConfig.model_type:
        raise ValueError(f"{name} is that of a {config.title}, but run_pretraining.py trains only BERT.")
    if settings.is_left_to_right:
        logging.info("--objective=ltr: attention is causal, here and wherever this model is used.")
        config.attention = "causal"
    elif config.is_causal:
        raise ValueError(
            f"--objective={settings.objective} needs attention to both sides, but attention is {config.attention} in "
            f"{name}: give --objective=ltr, or another configuration."
        )
    if settings.max_seq_length > config.max_length:
        raise ValueError(
            f"--max_seq_length={settings.max_seq_length} is more than max_position_embeddings="
            f"{config.max_position_embeddings} of {name}."
        )
    return config, name


def _check_output_dir(settings: PretrainingSettings, config: BertConfig) -> None:
    run_directory.check_output_dir(settings.output_dir, config)
    there_is_a_model = settings.init_checkpoint or checkpoints.latest_checkpoint(settings.output_dir)
    if not settings.do_train and not there_is_a_model:
        raise ValueError(
            f"Nothing to evaluate: no checkpoint in --output_dir={settings.output_dir}, and no --init_checkpoint."
        )


def _find_vocabulary(
    settings: PretrainingSettings, data: Mapping[str, OpenedRecords], config: BertConfig
) -> ModelFiles | None:
    """The vocabulary to put beside the model; None if an earlier start has put it there, or if it is unknown."""
    if find_vocab_file(settings.output_dir):
        return None
    files = {f"--{flag}": opened.index.files for flag, opened in data.items()}
    return model_vocabulary.find_vocabulary(settings.vocab_file, settings.init_checkpoint, files, config)


def _recorded(
    settings: PretrainingSettings,
    training: TrainingSettings,
    devices: DeviceSettings,
    data: Mapping[str, OpenedRecords],
    masking: dynamic_masking.Masking | None,
) -> dict:
    """The content of run.json: all settings that matter to this run, and the data and vocabulary it used."""
    recorded = dataclasses.asdict(settings) | dataclasses.asdict(training) | dataclasses.asdict(devices)
    if "input_file" in data:
        recorded["input_file_fingerprint"] = data["input_file"].index.fingerprint
    if masking:
        recorded["vocab_file_fingerprint"] = masking.fingerprint
        return recorded
    return {name: value for name, value in recorded.items() if name not in ("vocab_file", *MASK_FLAGS)}


def _log_ending(settings: PretrainingSettings) -> None:
    """Logs where the model is, and how to use it."""
    folder = settings.output_dir
    if not find_vocab_file(folder):
        use = f'  from bert_tf import BertForPreTraining\n  BertForPreTraining.from_pretrained("{folder}")'
    elif settings.is_left_to_right:
        use = f"  python run_classifier.py --init_checkpoint={folder} --task_name=... --do_train --output_dir=..."
    else:
        use = (
            "  from bert_tf import BertForPreTraining, FullTokenizer, fill_mask\n"
            f'  model, tokenizer = (kind.from_pretrained("{folder}") for kind in (BertForPreTraining, FullTokenizer))\n'
            f'  print(fill_mask(model, tokenizer, ["The {MASK} of the story."]))'
        )
    logging.info("The model is in %s. To use it:\n%s", folder, use)


# --- records ---------------------------------------------------------------------------------------------------------


def _create_masking(
    settings: PretrainingSettings, config: BertConfig, data: Mapping[str, OpenedRecords]
) -> dynamic_masking.Masking | None:
    """How unmasked records are masked; None if there are none, or the objective needs no masks.

    Raises:
      ValueError: flags for unmasked records without such records; no vocabulary, or one that does not match the model;
        a flag out of range.
    """
    if settings.is_left_to_right:
        return None
    if not any(opened.pairs for opened in data.values()):
        for name in settings.given_mask_flags():
            raise ValueError(
                f"--{name} is for unmasked records; these were already masked by create_pretraining_data.py, with its "
                "own flags."
            )
        return None
    vocab_file = settings.vocab_file
    if not vocab_file and settings.init_checkpoint:
        vocab_file = pretrained.read_model(settings.init_checkpoint)[1].vocab_file
    if not vocab_file:
        raise ValueError(
            "The records are unmasked (create_pretraining_data.py --masking=dynamic), to be masked during training: "
            "give --vocab_file, the vocabulary they were made with, or --init_checkpoint with one beside it."
        )
    names = ("max_predictions_per_seq", *MASK_FLAGS)
    masking = dynamic_masking.Masking.from_vocab(
        load_vocab(vocab_file), vocab_file, **{name: getattr(settings, name) for name in names}
    )
    if (largest := masking.all_ids.max()) >= config.vocab_size:
        raise ValueError(
            f"--vocab_file={vocab_file} has token id {largest}, but the model's vocab_size is {config.vocab_size}."
        )
    has_words = any("word_continuations" in opened.features for opened in data.values())
    logging.info(
        "The records are unmasked%s: %g of the tokens (%s) will be masked during training, at most %d per row, with "
        "the vocabulary %s; %g of these become %s, %g a random token.",
        " and say what a word is" if has_words else "",
        masking.masked_lm_prob,
        "whole words" if masking.do_whole_word_mask else "single pieces",
        masking.max_predictions_per_seq,
        vocab_file,
        masking.mask_rate,
        MASK,
        masking.random_rate,
    )
    if has_words and not masking.do_whole_word_mask:
        logging.warning("The words that the records name are not used: --do_whole_word_mask is not given.")
    return masking


def _check_first_batch(
    opened: OpenedRecords,
    settings: PretrainingSettings,
    config: BertConfig,
    config_name: str,
    masking: dynamic_masking.Masking | None,
) -> None:
    """Raises ValueError if the first records don't match the model, the objective or the vocabulary."""
    for batch in records.evaluation_batches(opened.index, opened.features, batch_size=64, repeat=False, max_steps=1):
        largest = int(np.max(batch["input_ids"]))
        if largest >= config.vocab_size:  # GPUs and TPUs would not notice, and train on NaN
            raise ValueError(
                f"--{opened.flag} has token id {largest}, but vocab_size={config.vocab_size} in {config_name}: "
                "the data was made with another, larger vocabulary."
            )
        second = batch["segment_lengths"][:, 1::2] if opened.pairs else batch["segment_ids"]
        if settings.nsp and not tf.reduce_any(second > 0):
            raise ValueError(
                f"--{opened.flag} holds single sequences (create_pretraining_data.py --nsp=false), without a second "
                "segment to predict: give --nsp=false here, too."
            )
        if masking and opened.pairs and (problem := masking.problem(batch)):
            raise ValueError(
                f"--{opened.flag} {problem}: the records were made with another vocabulary (--vocab_file)."
            )


# --- training and evaluation -----------------------------------------------------------------------------------------


def _make_evaluate(
    model, objective, strategy, settings: PretrainingSettings, data: Mapping[str, OpenedRecords], masking
) -> Callable[[int], dict[str, float]]:
    """Builds evaluate(step) -> results, which evaluates each step only once."""
    opened = data.get("eval_input_file") or data["input_file"]
    evaluate_batches = make_evaluate_function(model, objective, strategy)
    evaluated: dict[int, dict] = {}

    def evaluate(step: int) -> dict[str, float]:
        if step not in evaluated:
            batches = records.evaluation_batches(
                opened.index,
                opened.features,
                batch_size=settings.eval_batch_size,
                repeat=not settings.eval_input_file,
                max_steps=settings.max_eval_steps,
                prepare=opened.labeller(settings, masking, dynamic_masking.EVALUATION_SEED),
            )
            with records.explained_errors(opened.index, opened.features):
                evaluated[step] = evaluate_batches(batches)
        return evaluated[step]

    return evaluate


def _train(
    model,
    optimizer,
    objective,
    strategy,
    settings: PretrainingSettings,
    training: TrainingSettings,
    opened: OpenedRecords,
    masking: dynamic_masking.Masking | None,
    evaluate: Callable[[int], dict[str, float]],
) -> int:
    """Trains from the model's current step; returns the step reached."""
    length = settings.max_seq_length
    predictions = length - 1 if settings.is_left_to_right else settings.max_predictions_per_seq
    plan = TrainingPlan(
        num_train_steps=settings.num_train_steps,
        stop_at_step=settings.stop_at_step,
        batch_size=settings.train_batch_size,
        iterations_per_loop=settings.iterations_per_loop,
        save_checkpoints_steps=settings.save_checkpoints_steps,
        tokens_per_example=length,
        flops_per_example=flops.pretraining_flops_per_example(model.config, length, predictions),
        **training.plan_fields,
    )

    def training_batches(first_step: int) -> tf.data.Dataset:
        return records.training_batches(
            opened.index,
            opened.features,
            batch_size=settings.train_batch_size,
            seed=training.seed,
            start_step=first_step,
            shuffle_window=settings.shuffle_window,
            prepare=opened.labeller(settings, masking, training.seed),
        )

    with records.explained_errors(opened.index, opened.features):
        return loop.train(
            model,
            optimizer,
            objective,
            strategy,
            plan,
            training_batches,
            settings.output_dir,
            evaluate if training.eval_every_steps else None,
        )
