"""The model that a run begins with: its files, its tokenizer and its output layer, checked against each other."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence

from bert_tf.families.family import check_depth
from bert_tf.store import head_config
from bert_tf.store.description import ModelFiles, read_head
from bert_tf.store.head_config import NO_HEAD, HeadConfig
from bert_tf.store.open import OpenedModel, open_for_script, open_weights
from bert_tf.store.tensor_files import Weights
from bert_tf.system.messages import naming_flag
from bert_tf.text import tokenizer_files
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training.settings import FineTuningSettings, ModelSettings
from bert_tf.training.teacher import Teacher

# What is done to the weights that a run begins with.
Adjustment = Callable[[Weights], Weights]


def unchanged(weights: Weights) -> Weights:
    return weights


def describe_model(values: FineTuningSettings, newest: str | None, head: str | None) -> tuple[OpenedModel, Tokenizer]:
    """A run's model and its tokenizer, checked against each other.

    newest: checkpoint in --output_dir, if any. head: name of the output layer's weights, e.g. "output_weights",
      which evaluation and prediction need; None: they need none.
    """
    path = values.init_checkpoint if newest is None or values.do_train else None
    flag = "--init_checkpoint" if path else "--output_dir"
    path = path or newest
    if not path and not values.do_train:
        raise ValueError(f"Nothing to evaluate or predict with: no --init_checkpoint, and none in {values.output_dir}.")
    opened = open_for_script(path, values, flag=flag)
    if not values.do_train and not newest and head in opened.head.untrained:
        raise ValueError(f"--init_checkpoint: the output layer ({head}) was saved untrained: give --do_train.")
    opened.head = dataclasses.replace(opened.head, untrained=())
    if values.do_train or not opened.head.window_pooling:  # else the length in training will be taken
        check_length(opened, values)
    tokenizer = make_tokenizer(opened, values)
    # For a resumed run see `EarlierRun.check_model`. With another configuration either side may lack layers.
    if values.init_checkpoint and not newest and not values.bert_config_file:
        with naming_flag("--init_checkpoint"):
            name = opened.config_file or opened.config.file_name
            check_depth(opened.weights.path, opened.weights.shapes, opened.config, name)
    return opened, tokenizer


def make_tokenizer(files: ModelFiles, values: ModelSettings) -> Tokenizer:
    """The tokenizer of a model's files, which are checked against each other and the flags."""
    with naming_flag("--vocab_file") if values.vocab_file else contextlib.nullcontext():
        tokenizer = files.make_tokenizer(is_checked=True)
    tokenizer_files.validate_case_matches_checkpoint(not tokenizer.cased, values.init_checkpoint)
    tokenizer.check_casing(files.vocab_file, values.do_lower_case, values.strip_accents)
    return tokenizer


def check_length(files: ModelFiles, values: ModelSettings) -> None:
    if values.max_seq_length > files.config.max_length:
        raise ValueError(
            f"--max_seq_length={values.max_seq_length} is more than the {files.config.max_length} tokens that "
            f"{files.config_file or values.init_checkpoint} allows (max_position_embeddings)."
        )


@dataclasses.dataclass(frozen=True)
class StartingHead:
    """The output layer of the weights that a run begins with, or uses. source: flag and path. outputs: its rows."""

    source: str
    head: HeadConfig
    outputs: int

    @property
    def labels(self) -> tuple[str, ...] | None:
        names = head_config.named_labels(self.head.labels)
        return names if names and len(names) == self.outputs else None


def find_head(
    run: FineTuningSettings, opened: OpenedModel, head: HeadConfig, newest: str | None, layer: str | None
) -> StartingHead | None:
    """The output layer of a run's weights; None if it begins with a new one, or with one without classes.

    opened: see `describe_model`. head: next to the weights. newest: checkpoint in --output_dir, if any.
    layer: the output layer of the task's models.
    """
    path, flag = newest or run.init_checkpoint, "--output_dir" if newest else "--init_checkpoint"
    if not path or layer != head_config.OUTPUT_LAYER or (not newest and (run.layers or run.new_head)):
        return None
    weights = opened.weights
    if path != opened.path:
        with naming_flag(flag):
            weights = open_weights(path)
    if head == NO_HEAD and run.bert_config_file:
        head = read_head(run.bert_config_file, run.bert_config_file)
    return StartingHead(f"{flag}: {path}", head, weights.shapes[layer][0]) if layer in weights else None


def adjustment_of(start: StartingHead | None, head: HeadConfig, others: Sequence = (), *, trains: bool) -> Adjustment:
    """The change that fits the output layer of the starting weights to the run's labels.

    head: of the run's models, with what the data says of it; where that is not known yet, only the task is compared.
    others: see `head_config.order_of`.
    """
    if start is None:
        return unchanged
    advice = f"{'' if trains else '--do_train with '}--new_head trains a new output layer."
    order = order_of_outputs(start, head, others, advice)
    return functools.partial(head_config.reordered, order=order) if order else unchanged


def with_labels_of(teacher: Teacher, student: HeadConfig, others: Sequence[str]) -> Teacher:
    """The teacher, with its labels in the order of the student's; head and others as in `adjustment_of`."""
    if not student.problem_type and not student.labels:
        return teacher
    start = StartingHead(f"--teacher: {teacher.files.path}", teacher.files.head, teacher.outputs)
    order = order_of_outputs(start, student, others, "choose a teacher that knows the labels of the data.")
    return dataclasses.replace(teacher, labels=tuple(start.labels[number] for number in order) if order else None)


def order_of_outputs(start: StartingHead, head: HeadConfig, others: Sequence[str], advice: str) -> list[int] | None:
    """The outputs that stand for a run's labels, in their order; None if they are as they are, or not known yet.

    advice: what to do where the layer is of another task, or has other labels, which raises.
    """
    for name, kind in (("architecture", "a"), ("problem_type", "for")):
        was, now = getattr(start.head, name), getattr(head, name)
        if None not in (was, now) and was != now:
            if name == "problem_type":
                advice = f"Give the flag of its kind (--multi_label, --regression or none of them), or {advice}"
            raise ValueError(f"{start.source} is {kind} {was}, and this run {kind} {now}. {advice}")
    has_classes = head.problem_type not in (None, "regression") or head.architecture == "BertForTokenClassification"
    if has_classes and head.labels is None:
        return None  # they are not known yet
    wanted = head.labels or ()
    if (start.labels is None or not wanted) and start.outputs != (count := len(wanted) or 1):
        raise ValueError(f"{start.source} has {start.outputs} outputs, and this run {count}. {advice}")
    if not wanted:
        return None
    if start.labels and set(wanted) < set(start.labels):
        advice = f"--labels={','.join(start.labels)} keeps them. {advice}"
    return head_config.order_of(start.labels, wanted, start.source, advice, others)
