"""BERT in Hugging Face's files, whose names there `models/huggingface.py` describes."""

from bert_tf.models.config import BertConfig
from bert_tf.models.huggingface import BERT_DEFAULTS, PLAIN_ENCODER, Layout

LAYOUT = Layout(
    config_class=BertConfig,
    class_prefix="Bert",
    defaults=BERT_DEFAULTS,
    refused={**PLAIN_ENCODER, "is_encoder_decoder": (False, None)},
    written={"position_embedding_type": "absolute"},
)
