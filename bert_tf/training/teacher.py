"""--teacher: the trained model that another one learns from, checked against it."""

import dataclasses
import functools
from collections.abc import Sequence

from absl import logging

from bert_tf.models import directory as model_directory
from bert_tf.models import head_config, pretrained
from bert_tf.models.directory import ModelFiles
from bert_tf.models.head_config import HeadConfig
from bert_tf.models.students import TeacherSettings
from bert_tf.system.messages import named_by
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training.run_directory import TEACHER_CHECKSUM, read_settings
from bert_tf.weights.mapping import Weights


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher's directory.

    Attributes:
      path: as given. weights, files: what is there. outputs: rows of its output layer.
      labels: their names in the order of the student's; None: as they are.
    """

    path: str
    weights: Weights
    files: ModelFiles
    outputs: int
    labels: tuple[str, ...] | None = None

    @functools.cached_property
    def recorded(self) -> dict[str, str]:
        """What run.json notes besides the path; the first time reads all weights."""
        return {TEACHER_CHECKSUM: self.weights.checksum}


def recorded_before(settings: TeacherSettings) -> dict[str, str | None]:
    """`Teacher.recorded` of a run with an output_dir, as far as it is known before the teacher's weights are read.

    If the run there has a teacher, it may be this one.
    """
    there = read_settings(settings.output_dir).get(TEACHER_CHECKSUM, "not read yet")
    return {TEACHER_CHECKSUM: there if settings.teacher else None}


def open_teacher(
    path: str,
    tokenizer: Tokenizer | None,
    max_seq_length: int,
    output_layers: Sequence[str],
    architecture: str | None = None,
    *,
    needed: str = "fine-tune it first",
) -> Teacher:
    """Opens a teacher, which must have learned the task, and read the student's rows as the student does.

    Args:
      tokenizer: the student's; None if it is not known. output_layers: variables of which a model of the task has one.
      architecture: the class of such a model; None if the output layer shows it.
      needed: what a message says of a teacher without such a layer.

    Raises:
      FileNotFoundError, OSError, ValueError: it is missing or damaged, has another vocabulary, can't take rows of this
        length, or is for another task; begins with --teacher and says what differs.
    """
    with named_by("--teacher"):
        weights, files = pretrained.read_model(path)
        config = model_directory.needed_config(files)
        output_layer = next((name for name in output_layers if name in weights), None)
        if not output_layer:
            raise ValueError(f"{path} has no output layer for this task ({output_layers[0]}): {needed}.")
        if architecture and files.head.architecture not in (None, architecture):
            raise ValueError(f"{path} is a {files.head.architecture}; this task has a {architecture}.")
        if tokenizer and (difference := _difference(pretrained.read_tokenizer(path), tokenizer)):
            raise ValueError(f"{path} does not read the student's rows: {difference}.")
        if max_seq_length > config.max_length:
            raise ValueError(f"{path} takes rows of at most {config.max_length} tokens, not {max_seq_length}.")
    logging.info("Teacher: the %s of %d layers in %s.", config.title, len(config.block_order), path)
    return Teacher(path, weights, files, weights.shapes[output_layer][0])


def _difference(teacher: Tokenizer, student: Tokenizer) -> str | None:
    """The first thing in which two tokenizers differ; None if their rows are the same."""
    if teacher.vocab_size != student.vocab_size:
        return f"its vocabulary has {teacher.vocab_size} tokens, the student's {student.vocab_size}"
    for token, number in student.vocab.items():
        if teacher.vocab.get(token) != number:
            return f"its token {number} is {teacher.inv_vocab.get(number)!r}, the student's {token!r}"
    if teacher.cased != student.cased:
        return "it is cased, the student is not" if teacher.cased else "it is not cased, the student is"
    for name in ("begin_tokens", "between_tokens", "end_tokens", "second_segment", "pad_id"):
        theirs, own = getattr(teacher, name), getattr(student, name)
        if theirs != own:
            return f"its rows have {name} {theirs}, the student's {own}"
    return None


def with_labels_of(teacher: Teacher, student: HeadConfig, others: Sequence[str], temperature: float | None) -> Teacher:
    """The teacher, with its labels in the order of the student's.

    Args:
      student: the student's head, with what the data says of it. others: see `head_config.order_of`.
      temperature: the --distillation_temperature, if given.

    Raises:
      ValueError: the teacher has other labels, or the temperature no use; begins with --teacher and says what differs.
    """
    if not student.problem_type and not student.labels:
        return teacher
    if student.problem_type == "regression" and temperature is not None:
        raise ValueError("--distillation_temperature is for classes; a regression has none.")
    start, head = f"--teacher: {teacher.path}", teacher.files.head
    known, labels = head_config.names_in(head.labels), student.labels
    if not (known and labels) and teacher.outputs != (wanted := len(labels or ("number",))):
        raise ValueError(f"{start} has {teacher.outputs} outputs, the student {wanted}.")
    if None not in (head.problem_type, student.problem_type) and head.problem_type != student.problem_type:
        raise ValueError(f"{start} was trained for {head.problem_type}, the student is for {student.problem_type}.")
    if not labels:
        return teacher
    order = head_config.order_of(known, labels, start, "A teacher must know the labels of the data.", others)
    return dataclasses.replace(teacher, labels=tuple(known[number] for number in order) if order else None)
