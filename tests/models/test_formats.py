"""The list of formats: each finds its own weights and no other's, without importing TensorFlow."""

import subprocess
import sys

import pytest
from helpers.model_garden_models import older_names, write_variables
from helpers.paths import ROOT
from helpers.tiny import TINY_CONFIG

from bert_tf.models import pretrained
from bert_tf.models.config import BertConfig
from bert_tf.models.formats import FORMATS, format_named
from bert_tf.models.open_weights import find_weights, open_weights
from bert_tf.models.task_models import BertForPreTraining


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """format -> a directory in it."""
    model, folders = BertForPreTraining(BertConfig.from_dict(TINY_CONFIG)), {}
    for name, kind in FORMATS.items():
        folders[name] = str(tmp_path_factory.mktemp("formats") / name)
        if kind.file_name:
            pretrained.save_pretrained(model, folders[name], format=name)
    write_variables(f"{folders['model_garden']}/bert_model.ckpt", older_names()[0])
    return folders


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_finds_its_own_weights_only(folders, name):
    format, file = find_weights(folders[name])
    assert format is FORMATS[name] and open_weights(folders[name]).format == name
    assert find_weights(file) == (format, file)


def test_a_directory_without_weights_says_what_was_looked_for(tmp_path):
    (tmp_path / "notes.txt").write_text("none")
    with pytest.raises(FileNotFoundError, match=r"has no weights: none of .*It contains notes\.txt") as error:
        open_weights(str(tmp_path))
    for format in FORMATS.values():
        assert all(name in str(error.value) for name in format.looked_for)


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="format=onnx is not one of bert_tf, huggingface, model_garden, tf1"):
        format_named("onnx")


def test_the_names_are_known_before_tensorflow():
    code = "import sys, bert_tf.models.formats; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
