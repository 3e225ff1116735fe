"""The names of a model's inputs: Hugging Face's names are accepted, too, and unknown names are refused."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

# The encoder's inputs; see `BertModel.call`.
ENCODER_INPUTS = ("input_ids", "input_mask", "segment_ids", "sequence_ids", "position_ids", "pooled_positions")

# Hugging Face's names -> the original's.
OTHER_NAMES = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}


def named_inputs(inputs, known: Sequence[str], model_name: str = "the model") -> dict:
    """A model's inputs as a dict under the original's names.

    Args:
      inputs: arrays by name, or only the input_ids. None counts as not given.
      known: the names that the model reads. model_name: for errors.

    Raises:
      ValueError: an unknown name, no input_ids, or one input under both of its names; lists the known names.
    """
    if not isinstance(inputs, Mapping):
        return {"input_ids": inputs}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    for other, name in OTHER_NAMES.items():
        if other in inputs:
            if name in inputs:
                raise ValueError(
                    f"{model_name} got {name} and {other}, which are two names of the same input: give one."
                )
            inputs[name] = inputs.pop(other)
    others = [f"{other} ({name})" for other, name in OTHER_NAMES.items() if name in known]
    unknown = sorted(str(name) for name in inputs if name not in known)
    if unknown:
        raise ValueError(
            f"{model_name} does not know the input {', '.join(unknown)}. Known: {', '.join((*known, *others))}."
        )
    if "input_ids" not in inputs:
        raise ValueError(f"{model_name} needs input_ids; given: {', '.join(inputs) or 'nothing'}.")
    return inputs


def select(inputs: Mapping, names: Sequence[str]) -> dict:
    """The inputs of these names that are present."""
    return {name: inputs[name] for name in names if name in inputs}


class NamedInputs:
    """A mixin for Keras models that take arrays by name; `known_inputs` lists the names.

    Every call goes through it: direct calls, `fit` and `predict`, and calls within a functional model.
    """

    known_inputs: Sequence[str] = ENCODER_INPUTS

    def __call__(self, inputs=None, *args, **kwargs):
        if inputs is None:  # model(**tokenizer(texts))
            inputs = {name: kwargs.pop(name) for name in (*self.known_inputs, *OTHER_NAMES) if name in kwargs}
        if holds_text(inputs):
            raise TypeError(f"{type(self).__name__} takes token ids, not strings: {_CALL}. {_TOKENIZER}")
        named = named_inputs(inputs, self.known_inputs, type(self).__name__)
        return super().__call__({name: _as_array(value) for name, value in named.items()}, *args, **kwargs)

    def fit(self, x=None, *args, **kwargs):
        """See `keras.Model.fit`; `as_dataset` makes batches of strings."""
        _refuse_text(x, f"fit takes token ids, not strings: model.fit({_DATASET}). {_TOKENIZER}")
        with _in_one_line():
            return super().fit(x, *args, **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        """See `keras.Model.evaluate`; `as_dataset` makes batches of strings."""
        _refuse_text(x, f"evaluate takes token ids, not strings: model.evaluate({_DATASET}). {_TOKENIZER}")
        with _in_one_line():
            return super().evaluate(x, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """See `keras.Model.predict`."""
        _refuse_text(x, f"predict takes token ids, not strings: model.predict(tokenizer(texts)). {_TOKENIZER}")
        with _in_one_line():
            return super().predict(x, *args, **kwargs)


@contextlib.contextmanager
def _in_one_line() -> Iterator[None]:
    """Makes a ValueError of a check of `ranges` that failed in a graph: TensorFlow's error is sixty lines."""
    try:
        yield
    except Exception as error:
        found = re.search(r"assertion failed: \[(.* has the value\] .*)\]$", str(error), re.MULTILINE)
        if not found:
            raise
        raise ValueError(found[1].replace("] [", " ").replace(" ;", ";") + ".") from None


_CALL = "model(tokenizer(texts))"
_DATASET = "bert_tf.as_dataset(texts, labels, tokenizer=tokenizer, label_names=model.labels)"
_TOKENIZER = "The tokenizer is bert_tf.read_tokenizer(the model's directory)."


def _as_array(value):
    """An input; Keras takes a list for several inputs, so that lists of ids become arrays."""
    is_list = isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple | int)
    return np.array(value, "int32") if is_list else value


def holds_text(inputs) -> bool:
    """Whether inputs are strings: one, a list of them, or an array."""
    if isinstance(inputs, str | bytes):
        return True
    if isinstance(inputs, Mapping):
        return any(map(holds_text, inputs.values()))
    if isinstance(inputs, list | tuple):
        return bool(inputs) and holds_text(inputs[0])
    dtype = getattr(inputs, "dtype", "")
    name = str(getattr(dtype, "name", dtype))
    if name == "object":
        return isinstance(next(iter(inputs), None), str | bytes)
    return name.startswith(("str", "bytes"))


def _refuse_text(inputs, message: str) -> None:
    if holds_text(inputs):
        raise TypeError(message)
