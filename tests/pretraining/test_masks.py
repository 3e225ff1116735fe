"""Masks drawn in tf.data: the exact rules of the static masks, of ELECTRA, RoBERTa (fairseq) and DistilBERT, which
prefers rare tokens, draw by draw; a function of (seed, step, row).

Oracles: tests/golden/electra/masking.npz and distilbert/masking.json, by the originals from given draws. Of the
first, rows 1, 2 and 6 draw positions more than once, rows 0 and 1 have 1.5 and 4.5 predictions to round, row 4 has
[MASK] in its text, row 5 the id of padding.
"""

import functools
import json
import math

import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import GOLDEN, lines_of
from helpers.masking import CLS, MASK, SEP, VOCAB, mask, masking, packed_rows, random_pairs, rows_of, tokenizer_of
from helpers.plain_pretraining import word_sets

from bert_tf.families.electra import ElectraConfig
from bert_tf.models.electra import replace_tokens
from bert_tf.pretraining import mask_rules
from bert_tf.pretraining.masking import Masking, random_bits
from bert_tf.text.library_tokenizer import ByteBpeTokenizer
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.pretraining_two_models import ElectraTask

pytestmark = pytest.mark.numbers


def count_of(length, prob=0.15, limit=20):
    return min(limit, max(1, round(length * prob)))


def plain_choice(pairs, bits, limit, prob, whole_words) -> list[int]:
    """Positions that the static code's loop chooses in a row of pairs if words are ordered by `bits`."""
    chosen, begin, number = [], 0, 0
    ends = np.cumsum([count_of(len(first + second), prob, limit) for first, second in pairs])
    if ends[-1] > limit:  # cut in proportion
        ends = ends * limit // ends[-1]
    for (first, second), wanted in zip(pairs, np.diff(ends, prepend=0), strict=True):
        tokens = first + second
        positions = [position for position, token in enumerate(tokens) if token not in (CLS, SEP)]
        words = word_sets(tokens, positions, frozenset(range(6, 100, 3)) if whole_words else frozenset())
        # A word's number in the row, or its position, selects its random number.
        keys = [bits[number + k if whole_words else begin + word[0]] for k, word in enumerate(words)]
        number += len(words)
        taken: list[int] = []
        for k in np.argsort(keys, kind="stable"):
            if len(taken) + len(words[k]) <= wanted:
                taken += words[k]
        chosen += [begin + position for position in taken]
        begin += len(tokens)
    return sorted(chosen)


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize(("most", "lengths"), [(1, (5, 64)), (4, (5, 16))])
def test_masks_are_those_of_the_plain_loop(most, lengths, whole_words):
    packed = packed_rows(100, most, lengths)
    rows = rows_of(packed, 64, most)
    masked, replaced = (0.0, 0.8) if whole_words else (0.8, 0.1)
    rates = {"mask_rate": masked, "random_rate": replaced, "keep_rate": 1 - masked - replaced}
    fewer = 0
    for step, (prob, limit) in enumerate([(0.05, 64), (0.15, 64), (0.4, 7), (0.9, 64)]):
        settings = {"masked_lm_prob": prob, "do_whole_word_mask": whole_words, "max_predictions_per_seq": limit}
        features = mask(rows, 5, step, **settings, **rates)
        bits = tf.random.stateless_uniform([100, 64 + 2 * limit], [5, step], None, None, tf.int32, alg="philox").numpy()
        order, (action, token) = bits[:, :64], np.split(bits[:, 64:].astype(np.int64) + 2**31, 2, axis=1)
        for number, pairs in enumerate(packed):
            expected = plain_choice(pairs, order[number], limit, prob, whole_words)
            original, padding = rows["input_ids"][number].numpy(), [0] * (limit - len(expected))
            kept = np.array([*original[expected], *padding])
            share = action[number] / 2**32
            new = np.where(share < masked, MASK, np.where(share < 1 - replaced, kept, -1))
            new = np.where(new < 0, token[number] * 100 // 2**32, new)  # any id, also that of [PAD]
            original[expected] = new[: len(expected)]
            for name, values in (
                ("input_ids", original.tolist()),
                ("masked_lm_positions", expected + padding),
                ("masked_lm_ids", kept.tolist()),
                ("masked_lm_weights", [1] * len(expected) + padding),
            ):
                assert features[name][number].tolist() == values, name
            fewer += len(expected) < min(limit, sum(count_of(len(a + b), prob, limit) for a, b in pairs))
    assert bool(fewer) == (whole_words or prob > 0.8) and features["masked_lm_weights"].dtype == np.float32


def test_more_predictions_than_tokens_and_rows_without_any_pair():
    rows = rows_of([[], [([CLS, SEP], [SEP])], random_pairs(1, (8, 9))], 8, 1)
    features = mask(rows, masked_lm_prob=1.0, max_predictions_per_seq=12)
    assert features["masked_lm_weights"].sum(1).tolist() == [0, 0, 5]
    assert features["input_mask"].sum(1).tolist() == [0, 3, 8]
    assert features["masked_lm_positions"].shape == (3, 12)


def test_masks_are_fixed_for_all_time():
    """A run is resumed after an upgrade. Numbers of TensorFlow 2.20."""
    rows = rows_of([random_pairs(1, (40, 41))], 48, 1)
    for whole_words, expected in (
        (False, [1, 3, 10, 13, 14, 17, 19, 20, 21, 24, 25, 27, 28, 30, 37, 38]),
        (True, [3, 8, 9, 11, 15, 16, 20, 21, 26, 28, 29, 30, 31, 33, 37, 38]),
    ):
        features = mask(rows, 12345, 678, masked_lm_prob=0.4, do_whole_word_mask=whole_words)
        positions = features["masked_lm_positions"][0, :16]
        assert positions.tolist() == expected
        assert features["input_ids"][0, positions].tolist() == [MASK] * 8 + [95] + [MASK] * 7


@pytest.mark.parametrize(("seed", "step"), [(-1, 2**40), (2**63 + 5, 7)])
@pytest.mark.parametrize("columns", [(8,), (3, 3)])
def test_random_bits_of_some_rows_are_those_of_all_rows(seed, step, columns):
    """And those that TensorFlow draws from the seed: a run that is resumed draws them again."""
    signed = tf.constant([(seed + 2**63) % 2**64 - 2**63, step], tf.int64)
    whole = tf.random.stateless_uniform([12, *columns], signed, None, None, tf.int32, alg="philox")
    np.testing.assert_array_equal(random_bits([12, *columns], seed, step), whole)
    for first, count in ((1, 3), (5, 7), (11, 1)):
        bits = random_bits([count, *columns], seed, step, first)
        np.testing.assert_array_equal(bits, whole[first : first + count])


@pytest.mark.parametrize("rule", [mask_rules.bert, mask_rules.roberta, mask_rules.electra])
def test_masks_of_some_rows_are_those_of_the_whole_batch(rule):
    rows, settings = rows_of(packed_rows(12), 64, 4), masking(do_whole_word_mask=True)
    whole = rule(rows, 3, 5, settings)
    for first, last in ((0, 4), (4, 7), (7, 12)):
        part = rule({name: value[first:last] for name, value in rows.items()}, 3, 5, settings, first)
        assert part.keys() == whole.keys()
        for name, value in part.items():
            np.testing.assert_array_equal(value, whole[name][first:last], err_msg=name)
    for seed, step in ((4, 5), (3, 6)):
        other = rule(rows, seed, step, settings)
        assert np.any(other["masked_lm_positions"] != whole["masked_lm_positions"])


def test_vocabulary_that_does_not_fit():
    # Records hold ids, so that a vocabulary which differs in one of them only must not pass.
    rows = rows_of(packed_rows(10), 64, 4)
    assert masking().problem(rows) is None
    for token, known in (("[CLS]", CLS), ("[SEP]", SEP)):
        other = {name: {known: 99, 99: known}.get(number, number) for name, number in VOCAB.items()}
        settings = Masking(tokenizer_of(other), max_predictions_per_seq=3)
        assert settings.problem(rows) == f"has token id {known} where the vocabulary's {token} is 99"
        assert settings.fingerprint != masking().fingerprint == masking(masked_lm_prob=0.3).fingerprint
    small = {token: number for token, number in VOCAB.items() if number < 90}
    settings = Masking(tokenizer_of(small), max_predictions_per_seq=3)
    assert settings.problem(rows) == "has token id 99, the vocabulary none above 89"


def test_masks_of_electra_are_the_originals(golden):
    arrays = dict(np.load(golden / "electra" / "masking.npz"))
    features = {name: tf.constant(arrays[name]) for name in ("input_ids", "input_mask")}
    draws = (tf.constant(arrays[name]) for name in ("draw_positions", "draw_mask_uniform"))
    masked = mask_rules.mask_electra(features, *draws, masking(masked_lm_prob=float(arrays["mask_prob"])))
    np.testing.assert_array_equal(masked["input_ids"], arrays["masked_input_ids"])
    for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        np.testing.assert_array_equal(masked[name], arrays[name], err_msg=name)
    np.testing.assert_array_equal(masked["original_ids"], arrays["unmasked_input_ids"])
    allowed = mask_rules.electra_candidates(features, masking())
    np.testing.assert_array_equal(allowed, np.isfinite(arrays["sample_logits"]))
    new, replaced = replace_tokens(
        arrays["input_ids"], arrays["masked_lm_positions"], arrays["masked_lm_weights"], arrays["samples"]
    )
    np.testing.assert_array_equal(new, arrays["updated_input_ids"])
    np.testing.assert_array_equal(replaced, arrays["is_fake"])


def test_draws_of_electra():
    """Positions are drawn evenly among the tokens, and 85 % of them are masked; how, the original's draws show."""
    rows = rows_of(packed_rows(600, 4), 64, 4)
    found = mask(rows, rule=mask_rules.electra)
    ids = rows["input_ids"].numpy()
    real = found["masked_lm_weights"] > 0
    assert real.any() and not np.isin(found["masked_lm_ids"][real], [CLS, SEP, MASK]).any()
    share = (np.take_along_axis(found["input_ids"], found["masked_lm_positions"], 1)[real] == MASK).mean()
    assert abs(share - 0.85) < 4 * np.sqrt(0.85 * 0.15 / real.sum()) + 0.02  # one of a pair may mask both
    number = np.cumsum(~np.isin(ids, [CLS, SEP, MASK, 0]), axis=1)
    place = (np.take_along_axis(number, found["masked_lm_positions"], 1) - 0.5) / number[:, -1:]
    assert abs(place[real].mean() - 0.5) < 4 * np.sqrt(1 / 12 / real.sum())
    assert len(np.unique(found["sampling_seeds"], axis=0)) == 600
    assert "sequence_ids" in found and "next_sentence_labels" not in found
    settings = (PretrainingSettings("records", "", max_seq_length=length) for length in (128, 512))
    assert [ElectraTask.default_predictions(one, ElectraConfig(30)) for one in settings] == [19, 79]
    rows = {name: tf.zeros_like(value) for name, value in rows_of(packed_rows(3), 64, 4).items()}
    found = mask(rows, rule=mask_rules.electra)
    assert not found["masked_lm_weights"].any() and not found["masked_lm_positions"].any()


ORACLE = json.loads((GOLDEN / "distilbert" / "masking.json").read_text())
WEIGHTS = mask_rules.token_weights(np.array(ORACLE["counts"]), ORACLE["special_ids"].values(), 0.7)


def smoothing(predictions=24, **settings):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(5, 300))]
    tokenizer = tokenizer_of({token: index for index, token in enumerate(tokens)})
    return Masking(tokenizer, max_predictions_per_seq=predictions, **settings)


def test_weights_and_masks_of_given_draws():
    np.testing.assert_allclose(WEIGHTS, ORACLE["token_probs"], rtol=1e-6)
    for batch in ORACLE["batches"]:
        ids = np.array(batch["token_ids"], np.int32)
        chosen = np.zeros(ids.size, bool)
        chosen[batch["drawn_flat_positions"]] = True
        chosen = chosen.reshape(ids.shape)
        kinds, replacements = np.zeros((2, *ids.shape), np.int32)
        kinds[chosen], replacements[chosen] = batch["drawn_kind_0mask_1keep_2random"], batch["drawn_random_ids"]
        tokens = np.choose(kinds, [np.int32(4), ids, replacements])
        features = mask_rules.mask_chosen(ids, chosen, tokens, smoothing())
        features = {name: np.asarray(value) for name, value in features.items()}
        np.testing.assert_array_equal(features["input_ids"], batch["masked_token_ids"])
        labels = np.full_like(ids, -100)
        for row, column in np.argwhere(features["masked_lm_weights"] > 0):
            labels[row, features["masked_lm_positions"][row, column]] = features["masked_lm_ids"][row, column]
        np.testing.assert_array_equal(labels, batch["mlm_labels"])


def smooth(batch, step=0, weights=WEIGHTS, **settings) -> dict[str, np.ndarray]:
    rows = zip(batch["token_ids"], batch["attention_mask"], strict=True)
    rows = rows_of([[(list(ids)[: sum(mask)], [])] for ids, mask in rows], len(batch["token_ids"][0]), 1)
    return mask(rows, 7, step, functools.partial(mask_rules.smoothed, weights=weights), smoothing, **settings)


def test_the_number_is_that_of_the_whole_batch():
    for step, batch in enumerate(ORACLE["batches"]):
        features, again, other = (smooth(batch, number) for number in (step, step, step + 1))
        assert np.sum(features["masked_lm_weights"]) == batch["number_to_mask"]
        np.testing.assert_array_equal(features["input_mask"], batch["attention_mask"])
        for name, value in features.items():
            np.testing.assert_array_equal(value, again[name], err_msg=name)
        assert np.any(features["masked_lm_positions"] != other["masked_lm_positions"])


def test_a_row_has_at_most_its_predictions():
    batch = ORACLE["batches"][0]
    for limit in (1, 2, 40):
        features = smooth(batch, predictions=limit, masked_lm_prob=0.9)
        counts = np.sum(features["masked_lm_weights"], axis=1)
        assert features["masked_lm_positions"].shape == (len(counts), limit)
        # There are fewer than 90 %: [CLS], [SEP] and [UNK] are not chosen.
        special = np.isin(batch["token_ids"], list(ORACLE["special_ids"].values()))
        np.testing.assert_array_equal(counts, np.minimum((~special).sum(1), limit))


def test_rare_tokens_are_chosen_more_often():
    """The first of two draws has the odds of the weights; what becomes of a token has the rates."""
    generator = np.random.default_rng(0)
    tokens = np.array([5, 8, 9, 19])  # weights 1, 0.06, 0.025, 0.003
    share = generator.uniform(size=(20000, 4)).astype(np.float32)
    one = np.tile(WEIGHTS[tokens], (len(share), 1))
    first = (-np.log(share) / one).argmin(1)
    np.testing.assert_allclose(np.bincount(first) / len(share), WEIGHTS[tokens] / WEIGHTS[tokens].sum(), atol=0.01)
    for row in range(100):
        chosen = mask_rules.draw_weighted(one[row : row + 1], 1, share[row : row + 1], smoothing())
        assert np.argmax(chosen) == first[row]
    batch = {"token_ids": generator.integers(5, 300, (32, 64)), "attention_mask": np.ones((32, 64), int)}
    kinds = []
    for step in range(15):
        rates = {"mask_rate": 0.6, "random_rate": 0.3, "keep_rate": 0.1}
        features = smooth(batch, step, np.ones(300, np.float32), predictions=64, **rates)
        names = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
        ids, places, old, real = (features[name] for name in names)
        assert real.sum() == math.ceil(0.15 * 32 * 64)
        new, old = np.take_along_axis(ids, places, 1)[real > 0], old[real > 0]
        kinds.append([(new == 4).mean(), ((new == old) & (new != 4)).mean()])
    np.testing.assert_allclose(np.mean(kinds, axis=0), [0.6, 0.1], atol=0.015)


VOCABULARY = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
# Every third piece begins a word.
VOCABULARY |= {f"\u0120w{number}" if number % 3 == 0 else f"w{number}": number for number in range(4, 600)}
VOCABULARY |= {"<mask>": 600}
BOS, PAD, EOS, ROBERTAS_MASK = 0, 1, 2, 600


def roberta_masking(**settings) -> Masking:
    values = {"max_predictions_per_seq": 128, "mask_rule": "roberta", **settings}
    return Masking(tokenizer_of(VOCABULARY, ByteBpeTokenizer), **values)


def roberta_rows(packed, length=128, most=1) -> dict[str, tf.Tensor]:
    return rows_of([[(sequence, []) for sequence in sequences] for sequences in packed], length, most)


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
        rule = functools.partial(mask_rules.roberta, draws=fairseq_draws(case, rates))
        features = mask(roberta_rows([[item]]), rule=rule, masking=roberta_masking, **rates)
        assert features["input_ids"][0].tolist() == case["source"] + [PAD] * (128 - size)
        target = np.full(size, PAD)
        count = int(features["masked_lm_weights"].sum())
        positions = features["masked_lm_positions"][0, :count]
        target[positions] = features["masked_lm_ids"][0, :count]
        assert target.tolist() == case["target"]
        assert not features["masked_lm_weights"][0, count:].any() and (np.diff(positions) > 0).all()
        changed = [new for old, new in zip(item, case["source"], strict=True) if new != old]
        seen["replaced"] += sum(new != ROBERTAS_MASK for new in changed)
        seen["special"] += bool({0, size - 1} & set(positions.tolist()))
        seen["none"] += not count
    assert len(cases) == 128 and min(seen.values()) >= 3


def words_of(sequence) -> list[list[int]]:
    words = []
    for place, token in enumerate(sequence):
        special = {token, sequence[place - 1]} & {BOS, EOS}
        if place == 0 or special or token % 3 == 0 or token == ROBERTAS_MASK:
            words.append([])
        words[-1].append(place)
    return words


@pytest.mark.parametrize(("most", "limit"), [(1, 128), (3, 128), (3, 9)])
def test_whole_words_of_roberta(most, limit):
    generator = np.random.default_rng(0)
    flat = [[BOS, *generator.integers(4, 600, size - 2).tolist(), EOS] for size in generator.integers(10, 30, 90)]
    packed = [flat[number : number + most] for number in range(0, 90, most)]
    rows = roberta_rows(packed, 96, most)
    rounding, orders, changes, keeps, tokens = mask_rules.roberta_draws(rows, 3, 5, roberta_masking())
    settings = {"do_whole_word_mask": True, "masked_lm_prob": 0.3, "max_predictions_per_seq": limit}
    features = mask(rows, 3, 5, mask_rules.roberta, roberta_masking, **settings)
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
                    action = ROBERTAS_MASK if change >= 0.2 else sequence[place] if keep < 0.5 else -1
                    action = int(tokens[row, begin + place]) if action == -1 else action
                    expected.append([begin + place, sequence[place], action])
                    actions.add((change >= 0.2, keep < 0.5))
            begin, number = begin + len(sequence), number + len(words)
        count = int(features["masked_lm_weights"][row].sum())
        positions = features["masked_lm_positions"][row, :count]
        found = [positions, features["masked_lm_ids"][row, :count], features["input_ids"][row, positions]]
        assert np.transpose(found).tolist() == sorted(expected)
    assert len(actions) == 4
    assert {*roberta_masking().all_ids} == {*VOCABULARY.values()} - {0, 1, 2, 3}  # what replaces a token, or the mask
