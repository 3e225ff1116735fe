"""Scripts and classes on a model by its name on the hub: what they note of it, and what a run goes on with."""

import dataclasses
import functools
import json
import shutil
import sys

import numpy as np
import pytest
from helpers import warm
from helpers.early_mistakes import outcomes
from helpers.hub_server import COMMIT, HubServer
from helpers.local_server import serving
from helpers.paths import ROOT
from helpers.script_cases import arguments_of
from helpers.small_data import texts_of, write_classification
from helpers.tiny import ONE_LAYER

import bert_tf
from bert_tf import modeling
from bert_tf.conversion.convert import convert
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.serving import onnx_export
from bert_tf.serving.export import export_saved_model
from bert_tf.tasks.classification.settings import ClassificationSettings
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.domain.recipe import adapt
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.tasks.features import extract
from bert_tf.tasks.features.settings import FeatureSettings
from bert_tf.tasks.script import fine_tune
from bert_tf.training.pretraining_run import pretrain
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.settings import FineTuningSettings

NAME, NEWER = "owner/tiny", "0b" * 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
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
        (folder / "foreign").mkdir()
        for file, text in {"config.json": '{"model_type": "deberta-v2"}', "model.safetensors": ""}.items():
            (folder / "foreign" / file).write_text(text)
        server.put("owner/foreign", folder / "foreign")
        yield server


@pytest.fixture
def here(server, tmp_path, monkeypatch):
    server.models[NAME] = {COMMIT: server.models[NAME][COMMIT]}
    server.use_here(monkeypatch, tmp_path / "home")
    server.requests.clear()
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


def test_what_is_wrong_with_all_else_is_said_before_a_download(server, here, tmp_path, monkeypatch):
    for name, value in server.environment(tmp_path / "cold").items():
        monkeypatch.setenv(name, value)
    write_classification(tmp_path / "train.csv", texts_of(8, 0))
    given = {"task_name": "custom", "train_file": "train.csv", "text_a": "text", "label": "verdict", "do_train": True,
             "init_checkpoint": NAME, "output_dir": "out"}  # fmt: skip
    prediction = {"do_train": False, "do_predict": True}
    cases = {
        "FileNotFoundError: --train_file=none.csv: ": {"train_file": "none.csv"},
        "ValueError: --lora_alpha needs --lora_rank": {"lora_alpha": 2},
        "FileNotFoundError: --test_file=none.csv: ": {"test_file": "none.csv", **prediction},
    }
    found = outcomes("run_classifier", [arguments_of({**given, **changed}) for changed in cases.values()])
    for (message, with_tensorflow), wanted in zip(found, cases, strict=True):
        assert message.startswith(wanted) and not with_tensorflow, message
    assert not server.requests


def test_programs_give_names(here, tmp_path):
    model = bert_tf.BertModel.from_pretrained(NAME)
    assert len(modeling.get_assignment_map_from_checkpoint(model.trainable_variables, NAME)[0]) == len(model.weights)
    (tmp_path / "new.csv").write_text("text\ngood film\nbad\n")
    task = ClassificationTask(ClassificationSettings(task_name="custom", test_file="new.csv", text_a="text"))
    run = FineTuningSettings(output_dir="out", do_predict=True, init_checkpoint=NAME, max_seq_length=16)
    fine_tune(task, run)
    rows = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    answers = bert_tf.Predictor(NAME).predict(["good film", "bad"])
    assert [row["label"] for row in rows] == [answer["label"] for answer in answers]
    with pytest.raises(FileNotFoundError, match="^--init_checkpoint=owner/none: .*no such model on http"):
        fine_tune(task, dataclasses.replace(run, init_checkpoint="owner/none"))


@pytest.mark.parametrize("name", ["owner/none", "owner/foreign"])
def test_all_that_takes_a_path_says_what_is_wrong_with_a_name(server, here, tmp_path, name):
    (tmp_path / "text.txt").write_text("A good film.\n\nA bad film.\n")
    texts = {"init_checkpoint": name, "input_file": "text.txt"}
    message = "no such model on http" if name == "owner/none" else "model_type is 'deberta-v2'; the families"
    makers = (bert_tf.Predictor, bert_tf.QuestionAnswerer, bert_tf.Embedder, bert_tf.read_tokenizer)
    for program in (
        lambda: pretrain(PretrainingSettings("text.txt", "out", do_train=True, init_checkpoint=name)),
        lambda: adapt(DomainSettings(output_dir="out", **texts)),
        lambda: extract.run(FeatureSettings(output_file="out.json", **texts)),
        lambda: convert(name, "out", "bert_tf"),
        lambda: create_pretraining_data("text.txt", "out", name),
        lambda: export_saved_model(name, "out"),
        lambda: onnx_export.export_onnx(name, "out"),
        lambda: bert_tf.load_weights(bert_tf.BertModel.from_pretrained(NAME), name),
        lambda: modeling.get_assignment_map_from_checkpoint([], name),
        *(functools.partial(maker, name) for maker in makers),
    ):
        with pytest.raises((FileNotFoundError, ValueError), match=f"{name}.*{message}") as error:
            program()
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
    wanted = [path for _, path, _ in server.requests if path.endswith(".safetensors")]
    assert all(NAME in path for path in wanted)


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
    converted = run("convert_checkpoint", {"from": NAME, "to": "converted", "format": "bert_tf"})
    assert converted.returncode == 0 and (tmp_path / "converted" / "bert_model.safetensors").exists(), converted.stderr
