"""Fine-tunes a BERT of TensorFlow Hub or Kaggle: run_classifier.py with --bert_hub_module_handle in place of weights.

The original's command works unchanged, with the address of a SavedModel or its directory:

    python run_classifier_with_tfhub.py --task_name=MRPC --do_train --do_eval --data_dir=$GLUE_DIR/MRPC \\
      --bert_hub_module_handle=https://tfhub.dev/tensorflow/bert_en_uncased_L-12_H-768_A-12/4 \\
      --max_seq_length=128 --num_train_epochs=3.0 --output_dir=runs/mrpc_output/

The module is kept in ~/.cache/bert_tf, or BERT_TF_CACHE. Vocabulary and casing come from it. A module for TF1 has no
configuration: give --bert_config_file, too. The result is a model of this project, which the other scripts take.
"""

import dataclasses

from bert_tf.cli.run_classifier import main as fine_tune
from bert_tf.store.description import check_weights
from bert_tf.system.declare import ORIGINAL, REQUIRED, define_flags, setting
from bert_tf.system.released_models import download_hub_module


@dataclasses.dataclass(frozen=True)
class HubSettings:
    """What this script has besides run_classifier.py's."""

    bert_hub_module_handle: str = setting(
        REQUIRED, "Address of a BERT on TensorFlow Hub or Kaggle, or the directory of its SavedModel.", heading=ORIGINAL
    )


FLAGS = define_flags(HubSettings)


def main(_):
    if FLAGS.init_checkpoint:
        raise ValueError("--init_checkpoint: here the weights are those of --bert_hub_module_handle; leave it out.")
    handle = FLAGS.bert_hub_module_handle
    if handle.startswith(("http://", "https://")):
        handle = download_hub_module(handle)
    check_weights(handle, "--bert_hub_module_handle")
    FLAGS["init_checkpoint"].parse(handle)
    fine_tune([])
