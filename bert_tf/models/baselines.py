"""Classifiers without BERT, to show what BERT adds: a BiLSTM or a CNN on embeddings of word pieces, from scratch.

They take the same token rows as BERT and are trained, saved and evaluated in the same way (run_classifier.py
--model=bilstm|cnn). The layers are those that can also read a frozen BERT (`heads.token_reader`).

Shape legend: B batch, S sequence length, E embedding size, U outputs of the BiLSTM or of all convolutions, C classes.
"""

from collections.abc import Sequence

import keras
from keras import ops

from bert_tf.models import heads, kernels, ranges
from bert_tf.models.config import BertConfig
from bert_tf.models.dropout import dropout, in_scope
from bert_tf.models.head_config import HeadConfig, head_in
from bert_tf.models.inputs import NamedInputs
from bert_tf.models.random_weights import add_random_weight
from bert_tf.models.task_models import classification_objective

# --model -> the architecture's name in a trained model's head_config.json.
ARCHITECTURES = {"bilstm": "BilstmClassifier", "cnn": "CnnClassifier"}

# Default of --learning_rate in run_classifier.py: BERT's would hardly move random weights.
LEARNING_RATE = 1e-3

# Name of the output layer's weights in checkpoints; different from BERT's classifier, so that they can't be confused.
OUTPUT_LAYER = "baseline/output_weights"


def kind_of(architecture: str | None) -> str | None:
    """The --model value of an architecture; None for a BERT's."""
    return next((kind for kind, name in ARCHITECTURES.items() if name == architecture), None)


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
    if model not in ARCHITECTURES:
        raise ValueError(f"--model={model} is not one of {', '.join(ARCHITECTURES)}.")
    if hidden_size % (parts := heads.TOKEN_READERS[model]):
        raise ValueError(f"--hidden_size={hidden_size} must be a multiple of {parts} for --model={model}.")
    return BertConfig(
        vocab_size, embedding_size, 1, 1, hidden_size, max_position_embeddings=max_seq_length, type_vocab_size=2
    )


@keras.saving.register_keras_serializable("bert_tf")
class BaselineClassifier(NamedInputs, keras.Model):
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
        if self.kind not in ARCHITECTURES:
            raise ValueError(f"kind={kind!r} is not one of {', '.join(ARCHITECTURES)}.")
        problem_type = problem_type or stored.problem_type
        problem_type = problem_type or ("regression" if num_labels == 1 else "single_label_classification")
        self.objective = classification_objective(problem_type, num_labels)
        self.head_config = HeadConfig(ARCHITECTURES[self.kind], labels or stored.labels, problem_type)
        self.head_config.check_num_labels(num_labels)
        self.num_labels, self.dropout_rate, self.seed = num_labels, dropout_rate, seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.reader = heads.token_reader(self.kind, self.config.intermediate_size, self.dtype_policy)
        self.head = heads.LinearHead(num_labels, name="baseline", dtype=self.dtype_policy)

    tokens_read = None  # all; see `TaskModel`

    @property
    def known_inputs(self) -> tuple[str, ...]:
        """The names that a dict of inputs may have."""
        objective = self.objective
        return ("input_ids", "input_mask", "segment_ids", *objective.label_names, *objective.optional_names)

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
        inputs, wrong = ranges.require_inputs(self.config, {**inputs, "input_ids": ids})
        x = kernels.embedding_lookup(ops.convert_to_tensor(self.word_embeddings), inputs["input_ids"])  # [B, S, E]
        x = x + wrong[:, :, None]
        if inputs.get("segment_ids") is not None:
            segments = ops.one_hot(inputs["segment_ids"], self.config.type_vocab_size, dtype="float32")
            x = x + ops.matmul(segments, ops.convert_to_tensor(self.token_type_embeddings))
        x = dropout(ops.cast(x, self.compute_dtype), self.dropout_rate, "embeddings", training)
        x = heads.read_tokens(self.reader, x, inputs.get("input_mask"), training)  # [B, U]
        return self.head(dropout(x, self.dropout_rate, "head", training))

    def flops_per_example(self, length: float) -> float:
        """Floating-point operations of the matrix products, forward, for a row of `length` tokens."""
        return length * heads.reader_flops(self.kind, self.config.hidden_size, self.config.intermediate_size)

    def get_config(self) -> dict:
        values = {name: getattr(self, name) for name in ("num_labels", "kind", "dropout_rate", "seed")}
        values |= {name: getattr(self.head_config, name) for name in ("labels", "problem_type")}
        return {**super().get_config(), **values, "config": self.config.to_dict()}
