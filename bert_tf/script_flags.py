"""Flags that all training scripts share: the original's TPU block, devices, precision, randomness, checkpoints.

Only the scripts' `main` reads the values; this module defines them once so that they mean the same everywhere.
"""

import os
import sys
import traceback

from absl import app, flags, logging

DTYPE_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def run(main) -> None:
    """`absl.app.run(main)`, but a mistake of the user's is one line and exit code 1, not a traceback.

    That is a ValueError or OSError that this project's own code raised, or a file that TensorFlow can't open; what
    comes from elsewhere is shown whole, and so is everything under --verbosity=1.
    """
    # TensorFlow's notes on how it was built; what is wrong still shows.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    def guarded(argv):
        show_all = logging.get_verbosity() >= logging.DEBUG
        if len(argv) > 1:
            sys.exit(f"{os.path.basename(sys.argv[0])}: error: {' '.join(argv[1:])} is no flag; --help lists them.")
        try:
            main(argv)
        except Exception as error:
            innermost = traceback.extract_tb(error.__traceback__)[-1].filename
            script = os.path.abspath(sys.argv[0])
            ours = innermost.startswith(os.path.dirname(__file__) + os.sep) or os.path.abspath(innermost) == script
            meant = ours and isinstance(error, ValueError | OSError)
            # TensorFlow's file functions say which file and what is wrong with it.
            meant = meant or innermost.endswith(os.path.join("lib", "io", "file_io.py"))
            if not meant or show_all:
                raise
            print(f"{os.path.basename(script)}: error: {error}", file=sys.stderr)
            sys.exit(1)

    app.run(guarded)


def define_device_flags() -> None:
    """The original's six TPU flags with their defaults, and the choice of a distribution strategy."""
    flags.DEFINE_enum(
        "distribution_strategy",
        "one_device",
        ["one_device", "mirrored", "multi_worker_mirrored", "tpu"],
        "Where to compute. one_device: the first GPU, or the CPU. mirrored: all GPUs of this host (see --num_gpus). "
        "multi_worker_mirrored: several hosts, described in the environment variable TF_CONFIG. tpu: see --tpu_name. "
        "Batch sizes are always those of all devices together.",
    )
    flags.DEFINE_integer("num_gpus", None, "mirrored: how many GPUs to use; all of them if unset.", lower_bound=1)
    flags.DEFINE_integer(
        "num_virtual_cpus",
        None,
        "Cut the CPU into this many devices, to try mirrored on a machine without GPUs. No speed is won by it.",
        lower_bound=1,
    )
    flags.DEFINE_bool("use_tpu", False, "The original's way to say --distribution_strategy=tpu.")
    flags.DEFINE_string("tpu_name", None, "Name of the Cloud TPU, or its address grpc://host:8470; local on a TPU VM.")
    flags.DEFINE_string("tpu_zone", None, "Zone of the Cloud TPU, e.g. us-central1-b; that of this machine if unset.")
    flags.DEFINE_string("gcp_project", None, "Google Cloud project of the TPU; that of this machine if unset.")
    flags.DEFINE_string("master", None, "Address of the TensorFlow master; --tpu_name is the usual way to give it.")
    flags.DEFINE_integer(
        "num_tpu_cores", 8, "Cores of the TPU. TensorFlow 2 finds this out by itself; a difference is logged."
    )


def define_training_flags() -> None:
    """Precision, accumulation, randomness, checkpoints and logging."""
    flags.DEFINE_enum(
        "dtype",
        "float32",
        list(DTYPE_POLICIES),
        "Arithmetic of the matrix products; variables stay in float32. bfloat16 is about twice as fast on TPUs, on "
        "recent GPUs and on CPUs with bfloat16 units, and follows float32's loss curve. float16 (older GPUs) scales "
        "the loss so that small gradients survive.",
    )
    flags.DEFINE_bool("use_xla", False, "Compile forward and backward with XLA. Good on GPUs; slower on CPUs.")
    flags.DEFINE_integer(
        "gradient_accumulation_steps",
        1,
        "Cut each device's share of the batch into this many parts, computed one after the other: the same step as "
        "without, with less memory.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "optimizer",
        "adamw",
        ["adamw", "lamb"],
        "adamw: the original's Adam with weight decay. lamb: for batches of thousands of examples.",
    )
    flags.DEFINE_bool(
        "allow_unknown_config_keys",
        False,
        "Load a bert_config.json with keys that mean nothing here; without it they are an error, since most are typos.",
    )
    flags.DEFINE_integer("seed", 12345, "Seed of initial weights, data order and dropout. Change it for another run.")
    flags.DEFINE_bool(
        "deterministic",
        False,
        "Use only deterministic kernels: the same command then gives the same bits on the same machine, interrupted "
        "or not. Without it, sums may be added up in another order. Costs speed on GPUs.",
    )
    flags.DEFINE_bool(
        "skip_nonfinite_steps",
        False,
        "Count steps with a NaN or infinite loss and leave them out; without it, stop.",
    )
    flags.DEFINE_integer("keep_checkpoint_max", 5, "Checkpoints kept in output_dir; 0 keeps all.", lower_bound=0)
    flags.DEFINE_integer("log_every_steps", 100, "Steps between two lines of the log.", lower_bound=1)
    flags.DEFINE_integer(
        "eval_every_steps",
        0,
        "Steps between two evaluations during training; 0: none in pre-training, one an epoch in fine-tuning.",
        lower_bound=0,
    )
    flags.DEFINE_bool(
        "init_with_optimizer",
        False,
        "Also take Adam moments and global_step from --init_checkpoint, to go on with a run in a new output_dir.",
    )


def define_model_flags() -> None:
    """Which model a fine-tuning script starts from."""
    flags.DEFINE_string("output_dir", None, "For checkpoints and results. A run found there is gone on with.")
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "Weights to start from: a checkpoint (prefix or directory), a Hugging Face directory, a Model Garden "
        "checkpoint, a SavedModel of TensorFlow Hub. Ignored once output_dir has a checkpoint.",
    )
    flags.DEFINE_string(
        "bert_config_file", None, "The model's configuration; if unset, the one beside --init_checkpoint."
    )
    flags.DEFINE_string("vocab_file", None, "The model's vocabulary; if unset, the one beside --init_checkpoint.")
    flags.DEFINE_bool(
        "do_lower_case",
        True,
        "Lower-case the text and strip accents. If unset, what the model's directory says, where it says anything.",
    )
    flags.DEFINE_bool("strip_accents", None, "Drop accents. Follows the model's directory, or else --do_lower_case.")


def define_fine_tuning_flags() -> None:
    """Schedule and choice of the model; the defaults are those of the original's scripts."""
    flags.DEFINE_integer("train_batch_size", 32, "Examples a step, over all devices.", lower_bound=1)
    flags.DEFINE_integer("predict_batch_size", 8, "Examples a batch in prediction, over all devices.", lower_bound=1)
    flags.DEFINE_float("learning_rate", 5e-5, "Peak rate. The paper tried 5e-5, 3e-5 and 2e-5.", lower_bound=0.0)
    flags.DEFINE_float("num_train_epochs", 3.0, "Passes over the training set; may be a fraction.", lower_bound=0.0)
    flags.DEFINE_float(
        "warmup_proportion",
        0.1,
        "Share of the steps over which the rate rises from 0.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_integer("save_checkpoints_steps", 1000, "Steps between two checkpoints.", lower_bound=1)
    flags.DEFINE_integer("iterations_per_loop", 1000, "Most steps in one call of the graph.", lower_bound=1)
    flags.DEFINE_integer(
        "early_stopping_patience", 0, "Stop after so many evaluations without a better one; 0: never.", lower_bound=0
    )
    flags.DEFINE_bool(
        "use_best_model",
        False,
        "Evaluate and predict with best_model/ at the end, not with the last step as the original.",
    )
    flags.DEFINE_bool(
        "static_padding",
        False,
        "Pad every batch to --max_seq_length, as the original did, instead of to its longest example (rounded up) "
        "with examples of similar length together. Always so on a TPU.",
    )
    flags.DEFINE_bool("write_tf_records", True, "Write train.tf_record and so on into output_dir, as the original did.")


def set_up_devices(values: flags.FlagValues):
    """The strategy that the flags of `define_device_flags` ask for.

    Raises:
      ValueError, RuntimeError: see `distribution.create_strategy`.
    """
    from bert_tf import distribution, kernels

    if values.num_virtual_cpus:
        distribution.set_logical_cpu_devices(values.num_virtual_cpus)
    name = strategy_name(values)
    strategy = distribution.create_strategy(
        name,
        num_gpus=values.num_gpus,
        tpu_name=values.tpu_name,
        tpu_zone=values.tpu_zone,
        gcp_project=values.gcp_project,
        master=values.master,
    )
    kernels.set_fused(name != "tpu")  # a TPU compiles the whole step anyway
    return strategy


def strategy_name(values: flags.FlagValues) -> str:
    """--distribution_strategy, or tpu by the original's --use_tpu."""
    return "tpu" if values.use_tpu else values.distribution_strategy


def describe_model(values: flags.FlagValues, newest: str | None):
    """The `model_files.ModelFiles` of the flags of `define_model_flags`; newest: checkpoint in output_dir, if any."""
    from bert_tf import pretrained

    return pretrained.describe(
        bert_config_file=values.bert_config_file,
        vocab_file=values.vocab_file,
        init_checkpoint=values.init_checkpoint or newest,
        do_lower_case=values.do_lower_case if values["do_lower_case"].present else None,
        strip_accents=values.strip_accents,
        allow_unknown=values.allow_unknown_config_keys,
    )


def training_plan(values: flags.FlagValues, **settings):
    """The `train_step.TrainingPlan` of the flags of `define_training_flags`; `settings` are its other fields."""
    from bert_tf.train_step import TrainingPlan

    names = (
        "gradient_accumulation_steps", "seed", "use_xla", "skip_nonfinite_steps", "iterations_per_loop",
        "save_checkpoints_steps", "log_every_steps", "eval_every_steps", "keep_checkpoint_max",
    )  # fmt: skip
    fields = {name: values[name].value for name in names} | {"loss_scaling": values.dtype == "float16"}
    return TrainingPlan(**{**fields, **settings})


def set_seed(seed: int, deterministic: bool) -> None:
    """Seeds Python, NumPy and TensorFlow, and logs it; with `deterministic`, turns op determinism on."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(seed % 2**32)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    logging.info("Seed %d for weights, data order and dropout; deterministic kernels: %s.", seed, deterministic)
