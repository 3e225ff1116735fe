"""For a checkout: the script is bert_tf/cli/run_classifier_with_tfhub.py."""

from bert_tf.cli.run_classifier_with_tfhub import FLAGS, main  # noqa: F401
from bert_tf.system import script

if __name__ == "__main__":
    script.run(main)
