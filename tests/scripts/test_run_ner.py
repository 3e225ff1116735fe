"""run_ner.py on a tiny model: learning both ways, files in and out, and what it refuses."""

import json

import keras
import numpy as np
import pytest
from helpers.script_cases import assert_in_order, results_of, run_cases, selected_cases, weights_of
from helpers.slow import slow
from helpers.tiny import TINY_CONFIG, write_encoder

from bert_tf import BertForTokenClassification, FullTokenizer
from bert_tf.models.config import BertConfig
from bert_tf.serving.export import export_saved_model
from bert_tf.serving.tagger import Tagger
from bert_tf.tasks.ner import data as ner_data

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
                entities.append(ner_data.Entity("PER", len(words), len(words) + 1))
                words.append(f"name{generator.integers(4)}")
            elif kind < 0.25:
                entities.append(ner_data.Entity("LOC", len(words), len(words) + 2))
                words += ["town", "of"]
            else:
                words.append(CONTROL if kind > 0.98 else f"w{generator.integers(80)}" + "x" * (kind > 0.9))
        yield words, entities


def write_sentences(path, count, seed, scheme="iob2", separator="\t", columns="{word}{s}{tag}", every=5, longest=20):
    """Writes a file with a new document every few sentences."""
    lines = []
    for number, (words, entities) in enumerate(sentences_of(count, seed, longest)):
        if number % every == 0:
            lines += ["-DOCSTART-", ""]
        tags = ner_data.tags_of(entities, len(words), scheme)
        lines += [
            columns.format(word=word, tag=tag, s=separator) for word, tag in zip(words, tags, strict=True)
        ]  # fmt: skip
        lines.append("")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ner")
    write_encoder(folder, PIECES, TINY_CONFIG)
    write_sentences(folder / "train.conll", 96, 0, "iob1", " ", "{word} X{s}{tag}")
    write_sentences(folder / "dev.conll", 40, 1, "iob1", " ", "{word} X{s}{tag}")
    write_sentences(folder / "test.conll", 30, 2, "bioes", "\t", "{tag}{s}{word}", longest=60)
    write_sentences(folder / "words.txt", 12, 3, columns="{word}")
    (folder / "unknown.conll").write_text("name1 B-PER\nw1 B-GOD\n")
    (folder / "broken.conll").write_text("w1 O\n\nname1 I-PER\n")
    (folder / "unequal.conll").write_text("w1 O\nw2\n")
    (folder / "latin.conll").write_bytes(b"caf\xe9 O\n")
    (folder / "empty.conll").write_text("\n\n")
    (folder / "speech.conll").write_text("".join(f"w{n} {'AB'[n % 2]}\n" + "\n" * (n % 7 == 0) for n in range(80)))
    (folder / "damaged").mkdir()
    (folder / "letters").mkdir()
    letters = [*PIECES[:5], *"박김이씨는갔다.ab"]
    write_encoder(folder / "letters", letters, {**TINY_CONFIG, "vocab_size": len(letters)}, do_lower_case=False)
    for name in ("klue", "klue-dev"):
        write_characters(folder / f"{name}.tsv", 120, len(name))
    return folder


def write_characters(path, count, seed):
    """A character a line, in the layout of KLUE with the tags of Naver: 박, 김 and 이 begin names of two characters."""
    generator, lines = np.random.default_rng(seed), ["## 토큰 구분자 : \\n", "## 컬럼명 : CHAR\tNE_TAG"]
    for number in range(count):
        lines.append(f"## sentence-{number}\t<박:PS>")
        for _ in range(generator.integers(1, 4)):
            name, other = generator.choice(list("박김이")), generator.choice(list("ab씨"))
            lines += [f"{name}\tPS_B", f"{other}\tPS_I", *(f"{char}\t-" for char in "는 갔다. ")]
        lines.append("\t")
    path.write_text("\n".join(lines) + "\n")


SHORT = {
    "max_seq_length": 32, "train_batch_size": 8, "predict_batch_size": 4, "learning_rate": 3e-3, "seed": 3,
    "deterministic": True, "num_virtual_cpus": 2,
}  # fmt: skip


def cases_of(folder) -> dict:
    """Case -> flags, in the order in which they run; later cases build on earlier ones."""
    out, iob1 = folder / "out", {"tag_scheme": "iob1"}
    training = {
        **SHORT, **iob1, "init_checkpoint": folder / "encoder", "do_train": True, "do_eval": True,
        "num_train_epochs": 12, "train_file": folder / "train.conll", "dev_file": folder / "dev.conll",
        "eval_every_steps": 48,
    }  # fmt: skip
    test = {"test_file": folder / "test.conll", "word_column": 1, "tag_column": 0, "tag_scheme": "bioes"}
    predict = {**SHORT, **test, "do_predict": True, "init_checkpoint": out / "trained" / "best_model"}
    once = {**training, "num_train_epochs": 1, "write_tf_records": False}
    frozen = {**training, "features": "embeddings", "lstm_size": 64, "learning_rate": 5e-3, "lstm_layers": 1}
    return {
        "trained": {**training, "do_predict": True, "test_file": folder / "dev.conll"},
        "again": {**training, "do_train": False, "output_dir": out / "trained"},
        "predicted": predict,
        "two devices": {**predict, "distribution_strategy": "mirrored", "predict_batch_size": 6},
        "static": {**predict, "static_padding": True, "predict_batch_size": 9},
        "words": {**SHORT, "do_predict": True, "init_checkpoint": out / "trained" / "best_model",
                  "test_file": folder / "words.txt"},
        "no tag column": {**SHORT, **iob1, "do_predict": True, "init_checkpoint": out / "trained" / "best_model",
                          "test_file": folder / "dev.conll", "test_has_tags": False},
        "frozen": frozen,
        "frozen predicted": {**predict, "init_checkpoint": out / "frozen" / "best_model"},
        "documents": {**once, "document_context": True, "do_predict": True, "test_file": folder / "dev.conll"},
        "parts": {**once, "gradient_accumulation_steps": 2, "features": "sum_all", "lstm_size": 8, "lstm_layers": 1,
                  "train_file": f"{folder}/train.conll,{folder}/dev.conll"},
        "characters": {
            **once, "tag_scheme": "iob2", "init_checkpoint": folder / "letters" / "encoder", "comment_prefix": "## ",
            "metric": "klue", "train_file": folder / "klue.tsv", "dev_file": folder / "klue-dev.tsv",
            "do_predict": True, "test_file": folder / "klue-dev.tsv", "num_train_epochs": 4,
        },
        "words by characters": {**SHORT, "do_predict": True, "init_checkpoint": out / "characters" / "best_model",
                                "test_file": folder / "words.txt"},
        "plain": {**once, "tag_scheme": "plain", "train_file": folder / "speech.conll", "num_train_epochs": 10,
                  "dev_file": folder / "speech.conll", "do_predict": True, "test_file": folder / "speech.conll"},
        "unknown tag": {**once, "tag_scheme": "iob2", "do_train": False, "dev_file": folder / "unknown.conll",
                        "init_checkpoint": out / "trained" / "best_model"},
        "repaired": {**once, "tag_scheme": "iob2", "do_train": False, "dev_file": folder / "broken.conll",
                     "repair_tags": True, "init_checkpoint": out / "trained" / "best_model"},
        # --- refused
        "nothing to do": {**training, "do_train": False, "do_eval": False},
        "no train file": {key: value for key, value in training.items() if key != "train_file"},
        "no dev file": {key: value for key, value in training.items() if key != "dev_file"},
        "no test file": {**training, "do_predict": True},
        "patience": {**once, "do_eval": False, "early_stopping_patience": 1},
        "lstm without features": {**training, "lstm_size": 8},
        "wrong scheme": {**training, "tag_scheme": "iob2"},
        "broken tags": {**training, "dev_file": folder / "broken.conll", "tag_scheme": "iob2",
                        "train_file": folder / "unknown.conll"},
        "unequal columns": {**training, "train_file": folder / "unequal.conll"},
        "no UTF-8": {**training, "dev_file": folder / "latin.conll"},
        "no words": {**predict, "test_file": folder / "empty.conll"},
        "misspelt file": {**training, "train_file": folder / "none.conll"},
        "words to train on": {**training, "train_file": folder / "words.txt"},
        "two test files": {**predict, "test_file": f"{folder}/test.conll,{folder}/test.conll"},
        "too long": {**training, "max_seq_length": 64},
        "no room": {**training, "max_seq_length": 2},
        "no step": {**once, "train_batch_size": 500},
        "batch": {**predict, "distribution_strategy": "mirrored", "predict_batch_size": 7},
        "no model": {key: value for key, value in predict.items() if key != "init_checkpoint"},
        "random layer": {**predict, "init_checkpoint": folder / "encoder"},
        "too few layers": {**training, "init_checkpoint": folder / "shallow", "features": "concat_last_four"},
        "other features": {**frozen, "features": "sum_all", "output_dir": out / "frozen"},
        "not frozen": {**predict, "features": "last", "init_checkpoint": out / "trained" / "best_model"},
        "entities by a plain model": {**predict, "init_checkpoint": out / "plain" / "best_model"},
        "klue by words": {**training, "metric": "klue"},
        "other tags": {**training, "train_file": folder / "unknown.conll", "dev_file": folder / "unknown.conll",
                       "tag_scheme": "iob2", "train_batch_size": 1,
                       "output_dir": out / "trained"},
        "damaged settings": {**predict, "init_checkpoint": folder / "damaged"},
    }  # fmt: skip


# Frozen features in small: serving/test_tagger.py, tasks/ner/test_feature_tagger.py.
SLOW = {
    "two devices",
    "parts",
    "documents",
    "plain",
    "entities by a plain model",
    "frozen",
    "frozen predicted",
    "other features",
}


@pytest.fixture(scope="module")
def ran(request, folder):
    """Output folder, outcomes by case, and what each wrote to stderr."""
    keras.utils.set_random_seed(0)
    shallow = BertForTokenClassification(BertConfig.from_dict(TINY_CONFIG), 5)
    shallow.build()
    for name in ("shallow", "damaged"):
        shallow.save_pretrained(str(folder / name), vocab_file=str(folder / "vocab.txt"), do_lower_case=True)
    (folder / "damaged" / "token_classification.json").write_text("[1]")
    cases = selected_cases(request, cases_of(folder), SLOW)
    cases = {name: {"output_dir": folder / "out" / name, **values} for name, values in cases.items()}
    return folder / "out", *run_cases("run_ner", cases)


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_learns(ran):
    out, outcomes, _ = ran
    assert outcomes["trained"] == "done"
    results = results_of(out / "trained")
    names = {"eval_precision", "eval_recall", "eval_f1", "eval_accuracy", "eval_loss", "global_step"}
    assert set(results) == names
    assert results["eval_f1"] >= 0.95 and results["eval_loss"] < 0.1 and results["global_step"] == 12 * 96 // 8
    evaluations = lines_of(out / "trained" / "evaluations.jsonl")
    assert [values["step"] for values in evaluations] == [48, 96, 144]
    best = json.loads((out / "trained" / "best_model" / "eval_results.json").read_text())
    assert best["eval_f1"] == max(values["eval_f1"] for values in evaluations)
    head = json.loads((out / "trained" / "head_config.json").read_text())
    assert head["labels"] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    # Tagging the dev set as a test set gives the same scores.
    test = results_of(out / "trained", "").items()
    same = {
        name.replace("test_", "eval_"): value
        for name, value in (
            line.split(" = ") for line in (out / "trained" / "test_results.txt").read_text().splitlines()
        )
    }
    assert {name: float(value) for name, value in same.items()} == dict(test)
    assert "LOC" in (out / "trained" / "eval_report.txt").read_text()
    assert outcomes["again"] == "done"


def test_predictions_keep_the_file(ran, folder):
    """Every line of the file is there, in order, with one more column in the file's own scheme."""
    out, outcomes, _ = ran
    assert outcomes["predicted"] == "done"
    before = (folder / "test.conll").read_text().splitlines()
    after = (out / "predicted" / "predictions.conll").read_text().splitlines()
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        assert new == old if not old else new.rpartition("\t")[0] == old
    words = sum(bool(line) and not line.startswith("-DOCSTART-") for line in before)
    layout = ner_data.Layout(word_column=1, tag_column=2, tag_scheme="bioes")
    file = ner_data.read_conll(str(out / "predicted" / "predictions.conll"), layout)  # valid tags
    assert sum(len(sentence.tags) for sentence in file.sentences) == words
    results = {
        name: float(value)
        for name, value in (
            line.split(" = ") for line in (out / "predicted" / "test_results.txt").read_text().splitlines()
        )
    }
    assert results["test_f1"] >= 0.9
    # Some sentences are longer than a row.
    tokenizer = FullTokenizer(str(folder / "vocab.txt"))
    assert max(len(tokenizer.encode(" ".join(sentence.words))) for sentence in file.sentences) > 60
    records = lines_of(out / "predicted" / "predictions.jsonl")
    assert [record["words"] for record in records] == [sentence.words for sentence in file.sentences]
    right = total = 0
    for record, (words, entities) in zip(records, sentences_of(30, 2, 60), strict=True):
        found = {(entity["type"], entity["start"], entity["end"]) for entity in record["entities"]}
        right += len(found & {(entity.type, entity.start, entity.end) for entity in entities})
        total += len(entities)
        for entity in record["entities"]:
            assert entity["text"] == " ".join(words[entity["start"] : entity["end"]]) and 0 < entity["score"] <= 1
    assert right / total == pytest.approx(results["test_recall"])
    assert any(CONTROL in record["words"] for record in records)


@pytest.mark.parametrize("case", [*slow("two devices"), "static"])
def test_other_batches_give_the_same_tags(ran, case):
    out, outcomes, _ = ran
    assert outcomes[case] == "done"
    expected, found = (lines_of(out / name / "predictions.jsonl") for name in ("predicted", case))
    assert [record["tags"] for record in found] == [record["tags"] for record in expected]


def test_words_without_tags(ran, folder):
    out, outcomes, _ = ran
    assert outcomes["words"] == outcomes["no tag column"] == "done"
    lines = (out / "words" / "predictions.conll").read_text().splitlines()
    gold = [tag for words, entities in sentences_of(12, 3) for tag in ner_data.tags_of(entities, len(words), "iob2")]
    found = [line.split(" ")[-1] for line in lines if line and not line.startswith("-DOC")]
    assert len(found) == len(gold) and np.mean([one == other for one, other in zip(found, gold, strict=True)]) > 0.95
    assert not (out / "words" / "test_results.txt").exists()
    assert not (out / "no tag column" / "test_results.txt").exists()
    tags = [record["tags"] for record in lines_of(out / "no tag column" / "predictions.jsonl")]
    assert tags == [record["tags"] for record in lines_of(out / "trained" / "predictions.jsonl")]


@pytest.mark.slow
def test_bilstms_learn_and_bert_stays_as_it_is(ran, folder):
    out, outcomes, _ = ran
    assert outcomes["frozen"] == outcomes["frozen predicted"] == "done"
    learned = results_of(out / "frozen")["eval_f1"]
    assert learned >= 0.4
    before, after = weights_of(folder / "encoder"), weights_of(out / "frozen" / "best_model")
    assert all(np.array_equal(values, after[name]) for name, values in before.items())
    assert sum("bilstm_" in name for name in after) == 2 * 3  # directions, variables of an LSTM
    # The directory records that it is such a model, and its features.
    lines = (out / "frozen predicted" / "test_results.txt").read_text().splitlines()
    test = {name: float(value) for name, value in (line.split(" = ") for line in lines)}
    assert test["test_f1"] >= 0.7 * learned


@pytest.mark.slow
def test_bert_stays_as_it_is_in_several_parts(ran, folder):
    out, outcomes, _ = ran
    assert outcomes["parts"] == "done"
    before, after = weights_of(folder / "encoder"), weights_of(out / "parts" / "best_model")
    assert all(np.array_equal(values, after[name]) for name, values in before.items())


@pytest.mark.slow
def test_document_context(ran):
    out, outcomes, logs = ran
    assert outcomes["documents"] == "done"
    assert json.loads((out / "documents" / "best_model" / "token_classification.json").read_text())["document_context"]
    plain, joined = (int(log.split("global_step = ")[1].split()[0]) for log in (logs["trained"], logs["documents"]))
    assert joined < plain
    tags = [record["tags"] for record in lines_of(out / "documents" / "predictions.jsonl")]
    assert [len(sentence) for sentence in tags] == [len(words) for words, _ in sentences_of(40, 1)]


def test_characters_are_learned_and_used(ran):
    """What was trained on a character a line tags the characters of strings, in Python and in an export."""
    out, outcomes, logs = ran
    assert outcomes["characters"] == outcomes["words by characters"] == "done"
    assert "--train_file has a character a line" in logs["characters"]
    assert "of the texts are [UNK]" not in logs["characters"]  # a space has no piece, and needs none
    assert "--test_file has words, but the model was trained on single characters." in logs["words by characters"]
    best = out / "characters" / "best_model"
    assert json.loads((best / "token_classification.json").read_text())["split"] == "characters_and_spaces"
    assert json.loads((best / "head_config.json").read_text())["labels"] == ["O", "B-PS", "I-PS"]
    results = results_of(out / "characters")
    assert results["eval_f1"] > 0.9
    assert results["eval_entity_macro_f1"] == pytest.approx(results["eval_f1"], abs=1e-9)  # there is one type
    assert 0.9 < results["eval_character_macro_f1"] <= 1
    record = lines_of(out / "characters" / "predictions.jsonl")[0]
    assert {len(entity["text"]) for entity in record["entities"]} == {2}
    file = ner_data.read_conll(str(out / "characters" / "predictions.conll"), ner_data.Layout(comment_prefix="## "))
    assert {line.split("\t")[-1] for line in file.lines if "PS_B" in line} == {"PS_B"}
    export_saved_model(str(best), str(out / "characters" / "export"), warm_up=False)
    text = "".join(record["words"])
    for path in (best, out / "characters" / "export"):
        found = Tagger(str(path))(text)
        assert (found["words"], found["tags"]) == (list(text), ner_tags(record["tags"]))
        assert found["starts"] == list(range(len(text)))
        assert [(e["start"], e["end"], e["text"]) for e in found["entities"]] == [
            (e["start"], e["end"], e["text"]) for e in record["entities"]
        ]


def ner_tags(written):
    return ["O" if tag == "-" else "-".join(reversed(tag.split("_"))) for tag in written]


@pytest.mark.slow
def test_plain_tags(ran):
    out, outcomes, _ = ran
    assert outcomes["plain"] == "done"
    results = results_of(out / "plain")
    assert set(results) == {"eval_accuracy", "eval_loss", "global_step"} and results["eval_accuracy"] > 0.6
    assert "entities" not in lines_of(out / "plain" / "predictions.jsonl")[0]


def test_tags_that_are_unknown_or_repaired(ran):
    out, outcomes, logs = ran
    assert outcomes["unknown tag"] == outcomes["repaired"] == "done"
    assert "--dev_file has tags that the model does not know and can't predict: B-GOD" in logs["unknown tag"]
    assert results_of(out / "unknown tag")["eval_recall"] == 0.5
    assert "the tags of 1 sentences break the scheme iob2" in logs["repaired"]
    assert results_of(out / "repaired")["eval_f1"] == 1.0


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("nothing to do", "Nothing to do: give one or more of --do_train, --do_eval, --do_predict"),
        ("no train file", "--do_train needs --train_file"),
        ("no dev file", "--do_eval needs --dev_file"),
        ("no test file", "--do_predict needs --test_file"),
        ("patience", "--early_stopping_patience chooses by the results on a dev set: give --do_eval"),
        ("lstm without features", "--lstm_size is for the feature-based way: give --features"),
        ("wrong scheme", "--train_file: *train.conll, line *fits --tag_scheme=iob1."),
        ("broken tags", "--dev_file: *broken.conll, line 3: the tag 'I-PER' at the start of the sentence breaks"),
        ("unequal columns", "--train_file: *unequal.conll, line 2: 1 columns, but line 1 has 2"),
        ("no UTF-8", "--dev_file: *latin.conll, line 1: not UTF-8 at byte offset 3"),
        ("no words", "--test_file: *empty.conll has no words"),
        ("misspelt file", "--train_file: no file matches *none.conll"),
        ("words to train on", "--train_file: *words.txt has words only, and no column of tags"),
        ("two test files", "is 2 files; give one"),
        ("too long", "--max_seq_length=64 is more than max_position_embeddings=32"),
        ("no room", "max_seq_length=2 has no room for a word"),
        ("no step", "--train_batch_size=500 and --num_train_epochs=1.0 give less than one step"),
        ("batch", "--predict_batch_size=7"),
        ("no model", "Nothing to evaluate or predict with"),
        ("random layer", "has no output layer for this task"),
        ("too few layers", "features=concat_last_four needs 4 layers, but the model has 2"),
        *slow(("other features", "--features=sum_all contradicts *which was trained with embeddings")),
        ("not frozen", "--features=last contradicts *which was trained with None"),
        *slow(("entities by a plain model", "--tag_scheme=bioes contradicts *trained on tags of the kind plain")),
        ("other tags", "holds a run of another configuration (labels"),
        ("klue by words", "--metric=klue scores characters: --dev_file must have a character a line, and has words."),
        ("damaged settings", "--init_checkpoint: *token_classification.json is not a JSON object but list"),
    ],
)
def test_refused(ran, folder, case, message):
    out, outcomes, _ = ran
    assert_in_order(message, outcomes[case])
    assert outcomes[case].startswith(("ValueError", "FileNotFoundError"))
    if case not in ("other features", "other tags"):
        left = list((out / case).iterdir()) if (out / case).exists() else []
        assert left == []
