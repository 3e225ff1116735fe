"""A tiny model of each kind, with a batch of inputs and labels that are in range."""

import numpy as np

from bert_tf.models.baselines import BaselineClassifier, create_config
from bert_tf.models.config import BertConfig
from bert_tf.models.distillation import LanguageDistillation, TaughtLanguageModel
from bert_tf.models.electra import ElectraDiscriminator, ElectraPretrainer
from bert_tf.models.families import ElectraConfig
from bert_tf.models.question_heads import ElectraForQuestionAnswering
from bert_tf.models.similarity import BertForSimilarity
from bert_tf.models.task_models import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bert_tf.training.optimization import create_optimizer

ROWS, LENGTH, VOCAB = 4, 6, 40
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
CONFIG = BertConfig(VOCAB, **SIZES, max_position_embeddings=8, type_vocab_size=2)
ELECTRA = ElectraConfig(VOCAB, 16, 1, 2, 32, embedding_size=16, max_position_embeddings=8)


def inputs(*leading, **others) -> dict:
    shape = (ROWS, *leading, LENGTH)
    ids = np.random.default_rng(1).integers(5, VOCAB, shape).astype("int32")
    return {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids), **others}


def zeros(*shape, dtype="int32"):
    return np.zeros((ROWS, *shape), dtype)


PREDICTED = {"masked_lm_positions": zeros(2), "masked_lm_ids": zeros(2), "masked_lm_weights": zeros(2) + 1.0}
GENERATED = {**PREDICTED, "original_ids": inputs()["input_ids"], "sampling_seeds": zeros(2)}
SPANS = {"start_positions": zeros(), "end_positions": zeros()}
JOINT = {**SPANS, "is_impossible": zeros()}

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
    "joint": (lambda: ElectraForQuestionAnswering(ELECTRA), inputs(**JOINT)),
    "next": (lambda: BertForNextSentencePrediction(CONFIG), inputs(next_sentence_labels=zeros(1))),
    "masked": (lambda: BertForMaskedLM(CONFIG), inputs(**PREDICTED)),
    "pretraining": (lambda: BertForPreTraining(CONFIG), inputs(**PREDICTED, next_sentence_labels=zeros())),
    "similarity": (lambda: BertForSimilarity(CONFIG, "cosine"), inputs(2, scores=zeros(dtype="float32"))),
    "discriminator": (lambda: ElectraDiscriminator(ELECTRA), inputs(is_replaced=zeros(LENGTH))),
    "electra": (lambda: ElectraPretrainer(ELECTRA, ELECTRA), inputs(**GENERATED)),
    "baseline": (
        lambda: BaselineClassifier(create_config("cnn", VOCAB, embedding_size=6, hidden_size=6), 5, "cnn"),
        inputs(label_ids=zeros()),
    ),
}


def adapted():
    model = BertForSequenceClassification(CONFIG, 5)
    model.bert.add_lora(4, 8.0)
    return model


def taught():
    student, teacher = BertForMaskedLM(CONFIG), BertForMaskedLM(CONFIG)
    for model in (student, teacher):
        model.build()
    return TaughtLanguageModel(student, teacher, LanguageDistillation())


# And with adapters, and with a teacher.
CASES = {**MODELS, "adapted": (adapted, MODELS["classifier"][1]), "taught": (taught, MODELS["masked"][1])}


def trained(strategy, case: str) -> tuple:
    """A model with its optimizer, made for a strategy, and its batch."""
    make, features = CASES[case]
    with strategy.scope():
        model = make()
        if not isinstance(model, TaughtLanguageModel):
            model.build()
        optimizer = create_optimizer("adamw", 1e-3, 10, 1)
        optimizer.build(model.trainable_variables)
    return model, optimizer, features
