"""create_vocab.py, create_pretraining_data.py and extract_features.py: what they write, and what bad input leaves."""

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers.paths import GOLDEN, ROOT, TESTS
from helpers.record_files import digest_records, read_records
from helpers.script_cases import arguments_of, run_cases

from bert_tf.models.task_models import BertModel
from bert_tf.text.library_tokenizer import ByteBpeTokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer

TEXTS = (
    "The lighthouse keeper lit the lamps. The lamps were lit at dusk, and the keeper's lamps kept burning in Zürich!\n",
    "등대지기는 등불을 켰다. 모든 사람은 등불을 좋아한다. 사람들은 등대를 보았다.\n",
    "Смотритель маяка зажёг лампы. Ещё лампы горели. 灯台守はランプをともした。\n",
)
KINDS = {
    "wordpiece": ("vocab.txt", {"vocab_size": 400, "strip_accents": False}),
    "byte_bpe": ("vocab.json", {"vocab_size": 400}),
    "sentencepiece": ("spiece.model", {"vocab_size": 300, "character_coverage": 0.99}),
}
NEXT = {"wordpiece": " --do_lower_case=True --strip_accents=False --output_file", "byte_bpe": " --output_file"}
NEXT |= {"sentencepiece": " --do_lower_case=True --output_file"}


def write_text(folder, text, name="text.txt") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.slow  # in small: test_each_kind_is_written_where_its_tokenizer_reads_it
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bytes_every_time(tmp_path, kind):
    for number in range(6):
        write_text(tmp_path, TEXTS[number % 3] * 10, f"part-{number}.txt")
    (name, flags), digests = KINDS[kind], set()
    for run, threads in enumerate(("1", "4")):
        output = tmp_path / "new" / str(run) / name
        files = f"{tmp_path}/part-[0-2].txt,{tmp_path}/part-[3-5].txt"
        command = arguments_of({"input_file": files, "output_file": output, "kind": kind, **flags})
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": str(run)}
        command = [sys.executable, str(ROOT / "create_vocab.py"), *command]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.returncode == 0, result.stderr
        written = sorted(os.listdir(output.parent))
        digests.add(hashlib.sha256(b"".join((output.parent / file).read_bytes() for file in written)).hexdigest())
    assert len(digests) == 1


def test_each_kind_is_written_where_its_tokenizer_reads_it(tmp_path):
    case = {"input_file": write_text(tmp_path, "".join(TEXTS) * 20)}
    cases = {kind: {**case, **flags, "kind": kind} for kind, (_, flags) in KINDS.items()}
    for kind, (name, _) in KINDS.items():
        cases[kind]["output_file"] = tmp_path / kind / name
    bpe, pieces = tmp_path / "byte_bpe", tmp_path / "sentencepiece"
    bpe.mkdir()
    for name in ("vocab.json", "merges.txt", "another.json"):  # half-written by runs that were killed
        (bpe / f".{name}.0123456789ab.tmp").touch()
    ended, logs = run_cases("create_vocab", cases)
    assert ended == dict.fromkeys(KINDS, "done"), logs
    for kind, (name, _) in KINDS.items():
        assert "Next:\n  python create_pretraining_data.py --input_file=" in logs[kind].replace("'", "")
        assert f"--vocab_file={tmp_path / kind / name}{NEXT[kind]}" in logs[kind]
    assert len((tmp_path / "wordpiece" / "vocab.txt").read_text(encoding="utf-8").splitlines()) <= 400
    assert sorted(os.listdir(bpe)) == [".another.json.0123456789ab.tmp", "merges.txt", "vocab.json"]
    assert os.listdir(pieces) == ["spiece.model"]
    assert len(ByteBpeTokenizer.from_pretrained(str(bpe)).vocab) == 400
    tokenizer = SentencePieceTokenizer.from_pretrained(str(pieces), do_lower_case=True)
    assert tokenizer.unk_id not in tokenizer.encode("The lamps, in Zürich!")


def test_bad_input_names_what_is_wrong_and_writes_nothing(tmp_path):
    good = write_text(tmp_path, TEXTS[0])
    bad, output = tmp_path / "bad.txt", tmp_path / "out" / "vocab.txt"
    bad.write_bytes("fine\n\u00e9".encode() + b"\xe9 here\n")
    small, pieces = write_text(tmp_path, "ab ba.\n", "small.txt"), {"output_file": output.with_name("a.model")}
    expected = [
        ({"input_file": f"{good},{tmp_path}/none*.txt"}, r"--input_file: no file matches '.*none\*\.txt'"),
        ({"input_file": write_text(tmp_path, " \n\n", "empty.txt")}, "The input files contain no words: .*empty.txt"),
        ({"input_file": small, "vocab_size": 108}, "--vocab_size is too small by 1: .*--max_characters"),
        ({"kind": "byte_bpe", "num_unused": 99}, "--num_unused means nothing for --kind=byte_bpe.$"),  # the default
        ({"output_file": f"{output}.json"}, "must not end in .json or .model for .*wordpiece"),
        ({"output_file": good}, "--output_file=.* is one of --input_file: it would be replaced"),
        ({"kind": "sentencepiece"}, "must end in .model for --kind=sentencepiece.$"),
        ({"kind": "byte_bpe", "output_file": output.with_name("vocab.json"), "vocab_size": 260},
         "--vocab_size=260 is too small: special tokens and bytes need 261"),
        ({"kind": "sentencepiece", **pieces, "vocab_size": 20}, "--vocab_size=20: .*--character_coverage"),
        ({"kind": "sentencepiece", **pieces, "input_file": bad}, r"bad\.txt, line 2: not UTF-8"),
        ({"input_file": f"{good},{bad}"}, r"bad\.txt, line 2: not UTF-8 at byte offset 7 "),
    ]  # fmt: skip
    usual = {"input_file": good, "output_file": output}
    cases = {str(number): usual | case for number, (case, _) in enumerate(expected)}
    fits = {"input_file": small, "output_file": tmp_path / "vocab.txt"}
    cases |= {"fits": {**fits, "vocab_size": 109}, "after it": {**fits, "vocab_size": 108}}
    outcomes, _ = run_cases("create_vocab", cases)
    for number, (_, pattern) in enumerate(expected):
        assert re.search(pattern, outcomes[str(number)]) and "\n" not in outcomes[str(number)], outcomes[str(number)]
    assert not output.parent.exists()
    # What fits is written, and an error later leaves it as it is.
    assert outcomes["fits"] == "done" and outcomes["after it"].startswith("ValueError")
    assert (tmp_path / "vocab.txt").read_text().split("\n")[104:] == [".", "a", "b", "##a", "##b", ""]


PIECES, BYTE_BPE = GOLDEN / "electra" / "vocab.txt", GOLDEN / "tokenization" / "roberta" / "vocab.json"
ALBERT = {"vocab_file": GOLDEN / "tokenization" / "albert" / "tiny.model", "next_sentence": "order", "ngram": 3}
# name -> flags, and of the command that the script proposes what differs, and the model
FAMILIES = {
    "albert": (ALBERT, "--max_predictions_per_seq=20", "--bert_size=albert_base_v2"),
    "electra": ({"vocab_file": PIECES, "rows": "electra"}, "--objective=electra", "--bert_size=electra_small"),
    "roberta": (
        {"vocab_file": BYTE_BPE, "rows": "full_sentences"}, "--max_predictions_per_seq=5", "--bert_size=roberta_base",
    ),
    "sentences": (
        {"vocab_file": PIECES, "rows": "doc_sentences", "do_lower_case": False},
        "--max_predictions_per_seq=5 --nsp=False", "--bert_config_file=...",
    ),
    "distilbert": (
        {"vocab_file": PIECES, "rows": "lines", "max_predictions_per_seq": 4},
        "--max_predictions_per_seq=4", "--bert_size=distilbert_base",
    ),
}  # fmt: skip


def test_every_family(golden, tmp_path):
    """The rows of a family, what the log says of them, and the command that trains on them; the original's records."""
    expected = json.loads((golden / "pretraining" / "setting_4.json").read_text())
    outputs = [tmp_path / f"{k}.tfrecord" for k in range(3)]
    text = golden / "pretraining" / "electra" / "corpus_0.txt"
    cases = {
        name: {"input_file": text, "output_file": tmp_path / name, "max_seq_length": 32, "num_workers": 1} | flags
        for name, (flags, *_) in FAMILIES.items()
    }
    corpus = golden / "pretraining" / "corpus_*.txt"
    cases["golden"] = {"input_file": corpus, "output_file": ",".join(map(str, outputs))} | expected["flags"]
    cases["golden"]["vocab_file"] = golden / "vocab.txt"
    cases["refused"] = cases["roberta"] | {"rows": "pairs", "output_file": tmp_path / "refused"}
    cases["static"] = cases["electra"] | {"masking": "static", "output_file": tmp_path / "refused"}
    ended, logs = run_cases("create_pretraining_data", cases)
    for name, (_, arguments, model) in FAMILIES.items():
        assert ended[name] == "done", logs[name]
        command = next(line for line in logs[name].splitlines() if "python run_pretraining.py" in line)
        assert command.endswith(f"--max_seq_length=32 {arguments} --do_train=True {model} --output_dir=...")
        assert f"--input_file={tmp_path / name}" in command
    assert "% not in order" in logs["albert"] and "full sentences" in logs["roberta"]
    assert ended["refused"].startswith("ValueError: --nsp: models of byte-level BPE have one segment")
    assert ended["static"].startswith("ValueError: --masking=static: the records of --rows=electra are unmasked")
    assert not (tmp_path / "refused").exists()
    assert [digest_records(read_records(path)) for path in outputs] == expected["records_sha256_per_file"]
    assert " ".join(expected["first_instances"][2]["_tokens"]) in logs["golden"]
    assert logs["golden"].count(" tokens: ") == 3
    for step in ("tokenizing", "building instances", "writing"):
        assert f"{step}: 100%" in logs["golden"]


EXTRACTED = TESTS / "golden" / "extract_features"
CONFIG1 = TESTS / "golden" / "model" / "config1"
NUMBER = re.compile(r"-?\d+\.\d+(e-\d\d)?")


def values_of(text: str) -> list[np.ndarray]:
    lines = [json.loads(line)["features"] for line in text.splitlines()]
    return [np.array([[layer["values"] for layer in entry["layers"]] for entry in line]) for line in lines]


def test_script(tmp_path):
    output = tmp_path / "output"
    (tmp_path / "input.txt.gz").write_bytes(gzip.compress((EXTRACTED / "input.txt").read_bytes()))
    config = json.loads((CONFIG1 / "bert_config.json").read_text())
    (tmp_path / "large.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    model = BertModel.from_pretrained(str(CONFIG1 / "bert_model.ckpt"))
    vocab = {"vocab_file": str(EXTRACTED / "vocab.txt"), "do_lower_case": True}
    model.save_pretrained(str(tmp_path / "hf"), format="huggingface", **vocab)
    full = {"input_file": EXTRACTED / "input.txt", "output_file": output, "layers": "-1,-2", "max_seq_length": 24}
    full |= {"bert_config_file": CONFIG1 / "bert_config.json", "vocab_file": EXTRACTED / "vocab.txt"}
    full |= {"init_checkpoint": CONFIG1 / "bert_model.ckpt", "batch_size": 2, "do_lower_case": True}
    full |= {"use_tpu": False, "num_tpu_cores": 8, "use_one_hot_embeddings": True}
    beside = {name: full[name] for name in ("input_file", "max_seq_length", "layers")}
    beside |= {"init_checkpoint": tmp_path / "hf", "output_file": tmp_path / "output_hf", "static_padding": True}
    refused = {
        "no number": ({"layers": "last"}, "invalid literal for int.*last"),
        "folder": ({"output_file": tmp_path / "none" / "output"}, "--output_file=.*: there is no directory .*none"),
        "is folder": ({"output_file": tmp_path / "hf"}, "--output_file: .*hf is a directory"),
        "same": ({"output_file": EXTRACTED / "input.txt"}, "--output_file: .* would overwrite a file that is read"),
        "model's": ({"output_file": EXTRACTED / "vocab.txt"}, "--output_file: .*vocab.txt would overwrite"),
        "other": ({"output_file": tmp_path / "o.jsonl", "output_format": "npz"}, "--output_file=.*o.jsonl is of --"),
        "config": ({"bert_config_file": tmp_path / "large.json"}, "large.json does not fit .*num_hidden_layers is 3"),
        "no weights": ({"init_checkpoint": tmp_path / "none.ckpt"}, "--init_checkpoint=.*none.ckpt"),
        "workers": ({"distribution_strategy": "multi_worker_mirrored"}, "--distribution_strategy=multi_worker_mirror"),
    }
    cases = {name: full | {"output_file": tmp_path / "refused"} | change for name, (change, _) in refused.items()}
    cases |= {"golden": full, "beside": beside | {"input_file": tmp_path / "input.txt.gz"}}
    (tmp_path / ".output.0123456789ab.tmp").touch()  # half-written by a run that was killed
    outcomes, errors = run_cases("extract_features", cases)
    assert outcomes.pop("golden") == outcomes.pop("beside") == "done" and not list(tmp_path.glob(".output*"))
    expected = (EXTRACTED / "output.jsonl").read_text()
    for path in (output, tmp_path / "output_hf"):
        assert NUMBER.sub("#", path.read_text()) == NUMBER.sub("#", expected)
        assert all(json.dumps(json.loads(line)) == line for line in path.read_text().splitlines())
        for found, there in zip(values_of(path.read_text()), values_of(expected), strict=True):
            np.testing.assert_allclose(found, there, rtol=0, atol=2e-5)
    assert "1 of 5 lines are longer than --max_seq_length=24" in errors["golden"]
    assert "5/5" in errors["golden"] and not (tmp_path / "refused").exists()
    for name, (_, pattern) in refused.items():
        assert re.search(pattern, outcomes[name]), (name, outcomes[name])
