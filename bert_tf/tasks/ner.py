"""Named entities put together: the model, its predictions, their scores, and what a trained model must remember."""

import dataclasses
import json
import posixpath
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_tf import feature_tagger, task_models
from bert_tf.config import BertConfig
from bert_tf.model_files import BERT_CONFIG, read_config
from bert_tf.tasks import batching, ner_data, ner_features, ner_metrics
from bert_tf.tasks.classification_metrics import softmax
from bert_tf.tasks.ner_data import ConllFile, Layout, Sentence
from bert_tf.tasks.ner_features import WordRows
from bert_tf.text_files import write_text_file

SETTINGS_FILE = "token_classification.json"


@dataclasses.dataclass(frozen=True)
class TaggingSettings:
    """What belongs to a trained tagger besides weights and labels; kept in token_classification.json beside them.

    Attributes:
      learned_scheme: of the model's tags: iob2, bioes or plain.
      document_context: whether it saw whole documents.
      features: None: BERT is trained, too; or what of its outputs the BiLSTMs are given (`feature_tagger.FEATURES`).
      lstm_size, lstm_layers: of the BiLSTMs.
    """

    learned_scheme: str = "iob2"
    document_context: bool = False
    features: str | None = None
    lstm_size: int = 768
    lstm_layers: int = 2

    def to_json(self) -> str:
        """The settings as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, directory: str) -> "TaggingSettings | None":
        """The settings that lie in a model's directory; None if there are none.

        Raises:
          ValueError: the file is damaged; names it.
        """
        path = posixpath.join(directory, SETTINGS_FILE)
        if not tf.io.gfile.exists(path):
            return None
        with tf.io.gfile.GFile(path, "rb") as file:
            try:
                return cls(**json.loads(file.read().decode("utf-8")))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}: no settings of a tagger: {error}") from None


# --- model -----------------------------------------------------------------------------------------------------------


def labels_of(sentences: Sequence[Sentence], scheme: str) -> list[str]:
    """The tags to learn: of entities all that the types in the data can have, so that no chance decides which."""
    tags = {tag for sentence in sentences for tag in sentence.tags}
    if scheme == "plain":
        return sorted(tags)
    return ner_data.tag_set(scheme, {tag.partition("-")[2] for tag in tags if tag != ner_data.OUTSIDE})


def stored_labels(output_dir: str, config: BertConfig) -> list[str] | None:
    """The tags that an earlier run kept in output_dir, or else those of the model's configuration."""
    path = posixpath.join(output_dir, BERT_CONFIG)
    config = read_config(path, allow_unknown=True) if tf.io.gfile.exists(path) else config
    names = getattr(config, "id2label", None)
    return [names[str(number)] for number in range(len(names))] if names else None


def configure(config: BertConfig, labels: Sequence[str]) -> BertConfig:
    """A copy of a model's configuration with the tags, which travel with its checkpoints."""
    values = config.to_dict()
    values.pop("problem_type", None)
    values["architectures"] = ["BertForTokenClassification"]
    values["id2label"] = {str(number): label for number, label in enumerate(labels)}
    values["label2id"] = {label: number for number, label in enumerate(labels)}
    return BertConfig.from_dict(values, allow_unknown=True)


def create_model(config: BertConfig, settings: TaggingSettings, dtype: str) -> keras.Model:
    """The model that is trained: all of BERT, or BiLSTMs on its features."""
    num_labels = len(config.id2label)
    if settings.features is None:
        return task_models.BertForTokenClassification(config, num_labels, dtype=dtype)
    return feature_tagger.BertFeatureTagger(
        config, num_labels, settings.features, settings.lstm_size, settings.lstm_layers, dtype=dtype
    )


def output_layer(settings: TaggingSettings) -> str:
    """What the weights of the model's output layer are called in its checkpoints."""
    return "output_weights" if settings.features is None else "tagger/output_weights"


# --- predictions -----------------------------------------------------------------------------------------------------


def predict_logits(
    predict: Callable, rows: WordRows, *, batch_size: int, max_seq_length: int, static_padding: bool
) -> np.ndarray:
    """Logits [W, C] of all words of all sentences in their order.

    Args:
      predict: from `train_step.make_predict_function`.
    """
    rows = dataclasses.replace(rows, labels={})
    batches = batching.evaluation_batches(
        rows, batch_size=batch_size, max_seq_length=max_seq_length, static_padding=static_padding
    )
    order = np.argsort(rows.word_rows, kind="stable")
    bounds = np.searchsorted(rows.word_rows[order], np.arange(len(rows) + 1))
    logits = None
    for chosen, output in batching.rows_and_outputs(rows, batch_size, predict(batches)):
        if logits is None:
            logits = np.empty((len(rows.word_rows), output.shape[-1]), np.float32)
        for place, row in enumerate(chosen.tolist()):
            words = order[bounds[row] : bounds[row + 1]]
            logits[words] = output[place, rows.word_positions[words]]
    return logits


def tags_by_sentence(sentences: Sequence[Sentence], tags: Sequence[str]) -> list[list[str]]:
    """The tags of all words one after the other, cut into sentences."""
    ends = np.cumsum([len(sentence.words) for sentence in sentences]).tolist()
    return [list(tags[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def predicted_tags(
    sentences: Sequence[Sentence], logits: np.ndarray, labels: Sequence[str], scheme: str
) -> list[list[str]]:
    """The likeliest tag of each word, by sentence; then, where these don't make whole entities, as conlleval reads
    them, in valid tags of `scheme`."""
    raw = tags_by_sentence(sentences, [labels[number] for number in logits.argmax(-1)])
    return [ner_data.valid_tags(tags, scheme) for tags in raw]


def score(
    sentences: Sequence[Sentence], logits: np.ndarray, labels: Sequence[str], settings: TaggingSettings
) -> tuple[dict[str, float], str]:
    """Scores of `ner_metrics.evaluate` and loss (mean negative log-likelihood of the words' tags), and a table by type.

    A tag that the model does not know counts as wrong, and not in the loss.
    """
    plain = settings.learned_scheme == "plain"
    gold = [sentence.tags for sentence in sentences]
    predicted = predicted_tags(sentences, logits, labels, settings.learned_scheme)
    results = ner_metrics.evaluate(gold, predicted, plain=plain)
    number = {label: index for index, label in enumerate(labels)}
    ids = np.array([number.get(tag, -1) for tags in gold for tag in tags])
    known = ids >= 0
    losses = -np.log(np.maximum(softmax(logits[known])[np.arange(known.sum()), ids[known]], 1e-30))
    results["loss"] = float(losses.mean()) if len(losses) else 0.0
    return results, ner_metrics.report(gold, predicted, plain=plain)


def write_predictions(
    output_dir: str, file: ConllFile, layout: Layout, logits: np.ndarray, labels: Sequence[str]
) -> list[str]:
    """Writes predictions.conll, the file with one more column, and predictions.jsonl; returns their paths.

    The second has a line for each sentence: words, tags, and entities: type, start, end (words, from 0, the one after
    the last), text, score (mean probability of the likeliest tags of its words).
    """
    tags = predicted_tags(file.sentences, logits, labels, layout.tag_scheme)
    paths = [posixpath.join(output_dir, f"predictions.{suffix}") for suffix in ("conll", "jsonl")]
    ner_data.write_conll(paths[0], file, tags, layout)
    best = tags_by_sentence(file.sentences, softmax(logits).max(-1).tolist())
    lines = []
    for sentence, of_words, probabilities in zip(file.sentences, tags, best, strict=True):
        record = {"words": sentence.words, "tags": of_words}
        if layout.tag_scheme != "plain":
            record["entities"] = [
                {
                    "type": entity.type,
                    "start": entity.start,
                    "end": entity.end,
                    "text": " ".join(sentence.words[entity.start : entity.end]),
                    "score": round(float(np.mean(probabilities[entity.start : entity.end])), 4),
                }
                for entity in ner_data.entities_of(of_words, layout.tag_scheme)
            ]
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    write_text_file(paths[1], "".join(lines))
    return paths


def training_batches(rows: WordRows, **arguments):
    """`batching.training_batches`, with the labels as wide as each batch."""
    return batching.training_batches(rows, **arguments).map(ner_features.cut_labels)
