"""The gradient of a step is a sum in one order, in whatever order TensorFlow's threads compute its parts."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.dropped import in_training
from helpers.slow import slow
from helpers.tiny import TINY_CONFIG

from bert_tf import BertForMaskedLM
from bert_tf.models.configuration.config import BertConfig
from bert_tf.models.configuration.families import ElectraConfig
from bert_tf.models.distillation import LanguageDistillation, TaughtLanguageModel
from bert_tf.models.electra import ElectraPretrainer
from bert_tf.training import loop

BATCH, LENGTH, PREDICTIONS = 8, 32, 8
CONFIG = BertConfig(**TINY_CONFIG)


def features_of(replaced: bool) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(0)
    words = draws.integers(5, CONFIG.vocab_size, (BATCH, LENGTH)).astype("int32")
    places = np.stack([np.sort(draws.permutation(LENGTH)[:PREDICTIONS]) for _ in range(BATCH)]).astype("int32")
    features = {"input_ids": words, "input_mask": np.ones_like(words), "segment_ids": np.zeros_like(words)}
    features |= {"masked_lm_positions": places, "masked_lm_ids": np.take_along_axis(words, places, 1)}
    features |= {"masked_lm_weights": np.ones(places.shape, "float32")}
    return features | ({"original_ids": words, "sampling_seeds": np.zeros((BATCH, 2), "int32")} if replaced else {})


def taught(**options):
    student, teacher = (BertForMaskedLM(CONFIG, seed=seed) for seed in (1, 2))
    student.build()
    teacher.build()
    objective = LanguageDistillation(**options)
    return TaughtLanguageModel(student, teacher, objective), objective


def electra():
    config = ElectraConfig(**TINY_CONFIG, embedding_size=32)
    model = ElectraPretrainer(config, config, seed=1)
    model.build()
    return model, model.objective


OF_MASKS = {"restrict_ce_to_mask": True, "alpha_mse": 0.01}
CASES = {"taught": taught, "electra": electra, "of_masks": lambda: taught(**OF_MASKS)}


@pytest.mark.parametrize("case", ["taught", *slow("electra", "of_masks")])
def test_gradients_are_added_in_one_order(case):
    model, objective = CASES[case]()
    features = features_of(case == "electra")
    variables = [variable.value for variable in model.trainable_variables]

    @tf.function(autograph=False)
    def gradients(features):
        with tf.GradientTape() as tape:
            outputs = in_training(model, features)
            loss = objective.loss(objective.sums(outputs, features), objective.totals(features))
        return tape.gradient(loss, variables)

    graph = gradients.get_concrete_function(features).graph
    sums = [op for op in graph.get_operations() if op.type == "AddN" and len(op.inputs) > 2]
    # TensorFlow begins with the first part whose memory nobody else uses at the moment, which is always so for the
    # results of these operations.
    free = ("PartitionedCall", "StatefulPartitionedCall", "UnsortedSegmentSum", "Transpose")
    assert [op.name for op in sums if op.inputs[0].op.type not in free] == []


def test_nested_sums_stay_nested(monkeypatch):
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)  # there is no way back
    try:
        loop.set_seed(1, deterministic=True)
        assert tf.config.optimizer.get_experimental_options()["arithmetic_optimization"] is False
    finally:
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True})
