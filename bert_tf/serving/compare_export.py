"""What an export costs in quality: its answers on real data compared with those of the float32 model."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.models.directory import read_head
from bert_tf.models.output_layers import order_of, spelled_as
from bert_tf.serving import loaded_export
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
from bert_tf.tasks.ner.notation import standard_tags
from bert_tf.tasks.ner.outputs import TaggingSettings
from bert_tf.tasks.squad import data as squad_data
from bert_tf.tasks.squad import metrics as squad_metrics
from bert_tf.tasks.squad.outputs import QuestionAnsweringSettings
from bert_tf.text import casing
from bert_tf.text.characters import plain_name, trimmed

_ROWS = 32
_SAME_SCORE = 0.05  # two scores of a regression that count as the same answer

# Of a batch of examples -> the answer to each, and its scores: [C], or one that belongs to the answer.
Answers = Callable[[list], list[tuple[Any, np.ndarray | float]]]


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
    examples, _ = _kind_of(task).read(check_file, encoding, model_dir)
    if text_pairs and len(examples[0]) == 1:
        raise ValueError(f"{check_file} has lines of one text; an export with --text_pairs takes two")


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
    description = {} if export.endswith(".tflite") else loaded_export.read_description(export)
    kind = _kind_of(description.get("task", "classification"))
    examples, gold = kind.read(check_file, encoding, model_dir)
    length = description.get("max_seq_length")
    sides = [kind.answers(path, model_dir, length) for path in (model_dir, export)]
    found = [[], []]
    for begin in progress_bar(range(0, len(examples), _ROWS), desc="comparing", unit="batch", leave=False, delay=2):
        for answers, answers_of in zip(found, sides, strict=True):
            answers += answers_of(examples[begin : begin + _ROWS])
    same, largest = [], 0.0
    for (mine, my_scores), (theirs, their_scores) in zip(*found, strict=True):
        same.append(abs(mine - theirs) < _SAME_SCORE if isinstance(mine, float) else mine == theirs)
        if same[-1] or np.ndim(my_scores):
            largest = max(largest, float(np.abs(np.subtract(my_scores, their_scores)).max(initial=0)))
    metrics = [kind.metrics(gold, [answer for answer, _ in answers], model_dir) for answers in found]
    return Comparison(len(examples), *metrics, float(np.mean(same)), largest)


# ---- classifiers -----------------------------------------------------------------------------------------------------


def _read_rows(check_file: str, encoding: str, model_dir: str) -> tuple[list[tuple], list]:
    """Texts and numeric labels of the lines."""
    predictor = Predictor(model_dir)
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


def _classes(path: str, model_dir: str, _: int | None) -> Answers:
    """The number of the class, in the order of the model's labels, and the probabilities; or a regression's score."""
    model = Predictor(model_dir)
    logits_of, order = model.logits, None
    if path.endswith(".tflite"):
        logits_of = _tflite_logits(path, model)
    elif path != model_dir:
        side = Predictor(path)
        logits_of = side.logits
        advice = "Compare it with the model that it was made from."
        order = order_of(side.labels, model.labels, path, advice) if model.labels else None

    def answers(texts: list) -> list[tuple]:
        logits = logits_of([row if len(row) == 2 else row[0] for row in texts])
        if model.task.is_regression:
            return [(float(row[0]), row) for row in logits]
        scores = tf.nn.softmax(logits).numpy()
        return [(int(row.argmax()), row) for row in (scores[:, order] if order else scores)]

    return answers


def _tflite_logits(path: str, model: Predictor) -> Callable[[list], np.ndarray]:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(path).get_signature_runner()
    length = int(runner.get_input_details()["input_ids"]["shape"][1])

    def logits(texts: list) -> np.ndarray:
        parts = [(text,) if isinstance(text, str) else text for text in texts]
        examples = [InputExample(str(number), *part) for number, part in enumerate(parts)]
        rows = classification_encode.encode_examples(examples, model.task, model.tokenizer, length, num_processes=1)
        found = [runner(**rows.batch(np.array([number]), length)) for number in range(len(examples))]
        return np.concatenate([row["logits"] for row in found])

    return logits


def _accuracy(gold: list, answers: list, _: str) -> dict[str, float]:
    if isinstance(answers[0], float):
        return {"pearson": float(np.corrcoef(answers, gold)[0, 1])}
    return {"accuracy": float(np.mean(np.equal(answers, gold)))}


# ---- questions -------------------------------------------------------------------------------------------------------


def _read_questions(check_file: str, encoding: str, _: str) -> tuple[list[tuple[str, str]], tuple]:
    """Pairs of question and context; and the articles with the keys of the questions."""
    articles = squad_data.read_articles(check_file, encoding)
    questions = [
        (question["id"], (question["question"], paragraph["context"]))
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    return [pair for _, pair in questions], (articles, [key for key, _ in questions])


def _texts(path: str, *_) -> Answers:
    answerer = QuestionAnswerer(path)
    return lambda pairs: [(found["answer"], found["score"]) for found in answerer.predict(pairs)]


def _squad_scores(gold: tuple, answers: list[str], model_dir: str) -> dict[str, float]:
    articles, keys = gold
    stored = QuestionAnsweringSettings.read(casing.directory_of(model_dir))
    version_2 = stored is not None and stored.predictions.version_2_with_negative
    scores = squad_metrics.evaluate(articles, dict(zip(keys, answers, strict=True)), version_2)
    return {name: scores[name] for name in ("exact_match", "f1")}


# ---- tags ------------------------------------------------------------------------------------------------------------


def _scheme_of(model_dir: str) -> str:
    directory = casing.directory_of(model_dir)
    return TaggingSettings.of_model(directory, standard_tags(read_head(directory).labels or ())).learned_scheme


def _read_sentences(check_file: str, encoding: str, model_dir: str) -> tuple[list[list[str]], list[list[str]]]:
    layout = ner_data.Layout(encoding=encoding)
    sentences = ner_data.read_conll(check_file, layout, _scheme_of(model_dir)).sentences
    if any(sentence.tags is None for sentence in sentences):
        raise ValueError(f"{check_file} has no column of tags")
    return [sentence.words for sentence in sentences], [sentence.tags for sentence in sentences]


def _tags(path: str, _: str, length: int | None) -> Answers:
    tagger = Tagger(path, max_seq_length=length)
    return lambda sentences: [(found["tags"], np.array(found["scores"])) for found in tagger.predict(sentences)]


def _tag_scores(gold: list[list[str]], answers: list[list[str]], model_dir: str) -> dict[str, float]:
    return ner_metrics.evaluate(gold, answers, plain=_scheme_of(model_dir) == "plain")


# ---- the list --------------------------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """How the exports of a task are compared.

    Attributes:
      read: (check_file, encoding, model_dir) -> examples, and what their right answers are; refuses an unfit file.
      answers: (path of the model or the export, model_dir, the export's length) -> answers and scores.
      metrics: (right answers, answers, model_dir) -> metric -> value.
    """

    read: Callable[[str, str, str], tuple[Sequence, Any]]
    answers: Callable[[str, str, int | None], Answers]
    metrics: Callable[[Any, list, str], dict[str, float]]


_CLASSIFIER = _Kind(_read_rows, _classes, _accuracy)
# The tasks whose exports can be compared.
_KINDS = {
    "classification": _CLASSIFIER,
    "regression": _CLASSIFIER,
    "squad": _Kind(_read_questions, _texts, _squad_scores),
    "ner": _Kind(_read_sentences, _tags, _tag_scores),
}


def _kind_of(task: str) -> _Kind:
    if task not in _KINDS:
        *names, last = _KINDS
        raise ValueError(f"--check_file is for {', '.join(names)} and {last}, not for {task}")
    return _KINDS[task]
