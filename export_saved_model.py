"""Exports a fine-tuned model as a SavedModel for TensorFlow Serving: strings in, answers out; or for LiteRT or ONNX.

    python export_saved_model.py --model_dir=mrpc_output/best_model --export_dir=serving/mrpc --text_pairs
    python export_saved_model.py --model_dir=squad_output/best_model --export_dir=serving/squad --dtype=bfloat16

It writes export_dir/VERSION with these signatures: serving_default takes raw strings (the exact tokenizer is in the
graph), serve_ids takes token ids, serve_examples takes serialized tf.Examples of token ids; classifiers also have
serve_pairs, and taggers serve_words. It loads wherever TensorFlow and tensorflow_text do. docs/serving.md shows how to
serve and query it.
"""

from absl import flags, logging

from bert_tf.models.directory import check_model
from bert_tf.system import checks, script, text_encodings

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "model_dir",
    None,
    "The model: a directory with weights, configuration and vocabulary, from run_*.py (output_dir, or better its "
    "best_model) or of any other format that convert_checkpoint.py reads.",
)
flags.DEFINE_string("export_dir", None, "Directory of the versions, as given to a server.")
flags.DEFINE_enum(
    "task",
    None,
    ["encoder", "classification", "regression", "squad", "ner", "multiple_choice", "masked_lm"],
    "The model's task. If unset, detected from its output layer.",
)
flags.DEFINE_integer("version", None, "Version number. If unset, one more than the newest in export_dir.")
flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16"], "Arithmetic of the matrix products; bfloat16 is faster if the "
    "processor supports it."
)  # fmt: skip
flags.DEFINE_bool(
    "freeze",
    None,
    "Turn the weights into constants of the graph, which lets the CPU's library pack them once. If unset, done if it "
    "is faster (all but squad in float32) and they are less than 1.9 GB: a graph can't hold more.",
)
flags.DEFINE_enum(
    "format",
    "saved_model",
    ["saved_model", "tflite", "tflite_int8", "onnx", "onnx_int8"],
    "tflite: a file for LiteRT (phones, small devices) that takes token ids; tflite_int8: the same with 8-bit weights. "
    "onnx: export_dir/VERSION with a file for ONNX Runtime that takes token ids, and the tokenizer's files beside it; "
    "onnx_int8: with 8-bit weights. The last two need pip install 'bert-tf[onnx]'.",
)
flags.DEFINE_integer(
    "max_seq_length",
    None,
    "Longer texts are truncated; contexts of questions are windowed. If unset, the length of training.",
)
flags.DEFINE_bool("text_pairs", False, "For a classifier of pairs: serving_default takes text and text_pair.")
flags.DEFINE_integer("top_k", 5, "masked_lm: guesses for each [MASK].", lower_bound=1)
flags.DEFINE_bool("warm_up", True, "Add requests that a server runs before it reports that it is ready.")
flags.DEFINE_string(
    "check_file",
    None,
    "Real data with labels, on which the export is compared with the model in float32; scores and differences are "
    "printed. Lines of text, tab, label (for pairs: text, tab, text, tab, label); for squad JSON in SQuAD format; for "
    "ner a CoNLL file. --dtype=bfloat16 and 8-bit weights cost a little accuracy.",
)
text_encodings.define_encoding_flag("--check_file")

# The flags that each format uses, besides those of all.
_ARGUMENTS = {
    "saved_model": ("task", "dtype", "freeze", "version", "max_seq_length", "text_pairs", "top_k", "warm_up"),
    "tflite": ("task", "max_seq_length"),
    "onnx": ("task", "version", "max_seq_length", "top_k"),
}


def main(_):
    logging.set_verbosity(logging.INFO)
    kind = FLAGS.format.removesuffix("_int8")
    for name in _ARGUMENTS["saved_model"]:
        if name not in _ARGUMENTS[kind] and not FLAGS[name].using_default_value:
            raise ValueError(f"--{name} is for --format=saved_model, not for {FLAGS.format}")
    check_model(FLAGS.model_dir, "--model_dir")
    checks.check_output_dir(FLAGS.export_dir, "--export_dir")
    checks.check_file(FLAGS.check_file, "--check_file")
    # TensorFlow is imported here, so that --help and flag errors appear at once.
    script.start_tensorflow()
    from bert_tf.serving import compare_export, detect_task, export, export_onnx, export_tflite

    if kind == "onnx":
        export_onnx.check_installed(FLAGS.format)
    if FLAGS.check_file:
        task = FLAGS.task or detect_task.task_in(FLAGS.model_dir)
        compare_export.refuse_unfit(FLAGS.check_file, FLAGS.model_dir, task, FLAGS.text_pairs, FLAGS.encoding)
    exporters = {
        "saved_model": export.export_saved_model,
        "tflite": export_tflite.export_tflite,
        "onnx": export_onnx.export_onnx,
    }
    arguments = {name: FLAGS[name].value for name in _ARGUMENTS[kind]}
    if kind != "saved_model":
        arguments["int8"] = FLAGS.format != kind
    path = exporters[kind](FLAGS.model_dir, FLAGS.export_dir, **arguments)
    print(path)
    if FLAGS.check_file:
        print(compare_export.compare(path, FLAGS.model_dir, FLAGS.check_file, FLAGS.encoding).text())


if __name__ == "__main__":
    flags.mark_flags_as_required(["model_dir", "export_dir"])
    script.run(main)
