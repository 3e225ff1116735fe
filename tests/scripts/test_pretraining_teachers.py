"""run_pretraining.py --teacher: the beginning of a student, what is saved and reported, refusals."""

import json
import shutil

import pytest
from helpers.descendants import save_model
from helpers.paths import GOLDEN
from helpers.pretraining_runs import values
from helpers.script_cases import run_and_refuse, weights_of

from bert_tf import BertForMaskedLM, BertForSequenceClassification
from bert_tf.pretraining.create import create_pretraining_data

pytestmark = pytest.mark.slow  # in small: models/test_distillation.py

STEPS = 6


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Folder, and what each case wrote to stderr."""
    folder = tmp_path_factory.mktemp("teachers")
    for family in ("bert", "roberta"):
        save_model(folder / family, family, BertForMaskedLM)
    save_model(folder / "other", "bert", BertForMaskedLM, seed=8)
    save_model(folder / "electra", "electra", BertForSequenceClassification)
    save_model(folder / "electra" / "generator", "electra", BertForMaskedLM)
    config = BertForMaskedLM.from_pretrained(save_model(folder / "distilbert", "distilbert", BertForMaskedLM)).config
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    (folder / "plain").mkdir()
    config.save(str(folder / "plain" / "distilbert_config.json"))
    corpus, vocab = str(GOLDEN / "pretraining" / "corpus_*.txt"), str(GOLDEN / "vocab.txt")
    made = {"max_seq_length": 32, "show_progress": False, "num_workers": 1}
    create_pretraining_data(corpus, f"{folder}/rows.tfrecord", vocab, masking="dynamic", nsp=False, **made)
    create_pretraining_data(corpus, f"{folder}/masked.tfrecord", vocab, max_predictions_per_seq=8, **made)
    (folder / "bare").mkdir()  # nothing beside them says which vocabulary they have
    shutil.copy(folder / "rows.tfrecord", folder / "bare" / "rows.tfrecord")
    words = str(GOLDEN / "tokenization" / "roberta" / "vocab.json")
    create_pretraining_data(corpus, f"{folder}/roberta.tfrecord", words, masking="dynamic", nsp=False, **made)
    flags = {
        "input_file": f"{folder}/rows.tfrecord", "do_train": True, "max_seq_length": 32, "max_predictions_per_seq": 8,
        "train_batch_size": 8, "num_train_steps": STEPS, "learning_rate": 1e-2, "save_checkpoints_steps": 3,
        "deterministic": True, "teacher": folder / "bert",
    }  # fmt: skip
    student = {**flags, "student_layers": "1"}
    smoothed = {**student, "mask_smoothing": 0.7}
    own = {**flags, "bert_config_file": folder / "plain" / "distilbert_config.json", "vocab_file": GOLDEN / "vocab.txt"}
    same = {"student_family": "same", "vocab_transform": True, "restrict_ce_to_mask": True, "alpha_mse": 0.01}
    done = {
        "whole": smoothed,
        "beginning": {**student, "learning_rate": 1e-30, "num_train_steps": 1},
        "same": {**student, **same, "do_eval": True, "max_eval_steps": 2, "learning_rate": 1e-30, "num_train_steps": 1},
        "unnamed": {**own, "vocab_file": None, "input_file": f"{folder}/bare/rows.tfrecord", "num_train_steps": 1},
        "roberta": {**flags, "teacher": folder / "roberta", "student_layers": "0,1", "num_train_steps": 1,
                    "input_file": f"{folder}/roberta.tfrecord", "dtype": "bfloat16", "use_xla": True},
    }  # fmt: skip
    refused = {
        "another teacher": ({**smoothed, "teacher": folder / "other", "output_dir": folder / "out" / "whole"},
                            "out/whole holds a run with --teacher=*bert; this one is with --teacher=*other."),
        "discriminator": ({**student, "teacher": folder / "electra"},
                          "electra has no output layer for this task (cls/predictions/output_bias)."),
        "no BERT": ({**student, "teacher": folder / "roberta", "student_family": "distilbert"},
                    "--student_family=distilbert needs a BERT as teacher, not a RoBERTa."),
        "masked records": ({**smoothed, "input_file": f"{folder}/masked.tfrecord"}, "--mask_smoothing is for unmasked"),
    }  # fmt: skip
    return folder, run_and_refuse("run_pretraining", folder / "out", done, refused)


@pytest.mark.parametrize("case", ["same", "beginning"])
def test_the_student_starts_from_the_teacher(ran, case):
    folder, *_ = ran
    scope, count = {"beginning": ("distilbert", 4 + 16 + 1), "same": ("bert", 5 + 16 + 2 + 5)}[case]
    teacher, student, found = weights_of(folder / "bert"), values(folder / "out" / case, 1), 0
    for name, value in student.items():
        source = name.replace(f"{scope}/", "bert/").replace("layer_0", "layer_1")
        same = source in teacher and (value == teacher[source]).all()
        assert same == ("/transform/" not in name or case == "same") or "adam" in name or name == "global_step"
        found += same
    assert found == count
    config = json.loads((folder / "out" / case / f"{scope}_config.json").read_text())
    assert config["num_hidden_layers"] == 1


def test_only_the_student_is_saved_and_can_be_used(ran):
    folder, logs = ran
    out = folder / "out" / "whole"
    recorded = json.loads((out / "run.json").read_text())
    assert recorded["teacher"] == str(folder / "bert") and len(recorded["teacher_checksum"]) == 8
    assert {"alpha_ce": 5.0, "mask_smoothing": 0.7, "student_layers": ["1"]}.items() <= recorded.items()
    assert recorded["num_warmup_steps"] == 1  # 5 % of the steps, rounded up
    model = BertForSequenceClassification.from_pretrained(str(out), num_labels=2)
    assert model.config.model_type == "distilbert"
    whole = BertForMaskedLM.from_pretrained(str(out))
    assert {name for name in values(out, STEPS) if "adam" not in name} == {
        *weights_of(out).keys() - {name for name in weights_of(out) if "adam" in name}
    }
    assert len(whole.trainable_variables) == 4 + 16 + 5
    assert (out / "vocab.txt").read_bytes() == (folder / "bert" / "vocab.txt").read_bytes()
    assert recorded["student_family"] == "distilbert" and recorded["vocab_file"] == str(folder / "bert" / "vocab.txt")
    assert "BertForMaskedLM.from_pretrained" in logs["whole"]
