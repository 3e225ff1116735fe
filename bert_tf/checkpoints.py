"""Checkpoints under the names and shapes of the original's TF1 files, in and out.

What a training run saves (`model.ckpt-<step>`) is the original's own format: every variable by name, its Adam moments
as `<name>/adam_m` and `<name>/adam_v`, and `global_step`. The original can go on from our files and we from its files.

A checkpoint appears under its final name only when it is complete, and the state file `checkpoint` names it only after
that, so a process killed at any moment leaves the previous one valid.
"""

import dataclasses
import posixpath
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.bundles import DATA_SUFFIX, INDEX_SUFFIX, write_bundle
from bert_tf.text_files import write_text_file
from bert_tf.weight_files import latest_checkpoint, open_weights
from bert_tf.weights import Weights, some

__all__ = [
    "Initialization",
    "checkpoint_name",
    "initialize",
    "latest_checkpoint",
    "load_weights",
    "log_initialization",
    "model_variables",
    "model_weights",
    "read_global_step",
    "save",
    "training_variables",
    "write_bundle",
]

_STATE_FILE = "checkpoint"
_MOMENTS = {"adam_m": "first_moments", "adam_v": "second_moments"}


def checkpoint_name(variable: keras.Variable) -> str:
    """The name of a variable in the original's checkpoints.

    What stands before the encoder (`bert/`) in its path is the models around it, which a checkpoint does not name. A
    head called `cls_predictions` stands for `cls/predictions`, since a Keras layer name can't hold a slash; one called
    `classifier` for no scope at all, which is where the original's run_classifier.py has its output layer.
    """
    parts = variable.path.split("/")
    if "bert" in parts:
        return "/".join(parts[parts.index("bert") :])
    path = "/".join(parts[1:]).removeprefix("classifier/")
    return "cls/" + path.removeprefix("cls_") if path.startswith("cls_") else path


def model_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """The trainable variables of a model by checkpoint name."""
    return {checkpoint_name(variable): variable for variable in model.trainable_variables}


def model_weights(model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None) -> Weights:
    """A model in memory as `Weights`, and with an optimizer its moments and step."""
    variables = training_variables(model, optimizer) if optimizer else model_variables(model)

    def read(name: str) -> np.ndarray:
        value = keras.ops.convert_to_numpy(variables[name].value)
        return value.astype(np.int64) if name == "global_step" else value

    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    return Weights(model.name, "bert_tf", shapes, {name: name for name in shapes}, read)


def training_variables(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, keras.Variable]:
    """All that a run saves: variables, moments and `global_step` (the optimizer's count of steps)."""
    names = {variable.path: name for name, variable in model_variables(model).items()}
    variables = model_variables(model)
    for suffix, attribute in _MOMENTS.items():
        for variable, moment in zip(optimizer._trainable_variables, getattr(optimizer, attribute), strict=True):
            variables[f"{names[variable.path]}/{suffix}"] = moment
    variables["global_step"] = optimizer.iterations
    return variables


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Initialization:
    """Which variables a checkpoint gave.

    Attributes:
      checkpoint: its prefix. initialized: names taken. missing: names of the model that it doesn't have.
      unused: names of the checkpoint that the model doesn't have.
    """

    checkpoint: str
    initialized: list[str]
    missing: list[str]
    unused: list[str]


def initialize(
    variables: Mapping[str, keras.Variable], init_checkpoint: str | Weights, *, must_have_all: bool = False
) -> Initialization:
    """Sets variables from weights of any format, by exact name of the original.

    Nothing is assigned unless everything fits.

    Args:
      variables: from `model_variables` or `training_variables`.
      init_checkpoint: a path (see `weight_files.find_weights`) or weights already open.
      must_have_all: a variable that the checkpoint doesn't have is an error (resuming a run).

    Raises:
      FileNotFoundError: no such checkpoint.
      ValueError: a shape differs, no name matches at all, or one is missing under `must_have_all`.
    """
    weights = init_checkpoint if isinstance(init_checkpoint, Weights) else open_weights(init_checkpoint)
    path, shapes = weights.path, weights.shapes
    found = [name for name in variables if name in shapes]
    missing = [name for name in variables if name not in shapes]
    if not found:
        raise ValueError(
            f"{path} has none of the model's variables: starting from it would start from random weights. "
            f"It holds {some(sorted(shapes))}; the model has {some(list(variables))}."
        )
    wrong = [
        f"{name}: {list(shapes[name])} in the checkpoint, {list(variables[name].shape)} in the model"
        for name in found
        if list(shapes[name]) != list(variables[name].shape)
    ]
    if wrong:
        raise ValueError(
            f"{path} does not fit the model (its configuration or number of labels): {len(wrong)} of {len(found)} "
            f"variables have another shape. {some(wrong, '; ')}."
        )
    if must_have_all and missing:
        raise ValueError(f"{path} lacks {len(missing)} of the run's {len(variables)} variables: {some(missing)}.")
    for name in found:
        variables[name].assign(weights.read(name))
    unused = sorted((set(shapes) - set(found)) | set(weights.unused))
    return Initialization(path, found, missing, unused)


def load_weights(model: keras.Model, checkpoint: str) -> Initialization:
    """Loads weights of any format into a model; logs what came from them and what stayed random.

    Args:
      checkpoint: a prefix such as `uncased_L-12_H-768_A-12/bert_model.ckpt`, a weight file, or a directory.

    Raises:
      FileNotFoundError, ValueError: see `initialize`.
    """
    if not model.built:
        model.build()
    result = initialize(model_variables(model), checkpoint)
    log_initialization(result, model)
    return result


def read_global_step(prefix: str) -> int:
    """The step that a checkpoint was saved at; 0 for one without (released weights)."""
    weights = open_weights(prefix)
    return int(weights.read("global_step")) if "global_step" in weights.shapes else 0


def log_initialization(result: Initialization, model: keras.Model) -> None:
    """One line on what came from the checkpoint, and a warning with what stayed random."""
    variables = model_variables(model)
    parameters = sum(int(np.prod(variables[name].shape)) for name in result.initialized if name in variables)
    total = sum(int(np.prod(variable.shape)) for variable in variables.values())
    logging.info(
        "Initialised %d of %d variables (%s of %s parameters) from %s; %d of its entries are not used here%s.",
        len(result.initialized),
        len(result.initialized) + len(result.missing),
        f"{parameters:,}",
        f"{total:,}",
        result.checkpoint,
        len(result.unused),
        f" ({some(result.unused)})" if result.unused else "",
    )
    if result.missing:
        logging.warning(
            "%d variables are not in %s and keep their random start: %s",
            len(result.missing),
            result.checkpoint,
            ", ".join(result.missing),
        )


# --- writing ---------------------------------------------------------------------------------------------------------


def save(output_dir: str, step: int, tensors: Mapping, keep_max: int = 5) -> str:
    """Writes `output_dir/model.ckpt-<step>` and drops all but the newest `keep_max` checkpoints.

    Args:
      tensors: values by name (variables, arrays or scalars).
      keep_max: 0 keeps all.

    Returns:
      The prefix.

    Raises:
      OSError: it could not be written (disk full, no permission); the checkpoints before it stay valid and listed.
    """
    prefix = posixpath.join(output_dir, f"model.ckpt-{step}")
    temporary = prefix + ".writing"
    names = sorted(tensors)
    try:
        tf.io.gfile.makedirs(temporary)
        write_bundle(posixpath.join(temporary, "model"), {name: tensors[name] for name in names})
        # The index goes last: a prefix counts as a checkpoint only once its index is there.
        for suffix in (DATA_SUFFIX, ".index"):
            tf.io.gfile.rename(posixpath.join(temporary, "model" + suffix), prefix + suffix, overwrite=True)
    except tf.errors.OpError as error:
        raise OSError(
            f"{prefix} could not be written: {error.message}. The checkpoints before it are untouched; free some space "
            "or choose another --output_dir, then run the same command again to go on."
        ) from error
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.rmtree(temporary)
    state = tf.train.get_checkpoint_state(output_dir)
    older = [posixpath.basename(path) for path in state.all_model_checkpoint_paths] if state else []
    names = [name for name in older if name != posixpath.basename(prefix) and _exists(output_dir, name)]
    names.append(posixpath.basename(prefix))
    dropped, kept = (names[:-keep_max], names[-keep_max:]) if keep_max else ([], names)
    # Names without a folder: a run that is moved or copied still finds its checkpoints.
    lines = [f'model_checkpoint_path: "{kept[-1]}"\n'] + [f'all_model_checkpoint_paths: "{name}"\n' for name in kept]
    write_text_file(posixpath.join(output_dir, _STATE_FILE), "".join(lines))
    for name in dropped:
        for suffix in (".index", DATA_SUFFIX):
            path = posixpath.join(output_dir, name + suffix)
            if tf.io.gfile.exists(path):
                tf.io.gfile.remove(path)
    return prefix


def _exists(output_dir: str, name: str) -> bool:
    return tf.io.gfile.exists(posixpath.join(output_dir, name + INDEX_SUFFIX))
