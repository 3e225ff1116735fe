"""run_classifier.py --features: a BiLSTM or a CNN on a frozen BERT, as given or as a trained model has it."""

import dataclasses

from bert_tf.models.baselines import TOKEN_READERS
from bert_tf.models.directory import read_head
from bert_tf.system.declare import value_of
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.text import casing
from bert_tf.training.settings import FineTuningSettings

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
        head = read_head(casing.directory_of(source))
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
    if size % (parts := TOKEN_READERS[on_top]):
        raise ValueError(f"--hidden_size={size} must be a multiple of {parts} for --model_on_top={on_top}.")
    return dataclasses.replace(settings, model_on_top=on_top, hidden_size=size)
