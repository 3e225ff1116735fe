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

from bert_tf.text_files import write_text_file

_STATE_FILE = "checkpoint"
_DATA_SUFFIX = ".data-00000-of-00001"
_MOMENTS = {"adam_m": "first_moments", "adam_v": "second_moments"}
_NAMES_SHOWN = 8


def checkpoint_name(variable: keras.Variable) -> str:
    """The name of a variable in the original's checkpoints.

    What stands before the encoder (`bert/`) in its path is the models around it, which a checkpoint does not name. A
    head called `cls_predictions` stands for `cls/predictions`, since a Keras layer name can't hold a slash.
    """
    parts = variable.path.split("/")
    if "bert" in parts:
        return "/".join(parts[parts.index("bert") :])
    path = "/".join(parts[1:])
    return "cls/" + path.removeprefix("cls_") if path.startswith("cls_") else path


def model_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """The trainable variables of a model by checkpoint name."""
    return {checkpoint_name(variable): variable for variable in model.trainable_variables}


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


def latest_checkpoint(output_dir: str) -> str | None:
    """Prefix of the newest complete checkpoint of `output_dir`, or None.

    That is the one which the state file names. Should the file or what it names be gone, the newest `model.ckpt-<step>`
    that is there counts, with a warning: a run never starts over beside checkpoints of its own.
    """
    newest = tf.train.latest_checkpoint(output_dir)
    if newest:
        return newest
    steps = []
    for path in tf.io.gfile.glob(posixpath.join(output_dir, "model.ckpt-*.index")):
        prefix = path.removesuffix(".index")
        step = prefix.rsplit("-", 1)[1]
        if step.isdigit() and tf.io.gfile.exists(prefix + _DATA_SUFFIX):
            steps.append((int(step), prefix))
    if not steps:
        return None
    logging.warning(
        "The newest checkpoint that %s names is gone; %s is the newest there is.", output_dir, max(steps)[1]
    )
    return max(steps)[1]


def find_checkpoint(path: str) -> str:
    """Turns what a user may pass as --init_checkpoint into a checkpoint prefix.

    Accepts a prefix, one of its files, or a directory with a `checkpoint` file or a `bert_model.ckpt`.

    Raises:
      FileNotFoundError: there is no such checkpoint; the message says what was looked for.
    """
    prefix = path.removesuffix(".index").removesuffix(_DATA_SUFFIX)
    if tf.io.gfile.isdir(path):
        prefix = latest_checkpoint(path) or posixpath.join(path, "bert_model.ckpt")
    if not tf.io.gfile.exists(prefix + ".index"):
        raise FileNotFoundError(
            f"--init_checkpoint={path}: no checkpoint there ({prefix}.index does not exist). Give the prefix without "
            ".index or .data, e.g. uncased_L-12_H-768_A-12/bert_model.ckpt."
        )
    return prefix


def _open(prefix: str):
    try:
        return tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, ValueError) as error:
        raise ValueError(f"{prefix}: can't be read as a TensorFlow checkpoint: {error}") from error


def initialize(
    variables: Mapping[str, keras.Variable], init_checkpoint: str, *, must_have_all: bool = False
) -> Initialization:
    """Sets variables from a checkpoint by exact name, as the original does.

    Nothing is assigned unless everything fits.

    Args:
      variables: from `model_variables` or `training_variables`.
      init_checkpoint: see `find_checkpoint`.
      must_have_all: a variable that the checkpoint doesn't have is an error (resuming a run).

    Raises:
      FileNotFoundError: no such checkpoint.
      ValueError: a shape differs, no name matches at all, or one is missing under `must_have_all`.
    """
    prefix = find_checkpoint(init_checkpoint)
    reader = _open(prefix)
    shapes = reader.get_variable_to_shape_map()
    found = [name for name in variables if name in shapes]
    missing = [name for name in variables if name not in shapes]
    if not found:
        raise ValueError(
            f"{prefix} has none of the model's variables: starting from it would start from random weights. "
            f"It holds {_some(sorted(shapes))}; the model has {_some(list(variables))}."
        )
    wrong = [
        f"{name}: {list(shapes[name])} in the checkpoint, {list(variables[name].shape)} in the model"
        for name in found
        if list(shapes[name]) != list(variables[name].shape)
    ]
    if wrong:
        raise ValueError(
            f"{prefix} does not fit bert_config.json: {len(wrong)} of {len(found)} variables have another shape. "
            f"{_some(wrong, '; ')}."
        )
    if must_have_all and missing:
        raise ValueError(f"{prefix} lacks {len(missing)} of the run's {len(variables)} variables: {_some(missing)}.")
    for name in found:
        try:
            value = reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
            raise ValueError(
                f"{prefix}: {name} can't be read, the file is damaged ({error}). To go on from the checkpoint before "
                f"it, delete {posixpath.basename(prefix)}.*"
            ) from error
        variables[name].assign(value)
    unused = sorted(set(shapes) - set(found))
    return Initialization(prefix, found, missing, unused)


def load_weights(model: keras.Model, checkpoint: str) -> Initialization:
    """Loads a checkpoint of the original into a model, for notebooks; logs what came from it and what stayed random.

    Args:
      checkpoint: a prefix such as `uncased_L-12_H-768_A-12/bert_model.ckpt`, or the folder of a checkpoint.

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
    reader = _open(prefix)
    return int(reader.get_tensor("global_step")) if reader.has_tensor("global_step") else 0


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
        f" ({_some(result.unused)})" if result.unused else "",
    )
    if result.missing:
        logging.warning(
            "%d variables are not in %s and keep their random start: %s",
            len(result.missing),
            result.checkpoint,
            ", ".join(result.missing),
        )


def _some(names: list[str], separator: str = ", ") -> str:
    shown = separator.join(names[:_NAMES_SHOWN])
    return shown + (f"{separator}and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")


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
        for suffix in (_DATA_SUFFIX, ".index"):
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
        for suffix in (".index", _DATA_SUFFIX):
            path = posixpath.join(output_dir, name + suffix)
            if tf.io.gfile.exists(path):
                tf.io.gfile.remove(path)
    return prefix


def _exists(output_dir: str, name: str) -> bool:
    return tf.io.gfile.exists(posixpath.join(output_dir, name + ".index"))


def write_bundle(prefix: str, tensors: Mapping) -> None:
    """Writes tensors by name as one TensorFlow checkpoint file pair (the format of TF1's Saver, version 2)."""
    values = [_value(tensor) for tensor in tensors.values()]
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(tensors), shape_and_slices=[""] * len(values), tensors=values)


def _value(tensor):
    if isinstance(tensor, keras.Variable):
        value = tf.convert_to_tensor(tensor.value)
        # The original's global_step is int64; Keras counts steps in int32.
        return tf.cast(value, tf.int64) if value.dtype == tf.int32 else value
    return tf.convert_to_tensor(tensor)
