"""The released weights that run_domain.py begins with, and how their family is trained."""

import dataclasses

from absl import logging

from bert_tf.conversion.new_words import OUTPUT_BIAS
from bert_tf.models.configuration.config import BertConfig
from bert_tf.models.configuration.families import AlbertConfig, family_of
from bert_tf.models.configuration.variable_names import REPLACED_TOKEN_HEAD
from bert_tf.models.files import directory as model_directory
from bert_tf.models.files import open_weights
from bert_tf.system.messages import naming_flag
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.text.tokenizer import Tokenizer

_NEXT_SENTENCE_BIAS = "cls/seq_relationship/output_bias"


@dataclasses.dataclass(frozen=True)
class Start:
    """The released weights.

    Attributes:
      has_head: whether they have the head that is trained, without which there is nothing to evaluate before.
      predicts_order: whether they have learned which segment follows another. notes: what a reader of losses must know.
    """

    config: BertConfig
    tokenizer: Tokenizer
    has_head: bool
    predicts_order: bool
    notes: tuple[str, ...]

    @property
    def record_settings(self) -> dict:
        """Settings of unmasked records: training draws new masks in each pass, evaluation always the same."""
        if self.config.detects_replaced_tokens:
            return {"rows": "electra"}
        if not family_of(self.config).has_word_pieces and not self.config.has_pooler:
            return {"rows": "full_sentences"}
        if not self.predicts_order:
            return {"masking": "dynamic", "nsp": False}
        is_albert = self.config.model_type == AlbertConfig.model_type
        return {"masking": "dynamic", "next_sentence": "order" if is_albert else "random"}

    @property
    def training_settings(self) -> dict:
        """Settings of training and evaluation; ELECTRA and RoBERTa have their authors' number of predictions."""
        detects = self.config.detects_replaced_tokens
        return {
            **({"objective": "electra"} if detects else {}),
            **({"max_predictions_per_seq": None} if detects or self.config.mask_rule == "roberta" else {}),
            "nsp": False if self.config.has_pooler and not self.predicts_order else None,
        }


def open_start(settings: DomainSettings) -> Start:
    """Reads what is beside the weights, and which heads they have; refuses rows that the model does not take."""
    path = settings.init_checkpoint
    with naming_flag("--init_checkpoint"):
        weights, files = model_directory.read_model(path)
        config = model_directory.needed_config(files)
        family = family_of(config)
        if family.parts:
            weights = open_weights.choose_part(weights, "discriminator")
    if not files.vocab_file:
        raise ValueError(f"--init_checkpoint={path} has no {family.tokenizer_class.vocab_name} beside it.")
    if settings.max_seq_length > config.max_length:
        raise ValueError(f"--max_seq_length={settings.max_seq_length}: {path} takes {config.max_length} tokens.")
    predicts_order = config.has_pooler and _NEXT_SENTENCE_BIAS in weights.shapes
    detects, notes = config.detects_replaced_tokens, []
    has_head = (REPLACED_TOKEN_HEAD if detects else OUTPUT_BIAS) in weights.shapes
    if not has_head:
        notes.append(
            f"The weights have no {'head for replaced tokens' if detects else 'masked-LM head'}, so that it starts "
            "from random weights: there is nothing to evaluate before the training, and the losses after include "
            "what the head has learned."
        )
    elif detects:
        notes.append(
            "The generator, which is trained beside the discriminator, starts from random weights: its loss before is "
            "that of guessing."
        )
    if config.has_pooler and not predicts_order:
        notes.append("The weights have no head for the order of sentences, so that is not trained.")
    for note in notes:
        logging.info("%s", note)
    return Start(config, model_directory.tokenizer_of(files), has_head, predicts_order, tuple(notes))
