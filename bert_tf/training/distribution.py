"""--distribution_strategy -> tf.distribute.Strategy.

Each strategy is TensorFlow's own; this module adds checks, so that a wrong flag gives an error that names it and the
devices found, instead of a run on fewer devices than intended.
"""

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf
from absl import logging

from bert_tf.data.token_rows import WHOLE, Share
from bert_tf.models import kernels
from bert_tf.system.checks import check_tf_config
from bert_tf.system.messages import hide_note_of_first_compilation
from bert_tf.training import run_directory, workers
from bert_tf.training.settings import DeviceSettings

_CONNECT_SECONDS = 60  # that a TPU may take to accept a connection


def set_up_devices(devices: DeviceSettings) -> tf.distribute.Strategy:
    """The strategy that the settings ask for; also sets up virtual CPUs and the form of the model's operations.

    Call this before any tensor is created: some strategies can't be set up later.
    """
    if devices.num_virtual_cpus:
        cpu = tf.config.list_physical_devices("CPU")[0]
        if len(tf.config.get_logical_device_configuration(cpu) or [None]) != devices.num_virtual_cpus:
            parts = [tf.config.LogicalDeviceConfiguration()] * devices.num_virtual_cpus
            tf.config.set_logical_device_configuration(cpu, parts)
    if devices.strategy != "tpu":
        _grow_gpu_memory()
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
    check_tf_config(devices.strategy)
    if devices.strategy == "multi_worker_mirrored":
        return _only(workers.connect)
    gpus, cpus = ([device.name for device in tf.config.list_logical_devices(kind)] for kind in ("GPU", "CPU"))
    if devices.strategy == "one_device":
        return tf.distribute.OneDeviceStrategy((gpus or cpus)[0])
    if not gpus and not devices.num_virtual_cpus:
        logging.warning(
            "--distribution_strategy=mirrored is for GPUs, but TensorFlow finds none: this run is on the CPU."
        )
    return _only(tf.distribute.MirroredStrategy, *(gpus or cpus))


@functools.cache
def _only(create: Callable, *devices: str) -> tf.distribute.Strategy:
    """The process's strategy for these devices. Sums of a second one, numbered from 0 again, would meet the first's."""
    return create(devices) if devices else create()


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


def is_one_cpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy is a CPU as one device, on which datasets and variables are TensorFlow's plain ones."""
    return type(strategy) is tf.distribute.OneDeviceStrategy and "CPU" in strategy.extended.worker_devices[0].upper()


def check_batch_sizes(strategy: tf.distribute.Strategy, *runs) -> None:
    """Refuses batches of settings that the replicas, in training with their micro-batches, don't divide evenly."""
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
            host, _, port = address.removeprefix("grpc://").rpartition(":")
            # TensorFlow would wait without end or word where nothing listens.
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # also those of the libraries that look for credentials
        raise RuntimeError(
            f"no TPU {name!r} (--tpu_name, --tpu_zone, --gcp_project); on a TPU machine TensorFlow must be the build "
            f"with TPU support, tensorflow-tpu: {error}"
        ) from error


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
    """The devices of a run, which has its output_dir for itself while it trains.

    Args:
      settings, others: of the run, or of all runs that train in folders of output_dir.
    """
    check_tf_config(settings.strategy, settings.do_train)
    strategy = set_up_devices(settings)
    check_batch_sizes(strategy, settings, *others)
    with contextlib.ExitStack() as stack:
        if settings.do_train and is_chief(strategy):
            stack.enter_context(run_directory.lock_output_dir(settings.output_dir, settings.checkpoints_while_training))
        if workers.are_several(strategy):
            stack.enter_context(workers.naming_lost_workers())
        yield strategy
        workers.meet(strategy)
