"""Which SavedModels can only compute: the check of an export that comes from an untrusted source.

A graph is a program, and TensorFlow has many ways to come from one function to another: calls, functions that
attributes name, gradients, what objects run when they are made, filled and removed, and a graph optimizer that puts a
function in the place of one with the same `api_implements`. So it is not asked what is reached. Nothing may be in the
file, reached or not, that exports don't have:

- One graph, with the objects of TensorFlow 2. TensorFlow runs any other as one of TensorFlow 1, initialisers and all.
- Ops: those of `FIRST_VERSION`, none of which touches a file, a socket, a process or Python; in every node of every
  function and of the main graph, which further declares variables.
- Names of functions end with a number, as TensorFlow makes them: a node whose op is the name of a function calls it,
  and no registered op has such a name.
- The two functions that save and restore weights are those that the file names for it. They may hold the ops for that,
  with file names that begin with their argument, and nothing else. Python restores weights without them: no function,
  gradient, object or other node names these two.
- Attributes outside of an op's definition (TensorFlow checks those that are): only the ones that TensorFlow
  writes for exports, so no `api_implements`, no choice of kernels or compilers; no devices of other machines, no
  executors, no optimizers by name.
- Functions in attributes are of this file and have no attributes of their own, which could name further ones.
- Tensors of numbers and strings: no constants that are handles of other resources of the process.
- Objects of the few classes that exports have, since others run Python code; assets are files in their folder.

What is left can still compute without end, fill the memory, or meet a fault in one of TensorFlow's kernels.
"""

import functools
import posixpath
import re
from collections.abc import Iterator, Sequence

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import function_pb2, node_def_pb2, types_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, saved_model_pb2

from bert_tf.store.open import GRAPH_FILE
from bert_tf.system import storage
from bert_tf.system.messages import abbreviated_list, escape_control_characters
from bert_tf.system.text_files import naming_damaged, read_bytes

# --- ops --------------------------------------------------------------------------------------------------------------
# The ops that exports use, and the first version of TensorFlow Serving that has each.
#
# An op that is not listed here is rejected, so that an op new in Keras's or TensorFlow's graphs is noticed when a model
# is exported, not when a server fails to load it. Before adding a name, note: TensorFlow Serving X.Y has the ops of
# TensorFlow X.Y and all of tensorflow_text X.Y, and no others. And an export of unknown origin may use every op
# that is listed, so none may touch a file, a socket, another process or Python.
#
# Each version is the oldest package on PyPI, of 2.5 to 2.10, in which the op's name was found (tensorflow-cpu: the
# generated Python functions; tensorflow-text: its libraries); 2.4 and earlier were not examined.

_SINCE_2_5 = """
    Abs AddN AddV2 All Any ArgMax AsString Assert BatchMatMulV2 BiasAdd BitwiseAnd BroadcastTo Cast ConcatV2 Const
    Conv2D Cumsum DenseBincount EnsureShape Equal Erf Exp ExpandDims Fill Floor FloorDiv FloorMod GatherNd GatherV2
    Greater GreaterEqual Identity IdentityN If InvertPermutation IsFinite Less LessEqual Log LogicalAnd LogicalNot
    LogicalOr LogSoftmax LowerBound MatMul Max Maximum Mean Minimum Mul Neg NoOp NotEqual OneHot OnesLike Pack Pad PadV2
    ParseExampleV2 PartitionedCall Placeholder Pow Prod RaggedGather RaggedRange RaggedTensorToTensor Range Rank
    ReadVariableOp RealDiv Relu Reshape ResourceGather ReverseV2 RightShift Rsqrt ScatterNd SegmentMax SegmentMin
    Select SelectV2 Shape Sigmoid Size Softmax Split SplitV Sqrt Square SquaredDifference Squeeze
    StatefulPartitionedCall StatelessIf StatelessWhile StaticRegexFullMatch StaticRegexReplace StridedSlice StringJoin
    StringLength StringLower StringSplitV2 StringToHashBucketFast Sub Sum Tanh TensorListConcatV2 TensorListFromTensor
    TensorListGetItem TensorListReserve TensorListSetItem TensorListStack TensorScatterUpdate Tile TopKV2 Transpose
    UnicodeDecode UnicodeEncode Unique UnsortedSegmentMax UnsortedSegmentMin UpperBound Where While ZerosLike
"""

FIRST_VERSION = dict.fromkeys(_SINCE_2_5.split(), "2.5") | {
    "BatchMatMulV3": "2.6",
    # tensorflow_text
    "FastWordpieceTokenizeWithOffsets": "2.7",
}


def lowest_version(ops: set[str]) -> str:
    """The oldest version of TensorFlow Serving that has all these ops."""
    if unknown := sorted(ops - FIRST_VERSION.keys()):
        known = "a stock TensorFlow Serving is not known to have (bert_tf/serving/safe_graph.py)"
        raise ValueError(f"The export has ops that {known}: {', '.join(unknown)}")
    return max((FIRST_VERSION[op] for op in ops), key=lambda version: tuple(map(int, version.split("."))))


_OPS = frozenset(FIRST_VERSION)
_OPS_OF_VARIABLES = frozenset({"AssignVariableOp", "VarHandleOp", "VarIsInitializedOp"})
_NAME_OF_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_<>]*_[0-9]+")
_OPS_OF_SAVERS = frozenset(
    {
        "AssignVariableOp", "Const", "DisableCopyOnRead", "Identity", "MergeV2Checkpoints", "NoOp", "Pack",
        "ReadVariableOp", "RestoreV2", "SaveV2", "Select", "SelectV2", "ShardedFilename", "StaticRegexFullMatch",
        "StringJoin",
    }
)  # fmt: skip
_FILE_NAMES = {"SaveV2": 1, "RestoreV2": 1, "MergeV2Checkpoints": 2}  # how many of the first inputs are such
_DEEPEST = 5  # nodes between the argument and a file name
_SUFFIXES = frozenset({b".part", b"_temp/part"})  # of files that are then merged
_ATTRIBUTES_OF_NODES = frozenset(
    {
        "_class", "_collective_manager_ids", "_gradient_op_type", "_has_manual_control_dependencies",
        "_lower_using_switch_merge", "_num_original_outputs", "_output_shapes", "_read_only_resource_inputs",
    }
)  # fmt: skip
_ATTRIBUTES_OF_FUNCTIONS = frozenset({"_construction_context", "_input_shapes"})
_ATTRIBUTES_OF_ARGUMENTS = frozenset({"_output_shapes", "_user_specified_name"})
_DEVICE = re.compile(r"(/device:(CPU|GPU):(\d+|\*))?")
_HANDLES = (types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT)
_CLASSES = frozenset({"", "tf.TrackableConstant"})
_USER_CLASSES = frozenset(
    {"_generic_user_object", "signature_map", "trackable_dict_wrapper", "trackable_list_wrapper",
     "trackable_tuple_wrapper"}
)  # fmt: skip


def disallowed_parts(graph: meta_graph_pb2.MetaGraphDef) -> dict[str, list[str]]:
    """The parts of a graph that no export has: kind (ops, attributes, ...) -> sorted names; empty if there are none."""
    parts: dict[str, set[str]] = {}
    for kind, name in _foreign(graph):
        parts.setdefault(kind, set()).add(name)
    return {kind: sorted(names) for kind, names in parts.items()}


def _foreign(graph: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, str]]:
    library = graph.graph_def.library
    names = {function.signature.name for function in library.function}
    # The nodes by which a server saves and restores weights, and the functions that these call.
    entries = {name.partition(":")[0] for name in (graph.saver_def.save_tensor_name, graph.saver_def.restore_op_name)}
    calls = [node.attr["f"] for node in graph.graph_def.node if node.name in entries and "f" in node.attr]
    savers = {call.func.name for call in calls}
    yield from (("functions", name) for name in names if not _NAME_OF_FUNCTION.fullmatch(name))
    for node in graph.graph_def.node:
        callees = names if node.name in entries else names - savers
        yield from _foreign_in_node(node, _OPS | _OPS_OF_VARIABLES, callees)
    for function in library.function:
        is_saver = function.signature.name in savers
        yield from (("attributes", name) for name in function.attr.keys() - _ATTRIBUTES_OF_FUNCTIONS)
        for argument in function.arg_attr.values():
            yield from (("attributes", name) for name in argument.attr.keys() - _ATTRIBUTES_OF_ARGUMENTS)
        for node in function.node_def:
            yield from _foreign_in_node(node, _OPS_OF_SAVERS if is_saver else _OPS, names - savers)
        if is_saver:
            yield from _foreign_files(function)
    others = [graph.object_graph_def, *library.gradient, *library.registered_gradients]
    texts = [message.SerializeToString() for message in others]
    yield from (("calls", name) for name in savers if any(name.encode() in text for text in texts))
    yield from _foreign_objects(graph)


def _foreign_files(function: function_pb2.FunctionDef) -> Iterator[tuple[str, str]]:
    """The nodes of a function that saves or restores whose file names are not its argument, with a known suffix."""
    nodes = {node.name: node for node in function.node_def}
    argument = function.signature.input_arg[0].name if function.signature.input_arg else None

    def made_of(source: str, depth: int, ops: Sequence[str]) -> node_def_pb2.NodeDef | None:
        """The node that a name of files comes from, if it is one of these ops."""
        node = nodes.get(source.partition(":")[0])
        return node if depth and node is not None and node.op in ops else None

    @functools.cache
    def is_suffix(source: str, depth: int) -> bool:
        if node := made_of(source, depth, ("Const",)):
            value = node.attr["value"].tensor
            return {*value.string_val} <= _SUFFIXES and not value.tensor_content  # which TensorFlow reads first
        node = made_of(source, depth, ("Select", "SelectV2"))
        return bool(node) and all(is_suffix(part, depth - 1) for part in node.input[1:])

    @functools.cache
    def is_argument(source: str, depth: int) -> bool:
        if source == argument:
            return True
        if not (node := made_of(source, depth, ("Pack", "ShardedFilename", "StringJoin"))):
            return False
        suffixes = node.input[1:] if node.op == "StringJoin" else ()
        packed = [name for name in node.input if not name.startswith("^")]  # without those that only come before
        begins = packed if node.op == "Pack" else node.input[:1]
        return all(is_argument(part, depth - 1) for part in begins) and all(is_suffix(part, depth) for part in suffixes)

    for node in function.node_def:
        names = node.input[: _FILE_NAMES.get(node.op, 0)]
        if not all(is_argument(name, _DEEPEST) for name in names):
            yield "file names", node.name


def _foreign_in_node(node: node_def_pb2.NodeDef, ops, callees) -> Iterator[tuple[str, str]]:
    """ops: that the node may have. callees: the names of functions that it may name."""
    if node.op not in ops:
        yield "ops", node.op
    if not _DEVICE.fullmatch(node.device):
        yield "devices", node.device
    for name, value in node.attr.items():
        if name.startswith("_") and name not in _ATTRIBUTES_OF_NODES:
            yield "attributes", name
        if value.WhichOneof("value") == "placeholder" or (name == "executor_type" and value.s):
            yield "attributes", name
        if name == "config_proto" and not _is_plain(value.s):
            yield "attributes", name
        for function in (value.func, *value.list.func):
            if function.attr:
                yield "attributes", f"those of {function.name}"
            if function.name and function.name not in callees:
                yield "calls", function.name
    if node.op == "Const" and node.attr["dtype"].type in _HANDLES:
        yield "constants of the type", types_pb2.DataType.Name(node.attr["dtype"].type)


def _is_plain(config: bytes) -> bool:
    try:
        rewrite = config_pb2.ConfigProto.FromString(config).graph_options.rewrite_options
    except DecodeError:
        return False
    return not (rewrite.optimizers or rewrite.custom_optimizers)


def _foreign_objects(graph: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, str]]:
    for saved in graph.object_graph_def.nodes:
        if saved.registered_name not in _CLASSES or saved.registered_saver:
            yield "objects", saved.registered_name or saved.registered_saver
        if saved.HasField("user_object") and saved.user_object.identifier not in _USER_CLASSES:
            yield "objects", saved.user_object.identifier
        if not _DEVICE.fullmatch(saved.resource.device):
            yield "devices", saved.resource.device
    for asset in graph.asset_file_def:
        if posixpath.basename(asset.filename) != asset.filename or asset.filename in ("", ".", ".."):
            yield "assets", asset.filename


# --- exports in Python ------------------------------------------------------------------------------------------------


def load_export(directory: str, trust: bool = False):
    """A SavedModel of export_saved_model.py: its `signatures` are functions of tensors by name.

    trust: load it whatever ops it has; for exports of your own or of someone you trust like your own code.
    """
    import tensorflow_text  # noqa: F401  registers its ops

    if not trust:
        check_ops(directory)
    files = f"{GRAPH_FILE} or what is in variables/"
    with storage.literal_path(directory) as path, naming_damaged(posixpath.join(directory, files)):
        return tf.saved_model.load(path)


def check_ops(directory: str) -> None:
    """Raises if a SavedModel can do more than compute."""
    path = posixpath.join(directory, GRAPH_FILE)
    with naming_damaged(path):
        saved = saved_model_pb2.SavedModel.FromString(read_bytes(path))
    if len(saved.meta_graphs) != 1 or not saved.meta_graphs[0].HasField("object_graph_def"):
        raise ValueError(f"{path} is not an export of export_saved_model.py: it was not saved by TensorFlow 2.")
    if foreign := disallowed_parts(saved.meta_graphs[0]):
        names = escape_control_characters(abbreviated_list([name for names in foreign.values() for name in names]))
        what = f"{' and '.join(foreign)} that no export has, and which may do anything: {names}"
        raise ValueError(f"{path} has {what}. If you trust it like a program of your own, give trust=True.")
