"""Four logical CPU devices for the tests of several replicas; they must exist before TensorFlow is first used."""

import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pytest
import tensorflow as tf
from serving_process import ServingProcess

from bert_tf.progress import progress_bar
from bert_tf.tokenization import FullTokenizer

_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 4)

TESTS = pathlib.Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def collectives_of_its_own():
    """Two strategies in one process number their collective operations alike, and the second one gets the first's."""
    tf.distribute.MirroredStrategy._collective_key_base += 100_000


@pytest.fixture(scope="session")
def clean_process(tmp_path_factory):
    """Calls exports where there is nothing but TensorFlow: see `ServingProcess.call`."""
    process = ServingProcess(str(tmp_path_factory.mktemp("clean_process")))
    yield process.call
    process.close()


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


# Token windows of the original's golden SQuAD outputs: max_seq_length, doc_stride, max_query_length.
SQUAD_SIZES = {"S64": (64, 32, 16), "S384": (384, 128, 64)}


@pytest.fixture(scope="module")
def small(tmp_path_factory, request):
    """A tokenizer whose vocabulary is the PIECES of the test's module."""
    path = tmp_path_factory.mktemp("small") / "vocab.txt"
    path.write_text("".join(piece + "\n" for piece in request.module.PIECES))
    return FullTokenizer(str(path))


@pytest.fixture(scope="session")
def english():
    """A tokenizer with a vocabulary of usual size."""
    return FullTokenizer(str(TESTS / "golden" / "vocab.txt"))


def show_progress_at_once(monkeypatch, module) -> list[dict]:
    """Takes the delay from the progress bars of a module; returns a list of the options that each is given."""
    given = []

    def without_delay(iterable, **options):
        given.append(options)
        return progress_bar(iterable, **{**options, "delay": 0})

    monkeypatch.setattr(module, "progress_bar", without_delay)
    return given


TINY_CONFIG = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
}


def write_pretraining_records(path, count, max_seq_length=16, max_predictions_per_seq=3, seed=0) -> None:
    """A TFRecord file of random pre-training examples in the original's format."""
    generator = np.random.default_rng(seed)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(count):
            ids = generator.integers(5, TINY_CONFIG["vocab_size"], max_seq_length)
            positions = np.sort(generator.choice(np.arange(1, max_seq_length), max_predictions_per_seq, replace=False))
            lists = {
                "input_ids": ids,
                "input_mask": np.ones(max_seq_length, int),
                "segment_ids": (np.arange(max_seq_length) > max_seq_length // 2).astype(int),
                "masked_lm_positions": positions,
                "masked_lm_ids": ids[positions],
                "next_sentence_labels": generator.integers(0, 2, 1),
            }
            feature = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=value)) for name, value in lists.items()
            }
            weights = [1.0] * max_predictions_per_seq
            feature["masked_lm_weights"] = tf.train.Feature(float_list=tf.train.FloatList(value=weights))
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


@pytest.fixture
def letters(tmp_path) -> tuple[str, str]:
    """(corpus, vocabulary): the original's results for them are known draw by draw."""
    from pretraining_records_read import LETTERS, LETTERS_CORPUS

    corpus, vocab = tmp_path / "letters.txt", tmp_path / "letters_vocab.txt"
    corpus.write_text(LETTERS_CORPUS)
    vocab.write_text("\n".join(LETTERS) + "\n")
    return str(corpus), str(vocab)
