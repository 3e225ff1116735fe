"""BertConfig: the sizes of a model, as stored in bert_config.json (original: modeling.py, BertConfig).

Descendants of BERT subclass it. Layers read how a family differs from its attributes, not from its name.
"""

import copy
import dataclasses
import itertools
import json
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from absl import logging

from bert_tf.families.recipe import Recipe
from bert_tf.system.storage import write_text_file
from bert_tf.system.text_files import read_json

# The keys about the head in a configuration of Hugging Face, or of an earlier version.
KEYS_IN_CONFIG = ("architectures", "id2label", "label2id", "problem_type", "lstm_on_top")
# Values of hidden_act, in upper or lower case. "gelu" is the tanh form, as in the original; "gelu_erf" the exact one.
ACTIVATIONS = ("gelu", "gelu_erf", "relu", "tanh", "linear")
# What a token attends to: all tokens of its sequence, or itself and those before it.
ATTENTIONS = ("bidirectional", "causal")

# The sizes, and what is surely a mistake, or meant to fill the memory, if it is larger.
_SIZES = {
    "vocab_size": 1 << 24,
    **dict.fromkeys(("embedding_size", "hidden_size", "type_vocab_size"), 1 << 16),
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_hidden_groups", "inner_group_num"), 1 << 12),
    **dict.fromkeys(("intermediate_size", "max_position_embeddings"), 1 << 20),
}
# In the configs of the released multilingual and Chinese models, but never used.
_OF_POOLERS = ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")
_IDLE_KEYS = ("directionality", *(f"pooler_{key}" for key in _OF_POOLERS))


def arguments_of_size(layers: int, hidden: int, heads: int | None = None, **others) -> dict[str, int | float]:
    """Arguments of a configuration: heads of 64 units, feed-forward layers four times as wide as the others."""
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads or hidden // 64}
    return sizes | {"intermediate_size": 4 * hidden, **others}


# Layers and width, also heads where they are not of 64 units.
_NAMED: dict[str, tuple[int, ...]] = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512)}
_NAMED |= {"base": (12, 768), "large": (24, 1024)}
# The "miniatures" of the original's README (Turc et al. 2019), then what completes Table 6.
_GRID = itertools.product((2, 4, 6, 8, 10, 12), (128, 256, 512, 768))
_NAMED |= {f"L-{layers}_H-{hidden}": (layers, hidden) for layers, hidden in _GRID}
_NAMED |= {"L-3_H-768": (3, 768), "L-6_H-768_A-3": (6, 768, 3), "L-12_H-1024": (12, 1024), "L-24_H-1024": (24, 1024)}


@dataclasses.dataclass(eq=False)
class BertConfig:
    """Sizes and rates of a BERT model.

        config = BertConfig(vocab_size=30522, type_vocab_size=2)
        config = BertConfig.from_json_file("bert_config.json")

    The defaults are the original constructor's: BERT-Base with type_vocab_size 16; the released models have 2.

    Args:
      vocab_size: rows of the word embedding table. hidden_size: width of the encoder.
      num_hidden_layers: encoder layers. num_attention_heads: heads per layer; divides hidden_size.
      intermediate_size: width of the feed-forward layer.
      hidden_act: "gelu" (tanh form), "gelu_erf", "relu", "tanh" or "linear", in any case; None means linear.
      hidden_dropout_prob, attention_probs_dropout_prob: in embeddings and encoder, of attention weights, 0 <= p < 1.
      max_position_embeddings: longest sequence. type_vocab_size: number of segment ids.
      initializer_range: standard deviation of the truncated normal that initialises the weights.
      layer_norm_eps: added to the variance in every layer norm. The original's value, 1e-12, is not written to
        bert_config.json; weights from elsewhere may need another one.
      attention: one of ATTENTIONS. "causal" is the left-to-right model of the paper's ablations (section 5.1), also in
        fine-tuning; "bidirectional", the original's, is not written to bert_config.json.

    Raises:
      ValueError: an invalid value; names the key.
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str | None = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    attention: str = "bidirectional"

    # The family: its name in texts, in config.json, and the file of a configuration, which is named like all others.
    model_type = "bert"
    title = "BERT"
    file_name = "bert_config.json"
    # Keys that are not written to a file at their defaults, since the original does not know them.
    unwritten: ClassVar[tuple[str, ...]] = ("layer_norm_eps", "attention")
    # Further keys that are kept without a warning, although they have no effect on a model.
    # The last is from a Hugging Face config.json: a conversion back to that format needs it.
    idle_keys: ClassVar[tuple[str, ...]] = (*_IDLE_KEYS, "pad_token_id")
    inner_group_num = 1  # transformer blocks in each of the num_hidden_layers layers
    has_pooler = True  # a tanh layer on the first token; without it, the pooled output is the first token's vector
    # The classifier of texts or choices: its hidden layer's activation (None: no such layer); dropout before its output
    # layer, whatever hidden_dropout_prob is; dropout before the layer that scores spans.
    classifier_act: ClassVar[str | None] = None
    choice_act: ClassVar[str | None] = None  # the same where choices are classified, if it differs
    masked_lm_act: ClassVar[str | None] = None  # the activation of a masked-LM head, if it isn't hidden_act
    hidden_layer_dropout = False  # dropout also before the hidden layer
    classifier_dropout = 0.1
    token_dropout = 0.1  # the same for the classifier of tokens
    span_dropout = 0.0
    first_position = 0  # the row of position_embeddings for a sequence's first token
    padding_has_a_position = False  # positions count the tokens that are not padding; padding has the row before these
    recipe = Recipe()  # how it is fine-tuned
    pretraining_recipe = Recipe()  # how it is pre-trained
    draws_normal_weights = False  # a model to be pre-trained begins with `initialize.draw_normal_weights`
    mask_rule = "bert"  # which tokens are predicted in pre-training; see `pretraining.mask_rules`
    pairs = "random"  # what next-sentence prediction learns from, a value of --next_sentence
    looks_up_types = False  # a segment embedding is looked up, as a word's; otherwise it is a product with one-hot rows
    detects_replaced_tokens = False  # there may be a head that says of each token whether it was replaced
    # Standard deviation of a new output layer; None: Glorot's uniform distribution, there and behind the embeddings.
    head_initializer_range: ClassVar[float | None] = 0.02
    released_vocab_size = 30522  # of the (uncased) English models
    # A size's name (--bert_size) -> the arguments that differ from the defaults, without vocab_size.
    sizes: ClassVar[Mapping[str, Mapping]] = {
        name: arguments_of_size(*size, type_vocab_size=2) for name, size in _NAMED.items()
    }

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.file_name = f"{cls.model_type}_config.json"

    def __post_init__(self):
        self.validate()

    @property
    def id2label(self) -> dict[int, str]:
        """The labels by their ids, of a classifier's `config`, as in transformers; the file does not have them."""
        if "id2label" not in self.__dict__:
            raise AttributeError("this configuration is not of a classifier: it has no labels")
        return self.__dict__["id2label"]

    num_labels = property(lambda self: len(self.id2label))

    @property
    def activation(self) -> str:
        """hidden_act as one of ACTIVATIONS: lower-cased, "linear" for None and the empty string."""
        return (self.hidden_act or "linear").lower()

    @property
    def embedding_size(self) -> int:
        return self.hidden_size

    @property
    def attention_output_dropout_prob(self) -> float:
        """Dropout of the attention's output, before it is added to its input."""
        return self.hidden_dropout_prob

    @property
    def block_order(self) -> list[int]:
        """The number of the transformer block that each layer uses, in the order of the layers."""
        return list(range(self.num_hidden_layers))

    @property
    def max_length(self) -> int:
        return self.max_position_embeddings - self.first_position

    @property
    def is_causal(self) -> bool:
        """Whether a token attends only to itself and the tokens before it."""
        return self.attention == "causal"

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """The keys of a configuration file: the constructor's arguments."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def from_dict(cls, values: Mapping, allow_unknown: bool = False, source: str = "BertConfig") -> Self:
        """A config from the keys of a bert_config.json; missing ones (but vocab_size) get the constructor's defaults.

        Labels and the kind of head, which earlier versions wrote to this file (`KEYS_IN_CONFIG`), are left out.

        Args:
          values: keys and values; copied, not changed.
          allow_unknown: keep unknown keys as attributes, which are written back, and log them; they have no effect on
            the model. By default they are an error, because a misspelt key would silently be replaced by a default.
          source: the config's name in errors, usually its path.

        Raises:
          ValueError: an unknown key, no vocab_size, or an invalid value; names source and key.
        """
        values = copy.deepcopy(dict(values))
        if cls is not BertConfig and values.pop("model_type", cls.model_type) != cls.model_type:
            raise ValueError(f"{source}: the model_type of a {cls.__name__} is {cls.model_type!r}")
        known = cls.keys()
        extra = {key: value for key, value in values.items() if key not in (*known, *KEYS_IN_CONFIG)}
        unknown = sorted(str(key) for key in extra if key not in cls.idle_keys)
        if unknown and not allow_unknown:
            names = f"{', '.join(unknown)} (allow_unknown=True keeps it). Known: {', '.join(known)}"
            raise ValueError(f"{source}: unknown key {names}.")
        if unknown:
            logging.warning("%s: unknown keys kept but not used: %s", source, ", ".join(unknown))
        if values.get("vocab_size") is None:
            raise ValueError(f"{source}: vocab_size is missing; it is the number of lines of the vocabulary file")
        try:
            config = cls(**{key: values[key] for key in known if key in values})
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{source}: {error}") from None
        config.__dict__.update(extra)
        return config

    @classmethod
    def from_json_file(cls, json_file: str, allow_unknown: bool = False) -> "BertConfig":
        """Reads a bert_config.json, local or remote; errors, as of `from_dict`, name file and key."""

        def unique(pairs):
            if len(dict(pairs)) < len(pairs):
                raise ValueError(f"{json_file}: a key appears twice")
            return dict(pairs)

        return cls.from_dict(read_json(json_file, object_pairs_hook=unique), allow_unknown, source=json_file)

    def to_dict(self) -> dict:
        """A deep copy of all keys and values, including unknown ones; of a descendant of BERT also the model_type.

        Keys in `unwritten` are left out at their defaults: of BERT layer_norm_eps and attention.
        """
        values = copy.deepcopy(self.__dict__)
        values.pop("id2label", None)
        for key in self.unwritten:
            if values[key] == getattr(type(self), key):
                del values[key]
        return values if self.model_type == BertConfig.model_type else {"model_type": self.model_type, **values}

    def to_json_string(self) -> str:
        """The content of a configuration file, byte for byte in the original's form."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def save(self, json_file: str) -> None:
        """Writes `to_json_string()` to a file, complete or not at all."""
        write_text_file(json_file, self.to_json_string())

    def validate(self) -> None:
        """Raises a ValueError that names key and value. The constructor calls this; so do you after a change."""
        for key in self.keys():
            value = getattr(self, key)
            if isinstance(value, numbers.Number) and hasattr(value, "item"):  # NumPy's, which is not for JSON
                setattr(self, key, value.item())
        for key, most in _SIZES.items():
            value = getattr(self, key, 1)
            if key in self.keys() and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most):
                raise ValueError(f"{key} must be an integer from 1 to {most:,}, not {value!r:.80}")
        if self.hidden_size % self.num_attention_heads:
            heads = f"num_attention_heads={self.num_attention_heads}"
            raise ValueError(f"hidden_size={self.hidden_size} must be a multiple of {heads}")
        known = f"one of {', '.join(ACTIVATIONS)}"
        for key, fits, wanted in (
            ("hidden_dropout_prob", lambda value: 0 <= value < 1, "a probability, 0 <= p < 1"),
            ("attention_probs_dropout_prob", lambda value: 0 <= value < 1, "a probability, 0 <= p < 1"),
            ("initializer_range", lambda value: 0 <= value < math.inf, "a number of at least 0"),
            ("layer_norm_eps", lambda value: 0 < value < math.inf, "a positive number"),
            ("hidden_act", lambda value: (value or "linear").lower() in ACTIVATIONS, known),
            ("masked_lm_act", lambda value: value in (None, *ACTIVATIONS), known),
            ("attention", lambda value: value in ATTENTIONS, f"one of {', '.join(ATTENTIONS)}"),
        ):
            if not fits(value := getattr(self, key)):
                raise ValueError(f"{key} must be {wanted}, not {value!r}")

    def __eq__(self, other) -> bool:
        return type(self) is type(other) and self.to_dict() == other.to_dict()  # with keys that the class does not have


def shallower(config: BertConfig, layers: Sequence[int]) -> BertConfig:
    """The teacher's configuration with as many layers as are chosen."""
    flag, order = f"--student_layers={','.join(map(str, layers))}", config.block_order
    if len(set(order)) != len(order):
        raise ValueError(f"{flag}: the layers of this {config.title} share their weights; there are none to choose.")
    if len(set(layers)) < len(layers) or not set(layers) <= set(range(len(order))):
        raise ValueError(f"{flag}: the teacher has the layers 0 to {len(order) - 1}; name each once at most.")
    config = copy.deepcopy(config)
    config.num_hidden_layers = len(layers)
    return config


def check_vocab_size(config: BertConfig, lines: int, vocab_file: str, config_file: str, is_new: bool = False) -> None:
    """Raises if a vocabulary does not match the model's embedding table.

    Fewer lines are accepted, with a warning, if the table is just rounded up, as often done for speed: vocab_size is a
    multiple of 8 and fewer than 128 rows are unused.

    lines: one more than the largest id. is_new: there are no weights of this size yet.
    """
    vocab_size, is_text = config.vocab_size, vocab_file.endswith(".txt")
    if lines == vocab_size:
        return
    sizes = f"{vocab_file} has {lines} {'lines' if is_text else 'tokens'} but {config_file} has vocab_size {vocab_size}"
    if lines < vocab_size < lines + 128 and vocab_size % 8 == 0:
        logging.warning("%s: assuming a padded embedding table, whose last rows are unused", sizes)
        return
    advice = "use the vocabulary that the model was trained with (docs/vocabulary.md)."
    if is_new:
        advice = f"set vocab_size to {lines}, or give the vocabulary that it is meant for (--vocab_file)."
    raise ValueError(f"{sizes}: {advice}")
