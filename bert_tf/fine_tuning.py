"""What fine-tuning scripts do alike: model files and tokenizer, model and optimizer, training with the best model kept.

The training loop itself is `training.train`.
"""

from collections.abc import Callable

import keras
import tensorflow as tf
from absl import logging

from bert_tf import best_model, checkpoints, optimization, pretrained, tokenization, training, weight_files
from bert_tf.config import check_vocab_size
from bert_tf.model_files import ModelFiles
from bert_tf.train_step import TrainingPlan


def check_trained(path: str | None, output_dir: str, head: str) -> None:
    """Refuses to evaluate or predict with a model whose head is random.

    Args:
      path: the checkpoint that would be used. head: name of the head's weights, e.g. "output_weights".

    Raises:
      ValueError: there is no checkpoint, or it has no such head.
    """
    if not path:
        raise ValueError(
            f"Nothing to evaluate or predict with: --output_dir={output_dir} has no checkpoint and there is no "
            "--init_checkpoint."
        )
    if head not in weight_files.open_weights(path):
        raise ValueError(f"{path} has no output layer for this task ({head}): fine-tune it first, with --do_train.")


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


def make_optimizer(
    model: keras.Model, name: str, learning_rate: float, num_train_steps: int, warmup_proportion: float
) -> keras.optimizers.Optimizer:
    """The optimizer with its schedule, built for a model; called in the strategy's scope."""
    warmup_steps = int(num_train_steps * warmup_proportion)
    optimizer = optimization.create_optimizer(name, learning_rate, num_train_steps, warmup_steps)
    optimizer.build(model.trainable_variables)
    return optimizer


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
