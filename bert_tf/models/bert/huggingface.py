"""BERT in Hugging Face's files, whose names there `models/huggingface.py` describes."""

from bert_tf.models.config import BertConfig
from bert_tf.models.huggingface import BERT_DEFAULTS, Layout

LAYOUT = Layout(
    config_class=BertConfig,
    class_prefix="Bert",
    defaults=BERT_DEFAULTS,
    refused={
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False, None),
        "add_cross_attention": (False, None),
        "is_encoder_decoder": (False, None),
    },
    written={"position_embedding_type": "absolute"},
)
