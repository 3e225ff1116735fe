"""--distribution_strategy -> tf.distribute.Strategy.

Each strategy is TensorFlow's own; this module adds checks, so that a wrong flag gives an error that names it and the
devices found, instead of a run on fewer devices than intended.
"""

import contextlib
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf
from absl import logging

from bert_tf.data.token_rows import WHOLE, Share
from bert_tf.models import kernels
from bert_tf.system.checks import check_tf_config
from bert_tf.system.messages import hide_note_of_first_compilation
from bert_tf.training.settings import DeviceSettings

_CONNECT_SECONDS = 60  # that a TPU may take to accept a connection


def set_up_devices(devices: DeviceSettings) -> tf.distribute.Strategy:
    """The strategy that the settings ask for; also sets up virtual CPUs and the form of the model's operations.

    Call this before any tensor is created: some strategies can't be set up later.
    """
    if devices.num_virtual_cpus:
        _split_cpu(devices.num_virtual_cpus)
    if devices.strategy != "tpu":
        _grow_gpu_memory()
    strategy = _create_strategy(devices)
    replicas = strategy.num_replicas_in_sync
    logging.info(
        "distribution strategy %s: %d replica%s, on this machine %s",
        devices.strategy,
        replicas,
        "" if replicas == 1 else "s",
        _names(strategy.extended.worker_devices),
    )
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
    check_tf_config(devices.strategy)
    if devices.strategy == "multi_worker_mirrored":
        return _set_before_start(tf.distribute.MultiWorkerMirroredStrategy, "--distribution_strategy")
    gpus, cpus = ([device.name for device in tf.config.list_logical_devices(kind)] for kind in ("GPU", "CPU"))
    if devices.strategy == "one_device":
        return tf.distribute.OneDeviceStrategy((gpus or cpus)[0])
    return tf.distribute.MirroredStrategy(gpus or cpus)


def _split_cpu(number: int) -> None:
    """Splits this machine's CPU into devices, so that "mirrored" has several replicas without a GPU."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) != number:
        parts = [tf.config.LogicalDeviceConfiguration()] * number
        _set_before_start(
            lambda: tf.config.set_logical_device_configuration(cpu, parts), f"--num_virtual_cpus={number}"
        )


def _grow_gpu_memory() -> None:
    """Makes TensorFlow take the memory of GPUs as it is needed, unless it has begun otherwise already (a notebook)."""
    for gpu in tf.config.get_visible_devices("GPU"):
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except (RuntimeError, ValueError) as error:  # started already, or split into devices of a given size
            logging.info("The memory of %s is taken as set up before this run: %s", gpu.name, error)


def compiles_steps(use_xla: bool | None, strategy: tf.distribute.Strategy) -> bool:
    """Whether the trainer compiles its steps, as the setting says, or if it is None, on GPUs. A TPU does so itself."""
    on_gpus = any("GPU" in device.upper() for device in strategy.extended.worker_devices)
    return on_gpus if use_xla is None else use_xla


def check_batch_size(
    batch_size: int, strategy: tf.distribute.Strategy, accumulation_steps: int = 1, flag_name: str = "train_batch_size"
) -> None:
    """Refuses a batch that can't be divided evenly.

    Args:
      batch_size: examples per step over all replicas. accumulation_steps: micro-batches per replica and step.
      flag_name: the flag that gives `batch_size`, for the message.
    """
    replicas = strategy.num_replicas_in_sync
    parts = replicas * accumulation_steps
    if batch_size % parts:
        accumulation = f" times --gradient_accumulation_steps={accumulation_steps}" if accumulation_steps > 1 else ""
        below, above = batch_size // parts * parts, (batch_size // parts + 1) * parts
        nearest = f"{below} or {above}" if below else str(above)
        raise ValueError(
            f"--{flag_name}={batch_size} can't be divided by {replicas} replicas{accumulation}; {nearest} can be"
        )


def _tpu_strategy(name: str | None, zone: str | None, project: str | None) -> tf.distribute.Strategy:
    name = name or os.environ.get("TPU_NAME") or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name, zone=zone, project=project)
        if name != "local":
            _check_answers(resolver.master())
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # also those of the libraries that look for credentials
        raise RuntimeError(
            f"no TPU {name!r} (--tpu_name, --tpu_zone, --gcp_project); on a TPU machine TensorFlow must be the build "
            f"with TPU support, tensorflow-tpu: {error}"
        ) from error


def _check_answers(address: str) -> None:
    """Raises OSError if nothing listens at grpc://host:port, for which TensorFlow would wait without end or word."""
    logging.info("Connecting to the TPU at %s (gives up after %d s)", address, _CONNECT_SECONDS)
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def _set_before_start(change, flag: str):
    try:
        return change()
    except RuntimeError as error:
        raise RuntimeError(f"{flag} comes too late: TensorFlow has already started its devices ({error})") from error


def _names(devices: Iterable[str]) -> str:
    short = (device.split("/")[-1].replace("device:", "").replace("physical_device:", "") for device in devices)
    return ", ".join(short)


def check_batch_sizes(strategy: tf.distribute.Strategy, *runs) -> None:
    """`check_batch_size` of the settings of a run, or of several combinations of them."""
    for run in runs:
        check_batch_size(run.train_batch_size, strategy, run.gradient_accumulation_steps)
    for name in ("eval_batch_size", "predict_batch_size"):
        if size := getattr(runs[0], name, None):
            check_batch_size(size, strategy, 1, name)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes files: always, but of several workers only the chief, or without one the first."""
    resolver = strategy.cluster_resolver
    if resolver is None or resolver.task_type is None:
        return True
    first = "chief" if "chief" in resolver.cluster_spec().jobs else "worker"
    return (resolver.task_type, resolver.task_id) == (first, 0)


def distribute(strategy: tf.distribute.Strategy, batches: Callable[[Share], tf.data.Dataset]) -> Iterable:
    """Batches for a loop around `strategy.run`: each replica gets its part of each, ahead of time and on its device.

    Args:
      batches: share -> endless dataset of the parts of each batch that are in it; called once in each process, or for
        each host of a TPU, and only in the process whose share it is.
    """
    if type(strategy) is tf.distribute.OneDeviceStrategy and "CPU" in strategy.extended.worker_devices[0].upper():
        # The strategy's iterator has a tuner of its own, for whose next wake-up its end may wait, up to a minute.
        return batches(WHOLE)

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        count = context.num_replicas_in_sync // context.num_input_pipelines
        parts = batches(Share(context.num_replicas_in_sync, context.input_pipeline_id * count, count))
        # If they could end, each step would have to be ready for missing parts: its shapes would not be static.
        return parts.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    return strategy.distribute_datasets_from_function(of_worker)


class WorkerLostError(OSError):
    """Another worker has ended or can't be reached; the message names it."""


@contextlib.contextmanager
def naming_lost_workers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """In this context, the failure of an operation because of another worker is a WorkerLostError.

    A process that ends is noticed at once, a machine that no longer answers by TensorFlow's own check of health.
    """
    try:
        yield
    except (tf.errors.AbortedError, tf.errors.DeadlineExceededError, tf.errors.UnavailableError) as error:
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise
        config = json.loads(os.environ["TF_CONFIG"])
        found = re.findall(r"/job:(chief|worker)/replica:\d+/task:(\d+)", error.message)
        tasks = {(kind, int(number)) for kind, number in found} - {(config["task"]["type"], config["task"]["index"])}
        lost = ", ".join(f"{kind} {number} ({config['cluster'][kind][number]})" for kind, number in sorted(tasks))
        raise WorkerLostError(
            f"{lost or 'another worker'} has ended or can't be reached: start all workers again with the same command, "
            "which goes on from the newest checkpoint."
        ) from error
