"""Writes the outputs of BERT's layers for each token of a text, as features for another model (paper, section 5.3).

    echo 'Who was Jim Henson ? ||| Jim Henson was a puppeteer' > input.txt
    python extract_features.py --input_file=input.txt --output_file=output.jsonl --init_checkpoint=$BERT_BASE_DIR

One text per line, or two with ` ||| ` between them. The output is the original's: a JSON object for each line, with
`linex_index` and, for each token, the values of the layers. That is 9 characters per number; for large inputs use
--output_format=npz or tfrecord, with 4 bytes per number, unrounded. For one row per word instead of one per word piece:
--pooling=mean (or first, or max). For one vector per line: --pooling=sentence.
"""

from bert_tf.system import script
from bert_tf.system.declare import define_flags, settings_of
from bert_tf.tasks.features.settings import FeatureSettings

FLAGS = define_flags(FeatureSettings)


def main(_):
    settings = settings_of(FeatureSettings, FLAGS, FeatureSettings.check)
    script.start_tensorflow(settings.num_virtual_cpus, trains=False)
    from bert_tf.tasks.features import extract

    extract.run(settings)
