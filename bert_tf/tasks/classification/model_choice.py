"""Which model run_classifier.py trains or uses: as the flags say, or as the model that is resumed or used has it.

--model=bilstm|cnn starts without BERT's files; --features puts a BiLSTM or a CNN on a frozen BERT; --long_texts says
whether texts longer than the model are cut off or read in windows, and in which.
"""

import dataclasses

from absl import logging

from bert_tf.models.baselines import ARCHITECTURES, OUTPUT_LAYER, create_config, kind_of
from bert_tf.models.directory import ModelFiles, read_head, read_max_length
from bert_tf.models.head_config import MAX_WINDOWS, NO_HEAD, HeadConfig
from bert_tf.system.declare import value_of
from bert_tf.system.messages import named_by
from bert_tf.tasks.classification.settings import ClassificationSettings, other_model
from bert_tf.text import tokenizer_files
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training import beginning
from bert_tf.training.settings import FineTuningSettings

# --- a baseline ------------------------------------------------------------------------------------------------------


def stored_model(path: str) -> str:
    """The kind of model at a path: "bilstm" or "cnn" by what is beside the weights, or else "bert"."""
    return kind_of(read_head(tokenizer_files.directory_of(path)).architecture) or "bert"


def chosen_model(settings: ClassificationSettings, run: FineTuningSettings, newest: str | None) -> str:
    """ "bert", "bilstm" or "cnn": --model, or if that isn't given the model that is resumed or used.

    Args:
      newest: checkpoint in --output_dir, if any.

    Raises:
      ValueError: --model contradicts the weights.
    """
    source = newest or run.init_checkpoint
    if not source:
        return value_of(settings, "model")
    stored = stored_model(source)
    if settings.model and settings.model != stored:
        raise other_model(settings.model, source, f"a {stored}", is_new=not newest)
    return stored


def describe_baseline(
    settings: ClassificationSettings, run: FineTuningSettings, newest: str | None
) -> tuple[ModelFiles, Tokenizer]:
    """What goes with a baseline, and its tokenizer; see `beginning.describe_model`.

    Args:
      settings: with `model` from `chosen_model`. newest: checkpoint in --output_dir, if any.

    Raises:
      FileNotFoundError, OSError, ValueError: no vocabulary, nothing to evaluate or predict with, a size that
        contradicts the model that is resumed or used.
    """
    source = newest or run.init_checkpoint
    if source or not run.do_train:
        files, tokenizer = beginning.describe_model(run, newest, OUTPUT_LAYER)
        sizes = {"embedding_size": files.config.hidden_size, "hidden_size": files.config.intermediate_size}
        for name, size in sizes.items():
            given = getattr(settings, name)
            if given not in (None, size):
                raise ValueError(f"--{name}={given} contradicts {source}, which was trained with {size}.")
        return files, tokenizer
    if not run.vocab_file:
        raise ValueError(f"--model={settings.model} needs --vocab_file.")
    if run.bert_config_file:
        raise ValueError(
            f"--model={settings.model} has no --bert_config_file: its sizes are --embedding_size and --hidden_size."
        )
    with named_by("--vocab_file"):
        vocab = tokenizer_files.load_vocab(run.vocab_file)
        tokenizer_files.check_vocab(vocab, run.vocab_file)
    beside = tokenizer_files.read_casing(tokenizer_files.directory_of(run.vocab_file))
    casing = tokenizer_files.resolve_casing(run.do_lower_case, run.strip_accents, beside)
    config = create_config(
        settings.model,
        max(vocab.values()) + 1,
        embedding_size=value_of(settings, "embedding_size"),
        hidden_size=value_of(settings, "hidden_size"),
        max_seq_length=max(run.max_seq_length, 512),
    )
    head = HeadConfig(ARCHITECTURES[settings.model])
    files = ModelFiles("", config, None, run.vocab_file, casing, head=head)
    tokenizer = beginning.make_tokenizer(files, run)
    files.max_seq_length = run.max_seq_length
    return files, tokenizer


# --- features --------------------------------------------------------------------------------------------------------

# Flag -> attribute of the head.
_IN_HEAD = {"features": "features", "model_on_top": "model_on_top", "hidden_size": "size_on_top"}


def choose_features(
    settings: ClassificationSettings, run: FineTuningSettings, newest: str | None
) -> ClassificationSettings:
    """The settings with what is on top of a frozen BERT: of the model that is resumed or used, or else as given.

    Args:
      newest: checkpoint in --output_dir, if any.

    Raises:
      ValueError: a flag contradicts the model, or another flag.
    """
    source = newest or run.init_checkpoint
    given = {flag: getattr(settings, flag) for flag in _IN_HEAD if getattr(settings, flag) is not None}
    if source and (newest or not run.do_train):
        head = read_head(tokenizer_files.directory_of(source))
        stored = {flag: getattr(head, name) for flag, name in _IN_HEAD.items()}
        for flag, value in given.items() if head.features or "features" in given else ():
            if value != stored[flag]:
                was = f"with {stored[flag]}" if stored[flag] else "without it"
                raise ValueError(f"--{flag}={value} contradicts {source}, which was trained {was}.")
        settings = dataclasses.replace(settings, **stored) if head.features else settings
    if not settings.features:
        if settings.model_on_top:
            raise ValueError(f"--model_on_top={settings.model_on_top} is for --features, and this is another model.")
        return settings
    on_top, size = (value_of(settings, name) for name in ("model_on_top", "hidden_size"))
    return dataclasses.replace(settings, model_on_top=on_top, hidden_size=size)


# --- windows ---------------------------------------------------------------------------------------------------------


def with_window_length(run: FineTuningSettings, newest: str | None) -> FineTuningSettings:
    """The settings of a run that only uses a model of windows, with the length of the windows that it was trained on.

    Another one would give other answers than `Predictor` and the exports, and no flag would say why.

    Args:
      newest: checkpoint in --output_dir, if any.

    Raises:
      ValueError: see `read_max_length`.
    """
    source = newest or run.init_checkpoint
    length = read_max_length(tokenizer_files.directory_of(source)) if source and not run.do_train else None
    if length in (None, run.max_seq_length):
        return run
    logging.info("Windows of %d tokens, as in training; --max_seq_length=%d is not used.", length, run.max_seq_length)
    return dataclasses.replace(run, max_seq_length=length)


def choose_windows(
    settings: ClassificationSettings, run: FineTuningSettings, newest: str | None
) -> ClassificationSettings:
    """The settings with the windows of the model that is resumed, used or trained further, or else as given.

    `long_texts` is "windows" or None afterwards, window_pooling and max_windows are known where it is "windows".

    Args:
      newest: checkpoint in --output_dir, if any.

    Raises:
      ValueError: a flag contradicts the model, or another flag.
    """
    source = newest or run.init_checkpoint
    head = read_head(tokenizer_files.directory_of(source)) if source else NO_HEAD
    windows = settings.long_texts == "windows" or (settings.long_texts is None and bool(head.window_pooling))
    goes_on = bool(source) and (bool(newest) or not run.do_train)
    if goes_on and windows != bool(head.window_pooling):
        was = f"on windows, pooled by {head.window_pooling}" if head.window_pooling else "on texts that are cut"
        raise ValueError(f"--long_texts={settings.long_texts} contradicts {source}, which was trained {was}.")
    if not windows:
        settings.check_no_windows()
        return dataclasses.replace(settings, long_texts=None)
    pooling = settings.window_pooling or head.window_pooling or value_of(settings, "window_pooling")
    if goes_on and pooling != head.window_pooling:
        raise ValueError(
            f"--window_pooling={pooling} contradicts {source}, which was trained with {head.window_pooling}."
        )
    if head.lstm_on_top:
        raise ValueError(f"--long_texts=windows combines pooled outputs; {source} has a BiLSTM on top instead.")
    chosen = dataclasses.replace(
        settings,
        long_texts="windows",
        window_pooling=pooling,
        window_stride=settings.window_stride or head.window_stride,
        max_windows=settings.max_windows or head.max_windows or MAX_WINDOWS,
    )
    chosen.check_windows(run)
    return chosen
