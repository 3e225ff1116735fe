"""Questions on paragraphs from files in SQuAD's format (original: run_squad.py, read_squad_examples).

SQuAD 1.1 and 2.0, and what shares their format: XQuAD, KorQuAD, KLUE-MRC, JSQuAD, CMRC 2018 and so on.
"""

import bisect
import dataclasses
import re
from collections.abc import Sequence

from absl import logging

from bert_tf.data.tables import extension_of, field_of, raw_rows, text_of
from bert_tf.system.checks import check_extra, check_input_files, check_output_dir
from bert_tf.system.declare import ORIGINAL, changeable_setting, setting
from bert_tf.system.messages import abbreviated_list
from bert_tf.system.text_files import UTF_8, encoding_setting, read_json
from bert_tf.tasks.rows import number_of
from bert_tf.training.settings import FineTuningSettings

# What the original splits a context at. Other spaces (no-break, ideographic) are part of a word.
_WORD = re.compile("[^ \t\r\n\u202f]+")
_MANY_PARTS = 0.1  # the share of answers that are parts of words; in English 0.01
_FORM = '{"data": [{"paragraphs": [{"context": "", "qas": [{"id": "", "question": "", "answers": []}]}]}]}'
_LISTED = 10  # the log shows this many of the answers that are not found


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A context and its words: `words[k]` begins at character `word_starts[k]`."""

    context: str
    words: list[str]
    word_starts: list[int]

    @classmethod
    def from_context(cls, context: str) -> "Paragraph":
        matches = list(_WORD.finditer(context))
        return cls(context, [match.group() for match in matches], [match.start() for match in matches])

    def word_at(self, character: int) -> int:
        """The word that a character belongs to; a space belongs to the word before it, the first ones to -1."""
        return bisect.bisect_right(self.word_starts, character) - 1


@dataclasses.dataclass(frozen=True)
class SquadExample:
    """One question.

    start_position, end_position: first and last word of the answer; -1 for an impossible question.
    orig_answer_text: the answer to train on, "" for an impossible question. answer_start: its first character.
    """

    qas_id: str
    question_text: str
    paragraph: Paragraph
    orig_answer_text: str | None = None
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool = False
    answer_start: int | None = None

    @property
    def doc_tokens(self) -> list[str]:
        return self.paragraph.words


@dataclasses.dataclass(frozen=True)
class SquadData:
    """What `read_squad_examples` read.

    skipped: questions whose answer is not in its context: file, id, answer and the text found instead.
    articles: the `data` lists of the files, joined. unanswered: says how many questions have no answers, if any.
    """

    examples: list[SquadExample]
    skipped: list[dict]
    articles: list[dict]
    unanswered: str


def read_articles(path: str, encoding: str = UTF_8) -> list[dict]:
    """The list under `data` of a SQuAD file; all ids are strings.

    Parquet and JSON lines have a question a row: id, context, question, answers (text and answer_start, lists of both).
    """
    has_rows = extension_of(path) in ("parquet", "jsonl", "ndjson")
    root = _rows_as_articles(path, encoding) if has_rows else read_json(path, object, encoding)
    try:
        articles = root["data"]
        for entry in (entry for article in articles for entry in article["paragraphs"]):
            for question in entry["qas"]:
                if "id" not in question and "guid" not in question:  # the latter in KLUE-MRC
                    raise TypeError(f"the question {question.get('question')!r:.80} has no id")
                question["id"] = str(question["id"] if "id" in question else question["guid"])
                _normalize(question, entry["context"], f"{path}: question {question['id']!r}")
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a SQuAD file, {_FORM} ({error})") from None
    return articles


def _normalize(question: dict, context, name: str) -> None:
    """Gives a question a list of answers, whose `answer_start` is a whole number or None; or none if it has null."""
    for key, value in (("question", question["question"]), ("context", context)):
        if not isinstance(value, str):
            raise ValueError(f"{name}: its {key} is {value!r:.80}, not a text.")
    if not isinstance(question.get("is_impossible", False), bool):
        raise ValueError(f"{name}: is_impossible is {question['is_impossible']!r:.80}, neither true nor false.")
    answers = _listed(question.pop("answers", None), name)
    for answer in answers or ():
        if not isinstance(answer, dict) or not isinstance(answer.get("text"), str):
            raise ValueError(f"{name}: the answer {answer!r:.80} is no object with a text.")
        if (start := answer.get("answer_start")) is not None:
            if not (number := number_of(start)).is_integer():
                raise ValueError(f"{name}: the answer_start {start!r:.80} is not a whole number.")
            answer["answer_start"] = int(number)
    if answers is not None:
        question["answers"] = answers


def _listed(answers, name: str) -> list | None:
    """Answers as a list; data sets have an object with lists of texts and of starts."""
    if answers is None or isinstance(answers, list):
        return answers
    if not isinstance(answers, dict):
        raise ValueError(f"{name}: its answers are {answers!r:.80}.")
    texts, starts = answers.get("text"), answers.get("answer_start")
    if not isinstance(texts, list):
        return [answers]
    starts = starts or [None] * len(texts)
    if not isinstance(starts, list) or len(starts) != len(texts):
        raise ValueError(f"{name}: its answers have {len(texts)} texts, but not as many answer_start.")
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _rows_as_articles(path: str, encoding: str) -> dict:
    """Rows of one question as a SQuAD file would have them.

    Where some questions have answers, those without are impossible; where none has, answers are not known.
    """
    paragraphs, questions = [], []
    for number, row in raw_rows(path, None, None, encoding):
        context, question = (
            text_of(field_of(row, name, path, number), path, number, name) for name in ("context", "question")
        )
        item = {"question": question} | {key: row[key] for key in ("id", "guid", "is_impossible") if key in row}
        if row.get("answers") is not None:
            item["answers"] = _listed(row["answers"], f"{path}, line {number}")
        if not paragraphs or paragraphs[-1]["context"] != context:
            paragraphs.append({"context": context, "qas": []})
        paragraphs[-1]["qas"].append(item)
        questions.append(item)
    are_known = any(item.get("answers") for item in questions)
    for item in questions:
        if not are_known:
            item.pop("answers", None)
        elif "answers" in item:
            item.setdefault("is_impossible", not item["answers"])
    return {"data": [{"paragraphs": paragraphs}]}


def read_squad_examples(
    paths: Sequence[str],
    is_training: bool,
    version_2_with_negative: bool = False,
    answer_from: str = "words",
    encoding: str = UTF_8,
) -> SquadData:
    """Reads SQuAD files.

    is_training: questions whose one answer is not found in the context are left out, counted and listed.
    answer_from: "words": an answer is found if it is part of the words it begins and ends in, as in the original;
      "offsets": if it is at its `answer_start`.
    """
    examples, skipped, articles, seen, unanswered, blank, total = [], [], [], {}, [], 0, 0
    for path in paths:
        here = read_articles(path, encoding)
        _check_version(path, here, version_2_with_negative)
        articles += here
        for entry in (entry for article in here for entry in article["paragraphs"]):
            paragraph = Paragraph.from_context(entry["context"])
            for question in entry["qas"]:
                qas_id, texts = question["id"], (question["question"], entry["context"])
                total += 1
                blank += not (texts[0].strip() and paragraph.words)
                if not ((version_2_with_negative and "is_impossible" in question) or question.get("answers")):
                    unanswered.append(qas_id)
                if not is_training:
                    if seen.setdefault(qas_id, texts) != texts:
                        raise ValueError(f"{path}: the id {qas_id!r} is used for two different questions.")
                    examples.append(SquadExample(qas_id, question["question"], paragraph))
                    continue
                example, span = _training_example(question, paragraph, version_2_with_negative, answer_from, path)
                if example:
                    examples.append(example)
                else:
                    answer = question["answers"][0]["text"]
                    skipped.append({"file": path, "id": qas_id, "answer": answer, "found": span[:200]})
    if blank:
        logging.warning("Of %d questions %d have no text, or an empty context.", total, blank)
    if is_training:
        _log_answers(articles, skipped, total)
    if answer_from == "words":
        _warn_of_parts_of_words(articles)
    missing = f"{len(unanswered)} questions have no answers ({abbreviated_list(unanswered)})" if unanswered else ""
    return SquadData(examples, skipped, articles, missing)


def _log_answers(articles: list[dict], skipped: list[dict], total: int) -> None:
    several = sum("guid" in question and len(question.get("answers", ())) > 1 for question in questions_of(articles))
    if several:
        logging.info("Of %d questions %d have several answers: the first one of each is trained on.", total, several)
    if skipped:
        listed = "".join(f"\n  {s['id']}: {s['answer']!r} vs. {s['found'][:100]!r}" for s in skipped[:_LISTED])
        more = f"\n  and {len(skipped) - _LISTED} more" if len(skipped) > _LISTED else ""
        message = "%d of %d questions are left out, as their answer is not in the context where it should be:%s%s"
        logging.warning(message, len(skipped), total, listed, more)


def _warn_of_parts_of_words(articles: list[dict]) -> None:
    """Warns where many answers begin or end inside a word, as in languages with particles or without spaces."""
    inside = total = 0
    for entry in (entry for article in articles for entry in article["paragraphs"]):
        context = entry["context"]
        for answer in (answer for question in entry["qas"] for answer in question.get("answers", ())):
            text, start = answer.get("text"), answer.get("answer_start")
            if isinstance(text, str) and text and isinstance(start, int) and 0 <= start <= len(context) - len(text):
                edges = (start, start + len(text))
                total += 1
                inside += any(context[max(at - 1, 0) : at].isalnum() and context[at : at + 1].isalnum() for at in edges)
    if inside > _MANY_PARTS * total:
        message = "%d of %d answers (%d %%) begin or end inside a word, where --answer_from=words loses them or gives "
        message += "whole words: give --answer_from=offsets."
        logging.warning(message, inside, total, round(100 * inside / total))


def _training_example(question: dict, paragraph: Paragraph, version_2: bool, answer_from: str, path: str) -> tuple:
    """The example, None if its answer is not where it should be; and the text found there."""
    if version_2 and question.get("is_impossible", question.get("answers") == []):
        return SquadExample(question["id"], question["question"], paragraph, "", -1, -1, True), ""
    answers = question.get("answers", [])
    if len(answers) != 1 and not (answers and "guid" in question):
        raise ValueError(
            f"{path}: question {question['id']!r} has {len(answers)} answers; to train on, it should have exactly 1."
        )
    text, start = answers[0]["text"], answers[0].get("answer_start")
    if start is None:
        raise ValueError(f"{path}: question {question['id']!r}: its answer has no answer_start.")
    end = start + len(text)
    first, last = paragraph.word_at(start), paragraph.word_at(end - 1)
    if answer_from == "offsets":
        span = paragraph.context[max(start, 0) : end]
        matches = start >= 0 and " ".join(span.split()) == " ".join(text.split()) != ""
    else:
        # If an answer begins in the spaces before the first word, the original takes word -1, the last one.
        span = " ".join(paragraph.words[first : last + 1])
        matches = start >= 0 and end <= len(paragraph.context) and " ".join(text.split()) in span and text.strip() != ""
    example = SquadExample(question["id"], question["question"], paragraph, text, first, last, False, start)
    return (example if matches else None), span


def questions_of(articles: list[dict]) -> list[dict]:
    return [question for article in articles for entry in article["paragraphs"] for question in entry["qas"]]


def _check_version(path: str, articles: list[dict], version_2: bool) -> None:
    questions = questions_of(articles)
    impossible = sum(bool(question.get("is_impossible")) for question in questions)
    if impossible and not version_2:
        raise ValueError(f"{path} has {impossible} questions without answer: give --version_2_with_negative.")
    answered = bool(questions) and all(question.get("answers") for question in questions)
    if version_2 and answered and not any("is_impossible" in question for question in questions):
        raise ValueError(f"{path}: each question has an answer: leave out --version_2_with_negative.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadSettings:
    """Questions on texts: files, windows, and how answers are chosen. None means: as the model was trained."""

    train_file: str | None = setting(
        None, "SQuAD JSON to train on; files separated by commas, or a glob.", heading=ORIGINAL
    )
    predict_file: str | None = changeable_setting(
        None, "SQuAD JSON to answer, e.g. dev-v1.1.json (or several); needs no answers."
    )
    doc_stride: int = setting(
        128, "Tokens from the start of one window of a long context to the start of the next.", least=1
    )
    max_query_length: int = setting(64, "Maximum tokens of a question.", least=1)
    n_best_size: int = changeable_setting(20, "Candidates kept per window, and written per question.", least=1)
    max_answer_length: int = changeable_setting(30, "Maximum tokens of an answer.", least=1)
    version_2_with_negative: bool = setting(False, "Questions may have no answer (SQuAD 2.0).")
    null_score_diff_threshold: float | None = setting(
        0.0,
        "Predict no answer if its score is better by more than this. If unset, the threshold chosen on a dev set, from "
        "the model's question_answering.json, or else 0.",
        unset=True,
    )
    verbose_logging: bool = changeable_setting(
        False, "Log questions left out, the first windows, and answers that could not be aligned."
    )
    dev_file: str | None = setting(
        None,
        "SQuAD JSON for --do_eval, which with --version_2_with_negative also chooses the threshold for 'no answer'. If "
        "unset, --predict_file.",
        heading="Files and answers",
    )
    encoding: str = encoding_setting("your files")
    answer_from: str | None = setting(
        "words",
        "How answers are found in the text. words: as in the original, right for most English text. offsets: by "
        "characters, right in every script; splits words that the vocabulary lacks. Train and predict with the same. "
        "If unset, words; of a RoBERTa or ALBERT offsets.",
        choices=("words", "offsets"),
        unset=True,
    )
    metric: str = changeable_setting(
        "squad",
        "How answers are scored. squad: exact match and F1 of words, as the official scripts. korquad: exact match and "
        "F1 of characters, as KorQuAD 1.0's. klue: exact match and ROUGE-W of characters, as KLUE-MRC's.",
        choices=("squad", "korquad", "klue"),
    )
    steps_from_windows: bool = setting(
        False, "Count an epoch in windows (training uses all of them), not in questions."
    )
    feature_cache_dir: str | None = changeable_setting(
        None,
        "Directory that caches token windows for the next run, under a hash of their content. 'none' disables it. If "
        "unset, output_dir/windows.",
        check=check_output_dir,
    )

    @property
    def dev_flag(self) -> str:
        return "dev_file" if self.dev_file else "predict_file"

    def check(self, run: FineTuningSettings) -> None:
        run.check(self)
        if self.null_score_diff_threshold and not self.version_2_with_negative:
            raise ValueError("--null_score_diff_threshold is for --version_2_with_negative.")
        if self.metric == "squad" and (self.dev_file or run.do_eval):
            check_extra("official", f"The score of {self.dev_flag}")
        run.check_files(
            train_file=self.train_file, dev_file=self.dev_file or self.predict_file, predict_file=self.predict_file
        )
        run.check_dev_set(run.do_eval, ": give --do_eval")
        files = (run.do_train, "train_file"), (run.do_eval, self.dev_flag), (run.do_predict, "predict_file")
        for name in (name for needed, name in files if needed):
            check_input_files(getattr(self, name), f"--{name}")
