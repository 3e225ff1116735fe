"""A fine-tuned classifier that takes strings: it is loaded once and batches its inputs."""

import numpy as np

from bert_tf.data import token_rows
from bert_tf.models.task_models import BertForSequenceClassification
from bert_tf.serving.base_predictor import Answerer, list_of
from bert_tf.tasks.classification import encode as classification_encode
from bert_tf.tasks.classification import metrics as classification_metrics
from bert_tf.tasks.classification.data import InputExample, Task, task_of
from bert_tf.tasks.classification.long_texts import windows_of_model


class Predictor(Answerer):
    """Labels and probabilities for texts, from a model directory of any format, or an export.

    Threads may share it.

        predictor = Predictor("mrpc_output/best_model")
        predictor.predict(["A text.", ("One text.", "And its pair.")])
        # [{"label": "1", "probabilities": {"0": 0.03, "1": 0.97}}, ...]

    Args:
      path: a complete model directory: weights with an output layer, configuration, vocabulary; or what
        export_saved_model.py wrote (the directory of versions, or one of them).
      max_seq_length: longer texts lose their last tokens, or are read in windows if the model was trained to. Default:
        the length of training, if known, else the model's maximum.
      batch_size: texts computed together.
      trust: load an export whatever its graph may do, see `loaded_export.Export`.

    Raises:
      FileNotFoundError, ValueError: there is no model, or it is not a classifier.
    """

    tasks = ("classification", "regression")
    model_class = BertForSequenceClassification
    action = "predict"

    def __init__(self, path: str, *, max_seq_length: int | None = None, batch_size: int = 32, trust: bool = False):
        super().__init__(path, batch_size, trust)
        self.max_seq_length = self.length(max_seq_length)
        if self.export:
            labels = tuple(self.export.description["labels"])
            regression = self.export.task == "regression"
            several = "holds" in self.export.description["signatures"]["serving_default"]["outputs"]
            self.task = Task("", None if regression else labels, None, multi_label=several)
            return
        self.task = task_of(self.model)
        self.windows = windows_of_model(self.model.head_config, self.tokenizer, self.max_seq_length)

    @property
    def labels(self) -> list[str]:
        """The labels in the order of their ids; none for a regression."""
        return list(self.task.labels or ())

    def logits(self, texts: list[str | tuple[str, str]]) -> np.ndarray:
        """Logits [n, C] of texts or pairs of texts, in the order given."""
        examples = []
        for number, text in enumerate(_texts(texts)):
            parts = (text,) if isinstance(text, str) else tuple(text) if isinstance(text, tuple | list) else ()
            if len(parts) not in (1, 2) or not all(isinstance(part, str) for part in parts):
                raise TypeError(f"texts[{number}] must be a string or a pair of strings, not {text!r:.80}")
            examples.append(InputExample(str(number), *parts))
        if not examples:
            return np.zeros((0, len(self.labels) or 1), np.float32)
        return self._logits_by_export(examples) if self.export else self._logits_by_model(examples)

    def _logits_by_model(self, examples: list[InputExample]) -> np.ndarray:
        encoded = classification_encode.encode_examples(
            examples,
            self.task,
            self.tokenizer,
            self.max_seq_length,
            num_processes=1,
            windows=self.windows,
            warn=self.warn,
        )  # fmt: skip
        outputs = (output for _, output in self.outputs(encoded))
        return token_rows.in_order(encoded, self.batch_size, outputs)

    def _logits_by_export(self, examples: list[InputExample]) -> np.ndarray:
        texts, pairs = [example.text_a for example in examples], [example.text_b or "" for example in examples]
        signature, columns = "serving_default", {"text": texts}
        takes_pairs = "text_pair" in self.export.description["signatures"]["serving_default"]["inputs"]
        if takes_pairs or any(pairs):
            columns["text_pair"] = pairs
            signature = "serving_default" if takes_pairs else "serve_pairs"
            if signature not in self.export.signatures:
                raise ValueError("the export is of a model that reads windows of single texts, not pairs")
        logits = np.empty((len(examples), len(self.labels) or 1), np.float32)
        lengths = [len(text) + len(pair) for text, pair in zip(texts, pairs, strict=True)]
        for rows, outputs in self.exported(signature, lengths, columns):
            logits[rows] = _logits_of(outputs, self.task)
        return logits

    def predict(self, texts: list[str | tuple[str, str]]) -> list[dict]:
        """For each text `label` (multi-label: `labels`) and `probabilities` by label; for a regression `score`.

        Args:
          texts: strings, or pairs of strings if the model was trained on pairs.
        """
        logits = self.logits(texts)
        return classification_metrics.describe_predictions(self.task, logits)

    def __call__(self, text: str, pair: str | None = None) -> dict:
        """The prediction for one text or one pair."""
        if not isinstance(text, str):
            line = "predictor(*pair)" if isinstance(text, tuple) and len(text) == 2 else "predictor.predict(texts)"
            raise TypeError(f"the text must be a string, not {text!r:.80}; write {line}")
        return self.predict([text if pair is None else (text, pair)])[0]


def _texts(texts) -> list:
    """A list of texts or pairs; one pair, whose parts could be two texts, is refused."""
    if isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(part, str) for part in texts):
        raise TypeError(
            "texts is one pair: write predictor(*pair), or predictor.predict([pair]); for two texts give a list of them"
        )
    return list_of(texts, "texts", "strings or pairs of strings", "predictor(text)")


def _logits_of(outputs: dict[str, np.ndarray], task: Task) -> np.ndarray:
    """Logits [n, C] that give the same outputs as an export's."""
    if task.is_regression:
        return outputs["score"][:, None]
    probabilities = np.maximum(outputs["probabilities"], np.finfo(np.float32).tiny)
    if task.multi_label:
        return np.log(probabilities) - np.log(np.maximum(1 - probabilities, np.finfo(np.float32).tiny))
    return np.log(probabilities)
