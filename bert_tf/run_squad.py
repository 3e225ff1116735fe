"""The names of the original's run_squad.py that question-answering code imports; docs/names.md has all of them.

    from bert_tf.run_squad import RawResult, convert_examples_to_features, read_squad_examples, write_predictions

The script run_squad.py has the same names. Reading, windows and answers are those of the script.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.data.token_rows import flatten
from bert_tf.tasks.squad import answers, data, windows
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import BasicTokenizer, join_pieces

__all__ = [
    "InputFeatures",
    "RawResult",
    "SquadExample",
    "convert_examples_to_features",
    "get_final_text",
    "read_squad_examples",
    "write_predictions",
]


class RawResult(NamedTuple):
    """A model's outputs for one window: start_logits and end_logits [S], S at least the number of its tokens."""

    unique_id: int
    start_logits: Sequence[float]
    end_logits: Sequence[float]


class SquadExample(data.SquadExample):
    """A question on a context that is already split into words; arguments and attributes are the original's.

    Args:
      start_position, end_position: first and last word of the answer; for training.
    """

    def __init__(
        self,
        qas_id: str,
        question_text: str,
        doc_tokens: Sequence[str],
        orig_answer_text: str | None = None,
        start_position: int | None = None,
        end_position: int | None = None,
        is_impossible: bool = False,
    ):
        words = list(doc_tokens)
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1].tolist()
        context = data.Paragraph(" ".join(words), words, starts)
        super().__init__(qas_id, question_text, context, orig_answer_text, start_position, end_position, is_impossible)


@dataclasses.dataclass
class InputFeatures:
    """A window of a context, after its question.

    Attributes:
      unique_id: counts all windows, from 1000000000. example_index: number of the example, from 0.
      doc_span_index: number of the window in its example, from 0.
      tokens: without padding. token_to_orig_map: position of a token of the context -> word of the context.
      token_is_max_context: the same positions -> whether no other window shows more text around the token.
      input_ids, input_mask, segment_ids: max_seq_length numbers each.
      start_position, end_position: the answer's tokens, 0 where the window has no answer; None in prediction.
    """

    unique_id: int
    example_index: int
    doc_span_index: int
    tokens: list[str]
    token_to_orig_map: dict[int, int]
    token_is_max_context: dict[int, bool]
    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool | None = None


def read_squad_examples(
    input_file: str, is_training: bool, version_2_with_negative: bool = False
) -> list[data.SquadExample]:
    """The questions of a SQuAD file; the original takes version_2_with_negative from its flag."""
    return data.read_squad_examples([input_file], is_training, version_2_with_negative).examples


def convert_examples_to_features(
    examples: Sequence[data.SquadExample],
    tokenizer: Tokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
    output_fn: Callable[[InputFeatures], object],
) -> None:
    """Calls output_fn with the features of each window of each example, in order."""
    settings = windows.WindowSettings(max_seq_length, doc_stride, max_query_length)
    settings.check_room(tokenizer)
    cut = windows.build_windows(examples, tokenizer, settings, is_training)
    for row, description in enumerate(windows.describe_windows(cut, tokenizer, range(len(cut)))):
        batch = cut.batch([row], max_seq_length)
        padded = {name: batch[name][0].tolist() for name in ("input_ids", "input_mask", "segment_ids")}
        output_fn(InputFeatures(**{**description, **padded}))


class _FeatureTokens:
    """The part of a tokenizer that the search for answers needs, for features: tokens without a vocabulary."""

    def __init__(self, do_lower_case: bool):
        self._basic_tokenizer = BasicTokenizer(do_lower_case)
        self.tokens: list[str] = []

    def decode(self, ids: Iterable[int]) -> str:
        return join_pieces(self.tokens[number] for number in ids)

    def normalize(self, text: str) -> str:
        """`text` as `decode` would spell it."""
        return " ".join(self._basic_tokenizer.tokenize(text))


def _windows_of(features: Sequence[InputFeatures], tokens: _FeatureTokens) -> windows.Windows:
    numbers = {token: number for number, token in enumerate(sorted({t for f in features for t in f.tokens}))}
    tokens.tokens = list(numbers)
    ids, offsets = flatten([[numbers[token] for token in feature.tokens] for feature in features])
    words, best = np.full(len(ids), -1, np.int32), np.zeros(len(ids), bool)
    for feature, offset in zip(features, offsets, strict=False):
        for position, word in feature.token_to_orig_map.items():
            words[offset + position] = word
            best[offset + position] = feature.token_is_max_context.get(position, False)
    owners = np.array([feature.example_index for feature in features], np.int32)
    spans = np.array([feature.doc_span_index for feature in features], np.int32)
    none = np.zeros(len(features), np.int32)
    return windows.Windows(ids, offsets, none, {}, words, best, None, None, owners, spans, none.astype(bool), pad_id=0)


def write_predictions(
    all_examples: Sequence[data.SquadExample],
    all_features: Sequence[InputFeatures],
    all_results: Iterable[RawResult],
    n_best_size: int,
    max_answer_length: int,
    do_lower_case: bool,
    output_prediction_file: str,
    output_nbest_file: str,
    output_null_log_odds_file: str | None,
    *,
    version_2_with_negative: bool = False,
    null_score_diff_threshold: float = 0.0,
) -> None:
    """Writes the answers of all questions, the candidates, and in version 2 the odds of "no answer".

    Args:
      all_results: of all features, in any order.
      version_2_with_negative, null_score_diff_threshold: the original takes them from its flags.
      output_null_log_odds_file: for version 2; otherwise not written.
    """
    if version_2_with_negative and not output_null_log_odds_file:
        raise ValueError("version_2_with_negative needs output_null_log_odds_file.")
    features = sorted(all_features, key=lambda feature: feature.example_index)
    results = {result.unique_id: result for result in all_results}
    missing = [feature.unique_id for feature in features if feature.unique_id not in results]
    if missing:
        raise ValueError(f"all_results has nothing for the unique_id {missing[0]} ({len(missing)} missing in all).")
    tokens = _FeatureTokens(do_lower_case)
    starts, ends = (
        [np.asarray(getattr(results[feature.unique_id], name), np.float32) for feature in features]
        for name in ("start_logits", "end_logits")
    )
    settings = answers.PredictionSettings(
        n_best_size, max_answer_length, version_2_with_negative, null_score_diff_threshold
    )
    cut, scores = _windows_of(features, tokens), answers.SpanScores(starts, ends)
    predictions = answers.predict_answers(all_examples, cut, scores, tokens, settings)
    files = output_prediction_file, output_nbest_file, output_null_log_odds_file
    answers.write_prediction_files([example.qas_id for example in all_examples], list(predictions), *files)


def get_final_text(pred_text: str, orig_text: str, do_lower_case: bool) -> str:
    """The part of orig_text that pred_text, made of tokens, covers; all of orig_text if that can't be determined."""
    token_text = " ".join(BasicTokenizer(do_lower_case).tokenize(orig_text))
    return orig_text[answers.align(pred_text, orig_text, token_text)[0]]
