"""The layers of encoders in Keras 3: transformer blocks and what they consist of.

Source: Devlin et al. 2018, section 3; original: modeling.py.

Variable paths follow the names of the original's TF1 checkpoints (`bert/encoder/layer_0/attention/self/query/kernel`),
so that no table of names is needed.

Shape legend: B batch, S sequence length, H hidden size, N attention heads, D = H / N, I intermediate size, P positions
of a row that are read, Q queries: S, or P in a layer that is computed only there, R rows of a matrix.
"""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
from keras import ops

from bert_tf.families import as_config
from bert_tf.families.config import BertConfig
from bert_tf.models import inputs as model_inputs
from bert_tf.models import kernels
from bert_tf.models.dropout import dropout_at, name_scope
from bert_tf.models.kernels import leading_sizes
from bert_tf.models.layer_loop import kept_product
from bert_tf.store.variable_names import ADAPTER_A, ADAPTER_B, merged_kernel

IN_FLOAT32 = {"autocast": False, "dtype": "float32"}  # arguments of `add_weight`


def gather_positions(sequence, positions):
    """Rows of sequence [B, S, H] at positions [B, P]: [B, P, H]."""
    batch, length, size = ops.shape(sequence)
    first = ops.arange(batch, dtype="int32")[:, None] * length
    flat = ops.reshape(ops.cast(positions, "int32") + first, (-1,))
    rows = ops.take(ops.reshape(sequence, (-1, size)), flat, axis=0)
    return ops.reshape(rows, (batch, ops.shape(positions)[1], size))


def _keras_method(name: str) -> Callable:
    """Keras's method of this name, which also takes lists of numbers; see `inputs.keras_arguments`."""
    method = getattr(keras.Model, name)

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        arguments = inspect.signature(method).bind(self, *args, **kwargs).arguments
        result = getattr(super(NamedInputs, self), name)(**model_inputs.keras_arguments(name, **arguments))
        return model_inputs.with_transformers_names(result) if name == "predict" else result

    return call


class NamedInputs:
    """A mixin for Keras models that take arrays by name; `known_inputs` lists the names.

    Every call goes through it: direct calls, `fit` and `predict`, and calls within a functional model.
    """

    known_inputs: Sequence[str] = model_inputs.ENCODER_INPUTS

    @property
    def other_names(self) -> dict[str, str]:
        return model_inputs.other_names(getattr(getattr(self, "objective", None), "label_names", ()))

    def __call__(self, inputs=None, *args, **kwargs):
        by_name = (*self.known_inputs, *self.other_names, "labels")
        keywords = {name: kwargs.pop(name) for name in by_name if name in kwargs}
        if keywords or inputs is None:  # model(**tokenizer(texts)), model(ids, attention_mask=mask, labels=labels)
            given = inputs if isinstance(inputs, Mapping) else {} if inputs is None else {"input_ids": inputs}
            if twice := keywords.keys() & given.keys():
                raise TypeError(f"{type(self).__name__} is given {', '.join(sorted(twice))} twice")
            inputs = keywords | given
        named = model_inputs.named_inputs(inputs, self.known_inputs, type(self).__name__, self.other_names)
        named = {name: model_inputs.as_array(value) for name, value in named.items()}
        model_inputs.check_shapes(named)
        outputs = model_inputs.with_transformers_names(super().__call__(named, *args, **kwargs))
        return model_inputs.with_loss(self, outputs, named) if keywords else outputs

    def compile(self, *args, **kwargs):
        """See `keras.Model.compile`; without a loss a model uses its own objective."""
        self._compile_loss = self._compile_metrics = None  # Keras would keep those of an earlier call
        super().compile(*args, **kwargs)

    def compile_from_config(self, config: dict) -> None:
        """See `keras.Model.compile_from_config`, which calls no `compile` but Keras's own."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built and self.optimizer:
            self.optimizer.build(self.trainable_variables)

    fit, evaluate, predict = map(_keras_method, ("fit", "evaluate", "predict"))


class ConfigFromArguments:
    """A mixin for layers and models: Keras makes them again from the arguments of the class, which it knows by name.

    An argument's value is that of the attribute of its name: of the `head_config` of a model, or else of the object.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("bert_tf."):  # users register theirs
            keras.saving.register_keras_serializable("bert_tf")(cls)

    def get_config(self) -> dict:
        head, values = vars(self.head_config) if hasattr(self, "head_config") else {}, super().get_config()
        parameters = inspect.signature(type(self).__init__).parameters.values()
        for name in (p.name for p in parameters if p.kind != p.VAR_KEYWORD and p.name != "self"):
            value = head[name] if name in head else getattr(self, name)
            value = value.to_dict() if isinstance(value, BertConfig) else value
            if not isinstance(value, keras.Layer):  # one that is shared is made again by its owner
                values[name] = list(value) if isinstance(value, tuple) else value
        return values


class ConfiguredLayer(ConfigFromArguments, keras.layers.Layer):
    """A layer whose only argument is a configuration of any family (or its dict, as stored in a saved model)."""

    def __init__(self, config: BertConfig | dict, **kwargs):
        super().__init__(**kwargs)
        self.config = as_config(config)

    def projection(self, units: int, name: str = "dense") -> "Projection":
        return Projection(units, self.config.initializer_range, name=name, dtype=self.dtype_policy)

    def norm(self) -> "LayerNorm":
        return LayerNorm(self.config.layer_norm_eps, name="LayerNorm", dtype=self.dtype_policy)


class LayerNorm(ConfigFromArguments, keras.layers.Layer):
    """Layer norm over the last axis, of `residual + dropout(x)` if those are given.

    Statistics and both variables (`gamma`, `beta`, [H]) stay in float32 under every policy, as a float32 input does.
    """

    def __init__(self, epsilon: float = 1e-12, **kwargs):
        super().__init__(**{"autocast": False, **kwargs})
        self.epsilon = epsilon

    def build(self, input_shape):
        size = input_shape[-1]
        self.gamma = self.add_weight(name="gamma", shape=(size,), initializer="ones", **IN_FLOAT32)
        self.beta = self.add_weight(name="beta", shape=(size,), initializer="zeros", **IN_FLOAT32)

    def call(self, x, residual=None, drop=None, training=False):
        """x: [..., H]; residual: of the same shape; drop: of x, see `dropout.dropout_at`."""
        gamma, beta = (value if value.trainable else ops.stop_gradient(value) for value in (self.gamma, self.beta))
        return kernels.residual_norm(x, residual, gamma, beta, drop, self.epsilon, self.compute_dtype, training)


class Projection(ConfigFromArguments, keras.layers.Layer):
    """activation(x W + b) over the last axis, with W stored [in, out].

    lora: what is trained besides W and b, see store/variable_names.py, or None; to be set before `build`.
    """

    def __init__(self, units: int, initializer_range: float | None = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.initializer_range = initializer_range
        self.lora = None

    def build(self, input_shape):
        size, units, lora = input_shape[-1], self.units, self.lora
        # With adapters the sum is made in float32, as that which is saved, and then cast.
        precise = {} if lora is None else IN_FLOAT32
        trained = {"trainable": lora is None}
        self.kernel = add_random_weight(self, "kernel", (size, units), self.initializer_range, **trained, **precise)
        self.bias = self.add_weight(name="bias", shape=(units,), initializer="zeros", **trained)
        if lora is not None:
            # Normal as in the paper, which gives no deviation; its authors' code does.
            deviation = 1.0 / math.sqrt(3 * size)
            self.lora_a = add_random_weight(self, ADAPTER_A, (size, lora.rank), deviation, **precise)
            self.lora_b = self.add_weight(name=ADAPTER_B, shape=(lora.rank, units), initializer="zeros", **precise)

    def call(self, x, activation="linear", training=False, in_rows=False):
        """in_rows: whether the result is [N, units], with a row for each vector of x."""
        # A product of rank 2 has a cheaper gradient, with no broadcast to undo.
        product = self._product(ops.reshape(x, (-1, x.shape[-1])), training)
        y = kernels.bias_activation(product, ops.convert_to_tensor(self.bias), activation, training)
        return y if in_rows else ops.reshape(y, (*leading_sizes(x, len(x.shape) - 1), self.units))

    def _product(self, rows, training: bool):
        kernel = ops.convert_to_tensor(self.kernel)
        if self.lora is None:
            return kept_product(ops.matmul, rows, kernel)
        if not training:  # the kernel of the model that is saved
            kernel = merged_kernel(kernel, self.lora_a, self.lora_b, self.lora.scale)
            return ops.matmul(rows, ops.cast(kernel, self.compute_dtype))

        def adapted(rows, kernel, a, b):
            return ops.matmul(rows, kernel) + ops.matmul(ops.matmul(rows, a), b) * self.lora.scale

        factors = (ops.cast(x, self.compute_dtype) for x in (kernel, self.lora_a, self.lora_b))
        return kept_product(adapted, rows, *factors)


class ResidualOutput(ConfiguredLayer):
    """LayerNorm(residual + dropout(x W + b)): the end of both halves of a transformer block."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.dense, self.layer_norm = self.projection(self.config.hidden_size), self.norm()

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.layer_norm.build((None, None, self.config.hidden_size))

    def call(self, x, residual, rate, training=False):
        rows = self.dense(x, training=training, in_rows=True)
        x = ops.reshape(rows, (*leading_sizes(residual, len(residual.shape) - 1), self.config.hidden_size))
        return self.layer_norm(x, residual=residual, drop=dropout_at(self.name, rate, training), training=training)


class Attention(ConfiguredLayer):
    """First half of a transformer block: multi-head scaled dot-product self-attention, and its residual output.

    Only keys are masked (original: attention_layer).
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        names = ("query", "key", "value")
        self.query, self.key, self.value = (self.projection(self.config.hidden_size, name) for name in names)
        self.attention_output = ResidualOutput(self.config, name="output", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        shape = (None, None, self.config.hidden_size)
        with keras.name_scope("self"):
            for projection in (self.query, self.key, self.value):
                projection.build(shape)
        self.attention_output.build(shape)

    def call(self, x, attention_bias, training=False, positions=None):
        """Arguments and results as for `TransformerBlock`, except that attention_bias is of the queries' positions."""
        read, keyed, valued = kernels.ordered_fan_out(x, 3) if training else (x, x, x)
        if positions is not None:
            read = gather_positions(read, positions)  # what asks, [B, Q, H]
        heads = self.config.num_attention_heads
        size = self.config.hidden_size // heads

        sizes = leading_sizes(x, 2)
        asking = sizes if positions is None else leading_sizes(read, 2)

        def split(projection, y, sizes, order):
            rows = projection(y, training=training, in_rows=True)
            return ops.transpose(ops.reshape(rows, (*sizes, heads, size)), order)

        # Three products, not one that is sliced: the gradient of a slice pads, which costs more than it saves.
        query = split(self.query, read, asking, (0, 2, 1, 3))  # [B, N, Q, D]
        key = split(self.key, keyed, sizes, (0, 2, 3, 1))  # [B, N, D, S]
        value = split(self.value, valued, sizes, (0, 2, 1, 3))  # [B, N, S, D]
        drop = dropout_at("self", self.config.attention_probs_dropout_prob, training)
        scores, scale = ops.matmul(query, key), 1.0 / math.sqrt(size)
        weights = kernels.attention_weights(scores, attention_bias, scale, drop, training)  # [B, N, Q, S]
        context = ops.transpose(kept_product(ops.matmul, weights, value), (0, 2, 1, 3))  # [B, Q, N, D]
        context = ops.reshape(context, (*asking, heads * size))
        rate = self.config.attention_output_dropout_prob
        return self.attention_output(context, read, rate=rate, training=training), weights


class TransformerBlock(ConfiguredLayer):
    """One encoder layer, layer norm after each residual (original: transformer_model)."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.attention = Attention(self.config, name="attention", dtype=self.dtype_policy)
        self.intermediate = self.projection(self.config.intermediate_size)
        self.block_output = ResidualOutput(self.config, name="output", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.attention.build()
        with keras.name_scope("intermediate"):
            self.intermediate.build((None, None, self.config.hidden_size))
        self.block_output.build((None, None, self.config.intermediate_size))

    def call(self, x, attention_bias, training=False, positions=None):
        """x: [B, S, H]; attention_bias: float32, broadcastable to [B, N, S, S].

        positions: int32 [B, P]: all but keys and values is computed only there. None: everywhere.

        Returns [B, Q, H], and the attention weights [B, N, Q, S]: queries by keys.
        """
        if positions is not None and attention_bias.shape[2] != 1:
            attention_bias = gather_positions(attention_bias[:, 0], positions)[:, None]
        with name_scope("attention"):
            x, weights = self.attention(x, attention_bias, training=training, positions=positions)
        hidden = self.intermediate(x, activation=self.config.activation, training=training, in_rows=True)  # [B Q, I]
        return self.block_output(hidden, x, rate=self.config.hidden_dropout_prob, training=training), weights


def attention_bias(input_mask, causal: bool = False):
    """The additive form of an attention mask, float32: 0 where attention is allowed, -10000 elsewhere.

    The mask is soft on purpose: a row without any key attends to everything, as in the original, and is not NaN.

    input_mask: [B, S], 1 for a key that may be attended to, else 0; or [B, S, S], queries by keys.
    causal: a query attends to no key after itself.

    Returns [B, 1, 1, S] or, for [B, S, S] or causal, [B, 1, S, S].
    """
    mask = ops.cast(input_mask, "float32")
    mask = mask[:, None, None, :] if len(mask.shape) == 2 else mask[:, None, :, :]
    if causal:
        position = ops.arange(ops.shape(mask)[-1])
        mask = mask * ops.cast(position[:, None] >= position[None, :], "float32")
    return (1.0 - mask) * kernels.MASK_BIAS


# --- random initial weights -------------------------------------------------------------------------------------------
# A model is built before its checkpoint is read. To draw weights that are then replaced would take longer than to read
# them. A value depends on its own seed only, not on when it is drawn: the numbers are the same in either order.

# id -> (variable, its values) of variables that are still zero; None outside of `deferred_initialization`.
_undrawn: dict[int, tuple[keras.Variable, keras.initializers.Initializer]] | None = None


def truncated_normal(standard_deviation: float | None) -> keras.initializers.Initializer:
    """Normal distribution, values beyond two standard deviations redrawn (original: create_initializer).

    None: Glorot's uniform distribution, TensorFlow's default, instead.
    """
    if standard_deviation is None:
        return keras.initializers.GlorotUniform()
    return keras.initializers.TruncatedNormal(stddev=standard_deviation)


def add_random_weight(layer: keras.Layer, name: str, shape: tuple, deviation: float | None, **kwargs) -> keras.Variable:
    """Adds a weight of `truncated_normal` to a layer. kwargs: of Keras `add_weight`."""
    initializer = truncated_normal(deviation)  # takes its seed here; a second use would draw the same values
    if _undrawn is None:
        return layer.add_weight(name=name, shape=shape, initializer=initializer, **kwargs)
    variable = layer.add_weight(name=name, shape=shape, initializer="zeros", **kwargs)
    _undrawn[id(variable)] = variable, initializer
    return variable


@contextlib.contextmanager
def deferred_initialization() -> Iterator[None]:
    """Layers built in this context get their random weights at its end, but for variables of `mark_initialized`.

    For code that builds a model and sets it from a checkpoint.
    """
    global _undrawn
    outer, _undrawn = _undrawn, {}
    try:
        yield
        for variable, initializer in _undrawn.values():
            variable.assign(initializer(variable.shape, variable.dtype))
    finally:
        _undrawn = outer


def mark_initialized(variable: keras.Variable) -> None:
    """Notes that a variable has its value, so that no random one is drawn."""
    if _undrawn is not None:
        _undrawn.pop(id(variable), None)


# --- one vector of several: of a text's tokens, or of a long text's windows -------------------------------------------
# Source: Reimers and Gurevych 2019, "Sentence-BERT", section 3. Here S is also the number of windows of a text.

_LOWEST = -1e30


def sentence_vectors(encoder, inputs: dict, pooling: str, skipped: int = 0, **arguments):
    """float32 [B, H]: a vector for each row.

    encoder: a `BertEncoder`. inputs: input_ids, input_mask and segment_ids [B, S].
    pooling: see `description.SentenceSettings`. skipped: the first tokens of a row that are not read, those of
    a prompt. arguments: for the encoder's call.
    """
    mask = inputs["input_mask"]
    first = ops.full((ops.shape(mask)[0], 1), skipped, "int32") if pooling == "cls" else None
    outputs = encoder(inputs, read_positions=first, **arguments)["sequence_output"]
    return pooled(ops.cast(outputs, "float32"), mask, pooling, 0 if pooling == "cls" else skipped)


def pooled(outputs, mask, pooling: str, skipped: int = 0):
    """[B, H] of outputs [B, S, H] and their mask [B, S] without the first `skipped`; of "cls" only the first counts."""
    if pooling == "cls":
        return outputs[:, skipped]
    if skipped:
        mask = ops.cast(mask, "int32") * ops.cast(ops.arange(ops.shape(mask)[1]) >= skipped, "int32")
    counted = ops.cast(mask, outputs.dtype)[:, :, None]
    if pooling == "max":
        return ops.max(ops.where(counted > 0, outputs, _LOWEST), axis=1)
    return ops.sum(outputs * counted, axis=1) / ops.maximum(ops.sum(counted, axis=1), 1.0)


def finished(vectors, settings, normalize: bool | None = None):
    """Pooled vectors [B, H] after the further steps of a directory: its normalization, then the cut to truncate_dim.

    settings: `SentenceSettings`. normalize: instead of its normalization, True: in the end; False: none.
    """
    if settings.normalize and normalize is None:
        vectors = normalized(vectors)
    vectors = vectors[..., : settings.truncate_dim]
    return normalized(vectors) if normalize else vectors


def normalized(vectors):
    """The vectors [..., H] with the length 1; zeros stay zeros."""
    return vectors / ops.maximum(ops.norm(vectors, axis=-1, keepdims=True), 1e-12)


class WindowPooling(ConfigFromArguments, keras.layers.Layer):
    """Mean or maximum over the windows of a text, or a mean with weights that are learned.

    The weights of "attention" are a softmax over the windows of their vectors' products with one learned vector. It
    begins at zero: then all windows weigh the same. With one window, every kind gives its vector, bit for bit.

    kind: one of `head_config.WINDOW_POOLINGS`.
    """

    def __init__(self, kind: str, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind

    def build(self, input_shape):
        if self.kind == "attention":
            self.scores = self.add_weight(name="scores", shape=input_shape[-1:], initializer="zeros", **IN_FLOAT32)

    def call(self, x, mask):
        """[B, H] of x [B, S, H], computed in float32. mask: [B, S], 0 for windows that a text does not have."""
        values = ops.cast(x, "float32")
        if self.kind == "attention":
            scores = ops.where(ops.cast(mask, "bool"), ops.sum(values * self.scores, axis=-1), _LOWEST)  # [B, S]
            # Keras's softmax warns of a single value.
            weights = ops.exp(scores - ops.max(scores, axis=-1, keepdims=True))
            weights = weights / ops.sum(weights, axis=-1, keepdims=True)
            values = ops.sum(values * weights[:, :, None], axis=1)
        else:
            values = pooled(values, mask, self.kind)
        return ops.cast(values, x.dtype)
