"""Comparisons of families, students, long texts and readers on a frozen BERT; what the paper's recipe costs."""

import json
import random
import types

import numpy as np
import pytest
from absl import flags
from helpers.descendants import save_model
from helpers.paths import GOLDEN
from helpers.script_cases import weights_of
from helpers.slow import slow

from bert_tf import BertForSequenceClassification, BertModel
from bert_tf.families.families import config_of_size
from experiments import distilled, domain_texts, families, feature_based, long_texts, recipe_time


@pytest.fixture
def values(tmp_path):
    """Flags of all experiments; files are in `tmp_path`."""
    folder = str(tmp_path)
    return types.SimpleNamespace(
        train_text="train.txt", heldout_text="heldout.txt", glue_dir=folder, sst2_dir=folder, novels_dir=folder,
        output_dir=folder, init_checkpoint="minilm", vocab_size=500, max_seq_length=32, train_batch_size=8, passes=0.5,
        learning_rate=1e-3, fine_tuning_learning_rate=1e-3, words=5, num_train=6, num_dev=1, num_train_epochs=2.0,
        whole_length=512, window_stride=24, poolings=["mean", "max", "attention"],
        fine_tuning_flag=["--dtype=bfloat16"], pretraining_flag=["--dtype=bfloat16"],
    )  # fmt: skip


def check_flags(runs) -> None:
    known = json.loads((GOLDEN / "flags.json").read_text())
    assert all(run.flags.keys() <= known[run.script.removesuffix(".py")].keys() for run in runs)


def without(run, *names) -> dict:
    return {name: value for name, value in run.flags.items() if name not in names}


def test_families_share_vocabularies_and_start_from_what_was_trained(values):
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


def test_both_students_train_alike(values):
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


def test_examples_of_the_dev_set(values, tmp_path):
    for task, content in (
        ("MRPC", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tA text.\tIts pair.\n"),
        ("SST-2", "sentence\tlabel\nA text.\t1\n"),
    ):
        (tmp_path / task).mkdir()
        (tmp_path / task / "dev.tsv").write_text(content)
    assert distilled.dev_set(values, "MRPC") == [("A text.", "Its pair.")]
    assert distilled.dev_set(values, "SST-2") == ["A text."]


def test_long_texts_are_passages_of_one_document_with_a_review(values, tmp_path):
    novel = "One two three.\nFour five.\n\nSix seven eight nine.\nTen.\nEleven twelve.\nThirteen.\n"
    (tmp_path / "train-00.txt").write_text(novel * 20)
    (tmp_path / "heldout.txt").write_text(novel)
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "".join(f"a b c d e f{k} \t{k % 2}\n" for k in range(9)))
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nfine \t1\n")
    found = list(long_texts.passages([f"{values.novels_dir}/heldout.txt"], 5))
    assert found == [["One two three.", "Four five."], ["Six seven eight nine.", "Ten."]]
    written = []
    for _ in range(2):
        long_texts.write_task(values)
        written.append([(tmp_path / name).read_bytes() for name in ("train.csv", "dev.csv")])
    assert written[0] == written[1]
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
    assert [run.name for run in runs.values()] == ["cut-32", "mean-32", "max-32", "attention-32", "cut-512"]
    own = ("max_seq_length", "long_texts", "window_stride", "window_pooling", "max_windows", "output_dir")
    shared = [without(run, *own) for run in runs.values()]
    assert all(flags == shared[0] for flags in shared)
    assert "--window_pooling=max" in runs["windows of 32 tokens, max"].command()
    check_flags(runs.values())


def test_half_of_the_rows_follow():
    lines = [f"{number} " * 15 for number in range(300)]
    pairs = domain_texts.pairs_of_lines(lines, 200, random.Random(1), "novel.txt")
    assert pairs == domain_texts.pairs_of_lines(lines, 200, random.Random(1), "novel.txt")
    assert all(lines.index(other) == lines.index(text) + 1 for text, other, label in pairs if label == "follows")
    assert 70 < sum(label == "follows" for *_, label in pairs) < 130


def test_texts_of_the_domain(values, tmp_path):
    articles = [{"paragraphs": [{"context": f"{name}{k}", "qas": []} for k in range(2)]} for name in "ab"]
    (tmp_path / "squad.json").write_text(json.dumps({"data": articles}))
    for name in ("train-06.txt", "train-07.txt", "heldout.txt"):
        (tmp_path / name).write_text("".join(f"{name}, {number}, " * 8 + "\n" for number in range(100)))
    values.squad_train_file = values.squad_dev_file = str(tmp_path / "squad.json")
    values.output_dir, values.num_train, values.num_dev = str(tmp_path / "out"), 20, 10
    domain_texts.write_texts(values)
    texts = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
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


# Readers on a frozen BERT.
TRAIN = "".join(f"w{k % 9} O\n{name} B-PER\n\n" for k in range(24) for name in ("good", "bad"))
TEXTS = "text,label\n" + "".join(
    f"w{k % 9} {word},{label}\n" for k in range(24) for word, label in (("good", "up"), ("bad", "down"))
)


@pytest.mark.parametrize(
    ("features", "reader", "of_texts"), slow(("sum_last_four", "bilstm", False), ("none", "cnn", True))
)
def test_a_reader_learns_and_bert_does_not(tmp_path, monkeypatch, capsys, features, reader, of_texts):
    path = save_model(tmp_path / "bert", "bert", BertModel)
    (tmp_path / "train").write_text(TEXTS if of_texts else TRAIN)
    values = types.SimpleNamespace(
        init_checkpoint=path, train_file=str(tmp_path / "train"), dev_file=str(tmp_path / "train"),
        text_column="text" if of_texts else None, label_column="label", features=features, reader=reader, width=12,
        learning_rate=3e-2, epochs=8, batch_size=8, max_seq_length=12, seed=1,
    )  # fmt: skip
    models, made = [], feature_based.Reader
    monkeypatch.setattr(feature_based, "Reader", lambda *given: models.append(made(*given)) or models[0])
    monkeypatch.setattr(flags, "FLAGS", values)
    feature_based.main(None)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(lines) == 8 and float(lines[-1].split()[-1]) > 0.95  # accuracy
    for variable, before in zip(models[0].bert.weights, BertModel.from_pretrained(path).weights, strict=True):
        np.testing.assert_array_equal(variable, before, err_msg=variable.path)


def test_padding_has_no_influence_and_only_first_pieces_have_labels(tmp_path):
    path = save_model(tmp_path / "bert", "bert", BertModel)
    sentences = [(["w1", "good", "w2"], ["O", "B-PER", "O"]), (["bad"], ["O"])]
    tokenizer = feature_based.read_tokenizer(path)
    for reader in ("bilstm", "cnn"):
        model = feature_based.Reader(BertModel.from_pretrained(path), "last", reader, 12, 2, True)
        short, long = (feature_based.encode(sentences, tokenizer, ["B-PER", "O"], length) for length in (8, 16))
        np.testing.assert_allclose(model(short[0]), model(long[0]), atol=1e-5)
        assert short[1].tolist()[0][:6] == [-1, 1, -1, 0, 1, -1] and (short[1] >= 0).sum() == 4  # w1 has two pieces
