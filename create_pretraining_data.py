"""Turns text into masked LM and next sentence examples for run_pretraining.py.

The text has one sentence a line and blank lines between documents (next sentences must not come from another document).
The same flags give the very instances that the original's script gives:

    python create_pretraining_data.py \\
      --input_file=./sample_text.txt --output_file=/data/tf_examples.tfrecord --vocab_file=$BERT_BASE_DIR/vocab.txt \\
      --do_lower_case=True --max_seq_length=128 --max_predictions_per_seq=20 --masked_lm_prob=0.15 \\
      --random_seed=12345 --dupe_factor=5

All documents and instances are held in memory. For a large corpus, run it once per part with different seeds, and give
all files to run_pretraining.py as a glob. Beside the first output file, metadata-<name>.json says what was made.
"""

import random

from absl import app, flags, logging

FLAGS = flags.FLAGS

# Required.
flags.DEFINE_string("input_file", None, "Text files, UTF-8: a comma list, each entry a file or a glob.")
flags.DEFINE_string("output_file", None, "TFRecord files to write: a comma list. Instance k goes to file k mod n.")
flags.DEFINE_string("vocab_file", None, "The vocabulary that the model was or will be trained with.")

# Tokenization. It must be the same in everything that is done with the model.
flags.DEFINE_bool("do_lower_case", True, "Lower-case the text: True for uncased models, False for cased ones.")
flags.DEFINE_bool(
    "strip_accents",
    None,
    "Take accents off. Follows --do_lower_case if unset, as in the original. False for an uncased Korean vocabulary: "
    "stripping takes Hangul syllables apart.",
)

# Instances; the defaults are the original's.
flags.DEFINE_bool("do_whole_word_mask", False, "Mask all pieces of a word together.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens a sequence. Longer ones cost more; the paper ends with 512.")
flags.DEFINE_integer(
    "max_predictions_per_seq", 20, "Most masked positions a sequence; about max_seq_length * masked_lm_prob."
)
flags.DEFINE_integer("random_seed", 12345, "Seed of everything random. Use another for each part of a corpus.")
flags.DEFINE_integer("dupe_factor", 10, "Passes over the text, each with other pairs and masks.")
flags.DEFINE_float("masked_lm_prob", 0.15, "Share of tokens that are masked.")
flags.DEFINE_float(
    "short_seq_prob", 0.1, "Share of documents cut into sequences of random shorter length, as fine-tuning data has."
)


def main(_):
    # TensorFlow is imported here, so that --help and a wrong flag answer at once.
    from bert_tf import pretraining_data
    from bert_tf.text_files import list_files
    from bert_tf.tokenization import FullTokenizer, check_vocab

    logging.set_verbosity(logging.INFO)
    input_files = list_files(FLAGS.input_file)
    output_files = [name.strip() for name in FLAGS.output_file.split(",") if name.strip()]
    pretraining_data.check_settings(
        max_seq_length=FLAGS.max_seq_length,
        max_predictions_per_seq=FLAGS.max_predictions_per_seq,
        masked_lm_prob=FLAGS.masked_lm_prob,
        short_seq_prob=FLAGS.short_seq_prob,
        dupe_factor=FLAGS.dupe_factor,
        input_files=input_files,
        output_files=output_files,
    )
    tokenizer = FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case, FLAGS.strip_accents)
    check_vocab(tokenizer.vocab, FLAGS.vocab_file)

    logging.info("*** Reading from %d input files ***", len(input_files))
    for name in input_files:
        logging.info("  %s", name)
    documents = pretraining_data.read_documents(input_files, tokenizer)
    logging.info("%d documents, %d sentences", len(documents), sum(map(len, documents)))

    instances = pretraining_data.create_training_instances(
        documents,
        pretraining_data.MaskingVocabulary(tokenizer.vocab),
        max_seq_length=FLAGS.max_seq_length,
        dupe_factor=FLAGS.dupe_factor,
        short_seq_prob=FLAGS.short_seq_prob,
        masked_lm_prob=FLAGS.masked_lm_prob,
        max_predictions_per_seq=FLAGS.max_predictions_per_seq,
        do_whole_word_mask=FLAGS.do_whole_word_mask,
        rng=random.Random(FLAGS.random_seed),
    )
    logging.info("*** Writing to %d output files ***", len(output_files))
    counts = pretraining_data.write_instance_to_example_files(
        instances,
        FLAGS.max_seq_length,
        FLAGS.max_predictions_per_seq,
        output_files,
        show=lambda instance, features: pretraining_data.log_instance(instance, features, tokenizer),
    )
    settings = {flag.name: flag.value for flag in FLAGS.get_key_flags_for_module(__name__)}
    path = pretraining_data.write_metadata(output_files, counts, instances, documents, settings)
    for name, count in zip(output_files, counts, strict=True):
        logging.info("  %s: %d instances", name, count)
    logging.info("Wrote %d instances in all; see %s.", len(instances), path)


if __name__ == "__main__":
    for name in ("input_file", "output_file", "vocab_file"):
        flags.mark_flag_as_required(name)
    app.run(main)
