"""Runs of scripts on little data, by name: they are killed (test_exact_runs.py, kill_campaign.py), and cut otherwise.

Each scenario is a function that writes what a script reads into a folder, and returns the script and its flags.
"""

import json
import pathlib

import numpy as np
import tensorflow as tf

from bert_tf import BertForMaskedLM, BertForSequenceClassification
from bert_tf.families import as_config
from bert_tf.pretraining.create import create_pretraining_data
from helpers import warm
from helpers.basics import GOLDEN
from helpers.script_cases import command_of
from helpers.tiny import ONE_LAYER, PIECES, WORLDS, save_model, texts_of, write_encoder, write_pretraining_records

SEVERAL_WORKERS = {"distribution_strategy": "multi_worker_mirrored"}
TWO_REPLICAS = {"distribution_strategy": "mirrored", "num_virtual_cpus": 2}


def fine_tuning_flags(script: str, folder: pathlib.Path, **changes) -> dict:
    """Writes an encoder and examples into a folder; returns {flag: value} of a run on them; None takes one away."""
    write_data, ending, extra = WORLDS[script]
    write_encoder(folder, PIECES)
    for seed, (name, count) in enumerate((("train", 32), ("dev", 11), ("test", 7))):
        write_data(folder / f"{name}.{ending}", list(texts_of(count, seed)))
    flags = {
        **extra, "init_checkpoint": folder / "encoder", "do_train": True, "do_eval": True, "max_seq_length": 24,
        "train_file": folder / f"train.{ending}", "dev_file": folder / f"dev.{ending}",
        "predict_file" if script == "run_squad" else "test_file": folder / f"test.{ending}", "train_batch_size": 8,
        "predict_batch_size": 4, "num_train_epochs": 1, "learning_rate": 3e-3, "seed": 3, "deterministic": True,
        "write_tf_records": False, "output_dir": folder / "out", **changes,
    }  # fmt: skip
    return {name: value for name, value in flags.items() if value is not None}


def _fine_tuning(script: str, model=None, **changes):
    """A run that is evaluated and saved often; `model` is its encoder, or the teacher: (flag, family, class)."""

    def write(folder: pathlib.Path) -> tuple[str, dict]:
        often = {"do_predict": True, "num_train_epochs": 3, "eval_every_steps": 6, "save_checkpoints_steps": 3,
                 "iterations_per_loop": 3, "keep_checkpoint_max": 2, "write_tf_records": None}  # fmt: skip
        flags = fine_tuning_flags(script, folder, **{**often, **changes})
        if model:
            flag, family, model_class, *labels = model
            flags[flag] = save_model(folder / "model", family, model_class, **dict(labels))
        return script, flags

    return write


def _pretraining(**changes):
    def write(folder: pathlib.Path) -> tuple[str, dict]:
        (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
        often = {"do_eval": True, "eval_every_steps": 15, "iterations_per_loop": 5}
        given = {**often, "vocab_file": folder / "vocab.txt", **changes}
        return "run_pretraining", flags_of(write_inputs(folder), folder / "out", **given)

    return write


def _unmasked_pretraining(family: str, keys: dict, rows: dict | None = None, **changes):
    """A run on unmasked records; `keys` are those of the model's configuration, `rows` how the records are made."""

    def write(folder: pathlib.Path) -> tuple[str, dict]:
        vocab = GOLDEN / ("tokenization/roberta/vocab.json" if family == "roberta" else "vocab.txt")
        sizes = {"vocab_size": 601 if family == "roberta" else 30522, "hidden_size": 32, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 48}
        kind = {} if family == "bert" else {"model_type": family}
        config = as_config({**kind, **sizes, "hidden_dropout_prob": 0.1, **keys})
        config.save(str(folder / config.file_name))
        create_pretraining_data(
            str(GOLDEN / "pretraining" / "corpus_*.txt"), str(folder / "rows.tfrecord"), str(vocab), max_seq_length=32,
            masking="dynamic", show_progress=False, num_workers=1, **{"nsp": config.has_pooler, **(rows or {})},
        )  # fmt: skip
        flags = {
            "input_file": folder / "rows.tfrecord", "bert_config_file": folder / config.file_name, "do_train": True,
            "do_eval": True, "max_eval_steps": 2, "output_dir": folder / "out", "max_seq_length": 32,
            "max_predictions_per_seq": 6, "train_batch_size": 8, "num_train_steps": 6, "num_warmup_steps": 2,
            "learning_rate": 1e-2, "save_checkpoints_steps": 2, "deterministic": True, "vocab_file": vocab, **changes,
        }  # fmt: skip
        if "student_layers" in changes:
            flags["teacher"] = save_model(folder / "teacher", "bert", BertForMaskedLM)
            del flags["bert_config_file"]
        return "run_pretraining", flags

    return write


def _on_text(script: str, output: str, **changes):
    """A script that reads a text; the flags that are None name what lies beside it."""

    def write(folder: pathlib.Path) -> tuple[str, dict]:
        write_encoder(folder, PIECES)
        for part in range(3):
            lines = [" ".join(words) + ".\n" + "\n" * (number % 9 == 8)
                     for number, (words, *_) in enumerate(texts_of(600, part))]  # fmt: skip
            (folder / f"text-{part}.txt").write_text("".join(lines))
        named = {"vocab_file": folder / "vocab.txt", "init_checkpoint": folder / "encoder"}
        given = {name: named[name] if value is None else value for name, value in changes.items()}
        text = folder / ("text-0.txt" if script == "extract_features" else "text-*.txt")
        return script, {"input_file": text, "output_file": folder / "out" / output, **given}

    return write


def _conversion(folder: pathlib.Path) -> tuple[str, dict]:
    source = GOLDEN / "model" / "config1"
    return "convert_checkpoint", {
        "from": source / "bert_model.ckpt", "to": folder / "out", "format": "huggingface", "overwrite": True,
        "bert_config_file": source / "bert_config.json",
    }  # fmt: skip


def _export(folder: pathlib.Path) -> tuple[str, dict]:
    model = save_model(folder / "model", "bert", BertForSequenceClassification)
    return "export_saved_model", {"model_dir": model, "export_dir": folder / "out", "max_seq_length": 24}


_WINDOWS = {"max_seq_length": 12, "long_texts": "windows", "max_windows": 4, "window_pooling": "attention"}
_TEACHER = ("teacher", "bert", BertForSequenceClassification, ("labels", ["down", "up"]))
FINE_TUNING = {
    "classifier": _fine_tuning("run_classifier"),
    "squad": _fine_tuning("run_squad"),
    "ner": _fine_tuning("run_ner"),
    "swag": _fine_tuning("run_swag"),
    "similarity": _fine_tuning("run_similarity"),
    "classifier with LoRA": _fine_tuning("run_classifier", lora_rank=4, learning_rate=1e-2),
    "classifier of windows": _fine_tuning("run_classifier", **_WINDOWS),
    "classifier with a teacher": _fine_tuning("run_classifier", _TEACHER, init_checkpoint=None, student_layers="1"),
}
PRETRAINING = {
    "pretraining": _pretraining(),
    "pretraining on packed rows": _unmasked_pretraining("bert", {}, {"pack_sequences": True, "short_seq_prob": 0.5}),
    "pretraining left to right": _unmasked_pretraining("bert", {}, {"nsp": False}, nsp=False, objective="ltr"),
    "pretraining of ELECTRA": _unmasked_pretraining(
        "electra", {"embedding_size": 16}, objective="electra", generator_size=0.5
    ),
    "pretraining of ALBERT": _unmasked_pretraining("albert", {"embedding_size": 16}),
    "pretraining of RoBERTa": _unmasked_pretraining("roberta", {}, do_whole_word_mask=True),
    "pretraining of a student": _unmasked_pretraining("bert", {}, student_layers="1", mask_smoothing=0.7),
}
SCENARIOS = {
    **FINE_TUNING,
    **PRETRAINING,
    "classifier without optimizer state": _fine_tuning("run_classifier", keep_checkpoint_max=None),
    "classifier of two replicas": _fine_tuning("run_classifier", **TWO_REPLICAS),
    "classifier in float16": _fine_tuning("run_classifier", dtype="float16"),
    "classifier with seeds": _fine_tuning("run_classifier", num_seeds=2, num_train_epochs=2),
    "classifier with a search": _fine_tuning("run_classifier", search="weight_decay_rate=0.01,0.1", num_seeds=2),
    "pretraining of two replicas": _pretraining(**TWO_REPLICAS),
    "pretraining in float16": _pretraining(dtype="float16"),
    "pretraining of two workers": _pretraining(**SEVERAL_WORKERS, num_train_steps=30),
    "classifier of three workers": _fine_tuning(
        "run_classifier", **SEVERAL_WORKERS, use_best_model=True, train_batch_size=6, eval_batch_size=3,
        predict_batch_size=3,
    ),
    "shards": _on_text("create_pretraining_data", "data.tfrecord", vocab_file=None, num_shards=6, num_workers=2,
                       max_seq_length=32, dupe_factor=2),
    "one file": _on_text("create_pretraining_data", "data.tfrecord", vocab_file=None, max_seq_length=32, dupe_factor=2),
    "vocabulary": _on_text("create_vocab", "vocab.txt", vocab_size=300),
    "features": _on_text("extract_features", "features.jsonl", init_checkpoint=None, layers="-1", max_seq_length=24),
    "conversion": _conversion,
    "export": _export,
}  # fmt: skip


STEPS = 60


def write_inputs(folder: pathlib.Path) -> pathlib.Path:
    (folder / "bert_config.json").write_text(json.dumps(ONE_LAYER))
    write_pretraining_records(folder / "train-0.tfrecord", 40)
    return folder


def flags_of(data, output_dir, **flags) -> dict:
    given = {"input_file": f"{data}/train-*.tfrecord", "bert_config_file": f"{data}/bert_config.json"}
    given |= {"output_dir": output_dir, "max_seq_length": 16, "max_predictions_per_seq": 3, "do_train": True}
    given |= {"num_train_steps": STEPS, "num_warmup_steps": min(10, flags.get("num_train_steps", STEPS))}
    given |= {"train_batch_size": 8, "learning_rate": 1e-3, "save_checkpoints_steps": 10, "log_every_steps": 10}
    return {**given, "deterministic": True, **flags}


def command(data, output_dir, **flags) -> list[str]:
    return command_of("run_pretraining", flags_of(data, output_dir, **flags))


def run(arguments, **options) -> str:
    result = warm.run(arguments, capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr


def values(output_dir, step=STEPS):
    reader = tf.train.load_checkpoint(f"{output_dir}/model.ckpt-{step}")
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


assert_bit_identical = np.testing.assert_equal  # of dictionaries of arrays
