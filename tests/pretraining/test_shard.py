"""Many shards, many processes, deaths and full disks; unmasked, packed and compressed records."""

import itertools
import json
import os
import pathlib
import random
import signal
import sys

import numpy as np
import pytest
from helpers import events, warm
from helpers.events import wait_until
from helpers.paths import ROOT
from helpers.pretraining_records_read import LETTERS, UNMASKED_FEATURES, contents, read_records

from bert_tf.pretraining import beam_pipeline, create, row_kinds
from bert_tf.pretraining import shard as pretraining_shard
from bert_tf.pretraining.corpus_formats import TextSettings
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.text.wordpiece import FullTokenizer

WORDS = "abc de bb cad ddd dead bead eee a b c d e . ,".split()  # noqa: SIM905


def write_corpus(path, documents=16, seed=0, sentences=12) -> None:
    generator = random.Random(seed)
    lines = []
    for _ in range(documents):
        lines += [" ".join(generator.choices(WORDS, k=generator.randint(3, 20))) for _ in range(sentences)]
        lines.append("")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def corpus(tmp_path):
    """(glob of three files, vocabulary)."""
    (tmp_path / "text").mkdir()
    for number in range(3):
        write_corpus(tmp_path / "text" / f"{number}.txt", seed=number)
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(LETTERS) + "\n")
    return f"{tmp_path}/text/*.txt", str(vocab)


def make(corpus, folder, **flags):
    folder.mkdir(exist_ok=True)
    arguments = {"max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 2, "show_progress": False} | flags
    return create_pretraining_data(corpus[0], f"{folder}/out.tfrecord", corpus[1], **arguments)


# ---- shards ----------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_mended(corpus, tmp_path, monkeypatch):
    """One shard is made again, or only the summary; the run's output is the same as always."""
    flags, folder = {"num_shards": 2, "num_workers": 1}, tmp_path / "out"
    with monkeypatch.context() as patch:  # killed between its last shard and the end
        patch.setattr(create, "_merged_summary", lambda *_: os.kill)
        with pytest.raises(TypeError):
            make(corpus, folder, **flags)
    assert len(contents(folder)) == 6
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*.tfrecord*")}
    expected = make(corpus, folder, **flags)
    whole = contents(folder)
    assert len(whole) == 5 and times == {path: path.stat().st_mtime_ns for path in times}
    shard = folder / "out.tfrecord-00001-of-00002"
    shard.write_bytes(shard.read_bytes()[:-5])
    (folder / ".out.tfrecord-00001-of-00002.0123456789ab.tmp").write_bytes(b"half")
    assert make(corpus, folder, **flags) == expected and contents(folder) == whole
    (folder / "pretraining_data.out.json").unlink()
    assert make(corpus, folder, **flags) == expected and contents(folder) == whole


def test_each_shard_has_a_seed_of_its_own(corpus, tmp_path):
    """Three shards of the same text differ, and --random_seed changes all of them."""
    text = (tmp_path / "text" / "0.txt").read_text()
    for number in (1, 2):
        (tmp_path / "text" / f"{number}.txt").write_text(text)
    files = {}
    for seed in (1, 2):
        make(corpus, tmp_path / f"seed{seed}", num_shards=3, num_workers=1, random_seed=seed)
        files[seed] = [read_records(tmp_path / f"seed{seed}/out.tfrecord-{k:05d}-of-00003") for k in range(3)]
    lists = files[1] + files[2]
    assert all(one != other for one, other in itertools.combinations(lists, 2))
    again = make(corpus, tmp_path / "again", num_shards=3, num_workers=2, random_seed=1)
    assert [read_records(path) for path in again["output_files"]] == files[1]


def test_a_shard_without_a_document_is_an_empty_file(corpus, tmp_path, caplog):
    for number in (1, 2):
        (tmp_path / "text" / f"{number}.txt").write_text("\n" * 5000)
    with caplog.at_level("WARNING", logger="absl"):
        summary = make(corpus, tmp_path / "out", num_shards=4, num_workers=1)
    counts = list(summary["output_files"].values())
    assert counts[0] > 0
    assert 0 in counts
    assert [len(read_records(path)) for path in summary["output_files"]] == counts


# ---- going on --------------------------------------------------------------------------------------------------------


def test_what_was_made_with_other_flags_or_text_is_made_again(corpus, tmp_path):
    folder = tmp_path / "out"
    made = [(make(corpus, folder)["fingerprint"], (folder / "out.tfrecord").read_bytes())]
    (folder / "out.tfrecord").write_bytes(made[0][1][:-100])
    for change in ("output", "seed", "text", "vocab"):
        if change == "text":
            write_corpus(tmp_path / "text" / "1.txt", seed=7)
        elif change == "vocab":
            pathlib.Path(corpus[1]).write_text("\n".join([*LETTERS, "dead"]) + "\n")
        flags = {} if change == "output" else {"random_seed": 5}
        made.append((make(corpus, folder, **flags)["fingerprint"], (folder / "out.tfrecord").read_bytes()))
    assert made[0] == made[1]
    assert len({fingerprint for fingerprint, _ in made}) == len({content for _, content in made}) == 4


def test_shards_of_another_number_are_in_the_way(corpus, tmp_path):
    """run_pretraining.py would read both for out.tfrecord-*."""
    make(corpus, tmp_path / "out", num_shards=2, num_workers=1)
    before = contents(tmp_path / "out")
    with pytest.raises(
        ValueError, match="--num_shards=3: an earlier run left 2 files of another number.*-00000-of-00002"
    ):
        make(corpus, tmp_path / "out", num_shards=3, num_workers=1)
    assert contents(tmp_path / "out") == before


def test_replaced_work_and_long_lines_are_warned_of(corpus, tmp_path, caplog):
    make(corpus, tmp_path / "out")
    with caplog.at_level("WARNING", logger="absl"):
        make(corpus, tmp_path / "out")
        assert caplog.text == ""
        make(corpus, tmp_path / "out", dupe_factor=1, random_seed=7)
        assert "1 finished files of an earlier run with other flags or another text are replaced" in caplog.text
        assert "(--random_seed was 12345, --dupe_factor was 2)" in caplog.text
        for number in range(3):
            (tmp_path / "text" / f"{number}.txt").write_text(("a b c d e . " * 30 + "\n\n") * 20)
        make(corpus, tmp_path / "paragraphs")
    assert "a line has 180 tokens on average, and what goes beyond --max_seq_length=32 is cut off" in caplog.text


def run_script(corpus, folder, *flags, change="", **options):
    """Starts the script in a process that first executes `change`."""
    arguments = [
        f"--input_file={corpus[0]}", f"--output_file={folder}/out.tfrecord", f"--vocab_file={corpus[1]}",
        "--max_seq_length=32", "--max_predictions_per_seq=5", "--dupe_factor=2", *flags,
    ]  # fmt: skip
    return events.run_that(change, "create_pretraining_data", arguments, stderr=warm.PIPE, text=True, **options)


def test_errors_of_workers_are_the_users(corpus, tmp_path):
    (tmp_path / "text" / "1.txt").write_bytes(b"abc\n\nde\n\nab \xff c\n")
    with pytest.raises(ValueError, match="1.txt, line 5: not UTF-8 at byte offset 12"):
        make(corpus, tmp_path / "out", num_shards=3, num_workers=2)
    assert not [name for name in contents(tmp_path / "out") if name.endswith(".tmp")]


def test_full_scratch_directory(corpus, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pretraining_shard, "tokenize", full)
    with pytest.raises(OSError, match="No space left on device in the scratch directory; --scratch_dir .*room.*"):
        make(corpus, tmp_path / "out", scratch_dir=str(tmp_path / "scratch"))
    assert contents(tmp_path / "out") == {}
    assert list((tmp_path / "scratch").iterdir()) == []


# ---- memory ----------------------------------------------------------------------------------------------------------

MEMORY_PROGRAM = """
import resource, sys
import tensorflow as tf
from bert_tf.pretraining import create as p
text, vocab, warm_up, folder, megabytes = sys.argv[1:]
arguments = dict(max_seq_length=128, max_predictions_per_seq=20, dupe_factor=1, show_progress=False, num_workers=1)
p.create_pretraining_data(warm_up, folder + "/warm", vocab, **arguments)
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
limit = used * 1024 + int(megabytes) * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    bytearray((int(megabytes) + 64) * 2**20)  # a thread that ends meanwhile gives its stack back
except MemoryError:
    print("limited")
summary = p.create_pretraining_data(text, folder + "/out", vocab, **arguments)
print(summary["instances"], summary["documents"])
"""


@pytest.mark.slow  # in small: a line and a compressed file larger than memory, in test_corpus.py
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA bounds anonymous memory on Linux only")
def test_a_text_larger_than_memory(golden, tmp_path):
    """The process may take less additional memory, after a small run, than the size of the text, 110 MB."""
    source = (golden / "pretraining" / "corpus_0.txt").read_bytes() + b"\n"
    (tmp_path / "warm.txt").write_bytes(source)
    repeats = 110_000_000 // len(source)
    with open(tmp_path / "large.txt", "wb") as file:
        for _ in range(repeats):
            file.write(source)
    paths = [str(path) for path in (tmp_path / "large.txt", golden / "vocab.txt", tmp_path / "warm.txt", tmp_path)]
    result = warm.run([sys.executable, "-c", MEMORY_PROGRAM, *paths, "100"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    limited, counts = result.stdout.splitlines()[-2:]
    assert limited == "limited"
    instances, documents = map(int, counts.split())
    assert documents == repeats * sum(1 for part in source.decode().strip().split("\n\n") if part.strip())
    assert instances > documents


# ---- Apache Beam -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["--direct_running_mode=multi_processing", "--direct_num_workers=2"], marks=pytest.mark.slow),
    ],
)
def test_beam_makes_the_same_shards(corpus, tmp_path, options):
    pytest.importorskip("apache_beam", reason="needs the extra: pip install .bert-tf.beam")
    local = make(corpus, tmp_path / "local", num_shards=4, num_workers=1)
    flags = ["--num_shards=4", "--beam_runner=DirectRunner", *(f"--beam_option={option}" for option in options)]
    process = run_script(corpus, tmp_path / "beam", *flags)
    _, log = process.communicate()
    assert process.returncode == 0, log[-3000:]
    mine, theirs = contents(tmp_path / "beam"), contents(tmp_path / "local")
    assert set(mine) == set(theirs)
    assert all(mine[name] == theirs[name] for name in theirs if name.startswith("out"))
    assert json.loads(mine["pretraining_data.out.json"])["instances"] == local["instances"]


def test_beam_that_is_missing_is_named(corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ValueError, match="--beam_runner=FlinkRunner needs apache_beam: pip install .bert-tf.beam"):
        make(corpus, tmp_path / "out", num_shards=2, beam_runner="FlinkRunner")


@pytest.fixture
def dask_cluster(tmp_path):
    """A scheduler on loopback and two workers: the scheduler's file, and the workers."""
    pytest.importorskip("distributed", reason="needs the extra: pip install bert-tf[dask]")
    folder, processes = tmp_path / "dask", []
    folder.mkdir()
    file = folder / "scheduler.json"

    def start(name, *flags):
        path = folder / f"{name}.py"
        path.write_text(f"from distributed.cli.dask_{name} import main\nmain()\n")
        command = [sys.executable, str(path), "--host=127.0.0.1", f"--scheduler-file={file}", "--no-dashboard", *flags]
        processes.append(warm.Popen(command, stderr=warm.DEVNULL, cwd=str(folder)))

    start("scheduler", "--port=0")
    wait_until(file.exists, processes[0])
    for _ in range(2):
        start("worker", "--nthreads=1", "--no-nanny")
    try:
        yield file, processes[1:]
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.mark.slow  # small forms: test_dask_has_a_piece_of_work_for_each_shard, test_beam_makes_the_same_shards
def test_a_dask_cluster_that_loses_a_worker_makes_the_same_shards(corpus, tmp_path, dask_cluster):
    file, (first, _) = dask_cluster
    for number in range(3):
        write_corpus(tmp_path / "text" / f"{number}.txt", documents=3000, seed=number)
    make(corpus, tmp_path / "local", num_shards=12, num_workers=1)
    folder = tmp_path / "cluster"
    flags = ["--num_shards=12", "--beam_runner=DaskRunner", f"--beam_option=--dask_scheduler_file={file}"]
    process = run_script(corpus, folder, *flags)
    wait_until(lambda: len(list(folder.glob("out.tfrecord-*"))) >= 3, process, log=process.stderr.read)
    first.send_signal(signal.SIGKILL)
    done = len(list(folder.glob("out.tfrecord-*")))
    _, log = process.communicate()
    assert process.returncode == 0, log[-3000:]
    assert done < 12, "too late to test anything"
    mine, theirs = contents(folder), contents(tmp_path / "local")
    assert all(mine[name] == theirs[name] for name in theirs if name.startswith("out"))
    assert {name for name in mine if not name.endswith(".tmp")} == set(theirs)
    (tmp_path / "text" / "1.txt").write_bytes(b"abc\n\nab \xff c\n")
    process = run_script(corpus, tmp_path / "refused", *flags)
    _, log = process.communicate()
    line = log.strip().split("\n")[-1]
    assert process.returncode == 1 and "1.txt, line 3: not UTF-8 at byte offset" in line, log[-3000:]
    assert line.startswith("create_pretraining_data.py: error: ") and "Traceback" not in log


def test_dask_has_a_piece_of_work_for_each_shard(monkeypatch):
    pytest.importorskip("distributed", reason="needs the extra: pip install bert-tf[dask]")
    assert beam_pipeline._with_dask(["--a=b"]) == ["--a=b", "--dask_partition_size=1"]
    assert beam_pipeline._with_dask(["--dask_npartitions=2"]) == ["--dask_npartitions=2"]
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ValueError, match="--beam_runner=DaskRunner needs distributed: pip install .bert-tf.dask"):
        beam_pipeline.make_shards(None, [], "DaskRunner")


# ---- unmasked, packed, compressed ------------------------------------------------------------------------------------


def pairs_of(records) -> list[tuple]:
    """(ids of [CLS] A [SEP], ids of B [SEP], label) of each pair of unmasked records."""
    pairs = []
    for record in records:
        ids, lengths = record["input_ids"], record["segment_lengths"]
        assert sum(lengths) == len(ids)
        for number, label in enumerate(record["next_sentence_labels"]):
            first, second = lengths[2 * number : 2 * number + 2]
            if first:
                pairs.append((tuple(ids[:first]), tuple(ids[first : first + second]), label))
                ids = ids[first + second :]
            else:
                assert (second, label) == (0, 0)
        assert ids == []
    return pairs


def test_unmasked_records_hold_each_pair_once(corpus, tmp_path):
    summary = make(corpus, tmp_path / "out", masking="dynamic", dupe_factor=None, max_seq_length=128)
    records = read_records(tmp_path / "out/out.tfrecord", UNMASKED_FEATURES)
    pairs = pairs_of(records)
    assert len(pairs) == len(records) == summary["instances"] == summary["rows"]
    assert summary["flags"]["dupe_factor"] == 1
    assert summary["masked_positions"] == 0
    tokenizer = FullTokenizer(corpus[1])
    cls_id, sep_id, mask_id = (tokenizer.vocab[token] for token in ("[CLS]", "[SEP]", "[MASK]"))
    for first, second, _ in pairs:
        assert (first[0], first[-1], second[-1]) == (cls_id, sep_id, sep_id)
        assert len(first) + len(second) <= 128
        assert mask_id not in first + second
    assert sum(label for *_, label in pairs) == summary["random_next"]
    # Consecutive pairs cover the text: each of its tokens occurs about once.
    follows = sum(len(first) + len(second) - 3 for first, second, label in pairs if not label)
    firsts = sum(len(first) - 2 for first, _, label in pairs if label)
    assert 0.85 < (follows + firsts) / summary["tokens"] <= 1
    make(corpus, tmp_path / "static", dupe_factor=10, max_seq_length=128)
    sizes = [os.path.getsize(tmp_path / folder / "out.tfrecord") for folder in ("static", "out")]
    assert sizes[0] > 9 * sizes[1]


def test_packed_rows_hold_the_same_pairs(corpus, tmp_path):
    settings = {"masking": "dynamic", "dupe_factor": 1, "short_seq_prob": 0.9, "max_seq_length": 256}
    plain = make(corpus, tmp_path / "plain", **settings)
    packed = make(corpus, tmp_path / "packed", pack_sequences=True, **settings)
    records = read_records(tmp_path / "packed/out.tfrecord", UNMASKED_FEATURES)
    assert {len(record["next_sentence_labels"]) for record in records} == {8}
    assert {len(record["segment_lengths"]) for record in records} == {16}
    assert all(len(record["input_ids"]) <= 256 for record in records)
    pairs = pairs_of(read_records(tmp_path / "plain/out.tfrecord", UNMASKED_FEATURES))
    assert sorted(pairs_of(records)) == sorted(pairs)
    assert packed["rows"] == len(records) < plain["rows"] / 1.4
    assert packed["padding_share_unpacked"] == plain["padding_share"] > 0.4
    assert packed["padding_share"] == pytest.approx(1 - plain["instance_tokens"] / (256 * len(records)))
    assert packed["padding_share"] < 0.1


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


# ---- other text ------------------------------------------------------------------------------------------------------


def test_bad_utf8_can_be_replaced_and_counted(corpus, tmp_path):
    (tmp_path / "text" / "1.txt").write_bytes(b"abc de\n\nde \xff\xfe bb\nab c\n")
    summary = make(corpus, tmp_path / "out", text=TextSettings(errors="replace"))
    assert summary["lines_with_bad_utf8"] == 1
    assert summary["replaced_characters"] == 2
    assert summary["documents"] == 33  # the last of the second file continues in the third
