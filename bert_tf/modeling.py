"""The names of the original's modeling.py."""

from bert_tf.models.config import BertConfig
from bert_tf.models.task_models import BertModel

__all__ = ["BertConfig", "BertModel"]
