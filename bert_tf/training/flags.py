"""Flags that all training scripts share: the original's TPU block, devices, precision, randomness, checkpoints.

Only the scripts' `main` reads the values; this module defines the flags once so that they mean the same everywhere.
"""

from absl import flags

from bert_tf.models.teacher_settings import TEMPERATURE, WEIGHT
from bert_tf.system.text_encodings import define_encoding_flag
from bert_tf.training.search import SEARCHED
from bert_tf.training.settings import DTYPE_POLICIES, MOST_VIRTUAL_CPUS

flags.disclaim_key_flags()  # --help of a script lists these flags as its own


def define_device_flags() -> None:
    """The original's six TPU flags with their defaults, and the choice of a distribution strategy."""
    flags.DEFINE_enum(
        "distribution_strategy",
        "one_device",
        ["one_device", "mirrored", "multi_worker_mirrored", "tpu"],
        "Where to compute. one_device: the first GPU, or the CPU. mirrored: all GPUs of this host (see --num_gpus). "
        "multi_worker_mirrored: several hosts, described in the environment variable TF_CONFIG. tpu: see --tpu_name. "
        "Batch sizes always count all devices together.",
    )
    flags.DEFINE_integer("num_gpus", None, "mirrored: how many GPUs to use; all of them if unset.", lower_bound=1)
    flags.DEFINE_integer(
        "num_virtual_cpus",
        None,
        "Split the CPU into this many devices, to try mirrored on a machine without GPUs. This makes nothing faster.",
        lower_bound=1,
        upper_bound=MOST_VIRTUAL_CPUS,
    )
    flags.DEFINE_bool("use_tpu", False, "The original's name for --distribution_strategy=tpu.")
    flags.DEFINE_string("tpu_name", None, "Name of the Cloud TPU, or its address grpc://host:8470; local on a TPU VM.")
    flags.DEFINE_string("tpu_zone", None, "Zone of the Cloud TPU, e.g. us-central1-b; if unset, this machine's.")
    flags.DEFINE_string("gcp_project", None, "Google Cloud project of the TPU; if unset, this machine's.")
    flags.DEFINE_string("master", None, "Address of the TensorFlow master; --tpu_name is the usual way to give it.")
    flags.DEFINE_integer(
        "num_tpu_cores",
        8,
        "Cores of the TPU. TensorFlow 2 detects them automatically; a difference is logged.",
        lower_bound=1,
    )


def define_lstm_flag(reader: str) -> None:
    """The BiLSTM of the paper's Table 5.

    Args:
      reader: what reads the BiLSTM's outputs.
    """
    flags.DEFINE_bool(
        "lstm_on_top",
        False,
        f"Train a BiLSTM that reads all tokens between BERT and {reader}; for left-to-right models "
        "(run_pretraining.py --objective=ltr, Table 5 of the paper). A trained model keeps it.",
    )


def define_features_flag(on_top: str) -> None:
    """The feature-based way (paper, section 5.3).

    Args:
      on_top: what is trained on the features, and how.
    """
    flags.DEFINE_enum(
        "features",
        None,
        ["last", "second_to_last", "sum_last_four", "concat_last_four", "sum_all", "embeddings"],
        f"Freeze BERT, and train {on_top} on these outputs of its layers (Table 7 of the paper), with a "
        "--learning_rate of about 1e-3. If unset, all of BERT is trained.",
    )


def define_training_flags(keep_checkpoint_max: int | None = 5) -> None:
    """Precision, accumulation, randomness, checkpoints and logging."""
    flags.DEFINE_enum(
        "dtype",
        "float32",
        list(DTYPE_POLICIES),
        "Arithmetic of the matrix products; variables stay in float32. bfloat16 is about twice as fast on TPUs, on "
        "recent GPUs and on CPUs with bfloat16 units, and follows float32's loss curve. float16 (older GPUs) scales "
        "the loss so that small gradients survive.",
    )
    flags.DEFINE_bool(
        "use_xla", False, "Compile forward and backward with XLA. Good on GPUs; slower on CPUs; not for TPUs."
    )
    flags.DEFINE_integer(
        "gradient_accumulation_steps",
        1,
        "Split each device's share of the batch into this many micro-batches, computed one after the other: the same "
        "step in less memory.",
        lower_bound=1,
    )
    flags.DEFINE_bool(
        "recompute",
        False,
        "Keep only the input of each layer for the backward pass, which computes the layer again: the same step in "
        "much less memory, for a third more operations. For long sequences and large models.",
    )
    flags.DEFINE_enum(
        "optimizer",
        "adamw",
        ["adamw", "lamb"],
        "adamw: the original's Adam with weight decay. lamb: for batches of thousands of examples. If unset, that of "
        "the authors of the model's family: lamb where an ALBERT is pre-trained.",
    )
    define_unknown_keys_flag()
    flags.DEFINE_integer("seed", 12345, "Seed of initial weights, data order and dropout; change it to vary a run.")
    flags.DEFINE_bool(
        "deterministic",
        False,
        "Use only deterministic kernels: the same command then gives the same bits on the same machine, interrupted "
        "or not. Otherwise the order of additions may vary. Costs speed on GPUs.",
    )
    flags.DEFINE_bool(
        "skip_nonfinite_steps",
        False,
        "Skip and count steps with a NaN or infinite loss, instead of stopping.",
    )
    flags.DEFINE_integer(
        "keep_checkpoint_max",
        keep_checkpoint_max,
        "Checkpoints kept in output_dir, with optimizer state; 0 keeps all. If unset, fine-tuning keeps the newest "
        "until the run ends, and then only its weights. Set this flag to be able to train further later.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "log_every_steps", 100, "Steps between two log lines, or a fiftieth of the run if that is less.", lower_bound=1
    )
    flags.DEFINE_integer(
        "eval_every_steps",
        0,
        "Steps between two evaluations during training; 0: none in pre-training, one per epoch in fine-tuning.",
        lower_bound=0,
    )
    flags.DEFINE_bool(
        "init_with_optimizer",
        False,
        "Also take Adam moments and global_step from --init_checkpoint, to continue a run in a new output_dir.",
    )
    flags.DEFINE_bool(
        "resume_from_older",
        True,
        "If the newest checkpoint in output_dir is damaged, go on from the newest whole one, with a warning. "
        "--noresume_from_older: stop instead.",
    )


def define_unknown_keys_flag() -> None:
    """Whether a configuration may have keys that this project does not know."""
    flags.DEFINE_bool(
        "allow_unknown_config_keys",
        False,
        "Accept a bert_config.json with unknown keys; by default they are an error, since most are typos.",
    )


def define_model_file_flags() -> None:
    """The files that belong to the weights of --init_checkpoint, found beside them unless given."""
    flags.DEFINE_string(
        "bert_config_file", None, "The model's configuration; if unset, the one beside --init_checkpoint."
    )
    flags.DEFINE_string(
        "vocab_file",
        None,
        "The model's vocabulary, as its family needs it: a vocab.txt, a tokenizer.json, a SentencePiece model, or a "
        "vocab.json with its merges.txt beside it. If unset, the one beside --init_checkpoint.",
    )
    flags.DEFINE_bool(
        "do_lower_case",
        True,
        "Lower-case the text and strip accents. If unset, follows the model's directory, if that says.",
    )
    flags.DEFINE_bool(
        "strip_accents", None, "Strip accents. If unset, follows the model's directory, else --do_lower_case."
    )


def define_fine_tuning_flags(has_classifier: bool = True, has_teacher: bool = True) -> None:
    """All flags that the fine-tuning scripts share: model, schedule, best model, device, precision, checkpoints.

    The defaults are those of the original's scripts.

    Args:
      has_classifier: whether the task's models have a classifier: dropout, and an output layer of classes.
      has_teacher: whether they can learn from a teacher.
    """
    flags.DEFINE_string("output_dir", None, "Directory for checkpoints and results. A run found there is resumed.")
    flags.DEFINE_bool(
        "overwrite_output_dir",
        False,
        "Start over: first remove the files of an earlier run from output_dir, and nothing else.",
    )
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "Weights to start from: a checkpoint (prefix or directory), a Hugging Face directory, a Model Garden "
        "checkpoint, or a SavedModel of TensorFlow Hub. Ignored once output_dir has a checkpoint.",
    )
    define_model_file_flags()
    flags.DEFINE_integer("train_batch_size", 32, "Examples per step, over all devices.", lower_bound=1)
    flags.DEFINE_integer("predict_batch_size", 8, "Examples per batch in prediction, over all devices.", lower_bound=1)
    flags.DEFINE_float(
        "learning_rate",
        5e-5,
        "Peak learning rate. The paper tried 5e-5, 3e-5 and 2e-5. If unset, 5e-5, or what the family's authors used.",
    )
    flags.DEFINE_float("num_train_epochs", 3.0, "Passes over the training set; may be a fraction.", lower_bound=0.0)
    flags.DEFINE_float(
        "warmup_proportion",
        0.1,
        "Share of the steps over which the learning rate rises from 0. If unset, 0.1; RoBERTa: 0.06.",
    )
    define_recipe_flags()
    if has_teacher:
        define_teacher_flags(
            "the student starts from the teacher's embeddings and these of its layers, counted from 0, as "
            "0,2,4,7,9,11, instead of --init_checkpoint."
        )
        flags.DEFINE_float(
            "distillation_weight",
            WEIGHT,
            "With --teacher: the share of the loss against the teacher's outputs; the rest is that against the labels.",
            lower_bound=0.0,
            upper_bound=1.0,
        )
    if has_classifier:
        flags.DEFINE_float(
            "classifier_dropout",
            None,
            "Dropout before a classifier's output layer in training. If unset, 0.1; DistilBERT: 0.2 (tags: 0.1).",
            0.0,
            1.0,
        )
        flags.DEFINE_bool(
            "new_head",
            False,
            "Begin a new output layer, where --init_checkpoint was trained for other labels, another number of them, "
            "or another task. Otherwise its outputs are matched with the labels of the data by name.",
        )
    flags.DEFINE_integer("save_checkpoints_steps", 1000, "Steps between two checkpoints.", lower_bound=1)
    flags.DEFINE_integer("iterations_per_loop", 1000, "Maximum steps in one call of the graph.", lower_bound=1)
    define_choice_flags()
    flags.DEFINE_bool(
        "static_padding",
        False,
        "Pad every batch to --max_seq_length, as the original does, instead of batching examples of similar length and "
        "padding to the longest (rounded up). Always on for a TPU.",
    )
    flags.DEFINE_bool("write_tf_records", True, "Write train.tf_record and so on to output_dir, as the original does.")
    define_device_flags()
    define_training_flags(keep_checkpoint_max=None)


def define_choice_flags() -> None:
    """What is chosen by the results on the dev set: seed, settings, step."""
    flags.DEFINE_integer(
        "num_seeds",
        1,
        "Train this many times with seeds --seed, --seed + 1, ..., report mean, min and max, and keep the best. On "
        "small datasets, results vary by several points.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "search",
        None,
        "Train with every combination of these settings, report all, and keep the best on the dev set: "
        "'learning_rate=2e-5,3e-5,5e-5;train_batch_size=16,32' is the paper's grid. You can search over "
        f"{', '.join(SEARCHED)}. With --num_seeds, combinations are compared by their means.",
    )
    flags.DEFINE_integer(
        "early_stopping_patience", 0, "Stop after this many evaluations without improvement; 0: never.", lower_bound=0
    )
    flags.DEFINE_bool(
        "use_best_model",
        False,
        "At the end, evaluate and predict with best_model/, not with the last step as the original does.",
    )


def define_teacher_flags(student: str) -> None:
    """A teacher, and what of it the student starts from.

    Args:
      student: what --student_layers makes of the teacher's layers.
    """
    flags.DEFINE_string(
        "teacher",
        None,
        "Distillation: the directory of a trained model, usually a larger one with the same vocabulary, from whose "
        "outputs this one also learns.",
    )
    flags.DEFINE_list("student_layers", None, f"With --teacher: {student}")
    flags.DEFINE_float(
        "distillation_temperature",
        TEMPERATURE,
        "With --teacher: divides both models' scores, so that unlikely classes count more.",
        lower_bound=0.0,
    )


def define_recipe_flags() -> None:
    """What a family's recipe says of the optimizer, and which layers are trained."""
    flags.DEFINE_float(
        "layerwise_lr_decay",
        None,
        "Each layer learns slower than the one above it by this factor, the embeddings slowest; 1: all alike. If "
        "unset, 1; ELECTRA: 0.8, Large 0.9.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_float(
        "weight_decay_rate", None, "Weight decay. If unset, 0.01; RoBERTa: 0.1, on all variables.", lower_bound=0.0
    )
    flags.DEFINE_float(
        "adam_beta_2", None, "Adam's decay of the second moment. If unset, 0.999; RoBERTa: 0.98.", 0.0, 1.0
    )
    flags.DEFINE_bool(
        "bias_correction",
        None,
        "Correct the moments in the first steps. If unset, off, as in the original; RoBERTa and lamb: on.",
    )
    flags.DEFINE_float(
        "clip_norm", None, "Clip the gradient's norm to this; 0: don't. If unset, 1; RoBERTa: 0.", lower_bound=0.0
    )
    flags.DEFINE_bool(
        "sum_loss",
        None,
        "Clip the gradient of the sum of the losses of a batch's examples (of its words in run_ner.py), not of their "
        "mean: nearly every step is then clipped. If unset, off; ELECTRA: on.",
    )
    flags.DEFINE_integer(
        "freeze_layers",
        None,
        "Train neither the embeddings nor the first N layers: less time and memory. If unset, all of the model is "
        "trained.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "lora_rank",
        None,
        "LoRA: the encoder stays as it is, and beside each projection of its layers two matrices of this rank are "
        "trained, and the head: far less memory for gradients and optimizer. 8 is usual, with a --learning_rate of "
        "about 4e-4. The model that is saved has the size of any other. If unset, the encoder itself is trained.",
        lower_bound=1,
    )
    flags.DEFINE_float(
        "lora_alpha",
        None,
        "With --lora_rank: their product is multiplied by alpha / rank. If unset, twice the rank.",
        lower_bound=0.0,
    )


def define_table_flags() -> None:
    """How a user's files of rows are read; see `tables.TableSettings`."""
    define_encoding_flag("your files")
    flags.DEFINE_string(
        "id_column",
        None,
        "Column of --test_file, by name or number, that names its rows; it goes into predictions.jsonl. A repeated id "
        "is told.",
    )
    flags.DEFINE_list(
        "copy_columns",
        [],
        "Further columns of --test_file that go into predictions.jsonl, such as the text; all: all of them. One that "
        "is called like a part of a prediction gets input_ before its name.",
    )
    flags.DEFINE_bool("predictions_csv", False, "Also write the predictions as predictions.csv.")
    flags.DEFINE_string(
        "csv_delimiter",
        None,
        "The field separator of .csv files: a character such as ';' or '|', or the word tab. If unset, it is detected "
        "from the header.",
    )
