"""Learns a vocabulary of byte-level BPE from text, in the layout of RoBERTa's.

The text is split as `byte_bpe.ByteBpeTokenizer` will split it. The trainer of the `tokenizers` package then merges the
most frequent pair of neighbours, again and again (Radford et al. 2019, section 2.2; Liu et al. 2019, section 4.4).
"""

import functools
import json
import re
import time
from collections.abc import Sequence

import tokenizers
from absl import logging
from tokenizers import models, pre_tokenizers, trainers

from bert_tf.system.text_encodings import UTF_8
from bert_tf.text.byte_bpe import MERGES, VOCAB, WHITESPACE, ByteBpeTokenizer
from bert_tf.text.word_counts import count_words, repeated, warn_of_fewer

# In the order of their ids, which fairseq's dictionaries have; <mask> is last, after all pieces.
_FIRST_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
# Before the space of a word, where the text is split whatever stands on either side.
_BEFORE_SPACE = re.compile(r"(?<=\S)(?= \S)")
_splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)


def learn_byte_bpe(
    files: Sequence[str],
    vocab_size: int = 50265,
    min_frequency: int = 2,
    max_words: int = 2_000_000,
    show_progress: bool = True,
    encoding: str = UTF_8,
) -> dict[str, bytes]:
    """Learns byte-level BPE; the same files and arguments always give the same result.

        for name, content in learn_byte_bpe(["novel.txt"], vocab_size=8000).items():
            write_file(f"runs/{name}", content)

    Case is kept, and no text has an unknown token, since each of the 256 bytes is a piece. The ids are in RoBERTa's
    order: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, the bytes, longer pieces in the order learned, the most frequent
    first, and `<mask>` last. Whitespace at the ends of a line is left out.

    Args:
      files: text files, see `bert_tf.system.text_files.list_files`.
      vocab_size: maximum number of tokens; a short text gives fewer, which is logged. The default is RoBERTa's.
      min_frequency: two pieces are merged only if they are adjacent at least this often.
      max_words: see `count_words`; a word's space and its letters are one, as is a run of punctuation marks.
      show_progress: progress bars. encoding: of the files, see `text_files.TextFile`.

    Returns:
      The content of vocab.json and merges.txt, which `ByteBpeTokenizer` and Hugging Face's tokenizers read.

    Raises:
      ValueError: a file is not UTF-8, the files contain no words, or vocab_size has no place for the bytes.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    needed = len(_FIRST_TOKENS) + len(alphabet) + 1
    if vocab_size < needed:
        raise ValueError(
            f"--vocab_size={vocab_size} is too small: {needed - len(alphabet)} special tokens and the {len(alphabet)} "
            f"bytes need {needed}."
        )
    words = count_words(files, _words_of, max_words, show_progress, encoding)
    start = time.monotonic()
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # the words have no whitespace, but `repeated` has
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=min_frequency,
        special_tokens=list(_FIRST_TOKENS),
        initial_alphabet=alphabet,
        show_progress=show_progress,
    )
    learner.train_from_iterator(repeated(words.counts.items()), trainer)
    model = json.loads(learner.to_str())["model"]
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    vocab[ByteBpeTokenizer.mask_token] = len(vocab)
    logging.info("Learned %d merges in %.1f s", len(model["merges"]), time.monotonic() - start)
    warn_of_fewer(len(vocab), vocab_size, "More text or a lower --min_frequency gives more.")
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    return {
        VOCAB: json.dumps(vocab, ensure_ascii=False).encode(),
        MERGES: "".join(line + "\n" for line in merges).encode(),
    }


def _words_of(line: str) -> list[str]:
    """The parts of a line within which pieces are merged, their bytes written as pieces write them."""
    return [word for part in _BEFORE_SPACE.split(line.strip(WHITESPACE)) for word in _split(part)]


@functools.lru_cache(1 << 18)  # most words recur; splitting one takes longer than looking it up
def _split(text: str) -> tuple[str, ...]:
    return tuple(word for word, _ in _splitter.pre_tokenize_str(text))
