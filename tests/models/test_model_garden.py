"""Reading weights of tf-models-official: its own classes write the files, and values are compared bit by bit."""

import pathlib
import shutil

import pytest
import tensorflow as tf
from helpers.model_garden_models import (
    assert_same_bits,
    encoder_values,
    export,
    gelu,
    make_encoder,
    make_pretrainer,
    masked_lm_values,
    output_values,
    pretrainer_values,
    randomise,
    write,
)

from bert_tf.models import model_garden

tf_keras = pytest.importorskip("tf_keras")
from official.nlp import optimization  # noqa: E402
from official.nlp.modeling import models, networks  # noqa: E402

pytestmark = pytest.mark.slow  # in small: test_model_garden_refused.py


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """Checkpoints of every kind: name -> (prefix, expected values, number of unused entries)."""
    folder = tmp_path_factory.mktemp("official")
    one, two = networks.BertEncoder, networks.BertEncoderV2
    pretrainers = {kind: randomise(make_pretrainer(kind), seed) for seed, kind in enumerate((one, two))}
    values = {kind: pretrainer_values(pretrainer) for kind, pretrainer in pretrainers.items()}
    alone = {kind: encoder_values(pretrainer.encoder_network) for kind, pretrainer in pretrainers.items()}
    first, second = pretrainers[one].encoder_network, pretrainers[two].encoder_network
    items = {name: value for name, value in values[one].items() if "seq_relationship" not in name}
    both = write(folder, "both", model=pretrainers[two], **pretrainers[two].checkpoint_items)
    with_masked_lm = alone[two] | masked_lm_values(pretrainers[two].masked_lm)
    files = {
        "as model and encoder": (write(folder, "model", model=first, encoder=first), alone[one], 1),
        "as root": (tf.train.Checkpoint(second).save(str(folder / "root")), alone[two], 1),
        "in a pretrainer": (write(folder, "pretrainer", model=pretrainers[two]), values[two], 3),
        "in items": (write(folder, "items", **pretrainers[one].checkpoint_items), items, 3),
        "in items and model": (both, values[two], 3),
        # One more unused entry: do_lower_case. A SavedModel has no save counter.
        "in a SavedModel": (export(folder, pretrainers[one], one, False), alone[one], 1),
        "in a SavedModel with masked LM": (export(folder, pretrainers[two], two, True), with_masked_lm, 1),
    }

    pretrainer, count = pretrainers[one], len(pretrainers[one].trainable_variables)
    optimizer = optimization.AdamWeightDecay(0.1)
    optimizer.apply_gradients([(tf.ones_like(value), value) for value in pretrainer.trainable_variables])
    values = pretrainer_values(pretrainer)  # the step has changed them
    prefix = write(folder, "trainer", model=pretrainer, optimizer=optimizer, global_step=optimizer.iterations)
    # Two moments each, four settings, two counters, the encoder's own pooler; of a newer optimizer one setting.
    files["trainer"] = prefix, values, 2 * count + 4 + 2 + 2
    newer = tf_keras.optimizers.Adam()
    newer.build(pretrainers[two].trainable_variables)
    prefix = write(folder, "newer_trainer", model=pretrainers[two], optimizer=newer)
    files["trainer, newer optimizer"] = prefix, pretrainer_values(pretrainers[two]), 2 * count + 1 + 2 + 2

    encoder = pretrainers[one].encoder_network
    older = models.BertPretrainer(make_encoder(networks.BertEncoder, dict_outputs=False), 2, 4, activation=gelu)
    older = randomise(older, 7)
    expected = encoder_values(older.encoder) | masked_lm_values(older.masked_lm)
    expected |= output_values("cls/seq_relationship/", older.classification.layers[1])
    files["BertPretrainer"] = write(folder, "older", model=older), expected, 1
    classifier = randomise(models.BertClassifier(encoder, 3), 8)
    expected = encoder_values(encoder) | output_values("", classifier.classifier.out_proj)
    files["BertClassifier"] = write(folder, "classifier", model=classifier), expected, 1
    classifier = randomise(models.BertClassifier(encoder, 3, use_encoder_pooler=False), 9)
    expected = encoder_values(encoder, classifier.classifier.dense) | output_values("", classifier.classifier.out_proj)
    files["BertClassifier with a pooler"] = write(folder, "classifier_2", model=classifier), expected, 3
    labeler = randomise(models.BertSpanLabeler(encoder), 10)
    expected = encoder_values(encoder) | output_values("cls/squad/", labeler.span_labeling.layers[1])
    files["BertSpanLabeler"] = write(folder, "labeler", model=labeler), expected, 1
    tokens = randomise(models.BertTokenClassifier(encoder, 5), 11)
    expected = encoder_values(encoder) | output_values("", tokens.classifier)
    files["BertTokenClassifier"] = write(folder, "tokens", model=tokens), expected, 1
    return files


KINDS = (
    "as model and encoder", "as root", "in a pretrainer", "in items", "in items and model", "in a SavedModel",
    "in a SavedModel with masked LM", "trainer", "trainer, newer optimizer", "BertPretrainer", "BertClassifier",
    "BertClassifier with a pooler", "BertSpanLabeler", "BertTokenClassifier",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_names(official, kind):
    prefix, expected, num_unused = official[kind]
    weights = model_garden.open_weights(prefix)
    assert weights.format == "model_garden" and weights.path == prefix
    assert_same_bits(weights, expected)
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


def test_the_trained_pooler_counts(official):
    """If a head has its own pooler, the encoder's is reported, unless both are equal."""
    prefix, _, _ = official["in a pretrainer"]
    weights = model_garden.open_weights(prefix)
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert weights.origins["bert/pooler/dense/kernel"] == f"model/classification_heads/0/dense/kernel{suffix}"
    reason = weights.unused[f"model/encoder_network/_pooler_layer/kernel{suffix}"]
    assert "the head has a pooler of its own" in reason and "classification_heads/0/dense" in reason
    assert weights.unused["save_counter" + suffix] == "a counter"


def test_a_pre_norm_saved_model_is_refused(official, tmp_path):
    """Its variables are those of a post-norm encoder; only the settings beside them show it."""
    source = pathlib.Path(official["in a SavedModel"][0]).parents[1]
    target = tmp_path / "hub"
    shutil.copytree(source, target)
    model_garden.open_weights(str(target / "variables" / "variables"))
    settings = (source / "keras_metadata.pb").read_bytes()
    assert b'"norm_first": false' in settings
    (target / "keras_metadata.pb").write_bytes(settings.replace(b'"norm_first": false', b'"norm_first": true'))
    with pytest.raises(ValueError, match="hub/variables/variables: a pre-norm encoder"):
        model_garden.open_weights(str(target / "variables" / "variables"))
