"""Texts that are compared, from files: pairs with a score, pairs that belong together, and triplets.

CSV, TSV or JSON lines. Pairs that belong together may have a third text, which does not belong to the first.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.data import tables, token_rows
from bert_tf.data.token_rows import GroupedRows
from bert_tf.system.checks import check_different
from bert_tf.system.declare import setting
from bert_tf.system.messages import warn_once
from bert_tf.tasks.rows import number_of, plain_label
from bert_tf.text.characters import plain_name
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training.settings import FineTuningSettings

# Columns that say whether, or how well, two texts belong together.
_JUDGEMENTS = {"label", "labels", "gold_label", "score", "scores", "similarity", "similarity_score", "target"}
_JUDGEMENTS |= {"relatedness_score", "is_duplicate", "is_paraphrase"}
_NARROW = 0.3  # of the range of scores; 0..1 for 0..5 is less


@dataclasses.dataclass(frozen=True)
class SimilarityExample:
    """Two texts, or three of which the last does not belong to the first; and how alike the two are, if known.

    source: the columns of its row that go into predictions.
    """

    guid: str
    texts: tuple[str, ...]
    score: float | None = None
    source: Mapping[str, object] | None = None


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a file: names, or, of a file without header, numbers from 0 as text.

    negative: the text that does not belong to the first.
    """

    text_a: str
    text_b: str
    negative: str | None = None
    score: str | None = None

    @property
    def texts(self) -> list[str]:
        return [name for name in (self.text_a, self.text_b, self.negative) if name]

    @property
    def all(self) -> list[str]:
        return [*self.texts, *([self.score] if self.score else ())]


# Used if no column is named: the first layout that fits the file.
KNOWN_LAYOUTS = (
    Columns("sentence1", "sentence2", score="score"),  # STS-B
    Columns("text_a", "text_b", score="score"),
    Columns("anchor", "positive", "negative"),
    Columns("anchor", "positive"),
    Columns("query", "positive", "negative"),
    Columns("query", "positive"),
    Columns("question", "answer"),
    Columns("sentence1", "sentence2"),
    Columns("text_a", "text_b"),
)


def read_examples(
    path: str,
    columns: Columns | None = None,
    *,
    score_range: tuple[float, float] = (0.0, 1.0),
    table: tables.TableSettings = tables.USUAL_TABLE,
    partners: bool = True,
) -> list[SimilarityExample]:
    """The examples of a file, in its order; scores are mapped from score_range to 0..1.

    columns: by default those of KNOWN_LAYOUTS that the file has.
    partners: whether two texts without a score belong together, as in any but a test set.
    """
    names, is_named, judged, examples = columns.all if columns else [], columns is not None, {}, []
    low, high = score_range
    for number, (line, row, source) in enumerate(tables.named_rows(path, names, table)):
        if columns is None:
            columns = next((layout for layout in KNOWN_LAYOUTS if row.keys() >= {*layout.all}), None)
            if columns is None:
                advice = "name them by --text_a, --text_b, --negative and --score."
                raise ValueError(f"{path}: which column is what? There are {tables.quoted(row)}: {advice}")
            logging.info("%s: its columns are %s.", path, tables.quoted(columns.all))
        texts = tuple(tables.text_of(tables.field_of(row, key, path, line), path, line, key) for key in columns.texts)
        if "" in texts:
            raise ValueError(f"{path}, line {line}: {columns.texts[texts.index('')]} is empty.")
        score = None
        if columns.score:
            cell = tables.field_of(row, columns.score, path, line)
            if math.isnan(value := number_of(plain_label(cell))):
                raise ValueError(f"{path}, line {line}: a number is expected as score, found {cell!r}")
            if not low <= value <= high:
                raise ValueError(f"{path}, line {line}: the score {value:g} is not in --score_range={low:g},{high:g}.")
            score = (value - low) / (high - low)
        if partners and not (columns.score or columns.negative):
            _check_judgements(row, columns, judged, path, line, is_named)
        examples.append(SimilarityExample(str(number), texts, score, source))
    scores = [example.score for example in tables.all_examples(path, examples) if example.score is not None]
    if len(scores) > 1 and max(scores) - min(scores) < _NARROW:
        shown = (low + (high - low) * score for score in (min(scores), max(scores)))
        message = "%s: all scores are from %g to %g, of --score_range=%g,%g: are these the lowest and the highest "
        logging.warning(message + "possible?", path, *shown, low, high)
    return examples


def _check_judgements(row: Mapping, columns: Columns, judged: dict, path: str, line: int, is_named: bool) -> None:
    """Raises, or warns if columns are named, where unused labels differ from those of the first row (`judged`)."""
    for name in (name for name in row if name not in columns.texts and name.casefold() in _JUDGEMENTS):
        if row[name] == judged.setdefault(name, row[name]):
            continue
        message = (
            f"{path}, line {line}: the column {name!r} ({judged[name]!r} before, {row[name]!r} here) is not used: each "
            f"row counts as two texts that belong together. If it says whether they do, give --text_a={columns.text_a} "
            f"--text_b={columns.text_b} --score={name} --score_range=lowest,highest; if not, the first two alone."
        )
        if not is_named:
            raise ValueError(message)
        warn_once((path, name), "%s", message)


_TEXTS = {"cosine": "two texts", "ranking": "two or three texts", "triplet": "three texts"}


def _parse_range(score_range: Sequence[str | float], flag: str = "--score_range") -> tuple[float, float]:
    numbers = tuple(map(number_of, score_range))
    if len(numbers) != 2 or not numbers[0] < numbers[1]:
        text = ",".join(map(str, score_range))
        raise ValueError(f"{flag}={text} must be two numbers, the lower one first, as 0,5.")
    return numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilaritySettings(tables.TableSettings):
    text_a: str | None = setting(
        None,
        "Column of the first text, by name, or by number from 0 if the file has no header. If no columns are named: "
        "those of the first known layout that a file has: sentence1, sentence2, score; anchor, positive, negative; "
        "question, answer; and the like.",
        heading="Your files",
    )
    text_b: str | None = setting(None, "Column of the text that it is compared with, or belongs to it.")
    negative: str | None = setting(None, "Column of a text that does not belong to the first, if any.")
    score: str | None = setting(None, "Column of the number that says how alike the texts are, if any.")
    score_range: Sequence[str | float] = setting(
        ("0", "1"), "The scores of texts with nothing in common, and of equal ones; for STS-B 0,5.", check=_parse_range
    )
    loss: str | None = setting(
        None,
        "cosine: squared error of the cosine and the score. ranking: softmax over the partners of all texts of the "
        "batch. triplet: the second text is nearer than the third, by --triplet_margin. If unset, cosine where there "
        "are scores, else ranking.",
        heading="What is learned",
        choices=("cosine", "ranking", "triplet"),
    )
    ranking_scale: float | None = setting(
        20.0, "ranking: cosines are multiplied by this. If unset, 20.", unset=True, shown=False, above=0
    )
    triplet_margin: float | None = setting(
        1.0, "triplet: least difference of the two distances. If unset, 1.", unset=True, shown=False, above=0
    )
    negatives_batch_size: int | None = setting(
        None,
        "ranking: the number of examples whose texts are negatives of each other. If unset, all that a device computes "
        "at once: --train_batch_size over all devices and --gradient_accumulation_steps. Give it, and any number of "
        "devices makes the same steps.",
        least=1,
    )
    mine_hard_negatives: int | None = setting(
        None,
        "Adds to each pair of --train_file this many texts that --init_checkpoint wrongly has near its first: the "
        "nearest partners of other pairs. They are in hard_negatives.jsonl in --output_dir.",
        least=1,
    )
    negatives_margin: float | None = setting(
        0.05,
        "--mine_hard_negatives: a negative's cosine is lower than the partner's by this share of it, since nearer "
        "texts may match, too. If unset, 0.05.",
        unset=True,
        shown=False,
        least=0,
    )
    pooling: str | None = setting(
        None,
        "How the outputs of a text's tokens become one vector. If unset, as the weights' directory says, else mean.",
        choices=("mean", "cls", "max"),
    )
    normalize: bool | None = setting(
        None,
        "Whether the trained model gives all vectors the length 1; training and evaluation use cosines, with the same "
        "result. If unset, what the directory of the weights says, else no.",
    )

    @property
    def columns(self) -> Columns | None:
        names = (self.text_a, self.text_b, self.negative, self.score)
        return Columns(*(name and plain_name(name) for name in names)) if self.text_a else None

    @property
    def scores_between(self) -> tuple[float, float]:
        return _parse_range(self.score_range)

    def loss_of(self, texts: int, has_scores: bool) -> str:
        """The loss for training data, by the number of texts of an example."""
        loss = self.loss or ("cosine" if has_scores else "ranking")
        for name in ("ranking_scale", "negatives_batch_size", "triplet_margin"):
            kind = "triplet" if name == "triplet_margin" else "ranking"
            if getattr(self, name) is not None and loss != kind:
                raise ValueError(f"--{name} is for --loss={kind}; this is --loss={loss}.")
        if self.mine_hard_negatives and (texts == 3 or has_scores):
            raise ValueError("--mine_hard_negatives is for pairs without --score and --negative.")
        needed = {"cosine": (2,), "ranking": (2, 3), "triplet": (3,)}[loss]
        if (loss == "cosine") != has_scores or texts + (self.mine_hard_negatives is not None) not in needed:
            raise ValueError(
                f"--loss={loss} is for {_TEXTS[loss]} {'and a score' if loss == 'cosine' else 'without a score'}; "
                f"--train_file has {texts} texts and {'scores' if has_scores else 'no scores'}."
            )
        return loss

    def negatives(
        self, run: FineTuningSettings, loss: str, texts: int, num_replicas: int = 1, begun: int | None = None
    ) -> int | None:
        """The number of examples whose texts are negatives of each other in a run; None with another loss than ranking.

        texts: of an example. begun: the number in the run that is resumed.
        """
        if loss != "ranking":
            return None
        at_once = run.train_batch_size // num_replicas // run.gradient_accumulation_steps
        size = self.negatives_batch_size or begun or at_once
        if at_once % size:
            raise ValueError(
                f"--negatives_batch_size={size}: a device computes {at_once} examples at once, which can't "
                "be divided by it (--train_batch_size over all devices and --gradient_accumulation_steps)."
            )
        if size == 1 and texts == 2:
            raise ValueError("--loss=ranking needs other examples as negatives: the batch is too small.")
        return size

    def check(self, run: FineTuningSettings) -> None:
        run.check(self)
        if bool(self.text_a) != bool(self.text_b):
            raise ValueError("--text_a and --text_b: name both columns, or neither for those of known layouts.")
        for name in ("negative", "score"):
            if getattr(self, name) and not self.text_a:
                raise ValueError(f"--{name} needs --text_a and --text_b, too.")
        check_different({f"--{name}": getattr(self, name) for name in ("text_a", "text_b", "negative", "score")})
        for name, needed in (("negatives_margin", "mine_hard_negatives"), ("mine_hard_negatives", "init_checkpoint")):
            if getattr(self, name) is not None and not (getattr(self, needed, None) or getattr(run, needed, None)):
                raise ValueError(f"--{name} needs --{needed}.")
        run.check_sets(self)


def encode_examples(
    examples: Sequence[SimilarityExample],
    tokenizer: Tokenizer,
    max_seq_length: int,
    lower: bool = False,
    prompt: str = "",
) -> GroupedRows:
    """Token rows [CLS] text [SEP] of examples with the same number of texts.

    Labels: text_ids int32 [n, N], equal numbers for equal texts; scores float32 [n], where examples have them.

    lower, prompt: see `description.SentenceSettings`.
    """
    token_rows.check_room(tokenizer, max_seq_length)
    texts = [(prompt + text).strip() for example in examples for text in example.texts]
    rows, truncated = token_rows.rows_of_texts(texts, tokenizer, max_seq_length, lower)
    if truncated:
        message = "Longer than max_seq_length=%d tokens, of which the %s are lost: %d of %d texts."
        logging.warning(message, max_seq_length, tokenizer.lost, truncated, len(rows))
    numbers = {}
    ids = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)
    labels = {"text_ids": ids.reshape(len(examples), -1)}
    if examples[0].score is not None:
        labels["scores"] = np.array([example.score for example in examples], np.float32)
    count = len(examples[0].texts)
    return GroupedRows(rows.ids, rows.offsets, rows.second_starts, labels, count, pad_id=rows.pad_id)
