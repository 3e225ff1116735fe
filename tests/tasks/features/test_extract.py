"""Features of lines: the original's output, the other formats, words, memory, nothing half-written."""

import copy
import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import TESTS
from helpers.tiny import TINY_CONFIG
from helpers.training_steps import mirrored

from bert_tf import BertConfig, BertModel
from bert_tf.store.description import SentenceSettings
from bert_tf.tasks.features import extract
from bert_tf.tasks.features.extract import encode_line
from bert_tf.tasks.features.files import rows_to_json
from bert_tf.tasks.features.settings import FeatureSettings

LAYERS = (-1, -2)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "##c", ".", "中", "国"]
PIECES += [f"w{number}" for number in range(100 - len(PIECES))]


@pytest.fixture(scope="module")
def tiny():
    keras.utils.set_random_seed(0)
    model = BertModel(BertConfig.from_dict(TINY_CONFIG))
    model.build()
    return model


def extract_features(model, tokenizer, source, output, layers, sentences=None, strategy=None, **values):
    settings = FeatureSettings(input_file=str(source), output_file=str(output), init_checkpoint="", **values)
    text = extract.read_input(settings, tokenizer, sentences)
    extract.extract_features(model, tokenizer, text, layers, settings, sentences, strategy)
    return text


def write_lines(path, count):
    generator = np.random.default_rng(0)
    lines = [" ".join(f"w{n}" for n in generator.integers(0, 80, generator.integers(0, 25))) for _ in range(count)]
    lines[1] = "w1 w2 ||| w3"
    path.write_text("".join(line + "\n" for line in lines))
    return lines


def test_numbers_are_those_of_python():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(60, 50)) * 10.0 ** generator.uniform(-9, 9.5, (60, 1))
    rows[0] = generator.integers(-4000, 4000, 50) / 128.0  # exact in binary, with ties at the sixth decimal
    rows[1] = generator.integers(-200, 200, 50) * 1e-6
    rows[2, :8] = [0.0, -0.0, -1e-9, 1e-4, 0.9999999, -99.9999995, 1e8, 123456.789]
    rows[3, 7], rows[59, :3] = np.nan, [np.inf, -np.inf, 1e20]
    rows = rows.astype(np.float32)
    expected = [json.dumps([round(number, 6) for number in row])[1:-1].encode() for row in rows.tolist()]
    assert rows_to_json(rows) == expected
    assert any(b"e-05" in text for text in expected) and b"NaN" in expected[3] and b"Infinity" in expected[59]
    assert rows_to_json(np.full((2, 1), np.nan, np.float32)) == [b"NaN", b"NaN"]
    assert rows_to_json(np.zeros((0, 5), np.float32)) == []


def test_pairs(small):
    for line, first, second in (
        ("w1 ||| w2 ||| w3", "w1 ||| w2", "w3"), ("  w1 |||  ", "w1 |||", ""), ("||| w1", "||| w1", ""),
        ("w1|||w2", "w1|||w2", ""), ("w1 ||| \u0001x\u0001", "w1", "x"), ("w1 ||| \u0001", "w1", ""), ("", "", ""),
    ):  # fmt: skip
        a, b = (small.tokenize(text) for text in (first, second))
        encoded = encode_line(line, small, 64)
        tokens = ["[CLS]", *a, "[SEP]", *(b and [*b, "[SEP]"])]
        assert small.convert_ids_to_tokens(encoded.ids) == tokens, line
        assert encoded.second_start == len(a) + 2 and not encoded.truncated


def test_all_formats_hold_the_same(tiny, small, tmp_path, monkeypatch):
    """Also: several windows give the same as one, in order; neither padding nor two devices change anything."""
    source = tmp_path / "input.txt"
    lines = write_lines(source, 45)
    with mirrored(2).scope():
        copy = BertModel(tiny.config)
        copy.build()
    copy.set_weights(tiny.get_weights())

    def run(name, model=tiny, **options):
        options = {"output_format": name, "layers": (0, -1, -1), "max_seq_length": 20, "batch_size": 4} | options
        path = tmp_path / "output"
        text = extract_features(model, small, source, path, **options)
        assert (len(text.rows), text.truncated) == (45, sum(len(line.split()) > 18 for line in lines))
        assert sorted(file.name for file in tmp_path.iterdir()) == ["input.txt", "output"]
        return path

    arrays = dict(np.load(run("npz")))
    values, offsets, ids, tokens = (arrays[name] for name in ("values", "offsets", "token_ids", "tokens"))
    tokens = tokens.tolist()
    assert arrays["layers"].tolist() == [0, -1, -1]
    assert values.shape == (offsets[-1], 3, 32) and values.dtype == np.float32
    assert small.convert_ids_to_tokens(ids.tolist()) == tokens
    np.testing.assert_array_equal(values[:, 1], values[:, 2])
    spans = list(itertools.pairwise(offsets.tolist()))
    assert [tokens[begin:end] for begin, end in spans] == [
        small.convert_ids_to_tokens(encode_line(line, small, 20).ids) for line in lines
    ]
    for window_bytes, options in ((1, {}), (extract._WINDOW_BYTES, {"model": copy, "strategy": mirrored(2)})):
        monkeypatch.setattr(extract, "_WINDOW_BYTES", window_bytes)
        again = dict(np.load(run("npz", **options)))
        np.testing.assert_allclose(again.pop("values"), values, atol=1e-5)
        for name, array in again.items():
            np.testing.assert_array_equal(array, arrays[name])
    for number, record in enumerate(tf.data.TFRecordDataset(str(run("tfrecord")))):
        begin, end = spans[number]
        feature = tf.train.Example.FromString(record.numpy()).features.feature
        assert feature["line_index"].int64_list.value == [number]
        assert [name.decode() for name in feature["tokens"].bytes_list.value] == tokens[begin:end]
        assert feature["token_ids"].int64_list.value == ids[begin:end].tolist()
        floats = np.array(feature["values"].float_list.value, np.float32).reshape(-1, 3, 32)
        np.testing.assert_allclose(floats, values[begin:end], atol=1e-5)
    assert number == 44
    objects = [json.loads(line) for line in run("json").read_text().splitlines()]
    assert [line["linex_index"] for line in objects] == list(range(45))
    entries = [entry for line in objects for entry in line["features"]]
    assert [entry["token"] for entry in entries] == tokens
    found = [[layer["values"] for layer in entry["layers"]] for entry in entries]
    np.testing.assert_allclose(found, values, atol=1e-5)


PROMPTED = {"prompts": {"query": "w5 w6 "}, "default_prompt_name": "query", "include_prompt": False}


@pytest.mark.parametrize("sentences", [
    SentenceSettings(""),
    SentenceSettings("", "cls", True, lower=True, truncate_dim=9),
    SentenceSettings("", **PROMPTED),
])  # fmt: skip
def test_a_vector_for_a_line(tiny, small, tmp_path, sentences):
    """That of the sequence's outputs, of each layer; [CLS] and [SEP] count, but no prompt left out."""
    prompt = sentences.prompt()
    cut = 1 + len(small.encode(prompt)) if prompt else 0
    source, output = tmp_path / "input.txt", tmp_path / "output"
    lines = ["abc w1 ||| w2", "", "W3 w4 w5"]
    source.write_text("\n".join(lines) + "\n")
    options = {"max_seq_length": 16, "output_format": "npz", "pooling": "sentence"}
    extract_features(tiny, small, source, output, (-1, 0), sentences, **options)
    with np.load(output) as file:
        found, names = file["values"], file["tokens"].tolist()
        assert file["offsets"].tolist() == [0, 1, 2, 3] and names == ["sentence"] * 3
    for row, line in enumerate(lines):
        encoded = encode_line(prompt + (line.lower() if sentences.lower else line), small, 16)
        batch = {"input_ids": np.array([encoded.ids])}
        batch["segment_ids"] = (np.arange(len(encoded.ids)) >= encoded.second_start).astype(np.int32)[None]
        layers = tiny(batch, return_all_layers=True)["encoder_layers"]
        for place, layer in enumerate((-1, 0)):
            outputs = np.asarray(layers[layer])[0, cut:]
            expected = outputs[0] if sentences.pooling == "cls" else outputs.mean(0)
            expected = expected / np.linalg.norm(expected) if sentences.normalize else expected
            np.testing.assert_allclose(found[row, place], expected[: sentences.truncate_dim], atol=1e-5)


@pytest.mark.parametrize("pooling", ["first", "mean", "max"])
def test_words(tiny, small, tmp_path, pooling):
    source, output = tmp_path / "input.txt", tmp_path / "output"
    # A word of three pieces, one of two, one that consists of control characters, one of two Chinese characters.
    source.write_text("abc w1.\u00a0\u0001 中国 ||| \u3000w2 ab\n\nw3 abcbc\n")
    extract_features(tiny, small, source, output, LAYERS, max_seq_length=32, output_format="npz", pooling=pooling)
    with np.load(output) as arrays:
        words, values, offsets = arrays["tokens"].tolist(), arrays["values"], arrays["offsets"].tolist()
        assert "token_ids" not in arrays
    assert words[:9] == ["[CLS]", "abc", "w1.", "\u0001", "中国", "[SEP]", "w2", "ab", "[SEP]"]
    assert words[9:] == ["[CLS]", "[SEP]", "[CLS]", "w3", "abcbc", "[SEP]"] and offsets == [0, 9, 11, 15]
    sizes = [1, 3, 2, 1, 2, 1, 1, 2, 1]
    ids = encode_line(source.read_text().split("\n")[0], small, 32, pooling).ids
    assert small.convert_ids_to_tokens(ids)[4:8] == ["w1", ".", "[UNK]", "中"]
    batch = {"input_ids": np.array([ids]), "segment_ids": np.array([[0] * 10 + [1] * 4])}
    layers = tiny(batch, return_all_layers=True)["encoder_layers"]
    tokens = np.stack([layers[layer][0] for layer in LAYERS], axis=1)
    parts = np.split(tokens, np.cumsum(sizes)[:-1])
    combine = {"first": lambda part: part[0], "mean": lambda part: part.mean(0), "max": lambda part: part.max(0)}
    np.testing.assert_allclose(values[:9], [combine[pooling](part) for part in parts], atol=1e-5)


def test_words_of_a_line_that_is_cut(small):
    encoded = encode_line("w1 abc w2 ||| abc abc", small, 8, "mean")
    # There is room for 5 tokens: the pair is cut at the end of the longer text, or of the second.
    assert encoded.truncated
    assert small.convert_ids_to_tokens(encoded.ids) == ["[CLS]", "w1", "a", "##b", "[SEP]", "a", "##b", "[SEP]"]
    assert (encoded.words, encoded.sizes) == (["[CLS]", "w1", "abc", "[SEP]", "abc", "[SEP]"], [1, 1, 2, 1, 2, 1])
    left = copy.copy(small)
    left.truncation_side = "left"
    encoded = encode_line("w1 abc w2 ||| abc abc", left, 8, "mean")
    assert small.convert_ids_to_tokens(encoded.ids) == ["[CLS]", "##b", "##c", "w2", "[SEP]", "##b", "##c", "[SEP]"]
    assert (encoded.words, encoded.sizes) == (["[CLS]", "abc", "w2", "[SEP]", "abc", "[SEP]"], [1, 2, 1, 1, 2, 1])
    encoded = encode_line("w1 w2 w3 ||| w4", small, 4, "mean")
    # Nothing is left of the second text, nor of its [SEP], as in the original.
    assert (encoded.words, encoded.sizes, len(encoded.ids)) == (["[CLS]", "w1", "[SEP]"], [1, 1, 1], 3)


def test_words_have_the_tokens_of_the_line_in_any_script(english):
    lines = (TESTS / "golden" / "extract_features" / "input.txt").read_text().splitlines()
    lines += ["Γειά σου ΑΣ", "שלום עולם", "สวัสดีชาวโลก ๑๒๓", "नमस्ते दुनिया", "你好，世界 中文", "한국어 문장\u2028둘째"]
    lines += ["a\u200bb c\u00adc", "tab\tnext\u000bx\u0085y \u1680z\u205fw", "e\u0301 👩‍🚀 x\ufeff"]
    for line in lines:
        plain, words = encode_line(line, english, 512), encode_line(line, english, 512, "first")
        assert plain.ids == words.ids, line
        assert sum(words.sizes) == len(words.ids) and len(words.words) == len(words.sizes)


def test_nothing_half_written(tiny, small, tmp_path, monkeypatch):
    source, output = tmp_path / "input.txt", tmp_path / "output"
    write_lines(source, 20)
    output.write_text("older")
    options = {"max_seq_length": 32, "layers": (-1,), "batch_size": 4}
    monkeypatch.setattr(extract, "_WINDOW_BYTES", 2000)
    with pytest.raises((tf.errors.OpError, OSError)):
        extract_features(tiny, small, source, tmp_path / "no" / "output", **options)

    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(extract, "pool_lines", fail)  # in the writer thread
    sentences = SentenceSettings("")
    for output_format in ("json", "npz", "tfrecord"):
        options |= {"output_format": output_format, "pooling": "sentence", "sentences": sentences}
        with pytest.raises(OSError, match="No space"):
            extract_features(tiny, small, source, output, **options)
        assert output.read_text() == "older" and len(list(tmp_path.iterdir())) == 2
