"""A tiny model of each kind, with a batch of inputs and labels that are in range."""

import numpy as np

from bert_tf import BertForMaskedLM, BertForMultipleChoice, BertForQuestionAnswering, BertForSequenceClassification
from bert_tf.families.albert import AlbertConfig
from bert_tf.families.config import BertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.models.distillation import DistillationObjective, LanguageDistillation, TaughtLanguageModel, TaughtModel
from bert_tf.models.electra import ElectraDiscriminator, ElectraPretrainer
from bert_tf.models.similarity import BertForSimilarity
from bert_tf.models.task_models import BertForNextSentencePrediction, BertForPreTraining, BertForTokenClassification
from bert_tf.training.optimization import create_optimizer

ROWS, LENGTH, VOCAB = 4, 6, 40
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
CONFIG = BertConfig(VOCAB, **SIZES, max_position_embeddings=8, type_vocab_size=2)
ELECTRA = ElectraConfig(VOCAB, 16, 1, 2, 32, embedding_size=16, max_position_embeddings=8)
ALBERT = AlbertConfig(VOCAB, embedding_size=8, **SIZES, max_position_embeddings=8)
CAUSAL = BertConfig(VOCAB, **SIZES, max_position_embeddings=8, type_vocab_size=2, attention="causal")


def inputs(*leading, **others) -> dict:
    shape = (ROWS, *leading, LENGTH)
    ids = np.random.default_rng(1).integers(5, VOCAB, shape).astype("int32")
    return {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids), **others}


def zeros(*shape, dtype="int32"):
    return np.zeros((ROWS, *shape), dtype)


POSITIONS = zeros(2) + np.array([1, 4], "int32")
PREDICTED = {"masked_lm_positions": POSITIONS, "masked_lm_ids": zeros(2), "masked_lm_weights": zeros(2) + 1.0}
GENERATED = {**PREDICTED, "original_ids": inputs()["input_ids"], "sampling_seeds": zeros(2)}
SPANS = {"start_positions": zeros(), "end_positions": zeros()}
REAL = zeros(dtype="float32")


# Name -> a function that makes the model, and its inputs and labels.
MODELS = {
    "classifier": (lambda: BertForSequenceClassification(CONFIG, 5), inputs(label_ids=zeros())),
    "labels": (
        lambda: BertForSequenceClassification(CONFIG, 3, "multi_label_classification"),
        inputs(label_ids=zeros(3)),
    ),
    "windows": (
        lambda: BertForSequenceClassification(CONFIG, 5, window_pooling="attention", window_stride=4, max_windows=6),
        inputs(3, label_ids=zeros()),
    ),
    "tagger": (lambda: BertForTokenClassification(CONFIG, 5), inputs(label_ids=zeros(LENGTH))),
    "choice": (lambda: BertForMultipleChoice(CONFIG), inputs(3, label_ids=zeros())),
    "questions": (lambda: BertForQuestionAnswering(CONFIG), inputs(**SPANS)),
    "next": (lambda: BertForNextSentencePrediction(CONFIG), inputs(next_sentence_labels=zeros(1))),
    "masked": (lambda: BertForMaskedLM(CONFIG), inputs(**PREDICTED)),
    "pretraining": (lambda: BertForPreTraining(CONFIG), inputs(**PREDICTED, next_sentence_labels=zeros())),
    "similarity": (lambda: BertForSimilarity(CONFIG, "cosine"), inputs(2, scores=zeros(dtype="float32"))),
    "discriminator": (lambda: ElectraDiscriminator(ELECTRA), inputs(is_replaced=zeros(LENGTH))),
    "electra": (lambda: ElectraPretrainer(ELECTRA, ELECTRA), inputs(**GENERATED)),
}


# The inputs of "pretraining" in packed rows: two pairs in each, but for the last.
PACKED = {name: value for name, value in MODELS["pretraining"][1].items() if name != "input_mask"} | {
    "sequence_ids": np.array([[1, 1, 1, 2, 2, 0]] * 3 + [[1, 1, 1, 1, 1, 0]], "int32"),
    "position_ids": np.array([[0, 1, 2, 0, 1, 0]] * 3 + [[0, 1, 2, 3, 4, 0]], "int32"),
    "pooled_positions": np.array([[0, 3]] * 3 + [[0, 0]], "int32"),
    "next_sentence_labels": np.array([[0, 1]] * 4, "int32"),
    "next_sentence_weights": np.array([[1, 1]] * 3 + [[1, 0]], "float32"),
}


def adapted(config=CONFIG):
    model = BertForSequenceClassification(config, 5)
    model.bert.add_lora(4, 8.0)
    return model


def taught():
    return TaughtLanguageModel(BertForMaskedLM(CONFIG), BertForMaskedLM(CONFIG), LanguageDistillation())


def taught_classes():
    model = TaughtModel(BertForSequenceClassification(CONFIG, 5), BertForSequenceClassification(CONFIG, 5))
    model.objective = DistillationObjective(model.student.objective, 0.5, 2.0)
    return model


# And what else scripts train: with adapters, a teacher, or other attention.
CASES = {
    **MODELS,
    "adapted": (adapted, MODELS["classifier"][1]),
    "albert": (lambda: BertForPreTraining(ALBERT), MODELS["pretraining"][1]),
    "causal": (lambda: BertForMaskedLM(CAUSAL), MODELS["masked"][1]),
    "regression": (lambda: BertForSequenceClassification(CONFIG, 1, "regression"), inputs(label_ids=REAL)),
    "taught": (taught, MODELS["masked"][1]),
    "taught classes": (taught_classes, MODELS["classifier"][1]),
}


def without_dropout(monkeypatch) -> None:
    for config in (ALBERT, CAUSAL, CONFIG, ELECTRA):
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            monkeypatch.setattr(config, name, 0.0)
    for name in ("classifier_dropout", "token_dropout"):  # of all
        monkeypatch.setattr(BertConfig, name, 0.0)


def trained(strategy, case: str) -> tuple:
    make, features = CASES[case]
    with strategy.scope():
        model = make()
        if not isinstance(model, TaughtModel):
            model.build()
        optimizer = create_optimizer("lamb" if case == "albert" else "adamw", 1e-3, 10, 1)
        optimizer.build(model.trainable_variables)
    return model, optimizer, features
