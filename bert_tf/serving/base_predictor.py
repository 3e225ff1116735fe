"""What the predictor classes share: opening a trained model, and batches."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_tf.data import token_rows
from bert_tf.data.token_rows import TokenRows
from bert_tf.models import directory as model_directory
from bert_tf.models.pretrained import read_tokenizer
from bert_tf.serving import loaded_export
from bert_tf.serving.detect_task import check_task, choose_max_seq_length
from bert_tf.serving.onnx_model import OnnxModel
from bert_tf.system.checks import check_path
from bert_tf.system.cores import batches_at_once, mapped_in_order
from bert_tf.system.messages import warn_once
from bert_tf.system.progress import progress_bar
from bert_tf.tasks.table import TASKS

_SECONDS_WITHOUT_PROGRESS = 5


class Answerer:
    """A model directory of any format, or an export, opened once. Threads may share it.

    A subclass sets:
      tasks: names of `tasks.table.TASKS` that it answers.
      model_class: the class that loads a model directory.
      action: the label of the progress bar.

    Attributes:
      path: what was opened: of a directory of versions the newest.
      export: the `loaded_export.Export` of a SavedModel, else None; then tokenizer, files and model are not None. The
        model of an ONNX export is an `OnnxModel`, and its directory has the files of a model directory.

    Args:
      path: a complete model directory: weights with an output layer, configuration, vocabulary; or what
        export_saved_model.py wrote (the directory of versions, or one of them).
      batch_size: rows or texts computed together.
      trust: see `loaded_export.Export`.

    Raises:
      FileNotFoundError, ValueError: no model there, or none for this task; an export is not trusted.
    """

    tasks: tuple[str, ...]
    model_class: type
    action: str

    def __init__(self, path: str, batch_size: int, trust: bool = False):
        check_path(path, type(self).__name__)
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be at least 1")
        self.batch_size = batch_size
        self.warn = functools.partial(warn_once, object())
        self.export = self.tokenizer = self.files = self.model = self._graph = None
        found = loaded_export.find_export(path)
        self.path = found or path
        if found and not loaded_export.onnx_file(found):
            self.export = loaded_export.Export(found, trust)
            self._check_task(path, self.export.task)
            return
        self.tokenizer = read_tokenizer(self.path)
        if found:
            self.files = model_directory.read_model_files(found)
            self.model = OnnxModel(found)
            self._check_task(path, self.model.task)
            return
        self.files = check_task(path, self.tasks[0])
        self.model = self.load_model(path)
        if keras.backend.backend() == "tensorflow":
            # Operation by operation a single text takes several times as long.
            self._graph = tf.function(self.run, autograph=False)

    def _check_task(self, path: str, task: str) -> None:
        """Refuses an export for another task."""
        if task not in self.tasks:
            other = TASKS[task].answerer if task in TASKS else None
            advice = f": {other} opens it" if other and other[0].isupper() else ""
            raise ValueError(f"{path} is an export for {task}, not for {self.tasks[0]}{advice}")

    def load_model(self, path: str) -> keras.Model:
        """The model in a directory."""
        return self.model_class.from_pretrained(path, trained=True)

    def length(self, given: int | None) -> int:
        """The sequence length: that of an export, which is fixed; else by `choose_max_seq_length`.

        Raises:
          ValueError: the export or the model can't have the length that is given.
        """
        if not self.export:
            return choose_max_seq_length(self.files, given)
        length = self.export.description["max_seq_length"]
        if given not in (None, length):
            raise ValueError(f"max_seq_length={given}: the export has a fixed length of {length}")
        return length

    def batches(self, lengths: Sequence[int]) -> Iterator[np.ndarray]:
        """Row numbers of each batch, rows of similar length together; a bar shows progress if it takes long."""
        rows = token_rows.evaluation_rows(np.asarray(lengths, np.int64), self.batch_size)
        return iter(progress_bar(rows, desc=self.action, unit="batch", leave=False, delay=_SECONDS_WITHOUT_PROGRESS))

    def outputs(self, rows: TokenRows) -> Iterator[tuple[np.ndarray, np.ndarray | dict[str, np.ndarray]]]:
        """(row numbers, the model's outputs for them) of each batch of token rows."""
        lengths = rows.lengths

        def outputs_of(chosen):
            return chosen, self.compute(rows.batch(chosen, int(lengths[chosen].max())))

        return mapped_in_order(outputs_of, self.batches(lengths), batches_at_once())

    def exported(
        self, signature: str, lengths: Sequence[int], columns: dict[str, Sequence]
    ) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
        """(row numbers, the outputs of an export's signature for these rows of its inputs) of each batch.

        Args:
          lengths: rows of similar length are computed together.
        """
        for rows in self.batches(lengths):
            chosen = rows.tolist()
            yield chosen, self.export(signature, **{name: [of[row] for row in chosen] for name, of in columns.items()})

    def run(self, features: dict):
        """What is computed of a batch, by `compute` in a graph: the model's outputs."""
        return self.model(features, training=False)

    def compute(self, features: dict[str, np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
        """`run`, in one graph for batches of all sizes if TensorFlow computes."""
        if self._graph is None:
            found = self.run(features)
        else:
            specs = {name: tf.TensorSpec([None] * value.ndim, value.dtype) for name, value in features.items()}
            found = self._graph.get_concrete_function(specs)(features)
        return keras.tree.map_structure(np.asarray, found)


def list_of(items, name: str, what: str, line: str) -> list:
    """`items`, any iterable but a table, as a list.

    Args:
      line: what to write for one item, to be completed with a string.

    Raises:
      TypeError: it is a single string, a table, or nothing that has items; says what to write.
    """
    problem = None
    if isinstance(items, str | bytes):
        problem = "a single string"
    elif isinstance(items, Mapping) or hasattr(items, "columns"):
        problem = f"a {type(items).__name__}: give one of its columns"
    elif not isinstance(items, Iterable):
        problem = f"{items!r:.80}"
    if problem:
        raise TypeError(f"{name} must be a list of {what}, not {problem}; for one write {line}")
    return list(items)
