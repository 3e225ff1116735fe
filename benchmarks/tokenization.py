"""Tokenizer speed on one core, compared with a plain per-character implementation of the same rules.

    python benchmarks/tokenization.py --text=novel.txt --vocab_file=vocab.txt

Prints MB of text per second and the ratio to the plain implementation, best of --repeats runs each. `cold` starts with
an empty cache, `warm` has seen the text once. `same` counts the lines whose ids equal the plain implementation's.
"""

import pathlib
import sys
import time

from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.plain_tokenization import PlainTokenizer  # noqa: E402

from bert_tf.system import text_files  # noqa: E402
from bert_tf.text import wordpiece as text_wordpiece  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "text", str(ROOT.parent / "shared" / "data" / "novels" / "heldout.txt"), "Text files, a list of globs."
)
flags.DEFINE_string("vocab_file", str(ROOT / "tests" / "golden" / "vocab.txt"), "Vocabulary, uncased.")
flags.DEFINE_integer("max_megabytes", 3, "Read no more text than this.")
flags.DEFINE_integer("repeats", 3, "Runs of each tokenizer; the best counts.")


def main(_):
    lines, size = [], 0
    for path in text_files.list_files(FLAGS.text, flag="--text"):
        for line in text_files.read_text_lines(path):
            size += len(line.encode()) + 1
            if size > FLAGS.max_megabytes * 1e6:
                break
            lines.append(line)
    size = sum(len(line.encode()) + 1 for line in lines)
    tokenizer = text_wordpiece.FullTokenizer(FLAGS.vocab_file)
    plain = PlainTokenizer(tokenizer.vocab)

    def without_memory():
        basic, wordpiece, vocab = tokenizer.basic_tokenizer, tokenizer.wordpiece_tokenizer, tokenizer.vocab
        return [[vocab[piece] for token in basic.tokenize(line) for piece in wordpiece.cut(token)] for line in lines]

    def cold():
        return text_wordpiece.FullTokenizer(FLAGS.vocab_file).encode_batch(lines)

    def tokens_then_ids():
        return [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line)) for line in lines]

    contenders = {
        "plain, per character": lambda: [plain.encode(line) for line in lines],
        "FullTokenizer, without cache": without_memory,
        "FullTokenizer.encode_batch, cold (including reading the vocabulary)": cold,
        "FullTokenizer.tokenize + ids, warm": tokens_then_ids,
        "FullTokenizer.encode_batch, warm": lambda: tokenizer.encode_batch(lines),
    }
    from tokenizers import BertWordPieceTokenizer

    fast = BertWordPieceTokenizer(FLAGS.vocab_file)
    contenders["tokenizers.BertWordPieceTokenizer"] = lambda: [
        encoding.ids for encoding in fast.encode_batch(lines, add_special_tokens=False)
    ]

    print(f"{size / 1e6:.2f} MB, {len(lines)} lines, best of {FLAGS.repeats}\n")
    print("| tokenizer | MB/s | speed-up over plain | same |")
    print("|---|---|---|---|")
    reference = baseline = None
    for name, function in contenders.items():
        best = float("inf")
        for _ in range(FLAGS.repeats):
            start = time.perf_counter()
            ids = function()
            best = min(best, time.perf_counter() - start)
        if reference is None:
            reference, baseline = ids, best
        same = sum(a == b for a, b in zip(ids, reference, strict=True))
        print(f"| {name} | {size / 1e6 / best:.2f} | {baseline / best:.1f} | {same}/{len(lines)} |", flush=True)


if __name__ == "__main__":
    app.run(main)
