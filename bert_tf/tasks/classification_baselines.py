"""run_classifier.py --model=bilstm|cnn: which model it is, and what goes with one that starts without BERT's files."""

import contextlib
import json
import posixpath

import tensorflow as tf
from absl import flags, logging

from bert_tf import fine_tuning, model_files, tokenization
from bert_tf.baseline_models import ARCHITECTURES, LEARNING_RATE, OUTPUT_LAYER, create_config
from bert_tf.model_files import ModelFiles


def stored_model(path: str) -> str:
    """What lies at a path of weights: "bilstm" or "cnn" by the configuration beside them, or else "bert"."""
    file = posixpath.join(model_files.directory_of(path), model_files.BERT_CONFIG)
    names = []
    if tf.io.gfile.exists(file):
        # Whoever reads it as a configuration says what is wrong with it.
        with tf.io.gfile.GFile(file, "rb") as content, contextlib.suppress(ValueError, AttributeError):
            names = json.loads(content.read().decode("utf-8")).get("architectures")
    return next((model for model, name in ARCHITECTURES.items() if names == [name]), "bert")


def chosen_model(values: flags.FlagValues, newest: str | None) -> str:
    """ "bert", "bilstm" or "cnn": --model, or if that isn't given what is gone on with or used.

    Args:
      newest: checkpoint in --output_dir, if any.

    Raises:
      ValueError: --model contradicts the weights.
    """
    source = newest or values.init_checkpoint
    if not source:
        return values.model
    stored = stored_model(source)
    if values["model"].present and values.model != stored:
        message = f"--model={values.model} contradicts {source}, which is a {stored}."
        if not newest and stored == "bert":
            message += f" A {values.model} starts from random weights: give --vocab_file, and no --init_checkpoint."
        raise ValueError(message)
    return stored


def describe_model(
    values: flags.FlagValues, newest: str | None, model: str
) -> tuple[ModelFiles, tokenization.FullTokenizer]:
    """What goes with a baseline by run_classifier.py's flags, and its tokenizer; see `fine_tuning.describe_model`.

    Args:
      newest: checkpoint in --output_dir, if any. model: from `chosen_model`.

    Raises:
      FileNotFoundError, OSError, ValueError: no vocabulary, nothing to evaluate or predict with, a size that
        contradicts the model that is gone on with or used.
    """
    source = newest or values.init_checkpoint
    if source or not values.do_train:
        files, tokenizer = fine_tuning.describe_model(values, newest, OUTPUT_LAYER)
        sizes = {"embedding_size": files.config.hidden_size, "hidden_size": files.config.intermediate_size}
        for name, size in sizes.items():
            if values[name].present and values[name].value != size:
                raise ValueError(f"--{name}={values[name].value} contradicts {source}, which was trained with {size}.")
        return files, tokenizer
    if not values.vocab_file:
        raise ValueError(f"--model={model} needs --vocab_file.")
    if values.bert_config_file:
        raise ValueError(
            f"--model={model} has no --bert_config_file: its sizes are --embedding_size and --hidden_size."
        )
    with fine_tuning.named_by("--vocab_file"):
        vocab = tokenization.load_vocab(values.vocab_file)
        tokenization.check_vocab(vocab, values.vocab_file)
    beside = model_files.read_casing(model_files.directory_of(values.vocab_file))
    casing = model_files.resolve_casing(
        values.do_lower_case if values["do_lower_case"].present else None, values.strip_accents, beside
    )
    config = create_config(
        model,
        max(vocab.values()) + 1,
        embedding_size=values.embedding_size,
        hidden_size=values.hidden_size,
        max_seq_length=max(values.max_seq_length, 512),
    )
    files = ModelFiles("", config, None, values.vocab_file, casing)
    tokenizer = fine_tuning.make_tokenizer(files, values.max_seq_length, None)
    files.max_seq_length = values.max_seq_length
    return files, tokenizer


def choose_learning_rate(values: flags.FlagValues) -> None:
    """Sets --learning_rate to LEARNING_RATE unless it is given."""
    if not values["learning_rate"].present:
        values["learning_rate"].value = LEARNING_RATE
        logging.info("--learning_rate=%g, the default of models without BERT.", LEARNING_RATE)
