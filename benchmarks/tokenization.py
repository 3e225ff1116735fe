"""Tokenizer speed on one core, compared with a plain per-character implementation of the same rules.

    python benchmarks/tokenization.py --text=novel.txt --vocab_file=vocab.txt
    python benchmarks/tokenization.py --text=novel.txt --byte_bpe=roberta-base --sentence_piece=albert_base

With --byte_bpe or --sentence_piece, the tokenizer of that model's directory is compared with the `tokenizers` library.
Prints MB of text per second and the ratio to the plain implementation, best of --repeats runs each. `cold` starts with
an empty cache, `warm` has seen the text once. `same` counts the lines whose ids equal the plain implementation's.
"""

import os
import pathlib
import sys
import time

from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from plain_tokenization import PlainTokenizer  # noqa: E402

from bert_tf.system import text_files  # noqa: E402
from bert_tf.text import wordpiece as text_wordpiece  # noqa: E402
from bert_tf.text.library_tokenizer import ByteBpeTokenizer  # noqa: E402
from bert_tf.text.sentence_piece import SentencePieceTokenizer  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_string("byte_bpe", None, "Directory of a RoBERTa model.")
flags.DEFINE_string("sentence_piece", None, "Directory of an ALBERT model with a SentencePiece model.")
flags.DEFINE_string(
    "text", str(ROOT.parent / "shared" / "data" / "novels" / "heldout.txt"), "Text files, a list of globs."
)
flags.DEFINE_string("vocab_file", str(ROOT / "tests" / "golden" / "vocab.txt"), "Vocabulary, uncased.")
flags.DEFINE_integer("max_megabytes", 3, "Read no more text than this.")
flags.DEFINE_integer("repeats", 3, "Runs of each tokenizer; the best counts.")


def main(_):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    lines, size = [], 0
    for path in text_files.list_files(FLAGS.text, flag="--text"):
        for line in text_files.read_text_lines(path):
            size += len(line.encode()) + 1
            if size > FLAGS.max_megabytes * 1e6:
                break
            lines.append(line)
    print(f"{sum(len(line.encode()) + 1 for line in lines) / 1e6:.2f} MB, {len(lines)} lines, best of {FLAGS.repeats}")
    if FLAGS.byte_bpe:
        compare(lines, byte_bpe(FLAGS.byte_bpe, lines))
    if FLAGS.sentence_piece:
        compare(lines, sentence_piece(FLAGS.sentence_piece, lines))
    if not FLAGS.byte_bpe and not FLAGS.sentence_piece:
        compare(lines, wordpiece(FLAGS.vocab_file, lines))


def compare(lines, contenders):
    """Prints a row for each contender: name -> function that gives the ids of all lines; the first is the reference."""
    size = sum(len(line.encode()) + 1 for line in lines)
    print(f"\n| tokenizer | MB/s | speed-up over {next(iter(contenders))} | same |")
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


def wordpiece(vocab_file, lines):
    """The contenders for BERT's tokenizer."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = text_wordpiece.FullTokenizer(vocab_file)
    plain, fast = PlainTokenizer(tokenizer.vocab), BertWordPieceTokenizer(vocab_file)

    def without_memory():
        basic, wordpiece, vocab = tokenizer.basic_tokenizer, tokenizer.wordpiece_tokenizer, tokenizer.vocab
        return [[vocab[piece] for token in basic.tokenize(line) for piece in wordpiece.cut(token)] for line in lines]

    return {
        "plain, per character": lambda: [plain.encode(line) for line in lines],
        "FullTokenizer, without cache": without_memory,
        "FullTokenizer.encode_batch, cold (including reading the vocabulary)": (
            lambda: text_wordpiece.FullTokenizer(vocab_file).encode_batch(lines)
        ),
        "FullTokenizer.tokenize + ids, warm": (
            lambda: [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line)) for line in lines]
        ),
        "FullTokenizer.encode_batch, warm": lambda: tokenizer.encode_batch(lines),
        "tokenizers.BertWordPieceTokenizer": lambda: ids_of(fast, lines),
    }


def byte_bpe(directory, lines):
    """The contenders for RoBERTa's tokenizer."""
    import tokenizers

    tokenizer = ByteBpeTokenizer.from_pretrained(directory)
    fast = tokenizers.Tokenizer.from_str(tokenizer.files()["tokenizer.json"].decode())
    return {
        "tokenizers, byte-level BPE": lambda: ids_of(fast, lines),
        "ByteBpeTokenizer.encode_batch": lambda: tokenizer.encode_batch(lines),
    }


def sentence_piece(directory, lines):
    """The contenders for ALBERT's tokenizer; that of `tokenizers` has no rule for digits and commas."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = SentencePieceTokenizer.from_pretrained(directory)
    scores = [(piece, tokenizer._processor.get_score(index)) for piece, index in tokenizer.vocab.items()]
    fast = Tokenizer(models.Unigram(scores, unk_id=tokenizer.unk_id))
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD()]
    fast.normalizer = normalizers.Sequence([*steps, normalizers.StripAccents(), normalizers.Lowercase()])
    fast.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return {
        "tokenizers, as Hugging Face's ALBERT": lambda: ids_of(fast, lines),
        "SentencePieceTokenizer.encode_batch": lambda: tokenizer.encode_batch(lines),
    }


def ids_of(library, lines):
    """What the `tokenizers` library gives."""
    return [encoding.ids for encoding in library.encode_batch(lines, add_special_tokens=False)]


if __name__ == "__main__":
    app.run(main)
