"""The named sizes of all families (--bert_size)."""

from bert_tf.models.albert.config import AlbertConfig
from bert_tf.models.config import BertConfig, unknown_size
from bert_tf.models.distilbert.config import DistilBertConfig
from bert_tf.models.electra.config import ElectraConfig
from bert_tf.models.roberta.config import RobertaConfig

_CLASSES = (BertConfig, AlbertConfig, DistilBertConfig, ElectraConfig, RobertaConfig)


def config_of_size(size: str, vocab_size: int | None = None) -> BertConfig:
    """The configuration of a named size of any family, of the family's class.

        config = config_of_size("albert_base_v2", vocab_size=30000)

    Args:
      size: as for `BertConfig.from_size`, of this or of a family's class.
      vocab_size: None: that of the family's released models.

    Raises:
      ValueError: no such size; lists the known ones.
    """
    for config_class in _CLASSES[1:]:
        if size in config_class.sizes:
            return config_class.from_size(size, vocab_size)
    try:
        return BertConfig.from_size(size, vocab_size)
    except ValueError:
        raise unknown_size(size, _CLASSES) from None
