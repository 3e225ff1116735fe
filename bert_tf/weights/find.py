"""Finds weight files by a directory, a prefix or a file name."""

import codecs
import dataclasses
import posixpath
import re

from absl import logging

from bert_tf.system.literal_paths import names_in, paths_beginning_with
from bert_tf.system.messages import some
from bert_tf.system.text_files import exists, is_folder, read_bytes
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


@dataclasses.dataclass(frozen=True)
class CheckpointState:
    """What a run's file `checkpoint` says: the prefix of its newest checkpoint, and those of all that count."""

    model_checkpoint_path: str
    all_model_checkpoint_paths: tuple[str, ...]


_STATE_LINE = re.compile(rb'\s*(\w+):\s*(?:"((?:[^"\\\\]|\\\\.)*)"|[\d.e+-]+)\s*')


def checkpoint_state(output_dir: str) -> CheckpointState | None:
    """The state in the file `checkpoint`; None if there is no such file, or, with a warning, if it is damaged."""
    path = posixpath.join(output_dir, "checkpoint")
    if not exists(path):
        return None
    found: dict[bytes, list[str]] = {}
    try:
        for line in filter(bytes.strip, read_bytes(path).splitlines()):
            if not (match := _STATE_LINE.fullmatch(line)):
                raise ValueError(f"it has a line {line!r:.80}")
            name = codecs.escape_decode(match[2] or b"")[0].decode()
            found.setdefault(match[1], []).append(posixpath.join(output_dir, name))
        newest = found[b"model_checkpoint_path"][-1]
    except (KeyError, ValueError) as error:
        reason = "it names no newest checkpoint" if isinstance(error, KeyError) else error
        logging.warning("%s is damaged: %s", path, reason)
        return None
    return CheckpointState(newest, tuple(found.get(b"all_model_checkpoint_paths", [newest])))


def saved_steps(output_dir: str) -> dict[int, str]:
    """step -> prefix of all checkpoints of a run that have an index."""
    matches = (re.fullmatch(r"(model\.ckpt-(\d+))\.index", name) for name in names_in(output_dir))
    return {int(match[2]): posixpath.join(output_dir, match[1]) for match in matches if match}


def _is_complete(prefix: str) -> bool:
    return exists(prefix + INDEX_SUFFIX) and bool(data_files(prefix))


def data_files(prefix: str) -> list[str]:
    """The paths of a checkpoint's files of values: one, or its shards; none if there is no such checkpoint."""
    return paths_beginning_with(prefix + DATA_SUFFIX[:6])


def find_file(path: str, names: tuple[str, ...], suffixes: tuple[str, ...]) -> str | None:
    """The first of `names` that exists in a directory; or `path` itself if it is a file with one of `suffixes`."""
    if is_folder(path):
        files = (posixpath.join(path, name) for name in names)
        return next((file for file in files if exists(file)), None)
    return path if path.endswith(suffixes) and exists(path) else None


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
    if not is_folder(path):
        prefix = bundle_prefix(path)
        return prefix if exists(prefix + INDEX_SUFFIX) else None
    for name in ("variables/variables", None, usual_name):
        prefix = posixpath.join(path, name) if name else latest_checkpoint(path)
        if prefix and exists(prefix + INDEX_SUFFIX):
            return prefix
    names = names_in(path)
    prefixes = [name.removesuffix(INDEX_SUFFIX) for name in names if name.endswith(INDEX_SUFFIX)]
    if len(prefixes) > 1:
        raise FileNotFoundError(
            f"{path} has several checkpoints: give the prefix of one of them. It contains {some(names)}."
        )
    return posixpath.join(path, prefixes[0]) if prefixes else None
