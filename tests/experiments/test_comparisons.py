"""The comparisons of families, students and long texts: the texts and runs that they make; the recipe's operations."""

import json
import random
import types

import numpy as np
import pytest
from helpers.descendants import save_model
from helpers.paths import GOLDEN
from helpers.script_cases import weights_of

from bert_tf import BertForSequenceClassification
from bert_tf.families import config_of_size
from experiments import distilled, domain_texts, families, long_texts, recipe_time

USUAL = {"learning_rate": 1e-3, "fine_tuning_flag": ["--dtype=bfloat16"], "pretraining_flag": ["--dtype=bfloat16"]}


def check_flags(runs) -> None:
    known = json.loads((GOLDEN / "flags.json").read_text())
    assert all(run.flags.keys() <= known[run.script.removesuffix(".py")].keys() for run in runs)


def without(run, *names) -> dict:
    return {name: value for name, value in run.flags.items() if name not in names}


def test_families_share_vocabularies_and_start_from_what_was_trained(tmp_path):
    values = types.SimpleNamespace(
        train_text="train.txt", heldout_text="heldout.txt", glue_dir="glue", output_dir=str(tmp_path), vocab_size=500,
        max_seq_length=32, train_batch_size=8, fine_tuning_learning_rate=1e-3, **USUAL,
    )  # fmt: skip
    runs = families.data_runs(values, list(families.FAMILIES))
    names = [run.name for run in runs]
    assert names[:3] == ["vocabulary-wordpiece", "vocabulary-sentencepiece", "vocabulary-byte_bpe"]
    assert len(names) == 3 + 2 * len(families.FAMILIES) == len(set(names))
    trained = families.pretraining_run(values, "electra", 2, 500)
    assert trained.flags["num_train_steps"] == 500 and trained.flags["objective"] == "electra"
    assert "--dtype=bfloat16" in trained.command()
    tuned = list(families.fine_tuning_runs(values, "electra", 2))
    assert {run.flags["init_checkpoint"] for run in tuned} == {f"{trained.flags['output_dir']}/discriminator"}
    (scratch, *_) = families.fine_tuning_runs(values, "bert", 2, from_scratch=True)
    assert "init_checkpoint" not in scratch.flags and scratch.name == "SST-2-bert-from_scratch-seed_2"
    check_flags([*runs, trained, *tuned, scratch])


def test_table_of_families():
    row = {"steps": 1200, "masked_lm_loss": {"mean": 4.25, "standard_error": 0.125}}
    tasks = {task: {"mean": 0.5, "standard_error": 0.01} for task in families.TASKS}
    content = {"minutes": 10, "num_seeds": 3, "rows": {"BERT": {**row, **tasks}, "none": {"steps": 0, **tasks}}}
    lines = families.create_table(content).splitlines()
    assert lines[2] == "| BERT | 1,200 | 4.250 ± 0.125 | 50.0 ± 1.0 | 50.0 ± 1.0 | 50.0 ± 1.0 |"
    assert lines[3].startswith("| none |  |  | 50.0")


def test_both_students_train_alike(tmp_path):
    values = types.SimpleNamespace(glue_dir="glue", output_dir=str(tmp_path), passes=0.5, **USUAL)
    taught = distilled.fine_tuning_run(values, "MRPC", "taught", {"teacher": "t", "student_layers": "0,1"}, 3)
    alone = distilled.fine_tuning_run(values, "MRPC", "alone", {"init_checkpoint": "t-layers"}, 3)
    one, other = (without(run, "teacher", "student_layers", "init_checkpoint", "output_dir") for run in (taught, alone))
    assert one == other and one["num_train_epochs"] == 1.5 and one["num_seeds"] == 3
    assert taught.command()[-1] == "--dtype=bfloat16" and taught.flags["output_dir"] != alone.flags["output_dir"]
    check_flags([taught, alone])


def test_the_layers_are_the_teachers(tmp_path):
    teacher = save_model(tmp_path / "teacher", "bert", BertForSequenceClassification, num_labels=2)
    distilled.write_layers(teacher, [1], str(tmp_path / "layers"))
    there, chosen = weights_of(tmp_path / "teacher"), weights_of(tmp_path / "layers")
    assert not any(name.startswith(("classifier", "output_")) or "layer_1" in name for name in chosen)
    for name, value in chosen.items():
        np.testing.assert_array_equal(value, there[name.replace("layer_0", "layer_1")], err_msg=name)
    assert distilled.sentences_per_second(teacher, ["A text.", "Another one."]) > 0


def test_examples_of_the_dev_set(tmp_path):
    for task, content in (
        ("MRPC", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tA text.\tIts pair.\n"),
        ("SST-2", "sentence\tlabel\nA text.\t1\n"),
    ):
        (tmp_path / task).mkdir()
        (tmp_path / task / "dev.tsv").write_text(content)
    values = types.SimpleNamespace(glue_dir=str(tmp_path))
    assert distilled.dev_set(values, "MRPC") == [("A text.", "Its pair.")]
    assert distilled.dev_set(values, "SST-2") == ["A text."]


NOVEL = "One two three.\nFour five.\n\nSix seven eight nine.\nTen.\nEleven twelve.\nThirteen.\n"


@pytest.fixture
def values(tmp_path):
    (tmp_path / "train-00.txt").write_text(NOVEL * 20)
    (tmp_path / "heldout.txt").write_text(NOVEL)
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "".join(f"a b c d e f{k} \t{k % 2}\n" for k in range(9)))
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nfine \t1\n")
    return types.SimpleNamespace(
        sst2_dir=str(tmp_path), novels_dir=str(tmp_path), output_dir=str(tmp_path), words=5, num_train=6, num_dev=1,
        init_checkpoint="minilm", max_seq_length=128, whole_length=512, window_stride=112, num_train_epochs=2.0,
        poolings=["mean", "max", "attention"], **USUAL,
    )  # fmt: skip


def test_long_texts_are_passages_of_one_document_with_a_review(values, tmp_path):
    found = list(long_texts.passages([f"{values.novels_dir}/heldout.txt"], 5))
    assert found == [["One two three.", "Four five."], ["Six seven eight nine.", "Ten."]]
    long_texts.write_task(values)
    first = [(tmp_path / name).read_bytes() for name in ("train.csv", "dev.csv")]
    long_texts.write_task(values)
    assert first == [(tmp_path / name).read_bytes() for name in ("train.csv", "dev.csv")]
    lines = (tmp_path / "train.csv").read_text().splitlines()
    assert lines[0] == "text,label,place" and len(lines) == 7
    places = set()
    for line in lines[1:]:
        text, label, place = line.rsplit(",", 2)
        *review, last = text.split()[int(place) : int(place) + 6]
        assert review == list("abcde") and int(last[1:]) % 2 == int(label)
        places.add(int(place))
    assert len(places) > 1 and "fine" in (tmp_path / "dev.csv").read_text()


def test_runs_differ_only_in_how_long_texts_are_read(values):
    runs = long_texts.runs_of(values)
    assert [run.name for run in runs.values()] == ["cut-128", "mean-128", "max-128", "attention-128", "cut-512"]
    own = ("max_seq_length", "long_texts", "window_stride", "window_pooling", "max_windows", "output_dir")
    shared = [without(run, *own) for run in runs.values()]
    assert all(flags == shared[0] for flags in shared)
    assert "--window_pooling=max" in runs["windows of 128 tokens, max"].command()
    check_flags(runs.values())


def test_half_of_the_rows_follow():
    lines = [f"{number} " * 15 for number in range(300)]
    pairs = domain_texts.pairs_of_lines(lines, 200, random.Random(1), "novel.txt")
    assert pairs == domain_texts.pairs_of_lines(lines, 200, random.Random(1), "novel.txt")
    assert all(lines.index(other) == lines.index(text) + 1 for text, other, label in pairs if label == "follows")
    assert 70 < sum(label == "follows" for *_, label in pairs) < 130


def test_texts_of_the_domain(tmp_path):
    articles = [{"paragraphs": [{"context": f"{name}{k}", "qas": []} for k in range(2)]} for name in "ab"]
    squad, out = tmp_path / "squad.json", tmp_path / "out"
    squad.write_text(json.dumps({"data": articles}))
    for name in ("train-06.txt", "train-07.txt", "heldout.txt"):
        (tmp_path / name).write_text("".join(f"{name}, {number}, " * 8 + "\n" for number in range(100)))
    values = types.SimpleNamespace(
        squad_train_file=str(squad), squad_dev_file=str(squad), novels_dir=str(tmp_path), output_dir=str(out),
        num_train=20, num_dev=10,
    )  # fmt: skip
    domain_texts.write_texts(values)
    texts = {path.name: path.read_text() for path in out.iterdir()}
    assert set(texts) == {"wiki.txt", "wiki_other.txt", "train.csv", "dev.csv"}
    assert texts["wiki.txt"] == texts["wiki_other.txt"] == "a0\na1\n\nb0\nb1\n\n"
    assert texts["train.csv"].startswith("text,other,label\n") and texts["train.csv"].count("\n") == 21
    assert "heldout" not in texts["train.csv"] and "train-0" not in texts["dev.csv"]


def test_operations_are_about_six_per_parameter_and_token():
    """The usual estimate; attention, which it leaves out, adds a tenth at 128 tokens and more at 512. Of the last layer
    only keys and values are needed for all tokens."""
    config = config_of_size("base")
    matrices = 11 * (4 * 768**2 + 2 * 768 * 3072) + 2 * 768**2
    short, long = recipe_time.phase_flops(config)
    assert 1.0 < short / (6 * matrices * 900_000 * 256 * 128) < 1.15
    assert 1.1 < long / (6 * matrices * 100_000 * 256 * 512) < 1.25
    assert recipe_time.hours(3600 * 400e12, 1000e12, 0.4) == pytest.approx(1.0)
    first, total = (recipe_time.create_table(["base"], rate).splitlines()[2].split(" | ") for rate in (0.25, 0.5))
    assert first[:4] == total[:4]  # operations do not depend on the utilisation; hours do
    assert float(first[4]) == pytest.approx(2 * float(total[4]), rel=0.02)
