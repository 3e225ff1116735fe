"""Settings that all training runs share: devices, precision, randomness, checkpoints. No TensorFlow is imported here.

Each field is a flag of the scripts (`declare.define_flags`); what it means is said with it.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import TypeVar

from bert_tf.families.recipe import OPTIMIZER, SEARCHED, OptimizerSettings, Values, grid_points
from bert_tf.store.description import check_weights, vocabulary_in
from bert_tf.system.checks import check_file, check_output_dir, check_tf_config
from bert_tf.system.declare import (
    ORIGINAL,
    REQUIRED,
    Flags,
    changeable_setting,
    check_values,
    inherited_setting,
    non_default_settings,
    setting,
    settings_of,
)
from bert_tf.system.messages import naming_flag
from bert_tf.system.storage import is_remote
from bert_tf.training.teacher import DISTILLATION, TeacherSettings

DTYPE_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
TaskSettings = TypeVar("TaskSettings")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    init_checkpoint: str | None = setting(
        None,
        "Weights to start from: a checkpoint, a Hugging Face directory or name (klue/bert-base), or a SavedModel of "
        "TensorFlow Hub. Ignored once output_dir has a checkpoint.",
        heading=ORIGINAL,
        check=check_weights,
        is_model=True,
        on_card=False,
    )
    bert_config_file: str | None = setting(
        None, "The model's configuration. If unset, the one next to --init_checkpoint.", check=check_file, on_card=False
    )
    vocab_file: str | None = setting(
        None,
        "The model's vocabulary: a vocab.txt, a tokenizer.json, a SentencePiece model, or a vocab.json next to its "
        "merges.txt. If unset, the one next to --init_checkpoint.",
        check=check_file,
        model_file=vocabulary_in,
        on_card=False,
    )
    do_lower_case: bool | None = setting(
        True,
        "Lower-case the text and strip accents. If unset, as the model's directory says, or else true.",
        unset=True,
    )
    max_seq_length: int = setting(
        128,
        "Maximum tokens of an example, including [CLS] and [SEP]; longer ones are cut, or read as several windows.",
        least=3,
        on_card=True,
    )
    strip_accents: bool | None = setting(
        None,
        "Strip accents. If unset, as the model's directory says, or else as --do_lower_case.",
        heading="Model and text",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceSettings:
    """Where to compute, see `distribution.set_up_devices`, and in which arithmetic."""

    distribution_strategy: str = changeable_setting(
        "one_device",
        "one_device: the first GPU, or the CPU. mirrored: all GPUs of this host. multi_worker_mirrored: several hosts, "
        "described in TF_CONFIG. tpu: see --tpu_name. Batch sizes count all devices together.",
        heading="Devices",
        choices=("one_device", "mirrored", "multi_worker_mirrored", "tpu"),
    )
    num_virtual_cpus: int | None = changeable_setting(  # TensorFlow reserves memory and threads for each
        None, "Split the CPU into this many devices, to try mirrored without GPUs.", least=1, most=256
    )
    use_tpu: bool = changeable_setting(False, "The original's name for --distribution_strategy=tpu.", heading=ORIGINAL)
    tpu_name: str | None = changeable_setting(
        None, "Name of the Cloud TPU, or its address grpc://host:8470; local on a TPU VM."
    )
    tpu_zone: str | None = changeable_setting(
        None, "Zone of the Cloud TPU, e.g. us-central1-b. If unset, this machine's."
    )
    gcp_project: str | None = changeable_setting(None, "Google Cloud project of the TPU. If unset, this machine's.")
    master: str | None = changeable_setting(
        None, "Address of the TensorFlow master; --tpu_name is the usual way to give it."
    )
    num_tpu_cores: int = changeable_setting(
        8, "Cores of the TPU. TensorFlow 2 detects them automatically; a difference is logged.", least=1
    )

    dtype: str = setting(
        "float32",
        "Arithmetic of the matrix products; variables stay in float32. bfloat16 is about twice as fast on TPUs, recent "
        "GPUs and CPUs with units for it. float16, for older GPUs, scales the loss so that small gradients survive.",
        heading="Computation",
        choices=tuple(DTYPE_POLICIES),
    )

    @property
    def dtype_policy(self) -> str:
        return DTYPE_POLICIES[self.dtype]

    @property
    def strategy(self) -> str:
        return "tpu" if self.use_tpu else self.distribution_strategy

    def check_devices(self, use_xla: bool | None = None, trains: bool = False) -> None:
        """Raises if flags make no sense on the devices, or TF_CONFIG does not describe them."""
        if self.strategy == "tpu" and self.dtype == "float16":
            raise ValueError("--dtype=float16: a TPU computes in bfloat16 or float32; give --dtype=bfloat16.")
        if self.strategy == "tpu" and use_xla:
            raise ValueError("--use_xla: a TPU always compiles the whole step with XLA; leave it out.")
        check_tf_config(self.strategy, trains)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings(DeviceSettings):
    """How to compute a step, what to log, and which checkpoints to keep. optimizer: None: that of the recipe."""

    train_batch_size: int = setting(32, "Examples per step, over all devices.", heading=ORIGINAL, least=1, on_card=True)
    save_checkpoints_steps: int = changeable_setting(1000, "Steps between two checkpoints.", least=1)
    iterations_per_loop: int = changeable_setting(
        1000, "Most steps per call of the graph; fewer if they take over 5 s.", least=1
    )
    use_xla: bool | None = changeable_setting(
        None,
        "Compile the whole step with XLA, once for each shape. If unset, on GPUs; slower on CPUs; not for TPUs.",
        heading="Computation",
    )
    recompute: bool = changeable_setting(
        False,
        "Keep only the input of each layer, which the backward pass computes again: the same step in much less memory, "
        "for a third more operations.",
    )
    gradient_accumulation_steps: int = setting(
        1,
        "Split each device's share of the batch into this many micro-batches, computed one after the other: the same "
        "step in less memory.",
        least=1,
    )
    deterministic: bool = setting(
        False, "The same command gives the same bits on the same machine, interrupted or not. Costs speed on GPUs."
    )
    optimizer: str | None = inherited_setting(OptimizerSettings, "optimizer", heading=OPTIMIZER)
    seed: int = setting(
        12345,
        "Seed of initial weights, data order and dropout; change it to vary a run.",
        heading="Run, checkpoints and log",
        least=0,
        on_card=True,
    )
    skip_nonfinite_steps: bool = setting(
        False, "Skip and count steps with a NaN or infinite loss, instead of stopping."
    )
    keep_checkpoint_max: int = changeable_setting(
        5, "Checkpoints kept in output_dir, with optimizer state; 0 keeps all.", least=0
    )
    log_every_steps: int = changeable_setting(
        100, "Steps between two log lines, or a tenth of the run if that is less; curves have fifty points.", least=1
    )
    eval_every_steps: int = changeable_setting(
        0,
        "Steps between two evaluations during training; 0: none in pre-training, one per epoch in fine-tuning.",
        least=0,
    )
    init_with_optimizer: bool = setting(
        False, "Also take Adam moments and global_step from --init_checkpoint, to continue a run in a new output_dir."
    )

    @property
    def checkpoints_while_training(self) -> int:
        return 1 if self.keep_checkpoint_max is None else self.keep_checkpoint_max


# Settings that are for training only; that need another one; and pairs of which one can be given, with the reason.
_FOR_TRAINING = ("num_seeds", "search", "new_head", "lora_rank", "teacher")
_NEEDED = {"new_head": "init_checkpoint", "lora_alpha": "lora_rank"}
_APART = {
    ("new_head", "init_with_optimizer"): "the first begins an output layer, the second takes all variables as they are",
    ("lora_rank", "freeze_layers"): "the first freezes the whole encoder, the second a part of it",
    ("lora_rank", "init_with_optimizer"): "the first trains other variables than the second has moments of",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningSettings(OptimizerSettings, TeacherSettings, TrainingSettings, ModelSettings):
    """A fine-tuning run of any task: model, actions, schedule. None means "not given".

    keep_checkpoint_max: None: the run keeps its newest checkpoint until it ends, and then only the weights of its
      last step. A number: it keeps this many checkpoints, with optimizer state; 0: all of them.
    eval_batch_size: None: predict_batch_size.
    """

    output_dir: str = changeable_setting(
        REQUIRED,
        "Directory for checkpoints and results. A run in it is resumed.",
        heading=ORIGINAL,
        check=check_output_dir,
    )
    do_train: bool = changeable_setting(False, "Train on the training set.")
    do_eval: bool = changeable_setting(
        False,
        "Evaluate on the dev set while training (--eval_every_steps), which keeps the best model, and at the end.",
    )
    do_predict: bool = changeable_setting(False, "Predict the test set.")
    eval_batch_size: int | None = changeable_setting(
        None, "Examples per batch in evaluation, over all devices.", least=1
    )
    predict_batch_size: int = changeable_setting(8, "Examples per batch in prediction, over all devices.", least=1)
    num_train_epochs: float = setting(3.0, "Passes over the training set; may be a fraction.", least=0, on_card=True)
    distillation_weight: float | None = setting(
        0.5,  # as in run_squad_w_distillation.py
        "With --teacher: the share of the loss against the teacher's outputs; the rest is that against the labels. If "
        "unset, 0.5.",
        heading=DISTILLATION,
        unset=True,
        above=0,
        most=1,
    )
    classifier_dropout: float | None = setting(
        None,
        "Dropout before a classifier's output layer in training. If unset, 0.1; DistilBERT: 0.2 (tags: 0.1).",
        heading="What is trained",
        least=0,
        below=1,
    )
    new_head: bool = setting(
        False,
        "Begin with a new output layer, if --init_checkpoint was trained for other labels, a different number of them, "
        "or another task. Otherwise its outputs are matched with the labels of the data by name.",
    )
    freeze_layers: int | None = setting(
        None,
        "Train neither the embeddings nor the first N layers: less time and memory. If unset, all of the model is "
        "trained.",
        least=0,
    )
    lora_rank: int | None = setting(
        None,
        "LoRA: leave the encoder as it is, and train the head and two matrices of this rank next to each projection: "
        "far less memory. 8 is usual, with a --learning_rate of about 4e-4. If unset, the encoder is trained.",
        least=1,
        may_change_on_resume=False,
    )
    lora_alpha: float | None = setting(
        None,
        "With --lora_rank: their product is multiplied by alpha / rank. If unset, twice the rank.",
        above=0,
        may_change_on_resume=False,
    )
    num_seeds: int = changeable_setting(
        1,
        "Train this many times with seeds --seed, --seed + 1, ..., report mean, min and max, and keep the best.",
        heading="Chosen by the results on the dev set",
        least=1,
        most=1_000,
    )
    search: str | None = changeable_setting(
        None,
        "Train with every combination of these settings and keep the best on the dev set; the paper's grid: "
        f"'learning_rate=2e-5,3e-5,5e-5;train_batch_size=16,32'. You can search over {', '.join(SEARCHED)}.",
    )
    early_stopping_patience: int = setting(
        0, "Stop after this many evaluations without improvement; 0: never.", least=0
    )
    use_best_model: bool = changeable_setting(
        False, "At the end, evaluate and predict with best_model/, not with the last step as the original does."
    )
    keep_checkpoint_max: int | None = inherited_setting(
        TrainingSettings,
        "keep_checkpoint_max",
        heading="Run, checkpoints and log",
        default=None,
        help="Checkpoints kept in output_dir, with optimizer state; 0 keeps all. If unset, the newest until the run "
        "ends, and then only its weights. Set this flag to be able to continue training later.",
    )
    write_tf_records: bool = changeable_setting(
        True, "Write train.tf_record and so on to output_dir, as the original does."
    )
    static_padding: bool = setting(
        False,
        "Pad every batch to --max_seq_length, as the original does, not to its longest example. Always on for a TPU.",
        heading="Computation",
    )

    @property
    def combinations(self) -> list[Values]:
        """The settings that are searched, in each combination; without a search one that is empty."""
        return grid_points(self.search)

    @property
    def keeps_optimizer(self) -> bool:
        return self.keep_checkpoint_max is not None

    @property
    def padding(self) -> dict:
        """max_seq_length and static_padding, as `token_rows` takes them for batches."""
        static = self.static_padding or self.strategy == "tpu"
        return {"max_seq_length": self.max_seq_length, "static_padding": static}

    def check(self, task_settings) -> None:
        """Raises if settings contradict each other, or folders are not there; reads no model, which may be a name on
        the hub. task_settings: those of the run's task, whose own `check` calls this one."""
        self.check_flags()
        for name in () if self.do_train else {"class_weights", "mine_hard_negatives"} & {*vars(task_settings)}:
            if getattr(task_settings, name):
                raise ValueError(f"--{name} is for training: give --do_train, or leave it out.")
        if getattr(task_settings, "copy_columns", ()) and not self.do_predict:
            raise ValueError("--copy_columns is for predictions: give --do_predict.")
        if self.init_checkpoint and (self.do_train or not is_remote(self.output_dir)):
            folder, start = os.path.realpath(self.output_dir), os.path.realpath(self.init_checkpoint)
            is_run = os.path.exists(f"{folder}/run.json") or os.path.exists(f"{folder}/checkpoint")
            if not is_run and folder == (start if os.path.isdir(start) else os.path.dirname(start)):
                raise ValueError(f"--output_dir={self.output_dir} is the folder of --init_checkpoint: choose another.")

    def check_flags(self) -> None:
        """`check` without the task."""
        check_values(self)
        self.check_devices(self.use_xla, self.do_train)
        if not (self.do_train or self.do_eval or self.do_predict):
            raise ValueError("Nothing to do: give one or more of --do_train, --do_eval, --do_predict.")
        for name in () if self.do_train else non_default_settings(self, _FOR_TRAINING):
            raise ValueError(f"--{name} is for training: give --do_train, or leave it out.")
        if self.search is not None and self.strategy == "multi_worker_mirrored":
            raise ValueError("--search does not work with several workers.")
        for name, needed in _NEEDED.items():
            if non_default_settings(self, [name]) and not non_default_settings(self, [needed]):
                raise ValueError(f"--{name} needs --{needed}.")
        for pair, reason in _APART.items():
            if len(non_default_settings(self, pair)) == 2:
                raise ValueError(f"--{pair[0]} and --{pair[1]}: {reason}; give one.")
        self.check_teacher()
        with naming_flag("--search") if self.search is not None else contextlib.nullcontext():
            for name in non_default_settings(self, self.combinations[0]):
                raise ValueError(f"--{name} is also given: leave one of the two out.")
            for values in self.combinations if self.search is not None else ():
                dataclasses.replace(self, search=None, **values).check_flags()

    def check_dev_set(self, there: bool, advice: str) -> None:
        names = ("search", "num_seeds", "early_stopping_patience", "use_best_model")
        names += ("eval_every_steps",) if self.do_train else ()
        for name in () if there else non_default_settings(self, names):
            raise ValueError(f"--{name} needs results on a dev set{advice}.")

    def check_files(self, check: Callable[[str, str], object] | None = None, **files: str | None) -> None:
        for action, (name, file) in zip(("do_train", "do_eval", "do_predict"), files.items(), strict=True):
            if getattr(self, action) and not file:
                raise ValueError(f"--{action} needs --{name}.")
            if getattr(self, action) and check:
                check(file, f"--{name}")

    def check_sets(self, task_settings, check: Callable[[str, str], object] = check_file) -> None:
        """`check_files` and `check_dev_set` of a task that has a file for each set."""
        names = ("train_file", "dev_file", "test_file")
        self.check_files(check, **{name: getattr(task_settings, name) for name in names})
        self.check_dev_set(self.do_eval, ": give --do_eval")


def checked_settings(kind: type[TaskSettings], values: Flags) -> tuple[FineTuningSettings, TaskSettings]:
    """The settings of a fine-tuning run and of its task from a script's flags, checked."""
    task_settings = settings_of(kind, values)
    return settings_of(FineTuningSettings, values, task_settings.check), task_settings
