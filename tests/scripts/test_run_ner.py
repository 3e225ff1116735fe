"""run_ner.py on a tiny model: learning both ways, files in and out, and what it refuses."""

import json
import shutil

import numpy as np
import pytest
from helpers.basics import lines_of
from helpers.script_cases import results_of, run_and_refuse
from helpers.tiny import ONE_LAYER, write_encoder

from bert_tf.serving.export import export_saved_model
from bert_tf.serving.tagger import Tagger
from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import metrics as ner_tags
from bert_tf.tasks.ner.data import NerSettings
from bert_tf.tasks.ner.task import NerTask
from bert_tf.tasks.script import fine_tune
from bert_tf.training.settings import FineTuningSettings

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"name{n}" for n in range(4)), "town", "of", "##x"]
PIECES += [f"w{number}" for number in range(100 - len(PIECES))]
CONTROL = "\u0001"


def sentences_of(count, seed, longest=20):
    """(words, entities): names are people, `town of` is a place; a word in ten has several pieces or none."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        words, entities = [], []
        for _ in range(generator.integers(1, longest)):
            kind = generator.random()
            if kind < 0.15:
                entities.append(ner_tags.Entity("PER", len(words), len(words) + 1))
                words.append(f"name{generator.integers(4)}")
            elif kind < 0.25:
                entities.append(ner_tags.Entity("LOC", len(words), len(words) + 2))
                words += ["town", "of"]
            else:
                words.append(CONTROL if kind > 0.98 else f"w{generator.integers(80)}" + "x" * (kind > 0.9))
        yield words, entities


def write_sentences(path, count, seed, scheme, line, longest=20):
    """Writes a file with a new document every five sentences. line: of a word and its tag."""
    lines = []
    for number, (words, entities) in enumerate(sentences_of(count, seed, longest)):
        lines += ["-DOCSTART-", ""] if number % 5 == 0 else []
        tags = ner_tags.tags_of(entities, len(words), scheme)
        lines += [*(line.format(word=word, tag=tag) for word, tag in zip(words, tags, strict=True)), ""]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def ran(folder):
    out = folder / "out"
    short = {"max_seq_length": 32, "train_batch_size": 8, "predict_batch_size": 4, "seed": 3, "num_virtual_cpus": 2}
    files = {"train_file": folder / "train.conll", "dev_file": folder / "dev.conll", "test_file": folder / "dev.conll"}
    training = {**short, **files, "init_checkpoint": folder / "encoder", "learning_rate": 4e-3, "deterministic": True}
    training |= {"do_train": True, "do_eval": True, "do_predict": True, "num_train_epochs": 4, "eval_every_steps": 24}
    training |= {"tag_scheme": "iob1", "static_padding": True}
    predict = {**short, "do_predict": True, "init_checkpoint": out / "trained" / "best_model"}
    test = {"test_file": folder / "test.conll", "word_column": 1, "tag_column": 0, "tag_scheme": "bioes"}
    files = {"train_file": "klue.tsv", "dev_file": "klue-dev.tsv", "test_file": "klue-dev.tsv"}
    pieces = {**training, **{name: folder / file for name, file in files.items()}, "tag_scheme": "iob2"}
    pieces |= {"init_checkpoint": folder / "letters" / "encoder", "comment_prefix": "## ", "encoding": "cp949"}
    pieces |= {"metric": "klue", "eval_every_steps": None}
    not_evaluated = {"do_eval": False, "metric": None, "dev_file": None, "eval_every_steps": None}
    not_evaluated["static_padding"] = False
    plain = {"tag_scheme": "plain", "train_file": folder / "speech.conll", "test_file": folder / "speech.conll"}
    odd = f"{folder}/unknown.conll,{folder}/broken.conll"
    once = {"num_train_epochs": 1, "train_batch_size": 2, "write_tf_records": False, "document_context": True}
    done = {
        "trained": training,
        "predicted": predict | test,
        "no tag column": predict | {"tag_scheme": "iob1", "test_file": folder / "dev.conll", "test_has_tags": False},
        "pieces": pieces,
        "characters": {**pieces, **not_evaluated, "num_train_epochs": 1, "character_tokens": True},
        "plain": {**training, **not_evaluated, **plain, **once},
        "odd tags": predict | {"do_predict": False, "do_eval": True, "dev_file": odd, "repair_tags": True},
    }
    entities = {**predict, **test, "init_checkpoint": out / "plain"}
    refused = {
        "entities by a plain model": (entities, "--tag_scheme=bioes contradicts *trained on tags of the kind plain"),
        "unknown tags": (
            {**training, "dev_file": folder / "unknown.conll", "repair_tags": True},
            "--dev_file has tags that --train_file lacks, so that they can't be learned: B-GOD (*unknown.conll, line 2",
        ),
        "words": ({**pieces, "dev_file": folder / "long.conll"}, "--metric=klue scores characters: --dev_file"),
    }
    return folder / "out", run_and_refuse("run_ner", folder / "out", done, refused)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ner")
    write_encoder(folder, PIECES, ONE_LAYER)
    write_sentences(folder / "train.conll", 96, 0, "iob1", "{word} X {tag}")
    write_sentences(folder / "dev.conll", 40, 1, "iob1", "{word} X {tag}")
    write_sentences(folder / "test.conll", 30, 2, "bioes", "{tag}\t{word}", longest=60)
    (folder / "unknown.conll").write_text("name1 B-PER\nw1 B-GOD\n")
    (folder / "long.conll").write_text("박씨\tPS_B\n")
    (folder / "broken.conll").write_text("w1 O\n\nname1 I-PER\n")
    (folder / "speech.conll").write_text("".join(f"w{n} {'AB'[n % 2]}\n" + "\n" * (n % 7 == 0) for n in range(80)))
    (folder / "letters").mkdir()
    letters = [*PIECES[:5], *"박김이씨는갔다.ab", *(f"##{letter}" for letter in "씨는다ab"), "김씨", "박a", "갔다"]
    write_encoder(folder / "letters", letters, {**ONE_LAYER, "vocab_size": len(letters)}, do_lower_case=False)
    for name in ("klue", "klue-dev"):
        # A character a line, in KLUE's layout with Naver's tags: 박, 김 and 이 begin names of two characters.
        generator, lines = np.random.default_rng(len(name)), ["## 토큰 구분자 : \\n", "## 컬럼명 : CHAR\tNE_TAG"]
        for number in range(120):
            lines.append(f"## sentence-{number}\t<박:PS>")
            for _ in range(generator.integers(1, 4)):
                first, other = generator.choice(list("박김이")), generator.choice(list("ab씨"))
                lines += [f"{first}\tPS_B", f"{other}\tPS_I", *(f"{char}\t-" for char in "는 갔다. ")]
            lines.append("\t")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="cp949")
    return folder


def test_a_tagger_learns(out):
    out = out / "trained"
    results = results_of(out)
    assert set(results) == {"eval_precision", "eval_recall", "eval_f1", "eval_accuracy", "eval_loss", "global_step"}
    assert results["eval_f1"] >= 0.95 and results["eval_loss"] < 0.1 and results["global_step"] == 4 * 96 // 8
    evaluations = lines_of(out / "evaluations.jsonl")
    assert [values["step"] for values in evaluations] == [24, 48]
    best = json.loads((out / "best_model" / "eval_results.json").read_text())
    assert best["eval_f1"] == max(values["eval_f1"] for values in evaluations)
    head = json.loads((out / "head_config.json").read_text())
    assert head["labels"] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    # Tagging the dev set as a test set gives the same scores.
    lines = (out / "test_results.txt").read_text().replace("test_", "eval_").splitlines()
    assert {name: float(value) for name, value in (line.split(" = ") for line in lines)} == results
    assert "LOC" in (out / "eval_report.txt").read_text()


def test_predictions_keep_the_file(out, folder):
    before = (folder / "test.conll").read_text().splitlines()
    after = (out / "predicted" / "predictions.conll").read_text().splitlines()
    assert [new.rpartition("\t")[0] if old else new for old, new in zip(before, after, strict=True)] == before
    layout = ner_data.Layout(word_column=1, tag_column=2, tag_scheme="bioes")
    file = ner_data.read_conll(str(out / "predicted" / "predictions.conll"), layout)  # valid tags
    records, expected = lines_of(out / "predicted" / "predictions.jsonl"), [*sentences_of(30, 2, 60)]
    assert [record["words"] for record in records] == [one.words for one in file.sentences] == [w for w, _ in expected]
    assert max(map(len, (words for words, _ in expected))) > 32  # longer than a row
    answers = Tagger(str(out / "trained" / "best_model"), max_seq_length=32).predict([words for words, _ in expected])
    right = total = 0
    for record, answer, (words, entities) in zip(records, answers, expected, strict=True):
        named = ([(entity["type"], entity["text"]) for entity in one["entities"]] for one in (record, answer))
        assert next(named) == next(named)
        found = {(entity["type"], entity["start"], entity["end"]) for entity in record["entities"]}
        right += len(found & {(entity.type, entity.start, entity.end) for entity in entities})
        total += len(entities)
        for entity in record["entities"]:
            assert entity["text"] == " ".join(words[entity["start"] : entity["end"]]) and 0 < entity["score"] <= 1
    results = results_of(out / "predicted", "test_results.txt")
    assert right / total == pytest.approx(results["test_recall"]) and results["test_f1"] >= 0.9
    assert any(CONTROL in record["words"] for record in records)
    assert not (out / "no tag column" / "test_results.txt").exists()
    tags = [record["tags"] for record in lines_of(out / "no tag column" / "predictions.jsonl")]
    assert tags == [record["tags"] for record in lines_of(out / "trained" / "predictions.jsonl")]


@pytest.mark.parametrize(("name", "split"), [("characters", "characters_and_spaces"), ("pieces", "pieces")])
def test_characters_are_learned_and_used(out, logs, tmp_path, name, split):
    """What was trained on a character a line, as tokens or as pieces of the text, tags the characters of strings."""
    assert "--train_file has a character a line" in logs[name]
    assert "of the texts are [UNK]" not in logs[name]  # a space has no piece, and needs none
    model = out / name
    assert json.loads((model / "token_classification.json").read_text())["split"] == split
    assert json.loads((model / "head_config.json").read_text())["labels"] == ["O", "B-PS", "I-PS"]
    record = lines_of(out / name / "predictions.jsonl")[0]
    text = "".join(record["words"])
    found = Tagger(str(model))(text)
    written = ["O" if tag == "-" else "-".join(reversed(tag.split("_"))) for tag in record["tags"]]
    assert (found["words"], found["tags"], found["starts"]) == (list(text), written, list(range(len(text))))
    theirs, ours = ([(e["start"], e["end"], e["text"]) for e in one["entities"]] for one in (found, record))
    assert theirs == ours
    file = ner_data.read_conll(str(out / name / "predictions.conll"), ner_data.Layout(comment_prefix="## "))
    assert "".join(file.sentences[0].words) == text
    if name == "pieces":
        results = results_of(out / name)
        assert results["eval_f1"] > 0.9 and results["eval_accuracy"] > 0.9
        assert results["eval_entity_macro_f1"] == pytest.approx(results["eval_f1"], abs=0.02)  # there is one type
        assert 0.9 < results["eval_character_macro_f1"] <= 1
        assert {len(entity["text"]) for entity in record["entities"]} == {2}
        message = "^This model tags the characters of pieces: exports need --character_tokens in training.$"
        with pytest.raises(ValueError, match=message):
            export_saved_model(str(model), str(tmp_path / "export"))
        assert not (tmp_path / "export").exists()
        assert {line.split("\t")[-1] for line in file.lines if "PS_B" in line} == {"PS_B"}


def test_a_model_of_pieces_from_elsewhere(out, folder, tmp_path):
    """Without token_classification.json, as transformers writes one: it gives the scores that it had here."""
    model = tmp_path / "model"
    shutil.copytree(out / "pieces" / "best_model", model)
    (model / "token_classification.json").unlink()
    files = {"comment_prefix": "## ", "encoding": "cp949", "dev_file": str(folder / "klue-dev.tsv")}
    run = {"init_checkpoint": str(model), "do_eval": True, "max_seq_length": 32, "output_dir": str(tmp_path / "out")}
    here = json.loads((model / "eval_results.json").read_text())["eval_character_macro_f1"]
    for split in (False, True):
        task = NerTask(NerSettings(**files, metric="klue", character_tokens=split))
        results = fine_tune(task, FineTuningSettings(**run))
        assert (results["eval_character_macro_f1"] == pytest.approx(here)) is not split


def test_plain_tags_of_joined_sentences(out):
    out = out / "plain"
    results = results_of(out, "test_results.txt")
    assert set(results) == {"test_accuracy", "test_loss", "global_step"}
    records = lines_of(out / "predictions.jsonl")
    assert "entities" not in records[0] and [len(record["tags"]) for record in records] == [1, *[7] * 11, 2]
    assert json.loads((out / "token_classification.json").read_text())["document_context"]
    assert 0 < results["global_step"] < 13 // 2  # rows hold several of the 13 sentences


def test_tags_that_are_unknown_or_repaired(out, logs):
    """Of two dev files: one of three entities has a type that the model does not know."""
    assert "--dev_file has tags that the model does not know and can't predict: B-GOD (" in logs["odd tags"]
    assert "the tags of 1 sentences break the scheme iob2" in logs["odd tags"]
    results = results_of(out / "odd tags")
    assert (results["eval_precision"], results["eval_recall"]) == (1.0, pytest.approx(2 / 3))
