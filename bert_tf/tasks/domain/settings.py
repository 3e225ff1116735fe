"""The settings of run_domain.py, checked without TensorFlow."""

import dataclasses
import re

from bert_tf.models.directory import check_model
from bert_tf.models.recipe import check_learning_rate
from bert_tf.pretraining.corpus import check_beginning
from bert_tf.pretraining.corpus_formats import TextSettings
from bert_tf.pretraining.settings import MIN_SEQ_LENGTH
from bert_tf.system import checks
from bert_tf.system.text_encodings import UTF_8
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.training.settings import DTYPE_POLICIES, FineTuningSettings

USUAL_SEEDS = 3

# What the recipe gives to the scripts, and where a user gives it instead: a flag of run_domain.py, or nowhere.
_OF_BOTH = {"init_checkpoint": True, "output_dir": False, "do_train": False, "do_eval": False, "max_seq_length": True,
            "dtype": True}  # fmt: skip
_OF_PRETRAINING = {
    **_OF_BOTH, "input_file": True, "eval_input_file": False, "vocab_file": False, "bert_config_file": False,
    "bert_size": False, "objective": False, "nsp": False, "num_train_steps": True, "train_batch_size": True,
    "learning_rate": True,
}  # fmt: skip
_OF_FINE_TUNING = {
    **_OF_BOTH, "task_name": False, "data_dir": False, "train_file": True, "dev_file": True, "text_a": True,
    "label": True, "num_seeds": True, "do_predict": False, "overwrite_output_dir": False, "encoding": True,
}  # fmt: skip
_FLAG = re.compile(r"--(no)?(\w+)(=.*)?", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DomainSettings:
    """Weights, texts, how to train on them, and a task that shows what it brought; the fields are the flags.

    Attributes:
      new_words: the most words that are added to the vocabulary.
      num_train_steps: None: one pass over the records. num_seeds: None: three.
      pretraining_flag, fine_tuning_flag: further flags of run_pretraining.py and run_classifier.py, as "--name=value".
    """

    init_checkpoint: str
    input_file: str
    output_dir: str
    heldout_file: str | None = None
    other_text: str | None = None
    new_words: int = 500
    max_seq_length: int = 128
    num_train_steps: int | None = None
    train_batch_size: int = 32
    learning_rate: float = 5e-5
    dtype: str = "float32"
    pretraining_flag: tuple[str, ...] = ()
    train_file: str | None = None
    dev_file: str | None = None
    text_a: str | None = None
    label: str | None = None
    num_seeds: int | None = None
    fine_tuning_flag: tuple[str, ...] = ()
    encoding: str = UTF_8

    @property
    def seeds(self) -> int:
        """num_seeds, also where it is not given."""
        return self.num_seeds or USUAL_SEEDS

    def check(self) -> None:
        """Refuses numbers out of range, files that do not exist, and flags that nothing would use.

        Raises:
          ValueError, OSError: names the flag.
        """
        least = {
            "new_words": 0, "max_seq_length": MIN_SEQ_LENGTH, "num_train_steps": 1, "train_batch_size": 1,
            "num_seeds": 1,
        }  # fmt: skip
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise ValueError(f"--{name}={value} must be at least {lowest}.")
        check_learning_rate(self.learning_rate)
        if self.dtype not in DTYPE_POLICIES:
            raise ValueError(f"--dtype={self.dtype} must be one of {', '.join(DTYPE_POLICIES)}.")
        check_model(self.init_checkpoint, "--init_checkpoint", with_tokenizer=True)
        for name in ("input_file", "heldout_file", "other_text"):
            if name == "input_file" or getattr(self, name) is not None:
                check_beginning(getattr(self, name), f"--{name}", TextSettings(encoding=self.encoding))
        if "," in self.output_dir:
            raise ValueError(f"--output_dir={self.output_dir}: a comma separates files in lists; choose another name.")
        checks.check_output_dir(self.output_dir, "--output_dir")
        self._check_task()
        _check_further("pretraining_flag", self.pretraining_flag, _OF_PRETRAINING)
        _check_further("fine_tuning_flag", self.fine_tuning_flag, _OF_FINE_TUNING)

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
            task.check(FineTuningSettings(output_dir=self.output_dir, do_train=True, do_eval=True))


def _check_further(name: str, values: tuple[str, ...], own: dict[str, bool]) -> None:
    """Refuses what is no flag, and flags that the recipe gives itself.

    Args:
      own: names of the latter -> whether run_domain.py has a flag of this name.
    """
    for value in values:
        match = _FLAG.fullmatch(value)
        if not match:
            raise ValueError(f"--{name}={value} must be a flag with two dashes, as --{name}=--seed=7.")
        flag = match[2] if match[2] in own or not match[1] else match[1] + match[2]
        if flag in own:
            advice = f"give --{flag} without --{name}" if own[flag] else "run_domain.py sets it"
            raise ValueError(f"--{name}={value}: {advice}.")
