"""Fine-tunes BERT for multiple choice (paper, section 4.4): SWAG, or your own CSV, TSV or JSON lines with any number of
choices.

    python run_swag.py --do_train --do_eval --train_file=train.csv --dev_file=val.csv \\
      --init_checkpoint=$BERT_BASE_DIR --max_seq_length=80 --train_batch_size=16 --learning_rate=2e-5 \\
      --output_dir=swag_output

Each choice goes through BERT as `[CLS] context [SEP] question choice [SEP]`; its score is the dot product of a vector
and the output of [CLS], and a softmax over the choices turns scores into probabilities. SWAG's columns are recognised
(sent1 is the context, sent2 the beginning of every choice), and so are JSON lines with context, question, choices and
label. Name other columns:

    python run_swag.py ... --context=1 --choices=2,3,4,5 --label=6       # CODAH, which has no header
    python run_swag.py ... --context=goal --choices=sol1,sol2            # PIQA, with its labels added as label

In output_dir: eval_results.txt, predictions.jsonl, test_results.tsv, test_results.txt if --test_file has labels,
confusion_matrix.png, best_model/, the weights of the last step, logs. After a crash, the same command resumes exactly
where it stopped. Exit code 143: stopped by SIGTERM, with a checkpoint.
"""

from absl import flags, logging

from bert_tf.system import script
from bert_tf.tasks.choice.settings import ChoiceSettings
from bert_tf.training import flags as training_flags
from bert_tf.training.settings import checked_settings

FLAGS = flags.FLAGS

# What to do.
flags.DEFINE_bool("do_train", False, "Train on --train_file.")
flags.DEFINE_bool("do_eval", False, "Evaluate on --dev_file during training (--eval_every_steps) and at the end.")
flags.DEFINE_bool("do_predict", False, "Predict the choices in --test_file.")

# Data.
flags.DEFINE_string("train_file", None, "Examples to train on: .csv, .tsv or .jsonl.")
flags.DEFINE_string("dev_file", None, "Examples to evaluate on.")
flags.DEFINE_string("test_file", None, "Examples to predict. It needs no labels; if it has some, they are scored.")
flags.DEFINE_string(
    "context",
    None,
    "Column of the context, by name, or by number from 0 if the file has no header. If no columns are named: SWAG's, "
    "or context, question, choices and label.",
)
flags.DEFINE_string("question", None, "Column of the text that every choice begins with, if any.")
flags.DEFINE_list(
    "choices",
    None,
    "Columns of the choices, separated by commas; or one name: of a list in JSON lines, or the prefix of numbered "
    "columns (ending for ending0, ending1, ...).",
)
flags.DEFINE_string("label", None, "Column of the correct choice; if other columns are named, label by default.")
training_flags.define_table_flags()
flags.DEFINE_string("first_label", "0", "The label of the first choice: 0, 1, A or the like.")
flags.DEFINE_integer(
    "max_seq_length", 128, "Maximum tokens of context and choice, with [CLS] and both [SEP]; longer ones are cut."
)

training_flags.define_fine_tuning_flags()


def main(_):
    logging.set_verbosity(logging.INFO)
    given = {name for name in FLAGS if FLAGS[name].present}
    run, own = checked_settings(ChoiceSettings, FLAGS.flag_values_dict(), given)
    # TensorFlow is imported here, so that --help and errors in flags or files appear at once.
    script.start_tensorflow(run.num_virtual_cpus, trains=run.do_train)
    from bert_tf.tasks.choice.task import ChoiceTask
    from bert_tf.tasks.script import fine_tune

    fine_tune(ChoiceTask(own), run)


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    script.run(main)
