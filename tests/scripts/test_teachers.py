"""Fine-tuning with --teacher: what is learned and saved, resumed runs, devices, layers of the teacher, refusals."""

import json

import keras
import numpy as np
import pytest
from helpers.descendants import save_model
from helpers.script_cases import assert_in_order, kill_at_checkpoint, run_cases, selected_cases, weights_of
from helpers.slow import exhaustive, slow
from helpers.small_data import PIECES, WORLDS, texts_of
from helpers.tiny import ONE_LAYER, write_encoder

from bert_tf.models import task_models
from bert_tf.models.config import BertConfig
from bert_tf.models.electra.question_answering import ElectraForQuestionAnswering

pytestmark = pytest.mark.slow  # in small: models/test_distillation.py

SLOW = {
    "killed", "without", "layers again", "one device", "two devices", "seeds", "regression", "without BERT",
}  # fmt: skip
STEPS, KILLED_AT = 12, 5  # 32 examples, 8 per step, 3 epochs
MODELS = {
    "run_classifier": (task_models.BertForSequenceClassification, {"labels": ["down", "up"]}),
    "run_squad": (task_models.BertForQuestionAnswering, {}),
    "run_ner": (task_models.BertForTokenClassification, {"num_labels": 3, "labels": ["O", "B-X", "I-X"]}),
    "run_swag": (task_models.BertForMultipleChoice, {}),
}


def save_teacher(folder, script, seed=5, vocab=PIECES, cased=False, max_length=32, **arguments) -> str:
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
    model.save_pretrained(
        str(folder), vocab_file=str(folder / "vocab.txt"), do_lower_case=not cased, overwrite=True
    )  # fmt: skip
    return str(folder)


def cases_of(script, folder) -> tuple[dict, dict]:
    """Case -> flags: those that run, and those that are refused, with the message."""
    _, ending, own = WORLDS[script]
    if script == "run_squad":
        own = {name: value for name, value in own.items() if name != "lstm_on_top"}
    teacher = save_teacher(folder / "teacher", script)
    training = {
        **own, "init_checkpoint": folder / "encoder", "do_train": True, "do_eval": True, "max_seq_length": 24,
        "train_file": folder / f"train.{ending}", "dev_file": folder / f"dev.{ending}", "train_batch_size": 8,
        "num_train_epochs": 3, "learning_rate": 3e-3, "eval_every_steps": 6, "seed": 3, "deterministic": True,
        "num_virtual_cpus": 2, "write_tf_records": False, "keep_checkpoint_max": 2,
    }  # fmt: skip
    taught = {**training, "teacher": teacher}
    layers = {name: value for name, value in taught.items() if name != "init_checkpoint"} | {"student_layers": "2,0"}
    short = {"num_train_epochs": 1, "eval_every_steps": 0}
    out = folder / "out"
    ran = {
        "whole": taught,
        "killed": {**taught, "save_checkpoints_steps": 5, "iterations_per_loop": 1},
        "without": training,
        "layers": {**layers, **short, "learning_rate": 0},
        "layers again": {**layers, "num_train_epochs": 2, "learning_rate": 0, "output_dir": out / "layers"},
        "one device": {**taught, **short, "gradient_accumulation_steps": 2},
        "two devices": {**taught, **short, "distribution_strategy": "mirrored"},
        "seeds": {**taught, **short, "num_seeds": 2, "dtype": "bfloat16", "distillation_weight": 1},
    }
    refused = {
        "another teacher": ({**taught, "teacher": save_teacher(folder / "other", script, seed=6),
                             "output_dir": out / "whole"},
                            "out/whole holds a run with the teacher *teacher; --teacher=*other has other weights."),
        "no teacher any more": ({**training, "output_dir": out / "whole"}, "holds a run with the teacher *; there is"),
        "a teacher now": ({**taught, "output_dir": out / "without"}, "holds a run without a teacher; now there is --"),
        "no student": ({**{name: value for name, value in taught.items() if name != "init_checkpoint"}},
                       "--teacher: there is no student. Give --student_layers for one made of the teacher's layers"),
        "not trained": ({**taught, "teacher": folder / "encoder"}, "--teacher: *encoder has no output layer for this"),
        "not there": ({**taught, "teacher": folder / "nothing"}, "--teacher=*nothing"),
        "vocabulary": ({**taught, "teacher": save_teacher(folder / "words", script, vocab=[*PIECES[:-1], "new"])},
                       "words does not read the student's rows: its token 99 is 'new', the student's 'w92'."),
        "size": ({**taught, "teacher": save_teacher(folder / "few", script, vocab=PIECES[:-1])},
                 "few does not read the student's rows: its vocabulary has 99 tokens, the student's 100."),
        "casing": ({**taught, "teacher": save_teacher(folder / "cased", script, cased=True)},
                   "cased does not read the student's rows: it is cased, the student is not."),
        "length": ({**taught, "teacher": save_teacher(folder / "short", script, max_length=23)},
                   "--teacher: *short takes rows of at most 23 tokens, not 24."),
        "no training": ({**taught, "do_train": False}, "--teacher teaches a model that is trained: give --do_train"),
        "weight alone": ({**training, "distillation_weight": 0.4}, "--distillation_weight is for distillation: give"),
        "temperature alone": ({**training, "distillation_temperature": 1}, "--distillation_temperature is for distil"),
        "layers alone": ({**training, "student_layers": "0"}, "--student_layers is for distillation: give --teacher."),
        "no weight": ({**taught, "distillation_weight": 0}, "--distillation_weight=0 must be more than 0"),
        "cold": ({**taught, "distillation_temperature": 0}, "--distillation_temperature=0 must be a positive number"),
        "overwritten": ({**taught, "teacher": out / "without" / "best_model", "overwrite_output_dir": True,
                         "output_dir": out / "without"}, "holds --teacher=*best_model, which this run needs"),
        "two starts": ({**taught, "student_layers": "0"}, "--student_layers: the student starts from the"),
        "no numbers": ({**layers, "student_layers": "0,x"}, "--student_layers=0,x must be numbers of layers from 0"),
        "no layers": ({**layers, "student_layers": ""}, "--student_layers= must be numbers"),
        "twice": ({**layers, "student_layers": "0,0"}, "--student_layers=0,0 has a layer twice."),
        "too many": ({**layers, "student_layers": "0,3"}, "--student_layers=0,3: the teacher has the layers 0 to 2"),
    }  # fmt: skip
    if script == "run_classifier":
        numbers = folder / "numbers.csv"
        numbers.write_text("text,verdict\n" + "".join(f"good w{k} w{k + 1},{k % 7}.5\n" for k in range(32)))
        kind = {"labels": None, "num_labels": 1, "problem_type": "regression"}
        regression = {**taught, **short, "train_file": numbers, "dev_file": numbers, "regression": True,
                      "teacher": save_teacher(folder / "regression", script, **kind)}  # fmt: skip
        baseline = {name: value for name, value in taught.items() if name not in ("init_checkpoint", "learning_rate")}
        ran |= {
            "regression": regression,
            "without BERT": {**baseline, **short, "model": "bilstm", "vocab_file": folder / "vocab.txt"},
        }
        refused["no classes"] = ({**regression, "distillation_temperature": 3}, "--distillation_temperature is for cl")
        names = save_teacher(folder / "names", script, labels=["low", "high"])
        several = save_teacher(folder / "several", script, labels=None, num_labels=3)
        number = save_teacher(folder / "number", script, labels=None, num_labels=1)
        refused |= {
            "labels": ({**taught, "teacher": names}, "names has other labels: only there low, high; only here down"),
            "outputs": ({**taught, "teacher": several}, "several has 3 outputs, the student 2."),
            "number": ({**taught, "teacher": number}, "number has 1 outputs, the student 2."),
            "another task": ({**taught, "teacher": save_teacher(folder / "choices", "run_swag")},
                             "choices is a BertForMultipleChoice; this task has a BertForSequenceClassification."),
        }  # fmt: skip
    return ran, refused


@pytest.fixture(scope="module", params=["run_classifier", *slow("run_squad"), *exhaustive("run_ner", "run_swag")])
def ran(request, tmp_path_factory):
    """Folder of the output directories, outcomes by case, what each wrote to stderr, the messages expected."""
    script, folder = request.param, tmp_path_factory.mktemp(request.param)
    write, ending, _ = WORLDS[script]
    write_encoder(folder, PIECES)
    for seed, (name, count) in enumerate((("train", 32), ("dev", 11))):
        write(folder / f"{name}.{ending}", list(texts_of(count, seed)))
    cases, refused = cases_of(script, folder)
    cases = selected_cases(request, cases, SLOW & cases.keys())
    if "without" not in cases:
        refused = {name: one for name, one in refused.items() if name not in ("a teacher now", "overwritten")}
    out = folder / "out"
    cases |= {name: values for name, (values, _) in refused.items()}
    cases = {name: {"output_dir": out / name, **values} for name, values in cases.items()}
    killed_at = kill_at_checkpoint(script, cases["killed"], step=KILLED_AT) if "killed" in cases else []
    outcomes, logs = run_cases(script, cases)
    messages = {name: message for name, (_, message) in refused.items()}
    return out, outcomes | {"checkpoints at the kill": killed_at}, logs, messages


def assert_same(one, other, tolerance=0.0):
    one, other = weights_of(one), weights_of(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("cases", ["often", *slow("also slow")])
def test_runs_end(ran, cases):
    _, outcomes, logs, messages = ran
    assert cases == "often" or SLOW & outcomes.keys()
    failed = {name: outcome for name, outcome in outcomes.items() if name not in messages and outcome != "done"}
    assert list(failed) == ["checkpoints at the kill"], [logs[name][-2000:] for name in failed if name in logs]


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


def test_the_losses_are_logged(ran):
    out, *_ = ran
    lines = map(json.loads, (out / "whole" / "train_log.jsonl").read_text().splitlines())
    values = [line for line in lines if line["kind"] == "train"][-1]
    name = next(name for name in values if name in ("example_loss", "token_loss"))
    assert values["soft_loss"] > 0
    # The log has the mean of the steps' losses; steps have different numbers of tokens.
    tolerance = 0.1 if name == "token_loss" else 1e-4
    assert values["loss"] == pytest.approx((values[name] + values["soft_loss"]) / 2, rel=tolerance)


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(ran):
    out, outcomes, *_ = ran
    names = outcomes["checkpoints at the kill"]
    assert f"model.ckpt-{KILLED_AT}.index" in names and f"model.ckpt-{STEPS}.index" not in names, names
    assert_same(*(out / name / f"model.ckpt-{STEPS}" for name in ("whole", "killed")))


def test_the_student_starts_from_layers_of_the_teacher(ran):
    out, *_ = ran
    teacher, student = weights_of(out.parent / "teacher"), weights_of(out / "layers" / "model.ckpt-4")
    assert json.loads((out / "layers" / "bert_config.json").read_text())["num_hidden_layers"] == 2
    student = {name: value for name, value in student.items() if name.startswith("bert/") and "adam" not in name}
    assert "bert/pooler/dense/kernel" in student and len(student) == 5 + 2 * 16 + 2
    for name, value in student.items():
        name = name.replace("layer_1", "layer_x").replace("layer_0", "layer_2").replace("layer_x", "layer_0")
        np.testing.assert_array_equal(value, teacher[name], err_msg=name)
    said = " variables begin anew (a student does not take them from the teacher): "
    assert said in ran[2]["layers"] and "keep their random" not in ran[2]["layers"]


@pytest.mark.slow
def test_a_student_of_layers_resumes(ran):
    assert "Resuming at step 4" in ran[2]["layers again"]


@pytest.mark.slow
def test_two_devices_are_two_micro_batches(ran):
    assert_same(*(ran[0] / name / "model.ckpt-4" for name in ("one device", "two devices")), tolerance=2e-5)


def test_refusals(ran):
    out, outcomes, _, messages = ran
    for name, message in messages.items():
        assert_in_order(message, outcomes[name])
        assert "\n" not in outcomes[name] and not (out / name).exists(), name


@pytest.mark.slow
@pytest.mark.parametrize("script", ["run_classifier", "run_squad"])
def test_a_teacher_of_another_family(tmp_path, script):
    """Its vocabulary is the student's; in run_squad.py it has a joint head, and the student has not."""
    write, ending, own = WORLDS[script]
    for name in ("train", "dev"):
        write(tmp_path / f"{name}.{ending}", list(texts_of(16, 1)))
    kind = MODELS[script][0] if script == "run_classifier" else ElectraForQuestionAnswering
    arguments = MODELS[script][1] if script == "run_classifier" else {"starts": 3, "ends": 3}
    flags = {
        **{name: value for name, value in own.items() if name != "lstm_on_top"},
        "init_checkpoint": save_model(tmp_path / "student", "distilbert", task_models.BertModel),
        "teacher": save_model(tmp_path / "teacher", "electra", kind, **arguments), "do_train": True,
        "train_file": tmp_path / f"train.{ending}", "train_batch_size": 8, "max_seq_length": 24,
        "output_dir": tmp_path / "out",
    }  # fmt: skip
    outcomes, logs = run_cases(script, {"taught": flags})
    assert outcomes == {"taught": "done"}, logs["taught"][-2000:]
    assert "Teacher: the ELECTRA of 2 layers" in logs["taught"]
    assert (tmp_path / "out" / "distilbert_config.json").exists()
