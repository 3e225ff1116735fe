"""Named entities and other word tags, for notebooks: a fine-tuned tagger that takes strings."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.serving.predictor import Answerer
from bert_tf.store.head_config import softmax
from bert_tf.system.checks import check_list, list_of_strings
from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import encode as ner_encode
from bert_tf.tasks.ner import metrics as ner_tags
from bert_tf.tasks.ner.metrics import standard_tags
from bert_tf.text.characters import split_words


class _Words(NamedTuple):
    """The words of a text, and the characters where they begin and end (exclusive)."""

    text: str
    words: list[str]
    starts: list[int]
    ends: list[int]


class Tagger(Answerer):
    """Tags every word and finds the entities in texts of any length. Threads may share it.

        tagger = Tagger("ner_output/best_model")
        tagger("Ada Brown was born in London.")["entities"]
        # [{"type": "PER", "text": "Ada Brown", "start": 0, "end": 9, "score": 0.99}, ...]

    Args:
      path, options, errors: as for `Predictor`; a model directory is one as run_ner.py leaves it, with its tags.
      max_seq_length: longer texts are tagged in windows of this many tokens. Default: as for `Predictor`.

    Attributes:
      labels: the tags in the order of their ids. scheme: "iob2", "bioes", or "plain" for tags that mark no entities.
    """

    tasks = ("ner",)
    action = "tag"

    def __init__(self, path: str, *, max_seq_length: int | None = None, **options):
        super().__init__(path, max_seq_length=max_seq_length, **options)
        if self.export:
            self.labels = standard_tags(self.description["labels"])
            self.scheme = ner_tags.scheme_of(self.labels)
            return
        self.labels = standard_tags(self.files.head.labels)
        self._settings = ner_tags.TaggingSettings.of_model(self.files.directory, self.labels)
        self.scheme = self._settings.learned_scheme

    def predict(self, texts: Sequence[str | Sequence[str]]) -> list[dict]:
        """Tags and entities of each text.

        Args:
          texts: strings, or lists of words for texts that are already split. A string is split at spaces, with each
            punctuation mark, Chinese character and added token a word of its own; or into characters, as in training.

        Returns:
          for each text a dict of `words`, `tags`, `scores` (probability of the likeliest tag of each word), `starts`,
          `ends` (characters of the text), and `entities`: dicts of type, text, start, end and score (mean over its
          words); none for plain tags. For a list of words, characters count in the words joined by single spaces.

        Raises:
          TypeError, ValueError: an item is neither, or has an empty word; names its place.
        """
        given = enumerate(check_list(texts, "texts", "strings or lists of words", "tagger(text)"))
        texts = [text if isinstance(text, str) else list_of_strings(text, f"texts[{number}]") for number, text in given]
        for number, text in enumerate(texts):
            if not isinstance(text, str) and "" in text:  # which would end the words of an export
                raise ValueError(f"texts[{number}]: word {text.index('')} is empty")
        return [self._describe(*row) for row in (self._by_export(texts) if self.export else self._by_model(texts))]

    def __call__(self, text: str | Sequence[str]) -> dict | list[dict]:
        """The tags and entities of one text; of a list with blanks in its strings, so of several texts, the list."""
        if not isinstance(text, str) and any(isinstance(part, str) and len(part.split()) > 1 for part in text):
            return self.predict(text)
        return self.predict([text])[0]

    def _by_model(self, texts: list) -> Iterator[tuple[_Words, list[str], np.ndarray]]:
        cut = [self._words_of(text) if isinstance(text, str) else _joined(text) for text in texts]
        # Each text is a document of its own; a text without words has no row.
        sentences = [ner_data.Sentence(words.words, None, [], number) for number, words in enumerate(cut)]
        tags, scores = [[] for _ in cut], np.zeros(0, np.float32)
        if any(words.words for words in cut):
            of_pieces = self._settings.split == ner_tags.PIECES
            rows = ner_encode.encode_sentences(sentences, self.tokenizer, self.max_seq_length, of_pieces=of_pieces)
            logits = ner_encode.word_logits(rows, self.outputs(rows))
            logits = ner_encode.character_logits(rows, logits, self.labels)
            tags = ner_data.predicted_tags(sentences, logits, self.labels, self.scheme)
            scores = softmax(logits).max(-1)
        ends = np.cumsum([len(words.words) for words in cut], dtype=int)
        yield from zip(cut, tags, np.split(scores, ends[:-1]) if cut else (), strict=True)

    def _words_of(self, text: str) -> _Words:
        spans = split_words(text, self._settings.characters, self.tokenizer.added_tokens.spans(text))
        words = [text[start:end] for start, end in spans]
        return _Words(text, words, [start for start, _ in spans], [end for _, end in spans])

    def _by_export(self, texts: list) -> list[tuple[_Words, list[str], np.ndarray]]:
        by_text = [None] * len(texts)
        strings = [number for number, text in enumerate(texts) if isinstance(text, str)]
        lists = [number for number, text in enumerate(texts) if not isinstance(text, str)]
        width = max((len(texts[number]) for number in lists), default=0)
        padded = [[*texts[number], *[""] * (width - len(texts[number]))] for number in lists]
        for signature, numbers, columns in (
            ("serving_default", strings, {"text": [texts[number] for number in strings]}),
            ("serve_words", lists, {"words": padded}),
        ):
            rows = self.exported(signature, [len(texts[number]) for number in numbers], columns)
            for number, row in zip(numbers, rows, strict=True):
                count = int(np.count_nonzero(row["tags"] != b""))  # the rest is padding
                if signature == "serve_words":
                    cut = _joined(texts[number])
                else:
                    words = [word.decode() for word in row["words"][:count]]
                    cut = _Words(texts[number], words, *(row[name][:count].tolist() for name in ("starts", "ends")))
                by_text[number] = cut, [tag.decode() for tag in row["tags"][:count]], row["scores"][:count]
        return by_text

    def _describe(self, words: _Words, tags: list[str], scores: np.ndarray) -> dict:
        entities = []
        for entity in [] if self.scheme == "plain" else ner_tags.entities_of(tags, self.scheme):
            start, end = words.starts[entity.start], words.ends[entity.end - 1]
            score = float(np.mean(scores[entity.start : entity.end]))
            text = words.text[start:end]
            entities.append({"type": entity.type, "text": text, "start": start, "end": end, "score": score})
        tagged = {"words": words.words, "tags": tags, "scores": [float(score) for score in scores]}
        return tagged | {"starts": words.starts, "ends": words.ends, "entities": entities}


def _joined(words: Sequence[str]) -> _Words:
    ends = np.cumsum([len(word) + 1 for word in words], dtype=int) - 1
    starts = [int(end) - len(word) for end, word in zip(ends, words, strict=True)]
    return _Words(" ".join(words), list(words), starts, ends.tolist())
