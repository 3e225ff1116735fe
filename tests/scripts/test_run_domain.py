"""run_domain.py from end to end with a tiny model; killed while it trains, the same command goes on."""

import json
import os
import re
import signal
import sys

import numpy as np
import pytest
from helpers import warm
from helpers.descendants import save_model
from helpers.events import wait_until
from helpers.paths import ROOT
from helpers.scenarios import TWO_REPLICAS
from helpers.script_cases import arguments_of
from helpers.slow import exhaustive, slow
from helpers.small_data import texts_of, write_classification

from bert_tf import BertForMaskedLM, BertForPreTraining, BertForSequenceClassification, BertModel, read_tokenizer
from bert_tf.models.electra import ElectraDiscriminator

ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}


def write_world(folder) -> dict:
    """Texts of a domain with a word of its own, another text, a task; returns the flags."""
    generator = np.random.default_rng(1)
    people = ["king", "queen", "smith", "miller", "farmer", "singer", "captain", "doctor"]
    documents = []
    for _ in range(120):
        one, other = generator.choice(people, 2, replace=False)
        documents.append(f"The {one} saw the zorblax. The {other} fed the zorblax of the {one}. It was a good day.")
    (folder / "tales.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    (folder / "news.txt").write_text("A train stopped in the city. Nobody was there to see it.\n" * 60)
    for seed, name in enumerate(("train", "dev")):
        write_classification(folder / f"{name}.csv", list(texts_of(16, seed)))
    files = {"output_dir": "out", "input_file": "tales.jsonl", "other_text": "news.txt"}
    files |= {"train_file": "train.csv", "dev_file": "dev.csv"}
    training = {"max_seq_length": 32, "num_train_steps": 60, "train_batch_size": 8, "learning_rate": 1e-2}
    task = {"text_a": "text", "label": "verdict", "num_seeds": 1, "fine_tuning_flag": "--num_train_epochs=2"}
    model = save_model(folder / "model", "bert", BertForPreTraining)
    paths = {name: folder / file for name, file in files.items()}
    return {"init_checkpoint": model, "new_words": 5, **paths, **training, **task}


def command_of(flags: dict) -> list[str]:
    further = ["--pretraining_flag=--save_checkpoints_steps=5", "--pretraining_flag=--eval_every_steps=20"]
    return [sys.executable, str(ROOT / "run_domain.py"), *arguments_of(flags), *further]


def newest_step(folder) -> int:
    return max((int(path.stem.rpartition("-")[2]) for path in folder.glob("model.ckpt-*.index")), default=0)


@pytest.mark.slow  # in small: test_recipe.py
def test_a_domain_from_end_to_end_killed_on_the_way(tmp_path):
    command, log, trained = command_of(write_world(tmp_path)), tmp_path / "killed.log", tmp_path / "out" / "pretrained"
    for kind in ("pretraining", "fine_tuning"):  # several trainings of other shapes in a process
        command += [f"--{kind}_flag={flag}" for flag in arguments_of(TWO_REPLICAS)]
    with open(log, "wb") as file:
        process = warm.Popen(command, stderr=file, env=ENVIRONMENT)
    wait_until(lambda: newest_step(trained) >= 10, process, log=log.read_text)
    process.send_signal(signal.SIGKILL)
    process.wait()
    step = newest_step(trained)
    assert 10 <= step < 60
    result = warm.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert result.returncode == 0, result.stderr[-5000:]
    out = tmp_path / "out"
    assert 5 <= int(re.search(r"Resuming at step (\d+)", result.stderr)[1]) <= step  # one less where it was being noted
    content = json.loads((out / "domain.json").read_text())
    assert [new["word"] for new in content["new_words"]] == ["zorblax"]
    assert content["pieces_per_word"]["after"] == 1.0 < content["pieces_per_word"]["before"]
    assert content["texts"]["train"]["documents"] == 114 and content["texts"]["heldout"]["documents"] == 6
    losses = content["losses"]["heldout"]
    assert losses["after"]["masked_lm_loss"] < losses["before"]["masked_lm_loss"] - 1
    assert {"next_sentence_accuracy", "masked_lm_accuracy"} < set(losses["after"])
    assert set(content["losses"]["other"]) == {"before", "after"} and content["notes"] == []
    assert all(len(scores["eval_accuracy"]) == 1 for scores in content["fine_tuning"].values())
    assert "| masked_lm_loss | " in result.stdout and str(out / "domain.md") in result.stdout
    assert (out / "pretrained" / "loss.png").read_bytes().startswith(b"\x89PNG")

    tokenizer = read_tokenizer(content["model"])
    assert tokenizer.tokenize("The Zorblax") == ["the", "zorblax"]
    BertForSequenceClassification.from_pretrained(content["model"], num_labels=2)
    start = BertForPreTraining.from_pretrained(str(out / "start"))
    assert start.config.vocab_size == 30523 and start.count_params() > 30523 * 32
    again = warm.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert again.returncode == 0 and result.stdout.endswith(again.stdout) and again.stdout


@pytest.mark.parametrize(("family", "model_class"), [
    # The latter as sentence-transformers publishes it: without a masked-LM head.
    *slow(("electra", ElectraDiscriminator), ("bert", BertModel)),
    *exhaustive(("albert", BertForPreTraining), ("roberta", BertForMaskedLM), ("distilbert", BertForMaskedLM)),
])  # fmt: skip
def test_other_families(tmp_path, family, model_class):
    flags = write_world(tmp_path)
    model = save_model(tmp_path / "other", family, model_class)
    names = ("output_dir", "input_file", "new_words", "max_seq_length", "train_batch_size")
    flags = {"init_checkpoint": model, "num_train_steps": 6, **{name: flags[name] for name in names}}
    result = warm.run(command_of(flags), capture_output=True, text=True, env=ENVIRONMENT)
    assert result.returncode == 0, result.stderr[-5000:]
    content = json.loads((tmp_path / "out" / "domain.json").read_text())
    has_words = family in ("bert", "electra", "distilbert")
    assert [new["word"] for new in content["new_words"]] == ["zorblax"] * has_words
    metric = {"electra": "disc_loss", "albert": "sentence_order_accuracy"}.get(family, "masked_lm_loss")
    losses = content["losses"]["heldout"]
    assert {metric, "masked_lm_loss"} <= set(losses["after"]) and ("before" in losses) == (model_class is not BertModel)
    assert BertModel.from_pretrained(content["model"]).config.model_type == family
