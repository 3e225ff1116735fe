"""BERT (Devlin et al. 2018); its configuration is in config.py, since those of its descendants are based on it."""

from bert_tf.families.config import BertConfig
from bert_tf.families.family import DEFAULTS, PLAIN_ENCODER, Family, Layout
from bert_tf.text.wordpiece import FullTokenizer

_LAYOUT = Layout(
    config_class=BertConfig,
    defaults=DEFAULTS,
    refused={**PLAIN_ENCODER, "is_encoder_decoder": (False, None)},
    written={"position_embedding_type": "absolute"},
)
FAMILY = Family(_LAYOUT, FullTokenizer, "BertTokenizer", has_tf1=True)
