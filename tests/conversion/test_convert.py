"""Conversion between all formats, by function and by script; a conversion that fails leaves nothing behind."""

import dataclasses
import json
import os
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from helpers import warm
from helpers.basics import blocks, directory_of
from helpers.outputs import assert_same_bits
from helpers.script_cases import command_of, weights_of
from helpers.tiny import TINY_CONFIG

from bert_tf import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel, FullTokenizer, create_optimizer
from bert_tf.conversion import convert
from bert_tf.families.family import is_model_variable
from bert_tf.models import initialize
from bert_tf.store import bundle, save
from bert_tf.store.open import open_model, open_weights
from bert_tf.system import storage

FORMATS = ("tf1", "huggingface", "bert_tf")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"[unused{i}]" for i in range(1, 4)]
PIECES += [chr(97 + i) for i in range(26)] + ["##" + chr(97 + i) for i in range(26)]
PIECES += [f"word{i}" for i in range(100 - len(PIECES))]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Like one of Google's zips: random values in every variable, heads, vocabulary and Adam state."""
    folder = tmp_path_factory.mktemp("source") / "uncased_L-2_H-32_A-2"
    folder.mkdir()
    config = BertConfig.from_dict(TINY_CONFIG)
    model = BertForPreTraining(config)
    model.build()
    optimizer = create_optimizer("adamw", 1e-3, 20, 5)
    optimizer.build(model.trainable_variables)
    generator = np.random.default_rng(0)
    for name, variable in initialize.training_variables(model, optimizer).items():
        variable.assign(7 if name == "global_step" else generator.normal(0, 0.2, variable.shape))
    bundle.write_bundle(str(folder / "bert_model.ckpt"), initialize.training_variables(model, optimizer))
    config.save(str(folder / "bert_config.json"))
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
    return folder


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_and_back(source, tmp_path, format):
    """tf1 -> format -> tf1: the same bytes. What transformers computes from such a folder: test_descendants.py."""
    there = convert.convert(str(source), str(tmp_path / "there"), format)
    assert there.weights.format == "tf1" and there.format == format and not there.missing
    assert "Adam moments and global_step of the source are left out; --with_optimizer carries them." in there.notes
    back = convert.convert(str(tmp_path / "there"), str(tmp_path / "back"), "tf1")
    assert back.weights.format == format
    expected = {name: value for name, value in weights_of(source).items() if is_model_variable(name)}
    assert_same_bits(weights_of(tmp_path / "back"), expected)
    files = {"bert_config.json", "vocab.txt", "tokenizer_config.json"}
    assert files < set(back.written.files)
    for name in ("bert_config.json", "vocab.txt"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()
    casing = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
    assert casing["do_lower_case"] is True  # from the source directory's name, through the format's own file
    # The report has each variable once, and says what happened to the optimizer state.
    rows = {name: (shape, origin, goal) for name, shape, origin, goal in there.rows}
    assert rows["bert/pooler/dense/kernel"][0] == (32, 32)
    assert {name: goal for name, (_, _, goal) in rows.items()}.items() >= {row[0]: row[2] for row in back.rows}.items()
    assert rows["bert/pooler/dense/kernel/adam_m"][2] == "- (optimizer state)"
    text = there.text()
    assert "Read back: 46 tensors, each with the same bits" in text
    assert "bert/encoder/layer_1/output/LayerNorm/gamma" in text
    if format != "huggingface":
        report = convert.convert(str(source), str(tmp_path / "state"), format, with_optimizer=True)
        assert not any("--with_optimizer" in note for note in report.notes)
        assert_same_bits(weights_of(tmp_path / "state"), weights_of(source))
    if format == "tf1":  # runs of the original and of this project resume from such a directory
        assert tf.train.latest_checkpoint(str(tmp_path / "state")).endswith("model.ckpt-7")
        assert open_weights(str(tmp_path / "state"))["global_step"].dtype == np.int64


@pytest.mark.parametrize("head", ["bert_model", "classifier", "squad"])
def test_golden_checkpoints_through_every_format(golden, tmp_path, head):
    prefix = str(golden / "model" / "config1" / f"{head}.ckpt")
    original = weights_of(prefix)
    for format in ("huggingface", "bert_tf"):
        target = tmp_path / format
        report = convert.convert(prefix, str(target), format)
        without = head == "squad" and format == "huggingface"
        expected = {name: value for name, value in original.items() if not without or "/pooler/" not in name}
        if without:
            assert "The pooler is left out: BertForQuestionAnswering has none." in report.notes
        assert_same_bits(weights_of(target), expected)


def expected_rows(source, words: dict[str, list[str]]):
    """Each row is the mean of the pieces that a word was split into, in the word table and the bias."""
    old = weights_of(source)
    ids = [[PIECES.index(piece) for piece in pieces] for pieces in words.values()]
    tables = ("bert/embeddings/word_embeddings", "cls/predictions/output_bias")
    return {name: np.stack([old[name][row].mean(0, dtype=np.float64) for row in ids]) for name in tables}


def test_words_are_added_as_run_domain_does(source, tmp_path):
    (tmp_path / "words.txt").write_text("abc\nword3\nkub\n")  # one of them is known
    options = {"add_tokens": str(tmp_path / "words.txt"), "with_optimizer": True}
    report = convert.convert(str(source), str(tmp_path / "larger"), "bert_tf", **options)
    assert open_model(str(tmp_path / "larger")).config.vocab_size == 102
    assert FullTokenizer.from_pretrained(str(tmp_path / "larger")).encode("abc Kub") == [100, 101]
    old, new = weights_of(source), weights_of(tmp_path / "larger")
    for name, rows in expected_rows(source, {"abc": ["a", "##b", "##c"], "kub": ["k", "##u", "##b"]}).items():
        np.testing.assert_array_equal(new[name][:100], old[name])
        np.testing.assert_allclose(new[name][100:], rows, rtol=1e-6)
        assert not new[f"{name}/adam_v"][100:].any() and new[f"{name}/adam_m"].shape == new[name].shape
    assert "'abc': row 100, the mean of a ##b ##c." in report.text()


def test_the_lines_of_the_page_add_words_and_positions(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(source, tmp_path / "uncased_L-12_H-768_A-12")
    (program,) = blocks("vocabulary", "python")
    exec(program.replace('"kubernetes"', '"abc"'), {})
    config = open_model("my_bert").config
    assert (config.vocab_size, config.max_position_embeddings) == (101, 64)
    new = weights_of("my_bert")
    for name, rows in expected_rows(source, {"abc": ["a", "##b", "##c"]}).items():
        np.testing.assert_allclose(new[name][100:], rows, rtol=1e-5)
    np.testing.assert_array_equal(*np.split(new["bert/embeddings/position_embeddings"], 2))
    assert FullTokenizer.from_pretrained("my_bert").tokenize("Abc") == ["abc"]


def test_files_that_are_there(source, tmp_path):
    target = tmp_path / "target"
    directory_of(target, vocab__txt="mine", notes__txt="mine")
    half = target / f"{storage.PRIVATE}of_a_killed_process"
    half.mkdir()
    os.utime(half, (0, 0))
    convert.convert(str(source), str(target), "huggingface", overwrite=True)
    assert not half.exists()
    convert.convert(str(source), str(target), "tf1", overwrite=True)
    assert (target / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()
    assert not (target / "model.safetensors").exists() and not (target / "config.json").exists()
    (target / "model.ckpt-5.index").write_text("")
    (tmp_path / "v.txt").write_text("".join(f"t{number}\n" for number in range(101)))
    for other, options, message in (
        (target, {}, r"target already has files of a model \("),
        (target, {"overwrite": True}, "target has the checkpoints of a training run"),
        (source, {"overwrite": True}, "would replace the source"),
        (tmp_path / "new", {"do_lower_case": False}, "do_lower_case=False contradicts the name of"),
        (tmp_path / "new", {"vocab_file": str(tmp_path / "v.txt")}, r"v\.txt has 101 lines, but vocab_size is 100"),
    ):
        with pytest.raises((FileExistsError, ValueError), match=message):
            convert.convert(str(source), str(other), "tf1", **options)
    assert not (tmp_path / "new").exists()
    assert (target / "notes.txt").read_text() == "mine" and open_weights(str(target)).format == "tf1"


def test_heads_without_their_usual_company(tmp_path):
    model = BertForMaskedLM(BertConfig.from_dict({**TINY_CONFIG, "max_position_embeddings": 64}))
    model.build()
    model.save_pretrained(str(tmp_path / "hf"), format="huggingface")
    tensors = safetensors.numpy.load_file(tmp_path / "hf" / "model.safetensors")
    tensors = {name: value for name, value in tensors.items() if "pooler" not in name}
    safetensors.numpy.save_file(tensors, str(tmp_path / "hf" / "model.safetensors"), {"format": "pt"})
    convert.convert(str(tmp_path / "hf"), str(tmp_path / "tf1"), "tf1")
    assert not any(name.startswith("bert/pooler") for name in weights_of(tmp_path / "tf1"))


def test_half_precision_is_written_as_float32(tmp_path):
    BertModel(BertConfig.from_dict(TINY_CONFIG)).save_pretrained(str(tmp_path / "hf"), format="huggingface")
    path = tmp_path / "hf" / "model.safetensors"
    assert path.stat().st_mode == (tmp_path / "hf" / "config.json").stat().st_mode  # readable like any other file
    tensors = {name: value.astype(ml_dtypes.bfloat16) for name, value in safetensors.numpy.load_file(path).items()}
    safetensors.numpy.save_file(tensors, str(path), {"format": "pt"})
    report = convert.convert(str(tmp_path / "hf"), str(tmp_path / "tf1"), "tf1")
    assert any("half precision; its values are written as float32" in note for note in report.notes)
    assert all(value.dtype == np.float32 for value in weights_of(tmp_path / "tf1").values())


@pytest.mark.parametrize("change", ["another value", "a lost tensor", "a lost moment"])
def test_what_reads_back_otherwise_is_an_error_and_not_written(source, tmp_path, monkeypatch, change):
    write, name = save.write_weights, "bert/pooler/dense/bias"
    name += "/adam_m" * (change == "a lost moment")

    def wrong(path, format, weights, *more):
        values = {key: weights[key] for key in weights}
        values[name] = values[name] + 1 if change == "another value" else values[name]
        shapes = {key: shape for key, shape in weights.shapes.items() if key != name or change == "another value"}
        return write(path, format, dataclasses.replace(weights, shapes=shapes, reader=values.__getitem__), *more)

    monkeypatch.setattr(save, "write_weights", wrong)
    message = f"Reading back .* failed: ({name} differs from|lost {name})"
    with pytest.raises(ValueError, match=message):
        convert.convert(str(source), str(tmp_path / "target"), "bert_tf", with_optimizer=change == "a lost moment")
    assert os.listdir(tmp_path) == []


def test_the_script(source, tmp_path):
    flags = {"from": source, "to": tmp_path / "hf", "format": "huggingface", "report_file": tmp_path / "report.txt"}
    result = warm.run(command_of("convert_checkpoint", flags), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "report.txt").read_text() == result.stdout
    assert "bert/pooler/dense/kernel" in result.stdout and "bert.pooler.dense.weight" in result.stdout
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["hidden_act"] == "gelu_new"
