"""The inputs of a model: their names, and checks that ids, positions and labels are in range.

Hugging Face's names are accepted, too; unknown names raise. A value out of range is an error that names the input, the
value and the range. Otherwise it would silently mean something else: a lookup takes the first or the last row of its
table, and a label that is not a class costs nothing.

* Outside of graphs, on every backend: a ValueError.
* In a graph of TensorFlow (the training loop, `fit`, an exported model): the operation `Assert`, whose error is an
  InvalidArgumentError.
* Compiled programs can't raise (XLA, as in `fit` on GPUs, and on TPUs; the jit of JAX): numbers that depend on such a
  value become NaN. The training loop stops at a loss that is NaN, and `fit` at the end of its epoch.

Shape legend: B batch, S sequence length, P positions of a row, N texts of an example.
"""

import numbers
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import keras
import numpy as np
from keras import ops

from bert_tf.models.keras_internals import register_tree_node_class
from bert_tf.system import checks
from bert_tf.system.messages import warn_once
from bert_tf.text.characters import plain_name
from bert_tf.text.transformers_call import Encoding

# The encoder's inputs, see `BertModel.call`; the first three are those of every token row.
ROW_INPUTS = ("input_ids", "input_mask", "segment_ids")
ENCODER_INPUTS = (*ROW_INPUTS, "sequence_ids", "position_ids", "pooled_positions")

# Inputs that have the shape of input_ids.
_OF_TOKENS = ("input_mask", "segment_ids", "sequence_ids", "position_ids")

# Hugging Face's names -> the original's.
OTHER_NAMES = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}


def other_names(label_names: Sequence[str] = ()) -> dict[str, str]:
    """`OTHER_NAMES`, and that of the label of a model that has only one."""
    return {**OTHER_NAMES, **({"labels": label_names[0]} if len(label_names) == 1 else {})}


def named_inputs(inputs, known: Sequence[str], model_name: str = "the model", others: Mapping = OTHER_NAMES) -> dict:
    """A model's inputs as a dict under the original's names.

    inputs: arrays by name, or only the input_ids. None counts as not given.
    known: the names that the model reads. model_name: for errors. others: see `other_names`.
    """
    if not isinstance(inputs, Mapping):
        return {"input_ids": inputs}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    if twice := [other for other, name in others.items() if other in inputs and name in inputs]:
        raise ValueError(f"{model_name} got {others[twice[0]]} and {twice[0]}, two names of one input: give one.")
    inputs = {others.get(name, name): value for name, value in inputs.items()}
    if unknown := sorted(str(name) for name in inputs if name not in known):
        names = ", ".join([*known, *(f"{other} ({name})" for other, name in others.items() if name in known)])
        page = "Names of transformers: docs/from-transformers.md#inputs."
        raise ValueError(f"{model_name} does not know the input {', '.join(unknown)}. Known: {names}. {page}")
    return inputs


def is_packed(inputs: Mapping) -> bool:
    """Whether rows have several sequences, each with positions of its own."""
    return any(inputs.get(name) is not None for name in ("sequence_ids", "pooled_positions"))


def select(inputs: Mapping, names: Sequence[str]) -> dict:
    """The inputs of these names that are present."""
    return {name: inputs[name] for name in names if name in inputs}


def flat_rows(inputs: Mapping) -> tuple[dict, int]:
    """The ROW_INPUTS [B, N, S] of examples of several rows as [B * N, S], and N."""
    inputs = {name: ops.convert_to_tensor(value) for name, value in select(inputs, ROW_INPUTS).items()}
    _, count, length = ops.shape(inputs["input_ids"])
    return {name: ops.reshape(value, (-1, length)) for name, value in inputs.items()}, count


def features_with_labels(objective, x, y=None, sample_weight=None) -> dict:
    """The features that an objective reads, from the arguments of Keras `fit`.

    x: the inputs; a dict may include the labels.
    y: labels: a dict by feature name; or one array for each of `objective.label_names`, in that order.
    sample_weight: [B] or None; multiplied into `example_weights`.
    """
    names = objective.label_names
    others, given = other_names(names), x if isinstance(x, Mapping) else {}
    features = {others.get(name, name): value for name, value in given.items()}
    if isinstance(y, dict):
        features |= y
    elif y is not None:
        features |= zip(names, y if isinstance(y, list | tuple) else [y], strict=True)
    if sample_weight is not None:
        every = sample_weight if isinstance(sample_weight, list | tuple) else [sample_weight]  # Keras: one for each y
        weights = sum(ops.cast(each, "float32") for each in every) / len(every)
        if "example_weights" in features:
            weights = weights * ops.cast(features["example_weights"], "float32")
        features["example_weights"] = weights
    return features


def known_shape(value) -> tuple[int | None, ...] | None:
    """The shape of an array, as far as it is known; None: not even its rank is, or it is not an array."""
    shape = getattr(value, "shape", None)
    return None if shape is None or getattr(shape, "rank", 0) is None else tuple(shape)


def as_array(value):
    """An input or labels; Keras takes a list for several inputs, so that lists of numbers become arrays."""
    if not isinstance(value, list | tuple) or not value or not isinstance(value[0], list | tuple | numbers.Number):
        return value
    array = np.array(value)
    return array.astype("int32") if array.dtype.kind in "iu" else array


def check_shapes(inputs: Mapping) -> None:
    """Raises for inputs of tokens that would be broadcast to another meaning, and masks of more than 0 and 1."""
    rows, mask = known_shape(inputs["input_ids"]), inputs.get("input_mask")
    if isinstance(mask, np.ndarray) and not np.isin(mask, (0, 1)).all():
        raise ValueError("input_mask must be 1 for tokens and 0 for padding.")
    for name in _OF_TOKENS if rows else ():
        shape = known_shape(inputs.get(name))
        wanted = (*rows, rows[-1]) if shape and name == "input_mask" and len(shape) > len(rows) else rows
        if shape is None or shape == (1, *wanted[1:]):
            continue
        pairs = zip(shape, wanted, strict=False)
        if len(shape) != len(wanted) or any(None not in pair and pair[0] != pair[1] for pair in pairs):
            raise ValueError(f"{name} must have the shape of input_ids, {rows}, not {shape}.")


# --- arguments of Keras's methods ------------------------------------------------------------------------------------


def keras_arguments(method: str, self, kwargs: Mapping = MappingProxyType({}), **arguments) -> dict:
    """The arguments of a model's `fit`, `evaluate` or `predict` by name, with arrays for lists of numbers."""
    objective = getattr(self, "objective", None)
    several = len(getattr(objective, "label_names", ())) > 1
    for name in {"x", "y", "sample_weight"} & arguments.keys():
        arguments[name] = _arrays(arguments[name], several and name == "y")
    held_out = arguments.get("validation_data")
    if isinstance(held_out, tuple):
        arguments["validation_data"] = tuple(_arrays(part, several and n == 1) for n, part in enumerate(held_out))
    for data in (arguments.get("x"), held_out):
        _check_label_names(self, data)
    if method == "fit":
        if hasattr(arguments.get("x"), "element_spec"):
            arguments.setdefault("shuffle", False)  # by default Keras would, and warn that it can't
        if not isinstance(arguments.get("callbacks"), keras.callbacks.CallbackList):
            arguments["callbacks"] = [*keras.tree.flatten(arguments.get("callbacks") or []), _EndsAtNan()]
    if arguments.get("class_weight") is not None:
        if objective and self._compile_loss is None and not objective.one_class:
            raise ValueError("class_weight is for one class an example: give weights as sample_weight.")
        arguments["class_weight"] = _by_class(self, arguments["class_weight"]) or None
        if objective and isinstance(x := arguments.get("x"), Mapping) and arguments.get("y") is None:
            x = named_inputs(x, [*x, *objective.label_names], others=other_names(objective.label_names))
            arguments |= {"y": x.pop(objective.label_names[0], None), "x": x}  # Keras weights only what is given as `y`
    return arguments | kwargs


def _by_class(model, weights) -> dict[int, float]:
    """class_weight, which may name labels, by number: Keras ignores what is no class, and fails at classes above."""
    if not isinstance(weights, Mapping):
        raise TypeError(f"class_weight must be a dict of a number for each class, not {weights!r:.80}")
    count, known = getattr(model, "num_labels", 0), getattr(model, "id2label", {})
    by_name, found = {label: number for number, label in known.items()}, dict.fromkeys(range(count), 1.0)
    for key, weight in weights.items():
        number = by_name.get(plain_name(key), key) if isinstance(key, str) else key
        if not isinstance(number, numbers.Integral) or (count > 1 and number not in known):
            raise ValueError(f"class_weight: {key!r:.80} is none of the model's classes, {known or 'numbers'!r:.200}")
        checks.check_number(weight, f"class_weight[{key!r:.80}]", 0.0)
        found[int(number)] = weight
    return found


class _EndsAtNan(keras.callbacks.Callback):
    """Ends a `fit` whose step is compiled, and so can't say what is out of range."""

    def on_epoch_end(self, epoch, logs=None):
        if np.isnan((logs or {}).get("loss", 0.0)):
            reason = "labels or input_ids are out of range, which a compiled step can't tell in place"
            reason = f"{reason} (jit_compile=False of `compile` can); or learning diverged."
            raise FloatingPointError(f"The loss of epoch {epoch + 1} is NaN: {reason}")


def _arrays(value, one_for_each_label: bool):
    if isinstance(value, Mapping):
        return {name: as_array(part) for name, part in value.items()}
    return [as_array(part) for part in value] if one_for_each_label and isinstance(value, list) else as_array(value)


def _check_label_names(model, data) -> None:
    """Raises if class numbers of a dataset made by `as_dataset` mean other labels than the model's.

    If a function was mapped over it, which may have changed the numbers, it only warns.
    """
    count = getattr(model, "num_labels", None)
    of_model = getattr(getattr(model, "head_config", None), "labels", None)
    for names, is_mapped in _label_names(data):
        if of_model and [*map(plain_name, names)] == [*map(plain_name, of_model)]:
            continue
        if of_model or count not in (None, len(names)):
            has = f"as_dataset has label_names={names!r:.200}, the model num_labels={count} with the names"
            problem = f"{has} {of_model!r:.200}: give as_dataset label_names=model.labels."
            if not is_mapped:
                raise ValueError(problem)
            warn_once("label_names", "%s They are right only if what is mapped over it changes them.", problem)


def _label_names(data, is_mapped: bool = False) -> Iterator[tuple[list[str], bool]]:
    """The label_names of datasets of `as_dataset` that `data` is made of; whether a function was mapped over them."""
    if names := getattr(data, "label_names", None):
        yield names, is_mapped
        return
    is_mapped |= any(kind in type(data).__name__ for kind in ("Map", "Interleave", "Scan"))
    for part in getattr(data, "_inputs", list)():
        yield from _label_names(part, is_mapped)


# --- outputs ---------------------------------------------------------------------------------------------------------

# What transformers calls outputs.
_KNOWN_AS = {
    "last_hidden_state": "sequence_output",
    "pooler_output": "pooled_output",
    "attentions": "attention_probabilities",
    "prediction_logits": "masked_lm_logits",
    "seq_relationship_logits": "next_sentence_logits",
    "sop_logits": "next_sentence_logits",
}


class _AnyDict(type):
    """Makes every dict an instance of a class: Keras asks whether a dict of losses is of the outputs' class."""

    def __instancecheck__(cls, instance) -> bool:
        return isinstance(instance, dict)


class Outputs(Encoding, metaclass=_AnyDict):
    """A model's outputs by name, which also answer to the names of transformers and as attributes."""

    def __missing__(self, name):
        if name == "hidden_states" and "encoder_layers" in self:
            return (self["embedding_output"], *self["encoder_layers"])
        if _KNOWN_AS.get(name) in self:
            return self[_KNOWN_AS[name]]
        raise KeyError(name)

    @classmethod
    def tree_unflatten(cls, names: Sequence[str], values: Sequence) -> "Outputs":
        if any(isinstance(value, str) for value in values):
            # Keras first tries the keys of a dict of labels, then compares its paths with those of the outputs.
            raise TypeError("an output is not a string")
        return super().tree_unflatten(names, values)


if keras.backend.backend() == "tensorflow":
    register_tree_node_class(Encoding)
    register_tree_node_class(Outputs)


class _Predicted(np.ndarray):
    @property
    def logits(self) -> np.ndarray:
        return self.view(np.ndarray)


def with_transformers_names(outputs):
    """A model's outputs; on TensorFlow they also answer to the names of transformers: a single one to `logits`."""
    if isinstance(outputs, np.ndarray):
        return outputs.view(_Predicted)
    if keras.backend.backend() != "tensorflow":  # JAX compiles nothing that returns a class of ours
        return outputs
    if isinstance(outputs, Mapping):
        return Outputs(outputs)
    import tensorflow as tf

    # An eager tensor that refers to itself would keep its memory until Python looks for garbage.
    outputs.logits = tf.identity(outputs) if tf.is_tensor(outputs) and tf.executing_eagerly() else outputs
    return outputs


def with_loss(model, outputs, inputs: Mapping):
    """The outputs of a call with keywords; on TensorFlow with the model's own `loss`, if the labels are among these."""
    objective = getattr(model, "objective", None)
    if keras.backend.backend() != "tensorflow" or not objective or not inputs.keys() >= {*objective.label_names}:
        return outputs
    if not keras.backend.is_keras_tensor(keras.tree.flatten(outputs)[0]):  # of a functional model
        sums = objective.sums(outputs, inputs)
        outputs.loss = objective.loss(sums, sums)
    return outputs


# --- ranges ----------------------------------------------------------------------------------------------------------


def below(values, size):
    """Boolean: whether values are integers from 0 to size - 1. size: an integer or a scalar tensor."""
    numbers = values if "int64" in str(values.dtype) else ops.cast(values, "int32")
    inside = ops.logical_and(numbers >= 0, numbers < ops.cast(size, numbers.dtype))
    if "float" in str(values.dtype):
        inside = ops.logical_and(inside, ops.equal(values, ops.floor(values)))
    return inside


def require(name: str, values, allowed, expected: str, size=None, advice: str = "", weights=None) -> tuple:
    """Raises an error if a value is not allowed; see the module.

    name: of the input. values: numbers. allowed: boolean, of their shape.
    expected: what the values must be; with size, it ends in a range whose last number is size - 1.
    size: an integer or a scalar tensor. advice: what to do.
    weights: of a shape that broadcasts to theirs: where it is 0, everything is allowed.

    Returns the values (in a graph of TensorFlow what reads these is not computed before the check), and
    `poison(allowed)`, to be added to what is computed of them.
    """
    if weights is not None:
        allowed = ops.logical_or(allowed, ops.equal(weights, 0.0))
    if keras.backend.backend() == "tensorflow" and not sys.modules["tensorflow"].executing_eagerly():
        values = _asserted(name, values, allowed, expected, size, advice)
    elif _is_computed(allowed) and len(wrong := np.argwhere(~ops.convert_to_numpy(allowed))):
        index = tuple(wrong[0])
        value = ops.convert_to_numpy(values)[index].item()
        last = "" if size is None else f" {int(size) - 1}"
        where = "".join(f"[{number}]" for number in index)
        raise ValueError(f"{name}{where} is {value}, but must be {expected}{last}{advice}.")
    return values, poison(allowed)


def poison(allowed):
    """float32: NaN where a value is not allowed, elsewhere 0."""
    return ops.where(allowed, 0.0, float("nan"))


def require_inputs(config, inputs: Mapping, ids: str = "input_ids"):
    """Checks the inputs of an encoder, or of a model that reads tokens; see `require`.

    inputs: input_ids [B, S], and any of segment_ids, position_ids [B, S], pooled_positions, masked_lm_positions [B, P].
    ids: the name of the input that has the place of input_ids.

    Returns the inputs, checked; and float32 [B, S], NaN for a token whose id, segment or position is out of range, or
    another position of its row, and 0 for others.
    """
    length = inputs[ids].shape[1]
    length = ops.shape(inputs[ids])[1] if length is None else length
    positions = config.max_length if is_packed(inputs) else config.max_position_embeddings
    in_config, in_row = f"in {config.file_name}", (length, "a place in the row, from 0 to")
    known = {
        ids: (config.vocab_size, f"less than vocab_size {in_config}: from 0 to"),
        "segment_ids": (config.type_vocab_size, f"less than type_vocab_size {in_config}: from 0 to"),
        "position_ids": (positions, f"within max_position_embeddings {in_config}: from 0 to"),
        "pooled_positions": in_row,
        "masked_lm_positions": in_row,
    }
    inputs, fine = dict(inputs), True
    for name, (size, expected) in known.items():
        values = inputs.get(name)
        if values is None or (name == "segment_ids" and not size):  # no such table
            continue
        values = ops.convert_to_tensor(values)
        allowed = below(values, size)
        if name == "position_ids" and config.padding_has_a_position and is_packed(inputs):
            allowed = ops.logical_or(allowed, ops.equal(values, -1))
        inputs[name], _ = require(name, values, allowed, expected, size)
        if name.endswith("_positions"):
            allowed = ops.all(allowed, axis=1, keepdims=True)
        fine = ops.logical_and(fine, allowed)
    return inputs, poison(fine)


def _asserted(name: str, values, allowed, expected: str, size, advice: str):
    import tensorflow as tf

    # The raw operation: that of tf.debugging is wrapped into a conditional, with two functions of its own.
    numbers = values if values.dtype.is_floating else tf.cast(values, tf.int64)
    wrong = tf.reduce_max(tf.where(allowed, numbers.dtype.min, numbers))
    last = [] if size is None else [tf.cast(size, tf.int32) - 1]
    shown = [f"{name} has the value", wrong, f"but must be {expected}", *last, *filter(None, [advice])]
    check = tf.raw_ops.Assert(condition=tf.reduce_all(allowed), data=shown, summarize=1)
    with tf.control_dependencies([check]):
        return tf.identity(values)


def _is_computed(tensor) -> bool:
    """Whether a tensor has values already: while a backend traces, it has none."""
    backend = keras.backend.backend()
    if keras.backend.is_keras_tensor(tensor):
        return False
    library = sys.modules.get(backend)
    if backend == "jax":
        return not isinstance(tensor, library.core.Tracer)
    if backend == "torch":
        return not tensor.is_meta and not library.compiler.is_compiling()
    return True
