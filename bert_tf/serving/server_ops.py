"""The ops that exports use, and the first version of TensorFlow Serving that has each.

An op that is not listed here is refused, so that an op new in Keras's or TensorFlow's graphs is noticed when a model
is exported, not when a server fails to load it. Before adding a name, note: TensorFlow Serving X.Y has the ops of
TensorFlow X.Y and all of tensorflow_text X.Y, and no others. And `safe_graph` lets an export of unknown origin use
every op that is listed, so none may touch a file, a socket, another process or Python.

Each version is the oldest package on PyPI, of 2.5 to 2.10, in which the op's name was found (tensorflow-cpu: the
generated Python functions; tensorflow-text: its libraries); 2.4 and earlier were not examined.
"""

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
    "SentencepieceOp": "2.5",
    "SentencepieceTokenizeOp": "2.5",
    "SentencepieceTokenizeWithOffsetsOp": "2.5",
    "TFText>FastSentencepieceTokenize": "2.10",
}


def lowest_version(ops: set[str]) -> str:
    """The oldest version of TensorFlow Serving that has all these ops.

    Raises:
      ValueError: an op is not known to be in a stock server; the message names it.
    """
    unknown = sorted(ops - FIRST_VERSION.keys())
    if unknown:
        raise ValueError(
            "The export has ops that a stock TensorFlow Serving is not known to have (bert_tf/serving/server_ops.py): "
            + ", ".join(unknown)
        )
    return max((FIRST_VERSION[op] for op in ops), key=lambda version: tuple(map(int, version.split("."))))
