"""--distribution_strategy -> tf.distribute.Strategy.

Each strategy is TensorFlow's own; this module adds checks, so that a wrong flag gives an error that names it and the
devices found, instead of a run on fewer devices than intended.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf
from absl import logging

from bert_tf.data.shares import WHOLE, Share
from bert_tf.models import kernels
from bert_tf.system import script
from bert_tf.training.settings import MOST_VIRTUAL_CPUS, DeviceSettings

STRATEGIES = ("one_device", "mirrored", "multi_worker_mirrored", "tpu")


def set_up_devices(devices: DeviceSettings) -> tf.distribute.Strategy:
    """The strategy that the settings ask for; also sets up virtual CPUs and the form of the model's operations.

    Raises:
      ValueError, RuntimeError: see `create_strategy` and `set_logical_cpu_devices`.
    """
    if devices.num_virtual_cpus:
        set_logical_cpu_devices(devices.num_virtual_cpus)
    strategy = create_strategy(
        devices.strategy,
        num_gpus=devices.num_gpus,
        tpu_name=devices.tpu_name,
        tpu_zone=devices.tpu_zone,
        gcp_project=devices.gcp_project,
        master=devices.master,
    )
    if devices.strategy == "tpu":
        log_num_tpu_cores(devices.num_tpu_cores, strategy.num_replicas_in_sync)
    if devices.strategy != "tpu":
        try:
            script.hide_note_of_first_compilation()
        except tf.errors.NotFoundError:
            logging.info("This build of TensorFlow compiles for TPUs only: on the CPU, nothing is compiled.")
            kernels.set_fused(False)
    return strategy


def create_strategy(
    distribution_strategy: str = "one_device",
    *,
    num_gpus: int | None = None,
    tpu_name: str | None = None,
    tpu_zone: str | None = None,
    gcp_project: str | None = None,
    master: str | None = None,
) -> tf.distribute.Strategy:
    """The strategy of a name. Call this before any tensor is created: some strategies can't be set up later.

    Args:
      distribution_strategy:
        "one_device": the first GPU, or the CPU where there is none.
        "mirrored": the GPUs of this machine; without any, its logical CPU devices (`set_logical_cpu_devices`).
        "multi_worker_mirrored": the machines listed in the environment variable TF_CONFIG.
        "tpu": all cores of a Cloud TPU.
      num_gpus: how many of the visible GPUs to use on each machine; None or 0: all of them ("one_device": one).
      tpu_name: name of the TPU or its grpc:// address; None: `master`, else the environment variable TPU_NAME, else
        the TPU of this machine.
      tpu_zone: zone of Google Compute Engine; None: this machine's own.
      gcp_project: Google Cloud project; None: this machine's own.
      master: address of the TPU, the original's alternative to `tpu_name`.

    Raises:
      ValueError: unknown name, more GPUs asked for than there are, TF_CONFIG missing or malformed.
      RuntimeError: the TPU can't be reached, or TensorFlow is already running with other settings.
    """
    if distribution_strategy not in STRATEGIES:
        raise ValueError(f"--distribution_strategy={distribution_strategy}: choose one of {', '.join(STRATEGIES)}")
    if distribution_strategy == "tpu":
        if num_gpus:
            raise ValueError(f"--num_gpus={num_gpus} is meaningless with --distribution_strategy=tpu")
        strategy = _tpu_strategy(tpu_name or master, tpu_zone, gcp_project)
    elif distribution_strategy == "multi_worker_mirrored":
        _check_tf_config()
        _check_num_gpus(num_gpus)
        if num_gpus:
            _set_before_start(
                lambda: tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[:num_gpus], "GPU"),
                f"--num_gpus={num_gpus}",
            )
        strategy = _set_before_start(tf.distribute.MultiWorkerMirroredStrategy, "--distribution_strategy")
    else:
        _check_num_gpus(num_gpus)
        gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
        cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
        if distribution_strategy == "one_device":
            if num_gpus and num_gpus > 1:
                raise ValueError(
                    f"--num_gpus={num_gpus}: --distribution_strategy=one_device uses one; mirrored uses several"
                )
            strategy = tf.distribute.OneDeviceStrategy((gpus or cpus)[0])
        else:
            strategy = tf.distribute.MirroredStrategy(gpus[: num_gpus or None] or cpus)
    logging.info(
        "distribution strategy %s: %d replica%s, on this machine %s",
        distribution_strategy,
        strategy.num_replicas_in_sync,
        "" if strategy.num_replicas_in_sync == 1 else "s",
        ", ".join(_short_name(device) for device in strategy.extended.worker_devices),
    )
    return strategy


def log_num_tpu_cores(given: int, found: int) -> None:
    """Logs that a TPU has another number of cores than --num_tpu_cores says."""
    if given != found:
        logging.warning("--num_tpu_cores=%d, but this TPU has %d cores: all of them are used.", given, found)


def set_logical_cpu_devices(number: int) -> None:
    """Splits this machine's CPU into `number` devices, so that "mirrored" has several replicas without a GPU.

    This makes nothing faster; it is for trying out a run with several replicas.

    Raises:
      ValueError: `number` is not from 1 to MOST_VIRTUAL_CPUS.
      RuntimeError: TensorFlow is already running with another number.
    """
    if not 1 <= number <= MOST_VIRTUAL_CPUS:
        raise ValueError(f"--num_virtual_cpus={number} must be from 1 to {MOST_VIRTUAL_CPUS}")
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) == number:
        return
    _set_before_start(
        lambda: tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * number),
        f"--num_virtual_cpus={number}",
    )


def check_batch_size(
    batch_size: int, strategy: tf.distribute.Strategy, accumulation_steps: int = 1, flag_name: str = "train_batch_size"
) -> int:
    """Examples that one replica computes at a time; the global batch must divide evenly.

    Args:
      batch_size: examples per step over all replicas.
      strategy: from `create_strategy`.
      accumulation_steps: micro-batches per replica and step.
      flag_name: the flag that gives `batch_size`, for the message.

    Raises:
      ValueError: it does not divide evenly.
    """
    if batch_size < 1:
        raise ValueError(f"--{flag_name}={batch_size} must be at least 1")
    if accumulation_steps < 1:
        raise ValueError(f"--gradient_accumulation_steps={accumulation_steps} must be at least 1")
    replicas = strategy.num_replicas_in_sync
    parts = replicas * accumulation_steps
    if batch_size % parts:
        accumulation = f" times --gradient_accumulation_steps={accumulation_steps}" if accumulation_steps > 1 else ""
        below, above = batch_size // parts * parts, (batch_size // parts + 1) * parts
        nearest = f"{below} or {above}" if below else str(above)
        raise ValueError(
            f"--{flag_name}={batch_size} can't be divided by {replicas} replicas{accumulation}; {nearest} can be"
        )
    return batch_size // parts


def _check_num_gpus(num_gpus: int | None) -> None:
    if num_gpus is None:
        return
    found = [device.name for device in tf.config.get_visible_devices("GPU")]
    if num_gpus < 0:
        raise ValueError(f"--num_gpus={num_gpus} must not be negative")
    if num_gpus > len(found):
        seen = f"{len(found)}: {', '.join(map(_short_name, found))}" if found else "none"
        raise ValueError(f"--num_gpus={num_gpus}, but the GPUs that TensorFlow sees are {seen}")


def _check_tf_config() -> None:
    """Checks TF_CONFIG, which lists the machines of a multi-worker run for TensorFlow."""
    example = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
    text = os.environ.get("TF_CONFIG", "")
    asked = "--distribution_strategy=multi_worker_mirrored reads the environment variable TF_CONFIG"
    if not text.strip():
        raise ValueError(f"{asked}, which is not set; on the first of two machines it is {example}")
    try:
        content = json.loads(text)
        cluster, task = content["cluster"], content["task"]
        machines, number = cluster[task["type"]], int(task["index"])
        if not all(isinstance(names, list) and names for names in cluster.values()):
            raise ValueError("each job of the cluster needs a list of host:port")
        if not 0 <= number < len(machines):
            raise ValueError(f"task index {number}, but {len(machines)} of type {task['type']!r}")
        if task["type"] not in ("chief", "worker"):
            raise ValueError(f"task type {task['type']!r} takes no part in the training")
    except KeyError as error:
        raise ValueError(f"{asked}, in which {error} is missing: {text}; it should be like {example}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{asked}, which is malformed ({error}): {text}; it should be like {example}") from error


def _tpu_strategy(name: str | None, zone: str | None, project: str | None) -> tf.distribute.Strategy:
    name = name or os.environ.get("TPU_NAME") or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name, zone=zone, project=project)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, ImportError, OSError, tf.errors.OpError) as error:
        raise RuntimeError(
            f"no TPU {name!r} (--tpu_name, --tpu_zone, --gcp_project); on a TPU machine TensorFlow must be the build "
            f"with TPU support, tensorflow-tpu: {error}"
        ) from error


def _set_before_start(change, flag: str):
    try:
        return change()
    except RuntimeError as error:
        raise RuntimeError(f"{flag} comes too late: TensorFlow has already started its devices ({error})") from error


def _short_name(device: str) -> str:
    return device.split("/")[-1].replace("device:", "").replace("physical_device:", "")


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes files: always, except for workers other than the first."""
    resolver = strategy.cluster_resolver
    if resolver is None or resolver.task_type is None:
        return True
    return resolver.task_type == "chief" or (resolver.task_type == "worker" and resolver.task_id == 0)


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
