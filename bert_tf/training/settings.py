"""Settings that all training runs share: devices, precision, randomness, checkpoints. No TensorFlow is imported here.

The fields are the flags of the same names, explained in flags.py.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeVar

from bert_tf.models.directory import check_model
from bert_tf.models.recipe import Recipe, check_learning_rate
from bert_tf.models.teacher_settings import WEIGHT, TeacherSettings
from bert_tf.system.checks import check_file, check_output_dir, is_remote
from bert_tf.system.messages import named_by, unheard
from bert_tf.training.search import Values, combinations_of, parse_search

DTYPE_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
MOST_VIRTUAL_CPUS = 256  # TensorFlow reserves memory and threads for each

Settings = TypeVar("Settings")


class ModelSettings(Protocol):
    """The settings of all scripts that say which model is used, and how its text is read."""

    init_checkpoint: str | None
    vocab_file: str | None
    do_lower_case: bool | None
    strip_accents: bool | None
    max_seq_length: int


@dataclasses.dataclass(frozen=True)
class DeviceSettings:
    """Where to compute; see `distribution.set_up_devices`."""

    distribution_strategy: str = "one_device"
    num_gpus: int | None = None
    num_virtual_cpus: int | None = None
    use_tpu: bool = False
    tpu_name: str | None = None
    tpu_zone: str | None = None
    gcp_project: str | None = None
    master: str | None = None
    num_tpu_cores: int = 8

    @property
    def strategy(self) -> str:
        """The name of the strategy: distribution_strategy, or tpu with the original's use_tpu."""
        return "tpu" if self.use_tpu else self.distribution_strategy

    def check_arithmetic(self, dtype: str, use_xla: bool = False) -> None:
        """Refuses flags that make no sense on a TPU.

        Raises:
          ValueError: names the flag and the reason.
        """
        if self.strategy == "tpu" and dtype == "float16":
            raise ValueError("--dtype=float16: a TPU computes in bfloat16 or float32; give --dtype=bfloat16.")
        if self.strategy == "tpu" and use_xla:
            raise ValueError("--use_xla: a TPU always compiles the whole step with XLA; leave it out.")


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """How to compute a step, what to log, and which checkpoints to keep. optimizer: None: that of the recipe."""

    dtype: str = "float32"
    use_xla: bool = False
    recompute: bool = False
    gradient_accumulation_steps: int = 1
    optimizer: str | None = None
    allow_unknown_config_keys: bool = False
    seed: int = 12345
    deterministic: bool = False
    skip_nonfinite_steps: bool = False
    keep_checkpoint_max: int = 5
    log_every_steps: int = 100
    eval_every_steps: int = 0
    init_with_optimizer: bool = False
    resume_from_older: bool = True

    @property
    def dtype_policy(self) -> str:
        """Keras's name for `dtype`."""
        return DTYPE_POLICIES[self.dtype]

    @property
    def plan_fields(self) -> dict:
        """The fields of a `step.TrainingPlan` that come from these settings."""
        names = (
            "gradient_accumulation_steps", "seed", "use_xla", "recompute", "skip_nonfinite_steps", "log_every_steps",
            "eval_every_steps", "keep_checkpoint_max",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names} | {"loss_scaling": self.dtype == "float16"}


def settings_of(kind: type[Settings], values: Mapping[str, object], given: Collection[str] | None = None) -> Settings:
    """Settings of a kind from a script's flags of the same names (`FLAGS.flag_values_dict()`).

    A field without a flag keeps its default. If a field's default is None, None means "not given": its flag shows the
    original's default in --help, which applies only if nothing else is known.

    Args:
      given: names of the flags that are on the command line; None: all of them.
    """
    fields = [field for field in dataclasses.fields(kind) if field.name in values]
    if given is not None:
        fields = [field for field in fields if field.default is not None or field.name in given]
    return kind(**{field.name: values[field.name] for field in fields})


_RECIPE_FLAGS = (
    "optimizer", "learning_rate", "warmup_proportion", "layerwise_lr_decay", "weight_decay_rate", "adam_beta_2",
    "bias_correction", "clip_norm", "sum_loss",
)  # fmt: skip
# Bounds that the flags have, too, for settings that come from --search or a notebook.
_BOUNDS = {
    "train_batch_size": (1, math.inf),
    "num_train_epochs": (0, math.inf),
    "layerwise_lr_decay": (0, 1),
    "weight_decay_rate": (0, math.inf),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningSettings(TeacherSettings, TrainingSettings, DeviceSettings):
    """A fine-tuning run of any task: model, actions, schedule. None means "not given".

    Attributes:
      do_lower_case, strip_accents: None: as in the model's directory.
      keep_checkpoint_max: None: the run keeps its newest checkpoint until it ends, and then only the weights of its
        last step. A number: it keeps this many checkpoints, with optimizer state; 0: all of them.
      learning_rate, warmup_proportion, layerwise_lr_decay, weight_decay_rate, adam_beta_2, bias_correction, clip_norm,
        sum_loss: None: as in the recipe of the model's family, unless the task has its own; see `models.recipe.Recipe`.
      classifier_dropout: None: the family's. new_head: begin a new output layer.
      freeze_layers: None: nothing is frozen.
      lora_rank: None: no LoRA. lora_alpha: None: twice the rank; see `with_lora_alpha`.
      eval_batch_size: None: predict_batch_size.
      distillation_weight: the share of the loss against the teacher.
      search: a grid of settings; see `search.parse_search`.
    """

    output_dir: str
    init_checkpoint: str | None = None
    bert_config_file: str | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    do_train: bool = False
    do_eval: bool = False
    do_predict: bool = False
    overwrite_output_dir: bool = False
    max_seq_length: int = 128
    train_batch_size: int = 32
    eval_batch_size: int | None = None
    predict_batch_size: int = 8
    learning_rate: float | None = None
    num_train_epochs: float = 3.0
    warmup_proportion: float | None = None
    layerwise_lr_decay: float | None = None
    weight_decay_rate: float | None = None
    adam_beta_2: float | None = None
    bias_correction: bool | None = None
    clip_norm: float | None = None
    sum_loss: bool | None = None
    classifier_dropout: float | None = None
    new_head: bool = False
    freeze_layers: int | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    distillation_weight: float | None = None
    num_seeds: int = 1
    search: str | None = None
    save_checkpoints_steps: int = 1000
    keep_checkpoint_max: int | None = None
    iterations_per_loop: int = 1000
    early_stopping_patience: int = 0
    use_best_model: bool = False
    static_padding: bool = False
    write_tf_records: bool = True

    @property
    def soft_weight(self) -> float:
        """The distillation_weight, also where it is not given."""
        return WEIGHT if self.distillation_weight is None else self.distillation_weight

    @property
    def combinations(self) -> list[Values]:
        """The settings that are searched, in each combination; without a search one that is empty.

        Raises:
          ValueError: see `search.parse_search`.
        """
        return combinations_of({} if self.search is None else parse_search(self.search))

    @property
    def plan_fields(self) -> dict:
        """The fields of a `step.TrainingPlan` that come from these settings."""
        fields = super().plan_fields | {
            "iterations_per_loop": self.iterations_per_loop,
            "save_checkpoints_steps": self.save_checkpoints_steps,
            "clip_norm": self.clip_norm,
            "sum_loss": self.sum_loss,
        }
        return fields if self.keeps_optimizer else fields | {"keep_checkpoint_max": 1}

    @property
    def keeps_optimizer(self) -> bool:
        """Whether checkpoints are kept after the run, with their optimizer state."""
        return self.keep_checkpoint_max is not None

    def with_recipe(self, recipe: Recipe) -> "FineTuningSettings":
        """These settings, with a family's recipe where they are None."""
        own = {name: value for name, value in dataclasses.asdict(recipe).items() if name in _RECIPE_FLAGS}
        return dataclasses.replace(self, **{name: own[name] for name in own if getattr(self, name) is None})

    def with_lora_alpha(self) -> "FineTuningSettings":
        """These settings, with lora_alpha where there is a lora_rank: twice that.

        Source: the scripts of Hu et al. for GLUE, where the rank is 8 and alpha 16 (microsoft/LoRA, examples/NLU).
        """
        if self.lora_rank is None or self.lora_alpha is not None:
            return self
        return dataclasses.replace(self, lora_alpha=2.0 * self.lora_rank)

    def recipe(self, recipe: Recipe) -> Recipe:
        """A family's recipe with these settings, which came from `with_recipe`."""
        return dataclasses.replace(recipe, **{name: getattr(self, name) for name in _RECIPE_FLAGS})

    @property
    def padding(self) -> dict:
        """max_seq_length and static_padding, as `token_rows` takes them for batches."""
        return {
            "max_seq_length": self.max_seq_length,
            "static_padding": self.static_padding or self.strategy == "tpu",
        }

    def check(self) -> None:
        """Refuses settings that contradict each other, and files that do not exist.

        Raises:
          ValueError, FileNotFoundError: names the flag to change.
        """
        self.check_arithmetic(self.dtype, self.use_xla)
        if not (self.do_train or self.do_eval or self.do_predict):
            raise ValueError("Nothing to do: give one or more of --do_train, --do_eval, --do_predict.")
        check_learning_rate(self.learning_rate)
        if self.warmup_proportion is not None and not 0 <= self.warmup_proportion <= 1:
            raise ValueError(f"--warmup_proportion={self.warmup_proportion:g} must be a share from 0 to 1.")
        if self.num_seeds > 1 and not self.do_train:
            raise ValueError(f"--num_seeds={self.num_seeds} compares trained models: give --do_train.")
        if self.overwrite_output_dir and not self.do_train:
            raise ValueError("--overwrite_output_dir starts the training over: give --do_train, or leave it out.")
        if self.overwrite_output_dir and self.strategy == "multi_worker_mirrored":
            raise ValueError("--overwrite_output_dir does not work with several workers: remove the directory first.")
        check_output_dir(self.output_dir, "--output_dir")
        check_model(
            self.init_checkpoint, "--init_checkpoint", self.bert_config_file, self.vocab_file,
            allow_unknown=self.allow_unknown_config_keys, with_tokenizer=True,
        )  # fmt: skip
        self.check_teacher()
        for name, (lowest, highest) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not lowest <= value <= highest:
                least = f"at least {lowest:g}" if highest == math.inf else f"from {lowest:g} to {highest:g}"
                raise ValueError(f"--{name}={value:g} must be {least}.")
        self.check_lora()
        self._check_new_head()
        if self.search is not None:
            self._check_search()

    def _check_new_head(self) -> None:
        if self.new_head and not (self.do_train and self.init_checkpoint):
            raise ValueError("--new_head puts a new output layer on a model: give --do_train and --init_checkpoint.")
        if self.new_head and self.init_with_optimizer:
            raise ValueError("--init_with_optimizer takes all variables as they are, --new_head does not: give one.")

    def _check_search(self) -> None:
        if not self.do_train:
            raise ValueError("--search compares trained models: give --do_train.")
        if self.strategy == "multi_worker_mirrored":
            raise ValueError("--search does not work with several workers; run it on one.")
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for values in self.combinations:
            self.check_given_once([name for name in values if getattr(self, name) != defaults[name]])
            try:
                dataclasses.replace(self, search=None, **values).check()
            except ValueError as error:
                raise ValueError(f"--search: {error}") from None

    def check_given_once(self, given: Collection[str]) -> None:
        """Refuses settings that are searched and given as flags of their own.

        Args:
          given: names of flags.

        Raises:
          ValueError: names one.
        """
        if twice := [name for name in self.combinations[0] if name in given]:
            raise ValueError(f"--{twice[0]} is also in --search: give it in one of the two.")

    def check_lora(self) -> None:
        """Refuses LoRA with what contradicts it.

        Raises:
          ValueError: names the flag.
        """
        if self.lora_rank is None:
            if self.lora_alpha is not None:
                raise ValueError("--lora_alpha is for LoRA: give --lora_rank.")
            return
        if self.lora_rank < 1:
            raise ValueError(f"--lora_rank={self.lora_rank} must be at least 1.")
        if self.lora_alpha is not None and not 0 < self.lora_alpha < math.inf:
            raise ValueError(f"--lora_alpha={self.lora_alpha:g} must be a number above 0.")
        if not self.do_train:
            raise ValueError(
                "--lora_rank is for training: give --do_train, or leave it out, also for a model trained with it."
            )
        if self.freeze_layers is not None:
            raise ValueError("--lora_rank freezes the whole encoder, --freeze_layers a part of it: give one.")
        if self.init_with_optimizer:
            raise ValueError("--lora_rank trains other variables than --init_with_optimizer has moments of: give one.")

    def check_teacher(self) -> None:
        super().check_teacher()
        if self.distillation_weight is not None and not self.teacher:
            raise ValueError("--distillation_weight is for distillation: give --teacher.")
        if self.distillation_weight is not None and not 0 < self.distillation_weight <= 1:
            raise ValueError(f"--distillation_weight={self.distillation_weight:g} must be more than 0, at most 1.")
        if self.teacher and not self.do_train:
            raise ValueError("--teacher teaches a model that is trained: give --do_train, or leave it out.")

    def check_dev_set(self, there: bool, advice: str) -> None:
        """Refuses flags that choose by results on a dev set if there is none.

        Raises:
          ValueError: names the flag, and ends with the advice.
        """
        without = {"search": None, "num_seeds": 1, "early_stopping_patience": 0, "use_best_model": False}
        for name, value in without.items():
            if getattr(self, name) != value and not there:
                raise ValueError(f"--{name} chooses by the results on a dev set{advice}.")

    def check_files(self, **files: str | None) -> None:
        """Refuses an action without its file. files: flag -> path, in the order of --do_train, --do_eval, --do_predict.

        Raises:
          ValueError: names both flags.
        """
        for action, (name, file) in zip(("do_train", "do_eval", "do_predict"), files.items(), strict=True):
            if getattr(self, action) and not file:
                raise ValueError(f"--{action} needs --{name}.")

    def check_tables(self, check_beginning: Callable[[str, str], None], **files: str | None) -> None:
        """Refuses an action whose file is not there, empty, or has rows in its first megabyte that can't be read.

        Args:
          check_beginning: gets flag and path of a local file, and raises ValueError.
          **files: flag -> path, in the order of --do_train, --do_eval, --do_predict.

        Raises:
          ValueError, FileNotFoundError: names flag, or flag, file and line.
        """
        self.check_files(**files)
        for action, (name, file) in zip(("do_train", "do_eval", "do_predict"), files.items(), strict=True):
            if getattr(self, action):
                check_file(file, f"--{name}")
                if not is_remote(file):
                    with named_by(f"--{name}"), unheard():
                        check_beginning(name, file)


def checked_settings(
    kind: type[Settings], values: Mapping[str, object], given: Collection[str]
) -> tuple[FineTuningSettings, Settings]:
    """The settings of a fine-tuning run and of its task, checked without TensorFlow; see `settings_of`.

    Raises:
      ValueError, FileNotFoundError: a setting makes no sense, or a file does not exist; names the flag.
    """
    run, own = settings_of(FineTuningSettings, values, given), settings_of(kind, values, given)
    run.check()
    run.check_given_once(given)
    own.check(run)
    return run, own
