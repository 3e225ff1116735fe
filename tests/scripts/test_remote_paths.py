"""Every path that a script takes or writes may be remote, gs://... say; nothing is left on the local disk.

The scripts run on tests/helpers/remote_files.cc, in an empty directory and with another one for temporary files.
"""

import json
import random

import numpy as np
import pytest
import torch
from helpers.remote import PLACE, add_file_system, run_on_bucket
from helpers.script_cases import results_of, selected_cases, weights_of
from helpers.slow import slow
from helpers.tiny import ONE_LAYER, write_encoder
from safetensors.torch import load_file

import bert_tf

MARKS = ["first", "second", "third"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "which", *MARKS]
PIECES += [f"w{number}" for number in range(100 - len(PIECES))]
SENTENCES = ["the cat sat down", "a dog ran home", "birds fly south in autumn", "rain fell all day"]
LENGTH = {"max_seq_length": 32}
FINE_TUNING = {
    **LENGTH, "init_checkpoint": f"{PLACE}/encoder", "do_train": True, "do_eval": True, "do_predict": True,
    "train_batch_size": 8, "predict_batch_size": 4, "num_train_epochs": 1, "use_best_model": True, "seed": 3,
}  # fmt: skip
FEATURES = {"input_file": f"{PLACE}/lines.txt", "layers": "-1", "max_seq_length": 16, "batch_size": 2}


def write_inputs(bucket) -> None:
    """Writes all that the scripts read: text, a vocabulary, an encoder in several formats, examples of every task."""
    choose = random.Random(0).choice
    (bucket / "text").mkdir()
    for part in range(2):
        lines = [choose(SENTENCES) + "\n" + "\n" * (number % 5 == 4) for number in range(60)]
        (bucket / "text" / f"part-{part}.txt").write_text("".join(lines))
    write_encoder(bucket, PIECES)
    encoder = bert_tf.BertModel.from_pretrained(str(bucket / "encoder"))
    encoder.save_pretrained(str(bucket / "pickle"), format="huggingface")
    weights = bucket / "pickle" / "model.safetensors"
    torch.save(load_file(weights), bucket / "pickle" / "pytorch_model.bin")
    weights.unlink()
    (bucket / "config.json").write_text(json.dumps({**ONE_LAYER, "vocab_size": 200}))
    (bucket / "lines.txt").write_text("w1 w2 ||| w3\nw4 w5\n")
    (bucket / "new.txt").write_text("unheard\n")
    labels = [f"w{number} w{number + 1}\t{'ab'[number % 2]}\n" for number in range(16)]
    (bucket / "pairs.tsv").write_text("text\tlabel\n" + "".join(labels))
    (bucket / "check.tsv").write_text("".join(labels))
    (bucket / "mrpc").mkdir()
    rows = "".join(f"{number % 2}\t1\t2\tw{number}\tw{number + 1}\n" for number in range(16))
    for name in ("train", "dev"):
        (bucket / "mrpc" / f"{name}.tsv").write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + rows)
    (bucket / "ner.conll").write_text("".join(f"w{n} B-PER\nw{n + 1} O\n\n" for n in range(16)))
    choices = "".join(f"{n},w{n},w1,w2,w3,w4,w5,{n % 4}\n" for n in range(16))
    (bucket / "swag.csv").write_text("number,sent1,sent2,ending0,ending1,ending2,ending3,label\n" + choices)
    paragraphs = []
    for number in range(16):
        answer = {"text": MARKS[number % 3], "answer_start": 3}
        question = {"id": str(number), "question": "which", "answers": [answer]}
        paragraphs.append({"context": f"w1 {answer['text']} w2 w{number}", "qas": [question]})
    (bucket / "squad.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))


def files_of(task: str, *names: str) -> dict:
    return {f"{name}_file": f"{PLACE}/{task}" for name in names}


def steps_of() -> dict:
    """Name -> (script, flags), in the order in which they run; later steps build on earlier ones."""
    text = {"input_file": f"{PLACE}/text/part-*.txt"}
    data = {
        **text, **LENGTH, "vocab_file": f"{PLACE}/made/vocab.txt", "max_predictions_per_seq": 5, "dupe_factor": 2,
        "num_workers": 1,
    }  # fmt: skip
    pretraining = {
        **LENGTH, "input_file": f"{PLACE}/made/data.tfrecord*", "eval_input_file": f"{PLACE}/made/data.tfrecord*",
        "bert_config_file": f"{PLACE}/config.json", "output_dir": f"{PLACE}/pretraining", "do_train": True,
        "do_eval": True, "num_train_steps": 4, "num_warmup_steps": 1, "save_checkpoints_steps": 2,
        "max_predictions_per_seq": 5, "train_batch_size": 8, "eval_batch_size": 8, "max_eval_steps": 2,
        "keep_checkpoint_max": 2,
    }  # fmt: skip
    custom = {"task_name": "custom", "text_a": "text", "label": "label"}
    custom |= files_of("pairs.tsv", "train", "dev", "test")
    hub = {name: value for name, value in FINE_TUNING.items() if name != "init_checkpoint"}
    squad = {"doc_stride": 12, "max_query_length": 4, "feature_cache_dir": f"{PLACE}/cache"}

    def converted(source: str, format: str, **flags) -> tuple[str, dict]:
        target = f"{PLACE}/converted-{format}"
        report = f"{PLACE}/out/{format}.txt"
        return "convert_checkpoint", {
            "from": f"{PLACE}/{source}", "to": target, "format": format, "report_file": report, **flags
        }  # fmt: skip

    def features(source: str, format: str) -> tuple[str, dict]:
        given = {"init_checkpoint": f"{PLACE}/{source}", "output_file": f"{PLACE}/{source}.{format}"}
        return "extract_features", {**FEATURES, **given, "output_format": format}

    return {
        "vocabulary": ("create_vocab", {**text, "output_file": f"{PLACE}/made/vocab.txt", "vocab_size": 200}),
        "data": ("create_pretraining_data", {**data, "output_file": f"{PLACE}/made/data.tfrecord", "num_shards": 2}),
        "classifier": ("run_classifier", {**FINE_TUNING, **custom, "output_dir": f"{PLACE}/classifier"}),
        "features": features("encoder", "npz"),
        # --- slow
        "features again": features("encoder", "npz"),  # replaces the file
        "to huggingface": converted("encoder", "huggingface"),
        "features of huggingface": features("converted-huggingface", "npz"),
        "export": (
            "export_saved_model",
            {
                "model_dir": f"{PLACE}/classifier/best_model", "export_dir": f"{PLACE}/export",
                "check_file": f"{PLACE}/check.tsv",
            },
        ),
        "packed data": (
            "create_pretraining_data",
            {
                **data, "output_file": f"{PLACE}/made/packed.tfrecord", "masking": "dynamic", "pack_sequences": True,
                "compression": "gzip", "dupe_factor": 1,
            },
        ),
        "local scratch": (
            "create_pretraining_data",
            {**data, "output_file": f"{PLACE}/made/none.tfrecord", "scratch_dir": f"{PLACE}/scratch"},
        ),
        "pre-training": ("run_pretraining", pretraining),
        "pre-training goes on": ("run_pretraining", {**pretraining, "num_train_steps": 6}),
        "to tf1": converted("encoder", "tf1"),
        "to bert_tf": converted("classifier", "bert_tf", add_tokens=f"{PLACE}/new.txt", use_unused_slots=False),
        "features of tf1": features("converted-tf1", "json"),
        "features of a pickle": features("pickle", "tfrecord"),
        "classifier seeds": (
            "run_classifier", {**FINE_TUNING, **custom, "num_seeds": 2, "output_dir": f"{PLACE}/seeds"}
        ),
        "module": (
            "run_classifier_with_tfhub",
            {
                **hub, **custom, "bert_hub_module_handle": f"{PLACE}/converted-tf1",
                "output_dir": f"{PLACE}/module",
            },
        ),
        "squad": (
            "run_squad",
            {
                **FINE_TUNING, **squad, **files_of("squad.json", "train", "dev", "predict"),
                "output_dir": f"{PLACE}/squad",
            },
        ),
        "ner": (
            "run_ner",
            {**FINE_TUNING, **files_of("ner.conll", "train", "dev", "test"), "output_dir": f"{PLACE}/ner"},
        ),
        "swag": (
            "run_swag",
            {**FINE_TUNING, **files_of("swag.csv", "train", "dev", "test"), "output_dir": f"{PLACE}/swag"},
        ),
        "export to tflite": (
            "export_saved_model",
            {"model_dir": f"{PLACE}/ner/best_model", "export_dir": f"{PLACE}/export", "format": "tflite"},
        ),
        "ablations": (
            "experiments.ablations",
            {
                **LENGTH, "train_text": f"{PLACE}/text/part-0.txt", "heldout_text": f"{PLACE}/text/part-1.txt",
                "task_name": "MRPC", "data_dir": f"{PLACE}/mrpc", "output_dir": f"{PLACE}/ablations", "tables": "6",
                "sizes": "L-2_H-128", "vocab_size": 200, "num_train_steps": 10, "train_batch_size": 8,
                "max_eval_steps": 2, "fine_tuning_batch_size": 8, "num_train_epochs": 1,
            },
        ),
    }  # fmt: skip


FAST = ("vocabulary", "data", "classifier", "features")
SLOW = tuple(name for name in steps_of() if name not in FAST)


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """The bucket, outcomes by step."""
    folder = tmp_path_factory.mktemp("remote")
    bucket = folder / "bucket"
    bucket.mkdir()
    write_inputs(bucket)
    return bucket, *run_on_bucket(folder, selected_cases(request, steps_of(), set(SLOW)))


@pytest.mark.parametrize("name", [*FAST, *slow(*(name for name in SLOW if name != "local scratch"))])
def test_runs(ran, name):
    _, outcomes, log = ran
    assert outcomes[name] == "done", log[-3000:]


def test_no_temporary_file_is_left_beside_the_outputs(ran):
    bucket, *_ = ran
    names = [str(path.relative_to(bucket)) for path in bucket.rglob("*")]
    assert not [name for name in names if ".tmp" in name or ".writing" in name or ":" in name]


@pytest.mark.slow
def test_what_needs_local_files_is_refused(ran):
    bucket, outcomes, _ = ran
    refused = f"ValueError: --scratch_dir={PLACE}/scratch must be a local directory."
    assert outcomes["local scratch"] == refused
    assert not (bucket / "scratch").exists()


@pytest.mark.slow
def test_outputs_are_complete(ran):
    bucket, *_ = ran
    steps = sorted(path.name for path in (bucket / "pretraining").glob("model.ckpt-*.index"))
    assert steps == ["model.ckpt-4.index", "model.ckpt-6.index"]
    assert results_of(bucket / "pretraining")["global_step"] == 6
    encoder = weights_of(bucket / "encoder")
    for format in ("huggingface", "tf1"):
        converted = weights_of(bucket / f"converted-{format}")
        assert converted.keys() == encoder.keys()
        for name, value in encoder.items():
            np.testing.assert_array_equal(converted[name], value)
    assert "Read back: " in (bucket / "out" / "huggingface.txt").read_text()
    # The same encoder in two formats gives the same features.
    values = [np.load(bucket / f"{name}.npz")["values"] for name in ("encoder", "converted-huggingface")]
    np.testing.assert_array_equal(*values)
    assert (bucket / "pickle.tfrecord").stat().st_size > values[0].nbytes
    assert {"ablations.md", "ablations.json"} < {path.name for path in (bucket / "ablations").iterdir()}
    assert "has run" in next((bucket / "ablations" / "logs").glob("fine_tuning-*.log")).read_text()
    assert (bucket / "export" / "model.tflite").stat().st_size


def test_models_are_read_from_remote_paths(ran):
    bucket, *_ = ran
    add_file_system(bucket.parent)
    best = "classifier/best_model"
    texts = ["w1 w2", "w5"]
    assert bert_tf.Predictor(f"{PLACE}/{best}").predict(texts) == bert_tf.Predictor(str(bucket / best)).predict(texts)
    model = bert_tf.BertModel.from_pretrained(f"{PLACE}/pickle")
    model.save_pretrained(f"{PLACE}/saved")
    for name, value in weights_of(bucket / "encoder").items():
        np.testing.assert_array_equal(weights_of(bucket / "saved")[name], value)


@pytest.mark.slow
def test_exports_are_read_from_remote_paths(ran):
    bucket, *_ = ran
    add_file_system(bucket.parent)
    assert bert_tf.Predictor(f"{PLACE}/export")("w1") == bert_tf.Predictor(str(bucket / "export"))("w1")
