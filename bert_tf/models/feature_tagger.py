"""The feature-based approach to tagging: a BiLSTM on the outputs of a frozen BERT.

Paper: Devlin et al. 2019, section 5.3 and Table 7.

Shape legend: B batch, S sequence length, H hidden size, F size of the features, U width of a BiLSTM, C classes.
"""

from collections.abc import Sequence

import keras

from bert_tf.models import objectives
from bert_tf.models.base_models import TaskModel
from bert_tf.models.dropout import dropout, in_scope
from bert_tf.models.feature_based import feature_size, select_features
from bert_tf.models.head_config import HeadConfig, head_in
from bert_tf.models.heads import LinearHead, apply_bilstm, bilstm


@keras.saving.register_keras_serializable("bert_tf")
class BertFeatureTagger(TaskModel):
    """A classifier of every token: BiLSTMs on the outputs of a frozen BERT.

    The encoder's variables are saved and loaded with the model, but get no gradient. The classifier's variables are
    named `tagger/output_weights` and `tagger/output_bias`, since they don't fit on a BERT.

    Args:
      config: a `BertConfig` or its dict. num_labels: C.
      features: one of `feature_based.FEATURES`.
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
        super().__init__(objectives.TokenClassificationObjective, config, seed, name=name, **kwargs)
        self.feature_size = feature_size(self.config, features)
        if lstm_size < 2 or lstm_size % 2:
            raise ValueError(f"lstm_size={lstm_size} must be even: half of it is for each direction.")
        self.head_config = HeadConfig("BertForTokenClassification", labels or head_in(config).labels)
        self.head_config.check_num_labels(num_labels)
        self.num_labels, self.dropout_rate = num_labels, dropout_rate
        self.features, self.lstm_size, self.lstm_layers = features, lstm_size, lstm_layers
        self.recurrent = [
            bilstm(lstm_size, dtype=self.dtype_policy, name=f"bilstm_{number}") for number in range(lstm_layers)
        ]
        self.head = LinearHead(num_labels, name="tagger", dtype=self.dtype_policy)

    def build_head(self):
        size = self.feature_size
        for layer in self.recurrent:
            layer.build((None, None, size))
            size = self.lstm_size
        self.head.build((None, size))

    @in_scope
    def call(self, inputs, training=False):
        """inputs: as for `BertModel`. Returns float32 logits [B, S, C]."""
        outputs = self.encode(inputs, training=False, return_all_layers=True)
        x = select_features(outputs, self.features, training)  # [B, S, F]
        x = dropout(x, self.dropout_rate, "features", training)
        for layer in self.recurrent:
            x = apply_bilstm(layer, x, inputs.get("input_mask"), training)  # [B, S, U]
        return self.head(dropout(x, self.dropout_rate, "head", training))

    def get_config(self) -> dict:
        names = ("num_labels", "features", "lstm_size", "lstm_layers", "dropout_rate")
        values = {name: getattr(self, name) for name in names}
        return {**super().get_config(), **values, "labels": self.head_config.labels}
