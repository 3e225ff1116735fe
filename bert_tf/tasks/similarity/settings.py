"""The settings of run_similarity.py beyond those that all fine-tuning scripts share; checked without TensorFlow."""

import dataclasses
import math
from collections.abc import Sequence

from bert_tf.data.tables import FileSettings, TableSettings
from bert_tf.system.checks import check_different
from bert_tf.system.declare import setting
from bert_tf.tasks.similarity.data import Columns
from bert_tf.text.characters import plain_name
from bert_tf.training.settings import FineTuningSettings

_TEXTS = {"cosine": "two texts", "ranking": "two or three texts", "triplet": "three texts"}


def _parse_range(score_range: Sequence[str | float], flag: str = "--score_range") -> tuple[float, float]:
    try:
        low, high = map(float, score_range)
    except (TypeError, ValueError):
        low = high = math.nan
    if not -math.inf < low < high < math.inf:
        text = ",".join(map(str, score_range))
        raise ValueError(f"{flag}={text} must be two numbers, the lower one first, as 0,5.")
    return low, high


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilaritySettings(TableSettings, FileSettings):
    """Columns of files of texts, pooling and loss."""

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
        """The columns of a file; None: they are known by their names."""
        names = (self.text_a, self.text_b, self.negative, self.score)
        return Columns(*(name and plain_name(name) for name in names)) if self.text_a else None

    @property
    def scores_between(self) -> tuple[float, float]:
        return _parse_range(self.score_range)

    def loss_of(self, texts: int, has_scores: bool) -> str:
        """The loss for training data: texts of an example, and whether they have scores."""
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

        texts: of an example. num_replicas: over which a batch is divided. begun: the number in the run that is
        resumed.
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
        run.check_dev_set(run.do_eval, ": give --do_eval")
        self.check_predictions(run.do_predict)
        if bool(self.text_a) != bool(self.text_b):
            raise ValueError("--text_a and --text_b: name both columns, or neither for those of known layouts.")
        for name in ("negative", "score"):
            if getattr(self, name) and not self.text_a:
                raise ValueError(f"--{name} needs --text_a and --text_b beside it.")
        check_different({f"--{name}": getattr(self, name) for name in ("text_a", "text_b", "negative", "score")})
        for name, needed in (("negatives_margin", "mine_hard_negatives"), ("mine_hard_negatives", "init_checkpoint")):
            if getattr(self, name) is not None and not (getattr(self, needed, None) or getattr(run, needed, None)):
                raise ValueError(f"--{name} needs --{needed}.")
        run.check_tables(self)
