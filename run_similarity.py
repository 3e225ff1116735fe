"""Fine-tunes BERT so that the vectors of texts are near if the texts are alike (Sentence-BERT), on your own CSV, TSV or
JSON lines.

    python run_similarity.py --do_train --do_eval --train_file=train.tsv --dev_file=dev.tsv --score_range=0,5 \\
      --init_checkpoint=$BERT_BASE_DIR --output_dir=sts

What the file has decides what is learned:

* two texts and a score (STS-B's columns sentence1, sentence2, score): the cosine of the two is the score;
* two texts that belong together (anchor and positive, query and positive, question and answer): a text's partner is
  nearer than the partners of the other texts of the batch; larger batches are harder, and teach more;
* a third text, negative, that does not belong to the first: one more that the partner must be nearer than; or with
  --loss=triplet the only one.

Name other columns:

    python run_similarity.py ... --text_a=title --text_b=body --negative=other   # by name
    python run_similarity.py ... --text_a=0 --text_b=1 --score=2                 # a file without header

A dev set with scores is evaluated by Spearman's and Pearson's correlation, another by search: each first text among
all second and third ones (accuracy of the first 1, 5 and 10 found, MRR, nDCG). --do_eval without --do_train evaluates
the weights as they are.

In output_dir: eval_results.txt, predictions.jsonl and test_results.tsv (the cosines of --test_file), similarity.png,
best_model/, the weights of the last step, logs. After a crash, the same command resumes exactly where it stopped.
Embedder opens best_model/; convert_checkpoint.py --format=huggingface makes of it what sentence-transformers opens.
Exit code 143: stopped by SIGTERM, with a checkpoint.
"""

from absl import flags, logging

from bert_tf.system import script
from bert_tf.tasks.similarity.settings import SimilaritySettings
from bert_tf.training import flags as training_flags
from bert_tf.training.settings import checked_settings

FLAGS = flags.FLAGS

# What to do.
flags.DEFINE_bool("do_train", False, "Train on --train_file.")
flags.DEFINE_bool("do_eval", False, "Evaluate on --dev_file during training (--eval_every_steps) and at the end.")
flags.DEFINE_bool("do_predict", False, "Write the cosine of the two texts of each row of --test_file.")

# Data.
flags.DEFINE_string("train_file", None, "Texts to train on: .csv, .tsv or .jsonl.")
flags.DEFINE_string("dev_file", None, "Texts to evaluate on; it may have scores where --train_file has none.")
flags.DEFINE_string("test_file", None, "Pairs of texts to compare. It needs no scores; if it has some, it is scored.")
flags.DEFINE_string(
    "text_a",
    None,
    "Column of the first text, by name, or by number from 0 if the file has no header. If no columns are named: those "
    "of the first known layout that a file has: sentence1, sentence2, score; anchor, positive, negative; question, "
    "answer; and the like.",
)
flags.DEFINE_string("text_b", None, "Column of the text that it is compared with, or belongs to it.")
flags.DEFINE_string("negative", None, "Column of a text that does not belong to the first, if any.")
flags.DEFINE_string("score", None, "Column of the number that says how alike the texts are, if any.")
flags.DEFINE_list(
    "score_range", ["0", "1"], "The scores of texts with nothing in common, and of equal ones; for STS-B 0,5."
)
training_flags.define_table_flags()
flags.DEFINE_integer("max_seq_length", 128, "Maximum tokens of a text, with [CLS] and [SEP]; longer ones are cut.")

# What is learned.
flags.DEFINE_enum(
    "loss",
    None,
    ["cosine", "ranking", "triplet"],
    "cosine: squared error of the cosine and the score. ranking: softmax over the partners of all texts of the batch. "
    "triplet: the second text is nearer than the third, by --triplet_margin. If unset, cosine where there are scores, "
    "else ranking.",
)
flags.DEFINE_float("ranking_scale", None, "ranking: cosines are multiplied by this. If unset, 20.")
flags.DEFINE_float("triplet_margin", None, "triplet: least difference of the two distances. If unset, 1.")
flags.DEFINE_integer(
    "negatives_batch_size",
    None,
    "ranking: the number of examples whose texts are negatives of each other. If unset, all that a device computes at "
    "once: --train_batch_size over all devices and --gradient_accumulation_steps. Give it, and any number of devices "
    "makes the same steps.",
    lower_bound=1,
)
flags.DEFINE_enum(
    "pooling",
    None,
    ["mean", "cls", "max"],
    "What is made of the outputs for a text's tokens. If unset, what the directory of the weights says, else mean.",
)
flags.DEFINE_bool(
    "normalize",
    None,
    "Whether the trained model gives all vectors the length 1; training and evaluation use cosines, with the same "
    "result. If unset, what the directory of the weights says, else no.",
)

training_flags.define_fine_tuning_flags(has_classifier=False, has_teacher=False)


def main(_):
    logging.set_verbosity(logging.INFO)
    given = {name for name in FLAGS if FLAGS[name].present}
    run, own = checked_settings(SimilaritySettings, FLAGS.flag_values_dict(), given)
    # TensorFlow is imported here, so that --help and errors in flags or files appear at once.
    script.start_tensorflow(run.num_virtual_cpus, trains=run.do_train)
    from bert_tf.tasks.script import fine_tune
    from bert_tf.tasks.similarity.task import SimilarityTask

    fine_tune(SimilarityTask(own), run)


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    script.run(main)
