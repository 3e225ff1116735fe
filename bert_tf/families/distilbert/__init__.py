"""DistilBERT (Sanh et al. 2019), distilled from BERT: half of its layers, without segments and pooler."""

import dataclasses
from typing import ClassVar

from bert_tf.families.config import BertConfig, arguments_of_size
from bert_tf.families.family import Family
from bert_tf.families.recipe import Recipe
from bert_tf.text.wordpiece import FullTokenizer


@dataclasses.dataclass(eq=False)
class DistilBertConfig(BertConfig):
    """Sizes and rates of a DistilBERT; the defaults are those of the released models.

    The arguments are those of `BertConfig`, without those that this family lacks.
    """

    num_hidden_layers: int = 6
    hidden_act: str | None = "gelu_erf"
    type_vocab_size: ClassVar[int] = 0  # pyrefly: ignore[bad-override]  # it is no field here
    attention: ClassVar[str] = "bidirectional"  # pyrefly: ignore[bad-override]  # it is no field here

    model_type, title = "distilbert", "DistilBERT"
    unwritten = ()
    has_pooler = False
    attention_output_dropout_prob = 0.0
    classifier_act = "relu"
    classifier_dropout = 0.2
    span_dropout = 0.1
    # train.py of the research project's folder distillation; its optimizer is PyTorch's AdamW.
    pretraining_recipe = Recipe(
        learning_rate=5e-4, warmup_proportion=0.05, warmup="precedes_from_zero", weight_decay_rate=0.0,
        adam_beta_2=0.98, bias_correction=True, epsilon_after_correction=True, clip_norm=5.0,
    )  # fmt: skip
    draws_normal_weights = True
    sizes: ClassVar = {"distilbert_base": arguments_of_size(6, 768)}

    @classmethod
    def of_teacher(cls, config: BertConfig) -> "DistilBertConfig":
        """A BERT's configuration without segments and pooler."""
        if config.model_type != BertConfig.model_type or config.is_causal:
            kind = "one with causal attention" if config.is_causal else f"a {config.title}"
            raise ValueError(f"--student_family=distilbert needs a BERT as teacher, not {kind}.")
        keys = cls.keys()
        return cls(**{key: getattr(config, key) for key in keys})


FAMILY = Family(
    config_class=DistilBertConfig,
    tokenizer_class=FullTokenizer,
    keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": None,
    },
    renames=(
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
