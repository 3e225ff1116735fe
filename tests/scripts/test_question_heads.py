"""run_squad.py with the joint heads of ELECTRA's and ALBERT's authors: chosen, trained, used, and refused."""

import json

import numpy as np
import pytest
from helpers.descendants import save_model
from helpers.script_cases import assert_in_order, results_of, run_cases
from helpers.small_data import texts_of

from bert_tf import QuestionAnswerer
from bert_tf.models import task_models

SHARED = {"max_seq_length": 32, "max_query_length": 4, "doc_stride": 8, "train_batch_size": 8, "learning_rate": 1e-3}
BEAMS = {"ElectraForQuestionAnswering": 20, "AlbertForQuestionAnswering": 5}


def write(path, count, seed, version_2):
    """Questions whose answer is "good"; in version 2 those about a text with "bad" have none."""
    paragraphs = []
    for number, (words, answered, place) in enumerate(texts_of(count, seed)):
        answers = [{"text": words[place], "answer_start": len(" ".join([*words[:place], ""]))}]
        question = {"id": f"q{number}", "question": "w1 w2", "answers": answers}
        if version_2:
            question |= {"is_impossible": not answered, "answers": answers if answered else []}
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    path.write_text(json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}))


def read(path):
    return json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("family", "version_2"), [("electra", False), ("albert", True)])
def test_a_joint_head_from_training_to_answers(tmp_path, family, version_2):
    source = save_model(tmp_path / "encoder", family, task_models.BertModel)
    for seed, (name, count) in enumerate((("train", 32), ("dev", 11))):
        write(tmp_path / f"{name}.json", count, seed, version_2)
    shared = {**SHARED, "version_2_with_negative": version_2, "do_predict": True, "predict_file": tmp_path / "dev.json"}
    best = tmp_path / "out" / "best_model"
    cases = {
        "trained": {
            **shared, "init_checkpoint": source, "do_train": True, "train_file": tmp_path / "train.json",
            "num_train_epochs": 1, "do_eval": True, "use_best_model": True, "output_dir": tmp_path / "out",
        },
        "used": {**shared, "init_checkpoint": best, "output_dir": tmp_path / "used"},
        "narrow": {**shared, "init_checkpoint": best, "output_dir": tmp_path / "narrow", "beam_size": 1},
        "other": {
            **shared, "init_checkpoint": best, "question_head": "independent", "output_dir": tmp_path / "other",
        },
    }  # fmt: skip
    cases["again"] = cases["trained"]
    outcomes, logs = run_cases("run_squad", cases)
    outcome = outcomes.pop("other")
    assert_in_order("ValueError: --question_head=independent: *best_model was trained with joint.", outcome)
    assert "Nothing to train" in logs["again"]
    assert outcomes == dict.fromkeys(outcomes, "done"), logs
    assert "unless you say otherwise: --question_head=joint" in logs["trained"]
    for folder in (tmp_path / "out", best):
        head = read(folder / "head_config.json")
        assert head["starts"] == head["ends"] == BEAMS[head["architecture"]]
    results, again = results_of(tmp_path / "out"), results_of(tmp_path / "used")
    for name in again.keys() - {"global_step"}:
        assert results[name] == pytest.approx(again[name], abs=1e-4), name
    predictions = read(tmp_path / "used" / "predictions.json")
    assert predictions == read(tmp_path / "out" / "predictions.json")
    nbest = read(tmp_path / "used" / "nbest_predictions.json").values()
    for entries in nbest:
        sums = [entry["start_logit"] + entry["end_logit"] for entry in entries]
        assert sums == sorted(sums, reverse=True) and sums[0] < 0  # log-probabilities
        assert "" not in [entry["text"] for entry in entries]
    few = read(tmp_path / "narrow" / "nbest_predictions.json").values()
    assert max(map(len, few)) < max(map(len, nbest)) > 4
    texts = [" ".join(words) for words, *_ in texts_of(11, 1)]
    found = QuestionAnswerer(str(best)).predict([("w1 w2", text) for text in texts])
    assert list(predictions.values()) == [answer["answer"] for answer in found]
    assert (tmp_path / "used" / "null_odds.json").exists() == version_2
    if version_2:
        threshold = read(best / "question_answering.json")["null_score_diff_threshold"]
        for odds, answer in zip(read(tmp_path / "used" / "null_odds.json").values(), found, strict=True):
            assert (odds > threshold) == (answer["answer"] == "")
            if not answer["answer"]:
                assert answer["score"] == pytest.approx(1 / (1 + np.exp(-odds)), abs=1e-5)


def test_heads_that_do_not_fit(tmp_path):
    """One line that names the flag; nothing is written. What was fine-tuned with BERT's head keeps it."""
    write(tmp_path / "data.json", 8, 0, True)
    kind = task_models.BertForQuestionAnswering
    bert, theirs = (
        save_model(tmp_path / "bert", "bert", task_models.BertModel),
        save_model(tmp_path / "theirs", "electra", kind, format="huggingface"),
    )
    shared = {**SHARED, "version_2_with_negative": True}
    train = {**shared, "do_train": True, "train_file": tmp_path / "data.json", "output_dir": tmp_path / "out"}
    used = {**shared, "do_predict": True, "predict_file": tmp_path / "data.json", "init_checkpoint": theirs}
    refused = {
        "lstm": (
            {**train, "init_checkpoint": bert, "question_head": "joint", "lstm_on_top": True},
            "--lstm_on_top is for --question_head=independent.",
        ),
        "trained": (
            {**used, "question_head": "joint", "output_dir": tmp_path / "out"},
            "--question_head=joint: *theirs*was trained with independent.",
        ),
    }  # fmt: skip
    cases = {name: given for name, (given, _) in refused.items()}
    outcomes, logs = run_cases("run_squad", {**cases, "kept": {**used, "output_dir": tmp_path / "kept"}})
    for name, (_, message) in refused.items():
        assert_in_order(f"ValueError: {message}", outcomes[name])
        assert "\n" not in outcomes[name]
    assert not (tmp_path / "out").exists()
    assert outcomes["kept"] == "done", logs["kept"]
    answerer = QuestionAnswerer(theirs)
    assert type(answerer.model) is kind
    for entries in read(tmp_path / "kept" / "nbest_predictions.json").values():
        assert "" in [entry["text"] for entry in entries]
