"""create_pretraining_data: records, summaries, errors, warnings of texts that teach little, words in records; shards,
processes, what is left of a run that was killed, packed rows, private scratch directories."""

import hashlib
import itertools
import json
import math
import os
import random
import shutil
import stat

import numpy as np
import pytest
from helpers.basics import GOLDEN, ROOT, slow
from helpers.early_mistakes import record
from helpers.record_files import LETTERS, contents, create, digest_records, read_records
from helpers.training_steps import one_device

from bert_tf.data import record_files, records
from bert_tf.families.config import BertConfig
from bert_tf.pretraining import row_kinds, shard
from bert_tf.pretraining.corpus import TextSettings
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.system import numba_compile, storage
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.pretraining_tasks import PretrainingTask
from bert_tf.training.run_directory import EarlierRun


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_records_are_the_originals(number, golden, tmp_path, monkeypatch):
    monkeypatch.setattr(shard, "BYTES_INTERPRETED", 0)
    expected = json.loads((golden / "pretraining" / f"setting_{number}.json").read_text())
    outputs = [tmp_path / f"part{k}.tfrecord" for k in range(expected["num_output_files"])]
    corpus = ",".join(str(golden / "pretraining" / name) for name in expected["input_files"])
    files = {"input_file": corpus, "output_file": ",".join(map(str, outputs)), "vocab_file": golden / "vocab.txt"}
    summary = create(tmp_path, **files, **expected["flags"])

    assert summary["instances"] == expected["num_instances"]
    assert summary["masked_positions"] == expected["total_masked"]
    assert summary["random_next"] == expected["num_random_next"]
    assert list(summary["output_files"].values()) == expected["instances_per_output_file"]
    assert [digest_records(read_records(path)) for path in outputs] == expected["records_sha256_per_file"]


FORMS = {
    "n-grams": {"ngram": 3, "do_whole_word_mask": True, "max_predictions_per_seq": 20, "next_sentence": "order"},
    "packed": {"masking": "dynamic", "pack_sequences": True, "word_boundaries": "spaces"},
    "electra": {"rows": "electra"},
    "sentences of BPE": {"rows": "full_sentences", "vocab_file": "tokenization/roberta/vocab.json"},
    "sentences of documents": {"rows": "doc_sentences", "vocab_file": "tokenization/albert/tiny.model"},
    "lines": {"rows": "lines"},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_small_text_compiles_nothing_and_gives_the_same(form, golden, tmp_path, monkeypatch):
    flags = {"vocab_file": "vocab.txt", "max_seq_length": 64, "show_progress": False} | FORMS[form]
    flags["vocab_file"] = str(golden / flags["vocab_file"])
    text, outputs = str(ROOT / "sample_text.txt"), [tmp_path / "interpreted", tmp_path / "compiled"]

    def call(loop, *_):
        raise AssertionError(f"{loop.py_func.__name__} is compiled")

    with monkeypatch.context() as patch:
        patch.setattr(numba_compile.CPUDispatcher, "__call__", call)
        create_pretraining_data(text, str(outputs[0]), **flags)
        patch.setattr(shard, "BYTES_INTERPRETED", os.path.getsize(text) - 1)
        with pytest.raises(AssertionError, match="is compiled"):
            create_pretraining_data(text, str(outputs[1]), **flags)
    monkeypatch.setattr(shard, "BYTES_INTERPRETED", 0)
    create_pretraining_data(text, str(outputs[1]), **flags)
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_summary_beside_the_records(letters, tmp_path):
    corpus, vocab = letters
    outputs = f"{tmp_path}/new/folder/a.tfrecord,{tmp_path}/elsewhere/b.tfrecord"
    files = {"input_file": corpus, "output_file": outputs, "vocab_file": vocab}
    create(tmp_path, **files, max_seq_length=16, max_predictions_per_seq=3, dupe_factor=5)
    assert set(contents(tmp_path / "elsewhere")) == {"b.tfrecord", "pretraining_data.b.index.npz"}
    names = {"a.tfrecord", "pretraining_data.a.json", "pretraining_data.a.index.npz"}
    assert set(contents(tmp_path / "new/folder")) == names
    summary = json.loads((tmp_path / "new/folder/pretraining_data.a.json").read_text())
    records = [record for path in outputs.split(",") for record in read_records(path)]
    tokens = sum(sum(record["input_mask"]) for record in records)
    assert len(summary.pop("fingerprint")) == 64
    assert summary.pop("output_bytes") == {path: os.path.getsize(path) for path in outputs.split(",")}
    flags = files | {"do_lower_case": True, "strip_accents": True, "max_seq_length": 16, "dupe_factor": 5}
    flags |= {"masked_lm_prob": 0.15, "num_shards": 1}
    assert flags.items() <= summary.pop("flags").items()
    assert summary == {
        "input_files": [corpus],
        "vocab_sha256": hashlib.sha256(("\n".join(LETTERS) + "\n").encode()).hexdigest(),
        "vocab_size": 17,
        "documents": 3,
        "sentences": 7,
        "tokens": 41,
        "unknown_tokens": 0,
        "unknown_share": 0.0,
        "instances": 24,
        "rows": 24,
        "instance_tokens": tokens,
        "padding_share": pytest.approx(1 - tokens / (24 * 16)),
        "masked_positions": sum(int(sum(record["masked_lm_weights"])) for record in records),
        "random_next": sum(record["next_sentence_labels"][0] for record in records),
        "output_files": dict(zip(outputs.split(","), [12, 12], strict=True)),
    }


BYTE_BPE = str(GOLDEN / "tokenization" / "roberta" / "vocab.json")


@pytest.mark.parametrize(("flags", "message"), [
    ({"max_seq_length": 4}, "--max_seq_length=4 must be at least 5"),
    ({"max_predictions_per_seq": 0}, "--max_predictions_per_seq must be at least 1"),
    ({"masked_lm_prob": math.nan}, "--masked_lm_prob=nan must be more than 0, at most 1."),
    ({"pack_sequences": True}, "--pack_sequences needs --masking=dynamic"),
    ({"input_file": "{folder}/*.text"}, "--input_file: no file matches .*/\\*.text"),
    ({"input_file": "{folder}/blank.txt"}, "no text .* in .*blank.txt: every line is blank"),
    ({"input_file": "{folder}/broken.txt"}, "broken.txt, line 3: not UTF-8 at byte offset 13 "),
    ({"output_file": "{folder}/./letters.txt"}, "--output_file=.*letters.txt would overwrite a file that is read"),
    ({"output_file": "{folder}/o1,{folder}/../{name}/o1"}, "--output_file=.*o1 is named twice"),
    ({"output_file": "{folder}/mine.csv"}, "--output_file: .*mine.csv is there, and not a file of records: choose"),
    ({"output_file": "{folder}/s", "num_shards": 3}, "--num_shards=3: delete the 1 files of another .*-00000-of-00002"),
    ({"vocab_file": "{folder}/no_mask.txt"}, "no_mask.txt lacks \\[MASK\\]"),
    ({"mask_rate": 0.7}, "--mask_rate=0.7, --random_rate=0.1, --keep_rate=0.1 must add up to 1"),
    ({"masking": "dynamic", "masked_lm_prob": 0.3}, "--masked_lm_prob: unmasked records"),
    ({"rows": "electra", "do_whole_word_mask": True}, "--do_whole_word_mask: --rows=electra knows no words"),
    ({"rows": "electra", "nsp": True}, "--nsp=True is for --rows=pairs, not for --rows=electra"),
    ({"rows": "lines", "next_sentence": "order"}, "--next_sentence=order is for --rows=pairs"),
    ({"rows": "electra", "pack_sequences": True}, "--pack_sequences: --rows=electra"),
    ({"rows": "electra", "segmenter": "jieba"}, "--word_boundaries, --segmenter: --rows=electra knows no words"),
    ({"masking": "dynamic", "ngram": 3}, "--ngram draws masks"),
    ({"favor_shorter_ngram": False}, "--favor_shorter_ngram is for --ngram"),
    ({"next_sentence": "order", "nsp": False}, "--next_sentence=order: there is no next sentence"),
    ({"word_boundaries": "spaces", "segmenter": "jieba", "masking": "dynamic"}, "--segmenter: give one"),
    ({"vocab_file": BYTE_BPE, "nsp": True}, "--nsp: .* have one segment: give --nsp=false"),
    ({"vocab_file": BYTE_BPE, "rows": "electra", "do_lower_case": None}, "--rows=electra makes .* word pieces"),
    ({"vocab_file": BYTE_BPE, "nsp": False, "do_lower_case": True}, "do_lower_case=True contradicts .*vocab.json"),
    ({"vocab_file": BYTE_BPE, "nsp": False, "word_boundaries": "spaces", "masking": "dynamic"}, "of word pieces"),
])  # fmt: skip
def test_bad_input_is_named_and_nothing_is_written(letters, tmp_path, flags, message):
    (tmp_path / "blank.txt").write_text("\n \n\u200b\n\n", encoding="utf-8")
    (tmp_path / "mine.csv").write_text("a,b\n")
    (tmp_path / "s-00000-of-00002").touch()  # which run_pretraining.py would read for s-*, too
    (tmp_path / "broken.txt").write_bytes(b"abc\r\n\nabc de \xff\n")
    (tmp_path / "no_mask.txt").write_text("\n".join(t for t in LETTERS if t != "[MASK]"))
    (tmp_path / "out.tfrecord").write_bytes(record(b"of an earlier run"))
    before = contents(tmp_path)
    arguments = {"input_file": letters[0], "vocab_file": letters[1], "show_progress": False}
    arguments |= {"output_file": f"{tmp_path}/out.tfrecord,{tmp_path}/out2.tfrecord"} | flags
    for name, value in arguments.items():
        if isinstance(value, str):
            arguments[name] = value.format(folder=tmp_path, name=tmp_path.name)
    with pytest.raises(ValueError, match=message):
        create_pretraining_data(**arguments)
    assert contents(tmp_path) == before


SENTENCE = "나는 오늘 학교에 갔다."
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*SENTENCE} - {" "})]
PARAGRAPH = " ".join([SENTENCE] * 30)
PARAGRAPHS = "\n\n".join("\n".join([PARAGRAPH] * 5) for _ in range(5))
SPLIT = "--split_sentences (with --language) makes sentences of paragraphs"
CONSTANT = "of the pairs have a random next sentence, so that labels are nearly constant"
# text, flags, what is said of it
SAID = {
    "a paragraph a document": ("\n\n".join([PARAGRAPH] * 20), {}, (CONSTANT, SPLIT, "--nsp=false")),
    "a paragraph a line": (PARAGRAPHS, {}, (CONSTANT, "here one has 5.0 lines of ", "is cut off", SPLIT)),
    "a sentence a document": ("\n\n".join([SENTENCE] * 60), {}, (CONSTANT, "here one has 1.0 lines")),
    "one document": ("\n".join([SENTENCE] * 60), {}, ("there is only one document", SPLIT)),
    "sentences": ("\n\n".join("\n".join([SENTENCE] * 8) for _ in range(20)), {}, ()),
    "split": (PARAGRAPHS, {"text": TextSettings(split_sentences=True, language="ko")}, ()),
    "no labels": ("\n\n".join([SENTENCE] * 60), {"nsp": False}, ()),
}


@pytest.mark.parametrize("case", SAID)
def test_what_is_said(tmp_path, caplog, case):
    content, flags, messages = SAID[case]
    pieces = [*VOCABULARY, *("##" + token for token in VOCABULARY[5:])]
    flags = {"do_lower_case": True, "strip_accents": False, "max_seq_length": 64} | flags
    create(tmp_path, content, pieces, max_predictions_per_seq=5, dupe_factor=2, **flags)
    assert all(message in caplog.text for message in messages)
    assert bool(messages) == any("text.txt: " in record.message for record in caplog.records if record.levelno > 20)


CHARACTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"我来到北京。"]


def test_records_with_and_without_words(tmp_path, caplog):
    text, sizes = "我 来到 北京 。\n北京\n\n来到 。\n我\n", {"max_seq_length": 32, "max_predictions_per_seq": 6}
    files = {name: str(tmp_path / name) for name in ("words", "none")}
    for name in files:
        words = "spaces" if name == "words" else None
        create(tmp_path, text, CHARACTERS, name, masking="dynamic", word_boundaries=words, **sizes)
    index = records.index_records([*files.values()], None)
    with pytest.raises(record_files.RecordError, match="words has .* what a word is .*, .*none has .* pairs: a run"):
        record_files.features_of(index.first_payloads(), 32, 6)
    config = BertConfig(len(CHARACTERS))
    unused = "The words that the records name are not used: --do_whole_word_mask is not"
    for whole_words in (True, False):
        settings = PretrainingSettings(
            input_file=files["words"], output_dir=str(tmp_path), vocab_file=str(tmp_path / "vocab.txt"), do_train=True,
            do_whole_word_mask=whole_words, **sizes,
        )  # fmt: skip
        caplog.clear()
        with caplog.at_level("INFO", logger="absl"):
            PretrainingTask(settings, config, "c", one_device(), EarlierRun(""))
        kind = "whole words" if whole_words else "single pieces"
        assert f"are unmasked and say what a word is: by the rule of bert, 0.15 of the tokens ({kind})" in caplog.text
        assert (unused in caplog.text) != whole_words


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

    def make(folder, **flags):
        given = {"max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 2, "do_lower_case": True}
        given |= {"input_file": f"{tmp_path}/text/*.txt", "vocab_file": f"{tmp_path}/vocab.txt"}
        return create(folder, name="out.tfrecord", **given | flags)

    return make


def test_a_finished_run_is_mended(make, tmp_path, monkeypatch):
    """One shard is made again, or only the summary; the run's output is the same as always."""
    flags, folder = {"num_shards": 2}, tmp_path / "out"
    with monkeypatch.context() as patch:  # killed between its last shard and the end
        patch.setattr("bert_tf.pretraining.create._merged_summary", lambda *_: os.kill)
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
    for number in (1, 2):
        shutil.copy(tmp_path / "text" / "0.txt", tmp_path / "text" / f"{number}.txt")
    made = [make(tmp_path / f"seed{seed}", num_shards=3, random_seed=seed)["output_files"] for seed in (1, 2)]
    assert all(one != other for one, other in itertools.combinations(map(read_records, [*made[0], *made[1]]), 2))


def test_a_shard_without_a_document_is_an_empty_file(make, tmp_path, caplog):
    for number in (1, 2):
        (tmp_path / "text" / f"{number}.txt").write_text("\n" * 5000)
    with caplog.at_level("WARNING", logger="absl"):
        summary = make(tmp_path / "out", num_shards=4)
    counts = list(summary["output_files"].values())
    assert counts[0] > 0 and 0 in counts
    assert [len(read_records(path)) for path in summary["output_files"]] == counts


def test_what_was_made_with_other_flags_or_text_is_made_again(make, tmp_path, caplog):
    folder = tmp_path / "out"
    caplog.set_level("WARNING", logger="absl")
    made = [(make(folder)["fingerprint"], (folder / "out.tfrecord").read_bytes())]
    make(folder)
    assert caplog.text == ""
    (folder / "out.tfrecord").write_bytes(made[0][1][:-100])
    for change in ("output", "flags", "text", "vocab"):
        if change == "text":
            write_text(tmp_path / "text" / "1.txt", seed=7)
        elif change == "vocab":
            (tmp_path / "vocab.txt").write_text("\n".join([*LETTERS, "dead"]) + "\n")
        flags = {} if change == "output" else {"random_seed": 5, "dupe_factor": 1}
        caplog.clear()
        made.append((make(folder, **flags)["fingerprint"], (folder / "out.tfrecord").read_bytes()))
        assert "1 finished files of an earlier run with other flags or another text are replaced" in caplog.text
        assert ("(--random_seed was 12345, --dupe_factor was 2)" in caplog.text) == (change == "flags")
    assert made[0] == made[1]
    assert len({fingerprint for fingerprint, _ in made}) == len({content for _, content in made}) == 4


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
    assert row_kinds.pack(np.full(4, 5), 10, 8, random.Random(0))[1].tolist() == [2, 4]
    shuffled = [row_kinds.pack(np.arange(1, 100), 100, 8, random.Random(seed))[0].tolist() for seed in (1, 2, 1)]
    assert shuffled[0] == shuffled[2] != shuffled[1]


def test_scratch_is_private_and_removed_and_a_second_run_of_the_job_disturbs_nothing(make, tmp_path, monkeypatch):
    tokenize, raised, scratch = shard._tokenize, [], tmp_path / "scratch"
    left = scratch / f"{storage.PRIVATE}of_a_killed_run"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))

    def second(job, *arguments):
        monkeypatch.setattr(shard, "_tokenize", tokenize)
        (own,) = scratch.iterdir()
        assert str(own) == job.records.scratch_dir and stat.S_IMODE(own.stat().st_mode) == 0o700
        with pytest.raises(BlockingIOError, match=r"^--output_file=\S+ is in use by another run") as error:
            make(tmp_path / "out", scratch_dir=str(scratch))
        raised.append(error)
        assert [*scratch.iterdir()] == [own]
        return tokenize(job, *arguments)

    monkeypatch.setattr(shard, "_tokenize", second)
    assert make(tmp_path / "out", scratch_dir=str(scratch))["instances"] and raised
    assert not [*scratch.iterdir()]
    ours = {"out.tfrecord", "pretraining_data.out.index.npz", "pretraining_data.out.json"}
    assert set(contents(tmp_path / "out")) == ours
