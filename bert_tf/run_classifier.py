"""The names of the original's run_classifier.py that fine-tuning code imports; docs/names.md has all of them.

    from bert_tf.run_classifier import DataProcessor, InputExample, convert_examples_to_features

The script run_classifier.py has the same names. The tasks, their files and the tokens are those of the script.
"""

import dataclasses
from collections.abc import Sequence

from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.tables import quoted, read_rows
from bert_tf.tasks.classification import data
from bert_tf.tasks.classification.data import read_examples
from bert_tf.tasks.rows import InputExample
from bert_tf.text.tokenizer import Tokenizer

__all__ = [
    "ColaProcessor",
    "DataProcessor",
    "InputExample",
    "InputFeatures",
    "MnliProcessor",
    "MrpcProcessor",
    "PaddingInputExample",
    "XnliProcessor",
    "convert_examples_to_features",
    "convert_single_example",
]


class PaddingInputExample:
    """An example without text that fills up a batch of fixed size; its features are zeros, `is_real_example` False."""


@dataclasses.dataclass
class InputFeatures:
    """The features of an example: input_ids, input_mask and segment_ids have max_seq_length numbers each."""

    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    label_id: int
    is_real_example: bool = True


class DataProcessor:
    """The data of a classification task; a subclass for your own data defines the methods that it needs."""

    def get_train_examples(self, data_dir: str) -> list[InputExample]:
        raise self._undefined("get_train_examples")

    def get_dev_examples(self, data_dir: str) -> list[InputExample]:
        raise self._undefined("get_dev_examples")

    def get_test_examples(self, data_dir: str) -> list[InputExample]:
        raise self._undefined("get_test_examples")

    def get_labels(self) -> list[str]:
        """The labels in the order of their ids."""
        raise self._undefined("get_labels")

    def _undefined(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not define {method}, which this use needs.")

    @classmethod
    def _read_tsv(cls, input_file: str) -> list[list[str]]:
        """The rows of a TSV file as fields, header included; quotes have no meaning."""
        return [row for _, row in read_rows(input_file)]


class _GlueProcessor(DataProcessor):
    """A task of `data.TASKS`; where a test set has no labels, its examples have the first one, as in the original."""

    task_name = ""
    language = ""

    @property
    def _task(self):
        return data.find_task(self.task_name, self.language)

    def get_train_examples(self, data_dir):
        return read_examples(self._task, self._task.train, data_dir)

    def get_dev_examples(self, data_dir):
        return read_examples(self._task, next(iter(self._task.dev.values())), data_dir)

    def get_test_examples(self, data_dir):
        examples = read_examples(self._task, next(iter(self._task.test.values())), data_dir)
        first = self.get_labels()[0]
        return [dataclasses.replace(example, label=example.label or first) for example in examples]

    def get_labels(self):
        return list(self._task.labels)


class ColaProcessor(_GlueProcessor):
    """CoLA: is a sentence acceptable?"""

    task_name = "cola"


class MnliProcessor(_GlueProcessor):
    """MultiNLI; dev and test are the matched ones."""

    task_name = "mnli"


class MrpcProcessor(_GlueProcessor):
    """MRPC: do two sentences mean the same?"""

    task_name = "mrpc"


class XnliProcessor(_GlueProcessor):
    """XNLI in the language of the attribute `language`, by default Chinese."""

    task_name = "xnli"

    def __init__(self, language: str = "zh"):
        self.language = language


def convert_single_example(
    ex_index: int,
    example: InputExample | PaddingInputExample,
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: Tokenizer,
) -> InputFeatures:
    """The features of an example, padded to max_seq_length; the first five are logged. ex_index: from 0."""
    if isinstance(example, PaddingInputExample):
        return InputFeatures([0] * max_seq_length, [0] * max_seq_length, [0] * max_seq_length, 0, False)
    token_rows.check_room(tokenizer, max_seq_length)
    if example.label not in label_list:
        raise ValueError(f"{example.guid}: the label {example.label!r} is not one of {quoted(label_list)}")
    second = tokenizer.encode(example.text_b) if example.text_b else None
    ids, segments = tokenizer.build_inputs(tokenizer.encode(example.text_a), second, max_seq_length)
    if ex_index < 5:
        tokens = " ".join(tokenizer.convert_ids_to_tokens(ids))
        logging.info("Example %s, label %s: %s", example.guid, example.label, tokens)
    zeros, label_id = [0] * (max_seq_length - len(ids)), list(label_list).index(example.label)
    padded = ids + [tokenizer.pad_id] * len(zeros)
    return InputFeatures(padded, [1] * len(ids) + zeros, segments + zeros, label_id)


def convert_examples_to_features(
    examples: Sequence[InputExample], label_list: Sequence[str], max_seq_length: int, tokenizer: Tokenizer
) -> list[InputFeatures]:
    """`convert_single_example` of all examples."""
    others = (label_list, max_seq_length, tokenizer)
    return [convert_single_example(*numbered, *others) for numbered in enumerate(examples)]
