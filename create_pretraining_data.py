"""Makes pre-training records (masked LM and next sentence) of text files.

    python create_pretraining_data.py --input_file='corpus/*.txt' --output_file=tf_examples.tfrecord \
        --vocab_file=vocab.txt --max_seq_length=128 --max_predictions_per_seq=20 --dupe_factor=5

The text: one sentence a line, a blank line between documents; it need not be perfect sentences. A file that doesn't end
with a blank line goes on in the next one. Text and instances are held in memory: cut a large corpus into several runs,
with another --random_seed each. Beside the records, pretraining_data.<name of the first of them>.json says what is in
them and how they were made.
"""

from absl import flags, logging

from bert_tf import script_flags

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "input_file",
    None,
    "Text files in UTF-8: a comma-separated list of globs. They are read in the order of the list and, within a glob, "
    "by name (the original took the order of the file system, which differs between machines).",
)
flags.DEFINE_string(
    "output_file",
    None,
    "TFRecord files to write, separated by commas; instances are dealt out to them in turn. Several files let "
    "run_pretraining.py read in parallel.",
)
flags.DEFINE_string("vocab_file", None, "The vocabulary the model is, or will be, trained with: one token a line.")
flags.DEFINE_bool(
    "do_lower_case",
    True,
    "Lower-case the text and strip accents. True for uncased vocabularies, False for cased ones. If unset, what "
    "tokenizer_config.json beside the vocabulary says, where there is one.",
)
flags.DEFINE_bool(
    "strip_accents",
    None,
    "Drop accents (é becomes e). Follows --do_lower_case if unset, as in the original; must be as it was in "
    "create_vocab.py.",
)
flags.DEFINE_bool(
    "do_whole_word_mask",
    False,
    "Mask all pieces of a word or none. Harder to guess, and gave the better models of May 2019.",
)
flags.DEFINE_integer(
    "max_seq_length",
    128,
    "Tokens in a record, [CLS], two [SEP] and padding included. Give run_pretraining.py the same. The paper used 128 "
    "for nine tenths of the steps and 512 for the rest, as attention costs the square.",
)
flags.DEFINE_integer(
    "max_predictions_per_seq",
    20,
    "Most positions to predict in a record, which all have room for so many: about max_seq_length * masked_lm_prob. "
    "Give run_pretraining.py the same.",
)
flags.DEFINE_integer(
    "random_seed", 12345, "Seed of everything random here. Use another for each part of a corpus cut into several runs."
)
flags.DEFINE_integer(
    "dupe_factor",
    10,
    "How often to go over the text, with other pairs and other masks each time. Disk grows with it; less is enough for "
    "much text.",
)
flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens to predict; 0.15 as in the paper.")
flags.DEFINE_float(
    "short_seq_prob",
    0.1,
    "How often a document's records are made shorter than max_seq_length on purpose, so that the model knows short "
    "input. 0: never.",
)


def main(_):
    # TensorFlow comes with this import: --help and a wrong flag answer without it.
    from bert_tf import model_files, pretraining_data

    logging.set_verbosity(logging.INFO)
    casing = model_files.resolve_casing(
        FLAGS.do_lower_case if FLAGS["do_lower_case"].present else None,
        FLAGS.strip_accents,
        model_files.read_casing(model_files.directory_of(FLAGS.vocab_file)),
    )
    pretraining_data.create_pretraining_data(
        input_file=FLAGS.input_file,
        output_file=FLAGS.output_file,
        vocab_file=FLAGS.vocab_file,
        do_lower_case=bool(casing.do_lower_case),
        strip_accents=casing.strip_accents,
        do_whole_word_mask=FLAGS.do_whole_word_mask,
        max_seq_length=FLAGS.max_seq_length,
        max_predictions_per_seq=FLAGS.max_predictions_per_seq,
        random_seed=FLAGS.random_seed,
        dupe_factor=FLAGS.dupe_factor,
        masked_lm_prob=FLAGS.masked_lm_prob,
        short_seq_prob=FLAGS.short_seq_prob,
    )


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "output_file", "vocab_file"])
    script_flags.run(main)
