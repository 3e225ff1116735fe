"""Pre-training runs: their model, their objective, their records and labels, and what they leave.

There is a class for each --objective, and one for --teacher (those of two models are in `pretraining_two_models.py`).
The model's family says the rest: its recipe, its tokenizer, its masks.
"""

import dataclasses
import functools
import math
import posixpath
import textwrap
import zlib
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import records
from bert_tf.data.record_files import features_of
from bert_tf.data.token_rows import Share
from bert_tf.families import family_of, tokenizer_of_model
from bert_tf.families.config import BertConfig
from bert_tf.families.family import pooler
from bert_tf.families.recipe import Recipe
from bert_tf.models import encoder, initialize, objectives, task_models
from bert_tf.pretraining import mask_rules, model_vocabulary
from bert_tf.pretraining.masking import Masking
from bert_tf.store import card, save
from bert_tf.store.bundle import latest_checkpoint
from bert_tf.store.description import CardFacts, ModelFiles, read_model_files
from bert_tf.store.open import OpenedModel
from bert_tf.store.tensor_files import Weights
from bert_tf.system.declare import non_default_settings
from bert_tf.system.messages import naming_flag
from bert_tf.system.text_files import list_files, warn_of_missing_shards
from bert_tf.text import find_vocabulary
from bert_tf.training import checkpoints, distribution, run_directory
from bert_tf.training.loop import Run
from bert_tf.training.pretraining_settings import MASK_FLAGS, UNUSED, PretrainingSettings
from bert_tf.training.step import Trainer, make_evaluate_function
from bert_tf.training.teacher import DISTILLATION_FLAGS

_MASK_RULES = {"bert": mask_rules.bert, "roberta": mask_rules.roberta, "electra": mask_rules.electra}
_RECORDS_COMPARED = 16  # at most, by workers: the first ones of blocks
# Rows, the number of their batch, and the number in it of the first of them -> features.
Labeller = Callable[[Mapping[str, tf.Tensor], tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class OpenedRecords:
    """Pre-training records.

    flag: that named them, without dashes. pairs: unmasked pairs per row; None for masked records.
    summaries: those next to the records, by their paths.
    """

    flag: str
    index: records.RecordIndex
    features: dict
    pairs: int | None
    summaries: dict[str, dict]


def token_counts(opened: OpenedRecords, vocab_size: int) -> np.ndarray:
    """How often each token is in unmasked records: int64 [vocab_size]; padding counts, too."""
    counts = np.zeros(vocab_size, np.int64)
    batches = records.evaluation_batches(opened.index, opened.features, batch_size=256, repeat=False, max_steps=None)
    with records.explained_errors(opened.index, opened.features, opened.flag):
        for batch in batches:
            counts += np.bincount(np.reshape(batch["input_ids"], -1), minlength=vocab_size)[:vocab_size]
    return counts


def open_all_records(settings: PretrainingSettings, config: BertConfig, config_name: str) -> dict[str, OpenedRecords]:
    """The records that are needed, by the names of their flags. config: of the model, which limits their ids."""

    limits = {"vocab_size": config.vocab_size, "segments": max(2, config.type_vocab_size), "model_name": config_name}
    lengths = settings.max_seq_length, settings.max_predictions_per_seq
    no_masked = "masked records, but ELECTRA masks its texts during training" if settings.objective == "electra" else ""

    def open_records(flag: str, patterns: str | None) -> OpenedRecords:
        files = list_files(patterns, f"--{flag}")
        warn_of_missing_shards(files, f"--{flag}")
        with naming_flag(f"--{flag}"):
            index = records.index_records(files, None, verify=settings.verify_records)
            features = features_of(index.first_payloads(), *lengths, **limits, no_masked=no_masked)
        return OpenedRecords(flag, index, *features, model_vocabulary.summaries_of(index.files))

    flags = ["eval_input_file"] if settings.eval_input_file else []
    # Smoothed masks depend on the tokens of the training data, in evaluation, too.
    if settings.do_train or settings.mask_smoothing or not flags:
        flags.insert(0, "input_file")
    return {flag: open_records(flag, getattr(settings, flag)) for flag in flags}


class PretrainingTask(Run):
    """A run of masked LM; in families with a pooler also of the order of two segments, unless --nsp=false.

    name: the configuration in messages. earlier: what is in output_dir.
    opened: the model that it starts from, or its teacher.
    data: the run's records, by the names of their flags. masking: how unmasked records are masked, if any.
    token_weights: of `mask_rules.smoothed`; None: all tokens are masked alike.
    own_masks: attributes of the masks that the settings have no say in. recipe: None: that of the model's family.
    configs: of all models, by what messages call them. evaluation_objective: None: that of the training.
    """

    evaluation_objective: objectives.SumObjective | None = None
    recipe: Recipe | None = None
    own_masks: Mapping[str, object] = {}

    def __init__(
        self, settings: PretrainingSettings, config: BertConfig, name: str, strategy: tf.distribute.Strategy,
        earlier: run_directory.EarlierRun, opened: OpenedModel | None = None,
    ):  # fmt: skip
        super().__init__(settings, strategy, settings.stop_at_step or settings.num_train_steps)
        self.config, self.config_name, self.earlier, self.opened = config, name, earlier, opened
        self.family, self.configs = family_of(config), {"model": config}
        self.data = open_all_records(settings, config, name)
        self.summaries = {f"--{flag}": opened.summaries for flag, opened in self.data.items()}
        read = {opened.index.fingerprint for opened in self.data.values()}
        if len(read) == 1 and settings.do_train and (settings.do_eval or settings.eval_every_steps):
            logging.warning(
                "The evaluation reads the training records: its results say nothing about other texts. For those give "
                "--eval_input_file."
            )
        self.masking = self.create_masking()
        self.token_weights = None
        if self.masking and (power := self.masking.mask_smoothing):
            counts = token_counts(self.data["input_file"], config.vocab_size)
            self.token_weights = mask_rules.token_weights(counts, self.masking.tokenizer.special_ids, power)
        self.prepare()

    def prepare(self) -> None:
        """Opens what only this kind of task reads; says what is learned."""
        settings, config = self.settings, self.config
        self.predictions = settings.max_predictions_per_seq
        self.model_class = task_models.BertForPreTraining if config.has_pooler else task_models.BertForMaskedLM
        if not config.has_pooler:
            self.objective = objectives.MeanMaskedLanguageModelObjective
        elif settings.nsp and config.pairs == "order":
            self.objective = objectives.SentenceOrderObjective
        else:
            self.objective = objectives.PretrainingObjective if settings.nsp else objectives.LanguageModelObjective

    @staticmethod
    def configure(settings: PretrainingSettings, config: BertConfig, config_name: str) -> None:
        if config.is_causal:
            raise ValueError(
                f"--objective={settings.objective} needs attention to both sides, but attention is {config.attention} "
                f"in {config_name}: give --objective=ltr, or another configuration."
            )
        if config.detects_replaced_tokens and settings.do_train:
            message = "--objective=%s trains this %s as a masked LM; --objective=electra trains a discriminator."
            logging.warning(message, settings.objective, config.title)

    @functools.cached_property
    def vocabulary(self) -> ModelFiles | None:
        settings = self.settings
        # A student of layers starts from its teacher; one of a configuration has its teacher's vocabulary, too.
        taught = bool(settings.teacher) and (bool(settings.student_layers) or not settings.init_checkpoint)
        return model_vocabulary.choose_vocabulary(settings.vocab_file, self.opened, self.summaries, self.config, taught)

    def create_model(self) -> keras.Model:
        return self.model_class(self.config, dtype=self.settings.dtype_policy)

    def start(self, model: keras.Model) -> str | Weights | None:
        """The weights that the model starts from without a run to resume; with one, their name."""
        path = self.settings.init_checkpoint
        return path if self.earlier.newest or not path else model.weights_in(self.opened.weights)

    def around(self, model: keras.Model):
        """What is trained and evaluated: the model, or a model around it."""
        return model

    @staticmethod
    def default_predictions(settings: PretrainingSettings, config: BertConfig) -> int:
        share, length = settings.masked_lm_prob, settings.max_seq_length
        if settings.mask_smoothing:  # rows differ in how many they get
            return min(math.ceil(2 * share * length), length)
        if mask_rule_of(settings, config) == "roberta":
            # Whole words: half as many again, rarely reached.
            return int(share * length * (1.5 if settings.do_whole_word_mask else 1)) + 1
        return 20

    def flops_per_example(self) -> float:
        return encoder.pretraining_flops_per_example(self.config, self.settings.max_seq_length, self.predictions)

    @property
    def recorded(self) -> dict[str, object]:
        """The notes in run.json besides settings, data and vocabulary, or instead of a setting."""
        return {"mask_rule": self.masking.mask_rule} if self.masking else {}

    def common_facts(self) -> dict[str, object]:
        facts = {f"--{flag}": _content_of(opened.index) for flag, opened in self.data.items()}
        facts |= {name: value for name, value in self.recorded.items() if name != "teacher"}  # it is a path
        facts |= {"--vocab_file": self.masking.fingerprint} if self.masking else {}
        return super().common_facts() | facts | distribution.facts_of(**self.configs)

    # --- the order of work, see `Run.execute` -------------------------------------------------------------------------

    def schedule(self) -> tuple[Recipe, int, int]:
        settings, recipe = self.settings, self.recipe or self.config.pretraining_recipe
        given = {name: getattr(settings, name) for name in ("optimizer", "learning_rate", "lr_decay_power")}
        return dataclasses.replace(recipe, **given), settings.num_train_steps, settings.num_warmup_steps

    def restore(self, model: keras.Model, optimizer: keras.optimizers.Optimizer | None) -> int:
        settings, config = self.settings, self.config
        with self.strategy.scope():
            if config.draws_normal_weights:
                initialize.draw_normal_weights(model)
            self.trained = self.around(model)
        logging.info("Model with %s parameters; %s.", f"{model.count_params():,}", settings.dtype)
        # Without next-sentence prediction its head and the pooler are not read. Many an ELECTRA is published without
        # its generator; a warning says that it is random.
        unread = ("generator/", "generator_predictions/")
        unread += () if settings.nsp else ("cls/seq_relationship/", pooler(config.model_type) + "/")
        start, with_optimizer = self.start(model), settings.init_with_optimizer
        return checkpoints.restore(model, optimizer, self.output_dir, start, with_optimizer, unread=unread)

    def create_trainer(self, optimizer: keras.optimizers.Optimizer) -> tuple[Trainer, dict]:
        """The trainer, and further arguments of `loop.train`."""
        settings, opened = self.settings, self.data["input_file"]
        self.reading = records.explained_errors(opened.index, opened.features, opened.flag)
        cost = settings.max_seq_length, self.flops_per_example()
        newest = latest_checkpoint(self.output_dir)
        trainer = Trainer(self.trained, optimizer, self.objective, self.strategy, settings, checkpoint=newest)
        return trainer, {"eval_every_steps": settings.eval_every_steps, "cost_of_example": cost}

    def begin(self, step: int, trainer: Trainer | None) -> None:
        """Records the run in output_dir, if steps are left, and saves the checkpoint of a new one there."""
        settings, folder = self.settings, self.output_dir
        writes, goes_on = self.chief and self.trains, step < self.num_train_steps
        self.facts = None
        # A run that was killed after its last step has yet to write cards; the weights it began with may be gone.
        if writes and (goes_on or card.read_generated_card(folder) is None):
            self.manifest = run_directory.Manifest(self.earlier, self.recorded_settings(), [settings])
            self.facts = self.card_facts()
        if writes and goes_on:
            self.manifest.record(resumed=step > 0, **{run_directory.BEGINNING: self.facts.beginning})
            newest = self.earlier.newest
            # A run that goes on keeps its vocabulary, which was complete before its first checkpoint.
            is_there = newest and find_vocabulary(folder, self.family.tokenizer_class)
            description = save.description_files(self.vocabulary) if self.vocabulary and not is_there else {}
            run_directory.write_model_description(folder, self.config, description=description)
            if generator := self.configs.get("generator"):
                run_directory.write_model_description(posixpath.join(folder, "generator"), generator)
            if newest is None:  # before the first step, as in the original
                checkpoints.save(folder, step, trainer.tensors, settings.keep_checkpoint_max)
        objective = self.evaluation_objective or self.objective
        self.evaluate_batches = make_evaluate_function(self.trained, objective, self.strategy, self.compiles)

    def training_batches(self, first_step: int, share: Share) -> tf.data.Dataset:
        settings, opened = self.settings, self.data["input_file"]
        options = {"batch_size": settings.train_batch_size, "shuffle_window": settings.shuffle_window}
        options |= {"seed": settings.seed, "prepare": self.labeller(opened, settings.seed)}
        options |= {"prepares_whole_batches": self.token_weights is not None, "start_step": first_step}
        return records.training_batches(opened.index, opened.features, **options, share=share)

    def is_due(self, step: int) -> bool:
        every = self.settings.eval_every_steps
        return every > 0 and step % every == 0

    def evaluate(self, step: int) -> dict[str, float]:
        """The results of a step, which is evaluated only once."""
        if step not in self.evaluated:
            settings, opened = self.settings, self.data.get("eval_input_file") or self.data["input_file"]
            options = {"repeat": not settings.eval_input_file, "max_steps": settings.max_eval_steps}
            options["prepare"] = self.labeller(opened, mask_rules.EVALUATION_SEED)
            options["batch_size"] = settings.eval_batch_size
            batches = records.evaluation_batches(opened.index, opened.features, **options)
            with records.explained_errors(opened.index, opened.features, opened.flag):
                self.evaluated[step] = self.evaluate_batches(batches)
        return self.evaluated[step]

    def finish(self, step: int) -> dict[str, float]:
        """Evaluates the last step, and writes its results and what a user takes from the run."""
        folder, results = self.output_dir, {"global_step": step}
        if self.settings.do_eval:
            logging.info("Evaluation of step %d:", step)
            results |= self.evaluate(step)
            if self.chief:
                tf.io.gfile.makedirs(folder)
                run_directory.write_eval_results(posixpath.join(folder, "eval_results.txt"), results)
        if self.facts:
            self.write_parts(dataclasses.replace(self.facts, results=results))
            files = dataclasses.replace(read_model_files(folder), config=self.config, card=self.facts)
            run_directory.describe_end(folder, initialize.model_weights(self.model), files, results)
        if self.chief and self.trains:
            use = self.usage(folder, find_vocabulary(folder, self.family.tokenizer_class) is not None)
            logging.info("The model is in %s. To use it:\n%s", folder, use)
        return results

    # --- labels ------------------------------------------------------------------------------------------------------

    def labeller(self, opened: OpenedRecords, seed: int) -> Labeller | None:
        """A function that adds labels to rows of a batch; None if the records already have them."""
        if not opened.pairs:
            return None
        if self.token_weights is not None:
            return lambda rows, step, _: mask_rules.smoothed(rows, seed, step, self.masking, self.token_weights)
        rule = _MASK_RULES[self.masking.mask_rule]
        return lambda rows, step, first_row: rule(rows, seed, step, self.masking, first_row)

    def create_masking(self) -> Masking | None:
        settings = self.settings
        if not any(opened.pairs for opened in self.data.values()):
            for name in non_default_settings(settings, MASK_FLAGS):
                raise ValueError(f"--{name} is for unmasked records; these were already masked when they were made.")
            return None
        vocab_file = settings.vocab_file or (self.opened and self.opened.vocab_file)
        if not vocab_file:
            raise ValueError("The records are unmasked, to be masked during training: give --vocab_file.")
        values = {name: getattr(settings, name) for name in ("max_predictions_per_seq", *MASK_FLAGS)}
        values |= {"mask_rule": mask_rule_of(settings, self.config), **self.own_masks}
        masking = Masking(tokenizer_of_model(vocab_file, self.config), **values)
        has_words = any("word_continuations" in opened.features for opened in self.data.values())
        say_words = " and say what a word is" if has_words else ""
        rule = "DistilBERT" if masking.mask_smoothing else masking.mask_rule
        units = "whole words" if masking.do_whole_word_mask else "single pieces"
        logging.info(
            f"The records are unmasked{say_words}: by the rule of {rule}, {masking.masked_lm_prob:g} of the tokens "
            f"({units}) will be masked during training, at most {masking.max_predictions_per_seq} per row, with the "
            f"vocabulary {vocab_file}."
        )
        most = self.default_predictions(settings, self.config)
        if masking.mask_rule == "roberta" and masking.max_predictions_per_seq < most:
            logging.warning(
                "--max_predictions_per_seq=%d is less than the %d that a row may get: some will have fewer masks.",
                masking.max_predictions_per_seq,
                most,
            )
        if has_words and not masking.do_whole_word_mask:
            logging.warning("The words that the records name are not used: --do_whole_word_mask is not given.")
        return masking

    # --- the run's directory -----------------------------------------------------------------------------------------

    def recorded_settings(self) -> dict:
        """What run.json keeps: all settings that matter to this run, and the data and vocabulary it used."""
        settings, fingerprint = self.settings, self.data["input_file"].index.fingerprint
        recorded = {**dataclasses.asdict(settings), "input_file_fingerprint": fingerprint, **self.recorded}
        if self.vocabulary:
            recorded["vocab_file"] = self.vocabulary.vocab_file
        if self.masking:
            recorded["vocab_file_fingerprint"] = self.masking.fingerprint
        unused = {*UNUSED[settings.objective], *(() if settings.teacher else DISTILLATION_FLAGS)}
        unused |= {*(() if self.masking else ("vocab_file", *MASK_FLAGS))}
        return {name: value for name, value in recorded.items() if name not in unused}

    def card_facts(self) -> CardFacts:
        index, is_served = self.data["input_file"].index, self.vocabulary is not None
        usage = textwrap.dedent(self.usage(card.PLACE, is_served))
        data = f"{index.total_records:,} records, fingerprint {index.fingerprint}"
        weights, facts = self.opened and self.opened.weights, {"is_served": is_served, "usage": usage}
        return self.manifest.card_facts(data, self.settings.init_checkpoint, weights, **facts)

    def usage(self, folder: str, has_vocabulary: bool) -> str:
        if has_vocabulary:
            return self.advice(folder)
        return f'  from bert_tf import BertForPreTraining\n  BertForPreTraining.from_pretrained("{folder}")'

    def write_parts(self, facts: CardFacts) -> None:
        """Writes what a user takes from a finished run besides its checkpoint."""

    def advice(self, folder: str) -> str:
        """Lines that use the trained model, which has a vocabulary next to it."""
        model = self.model_class.__name__
        mask = self.family.tokenizer_class.mask_token
        return (
            f"  from bert_tf import {model}, fill_mask, read_tokenizer\n"
            f'  model, tokenizer = {model}.from_pretrained("{folder}"), read_tokenizer("{folder}")\n'
            f'  print(fill_mask(model, tokenizer, ["Your own text with a {mask} in it."]))'
        )


def _content_of(index: records.RecordIndex) -> str:
    """Sizes and places of the records, whatever their files are called, and a checksum of some of them."""
    checksum = 0
    for row in (index.file_sizes, *index.blocks()):
        checksum = zlib.crc32(np.asarray(row, "<i8").tobytes(), checksum)
    for block in sorted({*np.linspace(0, len(index.byte_offset) - 1, _RECORDS_COMPARED, dtype=int)}):
        _, (_, payload) = index.first_of(block)
        checksum = zlib.crc32(payload, checksum)
    return f"{index.total_records} records in {sum(index.file_sizes)} bytes, checksum {checksum:08x}"


def mask_rule_of(settings: PretrainingSettings, config: BertConfig) -> str:
    """The rule by which unmasked records are masked; smoothed masks, which have their own, count as "bert"."""
    return settings.mask_rule or ("bert" if settings.mask_smoothing else config.mask_rule)


class LeftToRightTask(PretrainingTask):
    """Each token from those before it; see `mask_rules.left_to_right`."""

    @staticmethod
    def configure(settings: PretrainingSettings, config: BertConfig, config_name: str) -> None:
        if config.model_type != BertConfig.model_type:
            raise ValueError(f"--objective=ltr is for BERT, but {config_name} is that of {config.title}.")
        logging.info("--objective=ltr: attention is causal, here and wherever this model is used.")
        config.attention = "causal"

    def create_masking(self) -> None:
        return None

    def prepare(self) -> None:
        super().prepare()
        self.objective = objectives.with_metric_names(self.objective, "masked_lm", "next_token")
        self.predictions = self.settings.max_seq_length - 1

    def labeller(self, opened: OpenedRecords, seed: int) -> Labeller:
        return lambda rows, step, first_row: mask_rules.left_to_right(rows)

    def advice(self, folder: str) -> str:
        return f"  python run_classifier.py --init_checkpoint={folder} --task_name=... --do_train --output_dir=..."
