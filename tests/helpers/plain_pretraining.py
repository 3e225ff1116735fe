"""Pre-training instances in plain Python, step by step as in the original: the reference for the compiled code, in
results and in speed.

Every draw from the single random stream is made where the original's create_pretraining_data.py makes it. A sentence is
a list of tokens, a document a list of sentences. Tests use ids as tokens, benchmarks/create_data.py strings, as the
original does; nothing here depends on it.

Shape legend: S max_seq_length, P max_predictions_per_seq.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence

import numpy as np

from bert_tf.pretraining.instances import InstanceSettings, TrainingInstance
from bert_tf.system.example_bytes import example, float_feature, int64_feature, pack
from bert_tf.system.text_files import read_text_lines
from bert_tf.text.tokenizer import Tokenizer

Token = int | str
Sentence = list[Token]
Document = list[Sentence]


@dataclasses.dataclass(frozen=True)
class VocabularyIds:
    """The ids of [CLS], [SEP] and [MASK], every id in the order of the file, and those that continue a word."""

    cls_id: Token
    sep_id: Token
    mask_id: Token
    all_ids: Sequence[Token]
    continuations: frozenset[Token]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "VocabularyIds":
        special = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
        continuations = frozenset(np.flatnonzero(tokenizer.continuations).tolist())
        return cls(*special, list(tokenizer.vocab.values()), continuations)


def read_documents(input_files: Sequence[str], tokenize: Callable[[str], Sentence]) -> list[Document]:
    documents: list[Document] = [[]]
    for path in input_files:
        for line in map(str.strip, read_text_lines(path)):
            if not line:
                documents.append([])
            elif sentence := tokenize(line):
                documents[-1].append(sentence)
    return [document for document in documents if document]


def create_instances_from_documents(documents: list[Document], settings, vocabulary, rng) -> list[TrainingInstance]:
    rng.shuffle(documents)
    instances: list[TrainingInstance] = []
    for _ in range(settings.dupe_factor):
        for document_index in range(len(documents)):
            instances += create_instances_from_document(documents, document_index, settings, vocabulary, rng)
    rng.shuffle(instances)
    return instances


def create_instances_from_document(all_documents, document_index, settings, vocabulary, rng) -> list[TrainingInstance]:
    """One pass over one document (original: create_instances_from_document)."""
    document = all_documents[document_index]
    max_num_tokens = settings.max_seq_length - 2 - settings.nsp  # [CLS], [SEP], of pairs [SEP]
    target_length = max_num_tokens
    # Once per document and pass, not once per instance, as in the original.
    if rng.random() < settings.short_seq_prob:
        target_length = rng.randint(2, max_num_tokens)

    instances = []
    chunk: list[Sentence] = []
    length = index = 0
    while index < len(document):
        chunk.append(document[index])
        length += len(document[index])
        if index == len(document) - 1 or length >= target_length:
            a_end = len(chunk)
            if settings.nsp:
                a_end = 1 if len(chunk) == 1 else rng.randint(1, len(chunk) - 1)
            tokens_a: list[Token] = []
            for sentence in chunk[:a_end]:
                tokens_a.extend(sentence)
            tokens_b: list[Token] = []
            is_random_next = settings.nsp and (len(chunk) == 1 or rng.random() < 0.5)
            if is_random_next:
                tokens_b = _random_next(all_documents, document_index, target_length - len(tokens_a), rng)
                index -= len(chunk) - a_end
            else:
                for sentence in chunk[a_end:]:
                    tokens_b.extend(sentence)
            truncate_seq_pair(tokens_a, tokens_b, max_num_tokens, rng)
            tokens = [vocabulary.cls_id]
            for token in tokens_a:
                tokens.append(token)
            tokens.append(vocabulary.sep_id)
            for token in tokens_b:
                tokens.append(token)
            if settings.nsp:
                tokens.append(vocabulary.sep_id)
            masked = create_masked_lm_predictions(tokens, settings, vocabulary, rng)
            instances.append(TrainingInstance(masked[0], len(tokens_a) + 2, is_random_next, masked[1], masked[2]))
            chunk, length = [], 0
        index += 1
    return instances


def _random_next(all_documents, document_index: int, target_length: int, rng: random.Random) -> list[Token]:
    for _ in range(10):
        random_index = rng.randint(0, len(all_documents) - 1)
        if random_index != document_index:
            break
    document = all_documents[random_index]
    tokens = []
    for position in range(rng.randint(0, len(document) - 1), len(document)):
        tokens.extend(document[position])
        if len(tokens) >= target_length:
            break
    return tokens


def truncate_seq_pair(tokens_a: list[Token], tokens_b: list[Token], max_num_tokens: int, rng: random.Random) -> None:
    while len(tokens_a) + len(tokens_b) > max_num_tokens:
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def create_masked_lm_predictions(
    tokens: Sequence[Token], settings: InstanceSettings, vocabulary: VocabularyIds, rng: random.Random
) -> tuple[list[Token], list[int], list[Token]]:
    """(masked tokens, increasing positions, the original tokens there) (original: create_masked_lm_predictions)."""
    if not settings.max_predictions_per_seq:
        return list(tokens), [], []
    others = settings.random_rate + settings.keep_rate
    keep_share = settings.keep_rate / others if others else 0.0
    num_to_predict = min(settings.max_predictions_per_seq, max(1, round(len(tokens) * settings.masked_lm_prob)))
    positions = [k for k, token in enumerate(tokens) if token not in (vocabulary.cls_id, vocabulary.sep_id)]
    words = word_sets(tokens, positions, vocabulary.continuations if settings.do_whole_word_mask else frozenset())
    rng.shuffle(words)
    masked = list(tokens)
    chosen: list[tuple[int, Token]] = []
    covered: set[int] = set()
    for word in words:
        if len(chosen) >= num_to_predict:
            break
        if len(chosen) + len(word) > num_to_predict or any(position in covered for position in word):
            continue
        for position in word:
            covered.add(position)
            if rng.random() < settings.mask_rate:
                masked[position] = vocabulary.mask_id
            elif rng.random() >= keep_share:
                masked[position] = vocabulary.all_ids[rng.randint(0, len(vocabulary.all_ids) - 1)]
            chosen.append((position, tokens[position]))
    chosen.sort(key=lambda pair: pair[0])
    return masked, [position for position, _ in chosen], [token for _, token in chosen]


def word_sets(tokens: Sequence[Token], positions: Sequence[int], continuations: frozenset[Token]) -> list[list[int]]:
    """Positions of each word. The original lets a "##" piece at the start of B (its beginning was cut off) join the
    last word of A, over the [SEP] between them; so does this."""
    words: list[list[int]] = []
    for position in positions:
        if words and tokens[position] in continuations:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def encode(instance: TrainingInstance, max_seq_length: int, max_predictions_per_seq: int) -> bytes:
    length, num_predictions = len(instance.token_ids), len(instance.masked_lm_ids)
    zeros, zero_predictions = bytes(max_seq_length - length), bytes(max_predictions_per_seq - num_predictions)
    segments = bytes(instance.second_start) + b"\x01" * (length - instance.second_start) + zeros
    features = {
        b"input_ids": pack(instance.token_ids) + zeros,
        b"input_mask": b"\x01" * length + zeros,
        b"segment_ids": segments,
        b"masked_lm_positions": pack(instance.masked_lm_positions) + zero_predictions,
        b"masked_lm_ids": pack(instance.masked_lm_ids) + zero_predictions,
        b"masked_lm_weights": [1.0] * num_predictions + [0.0] * len(zero_predictions),
        b"next_sentence_labels": bytes([instance.is_random_next]),
    }
    of_kind = {True: float_feature, False: int64_feature}
    return example(of_kind[isinstance(value, list)](name, value) for name, value in features.items())
