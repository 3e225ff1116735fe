"""The graph of each task: from a model directory to the `ServedModel` that is exported."""

import copy
import dataclasses
import types
from collections.abc import Callable

import keras

from bert_tf.models import question_heads, task_models
from bert_tf.models.directory import ModelFiles
from bert_tf.models.initialize import check_trained
from bert_tf.models.pretrained import read_tokenizer
from bert_tf.models.sentence_settings import read_settings
from bert_tf.serving import detect_task, graph_models
from bert_tf.serving.graph_ner import ServedTagger
from bert_tf.serving.graph_squad import ServedQuestionAnswering
from bert_tf.serving.graph_windows import ServedWindowClassifier
from bert_tf.tasks.classification.data import task_of
from bert_tf.tasks.ner import outputs as ner_outputs
from bert_tf.tasks.ner.notation import standard_tags
from bert_tf.tasks.squad.outputs import settings_of
from bert_tf.tasks.table import TASKS
from bert_tf.text.casing import directory_of
from bert_tf.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class _Source:
    """A model directory, and the options of its graph (see `create_served_model`)."""

    model_dir: str
    task: str
    files: ModelFiles
    tokenizer: Tokenizer
    dtype: str
    given_length: int | None
    text_pairs: bool
    top_k: int

    @property
    def max_seq_length(self) -> int:
        """The sequence length."""
        return detect_task.choose_max_seq_length(self.files, self.given_length)

    def load(self, model_class, **arguments) -> keras.Model:
        """The model, as an instance of a class, or of what `question_heads` finds."""
        return model_class.from_pretrained(self.model_dir, dtype=self.dtype, **{"trained": True, **arguments})


def _encoder(source: _Source) -> graph_models.ServedModel:
    sentences, model = read_settings(directory_of(source.model_dir)), source.load(task_models.BertModel, trained=False)
    check_trained(model)  # the pooler may be missing, which is warned of: only `pooled_output` depends on it
    length = sentences.length_for(model.config) if source.given_length is None else source.given_length
    length = detect_task.choose_max_seq_length(source.files, length)
    return graph_models.ServedEncoder(model, source.tokenizer, length, sentences)


def _classifier(source: _Source) -> graph_models.ServedModel:
    arguments = {"problem_type": "regression"} if source.task == "regression" else {}
    length = source.max_seq_length
    model = source.load(task_models.BertForSequenceClassification, **arguments)
    labels = task_of(model).labels or ()
    if model.head_config.window_pooling:
        if source.text_pairs:
            raise ValueError(f"--text_pairs: {source.model_dir} reads windows of single texts.")
        return ServedWindowClassifier(model, source.tokenizer, length, labels, model.problem_type)
    return graph_models.ServedClassifier(model, source.tokenizer, length, labels, model.problem_type, source.text_pairs)


def _question_answering(source: _Source) -> graph_models.ServedModel:
    model = source.load(question_heads)
    given = {"max_seq_length": source.given_length} if source.given_length else {}
    return ServedQuestionAnswering(model, source.tokenizer, settings_of(source.model_dir, model.config, **given))


def _tagger(source: _Source) -> graph_models.ServedModel:
    labels, length = standard_tags(source.files.head.labels), source.max_seq_length
    settings = ner_outputs.TaggingSettings.of_model(directory_of(source.model_dir), labels)
    model = ner_outputs.load_model(source.model_dir, settings, source.dtype)
    return ServedTagger(model, source.tokenizer, length, labels, settings.learned_scheme, settings.split)


# All tasks that can be exported, in the order of the table of tasks.
_GRAPHS: dict[str, Callable[[_Source], graph_models.ServedModel]] = {
    "encoder": _encoder,
    "classification": _classifier,
    "regression": _classifier,
    "squad": _question_answering,
    "ner": _tagger,
    "multiple_choice": lambda source: graph_models.ServedMultipleChoice(
        source.load(task_models.BertForMultipleChoice), source.tokenizer, source.max_seq_length
    ),
    "masked_lm": lambda source: graph_models.ServedMaskedLM(
        source.load(task_models.BertForMaskedLM), source.tokenizer, source.max_seq_length, source.top_k
    ),
}


def create_served_model(
    model_dir: str,
    task: str,
    *,
    dtype: str = "float32",
    max_seq_length: int | None = None,
    text_pairs: bool = False,
    top_k: int = 5,
    ids_only: bool = False,
) -> graph_models.ServedModel:
    """The model of a directory with its tokenizer and signatures; see `export.export_saved_model`.

    Args:
      ids_only: signatures that take texts can't be traced; the tokenizer needs no graph form.

    Raises:
      ValueError: no such task, or the model is for another one. FileNotFoundError: there is no model.
    """
    if task not in _GRAPHS:
        raise ValueError(f"--task={task}: choose one of {', '.join(name for name in TASKS if name in _GRAPHS)}")
    tokenizer = read_tokenizer(model_dir)  # first, for its error message if there is no model
    if ids_only:  # a copy whose graph form is empty, since some have none
        tokenizer = copy.copy(tokenizer)
        tokenizer.to_graph = lambda split_unknown=False: types.SimpleNamespace(resources=())
    try:
        files = detect_task.check_task(model_dir, task)
    except ValueError as error:
        raise ValueError(f"--task={task}: {error}") from None
    return _GRAPHS[task](_Source(model_dir, task, files, tokenizer, dtype, max_seq_length, text_pairs, top_k))
