"""ELECTRA in Hugging Face's files: ElectraForPreTraining is a discriminator, ElectraForMaskedLM a generator."""

from bert_tf.models.electra.config import ElectraConfig
from bert_tf.models.huggingface import BERT_DEFAULTS, PLAIN_ENCODER, Layout, classifier_names

_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}

LAYOUT = Layout(
    config_class=ElectraConfig,
    class_prefix="Electra",
    defaults={
        **BERT_DEFAULTS,
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    refused={**PLAIN_ENCODER, **{key: (value, None) for key, value in _SUMMARY.items()}},
    written={"position_embedding_type": "absolute", "summary_last_dropout": 0.1, **_SUMMARY},
    parts=(
        ("discriminator_predictions.dense_1.", "discriminator_predictions.dense_prediction."),
        ("cls.predictions.transform.dense.", "generator_predictions.dense."),
        ("cls.predictions.transform.LayerNorm.", "generator_predictions.LayerNorm."),
        ("cls.predictions.decoder.", "generator_lm_head."),
        ("cls.predictions.bias", "generator_lm_head.bias"),
    ),
    # Their classifier of texts has a hidden layer that the original's doesn't have; the original has no choices.
    heads={
        "BertForSequenceClassification": classifier_names("classifier.dense", "classifier.out_proj"),
        "BertForMultipleChoice": classifier_names("sequence_summary.summary", "classifier"),
    },
    masked_lm_act="gelu_erf",
    classifier_act="gelu_erf",
)
