"""The tasks: what a model's output layer is for, which script trains it, which class answers with it; and which task
the model in a directory is for.

The only list of tasks. Fine-tuning, export and predictors read it; to add a task, add a line here.
Modules on higher floors are named only by their public names. Nothing here needs TensorFlow.
"""

import dataclasses
import posixpath

from bert_tf.store.description import ModelFiles
from bert_tf.store.open import OpenedModel
from bert_tf.system.text_files import exists


@dataclasses.dataclass(frozen=True)
class TaskEntry:
    """One task.

    Attributes:
      name: as --task of the exporting scripts and export.json have it.
      script: trains the model.
      architecture: its class, which its head_config.json names; None for an encoder alone.
      output_layer: variable without which a checkpoint can't do the task; None for an encoder alone.
      answerer: class or function of `bert_tf` that answers with a trained model; None if there is none.
      answers: the line of Python that does so, with {path} for the model's directory.
      settings_file: the file next to the weights of a trained model, besides configuration and vocabulary, if any.
    """

    name: str
    script: str
    architecture: str | None = None
    output_layer: str | None = None
    answerer: str | None = None
    answers: str | None = None
    settings_file: str | None = None

    @property
    def answers_of_pairs(self) -> str | None:
        """`answers` of a model that reads two texts at once."""
        return self.answers and self.answers.replace('"A text."', '"One text.", "Its pair."')


_CLASSIFIER = {
    "script": "run_classifier.py",
    "architecture": "BertForSequenceClassification",
    "output_layer": "output_weights",
    "answerer": "Predictor",
    "answers": 'Predictor("{path}")("A text.")',
}

_ENTRIES = (
    TaskEntry(
        "encoder",
        "run_similarity.py",
        answerer="Embedder",
        answers='Embedder("{path}").encode(["A text.", "Another one."])',
    ),
    TaskEntry("classification", **_CLASSIFIER),
    TaskEntry("regression", **_CLASSIFIER),
    TaskEntry(
        "squad",
        "run_squad.py",
        "BertForQuestionAnswering",
        "cls/squad/output_weights",
        "QuestionAnswerer",
        'QuestionAnswerer("{path}")("Who met Ada?", "Her teacher met Ada Brown.")',
        "question_answering.json",
    ),
    TaskEntry(
        "ner",
        "run_ner.py",
        "BertForTokenClassification",
        "output_weights",
        "Tagger",
        'Tagger("{path}")("Ada Brown was born in London .")',
        "token_classification.json",
    ),
    TaskEntry(
        "multiple_choice",
        "run_swag.py",
        "BertForMultipleChoice",
        "output_weights",
        "ChoicePredictor",
        'ChoicePredictor("{path}")("She opens the door.", ["She walks in.", "It rains."])',
    ),
    TaskEntry("masked_lm", "run_pretraining.py", "BertForMaskedLM", "cls/predictions/output_bias", "fill_mask"),
)

TASKS = {entry.name: entry for entry in _ENTRIES}


# --- which task the model in a directory is for -----------------------------------------------------------------------


def task_in(opened: OpenedModel) -> str:
    """The task that a model's output layer is for: a name of `tasks.table.TASKS`."""
    weights, head = opened.weights, opened.head
    entries = [entry for entry in TASKS.values() if entry.output_layer in weights]
    if not entries:
        return "encoder"
    # Several tasks have the same output layer: what is next to the weights decides.
    output_layer = entries[0].output_layer
    entries = [entry for entry in entries if entry.output_layer == output_layer]
    for entry in entries:
        if entry.settings_file and exists(posixpath.join(opened.directory, entry.settings_file)):
            return entry.name
    outputs = weights.shapes[output_layer][0]
    named = [entry for entry in entries if entry.architecture == head.architecture]
    if len(entries) == 1 or len(named) == 1:
        return (named or entries)[0].name
    if outputs == 1 and head.problem_type is None:
        raise ValueError(f"{opened.path} has one output: give --task=regression or --task=multiple_choice.")
    return "regression" if head.problem_type == "regression" else "classification"


def check_task(opened: OpenedModel, task: str) -> None:
    """Raises if a model is for another task."""
    weights, head, path = opened.weights, opened.head, opened.path
    entry, architecture = TASKS[task], head.architecture
    output_layer = entry.output_layer
    if output_layer and output_layer not in weights:
        others = [other for other in TASKS.values() if other.output_layer in weights]
        others = [other for other in others if architecture in (None, other.architecture)] or others
        if others and others[0].name != "masked_lm":
            answerers = " or ".join(dict.fromkeys(other.answerer for other in others))
            raise ValueError(f"{path} is a model for {others[0].name}, not for {task}: use {answerers}.")
        raise ValueError(f"{path} has no output layer for {task} ({output_layer}): fine-tune it ({entry.script}).")
    # Several tasks have the same output layer.
    rivals = {other.architecture: other for other in TASKS.values() if other.output_layer == entry.output_layer}
    if architecture in rivals and architecture != entry.architecture:
        raise ValueError(f"{path} is a {architecture}: use {rivals[architecture].answerer}.")
    if task == "ner" and len(head.labels or ()) != weights.shapes[output_layer][0]:
        raise ValueError(f"{path} does not list the tags that it has learned (labels in its head_config.json).")
    if task == "regression" and (outputs := weights.shapes[output_layer][0]) != 1:
        raise ValueError(f"{path} has {outputs} outputs, but a regression has one.")


def choose_max_seq_length(files: ModelFiles, given: int | None) -> int:
    """The sequence length: the one given, else that of training if known, else the model's maximum."""
    limit = files.needed_config().max_length
    trained = (files.sentences and files.sentences.max_seq_length) or files.max_seq_length or limit
    chosen = min(trained, limit) if given is None else given
    if not 3 <= chosen <= limit:
        raise ValueError(f"max_seq_length={chosen}: the model takes 3 to {limit} (max_position_embeddings)")
    return chosen
