"""What an export costs in quality: its answers on real data compared with those of the float32 model."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.models.directory import read_head
from bert_tf.serving import loaded_export
from bert_tf.serving.check_file import check_comparable, check_pairs, read_rows
from bert_tf.serving.predictor import Predictor
from bert_tf.serving.question_answerer import QuestionAnswerer
from bert_tf.serving.tagger import Tagger
from bert_tf.system.checks import path_of
from bert_tf.system.messages import progress_bar
from bert_tf.system.text_files import UTF_8
from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import outputs as ner_metrics
from bert_tf.tasks.ner.tagging import TaggingSettings
from bert_tf.tasks.ner.tags import standard_tags
from bert_tf.tasks.squad import data as squad_data
from bert_tf.tasks.squad import metrics as squad_metrics
from bert_tf.tasks.squad.outputs import QuestionAnsweringSettings
from bert_tf.text import tokenizer_files

_ROWS = 32
_SAME_SCORE = 0.05  # two scores of a regression that count as the same answer

# Examples, and a function that scores the answers to them: metric -> value.
_Data = tuple[list, Callable[[list], dict[str, float]]]


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
    check_pairs(check_file, _read(task, check_file, encoding, model_dir)[0], text_pairs)


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
    task, model_dir = description.get("task", "classification"), path_of(model_dir, "compare", read_head)
    examples, score = _read(task, check_file, encoding, model_dir)
    sides = [_answerer(task, path, model_dir, description.get("max_seq_length")) for path in (model_dir, export)]
    found = [[], []]
    for begin in progress_bar(range(0, len(examples), _ROWS), desc="comparing", unit="batch", leave=False, delay=2):
        for answers, answers_of in zip(found, sides, strict=True):
            answers += answers_of(examples[begin : begin + _ROWS])
    same, largest = [], 0.0
    for (mine, my_scores), (theirs, their_scores) in zip(*found, strict=True):
        same.append(abs(mine - theirs) < _SAME_SCORE if isinstance(mine, float) else mine == theirs)
        if same[-1] or np.ndim(my_scores):  # a single score belongs to the answer
            largest = max(largest, float(np.abs(np.subtract(my_scores, their_scores)).max(initial=0)))
    scores = [score([answer for answer, _ in answers]) for answers in found]
    return Comparison(len(examples), *scores, float(np.mean(same)), largest)


# ---- answers ---------------------------------------------------------------------------------------------------------


class _LiteRT(Predictor):
    """The classifier in a directory, computed by the .tflite file that was made of it."""

    def __init__(self, path: str, model_dir: str):
        from ai_edge_litert.interpreter import Interpreter

        self._runner = Interpreter(path).get_signature_runner()
        length = int(self._runner.get_input_details()["input_ids"]["shape"][1])
        super().__init__(model_dir, max_seq_length=length)

    def compute(self, features):
        """One row at a time, as wide as the file has them."""
        missing = self.max_seq_length - features["input_ids"].shape[1]
        filling = {"input_ids": self.tokenizer.pad_id}
        wide = {
            name: np.pad(value, [(0, 0), (0, missing)], constant_values=filling.get(name, 0))
            for name, value in features.items()
        }
        rows = range(len(features["input_ids"]))
        found = [self._runner(**{name: value[row : row + 1] for name, value in wide.items()}) for row in rows]
        return np.concatenate([one["logits"] for one in found])


def _answerer(
    task: str, path: str, model_dir: str, length: int | None
) -> Callable[[list], list[tuple[Any, np.ndarray | float]]]:
    """Of examples -> the answer to each, and its scores: of all labels or tags, or one that belongs to the answer.

    Args:
      path: of the model or its export. length: of the export.
    """
    if task == "squad":
        answerer = QuestionAnswerer(path)
        return lambda pairs: [(found["answer"], found["score"]) for found in answerer.predict(pairs)]
    if task == "ner":
        tagger = Tagger(path, max_seq_length=length)
        return lambda sentences: [(found["tags"], np.array(found["scores"])) for found in tagger.predict(sentences)]
    predictor = _LiteRT(path, model_dir) if path.endswith(".tflite") else Predictor(path)

    def answers(texts: list) -> list[tuple]:
        predictions = predictor.predict(texts)
        if predictor.task.is_regression:
            return [(found["score"], np.array([found["score"]])) for found in predictions]
        labels = sorted(predictor.labels)  # an export may have them in another order
        return [
            (found["label"], np.array([found["probabilities"][label] for label in labels])) for found in predictions
        ]

    return answers


# ---- files -----------------------------------------------------------------------------------------------------------


def _read(task: str, check_file: str, encoding: str, model_dir: str) -> _Data:
    """The examples of a file, and how answers are scored; refuses an unfit file."""
    check_comparable(task, multi_label=False)
    readers = {"classification": _read_rows, "regression": _read_rows, "squad": _read_questions, "ner": _read_sentences}
    return readers[task](check_file, encoding, model_dir)


def _read_rows(check_file: str, encoding: str, model_dir: str) -> _Data:
    """Texts or pairs; accuracy, or the correlation of a regression."""
    predictor = Predictor(model_dir)
    check_comparable("classification", predictor.task.multi_label)
    rows, gold = read_rows(check_file, encoding, predictor.labels, predictor.task.is_regression)
    if predictor.task.is_regression:
        return rows, lambda answers: {"pearson": float(np.corrcoef(answers, gold)[0, 1])}
    return rows, lambda answers: {"accuracy": float(np.mean(np.equal(answers, gold)))}


def _read_questions(check_file: str, encoding: str, model_dir: str) -> _Data:
    """Pairs of question and context; the official scores."""
    articles = squad_data.read_articles(check_file, encoding)
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    asked = [(question, paragraph["context"]) for paragraph in paragraphs for question in paragraph["qas"]]
    stored = QuestionAnsweringSettings.read(tokenizer_files.directory_of(model_dir))
    version_2 = stored is not None and stored.predictions.version_2_with_negative

    def score(answers: list[str]) -> dict[str, float]:
        by_id = {question["id"]: answer for (question, _), answer in zip(asked, answers, strict=True)}
        scores = squad_metrics.evaluate(articles, by_id, version_2)
        return {name: scores[name] for name in ("exact_match", "f1")}

    return [(question["question"], context) for question, context in asked], score


def _read_sentences(check_file: str, encoding: str, model_dir: str) -> _Data:
    """Lists of words; the scores of entities, or of plain tags."""
    directory = tokenizer_files.directory_of(model_dir)
    settings = TaggingSettings.of_model(directory, standard_tags(read_head(directory).labels or ()))
    sentences = ner_data.read_conll(check_file, ner_data.Layout(encoding=encoding), settings.learned_scheme).sentences
    if any(sentence.tags is None for sentence in sentences):
        raise ValueError(f"{check_file} has no column of tags")
    gold = [sentence.tags for sentence in sentences]
    plain = settings.learned_scheme == "plain"
    return [sentence.words for sentence in sentences], lambda tags: ner_metrics.evaluate(gold, tags, plain=plain)
