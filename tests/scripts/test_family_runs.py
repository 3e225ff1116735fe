"""All fine-tuning scripts, and what opens their models, with models of other families than BERT; and unfit files."""

import json
import shutil

import numpy as np
import pytest
from helpers.descendants import NAMES, save_model
from helpers.scenarios import fine_tuning_flags
from helpers.script_cases import assert_in_order, results_of, run_cases
from helpers.slow import slow
from helpers.small_data import WORLDS, texts_of

from bert_tf import ChoicePredictor, Embedder, Predictor, QuestionAnswerer, Tagger
from bert_tf.models import task_models
from bert_tf.models.pretrained import read_tokenizer

FAMILIES = [name for name in NAMES if name != "bert"]
RUNS = [*zip([*FAMILIES, "roberta"], WORLDS, strict=True)]  # each family and each script


# In small: models/test_descendants.py.
@pytest.mark.parametrize(("family", "script"), slow(*RUNS))
def test_a_fine_tuned_directory_is_complete(tmp_path, family, script):
    """It was trained from a directory of Hugging Face, evaluates without any other file, and answers in Python."""
    flags = fine_tuning_flags(script, tmp_path, lstm_on_top=None, max_seq_length=32, test_file=None, predict_file=None)
    source = save_model(tmp_path / "theirs", family, task_models.BertModel, format="huggingface")
    best = tmp_path / "out" / "best_model"
    predict = {**flags, "do_train": False, "do_predict": True, "init_checkpoint": best}
    predict["predict_file" if script == "run_squad" else "test_file"] = flags["dev_file"]
    cases = {
        "trained": {**flags, "init_checkpoint": source, "num_train_epochs": 2, "use_best_model": True},
        "used": {**predict, "output_dir": tmp_path / "used"},
    }
    cases["again"] = cases["trained"]  # restores its own checkpoint
    outcomes, logs = run_cases(script, cases)
    assert outcomes == dict.fromkeys(cases, "done"), logs
    assert "Nothing to train" in logs["again"]
    results, again = results_of(tmp_path / "out"), results_of(tmp_path / "used")
    for name in results.keys() - {"global_step", "loss"}:
        assert results[name] == pytest.approx(again[name], abs=1e-4), name
    for folder in (best, tmp_path / "out"):
        assert read_tokenizer(str(folder)).files() == read_tokenizer(source).files()
    texts = [" ".join(words) for words, *_ in texts_of(11, 1)]
    if script == "run_classifier":
        rows = (tmp_path / "used" / "test_results.tsv").read_text().splitlines()[-len(texts) :]
        found = [list(row["probabilities"].values()) for row in Predictor(str(best)).predict(texts)]
        np.testing.assert_allclose([[float(cell) for cell in row.split("\t")[-2:]] for row in rows], found, atol=1e-4)
    elif script == "run_squad":
        by_words = family in ("distilbert", "electra")
        recorded = json.loads((best / "question_answering.json").read_text())
        assert recorded["answer_from"] == ("words" if by_words else "offsets")
        predictions = json.loads((tmp_path / "used" / "predictions.json").read_text())
        found = QuestionAnswerer(str(best)).predict([("w1 w2", text) for text in texts])
        assert list(predictions.values()) == [answer["answer"] for answer in found]
    elif script == "run_ner":
        lines = (tmp_path / "used" / "predictions.jsonl").read_text().splitlines()
        assert [json.loads(line)["tags"] for line in lines] == [row["tags"] for row in Tagger(str(best)).predict(texts)]
    elif script == "run_similarity":
        lines = (tmp_path / "used" / "predictions.jsonl").read_text().splitlines()
        found = [json.loads(line)["cosine"] for line in lines]
        texts += [f"{' '.join(reversed(text.split()))} w{number}" for number, text in enumerate(texts)]
        vectors, partners = np.split(Embedder(str(best)).encode(texts, normalize=True), 2)
        np.testing.assert_allclose((vectors * partners).sum(-1), found, atol=1e-4)
    else:
        assert set(ChoicePredictor(str(best))("w1 w2", ["a", "b"])) == {"choice", "text", "probabilities"}


def test_unfit_files_of_byte_bpe(tmp_path):
    """One line that names file or flag; nothing is written."""
    source = save_model(tmp_path / "model", "roberta", task_models.BertModel)
    (tmp_path / "train.csv").write_text("text,verdict\n" + "a,up\nb,down\n" * 16)

    def directory(name: str, **changes: str | None) -> str:
        folder = shutil.copytree(source, tmp_path / name)
        (folder / "tokenizer.json").unlink()
        for file, text in changes.items():
            path = folder / file.replace("__", ".")
            path.unlink(missing_ok=True) if text is None else path.write_text(text)
        return str(folder)

    config = (tmp_path / "model" / "roberta_config.json").read_text()
    refused = {
        "neither": (
            {"init_checkpoint": directory("c", vocab__json=None, merges__txt=None)},
            "c has no tokenizer: give --vocab_file, or --init_checkpoint with a vocab.json (with merges.txt) or",
        ),
        "word pieces": (
            {"init_checkpoint": directory("e", tokenizer__json='{"model": {"type": "WordPiece", "vocab": {}}}')},
            "tokenizer.json: it has the normalizer none and the pre-tokenizer none, which is no rule of",
        ),
        "another size": (
            {"init_checkpoint": directory("f", roberta_config__json=config.replace("601", "700"))}, "700",
        ),
    }  # fmt: skip
    shared = {
        **WORLDS["run_classifier"][2], "do_train": True, "train_file": tmp_path / "train.csv", "max_seq_length": 32,
        "output_dir": tmp_path / "out",
    }  # fmt: skip
    outcomes, _ = run_cases("run_classifier", {name: {**shared, **given} for name, (given, _) in refused.items()})
    for name, (_, message) in refused.items():
        assert_in_order(message, outcomes[name])
        assert "\n" not in outcomes[name]
    assert not (tmp_path / "out").exists()
