"""Multiple choice, for notebooks: a fine-tuned model that takes strings."""

from collections.abc import Sequence

import numpy as np

from bert_tf.models.task_models import BertForMultipleChoice
from bert_tf.serving.predictor import Answerer, rows_of
from bert_tf.store.head_config import softmax
from bert_tf.system.checks import list_of_strings
from bert_tf.tasks.choice.data import ChoiceExample, describe, encode_examples


class ChoicePredictor(Answerer):
    """Picks the choice that fits a context best. Threads may share it.

        predictor = ChoicePredictor("swag_output/best_model")
        predictor("She opens the door.", ["She walks in.", "It rains."])
        # {"choice": 0, "text": "She walks in.", "probabilities": [0.97, 0.03]}

    Args:
      path, trust: as for `Predictor`; a model directory is one as run_swag.py leaves it.
      max_seq_length: longer rows lose the last tokens of the context or the choice, whichever is longer. Default: the
        length of training, if known, else the model's maximum.
      batch_size: questions computed together, each with all its choices.

    Raises:
      FileNotFoundError, ValueError: there is no model, or it is not for multiple choice.
    """

    tasks = ("multiple_choice",)
    model_class = BertForMultipleChoice
    action = "choose"

    def __init__(self, path: str, *, max_seq_length: int | None = None, batch_size: int = 8, trust: bool = False):
        super().__init__(path, batch_size, trust)
        self.max_seq_length = self.length(max_seq_length)

    def predict(self, questions: Sequence[tuple]) -> list[dict]:
        """The best choice for each question.

        Args:
          questions: tuples (context, choices) or (context, choices, question): a string, a list of at least two
            strings, and the string that every choice begins with. The number of choices may differ.

        Returns:
          for each question a dict of `choice`, the best one's index; `text`, the choice; and `probabilities` of all.

        Raises:
          TypeError: an item is none of these, or choices are a single string; names its place.
        """
        kinds, examples = {"context": str, "choices": object, "question": str}, []
        for number, row in enumerate(rows_of(questions, "questions", kinds, 2)):
            choices = list_of_strings(row["choices"], f"questions[{number}]: choices")
            examples.append(ChoiceExample(str(number), row["context"], row.get("question", ""), tuple(choices)))
        described = [None] * len(examples)
        # All questions of a batch have the same number of choices.
        for count in sorted({len(example.choices) for example in examples}):
            chosen = [example for example in examples if len(example.choices) == count]
            for example, row in zip(chosen, self._probabilities(chosen, count), strict=True):
                described[int(example.guid)] = describe(example, row)
        return described

    def __call__(self, context: str, choices: Sequence[str], question: str = "") -> dict:
        return self.predict([(context, choices, question)])[0]

    def _probabilities(self, examples: list[ChoiceExample], count: int) -> np.ndarray:
        """float32 [n, count] of examples with this number of choices."""
        if not self.export:
            rows = encode_examples(examples, self.tokenizer, self.max_seq_length, self.warn)
            return softmax(self.computed(rows, count))
        lengths = [len(example.context) + max(map(len, example.choices)) for example in examples]
        names = ("context", "question", "choices")
        columns = {name: [getattr(example, name) for example in examples] for name in names}
        return np.array([row["probabilities"] for row in self.exported("serving_default", lengths, columns)])
