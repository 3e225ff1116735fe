"""The BERT encoder in Keras 3: embeddings, transformer blocks, pooler.

Source: Devlin et al. 2018, section 3; original: modeling.py.

Variable paths follow the names of the original's TF1 checkpoints (`bert/encoder/layer_0/attention/self/query/kernel`),
so that checkpoints.py needs no table of names.

Shape legend: B batch, S sequence length, H hidden size, N attention heads, D = H / N, I intermediate size,
V vocabulary, T segment types, M sequences packed into one row.
"""

import math

import keras
from keras import ops

from bert_tf import kernels
from bert_tf.config import BertConfig

_PACKAGE = "bert_tf"


def truncated_normal(standard_deviation: float) -> keras.initializers.Initializer:
    """Normal with values beyond two standard deviations drawn again (original: create_initializer)."""
    return keras.initializers.TruncatedNormal(stddev=standard_deviation)


def gather_positions(sequence, positions):
    """Rows of sequence [B, S, H] at positions [B, P]: [B, P, H]."""
    batch, length, size = ops.shape(sequence)[0], ops.shape(sequence)[1], sequence.shape[-1]
    offsets = ops.expand_dims(ops.arange(batch, dtype="int32") * length, 1)
    flat = ops.reshape(ops.cast(positions, "int32") + offsets, (-1,))
    rows = ops.take(ops.reshape(sequence, (-1, size)), flat, axis=0)
    return ops.reshape(rows, (batch, -1, size))


class ConfiguredLayer(keras.layers.Layer):
    """A layer whose only argument is a BertConfig (or its dict, which is what a saved model holds)."""

    def __init__(self, config: BertConfig | dict, **kwargs):
        super().__init__(**kwargs)
        self.config = BertConfig.from_dict(config, allow_unknown=True) if isinstance(config, dict) else config

    def get_config(self) -> dict:
        return {**super().get_config(), "config": self.config.to_dict()}


@keras.saving.register_keras_serializable(_PACKAGE)
class LayerNorm(keras.layers.Layer):
    """Layer norm over the last axis, of `residual + dropout(x + bias)` where those are given.

    Statistics and both variables (`gamma`, `beta`, [H]) stay in float32 under every dtype policy, and so does an input
    that comes in float32.
    """

    def __init__(self, epsilon: float = kernels.LAYER_NORM_EPSILON, **kwargs):
        super().__init__(**{"autocast": False, **kwargs})
        self.epsilon = epsilon

    def build(self, input_shape):
        size = input_shape[-1]
        self.gamma = self.add_weight(name="gamma", shape=(size,), initializer="ones", autocast=False, dtype="float32")
        self.beta = self.add_weight(name="beta", shape=(size,), initializer="zeros", autocast=False, dtype="float32")
        self.built = True

    def call(self, x, bias=None, residual=None, rate=0.0, dropout_seed=None, training=False):
        return kernels.layer_norm(
            x,
            ops.convert_to_tensor(self.gamma),
            ops.convert_to_tensor(self.beta),
            epsilon=self.epsilon,
            bias=bias,
            residual=residual,
            rate=rate,
            seed=dropout_seed,
            training=training,
            dtype=self.compute_dtype,
        )

    def get_config(self) -> dict:
        return {**super().get_config(), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(_PACKAGE)
class Projection(keras.layers.Layer):
    """x W + b over the last axis, with W stored [in, out]."""

    def __init__(self, units: int, initializer_range: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.initializer_range = initializer_range

    def build(self, input_shape):
        initializer = truncated_normal(self.initializer_range)
        self.kernel = self.add_weight(name="kernel", shape=(input_shape[-1], self.units), initializer=initializer)
        self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")
        self.built = True

    def call(self, x, add_bias=True, activation="linear"):
        # Rows as one matrix: a product of rank 2 has the cheaper gradient, with no broadcast to undo.
        rows = ops.reshape(x, (-1, x.shape[-1]))
        if add_bias:
            y = kernels.dense(rows, self.kernel, ops.convert_to_tensor(self.bias), activation)
        else:
            y = ops.matmul(rows, self.kernel)
        return ops.reshape(y, (*ops.shape(x)[:-1], self.units))

    def activated(self, x, activation: str, training: bool):
        """activation(x W + b)."""
        if training or kernels.fuses(training):
            y = self(x, add_bias=False)
            return kernels.bias_activation(y, ops.convert_to_tensor(self.bias), activation, training)
        return self(x, activation=activation)

    def product_and_bias(self, x, training: bool):
        """(x W, b) for a chain of kernels.py that adds b in float32; at inference (x W + b, None), as oneDNN adds the
        bias within the product and, of constants, keeps W in the order that it likes best."""
        if training or kernels.fuses(training):
            return self(x, add_bias=False), ops.convert_to_tensor(self.bias)
        return self(x), None

    def get_config(self) -> dict:
        return {**super().get_config(), "units": self.units, "initializer_range": self.initializer_range}


@keras.saving.register_keras_serializable(_PACKAGE)
class Embeddings(ConfiguredLayer):
    """Word + segment + position embeddings, layer norm, dropout (paper section 3, figure 2).

    `dense_gradient`: see `kernels.embedding_lookup`.
    """

    def __init__(self, config, dense_gradient: bool = False, **kwargs):
        super().__init__(config, **kwargs)
        self.dense_gradient = dense_gradient
        self.layer_norm = LayerNorm(self.config.layer_norm_eps, name="LayerNorm", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        config = self.config
        initializer = truncated_normal(config.initializer_range)

        # The tables stay in float32: casting a whole table to look up a few rows would pass over all of it.
        def table(name, rows):
            shape = (rows, config.hidden_size)
            return self.add_weight(name=name, shape=shape, initializer=initializer, autocast=False, dtype="float32")

        self.word_embeddings = table("word_embeddings", config.vocab_size)
        self.token_type_embeddings = table("token_type_embeddings", config.type_vocab_size)
        self.position_embeddings = table("position_embeddings", config.max_position_embeddings)
        self.layer_norm.build((None, None, config.hidden_size))
        self.built = True

    def call(self, input_ids, segment_ids, position_ids=None, dropout_seed=None, training=False):
        length = input_ids.shape[1]
        if length is None:
            length = ops.shape(input_ids)[1]
        elif length > self.config.max_position_embeddings and position_ids is None:
            raise ValueError(
                f"A sequence of {length} tokens is longer than max_position_embeddings="
                f"{self.config.max_position_embeddings} of bert_config.json: lower max_seq_length."
            )
        words = kernels.embedding_lookup(self.word_embeddings, input_ids, self.dense_gradient and training)  # [B, S, H]
        # A product with one-hot rows: a segment id outside the table adds a zero vector instead of failing.
        types = ops.matmul(
            ops.one_hot(segment_ids, self.config.type_vocab_size, dtype="float32"), self.token_type_embeddings
        )
        if position_ids is None:
            positions = self.position_embeddings[:length]
        else:
            positions = kernels.embedding_lookup(self.position_embeddings, position_ids, dense_gradient=training)
        x = words + types + positions  # [B, S, H]
        x = self.layer_norm(x, training=training)
        return kernels.dropout(x, self.config.hidden_dropout_prob, dropout_seed)

    def get_config(self) -> dict:
        return {**super().get_config(), "dense_gradient": self.dense_gradient}


@keras.saving.register_keras_serializable(_PACKAGE)
class SelfAttention(ConfiguredLayer):
    """Multi-head scaled dot-product self-attention; only keys are masked (original: attention_layer)."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.query, self.key, self.value = (
            Projection(self.config.hidden_size, self.config.initializer_range, name=name, dtype=self.dtype_policy)
            for name in ("query", "key", "value")
        )

    def build(self, input_shape=None):
        for projection in (self.query, self.key, self.value):
            projection.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, x, attention_bias, dropout_seed=None, training=False):
        """x: [B, S, H]; attention_bias: float32, broadcastable to [B, N, S, S].

        Returns:
          [B, S, H], and the probabilities [B, N, S, S] that the values were weighted with: queries by keys.
        """
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        heads = self.config.num_attention_heads
        size = self.config.hidden_size // heads

        def split(y, order):
            return ops.transpose(ops.reshape(y, (batch, length, heads, size)), order)

        # Three products, not one cut in three: the gradient of a slice pads, which costs more than it saves.
        query = split(self.query(x), (0, 2, 1, 3))  # [B, N, S, D]
        key = split(self.key(x), (0, 2, 3, 1))  # [B, N, D, S]
        value = split(self.value(x), (0, 2, 1, 3))  # [B, N, S, D]
        probabilities = kernels.attention_probabilities(
            ops.matmul(query, key),
            attention_bias,
            1.0 / math.sqrt(size),
            rate=self.config.attention_probs_dropout_prob,
            seed=dropout_seed,
            training=training,
        )  # [B, N, S, S]
        context = ops.transpose(ops.matmul(probabilities, value), (0, 2, 1, 3))  # [B, S, N, D]
        return ops.reshape(context, (batch, length, heads * size)), probabilities


@keras.saving.register_keras_serializable(_PACKAGE)
class ResidualOutput(ConfiguredLayer):
    """LayerNorm(residual + dropout(x W + b)): the end of both halves of a transformer block."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        size, deviation = self.config.hidden_size, self.config.initializer_range
        self.dense = Projection(size, deviation, name="dense", dtype=self.dtype_policy)
        self.layer_norm = LayerNorm(self.config.layer_norm_eps, name="LayerNorm", dtype=self.dtype_policy)

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.layer_norm.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, x, residual, dropout_seed=None, training=False):
        y, bias = self.dense.product_and_bias(x, training)
        return self.layer_norm(
            y,
            bias=bias,
            residual=residual,
            rate=self.config.hidden_dropout_prob,
            dropout_seed=dropout_seed,
            training=training,
        )


@keras.saving.register_keras_serializable(_PACKAGE)
class Attention(ConfiguredLayer):
    """First half of a transformer block: self-attention and its residual output."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.self_attention = SelfAttention(self.config, name="self", dtype=self.dtype_policy)
        self.attention_output = ResidualOutput(self.config, name="output", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.self_attention.build()
        self.attention_output.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, x, attention_bias, dropout_seed=None, training=False):
        """x: [B, S, H]. Returns [B, S, H], and the probabilities [B, N, S, S] of self-attention."""
        context, probabilities = self.self_attention(
            x, attention_bias, dropout_seed=kernels.fold_in(dropout_seed, 1), training=training
        )
        x = self.attention_output(context, x, dropout_seed=kernels.fold_in(dropout_seed, 2), training=training)
        return x, probabilities


@keras.saving.register_keras_serializable(_PACKAGE)
class Intermediate(ConfiguredLayer):
    """Dense layer H -> I with hidden_act."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        units = self.config.intermediate_size
        self.dense = Projection(units, self.config.initializer_range, name="dense", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.dense.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, x, training=False):
        return self.dense.activated(x, self.config.activation, training)


@keras.saving.register_keras_serializable(_PACKAGE)
class TransformerBlock(ConfiguredLayer):
    """One encoder layer, layer norm after each residual (original: transformer_model)."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        dtype = self.dtype_policy
        self.attention = Attention(self.config, name="attention", dtype=dtype)
        self.intermediate = Intermediate(self.config, name="intermediate", dtype=dtype)
        self.block_output = ResidualOutput(self.config, name="output", dtype=dtype)

    def build(self, input_shape=None):
        self.attention.build()
        self.intermediate.build()
        self.block_output.build((None, None, self.config.intermediate_size))
        self.built = True

    def call(self, x, attention_bias, dropout_seed=None, training=False):
        """x: [B, S, H]; attention_bias: float32, broadcastable to [B, N, S, S].

        Returns:
          [B, S, H], and the probabilities [B, N, S, S] of self-attention.
        """
        x, probabilities = self.attention(x, attention_bias, dropout_seed=dropout_seed, training=training)
        hidden = self.intermediate(x, training=training)  # [B, S, I]
        x = self.block_output(hidden, x, dropout_seed=kernels.fold_in(dropout_seed, 3), training=training)
        return x, probabilities


@keras.saving.register_keras_serializable(_PACKAGE)
class Encoder(ConfiguredLayer):
    """The stack of transformer blocks."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.blocks = [
            TransformerBlock(self.config, name=f"layer_{i}", dtype=self.dtype_policy)
            for i in range(self.config.num_hidden_layers)
        ]

    def build(self, input_shape=None):
        for block in self.blocks:
            block.build()
        self.built = True

    def call(self, x, attention_bias, dropout_seed=None, training=False, return_attention=False):
        """x: [B, S, H]; attention_bias: see `TransformerBlock`.

        Returns:
          Two lists in the order of the blocks: their outputs [B, S, H]; with `return_attention` their attention
          probabilities [B, N, S, S], else nothing, so that outside of a graph their memory is free again at once.
        """
        outputs, attention = [], []
        for number, block in enumerate(self.blocks):
            seed = kernels.fold_in(dropout_seed, 4 * (number + 1))
            x, probabilities = block(x, attention_bias, dropout_seed=seed, training=training)
            outputs.append(x)
            if return_attention:
                attention.append(probabilities)
        return outputs, attention


@keras.saving.register_keras_serializable(_PACKAGE)
class Pooler(ConfiguredLayer):
    """tanh(x[:, 0] W + b), or at other positions than 0: always tanh, whatever hidden_act says."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        size, deviation = self.config.hidden_size, self.config.initializer_range
        self.dense = Projection(size, deviation, name="dense", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.dense.build((None, self.config.hidden_size))
        self.built = True

    def call(self, sequence_output, positions=None):
        """sequence_output: [B, S, H]; positions: [B, M] or None. Returns [B, H], or [B, M, H] with positions."""
        first = sequence_output[:, 0] if positions is None else gather_positions(sequence_output, positions)
        return ops.tanh(self.dense(first))


def attention_bias(input_mask, causal: bool = False):
    """The additive form of an attention mask, float32.

    Args:
      input_mask: [B, S], 1 for a key that may be seen and 0 for one that may not; or [B, S, S], queries by keys.
      causal: a query sees no key after itself.

    Returns:
      [B, 1, 1, S] or, of [B, S, S] and causal, [B, 1, S, S]: 0 where seen, -10000 where not. The mask is soft on
      purpose: a row without any key attends to everything instead of giving NaN (original: attention_layer).
    """
    mask = ops.cast(input_mask, "float32")
    mask = mask[:, None, None, :] if len(mask.shape) == 2 else mask[:, None, :, :]
    if causal:
        place = ops.arange(ops.shape(mask)[-1])
        mask = mask * ops.cast(place[:, None] >= place[None, :], "float32")
    return (1.0 - mask) * kernels.MASK_BIAS


def last_positions(input_mask):
    """int32 [B, 1]: the last place of each row of input_mask [B, S] that is not 0 (0 if there is none)."""
    place = ops.arange(ops.shape(input_mask)[1], dtype="int32")
    return ops.max(ops.cast(input_mask, "int32") * place, axis=1, keepdims=True)


class Pretrained:
    """What every model of this project can do: come from weights of any of the four formats, and go back to them."""

    @classmethod
    def from_pretrained(cls, path: str, **arguments):
        """A model with the weights at `path`.

        Args:
          path: a directory, checkpoint prefix or weight file: of the original, Hugging Face, Model Garden, TensorFlow
            Hub or this project; it is seen from the files.
          arguments: for the class; `config` instead of the one beside the weights. `num_labels`, where the class has
            it, is that of the head in the file if it isn't given.

        Raises:
          FileNotFoundError, ValueError: no weights there, damaged ones, or they don't fit; see `pretrained`.
        """
        from bert_tf import pretrained  # upstairs: reading files needs TensorFlow, the model does not

        return pretrained.from_pretrained(cls, path, **arguments)

    def save_pretrained(self, directory: str, *, format: str = "bert_tf", **arguments) -> None:
        """Writes weights, configuration, and vocabulary and casing where known.

        Args:
          format: "bert_tf", "tf1", "huggingface" or "model_garden".
          arguments: see `pretrained.save_pretrained`: vocab_file, do_lower_case, strip_accents, overwrite.
        """
        from bert_tf import pretrained

        pretrained.save_pretrained(self, directory, format=format, **arguments)


@keras.saving.register_keras_serializable(_PACKAGE)
class BertModel(Pretrained, keras.Model):
    """The BERT encoder.

    Args:
      config: a `BertConfig` (or its dict).
      dense_embedding_gradient: see `kernels.embedding_lookup`.
      seed: seed of dropout where `call` gets no `dropout_seed` (Keras `fit`).
      dtype: Keras dtype policy, e.g. "mixed_bfloat16".

    Example:

        config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        model = BertModel(config)
        outputs = model({"input_ids": np.array([[1, 5, 7, 2]])})
        outputs["sequence_output"].shape  # (1, 4, 32)
    """

    def __init__(self, config, dense_embedding_gradient: bool = False, seed: int | None = None, name="bert", **kwargs):
        super().__init__(name=name, **kwargs)
        self.config = BertConfig.from_dict(config, allow_unknown=True) if isinstance(config, dict) else config
        self.dense_embedding_gradient = dense_embedding_gradient
        self.seed = seed
        dtype = self.dtype_policy
        self.embeddings = Embeddings(self.config, dense_embedding_gradient, name="embeddings", dtype=dtype)
        self.encoder = Encoder(self.config, name="encoder", dtype=dtype)
        self.pooler = Pooler(self.config, name="pooler", dtype=dtype)
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape=None):
        self.embeddings.build()
        self.encoder.build()
        self.pooler.build()
        self.built = True

    def call(self, inputs, training=False, dropout_seed=None, return_all_layers=False, return_attention=False):
        """Runs the encoder.

        Args:
          inputs: input_ids [B, S], or a dict with `input_ids` and optionally `input_mask` ([B, S] or [B, S, S],
            default all ones) and `segment_ids` ([B, S], default all zeros); other keys are ignored. For several
            sequences in a row also `sequence_ids` [B, S], the number of the sequence that a token belongs to, from 1,
            0 for padding: a token sees only tokens of its own number, and input_mask is not used;
            `position_ids` [B, S], where the token stands in its sequence; `pooled_positions` [B, M], where the
            sequences begin.
          dropout_seed: int32 [2]. The same seed gives the same dropout masks; if None, the model's own generator
            gives one per call.
          return_all_layers: also return every intermediate layer.
          return_attention: also return what each token attends to.

        Returns:
          dict with `sequence_output` [B, S, H] and `pooled_output` [B, H] ([B, M, H] with pooled_positions), made of
          the first token or, where config.attention is causal, of the last, which alone sees all; on request also
          `embedding_output` [B, S, H] and `encoder_layers`, a list of L tensors [B, S, H]; and
          `attention_probabilities`, a list of L tensors [B, N, S, S], queries by keys: the weights of the values, so
          after dropout when training, and in the dtype of the computation. Each query's add up to 1 (but for dropout).

        Raises:
          ValueError: input_ids is not of rank 2, or longer than max_position_embeddings; a causal model is given
            sequence_ids or an input_mask of rank 3, but no pooled_positions.
        """
        inputs = inputs if isinstance(inputs, dict) else {"input_ids": inputs}
        input_ids = ops.convert_to_tensor(inputs["input_ids"])
        if len(input_ids.shape) != 2:
            raise ValueError(f"input_ids must be [batch, sequence]; got shape {tuple(input_ids.shape)}.")
        segment_ids = inputs.get("segment_ids")
        segment_ids = ops.zeros_like(input_ids) if segment_ids is None else segment_ids
        input_mask, sequence_ids = inputs.get("input_mask"), inputs.get("sequence_ids")
        if sequence_ids is not None:
            sequence_ids = ops.convert_to_tensor(sequence_ids)
            input_mask = ops.equal(sequence_ids[:, :, None], sequence_ids[:, None, :])
        input_mask = ops.ones_like(input_ids) if input_mask is None else ops.convert_to_tensor(input_mask)
        bias = attention_bias(input_mask, self.config.is_causal)
        seed = self.resolve_dropout_seed(dropout_seed) if training else None

        embedding_output = self.embeddings(
            input_ids, segment_ids, position_ids=inputs.get("position_ids"), dropout_seed=seed, training=training
        )
        layers, attention = self.encoder(
            embedding_output, bias, dropout_seed=seed, training=training, return_attention=return_attention
        )
        pooled_output = self._pooled(layers[-1], input_mask, inputs.get("pooled_positions"))
        outputs = {"sequence_output": layers[-1], "pooled_output": pooled_output}
        if return_all_layers:
            outputs |= {"embedding_output": embedding_output, "encoder_layers": layers}
        if return_attention:
            outputs["attention_probabilities"] = attention
        return outputs

    def _pooled(self, sequence_output, input_mask, positions):
        if positions is not None or not self.config.is_causal:
            return self.pooler(sequence_output, positions)
        if len(input_mask.shape) != 2:
            raise ValueError(
                "Where the sequences of a row end can't be seen from sequence_ids or a mask of rank 3: a model with "
                "causal attention needs pooled_positions."
            )
        return self.pooler(sequence_output, last_positions(input_mask))[:, 0]

    def resolve_dropout_seed(self, dropout_seed=None):
        """int32 [2]: the seed given, or else a new one of the model's generator.

        A model with a head that has dropout of its own calls this once and hands the result to the encoder, so that
        both hang on the same seed.
        """
        if dropout_seed is None:
            # Under tf.distribute the generators of all replicas count alike, so each replica folds in its number.
            dropout_seed = ops.cast(self.seed_generator.next(), "int32")
            dropout_seed = kernels.fold_in(dropout_seed, kernels.replica_number(), word=1)
        return dropout_seed

    def get_embedding_table(self):
        """The word-embedding table, [V, H]."""
        return self.embeddings.word_embeddings

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "config": self.config.to_dict(),
            "dense_embedding_gradient": self.dense_embedding_gradient,
            "seed": self.seed,
        }
