"""What run_domain.py makes of a user's texts: training and held-out text, and the words that the vocabulary lacks."""

import contextlib
import dataclasses
import json
import posixpath
from collections.abc import Iterator, Mapping

import tensorflow as tf
from absl import logging

from bert_tf.pretraining.documents import Document, all_documents, to_text
from bert_tf.system.storage import write_text_file, written_together
from bert_tf.system.text_files import list_files, read_json_if_there
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.tasks.domain.start import held_out
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.word_counts import count_words
from bert_tf.text.wordpiece import FullTokenizer, WordpieceTokenizer

WORDS = "words.txt"  # the new words, in output_dir
_LEAST_COUNT = 5  # a word that is hardly there can't be learned
_LONGEST_WORD = 60  # characters; what is longer is no word


def text_path(settings: DomainSettings, name: str) -> str:
    """Where the text "train", "heldout" or "other" is."""
    return posixpath.join(settings.output_dir, "text", f"{name}.txt")


def _files(settings: DomainSettings, flag: str) -> list[str]:
    return list_files(getattr(settings, flag), f"--{flag}")


def files_of(settings: DomainSettings) -> dict[str, list[tuple[str, int]]]:
    """flag -> (path, bytes) of each file that it names."""
    return {
        name: [(path, tf.io.gfile.stat(path).length) for path in _files(settings, name)]
        for name in ("input_file", "heldout_file", "other_text")
        if getattr(settings, name)
    }


def make_texts(settings: DomainSettings) -> dict[str, dict[str, int]]:
    """Writes text/train.txt, heldout.txt and other.txt, unless an earlier start has.

    Returns:
      name -> `documents`, `sentences` and `bytes`; without "other" if there is no --other_text.

    Raises:
      ValueError: a text can't be read, is empty, or has too few documents; names the file or the flag.
    """
    path = posixpath.join(settings.output_dir, "text", "texts.json")
    if (kept := read_json_if_there(path)) is not None:
        return kept
    tf.io.gfile.makedirs(posixpath.dirname(path))
    flags = {"train": "input_file", "heldout": "heldout_file" if settings.heldout_file else "input_file"}
    flags |= {"other": "other_text"} if settings.other_text else {}
    counts = {name: {"documents": 0, "sentences": 0, "bytes": 0} for name in flags}
    with written_together([text_path(settings, name) for name in flags]) as temporary:
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tf.io.gfile.GFile(one, "wb")) for one in temporary]
            of_text = dict(zip(flags, files, strict=True))
            for document, name in _documents(settings):
                content = to_text([document]).encode()
                of_text[name].write(content)
                counts[name]["documents"] += 1
                counts[name]["sentences"] += len(document)
                counts[name]["bytes"] += len(content)
        for name, flag in flags.items():
            if not counts[name]["documents"]:
                raise ValueError(f"--{flag}={getattr(settings, flag)}: there is no text in it.")
    write_text_file(path, json.dumps(counts, indent=2) + "\n")
    for name, found in counts.items():
        logging.info(
            "%s: %s documents, %s sentences, %.1f MB", text_path(settings, name), f"{found['documents']:,}",
            f"{found['sentences']:,}", found["bytes"] / 1e6,
        )  # fmt: skip
    return counts


def _documents(settings: DomainSettings) -> Iterator[tuple[Document, str]]:
    """All documents, and the names of the texts that they belong to."""

    def of(flag: str) -> Iterator[Document]:
        return all_documents(_files(settings, flag), encoding=settings.encoding)

    if settings.heldout_file:
        yield from ((document, "train") for document in of("input_file"))
        yield from ((document, "heldout") for document in of("heldout_file"))
    else:
        for document, is_held_out in held_out(settings, of("input_file")):
            yield document, "heldout" if is_held_out else "train"
    if settings.other_text:
        yield from ((document, "other") for document in of("other_text"))


# --- words ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class NewWord:
    """A word to add. count: how often it is in the text. pieces: what it has been cut into so far."""

    word: str
    count: int
    pieces: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What is added to a vocabulary. pieces_before, pieces_after: per word of the training text; None: not counted."""

    words: tuple[NewWord, ...] = ()
    pieces_before: float | None = None
    pieces_after: float | None = None


def make_words(settings: DomainSettings, tokenizer: Tokenizer, title: str) -> Vocabulary:
    """Finds the words to add, and writes them to words.txt, unless an earlier start has.

    Args:
      title: of the model's family, for a log line where its tokenizer has no place for words.
    """
    if not settings.new_words:
        return Vocabulary()
    if not isinstance(tokenizer, FullTokenizer):
        logging.info("No new words: %s has no word pieces, to which words could be added.", title)
        return Vocabulary()
    path = posixpath.join(settings.output_dir, "words.json")
    if kept := read_json_if_there(path):
        words = tuple(NewWord(new["word"], new["count"], tuple(new["pieces"])) for new in kept["words"])
        found = Vocabulary(words, kept["pieces_before"], kept["pieces_after"])
    else:
        counts = count_words([text_path(settings, "train")], tokenizer.basic_tokenizer.tokenize).counts
        words = find_new_words(counts, tokenizer, settings.new_words)
        pieces = (pieces_per_word(counts, tokenizer, added) for added in ([], words))
        found = Vocabulary(tuple(words), *pieces)
        if words:
            listed = "".join(new.word + "\n" for new in words)
            write_text_file(posixpath.join(settings.output_dir, WORDS), listed)
        write_text_file(path, json.dumps(dataclasses.asdict(found), indent=2, ensure_ascii=False) + "\n")
    logging.info("%d new words: the training text is cut into %.3f pieces per word instead of %.3f.",
                 len(found.words), found.pieces_after, found.pieces_before)  # fmt: skip
    return found


def find_new_words(counts: Mapping[str, int], tokenizer: FullTokenizer, most: int) -> list[NewWord]:
    """The words whose addition shortens the text most, by count x (pieces - 1), the best first.

    Left out are words that are in the text less than 5 times, and what has no letter in it. A word that is unknown as a
    whole counts as two pieces.

    Args:
      counts: of the tokenizer's basic tokens (`tokenizer.basic_tokenizer.tokenize`). most: as many at most.
    """
    cut, unknown = tokenizer.wordpiece_tokenizer.cut, tokenizer.unk_token
    gains: dict[NewWord, int] = {}
    for word, count in counts.items():
        if count < _LEAST_COUNT or len(word) > _LONGEST_WORD or not any(map(str.isalpha, word)):
            continue
        pieces = tuple(cut(word))
        gain = count if pieces == (unknown,) else count * (len(pieces) - 1)
        # A token that does not come out of the tokenizer as it went in would never be used.
        if gain and tokenizer.basic_tokenizer.tokenize(word) == [word]:
            gains[NewWord(word, count, pieces)] = gain
    return sorted(gains, key=lambda new: (-gains[new], new.word))[:most]


def pieces_per_word(counts: Mapping[str, int], tokenizer: FullTokenizer, added: list[NewWord]) -> float:
    """The mean number of pieces of a word of the text, with some words added to the vocabulary."""
    cut = WordpieceTokenizer({**tokenizer.vocab, **{new.word: -1 for new in added}}).cut
    return sum(count * len(cut(word)) for word, count in counts.items()) / sum(counts.values())
