"""Settings of distillation, in fine-tuning and in pre-training. No TensorFlow is imported here."""

import dataclasses
import math

from bert_tf.models.directory import check_model

WEIGHT, TEMPERATURE = 0.5, 2.0  # run_squad_w_distillation.py


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherSettings:
    """What a model learns from a teacher; see `models.distillation`. None means "not given".

    Attributes:
      teacher: a trained model. student_layers: the numbers of its layers that the student starts from.
      distillation_temperature: of both models' scores.
    """

    teacher: str | None = None
    student_layers: list[str] | None = None
    distillation_temperature: float | None = None

    @property
    def layers(self) -> list[int] | None:
        """student_layers as numbers."""
        return self.student_layers and [int(number) for number in self.student_layers]

    @property
    def temperature(self) -> float:
        """The temperature, also where it is not given."""
        return TEMPERATURE if self.distillation_temperature is None else self.distillation_temperature

    def check_teacher(self) -> None:
        """Refuses what makes no sense, or needs a teacher.

        Raises:
          ValueError, FileNotFoundError: names the flag.
        """
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(TeacherSettings)}
        for name, value in own.items():
            if value is not None and not self.teacher:
                raise ValueError(f"--{name} is for distillation: give --teacher.")
        check_model(self.teacher, "--teacher")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"--distillation_temperature={self.temperature:g} must be a positive number.")
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
    """The same in pre-training; the defaults are those of the README of DistilBERT's authors.

    Attributes:
      student_family: "distilbert" or "same", of a student made of the teacher's layers. None: distilbert where the
        teacher is a BERT. vocab_transform: it also starts from the hidden layer of the masked-LM head.
      alpha_ce, alpha_mlm, alpha_cos, alpha_mse, restrict_ce_to_mask: see `distillation.LanguageDistillation`.
    """

    student_family: str | None = None
    vocab_transform: bool = False
    alpha_ce: float = 5.0
    alpha_mlm: float = 2.0
    alpha_cos: float = 1.0
    alpha_mse: float = 0.0
    restrict_ce_to_mask: bool = False

    def check_teacher(self) -> None:
        super().check_teacher()
        for field in dataclasses.fields(LanguageTeacherSettings):
            if getattr(self, field.name) != field.default and not self.teacher:
                raise ValueError(f"--{field.name} is for distillation: give --teacher.")
        for name in ("student_family", "vocab_transform"):
            if getattr(self, name) and not self.student_layers:
                raise ValueError(f"--{name} is for a student made of the teacher's layers: give --student_layers.")
        alphas = {name: getattr(self, name) for name in ("alpha_ce", "alpha_mlm", "alpha_cos", "alpha_mse")}
        for name, alpha in alphas.items():
            if not 0 <= alpha < math.inf:
                raise ValueError(f"--{name}={alpha:g} must be at least 0.")
        if not alphas["alpha_ce"] + alphas["alpha_cos"] + alphas["alpha_mse"]:
            raise ValueError("--alpha_ce, --alpha_cos and --alpha_mse are 0: nothing is learned from the teacher.")
        if not self.alpha_ce and self.distillation_temperature is not None:
            raise ValueError("--distillation_temperature is for --alpha_ce, which is 0.")
        if self.restrict_ce_to_mask and not self.alpha_ce + self.alpha_mse:
            raise ValueError("--restrict_ce_to_mask is for --alpha_ce and --alpha_mse, which are 0.")


DISTILLATION_FLAGS = tuple(field.name for field in dataclasses.fields(LanguageTeacherSettings))
