"""The settings of run_domain.py, and those of the pre-training and the fine-tuning that they stand for."""

import dataclasses
import math
import os

from absl import logging

from bert_tf.families.recipe import OptimizerSettings
from bert_tf.pretraining.record_settings import MIN_SEQ_LENGTH
from bert_tf.store.description import check_weights
from bert_tf.system import checks
from bert_tf.system.declare import (
    REQUIRED,
    check_values,
    declared_in,
    inherited_setting,
    parsed_flags,
    setting,
    value_of,
)
from bert_tf.system.messages import is_first, naming_flag
from bert_tf.system.text_files import encoding_setting
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.settings import FineTuningSettings, TrainingSettings

_MASKED_SHARE, _WARMUP_SHARE = 0.15, 0.1
_EVAL_BATCH_SIZE = 32
_TASK = ("train_file", "dev_file", "text_a", "label")
# What --pretraining_flag and --fine_tuning_flag can't give, since run_domain.py does.
_OF_BOTH = {"init_checkpoint", "output_dir", "do_train", "do_eval", "max_seq_length", "dtype"}
_OF_PRETRAINING = {*_OF_BOTH, "input_file", "eval_input_file", "vocab_file", "bert_config_file", "bert_size"}
_OF_PRETRAINING |= {"objective", "nsp", "num_train_steps", "train_batch_size", "learning_rate"}
_OF_FINE_TUNING = {*_OF_BOTH, *_TASK, "task_name", "data_dir", "num_seeds", "do_predict", "encoding"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DomainSettings:
    """Weights, texts, how to train on them, and a task that measures the gain."""

    init_checkpoint: str = setting(
        REQUIRED,
        "Weights of any family and format, with configuration and vocabulary next to them: a released model, or your "
        "own.",
        heading="Weights and texts",
        check=check_weights,
        is_model=True,
    )
    input_file: str = setting(REQUIRED, "The domain's texts: a comma-separated list of files or globs.")
    encoding: str = encoding_setting("all texts and of the task's files")
    output_dir: str = setting(REQUIRED, "Output directory. A job in it continues.", check=checks.check_output_dir)
    heldout_file: str | None = setting(
        None, "Texts of the domain to evaluate on. If unset, every 20th document of --input_file."
    )
    other_text: str | None = setting(
        None,
        "Text like what the weights were trained on before, to evaluate on: the rise of its loss shows forgetting.",
    )
    new_words: int = setting(
        500,
        "How many words to add to the vocabulary at most: those that shorten the texts most. 0: none. "
        "Only word pieces (BERT, DistilBERT, ELECTRA) have slots for them.",
        heading="Training",
        least=0,
    )
    max_seq_length: int = setting(128, "Tokens in a row, in pre-training and in fine-tuning.", least=MIN_SEQ_LENGTH)
    num_train_steps: int | None = setting(
        None, "Steps of pre-training. If unset, as many as one pass over the texts takes.", least=1
    )
    train_batch_size: int = inherited_setting(
        TrainingSettings, "train_batch_size", help="Rows of a step of pre-training."
    )
    learning_rate: float = inherited_setting(
        OptimizerSettings,
        "learning_rate",
        help="Peak of pre-training; it rises for a tenth of the steps, and falls to 0.",
        unset=False,
    )
    dtype: str = inherited_setting(TrainingSettings, "dtype", help="Arithmetic of both trainings.")
    pretraining_flag: tuple[str, ...] = setting(
        (),
        "A further flag of run_pretraining.py, for training and evaluation; can be repeated: "
        "--pretraining_flag=--do_whole_word_mask --pretraining_flag=--seed=7.",
    )
    train_file: str | None = setting(
        None, "A task to measure the gain: examples to fine-tune on, CSV, TSV or JSON.", heading="A task"
    )
    dev_file: str | None = setting(None, "The task's examples to evaluate on.")
    text_a: str | None = setting(None, "The task's column of the text, by name or number from 0.")
    label: str | None = setting(None, "The task's column of the label.")
    num_seeds: int | None = setting(
        3, "Fine-tunings from each of the two starts. If unset, 3.", unset=True, shown=False, least=1
    )
    fine_tuning_flag: tuple[str, ...] = setting(
        (),
        "A further flag of run_classifier.py: --fine_tuning_flag=--num_train_epochs=5, --fine_tuning_flag=--text_b=...",
    )

    def check(self) -> None:
        checks.check_extra("pretraining", "run_domain.py")
        check_values(self)
        files = {
            name: {*map(os.path.realpath, checks.check_input_files(pattern, f"--{name}"))}
            for name in ("input_file", "heldout_file", "other_text")
            if (pattern := getattr(self, name)) is not None
        }
        if (both := files["input_file"] & files.get("heldout_file", set())) and is_first("heldout_file", *both):
            what = f"{min(both)} is trained on, too: results on it say nothing about other texts."
            logging.warning("--heldout_file: %s", what)
        with naming_flag("--pretraining_flag"):
            check_values(self.pretraining())
        if any(getattr(self, name) for name in (*_TASK, "num_seeds", "fine_tuning_flag")):
            task, run = self.fine_tuning()
            with naming_flag("--fine_tuning_flag"):
                check_values(task)
                check_values(run)
            task.check(run)

    def pretraining(self, **recipe) -> PretrainingSettings:
        """The settings of run_pretraining.py: those that the recipe chooses, but for what --pretraining_flag gives."""
        further = _further("pretraining_flag", self.pretraining_flag, _OF_PRETRAINING, PretrainingSettings)
        chosen = {name: getattr(self, name) for name in ("output_dir", "max_seq_length", "dtype")}
        predictions = math.ceil(_MASKED_SHARE * self.max_seq_length)
        chosen |= {"input_file": "", "max_predictions_per_seq": predictions, "eval_batch_size": _EVAL_BATCH_SIZE}
        return PretrainingSettings(**chosen | recipe | further)

    def training(self, steps: int) -> dict:
        """The settings for `pretraining` that a training of so many steps needs."""
        chosen = {"do_train": True, "num_train_steps": steps, "num_warmup_steps": math.ceil(_WARMUP_SHARE * steps)}
        chosen |= {"train_batch_size": self.train_batch_size, "learning_rate": self.learning_rate}
        chosen["optimizer"] = "adamw"  # LAMB, with which ALBERT was pre-trained, is for batches of thousands
        return chosen | {"log_every_steps": max(1, min(100, steps // 20)), "keep_checkpoint_max": 1}

    def fine_tuning(self, model: str | None = None, output_dir: str | None = None):
        """The settings of run_classifier.py for the user's task: of the task, and of a run from a model."""
        kinds = ClassificationSettings, FineTuningSettings
        values = {name: getattr(self, name) for name in (*_TASK, "encoding", "max_seq_length", "dtype")}
        values |= {"task_name": "custom", "do_train": True, "do_eval": True, "eval_batch_size": _EVAL_BATCH_SIZE}
        values |= {"init_checkpoint": model, "output_dir": output_dir or self.output_dir}
        values["num_seeds"] = value_of(self, "num_seeds")
        values |= _further("fine_tuning_flag", self.fine_tuning_flag, _OF_FINE_TUNING, *kinds)
        return tuple(kind(**{name: values[name] for name in declared_in(kind) if name in values}) for kind in kinds)


def _further(name: str, arguments: tuple[str, ...], taken: set[str], *kinds: type) -> dict:
    """The settings in a flag of flags. taken: those that it must not give."""
    with naming_flag(f"--{name}"):
        parsed = parsed_flags(arguments, *kinds)
        for flag in parsed.keys() & taken:
            raise ValueError(f"--{flag}: run_domain.py sets it.")
    return parsed
