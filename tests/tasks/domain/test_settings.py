"""What run_domain.py refuses before anything starts."""

import dataclasses

import pytest
from helpers.descendants import save_model

from bert_tf.models.task_models import BertForPreTraining
from bert_tf.tasks.domain.settings import DomainSettings


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return save_model(tmp_path_factory.mktemp("model"), "bert", BertForPreTraining, max_length=128)


@pytest.fixture
def right(tmp_path, model) -> DomainSettings:
    (tmp_path / "text.txt").write_text("A sentence.\n")
    (tmp_path / "train.csv").write_text("text,verdict\n" + "yes,up\nno,down\n" * 16)
    settings = DomainSettings(
        init_checkpoint=model, input_file=str(tmp_path / "t*.txt"), output_dir=str(tmp_path / "out"),
        train_file=str(tmp_path / "train.csv"), dev_file=str(tmp_path / "train.csv"), text_a="text", label="verdict",
    )  # fmt: skip
    settings.check()
    return settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 4}, "--max_seq_length=4 must be at least 5"),
        ({"init_checkpoint": "nothing"}, "--init_checkpoint=nothing: there is no such"),
        ({"input_file": "nothing*"}, "--input_file: no file matches 'nothing\\*'"),
        ({"input_file": ""}, "--input_file names no file"),
        ({"heldout_file": "nothing"}, "--heldout_file: no file matches"),
        ({"other_text": "nothing"}, "--other_text: no file matches"),
        ({"output_dir": "a,b"}, "--output_dir=a,b: a comma"),
        ({"train_file": None}, "--dev_file is for a fine-tuning, which needs --train_file, too"),
        ({"label": None}, "--train_file is for a fine-tuning, which needs --label, too"),
        ({"dev_file": "nothing"}, "--dev_file=nothing: there is no such file"),
        ({"label": "stars"}, "train.csv, line 1: no column 'stars'"),
        ({"fine_tuning_flag": ("--text_b=other",)}, "train.csv, line 1: no column 'other'"),
        ({"fine_tuning_flag": ("num_train_epochs=1",)}, "--fine_tuning_flag=num_train_epochs=1 must be a flag"),
        ({"fine_tuning_flag": ("--num_train_epochs=x",)}, "--fine_tuning_flag=--num_train_epochs=x must be a number"),
        ({"fine_tuning_flag": ("--train_batch_size=x",)}, "--fine_tuning_flag=--train_batch_size=x must be a whole"),
        ({"fine_tuning_flag": ("--num_seeds=5",)}, "--num_seeds=5: give --num_seeds without --fine_tuning_flag"),
        ({"fine_tuning_flag": ("--nodo_eval",)}, "--fine_tuning_flag=--nodo_eval: run_domain.py sets it"),
        ({"pretraining_flag": ("--learning_rate=1",)}, "give --learning_rate without --pretraining_flag"),
        ({"pretraining_flag": ("--nsp=false",)}, "--pretraining_flag=--nsp=false: run_domain.py sets it"),
    ],
)
def test_refusals(right, changes, message):
    with pytest.raises((ValueError, OSError), match=message):
        dataclasses.replace(right, **changes).check()


def test_texts_that_are_trained_on_are_not_held_out(right, tmp_path, caplog):
    (tmp_path / "other.txt").write_text("Another sentence.\n")
    dataclasses.replace(right, heldout_file=f"{tmp_path}/other.txt").check()
    assert not caplog.text
    dataclasses.replace(right, heldout_file=f"{tmp_path}/*t.txt").check()
    assert f"--heldout_file: {tmp_path}/text.txt is trained on, too: results on it say nothing" in caplog.text


def test_no_task_takes_no_flags_of_a_task(right):
    without = dataclasses.replace(right, train_file=None, dev_file=None, text_a=None, label=None)
    without.check()
    for name, value in (("num_seeds", 2), ("fine_tuning_flag", ("--seed=7",))):
        with pytest.raises(ValueError, match=f"--{name} is for a fine-tuning, which needs --train_file"):
            dataclasses.replace(without, **{name: value}).check()
    assert without.seeds == 3 and dataclasses.replace(right, num_seeds=5).seeds == 5
