"""For a checkout: the script is bert_tf/cli/create_vocab.py."""

from bert_tf.cli.create_vocab import FLAGS, main  # noqa: F401
from bert_tf.system import script

if __name__ == "__main__":
    script.run(main)
