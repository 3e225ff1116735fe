"""Fine-tuned models that take questions, loaded once: answers in texts, and the best of several choices."""

from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf.serving.predictor import OPTIONS, Answerer, rows_of
from bert_tf.store.head_config import softmax
from bert_tf.system.checks import list_of_strings
from bert_tf.tasks.choice.data import ChoiceExample, describe, encode_examples
from bert_tf.tasks.squad.answers import Prediction, collect_scores, predict_answers
from bert_tf.tasks.squad.data import Paragraph, SquadExample
from bert_tf.tasks.squad.metrics import answer_settings
from bert_tf.tasks.squad.windows import build_windows, warn_of_cut_questions, warn_of_gaps

_WITHOUT_TEXT = (
    "Questions without text, whose answers come from the context alone: %d of %d, the first is questions[%d].",
    "Contexts without text, which hold no answer: %d of %d, first in questions[%d].",
)


class QuestionAnswerer(Answerer):
    """Finds the answers to questions in texts of any length.

        answerer = QuestionAnswerer("squad_output/best_model")
        answerer("Who met Ada?", "Her teacher met Ada Brown (1801-1852).")
        # {"answer": "Her teacher", "score": 0.93, "start": 0, "end": 11, "nbest": [...]}

    Args:
      path, options, errors: as for `Predictor`. The settings of training are read from question_answering.json, if
        present: whether there may be no answer, and the threshold for that.
      settings: fields of `WindowSettings` and `PredictionSettings`, e.g. doc_stride=64, max_answer_length=10.
    """

    tasks = ("squad",)
    action = "answer"

    def __init__(self, path: str, **settings):
        options = {name: settings.pop(name) for name in OPTIONS if name in settings}
        super().__init__(path, **options)
        if not self.export:
            chosen = answer_settings(self.files, self.tokenizer, **settings)
            self.windows, self.predictions = chosen.windows, chosen.predictions
        elif settings:
            raise ValueError(f"{path} is an export, whose settings are fixed: {', '.join(settings)}")

    def predict(self, questions: Sequence[tuple[str, str] | Mapping[str, str]]) -> list[dict]:
        """For each (question, context), or {"question": ..., "context": ...}: answer, score, start, end, nbest.

        `score` is the probability of the answer among the candidates `nbest`, which are dicts of text, score, start and
        end. start and end are characters of the context; if there is no answer, they are None and the answer is "".

        Raises:
          TypeError: an item is neither of these; names its place.
        """
        kinds, line = {"question": str, "context": str}, "answerer(question, context)"
        questions = [(*row.values(),) for row in rows_of(questions, "questions", kinds, 2, line)]
        if not questions:
            return []
        for part, message in enumerate(_WITHOUT_TEXT):
            if empty := [number for number, pair in enumerate(questions) if not pair[part].strip()]:
                self.warn(message, len(empty), len(questions), empty[0])
        if self.export:
            asked, contexts = zip(*questions, strict=True)
            columns = {"question": asked, "context": contexts}
            rows = self.exported("serving_default", list(map(len, contexts)), columns)
            return [_describe_outputs(row) for row in rows]
        paragraphs = {}
        examples = []
        for question, context in questions:
            paragraph = paragraphs.setdefault(context, Paragraph.from_context(context))
            examples.append(SquadExample(str(len(examples)), question, paragraph))
        warn_of_cut_questions(examples, self.tokenizer, self.windows, self.warn)
        windows = build_windows(examples, self.tokenizer, self.windows, False, num_processes=1)
        warn_of_gaps(windows, self.windows)
        scores = collect_scores(self.outputs(windows), windows.lengths)
        predictions = predict_answers(examples, windows, scores, self.tokenizer, self.predictions)
        return [_describe(prediction) for prediction in predictions]

    def __call__(self, question, context: str | None = None) -> dict | list[dict]:
        """The answer to one question, or, of a list as for `predict`, the list."""
        return self.answer(question, context)


def _describe(prediction: Prediction) -> dict:
    # The best answer may be outside the n-best list, if "no answer" was better than all of it.
    answers = [*prediction.nbest, *([prediction.best] if prediction.best else [])]
    entries = [{"text": row.text, "score": row.probability, "start": row.start, "end": row.end} for row in answers]
    nbest = entries[: len(prediction.nbest)]
    nothing = {"text": "", "score": 0.0, "start": None, "end": None}
    chosen = next((entry for entry in entries if entry["text"] == prediction.text), nothing)
    return {"answer": chosen["text"], **{key: chosen[key] for key in ("score", "start", "end")}, "nbest": nbest}


def _describe_outputs(outputs: dict) -> dict:
    def entry(text, score, start, end) -> dict:
        span = {"start": None, "end": None} if start < 0 else {"start": int(start), "end": int(end)}
        return {"text": text.decode(), "score": float(score), **span}

    columns = (outputs[f"nbest_{name}"] for name in ("answers", "scores", "starts", "ends"))
    nbest = [entry(*row) for row in zip(*columns, strict=True) if row[1] > 0]
    best = entry(*(outputs[name] for name in ("answer", "score", "start", "end")))
    return {"answer": best.pop("text"), **best, "nbest": nbest}


class ChoicePredictor(Answerer):
    """Picks the choice that fits a context best. Threads may share it.

        predictor = ChoicePredictor("swag_output/best_model")
        predictor("She opens the door.", ["She walks in.", "It rains."])
        # {"choice": 0, "text": "She walks in.", "probabilities": [0.97, 0.03]}

    Args:
      path, options, errors: as for `Predictor`; a model directory is one as run_swag.py leaves it.
      max_seq_length: longer rows lose the last tokens of the longer of both. Default: as for `Predictor`.
    """

    tasks = ("multiple_choice",)
    action = "choose"
    rows_of_item = 4

    def predict(self, questions: Sequence[tuple]) -> list[dict]:
        """The best choice for each question.

        Args:
          questions: tuples (context, choices) or (context, choices, question): a string, a list of at least two
            strings, and the string that every choice begins with. The number of choices may differ.

        Returns:
          for each question a dict of `choice`, the best one's index; `text`, the choice; and `probabilities` of all.

        Raises:
          TypeError: an item is none of these, or choices are a single string; names its place.
        """
        kinds, examples = {"context": str, "choices": object, "question": str}, []
        for number, row in enumerate(rows_of(questions, "questions", kinds, 2)):
            choices = list_of_strings(row["choices"], f"questions[{number}]: choices")
            examples.append(ChoiceExample(str(number), row["context"], row.get("question", ""), tuple(choices)))
        described = [None] * len(examples)
        # All questions of a batch have the same number of choices.
        for count in sorted({len(example.choices) for example in examples}):
            chosen = [example for example in examples if len(example.choices) == count]
            for example, row in zip(chosen, self._probabilities(chosen, count), strict=True):
                described[int(example.guid)] = describe(example, row)
        return described

    def __call__(self, context: str, choices: Sequence[str], question: str = "") -> dict:
        return self.predict([(context, choices, question)])[0]

    def _probabilities(self, examples: list[ChoiceExample], count: int) -> np.ndarray:
        if not self.export:
            rows = encode_examples(examples, self.tokenizer, self.max_seq_length, self.warn)
            return softmax(self.computed(rows, count))
        lengths = [len(example.context) + max(map(len, example.choices)) for example in examples]
        names = ("context", "question", "choices")
        columns = {name: [getattr(example, name) for example in examples] for name in names}
        return np.array([row["probabilities"] for row in self.exported("serving_default", lengths, columns)])
