"""The comparison of windows with cutting: the texts, the runs it makes, and its table."""

import types

import pytest

from experiments import long_texts

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
        fine_tuning_flag=["--dtype=bfloat16"], poolings=["mean", "max", "attention"],
    )  # fmt: skip


def test_passages_are_of_one_document(values):
    found = list(long_texts.passages([f"{values.novels_dir}/heldout.txt"], 5))
    assert found == [["One two three.", "Four five."], ["Six seven eight nine.", "Ten."]]


def test_texts(values, tmp_path):
    long_texts.write_task(values)
    first = [(tmp_path / name).read_bytes() for name in ("train.csv", "dev.csv")]
    long_texts.write_task(values)
    assert first == [(tmp_path / name).read_bytes() for name in ("train.csv", "dev.csv")]
    lines = (tmp_path / "train.csv").read_text().splitlines()
    assert lines[0] == "text,label,place" and len(lines) == 7
    places = set()
    for line in lines[1:]:
        text, label, place = line.rsplit(",", 2)
        words = text.split()
        assert (
            words[int(place) : int(place) + 5] == list("abcde")
            and words[int(place) + 5] == f"f{words[int(place) + 5][1:]}"
        )
        assert int(words[int(place) + 5][1:]) % 2 == int(label)
        places.add(int(place))
    assert len(places) > 1
    assert "fine" in (tmp_path / "dev.csv").read_text()


def test_runs_differ_only_in_how_long_texts_are_read(values):
    runs = long_texts.runs_of(values)
    assert [run.name for run in runs.values()] == ["cut-128", "mean-128", "max-128", "attention-128", "cut-512"]
    own = ("max_seq_length", "long_texts", "window_stride", "window_pooling", "max_windows", "output_dir")
    shared = [{name: value for name, value in run.flags.items() if name not in own} for run in runs.values()]
    assert all(flags == shared[0] for flags in shared)
    assert "--window_pooling=max" in runs["windows of 128 tokens, max"].command()
    assert runs["one row of up to 512 tokens"].command()[-1] == "--dtype=bfloat16"


def test_table():
    rows = {"cut": {"results": {"eval_accuracy": 0.625}, "seconds": 61.2}}
    assert "| cut | 62.5 | 61 |" in long_texts.create_table(rows)
