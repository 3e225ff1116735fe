"""Outputs of transformers' own models on the files that this project writes, beside those of this project."""

import pathlib

import keras
import numpy as np
import pytest

from bert_tf.models.configuration.variable_names import REPLACED_TOKEN_HEAD
from bert_tf.models.electra import ElectraDiscriminator
from bert_tf.models.files import initialize, open_weights, pretrained
from bert_tf.models.inputs import select
from bert_tf.models.task_models import BertForPreTraining
from bert_tf.system.text_files import read_json

# Float32 rounding stays below this share of the largest output; another activation gives a hundred times more.
TOLERANCE = 1e-4
# By a class's name, or its second half: the outputs here -> theirs.
_HEAD_OUTPUTS = {
    "ElectraForPreTraining": {"replaced_token_logits": "logits"},
    "AlbertForPreTraining": {"masked_lm_logits": "prediction_logits", "next_sentence_logits": "sop_logits"},
    "PreTraining": {"masked_lm_logits": "prediction_logits", "next_sentence_logits": "seq_relationship_logits"},
    "MaskedLM": {"masked_lm_logits": "logits"},
}


def example_inputs(config, seed=0):
    """A batch with padding and two segments; every position is to be predicted."""
    generator = np.random.default_rng(seed)
    length = min(24, config.max_length)
    lengths = np.linspace(length, max(1, length // 3), 3).astype(int)[:, None]
    positions = np.arange(length)[None, :]
    mask = positions < lengths
    arrays = {
        "input_ids": generator.integers(0, config.vocab_size, mask.shape) * mask,
        "input_mask": mask,
        "segment_ids": (positions >= lengths // 2) * mask * (config.type_vocab_size > 1),
        "masked_lm_positions": np.broadcast_to(positions, mask.shape),
    }
    return {name: np.ascontiguousarray(value, np.int32) for name, value in arrays.items()}


def our_outputs(weights, config, inputs):
    """Outputs of this project's encoder and heads; those that the weights lack are random."""
    detects = REPLACED_TOKEN_HEAD in weights
    model = ElectraDiscriminator(config) if detects else BertForPreTraining(config)
    model.build()
    initialize.initialize(initialize.model_variables(model), weights)
    outputs = dict(model.encode(inputs))
    if detects:
        outputs["replaced_token_logits"] = model(select(inputs, model.known_inputs))
    else:
        outputs |= model(inputs)
    return {name: keras.ops.convert_to_numpy(value) for name, value in outputs.items() if name in NAMES}


NAMES = ("sequence_output", "pooled_output", "masked_lm_logits", "next_sentence_logits", "replaced_token_logits")


def outputs_of_transformers(folder, inputs, config):
    """What transformers computes from a directory of Hugging Face's format."""
    torch = pytest.importorskip("torch", reason="torch is not installed (requirements-dev.txt)")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (requirements-dev.txt)")
    architecture = (read_json(str(pathlib.Path(folder) / "config.json")).get("architectures") or [""])[0]
    heads = _HEAD_OUTPUTS.get(architecture) or _HEAD_OUTPUTS.get(architecture.partition("For")[2]) or {}
    kind = getattr(transformers, architecture) if heads else transformers.AutoModel
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    names = {"input_ids": "input_ids", "attention_mask": "input_mask"}
    if config.type_vocab_size:
        names["token_type_ids"] = "segment_ids"
    with torch.no_grad():
        arguments = {theirs: torch.from_numpy(inputs[ours].astype(np.int64)) for theirs, ours in names.items()}
        encoded = model.base_model(**arguments)
        outputs = {
            "sequence_output": encoded.last_hidden_state,
            "pooled_output": getattr(encoded, "pooler_output", None),
        }
        result = model(**arguments)
        outputs |= {ours: getattr(result, theirs) for ours, theirs in heads.items()}
    return {name: value.numpy() for name, value in outputs.items() if value is not None}


def equal_to_transformers(folder):
    """The names of the outputs that are the same in transformers' model of a directory and in ours."""
    folder = str(folder)
    config = pretrained.read_model(folder)[1].config
    inputs = example_inputs(config)
    theirs = outputs_of_transformers(folder, inputs, config)
    ours = our_outputs(open_weights.open_weights(folder), config, inputs)
    for name in theirs.keys() & ours.keys():
        limit = TOLERANCE * max(1.0, np.abs(theirs[name]).max())
        np.testing.assert_allclose(ours[name], theirs[name], atol=limit, rtol=0, err_msg=name)
    return theirs.keys() & ours.keys()
