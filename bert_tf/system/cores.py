"""The cores of this machine, and how they are shared among what is computed at the same time."""

import contextlib
import os

from absl import logging

_MOST = 8  # batches that have cores of their own; each holds its activations
_THREADS = "TF_NUM_INTRAOP_THREADS"  # TensorFlow's own variable: threads that compute one operation


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_cpu() -> bool:
    """Whether TensorFlow is Keras' backend and runs on the CPU only."""
    import keras

    if keras.config.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


def _threads_of_environment() -> int:
    """The threads of an operation that the environment asks for; 0 if it does not."""
    given = os.environ.get(_THREADS) or "0"
    if not given.isdecimal():
        raise ValueError(f"the environment variable {_THREADS}={given} must be a number of threads, from 1")
    return int(given)


def share_among_batches() -> None:
    """Gives each batch that is computed at the same time as others its own cores, if the environment does not say
    otherwise (TF_NUM_INTRAOP_THREADS).

    For programs that only predict: one thread that computes a batch neither wakes others nor waits for them. It changes
    nothing once TensorFlow has computed something.

    Raises:
      ValueError: the environment variable is not a number.
    """
    import tensorflow as tf

    if not _threads_of_environment():
        threads = max(1, available_cores() // _MOST)
        with contextlib.suppress(RuntimeError):  # there are threads already
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            logging.info("On a CPU each batch is predicted by %d of %d cores.", threads, available_cores())


def batches_at_once(replicas: int = 1) -> int:
    """How many batches to compute at the same time: on a CPU one more than there are cores for; else one, as it fills
    the device.

    By default TensorFlow gives all cores to each operation. The batch that is one more fills what others leave idle,
    and what is needed before and after a batch is done meanwhile.

    Raises:
      ValueError: the environment variable TF_NUM_INTRAOP_THREADS is not a number.
    """
    if replicas > 1 or not on_cpu():
        return 1
    import tensorflow as tf

    threads = tf.config.threading.get_intra_op_parallelism_threads() or _threads_of_environment()
    return 1 + min(_MOST, max(1, available_cores() // threads if threads else 1))
