"""DistilBERT in Hugging Face's files, which are its original."""

from bert_tf.models.distilbert.config import DistilBertConfig
from bert_tf.models.huggingface import BERT_DEFAULTS, Layout

LAYOUT = Layout(
    config_class=DistilBertConfig,
    class_prefix="DistilBert",
    defaults={
        **{key: BERT_DEFAULTS[key] for key in BERT_DEFAULTS if key not in ("type_vocab_size", "layer_norm_eps")},
        "num_hidden_layers": 6,
    },
    keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    parts=(
        ("distilbert.encoder.layer.", "distilbert.transformer.layer."),
        (".attention.self.query.", ".attention.q_lin."),
        (".attention.self.key.", ".attention.k_lin."),
        (".attention.self.value.", ".attention.v_lin."),
        (".attention.output.dense.", ".attention.out_lin."),
        (".attention.output.LayerNorm.", ".sa_layer_norm."),
        (".intermediate.dense.", ".ffn.lin1."),
        (".output.dense.", ".ffn.lin2."),
        (".output.LayerNorm.", ".output_layer_norm."),
        ("cls.predictions.transform.dense.", "vocab_transform."),
        ("cls.predictions.transform.LayerNorm.", "vocab_layer_norm."),
        ("cls.predictions.decoder.", "vocab_projector."),
        ("cls.predictions.bias", "vocab_projector.bias"),
    ),
)
