"""Fine-tunes BERT on sentences or pairs of sentences: GLUE, XNLI, or your own TSV, CSV or JSON lines.

The original's commands work unchanged:

    python run_classifier.py --task_name=MRPC --do_train=true --do_eval=true --data_dir=$GLUE_DIR/MRPC \\
      --vocab_file=$BERT_BASE_DIR/vocab.txt --bert_config_file=$BERT_BASE_DIR/bert_config.json \\
      --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --max_seq_length=128 --train_batch_size=32 \\
      --learning_rate=2e-5 --num_train_epochs=3.0 --output_dir=runs/mrpc_output/

--vocab_file and --bert_config_file may be left out if the files are beside --init_checkpoint, which takes weights of
any format. Your own data, without changing code:

    python run_classifier.py --task_name=custom --train_file=train.csv --dev_file=dev.csv --text_a=review \\
      --label=stars --do_train --do_eval --init_checkpoint=$BERT_BASE_DIR --output_dir=reviews

To see what BERT adds, train a model without it on the same data with the same flags:

    python run_classifier.py ... --model=bilstm --vocab_file=$BERT_BASE_DIR/vocab.txt --output_dir=without_bert

The feature-based approach, with BERT unchanged and another model on top:

    python run_classifier.py ... --features=concat_last_four --model_on_top=cnn --num_train_epochs=10

In output_dir: eval_results.txt, test_results.tsv, predictions.jsonl, best_model/, the weights of the last step, logs.
After a crash, the same command resumes exactly where it stopped. Exit code 143: stopped by SIGTERM, with a checkpoint.
"""

from absl import flags, logging

from bert_tf.system import script
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.training import flags as training_flags
from bert_tf.training.class_weights import define_class_weights_flag
from bert_tf.training.settings import checked_settings

FLAGS = flags.FLAGS

# What to do.
flags.DEFINE_string(
    "task_name",
    None,
    "cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, ax, xnli, or custom (--train_file and so on).",
)
flags.DEFINE_bool("do_train", False, "Train on the task's training set.")
flags.DEFINE_bool("do_eval", False, "Evaluate on the dev set at the end, and write eval_results.txt.")
flags.DEFINE_bool("do_predict", False, "Predict the test set, and write test_results.tsv and predictions.jsonl.")
flags.DEFINE_string(
    "glue_submission",
    None,
    "With --do_predict, add the task's predictions to this directory in the form that GLUE's leaderboard takes (MNLI: "
    "also those of diagnostic.tsv). Once all 11 files are there, submission.zip is written beside them.",
)

# Data.
flags.DEFINE_string("data_dir", None, "Directory with the task's files, as in the GLUE download.")
flags.DEFINE_string("language", "", "xnli: the language, e.g. ko, de, en. If unset, zh, as in the original.")
flags.DEFINE_string("train_file", None, "custom: training examples (.tsv, .csv or .jsonl).")
flags.DEFINE_string("dev_file", None, "custom: examples to evaluate on.")
flags.DEFINE_string("test_file", None, "custom: examples to predict; they need no label.")
flags.DEFINE_string("text_a", None, "custom: column of the text, by name or number from 0.")
flags.DEFINE_string("text_b", None, "custom: column of the second text, if there are two.")
flags.DEFINE_string("label", None, "custom: column of the label.")
flags.DEFINE_list("labels", None, "custom: the classes in the order of their ids. If unset, those of --train_file.")
flags.DEFINE_bool("regression", False, "custom: labels are numbers to predict.")
flags.DEFINE_bool("multi_label", False, "custom: an example can have any number of labels, separated by commas.")
define_class_weights_flag("examples")
training_flags.define_table_flags()
flags.DEFINE_string("tfds_name", None, "Load this dataset with tensorflow-datasets instead, e.g. glue/mrpc.")
flags.DEFINE_integer(
    "max_seq_length", 128, "Maximum tokens per example, with [CLS] and [SEP]; longer ones: see --long_texts."
)
flags.DEFINE_enum(
    "long_texts",
    "cut",
    ["cut", "windows"],
    "Texts of more than --max_seq_length tokens. cut: they lose their last tokens, as in the original. windows: they "
    "are read as windows of that length that overlap, and one output layer judges all of them. A trained model keeps "
    "it. For single texts, not for pairs.",
)
flags.DEFINE_integer(
    "window_stride",
    None,
    "windows: tokens from the start of a window to that of the next. If unset, half of those in a window.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "max_windows",
    8,
    "windows: a text is read up to the end of this many; the log says how many texts are longer. A training step takes "
    "time and memory for --train_batch_size times as many rows: see --gradient_accumulation_steps.",
    lower_bound=1,
)
flags.DEFINE_enum(
    "window_pooling",
    "mean",
    ["mean", "max", "attention"],
    "windows: how their pooled outputs become one: the mean, the maximum, or a mean with learned weights.",
)
flags.DEFINE_integer("eval_batch_size", 8, "Examples per batch in evaluation, over all devices.", lower_bound=1)

# Model.
flags.DEFINE_enum(
    "model",
    "bert",
    ["bert", "bilstm", "cnn"],
    "bilstm, cnn: a model without BERT, trained from random word-piece embeddings. It needs --vocab_file "
    "instead of --init_checkpoint, more epochs, and a --learning_rate of about 1e-3, which is its default. A "
    "trained one is recognised by its directory.",
)
flags.DEFINE_integer("embedding_size", 300, "bilstm, cnn: width of the embeddings.", lower_bound=1)
flags.DEFINE_integer(
    "hidden_size",
    300,
    "bilstm: width of both directions together; cnn: convolutions of widths 3, 4 and 5 together; in --model or "
    "--model_on_top.",
    lower_bound=1,
)
training_flags.define_features_flag("the model of --model_on_top (its default --learning_rate)")
flags.DEFINE_enum(
    "model_on_top",
    "bilstm",
    ["bilstm", "cnn"],
    "--features: what reads them, of width --hidden_size. A trained model keeps it.",
)
training_flags.define_lstm_flag("the classifier")

training_flags.define_fine_tuning_flags()


def __getattr__(name: str):
    """The names of the original, as in `from run_classifier import InputExample`; a run does not load them."""
    from bert_tf import run_classifier as names

    if name not in names.__all__:
        raise AttributeError(f"module 'run_classifier' has no attribute {name!r}")
    return getattr(names, name)


def main(_):
    logging.set_verbosity(logging.INFO)
    given = {name for name in FLAGS if FLAGS[name].present} | {"eval_batch_size"}  # it has its own default
    run, own = checked_settings(ClassificationSettings, FLAGS.flag_values_dict(), given)
    # TensorFlow is imported here, so that --help and errors in flags or files appear at once.
    script.start_tensorflow(run.num_virtual_cpus, trains=run.do_train)
    from bert_tf.tasks.classification.task import ClassificationTask
    from bert_tf.tasks.script import fine_tune

    fine_tune(ClassificationTask(own), run)


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    script.run(main)
