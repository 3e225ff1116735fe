"""What run_domain.py refuses before anything starts."""

import dataclasses

import pytest
from helpers.descendants import save_model

from bert_tf.models.task_models import BertForPreTraining
from bert_tf.tasks.domain.settings import DomainSettings


@pytest.fixture
def right(tmp_path) -> DomainSettings:
    (tmp_path / "text.txt").write_text("A sentence.\n")
    (tmp_path / "train.csv").write_text("text,verdict\n" + "yes,up\nno,down\n" * 16)
    files = {"train_file": "train.csv", "dev_file": "train.csv", "input_file": "t*.txt", "output_dir": "out"}
    settings = DomainSettings(
        init_checkpoint=save_model(tmp_path / "model", "bert", BertForPreTraining, max_length=128),
        **{name: str(tmp_path / file) for name, file in files.items()},
        text_a="text",
        label="verdict",
    )
    settings.check()
    return settings


_NO_TASK = dict.fromkeys(("train_file", "dev_file", "text_a", "label"))
_REFUSED = [
    ({"max_seq_length": 4}, "--max_seq_length=4 must be at least 5"),
    ({"input_file": "nothing*"}, "--input_file: no file matches 'nothing\\*'"),
    ({"other_text": "nothing"}, "--other_text: no file matches"),
    ({"train_file": None}, "--train_file"),
    ({**_NO_TASK, "num_seeds": 2}, "--text_a"),
    ({"fine_tuning_flag": ("seed=1",)}, "--fine_tuning_flag: seed=1 is not a flag"),
    ({"fine_tuning_flag": ("--num_train_epochs=-1",)}, "--fine_tuning_flag: --num_train_epochs=-1 must be at least 0"),
    ({"fine_tuning_flag": ("--num_seeds=5",)}, "--fine_tuning_flag: --num_seeds: run_domain.py sets it"),
    ({"fine_tuning_flag": ("--nodo_eval",)}, "--fine_tuning_flag: --do_eval: run_domain.py sets it"),
    ({"pretraining_flag": ("--learning_rate=1",)}, "--learning_rate: run_domain.py sets it"),
    ({"pretraining_flag": ("--adam_beta_2=2",)}, "--pretraining_flag: "),
]


def test_refusals_and_warnings(right, tmp_path, caplog):
    for changes, message in _REFUSED:
        with pytest.raises((ValueError, OSError), match=message):
            dataclasses.replace(right, **changes).check()
    dataclasses.replace(right, **_NO_TASK).check()
    assert [dataclasses.replace(right, num_seeds=count).fine_tuning()[1].num_seeds for count in (None, 5)] == [3, 5]
    (tmp_path / "other.txt").write_text("Another sentence.\n")
    dataclasses.replace(right, heldout_file=f"{tmp_path}/other.txt").check()
    assert not caplog.text
    dataclasses.replace(right, heldout_file=f"{tmp_path}/*t.txt").check()
    assert f"--heldout_file: {tmp_path}/text.txt is trained on, too: results on it say nothing" in caplog.text
