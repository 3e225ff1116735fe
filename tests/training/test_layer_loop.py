"""Layers as a loop, in a step that XLA compiles as a whole, end as unrolled ones, in the same masks of dropout."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from helpers.every_model import GENERATED, MODELS, PREDICTED, inputs
from helpers.slow import slow
from helpers.training_steps import feed, one_device, trainer_of

from bert_tf import BertConfig, create_optimizer
from bert_tf.families.albert import AlbertConfig
from bert_tf.families.distilbert import DistilBertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.families.recipe import Recipe
from bert_tf.families.roberta import RobertaConfig
from bert_tf.models import kernels
from bert_tf.models.dropout import dropout_scope
from bert_tf.models.electra import ElectraPretrainer
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.task_models import BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification

SIZES = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
CONFIG = BertConfig(40, **SIZES, max_position_embeddings=8)
ALBERT = AlbertConfig(40, embedding_size=8, **SIZES, max_position_embeddings=8, hidden_dropout_prob=0.1)
ELECTRA = ElectraConfig(40, 16, 4, 2, 32, embedding_size=16, max_position_embeddings=8)
CLASSES, TAGS, MASKED = MODELS["classifier"][1], MODELS["tagger"][1], inputs(**PREDICTED)


def frozen(count: int):
    model = BertForSequenceClassification(CONFIG, 5)
    model.bert.freeze_layers(count)
    return model


def adapted():
    model = BertForSequenceClassification(CONFIG, 5)
    model.bert.add_lora(4, 8.0)
    return model


# The model, its batch, and settings of the run.
CASES = {
    "classifier": (lambda: BertForSequenceClassification(CONFIG, 5), CLASSES, {}),
    "every token": (lambda: BertForTokenClassification(CONFIG, 5), TAGS, {}),
    "recomputed": (lambda: BertForTokenClassification(CONFIG, 5), TAGS, {"recompute": True}),
    "micro-batches": (lambda: BertForTokenClassification(CONFIG, 5), TAGS, {"gradient_accumulation_steps": 2}),
    "albert": (lambda: BertForTokenClassification(ALBERT, 5), TAGS, {}),
    "frozen embeddings": (lambda: frozen(0), CLASSES, {}),
    "frozen layers": (lambda: frozen(2), CLASSES, {}),
    "frozen encoder": (lambda: frozen(4), CLASSES, {}),
    "frozen but the last": (lambda: frozen(3), CLASSES, {}),
    "adapted": (adapted, CLASSES, {}),
    "electra": (lambda: ElectraPretrainer(ELECTRA, ELECTRA), inputs(**GENERATED), {}),
    "roberta": (lambda: BertForMaskedLM(RobertaConfig(40, **SIZES, max_position_embeddings=12)), MASKED, {}),
    "distilbert": (lambda: BertForMaskedLM(DistilBertConfig(40, **SIZES, max_position_embeddings=8)), MASKED, {}),
    "layers' rates": (lambda: BertForTokenClassification(CONFIG, 5), TAGS, {"decay": 0.5}),
}


def ended(case: str, **compiled) -> tuple[dict, dict]:
    make, batch, settings = CASES[case]
    settings, strategy = dict(settings), one_device()
    recipe = Recipe(layerwise_lr_decay=settings.pop("decay", 1.0))
    tf.keras.utils.set_random_seed(1)
    model = make()
    model.build()
    for variable in model.weights:  # clearly different from each other, so that layers can't be confused
        variable.assign(variable + 0.1 * tf.random.stateless_normal(variable.shape, [len(variable.path), 7]))
    optimizer = create_optimizer("adamw", 1e-2, 10, 0, recipe)
    optimizer.build(model.trainable_variables)
    trainer = trainer_of(model, optimizer, strategy=strategy, batch_size=4, **settings, **compiled)
    results = trainer.steps(feed(strategy, tf.data.Dataset.from_tensors(batch).repeat()), tf.constant(3))
    return {v.path: v.numpy() for v in model.weights}, {name: float(value) for name, value in results.items()}


@pytest.mark.parametrize("case", ["every token", *slow(*sorted(CASES.keys() - {"every token"}))])
def test_steps_end_as_those_of_unrolled_layers(case):
    loop, plain = ended(case, use_xla=True), ended(case, use_xla=False)
    assert loop[1] == pytest.approx(plain[1], rel=2e-5, abs=1e-6)
    for path, value in plain[0].items():
        # The true gradient of a key bias is zero: Adam turns its rounding noise into steps.
        np.testing.assert_allclose(loop[0][path], value, atol=1 if "key/bias" in path else 2e-4, err_msg=path)


@pytest.mark.parametrize("config", [ALBERT, *slow(CONFIG, dataclasses.replace(CONFIG, attention="causal"))])
def test_outputs_of_all_layers_and_their_gradients(config):
    encoder, features = BertEncoder(config), inputs()
    encoder.build()
    variables = [variable.value for variable in encoder.trainable_variables if "pooler" not in variable.path]

    def outputs():
        with dropout_scope((1, 2)), tf.GradientTape() as tape:
            found = encoder(features, training=True, return_all_layers=True)
            loss = sum(
                tf.reduce_sum(layer[:, :, number]) for number, layer in enumerate(found["encoder_layers"], start=1)
            )
        return found, [tf.convert_to_tensor(value) for value in tape.gradient(loss, variables)]

    def looped():
        with kernels.one_program():
            return outputs()

    plain, program = outputs(), tf.function(looped, jit_compile=True, autograph=False)()
    assert len(program[0]["encoder_layers"]) == 4
    tf.nest.map_structure(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4), plain, program
    )
