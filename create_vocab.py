"""Learns a vocabulary from text files: WordPiece (BERT), byte-level BPE (RoBERTa) or SentencePiece (ALBERT).

    python create_vocab.py --input_file='corpus/*.txt' --output_file=vocab.txt --vocab_size=30522
    python create_vocab.py --kind=byte_bpe --input_file='corpus/*.txt' --output_file=roberta/vocab.json
    python create_vocab.py --kind=sentencepiece --input_file='corpus/*.txt' --output_file=albert/spiece.model

Give create_pretraining_data.py the same --do_lower_case and --strip_accents, so that it looks up the same pieces.
"""

import dataclasses
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence

from absl import flags, logging

from bert_tf.pretraining.corpus import check_beginning
from bert_tf.pretraining.corpus_formats import TextSettings
from bert_tf.system import checks, script, text_encodings

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of vocabulary.

    Attributes:
      vocab_size: that of the released English models. ending: of the file's name, by which models' directories have it.
      flags: those that it uses beside --vocab_size.
      record_flags: of create_pretraining_data.py, for the family that has this kind.
    """

    vocab_size: int
    ending: str
    flags: tuple[str, ...]
    record_flags: tuple[str, ...] = ()


KINDS = {
    "wordpiece": Kind(
        30522, "", ("do_lower_case", "strip_accents", "num_unused", "min_frequency", "max_characters", "max_words")
    ),
    "byte_bpe": Kind(50265, "/vocab.json", ("min_frequency", "max_words"), ("--rows=full_sentences",)),
    "sentencepiece": Kind(
        30000,
        ".model",
        ("do_lower_case", "character_coverage", "max_sentences"),
        ("--next_sentence=order", "--ngram=3", "--do_whole_word_mask"),
    ),
}

flags.DEFINE_string(
    "input_file",
    None,
    "Text files to learn from: a comma-separated list of globs. Use the text you will pre-train on; a few "
    "hundred megabytes of it are enough.",
)
text_encodings.define_encoding_flag("--input_file")
flags.DEFINE_string(
    "output_file",
    None,
    "The vocabulary to write: vocab.txt, one token per line; of byte_bpe vocab.json, with merges.txt beside it; of "
    "sentencepiece spiece.model.",
)
flags.DEFINE_enum(
    "kind",
    "wordpiece",
    list(KINDS),
    "wordpiece: for BERT, ELECTRA and DistilBERT. byte_bpe: for RoBERTa; keeps case, knows every text. sentencepiece: "
    "a unigram model for ALBERT.",
)
flags.DEFINE_integer(
    "vocab_size",
    None,
    "Tokens in the vocabulary, including special ones. If unset, as in the released English models: 30,522 for "
    "wordpiece, 50,265 for byte_bpe, 30,000 for sentencepiece. 8,000 suits small models on small corpora. Must equal "
    "vocab_size in the model's configuration.",
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
flags.DEFINE_float(
    "character_coverage",
    0.99995,
    "Share of the text whose characters get pieces; 0.9995 suits Chinese, Japanese and Korean. Other characters become "
    "<unk>.",
    lower_bound=0.9,
    upper_bound=1.0,
)
flags.DEFINE_integer(
    "max_sentences",
    10_000_000,
    "Lines kept in memory; from a longer text, a random sample of this many. Lower it if memory is scarce.",
    lower_bound=1000,
)


def check_kind(kind: str, output_file: str, given: Iterable[str]) -> None:
    """Refuses flags that a kind doesn't use, and names of files that nothing would find.

    Args:
      given: the flags that are not left at their defaults.

    Raises:
      ValueError: names the flag.
    """
    for name in given:
        if name not in KINDS[kind].flags:
            raise ValueError(f"--{name} means nothing for --kind={kind}.")
    if kind == "wordpiece" and output_file.endswith((".json", ".model")):
        raise ValueError(
            f"--output_file={output_file} must not end in .json or .model for --kind=wordpiece: it would be read as "
            "another kind. The usual name is vocab.txt."
        )
    if not f"/{output_file}".endswith(KINDS[kind].ending):
        raise ValueError(f"--output_file={output_file} must end in {KINDS[kind].ending} for --kind={kind}.")


def learn(kind: str, files: Sequence[str], output_file: str, settings: Mapping) -> dict[str, bytes]:
    """The content of each file to write, by its path.

    Args:
      settings: the kind's flags.
    """
    from bert_tf.text import learn_byte_bpe, learn_sentence_piece, learn_vocabulary

    if kind == "byte_bpe":
        contents = learn_byte_bpe.learn_byte_bpe(files, **settings)
        return {os.path.join(os.path.dirname(output_file), name): content for name, content in contents.items()}
    if kind == "sentencepiece":
        return {output_file: learn_sentence_piece.learn_sentence_piece(files, **settings)}
    tokens = learn_vocabulary.learn_vocabulary(files, **settings)
    return {output_file: "".join(token + "\n" for token in tokens).encode()}


def main(_):
    logging.set_verbosity(logging.INFO)
    kind = KINDS[FLAGS.kind]
    of_a_kind = {name for some in KINDS.values() for name in some.flags}
    check_kind(FLAGS.kind, FLAGS.output_file, [name for name in of_a_kind if not FLAGS[name].using_default_value])
    check_beginning(FLAGS.input_file, "--input_file", TextSettings(input_format="text", encoding=FLAGS.encoding))
    checks.check_output_file(FLAGS.output_file, "--output_file")
    script.start_tensorflow()
    import tensorflow as tf

    from bert_tf.system import atomic, text_files

    files = text_files.list_files(FLAGS.input_file, flag="--input_file")
    logging.info("Reading %d files, the first is %s", len(files), files[0])

    directory = os.path.dirname(FLAGS.output_file)
    if checks.is_remote(directory):  # now, rather than fail after the work; local ones are checked above
        tf.io.gfile.makedirs(directory)

    settings = {"vocab_size": FLAGS.vocab_size or kind.vocab_size, **{name: FLAGS[name].value for name in kind.flags}}
    settings["encoding"] = FLAGS.encoding
    contents = learn(FLAGS.kind, files, FLAGS.output_file, settings)
    if directory:
        tf.io.gfile.makedirs(directory)
    atomic.write_files(contents)
    casing = {name: settings.get(name) for name in ("do_lower_case", "strip_accents")}
    given = {"input_file": FLAGS.input_file, "vocab_file": FLAGS.output_file}
    given |= {name: value for name, value in casing.items() if value is not None}
    given |= {} if FLAGS["encoding"].using_default_value else {"encoding": FLAGS.encoding}
    logging.info(
        "Wrote %s. Next:\n  python create_pretraining_data.py %s --output_file=...",
        " and ".join(contents),
        " ".join([*(shlex.quote(f"--{name}={value}") for name, value in given.items()), *kind.record_flags]),
    )


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "output_file"])
    script.run(main)
