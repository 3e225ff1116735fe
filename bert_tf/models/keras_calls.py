"""What models are given by Keras's `compile`, `fit`, `evaluate` and `predict`; see `layers.NamedInputs`.

Mistakes that Keras passes over in silence, or answers with a traceback of its own, are one line: what to write.
"""

import inspect
import numbers
from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np

from bert_tf.models.inputs import TOKENIZER, as_array, check_shapes, holds_text, known_shape, named_inputs, refuse_text
from bert_tf.models.objectives import OF_ONE_CLASS, MultiLabelObjective, RegressionObjective
from bert_tf.system.checks import check_names, number, whole_number
from bert_tf.system.messages import warn_once
from bert_tf.text.characters import plain_name

_DATASET = "bert_tf.as_dataset(texts, labels, tokenizer=tokenizer, label_names=model.labels)"
# Arguments of Keras's methods -> the least that they may be.
_NUMBERS = {"epochs": 0, "initial_epoch": 0} | dict.fromkeys(
    ("batch_size", "steps", "steps_per_epoch", "validation_steps", "validation_batch_size"), 1
)


def by_name(model, method: str, args: Sequence, kwargs: Mapping) -> dict:
    """The arguments of a call of Keras's method, all by name.

    Raises:
      TypeError: it has no such argument.
    """
    function = getattr(keras.Model, method)
    check_names(kwargs, function, f"model.{method}", ["_use_cached_eval_dataset"])
    arguments = inspect.signature(function).bind(model, *args, **kwargs).arguments
    named = {name: value for name, value in arguments.items() if name not in ("self", "kwargs")}
    return named | arguments.get("kwargs", {})


def checked(model, method: str, args: Sequence, kwargs: Mapping) -> dict:
    """`by_name`, with arrays for lists of numbers.

    Raises:
      TypeError, ValueError: an argument is of the wrong kind, out of range, without effect, or does not fit the model.
    """
    arguments = by_name(model, method, args, kwargs)
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
        raise TypeError(f"{who} takes token ids, not {'nothing' if x is None else 'a table'}: {instead}. {TOKENIZER}")
    for part in (x, *keras.tree.flatten(getattr(x, "element_spec", ()))):
        refuse_text(part, who, instead)
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
    x = {name: as_array(value, name) for name, value in x.items()} if isinstance(x, Mapping) else as_array(x, "x")
    if isinstance(x, Mapping):
        check_shapes(named_inputs(x, model.known_inputs, type(model).__name__, model.other_names))
    if isinstance(y, numbers.Number) or getattr(y, "shape", None) == ():
        raise TypeError(f"{who}: labels must be a list or an array, one for each row of input_ids, not {y!r:.80}.")
    if holds_text(y):
        raise TypeError(f"{who}: labels are numbers, not names: {instead}, or model.labels.index(name) of each.")
    names = getattr(getattr(model, "objective", None), "label_names", ("y",))
    if isinstance(y, Mapping):
        y = {name: as_array(value, name) for name, value in y.items()}
    else:
        y = [as_array(part, "y") for part in y] if isinstance(y, list) and len(names) > 1 else as_array(y, "y")
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
    weights = as_array(weights, "sample_weight")
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


def check_loss(model, loss) -> None:
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


def check_metrics(model, argument: str, metrics) -> None:
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
