"""Finds weight files by a directory, a prefix or a file name."""

import posixpath
import re

import tensorflow as tf
from absl import logging

from bert_tf.system.literal_paths import names_in, paths_beginning_with
from bert_tf.system.messages import some
from bert_tf.weights.bundle import DATA_SUFFIX, INDEX_SUFFIX


def latest_checkpoint(output_dir: str) -> str | None:
    """Prefix of the newest complete checkpoint in `output_dir`, or None.

    That is the checkpoint named in the state file. If the file or that checkpoint (or a part of it) does not exist, the
    newest `model.ckpt-<step>` is used, with a warning: a run never starts over beside its own checkpoints.
    """
    state = checkpoint_state(output_dir)
    newest = state.model_checkpoint_path if state else None
    if newest and _is_complete(newest):
        return newest
    left = [prefix for _, prefix in sorted(saved_steps(output_dir).items()) if data_files(prefix)]
    if not left:
        return None
    logging.warning(
        "%s names no checkpoint that is there; %s is the newest one left.", f"{output_dir}/checkpoint", left[-1]
    )
    return left[-1]


def checkpoint_state(output_dir: str):
    """The CheckpointState in the file `checkpoint`; None if there is no such file, or it is damaged."""
    try:
        return tf.train.get_checkpoint_state(output_dir)
    except ValueError as error:  # not text, or it names no newest checkpoint
        logging.warning("%s is damaged: %s", posixpath.join(output_dir, "checkpoint"), error)
        return None


def saved_steps(output_dir: str) -> dict[int, str]:
    """step -> prefix of all checkpoints of a run that have an index."""
    matches = (re.fullmatch(r"(model\.ckpt-(\d+))\.index", name) for name in names_in(output_dir))
    return {int(match[2]): posixpath.join(output_dir, match[1]) for match in matches if match}


def _is_complete(prefix: str) -> bool:
    return tf.io.gfile.exists(prefix + INDEX_SUFFIX) and bool(data_files(prefix))


def data_files(prefix: str) -> list[str]:
    """The paths of a checkpoint's files of values: one, or its shards; none if there is no such checkpoint."""
    return paths_beginning_with(prefix + DATA_SUFFIX[:6])


def find_file(path: str, names: tuple[str, ...], suffixes: tuple[str, ...]) -> str | None:
    """The first of `names` that exists in a directory; or `path` itself if it is a file with one of `suffixes`."""
    if tf.io.gfile.isdir(path):
        files = (posixpath.join(path, name) for name in names)
        return next((file for file in files if tf.io.gfile.exists(file)), None)
    return path if path.endswith(suffixes) and tf.io.gfile.exists(path) else None


def bundle_prefix(path: str) -> str:
    """The prefix of a TensorFlow checkpoint, given the prefix or one of its files."""
    prefix = path.removesuffix(INDEX_SUFFIX)
    begin = posixpath.basename(prefix).rfind(DATA_SUFFIX[:6])
    return prefix if begin < 0 else posixpath.join(posixpath.dirname(prefix), posixpath.basename(prefix)[:begin])


def find_bundle(path: str, usual_name: str) -> str | None:
    """The prefix of the TensorFlow checkpoint that a directory, prefix or file refers to; None if there is none.

    In a directory it is, in this order, a SavedModel's, the newest of a run, `usual_name`, or the only one.

    Raises:
      FileNotFoundError: the directory has several and none of the first three.
    """
    if not tf.io.gfile.isdir(path):
        prefix = bundle_prefix(path)
        return prefix if tf.io.gfile.exists(prefix + INDEX_SUFFIX) else None
    for name in ("variables/variables", None, usual_name):
        prefix = posixpath.join(path, name) if name else latest_checkpoint(path)
        if prefix and tf.io.gfile.exists(prefix + INDEX_SUFFIX):
            return prefix
    names = names_in(path)
    prefixes = [name.removesuffix(INDEX_SUFFIX) for name in names if name.endswith(INDEX_SUFFIX)]
    if len(prefixes) > 1:
        raise FileNotFoundError(
            f"{path} has several checkpoints: give the prefix of one of them. It contains {some(names)}."
        )
    return posixpath.join(path, prefixes[0]) if prefixes else None
