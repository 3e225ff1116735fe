"""Texts with their vectors, in which `Embedder.search` finds those nearest to a query; in memory, and in a folder.

A folder has vectors.npy, float32 [n, H] of length 1, and texts.jsonl: in the first line how they were made, then a text
in each. Nothing in it is executed.

Shape legend: n texts, q queries, H hidden size.
"""

import io
import json
import posixpath
from collections.abc import Sequence

import numpy as np

from bert_tf.models.layers import normalized
from bert_tf.system.checks import folder_of, path_of
from bert_tf.system.messages import named_by
from bert_tf.system.storage import write_files
from bert_tf.system.text_files import parse_json, read_bytes, read_text_lines

_FILES = ("vectors.npy", "texts.jsonl")
_ALIKE = 0.02  # in each dimension: bfloat16 has two decimals


class TextIndex:
    """Texts and their vectors, as `Embedder.index` makes them.

        index = embedder.index(texts)
        index.save("runs/index")
        index = TextIndex.load("runs/index", embedder)
        embedder.search("A query.", index, k=5)

    Args:
      texts: n strings; None: vectors alone. vectors: float [n, H]. prompt_name: of the prompt before the texts, if any.

    Raises:
      ValueError: there are none, or vectors are no finite [n, H].
    """

    def __init__(self, texts: Sequence[str] | None, vectors: np.ndarray, prompt_name: str | None = None):
        from sklearn.neighbors import NearestNeighbors

        vectors = np.asarray(vectors, np.float32)
        fits = vectors.ndim == 2 and vectors.size and (texts is None or len(texts) == len(vectors))
        if not fits or not np.isfinite(vectors).all():
            shape = f"[{'n' if texts is None else len(texts)}, H]"
            raise ValueError(
                f"an index needs at least one text and finite vectors {shape}, not vectors {list(vectors.shape)}"
            )
        self.texts, self.vectors, self.prompt_name = texts, np.asarray(normalized(vectors)), prompt_name
        self._embedder = None  # the last one that was found to be of this model
        self._neighbors = NearestNeighbors(metric="cosine", algorithm="brute").fit(self.vectors)

    def nearest(self, vectors: np.ndarray, k: int) -> list[list[dict]]:
        """For each of vectors [q, H] the k nearest texts, the nearest first: index, score (the cosine) and text."""

        def hit(place: int, distance: float) -> dict:
            text = {} if self.texts is None else {"text": self.texts[place]}
            return {"index": place, "score": 1 - distance, **text}

        distances, places = self._neighbors.kneighbors(vectors, min(k, len(self.vectors)))
        return [[*map(hit, *row)] for row in zip(places.tolist(), distances.tolist(), strict=True)]

    def check_model(self, embedder, name: str = "the index") -> None:
        """Refuses an embedder of another model, pooling or length than the vectors were made by; once for each.

        Raises:
          ValueError: begins with the name of the index.
        """
        if self._embedder is embedder:
            return
        own, first = embedder.encode((self.texts or [])[:1], True, self.prompt_name), self.vectors[:1]
        if own.shape[1] != first.shape[1] or np.abs(own - first[: len(own)]).max(initial=0) > _ALIKE:
            raise ValueError(
                f"{name} was made by another model than {embedder.path}, or with another pooling or length: make it new"
            )
        self._embedder = embedder

    def save(self, directory: str) -> None:
        """Writes the index to a folder, which is made if needed.

        Raises:
          ValueError: it has no texts. OSError: see `checks.folder_of`.
        """
        import tensorflow as tf

        if self.texts is None:
            raise ValueError("an index is saved beside its texts; this one has vectors alone: embedder.index(texts)")
        directory, content = folder_of(directory), io.BytesIO()
        np.save(content, self.vectors, allow_pickle=False)
        lines = [{"prompt_name": self.prompt_name}, *self.texts]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        tf.io.gfile.makedirs(directory)
        vectors_file, texts_file = (posixpath.join(directory, name) for name in _FILES)
        write_files({vectors_file: content.getvalue(), texts_file: text.encode()})

    @classmethod
    def load(cls, directory: str, embedder) -> "TextIndex":
        """The index in a folder.

        Args:
          embedder: the `Embedder` that is to search it: of the same model, pooling and length.

        Raises:
          FileNotFoundError, ValueError: there is no index, it is damaged, or another model made it; names the file.
        """
        directory = path_of(directory, "TextIndex.load")
        vectors_file, texts_file = (posixpath.join(directory, name) for name in _FILES)
        with named_by(f"{directory} is no index of texts, or damaged"):
            lines = enumerate(read_text_lines(texts_file), start=1)
            header, *texts = [parse_json(line, texts_file, number) for number, line in lines] or [None]
            if not isinstance(header, dict) or not all(isinstance(text, str) for text in texts):
                raise ValueError(f"{texts_file} has no JSON object in its first line, then strings")
            with named_by(vectors_file):
                vectors = np.lib.format.read_array(io.BytesIO(read_bytes(vectors_file)), allow_pickle=False)
            index = cls(texts, vectors, header.get("prompt_name"))
        index.check_model(embedder, directory)
        return index
