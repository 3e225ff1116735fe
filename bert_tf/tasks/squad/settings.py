"""The settings of run_squad.py beyond those that all fine-tuning scripts share; checked without TensorFlow."""

import dataclasses

from bert_tf.system.checks import check_input_files, check_output_dir
from bert_tf.system.messages import named_by, unheard
from bert_tf.system.text_encodings import UTF_8
from bert_tf.tasks.squad.data import check_beginning
from bert_tf.training.settings import FineTuningSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadSettings:
    """Questions on texts: files, windows, and how answers are chosen; the fields are the flags of these names.

    Attributes:
      answer_from: None: as suits the model's tokenizer (`Tokenizer.answers_by_words`).
      question_head: a key of `question_heads.OUTPUT_LAYERS`; None: as the model was trained, or else as its family's
        authors did. beam_size: of the joint head; None: as the model was trained, or as its family's authors did.
      null_score_diff_threshold: None: as chosen on a dev set and kept beside the model, or else 0.
      metric: one of `metrics.METRICS`.
    """

    train_file: str | None = None
    dev_file: str | None = None
    predict_file: str | None = None
    encoding: str = UTF_8
    version_2_with_negative: bool = False
    doc_stride: int = 128
    max_query_length: int = 64
    answer_from: str | None = None
    steps_from_windows: bool = False
    feature_cache_dir: str | None = None
    verbose_logging: bool = False
    n_best_size: int = 20
    max_answer_length: int = 30
    null_score_diff_threshold: float | None = None
    lstm_on_top: bool = False
    question_head: str | None = None
    beam_size: int | None = None
    metric: str = "squad"

    @property
    def dev_flag(self) -> str:
        """The flag that names the dev set."""
        return "dev_file" if self.dev_file else "predict_file"

    def check(self, run: FineTuningSettings) -> None:
        """Refuses contradictions and missing files.

        Raises:
          ValueError: names the flag.
        """
        if self.lstm_on_top and self.question_head == "joint":
            raise ValueError("--lstm_on_top is for --question_head=independent.")
        if run.do_eval and not (self.dev_file or self.predict_file):
            raise ValueError("--do_eval needs --dev_file (or --predict_file).")
        run.check_files(
            train_file=self.train_file, dev_file=self.dev_file or self.predict_file, predict_file=self.predict_file
        )
        run.check_dev_set(run.do_eval, ": give --do_eval")
        if self.feature_cache_dir:
            check_output_dir(self.feature_cache_dir, "--feature_cache_dir")
        for needed, name in (
            (run.do_train, "train_file"),
            (run.do_eval, self.dev_flag),
            (run.do_predict, "predict_file"),
        ):
            for path in check_input_files(getattr(self, name), f"--{name}") if needed else ():
                with named_by(f"--{name}"), unheard():
                    check_beginning(path, name == "train_file", self.version_2_with_negative, self.encoding)
