"""The tasks: what a model's output layer is for, which script trains it, and which class answers with it.

The only list of tasks. Fine-tuning, export, TFLite, comparison and predictors read it; to add a task, add a line here.
Modules on higher floors are named only by their public names. Nothing here needs TensorFlow.
"""

import dataclasses
from collections.abc import Collection


@dataclasses.dataclass(frozen=True)
class TaskEntry:
    """One task.

    Attributes:
      name: as --task of the exporting scripts and export.json have it.
      script: trains the model.
      architecture: its class, which its head_config.json names; None for an encoder alone.
      output_layer: variable without which a checkpoint can't do the task; None for an encoder alone.
      other_layer: the same variable of models with another head: on a frozen BERT, or the joint one for questions
        (`models.question_heads`); None if there are none.
      answerer: class or function of `bert_tf` that answers with a trained model; None if there is none.
      answers: the line of Python that does so, with {path} for the model's directory.
      settings_file: the file beside the weights of a trained model, besides configuration and vocabulary, if any.
      tflite: whether it can be exported for a phone: one row of token ids in, numbers out.
    """

    name: str
    script: str
    architecture: str | None
    output_layer: str | None
    other_layer: str | None = None
    answerer: str | None = None
    answers: str | None = None
    settings_file: str | None = None
    tflite: bool = True

    @property
    def answers_of_pairs(self) -> str | None:
        """`answers` of a model that reads two texts at once."""
        return self.answers and self.answers.replace('"A text."', '"One text.", "Its pair."')

    @property
    def output_layers(self) -> tuple[str, ...]:
        """Those of all its models."""
        return tuple(filter(None, (self.output_layer, self.other_layer)))

    def output_layer_in(self, names: Collection[str]) -> str | None:
        """The output layer of a model with variables of these names: output_layer, unless it has the other_layer."""
        return self.other_layer if self.other_layer in names else self.output_layer


_CLASSIFIER = {
    "script": "run_classifier.py",
    "architecture": "BertForSequenceClassification",
    "output_layer": "output_weights",
    "other_layer": "feature_classifier/output_weights",
    "answerer": "Predictor",
    "answers": 'Predictor("{path}")("A text.")',
}

_ENTRIES = (
    TaskEntry(
        "encoder",
        "run_similarity.py",
        None,
        None,
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
        "cls/squad_start/kernel",
        "QuestionAnswerer",
        'QuestionAnswerer("{path}")("Who met Ada?", "Her teacher met Ada Brown.")',
        "question_answering.json",
    ),
    TaskEntry(
        "ner",
        "run_ner.py",
        "BertForTokenClassification",
        "output_weights",
        "tagger/output_weights",
        "Tagger",
        'Tagger("{path}")("Ada Brown was born in London .")',
        "token_classification.json",
    ),
    TaskEntry(
        "multiple_choice",
        "run_swag.py",
        "BertForMultipleChoice",
        "output_weights",
        None,
        "ChoicePredictor",
        'ChoicePredictor("{path}")("She opens the door.", ["She walks in.", "It rains."])',
        tflite=False,
    ),
    TaskEntry(
        "masked_lm",
        "run_pretraining.py",
        "BertForMaskedLM",
        "cls/predictions/output_bias",
        None,
        "fill_mask",
        tflite=False,
    ),
)

TASKS = {entry.name: entry for entry in _ENTRIES}
