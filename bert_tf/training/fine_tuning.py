"""The parts of a fine-tuning run: model files and tokenizer, model and optimizer, plan, and output directory.

The run itself is in `tasks.script`, the training loop in `loop.train`.
"""

import contextlib
import dataclasses
import posixpath
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.models import directory as model_directory
from bert_tf.models import (
    flops,
    initialize,
    lora,
    lora_file,
    open_weights,
    output_layers,
    pretrained,
    random_weights,
    saving,
    teacher_layers,
)
from bert_tf.models.config import BertConfig
from bert_tf.models.directory import ModelFiles
from bert_tf.models.encoder import check_frozen_layers
from bert_tf.models.families import is_encoder_variable
from bert_tf.models.head_config import NO_HEAD
from bert_tf.models.recipe import Recipe
from bert_tf.models.variable_names import check_depth, expected_shapes
from bert_tf.system.messages import named_by, some
from bert_tf.text import casing
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training import best_model, card_facts, checkpoints, distribution, loop, optimization, run_directory
from bert_tf.training.settings import FineTuningSettings, ModelSettings
from bert_tf.training.starting_head import Adjustment
from bert_tf.training.step import TrainingPlan
from bert_tf.weights.mapping import Weights


def describe_model(values: FineTuningSettings, newest: str | None, head: str | None) -> tuple[ModelFiles, Tokenizer]:
    """The files of a run's model, and its tokenizer, checked against each other and the weights.

    Args:
      newest: checkpoint in --output_dir, if any. head: name of the output layer's weights, e.g. "output_weights",
        which evaluation and prediction need; None: they need none.

    Raises:
      FileNotFoundError, OSError, ValueError: a file is missing or damaged (the message begins with its flag); there
        is no model, or no output layer, to predict with; --max_seq_length is more than the model can take; vocabulary,
        casing, configuration and weights don't belong to the same model.
    """
    start = weights = None
    if values.init_checkpoint:
        with named_by("--init_checkpoint"):
            start = weights = open_weights.open_weights(values.init_checkpoint)
    if newest:
        with named_by("--output_dir"):
            weights = open_weights.open_weights(newest)
    if not values.do_train:
        _check_trained(weights, values.output_dir, head)
    if values.bert_config_file:
        with named_by("--bert_config_file"):
            model_directory.read_config(values.bert_config_file, values.allow_unknown_config_keys)
    files = pretrained.describe(
        weights if start is None else start,
        bert_config_file=values.bert_config_file,
        vocab_file=values.vocab_file,
        do_lower_case=values.do_lower_case,
        strip_accents=values.strip_accents,
        allow_unknown=values.allow_unknown_config_keys,
    )
    if not values.do_train and head in files.head.untrained:
        raise ValueError(f"--init_checkpoint: the output layer ({head}) was saved untrained: give --do_train.")
    files.head = dataclasses.replace(files.head, untrained=())
    tokenizer = make_tokenizer(files, values)
    files.max_seq_length = values.max_seq_length
    if weights is not None and not newest:  # a resumed run has its own check: `run_directory.check_output_dir`
        _check_sizes(weights, files)
        if not values.bert_config_file:  # with another configuration either side may lack layers, as in the original
            with named_by("--init_checkpoint"):
                check_depth(weights, files.config, files.config_file or files.config.file_name)
    return files, tokenizer


def put_lstm_on_top(files: ModelFiles, lstm_on_top: bool, do_train: bool) -> None:
    """Adds a BiLSTM to the head of a run's model with --lstm_on_top; a model that has one keeps it.

    Raises:
      ValueError: without training, the BiLSTM would be random.
    """
    if lstm_on_top and not files.head.lstm_on_top:
        if not do_train:
            raise ValueError("--lstm_on_top needs --do_train: this model was trained without a BiLSTM.")
        files.head = dataclasses.replace(files.head, lstm_on_top=True)


def with_recipe(run: FineTuningSettings, config: BertConfig, recipe: Recipe) -> FineTuningSettings:
    """The settings with a recipe, usually that of the model's family, where they say nothing, which is logged.

    Raises:
      ValueError: --layerwise_lr_decay, --freeze_layers or --lora_rank is impossible.
    """
    new = run.with_recipe(recipe)
    filled = [name for name in dataclasses.asdict(new) if getattr(run, name) is None and getattr(new, name) is not None]
    own = [
        f"--{name}={getattr(new, name)}" for name in filled if getattr(new, name) != getattr(BertConfig.recipe, name)
    ]
    if run.do_train and own:
        logging.info("As %s was fine-tuned by its authors, unless you say otherwise: %s.", config.title, " ".join(own))
    optimization.layer_rates([], new.layerwise_lr_decay)
    check_frozen_layers(config, new.freeze_layers)
    lora.check_lora_rank(config, new.lora_rank)
    return new.with_lora_alpha()


def _check_trained(weights: Weights | None, output_dir: str, head: str | None) -> None:
    if weights is None:
        raise ValueError(
            f"Nothing to evaluate or predict with: --output_dir={output_dir} has no checkpoint and there is no "
            "--init_checkpoint."
        )
    if head and head not in weights:
        raise ValueError(
            f"{weights.path} has no output layer for this task ({head}): fine-tune it first, with --do_train."
        )


def _check_sizes(weights: Weights, files: ModelFiles) -> None:
    """Checks the shapes of what both have."""
    wrong = [
        f"{name}: {list(weights.shapes[name])} there, {list(shape)} in the configuration"
        for name, shape in expected_shapes(files.config).items()
        if is_encoder_variable(name) and weights.shapes.get(name, shape) != shape
    ]
    if wrong:
        raise ValueError(
            f"--init_checkpoint: {weights.path} does not have the size of {files.config_file}; {len(wrong)} variables "
            f"differ: {some(wrong, '; ')}."
        )


def make_tokenizer(files: ModelFiles, values: ModelSettings) -> Tokenizer:
    """The tokenizer of a model's files, which are checked against each other and the flags.

    Raises:
      FileNotFoundError, OSError, ValueError: --max_seq_length is more than the model can take; the vocabulary is
        missing or damaged (the message begins with its flag), or it or its casing does not fit the model.
    """
    if values.max_seq_length > files.config.max_length:
        first = files.config.max_position_embeddings - files.config.max_length
        raise ValueError(
            f"--max_seq_length={values.max_seq_length} is more than max_position_embeddings="
            f"{files.config.max_position_embeddings}{f' - {first}' if first else ''} of "
            f"{files.config_file or values.init_checkpoint}."
        )
    casing.validate_case_matches_checkpoint(files.casing.do_lower_case, values.init_checkpoint)
    with named_by("--vocab_file") if values.vocab_file else contextlib.nullcontext():
        tokenizer = model_directory.tokenizer_of(files)
    tokenizer.check_casing(files.vocab_file, values.do_lower_case, values.strip_accents)
    return tokenizer


def set_up_devices(run: FineTuningSettings) -> tf.distribute.Strategy:
    """The strategy of a run; checks that batch sizes can be divided by its replicas.

    Raises:
      ValueError, RuntimeError: see `distribution.create_strategy` and `distribution.check_batch_size`.
    """
    strategy = distribution.set_up_devices(run)
    for values in run.combinations:
        size = values.get("train_batch_size", run.train_batch_size)
        distribution.check_batch_size(size, strategy, run.gradient_accumulation_steps, "train_batch_size")
    if run.eval_batch_size:
        distribution.check_batch_size(run.eval_batch_size, strategy, 1, "eval_batch_size")
    distribution.check_batch_size(run.predict_batch_size, strategy, 1, "predict_batch_size")
    return strategy


def number_of_steps(num_examples: int, batch_size: int, num_train_epochs: float) -> int:
    """Steps of a run, as the original counts them.

    Raises:
      ValueError: there would be none.
    """
    steps = int(num_examples / batch_size * num_train_epochs)
    if steps < 1:
        raise ValueError(
            f"{num_examples} training examples, --train_batch_size={batch_size} and --num_train_epochs="
            f"{num_train_epochs} give less than one step: lower the batch size, or train longer."
        )
    return steps


@random_weights.drawn_late()
def build_and_restore(
    run: FineTuningSettings,
    strategy: tf.distribute.Strategy,
    create_model: Callable[[], keras.Model],
    num_train_steps: int,
    output_dir: str,
    recipe: Recipe,
    adjust: Adjustment | None = None,
) -> tuple[keras.Model, keras.optimizers.Optimizer | None, int]:
    """The model, its optimizer and the step: restored from the run in output_dir, or new.

    Args:
      num_train_steps: 0: no training, and thus no optimizer. recipe: that of `with_recipe`.
      adjust: of the weights that the run begins with or uses; see `starting_head.adjustment_of`.

    Raises:
      FileNotFoundError, ValueError: see `loop.restore`; or --lora_rank would leave a part of the encoder random.
    """
    adapts, usual_rate = run.lora_rank is not None and num_train_steps > 0, recipe.learning_rate
    with strategy.scope():
        model = create_model()
        if adapts:
            model.bert.add_lora(run.lora_rank, run.lora_alpha, lora_file.reads_pooler(model))
        model.build()
        optimizer = None
        if num_train_steps:
            recipe = run.recipe(recipe)
            warmup_steps = num_train_steps * run.warmup_proportion
            if recipe.warmup != "multiplies":
                warmup_steps = int(warmup_steps)
            optimizer = optimization.create_optimizer(
                run.optimizer, run.learning_rate, num_train_steps, warmup_steps, recipe
            )
            optimizer.build(model.trainable_variables)
            if run.classifier_dropout is not None:
                model.dropout_rate = run.classifier_dropout
            if run.freeze_layers is not None:
                model.bert.freeze_layers(run.freeze_layers)
    beginning = run.init_checkpoint
    if run.layers:
        beginning = teacher_layers.chosen_layers(open_weights.open_weights(run.teacher), run.layers)
    if adapts:
        if not checkpoints.latest_checkpoint(output_dir):
            _check_base(model, beginning)
        _log_lora(model)
        if run.learning_rate <= usual_rate:
            logging.warning(
                "--learning_rate=%g is one for whole models; adapters need about ten times as much to learn in the "
                "same steps.", run.learning_rate,
            )  # fmt: skip
    if run.do_train and checkpoints.latest_checkpoint(output_dir):
        adjust = None
    step = loop.restore(
        model, optimizer, output_dir, beginning, run.init_with_optimizer, run.resume_from_older, adjust=adjust
    )
    return model, optimizer, step


def _check_base(model: keras.Model, beginning: str | Weights) -> None:
    """Refuses weights that lack a part of the encoder, which would stay random where only adapters are trained.

    Raises:
      ValueError: names the weights and what they lack.
    """
    weights = beginning if isinstance(beginning, Weights) else initialize.weights_for(model, beginning)
    missing = [name for name in lora_file.base_variables(model) if name not in weights]
    if missing:
        raise ValueError(
            f"--lora_rank keeps the encoder as it is, but {weights.path} lacks {len(missing)} of its variables, which "
            f"would stay random: {some(missing)}. Leave --lora_rank out, or give other weights."
        )


def _log_lora(model: keras.Model) -> None:
    """Logs how little LoRA trains, and what that takes: float32 gradients, and the optimizer's two moments of each."""
    rank, alpha = model.bert.lora.rank, model.bert.lora.alpha
    trained = sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
    total = sum(int(np.prod(variable.shape)) for variable in initialize.model_variables(model).values())
    logging.info(
        "LoRA of rank %d, alpha %g: %s parameters are trained, %.2f %% of the model's %s. Their gradients take %.1f MB "
        "(without LoRA %.1f MB), the optimizer's moments %.1f MB (%.1f MB).",
        rank, alpha, f"{trained:,}", 100 * trained / total, f"{total:,}",
        *(bytes_each * count / 1e6 for bytes_each in (4, 8) for count in (trained, total)),
    )  # fmt: skip


def check_resumed_lora(output_dir: str, run: FineTuningSettings) -> None:
    """Refuses to resume a run with adapters of another rank or alpha, or without its own.

    Raises:
      ValueError: names --lora_rank.
    """
    earlier = run_directory.read_settings(output_dir) if checkpoints.latest_checkpoint(output_dir) else {}

    def described(rank: int | None, alpha: float | None) -> str:
        return "without --lora_rank" if rank is None else f"with --lora_rank={rank} --lora_alpha={alpha}"

    was = described(earlier.get("lora_rank"), earlier.get("lora_alpha"))
    now = described(run.lora_rank, run.lora_alpha)
    if earlier and was != now:
        raise ValueError(f"--output_dir={output_dir} holds a run {was}; this one is {now}. Choose another directory.")


def training_plan(
    run: FineTuningSettings,
    config: BertConfig,
    lengths: np.ndarray,
    num_train_steps: int,
    *,
    eval_every_steps: int,
    seed: int,
    tokens_read: int | None = None,
) -> TrainingPlan:
    """The plan of a fine-tuning run, which saves no checkpoint at step 0 and is also evaluated at the end.

    Args:
      lengths: tokens of each training example. eval_every_steps: 0: there is no data to evaluate on.
      tokens_read: see `flops.layer_flops`.
    """
    mean_length = run.max_seq_length if run.padding["static_padding"] else float(lengths.mean())
    # Backward is twice as much as forward, and needless where nothing is trained.
    forward = flops.encoder_flops_per_example(config, mean_length, tokens_read)
    frozen = sum(flops.layer_flops(config, mean_length, tokens_read)[: run.freeze_layers or 0])
    needless = 2.0 * frozen
    if run.lora_rank is not None:  # products with kernels go back to what is below, not to the kernels
        needless = sum(flops.layer_flops(config, mean_length, tokens_read, with_attention=False))
    own = {
        "num_train_steps": num_train_steps,
        "batch_size": run.train_batch_size,
        "seed": seed,
        "keep_checkpoint_max": run.checkpoints_while_training,
        "eval_every_steps": eval_every_steps,
        "eval_at_end": True,
        "save_first": False,
        "tokens_per_example": mean_length,
        "flops_per_example": 3.0 * forward - needless,
    }
    return TrainingPlan.of(run, **own)


def claim(output_dir: str, files: ModelFiles, settings: dict, resumed: bool) -> None:
    """Writes the model's description and the settings into a run's directory, before the first step."""
    run_directory.claim_output_dir(output_dir, files.config, files.head)
    saving.write_description(output_dir, files)
    run_directory.record_settings(output_dir, {**settings, run_directory.FINISHED: None}, resumed)


def finish(output_dir: str, model: keras.Model, files: ModelFiles, step: int, keeps_optimizer: bool) -> None:
    """Marks a run as finished; unless it keeps its optimizer state, only the weights of its last step are kept, with
    adapters of LoRA added to them. These also get a file of their own.

    A run of an earlier version, which kept all its checkpoints, is left as it is.

    Args:
      files: what goes with the model, with the facts for its card.
    """
    if run_directory.FINISHED not in run_directory.read_settings(output_dir):
        return
    if lora.has_adapters(model):
        lora_file.write_lora(posixpath.join(output_dir, lora_file.FILE), model)
    if not keeps_optimizer:
        weights = initialize.model_weights(model)
        tensors = {name: weights[name] for name in weights} | {"global_step": np.int64(step)}
        checkpoints.save(output_dir, step, tensors, keep_max=1)
    card_facts.write_card(output_dir, saving.card_of(initialize.model_weights(model), files, "tf1"))
    run_directory.mark_as_finished(output_dir, step)


def use_best_model(model: keras.Model, keeper: best_model.BestModel) -> int:
    """Loads the best model; returns its step.

    Raises:
      ValueError: there is none.
    """
    if not keeper.best:
        raise ValueError(f"--use_best_model: {keeper.directory} does not exist.")
    weights = initialize.weights_for(model, keeper.directory)
    layer, head = output_layers.layer_in(weights), getattr(model, "head_config", NO_HEAD)
    known = output_layers.names_in(model_directory.read_head(keeper.directory).labels)
    if layer and known and head.labels:
        order = output_layers.order_of(known, head.labels, f"--use_best_model: {keeper.directory}", "Train it again.")
        weights = output_layers.reordered(weights, layer, order) if order else weights
    result = initialize.initialize(initialize.model_variables(model), weights)
    initialize.log_initialization(result, model)
    lora.clear_adapters(model)  # its kernels have them
    return keeper.best["step"]
