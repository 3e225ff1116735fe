"""create_vocab.py, create_pretraining_data.py and extract_features.py: what they write, and what bad input leaves.

And what all scripts say of a full disk.
"""

import gzip
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers import warm
from helpers.basics import GOLDEN, slow
from helpers.scenarios import SCENARIOS
from helpers.script_cases import command_of, outputs, run_and_refuse

from bert_tf.models.task_models import BertModel
from bert_tf.text.library_tokenizer import ByteBpeTokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer

TEXTS = (
    "The lighthouse keeper lit the lamps. The lamps were lit at dusk, and the keeper's lamps kept burning in Zürich!\n",
    "등대지기는 등불을 켰다. 모든 사람은 등불을 좋아한다. 사람들은 등대를 보았다.\n",
    "Смотритель маяка зажёг лампы. Ещё лампы горели. 灯台守はランプをともした。\n",
)
LOWER = " --do_lower_case=True"
# kind -> its file, flags, and those that the script proposes for records
KINDS = {
    "wordpiece": ("vocab.txt", {"vocab_size": 400, "strip_accents": False}, f"{LOWER} --strip_accents=False"),
    "byte_bpe": ("vocab.json", {"vocab_size": 400}, ""),
    "sentencepiece": ("spiece.model", {"vocab_size": 300, "character_coverage": 0.99}, LOWER),
}


def write_text(folder, text, name="text.txt") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.slow  # in small: test_each_kind_is_written_where_its_tokenizer_reads_it
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bytes_every_time(tmp_path, kind):
    for number in range(6):
        write_text(tmp_path, TEXTS[number % 3] * 10, f"part-{number}.txt")
    (name, flags, _), contents = KINDS[kind], set()
    for number, threads in enumerate(("1", "4")):
        output = tmp_path / "new" / str(number) / name
        files = f"{tmp_path}/part-[0-2].txt,{tmp_path}/part-[3-5].txt"
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": str(number)}
        command = command_of("create_vocab", {"input_file": files, "output_file": output, "kind": kind, **flags})
        subprocess.run(command, capture_output=True, env=environment, check=True)
        contents.add(tuple(path.read_bytes() for path in sorted(output.parent.iterdir())))
    assert len(contents) == 1


def test_each_kind_is_written_where_its_tokenizer_reads_it(tmp_path):
    text = write_text(tmp_path, "".join(TEXTS) * 20)
    cases = {
        kind: {**flags, "kind": kind, "input_file": text, "output_file": tmp_path / kind / name}
        for kind, (name, flags, _) in KINDS.items()
    }
    bpe, pieces = tmp_path / "byte_bpe", tmp_path / "sentencepiece"
    bpe.mkdir()
    for name in ("vocab.json", "merges.txt", "another.json"):  # half-written by runs that were killed
        (bpe / f".{name}.0123456789ab.tmp").touch()
    logs = run_and_refuse("create_vocab", tmp_path, cases, {})
    for kind, (name, _, proposed) in KINDS.items():
        assert "Next:\n  python create_pretraining_data.py --input_file=" in logs[kind].replace("'", "")
        assert f"--vocab_file={tmp_path / kind / name}{proposed} --output_file" in logs[kind]
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
    small = write_text(tmp_path, "ab ba.\n", "small.txt")
    usual = {"input_file": good, "output_file": output}
    fits = {"input_file": small, "output_file": tmp_path / "vocab.txt"}
    bpe = {"kind": "byte_bpe", "output_file": output.with_name("vocab.json"), "vocab_size": 260}
    sentences = {"kind": "sentencepiece", "output_file": output.with_name("a.model")}
    refused = {
        "--input_file: no file matches '*none*.txt'": {"input_file": f"{good},{tmp_path}/none*.txt"},
        "The input files contain no words: *empty.txt": {"input_file": write_text(tmp_path, " \n\n", "empty.txt")},
        "--num_unused means nothing for --kind=byte_bpe.": {"kind": "byte_bpe", "num_unused": 99},  # the default
        "must not end in .json or .model for *wordpiece": {"output_file": f"{output}.json"},
        "--output_file=* is one of --input_file: it would be replaced": {"output_file": good},
        "must end in .model for --kind=sentencepiece.": {"kind": "sentencepiece"},
        "--vocab_size=260 is too small: special tokens and bytes need 261": bpe,
        "--vocab_size=20: *--character_coverage": {**sentences, "vocab_size": 20},
        "bad.txt, line 2: not UTF-8 at byte offset 7 ": {"input_file": f"{good},{bad}"},
    }
    cases = {str(number): (usual | refused[message], message) for number, message in enumerate(refused)}
    cases["after it"] = ({**fits, "vocab_size": 108}, "--vocab_size is too small by 1: *--max_characters")
    run_and_refuse("create_vocab", tmp_path / "out", {"fits": {**fits, "vocab_size": 109}}, cases)
    # What fits is written, and an error later leaves it as it is.
    assert not output.parent.exists()
    assert (tmp_path / "vocab.txt").read_text().split("\n")[104:] == [".", "a", "b", "##a", "##b", ""]


TOKENIZERS, WORDS = GOLDEN / "tokenization", GOLDEN / "electra" / "vocab.txt"
FAMILIES = {
    "albert": {"vocab_file": TOKENIZERS / "albert" / "tiny.model", "next_sentence": "order", "ngram": 3},
    "electra": {"vocab_file": WORDS, "rows": "electra"},
    "roberta": {"vocab_file": TOKENIZERS / "roberta" / "vocab.json", "rows": "full_sentences"},
    "sentences": {"vocab_file": WORDS, "rows": "doc_sentences", "do_lower_case": False},
    "distilbert": {"vocab_file": WORDS, "rows": "lines", "max_predictions_per_seq": 4},
}
# What the script proposes for training.
PROPOSED = {
    "albert": "--max_predictions_per_seq=20 --do_train=True --bert_size=albert_base_v2",
    "electra": "--objective=electra --do_train=True --bert_size=electra_small",
    "roberta": "--max_predictions_per_seq=5 --do_train=True --bert_size=roberta_base",
    "sentences": "--max_predictions_per_seq=5 --nsp=False --do_train=True --bert_config_file=...",
    "distilbert": "--max_predictions_per_seq=4 --do_train=True --bert_size=distilbert_base",
}


def test_every_family(golden, tmp_path):
    usual = {"input_file": golden / "pretraining" / "electra" / "corpus_0.txt", "max_seq_length": 32, "num_workers": 1}
    done = {name: usual | flags | {"output_file": tmp_path / name} for name, flags in FAMILIES.items()}
    static = {**done["electra"], "masking": "static", "output_file": tmp_path / "refused"}
    refused = {"static": (static, "--masking=static: the records of --rows=electra are unmasked")}
    logs = run_and_refuse("create_pretraining_data", tmp_path / "out", done, refused)
    for name, flags in PROPOSED.items():
        command = next(line for line in logs[name].splitlines() if "python run_pretraining.py" in line)
        assert command.endswith(f"--max_seq_length=32 {flags} --output_dir=...")
        assert f"--input_file={tmp_path / name}" in command
    assert "% not in order" in logs["albert"] and "full sentences" in logs["roberta"]
    assert re.findall(r" tokens: (\S+) .* (\S+)\n", logs["albert"]) == [("[CLS]", "[SEP]")] * 3
    assert all(f"{step}: 100%" in logs["albert"] for step in ("tokenizing", "building instances", "writing"))


EXTRACTED = GOLDEN / "extract_features"
CONFIG1 = GOLDEN / "model" / "config1"
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
        "--layers=last: invalid literal": {"layers": "last"},
        "--output_file=*: there is no directory *none": {"output_file": tmp_path / "none" / "output"},
        "--output_file: *hf is a directory": {"output_file": tmp_path / "hf"},
        "--output_file: *vocab.txt would overwrite": {"output_file": EXTRACTED / "vocab.txt"},
        "--output_file=*o.jsonl is of --": {"output_file": tmp_path / "o.jsonl", "output_format": "npz"},
        "large.json does not fit *num_hidden_layers is 3": {"bert_config_file": tmp_path / "large.json"},
        "--init_checkpoint=*none.ckpt": {"init_checkpoint": tmp_path / "none.ckpt"},
        "--distribution_strategy=multi_worker_mirror": {"distribution_strategy": "multi_worker_mirrored"},
    }
    usual = full | {"output_file": tmp_path / "refused"}
    refused = {str(number): (usual | refused[message], message) for number, message in enumerate(refused)}
    done = {"golden": full, "beside": beside | {"input_file": tmp_path / "input.txt.gz"}}
    (tmp_path / ".output.0123456789ab.tmp").touch()  # half-written by a run that was killed
    logs = run_and_refuse("extract_features", tmp_path / "out", done, refused)
    assert not list(tmp_path.glob(".output*"))
    expected = (EXTRACTED / "output.jsonl").read_text()
    for path in (output, tmp_path / "output_hf"):
        assert NUMBER.sub("#", path.read_text()) == NUMBER.sub("#", expected)
        assert all(json.dumps(json.loads(line)) == line for line in path.read_text().splitlines())
        for found, there in zip(values_of(path.read_text()), values_of(expected), strict=True):
            np.testing.assert_allclose(found, there, rtol=0, atol=2e-5)
    assert "1 of 5 lines are longer than --max_seq_length=24" in logs["golden"]
    assert "5/5" in logs["golden"] and not (tmp_path / "refused").exists()


# A limit on the size of files simulates a full disk.
_LIMITED = """
import resource, runpy, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# run_ner.py and run_swag.py write with the code of run_classifier.py.
CASES = ("one file", "pretraining", "classifier", "squad", "conversion", "export", "features")
SHORT = {"num_train_epochs": 1, "num_train_steps": 2, "num_warmup_steps": 1, "eval_every_steps": None}
# What may be named: an output, the scratch directory, the folder of XLA's programs that all tests share (of their own
# such folder, scripts check the room before).
NAMED = ("/limited/", "--scratch_dir", "/xla_compile_cache")


def run_limited(arguments: list[str], limit: int) -> tuple[str, int]:
    """Runs a script while no file can be longer than this; returns what it wrote to stderr, and its exit code."""
    # Without a cache of XLA's programs: the limit is meant for outputs.
    environment = {**os.environ, "BERT_TF_COMPILED": ""}
    command = [sys.executable, "-c", _LIMITED, str(limit), *arguments]
    reader, writer = map(open, os.pipe(), "rw")  # a pipe, which has no size
    with reader:
        with writer:
            process = warm.Popen(command, stdout=warm.DEVNULL, stderr=writer, env=environment)
        return reader.read(), process.wait()


@pytest.mark.parametrize("case", ["vocabulary", *slow(*CASES)])
def test_a_full_disk_is_one_line(case, tmp_path):
    folders = [tmp_path / name for name in ("whole", "limited")]
    commands, before = [], []
    for folder in folders:
        (folder / "out").mkdir(parents=True)
        script, flags = SCENARIOS[case](folder)
        flags = {flag: SHORT.get(flag, value) for flag, value in flags.items()}
        flags = {flag: value for flag, value in flags.items() if value is not None}
        commands.append(command_of(script, flags)[1:])
        before.append(outputs(folder))
    log, code = run_limited(commands[0], 1 << 30)
    assert code == 0, log[-3000:]
    written = {folders[0] / path for path in outputs(folders[0]) - before[0]}
    sizes = sorted({path.stat().st_size for path in written if path.is_file()}, reverse=True)
    wrong = []
    for size in sizes:
        log, code = run_limited(commands[1], size - 1)
        last = log.strip().split("\n")[-1]
        named = any(name in last for name in NAMED)
        left = [path for path in outputs(folders[1]) if path.endswith((".tmp", ".writing", ".lock"))]
        if code == 0 or "Traceback" in log or not named or left:
            wrong.append((size, code, "Traceback" in log, left, last[-400:]))
    assert not wrong, "\n".join(map(str, [len(sizes), *wrong]))
    log, code = run_limited(commands[1], 1 << 30)
    assert code == 0, log[-3000:]
    assert outputs(folders[1]) - before[1] == outputs(folders[0]) - before[0]
