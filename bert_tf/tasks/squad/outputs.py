"""Question answering as a whole: scores of windows, predictions, metrics, and the settings kept with a model."""

import dataclasses
import json
import posixpath
from collections.abc import Callable, Mapping

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.models.configuration.config import BertConfig
from bert_tf.system.checks import whole_number
from bert_tf.system.text_files import read_json_if_there
from bert_tf.tasks.squad import metrics as squad_metrics
from bert_tf.tasks.squad.answers import Prediction, PredictionSettings, predict_answers
from bert_tf.tasks.squad.data import SquadData
from bert_tf.tasks.squad.scores import SpanScores, collect_scores
from bert_tf.tasks.squad.windows import Windows, WindowSettings
from bert_tf.text import tokenizer_files
from bert_tf.text.tokenizer import Tokenizer

SETTINGS_FILE = "question_answering.json"


def predict_scores(
    predict: Callable, windows: Windows, *, batch_size: int, max_seq_length: int, static_padding: bool
) -> SpanScores:
    """A model's scores of all windows.

    Those of the tokens are as many as the window has, and max_seq_length under static_padding, where padding can be
    among the n-best as in the original.

    Args:
      predict: from `step.make_predict_function`.
    """
    batches = token_rows.evaluation_batches(
        windows, batch_size=batch_size, max_seq_length=max_seq_length, static_padding=static_padding
    )
    lengths = np.full(len(windows), max_seq_length) if static_padding else windows.lengths
    return collect_scores(token_rows.rows_and_outputs(windows, batch_size, predict(batches)), lengths)


@dataclasses.dataclass(frozen=True)
class QuestionAnsweringSettings:
    """The settings of a trained model besides its weights; kept in question_answering.json beside them."""

    windows: WindowSettings
    predictions: PredictionSettings

    def to_json(self) -> str:
        values = dataclasses.asdict(self.windows) | dataclasses.asdict(self.predictions)
        return json.dumps(values, indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, directory: str) -> "QuestionAnsweringSettings | None":
        """The settings in a directory; None if there are none."""
        values = read_json_if_there(posixpath.join(directory, SETTINGS_FILE))
        return None if values is None else cls.of(values)

    @classmethod
    def of(cls, values: Mapping) -> "QuestionAnsweringSettings":
        """The settings among some values."""
        kinds = (WindowSettings, PredictionSettings)
        named = ([field.name for field in dataclasses.fields(kind) if field.name in values] for kind in kinds)
        return cls(*(kind(**{name: values[name] for name in names}) for kind, names in zip(kinds, named, strict=True)))


def answer(
    predict: Callable,
    data: SquadData,
    windows: Windows,
    tokenizer: Tokenizer,
    settings: QuestionAnsweringSettings,
    verbose: bool = False,
    **batches,
) -> list[Prediction]:
    """Predictions for all questions. verbose: see `AnswerTexts`. batches: arguments of `predict_scores`."""
    max_seq_length = settings.windows.max_seq_length
    scores = predict_scores(predict, windows, max_seq_length=max_seq_length, **batches)
    return list(predict_answers(data.examples, windows, scores, tokenizer, settings.predictions, verbose))


def score(
    data: SquadData, predictions: list[Prediction], version_2_with_negative: bool, metric: str = "squad"
) -> dict[str, float]:
    """eval_<metric> of predictions, as `squad.metrics.evaluate` gives them."""
    texts = {key: prediction.text for key, prediction in _by_id(data, predictions).items()}
    odds_and_best = _odds_and_best(data, predictions) if version_2_with_negative else (None, None)
    scores = squad_metrics.evaluate(data.articles, texts, version_2_with_negative, *odds_and_best, metric)
    return {f"eval_{name}": value for name, value in scores.items()}


def choose_threshold(
    settings: QuestionAnsweringSettings, data: SquadData, predictions: list[Prediction], metric: str = "squad"
) -> QuestionAnsweringSettings:
    """The settings with the threshold of `squad.metrics.best_threshold`, if a question may have no answer."""
    if not settings.predictions.version_2_with_negative:
        return settings
    threshold = squad_metrics.best_threshold(data.articles, *_odds_and_best(data, predictions), metric)
    name = squad_metrics.METRICS[metric][0]
    logging.info("null_score_diff_threshold %.4f gives the best %s on the dev set.", threshold, name)
    chosen = dataclasses.replace(settings.predictions, null_score_diff_threshold=threshold)
    return dataclasses.replace(settings, predictions=chosen)


def _by_id(data: SquadData, predictions: list[Prediction]) -> dict[str, Prediction]:
    return {example.qas_id: each for example, each in zip(data.examples, predictions, strict=True)}


def _odds_and_best(data: SquadData, predictions: list[Prediction]) -> tuple[dict[str, float], dict[str, str]]:
    """id -> odds of "none"; id -> best answer that is not "none", "" if there is no answer at all."""
    by_id = _by_id(data, predictions)
    best = {key: prediction.best.text if prediction.best else "" for key, prediction in by_id.items()}
    return {key: prediction.null_odds for key, prediction in by_id.items()}, best


def apply_threshold(predictions: list[Prediction], threshold: float) -> list[Prediction]:
    """Predictions with another threshold of their odds."""

    def answer_of(row: Prediction) -> str:
        return "" if row.best is None or row.null_odds > threshold else row.best.text

    return [row if row.null_odds is None else dataclasses.replace(row, text=answer_of(row)) for row in predictions]


def answer_settings(path: str, config: BertConfig, **settings) -> QuestionAnsweringSettings:
    """How a model in a directory cuts windows and chooses answers: as in training, except for the given `settings`."""
    names = [field.name for kind in (WindowSettings, PredictionSettings) for field in dataclasses.fields(kind)]
    if unknown := [name for name in settings if name not in names]:
        raise TypeError(f"QuestionAnswerer got unexpected keyword arguments: {', '.join(unknown)}")
    stored = QuestionAnsweringSettings.read(tokenizer_files.directory_of(path))
    learned = dataclasses.asdict(stored.windows) | dataclasses.asdict(stored.predictions) if stored else {}
    limit = config.max_length
    defaults = {"max_seq_length": min(384, limit), "max_query_length": min(64, limit // 4)} | learned
    values = defaults | settings | {"answer_from": "offsets"}  # callers want to know where the answer is
    whole_number(values["max_seq_length"], "max_seq_length")
    if values["max_seq_length"] > limit:
        raise ValueError(f"max_seq_length={values['max_seq_length']} is more than max_position_embeddings={limit}.")
    return QuestionAnsweringSettings.of(values)
