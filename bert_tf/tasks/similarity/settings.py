"""The settings of run_similarity.py beyond those that all fine-tuning scripts share; checked without TensorFlow."""

import dataclasses
import math
from collections.abc import Sequence

from bert_tf.data.tables import TableSettings
from bert_tf.tasks.similarity.data import Columns, check_examples
from bert_tf.text.characters import plain_name
from bert_tf.training.settings import FineTuningSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilaritySettings(TableSettings):
    """Files of texts, their columns, pooling and loss; the fields are the flags of these names.

    Attributes:
      score_range: the scores of texts that have nothing in common, and of equal ones; strings or numbers.
      loss: None: "cosine" for files with scores, else "ranking".
      pooling, normalize: None: what the model's directory says, else the mean, not normalized.
      negatives_batch_size: None: all examples that a device computes at once.
    """

    train_file: str | None = None
    dev_file: str | None = None
    test_file: str | None = None
    text_a: str | None = None
    text_b: str | None = None
    negative: str | None = None
    score: str | None = None
    score_range: Sequence[str | float] = ("0", "1")
    loss: str | None = None
    ranking_scale: float | None = None
    triplet_margin: float | None = None
    negatives_batch_size: int | None = None
    pooling: str | None = None
    normalize: bool | None = None

    @property
    def columns(self) -> Columns | None:
        """Where a file has what; None: it is known by the names of its columns."""
        names = (self.text_a, self.text_b, self.negative, self.score)
        return Columns(*(name and plain_name(name) for name in names)) if self.text_a else None

    @property
    def scores_between(self) -> tuple[float, float]:
        """The lowest and the highest score.

        Raises:
          ValueError: score_range is not two numbers, the first of which is less.
        """
        try:
            low, high = map(float, self.score_range)
        except (TypeError, ValueError):
            low = high = math.nan
        if not -math.inf < low < high < math.inf:
            text = ",".join(map(str, self.score_range))
            raise ValueError(f"--score_range={text} must be two numbers, the lower one first, as 0,5.")
        return low, high

    def check_loss(self, loss: str) -> None:
        """Refuses settings of another loss.

        Raises:
          ValueError: names setting and loss.
        """
        for name in ("ranking_scale", "negatives_batch_size", "triplet_margin"):
            kind = "triplet" if name == "triplet_margin" else "ranking"
            if getattr(self, name) is not None and loss != kind:
                raise ValueError(f"--{name} is for --loss={kind}; this is --loss={loss}.")

    def check(self, run: FineTuningSettings) -> None:
        """Refuses contradictions, missing files, and files that lack a column.

        Raises:
          ValueError, FileNotFoundError: names flag, or file and line.
        """
        run.check_dev_set(run.do_eval, ": give --do_eval")
        self.check_predictions(run.do_predict)
        if bool(self.text_a) != bool(self.text_b):
            raise ValueError("--text_a and --text_b: name both columns, or neither for those of known layouts.")
        for name in ("negative", "score"):
            if getattr(self, name) and not self.text_a:
                raise ValueError(f"--{name} needs --text_a and --text_b beside it.")
        if self.loss:
            self.check_loss(self.loss)
        for name in ("ranking_scale", "triplet_margin"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"--{name}={value:g} must be more than 0.")
        score_range = self.scores_between

        def check_beginning(name: str, file: str) -> None:
            check_examples(file, self.columns, score_range, self.of_set(name.removesuffix("_file")))

        run.check_tables(check_beginning, train_file=self.train_file, dev_file=self.dev_file, test_file=self.test_file)
