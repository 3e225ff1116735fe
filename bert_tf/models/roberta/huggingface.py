"""RoBERTa in Hugging Face's files."""

from bert_tf.models.huggingface import BERT_DEFAULTS, PLAIN_ENCODER, Layout, classifier_names
from bert_tf.models.roberta.config import RobertaConfig

LAYOUT = Layout(
    config_class=RobertaConfig,
    class_prefix="Roberta",
    # Theirs, not those of the released models.
    defaults={**BERT_DEFAULTS, "vocab_size": 50265, "pad_token_id": 1},
    refused=PLAIN_ENCODER,
    written={"position_embedding_type": "absolute", "bos_token_id": 0, "eos_token_id": 2},
    parts=(
        ("cls.predictions.transform.dense.", "lm_head.dense."),
        ("cls.predictions.transform.LayerNorm.", "lm_head.layer_norm."),
        ("cls.predictions.decoder.", "lm_head.decoder."),
        ("cls.predictions.bias", "lm_head.bias"),
    ),
    heads={
        "BertForSequenceClassification": classifier_names("classifier.dense", "classifier.out_proj"),
        # Choices are scored on the output of a pooler.
        "BertForMultipleChoice": classifier_names("roberta.pooler.dense", "classifier"),
    },
    masked_lm_act="gelu_erf",
)
