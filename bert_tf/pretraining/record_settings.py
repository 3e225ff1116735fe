"""Settings of create_pretraining_data.py, with all checks that need neither TensorFlow nor data."""

import dataclasses
import math

from bert_tf.store.description import vocabulary_in
from bert_tf.system.declare import (
    ORIGINAL,
    REQUIRED,
    check_values,
    declared_in,
    non_default_settings,
    setting,
    with_models,
)
from bert_tf.text.word_boundaries import SEGMENTERS

MIN_SEQ_LENGTH = 5  # [CLS] A [SEP] B [SEP] with one token each

# What a record of create_pretraining_data.py holds.
ROWS = ("pairs", "full_sentences", "doc_sentences", "lines", "electra")
_OF_PAIRS = ("nsp", "dupe_factor", "next_sentence", "short_seq_prob")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordSettings:
    """Which files, and how instances become records. do_lower_case None: as the files next to vocab_file say."""

    input_file: str = setting(
        REQUIRED,
        "Text files: a comma-separated list of globs, local or gs://... They are read in the order of the list "
        "and, within a glob, by name (the original took the order of the file system, which differs between machines).",
        heading=ORIGINAL,
    )
    output_file: str = setting(
        REQUIRED,
        "TFRecord files to write, separated by commas; instances are written to them in turn. With --num_shards=10 "
        "each name becomes ten: out.tfrecord-00000-of-00010 and so on.",
    )
    vocab_file: str = setting(
        REQUIRED,
        "The vocabulary the model is, or will be, trained with: a vocab.txt with one word piece per line (BERT, "
        "DistilBERT, ELECTRA), a SentencePiece .model (ALBERT), a vocab.json with merges.txt next to it (RoBERTa), or "
        "the tokenizer.json of any of them; or the name of a model on the hub, klue/bert-base.",
        model_file=vocabulary_in,
    )
    do_lower_case: bool | None = setting(
        True,
        "Lower-case the text and, with word pieces, strip accents. True for uncased vocabularies, false for cased "
        "ones. Byte-level BPE keeps case anyway. If unset, as tokenizer_config.json next to the vocabulary says, or "
        "else by the pieces: true unless some have capital letters.",
        unset=True,
    )
    random_seed: int = setting(
        12345,
        "Seed of all randomness. The seed of each of several shards is derived from this one and the shard's number. "
        "If you process a corpus in several runs, use a different seed for each.",
    )
    strip_accents: bool | None = setting(
        None,
        "Word pieces: strip accents (é becomes e); must be as in create_vocab.py. If unset, as --do_lower_case.",
        heading="Words",
    )
    word_boundaries: str | None = setting(
        None,
        "What a word is for --do_whole_word_mask. spaces: the text is already segmented, and the pieces between two "
        "spaces are a word; punctuation marks stay words of their own. The tokens are the same either way. If unset, a "
        "piece with ## continues a word, as in the original, so each Chinese character is a word.",
        choices=("spaces",),
    )
    segmenter: str | None = setting(
        None,
        "Find the words for --do_whole_word_mask in unsegmented text; the tokens stay the same. jieba: Chinese, pip "
        "install 'bert-tf[chinese]'. fugashi: Japanese, with UniDic, pip install 'bert-tf[japanese]'. With "
        "--masking=dynamic the records carry the words, for run_pretraining.py --do_whole_word_mask.",
        choices=SEGMENTERS,
    )
    num_shards: int = setting(
        1,
        "Parts to divide the text into, at ends of documents. 1 gives the original's instances, bit for bit. Several "
        "are made in parallel; random next sentences come from the same shard. A shard's content depends only on "
        "--random_seed, its number and the number of shards.",
        heading="Larger texts, less disk",
        least=1,
    )
    num_workers: int | None = setting(
        None, "Processes that make the shards, or tokenize a single one. If unset, one per core.", least=1
    )
    scratch_dir: str | None = setting(
        None,
        "Local directory for data that do not fit in memory: with --dupe_factor=10 about six times the text of the "
        "shards in progress, and half of that text more for each further pass. If unset, the system's (TMPDIR).",
    )
    masking: str | None = setting(
        None,
        "static: masks are drawn here, as in the original. dynamic: the records contain each pair once, unmasked, and "
        "run_pretraining.py --vocab_file=... draws new masks each epoch; that takes about a tenth of the disk space. "
        "If unset, static for --rows=pairs; other rows are always dynamic.",
        choices=("static", "dynamic"),
    )
    pack_sequences: bool = setting(
        False, "With --masking=dynamic: put several short pairs, which don't attend to each other, into one record."
    )
    beam_runner: str | None = setting(
        None,
        "Make the shards with Apache Beam: DirectRunner, DataflowRunner, FlinkRunner, SparkRunner, DaskRunner, ... "
        "Needs pip install 'bert-tf[beam]', for Dask 'bert-tf[dask]'; workers must reach text, vocabulary and output.",
    )
    beam_option: tuple[str, ...] = setting(
        (), "An option for Beam; can be repeated: --beam_option=--project=my-project."
    )

    @property
    def output_files(self) -> tuple[str, ...]:
        return tuple(filter(None, map(str.strip, self.output_file.split(","))))


@dataclasses.dataclass(frozen=True)
class InstanceSettings:
    """How instances are made.

    max_predictions_per_seq is 0 where the masks are left to the training. Rows that are not pairs (`row_kinds`) have no
    next sentence, and are unmasked.
    """

    max_seq_length: int = setting(
        128,
        "Tokens in a record, including [CLS], two [SEP] and padding. Give run_pretraining.py the same. The paper used "
        "128 for nine tenths of the steps and 512 for the rest, as the cost of attention is quadratic.",
        heading=ORIGINAL,
        least=MIN_SEQ_LENGTH,
    )
    max_predictions_per_seq: int = setting(
        20,
        "Maximum number of positions to predict in a record. Every record takes the space for all. Give "
        "run_pretraining.py the same. If unset, 20; of rows that are not pairs max_seq_length * masked_lm_prob.",
        unset=True,
        least=0,
    )
    dupe_factor: int = setting(
        10,
        "Passes over the text, with different pairs and masks each time. Disk usage grows with it; a large text needs "
        "fewer. If unset, 10; 1 with --masking=dynamic.",
        unset=True,
        least=1,
    )
    short_seq_prob: float = setting(
        0.1,
        "How often a document's records are shorter than max_seq_length, so that models know short input. 0: never.",
        least=0,
        most=1,
    )
    masked_lm_prob: float = setting(0.15, "Share of the tokens to predict; 0.15 as in the paper.", above=0, most=1)
    do_whole_word_mask: bool = setting(
        False, "Mask all pieces of a word or none. This is harder to guess, and gave the better models of May 2019."
    )
    nsp: bool = setting(
        True,
        "Make pairs for next sentence prediction. false: records of contiguous sentences, [CLS] A [SEP], for "
        "run_pretraining.py --nsp=false (Table 5 of the paper). If unset, true for --rows=pairs.",
        heading="The paper's ablations",
        unset=True,
    )
    mask_rate: float = setting(
        0.8, "Share of the predicted tokens that become [MASK]; the three rates add up to 1 (Table 8).", least=0, most=1
    )
    random_rate: float = setting(0.1, "Share of the predicted tokens that become a random token.", least=0, most=1)
    keep_rate: float = setting(0.1, "Share of the predicted tokens that stay unchanged.", least=0, most=1)
    rows: str = setting(
        "pairs",
        "What a record holds. pairs: [CLS] A [SEP] B [SEP] for next sentence prediction. The others go over the text "
        "once and leave the masks to the training, which needs --nsp=false. full_sentences: sentences packed to "
        "--max_seq_length, each with its end token, across documents (RoBERTa). doc_sentences: the same, but a row "
        "ends with its document. lines: a line, which should hold several sentences; those of up to 9 tokens are left "
        "out (DistilBERT). electra: one or two runs of sentences that follow each other, in the record form of "
        "ELECTRA's build_pretraining_dataset.py; the rows of a seed are that script's.",
        heading="What a record holds",
        choices=ROWS,
    )
    next_sentence: str = setting(
        "random",
        "What the second half of the pairs is. random: half of the time, sentences of another document (BERT). order: "
        "what follows, and half of the time A and B change places (ALBERT's sentence order prediction).",
        choices=("random", "order"),
    )
    ngram: int = setting(
        0,
        "Mask runs of up to this many words (ALBERT: 3); give --do_whole_word_mask, too, or each piece counts as a "
        "word. The masks of a seed are those of ALBERT's script, if its NumPy generator is seeded with --random_seed "
        "modulo 2^32 (the script leaves it unseeded). If unset, or 0, single words, by BERT's script.",
        shown=False,
        least=0,
        most=10,
    )
    favor_shorter_ngram: bool = setting(
        True, "--ngram: n words are drawn in proportion to 1/n. false: in the reverse proportions."
    )

    def __post_init__(self):
        check_values(self)
        of_rows = {}
        if self.rows != "pairs":
            predictions = math.ceil(self.max_seq_length * self.masked_lm_prob)
            of_rows = {"nsp": False, "dupe_factor": 1, "max_predictions_per_seq": predictions}
        for name, declared in declared_in(InstanceSettings).items():
            value, usual = getattr(self, name), of_rows.get(name, declared.default)
            if value is None:
                object.__setattr__(self, name, usual)  # the class is frozen
            elif self.rows != "pairs" and name in _OF_PAIRS and value != usual:
                raise ValueError(f"--{name}={value} is for --rows=pairs, not for --rows={self.rows}")
        check_mask_rates(self.mask_rate, self.random_rate, self.keep_rate)
        if self.rows == "pairs" and self.next_sentence == "order" and not self.nsp:
            raise ValueError("--next_sentence=order: there is no next sentence with --nsp=false")


def settings_of_records(**values) -> tuple[RecordSettings, InstanceSettings]:
    """Settings of both kinds from those that are given, with what follows from these, checked."""
    values = {name: value for name, value in values.items() if value is not None}
    known = {name: values.pop(name) for name in declared_in(RecordSettings) if name in values}
    records = with_models(RecordSettings(**known))
    if records.masking is None:
        masking = "static" if values.get("rows", "pairs") == "pairs" else "dynamic"
        records = dataclasses.replace(records, masking=masking)
    if records.masking == "dynamic":
        values.setdefault("dupe_factor", 1)
    settings = InstanceSettings(**values)
    rows, is_dynamic, is_electra = settings.rows, records.masking == "dynamic", settings.rows == "electra"
    words = records.segmenter or records.word_boundaries
    rates = non_default_settings(settings, ("masked_lm_prob", "mask_rate", "random_rate", "keep_rate"))
    for is_wrong, problem in (
        (records.pack_sequences and not is_dynamic, "--pack_sequences needs --masking=dynamic"),
        (settings.max_predictions_per_seq < 1, "--max_predictions_per_seq must be at least 1"),
        (rows != "pairs" and not is_dynamic, f"--masking=static: the records of --rows={rows} are unmasked"),
        (is_electra and records.pack_sequences, "--pack_sequences: --rows=electra has no place for several rows"),
        (is_electra and settings.do_whole_word_mask, "--do_whole_word_mask: --rows=electra knows no words"),
        (is_electra and words, "--word_boundaries, --segmenter: --rows=electra knows no words"),
        (not settings.favor_shorter_ngram and not settings.ngram, "--favor_shorter_ngram is for --ngram"),
        (is_dynamic and settings.ngram, "--ngram draws masks, which unmasked records don't have"),
        (is_dynamic and rates, f"--{', --'.join(rates)}: unmasked records; give it to run_pretraining.py"),
        (records.segmenter and records.word_boundaries, "--word_boundaries, --segmenter: give one"),
        (
            words and not is_dynamic and not settings.do_whole_word_mask,
            "--word_boundaries, --segmenter say which pieces are masked together: give --do_whole_word_mask, too",
        ),
    ):
        if is_wrong:
            raise ValueError(problem)
    return records, settings


def check_mask_rates(mask_rate: float, random_rate: float, keep_rate: float) -> None:
    if abs(mask_rate + random_rate + keep_rate - 1) > 1e-6:
        flags = f"--mask_rate={mask_rate}, --random_rate={random_rate}, --keep_rate={keep_rate}"
        raise ValueError(f"{flags} must add up to 1: each predicted token is masked, replaced or kept")
