"""What a fine-tuned BERT is compared with: models on outputs of a frozen BERT, and classifiers without BERT.

Both read tokens by a BiLSTM or by convolutions. They take the same token rows as BERT and are trained, saved and
evaluated in the same way.

Paper: Devlin et al. 2019, section 5.3 and Table 7, the feature-based approach.

Shape legend: B batch, S sequence length, H hidden size, E embedding size, F size of the features, U outputs of a BiLSTM
or of all convolutions, C classes.
"""

from collections.abc import Sequence
from types import MappingProxyType

import keras
from keras import ops

from bert_tf.models import kernels
from bert_tf.models.config import BertConfig
from bert_tf.models.dropout import dropout, in_scope
from bert_tf.models.head_config import BASELINES, TOKEN_READERS, HeadConfig, head_in, kind_of, labels_of
from bert_tf.models.heads import ClassifierModel, LinearHead, classification_objective
from bert_tf.models.inputs import ROW_INPUTS, require_inputs
from bert_tf.models.layers import NamedInputs, Rebuilt, add_random_weight
from bert_tf.models.objectives import TokenClassificationObjective

_CONVOLUTION_WIDTHS = (3, 4, 5)


def bilstm(width: int, *, return_sequences: bool = True, dtype=None, name: str = "bilstm") -> keras.layers.Layer:
    """A bidirectional LSTM; half of its width is for each direction.

    Args:
      return_sequences: outputs [B, S, width] for all tokens; otherwise the two last states, [B, width].
    """
    lstm = keras.layers.LSTM(width // 2, return_sequences=return_sequences, dtype=dtype, name="lstm")
    return keras.layers.Bidirectional(lstm, dtype=dtype, name=name)


def apply_bilstm(layer: keras.layers.Layer, x, input_mask, training: bool):
    """A BiLSTM's outputs for x [B, S, H].

    Args:
      input_mask: [B, S], 0 for padding, so that the backward LSTM starts at the end of the row; None: no padding.
    """
    return layer(x, mask=None if input_mask is None else ops.cast(input_mask, "bool"), training=training)


def token_reader(kind: str, width: int, dtype=None) -> list[keras.layers.Layer]:
    """The layers of a BiLSTM or of a CNN with convolutions of three widths (Kim 2014, arXiv:1408.5882).

    Args:
      kind: one of TOKEN_READERS. width: U.
    """
    if kind == "bilstm":
        return [bilstm(width, dtype=dtype)]
    arguments = {"padding": "same", "activation": "relu", "dtype": dtype}
    filters = width // len(_CONVOLUTION_WIDTHS)
    return [
        keras.layers.Conv1D(filters, width, name=f"convolution_{width}", **arguments) for width in _CONVOLUTION_WIDTHS
    ]


def read_tokens(layers: list[keras.layers.Layer], x, input_mask, training: bool):
    """[B, U]: the maximum over the tokens of each output of the layers of a `token_reader`.

    Args:
      x: [B, S, H]. input_mask: [B, S], 0 for padding, which has no influence; None: no padding.
    """
    mask = ops.ones(ops.shape(x)[:2], "bool") if input_mask is None else ops.cast(input_mask, "bool")
    # For convolutions, padding is zero, like everything beyond the ends of a row.
    x = x * ops.cast(ops.expand_dims(mask, -1), x.dtype)
    if isinstance(layers[0], keras.layers.Bidirectional):
        x = apply_bilstm(layers[0], x, mask, training)  # [B, S, U]
    else:
        x = ops.concatenate([layer(x) for layer in layers], axis=-1)
    lowest = ops.cast(-1e4, x.dtype)
    return ops.max(ops.where(ops.expand_dims(mask, -1), x, lowest), axis=1)


def reader_flops(kind: str, size: int, width: int) -> float:
    """Floating-point operations of a `token_reader`'s matrix products, forward, per token.

    Args:
      size: H of its input. width: U.
    """
    if kind == "bilstm":
        return 2.0 * 2 * 4 * (width // 2) * (size + width // 2)
    return 2.0 * size * width / len(_CONVOLUTION_WIDTHS) * sum(_CONVOLUTION_WIDTHS)


# --- the feature-based approach ---------------------------------------------------------------------------------------

# The outputs of the encoder that represent a token: the rows of Table 7.
FEATURES = ("last", "second_to_last", "sum_last_four", "concat_last_four", "sum_all", "embeddings")

_LAYERS_NEEDED = {"second_to_last": 2, "sum_last_four": 4, "concat_last_four": 4}


def feature_size(config: BertConfig, features: str) -> int:
    """F: 4 H for concat_last_four, else H.

    Raises:
      ValueError: features is not one of FEATURES, or needs more layers than the encoder has.
    """
    if features not in FEATURES:
        raise ValueError(f"features={features!r} is not one of {', '.join(FEATURES)}.")
    needed = _LAYERS_NEEDED.get(features, 1)
    if needed > config.num_hidden_layers:
        raise ValueError(f"features={features} needs {needed} layers, but the model has {config.num_hidden_layers}.")
    return config.hidden_size * (4 if features == "concat_last_four" else 1)


def select_features(outputs: dict, features: str, training: bool = False):
    """[B, S, F] from the outputs of `BertModel` with return_all_layers=True; in training no gradient goes back through
    them.

    sum_all is the sum of all encoder layers, without the embeddings.
    """
    layers = outputs["encoder_layers"]
    if features == "embeddings":
        chosen = outputs["embedding_output"]
    elif features == "concat_last_four":
        chosen = ops.concatenate(layers[-4:], axis=-1)
    elif features in ("last", "second_to_last"):
        chosen = layers[-1 if features == "last" else -2]
    else:
        chosen = sum(layers[-4:] if features == "sum_last_four" else layers)
    return ops.stop_gradient(chosen) if training else chosen


class FeatureReader(keras.layers.Layer):
    """A BiLSTM or a CNN on the outputs of a frozen BERT, then the maximum of each output over the tokens.

    Args:
      config: of the encoder. features: one of FEATURES.
      kind: one of TOKEN_READERS. width: U, even for a BiLSTM, a multiple of three for a CNN.
      dropout_rate: dropout of the features in training. dtype: Keras dtype policy.

    Raises:
      ValueError: the features, the kind, or its width is impossible.
    """

    def __init__(self, config: BertConfig, features: str, kind: str, width: int, dropout_rate: float, **kwargs):
        super().__init__(**kwargs)
        if kind not in TOKEN_READERS:
            raise ValueError(f"model_on_top={kind!r} is not one of {', '.join(TOKEN_READERS)}.")
        if width < 1 or width % TOKEN_READERS[kind]:
            raise ValueError(f"size_on_top={width} must be a multiple of {TOKEN_READERS[kind]} for {kind}.")
        self.features, self.size, self.dropout_rate = features, feature_size(config, features), dropout_rate
        self.layers_on_top = token_reader(kind, width, self.dtype_policy)
        self.flops_per_token = reader_flops(kind, self.size, width)  # forward

    def build(self, input_shape=None):
        for layer in self.layers_on_top:
            layer.build((None, None, self.size))
        self.built = True

    def call(self, outputs: dict, input_mask=None, training=False):
        """[B, U] from the outputs of `BertModel` with return_all_layers=True.

        Args:
          input_mask: [B, S], 0 for padding; None: there is none.
        """
        x = select_features(outputs, self.features, training)
        x = dropout(x, self.dropout_rate, "features", training)
        return read_tokens(self.layers_on_top, x, input_mask, training)


@keras.saving.register_keras_serializable("bert_tf")
class BertFeatureTagger(ClassifierModel):
    """A classifier of every token: BiLSTMs on the outputs of a frozen BERT.

    The encoder's variables are saved and loaded with the model, but get no gradient. The classifier's variables are
    named `tagger/output_weights` and `tagger/output_bias`, since they don't fit on a BERT.

    Args:
      config: a `BertConfig` or its dict. num_labels: C.
      features: one of FEATURES.
      lstm_size: U, the width of a BiLSTM, half of it for each direction. lstm_layers: number of stacked BiLSTMs. The
        paper has "a two-layer 768-dimensional BiLSTM".
      dropout_rate: dropout of the features and of the classifier's input in training.
      seed: see `BertModel`. dtype: Keras dtype policy.
      labels: the names of the classes in the order of their ids.

    Raises:
      ValueError: features is unknown, or needs more layers than the encoder has; lstm_size is odd.
    """

    def __init__(
        self,
        config,
        num_labels: int,
        features: str = "concat_last_four",
        lstm_size: int = 768,
        lstm_layers: int = 2,
        dropout_rate: float = 0.1,
        seed: int | None = None,
        name="feature_tagger",
        *,
        labels: Sequence[str] | None = None,
        **kwargs,
    ):
        objective = TokenClassificationObjective
        head = HeadConfig("BertForTokenClassification", labels_of(labels, config))
        super().__init__(objective, config, num_labels, head, seed, dropout_rate, name=name, **kwargs)
        self.feature_size = feature_size(self.config, features)
        if lstm_size < 2 or lstm_size % 2:
            raise ValueError(f"lstm_size={lstm_size} must be even: half of it is for each direction.")
        self.features, self.lstm_size, self.lstm_layers = features, lstm_size, lstm_layers
        self.recurrent = [
            bilstm(lstm_size, dtype=self.dtype_policy, name=f"bilstm_{number}") for number in range(lstm_layers)
        ]
        self.head = LinearHead(num_labels, name="tagger", dtype=self.dtype_policy)

    kept_as = MappingProxyType({"features": "features"})  # not in its head_config

    def build_head(self):
        size = self.feature_size
        for layer in self.recurrent:
            layer.build((None, None, size))
            size = self.lstm_size
        self.head.build((None, size))

    def read(self, inputs, training):
        outputs = self.encode(inputs, training=False, return_all_layers=True)
        x = select_features(outputs, self.features, training)  # [B, S, F]
        x = dropout(x, self.dropout_rate, "features", training)
        for layer in self.recurrent:
            x = apply_bilstm(layer, x, inputs.get("input_mask"), training)  # [B, S, U]
        return x

    def call(self, inputs, training=False):
        """inputs: as for `BertModel`. Returns float32 logits [B, S, C]."""
        return self.classify(inputs, training)


# --- without BERT -----------------------------------------------------------------------------------------------------

# --model -> the architecture's name in a trained model's head_config.json.


def create_config(
    model: str, vocab_size: int, *, embedding_size: int = 300, hidden_size: int = 300, max_seq_length: int = 512
) -> BertConfig:
    """The configuration of a baseline, in the form of a BERT's: `hidden_size` is E and `intermediate_size` is U.

    Args:
      model: "bilstm" or "cnn". hidden_size: U; even for a BiLSTM, a multiple of three for a CNN (of widths 3, 4, 5).
      max_seq_length: the limit for longer texts; the model itself has no positions.

    Raises:
      ValueError: no such model, or U is not such a multiple; names the flag.
    """
    if model not in BASELINES:
        raise ValueError(f"--model={model} is not one of {', '.join(BASELINES)}.")
    if hidden_size % (parts := TOKEN_READERS[model]):
        raise ValueError(f"--hidden_size={hidden_size} must be a multiple of {parts} for --model={model}.")
    return BertConfig(
        vocab_size, embedding_size, 1, 1, hidden_size, max_position_embeddings=max_seq_length, type_vocab_size=2
    )


@keras.saving.register_keras_serializable("bert_tf")
class BaselineClassifier(NamedInputs, Rebuilt, keras.Model):
    """A classifier of token rows: a BiLSTM or convolutions, then the maximum of each output over the tokens.

    Compiled with a loss (logits in, e.g. SparseCategoricalCrossentropy(from_logits=True)) it is a plain Keras model.
    `model.objective` is the objective for the training loop.

    Args:
      config: from `create_config`, or its dict.
      num_labels: C; 1 for a regression.
      kind: "bilstm" or "cnn".
      dropout_rate: dropout of the embeddings and of the classifier's input in training.
      seed: seed of dropout outside of a `dropout_scope`. dtype: Keras dtype policy.
      labels, problem_type: as for `BertForSequenceClassification`.

    Raises:
      ValueError: no such kind; or as for `BertForSequenceClassification`.
    """

    def __init__(
        self,
        config,
        num_labels: int,
        kind: str | None = None,
        dropout_rate: float = 0.3,
        seed: int | None = None,
        name="baseline",
        *,
        labels: Sequence[str] | None = None,
        problem_type: str | None = None,
        **kwargs,
    ):
        super().__init__(name=name, **kwargs)
        stored = head_in(config)
        self.config = BertConfig.from_dict(config, allow_unknown=True) if isinstance(config, dict) else config
        self.kind = kind or kind_of(stored.architecture)
        if self.kind not in BASELINES:
            raise ValueError(f"kind={kind!r} is not one of {', '.join(BASELINES)}.")
        problem_type = problem_type or stored.problem_type
        problem_type = problem_type or ("regression" if num_labels == 1 else "single_label_classification")
        self.objective = classification_objective(problem_type, num_labels)
        self.head_config = HeadConfig(BASELINES[self.kind], labels_of(labels, config), problem_type)
        self.head_config.check_num_labels(num_labels)
        self.num_labels, self.dropout_rate, self.seed = num_labels, dropout_rate, seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.reader = token_reader(self.kind, self.config.intermediate_size, self.dtype_policy)
        self.head = LinearHead(num_labels, name="baseline", dtype=self.dtype_policy)

    tokens_read = None  # all; see `TaskModel`

    @property
    def known_inputs(self) -> tuple[str, ...]:
        """The names that a dict of inputs may have."""
        objective = self.objective
        return (*ROW_INPUTS, *objective.label_names, *objective.optional_names)

    def build(self, input_shape=None):
        size = self.config.hidden_size

        def table(name, rows):
            # Wider than BERT's 0.02, since no layer norm follows.
            return add_random_weight(self, name, (rows, size), 0.1, autocast=False, dtype="float32")

        self.word_embeddings = table("word_embeddings", self.config.vocab_size)
        self.token_type_embeddings = table("token_type_embeddings", self.config.type_vocab_size)
        for layer in self.reader:
            layer.build((None, None, size))
        self.head.build((None, self.config.intermediate_size))
        self.built = True

    @in_scope
    def call(self, inputs, training=False):
        """inputs: input_ids and optionally input_mask, segment_ids, integers [B, S]. Returns float32 logits [B, C]."""
        ids = ops.convert_to_tensor(inputs["input_ids"])
        inputs, wrong = require_inputs(self.config, {**inputs, "input_ids": ids})
        x = kernels.embedding_lookup(ops.convert_to_tensor(self.word_embeddings), inputs["input_ids"])  # [B, S, E]
        x = x + wrong[:, :, None]
        if inputs.get("segment_ids") is not None:
            segments = ops.one_hot(inputs["segment_ids"], self.config.type_vocab_size, dtype="float32")
            x = x + ops.matmul(segments, ops.convert_to_tensor(self.token_type_embeddings))
        x = dropout(ops.cast(x, self.compute_dtype), self.dropout_rate, "embeddings", training)
        x = read_tokens(self.reader, x, inputs.get("input_mask"), training)  # [B, U]
        return self.head(dropout(x, self.dropout_rate, "head", training))

    def flops_per_example(self, length: float) -> float:
        """Floating-point operations of the matrix products, forward, for a row of `length` tokens."""
        return length * reader_flops(self.kind, self.config.hidden_size, self.config.intermediate_size)
