"""create_pretraining_data.py as a command."""

import json
import os
import sys

import pytest
from helpers import warm
from helpers.paths import GOLDEN, ROOT
from helpers.pretraining_records_read import digest_records, read_records
from helpers.script_cases import run_cases


def test_command_line(golden, tmp_path):
    expected = json.loads((golden / "pretraining" / "setting_4.json").read_text())
    flags = [f"--{name}={value}" for name, value in expected["flags"].items()]
    outputs = [tmp_path / f"{k}.tfrecord" for k in range(3)]
    command = [
        sys.executable,
        str(ROOT / "create_pretraining_data.py"),
        f"--input_file={golden}/pretraining/corpus_*.txt",
        f"--output_file={','.join(map(str, outputs))}",
        f"--vocab_file={golden}/vocab.txt",
        *flags,
    ]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    result = warm.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    assert [digest_records(read_records(path)) for path in outputs] == expected["records_sha256_per_file"]
    assert " ".join(expected["first_instances"][2]["_tokens"]) in result.stderr
    assert result.stderr.count(" tokens: ") == 3
    for step in ("tokenizing", "building instances", "writing"):
        assert f"{step}: 100%" in result.stderr


def test_flags_are_the_originals():
    program = (
        "import json, create_pretraining_data as script; flags = script.FLAGS; "
        "own = flags.get_key_flags_for_module('create_pretraining_data'); "
        "print(json.dumps({f.name: [f.flag_type(), f.default] for f in own}))"
    )
    result = warm.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    originals = {
        "input_file": ["string", None],
        "output_file": ["string", None],
        "vocab_file": ["string", None],
        "do_lower_case": ["bool", True],
        "do_whole_word_mask": ["bool", False],
        "max_seq_length": ["int", 128],
        "max_predictions_per_seq": ["int", 20],
        "random_seed": ["int", 12345],
        "dupe_factor": ["int", 10],
        "masked_lm_prob": ["float", 0.15],
        "short_seq_prob": ["float", 0.1],
        "strip_accents": ["bool", None],
    }
    found = json.loads(result.stdout)
    assert {name: found[name] for name in originals} == originals
    further = {name for name in found if name not in originals}
    assert further == {
        "beam_option", "beam_runner", "compression", "encoding", "errors", "input_format", "language", "masking",
        "num_shards", "num_workers", "pack_sequences", "scratch_dir", "split_sentences", "text_key", "nsp", "mask_rate",
        "random_rate", "keep_rate", "word_boundaries", "segmenter", "rows", "next_sentence", "ngram",
        "favor_shorter_ngram", "blanks_separate_docs",
    }  # fmt: skip


@pytest.mark.parametrize("missing", ["input_file", "output_file", "vocab_file"])
def test_required_flags(missing):
    given = [f"--{name}=x" for name in ("input_file", "output_file", "vocab_file") if name != missing]
    command = [sys.executable, str(ROOT / "create_pretraining_data.py"), *given]
    result = warm.run(command, capture_output=True, text=True)
    assert result.returncode != 0
    assert f"--{missing}" in result.stderr


TOKENIZERS = GOLDEN / "tokenization"
# name -> flags, and the end of the command that the script proposes
FAMILIES = {
    "albert": (
        {"vocab_file": TOKENIZERS / "albert" / "tiny.model", "next_sentence": "order", "ngram": 3},
        "--max_seq_length=32 --max_predictions_per_seq=20 --do_train=True --bert_size=albert_base_v2 --output_dir=...",
    ),
    "electra": (
        {"vocab_file": GOLDEN / "electra" / "vocab.txt", "rows": "electra"},
        "--max_seq_length=32 --objective=electra --do_train=True --bert_size=electra_small --output_dir=...",
    ),
    "roberta": (
        {"vocab_file": TOKENIZERS / "roberta" / "vocab.json", "rows": "full_sentences"},
        "--max_seq_length=32 --max_predictions_per_seq=5 --do_train=True --bert_size=roberta_base --output_dir=...",
    ),
    "sentences": (
        {"vocab_file": GOLDEN / "electra" / "vocab.txt", "rows": "doc_sentences", "do_lower_case": False},
        "--max_seq_length=32 --max_predictions_per_seq=5 --nsp=False --do_train=True --bert_config_file=... "
        "--output_dir=...",
    ),
    "distilbert": (
        {"vocab_file": GOLDEN / "electra" / "vocab.txt", "rows": "lines", "max_predictions_per_seq": 4},
        "--max_seq_length=32 --max_predictions_per_seq=4 --do_train=True --bert_size=distilbert_base --output_dir=...",
    ),
}


def test_every_family(golden, tmp_path):
    """The rows of a family, what the log says of them, and the command that trains on them."""
    text = golden / "pretraining" / "electra" / "corpus_0.txt"
    cases = {
        name: {"input_file": text, "output_file": tmp_path / name, "max_seq_length": 32, "num_workers": 1} | flags
        for name, (flags, _) in FAMILIES.items()
    }
    cases["refused"] = cases["roberta"] | {"rows": "pairs", "output_file": tmp_path / "refused"}
    cases["static"] = cases["electra"] | {"masking": "static", "output_file": tmp_path / "refused"}
    outcomes, logs = run_cases("create_pretraining_data", cases)
    for name, (_, ending) in FAMILIES.items():
        assert outcomes[name] == "done", logs[name]
        command = next(line for line in logs[name].splitlines() if "python run_pretraining.py" in line)
        assert command.endswith(ending) and f"--input_file={tmp_path / name}" in command
    assert "% not in order" in logs["albert"] and "full sentences" in logs["roberta"]
    assert outcomes["refused"].startswith("ValueError: --nsp: models of byte-level BPE have one segment")
    assert outcomes["static"].startswith("ValueError: --masking=static: the records of --rows=electra are unmasked")
    assert not (tmp_path / "refused").exists()


def test_words_that_nothing_would_use_are_refused_at_once(tmp_path):
    script = str(ROOT / "create_pretraining_data.py")
    files = [f"--{name}={tmp_path}/{name}" for name in ("input_file", "output_file", "vocab_file")]
    command = [sys.executable, script, *files, "--word_boundaries=spaces"]
    result = warm.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("create_pretraining_data.py: error: --word_boundaries=spaces says which pieces are masked")
