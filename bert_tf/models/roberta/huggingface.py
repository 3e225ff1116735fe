"""RoBERTa in Hugging Face's files."""

from bert_tf.models.huggingface import BERT_DEFAULTS, Layout
from bert_tf.models.roberta.config import RobertaConfig

_SEQUENCES = {
    "pre_classifier/kernel": "classifier.dense.weight",
    "pre_classifier/bias": "classifier.dense.bias",
    "output_weights": "classifier.out_proj.weight",
    "output_bias": "classifier.out_proj.bias",
}
# Choices are scored on the output of a pooler.
_CHOICES = {
    "pre_classifier/kernel": "roberta.pooler.dense.weight",
    "pre_classifier/bias": "roberta.pooler.dense.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}

LAYOUT = Layout(
    config_class=RobertaConfig,
    class_prefix="Roberta",
    # Theirs, not those of the released models.
    defaults={**BERT_DEFAULTS, "vocab_size": 50265, "pad_token_id": 1},
    refused={
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False, None),
        "add_cross_attention": (False, None),
    },
    written={"position_embedding_type": "absolute", "bos_token_id": 0, "eos_token_id": 2},
    parts=(
        ("cls.predictions.transform.dense.", "lm_head.dense."),
        ("cls.predictions.transform.LayerNorm.", "lm_head.layer_norm."),
        ("cls.predictions.decoder.", "lm_head.decoder."),
        ("cls.predictions.bias", "lm_head.bias"),
    ),
    heads={"BertForSequenceClassification": _SEQUENCES, "BertForMultipleChoice": _CHOICES},
)
