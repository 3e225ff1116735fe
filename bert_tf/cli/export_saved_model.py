"""Exports a fine-tuned model as a SavedModel for TensorFlow Serving: strings in, answers out; or for ONNX Runtime.

    python export_saved_model.py --model_dir=mrpc_output/best_model --export_dir=serving/mrpc --text_pairs
    python export_saved_model.py --model_dir=squad_output/best_model --export_dir=serving/squad --dtype=bfloat16

It writes export_dir/VERSION with these signatures: serving_default takes raw strings (the exact tokenizer is in the
graph), serve_ids takes token ids, serve_examples takes serialized tf.Examples of token ids; classifiers also have
serve_pairs, taggers serve_words, encoders embed. It loads wherever TensorFlow and tensorflow_text do. docs/serving.md
shows how to serve and query it.
"""

import dataclasses
import os

from bert_tf.store.description import check_weights
from bert_tf.system import checks, script
from bert_tf.system.declare import REQUIRED, define_flags, flags_given, setting, settings_of
from bert_tf.system.text_files import directory_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """Which model is exported, and how."""

    model_dir: str = setting(
        REQUIRED,
        "The model: a directory with weights, configuration and vocabulary, from run_*.py (output_dir, or better its "
        "best_model) or of any other format that convert_checkpoint.py reads.",
        heading="Export",
        check=check_weights,
        is_model=True,
    )
    export_dir: str = setting(REQUIRED, "Directory of the versions, as servers get it.", check=checks.check_output_dir)
    format: str = setting(
        "saved_model",
        "onnx: export_dir/VERSION with a file for ONNX Runtime that takes token ids, and the tokenizer's files next to "
        "it; onnx_int8: with 8-bit weights. Both need pip install 'bert-tf[onnx]'.",
        choices=("saved_model", "onnx", "onnx_int8"),
    )
    task: str | None = setting(
        None,
        "The model's task. If unset, detected from its output layer.",
        choices=("encoder", "classification", "regression", "squad", "ner", "multiple_choice", "masked_lm"),
    )
    version: int | None = setting(None, "Its number. If unset, one more than the newest there.", least=1, most=10**18)
    max_seq_length: int | None = setting(
        None, "Longer texts are truncated; contexts of questions are windowed. If unset, the length of training."
    )
    dtype: str = setting(
        "float32",
        "Arithmetic of the matrix products; bfloat16 is faster if the processor supports it.",
        heading="With --format=saved_model",
        choices=("float32", "bfloat16"),
    )
    freeze: bool = setting(
        False,
        "Turn the weights into constants of the graph, which lets the CPU's library pack them once. A server then "
        "needs many times their size; with TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1 in its environment it is as fast without.",
    )
    text_pairs: bool = setting(False, "For a classifier of pairs: serving_default takes text and text_pair.")
    top_k: int = setting(5, "masked_lm: guesses for each [MASK]; also with --format=onnx.", least=1)
    warm_up: bool = setting(True, "Add requests that a server runs before it reports that it is ready.")
    ids_only: bool = setting(False, "Leave out what takes texts: the export then loads without tensorflow-text.")


FLAGS = define_flags(ExportSettings)

_OF_SAVED_MODELS = ("dtype", "freeze", "text_pairs", "warm_up", "ids_only")


def main(_):
    settings = settings_of(ExportSettings, FLAGS)
    is_onnx = settings.format != "saved_model"
    for name in flags_given(FLAGS) & {*_OF_SAVED_MODELS} if is_onnx else ():
        raise ValueError(f"--{name} is for --format=saved_model, not for {settings.format}")
    if settings.ids_only and settings.text_pairs:
        raise ValueError("--text_pairs needs an export that takes texts: leave out --ids_only.")
    folder = directory_of(settings.model_dir)
    if f"{os.path.realpath(settings.export_dir)}/".startswith(f"{os.path.realpath(folder)}/"):
        inside = f"is in the folder of --model_dir, {folder}: choose another one."
        raise ValueError(f"--export_dir={settings.export_dir} {inside}")
    if is_onnx:
        checks.check_extra("onnx", f"--format={settings.format}")
    script.start_tensorflow()
    from bert_tf.serving import export, onnx_export

    opened, task = export.open_for(settings.model_dir, settings.task)
    for name, tasks in (("text_pairs", ("classification", "regression")), ("top_k", ("masked_lm",))):
        if task not in tasks and name in flags_given(FLAGS) and getattr(settings, name):
            raise ValueError(f"--{name} is for {' and '.join(tasks)}; --model_dir={settings.model_dir} is for {task}.")
    arguments = {name: getattr(settings, name) for name in ("version", "max_seq_length", "top_k")} | {"task": task}
    if is_onnx:
        write, arguments["int8"] = onnx_export.export_onnx, settings.format == "onnx_int8"
    else:
        write = export.export_saved_model
        arguments |= {name: getattr(settings, name) for name in _OF_SAVED_MODELS}
    print(write(opened, settings.export_dir, **arguments))
