"""Converts BERT weights between formats, reports where each variable went, and reads the result back.

    python convert_checkpoint.py --from=uncased_L-12_H-768_A-12 --to=bert-base-hf --format=huggingface
    python convert_checkpoint.py --from=bert-base-uncased --to=bert-base-tf1 --format=tf1

--from may be any of these; the format is detected:
  tf1           a checkpoint of the original (bert_model.ckpt, model.ckpt-1000): its prefix or its directory
  huggingface   a directory or file with model.safetensors or pytorch_model.bin (the latter needs PyTorch)
  model_garden  a TF2 checkpoint of tf-models-official, or the SavedModel of TensorFlow Hub / Kaggle
  bert_tf       a directory of this project
The files beside the weights are converted, too: configuration, vocabulary, casing. On an error, nothing is written.
"""

import signal
import sys

from absl import flags, logging

from bert_tf.models.directory import check_model
from bert_tf.models.formats import FORMATS
from bert_tf.system import checks, script

FLAGS = flags.FLAGS

flags.DEFINE_string("from", None, "The weights: a directory, a checkpoint prefix or a weight file.")
flags.DEFINE_string("to", None, "Directory to write; for tf1 also a prefix such as out/bert_model.ckpt.")
flags.DEFINE_enum(
    "format",
    None,
    [name for name, format in FORMATS.items() if format.file_name],
    "Format to write. " + " ".join(f"{name}: {format.help}" for name, format in FORMATS.items() if format.file_name),
)
flags.DEFINE_bool(
    "with_optimizer", False, "Also convert Adam moments and global_step, to continue a run (tf1 and bert_tf)."
)
flags.DEFINE_string(
    "bert_config_file", None, "Configuration of the model, if there is none beside the weights or it is wrong."
)
flags.DEFINE_string("vocab_file", None, "Vocabulary to write with the weights, if there is none beside them.")
flags.DEFINE_bool(
    "do_lower_case",
    None,
    "Whether the model is uncased. If unset, read from the directory; needed only if that does not say.",
)
flags.DEFINE_bool(
    "strip_accents", None, "Whether to strip accents. If unset, follows the directory, else do_lower_case."
)
flags.DEFINE_enum(
    "hidden_act",
    None,
    ["gelu", "gelu_erf", "relu", "tanh", "linear"],
    "Activation to write to the configuration instead of the source's. gelu is the original's tanh form, gelu_erf is "
    "Hugging Face's gelu.",
)
flags.DEFINE_enum(
    "part",
    None,
    ["discriminator", "generator"],
    "Which model of an ELECTRA checkpoint that has both. If unset, the discriminator, or the only one there.",
)
flags.DEFINE_string(
    "add_tokens",
    None,
    "File with tokens to add to the vocabulary, one per line; markers such as [E1], too, which are then taken as a "
    "whole. Their embeddings must then be trained: continue pre-training on text that contains them.",
)
flags.DEFINE_bool(
    "use_unused_slots",
    False,
    "Replace [unused1], [unused2], ... with the added tokens instead of appending rows: the model keeps its size.",
)
flags.DEFINE_enum(
    "new_rows",
    "pieces",
    ["pieces", "mean", "random"],
    "Initial embeddings of added tokens. pieces: mean of the pieces that the token was split into so far. mean: mean "
    "of the whole table. random: as in training from scratch.",
)
flags.DEFINE_integer(
    "max_position_embeddings",
    None,
    "Extend the position table to this many rows, for longer sequences, by repeating the learned rows. Train it then.",
    lower_bound=1,
)
flags.DEFINE_bool("verify", None, "Gone, and refused.")
flags.register_validator(
    "verify", lambda value: value is None, "the flag is gone: what is written is always read back, every bit compared."
)
flags.DEFINE_string("report_file", None, "Also write the report to this file.")
flags.DEFINE_bool("overwrite", False, "Replace existing files of the target.")


def main(_):
    logging.set_verbosity(logging.INFO)
    check_model(FLAGS["from"].value, "--from", FLAGS.bert_config_file, FLAGS.vocab_file)
    checks.check_file(FLAGS.add_tokens, "--add_tokens")
    checks.check_output_dir(FLAGS.to, "--to")
    if FLAGS.report_file:
        checks.check_output_file(FLAGS.report_file, "--report_file")
    # On SIGTERM, temporary files are still removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # TensorFlow is imported here, so that --help and flag errors appear at once.
    script.start_tensorflow()
    from bert_tf.conversion import convert

    names = (
        "with_optimizer", "add_tokens", "use_unused_slots", "new_rows", "max_position_embeddings", "do_lower_case",
        "strip_accents", "bert_config_file", "vocab_file", "hidden_act", "part", "overwrite",
    )  # fmt: skip
    arguments = {name: FLAGS[name].value for name in names}
    report = convert.convert(FLAGS["from"].value, FLAGS.to, FLAGS.format, **arguments)
    print(report.text())
    if FLAGS.report_file:
        convert.write_report(FLAGS.report_file, report)


if __name__ == "__main__":
    flags.mark_flags_as_required(["from", "to", "format"])
    script.run(main)
