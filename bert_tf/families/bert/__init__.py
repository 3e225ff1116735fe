"""BERT (Devlin et al. 2018); its configuration is in config.py, since those of its descendants are based on it."""

from bert_tf.families.config import BertConfig
from bert_tf.families.family import PLAIN_ENCODER, Family
from bert_tf.text.wordpiece import FullTokenizer

FAMILY = Family(
    config_class=BertConfig,
    tokenizer_class=FullTokenizer,
    has_tf1=True,
    other_defaults={"type_vocab_size": 2},
    refused={**PLAIN_ENCODER, "is_encoder_decoder": (False, None)},
    written={"position_embedding_type": "absolute"},
)
