"""Directories from versions before head_config.json: bert_config.json described the head, too."""

import json
import pathlib


def make_old(folder, **keys) -> None:
    """Puts the keys of an old bert_config.json, under Hugging Face's names, into that of a model directory."""
    path = pathlib.Path(folder) / "bert_config.json"
    (path.parent / "head_config.json").unlink(missing_ok=True)
    values = {**json.loads(path.read_text()), **keys}
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def numbered(*labels) -> dict:
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }
