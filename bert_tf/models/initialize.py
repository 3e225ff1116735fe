"""A model's variables under their checkpoint names, and their initialization from a checkpoint."""

import dataclasses
import math
import warnings
from collections.abc import Collection, Iterable, Mapping

import keras
import numpy as np
from absl import logging

from bert_tf.families import FAMILIES, is_encoder_variable
from bert_tf.families.family import is_model_variable
from bert_tf.models import layers
from bert_tf.store import variable_names
from bert_tf.store.open import open_weights
from bert_tf.store.tensor_files import Weights, incomplete
from bert_tf.system import hub
from bert_tf.system.messages import abbreviated_list

# The attribute of a model that has the variables its weights lacked, with the checksums of their random values.
_RANDOM = "_random_variables"

_UNTRAINED = "their values were saved before they were trained"


def checkpoint_name(variable: keras.Variable) -> str:
    """The name of a variable in the original's checkpoints, without the models around the encoder.

    A head called `cls_predictions` means `cls/predictions`, since a Keras layer name can't contain a slash; one called
    `classifier` means no scope, as the original's run_classifier.py has its output layer. The head of ELECTRA's
    generator has its layers without the scope of BERT's.
    """
    parts = variable.path.split("/")
    for family in FAMILIES:
        if family.model_type in parts:
            return "/".join(parts[parts.index(family.model_type) :])
    path = "/".join(parts[1:]).removeprefix("classifier/")
    path = path.replace("generator_predictions/transform/", "generator_predictions/")
    return "cls/" + path.removeprefix("cls_") if path.startswith("cls_") else path


def all_variables(model: keras.Model) -> dict[str, keras.Variable]:
    return {checkpoint_name(variable): variable for variable in model.weights}


def model_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """`all_variables` without adapters of LoRA."""
    return {name: variable for name, variable in all_variables(model).items() if not variable_names.is_adapter(name)}


def model_weights(model: keras.Model) -> Weights:
    """A model in memory, its kernels with the adapters of LoRA."""
    return variable_names.merged(variables_as_weights(model.name, all_variables(model)))


def variables_as_weights(path: str, variables: Mapping[str, keras.Variable]) -> Weights:
    def read(name: str) -> np.ndarray:
        value = keras.ops.convert_to_numpy(variables[name].value)
        return value.astype(np.int64) if name == "global_step" else value

    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    return Weights(path, "bert_tf", shapes, {name: name for name in shapes}, read)


def training_variables(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, keras.Variable]:
    """Everything that a run saves: variables, adapters, moments and `global_step` (the optimizer's step count)."""
    variables = all_variables(model)
    names = {variable.path: name for name, variable in variables.items()}
    for suffix, moments in (("adam_m", optimizer.first_moments), ("adam_v", optimizer.second_moments)):
        for variable, moment in zip(optimizer._trainable_variables, moments, strict=True):
            variables[f"{names[variable.path]}/{suffix}"] = moment
    variables["global_step"] = optimizer.iterations
    return variables


@dataclasses.dataclass(frozen=True)
class Initialization:
    """Which variables a checkpoint initialized.

    missing: names of the model that the checkpoint lacks, or that were not to be taken. unused: names of the checkpoint
      that were not taken -> why; "" if the model lacks them.
    """

    checkpoint: str
    initialized: list[str]
    missing: list[str]
    unused: dict[str, str]


def initialize(
    variables: Mapping[str, keras.Variable], weights: Weights, *, must_have_all: bool = False
) -> Initialization:
    """Sets variables from weights of any format, by the original's exact names, if all shapes match.

    must_have_all: a variable that the checkpoint lacks is an error, as where a run is resumed.
    """
    path, shapes = weights.path, weights.shapes
    shared = [name for name in variables if name in shapes]
    missing = [name for name in variables if name not in shapes]
    if not shared:
        lists = f"It has {abbreviated_list(sorted(shapes))}; the model has {abbreviated_list(list(variables))}."
        raise ValueError(f"{path} has none of the model's variables. {lists}")
    sizes = {name: (list(shapes[name]), list(variables[name].shape)) for name in shared}
    wrong = [f"{name}: {old} in the checkpoint, {new} in the model" for name, (old, new) in sizes.items() if old != new]
    if wrong:
        raise ValueError(f"{path} does not match the model in {len(wrong)} shapes: {abbreviated_list(wrong, '; ')}.")
    if must_have_all and missing:
        raise ValueError(f"{path} lacks {len(missing)} of the run's variables: {abbreviated_list(missing)}.")
    for name in shared:
        variables[name].assign(weights.read_finite(name))
        layers.mark_initialized(variables[name])
    unused = dict.fromkeys(sorted(set(shapes) - set(shared)), "") | weights.unused
    return Initialization(path, shared, missing, unused)


def initialize_model(
    model: keras.Model, weights: Weights, *, complete: bool = False, untrained: Collection[str] = ()
) -> Initialization:
    """Builds a model with the variables of weights, logs what was loaded, and warns of what stays random.

    A warning shows the line that calls the caller.

    complete: see `check_complete`, which is then called.
    untrained: variables whose values were saved before they were trained, which is as if they were missing.
    """
    with layers.deferred_initialization():
        if not model.built:
            model.build()
        result = initialize(model_variables(model), weights)
    if unread := [name for name in result.initialized if name in untrained]:
        initialized = [name for name in result.initialized if name not in untrained]
        unused = result.unused | dict.fromkeys(unread, _UNTRAINED)
        result = Initialization(result.checkpoint, initialized, [*result.missing, *unread], unused)
    if complete:
        check_complete(result, model)
    log_initialization(result, model, logging.INFO)
    missing, variables = _random_variables(result, model), model_variables(model)
    setattr(model, _RANDOM, {name: _checksum(variables, name) for name in missing})
    unused = [name for name, reason in result.unused.items() if not reason and is_model_variable(name)]
    unused = _without_pooler(filter(is_encoder_variable, unused))
    if missing:
        verb = "are untrained" if _UNTRAINED in map(result.unused.get, missing) else "are not"
        message = f"{len(missing)} variables of {type(model).__name__} {verb} in {result.checkpoint} and are random: "
        warnings.warn(f"{message}{abbreviated_list(missing)}. Train it before you use it.", PartialLoadWarning, 3)
    if unused:
        message = f"{len(unused)} variables of the encoder in {result.checkpoint} are not used by the model: "
        warnings.warn(f"{message}{abbreviated_list(unused)}.", PartialLoadWarning, 3)
    return result


def weights_for(model: keras.Model, path: str, *, merge: bool = True) -> Weights:
    """The weights at a path; of several models in a file those that the model takes. merge: see `open_weights`."""
    weights = open_weights(path, merge=merge)
    return model.weights_in(weights) if hasattr(model, "weights_in") else weights


def draw_normal_weights(model: keras.Model) -> None:
    """Draws the weights of a new model from a normal distribution that is not cut off, as fairseq does for RoBERTa
    (init_bert_params) and transformers for DistilBERT; the rows of padding in its tables are 0.

    model: built.
    """
    config, tables = model.config, model.bert.embeddings
    empty = {tables.word_embeddings.path: getattr(config, "pad_token_id", 0)}
    if config.padding_has_a_position:
        empty[tables.position_embeddings.path] = config.first_position - 1
    for variable in model.trainable_variables:
        if len(variable.shape) > 1:  # all others are biases, and of layer norms
            # One that is used again draws the same values.
            value = keras.initializers.RandomNormal(stddev=config.initializer_range)(variable.shape)
            if variable.path in empty:
                value = keras.ops.where((keras.ops.arange(len(value)) == empty[variable.path])[:, None], 0.0, value)
            variable.assign(value)
            layers.mark_initialized(variable)


class PartialLoadWarning(UserWarning):
    """A model and the weights it was loaded from do not have the same variables: what they lack is random."""


def load_weights(model: keras.Model, checkpoint: str) -> Initialization:
    """Loads weights of any format into a model; logs what was loaded and warns of what stays random.

    checkpoint: a prefix such as `uncased_L-12_H-768_A-12/bert_model.ckpt`, a weight file, a directory or a name.
    """
    return initialize_model(model, weights_for(model, hub.local(checkpoint)))


def _without_pooler(names: Iterable[str], unread: tuple[str, ...] = ()) -> list[str]:
    names = (name for name in names if not name.startswith(unread))
    return [name for name in names if not is_encoder_variable(name) or "/pooler/" not in name]


def _random_variables(result: Initialization, model: keras.Model) -> list[str]:
    return result.missing if getattr(model, "reads_pooler", True) else _without_pooler(result.missing)


def check_complete(result: Initialization, model: keras.Model, unread: tuple[str, ...] = ()) -> None:
    """Raises if variables that the outputs depend on are still random.

    unread: beginnings of the names of variables that are not needed.
    """
    if missing := [name for name in _random_variables(result, model) if not name.startswith(unread)]:
        raise incomplete(result.checkpoint, missing, _UNTRAINED in map(result.unused.get, missing))


def untrained_variables(model: keras.Model) -> list[str]:
    """The variables that the weights lacked which a model was loaded from, and that were not trained since."""
    noted = getattr(model, _RANDOM, {})
    variables = model_variables(model) if noted else {}
    return [name for name in noted if _checksum(variables, name) == noted[name]]


def check_trained(model: keras.Model, unread: tuple[str, ...] = ()) -> None:
    """Raises for variables that the weights lacked and that were not trained since, but for the pooler and `unread`."""
    if names := _without_pooler(untrained_variables(model), unread):
        problem = f"{len(names)} variables of {type(model).__name__} are still random, as its weights lack them"
        raise ValueError(f"{problem}: {abbreviated_list(names)}.")


def _checksum(variables: Mapping[str, keras.Variable], name: str) -> str:
    return variables_as_weights(name, {name: variables[name]}).checksum


def load_complete(model: keras.Model, weights: Weights) -> None:
    result = initialize(model_variables(model), weights)
    check_complete(result, model)
    log_initialization(result, model)


def log_initialization(result: Initialization, model: keras.Model, level: int | None = None) -> None:
    """Logs what was loaded, and what stays random: at this level, or as a warning unless it is a new output layer."""
    sizes = {name: math.prod(variable.shape) for name, variable in model_variables(model).items()}
    unused = sorted(filter(is_model_variable, result.unused))
    parameters = f"{sum(sizes.get(name, 0) for name in result.initialized):,} of {sum(sizes.values()):,} parameters"
    count = f"{len(result.initialized)} of {len(result.initialized) + len(result.missing)} variables ({parameters})"
    rest = f"{len(unused)} of its entries are not used" + (f" ({abbreviated_list(unused)})" if unused else "")
    logging.info("Initialised %s from %s; %s.", count, result.checkpoint, rest)
    by_reason: dict[str, list[str]] = {}
    for name in result.missing:
        by_reason.setdefault(result.unused.get(name) or "", []).append(name)
    missing = by_reason.pop("", [])
    for reason, names in by_reason.items():
        logging.info("%d variables begin anew (%s): %s", len(names), reason, ", ".join(names))
    if missing:
        if level is None:
            whole_encoder = not any(map(is_encoder_variable, _random_variables(result, model)))
            level = logging.INFO if whole_encoder else logging.WARNING
        message = "%d variables are not in %s and keep their random initial values: %s"
        logging.log(level, message, len(missing), result.checkpoint, ", ".join(missing))
