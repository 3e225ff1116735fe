"""Vectors for texts: the nearer two vectors, the more alike the texts.

Shape legend: n texts, H hidden size.
"""

import copy
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import logging

from bert_tf.data.token_rows import TokenRows, rows_of_texts
from bert_tf.serving.predictor import Answerer
from bert_tf.serving.text_index import TextIndex, normalize_for, normalized
from bert_tf.store.description import SIMILARITIES
from bert_tf.store.open import open_encoder
from bert_tf.system.checks import check_integer, list_of_strings, true_or_false

if TYPE_CHECKING:
    import tensorflow as tf


class Embedder(Answerer):
    """One vector for each text, from a model directory of any format, of sentence-transformers, or an export.

        embedder = Embedder("sentence-transformers/all-MiniLM-L6-v2")
        vectors = embedder.encode(["A man eats food.", "A man eats bread.", "The sky is blue."], normalize=True)
        vectors @ vectors.T  # float32 [3, 3]: the cosine of each pair

    Threads may share it.

    Args:
      path: a directory of sentence-transformers (modules.json), which says how vectors are made; any other model
        directory; or what export_saved_model.py wrote (the directory of versions, or one of them).
      pooling: of the encoder's outputs for all tokens the "mean" or, in each dimension, the "max"; or that for the
        first token, "cls". Default: what the directory says, else "mean".
      max_seq_length: longer texts lose their last tokens. Default: what the directory says, else the model's maximum.
      options: as for `Predictor`. Vectors in "bfloat16" are right to about 2 decimals.

    Raises:
      FileNotFoundError, ValueError: there is no model, or it makes vectors in a way that is not supported; pooling or
        dtype is given for an export.
    """

    tasks = ("encoder",)
    action = "embed"
    _skipped = 0  # tokens of the prompt that the pooling leaves out

    def __init__(self, path: str, *, pooling: str | None = None, max_seq_length: int | None = None, **options):
        opened = open_encoder(path, or_export=True)
        if pooling and opened.export and not opened.is_onnx:
            raise ValueError(f"pooling={pooling}: what an export computes is decided when it is written")
        self.pooling = pooling or opened.sentences.pooling
        self.settings = dataclasses.replace(opened.sentences, pooling=self.pooling)
        super().__init__(opened, max_seq_length=max_seq_length, **options)
        if self.export:
            self.size = self.description["signatures"]["embed"]["outputs"]["vector"][1][-1]
            return
        if not (pooling or self.settings.described):
            logging.info("%s does not say how its vectors are made: the mean over the tokens is taken.", self.path)
        self.size = self.settings.size_for(self.files.config)

    def features(self, rows: TokenRows, chosen: np.ndarray) -> dict[str, np.ndarray]:
        return super().features(rows, chosen) | {"skipped": np.array([self._skipped], np.int32)}

    def encode(
        self,
        texts: Sequence[str],
        normalize: bool | None = None,
        prompt_name: str | None = None,
        *,
        normalize_embeddings: bool | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = False,
    ) -> "np.ndarray | tf.Tensor":
        """float32 [n, H]: the vectors of texts, in their order.

        Args:
          texts: strings.
          normalize: give all vectors the length 1, so that their product is their cosine. Default: the directory's.
          prompt_name: a prompt of the directory (config_sentence_transformers.json), which is put before every text.
            Default: the directory's default prompt, if any.
          others: as in sentence-transformers. normalize_embeddings=False: as the directory says. Tensors: TensorFlow's.

        Raises:
          TypeError, ValueError: not a list of strings; there is no such prompt.
        """
        true_or_false(normalize=normalize, normalize_embeddings=normalize_embeddings)
        if self.export and prompt_name is not None:
            raise ValueError(f"prompt_name={prompt_name!r}: what an export computes was decided when it was written")
        prompt, normalize = self.settings.prompt(prompt_name), normalize_embeddings or normalize
        texts = list_of_strings(texts, "texts", "embedder(text)")
        this_time = copy.copy(self)
        this_time.batch_size = self.batch_size if batch_size is None else batch_size
        this_time.shows_progress = show_progress_bar
        check_integer(this_time.batch_size, "batch_size")
        if not texts:
            vectors = np.zeros((0, self.size), np.float32)
        elif self.export:
            rows = this_time.exported("embed", list(map(len, texts)), {"text": texts})
            vectors = np.array([row["vector"] for row in rows])
        else:
            this_time._skipped = skipped = self.settings.skipped(prompt, self.tokenizer)
            if skipped >= self.max_seq_length:
                raise ValueError(f"a prompt of {skipped} tokens fills max_seq_length={self.max_seq_length}")
            stripped = [(prompt + text).strip() for text in texts]
            rows, cut = rows_of_texts(stripped, self.tokenizer, self.max_seq_length, self.settings.lower)
            if cut:
                lost = "%d of %d texts are longer than %d tokens and lost their %s ones."
                self.warn(lost, cut, len(texts), self.max_seq_length, self.tokenizer.lost)
            if empty := sum(not text.strip() for text in texts):
                self.warn("%d of %d texts are empty; their vectors mean nothing.", empty, len(texts))
            vectors = this_time.computed(rows, self.files.config.hidden_size)
        # The further steps of the directory, see `layers.finished`.
        vectors = normalized(vectors) if self.settings.normalize and normalize is None else vectors
        vectors = vectors[..., : self.settings.truncate_dim]
        vectors = normalized(vectors) if normalize else vectors
        if not convert_to_tensor:
            return vectors
        import tensorflow as tf

        return tf.convert_to_tensor(vectors)

    def similarity(self, vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
        """float32 [n, m]: how alike vectors [n, H] and others [m, H] are, by the function of `search`."""
        both = [np.atleast_2d(np.asarray(each, np.float32)) for each in (vectors, others)]
        first, second = map(normalized, both) if self._similarity() == "cosine" else both
        return np.asarray(first) @ np.asarray(second).T

    def get_sentence_embedding_dimension(self) -> int:
        """`size`, as sentence-transformers calls it."""
        return self.size

    def index(self, texts: Sequence[str], prompt_name: str | None = None) -> TextIndex:
        """Texts with their vectors, for `search`, also later: see `TextIndex`.

        prompt_name: see `encode`. Default: "document" where the directory has such a prompt, else none.

        Raises:
          TypeError, ValueError: see `encode`; there are no texts; the directory compares vectors in another way.
        """
        texts, similarity = list_of_strings(texts, "texts"), self._similarity()
        prompt_name = prompt_name or (None if self.export else "document")
        vectors = self.encode(texts, normalize_for(similarity), prompt_name)
        return TextIndex(texts, vectors, prompt_name, similarity)

    def search(
        self,
        query: str | Sequence[str],
        texts_or_vectors: Sequence[str] | np.ndarray | TextIndex,
        k: int = 10,
        prompt_name: str | None = None,
    ) -> list[dict] | list[list[dict]]:
        """The k texts that are nearest to a query, the nearest first; for a list of queries a list for each.

            embedder.search("Who eats?", ["A man eats food.", "The sky is blue."], k=1)
            # [{"index": 0, "score": 0.41, "text": "A man eats food."}]

        Each has `index`, its position; `score`, the cosine, or the dot product if the directory's similarity_fn_name
        says so; and `text`, where texts are known.

        Args:
          texts_or_vectors: strings; or vectors [n, H] of this model; or an index, which saves time over many queries.
          prompt_name: of the queries, see `encode`. Default: "query" where the directory has such a prompt, else none.

        Raises:
          TypeError, ValueError: see `encode` and `index`; vectors are those of another model.
        """
        check_integer(k, "k")
        queries = [query] if isinstance(query, str) else list_of_strings(query, "query")
        index = texts_or_vectors
        if isinstance(index, np.ndarray):
            index = TextIndex(None, index, similarity=self._similarity())
        elif not isinstance(index, TextIndex):
            index = self.index(index)
        index.check_model(self)
        prompt_name = prompt_name or (None if self.export else "query")
        vectors = self.encode(queries, normalize_for(index.similarity), prompt_name)
        results = index.nearest(vectors, k) if queries else []
        return results[0] if isinstance(query, str) else results

    def _similarity(self) -> str:
        name = self.description.get("similarity", "cosine") if self.export else self.settings.similarity
        if name not in SIMILARITIES:
            raise ValueError(f"{self.path}: search compares by cosine or dot, not by {name!r:.80}")
        return name

    def __call__(self, text: str | Sequence[str], normalize: bool | None = None) -> np.ndarray:
        """float32 [H]: the vector of one text; of a list [n, H]."""
        return self.encode([text], normalize)[0] if isinstance(text, str) else self.encode(text, normalize)
