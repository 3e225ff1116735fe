"""For a checkout: the script is bert_tf/cli/run_squad.py; the names of the original's are here, too."""

from bert_tf.cli.run_squad import __getattr__, main  # noqa: F401
from bert_tf.system import script

if __name__ == "__main__":
    script.run(main)
