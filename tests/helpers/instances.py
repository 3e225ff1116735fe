"""Documents as token stores."""

import itertools

import numpy as np

from bert_tf.pretraining.corpus import Corpus
from bert_tf.pretraining.token_store import tokenize


def store_of(files, tokenizer, directory, **arguments):
    return tokenize(Corpus(files).blocks(), tokenizer, str(directory), **arguments)


def documents_of(store) -> list[list[list[int]]]:
    """A store as lists of lists."""
    sentences = [part.tolist() for part in np.split(store.tokens, store.sentence_ends[:-1])]
    begins = [0, *store.document_ends.tolist()]
    return [sentences[begin:end] for begin, end in itertools.pairwise(begins)]
