"""What fine-tuning scripts do alike: model files and tokenizer, model and optimizer, training with the best model kept.

`values` are a script's flags, with those of `script_flags` among them. The training loop itself is `training.train`.
"""

import contextlib
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf
from absl import flags, logging

from bert_tf import (
    best_model,
    checkpoints,
    distribution,
    heads,
    model_files,
    optimization,
    pretrained,
    script_flags,
    tokenization,
    training,
    weight_files,
)
from bert_tf.config import BertConfig, check_vocab_size
from bert_tf.model_files import ModelFiles
from bert_tf.train_step import TrainingPlan
from bert_tf.weights import Weights, expected_shapes, some


@contextlib.contextmanager
def named_by(flag: str) -> Iterator[None]:
    """Puts the flag that gave a file before what is wrong with the file.

    Raises:
      FileNotFoundError, OSError, ValueError: `flag: message` for an error of these kinds, or of TensorFlow's files.
    """
    try:
        yield
    except (tf.errors.NotFoundError, FileNotFoundError) as error:
        raise FileNotFoundError(f"{flag}: {getattr(error, 'message', error)}") from error
    except (tf.errors.OpError, OSError) as error:
        raise OSError(f"{flag}: {getattr(error, 'message', error)}") from error
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from error


def describe_model(
    values: flags.FlagValues, newest: str | None, head: str
) -> tuple[ModelFiles, tokenization.FullTokenizer]:
    """What goes with a model by a script's flags, and its tokenizer; all checked to fit each other and the weights.

    Args:
      newest: checkpoint in --output_dir, if any. head: name of the output layer's weights, e.g. "output_weights",
        without which nothing can be evaluated or predicted.

    Raises:
      FileNotFoundError, OSError, ValueError: a file is not there or damaged (the message begins with its flag); there
        is nothing, or no output layer, to predict with; --max_seq_length is more than the model can take; vocabulary,
        casing, configuration and weights are not of one model.
    """
    weights = None
    if values.init_checkpoint:
        with named_by("--init_checkpoint"):
            weights = weight_files.open_weights(values.init_checkpoint)
    if newest:
        with named_by("--output_dir"):
            weights = weight_files.open_weights(newest)
    if not values.do_train:
        _check_trained(weights, values.output_dir, head)
    if values.bert_config_file:
        with named_by("--bert_config_file"):
            model_files.read_config(values.bert_config_file, values.allow_unknown_config_keys)
    if values.vocab_file:
        with named_by("--vocab_file"):
            tokenization.check_vocab(tokenization.load_vocab(values.vocab_file), values.vocab_file)
    files = script_flags.describe_model(values, newest)
    tokenizer = make_tokenizer(files, values.max_seq_length, values.init_checkpoint)
    files.max_seq_length = values.max_seq_length
    if weights is not None and not newest:  # a run that is gone on with has its own check: `training.check_output_dir`
        _check_sizes(weights, files)
    return files, tokenizer


def _check_trained(weights: Weights | None, output_dir: str, head: str) -> None:
    if weights is None:
        raise ValueError(
            f"Nothing to evaluate or predict with: --output_dir={output_dir} has no checkpoint and there is no "
            "--init_checkpoint."
        )
    if head not in weights:
        raise ValueError(
            f"{weights.path} has no output layer for this task ({head}): fine-tune it first, with --do_train."
        )


def _check_sizes(weights: Weights, files: ModelFiles) -> None:
    """Layers may be missing on either side, as in the original; what is there must have the right shape."""
    wrong = [
        f"{name}: {list(weights.shapes[name])} there, {list(shape)} by the configuration"
        for name, shape in expected_shapes(files.config).items()
        if name.startswith("bert/") and weights.shapes.get(name, shape) != shape
    ]
    if wrong:
        raise ValueError(
            f"--init_checkpoint: {weights.path} is of another size than {files.config_file}; {len(wrong)} variables "
            f"differ: {some(wrong, '; ')}."
        )


def make_tokenizer(files: ModelFiles, max_seq_length: int, init_checkpoint: str | None) -> tokenization.FullTokenizer:
    """The tokenizer of a model's files, which are checked to fit each other.

    Raises:
      ValueError: --max_seq_length is more than the model can take; the vocabulary or its casing does not fit the model.
    """
    if max_seq_length > files.config.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={max_seq_length} is more than max_position_embeddings="
            f"{files.config.max_position_embeddings} of {files.config_file}."
        )
    tokenization.validate_case_matches_checkpoint(files.casing.do_lower_case, init_checkpoint)
    tokenizer = tokenization.FullTokenizer(files.vocab_file, files.casing.do_lower_case, files.casing.strip_accents)
    tokenization.check_vocab(tokenizer.vocab, files.vocab_file)
    check_vocab_size(files.config, tokenizer.vocab, files.vocab_file, files.config_file or "bert_config.json")
    return tokenizer


def set_up_devices(values: flags.FlagValues, *batch_sizes: str) -> tf.distribute.Strategy:
    """The strategy of a script's flags; --train_batch_size and the flags `batch_sizes` divide among its replicas.

    Raises:
      ValueError, RuntimeError: see `distribution.create_strategy` and `distribution.check_batch_size`.
    """
    strategy = script_flags.set_up_devices(values)
    parts = values.gradient_accumulation_steps
    distribution.check_batch_size(values.train_batch_size, strategy, parts, "train_batch_size")
    for name in batch_sizes:
        distribution.check_batch_size(values[name].value, strategy, 1, name)
    return strategy


def padding(values: flags.FlagValues) -> dict:
    """max_seq_length and static_padding, as `batching` takes them."""
    static = values.static_padding or script_flags.strategy_name(values) == "tpu"
    return {"max_seq_length": values.max_seq_length, "static_padding": static}


def number_of_steps(num_examples: int, batch_size: int, num_train_epochs: float) -> int:
    """Steps of a run, as the original counts them.

    Raises:
      ValueError: not one.
    """
    steps = int(num_examples / batch_size * num_train_epochs)
    if steps < 1:
        raise ValueError(
            f"{num_examples} training examples, --train_batch_size={batch_size} and --num_train_epochs="
            f"{num_train_epochs} make not one step: lower the batch size, or train longer."
        )
    return steps


def build_and_restore(
    values: flags.FlagValues,
    strategy: tf.distribute.Strategy,
    create_model: Callable[[], keras.Model],
    num_train_steps: int,
    output_dir: str,
) -> tuple[keras.Model, keras.optimizers.Optimizer | None, int]:
    """The model, its optimizer (None without --do_train) and its step: where the run in output_dir stands, or anew.

    Raises:
      FileNotFoundError, ValueError: see `training.restore`.
    """
    with strategy.scope():
        model = create_model()
        model.build()
        optimizer = None
        if values.do_train:
            warmup_steps = int(num_train_steps * values.warmup_proportion)
            optimizer = optimization.create_optimizer(
                values.optimizer, values.learning_rate, num_train_steps, warmup_steps
            )
            optimizer.build(model.trainable_variables)
    step = training.restore(model, optimizer, output_dir, values.init_checkpoint, values.init_with_optimizer)
    return model, optimizer, step


def training_plan(
    values: flags.FlagValues,
    config: BertConfig,
    lengths: np.ndarray,
    num_train_steps: int,
    *,
    evaluates: bool,
    seed: int,
) -> TrainingPlan:
    """The plan of a fine-tuning run, evaluated each epoch unless --eval_every_steps says otherwise, and at the end.

    Args:
      lengths: tokens of each training example. evaluates: whether there is anything to evaluate on.
    """
    rows = padding(values)
    mean_length = rows["max_seq_length"] if rows["static_padding"] else float(lengths.mean())
    steps_per_epoch = max(len(lengths) // values.train_batch_size, 1)
    return script_flags.training_plan(
        values,
        seed=seed,
        num_train_steps=num_train_steps,
        batch_size=values.train_batch_size,
        eval_every_steps=(values.eval_every_steps or steps_per_epoch) if evaluates else 0,
        eval_at_end=True,
        tokens_per_example=mean_length,
        flops_per_example=3.0 * heads.encoder_flops_per_example(config, mean_length),
    )


def train(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    strategy: tf.distribute.Strategy,
    plan: TrainingPlan,
    training_batches: Callable[[int], tf.data.Dataset],
    output_dir: str,
    files: ModelFiles,
    keeper: best_model.BestModel,
    evaluate: Callable[[int], dict] | None,
    settings: dict,
    before: Callable[[], None],
) -> int:
    """Trains from where `training.restore` left the model; evaluates every plan.eval_every_steps and at the end.

    Args:
      evaluate: called with the step; returns results and gives them to `keeper`. None: nothing to evaluate on.
      settings: the flags of this run, kept in run.json.
      before: called once everything is known to be in order, to write what goes with the run.

    Returns:
      The step reached.
    """
    step = int(optimizer.iterations.numpy())
    chief = training.is_chief(strategy)
    due = step % plan.eval_every_steps == 0 or step >= plan.num_train_steps if evaluate and step else False
    if due and step not in keeper.steps:
        logging.info("Step %d was saved, but the earlier run ended before its evaluation.", step)
        evaluate(step)
    if step >= plan.num_train_steps:
        training.warn_of_changes(output_dir, settings)
        logging.info(
            "Nothing to train: step %d of %d is reached. To train anew, take another --output_dir.",
            step,
            plan.num_train_steps,
        )
        return step
    if chief:
        config_json = files.config.to_json_string()
        training.claim_output_dir(output_dir, config_json)
        pretrained.write_description(output_dir, files)
        training.record_settings(output_dir, settings, resumed=step > 0)
        before()
    step = training.train(
        model, optimizer, model.objective, strategy, plan, training_batches, output_dir, evaluate, keeper.should_stop
    )
    if evaluate and step not in keeper.steps:
        evaluate(step)  # stopped early before, and its evaluation lost
    return step


def use_best_model(model: keras.Model, keeper: best_model.BestModel) -> int:
    """Loads the best model; returns its step.

    Raises:
      ValueError: there is none.
    """
    if not keeper.best:
        raise ValueError(f"--use_best_model: {keeper.directory} is not there.")
    checkpoints.load_weights(model, keeper.directory)
    return keeper.best["step"]
