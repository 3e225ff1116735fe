"""Small random models of tf-models-official, their checkpoints, and their outputs beside those of ours."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.families.config import BertConfig
from bert_tf.families.family import expected_shapes
from bert_tf.models.inputs import select
from helpers.outputs import example_inputs

# Imported after the test process has set its logical devices.
tf_keras = pytest.importorskip("tf_keras", reason="needs tf-models-official and tf_keras")
pytest.importorskip("official.nlp.modeling", reason="needs tf-models-official")
from official.legacy.bert import configs  # noqa: E402
from official.nlp.configs import encoders  # noqa: E402
from official.nlp.modeling import layers, models, networks  # noqa: E402
from official.nlp.tools import export_tfhub_lib  # noqa: E402

CONFIG = BertConfig(50, 12, 2, 3, 20, max_position_embeddings=16, type_vocab_size=2)


def randomise(model, seed=0):
    generator = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(generator.normal(1.0 if "gamma" in variable.name else 0.0, 0.3, variable.shape))
    return model


def gelu(x):
    return tf_keras.activations.gelu(x, approximate=True)


def make_encoder(kind, config=CONFIG, **settings):
    renamed = {"num_layers": "num_hidden_layers", "inner_dim": "intermediate_size"}
    renamed |= {"max_sequence_length": "max_position_embeddings"}
    names = ("vocab_size", "hidden_size", "num_attention_heads", "type_vocab_size", *renamed)
    sizes = {name: getattr(config, renamed.get(name, name)) for name in names}
    encoder = kind(**sizes | ({"dict_outputs": True} if kind is networks.BertEncoder else {}) | settings)
    if not encoder.built:
        encoder(encoder.inputs)
    return encoder


def next_sentence_head(size=CONFIG.hidden_size):
    return layers.ClassificationHead(inner_dim=size, num_classes=2, activation="tanh", name="next_sentence")


def make_pretrainer(kind, config=CONFIG):
    heads = [next_sentence_head(config.hidden_size)]
    pretrainer = models.BertPretrainerV2(make_encoder(kind, config), mlm_activation=gelu, classification_heads=heads)
    inputs = pretrainer.inputs
    pretrainer(inputs if isinstance(inputs, dict) else {tensor.name: tensor for tensor in inputs})
    return pretrainer


EXAMPLE = example_inputs(CONFIG)


def inputs(**more) -> dict:
    """Those of the example by their names, and more."""
    names = {"input_word_ids": "input_ids", "input_mask": "input_mask", "input_type_ids": "segment_ids"}
    names |= {"masked_lm_positions": "masked_lm_positions"}
    return {name: tf.constant(EXAMPLE[ours]) for name, ours in names.items()} | more


def outputs_of(model, *names) -> list:
    """What a model of theirs gives for the example: these of its outputs, or all."""
    outputs = model(inputs(), training=False)
    return [outputs[name] for name in names] if names else tf.nest.flatten(outputs)


def assert_outputs(prefix, kind, expected: list) -> None:
    """A model of ours that reads their checkpoint gives the same."""
    model = kind.from_pretrained(prefix)
    outputs = model(select(EXAMPLE, model.known_inputs))
    outputs = [*outputs.values()] if isinstance(outputs, dict) else [outputs]
    for found, value in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(found, value, atol=1e-5, rtol=0, err_msg=prefix)


def write(folder, name, **objects):
    return tf.train.Checkpoint(**objects).save(str(folder / name))


def export(folder, pretrainer, kind, with_mlm):
    """Writes the SavedModel that the library's tool makes for TensorFlow Hub; returns the prefix of its variables."""
    encoder = pretrainer.encoder_network
    objects = pretrainer.checkpoint_items if with_mlm else {"model": encoder, "encoder": encoder}
    names = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings",
             "type_vocab_size")  # fmt: skip
    sizes = {name: getattr(CONFIG, name) for name in names}
    if kind is networks.BertEncoder:
        config = {"bert_config": configs.BertConfig(num_hidden_layers=CONFIG.num_hidden_layers, **sizes)}
    else:
        bert = encoders.BertEncoderConfig(num_layers=CONFIG.num_hidden_layers, **sizes)
        config = {"encoder_config": encoders.EncoderConfig(type="bert", bert=bert)}
    (folder / "vocab.txt").write_text("[PAD]\n")
    target = folder / f"hub_{kind.__name__}_{with_mlm}"
    config |= {"model_checkpoint_path": write(folder, f"for_hub_{kind.__name__}_{with_mlm}", **objects)}
    config |= {"with_mlm": with_mlm, "do_lower_case": with_mlm, "vocab_file": str(folder / "vocab.txt")}
    export_tfhub_lib.export_model(str(target), **config)
    return str(target / "variables" / "variables")


def write_variables(prefix, values):
    tree = tf.train.Checkpoint()
    tree.variables = [tf.Variable(value, name=name) for name, value in values.items()]
    return tree.write(str(prefix))


def older_names(config=CONFIG, split_heads=True):
    """Full name -> array in the spelling of the 2019 releases, and the original's name -> array."""
    generator, shapes = np.random.default_rng(0), expected_shapes(config).items()
    shapes = [(name, shape) for name, shape in shapes if not name.startswith("cls/seq_relationship/")]
    weights = {name: generator.normal(0, 1, shape).astype(np.float32) for name, shape in shapes}
    renamed = [
        ("bert/embeddings/word_embeddings", "bert_model/word_embeddings/embeddings"),
        ("bert/embeddings/token_type_embeddings", "bert_model/embedding_postprocessor/type_embeddings"),
        ("bert/embeddings/position_embeddings", "bert_model/embedding_postprocessor/position_embeddings"),
        ("bert/embeddings/LayerNorm", "bert_model/embedding_postprocessor/layer_norm"),
        ("bert/encoder/", "bert_model/encoder/"), ("attention/self", "self_attention"),
        ("attention/output/dense", "self_attention_output"),
        ("attention/output/LayerNorm", "self_attention_layer_norm"),
        ("intermediate/dense", "intermediate"), ("output/dense", "output"), ("output/LayerNorm", "output_layer_norm"),
        ("bert/pooler/dense", "bert_model/pooler_transform"),
        ("cls/predictions/output_bias", "cls/predictions/output_bias/bias"),
    ]  # fmt: skip
    values = {}
    for name, value in weights.items():
        if split_heads and "/attention/self/" in name:
            value = value.reshape((*value.shape[:-1], 3, 4))
        elif split_heads and name.endswith("attention/output/dense/kernel"):
            value = value.reshape((3, 4, 12))
        for original, older in renamed:
            name = name.replace(original, older)
        values[name] = value
    return values, weights
