"""Masks drawn in tf.data: the exact rules, the distribution of the static masks, a function of (seed, step, row)."""

import collections
import gzip
import json
import random
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers.masking import CLS, MASK, SEP, VOCAB, mask, masking, packed_rows, random_pairs, rows_of
from helpers.plain_pretraining import VocabularyIds, create_masked_lm_predictions
from helpers.pretraining_runs import assert_bit_identical, command, flags_of, run, values
from helpers.script_cases import run_cases, selected_cases
from helpers.slow import slow
from helpers.tiny import ONE_LAYER, write_pretraining_records

from bert_tf.data import records
from bert_tf.pretraining import dynamic_masking, electra_masking, roberta_masking
from bert_tf.system.example_bytes import example, int64_feature, pack

# Every third token continues a word.


def count_of(length, prob=0.15, limit=20):
    return min(limit, max(1, round(length * prob)))


# --- the rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 4])
def test_features_of_a_row(most):
    """Everything but the choice of positions, compared with plain loops."""
    packed = packed_rows(30, most)
    rows = rows_of(packed, 64, most)
    features = mask(rows)
    shapes = {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (30, 64)),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), (30, 20)),
        "next_sentence_labels": (30, most),
    }
    if most > 1:
        shapes |= {"sequence_ids": (30, 64), "position_ids": (30, 64)}
        shapes |= {"pooled_positions": (30, most), "next_sentence_weights": (30, most)}
    assert {name: value.shape for name, value in features.items()} == shapes
    kinds = {name for name, value in features.items() if value.dtype == np.float32}
    assert kinds == {"masked_lm_weights", "next_sentence_weights"} & set(features)
    for number, pairs in enumerate(packed):
        original = rows["input_ids"].numpy()[number]
        expected = collections.defaultdict(list)
        for place, (first, second) in enumerate(pairs):
            size = len(first) + len(second)
            expected["pooled_positions"].append(len(expected["segment_ids"]))
            expected["segment_ids"] += [0] * len(first) + [1] * len(second)
            expected["sequence_ids"] += [place + 1] * size
            expected["position_ids"] += range(size)
            expected["input_mask"] += [1] * size
            expected["next_sentence_weights"].append(1.0)
            expected["next_sentence_labels"].append(place % 2)
            positions = features["masked_lm_positions"][number][features["masked_lm_weights"][number] > 0]
            begin = expected["pooled_positions"][-1]
            assert ((positions >= begin) & (positions < begin + size)).sum() == count_of(size)
        for name, value in expected.items():
            if name in features:
                padded = value + [0] * (shapes[name][1] - len(value))
                assert features[name][number].tolist() == padded, name
        count = int(features["masked_lm_weights"][number].sum())
        positions, labels = (features[f"masked_lm_{name}"][number] for name in ("positions", "ids"))
        assert (np.diff(positions[:count]) > 0).all()
        assert not set(original[positions[:count]]) & {CLS, SEP}
        assert labels[:count].tolist() == original[positions[:count]].tolist()
        assert not positions[count:].any() and not labels[count:].any()
        assert features["masked_lm_weights"][number].tolist() == [1.0] * count + [0.0] * (20 - count)
        elsewhere = np.delete(np.arange(64), positions[:count])
        assert features["input_ids"][number][elsewhere].tolist() == original[elsewhere].tolist()


def plain_choice(pairs, bits, limit, prob, whole_words) -> list[int]:
    """Positions that the static code's loop chooses in a row of pairs if words are ordered by `bits`."""
    chosen, begin, number = [], 0, 0
    for first, second in pairs:
        tokens, words = first + second, []
        for position, token in enumerate(tokens):
            if token in (CLS, SEP):
                continue
            if whole_words and words and token % 3 == 0 and token > 4:
                words[-1].append(position)
            else:
                words.append([position])
        # A word's number in the row, or its position, selects its random number.
        keys = [bits[number + k if whole_words else begin + word[0]] for k, word in enumerate(words)]
        number += len(words)
        taken: list[int] = []
        wanted = count_of(len(tokens), prob, limit)
        for k in np.argsort(keys, kind="stable"):
            if len(taken) >= wanted:
                break
            if len(taken) + len(words[k]) <= wanted:
                taken += words[k]
        chosen += [begin + position for position in taken]
        begin += len(tokens)
    return sorted(chosen)


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize(("most", "lengths"), [(1, (5, 64)), (4, (5, 16))])
def test_choice_is_that_of_the_plain_loop(most, lengths, whole_words):
    packed = packed_rows(200, most, lengths)
    rows = rows_of(packed, 64, most)
    fewer = 0
    for step, prob in enumerate((0.15, 0.4, 0.9)):
        features = mask(rows, 5, step, masked_lm_prob=prob, do_whole_word_mask=whole_words, max_predictions_per_seq=64)
        bits = tf.random.stateless_uniform([200, 64 + 128], [5, step], None, None, tf.int32, alg="philox").numpy()
        for number, pairs in enumerate(packed):
            expected = plain_choice(pairs, bits[number], 64, prob, whole_words)
            weights = features["masked_lm_weights"][number]
            assert features["masked_lm_positions"][number][weights > 0].tolist() == expected
            fewer += len(expected) < sum(count_of(len(first + second), prob, 64) for first, second in pairs)
    assert bool(fewer) == (whole_words or prob > 0.8)


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("whole_words", [False, True])
def test_at_most_so_many_predictions(most, whole_words):
    packed = packed_rows(100, most, (12, 16))
    counts = mask(
        rows_of(packed, 64, most), masked_lm_prob=0.5, max_predictions_per_seq=7, do_whole_word_mask=whole_words
    )["masked_lm_weights"].sum(1)
    wanted = np.array([min(7, sum(count_of(len(a + b), 0.5, 7) for a, b in pairs)) for pairs in packed])
    if whole_words:
        assert (counts <= wanted).all()
        assert counts.sum() > 0.8 * wanted.sum()
    else:
        assert counts.tolist() == wanted.tolist()


def test_what_a_row_has_too_many_of_is_cut_in_proportion():
    pairs = [random_pairs(1, (size, size + 1))[0] for size in (40, 20, 20)]
    for prob, limit, expected in (
        (0.15, 20, [6, 3, 3]),
        (0.15, 8, [4, 2, 2]),
        (0.5, 7, [2, 2, 3]),
        (0.15, 1, [0, 0, 1]),
    ):
        features = mask(rows_of([pairs], 80, 4), masked_lm_prob=prob, max_predictions_per_seq=limit)
        positions = features["masked_lm_positions"][0][features["masked_lm_weights"][0] > 0]
        assert np.histogram(positions, [0, 40, 60, 80])[0].tolist() == expected


def test_rounding_is_half_to_even():
    for length, expected in ((10, 2), (30, 4), (50, 8), (5, 1), (3, 1)):  # 1.5, 4.5, 7.5, 0.75, 0.45
        tokens = ([CLS, *[7] * (length - 3), SEP], [SEP])
        features = mask(rows_of([[tokens]], 64, 1))
        assert features["masked_lm_weights"].sum() == min(expected, length - 3)


def test_more_predictions_than_tokens_and_rows_without_any_pair():
    rows = rows_of([[], [([CLS, SEP], [SEP])], random_pairs(1, (8, 9))], 8, 1)
    features = mask(rows, masked_lm_prob=1.0, max_predictions_per_seq=12)
    assert features["masked_lm_weights"].sum(1).tolist() == [0, 0, 5]
    assert features["input_mask"].sum(1).tolist() == [0, 3, 8]
    assert features["masked_lm_positions"].shape == (3, 12)


# --- the distribution -------------------------------------------------------------------------------------------------

DRAWS = 3000


@pytest.fixture(scope="module", params=[*slow(False), True], ids=["pieces", "whole_words"])
def drawn(request):
    """(pairs, static masks, dynamic masks): the (position, id)s of each pair in each of many draws."""
    pairs = random_pairs(12, (5, 60), seed=4)
    continuations = frozenset(number for token, number in VOCAB.items() if token.startswith("##"))
    vocabulary = VocabularyIds(CLS, SEP, MASK, list(VOCAB.values()), continuations)
    rng = random.Random(1)
    static = [[] for _ in pairs]
    for number, (first, second) in enumerate(pairs):
        for _ in range(DRAWS):
            masked, positions, _ = create_masked_lm_predictions(first + second, 0.15, 8, vocabulary, rng, request.param)
            static[number].append([(position, masked[position]) for position in positions])
    settings = masking(max_predictions_per_seq=8, do_whole_word_mask=request.param)
    draw = tf.function(lambda rows, step: dynamic_masking.mask_rows(rows, 7, step, settings))
    rows = rows_of([[pair] for pair in pairs] * 10, 64, 1)
    dynamic = [[] for _ in pairs]
    for step in range(DRAWS // 10):
        features = {name: value.numpy() for name, value in draw(rows, tf.constant(step, tf.int64)).items()}
        for row in range(len(pairs) * 10):
            positions = features["masked_lm_positions"][row][features["masked_lm_weights"][row] > 0]
            dynamic[row % len(pairs)].append([(p, features["input_ids"][row, p]) for p in positions.tolist()])
    return pairs, static, dynamic


def assert_same_mean(one, other):
    """Means within 4 standard errors; equal if all numbers are the same."""
    one, other = np.asarray(one, float), np.asarray(other, float)
    error = np.sqrt(one.var() / one.size + other.var() / other.size)
    assert abs(one.mean() - other.mean()) <= 4 * error + 1e-12


def test_number_of_predictions_is_that_of_the_static_masks(drawn):
    pairs, static, dynamic = drawn
    for number, pair in enumerate(pairs):
        counts = [[len(mask) for mask in masks[number]] for masks in (static, dynamic)]
        assert_same_mean(*counts)
        assert max(counts[1]) <= count_of(len(pair[0] + pair[1]), limit=8)
        for count in range(9):
            assert_same_mean(*(np.equal(one, count) for one in counts))
    assert max(len(mask) for masks in dynamic for mask in masks) == 8


def test_every_position_is_chosen_as_often_as_by_the_static_masks(drawn):
    pairs, static, dynamic = drawn
    for number, (first, second) in enumerate(pairs):
        held = [
            np.array([np.isin(np.arange(len(first + second)), [p for p, _ in mask]) for mask in masks[number]])
            for masks in (static, dynamic)
        ]
        for position in range(len(first + second)):
            assert_same_mean(held[0][:, position], held[1][:, position])
        # And two of them jointly, where a rule about words would show.
        for position in range(len(first + second) - 1):
            assert_same_mean(*(one[:, position] & one[:, position + 1] for one in held))


def test_what_stands_there_is_as_in_the_static_masks(drawn):
    pairs, static, dynamic = drawn
    kinds, replaced = [], []
    for masks in (static, dynamic):
        became = [
            (token, (pairs[number][0] + pairs[number][1])[position])
            for number, of_pair in enumerate(masks)
            for mask in of_pair
            for position, token in mask
        ]
        token, before = np.array(became).T
        kinds.append((token == MASK, token == before, (token != MASK) & (token != before)))
        replaced.append(token[(token != MASK) & (token != before)])
    for one, other, share in zip(*kinds, (0.8 + 0.001, 0.1 + 0.001, 0.1 - 0.002), strict=True):
        assert_same_mean(one, other)
        assert abs(other.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(other)) + 2e-4
    # Any id can occur, including [PAD] and [CLS]; [MASK] and the token itself are also counted above.
    counts = np.bincount(replaced[1], minlength=100)
    mean = counts[[0, 1, 2, 3]].sum() / 4
    assert len(counts) == 100
    assert counts[MASK] == 0 and (np.delete(counts, MASK) > 0).all()
    assert abs(mean - len(replaced[1]) / 99) < 4 * np.sqrt(len(replaced[1]) / 99 / 4)
    assert_same_mean(replaced[0], replaced[1])


# --- a function of (seed, step, row) ----------------------------------------------------------------------------------


@pytest.mark.parametrize("whole_words", [False, True])
def test_masks_depend_on_seed_step_and_row_alone(whole_words):
    rows = rows_of(packed_rows(16), 64, 4)
    first = mask(rows, 3, 7, do_whole_word_mask=whole_words)
    again = mask(rows, 3, 7, do_whole_word_mask=whole_words)
    half = mask({name: value[:8] for name, value in rows.items()}, 3, 7, do_whole_word_mask=whole_words)
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value)
        np.testing.assert_array_equal(half[name], value[:8])
    others = [mask(rows, seed, step) for seed, step in ((4, 7), (3, 8), (-3, 7), (3 + 2**40, 7), (7, 3))]
    chosen = {other["masked_lm_positions"].tobytes() for other in others} | {first["masked_lm_positions"].tobytes()}
    assert len(chosen) == 6
    same = rows_of([packed_rows(1)[0]] * 50, 64, 4)
    assert len({row.tobytes() for row in mask(same)["masked_lm_positions"]}) > 40


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


# --- from files -------------------------------------------------------------------------------------------------------


def payload(pairs, most) -> bytes:
    tokens = [token for pair in pairs for part in pair for token in part]
    lengths = [len(part) for pair in pairs for part in pair]
    return example(
        (
            int64_feature(b"input_ids", pack(tokens)),
            int64_feature(b"segment_lengths", pack(lengths + [0] * (2 * most - len(lengths)))),
            int64_feature(b"next_sentence_labels", pack([place % 2 for place in range(most)])),
        )
    )


def write(path, packed, most, options=None) -> str:
    with tf.io.TFRecordWriter(str(path), options=options) as writer:
        for pairs in packed:
            writer.write(payload(pairs, most))
    return str(path)


def test_resumed_reading_draws_the_same_masks(tmp_path):
    packed = packed_rows(50)
    index = records.index_records([write(tmp_path / "a", packed, 4)], None)
    features, pairs = records.features_of(index, 64, 20)
    assert pairs == 4
    settings = masking()

    def batches(start):
        return records.training_batches(
            index,
            features,
            batch_size=8,
            seed=2,
            start_step=start,
            prepare=lambda rows, step, first: dynamic_masking.mask_rows(rows, 2, step, settings, first),
        ).as_numpy_iterator()

    whole = [batch for batch, _ in zip(batches(0), range(40), strict=False)]
    for start in (1, 17, 33):
        for expected, batch in zip(whole[start : start + 5], batches(start), strict=False):
            for name, value in expected.items():
                np.testing.assert_array_equal(batch[name], value)
    # Every row occurs again in later epochs, with other masks.
    seen = collections.defaultdict(set)
    for batch in whole:
        for row in range(8):
            original = batch["input_ids"][row].copy()
            count = int(batch["masked_lm_weights"][row].sum())
            original[batch["masked_lm_positions"][row, :count]] = batch["masked_lm_ids"][row, :count]
            seen[original.tobytes()].add(batch["input_ids"][row].tobytes())
    assert len(seen) == len({payload(pairs, 4) for pairs in packed})
    assert sum(map(len, seen.values())) > 0.95 * 320


@pytest.mark.parametrize(("seed", "step"), [(0, 0), *slow((-1, 2**40), (2**63 + 5, 7))])
@pytest.mark.parametrize("columns", [(5,), (8,), (3, 3)])
def test_random_bits_of_some_rows_are_those_of_all_rows(seed, step, columns):
    """And those that TensorFlow draws from the seed: a run that is resumed draws them again."""
    signed = tf.constant([(seed + 2**63) % 2**64 - 2**63, step], tf.int64)
    whole = tf.random.stateless_uniform([12, *columns], signed, None, None, tf.int32, alg="philox")
    np.testing.assert_array_equal(dynamic_masking.random_bits([12, *columns], seed, step), whole)
    for first, count in ((1, 3), (5, 7), (11, 1)):
        bits = dynamic_masking.random_bits([count, *columns], seed, step, first)
        np.testing.assert_array_equal(bits, whole[first : first + count])


@pytest.mark.parametrize("rule", [dynamic_masking, *slow(roberta_masking, electra_masking)])
def test_masks_of_some_rows_are_those_of_the_whole_batch(rule):
    rows, settings = rows_of(packed_rows(12), 64, 4), masking(do_whole_word_mask=True)
    whole = rule.mask_rows(rows, 3, 5, settings)
    for first, last in ((0, 4), (4, 7), (7, 12)):
        part = rule.mask_rows({name: value[first:last] for name, value in rows.items()}, 3, 5, settings, first)
        assert part.keys() == whole.keys()
        for name, value in part.items():
            np.testing.assert_array_equal(value, whole[name][first:last], err_msg=name)


def test_evaluation_masks_are_fixed_and_filling_counts_nothing(tmp_path):
    index = records.index_records([write(tmp_path / "a", packed_rows(11), 4)], None)
    features, _ = records.features_of(index, 64, 20)
    settings = masking()

    def batches():
        seed = dynamic_masking.EVALUATION_SEED
        return list(
            records.evaluation_batches(
                index,
                features,
                batch_size=4,
                repeat=False,
                max_steps=None,
                prepare=lambda rows, step, first: dynamic_masking.mask_rows(rows, seed, step, settings, first),
            ).as_numpy_iterator()
        )

    first, again = batches(), batches()
    assert len(first) == 3
    for one, other in zip(first, again, strict=True):
        for name, value in one.items():
            np.testing.assert_array_equal(other[name], value)
    assert first[2]["example_weights"].tolist() == [1, 1, 1, 0]
    assert first[2]["masked_lm_weights"].sum(1)[3] == first[2]["next_sentence_weights"].sum(1)[3] == 0
    assert first[2]["masked_lm_weights"].sum(1)[:3].min() > 0


def test_records_that_do_not_fit(tmp_path):
    one = write(tmp_path / "one", packed_rows(5, 1), 1)
    four = write(tmp_path / "four", packed_rows(5), 4)
    static = tmp_path / "static"
    write_pretraining_records(static, 5)
    for names, kinds in (((one, four), "up to 1 pairs.*up to 4 pairs"), ((four, str(static)), "up to 4 pairs.*masked")):
        index = records.index_records(names, None)
        with pytest.raises(records.RecordError, match=f"{names[0]} has .*{names[1]}.*") as raised:
            records.features_of(index, 64, 20)
        assert raised.match(kinds)
    index = records.index_records([four], None)
    longest = len([token for pair in packed_rows(5)[0] for part in pair for token in part])
    with pytest.raises(
        records.RecordError, match=rf"{four}: the first record .* at most {longest - 1}; give --max_seq_l"
    ):
        records.features_of(index, longest - 1, 20)
    wrong = example(
        (
            int64_feature(b"input_ids", pack([CLS, 9, SEP, 9, SEP])),
            int64_feature(b"segment_lengths", pack([3, 3])),
            int64_feature(b"next_sentence_labels", pack([0])),
        )
    )
    with tf.io.TFRecordWriter(str(tmp_path / "wrong")) as writer:
        writer.write(wrong)
    with pytest.raises(records.RecordError, match="has 5 input_ids, but its segment_lengths add up to 6"):
        records.features_of(records.index_records([str(tmp_path / "wrong")], None), 64, 20)


def test_a_later_record_that_is_too_long_is_named(tmp_path):
    packed = [random_pairs(1, (size, size + 1)) for size in (8, 9, 30, 8)]
    index = records.index_records([write(tmp_path / "a", packed, 1)], None)
    features, _ = records.features_of(index, 16, 4)
    batches = records.training_batches(index, features, batch_size=4, seed=0)
    with (
        pytest.raises(records.RecordError, match=rf"{tmp_path}/a: record 2 .*30 values.*--max_seq_length=the value"),
        records.explained_errors(index, features),
    ):
        next(iter(batches))


def test_vocabulary_that_does_not_fit():
    with pytest.raises(ValueError, match=r"--vocab_file=v.txt has no \[MASK\]"):
        dynamic_masking.Masking.from_vocab({"[CLS]": 0, "[SEP]": 1}, "v.txt", max_predictions_per_seq=3)
    for settings, flag in (
        ({"masked_lm_prob": 0.0}, "masked_lm_prob"),
        ({"max_predictions_per_seq": 0}, "max_predict"),
    ):
        with pytest.raises(ValueError, match=f"--{flag}"):
            masking(**settings)
    rows = rows_of(packed_rows(10), 64, 4)
    assert masking().problem(rows) is None
    other = {**VOCAB, "[CLS]": 50, "w50": CLS}
    settings = dynamic_masking.Masking.from_vocab(other, "v.txt", max_predictions_per_seq=3)
    assert settings.problem(rows) == "has token id 2 where the vocabulary's [CLS] is 50"
    assert settings.fingerprint != masking().fingerprint == masking(masked_lm_prob=0.3).fingerprint
    small = {token: number for token, number in VOCAB.items() if number < 90}
    settings = dynamic_masking.Masking.from_vocab(small, "v.txt", max_predictions_per_seq=3)
    assert settings.problem(rows) == "has token id 99, the vocabulary none above 89"


# --- the script -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unmasked")
    (folder / "bert_config.json").write_text(json.dumps({**ONE_LAYER, "max_position_embeddings": 64}))
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in sorted(VOCAB, key=VOCAB.get)))
    write(folder / "train-0.tfrecord", packed_rows(40, seed=1), 4)
    write(folder / "plain", packed_rows(30, seed=2), 4)
    (folder / "train-1.tfrecord").write_bytes(gzip.compress((folder / "plain").read_bytes()))
    write(folder / "single.tfrecord", packed_rows(10, 1), 1)
    write_pretraining_records(folder / "static.tfrecord", 20)
    return folder


@pytest.mark.parametrize("token", ["[CLS]", "[SEP]"])
def test_rows_of_another_vocabulary_are_seen_by_each_special_token(token):
    """Records hold ids, so a vocabulary that differs in one of them only must not pass."""
    rows = rows_of(packed_rows(5, 4), 64, 4)
    assert masking().problem(rows) is None
    known = VOCAB[token]
    other = {name: {known: 99, 99: known}.get(number, number) for name, number in VOCAB.items()}
    vocabulary = dynamic_masking.Masking.from_vocab(other, "vocab.txt", max_predictions_per_seq=20)
    assert vocabulary.problem(rows) == f"has token id {known} where the vocabulary's {token} is 99"


def unmasked_flags(data, output_dir, **flags) -> dict:
    flags = {
        "vocab_file": f"{data}/vocab.txt",
        "max_seq_length": 64,
        "max_predictions_per_seq": 12,
        "num_train_steps": 20,
        "num_warmup_steps": 2,
        "save_checkpoints_steps": 8,
        **flags,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    return flags_of(data, output_dir, **given)


def unmasked_command(data, output_dir, **flags) -> list[str]:
    return command(data, **unmasked_flags(data, output_dir, **flags))


@pytest.mark.slow
def test_a_run_on_packed_records_goes_on_bit_for_bit(data, tmp_path):
    flags = {"do_eval": True, "max_eval_steps": 3, "do_whole_word_mask": True}
    result = run(unmasked_command(data, tmp_path / "whole", **flags))
    assert result.returncode == 0, result.stderr[-3000:]
    assert "70 records in 2 files" in result.stderr
    assert "0.15 of the tokens (whole words) will be masked during training, at most 12 per row" in result.stderr
    settings = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert settings["vocab_file_fingerprint"] == masking().fingerprint
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for file in [*(tmp_path / "resumed").glob("model.ckpt-20*"), tmp_path / "resumed" / "eval_results.txt"]:
        file.unlink()
    (tmp_path / "resumed" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-16"\n')
    result = run(unmasked_command(data, tmp_path / "resumed", **flags))
    assert result.returncode == 0, result.stderr[-3000:]
    assert "Resuming at step 16 from" in result.stderr
    assert "Not as in the earlier run" not in result.stderr
    assert_bit_identical(values(tmp_path / "whole", 20), values(tmp_path / "resumed", 20))
    results = [(tmp_path / name / "eval_results.txt").read_text() for name in ("whole", "resumed")]
    assert results[0] == results[1]
    # A change of masks is reported.
    result = run(unmasked_command(data, tmp_path / "resumed", num_train_steps=22, masked_lm_prob=0.2))
    assert result.returncode == 0, result.stderr[-3000:]
    assert "do_whole_word_mask True -> False" in result.stderr
    assert "masked_lm_prob 0.15 -> 0.2" in result.stderr


SLOW_CASES = {"two replicas' parts", "masked, vocabulary", "single pairs"}


@pytest.fixture(scope="module")
def outcomes(request, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    (folder / "other.txt").write_text("".join(f"{token}\n" for token in ["[SEP]", "[MASK]", "[CLS]", *range(97)]))
    (folder / "large.txt").write_text((data / "vocab.txt").read_text() + "more\n")
    (folder / "nothing.txt").write_text("a\nb\n")
    changes = {
        "no vocabulary": {"vocab_file": None},
        "no such vocabulary": {"vocab_file": f"{folder}/none.txt"},
        "other vocabulary": {"vocab_file": f"{folder}/other.txt"},
        "large vocabulary": {"vocab_file": f"{folder}/large.txt"},
        "not a vocabulary of BERT": {"vocab_file": f"{folder}/nothing.txt"},
        "probability": {"masked_lm_prob": 1.5},
        "masked, probability": {"input_file": f"{data}/static.tfrecord", "masked_lm_prob": 0.2},
        "masked, whole words": {"input_file": f"{data}/static.tfrecord", "do_whole_word_mask": True},
        "two kinds": {"input_file": f"{data}/train-0.tfrecord,{data}/single.tfrecord"},
        "too long": {"max_seq_length": 16},
        "two replicas' parts": {
            "distribution_strategy": "mirrored",
            "gradient_accumulation_steps": 2,
            "use_xla": True,
            "dtype": "bfloat16",
        },
        "evaluation of other records": {
            "do_eval": True,
            "max_eval_steps": 2,
            "eval_input_file": f"{data}/static.tfrecord",
            "max_seq_length": 64,
        },
        "masked, vocabulary": {
            "input_file": f"{data}/static.tfrecord",
            "max_seq_length": 16,
            "max_predictions_per_seq": 3,
        },
        "single pairs": {"input_file": f"{data}/single.tfrecord", "do_eval": True, "max_eval_steps": 2},
    }
    cases = {}
    for name, change in selected_cases(request, changes, SLOW_CASES).items():
        change = {"num_train_steps": 2, "deterministic": False, "num_virtual_cpus": 2, **change}
        if name.startswith("masked"):
            change = {"max_seq_length": 16, "max_predictions_per_seq": 3, **change}
        cases[name] = unmasked_flags(data, folder / name, **change)
    outcomes, logs = run_cases("run_pretraining", cases)
    return {name: outcome + logs[name] for name, outcome in outcomes.items()}


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("no vocabulary", ["ValueError", "unmasked", "--vocab_file"]),
        ("no such vocabulary", ["none.txt"]),
        ("other vocabulary", ["--input_file has token id", "where the vocabulary's", "--vocab_file"]),
        ("large vocabulary", ["--vocab_file", "large.txt has token id 100", "vocab_size is 100"]),
        ("not a vocabulary of BERT", ["nothing.txt has no [CLS], [SEP], [MASK]"]),
        ("probability", ["--masked_lm_prob=1.5"]),
        ("masked, probability", ["ValueError", "--masked_lm_prob is for unmasked records"]),
        ("masked, whole words", ["ValueError", "--do_whole_word_mask is for unmasked records"]),
        (
            "two kinds",
            ["train-0.tfrecord has unmasked rows of up to 4 pairs", "single.tfrecord has unmasked rows of up to 1"],
        ),
        ("too long", ["train-0.tfrecord: the first record", "at most 16; give --max_seq_length="]),
        *slow(
            ("two replicas' parts", ["done", "2 replicas"]),
            ("masked, vocabulary", ["done"]),
            ("single pairs", ["done"]),
        ),
        ("evaluation of other records", ["static.tfrecord", "16 values in feature 'input_ids', expected 64"]),
    ],
)
def test_script_names_what_is_wrong(outcomes, case, parts):
    for part in parts:
        assert part in outcomes[case], outcomes[case]
