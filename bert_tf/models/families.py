"""Model families: BERT, and later its descendants.

To add one, write `models/NAME/` (configuration, encoder, variable names, layouts of other libraries), and add a
`Family` to FAMILIES. Only `create_encoder` creates encoders, and nothing outside its folder knows a family's variable
names.
"""

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType

import keras

from bert_tf.models.bert import variable_names
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.config import BertConfig
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import FullTokenizer


@dataclasses.dataclass(frozen=True)
class Family:
    """Everything specific to a model family.

    Attributes:
      model_type: its name in config.json.
      config_class: class of its configurations. encoder_class: a Keras model of (config, dense_embedding_gradient,
        seed).
      names: its variable names in checkpoints: a module with the same definitions as `bert.variable_names`.
      tokenizer_class: class of its tokenizers. tokenizer_name: the class's name in tokenizer_config.json.
      layouts: weight format -> the module that reads and writes it under another library's names; imported on use,
        since most need TensorFlow.
    """

    model_type: str
    config_class: type
    encoder_class: type
    names: ModuleType
    tokenizer_class: type[Tokenizer]
    tokenizer_name: str
    layouts: Mapping[str, str]

    @property
    def scope(self) -> str:
        """The scope of the encoder's variables in checkpoints, and the name of the encoder as a Keras model."""
        return self.names.SCOPE

    def layout(self, format: str) -> ModuleType:
        """The module for the layout of another library."""
        return importlib.import_module(self.layouts[format])


BERT = Family(
    model_type="bert",
    config_class=BertConfig,
    encoder_class=BertEncoder,
    names=variable_names,
    tokenizer_class=FullTokenizer,
    tokenizer_name="BertTokenizer",
    layouts={
        "huggingface": "bert_tf.models.bert.huggingface",
        "model_garden": "bert_tf.models.bert.model_garden",
    },
)
FAMILIES = (BERT,)


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


def family_of(config) -> Family:
    """The family that a configuration belongs to."""
    return next(family for family in FAMILIES if isinstance(config, family.config_class))


def family_of_variables(names: Iterable[str]) -> Family:
    """The family whose scope the variable names have; BERT if they have none, as those of a head alone."""
    scopes = {name.split("/")[0] for name in names}
    return next((family for family in FAMILIES if family.scope in scopes), BERT)


def is_encoder_variable(name: str) -> bool:
    """Whether a name in a checkpoint belongs to the encoder, not to a head or an optimizer."""
    return name.split("/")[0] in {family.scope for family in FAMILIES}


def read_config_dict(values: Mapping):
    """A configuration from the dict that `to_dict` returned."""
    family = family_named(values.get("model_type", BERT.model_type))
    return family.config_class.from_dict(values, allow_unknown=True)


def create_encoder(
    config, *, dense_embedding_gradient: bool = False, seed: int | None = None, dtype=None
) -> keras.Model:
    """The encoder of a configuration, with random weights.

    Args:
      config: of any family. dense_embedding_gradient: see `kernels.embedding_lookup`.
      seed: seed of dropout if a call gets no dropout_seed. dtype: Keras dtype policy.
    """
    family = family_of(config)
    return family.encoder_class(
        config, dense_embedding_gradient=dense_embedding_gradient, seed=seed, name=family.scope, dtype=dtype
    )
