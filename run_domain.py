"""For a checkout: the script is bert_tf/cli/run_domain.py."""

from bert_tf.cli.run_domain import FLAGS, main  # noqa: F401
from bert_tf.system import script

if __name__ == "__main__":
    script.run(main)
