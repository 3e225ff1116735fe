"""The settings of run_swag.py beyond those that all fine-tuning scripts share; checked without TensorFlow."""

import dataclasses

from bert_tf.data.tables import TableSettings
from bert_tf.tasks.choice.data import Columns, check_examples
from bert_tf.text.characters import plain_name
from bert_tf.training.settings import FineTuningSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceSettings(TableSettings):
    """Files of multiple choice and their columns; the fields are the flags of these names."""

    train_file: str | None = None
    dev_file: str | None = None
    test_file: str | None = None
    context: str | None = None
    question: str | None = None
    choices: list[str] | None = None
    label: str | None = None
    first_label: str = "0"

    @property
    def columns(self) -> Columns | None:
        """Where a file has what; None: it is known by the names of its columns."""
        if not self.context:
            return None
        context, question, label = (plain_name(name or "") for name in (self.context, self.question, self.label))
        return Columns(context, question or None, tuple(map(plain_name, self.choices)), label or "label")

    def check(self, run: FineTuningSettings) -> None:
        """Refuses contradictions, missing files, and files that lack a column.

        Raises:
          ValueError, FileNotFoundError: names flag, or file and line.
        """
        run.check_dev_set(run.do_eval, ": give --do_eval")
        self.check_predictions(run.do_predict)
        if bool(self.context) != bool(self.choices):
            raise ValueError("--context and --choices: name both, or neither for SWAG's columns.")
        for name in ("question", "label"):
            if getattr(self, name) and not self.context:
                raise ValueError(f"--{name} needs --context and --choices beside it.")
        number = self.first_label.removeprefix("-")
        if not number.isdecimal() and len(number) != 1:
            raise ValueError(f"--first_label={self.first_label} must be a number or one letter.")

        def check_beginning(name: str, file: str) -> None:
            check_examples(
                file, self.columns, self.first_label, name != "test_file", self.of_set(name.removesuffix("_file"))
            )

        run.check_tables(check_beginning, train_file=self.train_file, dev_file=self.dev_file, test_file=self.test_file)
