"""Settings of create_pretraining_data.py and run_pretraining.py, with all checks that need neither TensorFlow nor data.

The scripts create them first, so that a wrong flag fails at once.
"""

import dataclasses
import math
import os
from collections.abc import Sequence

from bert_tf.data.first_record import check_first_record
from bert_tf.models.directory import check_model, read_config
from bert_tf.models.recipe import check_learning_rate
from bert_tf.models.sizes import config_of_size
from bert_tf.models.teacher_settings import LanguageTeacherSettings
from bert_tf.pretraining.vocabulary_files import check_vocabulary
from bert_tf.system import checks
from bert_tf.system.messages import named_by
from bert_tf.text.segmenters import check_segmenter

MIN_SEQ_LENGTH = 5  # [CLS] A [SEP] B [SEP] with one token each

# What a record of create_pretraining_data.py holds.
ROWS = ("pairs", "full_sentences", "doc_sentences", "lines", "electra")
NEXT_SENTENCES = ("random", "order")
MOST_WORDS = 10  # of an n-gram

# Flags that say how unmasked records are masked while training.
MASK_FLAGS = (
    "masked_lm_prob", "do_whole_word_mask", "mask_rate", "random_rate", "keep_rate", "mask_smoothing", "mask_rule"
)  # fmt: skip
FIXED_MASK_FLAGS = MASK_FLAGS[1:]  # those that ELECTRA's way of masking leaves no choice about
# Flags of --objective=electra.
ELECTRA_FLAGS = (
    "generator_size", "generator_config_file", "untied_generator_embeddings", "gen_weight", "disc_weight",
    "disallow_correct", "generator_temperature",
)  # fmt: skip
# BERT's (dynamic_masking.py) and RoBERTa's (roberta_masking.py).
MASK_RULES = ("bert", "roberta")


@dataclasses.dataclass(frozen=True)
class PretrainingSettings(LanguageTeacherSettings):
    """What is trained, on which data, for how long; the fields are the flags of run_pretraining.py of these names.

    Attributes:
      nsp, mask_rule: None: as in the model's family. learning_rate: None: that of the family's recipe.
      num_warmup_steps: None: 10000 for BERT, else the share of the recipe.
      max_predictions_per_seq: None: 20; with mask_smoothing twice the mean; for ELECTRA and
        RoBERTa as many as their authors had.
      generator_size: None: that of init_checkpoint's generator, or a quarter.
    """

    input_file: str
    output_dir: str
    bert_config_file: str | None = None
    bert_size: str | None = None
    do_train: bool = False
    do_eval: bool = False
    eval_input_file: str | None = None
    init_checkpoint: str | None = None
    objective: str = "mlm"
    nsp: bool | None = None
    max_seq_length: int = 128
    max_predictions_per_seq: int | None = None
    train_batch_size: int = 32
    eval_batch_size: int = 8
    learning_rate: float | None = None
    num_train_steps: int = 100000
    num_warmup_steps: int | None = None
    lr_decay_power: float = 1.0
    stop_at_step: int | None = None
    save_checkpoints_steps: int = 1000
    iterations_per_loop: int = 1000
    max_eval_steps: int = 100
    shuffle_window: int = 20000
    vocab_file: str | None = None
    masked_lm_prob: float = 0.15
    do_whole_word_mask: bool = False
    mask_rate: float = 0.8
    random_rate: float = 0.1
    keep_rate: float = 0.1
    mask_smoothing: float = 0.0
    mask_rule: str | None = None
    generator_size: float | None = None
    generator_config_file: str | None = None
    untied_generator_embeddings: bool = False
    gen_weight: float = 1.0
    disc_weight: float = 50.0
    disallow_correct: bool = False
    generator_temperature: float = 1.0
    skip_corrupt_records: bool = False
    verify_records: bool = False

    @property
    def is_left_to_right(self) -> bool:
        return self.objective == "ltr"

    def given(self, names: Sequence[str]) -> list[str]:
        """Those of some settings that are not left at their defaults."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return [name for name in names if getattr(self, name) != defaults[name]]

    def given_mask_flags(self) -> list[str]:
        """Those of MASK_FLAGS that are not left at their defaults."""
        return self.given(MASK_FLAGS)


def check_settings(settings: PretrainingSettings, allow_unknown_config_keys: bool = False) -> None:
    """Checks everything that can be checked without reading all records, and the weights.

    Raises:
      ValueError, OSError: names the flag and the value seen.
    """
    if not settings.do_train and not settings.do_eval:
        raise ValueError("Nothing to do: give --do_train, --do_eval or both.")
    if settings.num_train_steps <= 0:
        raise ValueError(f"--num_train_steps={settings.num_train_steps} must be positive.")
    if settings.num_warmup_steps is not None and not 0 <= settings.num_warmup_steps <= settings.num_train_steps:
        raise ValueError(
            f"--num_warmup_steps={settings.num_warmup_steps} must be from 0 to --num_train_steps="
            f"{settings.num_train_steps}."
        )
    check_learning_rate(settings.learning_rate)
    if not 0 < settings.lr_decay_power < math.inf:
        raise ValueError(f"--lr_decay_power={settings.lr_decay_power:g} must be more than 0.")
    if settings.stop_at_step is not None and not 0 < settings.stop_at_step <= settings.num_train_steps:
        raise ValueError(
            f"--stop_at_step={settings.stop_at_step} must be from 1 to --num_train_steps={settings.num_train_steps}."
        )
    if settings.bert_size and settings.bert_config_file:
        raise ValueError(
            f"--bert_size={settings.bert_size} and --bert_config_file={settings.bert_config_file} both give the "
            "model's size: leave one out."
        )
    if settings.bert_size:
        config_of_size(settings.bert_size)
    elif not (settings.bert_config_file or settings.init_checkpoint or settings.student_layers):
        of_layers = ", or --student_layers for a student made of the teacher's layers" if settings.teacher else ""
        raise ValueError(f"Give --bert_config_file, or --init_checkpoint with a configuration beside it{of_layers}.")
    if settings.is_left_to_right:
        for name in settings.given_mask_flags():
            raise ValueError(f"--{name} is for --objective=mlm: under --objective=ltr nothing is masked.")
    _check_electra(settings)
    _check_teacher(settings)
    check_mask_rates(settings.mask_rate, settings.random_rate, settings.keep_rate)
    if settings.mask_rule and settings.mask_smoothing:
        raise ValueError(
            f"--mask_rule={settings.mask_rule} and --mask_smoothing={settings.mask_smoothing} both say which tokens "
            "are predicted: give one."
        )
    checks.check_output_dir(settings.output_dir, "--output_dir")
    may_resume = os.path.isdir(settings.output_dir) and os.listdir(settings.output_dir)  # without the weights
    start = None if may_resume else settings.init_checkpoint
    check_model(start, "--init_checkpoint", settings.bert_config_file, allow_unknown=allow_unknown_config_keys)
    check_vocabulary(settings.vocab_file)
    for name in ("input_file", *(["eval_input_file"] if settings.eval_input_file else ())):
        flag = f"--{name}"
        checks.check_not_empty(files := checks.check_input_files(getattr(settings, name), flag), flag)
        for path in files if not settings.skip_corrupt_records else ():
            with named_by(flag):
                check_first_record(path)


def _check_teacher(settings: PretrainingSettings) -> None:
    """Checks the flags of distillation."""
    settings.check_teacher()
    if settings.teacher and settings.objective != "mlm":
        raise ValueError(f"--teacher is for --objective=mlm, not for --objective={settings.objective}.")
    if settings.teacher and settings.nsp:
        raise ValueError("--nsp: a student predicts no next sentence; leave it out.")


def _check_electra(settings: PretrainingSettings) -> None:
    """Checks the flags of --objective=electra; other objectives don't take them."""
    if settings.objective != "electra":
        for name in settings.given(ELECTRA_FLAGS):
            raise ValueError(f"--{name} is for --objective=electra.")
        return
    for name in settings.given(FIXED_MASK_FLAGS):
        raise ValueError(
            f"--{name} is not for --objective=electra: of the tokens to predict 85 % are masked, the others stay."
        )
    if settings.nsp:
        raise ValueError("--nsp is not for --objective=electra, which predicts no next sentence.")
    if settings.generator_size is not None and not 0 < settings.generator_size <= 1:
        raise ValueError(
            f"--generator_size={settings.generator_size:g} is a share of the model's width, more than 0 and at most 1."
        )
    if settings.generator_size is not None and settings.generator_config_file:
        raise ValueError(
            f"--generator_size={settings.generator_size:g} and --generator_config_file="
            f"{settings.generator_config_file} both give the generator's size: leave one out."
        )
    if settings.generator_config_file:
        checks.check_file(settings.generator_config_file, "--generator_config_file")
        with named_by("--generator_config_file"):
            read_config(settings.generator_config_file)
    if not 0 < settings.generator_temperature < math.inf:
        raise ValueError(f"--generator_temperature={settings.generator_temperature:g} must be more than 0.")
    for name in ("gen_weight", "disc_weight"):
        if not 0 <= getattr(settings, name) < math.inf:
            raise ValueError(f"--{name}={getattr(settings, name):g} must be at least 0.")


# --- create_pretraining_data.py ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class InstanceSettings:
    """How instances are made; the fields are the flags of create_pretraining_data.py.

    Attributes:
      max_seq_length: S, longest instance in tokens, [CLS] and both [SEP] included.
      max_predictions_per_seq: P, most tokens to predict in an instance; 0 leaves the masks to the training.
      dupe_factor: passes over the documents, each with other pairs and masks.
      short_seq_prob: how often, per document and pass, instances are made shorter than S on purpose.
      masked_lm_prob: share of tokens to predict.
      do_whole_word_mask: mask all pieces of a word or none.
      nsp: make pairs for next sentence prediction; else single runs of sentences. Rows that are not pairs have none.
      mask_rate, random_rate, keep_rate: shares of the predicted tokens that become [MASK], become any token, stay.
      rows: what a record holds, see `row_kinds`; all but pairs are unmasked.
      next_sentence: "random": half of the pairs have a B from elsewhere; "order": half have A and B swapped (ALBERT).
      ngram: mask runs of up to this many words, with ALBERT's random numbers; 0: single words, with BERT's.
      favor_shorter_ngram: the probability of a run of n words is proportional to 1/n; False: to 1/(ngram + 1 - n).

    Raises:
      ValueError: no instance can be made with these settings, or one contradicts another; names the flag.
    """

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    dupe_factor: int = 10
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    do_whole_word_mask: bool = False
    nsp: bool = True
    mask_rate: float = 0.8
    random_rate: float = 0.1
    keep_rate: float = 0.1
    rows: str = "pairs"
    next_sentence: str = "random"
    ngram: int = 0
    favor_shorter_ngram: bool = True

    def __post_init__(self):
        rules = (
            (
                "max_seq_length",
                self.max_seq_length >= MIN_SEQ_LENGTH,
                "at least 5, for a pair of one token each and three special tokens",
            ),
            ("max_predictions_per_seq", self.max_predictions_per_seq >= 0, "at least 1"),
            ("dupe_factor", self.dupe_factor >= 1, "at least 1: it counts the passes over the text"),
            ("short_seq_prob", 0 <= self.short_seq_prob <= 1, "a probability from 0 to 1"),
            ("masked_lm_prob", 0 < self.masked_lm_prob <= 1, "a probability above 0, at most 1"),
            ("rows", self.rows in ROWS, f"one of {', '.join(ROWS)}"),
            ("next_sentence", self.next_sentence in NEXT_SENTENCES, f"one of {', '.join(NEXT_SENTENCES)}"),
            ("ngram", 0 <= self.ngram <= MOST_WORDS, f"at most {MOST_WORDS} words; 1 is a single word"),
        )
        for name, holds, rule in rules:
            if not holds:
                raise ValueError(f"--{name}={getattr(self, name)} must be {rule}")
        check_mask_rates(self.mask_rate, self.random_rate, self.keep_rate)
        if self.rows == "pairs" and self.next_sentence == "order" and not self.nsp:
            raise ValueError("--next_sentence=order: there is no next sentence with --nsp=false")
        if not self.favor_shorter_ngram and not self.ngram:
            raise ValueError("--favor_shorter_ngram says how long --ngram=3 masks are: give --ngram, too")
        if self.rows != "pairs":
            self._check_plain_rows()

    def _check_plain_rows(self) -> None:
        """Refuses what means nothing for rows that are not pairs."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        reasons = {
            "nsp": "has pairs",
            "next_sentence": "has pairs",
            "short_seq_prob": "draws the lengths of pairs",
        }
        for name, reason in reasons.items():
            value, unused = getattr(self, name), False if name == "nsp" else defaults[name]
            if value != unused:
                raise ValueError(f"--{name}={value}: only --rows=pairs {reason}, not --rows={self.rows}")
        if self.dupe_factor != 1:
            raise ValueError(
                f"--dupe_factor={self.dupe_factor}: --rows={self.rows} goes over the text once; its records are "
                "unmasked, and training draws new masks in each epoch"
            )


def defaults_of_rows(rows: str, masking: str | None) -> tuple[str, int, bool]:
    """--masking (if None), --dupe_factor and --nsp if they are not given."""
    masking = masking or ("static" if rows == "pairs" else "dynamic")
    return masking, 10 if masking == "static" and rows == "pairs" else 1, rows == "pairs"


def check_data_flags(
    masking: str,
    pack_sequences: bool,
    compression: str | None,
    num_shards: int,
    num_workers: int | None,
    settings: InstanceSettings,
) -> None:
    """Checks the flags of create_pretraining_data.py that say how the instances become records.

    Raises:
      ValueError: one is out of range, or contradicts another; names the flag.
    """
    if masking not in ("static", "dynamic"):
        raise ValueError(f"--masking={masking} must be static or dynamic")
    if pack_sequences and masking != "dynamic":
        raise ValueError("--pack_sequences needs --masking=dynamic: records with masks hold one pair each")
    if compression not in (None, "", "gzip"):
        raise ValueError(f"--compression={compression} must be gzip, or unset")
    if num_shards < 1:
        raise ValueError(f"--num_shards={num_shards} must be at least 1")
    if num_workers is not None and num_workers < 1:
        raise ValueError(f"--num_workers={num_workers} must be at least 1")
    if settings.max_predictions_per_seq < 1:
        raise ValueError(f"--max_predictions_per_seq={settings.max_predictions_per_seq} must be at least 1")
    if settings.rows != "pairs" and masking != "dynamic":
        raise ValueError(f"--masking={masking}: the records of --rows={settings.rows} are unmasked; leave it out")
    if settings.rows == "electra" and pack_sequences:
        raise ValueError("--pack_sequences: the records of --rows=electra have no place for several rows")
    if masking == "dynamic" and settings.ngram:
        records = "--masking=dynamic" if settings.rows == "pairs" else f"--rows={settings.rows}"
        raise ValueError(f"--ngram draws masks, which the records of {records} don't have")
    if settings.rows == "electra" and settings.do_whole_word_mask:
        raise ValueError("--do_whole_word_mask: ELECTRA's masks know no words; leave it out with --rows=electra")
    usual = InstanceSettings()
    drawn = ("masked_lm_prob", "mask_rate", "random_rate", "keep_rate")
    if masking == "dynamic" and any(getattr(settings, name) != getattr(usual, name) for name in drawn):
        raise ValueError(
            "--masked_lm_prob, --mask_rate, --random_rate, --keep_rate: the records of --masking=dynamic have no masks "
            "yet; give these to run_pretraining.py."
        )


def check_words(word_boundaries: str | None, segmenter: str | None, masking: str, settings: InstanceSettings) -> None:
    """Checks the flags of create_pretraining_data.py that say what a word is.

    Raises:
      ValueError: both are given, nothing would use them, or the segmenter is not installed; names the flag.
    """
    if word_boundaries not in (None, "spaces"):
        raise ValueError(f"--word_boundaries={word_boundaries} must be spaces, or unset")
    if word_boundaries and segmenter:
        raise ValueError(f"--word_boundaries={word_boundaries} and --segmenter={segmenter} both find words: give one")
    if (word_boundaries or segmenter) and settings.rows == "electra":
        raise ValueError("--word_boundaries, --segmenter: the records of --rows=electra have no place for words")
    if segmenter:
        check_segmenter(segmenter)
    if (word_boundaries or segmenter) and masking == "static" and not settings.do_whole_word_mask:
        name = f"--segmenter={segmenter}" if segmenter else f"--word_boundaries={word_boundaries}"
        raise ValueError(f"{name} says which pieces are masked together: give --do_whole_word_mask, too")


def check_mask_rates(mask_rate: float, random_rate: float, keep_rate: float) -> None:
    """Refuses numbers that are not shares.

    Raises:
      ValueError: one is not from 0 to 1, or together they are not 1; names the flags.
    """
    rates = {"mask_rate": mask_rate, "random_rate": random_rate, "keep_rate": keep_rate}
    for name, rate in rates.items():
        if not 0 <= rate <= 1:
            raise ValueError(f"--{name}={rate} must be a share from 0 to 1")
    if abs(sum(rates.values()) - 1) > 1e-6:
        given = ", ".join(f"--{name}={rate}" for name, rate in rates.items())
        raise ValueError(f"{given} must add up to 1: each predicted token is masked, replaced or kept")
