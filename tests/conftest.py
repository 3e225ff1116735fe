"""Four logical CPU devices for the tests of several replicas; they must exist before TensorFlow is first used."""

import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf

_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 4)

TESTS = pathlib.Path(__file__).resolve().parent


@pytest.fixture
def golden() -> pathlib.Path:
    """Outputs of the original on small inputs."""
    return TESTS / "golden"


@pytest.fixture
def shared() -> pathlib.Path:
    """Data that is too large for the repository; tests that need it are skipped where it is not."""
    path = TESTS.parents[1] / "shared"
    if not (path / "data").is_dir():
        pytest.skip(f"needs the data folder {path}, which is not part of the project")
    return path
