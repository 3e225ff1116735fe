"""Whole-word masking with --word_boundaries and --segmenter: static and dynamic, from text to records to batches."""

import random

import pytest

from bert_tf.data import record_files, record_index
from bert_tf.models.config import BertConfig
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.text import word_boundaries
from bert_tf.training.pretraining_settings import PretrainingSettings
from bert_tf.training.pretraining_tasks import PretrainingTask, open_all_records

CHARACTERS = "我来到北京清华大学他毕业于中国"
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS, *"。，ab", "##a", "##b", "cafe"]
SETTINGS = {"max_seq_length": 32, "max_predictions_per_seq": 6, "dupe_factor": 2}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A segmented text, and a segmenter "pairs" of two characters each."""
    generator, lines = random.Random(3), []
    for _ in range(25):
        for _ in range(generator.randint(1, 9)):
            words = ["".join(generator.choices(CHARACTERS, k=generator.randint(1, 3))) for _ in range(12)]
            words += ["。", "Café", "abab", "，a", "z", "我\u3000来到"]
            generator.shuffle(words)
            lines.append(" ".join(words[: generator.randint(1, 18)]))
        lines.append("")
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    pairs = "chinese", lambda: lambda text: [text[k : k + 2] for k in range(0, len(text), 2)]
    monkeypatch.setitem(word_boundaries.SEGMENTERS, "pairs", pairs)
    return tmp_path


def make(corpus, name, **flags):
    folder = corpus / name
    folder.mkdir()
    paths = (str(path) for path in (corpus / "text.txt", folder / "out.tfrecord", corpus / "vocab.txt"))
    create_pretraining_data(*paths, **{**SETTINGS, "num_workers": 1, "show_progress": False, **flags})
    return folder / "out.tfrecord"


def test_records_with_and_without_words_do_not_mix(corpus):
    flags = {"masking": "dynamic", "dupe_factor": 1}
    files = [str(make(corpus, "words", word_boundaries="spaces", **flags)), str(make(corpus, "none", **flags))]
    with pytest.raises(
        record_files.RecordError, match=rf"{files[0]} has .* that say what a word is .*, {files[1]} has .* pairs: a run"
    ):
        record_files.features_of(record_index.index_records(files, None).first_payloads(), 32, 6)


def test_a_run_says_whether_it_takes_the_words_of_its_records(corpus, caplog):
    path = str(make(corpus, "records", word_boundaries="spaces", masking="dynamic", dupe_factor=1))
    config, unused = BertConfig(len(VOCAB)), "The words that the records name are not used: --do_whole_word_mask is not"
    for whole_words in (True, False):
        settings = PretrainingSettings(
            input_file=path, output_dir=str(corpus), vocab_file=str(corpus / "vocab.txt"), do_train=True,
            max_seq_length=32, max_predictions_per_seq=6, do_whole_word_mask=whole_words,
        )  # fmt: skip
        caplog.clear()
        with caplog.at_level("INFO", logger="absl"):
            PretrainingTask(settings, config, "c", open_all_records(settings, config, "c"))
        kind = "whole words" if whole_words else "single pieces"
        assert f"are unmasked and say what a word is: by the rule of bert, 0.15 of the tokens ({kind})" in caplog.text
        assert (unused in caplog.text) != whole_words
