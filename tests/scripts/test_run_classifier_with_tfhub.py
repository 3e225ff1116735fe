"""run_classifier_with_tfhub.py: a module by its address, on a server of its own."""

import functools
import http.server
import tarfile

import numpy as np
import pytest
from helpers.local_server import serving
from helpers.paths import TESTS
from helpers.script_cases import run_cases, weights_of


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Folder, outcomes by case, what each wrote to stderr."""
    folder, golden = tmp_path_factory.mktemp("tfhub"), TESTS / "golden"
    module = folder / "module"  # as the original exported it for TF1: no configuration
    (module / "variables").mkdir(parents=True)
    (module / "assets").mkdir()
    for path in (golden / "model" / "config1").glob("bert_model.ckpt.*"):
        (module / "variables" / path.name.replace("bert_model.ckpt", "variables")).write_bytes(path.read_bytes())
    vocab = (golden / "classifier" / "end_to_end" / "vocab.txt").read_bytes()
    (module / "assets" / "vocab.txt").write_bytes(vocab)
    (module / "saved_model.pb").write_bytes(b"")
    with tarfile.open(folder / "bert.tar.gz", "w:gz") as archive:
        archive.add(module, arcname=".")
    rows = "".join(f"some words {number}\t{'ab'[number % 2]}\n" for number in range(8))
    (folder / "train.tsv").write_text("text\tlabel\n" + rows)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    flags = {
        "task_name": "custom", "text_a": "text", "label": "label", "train_file": folder / "train.tsv", "seed": 3,
        "bert_config_file": golden / "model" / "config1" / "bert_config.json", "do_train": True, "max_seq_length": 16,
        "train_batch_size": 4, "num_train_epochs": 1, "write_tf_records": False, "deterministic": True,
    }  # fmt: skip
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with serving(server), pytest.MonkeyPatch.context() as environment:
        environment.setenv("BERT_TF_CACHE", str(folder / "cache"))
        cases = {
            "address": {"bert_hub_module_handle": f"http://127.0.0.1:{server.server_port}/bert.tar.gz"},
            "weights, too": {"bert_hub_module_handle": module, "init_checkpoint": module},
            "no module": {"bert_hub_module_handle": f"http://127.0.0.1:{server.server_port}/train.tsv"},
            "no such directory": {"bert_hub_module_handle": folder / "none"},
        }
        cases = {name: {**flags, "output_dir": folder / "out" / name, **own} for name, own in cases.items()}
        outcomes, logs = run_cases("run_classifier_with_tfhub", cases)
    return folder, outcomes, logs


def test_a_module_is_fine_tuned_from_its_address(ran):
    folder, outcomes, logs = ran
    assert outcomes["address"] == "done" and f"from {folder}/cache/" in logs["address"]
    start, end = weights_of(folder / "module" / "variables" / "variables"), weights_of(folder / "out" / "address")
    name = "bert/embeddings/position_embeddings"  # the later ones learn nothing
    np.testing.assert_allclose(end[name], start[name], atol=1e-3)
    assert int(end["global_step"]) == 2 and (end[name] != start[name]).any()
    vocab = (folder / "module" / "assets" / "vocab.txt").read_bytes()
    assert (folder / "out" / "address" / "vocab.txt").read_bytes() == vocab


def test_modules_that_can_not_be_opened_are_named(ran):
    folder, outcomes, _ = ran
    assert outcomes["weights, too"].startswith(
        "ValueError: --init_checkpoint: here the weights are those of --bert_hub"
    )
    assert outcomes["no such directory"].startswith("FileNotFoundError: --bert_hub_module_handle=")
    assert "not a complete zip or tar file" in outcomes["no module"] and outcomes["no module"].startswith("OSError: ")
    assert len(list((folder / "cache" / "tfhub").iterdir())) == 1
    assert not (folder / "out" / "weights, too").exists() and not (folder / "out" / "no such directory").exists()
