"""Rows added to a model's tables: which, their initial values, and that nothing else changes."""

import dataclasses
import itertools

import numpy as np
import pytest

from bert_tf.conversion import surgery
from bert_tf.models.variable_names import position_table, word_table
from bert_tf.text.wordpiece import FullTokenizer
from bert_tf.weights.tensor_files import Weights

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "[unused2]"]
VOCABULARY += ["play", "##ing", "##s", "한", "ab"]
HIDDEN = 4
WORD_TABLE, POSITION_TABLE = word_table("bert"), position_table("bert")


def make_weights(rows=12, reads=None) -> Weights:
    generator = np.random.default_rng(0)
    tensors = {
        WORD_TABLE: generator.normal(size=(rows, HIDDEN)),
        WORD_TABLE + "/adam_m": generator.normal(size=(rows, HIDDEN)),
        surgery.OUTPUT_BIAS: generator.normal(size=rows),
        surgery.OUTPUT_BIAS + "/adam_v": generator.normal(size=rows),
        POSITION_TABLE: generator.normal(size=(3, HIDDEN)),
        POSITION_TABLE + "/adam_v": generator.normal(size=(3, HIDDEN)),
        "bert/pooler/dense/kernel": generator.normal(size=(HIDDEN, HIDDEN)),
    }
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}

    def read(name):
        if reads is not None:
            reads.append(name)
        return tensors[name].copy()

    shapes = {name: value.shape for name, value in tensors.items()}
    return Weights("test", "tf1", shapes, {name: name for name in shapes}, read)


def mean_of(rows):
    return rows.mean(axis=0, dtype=np.float64).astype(np.float32)


def test_appended_rows_start_as_the_mean_of_their_pieces():
    reads = []
    old = make_weights()
    tokens = ["playings", "zzz", "play", "##ings"]
    new, vocabulary, report = surgery.add_tokens(make_weights(reads=reads), VOCABULARY, tokens, do_lower_case=True)
    assert reads == []  # tensors are read on request only
    assert vocabulary == [*VOCABULARY, "playings", "zzz", "##ings"]
    table, bias = old[WORD_TABLE], old[surgery.OUTPUT_BIAS]
    actual = new[WORD_TABLE]
    assert actual.shape == new.shapes[WORD_TABLE] == (15, HIDDEN) and actual.dtype == np.float32
    np.testing.assert_array_equal(actual[:12], table)
    np.testing.assert_array_equal(actual[12], mean_of(table[[7, 8, 9]]))
    np.testing.assert_array_equal(actual[13], mean_of(table[7:]))  # no special and unused rows
    np.testing.assert_array_equal(actual[14], mean_of(table[[8, 9]]))
    np.testing.assert_array_equal(
        new[surgery.OUTPUT_BIAS], [*bias, mean_of(bias[[7, 8, 9]]), mean_of(bias[7:]), mean_of(bias[[8, 9]])]
    )
    for name in (WORD_TABLE + "/adam_m", surgery.OUTPUT_BIAS + "/adam_v"):
        np.testing.assert_array_equal(new[name][:12], old[name])
        assert not new[name][12:].any() and len(new[name]) == 15
    assert report == [
        "Token 'play' is in the vocabulary already, row 7.",
        "Token 'playings': row 12, appended; starts as mean of play ##ing ##s.",
        "Token 'zzz': row 13, appended; starts as mean of the table.",
        "Token '##ings': row 14, appended; starts as mean of ##ing ##s.",
    ]
    np.testing.assert_array_equal(new[WORD_TABLE], actual)  # each reading gives the same


def test_all_else_passes_through():
    kernel, reads = np.ones((HIDDEN, HIDDEN), np.float32), []
    plain = make_weights()

    def read(name):
        reads.append(name)
        return kernel if name.endswith("kernel") else plain.read(name)

    old = dataclasses.replace(plain, reader=read, unused={"entry": "why"}, hints={"num_attention_heads": 2})
    new, *_ = surgery.add_tokens(old, VOCABULARY, ["plays"], do_lower_case=True)
    new, _ = surgery.extend_positions(new, 8)
    assert reads == []
    assert new["bert/pooler/dense/kernel"] is kernel and reads == ["bert/pooler/dense/kernel"]
    assert (new.path, new.format, new.origins, new.unused, new.hints) == (
        ("test", "tf1", old.origins, {"entry": "why"}, {"num_attention_heads": 2})
    )
    assert list(new.shapes) == list(old.shapes) and old.shapes[WORD_TABLE] == (12, HIDDEN)
    for name, shape in new.shapes.items():
        assert new[name].shape == shape
    same, vocabulary, report = surgery.add_tokens(old, VOCABULARY, ["play"], do_lower_case=True)
    assert same is old and vocabulary == VOCABULARY and len(report) == 1  # nothing was new


def test_pieces_of_the_rest_of_a_word():
    """The part after ## is split as inside a word, not as a separate word."""
    old = make_weights()
    tokens = ["##ab", "##sings", "##sab"]
    new, _, report = surgery.add_tokens(old, VOCABULARY, tokens, do_lower_case=True)
    table = old[WORD_TABLE]
    np.testing.assert_array_equal(new[WORD_TABLE][12], mean_of(table[7:]))  # "ab" is there, "##ab" is not
    np.testing.assert_array_equal(new[WORD_TABLE][13], mean_of(table[[9, 8, 9]]))
    np.testing.assert_array_equal(new[WORD_TABLE][14], mean_of(table[7:]))
    assert "mean of ##s ##ing ##s" in report[1] and "mean of the table" in report[2]


def test_unused_slots_keep_the_size():
    old = make_weights()
    new, vocabulary, report = surgery.add_tokens(
        make_weights(), VOCABULARY, ["plays", "한s"], do_lower_case=False, use_unused=True
    )
    assert vocabulary[5:7] == ["plays", "한s"] and len(vocabulary) == 12
    table, untouched = new[WORD_TABLE], [row for row in range(12) if row not in (5, 6)]
    np.testing.assert_array_equal(table[5:7], [mean_of(old[WORD_TABLE][rows]) for rows in ([7, 9], [10, 9])])
    np.testing.assert_array_equal(new[surgery.OUTPUT_BIAS][untouched], old[surgery.OUTPUT_BIAS][untouched])
    np.testing.assert_array_equal(new[surgery.OUTPUT_BIAS][5], mean_of(old[surgery.OUTPUT_BIAS][[7, 9]]))
    moments = WORD_TABLE + "/adam_m"
    np.testing.assert_array_equal(new[moments][untouched], old[moments][untouched])
    np.testing.assert_array_equal(table[untouched], old[WORD_TABLE][untouched])
    assert not new[WORD_TABLE + "/adam_m"][5:7].any()
    assert "instead of [unused1]" in report[0]
    with pytest.raises(ValueError, match=r"3 tokens, but the vocabulary has only 2 \[unused"):
        surgery.add_tokens(make_weights(), VOCABULARY, ["a", "b", "c"], do_lower_case=True, use_unused=True)


def test_idle_rows_of_a_padded_table_are_used_first():
    padded = make_weights(rows=13)
    new, vocabulary, report = surgery.add_tokens(
        padded, VOCABULARY, ["one", "two"], do_lower_case=True, initialization="mean"
    )
    table, bias = padded[WORD_TABLE], padded[surgery.OUTPUT_BIAS]
    expected = mean_of(table[7:12])  # without the unused row
    np.testing.assert_array_equal(new[WORD_TABLE], [*table[:12], expected, expected])
    np.testing.assert_array_equal(new[surgery.OUTPUT_BIAS], [*bias[:12], *[mean_of(bias[7:12])] * 2])
    assert not new[WORD_TABLE + "/adam_m"][12:].any() and len(new[WORD_TABLE + "/adam_m"]) == 14
    assert new.shapes[WORD_TABLE] == (14, HIDDEN) and vocabulary[12:] == ["one", "two"]
    assert "row 12, an unused row of the table" in report[0] and "row 13, appended" in report[1]
    with pytest.raises(ValueError, match="test: the word table has 11 rows, but the vocabulary has 12: they are not"):
        surgery.add_tokens(make_weights(rows=11), VOCABULARY, ["one"], do_lower_case=True)
    few, vocabulary, _ = surgery.add_tokens(make_weights(rows=16), VOCABULARY, ["one"], do_lower_case=True)
    assert few.shapes[WORD_TABLE] == (16, HIDDEN) and len(vocabulary) == 13  # it stays padded
    slots, vocabulary, _ = surgery.add_tokens(
        make_weights(rows=16), VOCABULARY, ["one"], do_lower_case=True, use_unused=True
    )
    assert slots.shapes[WORD_TABLE] == (16, HIDDEN) and vocabulary[5] == "one" and len(vocabulary) == 12


def test_what_does_not_fit():
    weights = make_weights()
    shapes = weights.shapes | {surgery.OUTPUT_BIAS: (11,)}
    with pytest.raises(ValueError, match="has 12 rows, but cls/predictions/output_bias has 11: they"):
        surgery.add_tokens(dataclasses.replace(weights, shapes=shapes), VOCABULARY, ["one"], do_lower_case=True)
    empty = dataclasses.replace(weights, shapes={})
    with pytest.raises(ValueError, match="test has no bert/embeddings/word_embeddings"):
        surgery.add_tokens(empty, VOCABULARY, ["one"], do_lower_case=True)
    with pytest.raises(ValueError, match="test has no bert/embeddings/position_embeddings"):
        surgery.extend_positions(empty, 8)
    bare = {name: shape for name, shape in weights.shapes.items() if not name.startswith("cls/")}
    encoder, *_ = surgery.add_tokens(dataclasses.replace(weights, shapes=bare), VOCABULARY, ["one"], do_lower_case=True)
    assert surgery.OUTPUT_BIAS not in encoder and len(encoder[WORD_TABLE]) == 13


def test_random_rows_are_the_same_every_time_and_truncated():
    tokens = [f"w{number}" for number in range(200)]
    new, *_ = surgery.add_tokens(make_weights(), VOCABULARY, tokens, do_lower_case=True, initialization="random")
    rows = new[WORD_TABLE][12:]
    assert not new[surgery.OUTPUT_BIAS][12:].any()
    np.testing.assert_array_equal(rows, new[WORD_TABLE][12:])
    assert 0.015 < rows.std() < 0.02 and np.abs(rows).max() <= 0.04


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("Kubernetes", "which makes 'kubernetes' of 'Kubernetes'. Add it in that form"),
        ("e-mail", "which makes 'e - mail' of 'e-mail'"),
        ("##東", "which makes 'a 東' of 'a東'.$"),
        ("####a", "can never come out of the tokenizer"),
        ("\ufffd", "which makes 'nothing' of"),
        ("x" * 201, "has 201 characters"),
        ("##" + "x" * 200, "has 200 characters"),
        ("##", "is empty"),
        ("", "is empty"),
    ],
)
def test_tokens_that_no_text_comes_to(token, message):
    with pytest.raises(ValueError, match=message) as error:
        surgery.add_tokens(make_weights(), VOCABULARY, ["one", token], do_lower_case=True)
    assert repr(token)[:20] in str(error.value)


@pytest.mark.parametrize(("do_lower_case", "strip_accents"), [(True, None), (True, False), (False, None)])
def test_what_is_accepted_is_what_the_tokenizer_gives(tmp_path, do_lower_case, strip_accents):
    """Every string of one or two of these characters is accepted if and only if the tokenizer can produce it."""
    characters = "eEé\u0301ςßİ,$中국\u1112が\u200d\x01😀"
    weights, file, accepted = make_weights(), tmp_path / "vocab.txt", 0
    for text in [*characters, *map("".join, itertools.product(characters, repeat=2))]:
        for token, word, expected in ((text, text, [text]), ("##" + text, "ab" + text, ["ab", "##" + text])):
            file.write_text("".join(line + "\n" for line in [*VOCABULARY, token]), encoding="utf-8")
            comes_out = FullTokenizer(str(file), do_lower_case, strip_accents).tokenize(word) == expected
            try:
                surgery.add_tokens(
                    weights, VOCABULARY, [token], do_lower_case=do_lower_case, strip_accents=strip_accents
                )
                assert comes_out, token
                accepted += 1
            except ValueError:
                assert not comes_out, token
    assert 50 < accepted < 500


def test_positions():
    old = make_weights()
    new, report = surgery.extend_positions(make_weights(), 7)
    np.testing.assert_array_equal(new[POSITION_TABLE], old[POSITION_TABLE][[0, 1, 2, 0, 1, 2, 0]])
    moments = new[POSITION_TABLE + "/adam_v"]
    np.testing.assert_array_equal(moments[:3], old[POSITION_TABLE + "/adam_v"])
    assert moments.shape == (7, HIDDEN) and not moments[3:].any()
    assert report == ["Positions 3 to 6 are new; they repeat rows 0 to 2."]
    with pytest.raises(ValueError, match="--max_position_embeddings=3: the model has 3 positions already"):
        surgery.extend_positions(make_weights(), 3)


def test_file_of_tokens(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\ufeffone\r\n\n two \n##s\n", encoding="utf-8")
    assert surgery.read_new_tokens(str(path)) == ["one", "two", "##s"]
    for content, message in (
        ("one\ntwo words\n", r"words\.txt, line 2: 'two words' has whitespace"),
        ("one\n\none\n", r"words\.txt, line 3: 'one' appears twice, first in line 1"),
        ("\n", r"words\.txt has no token"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            surgery.read_new_tokens(str(path))
    path.write_bytes(b"one\n\xff\n")
    with pytest.raises(ValueError, match=r"words\.txt, line 2: not UTF-8"):
        surgery.read_new_tokens(str(path))
