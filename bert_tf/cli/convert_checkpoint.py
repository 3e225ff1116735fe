"""Converts BERT weights between formats, reports where each variable went, and reads the result back.

    python convert_checkpoint.py --from=uncased_L-12_H-768_A-12 --to=bert-base-hf --format=huggingface
    python convert_checkpoint.py --from=bert-base-uncased --to=bert-base-tf1 --format=tf1

--from may be any of these; the format is detected:
  tf1           a checkpoint of the original (bert_model.ckpt, model.ckpt-1000): its prefix or its directory
  huggingface   a directory or file with model.safetensors or pytorch_model.bin
  model_garden  a TF2 checkpoint of tf-models-official, or the SavedModel of TensorFlow Hub / Kaggle
  bert_tf       a directory of this project
The files next to the weights are converted, too: configuration, vocabulary, casing. On an error, nothing is written.
"""

import os
import signal
import sys

from absl import logging

from bert_tf.conversion.convert import ConversionSettings, prepare
from bert_tf.store.description import check_weights
from bert_tf.store.open import is_light
from bert_tf.system import script, storage
from bert_tf.system.declare import define_flags, settings_of

FLAGS = define_flags(ConversionSettings)


def main(_):
    settings = settings_of(ConversionSettings, FLAGS)
    check_weights(settings.from_, "--from")
    conversion = prepare(settings) if is_light(settings.from_) else None
    # On SIGTERM, temporary files are still removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    script.start_tensorflow()
    report = (conversion or prepare(settings)).carry_out()
    print(report.text())
    if settings.report_file:
        storage.gfile().makedirs(os.path.dirname(settings.report_file) or ".")
        storage.write_text_file(settings.report_file, report.text() + "\n")
        logging.info("Wrote the report to %s.", settings.report_file)
