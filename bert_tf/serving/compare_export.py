"""What an export costs in quality: its answers on real data compared with those of the float32 model."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.models.directory import read_head
from bert_tf.models.output_layers import order_of, spelled_as
from bert_tf.serving import loaded_export
from bert_tf.serving.graph_ner import ServedTagger
from bert_tf.serving.predictor import Predictor
from bert_tf.serving.question_answerer import QuestionAnswerer
from bert_tf.serving.tagger import Tagger
from bert_tf.system.progress import progress_bar
from bert_tf.system.text_encodings import UTF_8
from bert_tf.system.text_files import read_text_lines
from bert_tf.tasks.classification import encode as classification_encode
from bert_tf.tasks.classification.data import InputExample
from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import metrics as ner_metrics
from bert_tf.tasks.ner import outputs as ner_outputs
from bert_tf.tasks.ner.notation import standard_tags
from bert_tf.tasks.squad import data as squad_data
from bert_tf.tasks.squad import metrics as squad_metrics
from bert_tf.text import casing
from bert_tf.text.characters import plain_name, trimmed

_ROWS = 32


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Scores of the model and of its export on the same data.

    Attributes:
      examples: number of examples. model, export: metric -> value. same: share of examples with the same answer.
      largest_difference: in a probability (or a regression's score).
    """

    examples: int
    model: dict[str, float]
    export: dict[str, float]
    same: float
    largest_difference: float

    def text(self) -> str:
        """The comparison as text."""
        lines = [f"{self.examples} examples, {self.same:.2%} with the same answer"]
        for name, value in self.model.items():
            change = self.export[name] - value
            lines.append(f"{name}: model {value:.4f}, export {self.export[name]:.4f} ({change:+.4f})")
        lines.append(f"largest difference of a score: {self.largest_difference:.2g}")
        return "\n".join(lines)


def refuse_unfit(check_file: str, model_dir: str, task: str, text_pairs: bool = False, encoding: str = UTF_8) -> None:
    """Refuses an unsuitable file before anything is exported: a server loads a new version as soon as it exists.

    Args:
      check_file, model_dir, encoding: as for `compare`. task, text_pairs: as for `export.export_saved_model`.

    Raises:
      FileNotFoundError: no such file. ValueError: as for `compare`; or single texts for an export that takes pairs.
    """
    if not tf.io.gfile.exists(check_file):
        raise FileNotFoundError(f"--check_file={check_file} does not exist")
    _comparer(task).check(check_file, encoding, model_dir, text_pairs)


def compare(export: str, model_dir: str, check_file: str, encoding: str = UTF_8) -> Comparison:
    """Compares an export with the model it was made from.

    Args:
      export: the directory of a version, SavedModel or ONNX; or a .tflite file of a classifier.
      check_file: for a classifier or regression, lines `text TAB label` or `text TAB text TAB label`; for squad, a JSON
        file in SQuAD format; for ner, a CoNLL file, word first and tag (IOB2) last.
      encoding: of that file, see `text_files.TextFile`.

    Raises:
      ValueError: the task is not supported; a line lacks columns or has an unknown label (names file and line);
        `ner.data.read_conll` refuses the file.
    """
    if export.endswith(".tflite"):
        return _compare_classifier(_tflite_scores(export), Predictor(model_dir), check_file, encoding)
    return _comparer(loaded_export.read_description(export)["task"]).compare(export, model_dir, check_file, encoding)


# ---- classifiers -----------------------------------------------------------------------------------------------------

Scores = Callable[[Predictor, list], np.ndarray]


def _scores(export: str) -> Scores:
    """Of a SavedModel or ONNX export."""
    if loaded_export.onnx_file(export):
        theirs = Predictor(export)
        return lambda predictor, texts: _by_label(
            export, theirs.labels, predictor, _probabilities(predictor, theirs.logits(texts))
        )
    loaded = loaded_export.Export(export)

    def scores(predictor: Predictor, texts: list) -> np.ndarray:
        names = ("text", "text_pair")[: len(texts[0])]
        signature = "serve_pairs" if len(names) == 2 and "serve_pairs" in loaded.signatures else "serving_default"
        wanted = loaded.description["signatures"][signature]["inputs"]
        if set(wanted) != set(names):
            raise ValueError(f"--check_file has lines of {len(names)} texts; the export takes {', '.join(wanted)}")
        outputs = loaded(signature, **{name: [row[place] for row in texts] for place, name in enumerate(names)})
        found = outputs["probabilities"] if "probabilities" in outputs else outputs["score"][:, None]
        return _by_label(export, loaded.description["labels"], predictor, found)

    return scores


def _by_label(export: str, labels: Sequence[str], predictor: Predictor, scores: np.ndarray) -> np.ndarray:
    """An export's scores [n, C] in the order of the model's labels."""
    if not predictor.labels:
        return scores
    order = order_of(labels, predictor.labels, export, "Compare it with the model that it was made from.")
    return scores[:, order] if order else scores


def _tflite_scores(path: str) -> Scores:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(path).get_signature_runner()
    length = runner.get_input_details()["input_ids"]["shape"][1]

    def scores(predictor: Predictor, texts: list) -> np.ndarray:
        examples = [InputExample(str(number), *row) for number, row in enumerate(texts)]
        encoded = classification_encode.encode_examples(
            examples, predictor.task, predictor.tokenizer, int(length), num_processes=1
        )
        rows = [runner(**encoded.batch(np.array([number]), int(length))) for number in range(len(examples))]
        return _probabilities(predictor, np.concatenate([row["logits"] for row in rows]))

    return scores


def _probabilities(predictor: Predictor, logits: np.ndarray) -> np.ndarray:
    if predictor.task.is_regression:
        return logits
    if predictor.task.multi_label:
        return tf.sigmoid(logits).numpy()
    return tf.nn.softmax(logits).numpy()


def _compare_classifier(scores: Scores, predictor: Predictor, check_file: str, encoding: str) -> Comparison:
    rows, labels = _read_rows(check_file, encoding, predictor)
    mine, theirs = [], []
    for begin in progress_bar(range(0, len(rows), _ROWS), desc="comparing", unit="batch", leave=False, delay=2):
        part = rows[begin : begin + _ROWS]
        theirs.append(scores(predictor, part))
        mine.append(_probabilities(predictor, predictor.logits(part)))
    mine, theirs = np.concatenate(mine), np.concatenate(theirs)
    largest = float(np.abs(mine - theirs).max())
    if predictor.task.is_regression:
        metrics = [{"pearson": float(np.corrcoef(values[:, 0], labels)[0, 1])} for values in (mine, theirs)]
        return Comparison(len(rows), *metrics, float((np.abs(mine - theirs) < 0.05).mean()), largest)
    guesses = [values.argmax(-1) for values in (mine, theirs)]
    metrics = [{"accuracy": float((guess == np.array(labels)).mean())} for guess in guesses]
    return Comparison(len(rows), *metrics, float((guesses[0] == guesses[1]).mean()), largest)


def _read_rows(check_file: str, encoding: str, predictor: Predictor) -> tuple[list[tuple], list]:
    """Texts and numeric labels of the lines."""
    if predictor.task.multi_label:
        raise ValueError("--check_file can't score several labels per example")
    numbers = {label: number for number, label in enumerate(predictor.labels)}
    rows, labels = [], []
    for number, line in enumerate(read_text_lines(check_file, encoding=encoding), 1):
        *texts, label = map(trimmed, line.split("\t"))
        label = plain_name(label)
        if len(texts) not in (1, 2) or (rows and len(texts) != len(rows[0])):
            raise ValueError(f"{check_file}, line {number}: expected text, perhaps a second text, and label, with tabs")
        if predictor.task.is_regression:
            try:
                labels.append(float(label))
            except ValueError:
                raise ValueError(f"{check_file}, line {number}: {label!r} is not a number") from None
        elif (known := spelled_as([label], predictor.labels)[0]) in numbers:
            labels.append(numbers[known])
        else:
            header = "; a header must be left out" if number == 1 else ""
            raise ValueError(
                f"{check_file}, line {number}: the model has no label {label!r}; it has {list(numbers)}{header}"
            )
        rows.append(tuple(texts))
    if not rows:
        raise ValueError(f"{check_file} has no lines")
    return rows, labels


def _check_rows(check_file: str, encoding: str, model_dir: str, text_pairs: bool) -> None:
    rows, _ = _read_rows(check_file, encoding, Predictor(model_dir))
    if text_pairs and len(rows[0]) == 1:
        raise ValueError(f"{check_file} has lines of one text; an export with --text_pairs takes two")


# ---- questions -------------------------------------------------------------------------------------------------------


# (question, context) of a batch -> (answer, score) of each.
Answers = Callable[[list[tuple[str, str]]], list[tuple[str, float]]]


def _answers(export: str) -> Answers:
    """Of a SavedModel or ONNX export."""
    if loaded_export.onnx_file(export):
        answerer = QuestionAnswerer(export)
        return lambda pairs: [(found["answer"], found["score"]) for found in answerer.predict(pairs)]
    loaded = loaded_export.Export(export)

    def answers(pairs: list[tuple[str, str]]) -> list[tuple[str, float]]:
        questions, contexts = map(list, zip(*pairs, strict=True))
        outputs = loaded("serving_default", question=questions, context=contexts)
        texts = [answer.decode() for answer in outputs["answer"].tolist()]
        return list(zip(texts, outputs["score"].tolist(), strict=True))

    return answers


def _compare_answers(export: str, model_dir: str, check_file: str, encoding: str) -> Comparison:
    articles = squad_data.read_articles(check_file, encoding)
    questions = [
        (question["id"], question["question"], paragraph["context"])
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    answerer, exported = QuestionAnswerer(model_dir), _answers(export)
    mine, theirs, largest = {}, {}, 0.0
    for begin in progress_bar(range(0, len(questions), _ROWS), desc="comparing", unit="batch", leave=False, delay=2):
        part = questions[begin : begin + _ROWS]
        pairs = [pair for _, *pair in part]
        for (key, *_), found, (answer, score) in zip(part, answerer.predict(pairs), exported(pairs), strict=True):
            mine[key], theirs[key] = found["answer"], answer
            if mine[key] == theirs[key]:
                largest = max(largest, abs(found["score"] - score))
    names = ("exact_match", "f1")
    version_2 = answerer.predictions.version_2_with_negative
    metrics = [squad_metrics.evaluate(articles, answers, version_2) for answers in (mine, theirs)]
    same = float(np.mean([mine[key] == theirs[key] for key in mine]))
    return Comparison(len(questions), *({name: values[name] for name in names} for values in metrics), same, largest)


# ---- tags ------------------------------------------------------------------------------------------------------------


def _tagging_settings(model_dir: str) -> ner_outputs.TaggingSettings:
    directory = casing.directory_of(model_dir)
    return ner_outputs.TaggingSettings.of_model(directory, standard_tags(read_head(directory).labels or ()))


def _read_sentences(check_file: str, encoding: str, settings: ner_outputs.TaggingSettings) -> list[ner_data.Sentence]:
    sentences = ner_data.read_conll(check_file, ner_data.Layout(encoding=encoding), settings.learned_scheme).sentences
    if any(sentence.tags is None for sentence in sentences):
        raise ValueError(f"{check_file} has no column of tags")
    return sentences


def _check_sentences(check_file: str, encoding: str, model_dir: str, _: bool) -> None:
    _read_sentences(check_file, encoding, _tagging_settings(model_dir))


# Words of a batch of sentences -> tags and scores of each.
Tags = Callable[[list[list[str]]], tuple[list[list[str]], list[np.ndarray]]]


def _tags(tag_words: Callable) -> Tags:
    """By a signature `serve_words`."""

    def tags(sentences: list[list[str]]) -> tuple[list[list[str]], list[np.ndarray]]:
        outputs = tag_words(words=tf.ragged.constant(sentences, dtype=tf.string).to_tensor(""))
        found, scores = outputs["tags"].numpy(), outputs["scores"].numpy()
        lengths = [len(words) for words in sentences]
        names = [[tag.decode() for tag in row[:length]] for row, length in zip(found, lengths, strict=True)]
        return names, [row[:length] for row, length in zip(scores, lengths, strict=True)]

    return tags


def _tags_by_onnx(export: str) -> Tags:
    tagger = Tagger(export)

    def tags(sentences: list[list[str]]) -> tuple[list[list[str]], list[np.ndarray]]:
        found = tagger.predict(sentences)
        return [one["tags"] for one in found], [np.array(one["scores"]) for one in found]

    return tags


def _compare_tags(export: str, model_dir: str, check_file: str, encoding: str) -> Comparison:
    settings = _tagging_settings(model_dir)
    sentences = _read_sentences(check_file, encoding, settings)
    length = loaded_export.read_description(export)["max_seq_length"]
    model = ServedTagger.from_pretrained(model_dir, "float32", length)
    if loaded_export.onnx_file(export):
        exported = _tags_by_onnx(export)
    else:
        exported = _tags(loaded_export.Export(export).signatures["serve_words"])
    found, scores = ([], []), ([], [])
    for begin in progress_bar(range(0, len(sentences), _ROWS), desc="comparing", unit="batch", leave=False, delay=2):
        part = [sentence.words for sentence in sentences[begin : begin + _ROWS]]
        for call, tags, probabilities in zip((_tags(model.tag_words), exported), found, scores, strict=True):
            names, values = call(part)
            tags.extend(names)
            probabilities.extend(np.concatenate(values))
    gold, plain = [sentence.tags for sentence in sentences], settings.learned_scheme == "plain"
    metrics = [ner_metrics.evaluate(gold, tags, plain=plain) for tags in found]
    same = float(np.mean([mine == theirs for mine, theirs in zip(*found, strict=True)]))
    largest = float(np.abs(np.subtract(*scores)).max())
    return Comparison(len(sentences), *metrics, same, largest)


# ---- the list --------------------------------------------------------------------------------------------------------


class _Comparer(NamedTuple):
    """How the exports of a task are compared.

    Attributes:
      check: (check_file, encoding, model_dir, text_pairs); refuses a file that can't be used.
      compare: (export, model_dir, check_file, encoding) -> `Comparison`.
    """

    check: Callable[[str, str, str, bool], object]
    compare: Callable[[str, str, str, str], Comparison]


_CLASSIFIER = _Comparer(
    _check_rows,
    lambda export, model_dir, *file: _compare_classifier(_scores(export), Predictor(model_dir), *file),
)
# The tasks whose exports can be compared.
_COMPARERS = {
    "classification": _CLASSIFIER,
    "regression": _CLASSIFIER,
    "squad": _Comparer(lambda *file_and_more: squad_data.read_articles(*file_and_more[:2]), _compare_answers),
    "ner": _Comparer(_check_sentences, _compare_tags),
}


def _comparer(task: str) -> _Comparer:
    if task not in _COMPARERS:
        *names, last = _COMPARERS
        raise ValueError(f"--check_file is for {', '.join(names)} and {last}, not for {task}")
    return _COMPARERS[task]
