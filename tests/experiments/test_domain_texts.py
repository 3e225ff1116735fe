"""The texts of the domain's example: what a row is made of."""

import json
import random
import types

import pytest

from experiments import domain_texts


def test_half_of_the_rows_follow():
    lines = [f"{number} " * 15 for number in range(300)]
    pairs = domain_texts.pairs_of_lines(lines, 200, random.Random(1), "novel.txt")
    assert pairs == domain_texts.pairs_of_lines(lines, 200, random.Random(1), "novel.txt")
    for text, other, label in pairs:
        if label == "follows":
            assert lines.index(other) == lines.index(text) + 1
    assert 70 < sum(label == "follows" for *_, label in pairs) < 130


@pytest.fixture
def values(tmp_path):
    articles = [{"paragraphs": [{"context": f"{name}{k}", "qas": []} for k in range(2)]} for name in "ab"]
    (tmp_path / "squad.json").write_text(json.dumps({"data": articles}))
    for name in ("train-06.txt", "train-07.txt", "heldout.txt"):
        (tmp_path / name).write_text("".join(f"{name}, {number}, " * 8 + "\n" for number in range(100)))
    squad = str(tmp_path / "squad.json")
    return types.SimpleNamespace(
        squad_train_file=squad, squad_dev_file=squad, novels_dir=str(tmp_path), output_dir=str(tmp_path / "out"),
        num_train=20, num_dev=10,
    )  # fmt: skip


def test_files(values, tmp_path):
    domain_texts.write_texts(values)
    out = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert set(out) == {"wiki.txt", "wiki_other.txt", "train.csv", "dev.csv"}
    assert out["wiki.txt"] == out["wiki_other.txt"] == "a0\na1\n\nb0\nb1\n\n"
    assert out["train.csv"].startswith("text,other,label\n") and out["train.csv"].count("\n") == 21
    assert "heldout" not in out["train.csv"] and "train-0" not in out["dev.csv"]


def test_nothing_is_half_written(values, tmp_path):
    (tmp_path / "heldout.txt").write_text("too short\n" * 50)
    with pytest.raises(ValueError, match="heldout.txt: no two consecutive lines"):
        domain_texts.write_texts(values)
    (tmp_path / "squad.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match=r'squad.json: the file has no list "data"'):
        domain_texts.write_texts(values)
    assert not (tmp_path / "out").exists()
