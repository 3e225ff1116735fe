"""The comparison of a taught student with an untaught one: the runs it makes, their layers, and its table."""

import types

import numpy as np
from helpers.descendants import save_model
from helpers.script_cases import weights_of

from bert_tf import BertForSequenceClassification
from experiments import distilled


def test_both_students_train_alike(tmp_path):
    values = types.SimpleNamespace(
        glue_dir="glue", output_dir=str(tmp_path), learning_rate=1e-3, passes=0.5, fine_tuning_flag=["--dtype=bfloat16"]
    )
    taught = distilled.fine_tuning_run(values, "MRPC", "taught", {"teacher": "t", "student_layers": "0,1"}, 3)
    alone = distilled.fine_tuning_run(values, "MRPC", "alone", {"init_checkpoint": "t-layers"}, 3)
    own = ("teacher", "student_layers", "init_checkpoint", "output_dir")
    one, other = ({name: value for name, value in run.flags.items() if name not in own} for run in (taught, alone))
    assert one == other and one["num_train_epochs"] == 1.5 and one["num_seeds"] == 3
    assert taught.command()[-1] == "--dtype=bfloat16" and taught.flags["output_dir"] != alone.flags["output_dir"]


def test_the_layers_are_the_teachers(tmp_path):
    teacher = save_model(tmp_path / "teacher", "bert", BertForSequenceClassification, num_labels=2)
    distilled.write_layers(teacher, [1], str(tmp_path / "layers"))
    there, chosen = weights_of(tmp_path / "teacher"), weights_of(tmp_path / "layers")
    assert not any(name.startswith(("classifier", "output_")) or "layer_1" in name for name in chosen)
    for name, value in chosen.items():
        np.testing.assert_array_equal(value, there[name.replace("layer_0", "layer_1")], err_msg=name)
    model = BertForSequenceClassification.from_pretrained(str(tmp_path / "layers"), num_labels=3)
    assert model.config.num_hidden_layers == 1


def test_table():
    row = {"mean": 0.875, "standard_error": 0.01, "examples_per_second": 120.4}
    tasks = {task: dict.fromkeys(distilled.ROWS, row) for task in ("SST-2", "MRPC")}
    text = distilled.create_table({"student_layers": ["0", "5"], "num_seeds": 3, "tasks": tasks})
    lines = text.splitlines()
    assert lines[0] == "| | SST-2, % | SST-2, examples/s | MRPC, % | MRPC, examples/s |"
    assert lines[2] == "| teacher | 87.5 ± 1.0 | 120 | 87.5 ± 1.0 | 120 |" and len(lines) == 7
    assert "layers 0, 5" in lines[-1]


def test_examples_of_the_dev_set(tmp_path):
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "dev.tsv").write_text(
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tA text.\tIts pair.\n"
    )
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2" / "dev.tsv").write_text("sentence\tlabel\nA text.\t1\n")
    values = types.SimpleNamespace(glue_dir=str(tmp_path))
    assert distilled.dev_set(values, "MRPC") == [("A text.", "Its pair.")]
    assert distilled.dev_set(values, "SST-2") == ["A text."]
