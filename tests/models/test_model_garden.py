"""Reading weights of tf-models-official: its own classes write the files, and compute what ours have to."""

import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import model_garden_models as garden
from helpers.basics import slow
from helpers.outputs import assert_close, assert_same_bits

from bert_tf import BertForMaskedLM, BertForQuestionAnswering, BertForSequenceClassification, BertModel
from bert_tf.conversion import convert
from bert_tf.families.albert import AlbertConfig
from bert_tf.families.electra import ElectraConfig
from bert_tf.models.electra import ElectraDiscriminator
from bert_tf.models.task_models import BertForPreTraining, BertForTokenClassification
from bert_tf.store import model_garden
from bert_tf.store.open import open_model, open_weights

tf_keras = pytest.importorskip("tf_keras")
from official.nlp import optimization  # noqa: E402
from official.nlp.modeling import layers, models, networks  # noqa: E402

ENCODED, PRETRAINED = ("sequence_output", "pooled_output"), ("mlm_logits", "next_sentence")


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """Checkpoints of every kind: name -> (prefix, our class, their outputs, number of unused entries)."""
    folder, kinds = tmp_path_factory.mktemp("official"), (networks.BertEncoder, networks.BertEncoderV2)
    one, two = (garden.randomise(garden.make_pretrainer(kind), seed) for seed, kind in enumerate(kinds))
    first, second = one.encoder_network, two.encoder_network
    encoded, pretrained = garden.outputs_of(first, *ENCODED), garden.outputs_of(two, *PRETRAINED)
    masked = garden.outputs_of(one, "mlm_logits")
    files = {
        "as model and encoder": (garden.write(folder, "model", model=first, encoder=first), BertModel, encoded, 1),
        "as root": (tf.train.Checkpoint(second).save(str(folder / "root")), BertModel,
                    garden.outputs_of(second, *ENCODED), 1),
        "in items": (garden.write(folder, "items", **one.checkpoint_items), BertForMaskedLM, masked, 3),
        "in items and model": (garden.write(folder, "both", model=two, **two.checkpoint_items), BertForPreTraining,
                               pretrained, 3),
        # One more unused entry: do_lower_case. A SavedModel has no save counter.
        "in a SavedModel": (garden.export(folder, one, kinds[0], False), BertModel, encoded, 1),
        "in a SavedModel with masked LM": (garden.export(folder, two, kinds[1], True), BertForMaskedLM,
                                           pretrained[:1], 1),
    }  # fmt: skip

    optimizer, count = optimization.AdamWeightDecay(0.1), len(one.trainable_variables)
    optimizer.apply_gradients([(tf.ones_like(value), value) for value in one.trainable_variables])
    prefix = garden.write(folder, "trainer", model=one, optimizer=optimizer, global_step=optimizer.iterations)
    # Two moments each, four settings, two counters, the encoder's own pooler; of a newer optimizer one setting.
    files["trainer"] = prefix, BertForPreTraining, garden.outputs_of(one, *PRETRAINED), 2 * count + 4 + 2 + 2
    newer = tf_keras.optimizers.Adam()
    newer.build(two.trainable_variables)
    prefix = garden.write(folder, "newer_trainer", model=two, optimizer=newer)
    files["trainer, newer optimizer"] = prefix, BertForPreTraining, pretrained, 2 * count + 1 + 2 + 2

    older = models.BertPretrainer(garden.make_encoder(kinds[0], dict_outputs=False), 2, 16, activation=garden.gelu)
    for number, (model, kind, names, num_unused) in enumerate((
        (older, BertForPreTraining, ("masked_lm", "classification"), 1),
        (models.BertClassifier(first, 3), BertForSequenceClassification, (), 1),
        (models.BertClassifier(first, 3, use_encoder_pooler=False), BertForSequenceClassification, (), 3),
        (models.BertSpanLabeler(first), BertForQuestionAnswering, (), 1),
        (models.BertTokenClassifier(first, 5), BertForTokenClassification, (), 1),
    )):  # fmt: skip
        prefix = garden.write(folder, f"head-{number}", model=garden.randomise(model, 7 + number))
        files[f"{number}: {type(model).__name__}"] = prefix, kind, garden.outputs_of(model, *names), num_unused
    return files


@pytest.mark.slow
def test_every_kind(official):
    for name, (prefix, kind, expected, num_unused) in official.items():
        weights = model_garden.open_checkpoint(prefix)
        assert (weights.format, weights.path, weights.hints["num_attention_heads"]) == ("model_garden", prefix, 3)
        assert weights.hints.get("do_lower_case") == ("masked LM" in name if "SavedModel" in name else None), name
        # Every entry of the file is accounted for once.
        entries = {entry for entry, _ in tf.train.list_variables(prefix)} - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
        assert set(weights.origins.values()) | set(weights.unused) == entries, name
        assert len(weights.origins) + len(weights.unused) == len(entries), name
        assert len(weights.unused) == num_unused, (name, weights.unused)
        garden.assert_outputs(prefix, kind, expected)


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


@pytest.mark.parametrize("kind", [networks.BertEncoder, networks.BertEncoderV2])
def test_outputs_equal_theirs(kind, tmp_path):
    """Padding and segments count, the trained pooler is the next-sentence head's, and the encoder's is reported."""
    pretrainer = garden.randomise(garden.make_pretrainer(kind))
    prefix = garden.write(tmp_path, "x", model=pretrainer)
    garden.assert_outputs(prefix, BertForPreTraining, garden.outputs_of(pretrainer, *PRETRAINED))
    weights = model_garden.open_checkpoint(prefix)
    suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert weights.origins["bert/pooler/dense/kernel"] == f"model/classification_heads/0/dense/kernel{suffix}"
    reasons = [reason for reason in weights.unused.values() if "the head has a pooler of its own" in reason]
    assert len(reasons) == 2 and all("classification_heads/0/dense" in reason for reason in reasons)
    assert weights.unused["save_counter" + suffix] == "a counter"


@pytest.mark.parametrize("embedding_width", [24, *slow(32)])
def test_an_albert(tmp_path, embedding_width):
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    encoder = garden.randomise(networks.AlbertEncoder(
        embedding_width=embedding_width, num_layers=3, max_sequence_length=20, type_vocab_size=2, dict_outputs=True,
        activation=garden.gelu, **sizes,
    ))  # fmt: skip
    prefix = tf.train.Checkpoint(model=encoder).write(str(tmp_path / "garden" / "ckpt-1"))
    with pytest.raises(ValueError, match="has no .*config.json"):  # the number of layers can't be seen
        BertModel.from_pretrained(prefix)
    config = AlbertConfig(embedding_size=embedding_width, num_hidden_layers=3, max_position_embeddings=20, **sizes)
    config.save(str(tmp_path / "garden" / "albert_config.json"))
    convert.convert(prefix, str(tmp_path / "ours"), "bert_tf", do_lower_case=True)
    assert open_model(prefix).config == open_model(str(tmp_path / "ours")).config == config
    garden.assert_outputs(str(tmp_path / "ours"), BertModel, garden.outputs_of(encoder, *ENCODED))


@pytest.mark.parametrize("split_heads", [True, False])
def test_names_of_older_releases(tmp_path, split_heads):
    values, expected = garden.older_names(split_heads=split_heads)
    assert "bert_model/encoder/layer_1/self_attention_output/kernel" in values
    weights = model_garden.open_checkpoint(garden.write_variables(tmp_path / "older", values))
    assert_same_bits(weights, expected)
    assert weights.hints == ({"num_attention_heads": 3} if split_heads else {})
    # A position table from the time in between.
    values["position_embeddings/embeddings"] = values.pop("bert_model/embedding_postprocessor/position_embeddings")
    between = garden.write_variables(tmp_path / "between", values)
    assert_same_bits(model_garden.open_checkpoint(between), expected)


def test_heads_that_do_not_fit_are_listed(tmp_path):
    """A pooler with the head's own width invalidates the head; the encoder's pooler then counts."""
    pretrainer = models.BertPretrainerV2(
        garden.make_encoder(networks.BertEncoderV2),
        classification_heads=[garden.next_sentence_head(5), layers.ClassificationHead(12, 3, name="topic")],
    )
    pretrainer(pretrainer.inputs)
    prefix = garden.write(tmp_path, "p", model=garden.randomise(pretrainer))
    weights = model_garden.open_checkpoint(prefix)
    garden.assert_outputs(prefix, BertModel, garden.outputs_of(pretrainer.encoder_network, *ENCODED))
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


def configs(embedding_size):
    own = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return (
        ElectraConfig(embedding_size=embedding_size, **own, **SIZES),
        ElectraConfig(embedding_size=embedding_size or 8, **small, **SIZES),
    )


@pytest.fixture(scope="module", params=[(6, True), (12, False)], ids=["narrow, tied", "two tables"])
def trained(tmp_path_factory, request):
    """What the trainer writes after a step: prefix, pretrainer, configurations of discriminator and generator."""
    embedding_size, tied = request.param
    both = configs(embedding_size)
    # As its task builds it (nlp/tasks/electra_task.py, `_build_pretrainer`).
    widths = [{"embedding_width": config.embedding_size} for config in both]
    encoder = garden.make_encoder(networks.BertEncoder, both[0], **widths[0])
    shared = {"embedding_layer": encoder.get_embedding_layer()} if tied else {}
    sizes = dict.fromkeys(("sequence_length", "num_token_predictions"), garden.EXAMPLE["input_ids"].shape[1])
    sizes |= {"vocab_size": both[1].vocab_size, "num_classes": 2, "mlm_activation": garden.gelu}
    heads = [layers.ClassificationHead(10, 2, name="next_sentence")]
    generator = garden.make_encoder(networks.BertEncoder, both[1], **widths[1], **shared)
    pretrainer = models.ElectraPretrainer(generator, encoder, classification_heads=heads, **sizes)
    pretrainer(garden.inputs(masked_lm_ids=tf.constant(garden.EXAMPLE["input_ids"])))
    optimizer = tf_keras.optimizers.Adam()
    optimizer.build(pretrainer.trainable_variables)
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
    others = (garden.EXAMPLE["input_ids"] + 1) % 50
    inputs = garden.inputs(masked_lm_ids=tf.constant(others))
    # It unmasks the texts only for the discriminator.
    logits = BertForMaskedLM.from_pretrained(prefix)(garden.EXAMPLE)
    assert_close(logits, pretrainer(inputs, training=False)["lm_outputs"])
    hidden = pretrainer.discriminator_network([others, inputs["input_mask"], inputs["input_type_ids"]])
    hidden = pretrainer.discriminator_projection(hidden["sequence_output"])
    ours = {**garden.EXAMPLE, "input_ids": others}
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
