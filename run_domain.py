"""Trains released weights further on your own texts, and shows what that brought: your domain in one command.

    python run_domain.py --init_checkpoint=$BERT_BASE_DIR --input_file='texts/*.txt' --output_dir=domain

It adds the domain's frequent words to the vocabulary, makes records, pre-trains, and evaluates before and after on
documents that it held out. With --other_text also on text of another kind, to show what was forgotten; with
--train_file and --dev_file it fine-tunes on your task, from the released weights and from the domain's model:

    python run_domain.py ... --other_text=news.txt --train_file=train.csv --dev_file=dev.csv --text_a=text --label=label

The texts: plain text in any form (sentences, paragraphs, broken lines), JSONL, WikiExtractor's output, also compressed.
In output_dir: domain.md (the report), domain.json, domain.png, pretrained/ (the model), words.txt, logs/ of the scripts
that ran. After a crash, the same command goes on.
"""

from absl import flags, logging

from bert_tf.system import script, text_encodings
from bert_tf.tasks.domain.settings import USUAL_SEEDS, DomainSettings
from bert_tf.training.settings import DTYPE_POLICIES, settings_of

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Weights of any family and format, with configuration and vocabulary beside them: a released model, or your own.",
)
flags.DEFINE_string("input_file", None, "The domain's texts: a comma-separated list of files or globs.")
text_encodings.define_encoding_flag("all texts and of the task's files")
flags.DEFINE_string("output_dir", None, "Directory for all that is made. A job found there goes on.")
flags.DEFINE_string(
    "heldout_file", None, "Texts of the domain to evaluate on. If unset, every 20th document of --input_file."
)
flags.DEFINE_string(
    "other_text",
    None,
    "Text of another kind to evaluate on, of what the weights were trained on before: what the loss on it goes up by "
    "is what was forgotten.",
)
flags.DEFINE_integer(
    "new_words",
    500,
    "The most words to add to the vocabulary: those whose pieces the texts have most of. 0: none. Only word pieces "
    "(BERT, DistilBERT, ELECTRA) have a place for them.",
)
flags.DEFINE_integer("max_seq_length", 128, "Tokens in a row, in pre-training and in fine-tuning.")
flags.DEFINE_integer(
    "num_train_steps", None, "Steps of pre-training. If unset, as many as one pass over the texts takes."
)
flags.DEFINE_integer("train_batch_size", 32, "Rows of a step of pre-training.")
flags.DEFINE_float("learning_rate", 5e-5, "Peak of pre-training; it rises for a tenth of the steps, and falls to 0.")
flags.DEFINE_enum("dtype", "float32", list(DTYPE_POLICIES), "Arithmetic of both trainings.")
flags.DEFINE_multi_string(
    "pretraining_flag",
    [],
    "A further flag of run_pretraining.py, for training and evaluation; can be repeated: "
    "--pretraining_flag=--do_whole_word_mask --pretraining_flag=--seed=7.",
)
flags.DEFINE_string("train_file", None, "A task to show what it brought: examples to fine-tune on, CSV, TSV or JSONL.")
flags.DEFINE_string("dev_file", None, "The task's examples to evaluate on.")
flags.DEFINE_string("text_a", None, "The task's column of the text, by name or number from 0.")
flags.DEFINE_string("label", None, "The task's column of the label.")
flags.DEFINE_integer("num_seeds", None, f"Fine-tunings from each of the two starts. If unset, {USUAL_SEEDS}.")
flags.DEFINE_multi_string(
    "fine_tuning_flag",
    [],
    "A further flag of run_classifier.py: --fine_tuning_flag=--num_train_epochs=5, --fine_tuning_flag=--text_b=...",
)


def main(_):
    logging.set_verbosity(logging.INFO)
    settings = settings_of(DomainSettings, FLAGS.flag_values_dict())
    settings.check()
    script.start_tensorflow()
    from bert_tf.tasks.domain.recipe import adapt
    from bert_tf.tasks.domain.report import closing_lines

    print(closing_lines(settings.output_dir, adapt(settings)))


if __name__ == "__main__":
    flags.mark_flags_as_required(["init_checkpoint", "input_file", "output_dir"])
    script.run(main)
