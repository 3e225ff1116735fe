"""Exports whose graphs could do more than answer are not loaded, unless they are trusted."""

import json

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2, saved_model_pb2

from bert_tf import Predictor
from bert_tf.serving import safe_graph

TEXTS = tf.TensorSpec([None], tf.string, name="text")


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
    """A signature that calls a function."""

    @tf.function(input_signature=[TEXTS])
    def __call__(self, text):
        @tf.function
        def inner(text):
            return tf.cast(tf.strings.length(text), tf.float32)

        return {"score": inner(text)}


def save(module, folder) -> str:
    signatures = {"serving_default": {"inputs": {}, "outputs": {}}}
    description = {"task": "regression", "labels": [], "max_seq_length": 8, "signatures": signatures}
    tf.saved_model.save(module, str(folder), signatures=module.__call__.get_concrete_function())
    (folder / "export.json").write_text(json.dumps(description))
    return str(folder)


def test_an_export_is_loaded_as_it_is(tmp_path):
    module = Answers()
    module.table = tf.Variable([1.0])  # so that there is something to save and restore
    assert Predictor(save(module, tmp_path)).logits(["ab", "c"]).tolist() == [[2.0], [1.0]]


@pytest.mark.parametrize(("name", "kept", "message"), [
    ("saved_model.pb", 0.5, r"/saved_model.pb can't be read: is it damaged\? DecodeError: "),
    ("variables/variables.index", 0.5, "/saved_model.pb or what is in variables/ can't be read: is it damaged?"),
    ("variables/variables.data-00000-of-00001", 0, "/saved_model.pb or what is in variables/ can't be read: .*"),
    ("export.json", None, "/export.json does not say 'task' where exports do: is it damaged"),
])  # fmt: skip
def test_a_damaged_file_is_named_in_one_line(tmp_path, name, kept, message):
    module = Answers()
    module.table = tf.Variable([1.0])
    path, content = save(module, tmp_path), (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(b"{}" if kept is None else content[: int(len(content) * kept)])
    with pytest.raises(ValueError, match=f"^{path}{message}") as error:
        Predictor(path)
    assert "\n" not in str(error.value)


def test_a_graph_that_reads_when_it_is_loaded(tmp_path):
    (tmp_path / "words").write_text("a\nb\n")
    path = save(ReadsWhenLoaded(tmp_path / "words"), tmp_path / "model")
    message = r"no export has, and which may do anything: HashTableV2, InitializeTableFromTextFileV2"
    with pytest.raises(ValueError, match=message):
        Predictor(path)
    assert Predictor(path, trust=True).task.is_regression


def graph_in(path):
    return saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())


def test_a_graph_of_tensorflow_1_or_none(tmp_path):
    save(Answers(), tmp_path)
    saved, path = graph_in(tmp_path), tmp_path / "saved_model.pb"
    saved.meta_graphs[0].asset_file_def.add(filename="../a\x1b[2J\nb")
    path.write_bytes(saved.SerializeToString())
    message = (
        r"saved_model.pb has assets that no export has, and which may do anything: ../a\\u001b\[2J\\u000ab\. If you"
    )
    with pytest.raises(ValueError, match=message):
        safe_graph.check_ops(str(tmp_path))
    saved.meta_graphs[0].ClearField("object_graph_def")
    for content in (saved.SerializeToString(), b""):
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match="not an export of export_saved_model.py: it was not saved by TensorFlow 2"
        ):
            safe_graph.check_ops(str(tmp_path))


# ---- graphs that hide what they do -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """The folder of an export of `Calls`."""
    folder = tmp_path_factory.mktemp("calls")
    save(Calls(), folder)
    return folder


def functions(graph, name):
    """The functions of the library whose names begin so; there is one for each time that TensorFlow traced the call."""
    return [one for one in graph.graph_def.library.function if one.signature.name.startswith(f"__inference_{name}")]


def call_of(graph):
    """A node that calls a function, in another function."""
    inner = {one.signature.name for one in functions(graph, "inner")}
    nodes = (node for one in graph.graph_def.library.function for node in one.node_def if "f" in node.attr)
    return next(node for node in nodes if node.attr["f"].func.name in inner)


def add(graph, op, function="inner", **fields):
    """A new node of a function."""
    return functions(graph, function)[0].node_def.add(name="new", op=op, **fields)


def saver_of(graph):
    (found,) = functions(graph, "_traced_save")
    return found


def saving(graph) -> str:
    return saver_of(graph).signature.name


def let(message, **values):
    for name, value in values.items():
        setattr(message, name, value)


def rename_saver(graph, name):
    """Calls it so wherever the file does, and lets a node of a function call it by its op."""
    saver = saver_of(graph)
    for node in graph.graph_def.node:
        if node.attr["f"].func.name == saver.signature.name:
            node.attr["f"].func.name = name
    saver.signature.name = name
    add(graph, name)


def name_file(graph, op, number, value):
    """Makes a constant the input of a node of the function that saves."""
    added = saver_of(graph).node_def.add(name="elsewhere", op="Const")
    added.attr["dtype"].type = tf.string.as_datatype_enum
    added.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    next(node for node in saver_of(graph).node_def if node.op == op).input[number] = "elsewhere:output:0"


def set_config(graph, **options):
    config = config_pb2.ConfigProto.FromString(call_of(graph).attr["config_proto"].s)
    config.graph_options.rewrite_options.MergeFrom(rewriter_config_pb2.RewriterConfig(**options))
    call_of(graph).attr["config_proto"].s = config.SerializeToString()


def hold_handle(graph):
    constant = add(graph, "Const")
    constant.attr["dtype"].type = tf.resource.as_datatype_enum
    constant.attr["value"].tensor.dtype = tf.resource.as_datatype_enum


CUSTOM = rewriter_config_pb2.RewriterConfig.CustomGraphOptimizer(name="other")
SAVES = "calls: __inference__traced_save_"
NAMES = ("AsString", "FastWordpieceTokenizeWithOffsets", "_Arg", "\u0410sString", "AsString_1a", "AsString_\u0661")
# What is changed in a graph, and what is foreign then.
ALTERED = {
    "a function": (lambda g: add(g, "WriteFile"), "ops: WriteFile"),
    "the main graph": (lambda g: g.graph_def.node.add(name="write", op="WriteFile"), "ops: WriteFile"),
    "more than saving in the function that saves": (lambda g: add(g, "WriteFile", "_traced_save"), "ops: WriteFile"),
    "saving in another function": (lambda g: add(g, "SaveV2"), "ops: SaveV2"),
    "a function that a node names as its op": (
        lambda g: add(g, saving(g), "_traced_restore"), "ops: __inference__traced_save_"),
    **{
        f"saving as a function called {name!r}": (lambda g, name=name: rename_saver(g, name), f"functions: {name}")
        for name in NAMES},
    "a function of a signature that is called like an op": (
        lambda g: let(functions(g, "inner")[0].signature, name="Identity"), "functions: Identity"),
    "saving called in the main graph": (
        lambda g: let(g.graph_def.node.add(name="s", op="PartitionedCall").attr["f"].func, name=saving(g)), SAVES),
    "saving as the body of a loop": (lambda g: let(add(g, "While").attr["body"].func, name=saving(g)), SAVES),
    "saving as the gradient of a function": (
        lambda g: g.graph_def.library.gradient.add(
            function_name=functions(g, "inner")[0].signature.name, gradient_func=saving(g)), SAVES),
    "a call in the function that saves": (
        lambda g: add(g, "PartitionedCall", "_traced_save"), "ops: PartitionedCall"),
    "saving to another file": (lambda g: name_file(g, "SaveV2", 0, b"/etc/passwd"), "file names: SaveV2"),
    "another suffix": (
        lambda g: name_file(g, "StringJoin", 1, b"/../../model"), "file names: MergeV2Checkpoints, SaveV2"),
    "reading another file": (
        lambda g: add(g, "RestoreV2", "_traced_restore", input=["elsewhere", "names", "slices"]), "file names: new"),
    "saving called": (lambda g: let(call_of(g).attr["f"].func, name=saving(g)), SAVES),
    "saving called by an object": (
        lambda g: g.object_graph_def.concrete_functions[saving(g)].SetInParent(), SAVES),
    "saving as a gradient": (
        lambda g: g.graph_def.library.registered_gradients.add(
            gradient_func=saving(g), registered_op_type="CustomGradient-1"), SAVES),
    "a function that is elsewhere": (
        lambda g: let(call_of(g).attr["f"].func, name="elsewhere"), "calls: elsewhere"),
    "a function in an attribute of an attribute": (
        lambda g: let(call_of(g).attr["f"].func.attr["g"].func, name="elsewhere"),
        "attributes: those of __inference_inner_"),
    "an attribute from elsewhere": (lambda g: let(call_of(g).attr["f"], placeholder="g"), "attributes: f"),
    "an attribute of an argument": (
        lambda g: let(functions(g, "inner")[0].arg_attr[0].attr["_other"], b=True), "attributes: _other"),
    "another kernel": (lambda g: let(call_of(g).attr["_kernel"], s=b"x"), "attributes: _kernel"),
    "an executor": (lambda g: let(call_of(g).attr["executor_type"], s=b"x"), "attributes: executor_type"),
    "an optimizer of another library": (
        lambda g: set_config(g, custom_optimizers=[CUSTOM]), "attributes: config_proto"),
    "damaged settings": (lambda g: let(call_of(g).attr["config_proto"], s=b"\xff"), "attributes: config_proto"),
    "another machine": (lambda g: let(call_of(g), device="/job:worker"), "devices: /job:worker"),
    "a variable of someone else": (hold_handle, "constants of the type: DT_RESOURCE"),
    "an object of another class": (
        lambda g: let(g.object_graph_def.nodes[0].user_object, identifier="optimizer"), "objects: optimizer"),
    "a registered saver": (lambda g: let(g.object_graph_def.nodes[0], registered_saver="a.b"), "objects: a.b"),
    "a device of an object": (lambda g: g.object_graph_def.nodes.add(resource={"device": "/job:a"}), "devices: /job:a"),
    "an asset above": (lambda g: g.asset_file_def.add(filename="../a"), "assets: ../a"),
    "the folder as an asset": (lambda g: g.asset_file_def.add(filename=".."), "assets: .."),
    "settings that training chose": (lambda g: set_config(g, arithmetic_optimization=2), ""),
}  # fmt: skip


def test_what_no_export_has(calls):
    original = graph_in(calls).meta_graphs[0]
    for case, (change, message) in ALTERED.items():
        graph = meta_graph_pb2.MetaGraphDef()
        graph.CopyFrom(original)
        change(graph)
        found = [f"{kind}: {', '.join(names)}" for kind, names in safe_graph.disallowed_parts(graph).items()]
        assert found == [] if not message else any(part.startswith(message) for part in found), (case, found)


def test_no_op_has_a_name_that_a_function_may_have():
    assert len(dir(tf.raw_ops)) > 1000 and not any(map(safe_graph._NAME_OF_FUNCTION.fullmatch, dir(tf.raw_ops)))
