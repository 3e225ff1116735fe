"""What a record holds, by the data tools of each family (--rows).

  pairs           BERT's and ALBERT's: two runs of sentences, or one (`instances`)
  electra         ELECTRA's: one or two runs of sentences that follow each other, in the text's order
  full_sentences  RoBERTa's: sentences in a row, each with its end token, packed to the full length across documents
  doc_sentences   the same within documents
  lines           DistilBERT's: a line, which holds several sentences

All but pairs are unmasked, and go over the text once. Sources: Clark et al. 2020, build_pretraining_dataset.py; Liu et
al. 2019, section 4.2, fairseq's TokenBlockDataset; lm_seqs_dataset.py of DistilBERT.
"""

import os
import random
from collections.abc import Callable

import numpy as np

from bert_tf.pretraining import mersenne_twister, row_kernels
from bert_tf.pretraining.instances import Instances, VocabularyIds, create_instances, write_planned
from bert_tf.pretraining.settings import InstanceSettings
from bert_tf.pretraining.token_store import TokenStore, map_file
from bert_tf.system.progress import progress_bar

WITH_SEPARATORS = ("full_sentences", "doc_sentences")
_ROW_TOKENS = 1 << 22  # at once
_SPANS = {"spans": (np.int64, 6), "positions": (np.int32, 0), "replacements": (np.int32, 0)}


def create_rows(
    store: TokenStore,
    settings: InstanceSettings,
    vocabulary: VocabularyIds,
    unknown_id: int,
    rng: random.Random,
    numpy_rng: np.random.RandomState,
    directory: str,
    bar: Callable = progress_bar,
) -> Instances:
    """What the records of a text hold, of the kind settings.rows.

    Args:
      store: the text; with separators for those kinds in WITH_SEPARATORS.
      unknown_id: of the unknown token.
      rng, numpy_rng, directory, bar: see `create_instances`.
    """
    if settings.rows == "pairs":
        return create_instances(store, settings, vocabulary, rng, directory, bar, numpy_rng)
    total = store.num_tokens if settings.rows == "electra" else len(store.sentence_ends)
    with bar(total=total, desc="building rows", unit="tokens" if settings.rows == "electra" else "lines") as progress:
        if settings.rows == "electra":
            return _electra_rows(store, settings, vocabulary, rng, directory, progress.update)
        place, length = np.zeros(3, np.int64), settings.max_seq_length

        def plan(spans, *_) -> int:
            if settings.rows == "lines":
                return row_kernels.plan_lines(store.tokens, store.sentence_ends, unknown_id, length, place, spans)
            within = settings.rows == "doc_sentences"
            return row_kernels.plan_sentences(store.sentence_ends, store.document_ends, length, within, place, spans)

        arrays = write_planned(plan, _SPANS, directory, lambda: int(place[0]), progress.update)
    order = np.arange(len(arrays[0]), dtype=np.int64)
    state = mersenne_twister.generator_state(rng)
    mersenne_twister.shuffle(state, order, len(order))
    mersenne_twister.restore(rng, state)
    left_out = int(place[2]) if settings.rows == "lines" else 0
    return Instances(store, settings, vocabulary, *arrays, order, left_out)


def _electra_rows(store, settings, vocabulary, rng, directory, progress) -> Instances:
    """ELECTRA's rows, in the order of the text, with every draw of the original's."""
    length = settings.max_seq_length
    state = mersenne_twister.generator_state(rng)
    place = np.array([0, 0, 0, 0, length], np.int64)
    tokens = np.empty(max(_ROW_TOKENS, length), store.tokens.dtype)
    used = 0
    path = os.path.join(directory, "rows")
    with open(path, "wb") as file:

        def plan(spans, *_) -> int:
            nonlocal used
            made = 0
            while made < len(spans):
                new, filled = row_kernels.plan_electra(
                    store.tokens, store.sentence_ends, store.document_ends, length, state, place, used, spans[made:],
                    tokens,
                )  # fmt: skip
                file.write(tokens[:filled].data)
                used += filled
                made += new
                if not new:
                    break
            return made

        arrays = write_planned(plan, _SPANS, directory, lambda: used, progress)
    mersenne_twister.restore(rng, state)
    rows = TokenStore(map_file(path, store.tokens.dtype.type), store.sentence_ends, store.document_ends)
    return Instances(rows, settings, vocabulary, *arrays, np.arange(len(arrays[0]), dtype=np.int64))
