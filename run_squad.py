"""For a checkout: the script is bert_tf/cli/run_squad.py; the names of the original's are here, too."""

from bert_tf.cli.run_squad import FLAGS, main  # noqa: F401
from bert_tf.system import script


def __getattr__(name: str):
    """The names of the original, as in `from run_squad import RawResult`; a run does not load them."""
    from bert_tf import run_squad as names

    return getattr(names, name)


if __name__ == "__main__":
    script.run(main)
