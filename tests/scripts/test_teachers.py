"""Fine-tuning with --teacher: what is learned and saved, layers of the teacher, refusals."""

import json

import keras
import numpy as np
import pytest
from helpers.descendants import save_model
from helpers.scenarios import fine_tuning_flags
from helpers.script_cases import run_and_refuse, run_cases, weights_of
from helpers.small_data import PIECES
from helpers.tiny import ONE_LAYER

from bert_tf.families.config import BertConfig
from bert_tf.models import task_models

pytestmark = pytest.mark.slow  # in small: models/test_distillation.py

MODELS = {
    "run_classifier": (task_models.BertForSequenceClassification, {"labels": ["down", "up"]}),
    "run_squad": (task_models.BertForQuestionAnswering, {}),
}


def save_teacher(folder, script, seed=5, vocab=PIECES, max_length=32, **arguments) -> str:
    """Saves a random model of three layers that is sure of what it says."""
    kind, own = MODELS[script]
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in vocab))
    keras.utils.set_random_seed(seed)
    sizes = {"num_hidden_layers": 3, "vocab_size": len(vocab), "max_position_embeddings": max_length}
    model = kind(BertConfig.from_dict({**ONE_LAYER, **sizes}), **{**own, **arguments})
    model.build()
    for variable in model.head.trainable_variables[:1]:
        variable.assign(variable * 50)
    model.save_pretrained(str(folder), vocab_file=str(folder / "vocab.txt"), do_lower_case=True, overwrite=True)
    return str(folder)


@pytest.fixture(scope="module", params=["run_classifier", "run_squad"])
def ran(request, tmp_path_factory):
    """Output folder, and what each case wrote to stderr; later cases are built on earlier ones."""
    script, folder = request.param, tmp_path_factory.mktemp(request.param)
    teacher = save_teacher(folder / "teacher", script)
    training = fine_tuning_flags(script, folder, keep_checkpoint_max=2, output_dir=None)
    taught, out = {**training, "teacher": teacher}, folder / "out"
    layers = {**taught, "init_checkpoint": None, "student_layers": "2,0", "learning_rate": 1e-30}
    done = {"whole": {**taught, "num_train_epochs": 3}, "without": training, "layers": layers}
    done |= {"layers again": {**layers, "num_train_epochs": 2, "output_dir": out / "layers"}}
    done |= {"seeds": {**taught, "num_seeds": 2, "dtype": "bfloat16", "distillation_weight": 1}}
    refused = {
        "another teacher": ({**done["whole"], "teacher": save_teacher(folder / "other", script, seed=6),
                             "output_dir": out / "whole"},
                            "out/whole holds a run with --teacher=*teacher; this one is with --teacher=*other."),
        "size": ({**taught, "teacher": save_teacher(folder / "few", script, vocab=PIECES[:-1])},
                 "few does not read the student's rows: its tokenizer has another vocab."),
        "length": ({**taught, "teacher": save_teacher(folder / "short", script, max_length=23)},
                   "--teacher: *short takes rows of at most 23 tokens, not 24."),
    }  # fmt: skip
    if script == "run_classifier":
        numbers = folder / "numbers.csv"
        numbers.write_text("text,verdict\n" + "".join(f"good w{k} w{k + 1},{k % 7}.5\n" for k in range(32)))
        files = {"train_file": numbers, "dev_file": numbers, "regression": True}
        kind = {"labels": None, "num_labels": 1, "problem_type": "regression"}
        done["regression"] = taught | files | {"teacher": save_teacher(folder / "regression", script, **kind)}
    return folder / "out", run_and_refuse(script, folder / "out", done, refused)


def test_only_the_student_is_saved(ran):
    out, *_ = ran
    encoder = weights_of(out.parent / "encoder")
    for folder in (out / "whole", out / "whole" / "best_model"):
        weights = weights_of(folder)
        trained = {name for name in weights if "/adam_" not in name} - {"global_step"}
        assert trained >= encoder.keys() and len(trained - encoder.keys()) == 2  # the output layer
        assert any((weights[name] != encoder[name]).any() for name in encoder if "layer_0" in name)
    recorded = json.loads((out / "whole" / "run.json").read_text())
    assert recorded["teacher"] == str(out.parent / "teacher") and len(recorded["teacher_checksum"]) == 8


def test_the_student_starts_from_layers_of_the_teacher(ran):
    out, logs = ran
    teacher, student = weights_of(out.parent / "teacher"), weights_of(out / "layers" / "model.ckpt-4")
    assert json.loads((out / "layers" / "bert_config.json").read_text())["num_hidden_layers"] == 2
    student = {name: value for name, value in student.items() if name.startswith("bert/") and "adam" not in name}
    assert "bert/pooler/dense/kernel" in student and len(student) == 5 + 2 * 16 + 2
    for name, value in student.items():
        name = name.replace("layer_1", "layer_x").replace("layer_0", "layer_2").replace("layer_x", "layer_0")
        np.testing.assert_allclose(value, teacher[name], rtol=0, atol=1e-20, err_msg=name)  # the rate moves zeros
    said = " variables begin anew (not what a student takes over): "
    assert said in logs["layers"] and "keep their random" not in logs["layers"]
    assert "Resuming at step 4" in logs["layers again"]


@pytest.mark.parametrize("script", ["run_classifier", "run_squad"])
def test_a_teacher_of_another_family(tmp_path, script):
    kind, arguments = MODELS[script][:2]
    models = {
        "init_checkpoint": save_model(tmp_path / "student", "distilbert", task_models.BertModel),
        "teacher": save_model(tmp_path / "teacher", "electra", kind, **arguments),
    }
    flags = fine_tuning_flags(script, tmp_path, do_eval=False, dev_file=None, **models)
    outcomes, logs = run_cases(script, {"taught": flags})
    assert outcomes == {"taught": "done"}, logs["taught"][-2000:]
    assert "Teacher: the ELECTRA of 2 layers" in logs["taught"]
    assert (tmp_path / "out" / "distilbert_config.json").exists()
