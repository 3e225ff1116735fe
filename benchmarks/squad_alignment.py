"""How many gold answers survive the way to labels and back, by character offsets and in the original's way.

    python benchmarks/squad_alignment.py --vocab_file=vocab.txt korquad_dev.json jsquad_valid.json cmrc2018_dev.json

The first answer of each question is turned into labels, and the labels back into text, as if a model had predicted
exactly these. Only answers that are complete in a window count.
"""

import posixpath
import tempfile

from absl import app, flags

from bert_tf.tasks.squad import answers as squad_answers
from bert_tf.tasks.squad import data as squad_data
from bert_tf.tasks.squad import windows as squad_windows
from bert_tf.text.wordpiece import FullTokenizer

FLAGS = flags.FLAGS
flags.DEFINE_string("vocab_file", None, "Vocabulary.")
flags.DEFINE_bool("do_lower_case", True, "Lower-case and strip accents.")
flags.DEFINE_integer("max_seq_length", 384, "Tokens of a window.")
flags.DEFINE_integer("doc_stride", 128, "Tokens from window to window.")
flags.DEFINE_integer("show", 0, "Print this many of the answers that come back changed.")


def first_answers_only(path: str) -> str:
    """A copy of a file that keeps only the first answer of each question."""
    import json

    articles = squad_data.read_articles(path)
    for article in articles:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [q | {"answers": q["answers"][:1]} for q in paragraph["qas"] if q.get("answers")]
            for question in paragraph["qas"]:
                question.pop("is_impossible", None)
    copy = posixpath.join(tempfile.mkdtemp(), "answers.json")
    with open(copy, "w", encoding="utf-8") as file:
        json.dump({"data": articles}, file)
    return copy


def measure(path: str, tokenizer: FullTokenizer, answer_from: str) -> tuple[int, int, int]:
    """(questions, answers complete in a window, those of them that come back unchanged)."""
    data = squad_data.read_squad_examples([path], True, answer_from=answer_from)
    settings = squad_windows.WindowSettings(FLAGS.max_seq_length, FLAGS.doc_stride, answer_from=answer_from)
    windows = squad_windows.build_windows(data.examples, tokenizer, settings, True, num_processes=1)
    texts = squad_answers.AnswerTexts(data.examples, windows, tokenizer, answer_from)
    survived, right, shown = {}, 0, 0
    for row in range(len(windows)):
        first, last = (int(windows.labels[name][row]) for name in ("start_positions", "end_positions"))
        if first and int(windows.example_index[row]) not in survived:
            survived[int(windows.example_index[row])] = texts.of(row, first, last)[0]
    for number, text in survived.items():
        gold = " ".join(data.examples[number].orig_answer_text.split())
        if " ".join(text.split()) == gold:
            right += 1
        elif shown < FLAGS.show:
            shown += 1
            print(f"    {gold!r} comes back as {text[:80]!r}")
    return len(data.examples) + len(data.skipped), len(survived), right


def main(arguments):
    tokenizer = FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)
    print(f"{'file':>28} {'way':>8} {'questions':>9} {'in a window':>11} {'come back':>9}")
    for path in arguments[1:]:
        copy = first_answers_only(path)
        for way in ("offsets", "words"):
            count, survived, right = measure(copy, tokenizer, way)
            share = 100 * right / max(survived, 1)
            print(f"{posixpath.basename(path):>28} {way:>8} {count:9d} {survived:11d} {share:8.2f}%", flush=True)


if __name__ == "__main__":
    flags.mark_flag_as_required("vocab_file")
    app.run(main)
