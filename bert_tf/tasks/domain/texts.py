"""What run_domain.py makes of a user's texts: training and held-out text, and the words that the vocabulary lacks."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf
from absl import logging

from bert_tf.pretraining.documents import Document, all_documents, marked_held_out, to_text
from bert_tf.system.messages import naming_flag
from bert_tf.system.storage import write_text_file, written
from bert_tf.system.text_files import list_files
from bert_tf.tasks.domain.settings import DomainSettings
from bert_tf.text.learn_vocabulary import count_words
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.wordpiece import FullTokenizer, WordpieceTokenizer

WORDS = "words.txt"  # the new words, in output_dir
_HELD_OUT_EVERY = 20
_LEAST_COUNT = 5  # a word that is hardly there can't be learned
_LONGEST_WORD = 60  # characters; longer ones are not words


def text_path(settings: DomainSettings, name: str) -> str:
    """Where the text "train", "heldout" or "other" is."""
    return posixpath.join(settings.output_dir, "text", f"{name}.txt")


def files_of(settings: DomainSettings) -> dict[str, list[tuple[str, int]]]:
    """flag -> (path, bytes) of each file that it names."""
    patterns = {name: getattr(settings, name) for name in ("input_file", "heldout_file", "other_text")}
    return {
        name: [(path, tf.io.gfile.stat(path).length) for path in list_files(files, f"--{name}")] if files else []
        for name, files in patterns.items()
    }


def make_texts(settings: DomainSettings) -> dict[str, dict[str, int]]:
    """Writes text/train.txt, heldout.txt and, of --other_text, other.txt.

    Returns name -> `documents`, `sentences` and `bytes`.
    """
    tf.io.gfile.makedirs(posixpath.join(settings.output_dir, "text"))
    flags = {"train": "input_file", "heldout": "heldout_file" if settings.heldout_file else "input_file"}
    flags |= {"other": "other_text"} if settings.other_text else {}
    counts = {}
    for name, flag in flags.items():
        counts[name] = of = {"documents": 0, "sentences": 0, "bytes": 0}
        with written(text_path(settings, name)) as temporary, tf.io.gfile.GFile(temporary, "wb") as file:
            for document in _documents(settings, name, flag):
                content = to_text([document]).encode()
                file.write(content)
                of["documents"] += 1
                of["sentences"] += len(document)
                of["bytes"] += len(content)
        if not of["documents"]:
            raise ValueError(f"--{flag}={getattr(settings, flag)}: there is no text in it.")
    logging.info("Texts: %s", counts)
    return counts


def _documents(settings: DomainSettings, name: str, flag: str) -> Iterator[Document]:
    """The documents of a flag's files that belong to the text of this name."""
    documents = all_documents(list_files(getattr(settings, flag), f"--{flag}"), encoding=settings.encoding)
    if name == "other" or settings.heldout_file:
        yield from documents
    else:
        with naming_flag("--input_file, without --heldout_file"):
            for document, is_held_out in marked_held_out(documents, _HELD_OUT_EVERY):
                if is_held_out == (name == "heldout"):
                    yield document


def make_words(settings: DomainSettings, tokenizer: Tokenizer, title: str) -> dict:
    """Writes the words to add to words.txt, if there are any. title: of the model's family.

    Returns `new_words`, see `find_new_words`, and `pieces_per_word` of the training text, `before` and `after`.
    """
    words, pieces = [], {"before": None, "after": None}
    if settings.new_words and not isinstance(tokenizer, FullTokenizer):
        logging.info("No new words: %s has no word pieces, to which words could be added.", title)
    elif settings.new_words:
        counts = count_words([text_path(settings, "train")], tokenizer.basic_tokenizer.tokenize).counts
        words = find_new_words(counts, tokenizer, settings.new_words)
        added = [new["word"] for new in words]
        pieces = {"before": pieces_per_word(counts, tokenizer), "after": pieces_per_word(counts, tokenizer, added)}
        if words:
            write_text_file(posixpath.join(settings.output_dir, WORDS), "".join(word + "\n" for word in added))
    return {"new_words": words, "pieces_per_word": pieces}


def find_new_words(counts: Mapping[str, int], tokenizer: FullTokenizer, most: int) -> list[dict]:
    """The words whose addition shortens the text most, by count x (pieces - 1), the best first.

    Left out are words that are in the text less than 5 times, and what has no letter in it. A word that is unknown as a
    whole counts as two pieces.

    counts: of the tokenizer's basic tokens (`tokenizer.basic_tokenizer.tokenize`). most: as many at most.

    Returns `word`, `count` and `pieces`, what it has been cut into so far.
    """
    cut, unknown = tokenizer.wordpiece_tokenizer.cut, tokenizer.unk_token
    ranked = []
    for word, count in counts.items():
        if count < _LEAST_COUNT or len(word) > _LONGEST_WORD or not any(map(str.isalpha, word)):
            continue
        pieces = list(cut(word))
        gain = count if pieces == [unknown] else count * (len(pieces) - 1)
        # A token that does not come out of the tokenizer as it went in would never be used.
        if gain and tokenizer.basic_tokenizer.tokenize(word) == [word]:
            ranked.append((-gain, word, {"word": word, "count": count, "pieces": pieces}))
    return [new for _, _, new in sorted(ranked, key=lambda entry: entry[:2])[:most]]


def pieces_per_word(counts: Mapping[str, int], tokenizer: FullTokenizer, added: Sequence[str] = ()) -> float:
    """The mean number of pieces of a word of the text, with some words added to the vocabulary."""
    cut = WordpieceTokenizer({**tokenizer.vocab, **dict.fromkeys(added, -1)}).cut
    return sum(count * len(cut(word)) for word, count in counts.items()) / sum(counts.values())
