"""BERT in Hugging Face's files, whose names there `models/huggingface.py` describes."""

from bert_tf.models.config import BertConfig
from bert_tf.models.huggingface import Layout

LAYOUT = Layout(
    config_class=BertConfig,
    class_prefix="Bert",
    defaults={
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
    },
    refused={
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False, None),
        "add_cross_attention": (False, None),
        "is_encoder_decoder": (False, None),
    },
    written={"position_embedding_type": "absolute"},
)
