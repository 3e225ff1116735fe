"""Exports whose graphs could do more than answer are not loaded, unless they are trusted; nor are ONNX files that have
tensors in other files."""

import json

import onnx
import onnx.parser
import onnxruntime
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2, saved_model_pb2

from bert_tf import Predictor
from bert_tf.serving import safe_graph
from bert_tf.serving.onnx_runtime import open_file

TEXTS = tf.TensorSpec([None], tf.string, name="text")


class Answers(tf.Module):
    """What an export does, and nothing else: it calls a function, and has something to save and restore."""

    def __init__(self):
        self.table = tf.Variable([1.0])

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
    assert Predictor(save(Answers(), tmp_path)).logits(["ab", "c"]).tolist() == [[2.0], [1.0]]


@pytest.mark.parametrize(("name", "kept", "message"), [
    ("saved_model.pb", 0.5, r"/saved_model.pb can't be read: is it damaged\? DecodeError: "),
    ("variables/variables.index", 0.5, "/saved_model.pb or what is in variables/ can't be read: is it damaged?"),
    ("variables/variables.data-00000-of-00001", 0, "/saved_model.pb or what is in variables/ can't be read: .*"),
    ("export.json", None, "/export.json does not say 'task' where exports do: is it damaged"),
])  # fmt: skip
def test_a_damaged_file_is_named_in_one_line(tmp_path, name, kept, message):
    path, content = save(Answers(), tmp_path), (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(b"{}" if kept is None else content[: int(len(content) * kept)])
    with pytest.raises(ValueError, match=f"^{path}{message}") as error:
        Predictor(path)
    assert "\n" not in str(error.value)


def test_a_graph_that_reads_when_it_is_loaded(tmp_path):
    """A file, into a table that no signature uses."""
    (tmp_path / "words").write_text("a\nb\n")
    keys, module = tf.lookup.TextFileIndex, Answers()
    file = tf.lookup.TextFileInitializer(f"{tmp_path}/words", tf.string, keys.WHOLE_LINE, tf.int64, keys.LINE_NUMBER)
    module.words = tf.lookup.StaticHashTable(file, -1)
    path = save(module, tmp_path / "model")
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
    with pytest.raises(ValueError, match=r"saved_model.pb has assets that .*: ../a\\u001b\[2J\\u000ab\. If you trust"):
        safe_graph.check_ops(str(tmp_path))
    saved.meta_graphs[0].ClearField("object_graph_def")
    for content in (saved.SerializeToString(), b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not an export of .*: it was not saved by TensorFlow 2"):
            safe_graph.check_ops(str(tmp_path))


# ---- graphs that hide what they do -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    save(Answers(), folder)
    return graph_in(folder).meta_graphs[0]


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
# What is changed in a graph, and what is foreign then.
ALTERED = {
    "a function": (lambda g: add(g, "WriteFile"), "ops: WriteFile"),
    "the main graph": (lambda g: g.graph_def.node.add(name="write", op="WriteFile"), "ops: WriteFile"),
    "saving in another function": (lambda g: add(g, "SaveV2"), "ops: SaveV2"),
    **{
        f"a function that is called like an op, {name!r}": (
            lambda g, name=name: let(functions(g, "inner")[0].signature, name=name), f"functions: {name}")
        for name in ("AsString", "AsString_1a", "AsString_\u0661")},
    "saving called in the main graph": (
        lambda g: let(g.graph_def.node.add(name="s", op="PartitionedCall").attr["f"].func, name=saving(g)), SAVES),
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
    "saving called": (lambda g: let(add(g, "While").attr["body"].func, name=saving(g)), SAVES),
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


def test_what_no_export_has(original):
    for case, (change, message) in ALTERED.items():
        graph = meta_graph_pb2.MetaGraphDef()
        graph.CopyFrom(original)
        change(graph)
        found = [f"{kind}: {', '.join(names)}" for kind, names in safe_graph.disallowed_parts(graph).items()]
        assert found == [] if not message else any(part.startswith(message) for part in found), (case, found)


def test_no_op_has_a_name_that_a_function_may_have():
    assert len(dir(tf.raw_ops)) > 1000 and not any(map(safe_graph._NAME_OF_FUNCTION.fullmatch, dir(tf.raw_ops)))


# ---- ONNX files whose tensors are in other files ---------------------------------------------------------------------

# Adds the numbers of an initialiser and of a constant in a branch to its input.
MODEL = """
<ir_version: 9, opset_import: ["": 18]>
graph (int32[1, 1] input_ids) => (float[1, 1] logits) <float[1] first = {1200.0}> {
  number = Cast <to = 1> (input_ids)
  yes = Constant <value = bool {1}> ()
  more = If (yes) <
    then_branch = inner () => (float[1] a) { a = Constant <value = float[1] {34.0}> () },
    else_branch = other () => (float[1] b) { b = Constant <value = float[1] {0.0}> () }
  >
  sum = Add (number, more)
  logits = Add (sum, first)
}
"""


@pytest.fixture
def opened(tmp_path):
    def open_model(content: bytes):
        (tmp_path / "model.onnx").write_bytes(content)
        return open_file(str(tmp_path / "model.onnx"))

    return open_model


@pytest.mark.parametrize(("is_inner", "lacks"), [(0, None), (0, "data_location"), (0, "external_data"), (1, None)])
def test_a_tensor_that_is_elsewhere(opened, is_inner, lacks):
    """The walk through a file is the same for all its parts, used or not. lacks: a field that names the other file."""
    model = onnx.parser.parse_model(MODEL)
    assert opened(model.SerializeToString()).run({"input_ids": [[1]]})["logits"].tolist() == [[1235.0]]
    inner = model.graph.node[2].attribute[0].g.node[0].attribute[0].t
    tensor = inner if is_inner else model.graph.initializer[0]
    let(tensor, name="it", data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="secret")
    if lacks:
        tensor.ClearField(lacks)
    with pytest.raises(ValueError, match=r"model.onnx has a tensor that is not in it \(it\);"):
        opened(model.SerializeToString())


def test_a_damaged_file_and_another_format(opened, tmp_path):
    """ONNX Runtime's own format, recognised by its first bytes, may name other files as well."""
    content = onnx.parser.parse_model(MODEL).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(content, options)
    other = (tmp_path / "model.ort").read_bytes()
    assert other[4:8] == b"ORTM"
    for damaged in (b"", content[:-9], other):
        with pytest.raises(ValueError, match=r"^\S+/model.onnx can't be read: is it damaged\? "):
            opened(damaged)
