"""Learns a WordPiece vocabulary from text.

The tokenizer that will use the vocabulary also counts the words, so cleaning, casing, accents and punctuation are the
same. Pieces come from the trainer of the `tokenizers` package, which repeatedly merges the most frequent pair of
neighbours; docs/vocabulary.md has the comparison behind this choice.
"""

import time
from collections.abc import Iterable, Mapping, Sequence

from absl import logging

from bert_tf.system.text_encodings import UTF_8
from bert_tf.text.characters import is_cjk, is_punctuation
from bert_tf.text.word_counts import count_words, repeated, warn_of_fewer
from bert_tf.text.wordpiece import BasicTokenizer

MAX_WORD_CHARACTERS = 200  # WordpieceTokenizer turns longer words into [UNK], so they are not counted

# Writing systems in which accent stripping drops or decomposes characters that matter.
_HURT_BY_STRIPPING = {
    "Hangul (each syllable is taken apart into Jamo)": ((0x1100, 0x11FF),),
    "Japanese kana (voiced sounds lose their mark)": ((0x3041, 0x30FF),),
    "Thai and Lao (vowel and tone signs are lost)": ((0x0E01, 0x0EFF),),
    "Indic scripts (vowel signs are lost)": ((0x0900, 0x0DFF),),
}


def learn_vocabulary(
    files: Sequence[str],
    vocab_size: int = 30522,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    num_unused: int = 99,
    min_frequency: int = 2,
    max_characters: int | None = None,
    max_words: int = 2_000_000,
    show_progress: bool = True,
    encoding: str = UTF_8,
) -> list[str]:
    """Learns a WordPiece vocabulary; the same files and arguments always give the same list.

        vocabulary = learn_vocabulary(["novel.txt"], vocab_size=8000)
        write_text_file("vocab.txt", "".join(token + "\\n" for token in vocabulary))

    The order is that of the released vocabularies: [PAD] with id 0, the unused slots, [UNK], [CLS], [SEP], [MASK] (ids
    100 to 103 with 99 slots), then single characters by code point, those with "##", and pieces in the order learned,
    the most frequent first. Every character of the text is included, alone and, unless it is always a separate token
    (punctuation, CJK ideographs), with "##": no word of the text of up to 200 characters becomes [UNK].

    Args:
      files: text files, see `bert_tf.system.text_files.list_files`.
      vocab_size: maximum number of tokens; a short text gives fewer, which is logged.
      do_lower_case: lower-case the text, like the model's inputs later.
      strip_accents: None follows do_lower_case; see `bert_tf.text.wordpiece.BasicTokenizer`.
      num_unused: slots named [unused0], ... that can later be renamed to domain-specific words.
      min_frequency: two pieces are merged only if they are adjacent at least this often.
      max_characters: keep only this many different characters, the most frequent; words with others become [UNK].
      max_words: see `count_words`.
      show_progress: progress bars. encoding: of the files, see `text_files.TextFile`.

    Raises:
      ValueError: a file is not UTF-8, the files contain no words, or vocab_size is too small for the characters.
    """
    tokenizer = BasicTokenizer(do_lower_case, strip_accents)
    reserved = _reserved_tokens(num_unused)

    def check_room(characters: Iterable[str], at_least: str = "") -> None:
        alone, continuing = _single_pieces(set(characters))
        needed = len(reserved) + len(alone) + len(continuing)
        if needed > vocab_size:
            raise ValueError(
                f"--vocab_size={vocab_size} is too small: {len(reserved)} special and unused tokens and {len(alone)} "
                f"characters ({len(continuing)} of them also with ##) need {at_least}{needed}. Raise it, or keep only "
                "the most frequent characters with --max_characters."
            )

    # What has been read may prove it long before all has been.
    check = None if max_characters else lambda words: check_room(words.characters(), "at least ")
    words = count_words(files, tokenizer.tokenize, max_words, show_progress, encoding, check)
    characters = words.characters()
    if tokenizer.strip_accents:
        _warn_about_stripping(characters)
    kept = _keep_frequent(characters, max_characters)
    check_room(kept)
    alone, continuing = _single_pieces(kept)
    if len(alone) + len(continuing) > (vocab_size - len(reserved)) / 2:
        logging.warning(
            "Single characters take %d of %d places. --max_characters drops rare ones to make room for longer pieces.",
            len(alone) + len(continuing),
            vocab_size,
        )

    start = time.monotonic()
    learned = learn_pieces(words.counts, kept, vocab_size - len(reserved), min_frequency, show_progress)
    vocabulary = [*reserved, *learned]
    logging.info(
        "Learned %d pieces of several characters in %.1f s",
        len(learned) - len(alone) - len(continuing),
        time.monotonic() - start,
    )
    warn_of_fewer(len(vocabulary), vocab_size, "More text or a lower --min_frequency gives more.")
    return vocabulary


def learn_pieces(
    counts: Mapping[str, int], characters: set[str], vocab_size: int, min_frequency: int, show_progress: bool
) -> list[str]:
    """At most vocab_size pieces from word counts: single characters, these with "##", then longer ones as learned.

    Words with a character that is not among `characters` are ignored.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    alone, continuing = _single_pieces(characters)
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # Pieces of equal frequency are merged by their ids, and the trainer numbers "##" characters in the order of a hash
    # table, which differs from run to run. Passing them as special tokens, which come first, fixes their ids.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=continuing,
        initial_alphabet=alone,
        show_progress=show_progress,
    )
    usable = (
        (word, count)
        for word, count in counts.items()
        if len(word) <= MAX_WORD_CHARACTERS and characters.issuperset(word)
    )
    learner.train_from_iterator(repeated(usable), trainer)
    ids = learner.get_vocab()
    single = {*alone, *continuing}
    return [*alone, *continuing, *sorted((piece for piece in ids if piece not in single), key=ids.get)]


def _single_pieces(characters: set[str]) -> tuple[list[str], list[str]]:
    """The pieces of one character: alone, and with "##"."""
    alone = sorted(characters)
    # A character that is always a separate token can't continue a word: for Chinese, leaving out these "##" forms saves
    # thousands of rows.
    return alone, ["##" + char for char in alone if not is_punctuation(char) and not is_cjk(char)]


def _reserved_tokens(num_unused: int) -> list[str]:
    return ["[PAD]", *(f"[unused{i}]" for i in range(num_unused)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _keep_frequent(characters: Mapping[str, int], max_characters: int | None) -> set[str]:
    if not max_characters or len(characters) <= max_characters:
        return set(characters)
    ordered = sorted(characters, key=lambda char: (-characters[char], char))
    lost = sum(characters[char] for char in ordered[max_characters:])
    logging.info(
        "--max_characters=%d leaves out %d characters, %.4f%% of the text: words with them become [UNK].",
        max_characters,
        len(ordered) - max_characters,
        100 * lost / sum(characters.values()),
    )
    return set(ordered[:max_characters])


def _warn_about_stripping(characters: Mapping[str, int]) -> None:
    for name, blocks in _HURT_BY_STRIPPING.items():
        seen = sum(n for char, n in characters.items() if any(first <= ord(char) <= last for first, last in blocks))
        if seen:
            logging.warning(
                "Stripping accents changes %s: %d characters of this text. If this language matters to you, use "
                "--strip_accents=false (for the tokenizer FullTokenizer(..., strip_accents=False)), or "
                "--do_lower_case=false.",
                name,
                seen,
            )
