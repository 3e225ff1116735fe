"""Exports of classifiers that read windows: the windows of the scripts, the answers of Predictor, what is refused."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.outputs import enlarge
from helpers.tiny import ONE_LAYER

from bert_tf import BertForSequenceClassification, Predictor
from bert_tf.models.config import BertConfig
from bert_tf.serving import export, onnx_export
from bert_tf.serving.graph_models import ServedWindowClassifier
from bert_tf.tasks.classification.data import InputExample, Task
from bert_tf.tasks.classification.encode import TextWindows, encode_examples

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
CONFIG = BertConfig.from_dict({**ONE_LAYER, "vocab_size": len(PIECES), "max_position_embeddings": 8})


def random_texts(count, longest, seed=0):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(list("abcdefghij"), size)) for size in generator.integers(0, longest, count)]


def model_of(pooling, stride, most):
    model = BertForSequenceClassification(
        CONFIG, labels=["no", "yes"], window_pooling=pooling, window_stride=stride, max_windows=most, seed=1
    )
    return enlarge(model, 3)


@pytest.mark.parametrize(("stride", "most"), [(3, 4), (1, 2)])
def test_the_windows_are_those_of_the_scripts(small, stride, most):
    served = ServedWindowClassifier(model_of("mean", stride, most), small, 8, ["no", "yes"], None)
    for texts in (random_texts(30, 40), ["", "a b"], ["a b c d e f g"], ["a b c d e f"]):
        examples = [InputExample(str(k), text) for k, text in enumerate(texts)]
        encoded = encode_examples(examples, Task("", (), None), small, 8, windows=TextWindows(stride, most))
        features = served.features_of_texts(tf.constant(texts))
        expected = encoded.batch(range(len(texts)), int(encoded.lengths.max()))
        assert features.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(features[name], value, err_msg=name)
    assert served.features_of_texts(tf.constant([], tf.string))["input_ids"].shape[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "max", "attention"])
def test_an_export_answers_as_predictor_does(small, tmp_path, pooling):
    model, texts = model_of(pooling, 3, 4), random_texts(20, 40)
    if pooling == "attention":
        model.windows.scores.assign(np.linspace(-3, 3, CONFIG.hidden_size))
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(piece + "\n" for piece in PIECES))
    folder = str(tmp_path / "model")
    model.save_pretrained(folder, vocab_file=str(vocab), do_lower_case=True)
    expected = Predictor(folder).logits(texts)
    assert {*expected.argmax(-1)} == {0, 1}
    for freeze in (True, False):
        path = export.export_saved_model(folder, str(tmp_path / "exported"), freeze=freeze)
        exported = Predictor(path)
        found = [list(one["probabilities"].values()) for one in exported.predict(texts)]
        np.testing.assert_allclose(found, tf.nn.softmax(expected), atol=1e-5)
        loaded = tf.saved_model.load(path).signatures
        assert set(loaded) == {"serving_default", "serve_ids"}
    with pytest.raises(ValueError, match="the export is of a model that reads windows of single texts, not pairs"):
        exported("a", "b")
    with pytest.raises(ValueError, match="--text_pairs: .* reads windows of single texts"):
        export.export_saved_model(folder, str(tmp_path / "pairs"), text_pairs=True)
    with pytest.raises(ValueError, match="--format=onnx: .* reads long texts in windows"):
        onnx_export.export_onnx(folder, str(tmp_path / "phone"))
    assert not (tmp_path / "pairs").exists() and not (tmp_path / "phone").exists()
