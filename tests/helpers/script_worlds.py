"""For each script, what it reads, and flags with which it runs in a moment."""

import json
import pathlib

from bert_tf import BertForSequenceClassification
from helpers.descendants import save_model
from helpers.scenarios import fine_tuning_flags
from helpers.small_data import PIECES, WORLDS, texts_of
from helpers.tiny import ONE_LAYER, write_encoder, write_pretraining_records


def write_world(script, folder) -> dict:
    """Writes what a script reads, and returns flags with which it runs."""
    (folder / "text.txt").write_text("".join(" ".join(words) + ".\n" for words, *_ in texts_of(40, 0)))
    (folder / "garbage").write_bytes(bytes(range(256)) * 9)
    (folder / "empty").mkdir()
    encoder = {"init_checkpoint": folder / "encoder"}
    if script in (*WORLDS, "run_classifier_with_tfhub"):
        hub = {"init_checkpoint": None, "bert_hub_module_handle": folder / "encoder"}
        own = {"do_predict": True, "train_batch_size": 32, "write_tf_records": None}
        own |= hub if script.endswith("tfhub") else {}
        return fine_tuning_flags(script.removesuffix("_with_tfhub"), folder, **own)
    write_encoder(folder, PIECES)
    if script == "run_pretraining":
        write_pretraining_records(folder / "records.tfrecord", 8)
        (folder / "config.json").write_text(json.dumps(ONE_LAYER))
        return {
            "input_file": folder / "records.tfrecord", "bert_config_file": folder / "config.json", "do_train": True,
            "max_seq_length": 16, "max_predictions_per_seq": 3, "train_batch_size": 4, "num_train_steps": 1,
            "num_warmup_steps": 0, "output_dir": folder / "out", "vocab_file": folder / "vocab.txt",
        }  # fmt: skip
    text = {"input_file": folder / "text.txt"}
    if script == "export_saved_model":
        save_model(folder / "model", "bert", BertForSequenceClassification)
    WORLDS["run_classifier"][0](folder / "task.csv", list(texts_of(40, 0)))
    task = {"train_file": folder / "task.csv", "dev_file": folder / "task.csv", "text_a": "text", "label": "verdict"}
    return {
        "run_domain": {
            **text, **encoder, **task, "heldout_file": folder / "text.txt", "other_text": folder / "text.txt",
            "max_seq_length": 24, "output_dir": folder / "out",
        },
        "create_pretraining_data": {**text, "vocab_file": folder / "vocab.txt", "output_file": folder / "out/data"},
        "create_vocab": {**text, "output_file": folder / "out" / "vocab.txt", "vocab_size": 200},
        "convert_checkpoint": {"from": folder / "encoder", "to": folder / "out", "format": "tf1"},
        "export_saved_model": {"model_dir": folder / "model", "export_dir": folder / "out", "max_seq_length": 24},
        "extract_features": {
            **text, **encoder, "output_file": folder / "out.jsonl", "max_seq_length": 24, "layers": "-1",
        },
        "serve_client": {"server": "localhost:1", "model": "m", "input": "text=a", "timeout": 1},
    }[script]  # fmt: skip


def contents(folder: pathlib.Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
