"""How run_classifier.py reads long texts: as the flags say, or as the model that is resumed or used has it."""

import dataclasses

from absl import logging

from bert_tf.models.configuration.head_config import MAX_WINDOWS, NO_HEAD
from bert_tf.models.files.directory import read_head, read_max_length
from bert_tf.system.declare import value_of
from bert_tf.tasks.classification.settings import WINDOW_FLAGS, ClassificationSettings
from bert_tf.text import tokenizer_files
from bert_tf.training import run_directory
from bert_tf.training.settings import FineTuningSettings


def resolve(
    settings: ClassificationSettings, run: FineTuningSettings, newest: str | None
) -> tuple[ClassificationSettings, FineTuningSettings]:
    """The settings of a task and of its run, with what follows from the model that is resumed, used or trained further.

    Args:
      newest: checkpoint in --output_dir, if any.
    """
    earlier = run_directory.read_settings(run.output_dir) if newest else {}
    then, now = earlier.get("task_name"), settings.task_name
    if earlier and str(then).lower() != now.lower():
        raise ValueError(
            f"--output_dir={run.output_dir} holds a run of --task_name={then}, this one is {now}. Choose another "
            f"directory; to use that run's model, give --init_checkpoint={run.output_dir}."
        )
    if not run.do_train and (source := newest or run.init_checkpoint):
        settings.check_texts(source)
    settings, source = choose_windows(settings, run, newest), newest or run.init_checkpoint
    if settings.long_texts and source and not run.do_train:
        # With another length it would give other answers than `Predictor` and the exports.
        length = read_max_length(tokenizer_files.directory_of(source)) or run.max_seq_length
        if length != run.max_seq_length:
            logging.info("Windows of %d tokens, as in training; --max_seq_length is not used.", length)
        run = dataclasses.replace(run, max_seq_length=length)
    return settings, run


def choose_windows(
    settings: ClassificationSettings, run: FineTuningSettings, newest: str | None
) -> ClassificationSettings:
    """The settings with the windows of the model that is resumed, used or trained further, or else as given.

    `long_texts` is "windows" or None afterwards, window_pooling and max_windows are known where it is "windows".
    """
    source = newest or run.init_checkpoint
    head = read_head(tokenizer_files.directory_of(source)) if source else NO_HEAD
    windows = settings.long_texts == "windows" or (settings.long_texts is None and bool(head.window_pooling))
    goes_on = bool(source) and (bool(newest) or not run.do_train)
    if goes_on and windows != bool(head.window_pooling):
        was = f"on windows, pooled by {head.window_pooling}" if head.window_pooling else "on texts that are cut"
        raise ValueError(f"--long_texts={settings.long_texts} contradicts {source}, which was trained {was}.")
    if not windows:
        for name in WINDOW_FLAGS:
            if (value := getattr(settings, name)) is not None:
                raise ValueError(f"--{name}={value} is for --long_texts=windows.")
        return dataclasses.replace(settings, long_texts=None)
    pooling = settings.window_pooling or head.window_pooling or value_of(settings, "window_pooling")
    if goes_on and pooling != head.window_pooling:
        raise ValueError(
            f"--window_pooling={pooling} contradicts {source}, which was trained with {head.window_pooling}."
        )
    if settings.text_b:
        raise ValueError(f"--long_texts=windows is for single texts; leave out --text_b={settings.text_b}.")
    if run.teacher:
        raise ValueError("--teacher reads a text as one row, so that --long_texts=windows can't learn from it.")
    return dataclasses.replace(
        settings,
        long_texts="windows",
        window_pooling=pooling,
        window_stride=settings.window_stride or head.window_stride,
        max_windows=settings.max_windows or head.max_windows or MAX_WINDOWS,
    )
