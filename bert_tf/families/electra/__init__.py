"""ELECTRA (Clark et al. 2020): a discriminator finds the words that a generator replaced."""

import dataclasses
from collections.abc import Callable, Collection
from typing import ClassVar

from bert_tf.families import family
from bert_tf.families.config import BertConfig, arguments_of_size
from bert_tf.families.recipe import Recipe
from bert_tf.text.wordpiece import ElectraTokenizer


@dataclasses.dataclass(eq=False)
class ElectraConfig(BertConfig):
    """Sizes and rates of a discriminator or of a generator; the defaults are those of the small discriminator.

    The arguments are those of `BertConfig` but attention, and:

    embedding_size: width of the embedding tables. If it is not hidden_size, a dense layer follows them. A generator
    has its discriminator's tables, and thus its embedding_size.
    masked_lm_act: the activation of a generator's masked-LM head, one of ACTIVATIONS; None: hidden_act.
    """

    hidden_size: int = 256
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    hidden_act: str | None = "gelu_erf"
    type_vocab_size: int = 2
    attention: ClassVar[str] = "bidirectional"  # pyrefly: ignore[bad-override]  # it is no field here
    embedding_size: int = 128
    masked_lm_act: str | None = None  # pyrefly: ignore[bad-override]  # it is a field here

    model_type, title = "electra", "ELECTRA"
    unwritten = ("masked_lm_act",)
    has_pooler = False
    detects_replaced_tokens = True
    head_initializer_range = None
    hidden_layer_dropout = True
    choice_act = "gelu_erf"
    sizes: ClassVar = {
        "electra_small": arguments_of_size(12, 256, embedding_size=128),
        "electra_base": arguments_of_size(12, 768, embedding_size=768),
        "electra_large": arguments_of_size(24, 1024, embedding_size=1024),
    }

    @property
    def recipe(self) -> Recipe:  # pyrefly: ignore[bad-override]  # it depends on a field
        """The original's recipe, which depends on the size (configure_finetuning.py)."""
        rate, decay = (1e-4, 0.8) if self.hidden_size < 1024 else (5e-5, 0.9)
        return Recipe(learning_rate=rate, warmup="multiplies", layerwise_lr_decay=decay, sum_loss=True)

    @property
    def pretraining_recipe(self) -> Recipe:  # pyrefly: ignore[bad-override]  # it depends on a field
        """The original's recipe, which depends on the size (configure_pretraining.py)."""
        rate = 5e-4 if self.hidden_size <= 256 else 2e-4
        return Recipe(learning_rate=rate, warmup_proportion=0.01, warmup="multiplies")

    def generator(self, size: float) -> "ElectraConfig":
        """The configuration of a generator whose width is this share of the discriminator's.

        It has as many layers, and a head for each 64 units of width (the original's pretrain_helpers.py).
        """
        width = round(self.hidden_size * size)
        sizes = {"hidden_size": width, "num_attention_heads": max(1, width // 64), "intermediate_size": 4 * width}
        return type(self).from_dict({**self.to_dict(), **sizes}, allow_unknown=True, source=f"generator_size={size:g}")


# --- checkpoints of the original --------------------------------------------------------------------------------------
#
# They have a discriminator and a generator in one file. Both use the tables under `electra/embeddings`. The
# discriminator has the names used here. The generator's other variables are under `generator/` and
# `generator_predictions/`; here they are those of an encoder with a masked-LM head. A fine-tuned model's output layer
# is under `task_specific/TASK/`.

_ELECTRA, _GENERATOR, _GENERATOR_HEAD = "electra/", "generator/", "generator_predictions/"
_DISCRIMINATOR_HEAD, _TASK = "discriminator_predictions/", "task_specific/"
# Of a generator: our name -> theirs.
_MASKED_LM = {
    "cls/predictions/transform/": _GENERATOR_HEAD,
    "cls/predictions/output_bias": _GENERATOR_HEAD + "output_bias",
}


class _Electra(family.Family):
    def parts_in_original(self, names: Collection[str]) -> dict[str, family.PartNames]:
        bases = {family.base_name(name) for name in names}
        has_generator = any(name.startswith((_GENERATOR, _GENERATOR_HEAD)) for name in bases)
        has_encoder = any(name.startswith(_ELECTRA + "encoder/") for name in bases)
        if not has_generator and not has_encoder:
            return {}
        parts = {}
        if has_encoder:
            parts["discriminator"] = _part(names, bases, _in_discriminator, "generator")
        if has_generator:
            other_sizes = has_encoder and _GENERATOR + "encoder/layer_0/output/dense/bias" in bases
            parts["generator"] = _part(names, bases, _in_generator, "discriminator", other_sizes)
        # A language model that was trained without a discriminator has the encoder's names of one.
        alone = has_generator and not any(name.startswith((_DISCRIMINATOR_HEAD, _TASK)) for name in bases)
        usual = "generator" if alone or not has_encoder else "discriminator"
        return {usual: parts.pop(usual), **parts}

    def names_in_original(self, names: Collection[str], inner_group_num: int = 1) -> dict[str, str]:
        """The names of a generator if there is a masked-LM head alone."""
        is_generator = "cls/predictions/output_bias" in names and family.REPLACED_TOKEN_HEAD not in names

        def theirs(name: str) -> str:
            for prefix, replacement in _MASKED_LM.items():
                if name.startswith(prefix):
                    return replacement + name.removeprefix(prefix)
            in_generator = is_generator and name.startswith(_ELECTRA) and not name.startswith(_ELECTRA + "embeddings/")
            return _GENERATOR + name.removeprefix(_ELECTRA) if in_generator else name

        return {name: theirs(name) for name in names}


def _in_discriminator(name: str, names: set[str]) -> str | None:
    """Our name for a variable of the checkpoint; None if it is not the discriminator's."""
    if name.startswith(_TASK):
        last = name.rpartition("/")[2]
        heads = {tuple(other.split("/")[1:3]) for other in names if other.startswith(_TASK)}
        layers = {layer for _, layer in heads} if len({task for task, _ in heads}) == 1 else set()
        return {"kernel": "output_weights", "bias": "output_bias"}[last] if layers == {"dense"} else None
    return None if name.startswith((_GENERATOR, "generator_", "cloze_")) else name


def _in_generator(name: str, names: set[str]) -> str | None:
    for ours, theirs in _MASKED_LM.items():
        if name.startswith(theirs) and (name.endswith("output_bias") == theirs.endswith("output_bias")):
            return ours + name.removeprefix(theirs)
    if name.startswith(_GENERATOR):
        return _ELECTRA + name.removeprefix(_GENERATOR)
    if not name.startswith(_ELECTRA):
        return None
    # The generator shares what it lacks with the discriminator, except the layer behind shared tables.
    scopes = {other.split("/")[1] for other in names if other.startswith(_GENERATOR)}
    scope = name.split("/")[1]
    return None if scope in scopes or (scopes and scope != "embeddings") else name


def _part(
    names: Collection[str], bases: set[str], ours: Callable, other: str, has_other_sizes: bool = False
) -> family.PartNames:
    """The variables of one part, with their moments."""
    used, unused = {}, {}
    for name in sorted(names):
        base = family.base_name(name)
        if new := ours(base, bases) if family.is_model_variable(base) else base:
            used[new + name.removeprefix(base)] = name
        elif name.startswith(_TASK):
            unused[name] = "an output layer of a kind that this project doesn't have"
        else:
            unused[name] = f"of the {other}"
    # Runs of this project write checkpoints under the same scope, whose output layer is not transposed.
    transposed = [new for new in used if family.base_name(new) == "output_weights" and used[new].startswith(_TASK)]
    return family.PartNames(used, unused, transposed, 64, has_other_sizes)


_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
# ElectraForPreTraining is a discriminator, ElectraForMaskedLM a generator.
FAMILY = _Electra(
    config_class=ElectraConfig,
    tokenizer_class=ElectraTokenizer,
    has_tf1=True,
    parts={"discriminator": family.REPLACED_TOKEN_HEAD, "generator": "cls/predictions/output_bias"},
    refused={**family.PLAIN_ENCODER, **{key: (value, None) for key, value in _SUMMARY.items()}},
    written={"position_embedding_type": "absolute", "summary_last_dropout": 0.1, **_SUMMARY},
    renames=(
        ("discriminator_predictions.dense_1.", "discriminator_predictions.dense_prediction."),
        ("cls.predictions.transform.dense.", "generator_predictions.dense."),
        ("cls.predictions.transform.LayerNorm.", "generator_predictions.LayerNorm."),
        ("cls.predictions.decoder.", "generator_lm_head."),
        ("cls.predictions.bias", "generator_lm_head.bias"),
    ),
    # Their classifier of texts has a hidden layer that the original's doesn't have; the original has no choices.
    heads={
        "BertForSequenceClassification": family.two_layers("classifier.dense", "classifier.out_proj"),
        "BertForMultipleChoice": family.two_layers("sequence_summary.summary", "classifier"),
    },
    masked_lm_act="gelu_erf",
    classifier_act="gelu_erf",
)
