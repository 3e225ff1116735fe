"""Texts with their vectors, in which `Embedder.search` finds those nearest to a query; in memory, and in a folder.

A folder has vectors.npy, float32 [n, H], or vectors_2.npy, which take turns when it is saved again, and texts.jsonl: in
the first line how they were made and which of the two counts, then a text in each. Nothing in it is executed.

Shape legend: n texts, q queries, H hidden size.
"""

import contextlib
import io
import json
import posixpath
from collections.abc import Sequence

import numpy as np

from bert_tf.store.description import SIMILARITIES
from bert_tf.system import hub
from bert_tf.system.checks import list_of_strings, target_directory
from bert_tf.system.messages import naming_flag
from bert_tf.system.storage import gfile, write_file
from bert_tf.system.text_files import exists, parse_json, read_bytes, read_text_lines

_VECTORS, _TEXTS = ("vectors.npy", "vectors_2.npy"), "texts.jsonl"
_ALIKE = 0.02  # of a vector's length, in each dimension: bfloat16 has two decimals
_AT_ONCE = 64  # queries


def normalized(vectors: np.ndarray) -> np.ndarray:
    """The vectors [..., H] with the length 1; zeros stay zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def normalize_for(similarity: str) -> bool | None:
    """`Embedder.encode`'s argument for vectors that are compared so: cosines are products of vectors of length 1."""
    return True if similarity == "cosine" else None


class TextIndex:
    """Texts and their vectors, as `Embedder.index` makes them.

        index = embedder.index(texts)
        index.save("runs/index")
        index = TextIndex.load("runs/index", embedder)
        embedder.search("A query.", index, k=5)

    Args:
      texts: n strings; None: vectors alone. vectors: float [n, H]. prompt_name: of the prompt before the texts, if any.
      similarity: one of SIMILARITIES.

    Raises:
      ValueError: there are none, or vectors are not finite [n, H].
    """

    def __init__(
        self,
        texts: Sequence[str] | None,
        vectors: np.ndarray,
        prompt_name: str | None = None,
        similarity: str = "cosine",
    ):
        vectors = np.asarray(vectors, np.float32)
        fits = vectors.ndim == 2 and vectors.size and (texts is None or len(texts) == len(vectors))
        if not fits or not np.isfinite(vectors).all():
            needed = f"at least one text and finite vectors [{'n' if texts is None else len(texts)}, H]"
            raise ValueError(f"an index needs {needed}, not vectors {list(vectors.shape)}")
        "".join(texts or ()).encode()  # raises for what `save` can't write
        if similarity not in SIMILARITIES:
            raise ValueError(f"similarity={similarity!r:.80} is not one of {', '.join(SIMILARITIES)}")
        self.texts, self.prompt_name, self.similarity = texts, prompt_name, similarity
        self.vectors = normalized(vectors) if similarity == "cosine" else vectors
        self._embedder = None  # the last one that was found to be of this model

    def __len__(self) -> int:
        return len(self.vectors)

    def __repr__(self) -> str:
        first = "no texts" if self.texts is None else f"the first text {self.texts[0]!r:.40}"
        return f"<TextIndex: {len(self)} vectors of {self.vectors.shape[1]}, {first}, compared by {self.similarity}>"

    def add(self, texts: Sequence[str], embedder) -> None:
        """Appends texts. embedder: as for `load`.

        Raises:
          TypeError, ValueError: not a list of strings; another model's embedder; the index has vectors alone.
        """
        if self.texts is None:
            raise ValueError("texts are added to texts; this index has vectors alone")
        self.check_model(embedder)
        texts = list_of_strings(texts, "texts")
        vectors = embedder.encode(texts, normalize_for(self.similarity), self.prompt_name)
        more = TextIndex(texts, vectors, self.prompt_name, self.similarity)
        self.texts, self.vectors = [*self.texts, *more.texts], np.concatenate([self.vectors, more.vectors])

    def nearest(self, vectors: np.ndarray, k: int) -> list[list[dict]]:
        """For each of vectors [q, H] the k nearest texts, the nearest first: index, score (see `similarity`), text."""
        hits, k = [], min(k, len(self.vectors))
        for first in range(0, len(vectors), _AT_ONCE):
            for scores in vectors[first : first + _AT_ONCE] @ self.vectors.T:
                best = np.sort(np.argpartition(-scores, k - 1)[:k])
                best = best[np.argsort(-scores[best], kind="stable")].tolist()
                hits.append([{"index": index, "score": float(scores[index])} for index in best])
        if self.texts is not None:
            hits = [[{**hit, "text": self.texts[hit["index"]]} for hit in row] for row in hits]
        return hits

    def check_model(self, embedder, name: str = "the index") -> None:
        """Raises if the vectors were made by another model, pooling or length. name: of the index."""
        if self._embedder is embedder:
            return
        first, normalize = self.vectors[:1], normalize_for(self.similarity)
        computed = embedder.encode((self.texts or [])[:1], normalize, self.prompt_name)
        is_other = computed.shape[1] != first.shape[1]
        if is_other or np.abs(computed - first[: len(computed)]).max(initial=0) > _ALIKE * np.linalg.norm(first):
            other = f"another model than {embedder.path}, or with another pooling or length"
            raise ValueError(f"{name} was made by {other}: make it new")
        self._embedder = embedder

    def save(self, directory: str) -> None:
        """Writes the index to a folder, which is made if needed. If this is interrupted, the one before stays.

        Raises:
          ValueError: it has no texts. OSError: see `checks.target_directory`.
        """
        if self.texts is None:
            raise ValueError("an index is saved with its texts; this one has vectors alone")
        directory, content = target_directory(directory), io.BytesIO()
        np.save(content, self.vectors, allow_pickle=False)
        texts_file, used = posixpath.join(directory, _TEXTS), None
        with contextlib.suppress(AttributeError, ValueError):  # a damaged one
            if exists(texts_file):
                used = parse_json(next(read_text_lines(texts_file), ""), texts_file).get("vectors", _VECTORS[0])
        unused, other = sorted(_VECTORS, key=lambda name: name == used)
        lines = [{"prompt_name": self.prompt_name, "similarity": self.similarity, "vectors": unused}, *self.texts]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        gfile().makedirs(directory)
        write_file(posixpath.join(directory, unused), content.getvalue())
        write_file(texts_file, text.encode())  # from this rename on, the new index counts
        if exists(other := posixpath.join(directory, other)):
            gfile().remove(other)

    @classmethod
    def load(cls, directory: str, embedder) -> "TextIndex":
        """The index in a folder.

        embedder: the `Embedder` that is to search it: of the same model, pooling and length.

        Raises:
          FileNotFoundError, ValueError: there is no index, it is damaged, or another model made it; names the file.
        """
        directory = hub.local(directory, with_weights=False)
        texts_file = posixpath.join(directory, _TEXTS)
        with naming_flag(f"{directory} is not an index of texts, or damaged"):
            lines = enumerate(read_text_lines(texts_file), start=1)
            header, *texts = [parse_json(line, texts_file, number) for number, line in lines] or [None]
            if not isinstance(header, dict) or not all(isinstance(text, str) for text in texts):
                raise ValueError(f"{texts_file} has no JSON object in its first line, then strings")
            if (name := header.get("vectors", _VECTORS[0])) not in _VECTORS:
                raise ValueError(f"{texts_file} names no file of vectors: {name!r:.80}")
            vectors = np.load(io.BytesIO(read_bytes(posixpath.join(directory, name))), allow_pickle=False)
            index = cls(texts, vectors, header.get("prompt_name"), header.get("similarity", "cosine"))
        index.check_model(embedder, directory)
        return index
