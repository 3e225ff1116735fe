"""ALBERT in Hugging Face's files."""

from bert_tf.models.albert.config import AlbertConfig
from bert_tf.models.huggingface import BERT_DEFAULTS, Layout

LAYOUT = Layout(
    config_class=AlbertConfig,
    class_prefix="Albert",
    defaults={
        **BERT_DEFAULTS,
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_groups": 1,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "inner_group_num": 1,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
    },
    refused={"position_embedding_type": ("absolute", None)},
    carried=("down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type", "num_memory_blocks"),
    written={
        "position_embedding_type": "absolute",
        "bos_token_id": 2,
        "eos_token_id": 3,
        "classifier_dropout_prob": AlbertConfig.classifier_dropout,
    },
    block="albert_layer_groups.{group}.albert_layers.{inner}",
    parts=(
        (".attention.self.", ".attention."),
        (".attention.output.dense.", ".attention.dense."),
        (".attention.output.LayerNorm.", ".attention.LayerNorm."),
        (".intermediate.dense.", ".ffn."),
        (".output.dense.", ".ffn_output."),
        (".output.LayerNorm.", ".full_layer_layer_norm."),
        ("albert.embeddings_project.", "albert.encoder.embedding_hidden_mapping_in."),
        ("albert.pooler.dense.", "albert.pooler."),
        ("cls.predictions.transform.", "predictions."),
        ("cls.predictions.", "predictions."),
        ("cls.seq_relationship.", "sop_classifier.classifier."),
    ),
    always_projects=True,
)
