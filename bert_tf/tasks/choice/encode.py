"""Multiple choice to token ids: [CLS] context [SEP] question choice [SEP] for each choice (paper, section 4.4).

Shape legend: B batch, n examples, N choices, S sequence length.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.data import token_rows
from bert_tf.data.token_rows import TokenRows, flatten
from bert_tf.tasks.choice.data import ChoiceExample
from bert_tf.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class ChoiceRows(TokenRows):
    """Examples of N token rows each; `labels` holds `label_ids` int32 [n], where there are labels.

    ids, offsets and second_starts are those of all rows, N for each example one after the other; length, `lengths` and
    `batch` are of examples.

    Attributes:
      num_choices: N. truncated: how many rows were longer than max_seq_length.
    """

    num_choices: int
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.second_starts) // self.num_choices

    @property
    def rows(self) -> TokenRows:
        """All rows, without labels."""
        return TokenRows(self.ids, self.offsets, self.second_starts, {}, pad_id=self.pad_id)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of the longest choice of each example [n]."""
        return self.rows.lengths.reshape(-1, self.num_choices).max(1)

    @property
    def inner_shape(self) -> tuple[int, ...]:
        return (self.num_choices,)

    def batch(self, rows: Sequence[int], length: int) -> dict[str, np.ndarray]:
        """Padded arrays of some examples: input_ids, input_mask, segment_ids int32 [B, N, length], and the labels."""
        examples = np.asarray(rows)
        every = (examples[:, None] * self.num_choices + np.arange(self.num_choices)).reshape(-1)
        arrays = self.rows.batch(every, length)
        arrays = {name: values.reshape(len(examples), self.num_choices, length) for name, values in arrays.items()}
        return arrays | {name: values[examples] for name, values in self.labels.items()}


def encode_examples(examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_seq_length: int) -> ChoiceRows:
    """Token rows of examples with the same number of choices.

    Args:
      max_seq_length: a longer row loses the last tokens of context, or of question and choice, whichever is longer.

    Raises:
      ValueError: max_seq_length has no room for a token beside [CLS] and two [SEP].
    """
    special = tokenizer.num_special_tokens(pair=True)
    if max_seq_length < special + 2:
        raise ValueError(
            f"--max_seq_length={max_seq_length} has no room for two texts beside {special} special tokens."
        )
    num_choices = len(examples[0].choices)
    texts = []
    for example in examples:
        # A choice follows its question as a word follows another.
        separator = tokenizer.word_separator if example.question else ""
        texts += [example.context, example.question, *(separator + choice for choice in example.choices)]
    encoded = iter(tokenizer.encode_batch(texts))
    rows, starts, truncated = [], [], 0
    for _ in examples:
        context, question = next(encoded), next(encoded)
        for _ in range(num_choices):
            # As in classification, a choice without any token (control characters only) does not count as a text.
            second = [*question, *next(encoded)]
            ids, segments = tokenizer.build_inputs(context, second, max_seq_length)
            whole = len(context) + len(second) + tokenizer.num_special_tokens(pair=bool(second))
            truncated += whole > max_seq_length
            rows.append(ids)
            starts.append(segments.count(0))
    if truncated:
        logging.warning(
            "%d of %d choices with their context are longer than --max_seq_length=%d and lost their last tokens.",
            truncated,
            len(rows),
            max_seq_length,
        )
    ids, offsets = flatten(rows)
    labels = {}
    if examples[0].label is not None:
        labels["label_ids"] = np.array([example.label for example in examples], np.int32)
    return ChoiceRows(ids, offsets, np.array(starts, np.int32), labels, num_choices, truncated, pad_id=tokenizer.pad_id)


def log_examples(rows: ChoiceRows, tokenizer: Tokenizer, count: int = 2) -> None:
    """Shows the first examples as the model will see them."""
    for number in range(min(count, len(rows)) * rows.num_choices):
        example, choice = divmod(number, rows.num_choices)
        right = "label_ids" in rows.labels and rows.labels["label_ids"][example] == choice
        tokens = tokenizer.convert_ids_to_tokens(rows.ids[rows.offsets[number] : rows.offsets[number + 1]].tolist())
        logging.info("Example %d, choice %d%s: %s", example, choice, " (right)" if right else "", " ".join(tokens))


def write_records(path: str, rows: ChoiceRows, max_seq_length: int) -> None:
    """Writes a TFRecord file, a record for each choice, the N of an example one after the other.

    Features: those of `token_rows.write_records`, and int64 scalars: example, choice, and where there are labels
    label_ids, the number of the right choice.
    """
    every = np.arange(len(rows.second_starts))
    columns = {"example": every // rows.num_choices, "choice": every % rows.num_choices}
    if "label_ids" in rows.labels:
        columns["label_ids"] = np.repeat(rows.labels["label_ids"], rows.num_choices)
    token_rows.write_records(path, rows.rows, max_seq_length, columns)
