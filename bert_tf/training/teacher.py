"""--teacher: the trained model that another one learns from, checked against it, and the settings of distillation.

No TensorFlow is imported here.
"""

import dataclasses
import functools
from collections.abc import Sequence

from absl import logging

from bert_tf.store import head_config
from bert_tf.store.description import check_weights
from bert_tf.store.head_config import HeadConfig
from bert_tf.store.open import OpenedModel, open_model
from bert_tf.system.declare import changeable_setting, non_default_settings, setting, setting_group, value_of
from bert_tf.system.messages import naming_flag
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training.run_directory import TEACHER_CHECKSUM

DISTILLATION = "Distillation"  # the heading of all that needs a teacher


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherSettings:
    """How a model learns from a teacher; see `models.distillation`. None means "not given"."""

    teacher: str | None = changeable_setting(
        None,
        "Distillation: the directory of a trained model, usually a larger one with the same vocabulary, from whose "
        "outputs this one also learns.",
        heading=DISTILLATION,
        check=check_weights,
        is_model=True,
        on_card=True,
    )
    student_layers: list[str] | None = setting(
        None,
        "With --teacher: the student starts from the teacher's embeddings and these of its layers, from 0, e.g. "
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
        with naming_flag("--student_layers"):
            return self.student_layers and [int(number) for number in self.student_layers]

    @property
    def temperature(self) -> float:
        return value_of(self, "distillation_temperature")

    def check_teacher(self) -> None:
        for name in () if self.teacher else non_default_settings(self, setting_group(type(self), DISTILLATION)):
            raise ValueError(f"--{name} is for distillation: give --teacher.")
        for name in ("init_checkpoint", "bert_config_file", "bert_size", "init_with_optimizer"):
            if self.student_layers and getattr(self, name, None):  # settings of a whole run have them
                raise ValueError(f"--student_layers: the student starts from the teacher; leave out --{name}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageTeacherSettings(TeacherSettings):
    """`TeacherSettings` of pre-training; the defaults are those of the README of DistilBERT's authors."""

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
        for name in () if self.student_layers else non_default_settings(self, ("student_family", "vocab_transform")):
            raise ValueError(f"--{name} is for a student made of the teacher's layers: give --student_layers.")
        if not self.alpha_ce + self.alpha_cos + self.alpha_mse:
            raise ValueError("--alpha_ce, --alpha_cos and --alpha_mse are 0: nothing is learned from the teacher.")
        both = self.alpha_ce + self.alpha_mse
        for name, weight in (("distillation_temperature", self.alpha_ce), ("restrict_ce_to_mask", both)):
            if not weight and non_default_settings(self, [name]):
                raise ValueError(f"--{name} has no effect without --alpha_ce.")


DISTILLATION_FLAGS = setting_group(LanguageTeacherSettings, DISTILLATION)


@dataclasses.dataclass(frozen=True)
class Teacher:
    """An opened teacher. outputs: rows of its output layer. labels: their names in the order of the student's; None: as
    they are."""

    files: OpenedModel
    outputs: int
    labels: tuple[str, ...] | None = None

    @functools.cached_property
    def recorded(self) -> dict[str, str]:
        """The notes in run.json besides the path; the first call reads all weights."""
        return {TEACHER_CHECKSUM: self.files.weights.checksum}


def open_teacher(
    path: str | OpenedModel,
    tokenizer: Tokenizer | None,
    max_seq_length: int,
    output_layer: str,
    architecture: str | None = None,
) -> Teacher:
    """Opens a teacher, which must have learned the task, and read the student's rows as the student does.

    path: or the opened model. tokenizer: the student's; None if it is not known.
    output_layer: a variable that a model of the task has.
    architecture: the class of such a model; None if the output layer shows it.
    """
    with naming_flag("--teacher"):
        opened = path if isinstance(path, OpenedModel) else open_model(path)
        path, weights, config = opened.path, opened.weights, opened.needed_config()
        if output_layer not in weights:
            raise ValueError(f"{path} has no output layer for this task ({output_layer}).")
        if architecture and opened.head.architecture not in (None, architecture):
            raise ValueError(f"{path} is a {opened.head.architecture}; this task has a {architecture}.")
        teacher_tokenizer = tokenizer and opened.make_tokenizer(is_checked=True)
        for name in ("vocab", "cased", "begin_tokens", "between_tokens", "end_tokens", "second_segment", "pad_id"):
            if tokenizer and getattr(teacher_tokenizer, name) != getattr(tokenizer, name):
                raise ValueError(f"{path} does not read the student's rows: its tokenizer has another {name}.")
        if max_seq_length > config.max_length:
            raise ValueError(f"{path} takes rows of at most {config.max_length} tokens, not {max_seq_length}.")
    logging.info("Teacher: the %s of %d layers in %s.", config.title, len(config.block_order), path)
    return Teacher(opened, weights.shapes[output_layer][0])


def with_labels_of(teacher: Teacher, student: HeadConfig, others: Sequence[str]) -> Teacher:
    """The teacher, with its labels in the order of the student's.

    student: the student's head, with what the data says of it. others: see `head_config.order_of`.
    """
    if not student.problem_type and not student.labels:
        return teacher
    head, start = teacher.files.head, f"--teacher: {teacher.files.path}"
    teacher_labels, labels = head_config.named_labels(head.labels), student.labels
    other_kind = None not in (head.problem_type, student.problem_type) and head.problem_type != student.problem_type
    if other_kind or (not (teacher_labels and labels) and teacher.outputs != len(labels or ("number",))):
        raise ValueError(
            f"{start} was trained for {head.problem_type} with {teacher.outputs} outputs, the student is for "
            f"{student.problem_type} with {len(labels or ('number',))}."
        )
    if not labels:
        return teacher
    order = head_config.order_of(teacher_labels, labels, start, "It must know the labels of the data.", others)
    return dataclasses.replace(teacher, labels=tuple(teacher_labels[number] for number in order) if order else None)
