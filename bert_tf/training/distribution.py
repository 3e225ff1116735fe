"""--distribution_strategy -> tf.distribute.Strategy.

Each strategy is TensorFlow's own; this module adds checks, so that a wrong flag gives an error that names it and the
devices found, instead of a run on fewer devices than intended. Several workers compare what they are about to train, so
that none trains something else unnoticed, and wait for what the first has written before they read it.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import posixpath
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data.token_rows import WHOLE, Share
from bert_tf.families.config import BertConfig
from bert_tf.models import kernels
from bert_tf.system.messages import abbreviated_list, announced, hide_note_of_first_compilation
from bert_tf.system.text_files import exists, file_sha256
from bert_tf.training import run_directory
from bert_tf.training.settings import DeviceSettings, TrainingSettings

Settings = TypeVar("Settings", bound=TrainingSettings)

_CONNECT_SECONDS = 60  # that a TPU may take to accept a connection
# Settings in which workers may differ: where something is, since its content is compared, and what only the first
# worker does, or all as the first does.
_PACE = ("log_every_steps", "iterations_per_loop", "save_checkpoints_steps")
_MAY_DIFFER = {
    "output_dir", "init_checkpoint", "bert_config_file", "generator_config_file", "vocab_file", "teacher", "data_dir",
    "input_file", "eval_input_file", "train_file", "dev_file", "test_file", "predict_file", "feature_cache_dir",
    "keep_checkpoint_max", "write_tf_records", "verbose_logging", "verify_records", "recompute", *_PACE,
}  # fmt: skip
_SECONDS_TO_APPEAR = 60.0  # of a file on a disk that the workers share
_SECONDS_TO_COME = 1800.0  # of the other workers


def set_up_devices(devices: DeviceSettings) -> tf.distribute.Strategy:
    """The strategy that the settings ask for, before any tensor is created; also sets up virtual CPUs."""
    if devices.num_virtual_cpus:
        cpu = tf.config.list_physical_devices("CPU")[0]
        if len(tf.config.get_logical_device_configuration(cpu) or [None]) != devices.num_virtual_cpus:
            parts = [tf.config.LogicalDeviceConfiguration()] * devices.num_virtual_cpus
            tf.config.set_logical_device_configuration(cpu, parts)
    for gpu in tf.config.get_visible_devices("GPU") if devices.strategy != "tpu" else ():
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except (RuntimeError, ValueError) as error:  # started already, or split into devices of a given size
            logging.info("The memory of %s is taken as set up before this run: %s", gpu.name, error)
    strategy = _create_strategy(devices)
    replicas = strategy.num_replicas_in_sync
    names = ", ".join(device.split("/")[-1] for device in strategy.extended.worker_devices)
    logging.info("distribution strategy %s: replicas: %d, on this machine %s", devices.strategy, replicas, names)
    if devices.strategy == "tpu":
        if devices.num_tpu_cores != replicas:
            message = "--num_tpu_cores=%d, but this TPU has %d cores: all of them are used."
            logging.warning(message, devices.num_tpu_cores, replicas)
        return strategy
    try:
        hide_note_of_first_compilation()
    except tf.errors.NotFoundError:
        logging.info("This build of TensorFlow compiles for TPUs only: on the CPU, nothing is compiled.")
        kernels.set_fused(False)
    return strategy


def _create_strategy(devices: DeviceSettings) -> tf.distribute.Strategy:
    if devices.strategy == "tpu":
        return _tpu_strategy(devices.tpu_name or devices.master, devices.tpu_zone, devices.gcp_project)
    if devices.strategy == "multi_worker_mirrored":
        return _only(_connect)
    gpus, cpus = ([device.name for device in tf.config.list_logical_devices(kind)] for kind in ("GPU", "CPU"))
    if devices.strategy == "one_device":
        return tf.distribute.OneDeviceStrategy((gpus or cpus)[0])
    if not gpus and not devices.num_virtual_cpus:
        logging.warning("--distribution_strategy=mirrored is for GPUs, but TensorFlow finds none: it runs on the CPU.")
    return _only(tf.distribute.MirroredStrategy, *(gpus or cpus))


@functools.cache
def _only(create: Callable, *devices: str) -> tf.distribute.Strategy:
    """The process's strategy for these devices. Sums of a second one, numbered from 0 again, would meet the first's."""
    return create(devices) if devices else create()


def compiles_steps(use_xla: bool | None, strategy: tf.distribute.Strategy) -> bool:
    """Whether the trainer compiles its steps, as the setting says, or if it is None, on GPUs. A TPU does so itself."""
    on_gpus = any("GPU" in device.upper() for device in strategy.extended.worker_devices)
    return on_gpus if use_xla is None else use_xla


def is_one_cpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy is a CPU as one device, on which datasets and variables are TensorFlow's plain ones."""
    return type(strategy) is tf.distribute.OneDeviceStrategy and "CPU" in strategy.extended.worker_devices[0].upper()


def check_batch_sizes(strategy: tf.distribute.Strategy, *runs) -> None:
    for run in runs:
        trains, evaluates, predicts = (getattr(run, name, False) for name in ("do_train", "do_eval", "do_predict"))
        evaluates |= trains and run.eval_every_steps > 0
        predicts |= evaluates and run.eval_batch_size is None
        used = {"train_batch_size": trains, "eval_batch_size": evaluates, "predict_batch_size": predicts}
        for name in (*filter(used.get, used), "batch_size"):
            size, parts = getattr(run, name, None), strategy.num_replicas_in_sync
            if name == "train_batch_size" and size:
                parts *= run.gradient_accumulation_steps
            if size and size % parts:
                raise ValueError(f"--{name}={size} can't be divided by {parts}, the replicas times micro-batches.")


def _tpu_strategy(name: str | None, zone: str | None, project: str | None) -> tf.distribute.Strategy:
    name = name or os.environ.get("TPU_NAME") or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name, zone=zone, project=project)
        if name != "local":
            address = resolver.master()
            logging.info("Connecting to the TPU at %s (gives up after %d s)", address, _CONNECT_SECONDS)
            # TensorFlow would wait without end or word where nothing listens.
            _connect_to(address.removeprefix("grpc://"), _CONNECT_SECONDS)
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # also those of the libraries that look for credentials
        raise RuntimeError(
            f"no TPU {name!r} (--tpu_name, --tpu_zone, --gcp_project); on a TPU machine TensorFlow must be the build "
            f"with TPU support, tensorflow-tpu: {error}"
        ) from error


def _connect_to(address: str, seconds: float) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), seconds).close()


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes files: always, but of several workers only the chief, or without one the first."""
    resolver = strategy.cluster_resolver
    if resolver is None or resolver.task_type is None:
        return True
    first = "chief" if "chief" in resolver.cluster_spec().jobs else "worker"
    return (resolver.task_type, resolver.task_id) == (first, 0)


def distribute(strategy: tf.distribute.Strategy, batches: Callable[[Share], tf.data.Dataset]) -> Iterable:
    """Batches for a loop around `strategy.run`: each replica gets its part of each, ahead of time and on its device.

    batches: share -> endless dataset of its parts of the batches; called once a process, or host of a TPU.
    """
    if is_one_cpu(strategy):
        # The strategy's iterator has a tuner of its own, for whose next wake-up its end may wait, up to a minute.
        return batches(WHOLE)

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        count = context.num_replicas_in_sync // context.num_input_pipelines
        parts = batches(Share(context.num_replicas_in_sync, context.input_pipeline_id * count, count))
        # If they could end, each step would have to be ready for missing parts: its shapes would not be static.
        return parts.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    return strategy.distribute_datasets_from_function(of_worker)


@contextlib.contextmanager
def set_up_run(settings, *others) -> Iterator[tf.distribute.Strategy]:
    """The devices of a run, or of several in folders of one output_dir, which they have alone while they train."""
    strategy = set_up_devices(settings)
    check_batch_sizes(strategy, settings, *others)
    with contextlib.ExitStack() as stack:
        if settings.do_train and is_chief(strategy):
            stack.enter_context(run_directory.lock_output_dir(settings.output_dir, settings.checkpoints_while_training))
        if are_several(strategy):
            stack.enter_context(naming_lost_workers())
        yield strategy
        meet(strategy)


# --- several workers, which all call these functions at the same times; with one there is nothing to do --------------


def are_several(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and len(_tasks()[0]) > 1


def _tasks() -> tuple[dict[tuple[str, int], str], tuple[str, int]]:
    """Kind and number of each worker, first the one that writes -> what messages call it; and those of this one."""
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = config["cluster"], config["task"]
    tasks = [(kind, number) for kind in ("chief", "worker") for number in range(len(cluster.get(kind, ())))]
    names = {(kind, number): f"{kind} {number} ({cluster[kind][number]})" for kind, number in tasks}
    return names, (task["type"], int(task["index"]))


@functools.cache
def _mean_of(strategy: tf.distribute.Strategy, shape: tuple[int, ...]) -> Callable[[tf.Tensor], tf.Tensor]:
    def mean(values):
        def add(values):  # of a tensor that is on the replica's device
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(values))

        return strategy.experimental_local_results(strategy.run(add, args=(values,)))[0]

    return tf.function(mean, autograph=False).get_concrete_function(tf.TensorSpec(shape))


def mean(strategy: tf.distribute.Strategy, values) -> np.ndarray:
    values = np.asarray(values, np.float32)
    return _mean_of(strategy, values.shape)(tf.constant(values)).numpy() if are_several(strategy) else values


def gather(strategy: tf.distribute.Strategy, value) -> list:
    """What each worker has given, anything that JSON can hold; the first is of the one that writes the files."""
    if not are_several(strategy):
        return [value]
    content = np.frombuffer(json.dumps(value).encode(), np.uint8)
    names, own = _tasks()
    own, count = [*names].index(own), len(names)
    lengths = np.zeros(count)
    lengths[own] = len(content)
    lengths = np.rint(count * mean(strategy, lengths)).astype(int)
    rows = np.zeros([count, 1 << int(lengths.max()).bit_length()])  # few shapes, since each has a graph
    rows[own, : len(content)] = content
    rows = np.rint(count * mean(strategy, rows)).astype(np.uint8)
    return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]


def with_pace_of_first(strategy: tf.distribute.Strategy, settings: Settings) -> Settings:
    """The settings, with those of the first worker that say when a call of the graph ends."""
    pace = {name: getattr(settings, name) for name in _PACE}
    return dataclasses.replace(settings, **gather(strategy, pace)[0])


def meet(strategy: tf.distribute.Strategy) -> None:
    """Returns once all workers are here, none of which another still needs if it ends now."""
    gather(strategy, None)
    with contextlib.suppress(tf.errors.OpError):  # another has ended, after all came
        gather(strategy, None)


def facts_of(*settings, **configs: BertConfig) -> dict[str, object]:
    """What workers with these settings and configurations must have alike."""
    values = {name: value for each in settings for name, value in dataclasses.asdict(each).items()}
    facts = {f"--{name}": value for name, value in values.items() if name not in _MAY_DIFFER}
    for what, config in configs.items():
        facts |= {f"{key} of the {what}": value for key, value in config.to_dict().items()}
    code = b"".join(path.read_bytes() for path in sorted(pathlib.Path(__file__).parents[1].rglob("*.py")))
    facts["checksum of the code in bert_tf/"] = f"{zlib.crc32(code):08x}"
    return facts | {"TensorFlow": tf.__version__, "Keras": keras.__version__}


def compare(strategy: tf.distribute.Strategy, facts: Callable[[], Mapping[str, object]]) -> None:
    """Raises a ValueError, on all workers, where one has other facts than the first.

    facts: name, for messages -> anything that JSON can hold; called with several workers only.
    """
    if not are_several(strategy):
        return
    (first, *others), names = gather(strategy, facts()), [*_tasks()[0].values()]
    different = {}
    for name, other in zip(names[1:], others, strict=True):
        for fact in first | other:
            if first.get(fact) != other.get(fact):
                shown = f"{first.get(fact)!s:.60} on {names[0]}, {other.get(fact)!s:.60} on {name}"
                different.setdefault(fact, f"{fact}: {shown}")
    if different:
        meet(strategy)
        raise ValueError(
            f"the workers do not agree: {abbreviated_list([*different.values()], '; ')}. Start all with the same "
            "command, data and --output_dir."
        )


def await_written(strategy: tf.distribute.Strategy, paths: Sequence[str]) -> None:
    """Returns once all workers see what the first has written at some paths; raises as `compare` does."""
    if not are_several(strategy):
        return
    written = gather(strategy, [_content(path) for path in paths] if is_chief(strategy) else None)[0]
    deadline = time.monotonic() + _SECONDS_TO_APPEAR
    while (seen := [_content(path) for path in paths]) != written and time.monotonic() < deadline:
        time.sleep(_SECONDS_TO_APPEAR / 100)
    compare(strategy, lambda: dict(zip(map(posixpath.basename, paths), seen, strict=True)))


def _content(path: str) -> str:
    return f"checksum {file_sha256(path)}" if exists(path) else "missing"


@contextlib.contextmanager
def naming_lost_workers() -> Iterator[None]:
    """In this context of several workers, the failure of an operation because of another one is an error that names it.

    A process that ends is noticed at once, a machine that no longer answers by TensorFlow's own check of health.
    """
    try:
        yield
    except (tf.errors.AbortedError, tf.errors.DeadlineExceededError, tf.errors.UnavailableError) as error:
        matches = re.findall(r"/job:(chief|worker)/replica:\d+/task:(\d+)", error.message)
        names, own = _tasks()
        lost = ", ".join(names[task] for task in sorted({(kind, int(number)) for kind, number in matches} - {own}))
        raise RuntimeError(
            f"{lost or 'another worker'} has ended or can't be reached: start all workers again with the same command, "
            "which goes on from the newest checkpoint."
        ) from error
    except (tf.errors.InternalError, tf.errors.InvalidArgumentError) as error:
        if not re.search("is joining a group|ollective instance", error.message):
            raise
        raise ValueError(
            "the workers do not agree on how many they or their devices are, or on what they compute: give all one "
            "list in TF_CONFIG, as many GPUs, and one version of bert_tf."
        ) from error


def _connect() -> tf.distribute.Strategy:
    """The strategy of TF_CONFIG, once all its workers are there: TensorFlow's first would wait for them without end."""
    names, own = _tasks()
    first, *others = names
    deadline = time.monotonic() + _SECONDS_TO_COME
    for name in [names[other] for other in others if own == first]:
        with announced(f"Waiting for {name} ..."):
            while True:
                try:
                    _connect_to(name.partition("(")[2].strip(")"), 5)
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"{name} of TF_CONFIG is not there: did it end? Start all again.") from error
                    time.sleep(0.2)
    if own != first:  # at once: no other thread runs while TensorFlow connects
        logging.info("Waiting for %s ...", names[first])
    with naming_lost_workers():
        try:
            return tf.distribute.MultiWorkerMirroredStrategy()
        except tf.errors.UnknownError as error:
            raise RuntimeError(f"TF_CONFIG says that this is {names[own]}, but it can't be: {error.message}") from error
