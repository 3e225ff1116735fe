"""Model families: BERT, and later its descendants. Neither TensorFlow nor Keras is imported here.

To add one, write `models/NAME/` (a configuration), and add a `Family` to FAMILIES and a layout to
huggingface_layouts.py.
"""

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType

from bert_tf.models.albert.config import AlbertConfig
from bert_tf.models.config import BertConfig
from bert_tf.models.distilbert.config import DistilBertConfig
from bert_tf.models.electra.config import ElectraConfig
from bert_tf.models.roberta.config import RobertaConfig
from bert_tf.models.variable_names import REPLACED_TOKEN_HEAD
from bert_tf.text.byte_bpe import ByteBpeTokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import ElectraTokenizer, FullTokenizer


@dataclasses.dataclass(frozen=True)
class Family:
    """Everything specific to a model family.

    Attributes:
      config_class: class of its configurations.
      tokenizer_class: class of its tokenizers. tokenizer_name: the class's name in tokenizer_config.json.
      has_tf1: whether the original wrote checkpoints of TensorFlow 1. tf1: the module that reads and writes these under
        other names than those used here, imported on use; None: there are no others.
      parts: models that are trained together -> a variable that only this one has.
      joint_head: module and name of the class with its authors' own head for questions (`joint_spans.JointSpanModel`);
        None: they had none.
    """

    config_class: type[BertConfig]
    tokenizer_class: type[Tokenizer]
    tokenizer_name: str
    has_tf1: bool = False
    tf1: str | None = None
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    joint_head: tuple[str, str] | None = None

    @property
    def model_type(self) -> str:
        """Its name in config.json."""
        return self.config_class.model_type

    @property
    def scope(self) -> str:
        """The scope of the encoder's variables in checkpoints, and the name of the encoder as a Keras model."""
        return self.model_type

    @property
    def has_word_pieces(self) -> bool:
        """Whether its tokenizers read a vocab.txt with a casing, as BERT's do."""
        return issubclass(self.tokenizer_class, FullTokenizer)

    @property
    def formats(self) -> tuple[str, ...]:
        """The weight formats that models of the family can be written in."""
        return ("bert_tf", "tf1", "huggingface") if self.has_tf1 else ("bert_tf", "huggingface")

    @property
    def tf1_layout(self) -> ModuleType | None:
        """The module `tf1`."""
        return self.tf1 and importlib.import_module(self.tf1)


BERT = Family(
    config_class=BertConfig,
    tokenizer_class=FullTokenizer,
    tokenizer_name="BertTokenizer",
    has_tf1=True,
)
DISTILBERT = Family(
    config_class=DistilBertConfig,
    tokenizer_class=FullTokenizer,
    tokenizer_name="DistilBertTokenizer",
)
ROBERTA = Family(
    config_class=RobertaConfig,
    tokenizer_class=ByteBpeTokenizer,
    tokenizer_name="RobertaTokenizer",
)
ELECTRA = Family(
    config_class=ElectraConfig,
    tokenizer_class=ElectraTokenizer,
    tokenizer_name="ElectraTokenizer",
    has_tf1=True,
    tf1="bert_tf.models.electra.tf1",
    parts={"discriminator": REPLACED_TOKEN_HEAD, "generator": "cls/predictions/output_bias"},
    joint_head=("bert_tf.models.electra.question_answering", "ElectraForQuestionAnswering"),
)
ALBERT = Family(
    config_class=AlbertConfig,
    tokenizer_class=SentencePieceTokenizer,
    tokenizer_name="AlbertTokenizer",
    has_tf1=True,
    tf1="bert_tf.models.albert.tf1",
    joint_head=("bert_tf.models.albert.question_answering", "AlbertForQuestionAnswering"),
)
FAMILIES = (BERT, DISTILBERT, ROBERTA, ELECTRA, ALBERT)


def family_named(model_type: str, source: str = "config") -> Family:
    """The family with a `model_type` of config.json.

    Raises:
      ValueError: there is none; names `source`.
    """
    for family in FAMILIES:
        if family.model_type == model_type:
            return family
    known = ", ".join(repr(family.model_type) for family in FAMILIES)
    raise ValueError(f"{source}: model_type is {model_type!r}; the architectures of this project are {known}.")


def config_of_dict(values: Mapping) -> BertConfig:
    """A configuration of any family from what its `to_dict` returned.

    Raises:
      ValueError: no such family, or see `BertConfig.from_dict`.
    """
    family = family_named(values.get("model_type", BERT.model_type))
    return family.config_class.from_dict(values, allow_unknown=True)


def family_of(config: BertConfig) -> Family:
    """The family that a configuration belongs to."""
    return family_named(config.model_type)


def family_of_variables(names: Iterable[str]) -> Family:
    """The family whose scope the variable names have; BERT if they have none, as those of a head alone."""
    scopes = {name.split("/")[0] for name in names}
    return next((family for family in FAMILIES if family.scope in scopes), BERT)


def is_encoder_variable(name: str) -> bool:
    """Whether a name in a checkpoint belongs to the encoder, not to a head or an optimizer."""
    return name.split("/")[0] in {family.scope for family in FAMILIES}
