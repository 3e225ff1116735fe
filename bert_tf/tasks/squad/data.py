"""Questions on paragraphs from files in SQuAD's format (original: run_squad.py, read_squad_examples).

SQuAD 1.1 and 2.0, and what shares their format: XQuAD, KorQuAD, KLUE-MRC, JSQuAD, CMRC 2018 and so on.
"""

import bisect
import dataclasses
import re
from collections.abc import Sequence

from absl import logging

from bert_tf.data.tables import field_of, kind_of, raw_rows, text_of
from bert_tf.system.text_files import UTF_8, read_json

# What the original splits a context at. Other spaces (no-break, ideographic) are part of a word.
_WORD = re.compile("[^ \t\r\n\u202f]+")
_MANY_PARTS = 0.1  # the share of answers that are parts of words; in English 0.01
_FORM = '{"data": [{"paragraphs": [{"context": "...", "qas": [{"id": "...", "question": "...", "answers": [...]}]}]}]}'
_LISTED = 10  # the log shows this many of the answers that are not found


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A context and its words: `words[k]` begins at character `word_starts[k]`."""

    context: str
    words: list[str]
    word_starts: list[int]

    @classmethod
    def from_context(cls, context: str) -> "Paragraph":
        """Splits a context into words."""
        matches = list(_WORD.finditer(context))
        return cls(context, [match.group() for match in matches], [match.start() for match in matches])

    def word_at(self, character: int) -> int:
        """The word that a character belongs to; a space belongs to the word before it, the first ones to -1."""
        return bisect.bisect_right(self.word_starts, character) - 1


@dataclasses.dataclass(frozen=True)
class SquadExample:
    """One question.

    Attributes:
      start_position, end_position: first and last word of the answer; -1 for an impossible question; None where no
        answer was read (prediction).
      orig_answer_text: the answer to train on, "" for an impossible question; None in prediction.
      answer_start: its first character in the context.
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
        """The words of the context."""
        return self.paragraph.words


@dataclasses.dataclass(frozen=True)
class SquadData:
    """What `read_squad_examples` read.

    Attributes:
      examples: in the order of the files.
      skipped: for each question whose answer is not in its context: file, id, answer and the text found instead.
      articles: the `data` lists of the files, joined; what the metrics compare with.
      unanswered: "" if every question has answers (or is marked as impossible); else says how many have none.
    """

    examples: list[SquadExample]
    skipped: list[dict]
    articles: list[dict]
    unanswered: str


def read_articles(path: str, encoding: str = UTF_8) -> list[dict]:
    """The list under `data` of a SQuAD file, every part of which has been checked to be there.

    Parquet and JSON lines have a question a row: id, context, question, answers (text and answer_start, lists of both).
    """
    if kind_of(path) in ("parquet", "jsonl", "ndjson"):
        root = _rows_as_articles(path, encoding)
    else:
        root = read_json(path, object, encoding)

    def part(holder, place: str, key: str, kind: type):
        value = holder.get(key) if isinstance(holder, dict) else None
        if not isinstance(value, kind):
            where, name = f"{path}: {place or 'the file'}", {list: "list", str: "string"}[kind]
            raise ValueError(f'{where} has no {name} "{key}", so this is not a SQuAD file: {_FORM}.')
        return value

    articles = part(root, "", "data", list)
    for i, article in enumerate(articles):
        for j, paragraph in enumerate(part(article, f"data[{i}]", "paragraphs", list)):
            place = f"data[{i}].paragraphs[{j}]"
            part(paragraph, place, "context", str)
            for k, question in enumerate(part(paragraph, place, "qas", list)):
                inner = f"{place}.qas[{k}]"
                if isinstance(question, dict):
                    if "guid" in question:
                        question.setdefault("id", question["guid"])  # KLUE-MRC
                    if isinstance(question.get("id"), int):
                        question["id"] = str(question["id"])  # some datasets number their questions
                part(question, inner, "id", str)
                part(question, inner, "question", str)
                if not isinstance(question.get("is_impossible", False), bool):
                    raise ValueError(f'{path}: {inner}: "is_impossible" is neither true nor false.')
                if "answers" not in question:
                    continue
                for m, answer in enumerate(part(question, inner, "answers", list)):
                    part(answer, f"{inner}.answers[{m}]", "text", str)
    return articles


def _rows_as_articles(path: str, encoding: str) -> dict:
    """Rows of one question each as a SQuAD file would have them; those that follow each other share their context.

    Where some questions have answers, those without are impossible; where none has, answers are not known.
    """
    paragraphs, questions = [], []
    for number, row in raw_rows(path, None, None, encoding):
        context, question = (
            text_of(field_of(row, name, path, number), path, number, name) for name in ("context", "question")
        )
        one = {"question": question} | {key: row[key] for key in ("id", "guid", "is_impossible") if key in row}
        answers = row.get("answers")
        if isinstance(answers, dict):
            parts = (field_of(row, f"answers.{name}", path, number) for name in ("text", "answer_start"))
            answers = [dict(zip(("text", "answer_start"), pair, strict=False)) for pair in zip(*parts, strict=False)]
        if answers is not None:
            one["answers"] = answers
        if not paragraphs or paragraphs[-1]["context"] != context:
            paragraphs.append({"context": context, "qas": []})
        paragraphs[-1]["qas"].append(one)
        questions.append(one)
    are_known = any(one.get("answers") for one in questions)
    for one in questions:
        if not are_known:
            one.pop("answers", None)
        elif "answers" in one:
            one.setdefault("is_impossible", not one["answers"])
    return {"data": [{"paragraphs": paragraphs}]}


def check_room(max_seq_length: int, max_query_length: int, special: int = 3) -> None:
    """Refuses windows that are full with a question and the special tokens of a pair, at least 3."""
    if max_seq_length <= max_query_length + special:
        raise ValueError(
            f"max_seq_length={max_seq_length} must be greater than max_query_length={max_query_length} + "
            f"{special}, or no window has room for any of the context."
        )


def read_squad_examples(
    paths: Sequence[str],
    is_training: bool,
    version_2_with_negative: bool = False,
    answer_from: str = "words",
    encoding: str = UTF_8,
) -> SquadData:
    """Reads SQuAD files.

    Args:
      is_training: each question has one answer, which is looked for in the context; questions whose answer is not
        found there are left out, counted and listed.
      version_2_with_negative: questions may have no answer (SQuAD 2.0).
      answer_from: "words": an answer is found if it is part of the words it begins and ends in, as in the original;
        "offsets": if it is at its `answer_start`.
      encoding: see `text_files.TextFile`.
    """
    examples, skipped, articles = [], [], []
    seen, repeated, empty, unanswered, without_text, total = {}, [], [], [], [], 0
    for path in paths:
        here = read_articles(path, encoding)
        _check_version(path, here, version_2_with_negative)
        articles += here
        for article in here:
            for entry in article["paragraphs"]:
                paragraph = Paragraph.from_context(entry["context"])
                for question in entry["qas"]:
                    qas_id = question["id"]
                    total += 1
                    if not question["question"].strip():
                        empty.append(qas_id)
                    if not paragraph.words:
                        without_text.append(qas_id)
                    if not ((version_2_with_negative and "is_impossible" in question) or question.get("answers")):
                        unanswered.append(qas_id)
                    asked = (question["question"], entry["context"])
                    if qas_id in seen:
                        repeated.append(qas_id)
                        if not is_training and seen[qas_id] != asked:
                            raise ValueError(f"{path}: the id {qas_id!r} is used for two different questions.")
                    seen[qas_id] = asked
                    if not is_training:
                        examples.append(SquadExample(qas_id, question["question"], paragraph))
                        continue
                    try:
                        examples.append(_training_example(question, paragraph, version_2_with_negative, answer_from))
                    except _AnswerNotFoundError as error:
                        answer, found = error.args
                        skipped.append({"file": path, "id": qas_id, "answer": answer, "found": found[:200]})
                    except ValueError as error:
                        raise ValueError(f"{path}: question {qas_id!r} {error}") from None
    _warn_of_questions(total, repeated, empty, without_text, is_training)
    if is_training:
        _tell_of_answers(articles, skipped, total)
    if answer_from == "words":
        _warn_of_parts_of_words(articles)
    missing = f"{len(unanswered)} questions have no answers ({_some(unanswered)})" if unanswered else ""
    return SquadData(examples, skipped, articles, missing)


def _warn_of_questions(total: int, repeated: list, empty: list, without_text: list, is_training: bool) -> None:
    for ids, what in (
        (repeated, "an id that came before" + ("" if is_training else "; their answers share one id")),
        (empty, "no text: what is predicted for them comes from the context alone"),
        (without_text, "an empty context, where nothing can be found"),
    ):
        if ids:
            logging.warning("Of %d questions %d have %s (%s).", total, len(ids), what, _some(ids))


def _tell_of_answers(articles: list[dict], skipped: list[dict], total: int) -> None:
    """Says which training questions have several answers, and which are left out."""
    several = sum("guid" in question and len(question.get("answers", ())) > 1 for question in _questions(articles))
    if several:
        logging.info("Of %d questions %d have several answers: the first one of each is trained on.", total, several)
    if skipped:
        listed = "".join(f"\n  {s['id']}: {s['answer']!r} vs. {s['found'][:100]!r}" for s in skipped[:_LISTED])
        more = f"\n  and {len(skipped) - _LISTED} more" if len(skipped) > _LISTED else ""
        told = "%d of %d questions are left out, as their answer is not in the context where it should be:%s%s"
        logging.warning(told, len(skipped), total, listed, more)


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
        told = "%d of %d answers (%d %%) begin or end inside a word, where --answer_from=words loses them or gives "
        told += "whole words: give --answer_from=offsets."
        logging.warning(told, inside, total, round(100 * inside / total))


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")


class _AnswerNotFoundError(ValueError):
    """args: the answer, and the text found at its position."""


def _training_example(question: dict, paragraph: Paragraph, version_2: bool, answer_from: str) -> SquadExample:
    impossible = False
    if version_2:
        if "is_impossible" not in question:
            raise ValueError('has no "is_impossible", which --version_2_with_negative needs in every question.')
        impossible = bool(question["is_impossible"])
    if impossible:
        return SquadExample(question["id"], question["question"], paragraph, "", -1, -1, True)
    answers = question.get("answers", [])
    if len(answers) != 1 and not (answers and "guid" in question):
        raise ValueError(
            f"has {len(answers)} answers; to train on, each question should have exactly 1 (dev files have several)."
        )
    text, start = answers[0]["text"], answers[0].get("answer_start")
    if not isinstance(start, int):
        raise ValueError('has an answer without a number "answer_start".')
    end = start + len(text)
    first, last = paragraph.word_at(start), paragraph.word_at(end - 1)
    if answer_from == "offsets":
        found = paragraph.context[max(start, 0) : end]
        there = start >= 0 and " ".join(found.split()) == " ".join(text.split()) != ""
    else:
        # If an answer begins in the spaces before the first word, the original takes word -1, the last one.
        found = " ".join(paragraph.words[first : last + 1])
        there = start >= 0 and end <= len(paragraph.context) and " ".join(text.split()) in found and text.strip() != ""
    if not there:
        raise _AnswerNotFoundError(text, found)
    return SquadExample(question["id"], question["question"], paragraph, text, first, last, False, start)


def _questions(articles: list[dict]) -> list[dict]:
    return [question for article in articles for entry in article["paragraphs"] for question in entry["qas"]]


def _check_version(path: str, articles: list[dict], version_2: bool) -> None:
    questions = _questions(articles)
    impossible = sum(bool(question.get("is_impossible")) for question in questions)
    if impossible and not version_2:
        raise ValueError(
            f"{path} is SQuAD 2.0 data: {impossible} of its {len(questions)} questions have no answer. Give "
            "--version_2_with_negative."
        )
    answered = bool(questions) and all(question.get("answers") for question in questions)
    if version_2 and answered and not any("is_impossible" in question for question in questions):
        raise ValueError(
            f'{path} is SQuAD 1.1 data: no question has "is_impossible", each has an answer. Leave out '
            "--version_2_with_negative."
        )
