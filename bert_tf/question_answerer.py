"""Answers to questions on texts, for notebooks: a fine-tuned model loaded once, strings in, batches inside."""

import dataclasses

import numpy as np

from bert_tf import exports, model_files, weight_files
from bert_tf.config import BertConfig
from bert_tf.progress import progress_bar
from bert_tf.task_models import BertForQuestionAnswering
from bert_tf.tasks import batching, squad
from bert_tf.tasks.squad_data import Paragraph, SquadExample
from bert_tf.tasks.squad_features import WindowSettings, build_windows
from bert_tf.tasks.squad_predictions import Prediction, PredictionSettings, predict_answers
from bert_tf.tokenization import FullTokenizer


class QuestionAnswerer:
    """Finds the answers to questions in texts of any length.

        answerer = QuestionAnswerer("squad_output/best_model")
        answerer("Who met Ada?", "Her teacher met Ada Brown (1801-1852).")
        # {"answer": "Her teacher", "score": 0.93, "start": 0, "end": 11, "nbest": [...]}

    Args:
      path: a directory that describes itself: weights for questions and answers, configuration, vocabulary; or what
        export_saved_model.py wrote (the directory of versions, or one of them). How it was
        trained (question_answering.json) is taken over, where it is there: whether there may be no answer, and from
        which odds on.
      batch_size: parts of texts computed together.
      settings: fields of `WindowSettings` and `PredictionSettings`, e.g. doc_stride=64, max_answer_length=10.

    Raises:
      FileNotFoundError, ValueError: no model, or none for questions and answers, there.
    """

    def __init__(self, path: str, *, batch_size: int = 32, **settings):
        self.batch_size = batch_size
        self._export = None
        if export := exports.find_export(path):
            if settings:
                raise ValueError(f"{path} is an export, whose settings are fixed: {', '.join(sorted(settings))}")
            self._export = exports.Export(export)
            if self._export.task != "squad":
                raise ValueError(f"{path} is an export for {self._export.task}, not for questions and answers")
            return
        self.tokenizer = FullTokenizer.from_pretrained(path)
        if "cls/squad/output_weights" not in weight_files.open_weights(path):
            raise ValueError(f"{path} has no output layer for answers: fine-tune it first (run_squad.py).")
        self.model = BertForQuestionAnswering.from_pretrained(path)
        chosen = settings_of(path, self.model.config, **settings)
        self.windows, self.predictions = chosen.windows, chosen.predictions

    def predict(self, questions: list[tuple[str, str]]) -> list[dict]:
        """For each (question, context): answer, score, start, end, nbest.

        `score` is the probability of the answer among the candidates `nbest`, which are dicts of text, score, start,
        end. start, end are characters of the context; None, with the answer "", if there is no answer.
        """
        if self._export is not None:
            return self._predict_by_export(list(questions))
        paragraphs = {}
        examples = [
            SquadExample(str(number), question, paragraphs.setdefault(context, Paragraph.from_context(context)))
            for number, (question, context) in enumerate(questions)
        ]
        if not examples:
            return []
        windows = build_windows(examples, self.tokenizer, self.windows, False, num_processes=1)
        starts, ends = [None] * len(windows), [None] * len(windows)
        batches = batching.evaluation_rows(windows.lengths, self.batch_size)
        for rows in progress_bar(batches, desc="answer", unit="batch", leave=False, delay=2):
            outputs = self.model(windows.batch(rows, int(windows.lengths[rows].max())), training=False)
            first, last = (np.asarray(outputs[name]) for name in ("start_logits", "end_logits"))
            for place, row in enumerate(rows.tolist()):
                length = windows.lengths[row]
                starts[row], ends[row] = first[place, :length], last[place, :length]
        found = predict_answers(examples, windows, starts, ends, self.tokenizer, self.predictions)
        return [_describe(prediction) for prediction in found]

    def _predict_by_export(self, questions: list[tuple[str, str]]) -> list[dict]:
        answers = [None] * len(questions)
        lengths = np.array([len(context) for _, context in questions], np.int64)
        rows = batching.evaluation_rows(lengths, self.batch_size) if questions else []
        for part in progress_bar(rows, desc="answer", unit="batch", leave=False, delay=2):
            chosen = [questions[row] for row in part.tolist()]
            outputs = self._export(
                "serving_default",
                question=[question for question, _ in chosen],
                context=[context for _, context in chosen],
            )
            for place, row in enumerate(part.tolist()):
                answers[row] = _describe_outputs({name: value[place] for name, value in outputs.items()})
        return answers

    def __call__(self, question: str, context: str) -> dict:
        """The answer to one question."""
        return self.predict([(question, context)])[0]


def _describe(prediction: Prediction) -> dict:
    # The best answer may stand outside of the n-best, where "none" was better than all of these.
    answers = [*prediction.nbest, *([prediction.best] if prediction.best else [])]
    entries = [
        {"text": answer.text, "score": answer.probability, "start": answer.start, "end": answer.end}
        for answer in answers
    ]
    nbest = entries[: len(prediction.nbest)]
    nothing = {"text": "", "score": 0.0, "start": None, "end": None}
    chosen = next((entry for entry in entries if entry["text"] == prediction.text), nothing)
    return {"answer": chosen["text"], **{key: chosen[key] for key in ("score", "start", "end")}, "nbest": nbest}


def _describe_outputs(outputs: dict) -> dict:
    """`_describe` of one row of an export's outputs."""

    def entry(text, score, start, end) -> dict:
        place = {"start": None, "end": None} if start < 0 else {"start": int(start), "end": int(end)}
        return {"text": text.decode(), "score": float(score), **place}

    columns = (outputs[f"nbest_{name}"] for name in ("answers", "scores", "starts", "ends"))
    nbest = [entry(*row) for row in zip(*columns, strict=True) if row[1] > 0]
    best = entry(*(outputs[name] for name in ("answer", "score", "start", "end")))
    return {"answer": best.pop("text"), **best, "nbest": nbest}


def settings_of(path: str, config: BertConfig, **settings) -> squad.QuestionAnsweringSettings:
    """How a model in a directory cuts windows and chooses answers: as it was trained, but for what `settings` say.

    Raises:
      ValueError: no such setting, or max_seq_length is more than the model can take.
    """
    stored = squad.QuestionAnsweringSettings.read(model_files.directory_of(path))
    known = {}
    if stored:
        known = dataclasses.asdict(stored.windows) | dataclasses.asdict(stored.predictions)
    limit = config.max_position_embeddings
    known = {"max_seq_length": min(384, limit), "max_query_length": min(64, limit // 4)} | known
    values = known | settings | {"answer_from": "offsets"}  # whoever asks wants to know where the answer stands
    names = {kind: {field.name for field in dataclasses.fields(kind)} for kind in (WindowSettings, PredictionSettings)}
    unknown = set(settings) - set().union(*names.values())
    if unknown:
        raise ValueError(f"No such settings: {', '.join(sorted(unknown))}.")
    if values["max_seq_length"] > limit:
        raise ValueError(f"max_seq_length={values['max_seq_length']} is more than max_position_embeddings={limit}.")
    windows, predictions = (
        kind(**{name: values[name] for name in fields if name in values}) for kind, fields in names.items()
    )
    return squad.QuestionAnsweringSettings(windows, predictions)
