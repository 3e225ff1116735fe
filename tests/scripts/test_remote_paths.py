"""Every path that a script takes or writes may be remote, gs://... say; nothing is left on the local disk.

The scripts run on tests/helpers/remote_files.cc, in an empty directory and with another one for temporary files.
"""

import json

import numpy as np
import pytest
import torch
from helpers.remote import BUCKET, add_file_system, run_on_bucket
from helpers.scenarios import SCENARIOS
from helpers.script_cases import results_of, selected_cases, weights_of
from helpers.slow import slow
from safetensors.torch import load_file

import bert_tf

FAST = ("vocabulary", "shards", "classifier", "features")
OF_SCENARIOS = (*FAST, "squad", "ner", "swag", "similarity", "pretraining", "classifier with seeds")
FORMATS = {"huggingface": "npz", "tf1": "json", "pickle": "tfrecord"}


def steps_of(bucket) -> dict:
    """Name -> (script, flags), in the order in which they run, later ones on what earlier ones left."""
    steps = {name: SCENARIOS[name](bucket / name.replace(" ", "-")) for name in OF_SCENARIOS}
    short = {"num_train_epochs": 1, "num_train_steps": 20, "num_workers": 1, "dupe_factor": 1}
    for _, flags in steps.values():
        flags |= {flag: value for flag, value in short.items() if flag in flags}
    steps["ner"][1]["use_best_model"] = True
    steps["squad"][1]["feature_cache_dir"] = bucket / "cache"
    encoder, best = bucket / "features" / "encoder", bucket / "classifier" / "out" / "best_model"
    _, extract = steps["features"]
    _, tune = steps["classifier"]
    for format in ("huggingface", "tf1"):
        target, report = bucket / "converted" / format, bucket / "out" / f"{format}.txt"
        flags = {"from": encoder, "to": target, "format": format, "report_file": report}
        steps[f"to {format}"] = ("convert_checkpoint", flags)
    for format, file_format in FORMATS.items():
        flags = {"init_checkpoint": bucket / "converted" / format, "output_format": file_format}
        flags["output_file"] = bucket / "out" / f"{format}.{file_format}"
        steps[f"features of {format}"] = ("extract_features", {**extract, **flags})
    data, made = steps["shards"]
    hub = {key: value for key, value in tune.items() if key not in ("init_checkpoint", "output_dir")}
    export = {"model_dir": best, "export_dir": bucket / "export"}
    text = str(made["input_file"]).replace("*", "{}")
    steps |= {
        "pre-training goes on": (steps["pretraining"][0], {**steps["pretraining"][1], "num_train_steps": 30}),
        "packed data": (data, {**made, "output_file": bucket / "out" / "packed.tfrecord", "masking": "dynamic",
                               "num_shards": 1, "pack_sequences": True}),
        "local scratch": (data, {**made, "output_file": bucket / "none.tfrecord", "scratch_dir": bucket / "scratch"}),
        "module": ("run_classifier_with_tfhub", {
            **hub, "bert_hub_module_handle": bucket / "converted" / "tf1", "output_dir": bucket / "module"}),
        "export": ("export_saved_model", export),
        "ablations": ("experiments.ablations", {
            "max_seq_length": 32, "train_text": text.format(0), "heldout_text": text.format(1), "task_name": "MRPC",
            "data_dir": bucket / "mrpc", "output_dir": bucket / "ablations", "tables": "6", "sizes": "L-2_H-128",
            "vocab_size": 200, "num_train_steps": 10, "train_batch_size": 8, "max_eval_steps": 2,
            "fine_tuning_batch_size": 8, "num_train_epochs": 1}),
    }  # fmt: skip
    return steps


def write_inputs(bucket) -> None:
    """Writes what the scenarios do not have: an encoder as a pickle, MRPC."""
    encoder = bert_tf.BertModel.from_pretrained(str(bucket / "features" / "encoder"))
    pickle = bucket / "converted" / "pickle"
    encoder.save_pretrained(str(pickle), format="huggingface")
    torch.save(load_file(pickle / "model.safetensors"), pickle / "pytorch_model.bin")
    (pickle / "model.safetensors").unlink()
    (bucket / "mrpc").mkdir()
    rows = "".join(f"{number % 2}\t1\t2\tw{number}\tw{number + 1}\n" for number in range(16))
    for name in ("train", "dev"):
        (bucket / "mrpc" / f"{name}.tsv").write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + rows)


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """The bucket, outcomes by step, what all wrote to stderr."""
    folder = tmp_path_factory.mktemp("remote")
    bucket = folder / "bucket"
    for name in OF_SCENARIOS:
        (bucket / name.replace(" ", "-")).mkdir(parents=True)
    steps = steps_of(bucket)
    (bucket / "features" / "out").mkdir()
    write_inputs(bucket)
    for name, (script, flags) in steps.items():
        steps[name] = script, {flag: str(value).replace(str(bucket), BUCKET) for flag, value in flags.items()}
    return bucket, *run_on_bucket(folder, selected_cases(request, steps, set(steps) - {*FAST}))


SLOW = (
    *OF_SCENARIOS[len(FAST) :], *(f"features of {format}" for format in FORMATS), "pre-training goes on",
    "packed data", "module", "export", "ablations",
)  # fmt: skip


@pytest.mark.parametrize("name", [*FAST, *slow(*SLOW)])
def test_runs(ran, name):
    _, outcomes, log = ran
    assert outcomes[name] == "done", log[-3000:]


def test_no_temporary_file_is_left_beside_the_outputs(ran):
    bucket, *_ = ran
    names = [str(path.relative_to(bucket)) for path in bucket.rglob("*")]
    assert not [name for name in names if ".tmp" in name or ".writing" in name or ":" in name]


@pytest.mark.slow
def test_outputs_are_complete(ran):
    bucket, outcomes, _ = ran
    refused = f"ValueError: --scratch_dir={BUCKET}/scratch must be a local directory."
    assert outcomes["local scratch"] == refused and not (bucket / "scratch").exists()
    assert results_of(bucket / "pretraining" / "out")["global_step"] == 30
    encoder = weights_of(bucket / "features" / "encoder")
    for format in ("huggingface", "tf1"):
        converted = weights_of(bucket / "converted" / format)
        assert converted.keys() == encoder.keys()
        for name, value in encoder.items():
            np.testing.assert_array_equal(converted[name], value)
    assert "Read back: " in (bucket / "out" / "huggingface.txt").read_text()
    # The same encoder in two formats gives the same features.
    features = np.load(bucket / "out" / "huggingface.npz")["values"]
    lines = [json.loads(line)["features"] for line in (bucket / "out" / "tf1.json").read_text().splitlines()]
    found = [layer["values"] for line in lines for entry in line for layer in entry["layers"]]
    np.testing.assert_allclose(np.reshape(found, features.shape), features, atol=1e-5)
    assert (bucket / "out" / "pickle.tfrecord").stat().st_size > features.nbytes
    assert {"ablations.md", "ablations.json"} < {path.name for path in (bucket / "ablations").iterdir()}
    assert "has run" in next((bucket / "ablations" / "logs").glob("fine_tuning-*.log")).read_text()
    assert list((bucket / "cache").iterdir())


def test_models_are_read_from_remote_paths(ran):
    bucket, *_ = ran
    add_file_system(bucket.parent)
    best = "classifier/out/best_model"
    texts = ["w1 w2", "w5"]
    assert bert_tf.Predictor(f"{BUCKET}/{best}").predict(texts) == bert_tf.Predictor(str(bucket / best)).predict(texts)
    model = bert_tf.BertModel.from_pretrained(f"{BUCKET}/converted/pickle")
    model.save_pretrained(f"{BUCKET}/saved")
    for name, value in weights_of(bucket / "features" / "encoder").items():
        np.testing.assert_array_equal(weights_of(bucket / "saved")[name], value)


@pytest.mark.slow
def test_exports_are_read_from_remote_paths(ran):
    bucket, *_ = ran
    add_file_system(bucket.parent)
    assert bert_tf.Predictor(f"{BUCKET}/export")("w1") == bert_tf.Predictor(str(bucket / "export"))("w1")
