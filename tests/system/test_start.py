"""What a script does before its first step: few imports, in a real process, and programs kept between starts."""

import collections
import functools
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
from helpers.basics import ROOT, slow
from helpers.scenarios import fine_tuning_flags
from helpers.script_cases import command_of, weights_of
from test_structure import loaded_by

from bert_tf.system import compiled_programs
from bert_tf.system.workers import available_cores

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
# Large packages that TensorFlow, Keras or the scripts can use, and that training needs at its end, or not at all.
LATER = {"cv2", "jax", "matplotlib", "pandas", "scipy", "sklearn", "tensorflow_text",
         "official", "tf_keras", "torch", "transformers", "numba", "googleapiclient"}  # fmt: skip

# tf-models-official brings it.
GOOGLE_API = {"googleapiclient"} if importlib.util.find_spec("googleapiclient") else set()

SCRIPT = """
import gc, os, resource, sys
from absl import flags
from bert_tf.system import script
from bert_tf.system.declare import define_flags
from bert_tf.training.settings import DeviceSettings

define_flags(DeviceSettings)

def main(_):
    script.start_tensorflow(trains=False)
    import tensorflow as tf
    pages = []
    for _ in range(5):
        x = tf.zeros([1 << 24]) + 1.0  # twice 64 MiB, 32,768 pages
        pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    print("pages", pages[-1] - pages[-2])
    print("threads", tf.config.threading.get_intra_op_parallelism_threads())
    print("onednn", os.environ["TF_ENABLE_ONEDNN_OPTS"])
    print("imported", *sorted({name.partition(".")[0] for name in sys.modules}))
    print("frozen", gc.isenabled() and gc.get_freeze_count() > 100000)
    import scipy.sparse, jax, matplotlib
    print("later", scipy.sparse.csr_matrix and jax.jit and matplotlib.rc and True)
    from tensorflow.python.tpu.client import client
    print("finds_tpus", client._GOOGLE_API_CLIENT_INSTALLED)

script.run(main)
"""


NO_POOL = {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPU_ALLOCATOR_USE_BFC": "0"}


@pytest.mark.parametrize("flag", [None, *slow("--use_tpu", "--distribution_strategy=tpu")])
@pytest.mark.parametrize("variables", [{"TF_ENABLE_ONEDNN_OPTS": "0"}, *slow({}, NO_POOL)])
def test_tensorflow_without_what_scripts_do_not_use(flag, variables):
    command = [sys.executable, "-c", SCRIPT, *([flag] if flag else [])]
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "TF_CPP_MIN_LOG_LEVEL"} | variables
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "cuInit" not in result.stderr and "I0000" not in result.stderr
    found = {name: values for name, *values in map(str.split, result.stdout.splitlines())}
    assert {"tensorflow", "keras"} < set(found["imported"])
    assert LATER.intersection(found["imported"]) == (GOOGLE_API if flag else set())
    assert found["frozen"] == ["True"]
    # What only predicts has cores for eight batches at once.
    assert found["threads"] == ["0" if flag else str(max(1, available_cores() // 8))]
    assert found["onednn"] == [variables.get("TF_ENABLE_ONEDNN_OPTS", "1")]
    # The system clears none for a tensor, unless it is asked to.
    assert (int(found["pages"][0]) < 1000) == ("TF_CPU_ALLOCATOR_USE_BFC" not in variables)
    assert found["later"] == ["True"]  # what was hidden can be imported afterwards
    assert found["finds_tpus"] == [str(flag is not None and bool(GOOGLE_API))]


@pytest.fixture
def train(tmp_path):
    """Runs run_classifier.py on a tiny encoder in a process of its own; what it writes to stderr."""
    flags = fine_tuning_flags("run_classifier", tmp_path, do_eval=False, dev_file=None, test_file=None)

    def run(name: str, environment: dict[str, str], *options: str, **more) -> str:
        command = command_of("run_classifier", {**flags, **more, "output_dir": tmp_path / name})
        command[1:1] = options
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr[-3000:]
        return result.stderr

    return run


@pytest.mark.slow
def test_what_is_imported_before_the_first_step(train):
    before, _, after = train("run", ENVIRONMENT, "-X", "importtime", log_every_steps=1).partition("train step 1:")
    imported, later = (
        {line.rpartition("|")[2].strip() for line in lines.splitlines() if line.startswith("import time:")}
        for lines in (before, after)
    )
    # A module that was sought but not found is listed, too, but not the many that it would import.
    numbers = collections.Counter(name.partition(".")[0] for name in imported)
    assert numbers["keras"] > 100 and max(numbers[name] for name in LATER - {"numba", "scipy"}) < 4, numbers
    assert "matplotlib.figure" in later
    ours = {name for name in imported | later if name.split(".")[0] == "bert_tf"}
    counted = loaded_by("bert_tf.tasks.script", "bert_tf.tasks.classification.task")
    of_scripts = ("system.compiled_programs", "system.script", "system.tensorflow_internals", "cli.run_classifier")
    assert ours - counted == {"bert_tf.cli", *(f"bert_tf.{name}" for name in of_scripts)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of programs; what `kept` would do at the end of the process is in the list `at_exit`."""
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(compiled_programs, "_NVIDIA", tmp_path / "nvidia")
    monkeypatch.setenv(compiled_programs.VARIABLE, str(tmp_path / "compiled"))
    return tmp_path / "compiled"


@pytest.fixture
def at_exit(monkeypatch):
    calls = []
    monkeypatch.setattr(compiled_programs.atexit, "register", lambda *call: calls.append(functools.partial(*call)))
    return calls


def entry(executable=b"code") -> bytes:
    """A program as TensorFlow writes it, with its source (field 2)."""
    key = b"\x08\x07\x1a\x0bXLA_CPU_JIT"  # signature_fingerprint, device_type
    parts = {b"\x0a": key, b"\x1a": executable, b"\x12": b"source"}
    return b"".join(tag + bytes([len(part)]) + part for tag, part in parts.items())


def own_folder() -> str:
    return os.environ["TF_XLA_FLAGS"].partition("cache_directory=")[2].split()[0]


def one_process(at_exit, new: dict[str, bytes], deterministic: bool = False) -> dict[str, bytes]:
    with compiled_programs.keep_programs(deterministic):
        own = own_folder()
    found = {name: pathlib.Path(own, name).read_bytes() for name in os.listdir(own)}
    for name, content in new.items():
        pathlib.Path(own, name).write_bytes(content)
    at_exit.pop()()
    return found


def test_programs_go_from_process_to_process(folder, at_exit):
    broken = {"incomplete.pb": entry()[:-9], "of nothing.pb": b"", "without code.pb": entry(b"")}
    assert one_process(at_exit, {"a.pb": entry(), **broken}) == {}
    (place,) = folder.iterdir()
    assert oct(place.stat().st_mode & 0o777) == oct(folder.stat().st_mode & 0o777) == "0o700"
    found = one_process(at_exit, {"b.pb": entry()})
    assert list(found) == ["a.pb"] and b'executable: "code"' in found["a.pb"] and b"source" not in found["a.pb"]
    assert sorted(one_process(at_exit, {})) == ["a.pb", "b.pb"]
    assert sorted(path.name for path in place.iterdir()) == ["a.pb", "b.pb"]  # no temporary file
    sound = (path := place / "a.pb").read_bytes()
    for damaged in (sound[:-3], sound.replace(b"code", b"coda"), b"", sound.partition(b"\n")[2]):  # it is made again
        path.write_bytes(damaged)
        assert list(one_process(at_exit, {"a.pb": entry()})) == ["b.pb"] and path.read_bytes() == sound


def test_the_oldest_programs_leave_a_full_folder(folder, at_exit, monkeypatch):
    one_process(at_exit, {f"{number}.pb": entry() for number in range(3)})
    size = next(folder.glob("*/*.pb")).stat().st_size
    for age, number in enumerate((1, 0, 2)):  # 1 is the newest
        (path,) = folder.glob(f"*/{number}.pb")
        os.utime(path, (1000 - age, 1000 - age))
    monkeypatch.setattr(compiled_programs, "_MOST_BYTES", {"CPU": 3 * size})
    assert len(one_process(at_exit, {})) == 3  # it compiles nothing
    one_process(at_exit, {"3.pb": entry()})
    assert {path.name for path in folder.glob("*/*")} == {"0.pb", "1.pb", "3.pb"}
    one_process(at_exit, {"4.pb": entry(), "5.pb": entry()})
    assert {path.name for path in folder.glob("*/*")} >= {"4.pb", "5.pb"} and len(list(folder.glob("*/*"))) == 3


def test_other_flags_other_programs(folder, at_exit, monkeypatch):
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_cpu_global_jit")
    with compiled_programs.keep_programs():
        assert os.environ["TF_XLA_FLAGS"].startswith("--tf_xla_cpu_global_jit --tf_xla_persistent_cache_directory=")
    assert os.environ["TF_XLA_FLAGS"] == "--tf_xla_cpu_global_jit"
    at_exit.clear()
    one_process(at_exit, {"a.pb": entry()})
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert one_process(at_exit, {}) == {} and len(list(folder.iterdir())) == 2


@pytest.fixture
def gpu(tmp_path):
    def add(number: int, name: str):
        path = tmp_path / "nvidia" / "gpus" / f"0000:0{number}" / "information"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Model: \t\t {name}\nIRQ: {number}\n")
        (tmp_path / "nvidia" / "version").write_text("NVRM version: 550.54\n")

    return add


def test_programs_of_one_gpu_are_kept_by_its_name_and_driver(folder, at_exit, gpu, monkeypatch):
    def devices() -> str:
        with compiled_programs.keep_programs():
            return os.environ["TF_XLA_FLAGS"].partition("device_types=")[2].split()[0]

    assert devices() == "CPU"
    one_process(at_exit, {"a.pb": entry()})
    assert os.environ["XLA_FLAGS"] == ""
    gpu(1, "NVIDIA H100")
    assert devices() == "CPU,GPU" and one_process(at_exit, {"b.pb": entry()}) == {}
    assert list(one_process(at_exit, {})) == ["b.pb"] and one_process(at_exit, {}, deterministic=True) == {}
    gpu(1, "NVIDIA A100")
    assert one_process(at_exit, {}) == {}
    gpu(2, "NVIDIA A100")
    assert devices() == "CPU"  # each would write the same file
    for visible, expected in (("1", "CPU,GPU"), ("", "CPU")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert devices() == expected


def test_measurements_of_kernels_are_kept(folder, at_exit, gpu, monkeypatch):
    gpu(1, "NVIDIA H100")
    flag = compiled_programs._MEASURED
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_the_user=1")
    assert one_process(at_exit, {"a_-.textproto": b"gemm { algorithm: 3 }\n"}) == {}
    first, *rest = os.environ["XLA_FLAGS"].split()
    assert first.startswith(f"{flag}=") and rest == ["--xla_of_the_user=1"]  # the last wins
    (path,) = folder.glob("*/a_-.textproto")
    with compiled_programs.keep_programs():  # as a process that the first has started
        folder_now = own_folder()
        assert os.environ["XLA_FLAGS"].split() == [f"{flag}={folder_now}", *rest] != [first, *rest]
    pathlib.Path(folder_now, "tmp").mkdir()
    assert pathlib.Path(folder_now, path.name).read_bytes() == path.read_bytes()
    at_exit.pop()()
    for flags, version in (("a_file_with_flags", ("2.20.", "2.21.")), ("", "1.15.")):
        monkeypatch.setenv("XLA_FLAGS", flags)
        monkeypatch.setattr(compiled_programs, "_MEASURED_IN", version)
        one_process(at_exit, {})
        assert os.environ["XLA_FLAGS"] == flags


def test_tensorflow_knows_the_flag_of_measurements(tmp_path):
    code = "import tensorflow as tf; tf.function(lambda x: x + 1, jit_compile=True)(tf.constant(1))"
    flags = f"{compiled_programs._MEASURED}={tmp_path}/first {compiled_programs._MEASURED}={tmp_path}/last"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "XLA_FLAGS": flags}, check=True)


def test_a_folder_of_others_or_no_folder_keeps_no_programs(folder, at_exit, monkeypatch):
    folder.mkdir()
    folder.chmod(0o777)
    for value in ("", str(folder)):
        monkeypatch.setenv("BERT_TF_COMPILED", value)
        with compiled_programs.keep_programs():
            assert "TF_XLA_FLAGS" not in os.environ
    monkeypatch.setattr(compiled_programs.importlib.metadata, "distribution", lambda _: __import__("no_such"))
    with compiled_programs.keep_programs():  # tensorflow-tpu
        assert "TF_XLA_FLAGS" not in os.environ
    assert not at_exit and not os.listdir(folder)


@pytest.mark.slow
def test_a_run_has_the_same_bits_with_and_without_kept_programs(train, tmp_path):
    """Without, in a first start, in a second one that compiles nothing for its training, and in one after damage."""

    def run(name: str, compiled: str):
        environment = {key: value for key, value in os.environ.items() if key not in ("TF_XLA_FLAGS", "XLA_FLAGS")}
        environment |= {"PYTHONPATH": str(ROOT), compiled_programs.VARIABLE: compiled}
        told = train(name, environment, num_train_epochs=2)
        assert "E0000" not in told and (not compiled or "not kept" not in told), told[-3000:]
        assert (tmp_path / name / "loss.png").exists()  # what Keras was told not to find is there
        return {key: value.tobytes() for key, value in weights_of(tmp_path / name).items()}

    expected = run("without", "")
    kept = str(tmp_path / "compiled")
    assert run("first", kept) == expected
    programs = {path: path.stat().st_ino for path in (tmp_path / "compiled").glob("*/*.pb")}
    assert len(programs) > 5 and run("second", kept) == expected
    assert {path: path.stat().st_ino for path in (tmp_path / "compiled").glob("*/*.pb")} == programs
    for number, path in enumerate(programs):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if number % 2 else content[:200] + b"\0" + content[201:])
    assert run("damaged", kept) == expected
