"""Records that say what a word is (--word_boundaries, --segmenter). Their masks: test_plain.py."""

import pytest
from helpers.training_steps import one_device

from bert_tf.data import record_files, record_index
from bert_tf.models.configuration.config import BertConfig
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.pretraining_tasks import PretrainingTask

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"我来到北京。"]


def test_records_with_and_without_words(tmp_path, caplog):
    """They do not mix, and a run says whether it takes the words."""
    (tmp_path / "text.txt").write_text("我 来到 北京 。\n北京\n\n来到 。\n我\n")
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    sizes = {"max_seq_length": 32, "max_predictions_per_seq": 6}
    files = {name: str(tmp_path / name) for name in ("words", "none")}
    for name, path in files.items():
        create_pretraining_data(
            str(tmp_path / "text.txt"), path, str(tmp_path / "vocab.txt"), masking="dynamic", show_progress=False,
            word_boundaries="spaces" if name == "words" else None, **sizes,
        )  # fmt: skip
    index = record_index.index_records([*files.values()], None)
    with pytest.raises(record_files.RecordError, match="words has .* what a word is .*, .*none has .* pairs: a run"):
        record_files.features_of(index.first_payloads(), 32, 6)
    config, unused = BertConfig(len(VOCAB)), "The words that the records name are not used: --do_whole_word_mask is not"
    for whole_words in (True, False):
        settings = PretrainingSettings(
            input_file=files["words"], output_dir=str(tmp_path), vocab_file=str(tmp_path / "vocab.txt"), do_train=True,
            do_whole_word_mask=whole_words, **sizes,
        )  # fmt: skip
        caplog.clear()
        with caplog.at_level("INFO", logger="absl"):
            PretrainingTask(settings, config, "c", one_device())
        kind = "whole words" if whole_words else "single pieces"
        assert f"are unmasked and say what a word is: by the rule of bert, 0.15 of the tokens ({kind})" in caplog.text
        assert (unused in caplog.text) != whole_words
