"""BERT and its descendants as graphs of ONNX, written from configuration and weights without TensorFlow and Keras.

What differs between families is read from the configuration, as in models/encoder.py, whose outputs these graphs have.

Shape legend: B batch, S sequence length, H hidden size, N choices or windows, P tokens of a row that are read,
C classes, V vocabulary.
"""

import math
import os
from collections.abc import Callable, Sequence

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from bert_tf.families.family import HIDDEN_LAYER, pooler, word_table
from bert_tf.store.open import OpenedModel
from bert_tf.store.tensor_files import incomplete, place_in_file

CLASSIFICATIONS = ("classification", "regression")
OPSET, _IR_VERSION = 20, 9  # the first with Gelu; ONNX Runtime 1.17 or later
_FUSED = "com.microsoft"  # ONNX Runtime's own operators
INPUTS = ("input_ids", "input_mask", "segment_ids")
_MOST_INLINE_BYTES = 1 << 17
# Not 127: on processors without VNNI the sums of two products saturate.
_MOST_IN_8_BITS = np.float32(63)
_MASK_BIAS = np.float32(-10000)  # of a masked key, as in the original
LOWEST = np.float32(-1e30)
# The node of an activation, and its attributes.
_ACTIVATIONS = {
    "gelu": ("Gelu", {"approximate": "tanh"}),
    "gelu_erf": ("Gelu", {"approximate": "none"}),
    "relu": ("Relu", {}),
    "tanh": ("Tanh", {}),
}
_TYPES = {
    "int32": TensorProto.INT32,
    "float32": TensorProto.FLOAT,
    "bool": TensorProto.BOOL,
    "string": TensorProto.STRING,
    "int64": TensorProto.INT64,
}


class Graph:
    """Nodes and constant tensors; a method returns the name of the tensor that it computes.

    weights: name -> value; a file may leave large ones to whoever opens it.
    """

    def __init__(self):
        self._nodes, self._names, self._constants, self.weights = [], {}, {}, {}
        self._inputs, self._outputs = [], []

    def input(self, name: str, shape: Sequence[int | str]) -> str:
        """Integers, int32; a name in their shape is a dimension of any size."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.INT32, shape))
        return name

    def output(self, name: str, tensor: str, kind: str, shape: Sequence[int | str]) -> None:
        self.op("Identity", tensor, name=name)
        self._outputs.append(helper.make_tensor_value_info(name, _TYPES[kind], shape))

    def constant(self, value, dtype=None) -> str:
        """Equal constants are one tensor. Strings have the dtype object."""
        value = np.asarray(value, dtype)
        name = self._names.setdefault((value.dtype, value.shape, str(value.tolist())), f"constant_{len(self._names)}")
        self._constants[name] = value
        return name

    def op(self, kind: str, *inputs: str, name: str | None = None, **attributes) -> str:
        """The first output of a node. name: of the output, for those of the graph."""
        return self.ops(kind, *inputs, names=[name or f"{kind}_{len(self._nodes)}"], **attributes)[0]

    def ops(self, kind: str, *inputs: str, names: Sequence[str], **attributes) -> Sequence[str]:
        self._nodes.append(helper.make_node(kind, inputs, names, name=f"{kind}_{len(self._nodes)}", **attributes))
        return names

    def cast(self, x: str, dtype: str) -> str:
        return self.op("Cast", x, to=_TYPES[dtype])

    def size(self, x: str, axis: int) -> str:
        """int64 [1]: the size of an axis."""
        return self.op("Shape", x, start=axis, end=axis + 1)

    def range(self, size: str) -> str:
        """int64 [size]: 0, 1, ...; size: int64 [1]."""
        size = self.op("Squeeze", size)
        return self.op("Range", self.constant(0, np.int64), size, self.constant(1, np.int64))

    def axis(self, x: str, axis: int) -> str:
        return self.op("Unsqueeze", x, self.constant([axis], np.int64))

    def largest(self, x: str) -> str:
        """The maximum over the last axis, which goes."""
        return self.op("ReduceMax", x, self.constant([-1], np.int64), keepdims=0)

    def repeated(self, values: str, like: str) -> str:
        """Values [C] in the shape of another tensor [..., C]."""
        return self.op("Expand", values, self.op("Shape", like))

    def where(self, condition: str, x: str, other) -> str:
        """x where the condition holds, elsewhere a constant of its type."""
        return self.op("Where", condition, x, self.constant(other, object if other == "" else None))

    def model(self, name: str, inline: bool = True) -> ModelProto:
        """inline: all weights are in the model. Otherwise large ones stay where they are: in memory, or in a file
        whose path is relative to "/". Small ones are in it: ONNX Runtime computes with some while it opens it.
        """
        stored = [numpy_helper.from_array(value, key) for key, value in self._constants.items()]
        for key, value in self.weights.items():
            if inline or value.nbytes <= _MOST_INLINE_BYTES:
                stored.append(numpy_helper.from_array(np.asarray(value), key))
                continue
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            tensor = TensorProto(name=key, data_type=kind, dims=value.shape, data_location=TensorProto.EXTERNAL)
            path, first = place_in_file(value) or (os.devnull, 0)
            for part, content in (("location", path.lstrip("/")), ("offset", first), ("length", value.nbytes)):
                tensor.external_data.add(key=part, value=str(content))
            stored.append(tensor)
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, initializer=stored)
        opsets = [helper.make_opsetid("", OPSET), *([] if inline else [helper.make_opsetid(_FUSED, 1)])]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def described(entries) -> dict[str, list]:
    """name -> [type, dimensions] of a model's inputs or outputs, as in export.json."""
    kinds, types = {number: kind for kind, number in _TYPES.items()}, {entry.name: entry.type for entry in entries}
    return {
        name: [kinds[of.tensor_type.elem_type], [size.dim_value or None for size in of.tensor_type.shape.dim]]
        for name, of in types.items()
    }


class EncoderGraph(Graph):
    """The encoder and its head for input_ids, input_mask and segment_ids: int32 [B, S], of several rows [B, N, S].

    opened: its weights are read where they are needed.
    task: a name of `tasks.table.TASKS`.
    int8: matrices are in 8 bits, and so are the vectors that they are multiplied with, by their largest value.
    in_place: for ONNX Runtime in this process: weights stay as they lie in a file or in memory, and tokens of all rows
    are computed as one row [T, H] without padding, but for attention.

    axes: the names of the inputs' dimensions.
    """

    def __init__(self, opened: OpenedModel, task: str, int8: bool = False, in_place: bool = False):
        super().__init__()
        self.config, self._opened, self.task, self._int8 = opened.needed_config(), opened, task, int8
        self._windows = opened.head.window_pooling if task in CLASSIFICATIONS else None
        # Of the scores of a query and the keys.
        self._scale = np.float32(1 / math.sqrt(self.config.hidden_size // self.config.num_attention_heads))
        several = ["choices"] if task == "multiple_choice" else ["windows"] if self._windows else []
        self.axes, self._missing = ["batch", *several, "length"], []
        self._in_place, self._transposed, self._quantized = in_place, {}, set()
        self._is_packed = in_place and not self.config.is_causal
        self.inputs = [self.input(name, self.axes) for name in INPUTS]

    def model(self, name):
        if self._missing:
            weights = self._opened.weights
            raise incomplete(weights.path, self._missing, not weights.keys().isdisjoint(self._missing))
        return super().model(name, inline=not self._in_place)

    def weight(self, name: str, transposed: bool = False) -> str:
        if name not in self.weights and f"{name}_int8" not in self.weights:
            value = self._read(name)
            self.weights[name] = np.asanyarray(value.T if transposed else value, np.float32, order="C")
        return name

    def product(self, x: str, name: str, transposed: bool = False) -> str:
        """x W, or x Wᵀ, of a matrix of this name."""
        if self._int8:
            return self._integer_product(x, *self._in_8_bits(self.weight(name, transposed), axis=0))
        if name not in self.weights:
            value = self._read(name).T if transposed else self._read(name)
            if self._in_place and not value.flags.c_contiguous:  # ONNX Runtime transposes it when it opens the model
                value, self._transposed[name] = value.T, self.op("Transpose", name, perm=(1, 0))
            self.weights[name] = np.asanyarray(value, np.float32, order="C")
        return self.op("MatMul", x, self._transposed.get(name, name))

    def _integer_product(self, x: str, matrix: str, scales: str) -> str:
        numbers, scale, zero = (f"{x}_{part}" for part in ("int8", "scale", "zero"))
        if numbers not in self._quantized:
            self.ops("DynamicQuantizeLinear", x, names=(numbers, scale, zero))
            self._quantized.add(numbers)
        product = self.cast(self.op("MatMulInteger", numbers, matrix, zero), "float32")
        return self.op("Mul", product, self.op("Mul", scale, scales))

    def rows(self, name: str, ids: str) -> str:
        """Rows of a table [V, E]."""
        table = self.weight(name)
        if not self._int8:
            return self.op("Gather", table, ids)
        table, scales = self._in_8_bits(table, axis=1)
        return self.op("Mul", self.cast(self.op("Gather", table, ids), "float32"), self.op("Gather", scales, ids))

    def _in_8_bits(self, name: str, axis: int) -> tuple[str, str]:
        """A matrix as int8, and the scales of its columns (axis 0) or rows (axis 1)."""
        if name in self.weights:
            value = self.weights.pop(name)
            largest = np.abs(value).max(axis, keepdims=axis == 1)
            scales = np.maximum(largest, np.finfo(np.float32).tiny) / _MOST_IN_8_BITS
            self.weights[f"{name}_scales"] = scales
            self.weights[f"{name}_int8"] = np.rint(value / scales).astype(np.int8)
        return f"{name}_int8", f"{name}_scales"

    def has(self, name: str) -> bool:
        """Whether there is such a weight that was not saved before it was trained."""
        return name in self._opened.weights and name not in self._opened.head.untrained

    def _read(self, name: str) -> np.ndarray:
        if self.has(name):
            return self._opened.weights.read_finite(name)
        self._missing.append(name)
        return np.zeros((1, 1), np.float32)  # nobody runs such a graph

    def dense(self, x: str, scope: str, activation: str = "linear") -> str:
        x = self.op("Add", self.product(x, f"{scope}/kernel"), self.weight(f"{scope}/bias"))
        if activation == "linear":
            return x
        kind, attributes = _ACTIVATIONS[activation]
        return self.op(kind, x, **attributes)

    def norm(self, x: str, scope: str) -> str:
        vectors = (self.weight(f"{scope}/LayerNorm/{name}") for name in ("gamma", "beta"))
        return self.op("LayerNormalization", x, *vectors, axis=-1, epsilon=self.config.layer_norm_eps)

    def output_layer(self, x: str, scope: str = "") -> str:
        """Logits [..., C]; the matrix is [C, H], as the original stores it."""
        product = self.product(x, f"{scope}output_weights", transposed=True)
        return self.op("Add", product, self.weight(f"{scope}output_bias"))

    # --- the encoder -------------------------------------------------------------------------------------------------

    def embeddings(self, ids: str, segments: str) -> str:
        """[B, S, H]."""
        config, scope = self.config, f"{self.config.model_type}/embeddings"
        x = self.rows(word_table(config.model_type), ids)
        if config.type_vocab_size:
            x = self.op("Add", x, self.op("Gather", self.weight(f"{scope}/token_type_embeddings"), segments))
        table = self.weight(f"{scope}/position_embeddings")
        if config.padding_has_a_position:
            real = self.op("Not", self.op("Equal", ids, self.constant(config.pad_token_id, np.int32)))
            real = self.cast(real, "int32")
            numbers = self.op("Mul", self.op("CumSum", real, self.constant(1, np.int64)), real)
            numbers = self.op("Add", numbers, self.constant(config.first_position - 1, np.int32))
            positions = self.op("Gather", table, numbers)
        else:
            first = self.constant([config.first_position], np.int64)
            last = self.op("Add", first, self.size(ids, 1))
            positions = self.op("Slice", table, first, last, self.constant([0], np.int64))
        x = self.norm(self.op("Add", x, positions), scope)
        return self.dense(x, f"{scope}_project") if config.embedding_size != config.hidden_size else x

    def attention_bias(self, mask: str) -> str:
        """float32 [B, 1, 1, S], or [B, 1, S, S] if attention is causal."""
        mask = self.op("Unsqueeze", self.cast(mask, "float32"), self.constant([1, 2], np.int64))
        if self.config.is_causal:
            places = self.range(self.size(mask, 3))
            before = self.op("GreaterOrEqual", self.axis(places, 1), places)
            mask = self.op("Mul", mask, self.cast(before, "float32"))
        return self.op("Mul", self.op("Sub", self.constant(1, np.float32), mask), self.constant(_MASK_BIAS))

    def encoder(self, read: Callable[[str], str] | None = None) -> str:
        """[B, S, H]; read: picks the tokens [B, P, H] of [B, S, H] for which alone the last layer is computed."""
        ids, mask, segments = self.inputs
        x, order = self.embeddings(ids, segments), self.config.block_order
        if self._is_packed:
            flat = self.op("Reshape", mask, self.constant([-1], np.int64))
            self._tokens = self.op("Squeeze", self.op("NonZero", flat), self.constant([0], np.int64))
            number = self.op("Sub", self.op("CumSum", flat, self.constant(0, np.int64)), self.constant(1, np.int32))
            self._places = self.op("Reshape", number, self.op("Shape", mask))
            x = self.packed(x)
        else:
            self._bias = self.attention_bias(mask)
        for position, number in enumerate(order):
            x = self.block(number, x, read if position == len(order) - 1 else None)
        return x if read else self.unpacked(x)

    def packed(self, x: str) -> str:
        """[T, H]: the tokens of x [B, S, H] that are no padding."""
        rows = self.op("Reshape", x, self.constant([-1, self.config.hidden_size], np.int64))
        return self.op("Gather", rows, self._tokens)

    def unpacked(self, x: str) -> str:
        """[B, S, H] of [T, H] if tokens are packed; padding is some token."""
        return self.op("Gather", x, self._places) if self._is_packed else x

    def block(self, number: int, x: str, read: Callable[[str], str] | None) -> str:
        config, scope = self.config, f"{self.config.model_type}/encoder/layer_{number}"
        # Keys of a causal model are masked for each query, so all queries are computed.
        asking = read(self.unpacked(x)) if read and not config.is_causal else x
        attention = self.packed_attention if self._is_packed else self.attention
        output = self.dense(attention(asking, x, f"{scope}/attention/self"), f"{scope}/attention/output/dense")
        x = self.norm(self.op("Add", output, asking), f"{scope}/attention/output")
        inner = self.dense(x, f"{scope}/intermediate/dense", config.activation)
        x = self.norm(self.op("Add", self.dense(inner, f"{scope}/output/dense"), x), f"{scope}/output")
        return read(x) if read and config.is_causal else x

    def packed_attention(self, asking: str, x: str, scope: str) -> str:
        """`attention` of packed tokens x by ONNX Runtime's operator; the queries are x itself, or [B, P, H]."""
        parts = (asking, "query"), (x, "key"), (x, "value")
        products = [self.product(given, f"{scope}/{name}/kernel") for given, name in parts]
        inputs = [self.unpacked(y) if given == x else y for y, (given, _) in zip(products, parts, strict=True)]
        biases = self.op("Concat", *(self.weight(f"{scope}/{name}/bias") for _, name in parts), axis=0)
        sizes = {"num_heads": self.config.num_attention_heads, "mask_filter_value": float(_MASK_BIAS)}
        context = self.op("MultiHeadAttention", *inputs, biases, self.inputs[1], domain=_FUSED, **sizes)
        return self.packed(context) if asking == x else context

    def attention(self, asking: str, x: str, scope: str) -> str:
        """What queries [B, P, H] read of x [B, S, H]: [B, P, H]."""
        config, parts = self.config, ((asking, "query"), (x, "key"), (x, "value"))
        query, key, value = (self.dense(given, f"{scope}/{name}") for given, name in parts)
        query = self.op("Mul", query, self.constant(self._scale))
        heads = self.constant([0, 0, config.num_attention_heads, -1], np.int64)
        query, key, value = (
            self.op("Transpose", self.op("Reshape", part, heads), perm=perm)
            for part, perm in ((query, (0, 2, 1, 3)), (key, (0, 2, 3, 1)), (value, (0, 2, 1, 3)))
        )
        scores = self.op("Softmax", self.op("Add", self.op("MatMul", query, key), self._bias), axis=-1)
        context = self.op("Transpose", self.op("MatMul", scores, value), perm=(0, 2, 1, 3))
        return self.op("Reshape", context, self.constant([0, 0, config.hidden_size], np.int64))

    # --- what heads read ---------------------------------------------------------------------------------------------

    def pooled_token(self, x: str) -> str:
        """[B, 1, H]: the token whose vector stands for a row: the first or, of a causal model, the last."""
        if not self.config.is_causal:
            return self.op("Gather", x, self.constant([0], np.int64), axis=1)
        mask = self.inputs[1]
        places = self.cast(self.range(self.size(mask, 1)), "int32")
        last = self.op("ReduceMax", self.op("Mul", mask, places), self.constant([1], np.int64))
        return self.tokens_at(x, last)

    def tokens_at(self, x: str, positions: str) -> str:
        """[B, P, H] of x [B, S, H] at positions [B, P]."""
        indices = self.cast(self.axis(positions, 2), "int64")
        return self.op("GatherND", x, indices, batch_dims=1)

    def pooled(self, token: str) -> str:
        """[B, H] of the pooled token's vector [B, 1, H], through the pooler if there is one."""
        first = self.op("Squeeze", token, self.constant([1], np.int64))
        return self.dense(first, pooler(self.config.model_type), "tanh") if self.config.has_pooler else first

    def logits(self) -> str:
        """Logits of a classifier: [B, C]; for words [B, S, C]; of choices [B, N]."""
        if self.task == "ner":
            return self._classifier(self.encoder())
        ids, mask, _ = self.inputs
        if len(self.axes) == 3:
            shape = self.op("Shape", ids, start=0, end=2)
            rows = self.op("Concat", self.constant([-1], np.int64), self.size(ids, 2), axis=0)
            self.inputs = [self.op("Reshape", name, rows) for name in self.inputs]
        vectors = self.pooled(self.encoder(self.pooled_token))
        if self._windows:
            shape = self.op("Concat", shape, self.constant([self.config.hidden_size], np.int64), axis=0)
            counted = self.cast(self.largest(mask), "bool")  # windows that a text has
            vectors = self.combined(self.op("Reshape", vectors, shape), counted, self._windows)
        logits = self._classifier(vectors)
        return self.op("Reshape", logits, shape) if self.task == "multiple_choice" else logits

    def _classifier(self, vectors: str) -> str:
        if HIDDEN_LAYER[0] in self._opened.weights:
            activation = self._opened.head.hidden_act or self.config.classifier_act or "gelu_erf"
            vectors = self.dense(vectors, HIDDEN_LAYER[0].rpartition("/")[0], activation)
        return self.output_layer(vectors)

    def span_logits(self) -> dict[str, str]:
        """start_logits and end_logits [B, S]."""
        logits = self.output_layer(self.encoder(), "cls/squad/")
        return {
            name: self.op("Gather", logits, self.constant(number, np.int64), axis=-1)
            for number, name in enumerate(("start_logits", "end_logits"))
        }

    def pooled_vectors(self, pooling: str, skipped: str) -> str:
        """[B, H]: a vector for each row, see `layers.sentence_vectors`. skipped: int32 [1], a name."""
        skipped, mask = self.cast(skipped, "int64"), self.inputs[1]
        if pooling == "cls":
            x = self.encoder(lambda x: self.op("Gather", x, skipped, axis=1))
            return self.op("Squeeze", x, self.constant([1], np.int64))
        x = self.encoder()
        counted = self.op("GreaterOrEqual", self.range(self.size(mask, 1)), skipped)
        return self.combined(x, self.op("And", self.cast(mask, "bool"), counted), pooling)

    def combined(self, x: str, counted: str, kind: str) -> str:
        """[B, H] of x [B, S, H]: of those that are counted, bool [B, S], the "max", the "mean", or the one with weights
        by a learned vector, see `layers.WindowPooling`."""
        one = self.constant([1], np.int64)
        if kind == "max":
            return self.op("ReduceMax", self.where(self.axis(counted, 2), x, LOWEST), one, keepdims=0)
        weights = self.cast(counted, "float32")
        if kind == "attention":
            scores = self.op("MatMul", x, self.weight("window_pooling/scores"))
            weights = self.op("Softmax", self.where(counted, scores, LOWEST), axis=-1)
        total = self.op("Max", self.op("ReduceSum", weights, one), self.constant(1, np.float32))
        return self.op("Div", self.op("Squeeze", self.op("MatMul", self.axis(weights, 1), x), one), total)

    def masked_lm(self, positions: str) -> str:
        """Logits [B, P, V] of the tokens at positions [B, P]."""
        config, scope = self.config, "cls/predictions/transform"
        x = self.encoder(lambda x: self.tokens_at(x, positions))
        x = self.norm(self.dense(x, f"{scope}/dense", config.masked_lm_act or config.activation), scope)
        rows = self.op("Reshape", x, self.constant([-1, config.embedding_size], np.int64))
        table, bias = word_table(config.model_type), self.weight("cls/predictions/output_bias")
        if self._int8:
            table, scales = self._in_8_bits(self.weight(table), axis=1)
            scales = self.op("Reshape", scales, self.constant([-1], np.int64))
            logits = self.op("Add", self._integer_product(rows, self.op("Transpose", table), scales), bias)
        else:
            logits = self.op("Gemm", rows, self.weight(table), bias, transB=1)
        sizes = self.op("Shape", x, start=0, end=2)
        shape = self.op("Concat", sizes, self.constant([config.vocab_size], np.int64), axis=0)
        return self.op("Reshape", logits, shape)
