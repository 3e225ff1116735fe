"""What run_domain.py makes of a user's texts: training and held-out text, and the words that the vocabulary lacks."""

import dataclasses
import json
import posixpath
from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf
from absl import logging

from bert_tf.pretraining.documents import Document, all_documents, marked_held_out, to_text
from bert_tf.system.atomic import write_text_file, written_together
from bert_tf.system.text_files import list_files, read_json_if_there
from bert_tf.tasks.domain.new_words import NewWord, find_new_words, pieces_per_word
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.word_counts import count_words
from bert_tf.text.wordpiece import FullTokenizer

HELD_OUT_EVERY = 20
TEXT_FLAGS = ("input_file", "heldout_file", "other_text")


def text_path(output_dir: str, name: str) -> str:
    """Where the text "train", "heldout" or "other" is."""
    return posixpath.join(output_dir, "text", f"{name}.txt")


def files_of(settings: DomainSettings) -> dict[str, list[tuple[str, int]]]:
    """flag -> (path, bytes) of each file that it names."""
    return {
        name: [(path, tf.io.gfile.stat(path).length) for path in list_files(getattr(settings, name), f"--{name}")]
        for name in TEXT_FLAGS
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

    def documents_of(name: str) -> Iterable[Document]:
        return all_documents(list_files(getattr(settings, name), f"--{name}"), encoding=settings.encoding)

    texts = {}
    if settings.heldout_file:
        texts |= _write(settings, {"train": "input_file"}, ((one, "train") for one in documents_of("input_file")))
        held_out = ((one, "heldout") for one in documents_of("heldout_file"))
        texts |= _write(settings, {"heldout": "heldout_file"}, held_out)
    else:
        marked = marked_held_out(documents_of("input_file"), HELD_OUT_EVERY)
        parts = ((one, ("train", "heldout")[is_held_out]) for one, is_held_out in marked)
        try:
            texts |= _write(settings, {"train": "input_file", "heldout": "input_file"}, parts)
        except ValueError as error:
            if "can't be split" not in str(error):
                raise
            raise ValueError(f"--input_file={settings.input_file}: {error} Give --heldout_file.") from None
    if settings.other_text:
        others = ((one, "other") for one in documents_of("other_text"))
        texts |= _write(settings, {"other": "other_text"}, others)
    write_text_file(path, json.dumps(texts, indent=2) + "\n")
    for name, counts in texts.items():
        logging.info(
            "%s: %s documents, %s sentences, %.1f MB", text_path(settings.output_dir, name), f"{counts['documents']:,}",
            f"{counts['sentences']:,}", counts["bytes"] / 1e6,
        )  # fmt: skip
    return texts


def _write(
    settings: DomainSettings, names: Mapping[str, str], parts: Iterable[tuple[Document, str]]
) -> dict[str, dict[str, int]]:
    """Writes documents to the texts that they belong to; returns the counts of each.

    Args:
      names: of the texts -> the flag that names their files. parts: documents, and the names of their texts.

    Raises:
      ValueError: a text is empty; names the flag.
    """
    counts = {name: {"documents": 0, "sentences": 0, "bytes": 0} for name in names}
    with written_together([text_path(settings.output_dir, name) for name in names]) as temporary:
        files = {name: tf.io.gfile.GFile(path, "wb") for name, path in zip(names, temporary, strict=True)}
        try:
            for document, name in parts:
                content = to_text([document]).encode()
                files[name].write(content)
                counts[name]["documents"] += 1
                counts[name]["sentences"] += len(document)
                counts[name]["bytes"] += len(content)
        finally:
            for file in files.values():
                file.close()
        for name, flag in names.items():
            if not counts[name]["documents"]:
                raise ValueError(f"--{flag}={getattr(settings, flag)}: there is no text in it.")
    return counts


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
    if (kept := read_json_if_there(path)) is None:
        kept = _find_words(settings, tokenizer)
        if words := [new["word"] for new in kept["words"]]:
            write_text_file(words_path(settings.output_dir), "".join(word + "\n" for word in words))
        write_text_file(path, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    words = tuple(NewWord(new["word"], new["count"], tuple(new["pieces"])) for new in kept["words"])
    logging.info("%d new words: the training text is cut into %.3f pieces per word instead of %.3f.",
                 len(words), kept["pieces_after"], kept["pieces_before"])  # fmt: skip
    return Vocabulary(words, kept["pieces_before"], kept["pieces_after"])


def words_path(output_dir: str) -> str:
    """Where the new words are."""
    return posixpath.join(output_dir, "words.txt")


def _find_words(settings: DomainSettings, tokenizer: FullTokenizer) -> dict:
    """The content of words.json."""
    split: Callable[[str], list[str]] = tokenizer.basic_tokenizer.tokenize
    counts = count_words([text_path(settings.output_dir, "train")], split).counts
    found = find_new_words(counts, tokenizer, settings.new_words)
    return {
        "words": [dataclasses.asdict(new) for new in found],
        "pieces_before": pieces_per_word(counts, tokenizer, []),
        "pieces_after": pieces_per_word(counts, tokenizer, found),
    }
