"""The settings of run_domain.py, checked without TensorFlow."""

import dataclasses
import functools
import os
import re
from collections.abc import Collection

from absl import logging

from bert_tf.models.directory import check_model, read_head
from bert_tf.models.open_weights import check_readable
from bert_tf.models.recipe import OptimizerSettings
from bert_tf.pretraining.record_settings import MIN_SEQ_LENGTH
from bert_tf.system import checks
from bert_tf.system.declare import REQUIRED, check_values, declared_in, like, setting, value_of
from bert_tf.system.messages import is_first
from bert_tf.system.storage import is_name
from bert_tf.system.text_files import encoding_setting
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.training.settings import FineTuningSettings, TrainingSettings

# The flags that the recipe gives to the scripts.
_OF_BOTH = ("init_checkpoint", "output_dir", "do_train", "do_eval", "max_seq_length", "dtype")
_OF_PRETRAINING = (
    *_OF_BOTH, "input_file", "eval_input_file", "vocab_file", "bert_config_file", "bert_size", "objective", "nsp",
    "num_train_steps", "train_batch_size", "learning_rate",
)  # fmt: skip
_OF_FINE_TUNING = (
    *_OF_BOTH, "task_name", "data_dir", "train_file", "dev_file", "text_a", "label", "num_seeds", "do_predict",
    "encoding",
)  # fmt: skip
_FLAG = re.compile(r"--(no)?(\w+)(=.*)?", re.DOTALL)


def _check_output_dir(path: str, flag: str) -> None:
    if "," in path:
        raise ValueError(f"{flag}={path}: a comma separates files in lists; choose another name.")
    checks.check_output_dir(path, flag)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DomainSettings:
    """Weights, texts, how to train on them, and a task that shows what it brought."""

    init_checkpoint: str = setting(
        REQUIRED,
        "Weights of any family and format, with configuration and vocabulary beside them: a released model, or your "
        "own.",
        heading="Weights and texts",
        check=functools.partial(check_model, with_tokenizer=True),
        model_check=read_head,
    )
    input_file: str = setting(REQUIRED, "The domain's texts: a comma-separated list of files or globs.")
    encoding: str = encoding_setting("all texts and of the task's files")
    output_dir: str = setting(
        REQUIRED, "Directory for all that is made. A job found there goes on.", check=_check_output_dir
    )
    heldout_file: str | None = setting(
        None, "Texts of the domain to evaluate on. If unset, every 20th document of --input_file."
    )
    other_text: str | None = setting(
        None,
        "Text of another kind to evaluate on, of what the weights were trained on before: what the loss on it goes up "
        "by is what was forgotten.",
    )
    new_words: int = setting(
        500,
        "The most words to add to the vocabulary: those whose pieces the texts have most of. 0: none. Only word pieces "
        "(BERT, DistilBERT, ELECTRA) have a place for them.",
        heading="Training",
        least=0,
    )
    max_seq_length: int = setting(128, "Tokens in a row, in pre-training and in fine-tuning.", least=MIN_SEQ_LENGTH)
    num_train_steps: int | None = setting(
        None, "Steps of pre-training. If unset, as many as one pass over the texts takes.", least=1
    )
    train_batch_size: int = like(TrainingSettings, "train_batch_size", help="Rows of a step of pre-training.")
    learning_rate: float = like(
        OptimizerSettings,
        "learning_rate",
        help="Peak of pre-training; it rises for a tenth of the steps, and falls to 0.",
        unset=False,
    )
    dtype: str = like(TrainingSettings, "dtype", help="Arithmetic of both trainings.")
    pretraining_flag: tuple[str, ...] = setting(
        (),
        "A further flag of run_pretraining.py, for training and evaluation; can be repeated: "
        "--pretraining_flag=--do_whole_word_mask --pretraining_flag=--seed=7.",
    )
    train_file: str | None = setting(
        None,
        "A task to show what it brought: examples to fine-tune on, CSV, TSV or JSON.",
        heading="A task",
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

    @property
    def seeds(self) -> int:
        """num_seeds, also where it is not given."""
        return value_of(self, "num_seeds")

    def check(self) -> None:
        """Refuses numbers out of range, files that do not exist, and flags that nothing would use.

        Raises:
          ValueError, OSError: names the flag.
        """
        checks.check_extra("pretraining", "run_domain.py")
        check_values(self)
        for name in ("input_file", "heldout_file", "other_text"):
            if name == "input_file" or getattr(self, name) is not None:
                checks.check_not_empty(checks.check_input_files(getattr(self, name), f"--{name}"), f"--{name}")
        flags = ("input_file", "heldout_file") if self.heldout_file else ()
        files = [{*map(os.path.realpath, checks.check_input_files(getattr(self, name), f"--{name}"))} for name in flags]
        if files and (both := files[0] & files[1]) and is_first("heldout_file", *both):
            logging.warning(
                "--heldout_file: %s is trained on, too: results on it say nothing about other texts.", min(both)
            )
        self._check_task()
        _check_further("pretraining_flag", self.pretraining_flag, _OF_PRETRAINING)
        _check_further("fine_tuning_flag", self.fine_tuning_flag, _OF_FINE_TUNING)
        if not is_name(self.init_checkpoint):  # which is still to be downloaded
            check_readable(self.init_checkpoint, "--init_checkpoint")

    def _check_task(self) -> None:
        """Checks the flags of the fine-tuning: all that it needs, or none."""
        needed = ("train_file", "dev_file", "text_a", "label")
        given = [name for name in (*needed, "num_seeds") if getattr(self, name) is not None]
        given += ["fine_tuning_flag"] * bool(self.fine_tuning_flag)
        missing = [name for name in needed if getattr(self, name) is None]
        if given and missing:
            raise ValueError(f"--{given[0]} is for a fine-tuning, which needs --{missing[0]}, too.")
        if given:
            further = dict(value.removeprefix("--").split("=", 1) for value in self.fine_tuning_flag if "=" in value)
            task = ClassificationSettings(
                task_name="custom", train_file=self.train_file, dev_file=self.dev_file, text_a=self.text_a,
                label=self.label, text_b=further.get("text_b"), csv_delimiter=further.get("csv_delimiter"),
                encoding=self.encoding,
            )  # fmt: skip
            kinds = {"train_batch_size": int, "num_train_epochs": float}
            steps = {name: _number(name, further[name], kind) for name, kind in kinds.items() if name in further}
            task.check(FineTuningSettings(output_dir=self.output_dir, do_train=True, do_eval=True, **steps))


def _number(name: str, value: str, kind: type) -> float:
    """The value of a flag in a --fine_tuning_flag; refuses what is no number."""
    try:
        return kind(value)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"--fine_tuning_flag=--{name}={value} must be {wanted}.") from None


def _check_further(name: str, values: Collection[str], own: Collection[str]) -> None:
    """Refuses what is no flag, and flags that the recipe gives itself, the names of which are `own`."""
    for value in values:
        match = _FLAG.fullmatch(value)
        if not match:
            raise ValueError(f"--{name}={value} must be a flag with two dashes, as --{name}=--seed=7.")
        flag = match[2] if match[2] in own or not match[1] else match[1] + match[2]
        if flag in own:
            is_given = flag != "output_dir" and flag in declared_in(DomainSettings)
            advice = f"give --{flag} without --{name}" if is_given else "run_domain.py sets it"
            raise ValueError(f"--{name}={value}: {advice}.")
