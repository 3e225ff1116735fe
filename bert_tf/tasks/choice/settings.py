"""The settings of run_swag.py beyond those that all fine-tuning scripts share; checked without TensorFlow."""

import dataclasses

from bert_tf.data.tables import FileSettings, TableSettings
from bert_tf.system.checks import check_different
from bert_tf.system.declare import setting
from bert_tf.tasks.choice.data import Columns
from bert_tf.text.characters import plain_name
from bert_tf.training.settings import FineTuningSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceSettings(TableSettings, FileSettings):
    """Columns of files of multiple choice."""

    context: str | None = setting(
        None,
        "Column of the context, by name, or by number from 0 if the file has no header. If no columns are named: "
        "SWAG's, or context, question, choices and label.",
        heading="Your files",
    )
    question: str | None = setting(None, "Column of the text that every choice begins with, if any.")
    choices: list[str] | None = setting(
        None,
        "Columns of the choices, separated by commas; or one name: of a list in JSON lines, or the prefix of numbered "
        "columns (ending for ending0, ending1, ...).",
    )
    label: str | None = setting(None, "Column of the correct choice. If unset, and other columns are named, label.")
    first_label: str = setting("0", "The label of the first choice: 0, 1, A or the like.")

    @property
    def columns(self) -> Columns | None:
        """The columns of a file; None: they are known by their names."""
        if not self.context:
            return None
        context, question, label = (plain_name(name or "") for name in (self.context, self.question, self.label))
        return Columns(context, question or None, tuple(map(plain_name, self.choices)), label or "label")

    def check(self, run: FineTuningSettings) -> None:
        run.check_dev_set(run.do_eval, ": give --do_eval")
        self.check_predictions(run.do_predict)
        if bool(self.context) != bool(self.choices):
            given, missing = ("context", "choices") if self.context else ("choices", "context")
            raise ValueError(f"--{given} needs --{missing} beside it; without both, the columns are SWAG's.")
        if columns := self.columns:
            flags = {"--context": columns.context, "--question": columns.question, "--label": columns.label}
            choices = {f"--choices ({number})": name for number, name in enumerate(columns.choices, start=1)}
            check_different(flags | choices)
        for name in ("question", "label"):
            if getattr(self, name) and not self.context:
                raise ValueError(f"--{name} needs --context and --choices beside it.")
        run.check_tables(self)
