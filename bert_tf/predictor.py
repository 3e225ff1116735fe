"""A fine-tuned classifier that takes strings: loaded once, batches inside."""

import functools

import numpy as np

from bert_tf import baseline_models, exports, model_files, weight_files
from bert_tf.config import BertConfig
from bert_tf.progress import progress_bar
from bert_tf.task_models import BertForSequenceClassification
from bert_tf.tasks import batching, classification_features, classification_metrics
from bert_tf.tasks.classification_data import InputExample, Task
from bert_tf.tokenization import FullTokenizer

# Models whose weights look like a classifier's, or which are none of BERT's: the script that predicts with them.
_OTHER_SCRIPTS = {
    "BertForMultipleChoice": "run_swag.py",
    "BertForTokenClassification": "run_ner.py",
    **dict.fromkeys(baseline_models.ARCHITECTURES.values(), "run_classifier.py"),
}


class Predictor:
    """Labels and probabilities for texts, from a directory of weights of any format, or an export.

    Threads may share it.

        predictor = Predictor("mrpc_output/best_model")
        predictor.predict(["A text.", ("One text.", "And its pair.")])
        # [{"label": "1", "probabilities": {"0": 0.03, "1": 0.97}}, ...]

    Args:
      path: a directory that describes itself: weights with an output layer, configuration, vocabulary; or what
        export_saved_model.py wrote (the directory of versions, or one of them).
      max_seq_length: longer texts lose their last tokens; by default what it was trained with, if known, or what the
        model can take.
      batch_size: texts computed together.

    Raises:
      FileNotFoundError, ValueError: no model, or no classifier, there.
    """

    def __init__(self, path: str, *, max_seq_length: int | None = None, batch_size: int = 32):
        self.batch_size = batch_size
        if export := exports.find_export(path):
            self._load_export(exports.Export(export), path, max_seq_length)
            return
        self.tokenizer = FullTokenizer.from_pretrained(path)
        files = model_files.read_model_files(path)
        architecture = (getattr(files.config, "architectures", None) or [""])[0]
        if script := _OTHER_SCRIPTS.get(architecture):
            raise ValueError(f"{path} is a {architecture}: Predictor does not load it; {script} --do_predict does.")
        if "output_weights" not in weight_files.open_weights(path):
            raise ValueError(f"{path} has no output layer of a classifier: fine-tune it first (run_classifier.py).")
        self.model = BertForSequenceClassification.from_pretrained(path)
        config = self.model.config
        known = files.max_seq_length or config.max_position_embeddings
        self.max_seq_length = max_seq_length or min(known, config.max_position_embeddings)
        if self.max_seq_length > config.max_position_embeddings:
            raise ValueError(
                f"max_seq_length={max_seq_length} is more than max_position_embeddings={config.max_position_embeddings}"
            )
        self.task = task_of(config, self.model.num_labels, self.model.problem_type)
        self._num_labels = self.model.num_labels
        self._compute = self._compute_by_model

    def _load_export(self, export: exports.Export, path: str, max_seq_length: int | None) -> None:
        if export.task not in ("classification", "regression"):
            raise ValueError(f"{path} is an export for {export.task}, not of a classifier")
        if max_seq_length not in (None, export.description["max_seq_length"]):
            raise ValueError(
                f"max_seq_length={max_seq_length}: it is {export.description['max_seq_length']} in the export {path}"
            )
        self.tokenizer = self.model = None
        self.max_seq_length = export.description["max_seq_length"]
        labels = tuple(export.description["labels"])
        regression = export.task == "regression"
        several = "holds" in export.description["signatures"]["serving_default"]["outputs"]
        self.task = Task("", None if regression else labels, None, multi_label=several)
        self._num_labels = 1 if regression else len(labels)
        self._compute = functools.partial(self._compute_by_export, export)

    @property
    def labels(self) -> list[str]:
        """The labels in the order of their ids; none for a regression."""
        return list(self.task.labels or ())

    def logits(self, texts: list[str | tuple[str, str]]) -> np.ndarray:
        """Logits [n, C] of texts or pairs of texts, in their order."""
        if isinstance(texts, str):
            raise TypeError("texts must be a list of texts; for one text call the predictor itself: predictor(text)")
        examples = []
        for number, text in enumerate(texts):
            parts = (text,) if isinstance(text, str) else tuple(text) if isinstance(text, tuple | list) else ()
            if len(parts) not in (1, 2) or not all(isinstance(part, str) for part in parts):
                raise TypeError(f"texts[{number}] must be a string or a pair of strings, not {text!r:.80}")
            examples.append(InputExample(str(number), *parts))
        if not examples:
            return np.zeros((0, self._num_labels), np.float32)
        return self._compute(examples)

    def _compute_by_model(self, examples: list[InputExample]) -> np.ndarray:
        encoded = classification_features.encode_examples(
            examples, self.task, self.tokenizer, self.max_seq_length, num_processes=1
        )
        rows = batching.evaluation_rows(encoded.lengths, self.batch_size)
        outputs = (
            np.asarray(self.model(encoded.batch(part, int(encoded.lengths[part].max())), training=False))
            for part in progress_bar(rows, desc="predict", unit="batch", leave=False, delay=2)
        )
        return batching.in_order(encoded, self.batch_size, outputs)

    def _compute_by_export(self, export: exports.Export, examples: list[InputExample]) -> np.ndarray:
        logits = np.empty((len(examples), self._num_labels), np.float32)
        lengths = np.array([len(example.text_a) + len(example.text_b or "") for example in examples])
        takes_pairs = "text_pair" in export.description["signatures"]["serving_default"]["inputs"]
        rows = batching.evaluation_rows(lengths, self.batch_size)
        for part in progress_bar(rows, desc="predict", unit="batch", leave=False, delay=2):
            chosen = [examples[row] for row in part.tolist()]
            columns = {"text": [example.text_a for example in chosen]}
            signature = "serving_default"
            if takes_pairs or any(example.text_b for example in chosen):
                columns["text_pair"] = [example.text_b or "" for example in chosen]
                signature = "serving_default" if takes_pairs else "serve_pairs"
            outputs = export(signature, **columns)
            logits[part] = _logits_of(outputs, self.task)
        return logits

    def predict(self, texts: list[str | tuple[str, str]]) -> list[dict]:
        """For each text `label` and `probabilities` by label; `labels` where several may hold; `score` of a regression.

        Args:
          texts: strings, or pairs of strings where the model was trained on pairs.
        """
        logits = self.logits(texts)
        return classification_metrics.describe_predictions(self.task, logits)

    def __call__(self, text: str, pair: str | None = None) -> dict:
        """The prediction for one text or one pair."""
        if not isinstance(text, str):
            raise TypeError(f"the text must be a string, not {text!r:.80}; predict() takes a list of texts")
        return self.predict([text if pair is None else (text, pair)])[0]


def _logits_of(outputs: dict[str, np.ndarray], task: Task) -> np.ndarray:
    """Logits [n, C] that give an export's outputs again."""
    if task.is_regression:
        return outputs["score"][:, None]
    probabilities = np.maximum(outputs["probabilities"], np.finfo(np.float32).tiny)
    if task.multi_label:
        return np.log(probabilities) - np.log(np.maximum(1 - probabilities, np.finfo(np.float32).tiny))
    return np.log(probabilities)


def task_of(config: BertConfig, num_labels: int, problem_type: str) -> Task:
    """The task that a fine-tuned model's configuration describes; labels without names are numbers."""
    names = getattr(config, "id2label", None) or {}
    labels = tuple(names.get(str(number), str(number)) for number in range(num_labels))
    regression = problem_type == "regression"
    return Task("", None if regression else labels, None, multi_label=problem_type == "multi_label_classification")
