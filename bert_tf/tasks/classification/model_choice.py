"""Which model run_classifier.py trains or uses: as the flags say, or as the model that is resumed or used has it.

--model=bilstm|cnn starts without BERT's files; --features puts a BiLSTM or a CNN on a frozen BERT; --long_texts says
whether texts longer than the model are cut off or read in windows, and in which.
"""

import dataclasses
from collections.abc import Collection

from absl import logging

from bert_tf.models.directory import ModelFiles, read_head, read_max_length
from bert_tf.models.head_config import BASELINE_LAYER, BASELINES, MAX_WINDOWS, NO_HEAD, HeadConfig, kind_of
from bert_tf.system.declare import value_of
from bert_tf.system.messages import named_by
from bert_tf.tasks.classification.encode import windows_of
from bert_tf.tasks.classification.settings import WINDOW_FLAGS, ClassificationSettings
from bert_tf.text import tokenizer_files
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training import beginning, run_directory
from bert_tf.training.settings import FineTuningSettings

# Default of --learning_rate where BERT is not trained: BERT's would hardly move random weights.
_LEARNING_RATE = 1e-3


def resolve(
    settings: ClassificationSettings, run: FineTuningSettings, newest: str | None
) -> tuple[ClassificationSettings, FineTuningSettings]:
    """The settings of a task and of its run, with what follows from the model that is resumed, used or trained further.

    Args:
      newest: checkpoint in --output_dir, if any.

    Raises:
      ValueError: a flag contradicts the model, or the run that is resumed; names the flag.
    """
    model = chosen_model(settings, run, newest)
    settings = dataclasses.replace(settings, model=model)
    _check_earlier_task(settings, run, newest)
    if not run.do_train and (source := newest or run.init_checkpoint):
        settings.check_texts(source)
    if model == "bert":
        settings = choose_windows(choose_features(settings, run, newest), run, newest)
        if settings.long_texts:
            run = with_window_length(run, newest)
        settings.check_sizes(bool(settings.features))
    else:
        for name in ("lstm_on_top", "features", "model_on_top", *WINDOW_FLAGS):
            if getattr(settings, name):
                raise ValueError(f"--{name} is for --model=bert; this is a {model}.")
        if settings.long_texts == "windows":
            settings.check_windows(run)
        settings = dataclasses.replace(settings, long_texts=None)
    if run.learning_rate is None and (model != "bert" or settings.features):
        run = dataclasses.replace(run, learning_rate=_LEARNING_RATE)
        logging.info("--learning_rate=%g, the default where BERT is not trained.", run.learning_rate)
    return settings, run


def check_model(
    settings: ClassificationSettings, run: FineTuningSettings, newest: str | None, files: ModelFiles,
    tokenizer: Tokenizer, names: Collection[str],
) -> None:  # fmt: skip
    """Refuses flags of another kind of model than that of the weights; see `beginning.checked_settings`."""
    if names and settings.model and (settings.model != "bert") != (BASELINE_LAYER in names):
        stored = "a model without BERT" if BASELINE_LAYER in names else "a bert"
        raise _other_model(settings.model, newest or run.init_checkpoint, stored, is_new=not newest)
    settings, run = resolve(settings, run, newest)
    if settings.model == "bert":
        beginning.put_lstm_on_top(files, settings.lstm_on_top, run.do_train)
    if settings.long_texts:
        windows_of(settings.window_stride, settings.max_windows, tokenizer, run.max_seq_length)


def _check_earlier_task(settings: ClassificationSettings, run: FineTuningSettings, newest: str | None) -> None:
    earlier = run_directory.read_settings(run.output_dir) if newest else {}
    for name in ("task_name", "tfds_name") if earlier else ():
        then, now = (str(value or "none") for value in (earlier.get(name), getattr(settings, name)))
        if then.lower() != now.lower():
            raise ValueError(
                f"--output_dir={run.output_dir} holds a run of --{name}={then}, this one is {now}. Choose another "
                f"directory; to use that run's model, give --init_checkpoint={run.output_dir}."
            )


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
        raise _other_model(settings.model, source, f"a {stored}", is_new=not newest)
    return stored


def _other_model(model: str, source: str, stored: str, is_new: bool) -> ValueError:
    """The error that --model is not that of the weights at `source`, from which a new run begins or one goes on."""
    message = f"--model={model} contradicts {source}, which is {stored}."
    if is_new and model != "bert" and stored == "a bert":
        message += f" A {model} starts from random weights: give --vocab_file, and no --init_checkpoint."
    return ValueError(message)


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
        files, tokenizer = beginning.describe_model(run, newest, BASELINE_LAYER)
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
    from bert_tf.models.baselines import create_config  # which imports Keras

    config = create_config(
        settings.model,
        max(vocab.values()) + 1,
        embedding_size=value_of(settings, "embedding_size"),
        hidden_size=value_of(settings, "hidden_size"),
        max_seq_length=max(run.max_seq_length, 512),
    )
    head = HeadConfig(BASELINES[settings.model])
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
