"""RoBERTa from text to a fine-tuned model, with the scripts: a vocabulary, full sentences, masks, two phases, GLUE."""

import json

import numpy as np
import pytest
from helpers.paths import GOLDEN
from helpers.pretraining_runs import assert_bit_identical, values
from helpers.script_cases import kill_at_checkpoint, results_of, run_cases

from bert_tf import BertForMaskedLM, fill_mask, read_tokenizer
from bert_tf.models.roberta.config import RobertaConfig
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.system.atomic import write_files
from bert_tf.system.text_files import list_files
from bert_tf.text.byte_bpe import ByteBpeTokenizer
from bert_tf.text.learn_byte_bpe import learn_byte_bpe

pytestmark = pytest.mark.slow  # in small: training/test_roberta_pretraining.py

CORPUS = str(GOLDEN / "pretraining" / "corpus_*.txt")
LENGTH = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A vocabulary, configurations with and without dropout, records of several forms, and sentences with labels."""
    folder = tmp_path_factory.mktemp("roberta")
    (folder / "vocab").mkdir()
    contents = learn_byte_bpe(list_files(CORPUS), vocab_size=500, show_progress=False)
    write_files({str(folder / "vocab" / name): content for name, content in contents.items()})
    vocab_size = len(json.loads(contents["vocab.json"]))
    for name, rate in (("with", 0.1), ("without", 0.0)):
        (folder / name).mkdir()
        RobertaConfig(
            vocab_size, 32, 2, 2, 64, max_position_embeddings=LENGTH + 2, hidden_dropout_prob=rate,
            attention_probs_dropout_prob=rate,
        ).save(str(folder / name / "roberta_config.json"))  # fmt: skip
    single = {"nsp": False, "dupe_factor": 1}
    for name, options in (
        ("full", {"rows": "full_sentences"}),
        ("packed", {**single, "masking": "dynamic", "pack_sequences": True, "short_seq_prob": 0.9}),
        ("masked", {**single, "max_predictions_per_seq": 8}),
    ):
        create_pretraining_data(
            CORPUS, str(folder / f"{name}.tfrecord"), str(folder / "vocab" / "vocab.json"), max_seq_length=LENGTH,
            show_progress=False, num_workers=1, **options,
        )  # fmt: skip
    rows = "".join(f"A {'fine' if number % 2 else 'dull'} story {number}.\t{number % 2}\n" for number in range(16))
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + rows)
    return folder


def flags_of(folder, name, **flags) -> dict:
    return {
        "input_file": f"{folder}/full.tfrecord", "do_train": True,
        "bert_config_file": f"{folder}/with/roberta_config.json",
        "vocab_file": f"{folder}/vocab/vocab.json", "output_dir": folder / name, "max_seq_length": LENGTH,
        "train_batch_size": 8, "num_train_steps": 4, "num_warmup_steps": 2, "learning_rate": 1e-2,
        "save_checkpoints_steps": 2, "deterministic": True, **flags,
    }  # fmt: skip


def test_rows_of_full_sentences(folder):
    flags = {"num_train_steps": 1, "num_warmup_steps": 0, "max_predictions_per_seq": 5}
    outcomes, logs = run_cases("run_pretraining", {"few": flags_of(folder, "few", **flags)})
    assert outcomes == {"few": "done"}, logs
    assert "by the rule of roberta, 0.15 of the tokens (single pieces)" in logs["few"]
    assert "--max_predictions_per_seq=5 is less than the 8 that a row may get" in logs["few"]


@pytest.mark.slow
def test_from_text_to_a_classifier(folder):
    cases = {
        "first half": flags_of(folder, "run", stop_at_step=2),
        "second half": flags_of(folder, "run", do_eval=True, max_eval_steps=2),
        "undisturbed": flags_of(folder, "undisturbed"),
        "packed": flags_of(folder, "packed", input_file=f"{folder}/packed.tfrecord", do_whole_word_mask=True),
    }
    outcomes, logs = run_cases("run_pretraining", cases)
    assert outcomes == dict.fromkeys(cases, "done"), logs
    assert_bit_identical(values(folder / "undisturbed", 4), values(folder / "run", 4))
    results = results_of(folder / "run")
    assert set(results) == {"global_step", "loss", "masked_lm_accuracy", "masked_lm_loss"}
    assert 1 < results["loss"] < 8
    assert abs(results["loss"] - results["masked_lm_loss"]) < 0.02  # the mean of two batches, and of their tokens
    assert "at most 8 per row" in logs["undisturbed"] and "some will have fewer" not in logs["undisturbed"]
    assert "(whole words)" in logs["packed"] and "at most 11 per row" in logs["packed"]
    model, tokenizer = BertForMaskedLM.from_pretrained(str(folder / "run")), read_tokenizer(str(folder / "run"))
    assert tokenizer.vocab == ByteBpeTokenizer.from_pretrained(str(folder / "vocab")).vocab
    assert len(fill_mask(model, tokenizer, ["The <mask> of the story."])[0][0]) == 5

    case = {
        "task_name": "custom", "train_file": folder / "train.tsv", "dev_file": folder / "dev.tsv", "do_train": True,
        "text_a": "sentence", "label": "label", "do_eval": True, "init_checkpoint": folder / "run",
        "output_dir": folder / "classifier", "max_seq_length": 32, "num_train_epochs": 1, "train_batch_size": 8,
    }  # fmt: skip
    outcomes, logs = run_cases("run_classifier", {"classifier": case})
    assert outcomes == {"classifier": "done"}, logs
    assert 0 <= results_of(folder / "classifier")["eval_accuracy"] <= 1


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(folder):
    flags = {"num_train_steps": 30, "save_checkpoints_steps": 3, "iterations_per_loop": 3, "do_whole_word_mask": True}
    killed = flags_of(folder, "killed", **flags)
    left = kill_at_checkpoint("run_pretraining", killed, 6)
    assert "model.ckpt-30.index" not in left
    outcomes, logs = run_cases("run_pretraining", {"resumed": killed, "other": flags_of(folder, "other", **flags)})
    assert outcomes == {"resumed": "done", "other": "done"} and "Resuming at step" in logs["resumed"]
    assert_bit_identical(values(folder / "other", 30), values(folder / "killed", 30))


@pytest.mark.slow
def test_an_update_in_parts_is_the_same_update(folder):
    """The loss is the mean over the masked tokens of all parts, which have different numbers of them."""
    plain = {"bert_config_file": f"{folder}/without/roberta_config.json", "num_train_steps": 2}
    cases = {
        "whole": flags_of(folder, "whole", **plain),
        "parts": flags_of(folder, "parts", **plain, gradient_accumulation_steps=8),
    }
    outcomes, logs = run_cases("run_pretraining", cases)
    assert outcomes == dict.fromkeys(cases, "done"), logs
    expected = values(folder / "whole", 2)
    for name, value in values(folder / "parts", 2).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=2e-5, err_msg=name)


def test_wrong_flags_are_named(folder):
    expected = {
        "words": (
            {"vocab_file": GOLDEN / "vocab.txt"},
            "vocab.txt is a vocabulary of word pieces, as BERT or DistilBERT or ELECTRA has, but this model is "
            "RoBERTa, which needs byte-level BPE: give a vocab.json (with merges.txt), or a configuration",
        ),
        "masked": (
            {"input_file": folder / "masked.tfrecord", "mask_rule": "roberta", "max_predictions_per_seq": 8},
            "--mask_rule is for unmasked records",
        ),
        "nsp": ({"nsp": True}, "--nsp needs a model with a pooler"),
        "smooth": ({"mask_rule": "roberta", "mask_smoothing": 0.7}, "both say which tokens are predicted: give one"),
        "long": (
            {"bert_size": "roberta_base", "bert_config_file": "", "max_seq_length": 513},
            "more than the 512 tokens that max_position_embeddings=514 of --bert_size=roberta_base allows",
        ),
        "electra": (
            {"objective": "electra", "mask_rule": "roberta"},
            "--mask_rule is not for --objective=electra",
        ),
    }
    outcomes, _ = run_cases(
        "run_pretraining", {name: flags_of(folder, f"wrong {name}", **flags) for name, (flags, _) in expected.items()}
    )
    for name, (_, message) in expected.items():
        assert outcomes[name].startswith("ValueError") and message in outcomes[name], outcomes[name]
        assert "\n" not in outcomes[name].strip()
        assert not list((folder / f"wrong {name}").glob("model.ckpt*"))
