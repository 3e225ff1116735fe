"""Tiny models to export, and progress bars without a delay."""

import types

import numpy as np
import tensorflow as tf

from bert_tf.families.config import BertConfig
from bert_tf.serving import export
from bert_tf.system.messages import progress_bar
from helpers.op_by_op import op_by_op
from helpers.outputs import enlarge
from helpers.paths import ROOT
from helpers.tiny import ONE_LAYER

VOCAB = str(ROOT / "tests" / "golden" / "vocab.txt")

CONFIG = {**ONE_LAYER, "vocab_size": 30522, "max_position_embeddings": 64}


def save(folder, model_class, config=None, **arguments) -> str:
    model = model_class(BertConfig.from_dict({**CONFIG, **(config or {})}, allow_unknown=True), **arguments)
    enlarge(model).save_pretrained(str(folder), vocab_file=VOCAB, do_lower_case=True)
    return str(folder)


def signature_of(model_dir: str, task: str, name: str = "serving_default", **strings) -> dict[str, np.ndarray]:
    signature = export.create_served_model(*export.open_for(model_dir, task)).signatures()[name]
    with op_by_op():
        outputs = signature(**{name: tf.constant(values) for name, values in strings.items()})
    return {name: value.numpy() for name, value in outputs.items()}


def load_no_graphs(monkeypatch) -> None:
    monkeypatch.setattr(tf.saved_model, "load", lambda path: types.SimpleNamespace(signatures={}))


def show_progress_at_once(monkeypatch, module) -> list[dict]:
    """Removes the delay of a module's progress bars; returns a list that collects the options of each."""
    given = []

    def without_delay(iterable, **options):
        given.append(options)
        return progress_bar(iterable, **{**options, "delay": 0})

    monkeypatch.setattr(module, "progress_bar", without_delay)
    return given
