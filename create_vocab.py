"""Learns a WordPiece vocabulary from text files and writes vocab.txt.

    python create_vocab.py --input_file='corpus/*.txt' --output_file=vocab.txt --vocab_size=30522

Give create_pretraining_data.py the same --do_lower_case and --strip_accents, so that it looks up the same pieces.
"""

import os

from absl import flags, logging

from bert_tf.system import checks, script

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "input_file",
    None,
    "Text files in UTF-8 to learn from: a comma-separated list of globs. Use the text you will pre-train on; a few "
    "hundred megabytes of it are enough.",
)
flags.DEFINE_string("output_file", None, "The vocabulary to write, one token per line, usually named vocab.txt.")
flags.DEFINE_integer(
    "vocab_size",
    30522,
    "Tokens in the vocabulary, including special ones; the default is that of the released uncased English models. "
    "8,000 suits small models on small corpora. Must equal vocab_size in bert_config.json.",
    lower_bound=1,
)
flags.DEFINE_bool(
    "do_lower_case",
    True,
    "Lower-case the text. Give every later script the same value. Use False for named entities and parts of speech, "
    "and for most languages other than English.",
)
flags.DEFINE_bool(
    "strip_accents",
    None,
    "Strip accents (é becomes e). Follows --do_lower_case if unset, as in the original. Set --strip_accents=false for "
    "Korean, Japanese, Thai, Hindi and other scripts that this breaks.",
)
flags.DEFINE_integer(
    "num_unused",
    99,
    "Slots [unused0], [unused1], ... that you can later rename to words of your domain. 99 gives [UNK], [CLS], [SEP] "
    "and [MASK] the ids 100-103, as in the released vocabularies.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "min_frequency",
    2,
    "How often two pieces must be adjacent to be merged. Raise it if rare misspellings enter the vocabulary.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "max_characters",
    None,
    "Keep only this many different characters, the most frequent ones; words with others become [UNK]. If unset, all; "
    "set it (say, to 5,000) for web text with stray scripts and emoji.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "max_words",
    2_000_000,
    "Different words kept in memory while counting, about 150 bytes each; beyond this the rarest are dropped. Lower it "
    "if memory is scarce.",
    lower_bound=1000,
)


def main(_):
    logging.set_verbosity(logging.INFO)
    checks.check_input_files(FLAGS.input_file, "--input_file")
    checks.check_output_file(FLAGS.output_file, "--output_file")
    script.start_tensorflow()
    import tensorflow as tf

    from bert_tf.system import atomic, text_files
    from bert_tf.text import learn_vocabulary

    files = text_files.list_files(FLAGS.input_file, flag="--input_file")
    logging.info("Reading %d files, the first is %s", len(files), files[0])
    directory = os.path.dirname(FLAGS.output_file)
    if directory:  # now, rather than fail after the work
        tf.io.gfile.makedirs(directory)

    names = (
        "vocab_size", "do_lower_case", "strip_accents", "num_unused", "min_frequency", "max_characters", "max_words",
    )  # fmt: skip
    tokens = learn_vocabulary.learn_vocabulary(files, **{name: FLAGS[name].value for name in names})
    atomic.write_text_file(FLAGS.output_file, "".join(token + "\n" for token in tokens))
    accents = "" if FLAGS.strip_accents is None else f" --strip_accents={FLAGS.strip_accents}"
    logging.info(
        "Wrote %d tokens to %s. Use it with --do_lower_case=%s%s.",
        len(tokens),
        FLAGS.output_file,
        FLAGS.do_lower_case,
        accents,
    )


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "output_file"])
    script.run(main)
