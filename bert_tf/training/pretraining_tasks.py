"""What a pre-training run trains: the model, its objective, its records and their labels.

There is a class for each --objective, and one for --teacher (those of two models are in `pretraining_two_models.py`).
The model's family says the rest: its recipe, its tokenizer, its masks.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import record_index, records
from bert_tf.data.record_files import features_of
from bert_tf.models import encoder, objectives, task_models
from bert_tf.models.configuration.config import BertConfig
from bert_tf.models.configuration.families import AlbertConfig, Family, family_of
from bert_tf.models.configuration.recipe import Recipe
from bert_tf.models.files.card import CardFacts
from bert_tf.models.files.directory import ModelFiles, read_model_files
from bert_tf.pretraining import mask_rules, model_vocabulary
from bert_tf.pretraining.masking import Masking
from bert_tf.system.declare import given
from bert_tf.system.messages import naming_flag
from bert_tf.system.text_files import list_files, warn_of_missing_shards
from bert_tf.training import run_directory
from bert_tf.training.pretraining_settings import ELECTRA_FLAGS, MASK_FLAGS, PretrainingSettings
from bert_tf.training.teacher import DISTILLATION_FLAGS
from bert_tf.weights.tensor_files import Weights

# Rows, the number of their batch, and the number in it of the first of them -> features.
_MASK_RULES = {"bert": mask_rules.bert, "roberta": mask_rules.roberta, "electra": mask_rules.electra}
Labeller = Callable[[Mapping[str, tf.Tensor], tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class OpenedRecords:
    """Pre-training records.

    Attributes:
      flag: the flag that named them, without dashes. index, features: see `records`.
      pairs: unmasked pairs per row; None for masked records.
    """

    flag: str
    index: records.RecordIndex
    features: dict
    pairs: int | None


def token_counts(opened: OpenedRecords, vocab_size: int) -> np.ndarray:
    """How often each token is in unmasked records: int64 [vocab_size]; padding counts, too."""
    counts = np.zeros(vocab_size, np.int64)
    batches = records.evaluation_batches(opened.index, opened.features, batch_size=256, repeat=False, max_steps=None)
    with records.explained_errors(opened.index, opened.features, opened.flag):
        for batch in batches:
            counts += np.bincount(np.reshape(batch["input_ids"], -1), minlength=vocab_size)[:vocab_size]
    return counts


def open_all_records(settings: PretrainingSettings, config: BertConfig, config_name: str) -> dict[str, OpenedRecords]:
    """The records that are needed, by the names of their flags.

    Args:
      config: of the model, which limits their ids. config_name: the configuration in messages.
    """

    needs_texts = settings.objective == "electra"

    def open_records(flag: str, patterns: str | None) -> OpenedRecords:
        files = list_files(patterns, f"--{flag}")
        warn_of_missing_shards(files, f"--{flag}")
        with naming_flag(f"--{flag}"):
            index = record_index.index_records(files, None, verify=settings.verify_records)
            features = features_of(
                index.first_payloads(),
                settings.max_seq_length,
                settings.max_predictions_per_seq,
                vocab_size=config.vocab_size,
                segments=max(2, config.type_vocab_size),
                model_name=config_name,
                no_masked="masked records, but ELECTRA masks its texts during training" if needs_texts else "",
            )
        return OpenedRecords(flag, index, *features)

    return {flag: open_records(flag, getattr(settings, flag)) for flag in settings.records_read}


class PretrainingTask:
    """Masked LM; in families with a pooler also the order of two segments, unless --nsp=false.

    Args:
      settings: of the run. config: of the model. config_name: the configuration in messages.
      data: the run's records, by the names of their flags.

    Attributes:
      masking: how unmasked records are masked; None if there are none, or nothing is masked.
      token_weights: of `mask_rules.smoothed`; None: all tokens are masked alike.
      own_masks: attributes of the masks that the settings have no say in.
    """

    own_masks: Mapping[str, object] = {}

    def __init__(
        self, settings: PretrainingSettings, config: BertConfig, config_name: str, data: Mapping[str, OpenedRecords]
    ):
        self.settings, self.config, self.config_name, self._data = settings, config, config_name, data
        self.masking = self.create_masking(data)
        self.token_weights = None
        if self.masking and (power := self.masking.mask_smoothing):
            counts = token_counts(data["input_file"], config.vocab_size)
            self.token_weights = mask_rules.token_weights(counts, self.masking.special_ids, power)
        self.prepare()

    def prepare(self) -> None:
        """Opens what only this kind of task reads; called once, at the end of __init__."""

    @staticmethod
    def configure(settings: PretrainingSettings, config: BertConfig, config_name: str) -> None:
        """Refuses a configuration that can't be trained like this."""
        if config.is_causal:
            raise ValueError(
                f"--objective={settings.objective} needs attention to both sides, but attention is {config.attention} "
                f"in {config_name}: give --objective=ltr, or another configuration."
            )
        if config.detects_replaced_tokens and settings.do_train:
            message = "--objective=%s trains this %s as a masked LM; --objective=electra trains a discriminator."
            logging.warning(message, settings.objective, config.title)

    @staticmethod
    def recipe(config: BertConfig) -> Recipe:
        """Schedule and optimizer where the settings don't give them."""
        return config.pretraining_recipe

    @property
    def family(self) -> Family:
        return family_of(self.config)

    @functools.cached_property
    def vocabulary(self) -> ModelFiles | None:
        """Vocabulary and casing of the model; see `model_vocabulary.choose_vocabulary`, which logs and raises."""
        settings, files = self.settings, {f"--{flag}": opened.index.files for flag, opened in self._data.items()}
        # A student of layers starts from its teacher; one of a configuration has its teacher's vocabulary, too.
        from_teacher = bool(settings.teacher) and (bool(settings.student_layers) or not settings.init_checkpoint)
        model = settings.init_checkpoint or settings.teacher
        return model_vocabulary.choose_vocabulary(
            settings.vocab_file, model, files, self.config, from_teacher=from_teacher
        )

    @property
    def objective(self):
        if not self.config.has_pooler:
            return objectives.MeanMaskedLanguageModelObjective
        if self.settings.nsp and self.config.model_type == AlbertConfig.model_type:
            return objectives.SentenceOrderObjective
        return pretraining_objective(self.settings.objective, self.settings.nsp)

    @property
    def evaluation_objective(self):
        """The objective in evaluation, which may have further metrics."""
        return self.objective

    def create_model(self, dtype: str) -> keras.Model:
        """The model with random weights, not built; to be called in the strategy's scope."""
        return self.model_class(self.config, dtype=dtype)

    @property
    def model_class(self) -> type[keras.Model]:
        """The class of the model, also when it is used."""
        return task_models.BertForPreTraining if self.config.has_pooler else task_models.BertForMaskedLM

    def start(self) -> str | Weights | None:
        """The weights that the model starts from without a run to resume; see `loop.restore`."""
        return self.settings.init_checkpoint

    def trained(self, model: keras.Model, dtype: str):
        """What is trained and evaluated: the model, or a model around it; to be called in the strategy's scope."""
        return model

    @staticmethod
    def default_predictions(settings: PretrainingSettings, config: BertConfig) -> int:
        """max_predictions_per_seq if the settings don't give it."""
        if settings.mask_smoothing:  # rows differ in how many they get
            return min(math.ceil(2 * settings.masked_lm_prob * settings.max_seq_length), settings.max_seq_length)
        if mask_rule_of(settings, config) == "roberta":
            return mask_rules.roberta_predictions(
                settings.masked_lm_prob, settings.max_seq_length, settings.do_whole_word_mask
            )
        return 20

    @property
    def predictions(self) -> int:
        """Most predictions in a row."""
        return self.settings.max_predictions_per_seq

    @property
    def flops_per_example(self) -> float:
        """Model FLOPs of a row, forward and backward."""
        return encoder.pretraining_flops_per_example(self.config, self.settings.max_seq_length, self.predictions)

    @property
    def unused_settings(self) -> tuple[str, ...]:
        """The settings that don't matter to this run."""
        return (*ELECTRA_FLAGS, *DISTILLATION_FLAGS, *(() if self.masking else ("vocab_file", *MASK_FLAGS)))

    @property
    def recorded(self) -> dict[str, object]:
        """The notes in run.json besides settings, data and vocabulary, or instead of a setting."""
        return {"mask_rule": self.masking.mask_rule} if self.masking else {}

    # --- labels ------------------------------------------------------------------------------------------------------

    def labeller(self, opened: OpenedRecords, seed: int) -> Labeller | None:
        """A function that adds labels to rows of a batch; None if the records already have them."""
        if not opened.pairs:
            return None
        if self.token_weights is not None:
            return lambda rows, step, _: mask_rules.smoothed(rows, seed, step, self.masking, self.token_weights)
        rule = _MASK_RULES[self.masking.mask_rule]
        return lambda rows, step, first_row: rule(rows, seed, step, self.masking, first_row)

    def create_masking(self, data: Mapping[str, OpenedRecords]) -> Masking | None:
        """How unmasked records are masked; None if there are none."""
        settings = self.settings
        if not any(opened.pairs for opened in data.values()):
            for name in given(settings, MASK_FLAGS):
                raise ValueError(f"--{name} is for unmasked records; these were already masked when they were made.")
            return None
        model = settings.init_checkpoint or settings.teacher
        vocab_file = settings.vocab_file or (model and read_model_files(model).vocab_file)
        if not vocab_file:
            raise ValueError("The records are unmasked, to be masked during training: give --vocab_file.")
        values = {name: getattr(settings, name) for name in ("max_predictions_per_seq", *MASK_FLAGS)}
        values |= {"mask_rule": mask_rule_of(settings, self.config), **self.own_masks}
        tokenizer = model_vocabulary.tokenizer_of_model(vocab_file, self.config)
        masking = Masking(tokenizer, **values)
        has_words = any("word_continuations" in opened.features for opened in data.values())
        logging.info(
            "The records are unmasked%s: by the rule of %s, %g of the tokens (%s) will be masked during training, at "
            "most %d per row, with the vocabulary %s.",
            " and say what a word is" if has_words else "",
            "DistilBERT" if masking.mask_smoothing else masking.mask_rule,
            masking.masked_lm_prob,
            "whole words" if masking.do_whole_word_mask else "single pieces",
            masking.max_predictions_per_seq,
            vocab_file,
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

    def claim_output_dir(self, description: Mapping[str, bytes]) -> None:
        """See `run_directory.claim_output_dir`."""
        run_directory.claim_output_dir(self.settings.output_dir, self.config, description=description)

    def write_parts(self, model: keras.Model, facts: CardFacts) -> None:
        """Writes what a user takes from a finished run beside the run's own checkpoint. facts: for its cards."""

    def advice(self, folder: str) -> str:
        """Lines that use the trained model, which has a vocabulary beside it."""
        model = self.model_class.__name__
        mask = self.family.tokenizer_class.mask_token
        return (
            f"  from bert_tf import {model}, fill_mask, read_tokenizer\n"
            f'  model, tokenizer = {model}.from_pretrained("{folder}"), read_tokenizer("{folder}")\n'
            f'  print(fill_mask(model, tokenizer, ["Your own text with a {mask} in it."]))'
        )


def mask_rule_of(settings: PretrainingSettings, config: BertConfig) -> str:
    """The rule by which unmasked records are masked: "bert" or "roberta"; of smoothed masks, which have their own, the
    first."""
    return settings.mask_rule or ("bert" if settings.mask_smoothing else config.mask_rule)


class LeftToRightTask(PretrainingTask):
    """Each token from those before it; see `mask_rules.left_to_right`."""

    @staticmethod
    def configure(settings: PretrainingSettings, config: BertConfig, config_name: str) -> None:
        if config.model_type != BertConfig.model_type:
            raise ValueError(f"--objective=ltr is for BERT, but {config_name} is that of {config.title}.")
        logging.info("--objective=ltr: attention is causal, here and wherever this model is used.")
        config.attention = "causal"

    def create_masking(self, data: Mapping[str, OpenedRecords]) -> None:
        return None

    @property
    def predictions(self) -> int:
        return self.settings.max_seq_length - 1

    def labeller(self, opened: OpenedRecords, seed: int) -> Labeller:
        return lambda rows, step, first_row: mask_rules.left_to_right(rows)

    def advice(self, folder: str) -> str:
        return f"  python run_classifier.py --init_checkpoint={folder} --task_name=... --do_train --output_dir=..."


def pretraining_objective(objective: str, nsp: bool) -> type[objectives.SumObjective]:
    """The objective that run_pretraining.py's flags --objective ("mlm" or "ltr") and --nsp select.

    For "ltr" the labels are those of `mask_rules.left_to_right`.
    """
    chosen = objectives.PretrainingObjective if nsp else objectives.LanguageModelObjective
    return chosen if objective == "mlm" else objectives.renamed(chosen, "masked_lm", "next_token")
