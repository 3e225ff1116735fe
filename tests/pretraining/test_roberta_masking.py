"""RoBERTa's masks: equal to fairseq's for its draws, whole words by plain loops, a function of (seed, step, row)."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.masking import rows_of as rows_of_pairs
from helpers.masking import tokenizer_of
from helpers.paths import GOLDEN, lines_of

from bert_tf.pretraining import mask_rules
from bert_tf.pretraining.masking import Masking
from bert_tf.text.library_tokenizer import ByteBpeTokenizer

VOCABULARY = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
# Every third piece begins a word.
VOCABULARY |= {f"\u0120w{number}" if number % 3 == 0 else f"w{number}": number for number in range(4, 600)}
VOCABULARY |= {"<mask>": 600}
BOS, PAD, EOS, MASK = 0, 1, 2, 600


def masking(**settings) -> Masking:
    values = {"max_predictions_per_seq": 128, "mask_rule": "roberta", **settings}
    return Masking(tokenizer_of(VOCABULARY, ByteBpeTokenizer), **values)


def rows_of(packed, length=128, most=1) -> dict[str, tf.Tensor]:
    return rows_of_pairs([[(sequence, []) for sequence in sequences] for sequences in packed], length, most)


def random_sequences(count, lengths, seed=0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [[BOS, *generator.integers(4, 600, size - 2).tolist(), EOS] for size in generator.integers(*lengths, count)]


def mask(rows, seed=1, step=0, draws=None, **settings) -> dict[str, np.ndarray]:
    features = mask_rules.roberta(rows, seed, step, masking(**settings), draws=draws)
    return {name: value.numpy() for name, value in features.items()}


RATES = {"random_token_prob": "random_rate", "leave_unmasked_prob": "keep_rate", "mask_prob": "masked_lm_prob"}


def fairseq_draws(case, rates, length=128) -> tuple[tf.Tensor, ...]:
    """The numbers that fairseq draws for a row, in its order."""
    generator, size = np.random.default_rng(case["derived_seed"]), len(case["item"])
    place = {name: np.zeros((1, length)) for name in ("change", "keep")}
    order, tokens = np.full((1, length), 1, "int32"), np.zeros((1, length), "int32")
    rounding = generator.random()
    chosen = generator.choice(size, int(rates["masked_lm_prob"] * size + rounding), replace=False)
    order[0, chosen] = 0
    is_chosen, others = order[0, :size] == 0, rates["random_rate"] + rates["keep_rate"]
    place["change"][0, :size] = generator.random(size)
    if rates["random_rate"] and rates["keep_rate"]:
        place["keep"][0, :size] = generator.random(size)
    kept = place["keep"][0, :size] < rates["keep_rate"] / others
    replaced = np.nonzero(is_chosen & (place["change"][0, :size] < others) & ~kept)[0]
    if len(replaced):
        counts = np.array([1] * 4 + [int(1000 / (index + 1)) + 1 for index in range(597)], float)
        weights = np.where(np.arange(601) < 4, 0, counts if case.get("freq_weighted_replacement") else 1.0)
        tokens[0, replaced] = generator.choice(601, len(replaced), p=weights / weights.sum())
    return tuple(map(tf.constant, (np.array([[rounding]]), order, place["change"], place["keep"], tokens)))


def test_masks_are_fairseqs():
    cases = lines_of(GOLDEN / "recipes" / "fairseq_masking.jsonl.gz")
    seen = {"replaced": 0, "special": 0, "none": 0}
    for case in cases:
        item, size = case["item"], len(case["item"])
        rates = {"random_rate": 0.1, "keep_rate": 0.1, "masked_lm_prob": 0.15}
        rates |= {name: case[option] for option, name in RATES.items() if option in case}
        rates["mask_rate"] = 1 - rates["random_rate"] - rates["keep_rate"]
        features = mask(rows_of([[item]]), draws=fairseq_draws(case, rates), **rates)
        assert features["input_ids"][0].tolist() == case["source"] + [PAD] * (128 - size)
        target = np.full(size, PAD)
        count = int(features["masked_lm_weights"].sum())
        positions = features["masked_lm_positions"][0, :count]
        target[positions] = features["masked_lm_ids"][0, :count]
        assert target.tolist() == case["target"]
        assert not features["masked_lm_weights"][0, count:].any() and (np.diff(positions) > 0).all()
        changed = [new for old, new in zip(item, case["source"], strict=True) if new != old]
        seen["replaced"] += sum(new != MASK for new in changed)
        seen["special"] += bool({0, size - 1} & set(positions.tolist()))
        seen["none"] += not count
    assert len(cases) == 128 and min(seen.values()) >= 3


def words_of(sequence) -> list[list[int]]:
    words = []
    for place, token in enumerate(sequence):
        special = {token, sequence[place - 1]} & {BOS, EOS}
        if place == 0 or special or token % 3 == 0 or token == MASK:
            words.append([])
        words[-1].append(place)
    return words


@pytest.mark.parametrize(("most", "limit"), [(1, 128), (3, 128), (3, 9)])
def test_whole_words(most, limit):
    flat = random_sequences(90, (10, 30))
    packed = [flat[number : number + most] for number in range(0, 90, most)]
    rows = rows_of(packed, 96, most)
    rounding, orders, changes, keeps, tokens = mask_rules.roberta_draws(rows, 3, 5, masking())
    features = mask(rows, 3, 5, do_whole_word_mask=True, masked_lm_prob=0.3, max_predictions_per_seq=limit)
    actions = set()
    for row, sequences in enumerate(packed):
        begin = number = used = 0
        expected = []
        for index, sequence in enumerate(sequences):
            words = words_of(sequence)
            count = int(0.3 * len(words) + float(rounding[row, index]))
            order = orders[row].numpy()[number : number + len(words)]
            for word in np.argsort(order, kind="stable")[:count]:
                change, keep = float(changes[row, number + word]), float(keeps[row, number + word])
                used += len(words[word])
                for place in words[word] if used <= limit else ():
                    action = MASK if change >= 0.2 else sequence[place] if keep < 0.5 else -1
                    action = int(tokens[row, begin + place]) if action == -1 else action
                    expected.append([begin + place, sequence[place], action])
                    actions.add((change >= 0.2, keep < 0.5))
            begin, number = begin + len(sequence), number + len(words)
        count = int(features["masked_lm_weights"][row].sum())
        positions = features["masked_lm_positions"][row, :count]
        found = [positions, features["masked_lm_ids"][row, :count], features["input_ids"][row, positions]]
        assert np.transpose(found).tolist() == sorted(expected)
    assert len(actions) == 4
    assert masking().all_ids.tolist() == [*range(4, 601)]  # what replaces a token is no special one, but the mask


def test_at_most_so_many_predictions():
    rows = rows_of([random_sequences(2, (20, 30), seed) for seed in range(30)], 64, 2)
    assert (mask(rows, masked_lm_prob=0.5, max_predictions_per_seq=9)["masked_lm_weights"].sum(1) == 9).all()
