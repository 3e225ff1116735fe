"""What a pre-training run does with --teacher: a student learns masked LM and its teacher's distributions."""

import posixpath
from collections.abc import Mapping

import keras
import tensorflow as tf

from bert_tf.models import flops, teacher_layers
from bert_tf.models.config import BertConfig
from bert_tf.models.distillation import LanguageDistillation, TaughtLanguageModel
from bert_tf.models.families import DistilBertConfig
from bert_tf.models.recipe import Recipe
from bert_tf.models.task_models import BertForMaskedLM
from bert_tf.models.teacher_settings import DISTILLATION_FLAGS
from bert_tf.pretraining import model_vocabulary
from bert_tf.pretraining.settings import PretrainingSettings
from bert_tf.training.pretraining_records import OpenedRecords
from bert_tf.training.pretraining_tasks import PretrainingTask
from bert_tf.training.teacher import open_teacher
from bert_tf.weights.mapping import Weights

_OUTPUT_LAYER = "cls/predictions/output_bias"


def student_config(settings: PretrainingSettings, teacher: BertConfig) -> BertConfig:
    """The configuration of a student made of layers of its teacher.

    Raises:
      ValueError: the teacher has no such layers, or its family no such student; names the flag.
    """
    config = teacher_layers.shallower(teacher, settings.layers)
    if _student_family(settings, teacher) == "distilbert" and config.model_type != DistilBertConfig.model_type:
        return teacher_layers.as_distilbert(config)
    return config


def _student_family(settings: PretrainingSettings, teacher: BertConfig) -> str:
    """--student_family, or what it is if not given."""
    return settings.student_family or ("distilbert" if teacher.model_type == BertConfig.model_type else "same")


class DistillationTask(PretrainingTask):
    """Distillation; see `distillation.LanguageDistillation`. The configuration is the student's.

    Attributes:
      teacher: opened and checked.
    """

    model_class = BertForMaskedLM

    def __init__(
        self, settings: PretrainingSettings, config: BertConfig, config_name: str, data: Mapping[str, OpenedRecords]
    ):
        super().__init__(settings, config, config_name, data)
        found = self.vocabulary
        tokenizer = found and model_vocabulary.tokenizer_of_model(found.vocab_file, config, found.casing)
        generator = posixpath.join(settings.teacher, "generator")
        needed = "a teacher of a pre-training run needs a masked-LM head"
        if tf.io.gfile.isdir(generator):
            needed += f", as in {generator}"
        self.teacher = open_teacher(
            settings.teacher, tokenizer, settings.max_seq_length, (_OUTPUT_LAYER,), needed=needed
        )
        self.objective.check(config, self.teacher.files.config)

    @staticmethod
    def recipe(config: BertConfig) -> Recipe:
        """That of DistilBERT's authors, whatever the student's family."""
        return DistilBertConfig.pretraining_recipe

    @property
    def objective(self) -> LanguageDistillation:
        settings = self.settings
        alphas = (settings.alpha_ce, settings.alpha_mlm, settings.alpha_cos, settings.alpha_mse)
        return LanguageDistillation(*alphas, settings.temperature, settings.restrict_ce_to_mask)

    def beginning(self) -> str | Weights | None:
        settings = self.settings
        if not settings.layers:
            return super().beginning()
        return teacher_layers.chosen_layers(
            self.teacher.weights, settings.layers, self.config, transform=settings.vocab_transform
        )

    def trained(self, model: keras.Model, dtype: str) -> TaughtLanguageModel:
        teacher = BertForMaskedLM.from_pretrained(self.settings.teacher, dtype=dtype, trained=True)
        return TaughtLanguageModel(model, teacher, self.objective)

    @property
    def flops_per_example(self) -> float:
        length = self.settings.max_seq_length
        compared = self.predictions if self.settings.restrict_ce_to_mask else length
        student, teacher = (
            flops.pretraining_flops_per_example(config, length, compared, self.objective.reads_all)
            for config in (self.config, self.teacher.files.config)
        )
        return student + teacher / 3.0  # which is only computed forward

    @property
    def unused_settings(self) -> tuple[str, ...]:
        return tuple(name for name in super().unused_settings if name not in DISTILLATION_FLAGS)

    @property
    def recorded(self) -> dict[str, object]:
        recorded = {**super().recorded, "teacher": self.settings.teacher, **self.teacher.recorded}
        if self.settings.layers:
            recorded["student_family"] = _student_family(self.settings, self.teacher.files.config)
        return recorded
