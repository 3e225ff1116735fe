"""create_pretraining_data.py as a command."""

import json
import os
import sys

from helpers import warm
from helpers.paths import GOLDEN, ROOT
from helpers.record_files import digest_records, read_records
from helpers.script_cases import run_cases


def test_command_line(golden, tmp_path):
    expected = json.loads((golden / "pretraining" / "setting_4.json").read_text())
    flags = [f"--{name}={value}" for name, value in expected["flags"].items()]
    outputs = [tmp_path / f"{k}.tfrecord" for k in range(3)]
    flags += [f"--input_file={golden}/pretraining/corpus_*.txt", f"--vocab_file={golden}/vocab.txt"]
    flags += [f"--output_file={','.join(map(str, outputs))}"]
    command = [sys.executable, str(ROOT / "create_pretraining_data.py"), *flags]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    result = warm.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    assert [digest_records(read_records(path)) for path in outputs] == expected["records_sha256_per_file"]
    assert " ".join(expected["first_instances"][2]["_tokens"]) in result.stderr
    assert result.stderr.count(" tokens: ") == 3
    for step in ("tokenizing", "building instances", "writing"):
        assert f"{step}: 100%" in result.stderr


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
    ended, logs = run_cases("create_pretraining_data", cases)
    for name, (_, ending) in FAMILIES.items():
        assert ended[name] == "done", logs[name]
        command = next(line for line in logs[name].splitlines() if "python run_pretraining.py" in line)
        assert command.endswith(ending) and f"--input_file={tmp_path / name}" in command
    assert "% not in order" in logs["albert"] and "full sentences" in logs["roberta"]
    assert ended["refused"].startswith("ValueError: --nsp: models of byte-level BPE have one segment")
    assert ended["static"].startswith("ValueError: --masking=static: the records of --rows=electra are unmasked")
    assert not (tmp_path / "refused").exists()
