"""The output layer that a fine-tuning run begins with: that of the weights, with the labels by name, or new."""

import dataclasses
import functools
import posixpath
from collections.abc import Callable, Sequence

from bert_tf.models import open_weights, output_layers
from bert_tf.models.directory import read_head
from bert_tf.models.head_config import NO_HEAD, HeadConfig
from bert_tf.system.messages import named_by
from bert_tf.text.casing import directory_of
from bert_tf.training.settings import FineTuningSettings
from bert_tf.weights.mapping import Weights

# What is done to the weights that a run begins with.
Adjustment = Callable[[Weights], Weights]


@dataclasses.dataclass(frozen=True)
class StartingHead:
    """The output layer of the weights that a run begins with, or uses.

    Attributes:
      source: flag and path of the weights. layer: its name there. head: what is known of it. outputs: its rows.
    """

    source: str
    layer: str
    head: HeadConfig
    outputs: int

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of its outputs; None if they are not known."""
        names = output_layers.names_in(self.head.labels)
        return names if names and len(names) == self.outputs else None


def find_head(run: FineTuningSettings, newest: str | None, layer: str | None) -> StartingHead | None:
    """The output layer of a run's weights; None if it begins with a new one, or with one without classes.

    Args:
      newest: checkpoint in --output_dir, if any. layer: the name of the output layer of the task's models.

    Raises:
      FileNotFoundError, OSError, ValueError: the weights, or what is beside them, can't be read; names the flag.
    """
    path, flag = newest or run.init_checkpoint, "--output_dir" if newest else "--init_checkpoint"
    if not path or layer not in output_layers.OUTPUT_LAYERS or (not newest and (run.layers or run.new_head)):
        return None
    with named_by(flag):
        weights, head = open_weights.open_weights(path), read_head(directory_of(path))
    if head == NO_HEAD and run.bert_config_file:
        head = read_head(posixpath.dirname(run.bert_config_file), run.bert_config_file)
    return StartingHead(f"{flag}: {path}", layer, head, weights.shapes[layer][0]) if layer in weights else None


def adjustment_of(
    run: FineTuningSettings, newest: str | None, layer: str | None, head: HeadConfig, others: Sequence[str] = ()
) -> Adjustment | None:
    """What makes the output layer of a run's weights that of its labels; None: it is, or it has no classes.

    A run that is resumed has its own, see `run_directory.check_output_dir`.

    Args:
      newest, layer: see `find_head`. head: of the run's models, with what the data says of it. others: see
        `output_layers.order_of`.

    Raises:
      ValueError: the layer is for other labels, or for another task; says which, and names --new_head.
    """
    if newest and run.do_train:
        return None
    if run.new_head and layer:
        return functools.partial(output_layers.without, layer=layer, reason="--new_head")
    found = find_head(run, newest, layer)
    if found is None:
        return None
    advice = f"{'' if run.do_train else '--do_train with '}--new_head trains a new output layer."
    for name, kind in (("architecture", "a"), ("problem_type", "for")):
        was, now = getattr(found.head, name), getattr(head, name)
        if None not in (was, now) and was != now:
            raise ValueError(f"{found.source} is {kind} {was}, and this run {kind} {now}. {advice}")
    if head.lstm_on_top and not found.head.lstm_on_top:
        raise ValueError(f"{found.source} has an output layer without a BiLSTM below it. {advice}")
    wanted = head.labels or ()
    if (found.labels is None or not wanted) and found.outputs != (count := len(wanted) or 1):
        raise ValueError(f"{found.source} has {found.outputs} outputs, and this run {count}. {advice}")
    if not wanted:
        return None
    if found.labels and set(wanted) < set(found.labels):
        advice = f"--labels={','.join(found.labels)} keeps them. {advice}"
    order = output_layers.order_of(found.labels, wanted, found.source, advice, others)
    return order and functools.partial(output_layers.reordered, layer=layer, order=order)
