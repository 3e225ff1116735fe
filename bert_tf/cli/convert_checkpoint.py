"""Converts BERT weights between formats, reports where each variable went, and reads the result back.

    python convert_checkpoint.py --from=uncased_L-12_H-768_A-12 --to=bert-base-hf --format=huggingface
    python convert_checkpoint.py --from=bert-base-uncased --to=bert-base-tf1 --format=tf1

--from may be any of these; the format is detected:
  tf1           a checkpoint of the original (bert_model.ckpt, model.ckpt-1000): its prefix or its directory
  huggingface   a directory or file with model.safetensors or pytorch_model.bin
  model_garden  a TF2 checkpoint of tf-models-official, or the SavedModel of TensorFlow Hub / Kaggle
  bert_tf       a directory of this project
The files beside the weights are converted, too: configuration, vocabulary, casing. On an error, nothing is written.
"""

import dataclasses
import functools
import os
import signal
import sys

from absl import flags, logging

from bert_tf.conversion import convert
from bert_tf.store.description import check_weights, vocabulary_in
from bert_tf.store.open import FORMATS, is_light
from bert_tf.system import checks, script, storage
from bert_tf.system.declare import REQUIRED, define_flags, setting, settings_of

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionSettings:
    """What is converted, and how."""

    from_: str = setting(
        REQUIRED,
        "The weights: a directory, a checkpoint prefix or a weight file.",
        heading="Conversion",
        is_model=True,
    )
    to: str = setting(
        REQUIRED,
        "Directory to write; for tf1 also a prefix such as out/bert_model.ckpt.",
        check=checks.check_output_dir,
    )
    format: str = setting(
        REQUIRED,
        "Format to write. "
        + " ".join(f"{name}: {format.help}" for name, format in FORMATS.items() if format.file_name),
        choices=[name for name, format in FORMATS.items() if format.file_name],
    )
    overwrite: bool = setting(False, "Replace existing files of the target.")
    with_optimizer: bool = setting(
        False, "Also convert Adam moments and global_step, to continue a run (tf1, bert_tf)."
    )
    part: str | None = setting(
        None,
        "Which model of an ELECTRA checkpoint that has both. If unset, the discriminator, or the only one there.",
        choices=("discriminator", "generator"),
    )
    report_file: str | None = setting(None, "Also write the report to this file.", check=checks.check_output_file)
    bert_config_file: str | None = setting(
        None,
        "Configuration of the model, if there is none beside the weights or it is wrong.",
        heading="Files beside the weights",
    )
    hidden_act: str | None = setting(
        None,
        "Activation to write instead of the source's. gelu is the original's tanh form, gelu_erf Hugging Face's gelu.",
        choices=("gelu", "gelu_erf", "relu", "tanh", "linear"),
    )
    vocab_file: str | None = setting(
        None,
        "Vocabulary to write with the weights, if there is none beside them.",
        model_file=vocabulary_in,
    )
    do_lower_case: bool | None = setting(
        None, "Whether the model is uncased; needed only if the directory does not say. If unset, as that says."
    )
    strip_accents: bool | None = setting(
        None, "Whether to strip accents. If unset, as the directory says, or else as do_lower_case."
    )


define_flags(ConversionSettings)


def main(_):
    settings = settings_of(ConversionSettings, FLAGS)
    check_weights(settings.from_, "--from")
    arguments, report_file = vars(settings).copy(), settings.report_file
    source, target = arguments.pop("from_"), arguments.pop("to")
    prepare = functools.partial(convert.prepare, source, target, **arguments)
    conversion = prepare() if is_light(source) else None
    # On SIGTERM, temporary files are still removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    script.start_tensorflow()
    report = (conversion or prepare()).carry_out()
    print(report.text())
    if report_file:
        storage.gfile().makedirs(os.path.dirname(report_file) or ".")
        storage.write_text_file(report_file, report.text() + "\n")
        logging.info("Wrote the report to %s.", report_file)
