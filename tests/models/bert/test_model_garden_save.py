"""Writing weights for tf-models-official: its own classes restore our files, and values are compared bit by bit."""

import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from helpers.model_garden_models import (
    CONFIG,
    HEADS,
    assert_same_bits,
    encoder_values,
    gelu,
    make_encoder,
    make_pretrainer,
    pretrainer_values,
    random_weights,
    randomise,
)

from bert_tf.conversion.reference_models import model_garden_outputs
from bert_tf.models import open_weights
from bert_tf.models.bert import model_garden
from bert_tf.models.config import BertConfig

tf_keras = pytest.importorskip("tf_keras")
from official.legacy.bert import configs  # noqa: E402
from official.nlp.modeling import models, networks  # noqa: E402
from official.nlp.tools import export_tfhub_lib  # noqa: E402


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    weights = random_weights()
    encoder = random_weights(leave_out=HEADS)
    origins = model_garden.save(str(folder / "pretrainer.ckpt"), weights, 3)
    model_garden.save(str(folder / "encoder.ckpt"), encoder, 3)
    return types.SimpleNamespace(
        folder=folder,
        prefix=str(folder / "pretrainer.ckpt"),
        weights=weights,
        origins=origins,
        encoder_prefix=str(folder / "encoder.ckpt"),
        encoder=encoder,
    )


ENCODERS = pytest.mark.parametrize(
    "kind", [networks.BertEncoder, networks.BertEncoderV2], ids=lambda kind: kind.__name__
)


def restore(prefix, **objects):
    tf.train.Checkpoint(**objects).restore(prefix).assert_existing_objects_matched().expect_partial()


@ENCODERS
def test_their_encoder_restores_what_we_write(saved, kind):
    encoder = make_encoder(kind)
    for prefix in (saved.prefix, saved.encoder_prefix):
        expected = {name: value for name, value in saved.weights.items() if name.startswith("bert/")}
        if prefix == saved.encoder_prefix:
            expected = dict(saved.encoder)
        for names in (("encoder",), ("model", "encoder"), ("model",)):
            randomise(encoder)
            restore(prefix, **dict.fromkeys(names, encoder))
            assert_same_bits(encoder_values(encoder), expected)
        randomise(encoder)
        tf.train.Checkpoint(encoder).restore(prefix).assert_existing_objects_matched().expect_partial()
        assert_same_bits(encoder_values(encoder), expected)


@ENCODERS
def test_their_pretrainer_restores_what_we_write(saved, kind):
    expected = dict(saved.weights)
    without_output = {name: value for name, value in expected.items() if "seq_relationship" not in name}

    pretrainer = make_pretrainer(kind)

    def restore_by(way):
        randomise(pretrainer)
        if way == "items":
            restore(saved.prefix, **pretrainer.checkpoint_items)
        else:  # then nothing in the file may stay unused, either
            items = pretrainer.checkpoint_items if way == "both" else {}
            tf.train.Checkpoint(model=pretrainer, **items).restore(saved.prefix).assert_consumed()

    for way in ("model", "items", "both"):
        restore_by(way)
        for pooler in (None, pretrainer.encoder_network.pooler_layer):
            values = pretrainer_values(pretrainer, pooler)
            if way == "items":  # their items have the head's pooler only
                values = {name: value for name, value in values.items() if "seq_relationship" not in name}
            assert_same_bits(values, without_output if way == "items" else expected)
    without_head = make_pretrainer(kind, with_head=False)
    restore(saved.prefix, model=without_head)
    assert_same_bits(pretrainer_values(without_head), without_output)


@pytest.mark.slow
def test_their_hub_export_takes_what_we_write(saved, tmp_path):
    """The tool restores our files, and its export reads back as the same weights."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    sizes = {key: value for key, value in CONFIG.to_dict().items() if key.endswith("size") or key.startswith("num")}
    export_tfhub_lib.export_model(
        str(tmp_path / "hub"),
        bert_config=configs.BertConfig(max_position_embeddings=CONFIG.max_position_embeddings, **sizes),
        model_checkpoint_path=saved.prefix,
        with_mlm=True,
        copy_pooler_dense_to_encoder=True,
        vocab_file=str(tmp_path / "vocab.txt"),
        do_lower_case=True,
    )
    weights = open_weights.open_weights(str(tmp_path / "hub"))
    assert weights.format == "model_garden" and weights.hints == {"num_attention_heads": 3, "do_lower_case": True}
    assert_same_bits(weights, {n: v for n, v in saved.weights.items() if "seq_relationship" not in n})


def test_reading_back_what_we_write(saved):
    weights = model_garden.open_weights(saved.prefix)
    assert_same_bits(weights, dict(saved.weights))
    assert weights.origins == saved.origins and set(saved.origins) == set(saved.weights)
    stored = dict(tf.train.list_variables(saved.prefix))
    assert set(saved.origins.values()) <= set(stored)
    query = saved.origins["bert/encoder/layer_1/attention/self/query/kernel"]
    # The shortest path to it: the functional encoder's numbered layers, four of which are embeddings.
    assert query == "layer_with_weights-5/_attention_layer/_query_dense/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    assert stored[query] == [12, 3, 4]
    # The head's own pooler is a second copy of two tensors, and the counter is the third entry without an equivalent.
    assert sorted(reason.split(" as ")[0] for reason in weights.unused.values()) == [
        "a counter",
        "the same values",
        "the same values",
    ]
    assert_same_bits(model_garden.open_weights(saved.encoder_prefix), dict(saved.encoder))


def test_optimizer_state_and_strangers_are_left_out(tmp_path):
    extra = {
        "global_step": (),
        "bert/pooler/dense/kernel/adam_m": (12, 12),
        "bert/encoder/layer_0/output/dense/bias/adam_v": (12,),
        "something/else": (3,),
    }
    weights = random_weights(extra=extra)
    origins = model_garden.save(str(tmp_path / "x.ckpt"), weights, 3)
    assert set(weights) - set(origins) == set(extra)
    assert_same_bits(model_garden.open_weights(str(tmp_path / "x.ckpt")), dict(random_weights()))


def test_an_encoder_without_pooler(tmp_path):
    weights = random_weights(leave_out=("bert/pooler/", *HEADS))
    model_garden.save(str(tmp_path / "x.ckpt"), weights, 3)
    assert_same_bits(model_garden.open_weights(str(tmp_path / "x.ckpt")), dict(weights))
    with pytest.raises(AssertionError, match="not bound to checkpointed values"):
        restore(str(tmp_path / "x.ckpt"), encoder=make_encoder(networks.BertEncoderV2))


@pytest.mark.slow
def test_nothing_of_theirs_is_imported_to_read_or_write(saved, tmp_path):
    """A process in which tf_keras and official can't be imported."""
    program = f"""
import sys
sys.modules["tf_keras"] = sys.modules["official"] = None
from bert_tf.models.bert import model_garden
weights = model_garden.open_weights({saved.prefix!r})
print(len(model_garden.save({str(tmp_path / "x.ckpt")!r}, weights, 3)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(len(saved.weights))
    assert_same_bits(model_garden.open_weights(str(tmp_path / "x.ckpt")), dict(saved.weights))


# --- the original's checkpoints --------------------------------------------------------------------------------------


def golden_config(golden, name="config1"):
    folder = golden / "model" / name
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    return folder, config, np.load(folder / "inputs.npz"), np.load(folder / "outputs.npz")


def test_golden_outputs_in_their_model(golden, tmp_path):
    """The original's weights in their encoder and heads give the original's outputs.

    Except for the last row, which has no key to attend to: there the original's soft mask (-10000) attends to all keys
    by their scores, and theirs (-1e9) to all equally.
    """
    folder, config, inputs, outputs = golden_config(golden)
    weights = open_weights.open_weights(str(folder / "bert_model.ckpt"))
    prefix = str(tmp_path / "bert_model.ckpt")
    model_garden.save(prefix, weights, config.num_attention_heads)
    found = model_garden_outputs(model_garden.open_weights(prefix), config, dict(inputs))
    for name in ("sequence_output", "pooled_output"):
        np.testing.assert_allclose(found[name][:-1], outputs[name][:-1], atol=2e-5, rtol=0, err_msg=name)
    predictions = found["masked_lm_logits"].shape[1]
    log_probabilities = tf.nn.log_softmax(found["masked_lm_logits"]).numpy().reshape(-1, config.vocab_size)
    expected = outputs["masked_lm_log_probs"]
    np.testing.assert_allclose(log_probabilities[:-predictions], expected[:-predictions], atol=5e-5, rtol=0)
    found = tf.nn.log_softmax(found["next_sentence_logits"]).numpy()
    np.testing.assert_allclose(found[:-1], outputs["next_sentence_log_probs"][:-1], atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["classifier", "squad"])
def test_golden_outputs_of_output_layers(golden, tmp_path, name):
    """Fine-tuned weights of the original in their BertClassifier and BertSpanLabeler."""
    folder, config, inputs, outputs = golden_config(golden)
    weights = open_weights.open_weights(str(folder / f"{name}.ckpt"))
    prefix = str(tmp_path / "x.ckpt")
    assert set(model_garden.save(prefix, weights, config.num_attention_heads)) == set(weights)
    encoder = make_encoder(networks.BertEncoder, config, inner_activation=gelu)
    encoder_inputs = {
        "input_word_ids": inputs["input_ids"],
        "input_mask": inputs["input_mask"],
        "input_type_ids": inputs["segment_ids"],
    }
    if name == "classifier":
        model = models.BertClassifier(encoder, 3)
        restore(prefix, model=model)
        pairs = [(model(encoder_inputs), outputs["classifier_logits"])]
    else:
        model = models.BertSpanLabeler(encoder)
        restore(prefix, model=model)
        start, end = model(encoder_inputs)
        pairs = [(start, outputs["squad_start_logits"]), (end, outputs["squad_end_logits"])]
    for found, expected in pairs:
        np.testing.assert_allclose(found[:-1], expected[:-1], atol=2e-5, rtol=0)
    again = make_encoder(networks.BertEncoderV2, config)
    restore(prefix, encoder=again)
    restore(prefix, model=again, encoder=again)
    assert_same_bits(encoder_values(again), {n: v for n, v in weights.items() if n.startswith("bert/")})
