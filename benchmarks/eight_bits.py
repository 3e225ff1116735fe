"""What answers in eight bits cost in score, and what they gain in time: the development sets of four tasks.

    python benchmarks/eight_bits.py --sst2=sst/best_model --mrpc=mrpc/best_model --glue_dir=glue \\
      --wnut=ner/best_model --ner_file=emerging.dev.conll --squad=squad --squad_file=dev-v1.1.json

Models are directories as the scripts leave them; those that are not given are left out. Predictors of both types answer
the same items with the same settings.
"""

import json
import os
import sys
import time
from collections.abc import Callable

from absl import app, flags
from measured import append

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from bert_tf import Predictor, QuestionAnswerer, Tagger
from bert_tf.tasks.classification.data import find_task, read_examples
from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import metrics as ner_metrics
from bert_tf.tasks.squad import metrics as squad_metrics

FLAGS = flags.FLAGS
flags.DEFINE_string("sst2", None, "Model directory of SST-2.")
flags.DEFINE_string("mrpc", None, "Model directory of MRPC.")
flags.DEFINE_string("wnut", None, "Model directory of WNUT-17.")
flags.DEFINE_string("squad", None, "Model directory of SQuAD 1.1.")
flags.DEFINE_string("glue_dir", None, "Folder with SST-2/dev.tsv and MRPC/dev.tsv.")
flags.DEFINE_string("ner_file", None, "CoNLL file of WNUT-17's development set.")
flags.DEFINE_string("squad_file", None, "SQuAD's development set.")
flags.DEFINE_integer("questions", 2000, "Of SQuAD, the first.")
DTYPES = ("float32", "int8")


def glue(name: str) -> tuple[type, list, Callable]:
    """The class that answers, its items, and the function from answers to the score in percent."""
    task = find_task(name)
    examples = read_examples(task, next(iter(task.dev.values())), os.path.join(FLAGS.glue_dir, name))
    items = [(one.text_a, one.text_b) if one.text_b else one.text_a for one in examples]

    def accuracy(answers: list[dict]) -> float:
        right = [answer["label"] == one.label for answer, one in zip(answers, examples, strict=True)]
        return 100 * sum(right) / len(right)

    return Predictor, items, accuracy


def wnut() -> tuple[type, list, Callable]:
    sentences = ner_data.read_conll(FLAGS.ner_file, ner_data.Layout()).sentences
    gold = [sentence.tags for sentence in sentences]

    def f1(answers: list[dict]) -> float:
        return 100 * ner_metrics.evaluate(gold, [answer["tags"] for answer in answers])["f1"]

    return Tagger, [sentence.words for sentence in sentences], f1


def squad() -> tuple[type, list, Callable]:
    with open(FLAGS.squad_file, encoding="utf-8") as file:
        articles = json.load(file)["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    asked = [(question, paragraph["context"]) for paragraph in paragraphs for question in paragraph["qas"]]
    asked = asked[: FLAGS.questions]
    kept = [{"paragraphs": [{"context": context, "qas": [question]}]} for question, context in asked]

    def f1(answers: list[dict]) -> float:
        texts = {question["id"]: answer["answer"] for (question, _), answer in zip(asked, answers, strict=True)}
        return squad_metrics.evaluate(kept, texts)["f1"]

    return QuestionAnswerer, [(question["question"], context) for question, context in asked], f1


def main(_):
    tasks = {
        "SST-2, accuracy": (FLAGS.sst2, lambda: glue("SST-2")),
        "MRPC, accuracy": (FLAGS.mrpc, lambda: glue("MRPC")),
        "WNUT-17, F1": (FLAGS.wnut, wnut),
        "SQuAD 1.1, F1": (FLAGS.squad, squad),
    }
    for title, (model, task) in tasks.items():
        if not model:
            continue
        kind, items, score = task()
        figures, seconds = {}, []
        for dtype in DTYPES:
            answerer = kind(model, dtype=dtype)
            answerer.predict(items[:8])
            start = time.perf_counter()
            figures[dtype] = round(score(answerer.predict(items)), 1)
            seconds.append(time.perf_counter() - start)
        figures["times as fast"] = round(seconds[0] / seconds[1], 2)
        print(f"{title}, {len(items)} items:", figures, flush=True)
        if FLAGS.measured:
            words = [word for word in sys.argv[1:] if not word.startswith(("--measured", "--machine="))]
            command = " ".join(["benchmarks/eight_bits.py", *words])
            append("results", "eight bits", title, figures, ["onnxruntime"], command=command)


if __name__ == "__main__":
    app.run(main)
