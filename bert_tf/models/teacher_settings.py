"""Settings of distillation, in fine-tuning and in pre-training. No TensorFlow is imported here."""

import dataclasses

from bert_tf.models.directory import check_model
from bert_tf.system.declare import given, group, setting, value_of

DISTILLATION = "Distillation"  # the heading of all that needs a teacher


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
