"""Fine-tunes BERT to tag words: named entities (paper, section 5.3), or any other tags, in CoNLL-style files.

    python run_ner.py --do_train --do_eval --do_predict --train_file=train.conll --dev_file=dev.conll \\
      --test_file=test.conll --init_checkpoint=$BERT_BASE_DIR --output_dir=ner_output

One word per line, its columns separated by tabs or spaces, the word first and the tag last unless --word_column and
--tag_column say otherwise; a blank line after each sentence, and optionally -DOCSTART- before each document. The tags
are IOB2 unless --tag_scheme says otherwise. CoNLL-2003 as published:

    python run_ner.py ... --tag_scheme=iob1 --document_context --max_seq_length=512

The paper's feature-based approach, with BERT unchanged and two BiLSTMs on top:

    python run_ner.py ... --features=concat_last_four --learning_rate=1e-3 --num_train_epochs=10

In output_dir: eval_results.txt, eval_report.txt (scores of each type), predictions.conll (--test_file with one more
column), predictions.jsonl (entities with scores), test_results.txt and test_report.txt if --test_file has tags,
confusion_matrix.png, best_model/, the weights of the last step, logs. After a crash, the same command resumes exactly
where it stopped. Exit code 143: stopped by SIGTERM, with a checkpoint.
"""

from absl import flags, logging

from bert_tf.system import script, text_encodings
from bert_tf.tasks.ner.settings import NerSettings
from bert_tf.training import flags as training_flags
from bert_tf.training.class_weights import define_class_weights_flag
from bert_tf.training.settings import checked_settings

FLAGS = flags.FLAGS

# What to do.
flags.DEFINE_bool("do_train", False, "Train on --train_file.")
flags.DEFINE_bool("do_eval", False, "Evaluate on --dev_file during training (--eval_every_steps) and at the end.")
flags.DEFINE_bool("do_predict", False, "Tag --test_file.")

# Data.
flags.DEFINE_string("train_file", None, "Words and tags to train on; files separated by commas, or a glob.")
flags.DEFINE_string("dev_file", None, "Words and tags to evaluate on (or several files).")
flags.DEFINE_string("test_file", None, "One file to tag; tags, if it has any, are scored.")
flags.DEFINE_bool("test_has_tags", True, "Whether --test_file has a tag column. A file with a single column has none.")
text_encodings.define_encoding_flag("your files")
flags.DEFINE_enum(
    "column_separator",
    "auto",
    ["auto", "tab", "space"],
    "The column separator. space: any run of spaces and tabs. auto: tab if the first word's line has one.",
)
flags.DEFINE_integer("word_column", 0, "Column of the word, from 0; -1 is the last one.")
flags.DEFINE_integer("tag_column", -1, "Column of the tag, from 0; -1 is the last one.")
flags.DEFINE_enum(
    "tag_scheme",
    "iob2",
    ["iob2", "iob1", "bioes", "bilou", "plain"],
    "How tags mark entities. iob2: B- begins each, I- continues it (most datasets). iob1: B- only between two adjacent "
    "ones (CoNLL-2003 as published). bioes, bilou: ends and single words are marked, too. plain: tags that mark no "
    "entities, such as parts of speech; accuracy is measured.",
)
flags.DEFINE_bool(
    "repair_tags", False, "Read tags that violate --tag_scheme like the program conlleval; by default an error."
)
flags.DEFINE_string(
    "comment_prefix", "", "Lines with this prefix are not words, e.g. '# ' in CoNLL-U. Beware of hashtags in tweets."
)
flags.DEFINE_enum(
    "metric",
    "entities",
    ["entities", "klue"],
    "How tags are scored. entities: precision, recall and F1 of whole entities, as conlleval. klue: also the scores of "
    "KLUE-NER, for files with a character a line: mean F1 over types of entities, which chooses the best model, and "
    "over tags of characters.",
)
flags.DEFINE_integer("max_seq_length", 128, "Maximum tokens per sentence or window, with [CLS] and [SEP].")
flags.DEFINE_integer(
    "doc_stride",
    None,
    "Tokens from the start of one window of a long sentence or document to the next; if unset, half a window.",
    lower_bound=1,
)
flags.DEFINE_bool(
    "document_context",
    False,
    "Encode a sentence with its neighbours in the document (-DOCSTART- lines), as in the paper; use it with a large "
    "--max_seq_length.",
)
define_class_weights_flag("tagged words")

# Model.
training_flags.define_features_flag("BiLSTMs")
flags.DEFINE_integer("lstm_size", 768, "--features: width of a BiLSTM, half of it for each direction.", lower_bound=2)
flags.DEFINE_integer("lstm_layers", 2, "--features: number of stacked BiLSTMs.", lower_bound=1)

training_flags.define_fine_tuning_flags()


def main(_):
    logging.set_verbosity(logging.INFO)
    given = {name for name in FLAGS if FLAGS[name].present}
    run, own = checked_settings(NerSettings, FLAGS.flag_values_dict(), given)
    # TensorFlow is imported here, so that --help and errors in flags or files appear at once.
    script.start_tensorflow(run.num_virtual_cpus, trains=run.do_train)
    from bert_tf.tasks.ner.task import NerTask
    from bert_tf.tasks.script import fine_tune

    fine_tune(NerTask(own), run)


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    script.run(main)
