"""Fine-tunes BERT to answer questions about texts, and answers them: SQuAD 1.1, SQuAD 2.0, and data in their format.

The original's commands work unchanged:

    python run_squad.py --vocab_file=$BERT_BASE_DIR/vocab.txt --bert_config_file=$BERT_BASE_DIR/bert_config.json \\
      --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt --do_train=True --train_file=$SQUAD_DIR/train-v1.1.json \\
      --do_predict=True --predict_file=$SQUAD_DIR/dev-v1.1.json --train_batch_size=12 --learning_rate=3e-5 \\
      --num_train_epochs=2.0 --max_seq_length=384 --doc_stride=128 --output_dir=runs/squad_base/

--vocab_file and --bert_config_file may be left out if the files are beside --init_checkpoint, which takes weights of
any format. If --predict_file has answers, exact match and F1 are computed, too. For Chinese, Japanese, Korean and any
other language than English use --answer_from=offsets.

In output_dir: predictions.json, nbest_predictions.json, null_odds.json (2.0), eval_results.txt, best_model/ (with
--do_eval), question_answering.json, the weights of the last step, logs. After a crash, the same command resumes exactly
where it stopped. Exit code 143: stopped by SIGTERM, with a checkpoint.
"""

from absl import flags, logging

from bert_tf.system import script, text_encodings
from bert_tf.tasks.squad.settings import SquadSettings
from bert_tf.training import flags as training_flags
from bert_tf.training.settings import checked_settings

FLAGS = flags.FLAGS

# What to do.
flags.DEFINE_bool("do_train", False, "Train on --train_file.")
flags.DEFINE_bool(
    "do_eval",
    False,
    "Evaluate on --dev_file during training (--eval_every_steps) and at the end, keep the best model, and with "
    "--version_2_with_negative choose the threshold for 'no answer'.",
)
flags.DEFINE_bool("do_predict", False, "Answer the questions of --predict_file.")

# Data.
flags.DEFINE_string("train_file", None, "SQuAD JSON to train on; files separated by commas, or a glob.")
flags.DEFINE_string("predict_file", None, "SQuAD JSON to answer, e.g. dev-v1.1.json (or several); needs no answers.")
flags.DEFINE_string("dev_file", None, "SQuAD JSON for --do_eval; --predict_file if unset.")
text_encodings.define_encoding_flag("your files")
flags.DEFINE_integer("max_seq_length", 384, "Tokens of question and context window, with [CLS] and [SEP].")
flags.DEFINE_integer(
    "doc_stride", 128, "Tokens from the start of one window of a long context to the start of the next.", lower_bound=1
)
flags.DEFINE_integer("max_query_length", 64, "Maximum tokens of a question.", lower_bound=1)
flags.DEFINE_enum(
    "answer_from",
    "words",
    ["words", "offsets"],
    "How answers are found in the text. words: as in the original, right for most English text. offsets: by "
    "characters, right in every script; splits words that the vocabulary lacks. Train and predict with the same. A "
    "RoBERTa or ALBERT has offsets by default.",
)
flags.DEFINE_bool(
    "verbose_logging", False, "Log questions left out, the first windows, and answers that could not be aligned."
)
flags.DEFINE_string(
    "feature_cache_dir",
    None,
    "Directory that caches token windows for the next run, under a hash of their content; if unset, "
    "output_dir/windows. 'none' disables it.",
)

# Schedule.
flags.DEFINE_bool(
    "steps_from_windows", False, "Count an epoch in windows (training uses all of them), not in questions."
)

# Prediction.
flags.DEFINE_integer("n_best_size", 20, "Candidates kept per window, and written per question.", lower_bound=1)
flags.DEFINE_integer("max_answer_length", 30, "Maximum tokens of an answer.", lower_bound=1)
flags.DEFINE_bool("version_2_with_negative", False, "Questions may have no answer (SQuAD 2.0).")
flags.DEFINE_float(
    "null_score_diff_threshold",
    0.0,
    "Predict no answer if its score is better by more than this. If unset, the threshold chosen on a dev set, from "
    "the model's question_answering.json, if any.",
)

flags.DEFINE_enum(
    "metric",
    "squad",
    ["squad", "korquad", "klue"],
    "How answers are scored. squad: exact match and F1 of words, as the official scripts. korquad: exact match and F1 "
    "of characters, as KorQuAD 1.0's. klue: exact match and ROUGE-W of characters, as KLUE-MRC's.",
)

# Model.
flags.DEFINE_enum(
    "question_head",
    None,
    ["independent", "joint"],
    "independent: first and last token of an answer are scored by themselves, as in BERT. joint: last tokens are "
    "scored for each of the best first ones, and 'no answer' has a layer of its own. If unset, as the model was "
    "fine-tuned before, or else as its authors did: joint for ELECTRA, and for ALBERT with --version_2_with_negative; "
    "only these two have it.",
)
flags.DEFINE_integer(
    "beam_size",
    None,
    "--question_head=joint, in prediction: the best first tokens, and the best last tokens of each. If unset, as "
    "the model was trained, or else 20 for ELECTRA, 5 for ALBERT.",
    lower_bound=1,
)
training_flags.define_lstm_flag("the output layer")

training_flags.define_fine_tuning_flags(has_classifier=False)


def __getattr__(name: str):
    """The names of the original, as in `from run_squad import RawResult`; a run does not load them."""
    from bert_tf import run_squad as names

    if name not in names.__all__:
        raise AttributeError(f"module 'run_squad' has no attribute {name!r}")
    return getattr(names, name)


def main(_):
    logging.set_verbosity(logging.INFO)
    given = {name for name in FLAGS if FLAGS[name].present}
    run, own = checked_settings(SquadSettings, FLAGS.flag_values_dict(), given)
    # TensorFlow is imported here, so that --help and errors in flags or files appear at once.
    script.start_tensorflow(run.num_virtual_cpus, trains=run.do_train)
    from bert_tf.tasks.script import fine_tune
    from bert_tf.tasks.squad.task import SquadTask

    fine_tune(SquadTask(own), run)


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    script.run(main)
