"""All fine-tuning scripts, and what opens their models, with models of other families than BERT; and unfit files."""

import json
import shutil

import numpy as np
import pytest
from helpers.descendants import NAMES, save_model
from helpers.script_cases import assert_in_order, results_of, run_cases
from helpers.slow import exhaustive, slow
from helpers.small_data import WORLDS, texts_of

from bert_tf import ChoicePredictor, Embedder, Predictor, QuestionAnswerer, Tagger
from bert_tf.models import task_models
from bert_tf.models.pretrained import read_tokenizer

FAMILIES = [name for name in NAMES if name != "bert"]
RUNS = [(family, script) for family in FAMILIES for script in WORLDS]
OFTEN = [*zip([*FAMILIES, "roberta"], WORLDS, strict=True)]  # each family and each script


# In small: models/test_descendants.py.
@pytest.mark.parametrize(("family", "script"), [*slow(*OFTEN), *exhaustive(*(run for run in RUNS if run not in OFTEN))])
def test_a_fine_tuned_directory_is_complete(tmp_path, family, script):
    """It was trained from a directory of Hugging Face, evaluates without any other file, and answers in Python."""
    write, ending, own = WORLDS[script]
    own = {name: value for name, value in own.items() if name != "lstm_on_top"}
    source = save_model(tmp_path / "theirs", family, task_models.BertModel, format="huggingface")
    for seed, (name, count) in enumerate((("train", 32), ("dev", 11))):
        write(tmp_path / f"{name}.{ending}", list(texts_of(count, seed)))
    test = "predict_file" if script == "run_squad" else "test_file"
    shared = {**own, "do_eval": True, "max_seq_length": 32, "dev_file": tmp_path / f"dev.{ending}"}
    best = tmp_path / "out" / "best_model"
    cases = {
        "trained": {
            **shared, "init_checkpoint": source, "do_train": True, "train_file": tmp_path / f"train.{ending}",
            "train_batch_size": 8, "num_train_epochs": 2, "learning_rate": 1e-3, "output_dir": tmp_path / "out",
            "use_best_model": True,
        },
        "used": {
            **shared, "init_checkpoint": best, "do_predict": True, test: tmp_path / f"dev.{ending}",
            "output_dir": tmp_path / "used",
        },
    }  # fmt: skip
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


@pytest.mark.parametrize("family", [*slow(*FAMILIES)])
def test_features(tmp_path, family):
    source = save_model(tmp_path / "theirs", family, task_models.BertModel)
    (tmp_path / "text").write_text("Ada met  the dog ||| who ran\nIt's 9,000 km.\n")
    shared = {"input_file": tmp_path / "text", "init_checkpoint": source, "max_seq_length": 32, "layers": "-1"}
    cases = {name: {**shared, "pooling": name, "output_file": tmp_path / name} for name in ("none", "mean")}
    outcomes, logs = run_cases("extract_features", cases)
    assert outcomes == dict.fromkeys(cases, "done"), logs
    tokenizer = read_tokenizer(source)
    features = tokenizer(["Ada met  the dog", "It's 9,000 km."], ["who ran", ""])
    expected = np.asarray(task_models.BertModel.from_pretrained(source)(features)["sequence_output"])
    for row, line in enumerate((tmp_path / "none").read_text().splitlines()):
        entries = json.loads(line)["features"]
        count = int(features["input_mask"][row].sum())
        ids = tokenizer.convert_tokens_to_ids(entry["token"] for entry in entries)
        assert ids == features["input_ids"][row, :count].tolist()
        values = [entry["layers"][0]["values"] for entry in entries]
        np.testing.assert_allclose(values, expected[row, :count], atol=1e-4)
    words = [entry["token"] for entry in json.loads((tmp_path / "mean").read_text().splitlines()[1])["features"]]
    assert words == [*tokenizer.begin_tokens, "It's", "9,000", "km.", *tokenizer.end_tokens]


def test_unfit_files_of_byte_bpe(tmp_path):
    """One line that names file or flag; nothing is written."""
    source = save_model(tmp_path / "model", "roberta", task_models.BertModel)
    (tmp_path / "train.csv").write_text("text,verdict\na,up\nb,down\n")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n")

    def directory(name: str, **changes: str | None) -> str:
        folder = shutil.copytree(source, tmp_path / name)
        (folder / "tokenizer.json").unlink()
        for file, text in changes.items():
            path = folder / file.replace("__", ".")
            path.unlink(missing_ok=True) if text is None else path.write_text(text)
        return str(folder)

    whole = (tmp_path / "model" / "tokenizer.json").read_text()
    config = (tmp_path / "model" / "roberta_config.json").read_text()
    refused = {
        "no merges": ({"init_checkpoint": directory("a", merges__txt=None)}, "vocab.json needs its merges: put"),
        "no vocab": ({"init_checkpoint": directory("b", vocab__json=None)}, "has a merges.txt but no vocab.json: put"),
        "neither": (
            {"init_checkpoint": directory("c", vocab__json=None, merges__txt=None)},
            "c has no tokenizer: give --vocab_file, or --init_checkpoint with a vocab.json (with merges.txt) or",
        ),
        "truncated": (
            {"init_checkpoint": directory("d", tokenizer__json=whole[: len(whole) // 2])},
            "tokenizer.json, line *: not JSON",
        ),
        "word pieces": (
            {"init_checkpoint": directory("e", tokenizer__json='{"model": {"type": "WordPiece", "vocab": {}}}')},
            "tokenizer.json: it has the normalizer none and the pre-tokenizer none, which is no rule of",
        ),
        "another size": (
            {"init_checkpoint": directory("f", roberta_config__json=config.replace("601", "700"))}, "700",
        ),
        "word pieces by flag": (
            {"init_checkpoint": source, "vocab_file": tmp_path / "vocab.txt"},
            "--vocab_file: *vocab.txt lacks [CLS], [SEP], [MASK], which a vocabulary of word pieces must have",
        ),
        "lower case": (
            {"init_checkpoint": source, "do_lower_case": True}, "do_lower_case=True contradicts *tokenizer.json",
        ),
        "accents": ({"init_checkpoint": source, "strip_accents": True}, "strip_accents is for word pieces"),
        "too long": (
            {"init_checkpoint": source, "max_seq_length": 65}, "--max_seq_length=65 is more than *=66 - 2 of",
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
