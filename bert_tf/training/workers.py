"""Several workers: before the first step they compare what they are about to train, so that none trains something else
unnoticed, and they read what the first has written only once it is there.

All workers call these functions at the same times. With one worker there is nothing to do.
"""

import contextlib
import dataclasses
import functools
import json
import os
import posixpath
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_tf.models.configuration.config import BertConfig
from bert_tf.system.messages import announced, some

# Settings in which workers may differ: where something is, since its content is compared, and what only the first
# worker does, or all as the first does (`loop._Pace`).
_MAY_DIFFER = {
    "output_dir", "init_checkpoint", "bert_config_file", "generator_config_file", "vocab_file", "teacher", "data_dir",
    "input_file", "eval_input_file", "train_file", "dev_file", "test_file", "predict_file", "feature_cache_dir",
    "log_every_steps", "iterations_per_loop", "save_checkpoints_steps", "keep_checkpoint_max", "write_tf_records",
    "verbose_logging", "verify_records", "recompute",
}  # fmt: skip
_SECONDS_TO_APPEAR = 60.0  # of a file on a disk that the workers share
_SECONDS_TO_COME = 1800.0  # of the other workers
_SHOWN = 60  # characters of a value


def are_several(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and len(_names()) > 1


def _config() -> dict:
    return json.loads(os.environ["TF_CONFIG"])


def _names() -> dict[tuple[str, int], str]:
    """The workers, the first of which writes the files: kind and number -> what messages call them."""
    cluster = _config()["cluster"]
    tasks = [(kind, number) for kind in ("chief", "worker") for number in range(len(cluster.get(kind, ())))]
    return {(kind, number): f"{kind} {number} ({cluster[kind][number]})" for kind, number in tasks}


def _own() -> tuple[str, int]:
    task = _config()["task"]
    return task["type"], int(task["index"])


def _is_first() -> bool:
    return _own() == next(iter(_names()))


# --- values of all workers -------------------------------------------------------------------------------------------


@functools.cache
def _mean_of(strategy: tf.distribute.Strategy, shape: tuple[int, ...]) -> Callable[[tf.Tensor], tf.Tensor]:
    """A graph that is called in the same order by all workers."""

    def mean(values):
        def add(values):  # of a tensor that is on the replica's device
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(values))

        return strategy.experimental_local_results(strategy.run(add, args=(values,)))[0]

    return tf.function(mean, autograph=False).get_concrete_function(tf.TensorSpec(shape))


def mean(strategy: tf.distribute.Strategy, values) -> np.ndarray:
    """The mean of each of some numbers over all workers, in float32."""
    values = np.asarray(values, np.float32)
    return _mean_of(strategy, values.shape)(tf.constant(values)).numpy() if are_several(strategy) else values


def gather(strategy: tf.distribute.Strategy, value) -> list:
    """What each worker has given, anything that JSON can hold; that of the one that writes the files comes first."""
    if not are_several(strategy):
        return [value]
    content = np.frombuffer(json.dumps(value).encode(), np.uint8)
    tasks = [*_names()]
    own, count = tasks.index(_own()), len(tasks)
    lengths = np.zeros(count)
    lengths[own] = len(content)
    lengths = np.rint(count * mean(strategy, lengths)).astype(int)
    rows = np.zeros([count, 1 << int(lengths.max()).bit_length()])  # few shapes, since each has a graph
    rows[own, : len(content)] = content
    rows = np.rint(count * mean(strategy, rows)).astype(np.uint8)
    return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]


def meet(strategy: tf.distribute.Strategy) -> None:
    """Returns once all workers are here, none of which another still needs if it ends now."""
    gather(strategy, None)
    with contextlib.suppress(tf.errors.OpError):  # another has ended, after all came
        gather(strategy, None)


# --- before the first step -------------------------------------------------------------------------------------------


def facts_of(*settings) -> dict[str, object]:
    """What workers with these settings must have alike."""
    values = {name: value for each in settings for name, value in dataclasses.asdict(each).items()}
    facts = {f"--{name}": value for name, value in values.items() if name not in _MAY_DIFFER}
    return facts | {"TensorFlow": tf.__version__, "Keras": keras.__version__}


def facts_of_model(config: BertConfig, name: str = "model") -> dict[str, object]:
    return {f"{key} of the {name}": value for key, value in config.to_dict().items()}


def compare(strategy: tf.distribute.Strategy, facts: Callable[[], Mapping[str, object]]) -> None:
    """Raises a ValueError, on all workers, where one has other facts than the first.

    facts: name, for messages -> anything that JSON can hold; called with several workers only.
    """
    if not are_several(strategy):
        return
    (first, *others), names = gather(strategy, facts()), [*_names().values()]
    different = {}
    for name, other in zip(names[1:], others, strict=True):
        for fact in [*first, *(other.keys() - first)]:
            if (values := (first.get(fact), other.get(fact)))[0] != values[1]:
                was, now = _shown(*map(str, values))
                different.setdefault(fact, f"{fact}: {was} on {names[0]}, {now} on {name}")
    if different:
        meet(strategy)
        raise ValueError(
            f"the workers do not agree, and nothing was done: {some([*different.values()], '; ')}. Start all with the "
            "same command, data and --output_dir."
        )


def _shown(one: str, other: str) -> tuple[str, str]:
    """Two values for a message, long ones from a little before they differ."""
    pairs = enumerate(zip(one, other, strict=False))
    same = next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))
    start = max(0, same - _SHOWN // 2) if max(len(one), len(other)) > _SHOWN else 0
    return one[start : start + _SHOWN], other[start : start + _SHOWN]


# --- written by one, read by the others ------------------------------------------------------------------------------


def await_written(strategy: tf.distribute.Strategy, paths: Sequence[str], **facts) -> None:
    """Returns once all workers see what the first has written at some paths; see `compare`, also for further facts."""
    if not are_several(strategy):
        return
    written = gather(strategy, [_content(path) for path in paths] if _is_first() else None)[0]
    deadline = time.monotonic() + _SECONDS_TO_APPEAR
    while (seen := [_content(path) for path in paths]) != written and time.monotonic() < deadline:
        time.sleep(_SECONDS_TO_APPEAR / 100)
    compare(strategy, lambda: dict(zip(map(posixpath.basename, paths), seen, strict=True)) | facts)


def _content(path: str) -> str:
    if not tf.io.gfile.exists(path):
        return "missing"
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    return f"{len(content)} bytes, checksum {zlib.crc32(content):08x}"


# --- a worker that is lost -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def naming_lost_workers() -> Iterator[None]:
    """In this context of several workers, the failure of an operation because of another one is an error that names it.

    A process that ends is noticed at once, a machine that no longer answers by TensorFlow's own check of health.
    """
    try:
        yield
    except (tf.errors.AbortedError, tf.errors.DeadlineExceededError, tf.errors.UnavailableError) as error:
        matches = re.findall(r"/job:(chief|worker)/replica:\d+/task:(\d+)", error.message)
        tasks = {(kind, int(number)) for kind, number in matches} - {_own()}
        lost = ", ".join(_names()[task] for task in sorted(tasks))
        raise RuntimeError(
            f"{lost or 'another worker'} has ended or can't be reached: start all workers again with the same command, "
            "which goes on from the newest checkpoint."
        ) from error


def connect() -> tf.distribute.Strategy:
    """The strategy of TF_CONFIG, once all its workers are there."""
    own, names = _own(), _names()
    deadline = time.monotonic() + _SECONDS_TO_COME
    # TensorFlow's first worker would wait for the others without end.
    for (kind, number), name in names.items() if _is_first() else ():
        host, _, port = _config()["cluster"][kind][number].rpartition(":")
        with announced(f"Waiting for {name} ..."):
            while (kind, number) != own and not _listens(host.strip("[]"), int(port)):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{name} of TF_CONFIG is not there: did it end? Start all workers again.")
                time.sleep(0.2)
    with naming_lost_workers(), announced(f"Waiting for all workers of TF_CONFIG: {some([*names.values()])} ..."):
        try:
            return tf.distribute.MultiWorkerMirroredStrategy()
        except tf.errors.UnknownError as error:
            raise RuntimeError(f"TF_CONFIG says that this is {names[own]}, but it can't be: {error.message}") from error


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), 5).close()
        return True
    return False
