"""Masked LM and next sentence instances of tokenized text (original: create_pretraining_data.py).

Every draw from the one random stream is made where the original makes it, so that the same seed gives its instances in
its order. The loops are in `instance_kernels`; their results are kept on disk.

Shape legend: S max_seq_length, P max_predictions_per_seq.
"""

import contextlib
import dataclasses
import os
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from absl import logging

from bert_tf.pretraining import instance_kernels, row_kinds
from bert_tf.pretraining.record_settings import InstanceSettings
from bert_tf.pretraining.row_kinds import Plan
from bert_tf.pretraining.token_store import TokenStore, map_file
from bert_tf.system.messages import progress_bar
from bert_tf.text.tokenizer import Tokenizer

_INSTANCES_PER_CALL = 1 << 15


@dataclasses.dataclass(slots=True)
class TrainingInstance:
    """One pair of sentence runs (original: TrainingInstance, which holds tokens where this holds ids).

    token_ids: [CLS] A [SEP] B [SEP], or [CLS] A [SEP] under --nsp=false, after masking, at most S.
    second_start: where B begins, so the number of tokens whose segment id is 0.
    masked_lm_positions: increasing. masked_lm_ids: the ids there before masking.
    """

    token_ids: list[int]
    second_start: int
    is_random_next: bool
    masked_lm_positions: list[int]
    masked_lm_ids: list[int]


class Instances:
    """The instances of a text, in their final order; read from disk on demand.

    spans: int64 [n, 6], see `instance_kernels`. positions, replacements: int32 [n, P]. All in the order of making.
    order: int64 [n], the final order.
    left_out: how many more there would be if none were too short, or too much of it unknown.
    """

    def __init__(self, store, settings, tokenizer, spans, positions, replacements, order, left_out=0):
        self.store, self.settings, self.tokenizer, self.left_out = store, settings, tokenizer, left_out
        self.spans, self.positions, self.replacements, self.order = spans, positions, replacements, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, position: int) -> TrainingInstance:
        number = self.order[position]
        span, tokenizer = self.spans[number], self.tokenizer
        row = np.empty(self.settings.max_seq_length, np.int32)
        length = instance_kernels.gather(self.store.tokens, span, tokenizer.cls_id, tokenizer.sep_id, row)
        positions = self.positions[number, : span[instance_kernels.NUM_MASKED]]
        labels = row[positions].tolist()
        row[positions] = self.replacements[number, : len(positions)]
        second_start, is_random = int(span[instance_kernels.A_LENGTH]) + 2, bool(span[instance_kernels.LABEL])
        return TrainingInstance(row[:length].tolist(), second_start, is_random, positions.tolist(), labels)


def create_instances(
    store: TokenStore,
    settings: InstanceSettings,
    tokenizer: Tokenizer,
    rng: random.Random,
    directory: str,
    bar: Callable = progress_bar,
    numpy_rng: np.random.RandomState | None = None,
) -> Instances:
    """The content of the records of a text, of the kind settings.rows, in their final order.

    Pairs: dupe_factor passes over the documents in random order. Sentences are gathered until they fill the target
    length. The first few of them are A; B is the rest or, half of the time and whenever there is no rest, sentences
    from a random place of another document; then the rest begins the next instance (original:
    create_instances_from_document). With settings.next_sentence "order", B is always the rest if there is one, and half
    of the time A and B change places (ALBERT's create_pretraining_data.py). Without settings.nsp there is no B.

    The other kinds are described in `row_kinds`. ELECTRA's stay in the order of the text; all others are shuffled.

    tokenizer: random replacements are drawn from all of its ids, special and unused ones included.
    rng, numpy_rng: all randomness; left where the original would leave it. numpy_rng is needed with settings.ngram.
    directory: local; instances are kept in files there.
    """
    total, unit = len(store.sentence_ends), "lines"
    width = settings.max_predictions_per_seq if settings.rows == "pairs" else 0
    with instance_kernels.drawing_from(rng, numpy_rng):
        if settings.rows == "pairs":
            total, unit = settings.dupe_factor * len(store.document_ends), "documents"
            plan = _plan_of_pairs(store, settings, tokenizer)
        elif settings.rows == "electra":
            plan = row_kinds.electra_plan(store, settings.max_seq_length, os.path.join(directory, "rows"))
        else:
            plan = row_kinds.lines_plan(store, settings, tokenizer.unk_id)
        with bar(total=total, desc="building instances", unit=unit, unit_scale=True) as progress:
            arrays = _write_planned(plan, width, directory, progress.update)
        order = np.arange(len(arrays[0]), dtype=np.int64)
        if settings.rows == "electra":
            rows = map_file(os.path.join(directory, "rows"), store.tokens.dtype.type)
            store = dataclasses.replace(store, tokens=rows)
        else:
            instance_kernels.shuffle(order, len(order))
    return Instances(store, settings, tokenizer, *arrays, order, plan.left_out())


def _plan_of_pairs(store: TokenStore, settings: InstanceSettings, tokenizer: Tokenizer) -> Plan:
    order = np.arange(len(store.document_ends), dtype=np.int64)
    instance_kernels.shuffle(order, len(order))
    cursor = np.array([0, 0, 0, -1], np.int64)
    # By the original's two draws: one whether the token becomes [MASK], and if not, one whether it stays.
    not_masked = settings.random_rate + settings.keep_rate
    keep_share = settings.keep_rate / not_masked if not_masked else 0.0
    numbers = (
        settings.max_seq_length, settings.dupe_factor, settings.max_predictions_per_seq,
        int(settings.do_whole_word_mask), int(settings.nsp), int(settings.next_sentence == "order"),
        tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id,
    )  # fmt: skip
    probabilities = (settings.short_seq_prob, settings.masked_lm_prob, settings.mask_rate, keep_share)
    shares, all_ids = ngram_shares(settings), np.array([*tokenizer.vocab.values()], np.int32)

    def fill(*chunk: np.ndarray) -> int:
        return instance_kernels.plan_instances(
            store.tokens, store.continuations, store.sentence_ends, store.document_ends, order, cursor, numbers,
            probabilities, shares, all_ids, tokenizer.continuations, *chunk,
        )  # fmt: skip

    return Plan(fill, lambda: int(cursor[instance_kernels.AT_PASS] * len(order) + cursor[instance_kernels.AT_DOCUMENT]))


def ngram_shares(settings: InstanceSettings) -> np.ndarray:
    """float64 [ngram]: the shares of n-grams of up to 1, 2, ... words, as the original computes them."""
    if not settings.ngram:
        return np.empty(0)
    shares = 1.0 / np.arange(1, settings.ngram + 1)
    shares /= shares.sum(keepdims=True)
    if not settings.favor_shorter_ngram:
        shares = shares[::-1]
    running = np.cumsum(shares / shares.sum(keepdims=True))
    return running / running[-1]


def _write_planned(plan: Plan, width: int, directory: str, progress: Callable[[int], None]) -> list[np.ndarray]:
    """Spans, positions and replacements of all instances of a plan, see `Instances`, mapped from files. width: P."""
    columns = {"spans": (np.int64, 6), "positions": (np.int32, width), "replacements": (np.int32, width)}
    chunk = [np.empty((_INSTANCES_PER_CALL, width), kind) for kind, width in columns.values()]
    paths = [os.path.join(directory, name) for name in columns]
    count, seen, made = 0, 0, _INSTANCES_PER_CALL
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(path, "wb")) for path in paths]
        while made == _INSTANCES_PER_CALL:
            made = plan.fill(*chunk)
            count += made
            for file, rows in zip(files, chunk, strict=True):
                file.write(rows[:made].data)
            progress(plan.done() - seen)
            seen = plan.done()
    kinds = zip(paths, columns.values(), strict=True)
    return [map_file(path, kind).reshape(count, width) for path, (kind, width) in kinds]


def log_instances(instances: Sequence[TrainingInstance], inv_vocab: Mapping[int, str]) -> None:
    for number, instance in enumerate(instances):
        tokens = " ".join(inv_vocab[index] for index in instance.token_ids)
        masked = zip(instance.masked_lm_positions, instance.masked_lm_ids, strict=True)
        masked = " ".join(f"{position}={inv_vocab[index]}" for position, index in masked)
        label = f"label {int(instance.is_random_next)}, B from {instance.second_start} on"
        logging.info(f"Instance {number}, {label}\n  tokens: {tokens}\n  masked: {masked}")
