"""The joint heads for questions: their base class, their inputs, and their conversion."""

import json

import numpy as np
import pytest

from bert_tf.conversion import convert
from bert_tf.models import question_heads
from bert_tf.models.config import BertConfig
from bert_tf.models.families import AlbertConfig, ElectraConfig
from bert_tf.models.question_heads import AlbertForQuestionAnswering, ElectraForQuestionAnswering
from bert_tf.models.task_models import BertForQuestionAnswering
from bert_tf.weights import bundle


@pytest.fixture
def fine_tuned(request):
    """Of a family: the checkpoint of its original with moments, if there is one, its configuration, and its class."""

    def of(family: str) -> tuple:
        golden = request.getfixturevalue("golden")
        if family == "albert":
            folder = golden / "albert" / "config1"
            return folder / "squad_v2.ckpt", AlbertConfig.from_json_file(str(folder / "albert_config.json"))
        options = json.loads((golden / "electra" / "uneven" / "hparams.json").read_text())
        config = ElectraConfig(**options["discriminator_config"] | {"embedding_size": 24, "hidden_act": "gelu_erf"})
        return request.getfixturevalue("shared") / "golden" / "electra" / "finetuning" / "squad.ckpt-6", config

    return of


@pytest.mark.parametrize("family", ["albert", "electra"])
def test_conversion_there_and_back(tmp_path, fine_tuned, family):
    """The original's checkpoint -> bert_tf -> the original's: the same names and bytes; Hugging Face's has no place."""
    source, config = fine_tuned(family)
    (tmp_path / config.file_name).write_text(config.to_json_string())
    given = {"with_optimizer": family == "electra", "bert_config_file": str(tmp_path / config.file_name)}
    convert.convert(str(source), str(tmp_path / "ours"), "bert_tf", do_lower_case=True, **given)
    convert.convert(str(tmp_path / "ours"), str(tmp_path / "back"), "tf1", with_optimizer=given["with_optimizer"])
    name = "model.ckpt-6" if family == "electra" else "bert_model.ckpt"
    old, new = (bundle.CheckpointReader(str(path)) for path in (source, tmp_path / "back" / name))
    assert new.get_variable_to_shape_map() == old.get_variable_to_shape_map()
    for variable in old.get_variable_to_shape_map():
        assert new.get_tensor(variable).tobytes() == old.get_tensor(variable).tobytes(), variable
    model = question_heads.from_pretrained(str(tmp_path / "back"))
    assert (type(model).__name__, model.starts, model.ends) == {
        "albert": ("AlbertForQuestionAnswering", 5, 5),
        "electra": ("ElectraForQuestionAnswering", 20, 20),
    }[family]
    with pytest.raises(ValueError) as error:
        convert.convert(str(tmp_path / "ours"), str(tmp_path / "theirs"), "huggingface")
    assert "the joint head for questions" in str(error.value) and "transformers doesn't have" in str(error.value)
    assert "\n" not in str(error.value) and not (tmp_path / "theirs").exists()


def test_what_cannot_be_in_an_answer(golden):
    """ALBERT's p_mask follows from segment_ids; sequences shorter than the beam are filled up."""
    folder = golden / "albert" / "config1"
    model = question_heads.from_pretrained(str(folder / "squad_v2.ckpt"), starts=4, ends=30)
    ids = np.array([[2, 9, 9, 3, 10, 11, 12, 3], [2, 9, 3, 10, 11, 3, 0, 0]])
    segments = np.array([[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 0, 0]])
    batch = {"input_ids": ids, "input_mask": (ids > 0).astype(int), "segment_ids": segments}
    given = model({**batch, "p_mask": np.array([[0, 1, 1, 1, 0, 0, 0, 1], [0, 1, 1, 0, 0, 1, 1, 1]])})
    derived = model(batch)
    for name, value in given.items():
        np.testing.assert_array_equal(value, derived[name], err_msg=name)
    assert derived["end_top_index"].shape == (2, 4, 30)
    places, scores = np.asarray(derived["end_top_index"]), np.asarray(derived["end_top_log_probs"])
    assert (np.isneginf(scores) == (places >= 8)).all() and (np.sort(places)[..., :8] == np.arange(8)).all()


def test_the_other_head_is_refused(golden, tmp_path):
    """It would be random."""
    folder = golden / "albert" / "config1"
    joint = str(folder / "squad_v2.ckpt")
    with pytest.raises(ValueError, match=r"squad_v2\.ckpt has a joint head: use .*Answering; BertFor"):
        BertForQuestionAnswering.from_pretrained(joint)
    config = AlbertConfig.from_json_file(str(folder / "albert_config.json"))
    model = BertForQuestionAnswering(config)
    model.build()
    model.save_pretrained(str(tmp_path / "independent"))
    with pytest.raises(ValueError, match=r"has an independent head .*: use BertForQuestionAnswering; Albert"):
        AlbertForQuestionAnswering.from_pretrained(str(tmp_path / "independent"))


def test_families_without_such_a_head():
    with pytest.raises(
        ValueError, match="ElectraForQuestionAnswering is no head for BERT: use BertForQuestionAnswering"
    ):
        ElectraForQuestionAnswering(BertConfig(vocab_size=100))
    with pytest.raises(ValueError, match="AlbertForQuestionAnswering is no head for ELECTRA"):
        AlbertForQuestionAnswering(ElectraConfig(vocab_size=100))
