"""For a checkout: the script is bert_tf/cli/run_classifier.py; the names of the original's are here, too."""

from bert_tf.cli.run_classifier import FLAGS, main  # noqa: F401
from bert_tf.system import script


def __getattr__(name: str):
    """The names of the original, as in `from run_classifier import InputExample`; a run does not load them."""
    from bert_tf import run_classifier as names

    return getattr(names, name)


if __name__ == "__main__":
    script.run(main)
