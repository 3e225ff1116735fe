"""What a TPU needs: any path may be remote, gs://... say, and every step is one XLA program with static shapes.

The scripts run on tests/helpers/remote_files.cc, in an empty directory and with another one for temporary files; and
for the CPU helpers/one_program.py compiles what they give to `strategy.run`. Also run_domain.py from end to end.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
import torch
from helpers import one_program, warm
from helpers.basics import directory_of, exhaustive, slow
from helpers.remote import BUCKET, add_file_system, run_on_bucket
from helpers.scenarios import FINE_TUNING, PRETRAINING, SCENARIOS, TWO_REPLICAS
from helpers.script_cases import arguments_of, command_of, results_of, run_mains, selected_cases, weights_of
from helpers.tiny import save_model, texts_of, write_classification
from helpers.warm import kill_after_rename
from safetensors.torch import load_file

import bert_tf
from bert_tf import BertForPreTraining, BertForSequenceClassification, read_tokenizer

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


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """The bucket, outcomes by step, what all wrote to stderr."""
    folder = tmp_path_factory.mktemp("remote")
    bucket = folder / "bucket"
    for name in OF_SCENARIOS:
        (bucket / name.replace(" ", "-")).mkdir(parents=True)
    steps = steps_of(bucket)
    (bucket / "features" / "out").mkdir()
    # What the scenarios do not have: an encoder as a pickle, and MRPC.
    encoder = bert_tf.BertModel.from_pretrained(str(bucket / "features" / "encoder"))
    pickle = bucket / "converted" / "pickle"
    encoder.save_pretrained(str(pickle), format="huggingface")
    torch.save(load_file(pickle / "model.safetensors"), pickle / "pytorch_model.bin")
    (pickle / "model.safetensors").unlink()
    rows = "".join(f"{number % 2}\t1\t2\tw{number}\tw{number + 1}\n" for number in range(16))
    text = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + rows
    directory_of(bucket / "mrpc", train__tsv=text, dev__tsv=text)
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
        np.testing.assert_equal(weights_of(bucket / "converted" / format), encoder)
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
    np.testing.assert_equal(weights_of(bucket / "saved"), weights_of(bucket / "features" / "encoder"))


@pytest.mark.slow
def test_exports_are_read_from_remote_paths(ran):
    bucket, *_ = ran
    add_file_system(bucket.parent)
    assert bert_tf.Predictor(f"{BUCKET}/export")("w1") == bert_tf.Predictor(str(bucket / "export"))("w1")


@pytest.mark.slow  # in small: test_recipe.py
def test_a_domain_from_end_to_end_killed_on_the_way(tmp_path):
    people = ["king", "queen", "smith", "miller", "farmer", "singer", "captain", "doctor"]
    pairs = [(people[k % 8], people[(k + 3) % 8]) for k in range(120)]
    tales = (f"The {one} saw the zorblax. The {other} fed the zorblax of the {one}. So it was." for one, other in pairs)
    (tmp_path / "tales.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in tales))
    (tmp_path / "news.txt").write_text("A train stopped in the city. Nobody was there to see it.\n" * 60)
    for seed, name in enumerate(("train", "dev")):
        write_classification(tmp_path / f"{name}.csv", list(texts_of(16, seed)))
    out, model = tmp_path / "out", save_model(tmp_path / "model", "bert", BertForPreTraining)
    command = command_of("run_domain", {
        "init_checkpoint": model, "output_dir": out, "input_file": tmp_path / "tales.jsonl", "new_words": 5,
        "other_text": tmp_path / "news.txt", "train_file": tmp_path / "train.csv", "dev_file": tmp_path / "dev.csv",
        "text_a": "text", "label": "verdict", "max_seq_length": 32, "num_train_steps": 60, "train_batch_size": 8,
        "learning_rate": 1e-2, "num_seeds": 1, "fine_tuning_flag": "--num_train_epochs=2",
    })  # fmt: skip
    command += [f"--pretraining_flag=--{flag}" for flag in ("save_checkpoints_steps=5", "eval_every_steps=20")]
    for kind in ("pretraining", "fine_tuning"):  # several trainings of other shapes in a process
        command += [f"--{kind}_flag={flag}" for flag in arguments_of(TWO_REPLICAS)]
    kill_after_rename(out / "pretrained" / "model.ckpt-10.index", command)
    result = warm.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-5000:]
    assert "Resuming at step 5 " in result.stderr  # the later one was being noted
    content = json.loads((out / "domain.json").read_text())
    assert content["pieces_per_word"]["after"] == 1.0 < content["pieces_per_word"]["before"]
    losses = content["losses"]["heldout"]
    assert losses["after"]["masked_lm_loss"] < losses["before"]["masked_lm_loss"] - 1
    assert {"next_sentence_accuracy", "masked_lm_accuracy"} < set(losses["after"])
    assert "| masked_lm_loss | " in result.stdout and str(out / "domain.md") in result.stdout
    tokenizer = read_tokenizer(content["model"])
    assert tokenizer.tokenize("The Zorblax") == ["the", "zorblax"]
    BertForSequenceClassification.from_pretrained(content["model"], num_labels=2)
    start = BertForPreTraining.from_pretrained(str(out / "start"))
    assert start.config.vocab_size == 30523 and start.count_params() > 30523 * 32
    again = warm.run(command, capture_output=True, text=True)
    assert again.returncode == 0 and result.stdout.endswith(again.stdout) and again.stdout


# Like others of their kind.
ALIKE = ("pretraining of ALBERT", "pretraining of RoBERTa", "swag", "classifier with LoRA")
CASES = [name for name in (*FINE_TUNING, *PRETRAINING) if name not in ALIKE]


@pytest.mark.parametrize("name", ["features", *slow(*CASES), *exhaustive(*ALIKE)])
def test_each_step_is_one_static_program(name, tmp_path):
    script, flags = SCENARIOS[name](tmp_path)
    flags["distribution_strategy"] = "tpu"
    if name in FINE_TUNING:
        flags |= {"num_train_epochs": 1}
    if name in PRETRAINING:
        flags |= {"num_train_steps": 4, "num_warmup_steps": 1, "iterations_per_loop": 2, "max_eval_steps": 2}
        flags |= {"gradient_accumulation_steps": 2}
    if name == "features":
        (tmp_path / "out").mkdir()
    else:
        flags |= {"deterministic": False, "eval_every_steps": 0, "save_checkpoints_steps": 1000}
    ended, log = run_mains({name: (script, flags)}, "helpers.one_program")
    outcome, reports = ended[name]
    assert outcome == "done" and reports, log[-3000:]
    for report in reports:
        assert not report["found"] and set(report["modules"]) == {1}, report
        assert report["traces"] <= 2, report  # with labels, and to predict
    training = [report for report in reports if report["name"] == "Trainer.replica_step"]
    assert [report["traces"] for report in training] == [1] * (name != "features")  # batches have one shape


def test_what_a_tpu_can_not_run_is_found():
    """The check itself: a step with shapes that depend on values, and one with work for the host."""
    strategy = one_program.Strategy()
    strategy.run(lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0)), (tf.constant([1.0, -1.0]),))
    strategy.run(lambda x: 2 * x, (tf.constant([1.0, -1.0]),))
    dynamic, static = one_program.report()
    assert dynamic["found"] and not static["found"]
    with pytest.raises(tf.errors.InvalidArgumentError):
        strategy.run(lambda x: tf.strings.length(tf.strings.as_string(x)), (tf.constant([1.0]),))
    one_program._functions.clear()
