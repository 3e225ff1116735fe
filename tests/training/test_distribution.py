"""Strategies on logical CPU devices (conftest.py makes four), and workers, which must agree before a step."""

import dataclasses
import json
import shutil
import socket
import types

import numpy as np
import pytest
import tensorflow as tf
from helpers import cluster
from helpers.basics import slow
from helpers.scenarios import command, fine_tuning_flags, flags_of, write_inputs
from helpers.tiny import ONE_LAYER, write_pretraining_records
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
        batches = tf.data.Dataset.from_tensor_slices(make_batches(4, 1)).repeat()
        trainer.steps(feed(strategy, batches), tf.constant(1))
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


SEVERAL = {"distribution_strategy": "multi_worker_mirrored"}


def agreed(script: str, flags: dict, cases: dict, folder, count=2, prepare="") -> dict[str, str]:
    """What all workers say alike. cases: name -> flags of all, those of the last, and how it begins."""
    steps = {
        name: (script, [*[{**flags, **of_all}] * (count - 1), {**flags, **of_all, **of_last}])
        for name, (of_all, of_last, _) in cases.items()
    }
    outcomes = cluster.run_mains(steps, folder, prepare)
    assert all(found == outcomes[0] for found in outcomes[1:])
    said = {name: text.removeprefix("ValueError: the workers do not agree: ") for name, text in outcomes[0].items()}
    assert not {name: said[name] for name, (*_, text) in cases.items() if not said[name].startswith(text)}
    return said


def test_the_code_is_compared(monkeypatch, tmp_path):
    facts = []
    for text in ("a = 1\n", "a = 2\n"):
        (tmp_path / "module.py").write_text(text)
        monkeypatch.setattr(distribution, "__file__", str(tmp_path / "training" / "distribution.py"))
        facts.append(distribution.facts_of())
    assert [name for name in facts[0] if facts[0][name] != facts[1][name]] == ["checksum of the code in bert_tf/"]


def test_another_list_of_workers_is_one_line(tmp_path):
    flags = {**SEVERAL, "num_train_steps": 10, "train_batch_size": 12}  # which two and three workers divide
    arguments = command(write_inputs(tmp_path), tmp_path / "out", **flags)
    with cluster.workers([arguments] * 2, tmp_path, more_of_last=["localhost:1"]) as processes:
        assert [process.wait() for process in processes] == [1, 1]
    last = [(tmp_path / f"worker-{number}.log").read_text().splitlines()[-1] for number in range(2)]
    assert all(line.startswith("run_pretraining.py: error: ") for line in last), last
    assert any("the workers do not agree on how many they or their devices are" in line for line in last), last
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("count", [2, *slow(3)])
def test_pretraining_is_refused_where_the_last_worker_differs(count, tmp_path):
    data = write_inputs(tmp_path)
    shutil.copytree(data, copy := tmp_path / "copy")
    shutil.copytree(data, other := tmp_path / "other")
    write_pretraining_records(other / "train-0.tfrecord", 40, seed=1)  # of the same size
    (other / "bert_config.json").write_text(json.dumps({**ONE_LAYER, "hidden_dropout_prob": 0.3}))
    flags = flags_of(data, tmp_path / "out", **SEVERAL, num_train_steps=10, train_batch_size=12, eval_batch_size=8)
    copied = {"input_file": copy / "train-*", "bert_config_file": copy / "bert_config.json"}
    often = {"iterations_per_loop": 3, "log_every_steps": 7, "save_checkpoints_steps": 4, "keep_checkpoint_max": 1}
    at_end = {"num_train_steps": 20, "init_checkpoint": tmp_path / "out" / "model.ckpt-10"}
    new, step = {"output_dir": tmp_path / "new"}, "step in --output_dir: "
    cases = {
        "harmless": ({}, {**often, **copied}, "done"),
        "rate": (new, {"learning_rate": 0.002}, "--learning_rate: 0.001 on worker 0 (localhost:"),
        "seed": (new, {"seed": 2}, "--seed: 12345"),
        "batch": (new, {"train_batch_size": 24}, "--train_batch_size: 12"),
        "records": (new, {"input_file": other / "train-*"}, "--input_file: 40 records in "),
        "dropout": (new, {"bert_config_file": other / "bert_config.json"}, "hidden_dropout_prob of the model: 0.1"),
        "parts": (new, {"gradient_accumulation_steps": 2}, "--gradient_accumulation_steps: 1"),
        "type": (new, {"dtype": "bfloat16"}, "--dtype: float32"),
        "steps": (new, {"num_train_steps": 20}, "--num_train_steps: 10"),
        "evaluations": (new, {"eval_every_steps": 5, "eval_batch_size": 12}, "--eval_every_steps: 0"),
        "folder": ({"num_train_steps": 20}, new, f"{step}10 on worker 0"),
        "first's folder": ({**new, "num_train_steps": 20}, {"output_dir": tmp_path / "out"}, f"{step}0 on worker 0"),
        "weights": ({**new, "num_train_steps": 20}, at_end, "checksum of the weights to begin with: "),
    }
    said = agreed("run_pretraining", flags, cases, tmp_path, count)
    assert f"), 0.002 on worker {count - 1} (localhost:" in said["rate"]
    assert not (tmp_path / "new").exists()
    assert len(list((tmp_path / "out").glob("model.ckpt-*.index"))) == 2  # as the first worker's flags say


def test_fine_tuning_waits_for_the_best_model_and_is_refused_where_the_second_worker_differs(tmp_path):
    """The best model of the last step, which the first worker holds back, is the one that all predict with."""
    for folder in ("data", "other"):
        (tmp_path / folder).mkdir()
    own = {**SEVERAL, "do_predict": True, "use_best_model": True, "eval_every_steps": 2, "output_dir": tmp_path / "out"}
    flags = fine_tuning_flags("run_classifier", tmp_path / "data", **own)
    other = fine_tuning_flags("run_classifier", tmp_path / "other")
    for name in ("train", "dev", "test"):
        path = tmp_path / "other" / f"{name}.csv"
        path.write_text(path.read_text().replace("w1", "w2"))
    vocabulary = tmp_path / "other" / "encoder" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("w1\nw2\n", "w2\nw1\n"))
    best, new = tmp_path / "out" / "best_model", {"output_dir": tmp_path / "new"}
    (teacher := tmp_path / "teacher").mkdir()  # with the weights of the best model
    (teacher / "bert_config.json").write_text(json.dumps({**ONE_LAYER, "hidden_act": "relu"}))
    for name in ("bert_model.safetensors", "vocab.txt", "tokenizer_config.json", "head_config.json"):
        (teacher / name).symlink_to(best / name)
    check = {"do_train": False, "do_eval": False, "use_best_model": False, "init_checkpoint": best}
    cases = {
        "held back": ({}, {}, "done"),
        "again": ({**check, "output_dir": tmp_path / "again"}, {"log_every_steps": 3}, "done"),
        **{file: (new, {f"{file}_file": other[f"{file}_file"]}, f"{file} set") for file in ("train", "dev", "test")},
        "labels": ({**new, "labels": "up,down"}, {"labels": "down,up"}, "--labels: ['up', 'down'] on"),
        "vocabulary": (new, {"init_checkpoint": other["init_checkpoint"]}, "train set: 32 examples, "),
        "length": (new, {"max_seq_length": 12}, "--max_seq_length: 24"),
        "epochs": (new, {"num_train_epochs": 2}, "--num_train_epochs: 1"),
        "patience": (new, {"early_stopping_patience": 1}, "--early_stopping_patience: 0"),
        "training": ({**new, "init_checkpoint": best}, {"do_train": False}, "--do_train: True"),
        "predictions": (new, {"do_predict": False}, "--do_predict: True"),
        "seeds": (new, {"num_seeds": 2}, "--num_seeds: 1"),
        "teacher": ({**new, "teacher": best}, {"teacher": teacher}, "hidden_act of the teacher: gelu on worker 0"),
        "weights": (new, {"init_checkpoint": best}, "checksum of the weights to begin with: "),
        "folder": (new, {"output_dir": tmp_path / "own"}, "run.json: "),
    }
    agreed("run_classifier", flags, cases, tmp_path, prepare="helpers.cluster")
    expected, found = (np.loadtxt(tmp_path / name / "test_results.tsv") for name in ("again", "out"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
