"""run_ner.py on a tiny model: learning both ways, files in and out, and what it refuses."""

import json

import keras
import numpy as np
import pytest
from helpers.script_cases import assert_refused, results_of, run_and_refuse
from helpers.tiny import ONE_LAYER, write_encoder

from bert_tf import BertForTokenClassification, FullTokenizer
from bert_tf.models.config import BertConfig
from bert_tf.serving.tagger import Tagger
from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import tags as ner_tags

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


def write_sentences(path, count, seed, scheme="iob2", separator="\t", columns="{word}{s}{tag}", every=5, longest=20):
    """Writes a file with a new document every few sentences."""
    lines = []
    for number, (words, entities) in enumerate(sentences_of(count, seed, longest)):
        if number % every == 0:
            lines += ["-DOCSTART-", ""]
        tags = ner_tags.tags_of(entities, len(words), scheme)
        lines += [
            columns.format(word=word, tag=tag, s=separator) for word, tag in zip(words, tags, strict=True)
        ]  # fmt: skip
        lines.append("")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ner")
    write_encoder(folder, PIECES, ONE_LAYER)
    write_sentences(folder / "train.conll", 96, 0, "iob1", " ", "{word} X{s}{tag}")
    write_sentences(folder / "dev.conll", 40, 1, "iob1", " ", "{word} X{s}{tag}")
    write_sentences(folder / "test.conll", 30, 2, "bioes", "\t", "{tag}{s}{word}", longest=60)
    write_sentences(folder / "words.txt", 12, 3, columns="{word}")
    (folder / "unknown.conll").write_text("name1 B-PER\nw1 B-GOD\n")
    (folder / "broken.conll").write_text("w1 O\n\nname1 I-PER\n")
    (folder / "speech.conll").write_text("".join(f"w{n} {'AB'[n % 2]}\n" + "\n" * (n % 7 == 0) for n in range(80)))
    (folder / "damaged").mkdir()
    (folder / "letters").mkdir()
    letters = [*PIECES[:5], *"박김이씨는갔다.ab", *(f"##{letter}" for letter in "씨는다ab"), "김씨", "박a", "갔다"]
    write_encoder(folder / "letters", letters, {**ONE_LAYER, "vocab_size": len(letters)}, do_lower_case=False)
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
    "max_seq_length": 32, "train_batch_size": 8, "predict_batch_size": 4, "learning_rate": 4e-3, "seed": 3,
    "deterministic": True, "num_virtual_cpus": 2,
}  # fmt: skip


def cases_of(folder) -> tuple[dict, dict]:
    """Case -> flags, in the order in which they run, later ones built on earlier ones; and refused, with messages."""
    out, iob1 = folder / "out", {"tag_scheme": "iob1"}
    training = {
        **SHORT, **iob1, "init_checkpoint": folder / "encoder", "do_train": True, "do_eval": True,
        "num_train_epochs": 8, "train_file": folder / "train.conll", "dev_file": folder / "dev.conll",
        "eval_every_steps": 32,
    }  # fmt: skip
    best = {"init_checkpoint": out / "trained" / "best_model"}
    test = {"test_file": folder / "test.conll", "word_column": 1, "tag_column": 0, "tag_scheme": "bioes"}
    predict = {**SHORT, **test, **best, "do_predict": True}
    once = {**training, "num_train_epochs": 1, "write_tf_records": False}
    speech = {"train_file": folder / "speech.conll", "test_file": folder / "speech.conll", "dev_file": None}
    plain = {**once, **speech, "do_eval": False, "do_predict": True, "tag_scheme": "plain", "train_batch_size": 2}
    done = {
        "trained": {**training, "do_predict": True, "test_file": folder / "dev.conll"},
        "again": {**training, "do_train": False, "output_dir": out / "trained"},
        "predicted": predict,
        "other batches": {**predict, "distribution_strategy": "mirrored", "static_padding": True,
                          "predict_batch_size": 6},
        "words": {**SHORT, **best, "do_predict": True, "test_file": folder / "words.txt"},
        "no tag column": {**SHORT, **iob1, **best, "do_predict": True, "test_file": folder / "dev.conll",
                          "test_has_tags": False},
        "characters": {
            **once, "tag_scheme": "iob2", "init_checkpoint": folder / "letters" / "encoder", "comment_prefix": "## ",
            "metric": "klue", "train_file": folder / "klue.tsv", "dev_file": folder / "klue-dev.tsv",
            "do_predict": True, "test_file": folder / "klue-dev.tsv", "num_train_epochs": 4, "character_tokens": True,
        },
        "plain": {**plain, "document_context": True},
        "pieces": {
            **once, "tag_scheme": "iob2", "init_checkpoint": folder / "letters" / "encoder", "comment_prefix": "## ",
            "metric": "klue", "train_file": folder / "klue.tsv", "dev_file": folder / "klue-dev.tsv",
            "do_predict": True, "test_file": folder / "klue-dev.tsv", "num_train_epochs": 4,
        },
        "unknown tag": {**once, **best, "tag_scheme": "iob2", "do_train": False, "dev_file": folder / "unknown.conll"},
        "repaired": {**once, **best, "tag_scheme": "iob2", "do_train": False, "dev_file": folder / "broken.conll",
                     "repair_tags": True},
    }  # fmt: skip
    refused = {
        "wrong scheme": ({**training, "tag_scheme": "iob2"}, "--train_file: *train.conll*fits --tag_scheme=iob1."),
        "entities by a plain model": ({**predict, "init_checkpoint": out / "plain"},
                                      "--tag_scheme=bioes contradicts *trained on tags of the kind plain"),
        "damaged settings": ({**predict, "init_checkpoint": folder / "damaged"},
                             "--init_checkpoint: *token_classification.json is not a JSON object but list"),
    }  # fmt: skip
    return done, refused


@pytest.fixture(scope="module")
def ran(folder):
    """Output folder, outcomes by case, what each wrote to stderr, the messages expected."""
    keras.utils.set_random_seed(0)
    damaged = BertForTokenClassification(BertConfig.from_dict(ONE_LAYER), 5)
    damaged.build()
    damaged.save_pretrained(str(folder / "damaged"), vocab_file=str(folder / "vocab.txt"), do_lower_case=True)
    (folder / "damaged" / "token_classification.json").write_text("[1]")
    return folder / "out", *run_and_refuse("run_ner", folder / "out", *cases_of(folder))


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_learns(ran):
    out, *_ = ran
    results = results_of(out / "trained")
    names = {"eval_precision", "eval_recall", "eval_f1", "eval_accuracy", "eval_loss", "global_step"}
    assert set(results) == names
    assert results["eval_f1"] >= 0.95 and results["eval_loss"] < 0.1 and results["global_step"] == 8 * 96 // 8
    evaluations = lines_of(out / "trained" / "evaluations.jsonl")
    assert [values["step"] for values in evaluations] == [32, 64, 96]
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


def test_predictions_keep_the_file(ran, folder):
    """Every line of the file is there, in order, with one more column in the file's own scheme."""
    out, *_ = ran
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


def test_other_batches_give_the_same_tags(ran):
    out, _, logs, _ = ran
    assert "2 replicas" in logs["other batches"]
    expected, found = (lines_of(out / name / "predictions.jsonl") for name in ("predicted", "other batches"))
    assert [record["tags"] for record in found] == [record["tags"] for record in expected]


def test_words_without_tags(ran, folder):
    out, *_ = ran
    lines = (out / "words" / "predictions.conll").read_text().splitlines()
    gold = [tag for words, entities in sentences_of(12, 3) for tag in ner_tags.tags_of(entities, len(words), "iob2")]
    found = [line.split(" ")[-1] for line in lines if line and not line.startswith("-DOC")]
    assert len(found) == len(gold) and np.mean([one == other for one, other in zip(found, gold, strict=True)]) > 0.95
    assert not (out / "words" / "test_results.txt").exists()
    assert not (out / "no tag column" / "test_results.txt").exists()
    tags = [record["tags"] for record in lines_of(out / "no tag column" / "predictions.jsonl")]
    assert tags == [record["tags"] for record in lines_of(out / "trained" / "predictions.jsonl")]


@pytest.mark.parametrize(("name", "split"), [("characters", "characters_and_spaces"), ("pieces", "pieces")])
def test_characters_are_learned_and_used(ran, name, split):
    """What was trained on a character a line, as tokens or as pieces of the text, tags the characters of strings."""
    out, _, logs, _ = ran
    assert "--train_file has a character a line" in logs[name]
    assert "of the texts are [UNK]" not in logs[name]  # a space has no piece, and needs none
    best = out / name / "best_model"
    assert json.loads((best / "token_classification.json").read_text())["split"] == split
    assert json.loads((best / "head_config.json").read_text())["labels"] == ["O", "B-PS", "I-PS"]
    results = results_of(out / name)
    assert results["eval_f1"] > 0.9 and results["eval_accuracy"] > 0.9
    assert results["eval_entity_macro_f1"] == pytest.approx(results["eval_f1"], abs=0.02)  # there is one type
    assert 0.9 < results["eval_character_macro_f1"] <= 1
    record = lines_of(out / name / "predictions.jsonl")[0]
    assert {len(entity["text"]) for entity in record["entities"]} == {2}
    file = ner_data.read_conll(str(out / name / "predictions.conll"), ner_data.Layout(comment_prefix="## "))
    assert {line.split("\t")[-1] for line in file.lines if "PS_B" in line} == {"PS_B"}
    text = "".join(record["words"])
    found = Tagger(str(best))(text)
    assert (found["words"], found["tags"]) == (list(text), spelled_tags(record["tags"]))
    assert found["starts"] == list(range(len(text)))
    places = [[(e["start"], e["end"], e["text"]) for e in one["entities"]] for one in (found, record)]
    assert places[0] == places[1]


def spelled_tags(written):
    return ["O" if tag == "-" else "-".join(reversed(tag.split("_"))) for tag in written]


def test_plain_tags_of_joined_sentences(ran):
    out, *_ = ran
    results = dict(line.split(" = ") for line in (out / "plain" / "test_results.txt").read_text().splitlines())
    assert set(results) == {"test_accuracy", "test_loss", "global_step"}
    records = lines_of(out / "plain" / "predictions.jsonl")
    assert "entities" not in records[0] and [len(record["tags"]) for record in records] == [1, *[7] * 11, 2]
    assert json.loads((out / "plain" / "token_classification.json").read_text())["document_context"]
    assert 0 < int(results["global_step"]) < 13 // 2  # rows hold several of the 13 sentences


def test_tags_that_are_unknown_or_repaired(ran):
    out, _, logs, _ = ran
    assert "--dev_file has tags that the model does not know and can't predict: B-GOD (" in logs["unknown tag"]
    assert results_of(out / "unknown tag")["eval_recall"] == 0.5
    assert "the tags of 1 sentences break the scheme iob2" in logs["repaired"]
    assert results_of(out / "repaired")["eval_f1"] == 1.0


def test_refused(ran):
    out, outcomes, _, messages = ran
    assert_refused(out, outcomes, messages)
