"""Files of tf-models-official: pretrainers of BERT and ELECTRA, other spellings, other models."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.converted import example_inputs, our_outputs
from helpers.model_garden_models import (
    CONFIG,
    assert_same_bits,
    encoder_values,
    gelu,
    make_encoder,
    make_pretrainer,
    masked_lm_values,
    next_sentence_head,
    older_names,
    pretrainer_values,
    randomise,
    write,
    write_variables,
)
from helpers.outputs import assert_close

from bert_tf.conversion import convert
from bert_tf.models import model_garden, open_weights, pretrained, task_models
from bert_tf.models.electra import ElectraDiscriminator
from bert_tf.models.families import ElectraConfig

tf_keras = pytest.importorskip("tf_keras")
from official.nlp.modeling import layers, models, networks  # noqa: E402


@pytest.fixture(scope="module", params=[networks.BertEncoder, networks.BertEncoderV2], ids=lambda kind: kind.__name__)
def pretrainer(request):
    return randomise(make_pretrainer(request.param))


def test_outputs_equal_theirs(pretrainer, tmp_path):
    """Padding and segments count, the trained pooler is the next-sentence head's."""
    weights = model_garden.open_weights(write(tmp_path, "x", model=pretrainer))
    assert_same_bits(weights, pretrainer_values(pretrainer))
    inputs = example_inputs(CONFIG)
    places = inputs["masked_lm_positions"]
    names = {"input_word_ids": "input_ids", "input_mask": "input_mask", "input_type_ids": "segment_ids"}
    theirs = pretrainer({name: inputs[ours] for name, ours in names.items()} | {"masked_lm_positions": places})
    head = pretrainer.classification_heads[0]
    expected = {
        "sequence_output": theirs["sequence_output"],
        "pooled_output": head(theirs["sequence_output"], only_project=True),
        "masked_lm_logits": theirs["mlm_logits"],
        "next_sentence_logits": theirs["next_sentence"],
    }
    found = our_outputs(weights, CONFIG, inputs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize("split_heads", [True, False])
def test_names_of_older_releases(tmp_path, split_heads):
    values, expected = older_names(split_heads=split_heads)
    assert "bert_model/encoder/layer_1/self_attention_output/kernel" in values
    weights = model_garden.open_weights(write_variables(tmp_path / "older", values))
    assert_same_bits(weights, expected)
    assert weights.hints == ({"num_attention_heads": 3} if split_heads else {})
    # A position table from the time in between.
    values["position_embeddings/embeddings"] = values.pop("bert_model/embedding_postprocessor/position_embeddings")
    assert_same_bits(model_garden.open_weights(write_variables(tmp_path / "between", values)), expected)


def test_half_precision_is_widened(tmp_path):
    values, expected = older_names()
    narrow = {name: tf.cast(value, tf.bfloat16) for name, value in values.items()}
    weights = model_garden.open_weights(write_variables(tmp_path / "x", narrow))
    assert_same_bits(weights, {n: tf.cast(tf.cast(v, tf.bfloat16), tf.float32).numpy() for n, v in expected.items()})


def test_heads_that_do_not_fit_are_listed(tmp_path):
    """A pooler with the head's own width invalidates the head; the encoder's pooler then counts."""
    pretrainer = models.BertPretrainerV2(
        make_encoder(networks.BertEncoderV2),
        classification_heads=[next_sentence_head(5), layers.ClassificationHead(12, 3, name="topic")],
    )
    pretrainer(pretrainer.inputs)
    prefix = write(tmp_path, "p", model=randomise(pretrainer))
    weights = model_garden.open_weights(prefix)
    expected = encoder_values(pretrainer.encoder_network) | masked_lm_values(pretrainer.masked_lm)
    assert_same_bits(weights, expected)
    reasons = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): reason for key, reason in weights.unused.items()}
    head = "model/classification_heads/"
    assert reasons[head + "0/dense/kernel"] == "a head of another shape than the original's: [12, 5]"
    assert reasons[head + "0/out_proj/bias"] == "a head of another shape than the original's: [2]"
    assert "no variable for bert/topic/logits/kernel" in reasons[head + "1/out_proj/kernel"]
    assert "no variable for bert/topic/pooler_dense/kernel" in reasons[head + "1/dense/kernel"]


def test_encoders_of_another_kind_and_two_are_refused(tmp_path):
    values, _ = older_names()
    first = "bert_model/encoder/layer_1/"
    more = values | {first + "self_attention_layer_norm_kv/gamma": np.ones(12, np.float32)}
    with pytest.raises(ValueError, match="another kind than BERT's.*layer_1/self_attention_layer_norm_kv/gamma"):
        model_garden.open_weights(write_variables(tmp_path / "more", more))
    pair = [make_encoder(networks.BertEncoderV2) for _ in range(2)]
    prefix = write(tmp_path, "x", one=pair[0], two=pair[1])
    with pytest.raises(ValueError, match=r"x-1 has two candidates for bert/.*: one/.* and two/"):
        model_garden.open_weights(prefix)


# --- ELECTRA: both models of an ElectraPretrainer, and an encoder alone -----------------------------------------------

SIZES = {"vocab_size": 50, "max_position_embeddings": 16, "type_vocab_size": 2, "hidden_act": "gelu"}
LENGTH, PREDICTIONS = 9, 4


def configs(embedding_size):
    own = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return (
        ElectraConfig(embedding_size=embedding_size, **own, **SIZES),
        ElectraConfig(embedding_size=embedding_size or 8, **small, **SIZES),
    )


def make_electra(discriminator, generator, tied):
    """An ElectraPretrainer as its task builds it (nlp/tasks/electra_task.py, `_build_pretrainer`)."""
    widths = [{"embedding_width": config.embedding_size} for config in (discriminator, generator)]
    encoder = make_encoder(networks.BertEncoder, discriminator, **widths[0])
    shared = {"embedding_layer": encoder.get_embedding_layer()} if tied else {}
    return models.ElectraPretrainer(
        generator_network=make_encoder(networks.BertEncoder, generator, **widths[1], **shared),
        discriminator_network=encoder,
        vocab_size=generator.vocab_size,
        num_classes=2,
        num_token_predictions=PREDICTIONS,
        mlm_activation=gelu,
        sequence_length=LENGTH,
        classification_heads=[layers.ClassificationHead(10, 2, name="next_sentence")],
    )


def batch():
    generator = np.random.default_rng(1)
    ids = generator.integers(5, 50, (3, LENGTH))
    mask = np.arange(LENGTH) < np.array([[LENGTH], [6], [3]])
    inputs = {"input_word_ids": ids * mask, "input_mask": mask, "input_type_ids": mask * (np.arange(LENGTH) > 3)}
    positions = generator.integers(0, 3, (3, PREDICTIONS))
    inputs |= {"masked_lm_positions": positions, "masked_lm_ids": np.take_along_axis(ids, positions, 1)}
    return {name: tf.constant(value, tf.int32) for name, value in inputs.items()}


@pytest.fixture(scope="module", params=[(6, True), (12, False)], ids=["narrow, tied", "two tables"])
def trained(tmp_path_factory, request):
    """What the trainer writes after a step: prefix, pretrainer, configurations of discriminator and generator."""
    embedding_size, tied = request.param
    both = configs(embedding_size)
    pretrainer = make_electra(*both, tied)
    optimizer = tf_keras.optimizers.Adam()
    with tf.GradientTape() as tape:
        outputs = pretrainer(batch(), training=True)
        loss = sum(tf.reduce_mean(outputs[name]) for name in ("lm_outputs", "sentence_outputs", "disc_logits"))
    variables = pretrainer.trainable_variables
    gradients = [tf.zeros_like(one) if gradient is None else gradient
                 for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True)]  # fmt: skip
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    randomise(pretrainer)
    # official/core/base_trainer.py
    prefix = write(
        tmp_path_factory.mktemp("trained"),
        "ckpt",
        global_step=tf.Variable(1, dtype=tf.int64),
        model=pretrainer,
        optimizer=optimizer,
        **pretrainer.checkpoint_items,
    )
    return prefix, pretrainer, both


def values_of(encoder, config):
    """A BertEncoder's variables, under the names used here; without its pooler."""
    values = encoder_values(encoder)
    if config.embedding_size != config.hidden_size:
        projection = encoder._embedding_projection
        values |= {f"bert/embeddings_project/{leaf}": getattr(projection, leaf).numpy() for leaf in ("kernel", "bias")}
    return {
        name.replace("bert/", "electra/", 1): value
        for name, value in values.items()
        if not name.startswith("bert/pool")
    }


def assert_equal(weights, expected):
    assert set(weights) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)


def test_both_models_of_a_pretrainer(trained):
    prefix, pretrainer, (discriminator, generator) = trained
    weights = open_weights.open_weights(prefix)
    expected = values_of(pretrainer.discriminator_network, discriminator)
    for name, layer in (("dense", pretrainer.discriminator_projection), ("dense_1", pretrainer.discriminator_head)):
        for leaf in ("kernel", "bias"):
            expected[f"discriminator_predictions/{name}/{leaf}"] = getattr(layer, leaf).numpy()
    assert_equal(weights, expected)
    assert set(weights.parts) == {"discriminator", "generator"}
    other = open_weights.open_weights(prefix, "generator")
    expected = values_of(pretrainer.generator_network, generator) | masked_lm_values(pretrainer.masked_lm)
    assert_equal(other, expected)
    assert other.hints["sizes_from_weights"] and "sizes_from_weights" not in weights.hints
    reasons = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): reason for key, reason in weights.unused.items()}
    assert reasons["model/masked_lm/dense/kernel"] == "of the generator"
    assert "no pooler in ELECTRA" in reasons.values() and reasons["global_step"] == "a counter"
    assert set(reasons.values()) >= {"optimizer state, in another form than the original's"}
    assert other.unused["model/discriminator_head/kernel/.ATTRIBUTES/VARIABLE_VALUE"] == "of the discriminator"


def test_outputs_are_those_of_the_pretrainer(trained, caplog):
    prefix, pretrainer, both = trained
    for part, config in zip(("discriminator", "generator"), both, strict=True):
        assert pretrained.read_model(prefix, part=part)[1].config == config
    assert 'with 3 attention heads, hidden_act "gelu"' in caplog.text
    inputs = batch()
    expected = pretrainer(inputs, training=False)
    ours = {"input_ids": inputs["input_word_ids"], "input_mask": inputs["input_mask"]}
    ours |= {"segment_ids": inputs["input_type_ids"], "masked_lm_positions": inputs["masked_lm_positions"]}
    # It unmasks the texts only for the discriminator.
    logits = task_models.BertForMaskedLM.from_pretrained(prefix)(ours)
    assert_close(logits, expected["lm_outputs"])
    unmasked, _ = models.electra_pretrainer.scatter_update(
        inputs["input_word_ids"], inputs["masked_lm_ids"], inputs["masked_lm_positions"]
    )
    hidden = pretrainer.discriminator_network([unmasked, inputs["input_mask"], inputs["input_type_ids"]])
    hidden = pretrainer.discriminator_projection(hidden["sequence_output"])
    ours = {**ours, "input_ids": unmasked}
    del ours["masked_lm_positions"]
    assert_close(ElectraDiscriminator.from_pretrained(prefix)(ours), pretrainer.discriminator_head(hidden)[..., 0])


def test_their_generator_has_the_exact_gelu(trained, tmp_path):
    with pytest.raises(ValueError, match='hidden_act "gelu_erf" there.*give hidden_act=gelu_erf'):
        convert.convert(trained[0], str(tmp_path / "new"), "huggingface", part="generator")
    assert not (tmp_path / "new").exists()


def test_an_encoder_alone(tmp_path):
    """With a narrower word table it is an ELECTRA's, as TensorFlow Hub's small one; otherwise a BERT's."""
    config, _ = configs(6)
    encoder = randomise(make_encoder(networks.BertEncoderV2, config, embedding_width=6))
    weights = open_weights.open_weights(write(tmp_path, "x", encoder=encoder))
    assert_equal(weights, values_of(encoder, config))
    alone = write(tmp_path, "wide", encoder=make_encoder(networks.BertEncoder, config))
    assert "bert/pooler/dense/kernel" in open_weights.open_weights(alone)
