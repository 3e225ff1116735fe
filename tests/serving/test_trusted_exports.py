"""Exports whose graphs could do more than answer are not loaded, unless they are trusted."""

import json
import re
import shutil

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2, saved_model_pb2

from bert_tf import Predictor, QuestionAnswerer
from bert_tf.serving import loaded_export, safe_graph

TEXTS = tf.TensorSpec([None], tf.string, name="text")
OPENED_BY = {"regression": Predictor, "squad": QuestionAnswerer}


class Answers(tf.Module):
    """What an export does, and nothing else."""

    @tf.function(input_signature=[TEXTS])
    def __call__(self, text):
        return {"score": tf.cast(tf.strings.length(text), tf.float32)}


class ReadsWhenLoaded(Answers):
    """Reads a file when it is loaded, into a table that no signature uses."""

    def __init__(self, path):
        keys = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        source = tf.lookup.TextFileInitializer(str(path), tf.string, keys[0], tf.int64, keys[1])
        self.table = tf.lookup.StaticHashTable(source, -1)


class Calls(tf.Module):
    """A signature that calls a function, as a graph for `altered`."""

    @tf.function(input_signature=[TEXTS])
    def __call__(self, text):
        @tf.function
        def inner(text):
            return tf.cast(tf.strings.length(text), tf.float32)

        return {"score": inner(text)}


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


@pytest.mark.parametrize("task", ["regression", "squad"])
def test_a_graph_that_reads_when_it_is_loaded(tmp_path, task):
    (tmp_path / "words").write_text("a\nb\n")
    path, kind = save(ReadsWhenLoaded(tmp_path / "words"), tmp_path / "model", task), OPENED_BY[task]
    message = r"no export has, and which may do anything: HashTableV2, InitializeTableFromTextFileV2"
    with pytest.raises(ValueError, match=message):
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


# ---- graphs that hide what they do -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    return save(Calls(), tmp_path_factory.mktemp("calls") / "model")


def altered(calls, folder, change):
    """The path of a copy of an export of `Calls` whose graph, a MetaGraphDef, was changed."""
    path = str(shutil.copytree(calls, folder))
    file = folder / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    change(saved.meta_graphs[0])
    file.write_bytes(saved.SerializeToString())
    return path


def functions(graph, name):
    """The functions of the library whose names begin so; there is one for each time that TensorFlow traced the call."""
    return [one for one in graph.graph_def.library.function if one.signature.name.startswith(f"__inference_{name}")]


def call_of(graph):
    """A node that calls a function, in another function."""
    inner = {one.signature.name for one in functions(graph, "inner")}
    nodes = (node for one in graph.graph_def.library.function for node in one.node_def if "f" in node.attr)
    return next(node for node in nodes if node.attr["f"].func.name in inner)


def add(graph, op):
    """A new node of a function."""
    return functions(graph, "inner")[0].node_def.add(name="new", op=op)


def saver_of(graph):
    (found,) = functions(graph, "_traced_save")
    return found


def rename_saver(graph, name):
    """Calls it so wherever the file does, and lets a node of a function call it by its op."""
    saver = saver_of(graph)
    for node in graph.graph_def.node:
        if node.attr["f"].func.name == saver.signature.name:
            node.attr["f"].func.name = name
    saver.signature.name = name
    add(graph, name)


def node_of(graph, op):
    return next(node for node in saver_of(graph).node_def if node.op == op)


def constant_in(graph, value):
    added = saver_of(graph).node_def.add(name="elsewhere", op="Const")
    added.attr["dtype"].type = tf.string.as_datatype_enum
    added.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return "elsewhere:output:0"


def set_config(graph, **options):
    config = config_pb2.ConfigProto.FromString(call_of(graph).attr["config_proto"].s)
    config.graph_options.rewrite_options.MergeFrom(rewriter_config_pb2.RewriterConfig(**options))
    call_of(graph).attr["config_proto"].s = config.SerializeToString()


def hold_handle(graph):
    constant = functions(graph, "inner")[0].node_def.add(name="handle", op="Const")
    constant.attr["dtype"].type = tf.resource.as_datatype_enum
    constant.attr["value"].tensor.dtype = tf.resource.as_datatype_enum


CUSTOM = rewriter_config_pb2.RewriterConfig.CustomGraphOptimizer(name="other")
ALTERED = {
    "a function": (
        lambda graph: add(graph, "WriteFile"), "ops that no export has.*: WriteFile\\."),
    "the main graph": (
        lambda graph: graph.graph_def.node.add(name="write", op="WriteFile"), "ops that .*: WriteFile\\."),
    "more than saving in the function that saves": (
        lambda graph: saver_of(graph).node_def.add(name="w", op="WriteFile"), "ops that .*: WriteFile\\."),
    "saving in another function": (
        lambda graph: add(graph, "SaveV2"), "ops that .*: SaveV2\\."),
    "a function that a node names as its op": (
        lambda graph: functions(graph, "_traced_restore")[0].node_def.add(name="s", op=saver_of(graph).signature.name),
        "ops that .*: __inference__traced_save_"),
    **{
        f"saving as a function called {name!r}": (
            lambda graph, name=name: rename_saver(graph, name), f"functions (and ops )?that .*: {re.escape(name)}")
        for name in (
            "AsString", "FastWordpieceTokenizeWithOffsets", "_Arg", "\u0410sString", "AsString_1a", "AsString_\u0661")},
    "a function of a signature that is called like an op": (
        lambda graph: setattr(functions(graph, "inner")[0].signature, "name", "Identity"), "functions .*Identity"),
    "saving called in the main graph": (
        lambda graph: setattr(graph.graph_def.node.add(name="s", op="PartitionedCall").attr["f"].func, "name",
                              saver_of(graph).signature.name), "calls that .*: __inference__traced_save_"),
    "saving as the body of a loop": (
        lambda graph: setattr(add(graph, "While").attr["body"].func,
                              "name", saver_of(graph).signature.name), "calls that .*: __inference__traced_save_"),
    "saving as the gradient of a function": (
        lambda graph: graph.graph_def.library.gradient.add(
            function_name=functions(graph, "inner")[0].signature.name, gradient_func=saver_of(graph).signature.name),
        "calls that .*: __inference__traced_save_"),
    "a call in the function that saves": (
        lambda graph: saver_of(graph).node_def.add(name="s", op="PartitionedCall"), "ops that .*: PartitionedCall\\."),
    "saving to another file": (
        lambda graph: node_of(graph, "SaveV2").input.__setitem__(0, constant_in(graph, b"/etc/passwd")),
        "file names that .*: SaveV2\\."),
    "another suffix": (
        lambda graph: node_of(graph, "StringJoin").input.__setitem__(1, constant_in(graph, b"/../../model")),
        "file names that .*: MergeV2Checkpoints, SaveV2\\."),
    "reading another file": (
        lambda graph: functions(graph, "_traced_restore")[0].node_def.add(
            name="RestoreV2_9", op="RestoreV2", input=["elsewhere", "names", "slices"]),
        "file names that .*: RestoreV2_9\\."),
    "saving called": (
        lambda graph: setattr(call_of(graph).attr["f"].func, "name", saver_of(graph).signature.name),
        "calls that .*: __inference__traced_save_"),
    "saving called by an object": (
        lambda graph: graph.object_graph_def.concrete_functions[saver_of(graph).signature.name].SetInParent(),
        "calls that .*: __inference__traced_save_"),
    "saving as a gradient": (
        lambda graph: graph.graph_def.library.registered_gradients.add(
            gradient_func=saver_of(graph).signature.name, registered_op_type="CustomGradient-1"),
        "calls that .*: __inference__traced_save_"),
    "a function that is elsewhere": (
        lambda graph: setattr(call_of(graph).attr["f"].func, "name", "elsewhere"), "calls that .*: elsewhere\\."),
    "a function in an attribute of an attribute": (
        lambda graph: setattr(call_of(graph).attr["f"].func.attr["g"].func, "name", "elsewhere"),
        "attributes that .*: those of __inference_inner_"),
    "an attribute from elsewhere": (
        lambda graph: setattr(call_of(graph).attr["f"], "placeholder", "g"), "attributes that .*: f\\."),
    "an attribute of an argument": (
        lambda graph: setattr(functions(graph, "inner")[0].arg_attr[0].attr["_other"], "b", True),
        "attributes that .*: _other\\."),
    "another kernel": (lambda graph: setattr(call_of(graph).attr["_kernel"], "s", b"x"), "attributes .*: _kernel\\."),
    "an executor": (
        lambda graph: setattr(call_of(graph).attr["executor_type"], "s", b"x"), "attributes that .*: executor_type\\."),
    "an optimizer of another library": (
        lambda graph: set_config(graph, custom_optimizers=[CUSTOM]), "attributes that .*: config_proto\\."),
    "damaged settings": (
        lambda graph: setattr(call_of(graph).attr["config_proto"], "s", b"\xff"), "attributes .*: config_proto\\."),
    "another machine": (
        lambda graph: setattr(call_of(graph), "device", "/job:worker"), "devices that .*: /job:worker\\."),
    "a variable of someone else": (hold_handle, "constants of the type that no export has.*: DT_RESOURCE\\."),
    "an object of another class": (
        lambda graph: setattr(graph.object_graph_def.nodes[0].user_object, "identifier", "optimizer"),
        "objects that .*: optimizer\\."),
    "a registered saver": (
        lambda graph: setattr(graph.object_graph_def.nodes[0], "registered_saver", "a.b"), "objects that .*: a.b\\."),
    "a device of an object": (
        lambda graph: graph.object_graph_def.nodes.add(resource={"device": "/job:a"}), "devices that .*: /job:a\\."),
    "an asset above": (
        lambda graph: graph.asset_file_def.add(filename="../a\x1b[2J\nb"), r"assets .*: ../a\\u001b\[2J\\u000ab\."),
    "the folder as an asset": (lambda graph: graph.asset_file_def.add(filename=".."), "assets that .*: \\.\\.\\."),
}  # fmt: skip


@pytest.mark.parametrize("case", ALTERED)
def test_what_no_export_has(case, calls, tmp_path):
    change, message = ALTERED[case]
    path = altered(calls, tmp_path / "model", change)
    with pytest.raises(ValueError, match=f"model/saved_model.pb has {message}"):
        Predictor(path)


def test_no_op_has_a_name_that_a_function_may_have():
    assert len(dir(tf.raw_ops)) > 1000 and not any(map(safe_graph._NAME_OF_FUNCTION.fullmatch, dir(tf.raw_ops)))


def test_settings_that_training_chose_are_no_danger(calls, tmp_path):
    path = altered(calls, tmp_path / "model", lambda graph: set_config(graph, arithmetic_optimization=2))
    assert Predictor(path).logits(["ab"]).tolist() == [[2.0]]
