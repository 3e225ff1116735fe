"""Reads and writes checkpoints with the names and shapes of the original's TF1 files.

A training run saves (`model.ckpt-<step>`) the original's own format: every variable by name, its Adam moments as
`<name>/adam_m` and `<name>/adam_v`, and `global_step`. The original can continue from our files and we from its files.

A checkpoint appears under its final name only when it is complete and on the disk, and only then does the state file
`checkpoint` name it, so a process killed at any moment, or a power cut, leaves the previous one valid. Where a disk has
damaged the newest one, training goes on from the newest whole one.
"""

import concurrent.futures
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.models import initialize
from bert_tf.store import bundle, variable_names
from bert_tf.store.bundle import write_bundle
from bert_tf.store.tensor_files import Weights
from bert_tf.system.messages import announced
from bert_tf.system.storage import names_in, sync, temporary_folder, write_text_file

_STATE_FILE = "checkpoint"
_SET_ASIDE = "damaged."  # before the names of a damaged checkpoint's files

Used = TypeVar("Used")


def use_newest(prefixes: Sequence[str], use: Callable[[str], Used], may_be_older: bool = True) -> Used | None:
    """Uses the newest checkpoint, or if that is damaged, the newest one that is not, with a warning that names both.

    The damaged ones are then renamed, so that no later start takes them for checkpoints.

    prefixes: as `bundle.checkpoints_among` has them.
    use: called with a prefix; raises DamagedError. Its result is returned, if there is a checkpoint.
    may_be_older: False: only the newest will do.
    """
    damaged = []
    for prefix in prefixes:
        try:
            used = use(prefix)
        except bundle.DamagedError as error:
            if not may_be_older:
                raise
            damaged.append((prefix, error))
            continue
        for path, error in damaged:
            logging.warning("%s is damaged; going on from %s instead. %s", path, prefix, error)
            for file in (path + bundle.INDEX_SUFFIX, *bundle.data_files(path)):
                folder, name = posixpath.split(file)
                try:
                    tf.io.gfile.rename(file, posixpath.join(folder, _SET_ASIDE + name), overwrite=True)
                except tf.errors.NotFoundError:
                    logging.info("%s was renamed by another worker.", name)
        return used
    if damaged:
        raise damaged[0][1]
    return None


def save(output_dir: str, step: int, tensors: Mapping, keep_max: int = 5) -> str:
    """Writes variables, arrays or scalars to `output_dir/model.ckpt-<step>`, the prefix that is returned.

    keep_max: older checkpoints are removed but for so many; 0 keeps all.
    """
    prefix = posixpath.join(output_dir, f"model.ckpt-{step}")
    temporary = prefix + ".writing"
    try:
        with temporary_folder(temporary):
            write_bundle(posixpath.join(temporary, "model"), dict(sorted(tensors.items())))
            for suffix in (bundle.DATA_SUFFIX, bundle.INDEX_SUFFIX):
                sync(posixpath.join(temporary, "model" + suffix))
            # A prefix counts as a checkpoint only while it has an index: the old index goes first, the new comes last.
            if tf.io.gfile.exists(prefix + bundle.INDEX_SUFFIX):
                _remove(prefix)
            for suffix in (bundle.DATA_SUFFIX, bundle.INDEX_SUFFIX):
                tf.io.gfile.rename(posixpath.join(temporary, "model" + suffix), prefix + suffix, overwrite=True)
            sync(output_dir)
    except tf.errors.OpError as error:
        raise OSError(f"{prefix} could not be written; those before it are untouched. {error.message}") from error
    (_, listed), new = bundle.checkpoint_state(output_dir), posixpath.basename(prefix)
    # Only those that a run saves: the state file may name others, such as the released weights next to them.
    existing = {*bundle.steps_among(names_in(output_dir)).values()} - {new}
    names = [*(name for name in map(posixpath.basename, listed) if name in existing), new]
    dropped, kept = (names[:-keep_max], names[-keep_max:]) if keep_max else ([], names)
    write_text_file(posixpath.join(output_dir, _STATE_FILE), bundle.state_text(kept))
    for name in dropped:
        _remove(posixpath.join(output_dir, name))
    return prefix


def _remove(prefix: str) -> None:
    tf.io.gfile.remove(prefix + bundle.INDEX_SUFFIX)
    for path in bundle.data_files(prefix):
        tf.io.gfile.remove(path)


class Writer:
    """Saves checkpoints in a thread, one after the other, while training goes on; the context waits for the last.

    active: False on workers that write nothing.
    """

    def __init__(self, output_dir: str, keep_max: int, active: bool = True):
        self._output_dir, self._keep_max, self._active = output_dir, keep_max, active
        self._thread, self._saved = concurrent.futures.ThreadPoolExecutor(1), None

    def save(self, step: int, tensors: Mapping) -> None:
        """`save`, of the values that the tensors have now: a CPU copies them only if they change before they are
        written; those of other devices are copied to the host's memory here."""
        if not self._active:
            return
        self.join()
        with tf.device("CPU:0"):
            values = {name: tf.identity(bundle.tensor_value(tensor)) for name, tensor in tensors.items()}

        def write():
            logging.info("Saved %s", save(self._output_dir, step, values, self._keep_max))

        self._saved = self._thread.submit(write)

    def join(self) -> None:
        if self._saved is None:
            return
        with announced(f"Saving a checkpoint in {self._output_dir} ..."):
            concurrent.futures.wait([self._saved])
        saved, self._saved = self._saved, None
        saved.result()  # or its error

    def newest(self) -> str | None:
        """The newest checkpoint in the folder, once the last is written."""
        self.join()
        return bundle.latest_checkpoint(self._output_dir)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind, error, _) -> None:
        try:
            self.join()
        except OSError as of_writing:
            if error is None:
                raise
            logging.error("%s", of_writing)


def remove_superseded(output_dir: str, keep_max: int, names: Sequence[str]) -> None:
    """Brings the folder to what `save` would have left, had it not been killed. names: of all files there.

    Checkpoints without a state file are listed in one, so that they are removed in their turn. Those older than all
    that it names are removed, if these are as many as are kept, and so are files of values without an index.
    """
    (_, listed), steps = bundle.checkpoint_state(output_dir), bundle.steps_among(names)
    values = [name for name in names if re.fullmatch(r"model\.ckpt-\d+\.data-\d+-of-\d+", name)]
    listed = {*map(posixpath.basename, listed)}
    if not listed or not {name + bundle.INDEX_SUFFIX for name in listed} <= {*names}:
        with_values = {name.partition(".data-")[0] for name in values}
        whole = [name for name in steps.values() if name in with_values]
        if not whole:
            return
        write_text_file(posixpath.join(output_dir, _STATE_FILE), bundle.state_text(whole))
        listed = set(whole)
    oldest = min((step for step, name in steps.items() if name in listed), default=0)
    superseded = [name for step, name in steps.items() if step < oldest] if 0 < keep_max <= len(listed) else []
    left = {*steps.values()} - {*superseded}
    orphans = [name for name in values if name.partition(".data-")[0] not in left]
    for name in (*(name + bundle.INDEX_SUFFIX for name in superseded), *orphans):  # without its index none counts
        tf.io.gfile.remove(posixpath.join(output_dir, name))


# --- what a run starts from -------------------------------------------------------------------------------------------


def restore(
    model,
    optimizer,
    output_dir: str,
    start: Weights | str | None,
    with_optimizer: bool = False,
    *,
    adjust: Callable[[Weights], Weights] = lambda weights: weights,
    unread: tuple[str, ...] = (),
) -> int:
    """Restores what a run starts from, logs it in one line, and returns the step.

    A checkpoint in output_dir wins: the same command resumes. start: else its weights; or, if there is one, their name.

    optimizer: None: the model is not trained. with_optimizer: moments and global_step are those of the start, too.
    adjust: makes of the weights those that the model takes. unread: see `initialize.check_complete`.
    """
    model_only = initialize.model_variables(model)
    everything = initialize.training_variables(model, optimizer) if optimizer else model_only

    def resume(newest: str) -> tuple[str, int]:
        merge = optimizer is None or not variable_names.has_adapters(model)
        weights = initialize.weights_for(model, newest, merge=merge)
        _restore_all(everything, adjust(weights))
        return newest, int(weights["global_step"]) if "global_step" in weights else 0  # released weights have none

    prefixes = bundle.checkpoints_among(names_in(output_dir), output_dir)
    resumed = use_newest(prefixes, resume, may_be_older=optimizer is not None)
    if resumed:
        newest, step = resumed
        ignored = f" (so --init_checkpoint={start} is not used)" if isinstance(start, str) else ""
        logging.info("Resuming at step %d from %s%s.", step, newest, ignored)
        return step
    if start:
        weights = adjust(start)
        result = _restore_all(everything, weights) if with_optimizer else initialize.initialize(model_only, weights)
        if optimizer is None:
            initialize.check_complete(result, model, unread)
        initialize.log_initialization(result, model)
        return int(weights["global_step"]) if with_optimizer else 0
    logging.info("No checkpoint in %s and no --init_checkpoint: starting from random weights.", output_dir)
    return 0


def _restore_all(variables: dict[str, keras.Variable], weights: Weights) -> initialize.Initialization:
    """Restores variables and Adam moments, of which only those of variables without a gradient may be missing.

    The original has no moments for them (the pooler, in run_squad.py); here they are zero, as they would have stayed.
    """
    moments = ("adam_m", "adam_v")
    trained = [name.removesuffix("/adam_m") for name in variables if name.endswith("/adam_m")]
    without = [name for name in trained if not any(f"{name}/{moment}" in weights.shapes for moment in moments)]
    if len(without) == len(trained):
        without = []  # no optimizer state at all, which is an error
    absent = {f"{name}/{moment}" for name in without for moment in moments}
    present = {name: variable for name, variable in variables.items() if name not in absent}
    result = initialize.initialize(present, weights, must_have_all=True)
    if without:
        for name in absent:
            variables[name].assign(np.zeros(variables[name].shape, np.float32))
        logging.info("%s has no Adam moments of %s: they start at zero.", weights.path, ", ".join(sorted(without)))
    return result
