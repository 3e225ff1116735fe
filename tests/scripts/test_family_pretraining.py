"""run_pretraining.py with models of other families than BERT: exact resume, the same step however it is cut."""

import numpy as np
import pytest
from helpers.paths import GOLDEN
from helpers.pretraining_runs import assert_bit_identical, values
from helpers.script_cases import results_of, run_cases
from helpers.slow import exhaustive

from bert_tf import BertForSequenceClassification
from bert_tf.models.config import config_of_dict
from bert_tf.pretraining.create import create_pretraining_data

pytestmark = pytest.mark.slow  # in small: training/test_albert_pretraining.py

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 48,
}  # fmt: skip
# Family -> further keys of its configuration, and flags.
FAMILIES = {
    "albert": ({"embedding_size": 16, "vocab_size": 30522, "hidden_dropout_prob": 0.1}, {}),
    "electra": ({"embedding_size": 16, "vocab_size": 30522}, {"objective": "electra", "generator_size": 0.5}),
    "roberta": ({"vocab_size": 601}, {}),
}
VOCABULARIES = {"roberta": GOLDEN / "tokenization" / "roberta" / "vocab.json"}
STEPS = 6


def flags_of(folder, output_dir, **flags) -> dict:
    return {
        "input_file": f"{folder}/rows.tfrecord", "do_train": True,
        "output_dir": folder / output_dir, "max_seq_length": 32, "max_predictions_per_seq": 6, "train_batch_size": 8,
        "num_train_steps": STEPS, "num_warmup_steps": 2, "learning_rate": 1e-2, "save_checkpoints_steps": 3,
        "deterministic": True, **flags,
    }  # fmt: skip


@pytest.fixture(params=["electra", *exhaustive("albert", "roberta")])
def world(request, tmp_path):
    """The family's name, a folder with unmasked records, flags, and those of the same model without dropout."""
    keys, flags = FAMILIES[request.param]
    for name, rate in (("config", 0.1), ("plain", 0.0)):
        dropout = {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
        config = config_of_dict({"model_type": request.param, **SIZES, **keys, **dropout})
        (tmp_path / name).mkdir()
        config.save(str(tmp_path / name / config.file_name))
    vocab_file = VOCABULARIES.get(request.param, GOLDEN / "vocab.txt")
    create_pretraining_data(
        str(GOLDEN / "pretraining" / "corpus_*.txt"), str(tmp_path / "rows.tfrecord"), str(vocab_file),
        max_seq_length=32, masking="dynamic", nsp=config.has_pooler, show_progress=False, num_workers=1,
    )  # fmt: skip
    config_file = tmp_path / "config" / config.file_name
    return request.param, tmp_path, {"vocab_file": vocab_file, "bert_config_file": config_file, **flags}


def test_a_run_of_two_starts(world):
    """It says what its authors did, reports its own metrics, and fine-tuning takes what it leaves."""
    family, folder, flags = world
    cases = {
        "first half": flags_of(folder, "run", **flags, stop_at_step=3),
        "second half": flags_of(folder, "run", **flags, do_eval=True, max_eval_steps=2),
    }
    outcomes, logs = run_cases("run_pretraining", cases)
    assert outcomes == dict.fromkeys(cases, "done"), logs
    assert "Resuming at step 3" in logs["second half"]
    results = results_of(folder / "run")
    assert all(np.isfinite(value) for value in results.values()) and results["global_step"] == STEPS
    if family == "albert":
        assert results.keys() >= {"sentence_order_accuracy", "sentence_order_loss", "masked_lm_loss"}
        assert "As ALBERT was pre-trained by its authors" in logs["first half"]
        assert "--optimizer=lamb" in logs["first half"]
        assert "ALBERT learns from pairs of create_pretraining_data.py --next_sentence=order" in logs["first half"]
    if family == "electra":
        names = {
            "disc_loss",
            "disc_auc",
            "disc_accuracy",
            "disc_precision",
            "disc_recall",
            "sampled_masked_lm_accuracy",
        }
        assert results.keys() >= names
    if family == "roberta":
        assert results.keys() == {"global_step", "loss", "masked_lm_accuracy", "masked_lm_loss"}
        assert "by the rule of roberta, 0.15 of the tokens" in logs["first half"]
    model = BertForSequenceClassification.from_pretrained(str(folder / "run"), num_labels=2)
    assert model.config.model_type == family


@pytest.mark.slow
def test_the_step_is_the_same_however_it_is_cut(world):
    """Resumed: equal bits. In parts without dropout, and in replicas with that of as many parts: equal numbers."""
    _, folder, flags = world
    plain = {"bert_config_file": next((folder / "plain").iterdir())}
    cases = {
        "whole": flags,
        "stopped": {**flags, "stop_at_step": 3},
        "plain": {**flags, **plain},
        "parts": {**flags, **plain, "gradient_accumulation_steps": 4},
        "two parts": {**flags, "gradient_accumulation_steps": 2},
        "replicas": {**flags, "distribution_strategy": "mirrored", "num_virtual_cpus": 2},
    }
    names = list(cases)
    cases = {name: flags_of(folder, name, **given) for name, given in cases.items()}
    cases["resumed"] = flags_of(folder, "stopped", **flags)
    replicas = {"replicas": cases.pop("replicas")}  # needs a process of its own
    for some in (replicas, cases):
        outcomes, logs = run_cases("run_pretraining", some)
        assert outcomes == dict.fromkeys(some, "done"), logs
    found = {name: values(folder / name, STEPS) for name in names}
    assert_bit_identical(found["whole"], found["stopped"])
    for one, other in (("plain", "parts"), ("two parts", "replicas")):
        for name, value in found[one].items():
            np.testing.assert_allclose(found[other][name], value, rtol=1e-3, atol=2e-5, err_msg=f"{other} {name}")
