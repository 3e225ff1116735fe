"""Trained models that take strings: opened once, they batch their inputs. `Answerer`, their base; and `Predictor`."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bert_tf.data import token_rows
from bert_tf.data.token_rows import TokenRows
from bert_tf.store.head_config import OUTPUT_LAYER
from bert_tf.store.open import OpenedModel, description_of, onnx_file, open_answerer
from bert_tf.system.checks import check_integer, check_list, missing_packages, true_or_false
from bert_tf.system.messages import naming_flag, progress_bar, warn_once
from bert_tf.system.workers import has_gpu, mapped_in_order
from bert_tf.tasks import rows as task_rows
from bert_tf.tasks.classification import metrics as classification_metrics
from bert_tf.tasks.rows import InputExample, Task
from bert_tf.tasks.table import check_task, choose_max_seq_length

_SECONDS_WITHOUT_PROGRESS = 5
_ROWS_OF_AN_EXPORT = 32  # at once
RUNTIMES = ("onnxruntime", "tensorflow")
DTYPES = ("float32", "int8", "bfloat16")  # the first two of ONNX Runtime, the others of TensorFlow
OPTIONS = ("batch_size", "runtime", "dtype", "threads", "trust")  # of all answerers, see `Predictor`


class Answerer:
    """A model directory of any format, or an export, opened once. Threads may share it.

    The arguments are those of `Predictor`. A subclass sets tasks, the names of `tasks.table.TASKS` that it answers, and
    action, the label of the progress bar.

    path: what was opened: of a directory of versions the newest.
    description: of an export the content of export.json, else empty.
    export: of a SavedModel what `safe_graph.load_export` loads, else None; then tokenizer and runtime are not None.
    runtime: what computes: an `OnnxModel` or a `KerasModel`.
    model: the Keras model, if that computes, else None.
    num_outputs: of a classifier.
    """

    tasks: tuple[str, ...]
    action: str
    rows_of_item = 1  # that the model computes, about
    shows_progress: bool | None = None  # None: if it takes long
    pooling: str | None = None  # see `onnx_runtime.model_of`
    # Warns about given texts, once in a process, whatever model they are given to.
    warn = staticmethod(functools.partial(warn_once, "given texts"))

    def __init__(
        self,
        path: str | OpenedModel,
        *,
        max_seq_length: int | None = None,
        batch_size: int | None = None,
        runtime: str | None = None,
        dtype: str | None = None,
        threads: int | None = None,
        trust: bool = False,
    ):
        true_or_false(trust=trust)
        opened = path if isinstance(path, OpenedModel) else open_answerer(path)
        self.path = opened.path
        self.description = description_of(self.path) if opened.export else {}
        self.export = self.tokenizer = self.runtime = self.model = None
        if opened.export:
            if runtime or dtype:
                how = "what an export computes is decided when it is written"
                raise ValueError(f"runtime={runtime}, dtype={dtype}: {how}")
            if (task := self.description["task"]) not in self.tasks:
                raise ValueError(f"{self.path} is an export for {task}, not for {self.tasks[0]}")
            self.num_outputs = len(self.description["labels"]) or 1
        if not opened.export or opened.is_onnx:
            self.tokenizer = opened.make_tokenizer()
            self.max_seq_length = choose_max_seq_length(opened, max_seq_length)
        else:
            self.max_seq_length = length = self.description["max_seq_length"]
            if max_seq_length not in (None, length):
                raise ValueError(f"max_seq_length={max_seq_length}: the export has a fixed length of {length}")
        self.files = dataclasses.replace(opened, weights=None)
        if opened.is_onnx:
            from bert_tf.serving.onnx_runtime import open_file

            self.runtime = open_file(onnx_file(self.path), threads, self.pooling)
        elif opened.export:
            from bert_tf.serving.safe_graph import load_export

            if "input_ids" in self.description["signatures"].get("serving_default", {}).get("inputs", ()):
                raise ValueError(f"{self.path} takes token ids alone: open its model directory, or ask a server of it.")
            self.export = load_export(self.path, trust)
        else:
            check_task(opened, self.tasks[0])
            self.num_outputs = opened.weights.shapes.get(OUTPUT_LAYER, (0,))[0]
            if _runtime_of(runtime, dtype) == "onnxruntime":
                from bert_tf.serving.onnx_runtime import model_of

                self.runtime = model_of(opened, self.tasks[0], dtype or "float32", threads, self.pooling)
            else:
                from bert_tf.serving.keras_runtime import KerasModel

                self.runtime = KerasModel(opened, self.tasks[0], dtype or "float32", self.pooling)
                self.model = self.runtime.model
        rows_at_once = self.runtime.rows_at_once if self.runtime else _ROWS_OF_AN_EXPORT
        self.batch_size = rows_at_once // self.rows_of_item if batch_size is None else batch_size
        check_integer(self.batch_size, "batch_size")

    def _batches(self, lengths: Sequence[int]) -> Iterator[np.ndarray]:
        """Row numbers of each batch, rows of similar length together; a bar shows progress if it takes long."""
        lengths = np.asarray(lengths, np.int64)
        rows = token_rows.evaluation_rows(lengths, self.batch_size)
        if most := getattr(self.runtime, "tokens_at_once", None):  # longer texts would take memory, and gain no time
            parts = [-(-len(chosen) * lengths[chosen[0]] // most) for chosen in rows]
            rows = [part for chosen, count in zip(rows, parts, strict=True) for part in np.array_split(chosen, count)]
        if len(rows) == 1 and not self.shows_progress:  # nobody would see the bar, which costs a third of a millisecond
            return iter(rows)
        delay, is_hidden = 0 if self.shows_progress else _SECONDS_WITHOUT_PROGRESS, self.shows_progress is False
        return iter(progress_bar(rows, desc=self.action, unit="batch", leave=False, delay=delay, disable=is_hidden))

    def features(self, rows: TokenRows, chosen: np.ndarray) -> dict[str, np.ndarray]:
        return rows.batch(chosen, int(rows.lengths[chosen].max()))

    def outputs(self, rows: TokenRows) -> Iterator[tuple[np.ndarray, np.ndarray | dict[str, np.ndarray]]]:
        """(row numbers, the model's outputs for them) of each batch of token rows."""

        def outputs_of(chosen):
            return chosen, self.runtime.compute(self.features(rows, chosen))

        return mapped_in_order(outputs_of, self._batches(rows.lengths), self.runtime.batches_at_once)

    def computed(self, rows: TokenRows, *shape: int) -> np.ndarray:
        """float32 [n, *shape]: the model's outputs for all token rows in their order."""
        values = np.empty((len(rows), *shape), np.float32)
        for chosen, output in self.outputs(rows):
            values[chosen] = output
        return values

    def exported(self, signature: str, lengths: Sequence[int], columns: dict[str, Sequence]) -> list[dict]:
        """The outputs of an export's signature for each row of its inputs: name -> array without the first axis. Those
        of similar lengths are computed together."""
        import tensorflow as tf

        rows = [{} for _ in lengths]
        for chosen in self._batches(lengths):
            inputs = {name: tf.constant([of[row] for row in chosen], tf.string) for name, of in columns.items()}
            outputs = {name: value.numpy() for name, value in self.export.signatures[signature](**inputs).items()}
            for position, row in enumerate(chosen):
                rows[row] = {name: value[position] for name, value in outputs.items()}
        return rows

    def answer(self, first, second: str | None = None, **options):
        """What `predict` gives for one item, or, of a list of them, the list."""
        is_list = second is None and not isinstance(first, str | Mapping)
        found = self.predict(first if is_list else [first if second is None else (first, second)], **options)
        return found if is_list else found[0]


def _runtime_of(given: str | None, dtype: str | None) -> str:
    """The runtime given, else ONNX Runtime if it is installed, on a CPU, for what it computes."""
    for name, value, known in (("runtime", given, RUNTIMES), ("dtype", dtype, DTYPES)):
        if value not in (None, *known):
            raise ValueError(f"{name}={value!r:.80} is not one of {', '.join(known)}")
    cannot = "dtype=bfloat16" if dtype == "bfloat16" else ""
    if missing := missing_packages("onnx"):
        cannot = f"{' and '.join(missing)} not installed"
    if given == "onnxruntime" and cannot:
        raise ValueError(f"runtime=onnxruntime: {cannot}")
    if given is None and (cannot or has_gpu()):
        given = "tensorflow"
    if given == "tensorflow" and dtype == "int8":
        raise ValueError(f"dtype=int8 needs ONNX Runtime: {cannot or 'runtime=tensorflow has no such kernels'}")
    return given or "onnxruntime"


def rows_of(items, name: str, kinds: Mapping[str, type], least: int, line: str | None = None) -> list[dict]:
    """The parts by name of each item: a tuple or list of them, a dict as pipelines of transformers take it, or, if one
    is enough (least), a string. kinds: a part's name -> its type. name, line: see `check_list`.
    """
    forms = f"({', '.join(kinds)}), as tuples or dicts with these names"
    forms, names, rows = f"strings or {forms}" if least == 1 else forms, list(kinds), []
    for number, item in enumerate(check_list(items, name, forms, line)):
        row = {names[0]: item} if isinstance(item, str) else item
        if isinstance(item, list | tuple) and 2 <= len(item) <= len(names):
            row = dict(zip(names, item, strict=False))
        known = isinstance(row, Mapping) and least <= len(row) and row.keys() == set(names[: len(row)])
        if not known or not all(isinstance(row[part], kinds[part]) for part in row):
            raise TypeError(f"{name}[{number}] is {item!r:.80} ({type(item).__name__}); {name} are {forms}")
        rows.append({part: row[part] for part in names if part in row})
    return rows


class Predictor(Answerer):
    """Labels and probabilities for texts, from a model directory of any format, or an export. Threads may share it.

        predictor = Predictor("mrpc_output/best_model")
        predictor(["A text.", ("One text.", "And its pair."), {"text": "One text.", "text_pair": "And its pair."}])
        # [{"label": "1", "probabilities": {"0": 0.03, "1": 0.97}}, ...]

    Args:
      path: a complete model directory: weights with an output layer, configuration, vocabulary; or what
        export_saved_model.py wrote (the directory of versions, or one of them).
      max_seq_length: longer texts lose their last tokens, or are read in windows if the model was trained to. Default:
        the length of training, if known, else the model's maximum.
      options:
        batch_size: texts computed together, those of like length. Default: 16 by ONNX Runtime, of an ONNX file
          8; else 32. ONNX Runtime takes fewer if they have more than 4,096 tokens.
        runtime: "onnxruntime", which computes without TensorFlow, or "tensorflow". Default: the first, where it is
          installed and there is no GPU.
        dtype: "float32"; "int8", twice as fast, for ONNX Runtime; or "bfloat16", for TensorFlow.
        threads: of ONNX Runtime for a batch. Default: one for each core that the process may use.
        trust: load an export whatever its graph may do, see `safe_graph.load_export`.

    Attributes:
      labels: in the order of their ids; none for a regression.

    Raises:
      FileNotFoundError, ValueError: there is no model, or it is for another task.
    """

    tasks = ("classification", "regression")
    action = "predict"

    def __init__(self, path: str, *, max_seq_length: int | None = None, **options):
        super().__init__(path, max_seq_length=max_seq_length, **options)
        if self.export:
            outputs = self.description["signatures"]["serving_default"]["outputs"]
            labels = None if self.description["task"] == "regression" else tuple(self.description["labels"])
            self.task = Task("", labels, None, multi_label="holds" in outputs)
            self._gives_probability = "probability" in outputs
            self._pairs = self.description.get("pairs")  # whether it was trained on pairs, if that is known
        else:
            head = self.files.head
            self.task = Task.of_model(head, self.num_outputs)
            with naming_flag(self.path):
                self._gives_probability = self.task.is_regression and head.gives_probability()
            self.windows = task_rows.windows_of_model(head, self.tokenizer, self.max_seq_length)
            self._pairs = head.pairs
        self.labels = list(self.task.labels or ())

    def logits(self, texts: Sequence[str | tuple[str, str] | Mapping[str, str]]) -> np.ndarray:
        """Logits [n, C] of texts or pairs of texts, in the order given; see `predict`."""
        if isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(part, str) for part in texts):
            raise TypeError("texts is one pair: write predictor(*pair), or predict([pair]); two texts are a list")
        rows = rows_of(texts, "texts", {"text": str, "text_pair": str}, 1, "predictor(text)")
        examples = [InputExample(str(number), *row.values()) for number, row in enumerate(rows)]
        if not examples:
            return np.zeros((0, len(self.labels) or 1), np.float32)
        if self._pairs is not None and any(self._pairs != (example.text_b is not None) for example in examples):
            was, now = ("two texts", "one") if self._pairs else ("one text", "two")
            warn_once(self.path, "%s was trained on %s an example, and is given %s.", self.path, was, now)
        if self.export:
            return self._logits_by_export(examples)
        rows = task_rows.encode_examples(
            examples, self.task, self.tokenizer, self.max_seq_length, 1, windows=self.windows, warn=self.warn
        )
        return self.computed(rows, len(self.labels) or 1)

    def _logits_by_export(self, examples: list[InputExample]) -> np.ndarray:
        """Logits [n, C] that give the same answers as the export's."""
        texts, pairs = [example.text_a for example in examples], [example.text_b or "" for example in examples]
        takes_pairs = "text_pair" in self.description["signatures"]["serving_default"]["inputs"]
        signature = "serve_pairs" if any(pairs) and not takes_pairs else "serving_default"
        columns = {"text": texts, "text_pair": pairs} if takes_pairs or any(pairs) else {"text": texts}
        lengths = [len(text) + len(pair) for text, pair in zip(texts, pairs, strict=True)]
        outputs = self.exported(signature, lengths, columns)
        if self.task.is_regression and not self._gives_probability:
            return np.array([[row["score"]] for row in outputs])
        tiny = np.finfo(np.float32).tiny
        name = "probability" if self._gives_probability else "probabilities"
        is_logistic = self._gives_probability or self.task.multi_label
        probabilities = np.maximum([np.atleast_1d(row[name]) for row in outputs], tiny)
        return np.log(probabilities) - (np.log(np.maximum(1 - probabilities, tiny)) if is_logistic else 0)

    def predict(
        self, texts: Sequence[str | tuple[str, str] | Mapping[str, str]], top_k: int | None = None
    ) -> list[dict] | list[list[dict]]:
        """For each text `label` (multi-label: `labels`) and `probabilities` by label; for a regression `score`, or
        `probability`, if its config.json names a sigmoid for sentence-transformers.

        Args:
          texts: strings, or, if the model was trained on pairs, tuples or {"text": ..., "text_pair": ...}.
          top_k: as for a pipeline of transformers: so many labels of each text, the likeliest first, with `score`.

        Raises:
          TypeError: an item is none of these; names its place. ValueError: top_k for a model without labels.
        """
        if top_k is not None:
            check_integer(top_k, "top_k")
            if not self.labels:
                raise ValueError(f"top_k={top_k} is for labels; {self.path} gives one number")
        predictions = classification_metrics.describe_predictions(self.task, self.logits(texts))
        if self._gives_probability:
            return [{"probability": float(np.exp(-np.logaddexp(0, -row["score"])))} for row in predictions]
        if top_k is not None:
            ranked = [sorted(row["probabilities"].items(), key=lambda pair: -pair[1]) for row in predictions]
            return [[{"label": label, "score": score} for label, score in row[:top_k]] for row in ranked]
        return predictions

    def __call__(self, text, pair: str | None = None, top_k: int | None = None) -> dict | list:
        """What `predict` gives for one text or pair, or, of a list of them, the list."""
        return self.answer(text, pair, top_k=top_k)
