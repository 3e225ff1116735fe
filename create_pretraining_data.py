"""Creates pre-training records from text files: masked LM and next sentence, or what other families train on.

    python create_pretraining_data.py --input_file='corpus/*.txt' --output_file=tf_examples.tfrecord \\
        --vocab_file=vocab.txt --max_seq_length=128 --max_predictions_per_seq=20 --dupe_factor=5

--vocab_file decides the tokenizer, --rows what a record holds:

    BERT        --vocab_file=vocab.txt
    ALBERT      --vocab_file=spiece.model --next_sentence=order --ngram=3 --do_whole_word_mask
    ELECTRA     --vocab_file=vocab.txt --rows=electra
    RoBERTa     --vocab_file=vocab.json --rows=full_sentences --max_seq_length=512
    DistilBERT  --vocab_file=vocab.txt --rows=lines, or the records of its teacher with --masking=dynamic

The text: one sentence per line, a blank line between documents; the sentences need not be perfect. A file that does not
end with a blank line continues in the next one. JSONL, WikiExtractor's output, raw paragraphs (--split_sentences) and
compressed files (.gz, .bz2, .zst) are read as well.

The text may be larger than memory. All of it is one shard, as in the original, unless --num_shards divides it into
several, which are made on all cores (--num_workers) or on a cluster (--beam_runner); a killed run resumes with the
shards that are not finished. Beside the records, pretraining_data.<name of the first file>.json records their content
and how they were made.
"""

import math
import shlex

from absl import flags, logging

from bert_tf.pretraining import corpus, corpus_formats
from bert_tf.pretraining.settings import (
    NEXT_SENTENCES,
    ROWS,
    InstanceSettings,
    check_data_flags,
    check_words,
    defaults_of_rows,
)
from bert_tf.pretraining.vocabulary_files import check_vocabulary
from bert_tf.system import checks, script, text_encodings
from bert_tf.text.segmenters import SEGMENTERS
from bert_tf.training.settings import settings_of

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "input_file",
    None,
    "Text files: a comma-separated list of globs, local or gs://... They are read in the order of the list "
    "and, within a glob, by name (the original took the order of the file system, which differs between machines).",
)
text_encodings.define_encoding_flag("--input_file")
flags.DEFINE_string(
    "output_file",
    None,
    "TFRecord files to write, separated by commas; instances are written to them in turn. With --num_shards=10 each "
    "name becomes ten: out.tfrecord-00000-of-00010 and so on.",
)
flags.DEFINE_string(
    "vocab_file",
    None,
    "The vocabulary the model is, or will be, trained with: a vocab.txt with one word piece per line (BERT, "
    "DistilBERT, ELECTRA), a SentencePiece .model (ALBERT), a vocab.json with merges.txt beside it (RoBERTa), or the "
    "tokenizer.json of any of them.",
)
flags.DEFINE_bool(
    "do_lower_case",
    True,
    "Lower-case the text and, with word pieces, strip accents. True for uncased vocabularies, False for cased ones. If "
    "unset, follows tokenizer_config.json beside the vocabulary, if there is one. Byte-level BPE keeps case anyway.",
)
flags.DEFINE_bool(
    "strip_accents",
    None,
    "Word pieces: strip accents (é becomes e). Follows --do_lower_case if unset, as in the original; must be as it was "
    "in create_vocab.py.",
)
flags.DEFINE_bool(
    "do_whole_word_mask",
    False,
    "Mask all pieces of a word or none. This is harder to guess, and gave the better models of May 2019.",
)
flags.DEFINE_enum(
    "word_boundaries",
    None,
    ["spaces"],
    "What a word is for --do_whole_word_mask. If unset, a piece with ## continues a word, as in the original, so each "
    "Chinese character is a word. spaces: the text is already segmented, and the pieces between two spaces are a word; "
    "punctuation marks stay words of their own. The tokens are the same either way.",
)
flags.DEFINE_enum(
    "segmenter",
    None,
    list(SEGMENTERS),
    "Find the words for --do_whole_word_mask in unsegmented text; the tokens stay the same. jieba: Chinese, pip "
    "install 'bert-tf[jieba]'. fugashi: Japanese, with UniDic, pip install 'bert-tf[fugashi]'. With --masking=dynamic "
    "the records carry the words, for run_pretraining.py --do_whole_word_mask.",
)
flags.DEFINE_integer(
    "max_seq_length",
    128,
    "Tokens in a record, including [CLS], two [SEP] and padding. Give run_pretraining.py the same. The paper used 128 "
    "for nine tenths of the steps and 512 for the rest, as the cost of attention is quadratic.",
)
flags.DEFINE_integer(
    "max_predictions_per_seq",
    20,
    "Maximum number of positions to predict in a record: about max_seq_length * masked_lm_prob. Every record takes the "
    "space for all. Give run_pretraining.py the same.",
)
flags.DEFINE_integer(
    "random_seed",
    12345,
    "Seed of all randomness. The seed of each of several shards is derived from this one and the shard's number. If "
    "you process a corpus in several runs, use a different seed for each.",
)
flags.DEFINE_integer(
    "dupe_factor",
    10,
    "Passes over the text, with different pairs and masks each time. Disk usage grows with it; a large text needs "
    "fewer. If unset, 1 with --masking=dynamic.",
)
flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens to predict; 0.15 as in the paper.")
flags.DEFINE_float(
    "short_seq_prob",
    0.1,
    "How often a document's records are made shorter than max_seq_length on purpose, so that the model knows short "
    "input. 0: never.",
)

# What a record holds.
flags.DEFINE_enum(
    "rows",
    "pairs",
    list(ROWS),
    "What a record holds. pairs: [CLS] A [SEP] B [SEP] for next sentence prediction. The others go over the text once "
    "and leave the masks to the training, which needs --nsp=false. full_sentences: sentences packed to "
    "--max_seq_length, each with its end token, across documents (RoBERTa). doc_sentences: the same, but a row ends "
    "with its document. lines: a line, which should hold several sentences; those of up to 9 tokens are left out "
    "(DistilBERT). electra: one or two runs of sentences that follow each other, in the record form of ELECTRA's "
    "build_pretraining_dataset.py; the rows of a seed are that script's.",
)
flags.DEFINE_enum(
    "next_sentence",
    "random",
    list(NEXT_SENTENCES),
    "What the second half of the pairs is. random: half of the time, sentences of another document (BERT). order: what "
    "follows, and half of the time A and B change places (ALBERT's sentence order prediction).",
)
flags.DEFINE_bool(
    "blanks_separate_docs",
    True,
    "A blank line ends a document of plain text. false: each file is one document.",
)
flags.DEFINE_integer(
    "ngram",
    None,
    "Mask runs of up to this many words (ALBERT: 3); give --do_whole_word_mask, too, or each piece counts as a word. "
    "The masks of a seed are those of ALBERT's script, if its NumPy generator is seeded with --random_seed modulo 2^32 "
    "(the script leaves it unseeded). If unset, single words, by BERT's script.",
    lower_bound=1,
)
flags.DEFINE_bool(
    "favor_shorter_ngram",
    True,
    "--ngram: n words are drawn in proportion to 1/n. false: the longer, the more often, in the reverse proportions.",
)

# The paper's ablations.
flags.DEFINE_bool(
    "nsp",
    True,
    "Make pairs for next sentence prediction. false: records of contiguous sentences, [CLS] A [SEP], for "
    "run_pretraining.py --nsp=false (Table 5 of the paper).",
)
flags.DEFINE_float(
    "mask_rate", 0.8, "Share of the predicted tokens that become [MASK]; the three rates add up to 1 (Table 8)."
)
flags.DEFINE_float("random_rate", 0.1, "Share of the predicted tokens that become a random token.")
flags.DEFINE_float("keep_rate", 0.1, "Share of the predicted tokens that stay unchanged.")

# Beyond the original: larger texts, less disk, other kinds of text.
flags.DEFINE_integer(
    "num_shards",
    1,
    "Parts to divide the text into, at ends of documents. 1 gives the original's instances, bit for bit. Several are "
    "made in parallel; random next sentences come from the same shard. A shard's content depends only on "
    "--random_seed, its number and the number of shards.",
)
flags.DEFINE_integer(
    "num_workers", None, "Processes that make the shards, or tokenize a single one. If unset, one per core."
)
flags.DEFINE_string(
    "scratch_dir",
    None,
    "Local directory for data that do not fit in memory: with --dupe_factor=10 about six times the text of the shards "
    "in progress, and half of that text more for each further pass. If unset, the system's (TMPDIR).",
)
flags.DEFINE_enum(
    "masking",
    None,
    ["static", "dynamic"],
    "static: masks are drawn here, as in the original. dynamic: the records contain each pair once, unmasked, and "
    "run_pretraining.py --vocab_file=... draws new masks each epoch; that takes about a tenth of the disk space. If "
    "unset, static for --rows=pairs; other rows are always dynamic.",
)
flags.DEFINE_bool(
    "pack_sequences",
    False,
    "With --masking=dynamic: put several short pairs, which don't attend to each other, into one record, for less "
    "padding.",
)
flags.DEFINE_enum(
    "compression",
    None,
    ["gzip"],
    "Compress the records to a third of the size (unmasked records: half); writing is slower. run_pretraining.py "
    "detects compression automatically.",
)
flags.DEFINE_enum(
    "input_format",
    "auto",
    ["auto", "text", "jsonl", "wikiextractor"],
    "The format of the files. auto: JSONL by the name (.jsonl, .json, .ndjson, before .gz and the like) or the first "
    "line, WikiExtractor's <doc> form by the first bytes, else text.",
)
flags.DEFINE_string("text_key", "text", "JSONL: the key of the document's text.")
flags.DEFINE_bool("split_sentences", False, "Lines are paragraphs: split them into sentences.")
flags.DEFINE_string(
    "language", "en", "Language for --split_sentences, as in Wikipedia's addresses: en, de, ko, zh, ..."
)
flags.DEFINE_enum(
    "errors",
    "strict",
    ["strict", "replace"],
    "What is invalid in UTF-8, or in --encoding. strict: an error that names the place. replace: counted and replaced "
    "with U+FFFD, which the tokenizer drops.",
)
flags.DEFINE_string(
    "beam_runner",
    None,
    "Make the shards with Apache Beam: DirectRunner, DataflowRunner, FlinkRunner, SparkRunner, DaskRunner, ... "
    "Needs pip install 'bert-tf[beam]', for Dask 'bert-tf[dask]'; all workers must be able to reach text, vocabulary "
    "and output.",
)
flags.DEFINE_multi_string(
    "beam_option", [], "A further option for Beam; can be repeated: --beam_option=--project=my-project"
)


def main(_):
    logging.set_verbosity(logging.INFO)
    values = FLAGS.flag_values_dict()
    masking, passes, nsp = defaults_of_rows(FLAGS.rows, FLAGS.masking)
    values |= {"masking": masking, "ngram": FLAGS.ngram or 0}
    values["dupe_factor"] = FLAGS.dupe_factor if FLAGS["dupe_factor"].present else passes
    values["nsp"] = FLAGS.nsp if FLAGS["nsp"].present else nsp
    if FLAGS.rows != "pairs" and not FLAGS["max_predictions_per_seq"].present:
        values["max_predictions_per_seq"] = math.ceil(FLAGS.max_seq_length * FLAGS.masked_lm_prob)
    settings = settings_of(InstanceSettings, values)
    check_data_flags(masking, FLAGS.pack_sequences, FLAGS.compression, FLAGS.num_shards, FLAGS.num_workers, settings)
    check_words(FLAGS.word_boundaries, FLAGS.segmenter, masking, settings)
    text = settings_of(corpus_formats.TextSettings, values)
    corpus.check_beginning(FLAGS.input_file, "--input_file", text)
    check_vocabulary(FLAGS.vocab_file)
    for path in FLAGS.output_file.split(","):
        checks.check_output_file(path.strip(), "--output_file")
    script.start_tensorflow()
    from bert_tf.pretraining import create

    names = (
        "input_file", "output_file", "vocab_file", "strip_accents", "word_boundaries", "segmenter", "random_seed",
        "masking", "pack_sequences", "compression", "num_shards", "num_workers", "scratch_dir", "beam_runner",
    )  # fmt: skip
    create.create_pretraining_data(
        **{name: values[name] for name in names},
        **vars(settings),
        do_lower_case=FLAGS.do_lower_case if FLAGS["do_lower_case"].present else None,
        text=text,
        beam_options=FLAGS.beam_option,
    )
    logging.info("Next:\n  %s", next_command(values))


def next_command(values: dict) -> str:
    """The command that trains on the records."""
    from bert_tf.text.tokenizer_choice import tokenizer_class_of

    files = ",".join(
        f"{path.strip()}*" if values["num_shards"] > 1 else path.strip() for path in values["output_file"].split(",")
    )
    words = (values["do_whole_word_mask"], values["word_boundaries"], values["segmenter"])
    of_tokenizer = {"SentencePieceTokenizer": "albert_base_v2", "ByteBpeTokenizer": "roberta_base"}
    of_rows = {"electra": "electra_small", "lines": "distilbert_base"}
    size = of_tokenizer.get(tokenizer_class_of(values["vocab_file"]).__name__) or of_rows.get(values["rows"])
    predictions = {"max_predictions_per_seq": values["max_predictions_per_seq"]}
    flags_given = {
        "input_file": files,
        "vocab_file": values["vocab_file"],
        "max_seq_length": values["max_seq_length"],
        **({"objective": "electra"} if values["rows"] == "electra" else predictions),
        # Only BERT and ALBERT expect pairs.
        **({} if values["nsp"] or size in ("roberta_base", *of_rows.values()) else {"nsp": False}),
        **({"do_whole_word_mask": True} if values["masking"] == "dynamic" and any(words) else {}),
        "do_train": True,
    }
    given = " ".join(shlex.quote(f"--{name}={value}") for name, value in flags_given.items())
    model = f"--bert_size={size}" if size else "--bert_config_file=..."
    return f"python run_pretraining.py {given} {model} --output_dir=..."


if __name__ == "__main__":
    flags.mark_flags_as_required(["input_file", "output_file", "vocab_file"])
    script.run(main)
