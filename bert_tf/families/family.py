"""What is specific to a family of models: its `Family`, in a folder of its own.

Neither TensorFlow nor Keras is imported here.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping

from bert_tf.families.config import BertConfig
from bert_tf.families.names import HIDDEN_LAYER
from bert_tf.text.japanese import JapaneseTokenizer
from bert_tf.text.sentence_piece import KoBertTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import FullTokenizer

# --- Hugging Face -----------------------------------------------------------------------------------------------------
#
# Their models are the same with other names: linear layers hold [out, in] where the original's kernels are [in, out],
# and the encoder's names carry the family's prefix (`bert.`) when a head is on top.

FIXED_NAMES = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
_ONLY_OURS = ("attention", "masked_lm_act")  # keys of configurations
_LAST_PARTS = {"kernel": "weight", "gamma": "weight", "beta": "bias"}

# Values of `Family.refused` for encoders with absolute positions.
PLAIN_ENCODER = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
}


def two_layers(hidden: str, output: str) -> dict[str, str]:
    """Variables of a classifier with a hidden layer -> Hugging Face's names; its two layers are called so there."""
    names = (f"{layer}.{part}" for layer in (hidden, output) for part in ("weight", "bias"))
    return dict(zip((*HIDDEN_LAYER, "output_weights", "output_bias"), names, strict=True))


# --- the family -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PartNames:
    """The names of one model's variables in a checkpoint of its original.

    names: our name -> theirs. unused: their other names -> why. transposed: our names of matrices that are so there.
    units_per_head: where the checkpoints have no configuration that says how many heads there are.
    has_other_sizes: a configuration next to the file is that of another part.
    """

    names: Mapping[str, str]
    unused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    transposed: Collection[str] = ()
    units_per_head: int | None = None
    has_other_sizes: bool = False


@dataclasses.dataclass(frozen=True)
class Family:
    """Everything specific to a model family that its configuration's class doesn't say.

    Attributes:
      config_class: class of its configurations.
      tokenizer_class: class of its tokenizers. tokenizer_name: the class's name in tokenizer_config.json.
      other_tokenizers: further kinds of vocabularies that its models may have.
      has_tf1: whether the original wrote checkpoints of TensorFlow 1.
      parts: models that are trained together -> a variable that only this one has.
      released: matches the file of a released model, by the folder it is in; the group is the model's version.

    And of Hugging Face's files:
      own_prefix: of the encoder's names, where that is not the model_type.
      other_defaults: by our keys: what a config.json means that leaves them out, where that is not our default.
      keys: our key -> theirs, where they differ; None: they have none.
      refused: their key -> the values that are understood.
      written: keys and values that a config.json has besides. carried: further keys, in and out as they are.
      block: how the scope of a transformer block ends, by its number, or by those of its group and within the group.
      inner_group_num: the blocks of a group.
      adds_pooler: their encoder has a pooler, which the family's original doesn't have.
      always_projects: there is a layer behind the embeddings even if it needn't change their width.
      renames: (a part of a name as their BERT has it, this family's), replaced in this order.
      heads: classifier as `HeadConfig.architecture` -> its names, where it has a hidden layer under names of its own.
      masked_lm_act: the activation of their masked-LM head, if it isn't hidden_act.
      classifier_act: the activation of that layer of a classifier of texts, if the family's original has no such layer.
    """

    config_class: type[BertConfig]
    tokenizer_class: type[Tokenizer]
    tokenizer_name: str
    other_tokenizers: tuple[type[Tokenizer], ...] = (FullTokenizer, JapaneseTokenizer, KoBertTokenizer)
    has_tf1: bool = False
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    released: re.Pattern | None = None

    own_prefix: str | None = None
    other_defaults: Mapping[str, object] = dataclasses.field(default_factory=dict)
    keys: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    refused: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    written: Mapping[str, object] = dataclasses.field(default_factory=dict)
    carried: tuple[str, ...] = ()
    block: str = "layer.{number}"
    inner_group_num: int = 1
    adds_pooler: bool = False
    always_projects: bool = False
    renames: tuple[tuple[str, str], ...] = ()
    heads: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    masked_lm_act: str | None = None
    classifier_act: str | None = None

    @property
    def model_type(self) -> str:
        """Its name in config.json, of the encoder as a Keras model, and of its scope in checkpoints."""
        return self.config_class.model_type

    @property
    def title(self) -> str:
        return self.config_class.title

    @property
    def has_word_pieces(self) -> bool:
        """Whether its tokenizers read a vocab.txt with a casing, as BERT's do."""
        return issubclass(self.tokenizer_class, FullTokenizer)

    @property
    def formats(self) -> tuple[str, ...]:
        return ("bert_tf", "tf1", "huggingface") if self.has_tf1 else ("bert_tf", "huggingface")

    def parts_in_original(self, names: Collection[str]) -> dict[str, PartNames]:
        """The models in a checkpoint of the original, by name, the usual one first; empty if it has our names."""
        return {}

    def names_in_original(self, names: Collection[str], inner_group_num: int = 1) -> dict[str, str]:
        """Names of a model's variables -> those in the checkpoints of the original."""
        return {name: name for name in names}

    # --- Hugging Face ------------------------------------------------------------------------------------------------

    @property
    def prefix(self) -> str:
        return self.own_prefix or self.model_type

    @property
    def defaults(self) -> dict[str, object]:
        """By our keys: what a config.json means that leaves them out."""
        values = {field.name: field.default for field in dataclasses.fields(self.config_class)}
        values |= {"vocab_size": self.config_class.released_vocab_size, "hidden_act": "gelu", **self.other_defaults}
        return {key: values[key] for key in values if key not in _ONLY_OURS and self.keys.get(key, key)}

    @property
    def class_prefix(self) -> str:
        """The beginning of its classes' names, here and there, as in BertForMaskedLM."""
        return self.config_class.__name__.removesuffix("Config")

    def renamed(self, name: str) -> str:
        """The family's name for a name of Hugging Face's BERT."""
        for old, new in self.renames:
            name = name.replace(old, new)
        return name

    def name_of(self, name: str, architecture: str | None = None) -> str:
        """Hugging Face's name, with the encoder's prefix, of a variable of a model with this one of `heads`."""
        if name in (head := self.heads.get(architecture or "", {})):
            return head[name]
        if name in FIXED_NAMES:
            return self.renamed(FIXED_NAMES[name])

        def block(match: re.Match) -> str:
            group, inner = divmod(int(match[1]), self.inner_group_num)
            return self.block.format(number=match[1], group=group, inner=inner)

        scope, last = re.sub(f"^{self.model_type}/", f"{self.prefix}/", name).rsplit("/", 1)
        last = last + ".weight" if last.endswith("_embeddings") else _LAST_PARTS.get(last, last)
        return self.renamed(re.sub(r"layer_(\d+)", block, scope).replace("/", ".") + "." + last)

    def fitted(self, names: Iterable[str]) -> "Family":
        """The layout with the number of blocks in a group that a file's names show."""
        pattern = re.escape(self.block).replace(r"\{group\}", r"\d+").replace(r"\{inner\}", r"(\d+)") + r"\."
        if "{inner}" not in self.block:
            return self
        numbers = [int(match[1]) for name in names if (match := re.search(pattern, name))]
        return dataclasses.replace(self, inner_group_num=1 + max(numbers, default=0))
