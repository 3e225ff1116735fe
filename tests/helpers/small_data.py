"""Data for each fine-tuning script, of a few words that a tiny model learns something from."""

import dataclasses
import json

import numpy as np

from bert_tf.tasks.classification.settings import ClassificationSettings, read_sets
from bert_tf.tasks.rows import Task
from bert_tf.training.settings import FineTuningSettings

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", *(f"w{number}" for number in range(93))]


def texts_of(count, seed, words=93, longest=9):
    """Yields words, whether "good" is among them (or "bad"), and where."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        text = [f"w{word}" for word in generator.integers(0, words, generator.integers(2, longest))]
        position = int(generator.integers(len(text) + 1))
        text.insert(position, ("good", "bad")[number % 2])
        yield text, number % 2 == 0, position


def custom_task(settings: ClassificationSettings) -> Task:
    """The task of --task_name=custom, with the labels of its training file."""
    run = FineTuningSettings(output_dir="", do_train=True)
    return read_sets(dataclasses.replace(settings, task_name="custom"), run)[0]


def write_classification(path, texts):
    path.write_text("text,verdict\n" + "".join(f"{' '.join(words)},{('down', 'up')[up]}\n" for words, up, _ in texts))


def write_questions(path, texts, version_2=True, broken=()):
    """Which word is good or bad? One in three contexts has none (version 2); `broken` ones have a wrong place."""
    paragraphs = []
    for number, (words, _, position) in enumerate(texts):
        is_impossible = version_2 and number % 3 == 0
        start = len(" ".join([*words[:position], ""])) + 300 * (number in broken)
        answers = [] if is_impossible else [{"text": words[position], "answer_start": start}]
        words = words[:position] + words[position + is_impossible :]
        question = {"id": f"q{number}", "question": "w1 w2", "answers": answers, "is_impossible": is_impossible}
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    path.write_text(json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}))


def write_tags(path, texts):
    sentences = ("".join(f"{word}\t{'B-X' if word in PIECES[5:7] else 'O'}\n" for word in words) for words, *_ in texts)
    path.write_text("\n".join(sentences))


def write_choices(path, texts):
    lines = ["context,question,choice0,choice1,label"]
    lines += [f"w1 w2,w3,{' '.join(words[:position])} w1,{' '.join(words)},{int(up)}" for words, up, position in texts]
    path.write_text("\n".join(lines) + "\n")


def write_pairs(path, texts):
    lines = [f"{' '.join(words)},{' '.join(reversed(words))} w{number}" for number, (words, *_) in enumerate(texts)]
    path.write_text("\n".join(["anchor,positive", *lines]) + "\n")


# script -> (function that writes a file, its suffix, the script's own flags)
WORLDS = {
    "run_classifier": (write_classification, "csv", {"task_name": "custom", "text_a": "text", "label": "verdict"}),
    "run_squad": (
        write_questions, "json",
        {"version_2_with_negative": True, "doc_stride": 8, "max_query_length": 4},
    ),
    "run_ner": (write_tags, "conll", {}),
    "run_similarity": (write_pairs, "csv", {"negatives_batch_size": 4}),
    "run_swag": (write_choices, "csv", {"context": "context", "choices": "choice", "question": "question"}),
}  # fmt: skip
# Token windows of the original's golden SQuAD outputs: max_seq_length, doc_stride, max_query_length.
SQUAD_SIZES = {"S64": (64, 32, 16), "S384": (384, 128, 64)}
