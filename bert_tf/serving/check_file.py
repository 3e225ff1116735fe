"""The data with labels on which an export is compared with its model; read without TensorFlow."""

from collections.abc import Sequence

from bert_tf.models.head_config import HeadConfig, spelled_as
from bert_tf.system.messages import named_by, unheard
from bert_tf.system.storage import is_remote
from bert_tf.system.text_files import read_text_lines
from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.squad import data as squad_data
from bert_tf.text.characters import plain_name, trimmed

_TASKS = ("classification", "regression", "squad", "ner")


def check_beginning(check_file: str, encoding: str, task: str, head: HeadConfig, text_pairs: bool) -> None:
    """Refuses a local file that does not fit the model, as far as it shows without TensorFlow.

    Args:
      task: of the model. head: what is known of its head. text_pairs: whether the export takes pairs.

    Raises:
      ValueError: names the flag, the file and the line.
    """
    is_regression = task == "regression" or head.problem_type == "regression"
    check_comparable(task, head.problem_type == "multi_label_classification")
    if is_remote(check_file):
        return
    with named_by("--check_file"), unheard():
        if task == "squad":
            squad_data.read_articles(check_file, encoding)
        elif task == "ner":
            ner_data.check_beginning(check_file, ner_data.Layout(tag_scheme="plain", encoding=encoding))
        else:
            check_pairs(check_file, read_rows(check_file, encoding, head.labels, is_regression)[0], text_pairs)


def check_comparable(task: str, multi_label: bool) -> None:
    """Refuses a task for which there is no comparison.

    Raises:
      ValueError: names --check_file.
    """
    if task not in _TASKS:
        *names, last = _TASKS
        raise ValueError(f"--check_file is for {', '.join(names)} and {last}, not for {task}")
    if multi_label:
        raise ValueError("--check_file can't score several labels per example")


def check_pairs(check_file: str, examples: Sequence, text_pairs: bool) -> None:
    """Refuses single texts for an export that takes pairs.

    Raises:
      ValueError: names the file.
    """
    if text_pairs and isinstance(examples[0], str):
        raise ValueError(f"{check_file} has lines of one text; an export with --text_pairs takes two")


def read_rows(
    check_file: str, encoding: str, labels: Sequence[str] | None, is_regression: bool
) -> tuple[list[str | tuple[str, str]], list[str | float]]:
    """Texts or pairs, and their labels, or the numbers of a regression.

    Args:
      labels: of the model; None: any.

    Raises:
      ValueError: a line lacks columns or has an unknown label; names file and line.
    """
    rows, gold = [], []
    for number, line in enumerate(read_text_lines(check_file, encoding=encoding), 1):
        *texts, label = map(trimmed, line.split("\t"))
        label = plain_name(label)
        if len(texts) not in (1, 2) or (rows and (len(texts) == 1) != isinstance(rows[0], str)):
            raise ValueError(f"{check_file}, line {number}: expected text, perhaps a second text, and label, with tabs")
        if is_regression:
            try:
                gold.append(float(label))
            except ValueError:
                raise ValueError(f"{check_file}, line {number}: {label!r} is not a number") from None
        elif labels is None or (known := spelled_as([label], labels)[0]) in labels:
            gold.append(label if labels is None else known)
        else:
            header = "; a header must be left out" if number == 1 else ""
            raise ValueError(
                f"{check_file}, line {number}: the model has no label {label!r}; it has {list(labels)}{header}"
            )
        rows.append(tuple(texts) if len(texts) == 2 else texts[0])
    if not rows:
        raise ValueError(f"{check_file} has no lines")
    return rows, gold
