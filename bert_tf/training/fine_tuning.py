"""What a fine-tuning run is made of: files, tokenizer, output layer, model and optimizer, the best model.

The run itself is in `tasks.script`, the training loop in `loop.train`.
"""

import contextlib
import dataclasses
import functools
import posixpath
from collections.abc import Callable, Sequence

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
    students,
)
from bert_tf.models.config import BertConfig
from bert_tf.models.directory import ModelFiles
from bert_tf.models.encoder import check_frozen_layers
from bert_tf.models.families import is_encoder_variable
from bert_tf.models.head_config import NO_HEAD, HeadConfig
from bert_tf.models.recipe import OptimizerSettings, Recipe
from bert_tf.models.variable_names import check_depth, expected_shapes
from bert_tf.system.declare import declared_in
from bert_tf.system.messages import named_by, some
from bert_tf.text import tokenizer_files
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training import best_model, checkpoints, distribution, loop, optimization, run_directory
from bert_tf.training.settings import FineTuningSettings, ModelSettings
from bert_tf.weights.mapping import Weights

# What is done to the weights that a run begins with.
Adjustment = Callable[[Weights], Weights]


# --- model files and tokenizer --------------------------------------------------------------------------------------


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
    filled = [name for name in declared_in(OptimizerSettings) if getattr(run, name) is None]
    own = [
        f"--{name}={getattr(new, name)}" for name in filled if getattr(new, name) != getattr(BertConfig.recipe, name)
    ]
    if run.do_train and own:
        logging.info("As %s was fine-tuned by its authors, unless you say otherwise: %s.", config.title, " ".join(own))
    optimization.layer_rates([], new.layerwise_lr_decay)
    check_frozen_layers(config, new.freeze_layers)
    lora.check_lora_rank(config, new.lora_rank)
    return new


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
    tokenizer_files.validate_case_matches_checkpoint(files.casing.do_lower_case, values.init_checkpoint)
    with named_by("--vocab_file") if values.vocab_file else contextlib.nullcontext():
        tokenizer = model_directory.tokenizer_of(files)
    tokenizer.check_casing(files.vocab_file, values.do_lower_case, values.strip_accents)
    return tokenizer


# --- the output layer that a run begins with -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StartingHead:
    """The output layer of the weights that a run begins with, or uses.

    Attributes:
      source: flag and path of the weights. layer: its name there. head: what is known of it. outputs: its rows.
    """

    source: str
    layer: str
    head: HeadConfig
    outputs: int

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of its outputs; None if they are not known."""
        names = output_layers.names_in(self.head.labels)
        return names if names and len(names) == self.outputs else None


def find_head(run: FineTuningSettings, newest: str | None, layer: str | None) -> StartingHead | None:
    """The output layer of a run's weights; None if it begins with a new one, or with one without classes.

    Args:
      newest: checkpoint in --output_dir, if any. layer: the name of the output layer of the task's models.

    Raises:
      FileNotFoundError, OSError, ValueError: the weights, or what is beside them, can't be read; names the flag.
    """
    path, flag = newest or run.init_checkpoint, "--output_dir" if newest else "--init_checkpoint"
    if not path or layer not in output_layers.OUTPUT_LAYERS or (not newest and (run.layers or run.new_head)):
        return None
    with named_by(flag):
        weights, head = open_weights.open_weights(path), model_directory.read_head(tokenizer_files.directory_of(path))
    if head == NO_HEAD and run.bert_config_file:
        head = model_directory.read_head(posixpath.dirname(run.bert_config_file), run.bert_config_file)
    return StartingHead(f"{flag}: {path}", layer, head, weights.shapes[layer][0]) if layer in weights else None


def adjustment_of(
    run: FineTuningSettings, newest: str | None, layer: str | None, head: HeadConfig, others: Sequence[str] = ()
) -> Adjustment | None:
    """What makes the output layer of a run's weights that of its labels; None: it is, or it has no classes.

    A run that is resumed has its own, see `run_directory.check_output_dir`.

    Args:
      newest, layer: see `find_head`. head: of the run's models, with what the data says of it. others: see
        `output_layers.order_of`.

    Raises:
      ValueError: the layer is for other labels, or for another task; says which, and names --new_head.
    """
    if newest and run.do_train:
        return None
    if run.new_head and layer:
        return functools.partial(output_layers.without, layer=layer, reason="--new_head")
    found = find_head(run, newest, layer)
    if found is None:
        return None
    advice = f"{'' if run.do_train else '--do_train with '}--new_head trains a new output layer."
    for name, kind in (("architecture", "a"), ("problem_type", "for")):
        was, now = getattr(found.head, name), getattr(head, name)
        if None not in (was, now) and was != now:
            raise ValueError(f"{found.source} is {kind} {was}, and this run {kind} {now}. {advice}")
    if head.lstm_on_top and not found.head.lstm_on_top:
        raise ValueError(f"{found.source} has an output layer without a BiLSTM below it. {advice}")
    wanted = head.labels or ()
    if (found.labels is None or not wanted) and found.outputs != (count := len(wanted) or 1):
        raise ValueError(f"{found.source} has {found.outputs} outputs, and this run {count}. {advice}")
    if not wanted:
        return None
    if found.labels and set(wanted) < set(found.labels):
        advice = f"--labels={','.join(found.labels)} keeps them. {advice}"
    order = output_layers.order_of(found.labels, wanted, found.source, advice, others)
    return order and functools.partial(output_layers.reordered, layer=layer, order=order)


# --- model and optimizer ----------------------------------------------------------------------------------------------


def set_up_devices(runs: Sequence[FineTuningSettings]) -> tf.distribute.Strategy:
    """The strategy of a run with each of some combinations of settings; its replicas must divide all batch sizes.

    Raises:
      ValueError, RuntimeError: see `distribution.create_strategy` and `distribution.check_batch_size`.
    """
    strategy = distribution.set_up_devices(runs[0])
    for run in runs:
        parts = run.gradient_accumulation_steps
        distribution.check_batch_size(run.train_batch_size, strategy, parts, "train_batch_size")
    if runs[0].eval_batch_size:
        distribution.check_batch_size(runs[0].eval_batch_size, strategy, 1, "eval_batch_size")
    distribution.check_batch_size(runs[0].predict_batch_size, strategy, 1, "predict_batch_size")
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
    recipe: Recipe,
    adjust: Adjustment | None = None,
) -> tuple[keras.Model, keras.optimizers.Optimizer | None, int]:
    """The model, its optimizer and the step: restored from the run in its output_dir, or new.

    Args:
      num_train_steps: 0: no training, and thus no optimizer. recipe: that of `with_recipe`.
      adjust: of the weights that the run begins with or uses; see `adjustment_of`.

    Raises:
      FileNotFoundError, ValueError: see `loop.restore`; or --lora_rank would leave a part of the encoder random.
    """
    newest = checkpoints.latest_checkpoint(run.output_dir)
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
        beginning = students.chosen_layers(open_weights.open_weights(run.teacher), run.layers)
    if adapts:
        if not newest:
            _check_base(model, beginning)
        _log_lora(model)
        if run.learning_rate <= usual_rate:
            logging.warning(
                "--learning_rate=%g is one for whole models; adapters need about ten times as much to learn in the "
                "same steps.", run.learning_rate,
            )  # fmt: skip
    adjust = None if run.do_train and newest else adjust
    step = loop.restore(
        model, optimizer, run.output_dir, beginning, run.init_with_optimizer, run.resume_from_older, adjust=adjust
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


def check_resumed_lora(run: FineTuningSettings) -> None:
    """Refuses to resume a run with adapters of another rank or alpha, or without its own.

    Raises:
      ValueError: names --lora_rank.
    """
    output_dir = run.output_dir
    earlier = run_directory.read_settings(output_dir) if checkpoints.latest_checkpoint(output_dir) else {}

    def described(rank: int | None, alpha: float | None) -> str:
        return "without --lora_rank" if rank is None else f"with --lora_rank={rank} --lora_alpha={alpha}"

    was = described(earlier.get("lora_rank"), earlier.get("lora_alpha"))
    now = described(run.lora_rank, run.lora_alpha)
    if earlier and was != now:
        raise ValueError(f"--output_dir={output_dir} holds a run {was}; this one is {now}. Choose another directory.")


def cost_of_example(
    run: FineTuningSettings, config: BertConfig, lengths: np.ndarray, tokens_read: int | None
) -> tuple[float, float]:
    """The tokens of a training example, and its model FLOPs, forward and backward.

    Args:
      lengths: tokens of each training example. tokens_read: see `flops.layer_flops`.
    """
    mean_length = run.max_seq_length if run.padding["static_padding"] else float(lengths.mean())
    # Backward is twice as much as forward, and needless where nothing is trained.
    forward = flops.encoder_flops_per_example(config, mean_length, tokens_read)
    needless = 2.0 * sum(flops.layer_flops(config, mean_length, tokens_read)[: run.freeze_layers or 0])
    if run.lora_rank is not None:  # products with kernels go back to what is below, not to the kernels
        needless = sum(flops.layer_flops(config, mean_length, tokens_read, with_attention=False))
    return mean_length, 3.0 * forward - needless


# --- the run's directory --------------------------------------------------------------------------------------------


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
