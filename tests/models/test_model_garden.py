"""Reading weights of tf-models-official: its own classes write the files, and values are compared bit by bit."""

import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import model_garden_models as garden
from helpers.converted import example_inputs
from helpers.outputs import assert_close

from bert_tf.conversion import convert
from bert_tf.families.electra import ElectraConfig
from bert_tf.models import initialize, task_models
from bert_tf.models.electra import ElectraDiscriminator
from bert_tf.store import model_garden
from bert_tf.store.open import open_model, open_weights

tf_keras = pytest.importorskip("tf_keras")
from official.nlp import optimization  # noqa: E402
from official.nlp.modeling import layers, models, networks  # noqa: E402


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """Checkpoints of every kind: name -> (prefix, expected values, number of unused entries)."""
    folder = tmp_path_factory.mktemp("official")
    one, two = networks.BertEncoder, networks.BertEncoderV2
    pretrainers = {kind: garden.randomise(garden.make_pretrainer(kind), seed) for seed, kind in enumerate((one, two))}
    values = {kind: garden.pretrainer_values(pretrainer) for kind, pretrainer in pretrainers.items()}
    alone = {kind: garden.encoder_values(pretrainer.encoder_network) for kind, pretrainer in pretrainers.items()}
    first, second = pretrainers[one].encoder_network, pretrainers[two].encoder_network
    items = {name: value for name, value in values[one].items() if "seq_relationship" not in name}
    both = garden.write(folder, "both", model=pretrainers[two], **pretrainers[two].checkpoint_items)
    with_masked_lm = alone[two] | garden.masked_lm_values(pretrainers[two].masked_lm)
    files = {
        "as model and encoder": (garden.write(folder, "model", model=first, encoder=first), alone[one], 1),
        "as root": (tf.train.Checkpoint(second).save(str(folder / "root")), alone[two], 1),
        "in a pretrainer": (garden.write(folder, "pretrainer", model=pretrainers[two]), values[two], 3),
        "in items": (garden.write(folder, "items", **pretrainers[one].checkpoint_items), items, 3),
        "in items and model": (both, values[two], 3),
        # One more unused entry: do_lower_case. A SavedModel has no save counter.
        "in a SavedModel": (garden.export(folder, pretrainers[one], one, False), alone[one], 1),
        "in a SavedModel with masked LM": (garden.export(folder, pretrainers[two], two, True), with_masked_lm, 1),
    }

    pretrainer, count = pretrainers[one], len(pretrainers[one].trainable_variables)
    optimizer = optimization.AdamWeightDecay(0.1)
    optimizer.apply_gradients([(tf.ones_like(value), value) for value in pretrainer.trainable_variables])
    values = garden.pretrainer_values(pretrainer)  # the step has changed them
    prefix = garden.write(folder, "trainer", model=pretrainer, optimizer=optimizer, global_step=optimizer.iterations)
    # Two moments each, four settings, two counters, the encoder's own pooler; of a newer optimizer one setting.
    files["trainer"] = prefix, values, 2 * count + 4 + 2 + 2
    newer = tf_keras.optimizers.Adam()
    newer.build(pretrainers[two].trainable_variables)
    prefix = garden.write(folder, "newer_trainer", model=pretrainers[two], optimizer=newer)
    files["trainer, newer optimizer"] = prefix, garden.pretrainer_values(pretrainers[two]), 2 * count + 1 + 2 + 2

    encoder = pretrainers[one].encoder_network
    older = garden.make_encoder(networks.BertEncoder, dict_outputs=False)
    older = garden.randomise(models.BertPretrainer(older, 2, 4, activation=garden.gelu), 7)
    expected = garden.encoder_values(older.encoder) | garden.masked_lm_values(older.masked_lm)
    expected |= garden.output_values("cls/seq_relationship/", older.classification.layers[1])
    files["BertPretrainer"] = garden.write(folder, "older", model=older), expected, 1
    classifier = garden.randomise(models.BertClassifier(encoder, 3), 8)
    expected = garden.encoder_values(encoder) | garden.output_values("", classifier.classifier.out_proj)
    files["BertClassifier"] = garden.write(folder, "classifier", model=classifier), expected, 1
    classifier = garden.randomise(models.BertClassifier(encoder, 3, use_encoder_pooler=False), 9)
    expected = garden.encoder_values(encoder, classifier.classifier.dense) | garden.output_values(
        "", classifier.classifier.out_proj
    )
    files["BertClassifier with a pooler"] = garden.write(folder, "classifier_2", model=classifier), expected, 3
    labeler = garden.randomise(models.BertSpanLabeler(encoder), 10)
    expected = garden.encoder_values(encoder) | garden.output_values("cls/squad/", labeler.span_labeling.layers[1])
    files["BertSpanLabeler"] = garden.write(folder, "labeler", model=labeler), expected, 1
    tokens = garden.randomise(models.BertTokenClassifier(encoder, 5), 11)
    expected = garden.encoder_values(encoder) | garden.output_values("", tokens.classifier)
    files["BertTokenClassifier"] = garden.write(folder, "tokens", model=tokens), expected, 1
    return files


KINDS = (
    "as model and encoder", "as root", "in a pretrainer", "in items", "in items and model", "in a SavedModel",
    "in a SavedModel with masked LM", "trainer", "trainer, newer optimizer", "BertPretrainer", "BertClassifier",
    "BertClassifier with a pooler", "BertSpanLabeler", "BertTokenClassifier",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_names(official, kind):
    prefix, expected, num_unused = official[kind]
    weights = model_garden.open_checkpoint(prefix)
    assert weights.format == "model_garden" and weights.path == prefix
    garden.assert_same_bits(weights, expected)
    assert weights.shapes == {name: value.shape for name, value in expected.items()}
    assert weights.hints["num_attention_heads"] == 3
    if "SavedModel" in kind:
        assert weights.hints["do_lower_case"] is ("masked LM" in kind)
    else:
        assert "do_lower_case" not in weights.hints
    # Every entry of the file is accounted for once.
    entries = {name for name, _ in tf.train.list_variables(prefix)} - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    assert set(weights.origins.values()) | set(weights.unused) == entries
    assert len(weights.origins) + len(weights.unused) == len(entries)
    assert len(weights.unused) == num_unused, weights.unused
    if kind == "in a pretrainer":  # whose head has a pooler: the encoder's is reported, unless both are equal
        suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
        assert weights.origins["bert/pooler/dense/kernel"] == f"model/classification_heads/0/dense/kernel{suffix}"
        reason = weights.unused[f"model/encoder_network/_pooler_layer/kernel{suffix}"]
        assert "the head has a pooler of its own" in reason and "classification_heads/0/dense" in reason
        assert weights.unused["save_counter" + suffix] == "a counter"


@pytest.mark.slow
def test_a_pre_norm_saved_model(official, tmp_path):
    """Its variables are those of a post-norm encoder; only the settings beside them show it."""
    source = pathlib.Path(official["in a SavedModel"][0]).parents[1]
    target = tmp_path / "hub"
    shutil.copytree(source, target)
    model_garden.open_checkpoint(str(target / "variables" / "variables"))
    settings = (source / "keras_metadata.pb").read_bytes()
    assert b'"norm_first": false' in settings
    (target / "keras_metadata.pb").write_bytes(settings.replace(b'"norm_first": false', b'"norm_first": true'))
    with pytest.raises(ValueError, match="hub/variables/variables: a pre-norm encoder"):
        model_garden.open_checkpoint(str(target / "variables" / "variables"))


@pytest.fixture(scope="module", params=[networks.BertEncoder, networks.BertEncoderV2], ids=lambda kind: kind.__name__)
def pretrainer(request):
    return garden.randomise(garden.make_pretrainer(request.param))


def test_outputs_equal_theirs(pretrainer, tmp_path):
    """Padding and segments count, the trained pooler is the next-sentence head's."""
    weights = model_garden.open_checkpoint(garden.write(tmp_path, "x", model=pretrainer))
    garden.assert_same_bits(weights, garden.pretrainer_values(pretrainer))
    inputs = example_inputs(garden.CONFIG)
    places = inputs["masked_lm_positions"]
    names = {"input_word_ids": "input_ids", "input_mask": "input_mask", "input_type_ids": "segment_ids"}
    theirs = pretrainer({name: inputs[ours] for name, ours in names.items()} | {"masked_lm_positions": places})
    head = pretrainer.classification_heads[0]
    expected = {"sequence_output": theirs["sequence_output"]}
    expected |= {"pooled_output": head(theirs["sequence_output"], only_project=True)}
    expected |= {"masked_lm_logits": theirs["mlm_logits"], "next_sentence_logits": theirs["next_sentence"]}
    model = task_models.BertForPreTraining(garden.CONFIG)
    model.build()
    initialize.initialize(initialize.model_variables(model), weights)
    found = {**model.encode(inputs), **model(inputs)}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize("split_heads", [True, False])
def test_names_of_older_releases(tmp_path, split_heads):
    values, expected = garden.older_names(split_heads=split_heads)
    assert "bert_model/encoder/layer_1/self_attention_output/kernel" in values
    weights = model_garden.open_checkpoint(garden.write_variables(tmp_path / "older", values))
    garden.assert_same_bits(weights, expected)
    assert weights.hints == ({"num_attention_heads": 3} if split_heads else {})
    # A position table from the time in between.
    values["position_embeddings/embeddings"] = values.pop("bert_model/embedding_postprocessor/position_embeddings")
    between = garden.write_variables(tmp_path / "between", values)
    garden.assert_same_bits(model_garden.open_checkpoint(between), expected)


def test_half_precision_is_widened(tmp_path):
    values, expected = garden.older_names()
    narrow = {name: tf.cast(value, tf.bfloat16) for name, value in values.items()}
    weights = model_garden.open_checkpoint(garden.write_variables(tmp_path / "x", narrow))
    expected = {name: tf.cast(tf.cast(value, tf.bfloat16), tf.float32).numpy() for name, value in expected.items()}
    garden.assert_same_bits(weights, expected)


def test_heads_that_do_not_fit_are_listed(tmp_path):
    """A pooler with the head's own width invalidates the head; the encoder's pooler then counts."""
    pretrainer = models.BertPretrainerV2(
        garden.make_encoder(networks.BertEncoderV2),
        classification_heads=[garden.next_sentence_head(5), layers.ClassificationHead(12, 3, name="topic")],
    )
    pretrainer(pretrainer.inputs)
    prefix = garden.write(tmp_path, "p", model=garden.randomise(pretrainer))
    weights = model_garden.open_checkpoint(prefix)
    expected = garden.encoder_values(pretrainer.encoder_network) | garden.masked_lm_values(pretrainer.masked_lm)
    garden.assert_same_bits(weights, expected)
    reasons = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): reason for key, reason in weights.unused.items()}
    head = "model/classification_heads/"
    assert reasons[head + "0/dense/kernel"] == "a head of another shape than the original's: [12, 5]"
    assert reasons[head + "0/out_proj/bias"] == "a head of another shape than the original's: [2]"
    assert "no variable for bert/topic/logits/kernel" in reasons[head + "1/out_proj/kernel"]
    assert "no variable for bert/topic/pooler_dense/kernel" in reasons[head + "1/dense/kernel"]


def test_encoders_of_another_kind_and_two(tmp_path):
    values, _ = garden.older_names()
    first = "bert_model/encoder/layer_1/"
    more = values | {first + "self_attention_layer_norm_kv/gamma": np.ones(12, np.float32)}
    with pytest.raises(ValueError, match="another kind than BERT's.*layer_1/self_attention_layer_norm_kv/gamma"):
        model_garden.open_checkpoint(garden.write_variables(tmp_path / "more", more))
    pair = [garden.make_encoder(networks.BertEncoderV2) for _ in range(2)]
    prefix = garden.write(tmp_path, "x", one=pair[0], two=pair[1])
    with pytest.raises(ValueError, match=r"x-1 has two candidates for bert/.*: one/.* and two/"):
        model_garden.open_checkpoint(prefix)


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
    encoder = garden.make_encoder(networks.BertEncoder, discriminator, **widths[0])
    shared = {"embedding_layer": encoder.get_embedding_layer()} if tied else {}
    sizes = {"vocab_size": generator.vocab_size, "num_classes": 2, "num_token_predictions": PREDICTIONS}
    sizes |= {"sequence_length": LENGTH, "mlm_activation": garden.gelu}
    heads = [layers.ClassificationHead(10, 2, name="next_sentence")]
    generator = garden.make_encoder(networks.BertEncoder, generator, **widths[1], **shared)
    return models.ElectraPretrainer(generator, encoder, classification_heads=heads, **sizes)


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
    garden.randomise(pretrainer)
    # official/core/base_trainer.py
    written = {"model": pretrainer, "optimizer": optimizer, "global_step": tf.Variable(1, dtype=tf.int64)}
    prefix = garden.write(tmp_path_factory.mktemp("trained"), "ckpt", **written, **pretrainer.checkpoint_items)
    return prefix, pretrainer, both


def test_both_models_of_a_pretrainer(trained):
    prefix, *_ = trained
    weights, other = open_weights(prefix), open_model(prefix, part="generator").weights
    assert set(weights.parts) == {"discriminator", "generator"}
    assert other.hints["sizes_from_weights"] and "sizes_from_weights" not in weights.hints
    reasons = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): reason for key, reason in weights.unused.items()}
    assert reasons["model/masked_lm/dense/kernel"] == "of the generator"
    assert "no pooler in ELECTRA" in reasons.values() and reasons["global_step"] == "a counter"
    assert set(reasons.values()) >= {"optimizer state, in another form than the original's"}
    assert other.unused["model/discriminator_head/kernel/.ATTRIBUTES/VARIABLE_VALUE"] == "of the discriminator"


def test_outputs_are_those_of_the_pretrainer(trained, caplog):
    prefix, pretrainer, both = trained
    for part, config in zip(("discriminator", "generator"), both, strict=True):
        assert open_model(prefix, part=part).config == config
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
    encoder = garden.make_encoder(networks.BertEncoderV2, config, embedding_width=6)
    assert "electra/embeddings_project/kernel" in open_weights(garden.write(tmp_path, "x", encoder=encoder))
    alone = garden.write(tmp_path, "wide", encoder=garden.make_encoder(networks.BertEncoder, config))
    assert "bert/pooler/dense/kernel" in open_weights(alone)
