"""The ops of which exports are made, and the first TensorFlow Serving that has them.

An op that is not listed here is refused, so that an op that a newer Keras or TensorFlow puts into a graph is noticed
when a model is exported, not when a server can't load it. Before a name is added: TensorFlow Serving X.Y has
the ops of TensorFlow X.Y and of all of tensorflow_text X.Y, and no others.

The versions are those of the oldest packages on PyPI, of 2.5 to 2.8, in which the op was found by its name
(tensorflow-cpu: the generated Python functions; tensorflow-text: its libraries); 2.4 and earlier were not examined.
"""

_SINCE_2_5 = """
    Abs AddN AddV2 All Any ArgMax AsString Assert BatchMatMulV2 BiasAdd BitwiseAnd BroadcastTo Cast ConcatV2
    Const Cumsum DenseBincount EnsureShape Equal Erf Exp ExpandDims Fill Floor FloorDiv FloorMod GatherNd
    GatherV2 Greater GreaterEqual Identity IdentityN If InvertPermutation IsFinite Less LessEqual Log LogicalAnd
    LogicalNot LogicalOr LowerBound MatMul Max Maximum Mean Minimum Mul Neg NoOp NotEqual OneHot OnesLike Pack
    Pad PadV2 ParseExampleV2 PartitionedCall Placeholder Pow Prod RaggedGather RaggedRange RaggedTensorToTensor
    Range Rank ReadVariableOp RealDiv Relu Reshape ResourceGather ReverseV2 RightShift Rsqrt SegmentMax
    SegmentMin Select SelectV2 Shape Sigmoid Size Softmax Split SplitV Sqrt Square SquaredDifference Squeeze
    StatefulPartitionedCall StatelessIf StatelessWhile StaticRegexFullMatch StridedSlice StringJoin StringLower
    StringSplitV2 Sub Sum Tanh TensorListConcatV2 TensorListFromTensor TensorListGetItem TensorListReserve
    TensorListSetItem TensorListStack TensorScatterUpdate Tile TopKV2 Transpose UnicodeDecode UnicodeEncode Unique
    UnsortedSegmentMax UnsortedSegmentMin UpperBound Where While ZerosLike
"""

FIRST_VERSION = dict.fromkeys(_SINCE_2_5.split(), "2.5") | {
    "BatchMatMulV3": "2.6",
    "FastWordpieceTokenizeWithOffsets": "2.7",  # tensorflow_text
}


def lowest_version(ops: set[str]) -> str:
    """The oldest version of TensorFlow Serving that has all these ops.

    Raises:
      ValueError: an op that is not known to be in a stock server; names it.
    """
    unknown = sorted(ops - FIRST_VERSION.keys())
    if unknown:
        raise ValueError(
            "The export has ops that a stock TensorFlow Serving is not known to have (bert_tf/serving/server_ops.py): "
            + ", ".join(unknown)
        )
    return max((FIRST_VERSION[op] for op in ops), key=lambda version: tuple(map(int, version.split("."))))
