"""Scripts and classes on a model by its name on the hub: what they note of it, and what a run goes on with."""

import json
import shutil
import sys

import numpy as np
import pytest
from helpers import warm
from helpers.hub_server import COMMIT, HubServer
from helpers.local_server import serving
from helpers.paths import ROOT
from helpers.script_cases import arguments_of
from helpers.small_data import texts_of, write_classification
from helpers.tiny import ONE_LAYER

import bert_tf

NAME, NEWER = "owner/tiny", "0b" * 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A hub with a classifier of words, in Hugging Face's form."""
    folder = tmp_path_factory.mktemp("hub")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    config = bert_tf.BertConfig.from_dict({**ONE_LAYER, "vocab_size": len(pieces)})
    model = bert_tf.BertForSequenceClassification(config, labels=["no", "yes"], num_labels=2)
    model.build()
    vocab_file = str(folder / "vocab.txt")
    model.save_pretrained(str(folder / "model"), format="huggingface", vocab_file=vocab_file, do_lower_case=True)
    with serving(HubServer()) as server:
        server.put(NAME, folder / "model")
        yield server


@pytest.fixture
def here(server, tmp_path, monkeypatch):
    server.models[NAME] = {COMMIT: server.models[NAME][COMMIT]}
    server.use_here(monkeypatch, tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    return server.models[NAME][COMMIT]


def test_a_name_is_as_good_as_its_folder(here):
    texts = ["good film", "bad"]
    rows = [bert_tf.Predictor(path).predict(texts) for path in (NAME, f"{NAME}@{COMMIT}", str(here))]
    assert rows[0] == rows[1] == rows[2]
    model = bert_tf.BertForSequenceClassification.from_pretrained(f"hf://{NAME}")
    assert [*model.labels] == ["no", "yes"] and bert_tf.read_tokenizer(NAME).tokenize("Good") == ["good"]
    vectors = [bert_tf.Embedder(path).encode(texts) for path in (NAME, str(here))]
    np.testing.assert_array_equal(*vectors)


@pytest.mark.parametrize("maker", [bert_tf.Predictor, bert_tf.Tagger, bert_tf.QuestionAnswerer, bert_tf.Embedder,
                                   bert_tf.BertModel.from_pretrained, bert_tf.read_tokenizer])  # fmt: skip
def test_everything_that_takes_a_path_says_what_is_wrong_with_a_name(here, maker):
    with pytest.raises(FileNotFoundError, match="^owner/none: there is no such directory.*and no such model on http"):
        maker("owner/none")


def test_a_run_notes_the_commit_and_goes_on_with_it(server, here, tmp_path):
    def run(script: str, given: dict):
        command = [sys.executable, str(ROOT / f"{script}.py"), *arguments_of(given)]
        environment = server.environment(tmp_path / "home")
        return warm.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)

    write_classification(tmp_path / "train.csv", texts_of(8, 0))
    given = {
        "task_name": "custom", "train_file": "train.csv", "text_a": "text", "label": "verdict", "do_train": True,
        "init_checkpoint": NAME, "output_dir": "out", "num_train_epochs": 1, "train_batch_size": 4, "new_head": True,
        "max_seq_length": 16,
    }  # fmt: skip
    trained = run("run_classifier", given)
    assert trained.returncode == 0, trained.stderr
    assert f"Downloading {NAME}@main, commit {COMMIT}: " in trained.stderr
    noted = json.loads((tmp_path / "out" / "run.json").read_text())
    assert noted["init_checkpoint"] == noted["init_weights"]["path"] == f"{NAME}@{COMMIT}"
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"base_model: {NAME}\n" in card and f"weights at the start: {NAME}@{COMMIT}\n" in card
    # There is a newer commit by now.
    shutil.copytree(here, tmp_path / "newer")
    server.put(NAME, tmp_path / "newer", NEWER)
    again = run("run_classifier", given)
    assert again.returncode == 0 and NEWER not in again.stderr, again.stderr
    assert not (tmp_path / f"home/hub/models--owner--tiny/snapshots/{NEWER}").exists()
    # Other scripts.
    missing = run(
        "run_ner", {"init_checkpoint": "owner/none", "output_dir": "other", "train_file": "t", "do_train": True}
    )
    assert "run_ner.py: error: --init_checkpoint=owner/none: there is no such directory" in missing.stderr
    converted = run("convert_checkpoint", {"from": NAME, "to": "converted", "format": "bert_tf"})
    assert converted.returncode == 0 and (tmp_path / "converted" / "bert_model.safetensors").exists(), converted.stderr
