"""What a student takes from its teacher: the settings of distillation, and the choice of the teacher's layers.

Source: extract_distilbert.py and extract.py of DistilBERT. No TensorFlow is imported here.
"""

import copy
import dataclasses
import re
from collections.abc import Sequence

from bert_tf.models.config import BertConfig
from bert_tf.models.directory import check_model
from bert_tf.models.families import DistilBertConfig, is_encoder_variable
from bert_tf.system.declare import given, group, setting, value_of
from bert_tf.weights.mapping import Weights, is_model_variable, renamed

DISTILLATION = "Distillation"  # the heading of all that needs a teacher

_TRANSFORM = "cls/predictions/transform/"
_LAYER = re.compile(r"(\w+/encoder/layer_)(\d+)(/.+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherSettings:
    """What a model learns from a teacher; see `models.distillation`. None means "not given"."""

    teacher: str | None = setting(
        None,
        "Distillation: the directory of a trained model, usually a larger one with the same vocabulary, from whose "
        "outputs this one also learns.",
        heading=DISTILLATION,
        check=check_model,
    )
    student_layers: list[str] | None = setting(
        None,
        "With --teacher: the student starts from the teacher's embeddings and these of its layers, counted from 0, as "
        "0,2,4,7,9,11, instead of --init_checkpoint and a configuration of its own.",
    )
    distillation_temperature: float | None = setting(
        2.0,  # as in run_squad_w_distillation.py
        "With --teacher: divides both models' scores, so that unlikely classes count more. If unset, 2.",
        unset=True,
        above=0,
    )

    @property
    def layers(self) -> list[int] | None:
        """student_layers as numbers."""
        return self.student_layers and [int(number) for number in self.student_layers]

    @property
    def temperature(self) -> float:
        """The temperature, also where it is not given."""
        return value_of(self, "distillation_temperature")

    def check_teacher(self) -> None:
        """Refuses what makes no sense, or needs a teacher.

        Raises:
          ValueError, FileNotFoundError: names the flag.
        """
        for name in () if self.teacher else given(self, group(type(self), DISTILLATION)):
            raise ValueError(f"--{name} is for distillation: give --teacher.")
        numbers = self.student_layers
        if numbers is not None and not (numbers and all(map(str.isdecimal, numbers))):
            raise ValueError(f"--student_layers={','.join(numbers)} must be numbers of layers from 0, as 0,2,4,7,9,11.")
        if numbers and len(set(self.layers)) != len(numbers):
            raise ValueError(f"--student_layers={','.join(numbers)} has a layer twice.")
        for name in ("init_checkpoint", "bert_config_file", "bert_size", "init_with_optimizer"):
            if numbers and getattr(self, name, None):  # settings of a whole run have them
                raise ValueError(f"--student_layers: the student starts from the teacher; leave out --{name}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageTeacherSettings(TeacherSettings):
    """The same in pre-training; the defaults are those of the README of DistilBERT's authors."""

    student_family: str | None = setting(
        None,
        "With --student_layers: distilbert: without segments and pooler. same: of the teacher's family. If unset, "
        "distilbert where the teacher is a BERT.",
        choices=("distilbert", "same"),
    )
    vocab_transform: bool = setting(
        False, "With --student_layers: the masked-LM head's hidden layer also starts from the teacher's."
    )
    alpha_ce: float = setting(
        5.0, "With --teacher: weight of the divergence from the teacher's distribution over the vocabulary.", least=0
    )
    alpha_mlm: float = setting(2.0, "With --teacher: weight of the masked-LM loss.", least=0)
    alpha_cos: float = setting(
        1.0, "With --teacher: weight of 1 - cos of the last hidden states of both models.", least=0
    )
    alpha_mse: float = setting(0.0, "With --teacher: weight of the squared difference of both models' scores.", least=0)
    restrict_ce_to_mask: bool = setting(
        False, "With --teacher: compare the distributions of masked tokens only, not of all."
    )

    def check_teacher(self) -> None:
        super().check_teacher()
        for name in () if self.student_layers else given(self, ("student_family", "vocab_transform")):
            raise ValueError(f"--{name} is for a student made of the teacher's layers: give --student_layers.")
        if not self.alpha_ce + self.alpha_cos + self.alpha_mse:
            raise ValueError("--alpha_ce, --alpha_cos and --alpha_mse are 0: nothing is learned from the teacher.")
        if not self.alpha_ce and self.distillation_temperature is not None:
            raise ValueError("--distillation_temperature is for --alpha_ce, which is 0.")
        if self.restrict_ce_to_mask and not self.alpha_ce + self.alpha_mse:
            raise ValueError("--restrict_ce_to_mask is for --alpha_ce and --alpha_mse, which are 0.")


DISTILLATION_FLAGS = group(LanguageTeacherSettings, DISTILLATION)


# --- layers ----------------------------------------------------------------------------------------------------------


def check_layers(config: BertConfig, layers: Sequence[int]) -> None:
    """Refuses layers that a student can't take over from a teacher.

    Raises:
      ValueError: the teacher has no such layer, or its layers share their weights; names --student_layers.
    """
    flag, order = f"--student_layers={','.join(map(str, layers))}", config.block_order
    if len(set(order)) != len(order):
        raise ValueError(f"{flag}: the layers of this {config.title} share their weights; there are none to choose.")
    if wrong := [layer for layer in layers if layer >= len(order)]:
        raise ValueError(f"{flag}: the teacher has the layers 0 to {len(order) - 1}, and no {wrong[0]}.")


def check_compared(student: BertConfig, teacher: BertConfig, alpha_cos: float) -> None:
    """Refuses two models whose outputs can't be compared in pre-training.

    Args:
      alpha_cos: the weight of the distance of their vectors.

    Raises:
      ValueError: their vocabularies, or the vectors to be compared, differ in size; or the teacher is causal.
    """
    if teacher.is_causal:
        raise ValueError("--teacher has causal attention: it does not score masked tokens.")
    for key, needed in (("vocab_size", True), ("hidden_size", alpha_cos)):
        sizes = getattr(teacher, key), getattr(student, key)
        if needed and sizes[0] != sizes[1]:
            advice = " (--alpha_cos=0 compares no vectors)" if key == "hidden_size" else ""
            raise ValueError(f"--teacher has {key} {sizes[0]}, the student {sizes[1]}: they must agree{advice}.")


def shallower(config: BertConfig, layers: Sequence[int]) -> BertConfig:
    """The teacher's configuration with as many layers as are chosen.

    Raises:
      ValueError: see `check_layers`.
    """
    check_layers(config, layers)
    config = copy.deepcopy(config)
    config.num_hidden_layers = len(layers)
    config.validate()
    return config


def as_distilbert(config: BertConfig) -> DistilBertConfig:
    """A configuration of BERT as that of a DistilBERT: without segments and pooler.

    Raises:
      ValueError: it is of another family, or causal.
    """
    if config.model_type != BertConfig.model_type or config.is_causal:
        kind = "one with causal attention" if config.is_causal else f"a {config.title}"
        raise ValueError(f"--student_family=distilbert needs a BERT as teacher, not {kind}.")
    keys = DistilBertConfig.keys()
    return DistilBertConfig(**{key: getattr(config, key) for key in keys})


def chosen_layers(
    weights: Weights, layers: Sequence[int], student: BertConfig | None = None, *, transform: bool = False
) -> Weights:
    """A teacher's weights for a student: the encoder with these layers only, numbered from 0.

    Args:
      weights: of a model for which `check_layers` passes.
      student: of a model to pre-train, which may be a DistilBERT: it gets the masked-LM head, too, and only what its
        family has. None: heads are left out.
      transform: with the hidden layer of the masked-LM head (--vocab_transform).
    """
    numbers = {layer: number for number, layer in enumerate(layers)}
    names = {}
    for name in filter(is_model_variable, weights):
        layer = _LAYER.fullmatch(name)
        if layer and int(layer[2]) in numbers:
            names[f"{layer[1]}{numbers[int(layer[2])]}{layer[3]}"] = name
        elif (not layer and is_encoder_variable(name)) or (student and _is_of_head(name, transform)):
            names[name] = name
    if student:
        names = {
            f"{student.model_type}/{new.partition('/')[2]}" if is_encoder_variable(new) else new: old
            for new, old in names.items()
            if student.type_vocab_size or not new.endswith("/token_type_embeddings")
            if student.has_pooler or "/pooler/" not in new
        }
    reasons = {name: _reason(name, student) for name in weights if name not in names.values()}
    return renamed(weights, names, reasons)


def _reason(name: str, student: BertConfig | None) -> str:
    """Why a student does not get a variable."""
    if is_encoder_variable(name) or not is_model_variable(name):
        return "not chosen"
    if student and name.startswith(_TRANSFORM):
        return "only --vocab_transform takes them from the teacher"
    return "a student does not take them from the teacher"


def _is_of_head(name: str, transform: bool) -> bool:
    return name == "cls/predictions/output_bias" or (transform and name.startswith(_TRANSFORM))
