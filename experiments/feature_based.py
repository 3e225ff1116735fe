"""The paper's feature-based approach (section 5.3, Table 7): a small model that reads what a frozen BERT gives a token.

    python -m experiments.feature_based --init_checkpoint=cased_L-12_H-768_A-12 --train_file=conll/train.txt \\
      --dev_file=conll/dev.txt --features=concat_last_four

Files have a word and its tag a line, and a blank line behind each sentence. With --text_column and --label_column they
are CSV, and a text has one class: the maxima of the reader's outputs over the tokens are classified. --features=none
learns embeddings of the model's vocabulary in place of BERT, which shows what BERT adds. Prints the scores on
--dev_file after each epoch.
"""

import csv
from collections.abc import Sequence

import keras
import numpy as np
from absl import flags, logging
from keras import ops

from bert_tf import BertModel, read_tokenizer
from bert_tf.system import script
from bert_tf.tasks.ner.data import Layout, read_conll
from bert_tf.tasks.ner.metrics import evaluate

# Name -> what represents a token, of the embeddings' and the layers' outputs [B, S, H]: the rows of Table 7.
FEATURES = {
    "embeddings": lambda outputs: outputs["embedding_output"],
    "last": lambda outputs: outputs["encoder_layers"][-1],
    "second_to_last": lambda outputs: outputs["encoder_layers"][-2],
    "sum_last_four": lambda outputs: sum(outputs["encoder_layers"][-4:]),
    "concat_last_four": lambda outputs: ops.concatenate(outputs["encoder_layers"][-4:], axis=-1),
    "sum_all": lambda outputs: sum(outputs["encoder_layers"]),
}
NO_LABEL = -1


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("init_checkpoint", None, "Directory of the model that is frozen.")
    flags.DEFINE_string("train_file", None, "Words and tags, or a CSV file, to train on.")
    flags.DEFINE_string("dev_file", None, "The same to evaluate on.")
    flags.DEFINE_string("text_column", None, "CSV: the column of the text.")
    flags.DEFINE_string("label_column", None, "CSV: the column of the class.")
    flags.DEFINE_enum("features", "concat_last_four", [*FEATURES, "none"], "What of BERT is read; none: no BERT.")
    flags.DEFINE_enum("reader", "bilstm", ["bilstm", "cnn"], "Two BiLSTMs, or convolutions of widths 3, 4 and 5.")
    flags.DEFINE_integer("width", 768, "Outputs of the reader for a token, a multiple of 6.", lower_bound=6)
    flags.DEFINE_float("learning_rate", 1e-3, "Adam's.")
    flags.DEFINE_integer("epochs", 3, "Passes over the training file.", lower_bound=1)
    flags.DEFINE_integer("batch_size", 32, "Sentences or texts a step.", lower_bound=1)
    flags.DEFINE_integer("max_seq_length", 128, "Tokens of a row; what is longer is cut.", lower_bound=3)
    flags.DEFINE_integer("seed", 1, "Of weights, dropout and the order of the data.")
    flags.mark_flags_as_required(["init_checkpoint", "train_file", "dev_file"])


def read(path: str, text: str | None, label: str | None) -> list[tuple[list[str], list[str]]]:
    """The words and tags of each sentence; of CSV the text as one word, and its class."""
    if text is None:
        return [(sentence.words, sentence.tags) for sentence in read_conll(path, Layout()).sentences]
    with open(path, encoding="utf-8-sig", newline="") as file:
        return [([row[text]], [row[label]]) for row in csv.DictReader(file)]


def encode(sentences: Sequence, tokenizer, labels: Sequence[str], length: int) -> tuple[dict, np.ndarray]:
    """Rows of token ids with their mask, and the label of each word's first piece [n, S], NO_LABEL for all others."""
    inputs = {name: np.zeros((len(sentences), length), "int32") for name in ("input_ids", "input_mask")}
    wanted = np.full((len(sentences), length), NO_LABEL, "int32")
    for row, (words, tags) in enumerate(sentences):
        pieces = [tokenizer.encode(word) or [tokenizer.unk_id] for word in words]
        ids = tokenizer.build_inputs([piece for word in pieces for piece in word], None, length)[0]
        inputs["input_ids"][row, : len(ids)], inputs["input_mask"][row, : len(ids)] = ids, 1
        firsts = 1 + np.cumsum([0, *map(len, pieces[:-1])])
        for first, tag in zip(firsts, tags, strict=True):
            if first < len(ids) - 1 and tag in labels:
                wanted[row, first] = labels.index(tag)
    return inputs, wanted


class Reader(keras.Model):
    """Logits [B, S, C] of tokens, or [B, C] of texts, from what a frozen BERT or own embeddings give the tokens.

    Args:
      bert: is not trained. features: one of FEATURES, or "none": embeddings of bert's vocabulary, of `width`.
      reader: "bilstm" or "cnn". of_texts: the maxima over the tokens are classified.
    """

    def __init__(self, bert: BertModel, features: str, reader: str, width: int, classes: int, of_texts: bool):
        super().__init__()
        bert.trainable = False
        self.bert, self.features, self.of_texts = bert, features, of_texts
        self.embeddings = keras.layers.Embedding(bert.config.vocab_size, width) if features == "none" else None
        if reader == "bilstm":
            lstms = [keras.layers.LSTM(width // 2, return_sequences=True) for _ in range(2)]
            self.readers = [keras.layers.Bidirectional(lstm) for lstm in lstms]
        else:
            sizes = (3, 4, 5)
            self.readers = [keras.layers.Conv1D(width // 3, size, padding="same", activation="relu") for size in sizes]
        self.dropout, self.output_layer = keras.layers.Dropout(0.1), keras.layers.Dense(classes)

    def call(self, inputs, training=False):
        """inputs: `input_ids` and `input_mask` [B, S]."""
        mask = ops.cast(inputs["input_mask"], "bool")
        if self.embeddings:
            x = self.embeddings(inputs["input_ids"])
        else:
            outputs = self.bert(inputs, training=False, return_all_layers=True)  # frozen: without dropout
            x = ops.stop_gradient(FEATURES[self.features](outputs))
        x = self.dropout(x, training=training) * ops.cast(mask[:, :, None], x.dtype)
        if isinstance(self.readers[0], keras.layers.Bidirectional):
            for layer in self.readers:
                x = layer(x, mask=mask, training=training)
        else:
            x = ops.concatenate([layer(x) for layer in self.readers], axis=-1)
        if self.of_texts:
            x = ops.max(ops.where(mask[:, :, None], x, -1e4), axis=1)
        return self.output_layer(self.dropout(x, training=training))


def scores(sentences: Sequence, wanted: np.ndarray, logits: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
    """Accuracy of texts; of words also the scores of entities. What was cut off counts as "O"."""
    best = logits.argmax(-1)
    if best.ndim == 1:
        return {
            "accuracy": float(
                np.mean([labels[number] == tags[0] for number, (_, tags) in zip(best, sentences, strict=True)])
            )
        }
    predicted = [[labels[number] for number in row[known != NO_LABEL]] for row, known in zip(best, wanted, strict=True)]
    gold = [tags for _, tags in sentences]
    predicted = [tags + ["O"] * (len(right) - len(tags)) for tags, right in zip(predicted, gold, strict=True)]
    return evaluate(gold, predicted)


def main(_):
    logging.set_verbosity(logging.INFO)
    values = flags.FLAGS
    keras.utils.set_random_seed(values.seed)
    of_texts = values.text_column is not None
    train, dev = (read(path, values.text_column, values.label_column) for path in (values.train_file, values.dev_file))
    labels = sorted({tag for _, tags in train for tag in tags})
    tokenizer, bert = read_tokenizer(values.init_checkpoint), BertModel.from_pretrained(values.init_checkpoint)
    model = Reader(bert, values.features, values.reader, values.width, len(labels), of_texts)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=NO_LABEL)
    model.compile(keras.optimizers.Adam(values.learning_rate), loss)
    (x, y), (dev_x, dev_y) = (encode(sentences, tokenizer, labels, values.max_seq_length) for sentences in (train, dev))
    for epoch in range(1, values.epochs + 1):
        model.fit(x, y[:, 1] if of_texts else y, batch_size=values.batch_size, verbose=2)
        logits = model.predict(dev_x, batch_size=values.batch_size, verbose=0)
        results = scores(dev, dev_y, logits, labels)
        print(f"epoch {epoch}: " + ", ".join(f"{name} {value:.4f}" for name, value in results.items()))


if __name__ == "__main__":
    define_flags()
    script.run(main)
