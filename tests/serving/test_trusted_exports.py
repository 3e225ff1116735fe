"""Exports whose graphs could do more than answer are not loaded, unless they are trusted."""

import json

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf import ChoicePredictor, Predictor, QuestionAnswerer, Tagger
from bert_tf.serving import loaded_export

TEXTS = tf.TensorSpec([None], tf.string, name="text")


class Answers(tf.Module):
    """What an export does, and nothing else."""

    @tf.function(input_signature=[TEXTS])
    def __call__(self, text):
        return {"score": tf.cast(tf.strings.length(text), tf.float32)}


class Writes(tf.Module):
    """Writes a file when a signature is called, in a function of a branch of a function."""

    def __init__(self, path):
        self.path = str(path)

    @tf.function(input_signature=[TEXTS])
    def __call__(self, text):
        @tf.function
        def inner():
            tf.io.write_file(self.path, "written")
            return 1.0

        value = tf.cond(tf.size(text) > 0, inner, lambda: 0.0)
        return {"score": tf.zeros([tf.size(text)]) + value}


class ReadsWhenLoaded(Answers):
    """Reads a file when it is loaded, into a table that no signature uses."""

    def __init__(self, path):
        keys = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        source = tf.lookup.TextFileInitializer(str(path), tf.string, keys[0], tf.int64, keys[1])
        self.table = tf.lookup.StaticHashTable(source, -1)


def save(module, folder, task="regression") -> str:
    signature = {"inputs": {}, "outputs": {}}
    description = {"task": task, "labels": [], "max_seq_length": 8, "signatures": {"serving_default": signature}}
    tf.saved_model.save(module, str(folder), signatures=module.__call__.get_concrete_function())
    (folder / "export.json").write_text(json.dumps(description))
    return str(folder)


def test_an_export_is_loaded_as_it_is(tmp_path):
    module = Answers()
    module.table = tf.Variable([1.0])  # so that there is something to save and restore
    assert Predictor(save(module, tmp_path)).logits(["ab", "c"]).tolist() == [[2.0], [1.0]]


def test_a_graph_that_writes(tmp_path):
    path = save(Writes(tmp_path / "file"), tmp_path / "model")
    message = r"model/saved_model.pb has ops that no export has, and which may do anything: WriteFile\. If you trust it"
    with pytest.raises(ValueError, match=message):
        Predictor(path)
    Predictor(path, trust=True).logits(["a"])
    assert (tmp_path / "file").read_text() == "written"


def test_a_graph_that_reads_when_it_is_loaded(tmp_path):
    (tmp_path / "words").write_text("a\nb\n")
    path = save(ReadsWhenLoaded(tmp_path / "words"), tmp_path / "model")
    with pytest.raises(ValueError, match=r"may do anything: HashTableV2, InitializeTableFromTextFileV2"):
        Predictor(path)
    assert Predictor(path, trust=True).logits(["ab"]).tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("kind", "task"), [(QuestionAnswerer, "squad"), (Tagger, "ner"), (ChoicePredictor, "multiple_choice")]
)
def test_every_class(kind, task, tmp_path):
    path = save(Writes(tmp_path / "file"), tmp_path / "model", task)
    with pytest.raises(ValueError, match="WriteFile"):
        kind(path)
    assert kind(path, trust=True).export.task == task


def test_a_graph_of_tensorflow_1_or_none(tmp_path):
    path = tmp_path / "model"
    save(Answers(), path)
    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    saved.meta_graphs[0].ClearField("object_graph_def")
    (path / "saved_model.pb").write_bytes(saved.SerializeToString())
    with pytest.raises(ValueError, match="not an export of export_saved_model.py: it was not saved by TensorFlow 2"):
        loaded_export.check_ops(str(path))
    for content, message in ((b"\xff" * 9, "is damaged: it is not a SavedModel"), (b"", "was not saved by")):
        (path / "saved_model.pb").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            loaded_export.check_ops(str(path))
