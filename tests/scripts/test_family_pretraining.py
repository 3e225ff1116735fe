"""run_pretraining.py with other families than BERT: two starts, metrics of their own, flags that do not fit."""

import numpy as np
import pytest
from helpers.scenarios import SCENARIOS
from helpers.script_cases import results_of, run_cases

from bert_tf import BertForMaskedLM, BertForSequenceClassification, fill_mask, read_tokenizer

METRICS = {
    "ALBERT": {"sentence_order_accuracy", "sentence_order_loss", "masked_lm_loss"},
    "ELECTRA": {"disc_loss", "disc_auc", "disc_accuracy", "disc_precision", "disc_recall", "masked_lm_loss",
                "sampled_masked_lm_accuracy"},
    "RoBERTa": {"masked_lm_accuracy", "masked_lm_loss"},
}  # fmt: skip
SAID = {
    "ALBERT": (
        "As ALBERT was pre-trained by its authors", "--optimizer=lamb",
        "ALBERT learns from pairs of create_pretraining_data.py --next_sentence=order",
    ),
    "ELECTRA": (),
    "RoBERTa": ("by the rule of roberta, 0.15 of the tokens (whole words)",),
}  # fmt: skip


@pytest.mark.slow  # in small: training/test_albert_pretraining.py and its like
@pytest.mark.parametrize("family", METRICS)
def test_a_run_of_two_starts(family, tmp_path):
    """It says what its authors did, reports its own metrics, and fine-tuning takes what it leaves."""
    script, flags = SCENARIOS[f"pretraining of {family}"](tmp_path)
    outcomes, logs = run_cases(script, {"first half": {**flags, "stop_at_step": 3}, "second half": flags})
    assert set(outcomes.values()) == {"done"}, logs
    assert "Resuming at step 3" in logs["second half"]
    results = results_of(tmp_path / "out")
    assert all(np.isfinite(value) for value in results.values()) and results["global_step"] == 6
    assert results.keys() >= METRICS[family]
    assert all(text in logs["first half"] for text in SAID[family])
    model = BertForSequenceClassification.from_pretrained(str(tmp_path / "out"), num_labels=2)
    assert model.config.model_type == family.lower()
    if family == "RoBERTa":
        assert "next_sentence_loss" not in results
        model, tokenizer = BertForMaskedLM.from_pretrained(str(tmp_path / "out")), read_tokenizer(str(tmp_path / "out"))
        assert len(fill_mask(model, tokenizer, ["The <mask> of the story."])[0][0]) == 5
