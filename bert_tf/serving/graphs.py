"""The graph of each task: from a model directory to the `ServedModel` that is exported."""

import copy
import types

from bert_tf.models import question_heads, task_models
from bert_tf.models.initialize import check_trained
from bert_tf.models.pretrained import read_tokenizer
from bert_tf.models.sentence_settings import read_settings
from bert_tf.serving import detect_task, graph_models
from bert_tf.serving.graph_ner import ServedTagger
from bert_tf.serving.graph_squad import ServedQuestionAnswering
from bert_tf.tasks.classification.data import task_of
from bert_tf.tasks.ner import outputs as ner_outputs
from bert_tf.tasks.ner.tags import standard_tags
from bert_tf.tasks.squad.outputs import settings_of
from bert_tf.tasks.table import TASKS
from bert_tf.text.tokenizer_files import directory_of


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
    if task not in TASKS:
        raise ValueError(f"--task={task}: choose one of {', '.join(TASKS)}")
    tokenizer = read_tokenizer(model_dir)  # first, for its error message if there is no model
    if ids_only:  # a copy whose graph form is empty, since some have none
        tokenizer = copy.copy(tokenizer)
        tokenizer.to_graph = lambda split_unknown=False: types.SimpleNamespace(resources=())
    try:
        files = detect_task.check_task(model_dir, task)
    except ValueError as error:
        raise ValueError(f"--task={task}: {error}") from None
    options = {"dtype": dtype, "trained": True}
    if task == "encoder":
        model = task_models.BertModel.from_pretrained(model_dir, dtype=dtype)
        check_trained(model)  # the pooler may be missing, which is warned of: only `pooled_output` depends on it
        sentences = read_settings(directory_of(model_dir))
        length = sentences.length_for(model.config) if max_seq_length is None else max_seq_length
        return graph_models.ServedEncoder(model, tokenizer, detect_task.choose_max_seq_length(files, length), sentences)
    if task == "squad":
        model = question_heads.from_pretrained(model_dir, **options)
        given = {"max_seq_length": max_seq_length} if max_seq_length else {}
        return ServedQuestionAnswering(model, tokenizer, settings_of(model_dir, model.config, **given))
    length = detect_task.choose_max_seq_length(files, max_seq_length)
    if task == "ner":
        labels = standard_tags(files.head.labels)
        settings = ner_outputs.TaggingSettings.of_model(directory_of(model_dir), labels)
        model = ner_outputs.load_model(model_dir, settings, dtype)
        return ServedTagger(model, tokenizer, length, labels, settings.learned_scheme, settings.split)
    if task == "multiple_choice":
        model = task_models.BertForMultipleChoice.from_pretrained(model_dir, **options)
        return graph_models.ServedMultipleChoice(model, tokenizer, length)
    if task == "masked_lm":
        model = task_models.BertForMaskedLM.from_pretrained(model_dir, **options)
        return graph_models.ServedMaskedLM(model, tokenizer, length, top_k)
    if task == "regression":
        options["problem_type"] = "regression"
    model = task_models.BertForSequenceClassification.from_pretrained(model_dir, **options)
    given = (model, tokenizer, length, task_of(model).labels or (), model.problem_type)
    if not model.head_config.window_pooling:
        return graph_models.ServedClassifier(*given, text_pairs)
    if text_pairs:
        raise ValueError(f"--text_pairs: {model_dir} reads windows of single texts.")
    return graph_models.ServedWindowClassifier(*given)
