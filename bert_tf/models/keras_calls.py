"""What models are given by a direct call and by Keras's `compile`, `fit`, `evaluate` and `predict`.

Mistakes that Keras passes over in silence, or answers with a traceback of its own, are one line: what to write.
"""

import contextlib
import functools
import inspect
import numbers
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import numpy as np
from keras.src.tree import register_tree_node_class

from bert_tf.models.inputs import ENCODER_INPUTS, known_shape, named_inputs, other_names, shapes_agree
from bert_tf.models.objectives import OF_ONE_CLASS, MultiLabelObjective, RegressionObjective
from bert_tf.system.checks import check_names, number, whole_number
from bert_tf.system.messages import warn_once
from bert_tf.text.characters import plain_name

_CALL = "model(tokenizer(texts))"
_DATASET = "bert_tf.as_dataset(texts, labels, tokenizer=tokenizer, label_names=model.labels)"
_TOKENIZER = "The tokenizer is bert_tf.read_tokenizer(the model's directory)."

# Inputs that have the shape of input_ids.
_OF_TOKENS = ("input_mask", "segment_ids", "sequence_ids", "position_ids")

# Arguments of Keras's methods -> the least that they may be.
_NUMBERS = {
    "batch_size": 1,
    "epochs": 0,
    "initial_epoch": 0,
    "steps": 1,
    "steps_per_epoch": 1,
    "validation_steps": 1,
    "validation_batch_size": 1,
}


def _checked_method(name: str) -> Callable:
    """Keras's method of this name, with its arguments checked by `_checked`."""

    @functools.wraps(getattr(keras.Model, name))
    def call(self, *args, **kwargs):
        arguments = _checked(self, name, args, kwargs)
        with _in_one_line():
            return getattr(super(NamedInputs, self), name)(**arguments)

    return call


class NamedInputs:
    """A mixin for Keras models that take arrays by name; `known_inputs` lists the names.

    Every call goes through it: direct calls, `fit` and `predict`, and calls within a functional model.
    """

    known_inputs: Sequence[str] = ENCODER_INPUTS

    @property
    def other_names(self) -> dict[str, str]:
        """See `inputs.other_names`."""
        return other_names(getattr(getattr(self, "objective", None), "label_names", ()))

    def __call__(self, inputs=None, *args, **kwargs):
        by_name = [] if isinstance(inputs, Mapping) else [*self.known_inputs, *self.other_names]
        check_names(kwargs, type(self).call, type(self).__name__, by_name)
        given = {name: kwargs.pop(name) for name in by_name if name in kwargs}
        if given or inputs is None:  # model(**tokenizer(texts)), model(ids, attention_mask=mask)
            inputs = given | ({} if inputs is None else {"input_ids": inputs})
        _refuse_text(inputs, type(self).__name__, _CALL)
        if args and hasattr(args[0], "shape"):
            raise TypeError(f"{type(self).__name__} takes several inputs as a dict: {_CALL}.")
        if odd := [name for name, value in kwargs.items() if isinstance(value, str)]:
            raise TypeError(f"{odd[0]} must be True or False, not {kwargs[odd[0]]!r:.80}.")
        named = named_inputs(inputs, self.known_inputs, type(self).__name__, self.other_names)
        named = {name: _as_array(value, name) for name, value in named.items()}
        _check_shapes(named)
        with _in_one_line():
            return _answering(super().__call__(named, *args, **kwargs))

    def compile(self, *args, **kwargs):
        """See `keras.Model.compile`; without a loss a model uses its own objective.

        Raises:
          ValueError: a loss or metric that takes probabilities, where the model gives logits.
        """
        arguments = _by_name(self, "compile", args, kwargs)
        _check_loss(self, arguments.get("loss"))
        for name in ("metrics", "weighted_metrics"):
            _check_metrics(self, name, arguments.get(name))
        self._compile_loss = self._compile_metrics = None  # Keras would keep those of an earlier call
        super().compile(**arguments)

    def compile_from_config(self, config: dict) -> None:
        """See `keras.Model.compile_from_config`, which calls no `compile` but Keras's own."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built and self.optimizer:
            self.optimizer.build(self.trainable_variables)

    fit, evaluate, predict = map(_checked_method, ("fit", "evaluate", "predict"))
    train_on_batch, test_on_batch = map(_checked_method, ("train_on_batch", "test_on_batch"))


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
    """Of a dict of losses Keras asks whether it is of the outputs' class."""

    def __instancecheck__(cls, instance) -> bool:
        return isinstance(instance, dict)


class Outputs(dict, metaclass=_AnyDict):
    """A model's outputs by name, which also answer to the names of transformers and as attributes."""

    def __missing__(self, name):
        if name == "hidden_states" and "encoder_layers" in self:
            return (self["embedding_output"], *self["encoder_layers"])
        if _KNOWN_AS.get(name) in self:
            return self[_KNOWN_AS[name]]
        raise KeyError(f"{name!r} is none of the outputs {', '.join(self)}")

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def tree_flatten(self) -> tuple:
        """Children, what else is needed, and the children's names: as Keras takes a dict apart, in their order."""
        names = sorted(self)
        return [self[name] for name in names], tuple(self), names

    @classmethod
    def tree_unflatten(cls, names: Sequence[str], values: Sequence) -> "Outputs":
        """The reverse of `tree_flatten`."""
        if any(isinstance(value, str) for value in values):
            # Keras first tries the keys of a dict of labels, then compares its paths with those of the outputs.
            raise TypeError("an output is no string")
        by_name = dict(zip(sorted(names), values, strict=True))
        return cls({name: by_name[name] for name in names})


if keras.backend.backend() == "tensorflow":
    register_tree_node_class(Outputs)


def _answering(outputs):
    """A model's outputs; on TensorFlow they also answer to the names of transformers: a single one to `logits`."""
    if keras.backend.backend() != "tensorflow":  # JAX compiles nothing that returns a class of ours
        return outputs
    if isinstance(outputs, Mapping):
        return Outputs(outputs)
    import tensorflow as tf

    # An eager tensor that refers to itself would keep its memory until Python looks for garbage.
    outputs.logits = tf.identity(outputs) if tf.is_tensor(outputs) and tf.executing_eagerly() else outputs
    return outputs


# --- arrays ----------------------------------------------------------------------------------------------------------


def _as_array(value, name: str):
    """An input or labels; Keras takes a list for several inputs, so that lists of numbers become arrays."""
    if not isinstance(value, list | tuple) or not value or not isinstance(value[0], list | tuple | numbers.Number):
        return value
    try:
        array = np.array(value)
    except ValueError:
        raise ValueError(f"{name} has rows of different lengths: pad them, as tokenizer(texts) does.") from None
    return array.astype("int32") if array.dtype.kind in "iu" else array


def _check_shapes(inputs: Mapping) -> None:
    """Refuses inputs of tokens whose shape isn't that of input_ids, or of one row for all, as far as it is known."""
    ids = inputs["input_ids"]
    if not hasattr(ids, "shape"):
        raise TypeError(f"input_ids must be an array of ids, not a {type(ids).__name__}; several inputs are a dict.")
    kind = str(getattr(ids.dtype, "name", ids.dtype)).removeprefix("torch.")
    if kind not in ("int16", "int32", "int64"):
        raise TypeError(f"input_ids must be whole numbers, not {kind}: give them as int32.")
    if hasattr(ids, "to_tensor") or hasattr(ids, "dense_shape"):
        raise TypeError(
            f"input_ids must be an array, not a {type(ids).__name__}: pad its rows, as tokenizer(texts) does."
        )
    mask = inputs.get("input_mask")
    if isinstance(mask, np.ndarray) and mask.size and not 0 <= mask.min() <= mask.max() <= 1:
        odd = mask.max() if mask.min() >= 0 else mask.min()
        raise ValueError(f"input_mask must be 1 for tokens and 0 for padding, not {odd}.")
    rows = known_shape(ids)
    if rows is not None and 0 in rows:
        raise ValueError(f"input_ids has no tokens: its shape is {rows}.")
    for name in _OF_TOKENS:
        found = known_shape(inputs.get(name))
        wanted = (*rows, rows[-1]) if rows and found and name == "input_mask" and len(found) > len(rows) else rows
        if rows and found is not None and found != (1, *wanted[1:]) and not shapes_agree(found, wanted):
            raise ValueError(f"{name} must have the shape of input_ids, {rows}, not {found}.")
    for name in ("masked_lm_positions", "pooled_positions"):
        found = known_shape(inputs.get(name))
        if rows and found is not None and not shapes_agree(found, (rows[0], None)):
            raise ValueError(f"{name} must be [batch, positions], here [{rows[0]}, positions], not {found}.")


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


def _refuse_text(inputs, who: str, instead: str) -> None:
    if holds_text(inputs):
        raise TypeError(f"{who} takes token ids, not strings: {instead}. {_TOKENIZER}")


# --- Keras's methods -------------------------------------------------------------------------------------------------


def _by_name(model, method: str, args: Sequence, kwargs: Mapping) -> dict:
    """The arguments of a call of Keras's method, all by name.

    Raises:
      TypeError: it has no such argument.
    """
    function = getattr(keras.Model, method)
    check_names(kwargs, function, f"model.{method}", ["_use_cached_eval_dataset"])
    arguments = inspect.signature(function).bind(model, *args, **kwargs).arguments
    named = {name: value for name, value in arguments.items() if name not in ("self", "kwargs")}
    return named | arguments.get("kwargs", {})


def _checked(model, method: str, args: Sequence, kwargs: Mapping) -> dict:
    """`_by_name`, with arrays for lists of numbers.

    Raises:
      TypeError, ValueError: an argument is of the wrong kind, out of range, without effect, or does not fit the model.
    """
    arguments = _by_name(model, method, args, kwargs)
    if "_use_cached_eval_dataset" in arguments:  # `fit` evaluates data that it has checked
        return arguments
    instead = "model.predict(tokenizer(texts))" if method == "predict" else f"model.{method}({_DATASET})"
    for name, least in _NUMBERS.items():
        if arguments.get(name) is not None:
            whole_number(arguments[name], name, least)
    number(arguments.get("validation_split") or 0, "validation_split", most=1)
    parts = ("x", "y", "sample_weight")
    data = [arguments.get(name) for name in parts]
    checked = _checked_data(model, data, method, instead, arguments.get("batch_size"))
    arguments |= {name: value for name, value in zip(parts, checked, strict=True) if value is not None}
    if (held_out := arguments.get("validation_data")) is not None:
        parts = held_out if isinstance(held_out, tuple) else (held_out,)
        size = arguments.get("validation_batch_size")
        checked = _checked_data(model, parts, "validation_data", f"validation_data={_DATASET}", size)
        arguments["validation_data"] = tuple(checked) if isinstance(held_out, tuple) else checked[0]
    if hasattr(arguments.get("x"), "element_spec") and method == "fit":
        arguments.setdefault("shuffle", False)  # by default Keras would, and warn that it can't
    for one in keras.tree.flatten(arguments.get("callbacks") or ()):
        if isinstance(one, type) or not hasattr(one, "set_model"):
            raise TypeError(f"callbacks must be objects such as keras.callbacks.EarlyStopping(), not {one!r:.80}.")
    if arguments.get("class_weight") is not None:
        arguments["class_weight"] = _class_weight(model, arguments)
    return arguments


def _checked_data(model, data: Sequence, who: str, instead: str, batch_size: int | None) -> list:
    """Inputs, and if given labels and weights, with arrays for lists of numbers."""
    x, y, *weights = *data, *[None] * (2 - len(data))
    is_table = hasattr(x, "columns") and any(holds_text(x[name]) or x[name].dtype == "object" for name in x.columns)
    if is_table or (x is None and y is None):
        raise TypeError(f"{who} takes token ids, not {'nothing' if x is None else 'a table'}: {instead}. {_TOKENIZER}")
    for part in (x, *keras.tree.flatten(getattr(x, "element_spec", ()))):
        _refuse_text(part, who, instead)
    if x is not None and not isinstance(x, Mapping | list | tuple) and not hasattr(x, "shape"):  # a dataset
        if batch_size is not None:
            raise ValueError(
                f"{who}: the dataset has its batches already, so that batch_size={batch_size} would have no effect: "
                "leave it out, and give it to as_dataset or dataset.batch."
            )
        _check_label_names(model, x)
        return list(data)
    first = x[0] if isinstance(x, list | tuple) and x else x
    first = first[0] if isinstance(first, list | tuple) and first else first
    if isinstance(x, list | tuple) and (not x or isinstance(first, Mapping)):
        raise TypeError(f"{who} takes one dict of arrays, not a list of them: {instead}.")
    x = {name: _as_array(value, name) for name, value in x.items()} if isinstance(x, Mapping) else _as_array(x, "x")
    if isinstance(x, Mapping):
        _check_shapes(named_inputs(x, model.known_inputs, type(model).__name__, model.other_names))
    if isinstance(y, numbers.Number) or getattr(y, "shape", None) == ():
        raise TypeError(f"{who}: labels must be a list or an array, one for each row of input_ids, not {y!r:.80}.")
    if holds_text(y):
        raise TypeError(f"{who}: labels are numbers, not names: {instead}, or model.labels.index(name) of each.")
    names = getattr(getattr(model, "objective", None), "label_names", ("y",))
    if isinstance(y, Mapping):
        y = {name: _as_array(value, name) for name, value in y.items()}
    else:
        y = [_as_array(part, "y") for part in y] if isinstance(y, list) and len(names) > 1 else _as_array(y, "y")
    weights = [_checked_weights(who, value) for value in weights]
    if any(str(getattr(part, "dtype", "")) in ("object", "category") for part in keras.tree.flatten(y)):
        raise TypeError(f"{who}: labels are numbers, one for each row of input_ids, not objects, None or categories.")
    floats = [part for part in keras.tree.flatten(y) if getattr(getattr(part, "dtype", None), "kind", "") == "f"]
    if not all(np.isfinite(part).all() for part in map(np.asarray, floats)):
        raise ValueError(f"{who}: labels must be finite numbers: some are NaN or infinite.")
    rows = known_shape(x.get("input_ids") if isinstance(x, Mapping) else x)
    if rows and len(rows) == 1:
        raise ValueError(f"input_ids must be [batch, sequence]; got shape {rows}.")
    for part in map(known_shape, keras.tree.flatten([y, weights])):
        if rows and part and part[0] != rows[0]:
            raise ValueError(
                f"{who}: {rows[0]} rows of input_ids and {part[0]} labels or weights: give as many of each."
            )
    return [x, y, *weights][: max(len(data), 1)]


def _checked_weights(who: str, weights):
    """A sample_weight, as an array if it is a list of numbers."""
    weights = _as_array(weights, "sample_weight")
    if isinstance(weights, str | numbers.Number) or (
        isinstance(weights, Mapping) and not all(map(holds_text, weights))
    ):
        advice = "; weights by class are class_weight" if isinstance(weights, Mapping) else ""
        raise TypeError(f"{who}: sample_weight must be an array, a number for each row, not {weights!r:.80}{advice}.")
    if isinstance(weights, np.ndarray):
        if weights.dtype.kind not in "biuf":
            raise TypeError(f"{who}: sample_weight must be numbers, not {weights.dtype}.")
        if not ((weights >= 0) & (weights < np.inf)).all():
            raise ValueError(f"{who}: sample_weight must be finite and at least 0.")
    return weights


def _check_label_names(model, data) -> None:
    """Refuses a dataset of `as_dataset`, or one made of it, whose class numbers mean other labels than the model's.

    If a function was mapped over it, which may have changed the numbers, it is warned of.
    """
    count = getattr(model, "num_labels", None)
    own = getattr(getattr(model, "head_config", None), "labels", None)
    for names, is_mapped in _label_names(data):
        problem = None
        if own and [*map(plain_name, names)] != [*map(plain_name, own)]:
            problem = (
                f"as_dataset has label_names={names!r:.200}, but the model's, in the order of its outputs, are "
                f"{list(own)!r:.200}: give as_dataset label_names=model.labels."
            )
        elif count not in (None, len(names)):
            problem = f"as_dataset has {len(names)} label_names, but the model has num_labels={count}."
        if problem and not is_mapped:
            raise ValueError(problem)
        if problem:
            warn_once("label_names", "%s Its labels are right only if what is mapped over it changes them.", problem)


def _label_names(data, is_mapped: bool = False) -> Iterator[tuple[list[str], bool]]:
    """The label_names of datasets of `as_dataset` that one is made of; whether a function was mapped over them since.

    A dataset that take, shuffle, map and so on make has no attributes of the one before it, but knows it.
    """
    if names := getattr(data, "label_names", None):
        yield names, is_mapped
        return
    is_mapped |= any(kind in type(data).__name__ for kind in ("Map", "Interleave", "Scan"))
    for part in getattr(data, "_inputs", list)():
        yield from _label_names(part, is_mapped)


def _class_weight(model, arguments: Mapping) -> dict[int, float]:
    """The weight of each class that has one, or of all classes where their number is known."""
    weights, x = arguments["class_weight"], arguments.get("x")
    objective, count = getattr(model, "objective", None), getattr(model, "num_labels", 1)
    if objective and model._compile_loss is None and objective not in OF_ONE_CLASS:
        # Keras would take the largest label of a row for its class.
        raise ValueError(
            f"class_weight is for one class an example, which {type(model).__name__} with {objective.__name__} does "
            "not have: give weights as sample_weight, [batch], or [batch, sequence] for tokens."
        )
    if not isinstance(weights, Mapping):
        raise TypeError(f"class_weight must be a dict by class number, such as {{0: 1.0, 1: 3.0}}, not {weights!r:.80}")
    for label, weight in weights.items():
        whole_number(label, "a class in class_weight", 0)
        number(weight, f"class_weight[{label}]")
        if 1 < count <= label:
            raise ValueError(f"class_weight has the class {label}, but the model has the classes 0 to {count - 1}.")
    if arguments.get("y") is None and isinstance(getattr(x, "element_spec", x), Mapping):
        raise ValueError("class_weight needs labels beside the features: give y, or a dataset of (features, labels).")
    every = range(count if count > 1 else 0)  # Keras has no weight for a class above those that are named
    return dict.fromkeys(every, 1.0) | {int(label): float(weight) for label, weight in weights.items()}


def _check_loss(model, loss) -> None:
    """Refuses a loss of Keras that would take a model's logits for probabilities or values.

    Raises:
      ValueError: says which loss to give; or Keras has no such loss.
    """
    objective = getattr(model, "objective", None)
    for one in keras.tree.flatten(loss) if objective else ():
        found = keras.losses.get(one)
        name = getattr(found, "name", None) or getattr(found, "__name__", "")
        is_fine = getattr(found, "from_logits", False) or not getattr(found, "__module__", "").startswith("keras.")
        if found is None or is_fine or (objective is RegressionObjective and "crossentropy" not in name):
            continue
        raise ValueError(
            f"loss={one if isinstance(one, str) else name!r}: {type(model).__name__} gives "
            f"{'numbers' if objective is RegressionObjective else 'logits'}, which this loss would take for "
            "probabilities or values. Leave loss out for the model's own, or give one that takes them, such as "
            "keras.losses.SparseCategoricalCrossentropy(from_logits=True)."
        )


def _check_metrics(model, argument: str, metrics) -> None:
    """Refuses metrics of Keras that a model's outputs are not for, such as those that take logits for probabilities.

    Raises:
      ValueError: says what to give instead; or Keras has no such metric.
    """
    objective = getattr(model, "objective", None)
    several = len(getattr(objective, "label_names", ()))
    one_each = isinstance(metrics, Mapping) or (isinstance(metrics, list | tuple) and len(metrics) == several)
    if several > 1 and metrics and not one_each:
        raise ValueError(
            f"{argument}={metrics!r:.80}: {type(model).__name__} has several outputs. Leave it out for the model's "
            f"own, {', '.join(metric.name for metric in model.objective_metric.metrics)}, or give a dict by the name "
            "of the output, with labels as y, one array for each output."
        )
    for one in keras.tree.flatten(metrics) if objective else ():
        chosen_by_keras = str(one).lower() in ("accuracy", "acc")  # for the shapes
        if chosen_by_keras and objective is not MultiLabelObjective:
            continue
        found = keras.metrics.get("binary_accuracy" if chosen_by_keras else one)
        function = getattr(found, "_fn", found)  # what Keras's class takes the mean of
        name = getattr(function, "__name__", type(function).__name__)
        modules = [getattr(each, "__module__", "") for each in (found, function)]
        is_own = not all(module.startswith("keras.") for module in modules)
        if is_own or _takes_outputs(found, name, modules[1].split(".")[-1], objective):
            continue
        kind = "numbers" if objective is RegressionObjective else "logits"
        known = ', write "mae"' if kind == "numbers" else ', write "accuracy"' if objective in OF_ONE_CLASS else ""
        raise ValueError(
            f"{argument}={one if isinstance(one, str) else name!r}: {type(model).__name__} gives {kind}, but this "
            f"metric takes probabilities, values or one score for each label. Leave it out for the model's own{known}, "
            f"or give a function of labels and {kind}."
        )


def _takes_outputs(metric, name: str, module: str, objective) -> bool:
    """Whether a metric of Keras, of this name in this module of keras.src, takes an objective's outputs as they are."""
    if objective is RegressionObjective:
        return module not in ("confusion_metrics", "f_score_metrics", "iou_metrics") and "crossentropy" not in name
    if module == "accuracy_metrics" and objective is MultiLabelObjective and name == "binary_accuracy":
        return getattr(metric, "_fn_kwargs", {}).get("threshold", 0.5) == 0  # that of logits
    if module == "accuracy_metrics":
        return name != "accuracy"  # this one compares labels with outputs
    if module == "confusion_metrics" and objective in OF_ONE_CLASS:  # labels are [batch], logits [batch, classes]
        return False
    of_logits = getattr(metric, "from_logits", False) or getattr(metric, "_from_logits", False)
    return of_logits or not getattr(metric, "sparse_y_pred", True)


@contextlib.contextmanager
def _in_one_line() -> Iterator[None]:
    """Makes one line of a check that failed: TensorFlow adds sixty lines to it in a graph, Keras ten in a layer."""
    try:
        yield
    except Exception as error:
        found = re.search(r"assertion failed: \[(.* has the value\] .*)\]$", str(error), re.MULTILINE)
        if found:
            raise ValueError(found[1].replace("] [", " ").replace(" ;", ";") + ".") from None
        if found := re.match(r"Unknown variable: <Variable path=([^,]+),", str(error)):
            raise ValueError(
                f"The optimizer was made for another model, without {found[1]}: compile a new one."
            ) from None
        found = re.match(r"Exception encountered .*\n\n\x1b\[1m([^\n]+)\x1b\[0m\n\nArguments received", str(error))
        if found and type(error) in (TypeError, ValueError):
            raise type(error)(found[1]) from None
        raise
