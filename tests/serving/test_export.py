"""What is exported: files, signatures, requests; batches in which two texts share a row, and windows of long texts."""

import concurrent.futures
import copy
import json
import os
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf
from absl import logging
from helpers import warm
from helpers.basics import GOLDEN, ROOT
from helpers.exports import CLASSIFIER, LABELS, check_answers, numbers_in, save_kind
from helpers.tiny import ONE_LAYER, save_model

from bert_tf import BertConfig
from bert_tf.models import task_models
from bert_tf.serving import export, graph_models, safe_graph
from bert_tf.serving.graph_inputs import TextEncoder, fold, unfolded
from bert_tf.serving.graph_models import ServedWindowClassifier
from bert_tf.serving.predictor import Predictor
from bert_tf.serving.question_answerer import QuestionAnswerer
from bert_tf.store.head_config import NO_HEAD
from bert_tf.store.open import find_export, open_model
from bert_tf.system.example_bytes import example, int64_feature, pack
from bert_tf.system.text_files import list_folder
from bert_tf.tasks import table
from bert_tf.tasks.rows import InputExample, Task, TextWindows, encode_examples
from bert_tf.text.graph_wordpiece import graph_of
from bert_tf.text.wordpiece import FullTokenizer

TEXTS = ["Hello, world!", "", "   \t ", "a much longer text that goes on and on " * 20]
TEXTS += ["서울은 한국의 수도이다. 日本語 ΑΣ"]
PAIRS = [("One text.", "Its pair."), ("long " * 80, "b " * 10), ("long " * 60, "other " * 60), ("c", "")]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """As a CrossEncoder of sentence-transformers saves one: its modules do not make vectors of texts."""
    folder = tmp_path_factory.mktemp("classifier")
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    path = save_model(folder, "bert", CLASSIFIER, labels=LABELS)
    (folder / "modules.json").write_text(json.dumps([module]))
    return path


@pytest.fixture(scope="module")
def exported(classifier, tmp_path_factory):
    """The classifier as version 42, with defaults."""
    return export.export_saved_model(classifier, str(tmp_path_factory.mktemp("exported")), version=42)


@pytest.fixture(scope="module")
def predictor(classifier):
    return Predictor(classifier)


@pytest.fixture(scope="module")
def loaded(exported):
    return Predictor(str(pathlib.Path(exported).parent), batch_size=4)


@pytest.fixture(scope="module")
def signatures(loaded):
    return loaded.export.signatures


# ---- classifier ------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # in small: test_every_task.py
@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
def test_texts_of_mixed_length_give_what_each_gives_alone(tmp_path, attention):
    """Texts of a batch share rows, except with causal attention; in frozen graphs."""
    path = save_model(tmp_path / "model", "bert", CLASSIFIER, config={"attention": attention}, labels=LABELS)
    texts = [" ".join(["word", "another", "서울", "!"][k % 4] for k in range(n)) for n in (40, 1, 7, 0, 22, 3, 60)]
    texts = [*texts, *zip(texts, reversed(texts), strict=True)]
    exported = Predictor(export.export_saved_model(path, str(tmp_path / "out"), freeze=True), batch_size=7)
    check_answers(exported.predict(texts), Predictor(path).predict(texts))


def test_ids_and_examples_give_the_same(signatures):
    features = FullTokenizer(str(GOLDEN / "vocab.txt"))(TEXTS, max_length=64)
    expected = signatures["serving_default"](text=tf.constant(TEXTS))["probabilities"].numpy()
    by_ids = signatures["serve_ids"](**{name: tf.constant(value) for name, value in features.items()})
    np.testing.assert_allclose(by_ids["probabilities"], expected, atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"input_ids has the value\] \[-"):
        signatures["serve_ids"](**features | {"input_ids": tf.constant(-features["input_ids"])})
    rows = [{name: value[row].tolist() for name, value in features.items()} for row in range(len(TEXTS))]
    short = [example([int64_feature(b"input_ids", pack(row["input_ids"][: sum(row["input_mask"])]))]) for row in rows]
    full = [example([int64_feature(name.encode(), pack(of)) for name, of in row.items()]) for row in rows]
    for serialized in (short, full, [short[0], *full[1:]]):
        found = signatures["serve_examples"](examples=tf.constant(serialized))["probabilities"]
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_odd_requests_are_answered_and_spoil_nothing(signatures):
    default = signatures["serving_default"]
    alone = default(text=tf.constant(["Hello, world!"]))["probabilities"].numpy()[0]
    odd = [b"Hello, world!", b"\xff\xfe broken \x80", b"", b" ", b"y" * 100_000, b"word " * 20_000, b"\x00\xef\xbf\xbd"]
    outputs = default(text=tf.constant(odd))
    np.testing.assert_allclose(outputs["probabilities"][0], alone, atol=1e-6)
    assert np.isfinite(outputs["probabilities"]).all()
    np.testing.assert_allclose(outputs["probabilities"][2], outputs["probabilities"][3], atol=1e-6)
    nothing = default(text=tf.zeros([0], tf.string))
    assert nothing["probabilities"].shape == (0, 3) and nothing["label"].shape == (0,)


@pytest.mark.slow
def test_pairs_as_the_default(classifier, predictor, tmp_path, caplog):
    logging.set_verbosity(logging.INFO)
    path = export.export_saved_model(classifier, str(tmp_path), text_pairs=True)
    assert any(f'Predictor("{path}")("One text.", "Its pair.")' in line for line in caplog.messages)
    opened = Predictor(path)
    signatures = opened.export.signatures
    assert set(signatures) == {"serving_default", "serve_ids", "serve_examples"}
    check_answers(opened.predict(PAIRS), predictor.predict(PAIRS))
    with pytest.raises(tf.errors.InvalidArgumentError, match="text and text_pair must be equally many"):
        signatures["serving_default"](text=tf.constant(["a", "b"]), text_pair=tf.constant(["c"]))


def test_predictor_takes_an_export(predictor, loaded, exported):
    """From the directory of versions (`test_the_script`: a version); single texts and pairs; eight threads at once."""
    assert find_export(list_folder(str(pathlib.Path(exported).parent))).path == exported
    mixed = [*TEXTS, *PAIRS]
    expected = predictor.predict(mixed)
    assert loaded.labels == LABELS and loaded.predict([]) == []
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for rows in pool.map(loaded.predict, [mixed] * 8):
            check_answers(rows, expected)
    with pytest.raises(ValueError, match="max_seq_length=10: the export has a fixed length of 64"):
        Predictor(exported, max_seq_length=10)
    with pytest.raises(ValueError, match="is an export for classification, not for squad"):
        QuestionAnswerer(exported)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_what_lies_in_a_version(exported):
    check_where_weights_are(exported, False)
    path = pathlib.Path(exported)
    assert path.name == "42" and os.listdir(path.parent) == ["42"]
    assert (path / "assets" / "vocab.txt").read_text() == (GOLDEN / "vocab.txt").read_text()
    assert (path / "assets" / "labels.txt").read_text() == "bad\nfair\n좋다\n"
    description = json.loads((path / "export.json").read_text())
    expected = {"task": "classification", "max_seq_length": 64, "lowest_serving_version": "2.7"}
    assert description | expected == description and "FastWordpieceTokenizeWithOffsets" in description["ops"]
    assert description["signatures"]["serving_default"]["inputs"] == {"text": ["string", [None]]}
    assert description["signatures"]["serving_default"]["outputs"]["probabilities"] == ["float32", [None, 3]]
    records = tf.data.TFRecordDataset(str(path / "assets.extra" / "tf_serving_warmup_requests")).as_numpy_iterator()
    texts = [graph_models.ServedModel.example(None)["text"]]
    assert [*records] == [export.warm_up_request({"text": texts * n}) for n in (1, 8)]
    # As the classes of tensorflow-serving-api 2.20 write it.
    assert export.warm_up_request({"text": ["A short text."] * 2}) == (
        b"2E\nC\n\x11\x1a\x0fserving_default\x12.\n\x04text\x12&\x08\x07\x12\x04\x12\x02\x08\x02"
        b"B\rA short text.B\rA short text."
    )
    prefix = f"{exported}/variables/variables"  # no seed: exports of one model are equal
    shapes = dict(tf.train.list_variables(prefix))
    assert {tf.train.load_variable(prefix, name).dtype.name for name in shapes if shapes[name]} == {"float32"}


def test_wrong_flags_leave_nothing(classifier, tmp_path):
    (tmp_path / "7").mkdir()
    for arguments, message in (
        ({"task": "squad"}, "is a model for classification, not for squad: use Predictor"),
        ({"task": "ner"}, "is a BertForSequenceClassification"),
        ({"task": "regression"}, "has 3 outputs, but a regression has one"),
        ({"version": 7}, "--version=7: .*7 already exists"),
        ({"max_seq_length": 65}, "max_seq_length=65: the model takes 3 to 64"),
    ):
        with pytest.raises(ValueError, match=message):
            export.export_saved_model(classifier, str(tmp_path), **arguments)
    assert [entry.name for entry in tmp_path.iterdir()] == ["7"]


def test_output_layers_that_are_alike(tmp_path):
    """head_config.json says which it is; without one, as beside a checkpoint of the original, --task does."""
    folder = save_model(tmp_path / "model", "bert", task_models.BertForMultipleChoice)
    assert table.task_in(open_model(folder)) == "multiple_choice"
    (tmp_path / "model/head_config.json").unlink()
    with pytest.raises(ValueError, match="give --task=regression or --task=multiple_choice"):
        table.task_in(open_model(folder))


def test_exports_at_once_get_versions_of_their_own(tmp_path):
    """One more than the highest; neither destroys the other; and what a killed one left is removed, but nothing behind
    a link."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("precious")
    out = str(tmp_path / "out")
    with export.version_folder(out) as left:
        killed = tmp_path / "out" / f"{pathlib.Path(left).parent.name}0"
    killed.mkdir()
    (killed / "link").symlink_to(tmp_path / "victim")
    os.utime(killed, (0, 0))
    for name in ("1", "3", "9", "10", ".11.tmp", "notes"):
        (tmp_path / "out" / name).mkdir()
    assert export.new_version(out, 2) == 2
    with export.version_folder(out) as one, export.version_folder(out) as other:
        for folder in (one, other):
            os.mkdir(folder)
            pathlib.Path(folder, "saved_model.pb").write_text(folder)
        assert export.publish(one, out, None) == f"{out}/11"
        with pytest.raises(ValueError, match="--version=1: .*/out/1 already exists"):
            export.publish(other, out, 1)
        assert export.publish(other, out, None) == f"{out}/12"
    assert {*os.listdir(out)} == {"1", "3", "9", "10", ".11.tmp", "notes", "11", "12"}
    assert (tmp_path / "out" / "11" / "saved_model.pb").read_text() == one
    assert (tmp_path / "victim" / "file").read_text() == "precious"


def check_where_weights_are(path, frozen: bool) -> None:
    """They are constants only if asked for: a server of a frozen model needs many times their size."""
    folder = pathlib.Path(path)
    assert json.loads((folder / "export.json").read_text())["frozen"] == frozen
    weights = sum(entry.stat().st_size for entry in (folder / "variables").glob("*.data*"))
    assert (weights > 1_900_000) != frozen  # 30,522 rows of 32 numbers of two bytes or four
    assert ((folder / "saved_model.pb").stat().st_size > 1_900_000 + weights) == frozen


def test_ops_a_server_lacks_are_named():
    function = tf.function(lambda x: tf.numpy_function(np.sin, [x], tf.float32), [tf.TensorSpec([], tf.float32)])
    ops = export.used_ops({"serving_default": function.get_concrete_function()})
    with pytest.raises(ValueError, match=r"TensorFlow Serving is not known to have .*: PyFunc$"):
        safe_graph.lowest_version(ops)
    assert safe_graph.lowest_version({"MatMul", "BatchMatMulV3"}) == "2.6"
    assert {name for name in safe_graph.FIRST_VERSION if "piece" not in name} <= set(dir(tf.raw_ops))


def test_the_script(classifier, predictor, tmp_path):
    command = [sys.executable, str(ROOT / "export_saved_model.py"), f"--model_dir={classifier}"]
    command += [f"--export_dir={tmp_path}/out", "--dtype=bfloat16", "--freeze", "--nowarm_up"]
    result = warm.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.splitlines()[0] == f"{tmp_path}/out/1"
    texts = ["one text", "또 하나"]
    found, expected = (numbers_in(one.predict(texts))[0] for one in (Predictor(f"{tmp_path}/out/1"), predictor))
    assert 1e-6 < np.abs(np.subtract(found, expected)).max() < 0.05
    assert "all in TensorFlow Serving 2.7 or later" in result.stderr
    for noise in ("unsupported characters", "fingerprint", "Sharding callback", "Assets written"):
        assert noise not in result.stderr
    assert f'In Python: from bert_tf import Predictor; Predictor("{tmp_path}/out/1")(' in result.stderr
    assert f"--model_base_path={tmp_path}/out" in result.stderr
    check_where_weights_are(tmp_path / "out" / "1", True)


# ---- batches in which two texts share a row, and windows -----------------------------------------------------------


def dense(lengths: list[int]) -> dict[str, tf.Tensor]:
    """Rows of these lengths, padded to the longest; all ids differ, and segments change half-way."""
    width = max(lengths, default=1)
    inside = np.arange(width) < np.array(lengths, int).reshape(-1, 1)
    ids = np.arange(1, len(lengths) * width + 1).reshape(-1, width) * inside
    segments = (np.arange(width) >= np.array(lengths, int).reshape(-1, 1) // 2) & inside
    features = {"input_ids": ids, "input_mask": inside, "segment_ids": segments}
    return {name: tf.constant(value, tf.int32) for name, value in features.items()}


def check_each_text_is_there(features, folded, lengths) -> None:
    found = {name: value.numpy() for name, value in folded.features.items()}
    for text, (place, length) in enumerate(zip(folded.places.numpy(), lengths, strict=True)):
        row, slot = divmod(place, 2)
        start = found["pooled_positions"][row, slot]
        tokens = slice(start, start + length)
        np.testing.assert_array_equal(found["input_ids"][row, tokens], features["input_ids"][text, :length])
        np.testing.assert_array_equal(found["segment_ids"][row, tokens], features["segment_ids"][text, :length])
        np.testing.assert_array_equal(found["position_ids"][row, tokens], np.arange(length))
        seen = found["input_mask"][row, tokens]  # [length, W]: its own tokens only
        own = np.isin(np.arange(seen.shape[1]), range(start, start + length))
        np.testing.assert_array_equal(seen, np.tile(own, (length, 1)))


def test_texts_share_rows_where_that_saves_padding():
    for lengths, shape in (
        ([50, 3, 20, 8, 30, 5, 12, 9], (4, 53)),
        ([3, 50, 8], (2, 53)),  # the one of medium length has a separate row
        ([50, 50, 2, 2], (2, 52)),
        ([20, 15, 18, 19], (4, 20)),  # almost nothing to save
        ([7], (1, 7)),
        ([], (0, 1)),
    ):
        features = dense(lengths)
        folded = fold(features)
        assert folded.features["input_ids"].shape == shape
        assert len(set(folded.places.numpy())) == len(lengths)
        check_each_text_is_there(features, folded, lengths)


def test_sentences_of_real_lengths_leave_half_of_the_tokens():
    lengths = np.minimum(2 + np.random.default_rng(3).gamma(3.0, 8.0, 32).astype(int), 128).tolist()
    features = dense(lengths)
    folded = fold(features)
    before, after = tf.size(features["input_ids"]), tf.size(folded.features["input_ids"])
    assert sum(lengths) <= after <= 0.65 * before.numpy()
    check_each_text_is_there(features, folded, lengths)


def test_any_mask_is_kept_where_nothing_is_folded():
    features = dense([4, 2])
    features["input_mask"] = tf.constant([[1, 0, 1, 1], [0, 0, 0, 0]])
    found = unfolded(features)
    np.testing.assert_array_equal(found.features["input_mask"][0], [[1, 0, 1, 1]] * 4)
    np.testing.assert_array_equal(found.features["input_mask"][1], [[0, 0, 0, 0]] * 4)
    np.testing.assert_array_equal(found.features["position_ids"], [[0, 1, 2, 3]] * 2)
    np.testing.assert_array_equal(found.places, [0, 2])


def test_the_side_that_a_folder_names(small, caplog):
    """What its `truncation_side` says; see test_transformers_call.py."""
    tokenizer, texts, pairs = copy.copy(small), random_texts(20, 30), random_texts(20, 30, 1)
    tokenizer.truncation_side = "left"
    for second in (None, pairs):
        encoder = TextEncoder(tokenizer, 9, graph_of(tokenizer))
        found = encoder.features(tf.constant(texts), second and tf.constant(second))
        for name, value in tokenizer(texts, second, max_length=9).items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    encoded = encode_examples([InputExample("0", "a b c d e")], Task("", (), None), tokenizer, 5)
    assert encoded.ids.tolist() == small.encode("c d e", add_special_tokens=True)
    assert "5 tokens, of which the first are lost: 1 of 1 examples." in caplog.text


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
CONFIG = BertConfig.from_dict({**ONE_LAYER, "vocab_size": len(PIECES), "max_position_embeddings": 8})


def random_texts(count, longest, seed=0):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(list("abcdefghij"), size)) for size in generator.integers(0, longest, count)]


@pytest.mark.parametrize(("stride", "most"), [(3, 4), (1, 2)])
def test_the_windows_are_those_of_the_scripts(small, stride, most):
    model = CLASSIFIER(CONFIG, 2, window_pooling="mean", window_stride=stride, max_windows=most)
    served = ServedWindowClassifier(model, TextEncoder(small, 8, graph_of(small)), NO_HEAD)
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
def test_an_export_of_windows_reads_single_texts(tmp_path):
    """Its answers: test_every_task.py."""
    folder = save_kind(tmp_path / "model", "bert", "mean")
    exported = Predictor(export.export_saved_model(folder, str(tmp_path / "exported")))
    assert set(exported.export.signatures) == {"serving_default", "serve_ids"}
    with pytest.raises(KeyError, match="serve_pairs"):
        exported("a", "b")
    with pytest.raises(ValueError, match="--text_pairs: .* reads windows of single texts"):
        export.export_saved_model(folder, str(tmp_path / "pairs"), text_pairs=True)
    assert not (tmp_path / "pairs").exists()
