"""Writes what the layers of a BERT say of each token of a text, as features for another model (paper, section 5.3).

    echo 'Who was Jim Henson ? ||| Jim Henson was a puppeteer' > input.txt
    python extract_features.py --input_file=input.txt --output_file=output.jsonl --init_checkpoint=$BERT_BASE_DIR

One text per line, or two with ` ||| ` between them. The output is the original's: a JSON object for each line, with
`linex_index` and, for each token, the values of the layers. That is 9 characters a number; for large inputs take
--output_format=hdf5, npz or tfrecord, with 4 bytes per number and nothing rounded. One row for each word instead of
each piece of a word: --pooling=mean (or first, or max).
"""

from absl import flags, logging

from bert_tf.system import script
from bert_tf.tasks.features.settings import FeatureSettings
from bert_tf.training import flags as training_flags
from bert_tf.training.settings import DTYPE_POLICIES, settings_of

FLAGS = flags.FLAGS

# The original's.
flags.DEFINE_string("input_file", None, "UTF-8 text, one per line, or two with ' ||| ' between them; may be .gz.")
flags.DEFINE_string("output_file", None, "Where the features go; an existing file is replaced.")
flags.DEFINE_string(
    "layers",
    "-1,-2,-3,-4",
    "Layers of the encoder to write, with commas between them: -1 is the last one, 0 the first.",
)
flags.DEFINE_integer(
    "max_seq_length", 128, "Tokens of a line at most, with [CLS] and [SEP]; what is longer is cut. Up to the model's."
)
flags.DEFINE_string(
    "init_checkpoint",
    None,
    "The weights: a checkpoint (prefix or directory), a Hugging Face directory, a Model Garden checkpoint, a "
    "SavedModel of TensorFlow Hub.",
)
training_flags.define_model_file_flags()
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
training_flags.define_unknown_keys_flag()


def main(_):
    logging.set_verbosity(logging.INFO)
    given = {name for name in FLAGS if FLAGS[name].present}
    settings = settings_of(FeatureSettings, FLAGS.flag_values_dict(), given)
    settings.check()
    # TensorFlow is imported here, so that --help and a wrong flag or file answer at once.
    script.start_tensorflow()
    from bert_tf.tasks.features import extract

    extract.run(settings)


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "output_file", "init_checkpoint"])
    script.run(main)
