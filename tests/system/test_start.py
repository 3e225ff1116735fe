"""What a script does before its first step: it imports nothing that it does not need by then, in a real process."""

import collections
import importlib.util
import os
import subprocess
import sys

import pytest
from helpers.paths import ROOT
from helpers.script_cases import arguments_of
from helpers.slow import slow
from helpers.small_data import PIECES, texts_of, write_classification
from helpers.tiny import write_encoder
from test_structure import loaded_by

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


@pytest.mark.slow
def test_what_is_imported_before_the_first_step(tmp_path):
    write_encoder(tmp_path, PIECES)
    write_classification(tmp_path / "train.csv", list(texts_of(16, 0)))
    flags = {
        "task_name": "custom", "train_file": tmp_path / "train.csv", "text_a": "text", "label": "verdict",
        "init_checkpoint": tmp_path / "encoder", "do_train": True, "max_seq_length": 24, "train_batch_size": 8,
        "output_dir": tmp_path / "run", "log_every_steps": 1,
    }  # fmt: skip
    command = [sys.executable, "-X", "importtime", str(ROOT / "run_classifier.py"), *arguments_of(flags)]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    before, _, after = result.stderr.partition("train step 1:")
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
