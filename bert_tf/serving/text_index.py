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
from bert_tf.system.storage import write_files
from bert_tf.system.text_files import exists, parse_json, read_bytes, read_text_lines

VECTORS, TEXTS = "vectors.npy", "texts.jsonl"
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
        if vectors.ndim != 2 or not vectors.size or not np.isfinite(vectors).all():
            raise ValueError(f"an index needs the vectors of texts, finite numbers [n, H], not {list(vectors.shape)}")
        self.texts, self.vectors, self.prompt_name = texts, np.asarray(normalized(vectors)), prompt_name
        self._embedder = None  # the last one that was found to be of this model
        if texts is not None and len(texts) != len(vectors):
            raise ValueError(f"{len(texts)} texts have {len(vectors)} vectors: they belong to two indices")
        self._neighbors = NearestNeighbors(metric="cosine", algorithm="brute").fit(self.vectors)

    def nearest(self, vectors: np.ndarray, k: int) -> list[list[dict]]:
        """For each of vectors [q, H] the k nearest texts, the nearest first: index, score (the cosine) and text.

        Raises:
          ValueError: vectors have another size than those of the texts.
        """
        if vectors.shape[1] != self.vectors.shape[1]:
            raise ValueError(
                f"the vectors to search in have {self.vectors.shape[1]} numbers, this model's {vectors.shape[1]}: they "
                "are those of another model"
            )
        distances, places = self._neighbors.kneighbors(vectors, min(k, len(self.vectors)))
        return [
            [
                {"index": place, "score": 1 - distance} | ({} if self.texts is None else {"text": self.texts[place]})
                for place, distance in zip(*row, strict=True)
            ]
            for row in zip(places.tolist(), distances.tolist(), strict=True)
        ]

    def check_model(self, embedder, name: str = "the index") -> None:
        """Refuses an embedder of another model, pooling or length than the texts' vectors were made by; once for each.

        Raises:
          ValueError: begins with the name of the index.
        """
        if self.texts is None or self._embedder is embedder:
            return
        own = embedder.encode(self.texts[:1], True, self.prompt_name)
        if own.shape != self.vectors[:1].shape or np.abs(own - self.vectors[:1]).max() > _ALIKE:
            raise ValueError(
                f"{name} was made by another model than {embedder.path}, or with another pooling or length: its first "
                "text has another vector. Make it again."
            )
        self._embedder = embedder

    def save(self, directory: str) -> None:
        """Writes the index to a folder, which is made if needed.

        Raises:
          ValueError: it has no texts. OSError: see `checks.folder_of`.
        """
        import tensorflow as tf

        if self.texts is None:
            raise ValueError(
                "an index is saved beside its texts, and this one has vectors alone: embedder.index(texts)"
            )
        directory, content = folder_of(directory), io.BytesIO()
        np.save(content, self.vectors, allow_pickle=False)
        lines = [{"prompt_name": self.prompt_name, "texts": len(self.texts)}, *self.texts]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        tf.io.gfile.makedirs(directory)
        contents = {VECTORS: content.getvalue(), TEXTS: text.encode()}
        write_files({posixpath.join(directory, name): content for name, content in contents.items()})

    @classmethod
    def load(cls, directory: str, embedder) -> "TextIndex":
        """The index in a folder.

        Args:
          embedder: the `Embedder` that is to search it: of the same model, pooling and length.

        Raises:
          FileNotFoundError, ValueError: there is no index, it is damaged, or another model made it; names the file.
        """
        directory = path_of(directory, "TextIndex.load")
        files = {name: posixpath.join(directory, name) for name in (VECTORS, TEXTS)}
        for name, path in files.items():
            if not exists(path):
                raise FileNotFoundError(f"{directory} is no index of texts: there is no {name}")
        try:
            vectors = np.load(io.BytesIO(read_bytes(files[VECTORS])), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{files[VECTORS]} is damaged, or no array of numbers ({error}): make it again") from None
        lines = enumerate(read_text_lines(files[TEXTS]), start=1)
        header, *texts = [parse_json(line, files[TEXTS], number) for number, line in lines] or [None]
        if not isinstance(header, dict) or not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f"{files[TEXTS]} is damaged: it has a JSON object in the first line, then a string in each"
            )
        if not isinstance(vectors, np.ndarray) or vectors.dtype != np.float32 or len(texts) != header.get("texts"):
            raise ValueError(f"{directory}: {VECTORS} or {TEXTS} is damaged: make the index again")
        try:
            index = cls(texts, vectors, header.get("prompt_name"))
        except ValueError as error:
            raise ValueError(f"{directory}: {error}") from None
        index.check_model(embedder, directory)
        return index
