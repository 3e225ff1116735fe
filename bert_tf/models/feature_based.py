"""The feature-based approach: what other layers read of a frozen BERT.

Paper: Devlin et al. 2019, section 5.3 and Table 7.

Shape legend: B batch, S sequence length, H hidden size, F size of the features, U outputs of
what reads them.
"""

import keras
from keras import ops

from bert_tf.models.config import BertConfig
from bert_tf.models.dropout import dropout
from bert_tf.models.heads import TOKEN_READERS, read_tokens, reader_flops, token_reader

# The outputs of the encoder that represent a token: the rows of Table 7.
FEATURES = ("last", "second_to_last", "sum_last_four", "concat_last_four", "sum_all", "embeddings")

# The name of a feature-based classifier's output layer in checkpoints; it does not fit on a BERT.
OUTPUT_LAYER = "feature_classifier/output_weights"

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
      kind: one of `heads.TOKEN_READERS`. width: U, even for a BiLSTM, a multiple of three for a CNN.
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
