"""The settings of run_squad.py beyond those that all fine-tuning scripts share; checked without TensorFlow."""

import dataclasses

from bert_tf.system.checks import check_extra, check_input_files, check_output_dir
from bert_tf.system.declare import ORIGINAL, changeable_setting, setting
from bert_tf.system.text_files import encoding_setting
from bert_tf.training.settings import FineTuningSettings


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
