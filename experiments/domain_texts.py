"""The texts with which `run_domain.py` is shown on novels: Wikipedia's paragraphs, and a task about novels.

    python -m experiments.domain_texts --squad_train_file=squad/train-v1.1.json --squad_dev_file=squad/dev-v1.1.json \\
      --novels_dir=novels --output_dir=.

In output_dir: wiki.txt, the paragraphs of the first articles of SQuAD's training set, with which weights without a
masked-LM head get one; wiki_other.txt, those of its dev set, to measure what is forgotten; train.csv and dev.csv (text,
other, label): two sentences of novels, of which the second follows the first in half of the rows. The rows to train on
are of train-06.txt and train-07.txt, those to evaluate on of heldout.txt. The same files always give the same texts.
"""

import itertools
import os
import random

from absl import flags

from bert_tf.system import script as system_script
from bert_tf.system.storage import write_files
from experiments.csv_text import csv_text

_TRAINING_ARTICLES, _DEV_ARTICLES = 44, 12  # the first ones of each set
_SHORTEST, _LONGEST = 15, 50  # words of a sentence of the task
_NOVELS = {"train.csv": ("train-06.txt", "train-07.txt"), "dev.csv": ("heldout.txt",)}
_END = 40  # lines at the end that no row begins with
_SEED = 1


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("squad_train_file", None, "Training set of SQuAD 1.1.")
    flags.DEFINE_string("squad_dev_file", None, "Dev set of SQuAD 1.1.")
    flags.DEFINE_string("novels_dir", None, "Novels: train-06.txt, train-07.txt, heldout.txt, one sentence a line.")
    flags.DEFINE_string("output_dir", None, "Directory for the texts.")
    flags.DEFINE_integer("num_train", 2000, "Rows to train on.", lower_bound=1)
    flags.DEFINE_integer("num_dev", 800, "Rows to evaluate on.", lower_bound=1)
    flags.mark_flags_as_required(["squad_train_file", "squad_dev_file", "novels_dir", "output_dir"])


def paragraphs_of_squad(path: str, articles: int) -> str:
    """The paragraphs of the first articles: one a line, an empty line after each article."""
    from bert_tf.tasks.squad.data import read_articles

    texts = (
        [paragraph["context"] for paragraph in article["paragraphs"]] for article in read_articles(path)[:articles]
    )
    return "".join("\n".join(paragraphs) + "\n\n" for paragraphs in texts)


def pairs_of_lines(lines: list[str], count: int, generator: random.Random, where: str) -> list[tuple[str, str, str]]:
    """So many (text, other, label): other is the line after text ("follows"), or any line ("elsewhere").

    Raises:
      ValueError: no two consecutive lines have 15 to 50 words each; names where they are from.
    """
    end = max(1, len(lines) - _END)
    fitting = [_SHORTEST <= len(line.split()) <= _LONGEST for line in lines]
    if not any(first and second for first, second in itertools.pairwise(fitting[: end + 1])):
        raise ValueError(f"{where}: no two consecutive lines have {_SHORTEST} to {_LONGEST} words each.")
    chosen = [line for line, fits in zip(lines, fitting, strict=True) if fits]
    pairs = []
    for _ in range(count):
        index = generator.randrange(end)
        while not (fitting[index] and fitting[index + 1]):
            index = generator.randrange(end)
        follows = generator.random() < 0.5
        other = lines[index + 1] if follows else generator.choice(chosen)
        pairs.append((lines[index], other, "follows" if follows else "elsewhere"))
    return pairs


def write_texts(values) -> None:
    """Writes the four files, all or none.

    Raises:
      ValueError: not a file of SQuAD; the novels have no two consecutive lines of the right length.
    """
    import tensorflow as tf

    from bert_tf.system.text_files import read_text_lines

    texts = {
        "wiki.txt": paragraphs_of_squad(values.squad_train_file, _TRAINING_ARTICLES),
        "wiki_other.txt": paragraphs_of_squad(values.squad_dev_file, _DEV_ARTICLES),
    }
    counts = {"train.csv": values.num_train, "dev.csv": values.num_dev}
    generator = random.Random(_SEED)
    for name, novels in _NOVELS.items():
        paths = [os.path.join(values.novels_dir, novel) for novel in novels]
        lines = [line for path in paths for line in read_text_lines(path)]
        pairs = pairs_of_lines(lines, counts[name], generator, ", ".join(paths))
        texts[name] = csv_text(("text", "other", "label"), pairs)
    tf.io.gfile.makedirs(values.output_dir)
    write_files({os.path.join(values.output_dir, name): text.encode() for name, text in texts.items()})


def main(_) -> None:
    values = flags.FLAGS
    system_script.start_tensorflow()
    write_texts(values)
    print(f"{values.output_dir}: wiki.txt, wiki_other.txt, train.csv, dev.csv; docs/results.md says how to go on.")


if __name__ == "__main__":
    define_flags()
    system_script.run(main)
