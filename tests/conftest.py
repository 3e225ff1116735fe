"""The environment of all tests: four logical CPU devices, a shared cache of XLA's programs, and quick compilation."""

import atexit
import gc
import multiprocessing
import os
import pathlib
import shlex
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor

import pytest
from absl import logging
from helpers import quick, serving_process, slices, warm
from helpers.basics import ROOT, TESTS

from bert_tf.system import messages
from bert_tf.text.wordpiece import FullTokenizer

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if "PYTEST_XDIST_WORKER" not in os.environ:
    # All processes share what XLA compiles, which is half of the time of a first step.
    _COMPILED = tempfile.mkdtemp(prefix="xla-")
    atexit.register(shutil.rmtree, _COMPILED, ignore_errors=True)
    os.environ["TF_XLA_FLAGS"] = f"{os.environ.get('TF_XLA_FLAGS', '')} --tf_xla_persistent_cache_directory={_COMPILED}"
    quick.choose()


def pytest_sessionstart(session):
    """Creates four devices for tests with several replicas; they must exist before TensorFlow is first used."""
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
        tf.config.experimental.enable_tensor_float_32_execution(False)  # a GPU compares with a CPU's numbers
        quick.apply()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs):
    """The processes of pytest-xdist have all imports already done: they are children of the warm server, too."""
    warm.start()
    for spec in specs:
        spec.python = shlex.join([sys.executable, warm.__file__])


# The longest files start first, so that all processes end at about the same time; test_create.py compiles for others.
_LONGEST_FIRST = """
    documentation exact_runs checkpoints notebooks demo create run_ner export run_classifier
    recipe labels keras_callbacks run_squad run_pretraining equal_steps loop from_transformers script
    every_task dropout run_similarity backends remote_paths graph_squad start similarity fine_tuning_runs
"""


def pytest_addoption(parser):
    parser.addoption("--slice", type=slices.parse, help="of the tests only this part, as in 2/4; see helpers/slices.py")
    parser.addoption("--touched-by", type=int, default=0, help="and those near to what so many last commits changed")


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config, items):
    part = config.getoption("slice")
    if part:
        files = [item.path.relative_to(ROOT).as_posix() for item in items]
        chosen = slices.chosen(files, part, config.getoption("touched_by"))
        left_out = [item for item, file in zip(items, files, strict=True) if file not in chosen]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item, file in zip(items, files, strict=True) if file in chosen]
    ranks = {name: rank for rank, name in enumerate(_LONGEST_FIRST.split())}
    items.sort(key=lambda item: ranks.get(item.path.stem.removeprefix("test_"), len(ranks)))


def pytest_collection_finish():
    """Freezes imported objects: garbage collection need not scan them repeatedly, and graphs need it seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


@pytest.fixture(autouse=True)
def verbosity_of_its_own():
    """Restores the verbosity, which a program's main called by a test, and TensorFlow when it saves, change."""
    logging.get_absl_logger().setLevel("NOTSET")


@pytest.fixture(autouse=True)
def nothing_is_logged_yet():
    """Each test sees the messages that a process gives once."""
    messages._logged_topics.clear()


@pytest.fixture(scope="session")
def clean_process():
    """A function for the outputs of a signature of an export, inputs as tf.constant takes them."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:

        def call(path: str, signature: str = "serving_default", **inputs) -> dict:
            outputs, imported = pool.submit(serving_process.answer, path, signature, inputs).result()
            assert not imported
            return outputs

        yield call


@pytest.fixture
def golden() -> pathlib.Path:
    """Outputs of the original on small inputs."""
    return TESTS / "golden"


@pytest.fixture
def shared() -> pathlib.Path:
    """Data too large for the repository; tests that need it are skipped if it is missing."""
    path = TESTS.parents[1] / "shared"
    if not (path / "data").is_dir():
        pytest.skip(f"needs the data folder {path}, which is not part of the project")
    return path


@pytest.fixture
def out(ran) -> pathlib.Path:
    """Of a test's module whose fixture `ran` has run a script's cases: the folder with a folder for each."""
    return ran[0]


@pytest.fixture
def logs(ran) -> dict[str, str]:
    """What each of these cases wrote to stderr."""
    return ran[1]


@pytest.fixture(scope="module")
def small(tmp_path_factory, request):
    """A tokenizer whose vocabulary is the PIECES of the test's module."""
    path = tmp_path_factory.mktemp("small") / "vocab.txt"
    path.write_text("".join(piece + "\n" for piece in request.module.PIECES))
    return FullTokenizer(str(path))


@pytest.fixture(scope="session")
def english():
    return FullTokenizer(str(TESTS / "golden" / "vocab.txt"))


@pytest.fixture
def letters(tmp_path) -> tuple[str, str]:
    """(corpus, vocabulary): the original's results for them are known draw by draw."""
    from helpers.record_files import LETTERS, LETTERS_CORPUS

    corpus, vocab = tmp_path / "letters.txt", tmp_path / "letters_vocab.txt"
    corpus.write_text(LETTERS_CORPUS)
    vocab.write_text("\n".join(LETTERS) + "\n")
    return str(corpus), str(vocab)
