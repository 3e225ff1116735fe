"""Strategies on logical CPU devices (conftest.py makes four), and errors that name the flag."""

import dataclasses
import json
import socket
import types

import numpy as np
import pytest
import tensorflow as tf
from helpers.tiny import ONE_LAYER
from helpers.training_steps import build, feed, make_batches, trainer_of

import bert_tf
from bert_tf.families.config import BertConfig
from bert_tf.models import kernels
from bert_tf.models.task_models import BertForNextSentencePrediction
from bert_tf.system import checks
from bert_tf.training import distribution
from bert_tf.training.settings import DeviceSettings, FineTuningSettings


@pytest.fixture
def cpus() -> list[str]:
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    if len(names) < 2 or tf.config.list_logical_devices("GPU"):
        pytest.skip(f"needs several logical CPU devices and no GPU, found {names}")
    return names


def strategy_of(name: str = "one_device", **settings) -> tf.distribute.Strategy:
    return distribution.set_up_devices(DeviceSettings(distribution_strategy=name, **settings))


def test_one_device(cpus):
    strategy = strategy_of()
    assert isinstance(strategy, tf.distribute.OneDeviceStrategy) and strategy.num_replicas_in_sync == 1
    with strategy.scope():
        assert tf.Variable(1.0).device.endswith(cpus[0])
    batches = tf.data.Dataset.range(3)  # not inside an iterator of the strategy, whose end may wait for a minute
    assert distribution.distribute(strategy, lambda share: batches) is batches


@pytest.mark.parametrize("jobs", [{"worker": 3}, {"chief": 1, "worker": 2}])
def test_the_chief_or_else_the_first_worker_writes_files(jobs):
    spec = lambda: types.SimpleNamespace(jobs=jobs)  # noqa: E731
    tasks = [(kind, number) for kind, count in jobs.items() for number in range(count)]
    resolvers = [types.SimpleNamespace(task_type=kind, task_id=number, cluster_spec=spec) for kind, number in tasks]
    strategies = [types.SimpleNamespace(cluster_resolver=resolver) for resolver in resolvers]
    assert [distribution.is_chief(strategy) for strategy in strategies] == [True, False, False]


@pytest.mark.parametrize("late", [False, True])
def test_memory_of_gpus_is_taken_as_needed(monkeypatch, caplog, late):
    """Where TensorFlow has started before, as in a notebook, it stays as it is."""
    found, gpus = [], [tf.config.PhysicalDevice(name, "GPU") for name in ("one", "two")]

    def set_growth(gpu, enabled):
        if late:
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        found.append(gpu.name if enabled else None)

    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", set_growth)
    with caplog.at_level("INFO", logger="absl"):
        strategy_of()
    assert found == ([] if late else ["one", "two"])
    assert ("The memory of one is taken as set up before this run" in caplog.text) == late


def test_two_trainings_of_other_shapes_in_one_process(monkeypatch, cpus, caplog):
    devices = tf.config.list_logical_devices("CPU")[:2]
    monkeypatch.setattr(tf.config, "list_logical_devices", {"CPU": devices, "GPU": []}.get)
    for layers in (1, 2):
        strategy = strategy_of("mirrored")
        trainer = trainer_of(*build(strategy, layers=layers), strategy=strategy, batch_size=4)
        trainer.steps(
            feed(strategy, tf.data.Dataset.from_tensors(make_batches(4, 1)).unbatch().repeat()), tf.constant(1)
        )
        assert trainer.optimizer.iterations == 1
    assert caplog.text.count("--distribution_strategy=mirrored is for GPUs, but TensorFlow finds none") == 2


WORKER = {"worker": ["a:1"]}


@pytest.mark.parametrize("tf_config", [
    None, "{not json", {"cluster": WORKER}, {"cluster": WORKER, "task": {"type": "chief", "index": 0}},
    {"cluster": WORKER, "task": {"type": "worker", "index": 1}},
])  # fmt: skip
def test_tf_config(monkeypatch, tf_config):
    monkeypatch.setenv("TF_CONFIG", tf_config if isinstance(tf_config, str) else json.dumps(tf_config or ""))
    with pytest.raises(ValueError, match="^--distribution_strategy=multi_worker_mirrored needs the .* TF_CONFIG"):
        DeviceSettings(distribution_strategy="multi_worker_mirrored").check_devices()


def test_a_tpu_that_does_not_answer_or_has_no_credentials_is_one_line(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"grpc://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(RuntimeError, match=f"^no TPU '{address}' .*: .*[Cc]onnection refused"):
        distribution._tpu_strategy(address, None, None)

    class CredentialsError(Exception):
        """Of a library that TensorFlow calls."""

    def look_for(**_):
        raise CredentialsError("there are none")

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", look_for)
    with pytest.raises(RuntimeError, match="^no TPU 'mine' .*: there are none"):
        distribution._tpu_strategy("mine", None, None)


@pytest.mark.parametrize("settings", [
    {"train_batch_size": 7, "gradient_accumulation_steps": 3, "do_train": True},
    {"predict_batch_size": 7, "do_predict": True}, {"predict_batch_size": 7, "do_eval": True},
    {"eval_batch_size": 7, "predict_batch_size": 8, "do_eval": True},
    {"eval_batch_size": 7, "predict_batch_size": 8, "do_train": True, "eval_every_steps": 1},
])  # fmt: skip
def test_batches_that_replicas_do_not_divide(settings, cpus):
    """Sizes that are not used may be any, such as the default of 8 for evaluations with three workers."""
    several = strategy_of("mirrored")
    run = FineTuningSettings(output_dir="out", **{"train_batch_size": 6 * len(cpus), **settings})
    distribution.check_batch_sizes(strategy_of(), dataclasses.replace(run, train_batch_size=6))
    distribution.check_batch_sizes(several, dataclasses.replace(run, do_train=False, do_eval=False, do_predict=False))
    with pytest.raises(ValueError, match=r"batch_size=7 can't be divided by \d+, the replicas"):
        distribution.check_batch_sizes(several, run)


def test_one_of_several_workers_alone(monkeypatch):
    """It neither trains by another strategy, into the same folder, nor waits for the others without end."""
    with socket.create_server(("localhost", 0)) as server:
        nobody = f"localhost:{server.getsockname()[1]}"
    config = {"cluster": {"worker": ["localhost:1", nobody]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    monkeypatch.setattr(distribution, "_SECONDS_TO_COME", 0.0)
    with pytest.raises(ValueError, match="^TF_CONFIG names 2 machines, but --distribution_strategy=one_device trains"):
        FineTuningSettings(output_dir="out", do_train=True).check_flags()
    with pytest.raises(RuntimeError, match=rf"^worker 1 \({nobody}\) of TF_CONFIG is not there"):
        strategy_of("multi_worker_mirrored")
    strategy_of()  # an evaluation may be apart
    monkeypatch.setenv("TF_CONFIG", json.dumps({**config, "cluster": WORKER}))
    checks.check_tf_config("one_device", trains=True)


def test_a_tpu_strategy_switches_the_fused_forms_off(monkeypatch):
    """Also in a notebook: `model.fit` under a strategy that the user made."""

    class Tpu(tf.distribute.OneDeviceStrategy):
        """What the library takes for a TPU."""

    def build(strategy):
        with strategy.scope():
            model = BertForNextSentencePrediction(BertConfig.from_dict(ONE_LAYER))
            model.compile(bert_tf.create_optimizer("adamw", 1e-3, 10, 1), run_eagerly=True)
        return model

    used = []
    fused = kernels._fused_attention
    monkeypatch.setattr(tf.distribute, "TPUStrategy", Tpu)
    monkeypatch.setattr(kernels, "_fused_attention", lambda *arguments: used.append(1) or fused(*arguments))
    inputs = {name: np.ones([4, 8], np.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    tpu = Tpu("CPU:0")
    build(tpu).fit(inputs, np.zeros([4], np.int32), batch_size=4, verbose=0)
    assert not used
    with tpu.scope():
        assert not kernels.fused_enabled()
    tpu.run(lambda: used.append(kernels.fused_enabled()))
    assert used == [False]
    build(tf.distribute.OneDeviceStrategy("CPU:0")).fit(inputs, np.zeros([4], np.int32), batch_size=4, verbose=0)
    assert used != [False] and kernels.fused_enabled()


def test_a_build_that_compiles_for_tpus_only(monkeypatch):
    """tensorflow-tpu has no XLA for the CPU: a TPU is set up without it, and a run on the CPU compiles nothing."""
    compiled, fused = [], []

    def fail():
        compiled.append(1)
        raise tf.errors.NotFoundError(None, None, "could not find registered transfer manager for platform Host")

    monkeypatch.setattr(distribution, "hide_note_of_first_compilation", fail)
    monkeypatch.setattr(distribution, "_tpu_strategy", lambda *_: tf.distribute.OneDeviceStrategy("CPU:0"))
    monkeypatch.setattr(kernels, "set_fused", fused.append)
    strategy_of("tpu")
    assert (compiled, fused) == ([], [])
    strategy_of()
    assert (compiled, fused) == ([1], [False])
