"""Weights to and from tf-models-official: its own classes write and restore the files; values are compared by the bit."""

import types

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoints, model_garden, weight_files
from bert_tf.config import BertConfig
from bert_tf.heads import BertPretrainingModel
from bert_tf.weights import Weights, expected_shapes

# Imported after the test process has set its logical devices.
tf_keras = pytest.importorskip("tf_keras", reason="needs tf-models-official and tf_keras")
pytest.importorskip("official.nlp.modeling", reason="needs tf-models-official")
from official.legacy.bert import configs  # noqa: E402
from official.nlp import optimization  # noqa: E402
from official.nlp.configs import encoders  # noqa: E402
from official.nlp.modeling import layers, models, networks  # noqa: E402
from official.nlp.tools import export_tfhub_lib  # noqa: E402

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=16,
    type_vocab_size=2,
)
TOLERANCE = 1e-5  # of outputs


# --- official models -------------------------------------------------------------------------------------------------


def randomise(model, seed=0):
    """Every variable to noise, so that no two agree and none is all zeros."""
    generator = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(generator.normal(1.0 if "gamma" in variable.name else 0.0, 0.3, variable.shape))
    return model


def gelu(x):
    return tf_keras.activations.gelu(x, approximate=True)


def make_encoder(kind, config=CONFIG, **settings):
    encoder = kind(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        inner_dim=config.intermediate_size,
        max_sequence_length=config.max_position_embeddings,
        type_vocab_size=config.type_vocab_size,
        **({"dict_outputs": True} if kind is networks.BertEncoder else {}),
        **settings,
    )
    if not encoder.built:
        encoder(encoder.inputs)
    return encoder


def next_sentence_head(size=CONFIG.hidden_size):
    return layers.ClassificationHead(inner_dim=size, num_classes=2, activation="tanh", name="next_sentence")


def make_pretrainer(kind, config=CONFIG, with_head=True):
    heads = [next_sentence_head(config.hidden_size)] if with_head else None
    pretrainer = models.BertPretrainerV2(make_encoder(kind, config), mlm_activation=gelu, classification_heads=heads)
    inputs = pretrainer.inputs
    pretrainer(inputs if isinstance(inputs, dict) else {tensor.name: tensor for tensor in inputs})
    return pretrainer


def dense_values(name, layer):
    return {f"{name}/kernel": layer.kernel, f"{name}/bias": layer.bias}


def norm_values(name, layer):
    return {f"{name}/gamma": layer.gamma, f"{name}/beta": layer.beta}


def encoder_values(encoder, pooler=None):
    """The original's name -> array, through the attributes of their classes."""
    embeddings = "bert/embeddings"
    values = {
        f"{embeddings}/word_embeddings": encoder._embedding_layer.embeddings,
        f"{embeddings}/position_embeddings": encoder._position_embedding_layer._position_embeddings,
        f"{embeddings}/token_type_embeddings": encoder._type_embedding_layer.embeddings,
        **norm_values(f"{embeddings}/LayerNorm", encoder._embedding_norm_layer),
        **dense_values("bert/pooler/dense", pooler or encoder.pooler_layer),
    }
    for number, block in enumerate(encoder.transformer_layers):
        scope = f"bert/encoder/layer_{number}"
        attention = block._attention_layer
        for name in ("query", "key", "value"):
            values |= dense_values(f"{scope}/attention/self/{name}", getattr(attention, f"_{name}_dense"))
        values |= dense_values(f"{scope}/attention/output/dense", attention._output_dense)
        values |= norm_values(f"{scope}/attention/output/LayerNorm", block._attention_layer_norm)
        values |= dense_values(f"{scope}/intermediate/dense", block._intermediate_dense)
        values |= dense_values(f"{scope}/output/dense", block._output_dense)
        values |= norm_values(f"{scope}/output/LayerNorm", block._output_layer_norm)
    arrays = {name: value.numpy() for name, value in values.items()}
    size = arrays["bert/embeddings/LayerNorm/beta"].shape[0]
    for name, value in arrays.items():
        if "/attention/self/" in name or "/attention/output/dense/kernel" in name:
            arrays[name] = value.reshape((size, size) if name.endswith("kernel") else (size,))
    return arrays


def masked_lm_values(masked_lm):
    values = dense_values("cls/predictions/transform/dense", masked_lm.dense)
    values |= norm_values("cls/predictions/transform/LayerNorm", masked_lm.layer_norm)
    values["cls/predictions/output_bias"] = masked_lm.bias
    return {name: value.numpy() for name, value in values.items()}


def output_values(scope, dense):
    return {f"{scope}output_weights": dense.kernel.numpy().T, f"{scope}output_bias": dense.bias.numpy()}


def pretrainer_values(pretrainer, pooler=None):
    """All values; the pooler is that of the next-sentence head, unless another is given."""
    heads = pretrainer.classification_heads
    values = encoder_values(pretrainer.encoder_network, pooler or (heads[0].dense if heads else None))
    values |= masked_lm_values(pretrainer.masked_lm)
    return values | (output_values("cls/seq_relationship/", heads[0].out_proj) if heads else {})


def write(folder, name, **objects):
    return tf.train.Checkpoint(**objects).save(str(folder / name))


def export(folder, pretrainer, kind, with_mlm):
    """The SavedModel that their tool makes for TensorFlow Hub; returns the prefix of its variables."""
    encoder = pretrainer.encoder_network
    objects = pretrainer.checkpoint_items if with_mlm else {"model": encoder, "encoder": encoder}
    sizes = {
        "vocab_size": CONFIG.vocab_size,
        "hidden_size": CONFIG.hidden_size,
        "num_attention_heads": CONFIG.num_attention_heads,
        "intermediate_size": CONFIG.intermediate_size,
        "max_position_embeddings": CONFIG.max_position_embeddings,
        "type_vocab_size": CONFIG.type_vocab_size,
    }
    if kind is networks.BertEncoder:
        config = {"bert_config": configs.BertConfig(num_hidden_layers=CONFIG.num_hidden_layers, **sizes)}
    else:
        bert = encoders.BertEncoderConfig(num_layers=CONFIG.num_hidden_layers, **sizes)
        config = {"encoder_config": encoders.EncoderConfig(type="bert", bert=bert)}
    (folder / "vocab.txt").write_text("[PAD]\n")
    target = folder / f"hub_{kind.__name__}_{with_mlm}"
    export_tfhub_lib.export_model(
        str(target),
        **config,
        model_checkpoint_path=write(folder, f"for_hub_{kind.__name__}_{with_mlm}", **objects),
        with_mlm=with_mlm,
        vocab_file=str(folder / "vocab.txt"),
        do_lower_case=with_mlm,
    )
    return str(target / "variables" / "variables")


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """Checkpoints of every kind: name -> (prefix, expected values, number of unused entries)."""
    folder = tmp_path_factory.mktemp("official")
    one, two = networks.BertEncoder, networks.BertEncoderV2
    pretrainers = {kind: randomise(make_pretrainer(kind), seed) for seed, kind in enumerate((one, two))}
    files = {}
    for kind, pretrainer in pretrainers.items():
        version, encoder = kind.__name__, pretrainer.encoder_network
        values, alone = pretrainer_values(pretrainer), encoder_values(encoder)
        files[f"{version} as model"] = write(folder, f"{version}_m", model=encoder), alone, 1
        files[f"{version} as encoder"] = write(folder, f"{version}_e", encoder=encoder), alone, 1
        files[f"{version} as both"] = write(folder, f"{version}_b", model=encoder, encoder=encoder), alone, 1
        files[f"{version} as root"] = tf.train.Checkpoint(encoder).save(str(folder / f"{version}_r")), alone, 1
        files[f"{version} in a pretrainer"] = write(folder, f"{version}_p", model=pretrainer), values, 3
        items = {name: value for name, value in values.items() if "seq_relationship" not in name}
        files[f"{version} in items"] = write(folder, f"{version}_i", **pretrainer.checkpoint_items), items, 3
        both = write(folder, f"{version}_pi", model=pretrainer, **pretrainer.checkpoint_items)
        files[f"{version} in items and model"] = both, values, 3
        # One more unused: do_lower_case. A counter of saves is not in a SavedModel.
        files[f"{version} in a SavedModel"] = export(folder, pretrainer, kind, False), alone, 1
        with_masked_lm = alone | masked_lm_values(pretrainer.masked_lm)
        files[f"{version} in a SavedModel with masked LM"] = export(folder, pretrainer, kind, True), with_masked_lm, 1

    pretrainer = pretrainers[one]
    values = pretrainer_values(pretrainer)
    count = len(pretrainer.trainable_variables)
    optimizer = optimization.AdamWeightDecay(0.1)
    optimizer.apply_gradients([(tf.ones_like(value), value) for value in pretrainer.trainable_variables])
    values = pretrainer_values(pretrainer)  # the step has changed them
    prefix = write(folder, "trainer", model=pretrainer, optimizer=optimizer, global_step=optimizer.iterations)
    # Two moments each, four settings, two counters, the encoder's own pooler.
    files["trainer"] = prefix, values, 2 * count + 4 + 2 + 2
    newer = tf_keras.optimizers.Adam()
    newer.build(pretrainers[two].trainable_variables)
    prefix = write(folder, "newer_trainer", model=pretrainers[two], optimizer=newer)
    # The same with one setting.
    files["trainer, newer optimizer"] = prefix, pretrainer_values(pretrainers[two]), 2 * count + 1 + 2 + 2

    encoder = pretrainers[one].encoder_network
    alone = encoder_values(encoder)
    older = randomise(models.BertPretrainer(make_encoder_with_list_outputs(), 2, 4, activation=gelu), 7)
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


def make_encoder_with_list_outputs():
    """As the older classes want it."""
    return networks.BertEncoder(
        vocab_size=CONFIG.vocab_size,
        hidden_size=CONFIG.hidden_size,
        num_layers=CONFIG.num_hidden_layers,
        num_attention_heads=CONFIG.num_attention_heads,
        inner_dim=CONFIG.intermediate_size,
        max_sequence_length=CONFIG.max_position_embeddings,
        type_vocab_size=CONFIG.type_vocab_size,
    )


KINDS = [
    f"{version} {how}"
    for version in ("BertEncoder", "BertEncoderV2")
    for how in (
        "as model",
        "as encoder",
        "as both",
        "as root",
        "in a pretrainer",
        "in items",
        "in items and model",
        "in a SavedModel",
        "in a SavedModel with masked LM",
    )
] + [
    "trainer",
    "trainer, newer optimizer",
    "BertPretrainer",
    "BertClassifier",
    "BertClassifier with a pooler",
    "BertSpanLabeler",
    "BertTokenClassifier",
]


def assert_same_bits(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        array = found[name]
        assert array.dtype == value.dtype and array.shape == value.shape, name
        assert array.tobytes() == np.ascontiguousarray(value).tobytes(), name


# --- in --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_names(official, kind):
    prefix, expected, num_unused = official[kind]
    assert model_garden.is_object_checkpoint(prefix)
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
    """Where a head has its own pooler the encoder's is reported; where both are equal nothing is."""
    prefix, _, _ = official["BertEncoderV2 in a pretrainer"]
    weights = model_garden.open_weights(prefix)
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert weights.origins["bert/pooler/dense/kernel"] == f"model/classification_heads/0/dense/kernel{suffix}"
    reason = weights.unused[f"model/encoder_network/_pooler_layer/kernel{suffix}"]
    assert "the head has a pooler of its own" in reason and "classification_heads/0/dense" in reason
    assert weights.unused["save_counter" + suffix] == "a counter"


def test_optimizer_state_is_listed_as_such(official):
    for kind in ("trainer", "trainer, newer optimizer"):
        unused = model_garden.open_weights(official[kind][0]).unused
        reasons = [reason for key, reason in unused.items() if "OPTIMIZER_SLOT" in key or key.startswith("optimizer/")]
        assert len(reasons) > 90
        assert all(reason.startswith("optimizer state") for reason in reasons)


# --- outputs ---------------------------------------------------------------------------------------------------------


def batch_with_padding(config=CONFIG, seed=0):
    generator = np.random.default_rng(seed)
    ids = generator.integers(0, config.vocab_size, (4, 10))
    lengths = np.array([10, 7, 1, 4])
    return {
        "input_ids": ids,
        "input_mask": (np.arange(10) < lengths[:, None]).astype(int),
        "segment_ids": generator.integers(0, 2, (4, 10)),
        "masked_lm_positions": generator.integers(0, 10, (4, 3)),
    }


def our_outputs(weights, config, inputs):
    """Outputs of this project's model with the values that `weights` has; nothing else may stay random."""
    model = BertPretrainingModel(config)
    model.build()
    variables = checkpoints.model_variables(model)
    for name, value in weights.items():
        variables[name].assign(value)
    encoded = model.bert(inputs)
    outputs = {name: encoded[name] for name in ("sequence_output", "pooled_output")}
    given = model(inputs)
    if "cls/predictions/output_bias" in weights:
        outputs["masked_lm_logits"] = given["masked_lm_logits"]
    if "cls/seq_relationship/output_bias" in weights:
        outputs["next_sentence_logits"] = given["next_sentence_logits"]
    return {name: np.asarray(value) for name, value in outputs.items()}


def assert_close(found, expected, tolerance=TOLERANCE):
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=tolerance, rtol=0, err_msg=name)


WITH_OUTPUTS = {
    "BertEncoder as both": set(),
    "BertEncoderV2 as root": set(),
    "BertEncoder in a pretrainer": {"masked_lm_logits", "next_sentence_logits"},
    "BertEncoderV2 in a pretrainer": {"masked_lm_logits", "next_sentence_logits"},
    "BertEncoderV2 in items": {"masked_lm_logits"},
    "BertEncoder in a SavedModel": set(),
    "BertEncoderV2 in a SavedModel with masked LM": {"masked_lm_logits"},
    "trainer": {"masked_lm_logits", "next_sentence_logits"},
    "BertPretrainer": {"masked_lm_logits", "next_sentence_logits"},
}


@pytest.mark.parametrize("kind", WITH_OUTPUTS)
def test_outputs_equal_theirs(official, kind):
    prefix = official[kind][0]
    inputs = batch_with_padding()
    reference = model_garden.reference_outputs(prefix, CONFIG, inputs)
    assert set(reference) == {"sequence_output", "pooled_output"} | WITH_OUTPUTS[kind]
    assert_close(our_outputs(model_garden.open_weights(prefix), CONFIG, inputs), reference)


@pytest.mark.parametrize("settings", [{"hidden_act": "gelu_erf"}, {"hidden_act": "relu", "layer_norm_eps": 1e-3}])
def test_outputs_with_other_settings(official, settings):
    prefix = official["BertEncoderV2 in a pretrainer"][0]
    config = BertConfig.from_dict({**CONFIG.to_dict(), **settings})
    inputs = batch_with_padding()
    reference = model_garden.reference_outputs(prefix, config, inputs)
    assert_close(our_outputs(model_garden.open_weights(prefix), config, inputs), reference)
    usual = model_garden.reference_outputs(prefix, CONFIG, inputs)
    assert np.max(np.abs(usual["sequence_output"] - reference["sequence_output"])) > 1e-4


def test_reference_outputs_are_those_of_the_pretrainer(tmp_path):
    """Against a direct call of BertPretrainerV2; mask and segments may be left out."""
    pretrainer = randomise(make_pretrainer(networks.BertEncoderV2), 3)
    prefix = write(tmp_path, "p", model=pretrainer)
    inputs = batch_with_padding()
    theirs = pretrainer(
        {
            "input_word_ids": inputs["input_ids"],
            "input_mask": inputs["input_mask"],
            "input_type_ids": inputs["segment_ids"],
            "masked_lm_positions": inputs["masked_lm_positions"],
        }
    )
    names = {"masked_lm_logits": "mlm_logits", "next_sentence_logits": "next_sentence", "sequence_output": None}
    expected = {name: theirs[other or name].numpy() for name, other in names.items()}
    found = model_garden.reference_outputs(prefix, CONFIG, inputs)
    assert_close({name: found[name] for name in names}, expected, 1e-6)
    short = model_garden.reference_outputs(prefix, CONFIG, {"input_ids": inputs["input_ids"]})
    full = {"input_mask": np.ones((4, 10)), "segment_ids": np.zeros((4, 10))}
    full = model_garden.reference_outputs(prefix, CONFIG, {"input_ids": inputs["input_ids"], **full})
    assert_close(short, full, 0)
    assert set(short) == {"sequence_output", "pooled_output", "next_sentence_logits"}


# --- out -------------------------------------------------------------------------------------------------------------


def random_weights(config=CONFIG, leave_out=(), extra=(), seed=0):
    """Weights of a pre-training model under the original's names, held in memory."""
    shapes = expected_shapes(config) | dict(extra)
    shapes = {name: shape for name, shape in shapes.items() if not name.startswith(tuple(leave_out))}
    generator = np.random.default_rng(seed)
    values = {name: generator.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    return Weights("memory", "tf1", shapes, dict.fromkeys(shapes, ""), values.__getitem__)


HEADS = ("cls/predictions/", "cls/seq_relationship/")


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
    for prefix in (saved.prefix, saved.encoder_prefix):
        expected = {name: value for name, value in saved.weights.items() if name.startswith("bert/")}
        if prefix == saved.encoder_prefix:
            expected = dict(saved.encoder)
        for names in (("encoder",), ("model", "encoder"), ("model",)):
            encoder = make_encoder(kind)
            restore(prefix, **dict.fromkeys(names, encoder))
            assert_same_bits(encoder_values(encoder), expected)
        encoder = make_encoder(kind)
        tf.train.Checkpoint(encoder).restore(prefix).assert_existing_objects_matched().expect_partial()
        assert_same_bits(encoder_values(encoder), expected)


@ENCODERS
def test_their_pretrainer_restores_what_we_write(saved, kind):
    expected = dict(saved.weights)
    without_output = {name: value for name, value in expected.items() if "seq_relationship" not in name}

    def pretrainer_with(way):
        pretrainer = make_pretrainer(kind)
        if way == "items":
            restore(saved.prefix, **pretrainer.checkpoint_items)
        elif way == "model":
            restore(saved.prefix, model=pretrainer)
        else:
            restore(saved.prefix, model=pretrainer, **pretrainer.checkpoint_items)
        return pretrainer

    for way in ("model", "items", "both"):
        pretrainer = pretrainer_with(way)
        for pooler in (None, pretrainer.encoder_network.pooler_layer):
            values = pretrainer_values(pretrainer, pooler)
            if way == "items":  # their items have the head's pooler only
                values = {name: value for name, value in values.items() if "seq_relationship" not in name}
            assert_same_bits(values, without_output if way == "items" else expected)
    without_head = make_pretrainer(kind, with_head=False)
    restore(saved.prefix, model=without_head)
    assert_same_bits(pretrainer_values(without_head), without_output)


def test_their_hub_export_takes_what_we_write(saved, tmp_path):
    """The tool restores by itself, and what it exports reads back as the same weights."""
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
    weights = weight_files.open_weights(str(tmp_path / "hub"))
    assert weights.format == "model_garden" and weights.hints == {"num_attention_heads": 3, "do_lower_case": True}
    assert_same_bits(weights, {n: v for n, v in saved.weights.items() if "seq_relationship" not in n})


def test_reading_back_what_we_write(saved):
    weights = model_garden.open_weights(saved.prefix)
    assert_same_bits(weights, dict(saved.weights))
    assert weights.origins == saved.origins and set(saved.origins) == set(saved.weights)
    stored = dict(tf.train.list_variables(saved.prefix))
    assert set(saved.origins.values()) <= set(stored)
    query = saved.origins["bert/encoder/layer_1/attention/self/query/kernel"]
    # The shortest of the ways to it: the functional encoder's numbered layers, of which four are embeddings.
    assert query == "layer_with_weights-5/_attention_layer/_query_dense/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    assert stored[query] == [12, 3, 4]
    # The head's own pooler is a second copy of two tensors, and the counter the third entry without a place.
    assert sorted(reason.split(" as ")[0] for reason in weights.unused.values()) == [
        "a counter",
        "the same values",
        "the same values",
    ]
    assert_same_bits(model_garden.open_weights(saved.encoder_prefix), dict(saved.encoder))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "as" not in kind.split()])
def test_theirs_to_ours_to_theirs(official, tmp_path, kind):
    """Whatever was read is written with all names, and reads back with the same bits."""
    weights = model_garden.open_weights(official[kind][0])
    prefix = str(tmp_path / "x.ckpt")
    assert set(model_garden.save(prefix, weights, weights.hints["num_attention_heads"])) == set(weights)
    assert_same_bits(model_garden.open_weights(prefix), dict(weights))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.ckpt.data-00000-of-00001", "x.ckpt.index"]


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


# --- the original's checkpoints --------------------------------------------------------------------------------------


def golden_config(golden, name="config1"):
    folder = golden / "model" / name
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    return folder, config, np.load(folder / "inputs.npz"), np.load(folder / "outputs.npz")


def test_golden_outputs_in_their_model(golden, tmp_path):
    """The original's weights in their encoder and heads give the original's outputs.

    Without the last row, which has no key to attend to: there the original's soft mask (-10000) attends to all keys by
    their scores, and theirs (-1e9) to all alike.
    """
    folder, config, inputs, outputs = golden_config(golden)
    weights = weight_files.open_weights(str(folder / "bert_model.ckpt"))
    prefix = str(tmp_path / "bert_model.ckpt")
    model_garden.save(prefix, weights, config.num_attention_heads)
    found = model_garden.reference_outputs(prefix, config, dict(inputs))
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
    weights = weight_files.open_weights(str(folder / f"{name}.ckpt"))
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
