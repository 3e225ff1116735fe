"""Writes the outputs of BERT's layers for each token of a text, as features for another model (paper, section 5.3).

    echo 'Who was Jim Henson ? ||| Jim Henson was a puppeteer' > input.txt
    python extract_features.py --input_file=input.txt --output_file=output.jsonl --init_checkpoint=$BERT_BASE_DIR

One text per line, or two with ` ||| ` between them. The output is the original's: a JSON object for each line, with
`linex_index` and, for each token, the values of the layers. That is 9 characters per number; for large inputs use
--output_format=npz or tfrecord, with 4 bytes per number, unrounded. For one row per word instead of one per word piece:
--pooling=mean (or first, or max). For one vector per line: --pooling=sentence.
"""

from absl import flags, logging

from bert_tf.system import script, text_encodings
from bert_tf.tasks.features.settings import FeatureSettings
from bert_tf.training import flags as training_flags
from bert_tf.training.settings import DTYPE_POLICIES, settings_of

FLAGS = flags.FLAGS

# The original's.
flags.DEFINE_string("input_file", None, "Texts, one per line, or two with ' ||| ' between them; may be .gz.")
text_encodings.define_encoding_flag("--input_file")
flags.DEFINE_string("output_file", None, "File for the features; an existing file is replaced.")
flags.DEFINE_string(
    "layers",
    "-1,-2,-3,-4",
    "Encoder layers to write, separated by commas: -1 is the last one, 0 the first. If unset, those; with "
    "--pooling=sentence -1.",
)
flags.DEFINE_integer(
    "max_seq_length",
    128,
    "Maximum tokens per line, with [CLS] and [SEP]; longer lines are cut. Up to the model's limit.",
)
flags.DEFINE_string(
    "init_checkpoint",
    None,
    "The weights: a checkpoint (prefix or directory), a Hugging Face directory, a Model Garden checkpoint, or a "
    "SavedModel of TensorFlow Hub.",
)
training_flags.define_model_file_flags()
flags.DEFINE_integer("batch_size", 32, "Lines computed together, over all devices.", lower_bound=1)
flags.DEFINE_bool(
    "use_one_hot_embeddings",
    False,
    "The original's way to look up embeddings on a TPU. Accepted without effect: the values are the same.",
)
training_flags.define_device_flags()

# New here.
flags.DEFINE_enum(
    "output_format",
    "json",
    ["json", "npz", "tfrecord"],
    "json: the original's, values rounded to 6 decimals. The others store float32. npz: arrays values [tokens, "
    "layers, hidden size], tokens, and offsets: line i has the rows offsets[i] to offsets[i + 1]. tfrecord: a "
    "tf.train.Example for each line.",
)
flags.DEFINE_enum(
    "pooling",
    "none",
    ["none", "first", "mean", "max", "sentence"],
    "How to combine the pieces of a word (words are separated by spaces): the first piece's values, or mean or maximum "
    "over the pieces. none: a row for each piece, as in the original. sentence: one row for a line, made as the "
    "model's directory says (sentence-transformers' files), else the mean over its pieces, [CLS] and [SEP] among them.",
)
flags.DEFINE_enum(
    "dtype",
    "float32",
    list(DTYPE_POLICIES),
    "Arithmetic of the matrix products. bfloat16 is faster if the processor supports it, with about 2 decimals.",
)
flags.DEFINE_bool(
    "static_padding",
    False,
    "Pad every line to --max_seq_length, as the original does, instead of batching lines of similar length. Slower; "
    "always on for a TPU.",
)
training_flags.define_unknown_keys_flag()


def main(_):
    logging.set_verbosity(logging.INFO)
    given = {name for name in FLAGS if FLAGS[name].present}
    settings = settings_of(FeatureSettings, FLAGS.flag_values_dict(), given)
    settings.check()
    # TensorFlow is imported here, so that --help and errors in flags or files appear at once.
    script.start_tensorflow(settings.num_virtual_cpus, trains=False)
    from bert_tf.tasks.features import extract

    extract.run(settings)


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "output_file", "init_checkpoint"])
    script.run(main)
