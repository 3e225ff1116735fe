"""extract_features.py: the original's output by the original's flags, another format of model, and what is refused."""

import gzip
import json
import re

import numpy as np
from helpers.paths import TESTS
from helpers.script_cases import run_cases

from bert_tf.models.task_models import BertModel

GOLDEN = TESTS / "golden" / "extract_features"
MODEL = TESTS / "golden" / "model" / "config1"
NUMBER = re.compile(r"-?\d+\.\d+(e-\d\d)?")


def values_of(text: str) -> list[np.ndarray]:
    lines = [json.loads(line)["features"] for line in text.splitlines()]
    return [np.array([[layer["values"] for layer in entry["layers"]] for entry in line]) for line in lines]


def test_script(tmp_path):
    output = tmp_path / "output"
    (tmp_path / "input.txt.gz").write_bytes(gzip.compress((GOLDEN / "input.txt").read_bytes()))
    config = json.loads((MODEL / "bert_config.json").read_text())
    (tmp_path / "large.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    model = BertModel.from_pretrained(str(MODEL / "bert_model.ckpt"))
    vocab = {"vocab_file": str(GOLDEN / "vocab.txt"), "do_lower_case": True}
    model.save_pretrained(str(tmp_path / "hf"), format="huggingface", **vocab)
    full = {"input_file": GOLDEN / "input.txt", "output_file": output, "layers": "-1,-2", "max_seq_length": 24}
    full |= {"bert_config_file": MODEL / "bert_config.json", "vocab_file": GOLDEN / "vocab.txt", "do_lower_case": True}
    full |= {"init_checkpoint": MODEL / "bert_model.ckpt", "batch_size": 2, "use_tpu": False, "num_tpu_cores": 8}
    full |= {"use_one_hot_embeddings": True}
    beside = {name: full[name] for name in ("input_file", "max_seq_length", "layers")}
    beside |= {"init_checkpoint": tmp_path / "hf", "output_file": tmp_path / "output_hf", "static_padding": True}
    refused = {
        "no number": ({"layers": "last"}, "invalid literal for int.*last"),
        "folder": ({"output_file": tmp_path / "none" / "output"}, "--output_file=.*: there is no directory .*none"),
        "is folder": ({"output_file": tmp_path / "hf"}, "--output_file: .*hf is a directory"),
        "same": ({"output_file": GOLDEN / "input.txt"}, "--output_file: .* would overwrite a file that is read"),
        "model's": ({"output_file": GOLDEN / "vocab.txt"}, "--output_file: .*vocab.txt would overwrite"),
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
    expected = (GOLDEN / "output.jsonl").read_text()
    for path in (output, tmp_path / "output_hf"):
        assert NUMBER.sub("#", path.read_text()) == NUMBER.sub("#", expected)
        assert all(json.dumps(json.loads(line)) == line for line in path.read_text().splitlines())
        for found, there in zip(values_of(path.read_text()), values_of(expected), strict=True):
            np.testing.assert_allclose(found, there, rtol=0, atol=2e-5)
    assert "1 of 5 lines are longer than --max_seq_length=24" in errors["golden"]
    assert "5/5" in errors["golden"] and not (tmp_path / "refused").exists()
    for name, (_, pattern) in refused.items():
        assert re.search(pattern, outcomes[name]), (name, outcomes[name])
