"""What is specific to a family of models: its `Family`, in a folder of its own.

Neither TensorFlow nor Keras is imported here.
"""

import dataclasses
import itertools
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import cast

from absl import logging

from bert_tf.families.config import BertConfig
from bert_tf.system.messages import abbreviated_list
from bert_tf.text.japanese import JapaneseTokenizer
from bert_tf.text.sentence_piece import KoBertTokenizer
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import FullTokenizer

# --- Hugging Face -----------------------------------------------------------------------------------------------------
#
# Their models are the same with other names: linear layers hold [out, in] where the original's kernels are [in, out],
# and the encoder's names carry the family's prefix (`bert.`) when a head is on top.

# The output layers of the original's run_classifier.py (root scope) and run_squad.py, and some families' hidden layer.
HIDDEN_LAYER = ("pre_classifier/kernel", "pre_classifier/bias")
REPLACED_TOKEN_HEAD = "discriminator_predictions/dense/kernel"
HEAD_NAMES = ("output_weights", "output_bias", "cls/squad/output_weights", "cls/squad/output_bias", *HIDDEN_LAYER)

_LAYER = re.compile(r"[\w-]+/encoder/layer_(\d+)/")

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
      tokenizer_class: class of its tokenizers.
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

    @property
    def tokenizer_name(self) -> str:
        """In tokenizer_config.json."""
        return f"{self.class_prefix}Tokenizer"

    def name_in_family(self, name: str) -> str:
        """The family's name for a name of Hugging Face's BERT."""
        for old, new in self.renames:
            name = name.replace(old, new)
        return name

    def name_of(self, name: str, architecture: str | None = None) -> str:
        """Hugging Face's name, with the encoder's prefix, of a variable of a model with this one of `heads`."""
        if name in (head := self.heads.get(architecture or "", {})):
            return head[name]
        if name in FIXED_NAMES:
            return self.name_in_family(FIXED_NAMES[name])

        def block(match: re.Match) -> str:
            group, inner = divmod(int(match[1]), self.inner_group_num)
            return self.block.format(number=match[1], group=group, inner=inner)

        scope, last = re.sub(f"^{self.model_type}/", f"{self.prefix}/", name).rsplit("/", 1)
        last = last + ".weight" if last.endswith("_embeddings") else _LAST_PARTS.get(last, last)
        return self.name_in_family(re.sub(r"layer_(\d+)", block, scope).replace("/", ".") + "." + last)

    def with_blocks_of(self, names: Iterable[str]) -> "Family":
        """The layout with the number of blocks in a group that a file's names show."""
        pattern = re.escape(self.block).replace(r"\{group\}", r"\d+").replace(r"\{inner\}", r"(\d+)") + r"\."
        numbers = [int(match[1]) for name in names if (match := re.search(pattern, name))]
        return dataclasses.replace(self, inner_group_num=1 + max(numbers, default=0))


def is_model_variable(name: str) -> bool:
    """Whether a name of the original is a variable of the model, not of its optimizer."""
    return name != "global_step" and not name.endswith(("/adam_m", "/adam_v"))


def base_name(name: str) -> str:
    """The variable that a moment belongs to; of other names, the name itself."""
    return name.removesuffix("/adam_m").removesuffix("/adam_v")


def word_table(scope: str) -> str:
    return f"{scope}/embeddings/word_embeddings"


def pooler(scope: str) -> str:
    return f"{scope}/pooler/dense"


def num_blocks_of(names: Iterable[str]) -> int:
    numbers = [int(match[1]) for match in map(_LAYER.match, names) if match]
    return 1 + max(numbers, default=-1)


def config_of_shapes(
    config_class: type[BertConfig], path: str, shapes: Mapping[str, tuple], heads: int, like: BertConfig | None = None
) -> BertConfig:
    """The configuration of a model of a family whose variables have these shapes.

    path: of the weights. heads: of attention. like: gives what shapes don't show. None: the class's defaults.
    """
    embeddings, layer = (f"{config_class.model_type}/{part}" for part in ("embeddings", "encoder/layer_0"))
    axes = {
        "vocab_size": (f"{embeddings}/word_embeddings", 0),
        "embedding_size": (f"{embeddings}/word_embeddings", 1),
        "hidden_size": (f"{layer}/output/dense/bias", 0),
        "intermediate_size": (f"{layer}/intermediate/dense/bias", 0),
        "max_position_embeddings": (f"{embeddings}/position_embeddings", 0),
        "type_vocab_size": (f"{embeddings}/token_type_embeddings", 0),
    }
    sizes = {key: shapes[name][axis] for key, (name, axis) in axes.items() if key in config_class.keys()}  # noqa: SIM118
    sizes |= {"num_hidden_layers": num_blocks_of(shapes), "num_attention_heads": heads}
    return config_class.from_dict({**(like.to_dict() if like else {}), **sizes}, allow_unknown=True, source=path)


def expected_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every variable of a pre-training model, in the order of the original's checkpoints.

    Source: original run_pretraining.py; the heads of its other scripts have shapes of their own: see HEAD_NAMES.
    """
    scope, hidden, inner, width = config.model_type, config.hidden_size, config.intermediate_size, config.embedding_size
    shapes: dict[str, tuple[int, ...]] = {}

    def dense(name: str, rows: int, columns: int, norm: str | None = None) -> None:
        shapes.update({f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)})
        if norm:
            shapes.update({f"{norm}/LayerNorm/{leaf}": (columns,) for leaf in ("beta", "gamma")})

    tables = {"word_embeddings": config.vocab_size, "token_type_embeddings": config.type_vocab_size}
    tables |= {"position_embeddings": config.max_position_embeddings}
    shapes |= {f"{scope}/embeddings/{name}": (rows, width) for name, rows in tables.items() if rows}
    shapes |= {f"{scope}/embeddings/LayerNorm/{leaf}": (width,) for leaf in ("beta", "gamma")}
    if width != hidden:
        dense(f"{scope}/embeddings_project", width, hidden)
    for number in range(1 + max(config.block_order)):
        layer = f"{scope}/encoder/layer_{number}"
        for name in ("query", "key", "value"):
            dense(f"{layer}/attention/self/{name}", hidden, hidden)
        dense(f"{layer}/attention/output/dense", hidden, hidden, norm=f"{layer}/attention/output")
        dense(f"{layer}/intermediate/dense", hidden, inner)
        dense(f"{layer}/output/dense", inner, hidden, norm=f"{layer}/output")
    if config.has_pooler:
        dense(pooler(scope), hidden, hidden)
    dense("cls/predictions/transform/dense", hidden, width, norm="cls/predictions/transform")
    shapes["cls/predictions/output_bias"] = (config.vocab_size,)
    if config.has_pooler:
        shapes |= {"cls/seq_relationship/output_weights": (2, hidden), "cls/seq_relationship/output_bias": (2,)}
    if config.detects_replaced_tokens:
        dense("discriminator_predictions/dense", hidden, hidden)
        dense("discriminator_predictions/dense_1", hidden, 1)
    return shapes


def check_depth(path: str, shapes: Mapping, config: BertConfig, config_name: str, of_weights: bool = False) -> None:
    """Raises if a configuration has more layers than the weights, which would stay random; warns of one of fewer.

    of_weights: the configuration is that of the weights, so that one of fewer layers is a mistake, too.
    """
    blocks, wanted = num_blocks_of(shapes), config.num_hidden_layers
    if config.block_order != list(range(wanted)):  # layers share blocks, whose number is not that of the layers
        return
    if 0 < blocks < wanted or (of_weights and 0 < wanted < blocks):
        differs = f"num_hidden_layers is {wanted}, but they have {blocks} layers"
        raise ValueError(f"{config_name} does not fit the weights of {path}: {differs}.")
    if blocks > wanted:
        message = "%s: num_hidden_layers is %d, but the weights of %s have %d layers: the last %d are left out."
        logging.warning(message, config_name, wanted, path, blocks, blocks - wanted)


def check_shapes(path: str, shapes: Mapping, config: BertConfig, config_name: str) -> None:
    check_depth(path, shapes, config, config_name, of_weights=True)
    expected = expected_shapes(config)
    encoder, head = f"{config.model_type}/", pooler(config.model_type)  # a model without a pooler can still be used
    wrong = []
    for name, shape in expected.items():
        is_needed = name.startswith(encoder) and not name.startswith(head)
        if name not in shapes and is_needed:
            wrong.append(f"{name}: expected {list(shape)}, not there")
        elif shapes.get(name, shape) != shape:
            wrong.append(f"{name}: expected {list(shape)}, found {list(shapes[name])}")
    for name, shape in shapes.items():
        if is_model_variable(name) and name.startswith(encoder) and name not in expected:
            wrong.append(f"{name}: not expected, found {list(shape)}")
        elif name in HEAD_NAMES and name.endswith("weights") and shape[-1:] != (config.hidden_size,):
            wrong.append(f"{name}: expected [classes, {config.hidden_size}], found {list(shape)}")
    if wrong:
        differ = f"{len(wrong)} variables differ: {abbreviated_list(wrong, '; ')}"
        raise ValueError(f"{config_name} does not fit the weights of {path}, {differ}.")


def all_names(config_class: type[BertConfig], is_there: Callable[[str], bool]) -> list[str]:
    """The names of all variables that a pre-trained model of a family may have, for as many blocks as `is_there`."""
    key = f"{config_class.model_type}/encoder/layer_%d/attention/self/key/kernel"
    blocks = next(number for number in itertools.count() if not is_there(key % number))
    sizes = dict.fromkeys(BertConfig.keys(), 1)
    kinds = ("model_type", "has_pooler", "detects_replaced_tokens")
    sizes |= {"embedding_size": 2, **{kind: getattr(config_class, kind) for kind in kinds}}
    config = types.SimpleNamespace(**sizes, block_order=range(max(blocks, 1)))
    return list(expected_shapes(cast(BertConfig, config)))
