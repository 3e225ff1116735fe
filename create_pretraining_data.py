"""Makes pre-training records (masked LM and next sentence) of text files.

    python create_pretraining_data.py --input_file='corpus/*.txt' --output_file=tf_examples.tfrecord \\
        --vocab_file=vocab.txt --max_seq_length=128 --max_predictions_per_seq=20 --dupe_factor=5

The text: one sentence per line, a blank line between documents; it need not be perfect sentences. A file that doesn't
end with a blank line continues in the next one. JSONL, WikiExtractor's output, raw paragraphs (--split_sentences) and
compressed files (.gz, .bz2, .zst) are read as well.

The text may be larger than memory. All of it is one shard, as in the original, unless --num_shards cuts it into several
that are made on all cores (--num_workers) or on a cluster (--beam_runner); a run that was killed resumes from the
shards that are finished. Beside the records, pretraining_data.<name of the first of them>.json says what is in them
and how they were made.
"""

import shlex

from absl import flags, logging

from bert_tf.pretraining.settings import InstanceSettings, check_data_flags
from bert_tf.system import checks, script
from bert_tf.training.settings import settings_of

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "input_file",
    None,
    "Text files in UTF-8: a comma-separated list of globs, local or gs://... They are read in the order of the list "
    "and, within a glob, by name (the original took the order of the file system, which differs between machines).",
)
flags.DEFINE_string(
    "output_file",
    None,
    "TFRecord files to write, separated by commas; instances are dealt out to them in turn. With --num_shards=10 each "
    "name becomes ten: out.tfrecord-00000-of-00010 and so on.",
)
flags.DEFINE_string("vocab_file", None, "The vocabulary the model is, or will be, trained with: one token per line.")
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
    "Most positions to predict in a record, which all have room for this many: about max_seq_length * masked_lm_prob. "
    "Give run_pretraining.py the same.",
)
flags.DEFINE_integer(
    "random_seed",
    12345,
    "Seed of everything random here. Each of several shards has a seed made of this one and its number. Use another "
    "for each part of a corpus cut into several runs.",
)
flags.DEFINE_integer(
    "dupe_factor",
    10,
    "How often to go over the text, with other pairs and other masks each time. Disk grows with it; less is enough for "
    "much text. If unset, 1 under --masking=dynamic.",
)
flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens to predict; 0.15 as in the paper.")
flags.DEFINE_float(
    "short_seq_prob",
    0.1,
    "How often a document's records are made shorter than max_seq_length on purpose, so that the model knows short "
    "input. 0: never.",
)

# The paper's ablations.
flags.DEFINE_bool(
    "nsp",
    True,
    "Make pairs for next sentence prediction. false: records of single runs of sentences, [CLS] A [SEP], for "
    "run_pretraining.py --nsp=false (Table 5 of the paper).",
)
flags.DEFINE_float(
    "mask_rate", 0.8, "Share of the predicted tokens that become [MASK]; the three rates add up to 1 (Table 8)."
)
flags.DEFINE_float("random_rate", 0.1, "Share of the predicted tokens that become any token of the vocabulary.")
flags.DEFINE_float("keep_rate", 0.1, "Share of the predicted tokens that stay as they are.")

# Beyond the original: larger texts, less disk, other kinds of text.
flags.DEFINE_integer(
    "num_shards",
    1,
    "Parts to cut the text into, at the ends of documents. 1 gives the original's instances, bit for bit. More are "
    "made on several cores or machines; random next sentences come from the same shard. What a shard holds depends on "
    "--random_seed, its number and the number of shards only.",
)
flags.DEFINE_integer(
    "num_workers", None, "Processes: they make the shards, or tokenize the only one. If unset, as many as cores."
)
flags.DEFINE_string(
    "scratch_dir",
    None,
    "Local directory for what does not fit in memory: about six times the text of the shards in work with "
    "--dupe_factor=10, half a time more for each further pass. If unset, the system's (TMPDIR).",
)
flags.DEFINE_enum(
    "masking",
    "static",
    ["static", "dynamic"],
    "static: masks are drawn here, as in the original. dynamic: the records hold the pairs once, unmasked, and "
    "run_pretraining.py --vocab_file=... draws other masks each epoch; that takes about a tenth of the disk.",
)
flags.DEFINE_bool(
    "pack_sequences",
    False,
    "With --masking=dynamic: put several short pairs, which don't see each other, into one record, so that less of it "
    "is padding.",
)
flags.DEFINE_enum(
    "compression",
    None,
    ["gzip"],
    "Compress the records; run_pretraining.py detects it automatically. A third of the size (unmasked records: half), "
    "and slower to write.",
)
flags.DEFINE_enum(
    "input_format",
    "auto",
    ["auto", "text", "jsonl", "wikiextractor"],
    "What the files hold. auto: JSONL by the name (.jsonl, .json, .ndjson, before .gz and the like) or first line, "
    "WikiExtractor's <doc> form by the first bytes, else text.",
)
flags.DEFINE_string("text_key", "text", "JSONL: the key of a line's object that holds the text of the document.")
flags.DEFINE_bool("split_sentences", False, "A line is a paragraph, to be cut into sentences.")
flags.DEFINE_string("language", "en", "Of --split_sentences, as in Wikipedia's addresses: en, de, ko, zh, ...")
flags.DEFINE_enum(
    "errors",
    "strict",
    ["strict", "replace"],
    "What is not UTF-8 is an error that names the place (strict), or counted and replaced by U+FFFD, which the "
    "tokenizer drops (replace).",
)
flags.DEFINE_string(
    "beam_runner",
    None,
    "Make the shards on Apache Beam: DirectRunner, DataflowRunner, FlinkRunner, SparkRunner, ... Needs "
    "pip install 'bert-tf[beam]'; text, vocabulary and output must be where all workers can reach them.",
)
flags.DEFINE_multi_string(
    "beam_option", [], "A further option of Beam, as often as needed: --beam_option=--project=my-project"
)


def main(_):
    logging.set_verbosity(logging.INFO)
    values = FLAGS.flag_values_dict()
    if not FLAGS["dupe_factor"].present:
        values["dupe_factor"] = 10 if FLAGS.masking == "static" else 1
    settings = settings_of(InstanceSettings, values)
    check_data_flags(
        FLAGS.masking, FLAGS.pack_sequences, FLAGS.compression, FLAGS.num_shards, FLAGS.num_workers, settings
    )
    checks.check_input_files(FLAGS.input_file, "--input_file")
    checks.check_file(FLAGS.vocab_file, "--vocab_file")
    for path in FLAGS.output_file.split(","):
        checks.check_output_file(path.strip(), "--output_file")
    script.start_tensorflow()
    from bert_tf.pretraining import corpus_formats, create
    from bert_tf.text import casing as text_casing

    casing = text_casing.resolve_casing(
        FLAGS.do_lower_case if FLAGS["do_lower_case"].present else None,
        FLAGS.strip_accents,
        text_casing.read_casing(text_casing.directory_of(FLAGS.vocab_file)),
    )
    names = (
        "input_file", "output_file", "vocab_file", "do_whole_word_mask", "max_seq_length", "max_predictions_per_seq",
        "random_seed", "dupe_factor", "masked_lm_prob", "short_seq_prob", "nsp", "mask_rate", "random_rate",
        "keep_rate", "masking", "pack_sequences", "compression", "num_shards", "num_workers", "scratch_dir",
        "beam_runner",
    )  # fmt: skip
    text = corpus_formats.TextSettings(
        FLAGS.input_format, FLAGS.text_key, FLAGS.split_sentences, FLAGS.language, FLAGS.errors
    )
    create.create_pretraining_data(
        **{name: values[name] for name in names},
        do_lower_case=bool(casing.do_lower_case),
        strip_accents=casing.strip_accents,
        text=text,
        beam_options=FLAGS.beam_option,
    )
    logging.info("Next:\n  %s", next_command(values))


def next_command(values: dict) -> str:
    """The command that trains on the records."""
    files = ",".join(
        f"{path.strip()}*" if values["num_shards"] > 1 else path.strip() for path in values["output_file"].split(",")
    )
    flags_given = {
        "input_file": files,
        "vocab_file": values["vocab_file"],
        "max_seq_length": values["max_seq_length"],
        "max_predictions_per_seq": values["max_predictions_per_seq"],
        **({} if values["nsp"] else {"nsp": False}),
        "do_train": True,
    }
    given = " ".join(shlex.quote(f"--{name}={value}") for name, value in flags_given.items())
    return f"python run_pretraining.py {given} --bert_config_file=... --output_dir=..."


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "output_file", "vocab_file"])
    script.run(main)
