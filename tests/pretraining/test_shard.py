"""Many shards, many processes, what is left of a run that was killed; packed rows; private scratch directories."""

import itertools
import os
import pathlib
import random
import stat

import numpy as np
import pytest
from helpers.record_files import LETTERS, contents, read_records
from helpers.slow import slow

from bert_tf.pretraining import create, row_kinds, shard
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.system import storage

WORDS = "abc de bb cad ddd dead bead eee a b c d e . ,".split()  # noqa: SIM905


def write_text(path, seed) -> None:
    generator = random.Random(seed)
    lines = [[" ".join(generator.choices(WORDS, k=generator.randint(3, 20))) for _ in range(12)] for _ in range(16)]
    path.write_text("\n".join("\n".join([*document, ""]) for document in lines) + "\n")


@pytest.fixture
def make(tmp_path):
    """Makes records in a folder, of three texts in `text`, with the vocabulary vocab.txt."""
    (tmp_path / "text").mkdir()
    for number in range(3):
        write_text(tmp_path / "text" / f"{number}.txt", number)
    (tmp_path / "vocab.txt").write_text("\n".join(LETTERS) + "\n")

    def make(folder, name="out.tfrecord", **flags):
        arguments = {"max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 2, "num_workers": 1}
        arguments |= {"do_lower_case": True, "show_progress": False} | flags
        folder.mkdir(exist_ok=True)
        return create_pretraining_data(
            f"{tmp_path}/text/*.txt", f"{folder}/{name}", f"{tmp_path}/vocab.txt", **arguments
        )

    return make


def test_a_finished_run_is_mended(make, tmp_path, monkeypatch):
    """One shard is made again, or only the summary; the run's output is the same as always."""
    flags, folder = {"num_shards": 2}, tmp_path / "out"
    with monkeypatch.context() as patch:  # killed between its last shard and the end
        patch.setattr(create, "_merged_summary", lambda *_: os.kill)
        with pytest.raises(TypeError):
            make(folder, **flags)
    assert len(contents(folder)) == 6
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*.tfrecord*")}
    expected = make(folder, **flags)
    whole = contents(folder)
    assert len(whole) == 5 and times == {path: path.stat().st_mtime_ns for path in times}
    shard = folder / "out.tfrecord-00001-of-00002"
    shard.write_bytes(shard.read_bytes()[:-5])
    (folder / ".out.tfrecord-00001-of-00002.0123456789ab.tmp").write_bytes(b"half")
    assert make(folder, **flags) == expected and contents(folder) == whole
    (folder / "pretraining_data.out.json").unlink()
    assert make(folder, **flags) == expected and contents(folder) == whole


def test_each_shard_has_a_seed_of_its_own(make, tmp_path):
    """Three shards of the same text differ, and --random_seed changes all of them."""
    text = (tmp_path / "text" / "0.txt").read_text()
    for number in (1, 2):
        (tmp_path / "text" / f"{number}.txt").write_text(text)
    files = {}
    for seed in (1, 2):
        make(tmp_path / f"seed{seed}", num_shards=3, random_seed=seed)
        files[seed] = [read_records(tmp_path / f"seed{seed}/out.tfrecord-{k:05d}-of-00003") for k in range(3)]
    lists = files[1] + files[2]
    assert all(one != other for one, other in itertools.combinations(lists, 2))


def test_a_shard_without_a_document_is_an_empty_file(make, tmp_path, caplog):
    for number in (1, 2):
        (tmp_path / "text" / f"{number}.txt").write_text("\n" * 5000)
    with caplog.at_level("WARNING", logger="absl"):
        summary = make(tmp_path / "out", num_shards=4)
    counts = list(summary["output_files"].values())
    assert counts[0] > 0 and 0 in counts
    assert [len(read_records(path)) for path in summary["output_files"]] == counts


def test_what_was_made_with_other_flags_or_text_is_made_again(make, tmp_path):
    folder = tmp_path / "out"
    made = [(make(folder)["fingerprint"], (folder / "out.tfrecord").read_bytes())]
    (folder / "out.tfrecord").write_bytes(made[0][1][:-100])
    for change in ("output", "seed", "text", "vocab"):
        if change == "text":
            write_text(tmp_path / "text" / "1.txt", seed=7)
        elif change == "vocab":
            (tmp_path / "vocab.txt").write_text("\n".join([*LETTERS, "dead"]) + "\n")
        flags = {} if change == "output" else {"random_seed": 5}
        made.append((make(folder, **flags)["fingerprint"], (folder / "out.tfrecord").read_bytes()))
    assert made[0] == made[1]
    assert len({fingerprint for fingerprint, _ in made}) == len({content for _, content in made}) == 4


def test_shards_of_another_number_are_in_the_way(make, tmp_path):
    """run_pretraining.py would read both for out.tfrecord-*."""
    make(tmp_path / "out", num_shards=2)
    before = contents(tmp_path / "out")
    with pytest.raises(ValueError, match="--num_shards=3: delete the 2 files of another number.*-00000-of-00002"):
        make(tmp_path / "out", num_shards=3)
    assert contents(tmp_path / "out") == before


def test_replaced_work_is_warned_of(make, tmp_path, caplog):
    make(tmp_path / "out")
    with caplog.at_level("WARNING", logger="absl"):
        make(tmp_path / "out")
        assert caplog.text == ""
        make(tmp_path / "out", dupe_factor=1, random_seed=7)
        assert "1 finished files of an earlier run with other flags or another text are replaced" in caplog.text
        assert "(--random_seed was 12345, --dupe_factor was 2)" in caplog.text


@pytest.mark.parametrize(("runner", "options"), [
    ("DirectRunner", []),
    *slow(("DirectRunner", ["--direct_running_mode=multi_processing", "--direct_num_workers=2"])),
    *slow(("DaskRunner", [])),
])  # fmt: skip
def test_beam_makes_the_same_shards(make, tmp_path, runner, options):
    pytest.importorskip("apache_beam", reason="needs the extra: pip install bert-tf[beam]")
    local = make(tmp_path / "local", num_shards=4)
    beam = make(tmp_path / "beam", num_shards=4, beam_runner=runner, beam_options=options)
    assert beam["instances"] == local["instances"]
    mine, theirs = contents(tmp_path / "beam"), contents(tmp_path / "local")
    assert set(mine) == set(theirs)
    assert all(mine[name] == theirs[name] for name in theirs if name.startswith("out"))


def test_packing_is_tight_and_complete():
    generator = np.random.default_rng(0)
    for count, room, most in ((0, 10, 8), (1, 10, 1), (500, 128, 8), (500, 128, 2), (300, 20, 100)):
        lengths = generator.integers(1, room + 1, count)
        members, row_ends = row_kinds.pack(lengths, room, most, random.Random(1))
        assert sorted(members.tolist()) == list(range(count))
        rows = np.split(members, row_ends[:-1]) if count else []
        assert all(0 < len(row) <= most and lengths[row].sum() <= room for row in rows)
        if most > 2 and count > 1:
            at_least = max(lengths.sum() / room, np.count_nonzero(2 * lengths > room))
            assert len(rows) <= 1.05 * at_least + 2
    lengths = np.array([5, 5, 5, 5])
    members, row_ends = row_kinds.pack(lengths, 10, 8, random.Random(0))
    assert row_ends.tolist() == [2, 4]
    shuffled = [row_kinds.pack(np.arange(1, 100), 100, 8, random.Random(seed))[0].tolist() for seed in (1, 2, 1)]
    assert shuffled[0] == shuffled[2] != shuffled[1]


@pytest.fixture
def create_in(make, tmp_path):
    (tmp_path / "scratch").mkdir()
    return lambda name="a": make(tmp_path / "out", f"{name}.tfrecord", scratch_dir=str(tmp_path / "scratch"))


def test_scratch_is_private_and_removed_also_after_a_kill(create_in, tmp_path, monkeypatch):
    """The next run of the same output removes what a killed one left, and follows no link."""
    seen, tokenize = [], shard._tokenize
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("precious")

    def look(job, *arguments):
        own = pathlib.Path(job.records.scratch_dir)
        seen.append((own, stat.S_IMODE(own.stat().st_mode), own.stat().st_uid))
        assert len(list((tmp_path / "scratch").iterdir())) == 1
        return tokenize(job, *arguments)

    monkeypatch.setattr(shard, "_tokenize", look)
    create_in()
    assert not list((tmp_path / "scratch").iterdir())
    own, *others = seen[0]
    assert own.parent == tmp_path / "scratch" and others == [0o700, os.getuid()]
    for left in ("folder", "link"):
        if left == "folder":
            (own / "0").mkdir(parents=True)
            (own / "0" / "link").symlink_to(tmp_path / "victim")
        else:
            own.symlink_to(tmp_path / "victim")
        (tmp_path / "out" / "pretraining_data.a.json").unlink()
        create_in()
        assert seen[-1][0] == own and not list((tmp_path / "scratch").iterdir())
    assert (tmp_path / "victim" / "file").read_text() == "precious"
    create_in("b")
    assert seen[-1][0] != own


def test_two_runs_of_one_job_do_not_disturb_each_other(create_in, tmp_path, monkeypatch):
    tokenize, refused = shard._tokenize, []

    def second(job, *arguments):
        monkeypatch.setattr(shard, "_tokenize", tokenize)
        before = sorted(os.listdir(tmp_path / "scratch"))
        with pytest.raises(storage.LockedError, match=r"^--output_file=\S+ is in use by another run") as error:
            create_in()
        refused.append(error)
        assert sorted(os.listdir(tmp_path / "scratch")) == before and os.path.isdir(job.records.scratch_dir)
        return tokenize(job, *arguments)

    monkeypatch.setattr(shard, "_tokenize", second)
    made = create_in()
    assert refused and made["instances"]
    assert set(contents(tmp_path / "out")) == {"a.tfrecord", "pretraining_data.a.index.npz", "pretraining_data.a.json"}
