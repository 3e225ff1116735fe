"""Finds weight files by a directory, a prefix or a file name."""

import posixpath

import tensorflow as tf
from absl import logging

from bert_tf.system.messages import some
from bert_tf.weights.bundle import DATA_SUFFIX, INDEX_SUFFIX


def latest_checkpoint(output_dir: str) -> str | None:
    """Prefix of the newest complete checkpoint in `output_dir`, or None.

    That is the checkpoint named in the state file. If the file or that checkpoint (or a part of it) does not exist, the
    newest `model.ckpt-<step>` is used, with a warning: a run never starts over beside its own checkpoints.
    """
    newest = tf.train.latest_checkpoint(output_dir)
    if newest and data_files(newest):
        return newest
    steps = []
    for path in tf.io.gfile.glob(posixpath.join(output_dir, "model.ckpt-*.index")):
        prefix = path.removesuffix(INDEX_SUFFIX)
        step = prefix.rsplit("-", 1)[1]
        if step.isdigit() and data_files(prefix):
            steps.append((int(step), prefix))
    if not steps:
        return None
    logging.warning(
        "The newest checkpoint named in %s no longer exists; %s is the newest one left.", output_dir, max(steps)[1]
    )
    return max(steps)[1]


def data_files(prefix: str) -> list[str]:
    """The paths of a checkpoint's files of values: one, or its shards; none if there is no such checkpoint."""
    directory, start = posixpath.dirname(prefix), posixpath.basename(prefix) + DATA_SUFFIX[:6]
    names = (name for name in tf.io.gfile.listdir(directory or ".") if name.startswith(start))
    return [posixpath.join(directory, name) for name in sorted(names)]


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
    indices = sorted(tf.io.gfile.glob(posixpath.join(path, "*" + INDEX_SUFFIX)))
    if len(indices) > 1:
        holds = some(sorted(tf.io.gfile.listdir(path)))
        raise FileNotFoundError(f"{path} has several checkpoints: give the prefix of one of them. It contains {holds}.")
    return indices[0].removesuffix(INDEX_SUFFIX) if indices else None
