"""run_pretraining.py --objective=electra: from the original's checkpoint to two models, and what it refuses.

The start is tests/golden/electra/training/model.ckpt-8, saved by the original after eight steps.
"""

import json
import shutil

import numpy as np
import pytest
from helpers.masking import CLS, SEP
from helpers.paths import GOLDEN
from helpers.pretraining_runs import values
from helpers.record_files import example_of, write_records
from helpers.script_cases import run_cases

from bert_tf import BertConfig, BertForMaskedLM, ElectraDiscriminator
from bert_tf.families.families import ElectraConfig
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.store import bundle
from bert_tf.store.open import open_model

ELECTRA = GOLDEN / "electra"
START = str(ELECTRA / "training" / "model.ckpt-8")
CONFIG = ElectraConfig(260, 32, 2, 2, 128, embedding_size=24, max_position_embeddings=40)
# Two heads, which nothing in a checkpoint shows.
GENERATOR = ElectraConfig(260, 16, 2, 2, 64, embedding_size=24, max_position_embeddings=40)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("electra")
    for name, config in (("model", CONFIG), ("generator", GENERATOR)):
        (folder / name).mkdir()
        config.save(str(folder / name / "electra_config.json"))
    BertConfig(260, 32, 1, 2, 64).save(str(folder / "bert_config.json"))
    create_pretraining_data(
        str(GOLDEN / "pretraining" / "corpus_*.txt"), str(folder / "packed.tfrecord"), str(ELECTRA / "vocab.txt"),
        max_seq_length=32, max_predictions_per_seq=4, dupe_factor=1, show_progress=False, num_workers=1,
        masking="dynamic", short_seq_prob=1.0, pack_sequences=True,
    )  # fmt: skip
    (folder / "place").mkdir()
    for suffix in (".index", ".data-00000-of-00001"):
        shutil.copy(START + suffix, folder / "place")
    (folder / "place" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-8"\n')
    generator, payloads = np.random.default_rng(0), []
    for _ in range(24):
        first, second = (generator.integers(5, 260, size).tolist() for size in generator.integers(3, 14, 2))
        first, second = [CLS, *first, SEP], [*second, SEP] if len(second) % 2 else []
        ids, padding = first + second, [0] * (32 - len(first + second))
        lists = {"input_ids": ids, "input_mask": [1] * len(ids), "segment_ids": [0] * len(first) + [1] * len(second)}
        payloads.append(example_of({name: values + padding for name, values in lists.items()}))
    write_records(folder / "electra.tfrecord", payloads)  # as ELECTRA's build_pretraining_dataset.py does
    return folder


def flags_of(data, **flags) -> dict:
    given = {
        "objective": "electra", "input_file": data / "packed.tfrecord", "output_dir": data / "run",
        "bert_config_file": data / "model" / "electra_config.json",
        "generator_config_file": data / "generator" / "electra_config.json",
        "vocab_file": ELECTRA / "vocab.txt", "do_train": True, "train_batch_size": 8, "max_seq_length": 32,
        "num_train_steps": 20, "num_warmup_steps": min(4, flags.get("num_train_steps", 20)), "learning_rate": 1e-3,
        "deterministic": True, **flags,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


CASES = {
    "run": {"init_checkpoint": START, "init_with_optimizer": True, "stop_at_step": 10, "save_checkpoints_steps": 10},
    "of the usual size": {"generator_config_file": None, "output_dir": "usual", "stop_at_step": 1,
                          "lr_decay_power": 2.0},
    "a BERT": {"input_file": "electra.tfrecord", "bert_config_file": "bert_config.json", "output_dir": "bert",
               "generator_config_file": None, "objective": "mlm", "nsp": False, "num_train_steps": 1},
    "in its place": {"output_dir": "place", "num_train_steps": 9},
    "both go on": {"init_checkpoint": "run", "generator_config_file": None, "output_dir": "both", "num_train_steps": 1},
    "only one": {"init_checkpoint": "run/discriminator", "output_dir": "one", "num_train_steps": 1,
                 "input_file": "electra.tfrecord"},
    "only the other": {"init_checkpoint": "run/generator", "output_dir": "other", "num_train_steps": 1},
    "untied": {"untied_generator_embeddings": True, "generator_config_file": None, "output_dir": "untied",
               "num_train_steps": 2, "use_xla": True, "dtype": "bfloat16", "disallow_correct": True},
}  # fmt: skip
REFUSED = {
    "another generator": (
        {"generator_config_file": None, "generator_size": 0.5, "stop_at_step": 11, "output_dir": "run"},
        "another configuration of the generator (num_attention_heads: 2 there, 1 now). Choose"),
    "model is a BERT": ({"bert_config_file": "bert_config.json"}, "--objective=electra is for ELECTRA, but"),
}  # fmt: skip
PATHS = ("input_file", "generator_config_file", "bert_config_file", "output_dir", "init_checkpoint")


@pytest.fixture(scope="module")
def runs(data):
    cases = {}
    for name, flags in {
        **CASES,
        **{name: {"output_dir": "none"} | flags for name, (flags, _) in REFUSED.items()},
    }.items():
        paths = {flag: data / value for flag, value in flags.items() if flag in PATHS and value is not None}
        cases[name] = flags_of(data, **{**flags, **paths})
    return data, *run_cases("run_pretraining", cases)


@pytest.mark.slow  # in small: training/test_electra.py
def test_the_originals_run_goes_on(runs):
    """Weights, moments and step are the original's; ours have the same names."""
    data, outcomes, logs = runs
    assert outcomes["run"] == "done", logs["run"]
    there, here = (bundle.CheckpointReader(path) for path in (START, str(data / "run" / "model.ckpt-10")))
    assert here.get_variable_to_shape_map() == there.get_variable_to_shape_map()
    assert here.get_tensor("global_step") == 10
    name = "generator/encoder/layer_0/output/dense/kernel/adam_m"
    assert not np.array_equal(here.get_tensor(name), there.get_tensor(name))
    before = bundle.CheckpointReader(str(data / "run" / "model.ckpt-8"))
    for name in there.get_variable_to_shape_map():
        np.testing.assert_array_equal(before.get_tensor(name), there.get_tensor(name), err_msg=name)
    line = [json.loads(line) for line in (data / "run" / "train_log.jsonl").read_text().splitlines()][-1]
    assert {"masked_lm_loss", "disc_loss", "disc_accuracy", "disc_precision", "disc_recall"} <= line.keys()
    kept = json.loads((data / "run" / "run.json").read_text())
    assert kept["disc_weight"] == 50 and kept["max_predictions_per_seq"] == 4 and "mask_rate" not in kept


@pytest.mark.slow  # in small: training/test_electra.py
def test_a_run_leaves_two_models(runs):
    """Each directory holds its part of the last checkpoint, with the configuration that the run had."""
    data = runs[0]
    checkpoint = bundle.CheckpointReader(str(data / "run" / "model.ckpt-10"))
    for part, model_class, config, scope in (
        ("discriminator", ElectraDiscriminator, CONFIG, "electra/"),
        ("generator", BertForMaskedLM, GENERATOR, "generator/"),
    ):
        folder = data / "run" / part
        names = {"bert_model.safetensors", "electra_config.json", "tokenizer_config.json", "vocab.txt", "README.md"}
        assert {path.name for path in folder.iterdir()} == names
        assert f"{model_class.__name__}.from_pretrained" in (folder / "README.md").read_text() or part != "generator"
        model = model_class.from_pretrained(str(folder))
        assert model.config == config
        np.testing.assert_array_equal(
            model.bert.blocks[1].block_output.dense.kernel.numpy(),
            checkpoint.get_tensor(scope + "encoder/layer_1/output/dense/kernel"),
        )
        # The checkpoint itself has both.
        assert open_model(str(data / "run"), part=part).config == config


@pytest.mark.slow
def test_electra_rejects_another_generator_and_a_bert(runs):
    data, outcomes, _ = runs
    for name, (_, message) in REFUSED.items():
        kind, _, rest = outcomes[name].partition(": ")
        assert kind in ("ValueError", "RecordError") and message in rest and "\n" not in rest, outcomes[name]
    assert not list((data / "none").glob("*config.json")) and not list((data / "none").glob("model*"))


@pytest.mark.slow
def test_where_a_run_may_begin(runs):
    data, outcomes, logs = runs
    for case in CASES:
        assert outcomes[case] == "done", logs[case]
    assert "begins random" not in logs["both go on"]
    both = values(data / "both", 0)
    for name, value in values(data / "run", 10).items():
        if name in both and not name.endswith(("adam_m", "adam_v", "global_step")):
            np.testing.assert_array_equal(both[name], value, err_msg=name)
    for case, folder, missing, scope in (
        ("only one", "one", "generator", "electra/encoder"),
        ("only the other", "other", "discriminator", "generator/encoder"),
    ):
        assert f"has no {missing}: its unshared variables begin random" in logs[case]
        found = values(data / folder, 0)
        for name, value in both.items():
            if name.startswith((scope, "electra/embeddings/")) and "adam" not in name:
                np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert "Resuming at step 8" in logs["in its place"]
    untied = values(data / "untied", 2)
    assert untied["generator/embeddings/word_embeddings"].shape == (260, 8)
    model = BertForMaskedLM.from_pretrained(str(data / "untied" / "generator"))
    assert model.config.embedding_size == model.config.hidden_size == 8
