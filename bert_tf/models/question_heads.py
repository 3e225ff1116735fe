"""The two heads for questions: BERT's, and the joint one of ELECTRA's and ALBERT's authors.

Which of them a model has shows in its variables, and head_config.json says it.
"""

import importlib
from collections.abc import Container

import keras

from bert_tf.models import directory as model_directory
from bert_tf.models.config import BertConfig
from bert_tf.models.families import FAMILIES, family_of
from bert_tf.models.head_config import HeadConfig
from bert_tf.models.joint_spans import JointSpanModel
from bert_tf.models.task_models import BertForQuestionAnswering
from bert_tf.models.variable_names import INDEPENDENT_HEAD, JOINT_HEAD

# Head -> a variable of it.
OUTPUT_LAYERS = {"independent": INDEPENDENT_HEAD, "joint": JOINT_HEAD}


def joint_class(config: BertConfig) -> type[JointSpanModel] | None:
    """The class with the joint head of a family's authors; None if they had none."""
    place = family_of(config).joint_head
    return getattr(importlib.import_module(place[0]), place[1]) if place else None


def titles_with_joint_head() -> list[str]:
    """The families whose authors had one."""
    return [family.config_class.title for family in FAMILIES if family.joint_head]


def head_in(names: Container[str]) -> str | None:
    """Which head a model with these variables has; None if it has neither."""
    return next((head for head, layer in OUTPUT_LAYERS.items() if layer in names), None)


def create_model(config: BertConfig, head: HeadConfig, **arguments) -> keras.Model:
    """A model with random weights, not built yet.

    Args:
      head: says which head it is. arguments: for the class.
    """
    joint = joint_class(config)
    if joint and head.architecture == joint.__name__:
        return joint(config, head.starts, head.ends, **arguments)
    return BertForQuestionAnswering(config, lstm_on_top=head.lstm_on_top, **arguments)


def from_pretrained(path: str, **arguments) -> keras.Model:
    """The model for questions at a path, of the class that its variables show.

    Args:
      path, arguments: see `base_models.Pretrained.from_pretrained`.

    Raises:
      FileNotFoundError, ValueError: see there.
    """
    from bert_tf.models import pretrained

    weights, files = pretrained.read_model(path)
    joint = joint_class(model_directory.needed_config(files)) if head_in(weights) == "joint" else None
    return (joint or BertForQuestionAnswering).from_pretrained(path, **arguments)
