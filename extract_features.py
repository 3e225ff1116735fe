"""Writes what the layers of a BERT say of each token of a text, as features for another model (paper, section 5.3).

    echo 'Who was Jim Henson ? ||| Jim Henson was a puppeteer' > input.txt
    python extract_features.py --input_file=input.txt --output_file=output.jsonl --init_checkpoint=$BERT_BASE_DIR

One text per line, or two with ` ||| ` between them. The output is the original's: a JSON object for each line, with
`linex_index` and, for each token, the values of the layers. That is 9 characters a number; for large inputs take
--output_format=hdf5, npz or tfrecord, with 4 bytes per number and nothing rounded. One row for each word instead of
each piece of a word: --pooling=mean (or first, or max).
"""

import posixpath

from absl import flags, logging

from bert_tf.system import script
from bert_tf.system.messages import named_by
from bert_tf.training import flags as training_flags
from bert_tf.training.settings import DTYPE_POLICIES, DeviceSettings, settings_of

FLAGS = flags.FLAGS

# The original's.
flags.DEFINE_string("input_file", None, "UTF-8 text, one per line, or two with ' ||| ' between them; may be .gz.")
flags.DEFINE_string("output_file", None, "Where the features go; an existing file is replaced.")
flags.DEFINE_string(
    "layers",
    "-1,-2,-3,-4",
    "Layers of the encoder to write, with commas between them: -1 is the last one, 0 the first.",
)
flags.DEFINE_string("bert_config_file", None, "The model's configuration; if unset, the one beside --init_checkpoint.")
flags.DEFINE_integer(
    "max_seq_length", 128, "Tokens of a line at most, with [CLS] and [SEP]; what is longer is cut. Up to the model's."
)
flags.DEFINE_string(
    "init_checkpoint",
    None,
    "The weights: a checkpoint (prefix or directory), a Hugging Face directory, a Model Garden checkpoint, a "
    "SavedModel of TensorFlow Hub.",
)
flags.DEFINE_string("vocab_file", None, "The model's vocabulary; if unset, the one beside --init_checkpoint.")
flags.DEFINE_bool(
    "do_lower_case",
    True,
    "Lower-case the text and strip accents. If unset, what the model's directory says, where it says anything.",
)
flags.DEFINE_integer("batch_size", 32, "Lines computed together, over all devices.", lower_bound=1)
flags.DEFINE_bool(
    "use_one_hot_embeddings",
    False,
    "How the original looked up embeddings on a TPU. The values are the same; accepted, without effect.",
)
training_flags.define_device_flags()

# New here.
flags.DEFINE_enum(
    "output_format",
    "json",
    ["json", "npz", "hdf5", "tfrecord"],
    "json: the original's, values rounded to 6 decimals. The others hold float32. npz and hdf5: arrays values [tokens, "
    "layers, hidden size], tokens, and offsets: line i has the rows offsets[i] to offsets[i + 1]; hdf5 can be read "
    "in parts. tfrecord: a tf.train.Example for each line.",
)
flags.DEFINE_enum(
    "pooling",
    "none",
    ["none", "first", "mean", "max"],
    "From pieces to words, which are what spaces separate in the line: the first piece's values, or mean or maximum "
    "over the pieces. none: a row for each piece, as the original.",
)
flags.DEFINE_bool("strip_accents", None, "Drop accents. Follows the model's directory, or else --do_lower_case.")
flags.DEFINE_enum(
    "dtype",
    "float32",
    list(DTYPE_POLICIES),
    "Arithmetic of the matrix products. bfloat16 is faster where the processor has it, with about 2 decimals.",
)
flags.DEFINE_bool(
    "static_padding",
    False,
    "Pad every line to --max_seq_length, as the original did, instead of putting lines of similar length together. "
    "Slower; always so on a TPU.",
)
flags.DEFINE_bool(
    "allow_unknown_config_keys",
    False,
    "Load a bert_config.json with unknown keys; by default they are an error, since most are typos.",
)
flags.adopt_module_key_flags(training_flags)


def check_flags() -> None:
    """Raises ValueError for flags that make no sense, before TensorFlow is loaded."""
    if FLAGS.output_file == FLAGS.input_file:
        raise ValueError(f"--output_file={FLAGS.output_file} is --input_file.")
    if FLAGS.distribution_strategy == "multi_worker_mirrored":
        raise ValueError(
            "--distribution_strategy=multi_worker_mirrored: this script writes one file on one machine; cut the input "
            "into several files and run it on each."
        )
    ending = posixpath.splitext(FLAGS.output_file)[1]
    meant = {".npz": "npz", ".hdf5": "hdf5", ".h5": "hdf5", ".tfrecord": "tfrecord"}.get(ending, FLAGS.output_format)
    if meant != FLAGS.output_format:
        raise ValueError(f"--output_file={FLAGS.output_file} with --output_format={FLAGS.output_format}: give {meant}.")


def main(_):
    check_flags()
    # TensorFlow is imported here, so that --help and a wrong flag answer at once.
    import tensorflow as tf

    from bert_tf.models import initialize, open_weights, pretrained
    from bert_tf.models.bert import variable_names
    from bert_tf.models.task_models import BertModel
    from bert_tf.tasks.features import extract
    from bert_tf.training import distribution, fine_tuning

    logging.set_verbosity(logging.INFO)
    # --- model files
    with named_by("--init_checkpoint"):
        found = open_weights.open_weights(FLAGS.init_checkpoint)
    do_lower_case = FLAGS.do_lower_case if FLAGS["do_lower_case"].present else None
    files = pretrained.describe(
        bert_config_file=FLAGS.bert_config_file, vocab_file=FLAGS.vocab_file, init_checkpoint=FLAGS.init_checkpoint,
        do_lower_case=do_lower_case, strip_accents=FLAGS.strip_accents,
        allow_unknown=FLAGS.allow_unknown_config_keys,
    )  # fmt: skip
    tokenizer = fine_tuning.make_tokenizer(files, FLAGS.max_seq_length, FLAGS.init_checkpoint)
    variable_names.check_shapes(found, files.config, files.config_file or "The configuration")
    layers = extract.parse_layers(FLAGS.layers, files.config.num_hidden_layers)

    # --- text: read and checked before anything is computed
    folder = posixpath.dirname(FLAGS.output_file)
    if folder and "://" not in folder and not tf.io.gfile.isdir(folder):
        raise ValueError(f"--output_file={FLAGS.output_file}: there is no directory {folder}.")
    if tf.io.gfile.isdir(FLAGS.output_file):
        raise ValueError(f"--output_file={FLAGS.output_file} is a directory; give the name of a file.")
    with named_by("--input_file"):
        sizes = extract.check_input(FLAGS.input_file, tokenizer, FLAGS.max_seq_length, FLAGS.pooling)

    # --- devices and model
    devices = settings_of(DeviceSettings, FLAGS.flag_values_dict())
    strategy = distribution.set_up_devices(devices)
    distribution.check_batch_size(FLAGS.batch_size, strategy, 1, "batch_size")
    with strategy.scope():
        model = BertModel(files.config, dtype=DTYPE_POLICIES[FLAGS.dtype])
        model.build()
    initialize.log_initialization(initialize.initialize(initialize.model_variables(model), found), model)

    extract.extract_features(
        model, tokenizer, FLAGS.input_file, FLAGS.output_file, layers=layers, max_seq_length=FLAGS.max_seq_length,
        batch_size=FLAGS.batch_size, output_format=FLAGS.output_format, pooling=FLAGS.pooling, strategy=strategy,
        static_padding=FLAGS.static_padding or devices.strategy == "tpu", sizes=sizes,
    )  # fmt: skip
    rows = "tokens" if FLAGS.pooling == "none" else "words"
    logging.info("Wrote %d %s of %d lines to %s.", sizes.entries, rows, sizes.lines, FLAGS.output_file)


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "output_file", "init_checkpoint"])
    script.run(main)
