"""The vocabulary beside a pre-trained model: which one it is, and mismatches."""

import json
import shutil

import pytest

from bert_tf.models.configuration.config import BertConfig
from bert_tf.models.files import saving
from bert_tf.pretraining import model_vocabulary
from bert_tf.pretraining.create import create_pretraining_data
from bert_tf.text.wordpiece import FullTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "house", "stands", "on", "a", "hill", "."]


def find_vocabulary(vocab_file, init_checkpoint, record_files, vocab_size=100):
    return model_vocabulary.choose_vocabulary(vocab_file, init_checkpoint, record_files, BertConfig(vocab_size))


def make(folder, name="train", pieces=PIECES, **flags):
    """Creates records of a small text, with their vocabulary beside them; returns the path of the records."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text("The house stands.\nOn a hill.\n\nA hill.\nThe house.\n")
    (folder / f"{name}_vocab.txt").write_text("\n".join(pieces) + "\n")
    records = str(folder / f"{name}.tfrecord")
    create_pretraining_data(
        str(folder / f"{name}.txt"), records, str(folder / f"{name}_vocab.txt"), max_seq_length=16,
        max_predictions_per_seq=3, show_progress=False, **flags,
    )  # fmt: skip
    return records


def test_the_records_say_which_it_is(tmp_path):
    records = make(tmp_path / "data", do_lower_case=False)
    found = find_vocabulary(None, None, {"--input_file": [records]})
    assert found.vocab_file == str(tmp_path / "data" / "train_vocab.txt")
    assert (found.casing.do_lower_case, found.casing.strip_accents) == (False, False)
    (tmp_path / "model").mkdir()
    saving.write_description(str(tmp_path / "model"), found)
    assert (tmp_path / "model" / "vocab.txt").read_text().splitlines() == PIECES
    tokenizer = FullTokenizer.from_pretrained(str(tmp_path / "model"))
    assert tokenizer.cased and tokenizer.tokenize("The house") == ["[UNK]", "house"]
    with pytest.raises(ValueError, match=r"train_vocab\.txt has token id 11, but vocab_size=11"):
        find_vocabulary(None, None, {"--input_file": [records]}, vocab_size=11)


def test_moved_together_and_lost(tmp_path, caplog):
    records = make(tmp_path / "data")
    shutil.move(tmp_path / "data", tmp_path / "moved")
    moved = records.replace("/data/", "/moved/")
    assert find_vocabulary(None, None, {"--input_file": [moved]}).vocab_file == str(tmp_path / "moved/train_vocab.txt")
    # A file of that name with other content is another vocabulary.
    (tmp_path / "moved" / "train_vocab.txt").write_text("\n".join(PIECES[::-1]))
    assert find_vocabulary(None, None, {"--input_file": [moved]}) is None
    assert "train_vocab.txt (" in caplog.text and "is no longer there: give --vocab_file" in caplog.text
    (tmp_path / "moved" / "pretraining_data.train.json").unlink()
    assert find_vocabulary(None, None, {"--input_file": [moved]}) is None
    assert "as nothing names that: give --vocab_file" in caplog.text


def test_vocabularies_that_are_not_that_of_the_records(tmp_path):
    train, other = make(tmp_path / "train"), tmp_path / "other.txt"
    other.write_text("\n".join(PIECES) + "\n")
    found = find_vocabulary(str(other), None, {"--input_file": [train]})  # the same content
    assert found.vocab_file == str(other) and found.casing.do_lower_case
    other.write_text("\n".join([*PIECES, "more"]) + "\n")
    with pytest.raises(ValueError, match=r"--vocab_file=.*other\.txt is not the vocabulary .*train_vocab\.txt \("):
        find_vocabulary(str(other), None, {"--input_file": [train]})
    heldout = make(tmp_path / "heldout", "heldout", [*PIECES, "more"])
    with pytest.raises(ValueError, match=r"^--input_file and --eval_input_file: .*heldout_vocab\.txt is not the"):
        find_vocabulary(None, None, {"--input_file": [train], "--eval_input_file": [heldout]})
    # Records of others in the folder are not asked.
    make(tmp_path / "train", "other", [*PIECES, "more"])
    (tmp_path / "train" / "pretraining_data.odd.json").write_text(json.dumps({"output_files": {"x": 1}}))
    assert find_vocabulary(None, None, {"--input_file": [train, train]}).vocab_file.endswith("train_vocab.txt")


def test_weights_to_start_from_bring_theirs(tmp_path, caplog):
    from bert_tf.models.task_models import BertForPreTraining

    config = BertConfig(
        vocab_size=len(PIECES), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    model = BertForPreTraining(config)
    model.build()
    model.save_pretrained(str(tmp_path / "model"), vocab_file=str(tmp_path / "vocab.txt"), do_lower_case=True)
    records = make(tmp_path / "data")
    found = find_vocabulary(None, str(tmp_path / "model"), {"--input_file": [records]})
    assert found.vocab_file == str(tmp_path / "model" / "vocab.txt") and found.casing.do_lower_case
    assert "--init_checkpoint: " not in caplog.text
    other = make(tmp_path / "other", pieces=[*PIECES, "more"])
    find_vocabulary(None, str(tmp_path / "model"), {"--input_file": [other]})
    assert "model/vocab.txt is not the vocabulary that the records were made with" in caplog.text
    with pytest.raises(ValueError, match="--teacher: .*model/vocab.txt is not the vocabulary that the records were"):
        model_vocabulary.choose_vocabulary(
            None, str(tmp_path / "model"), {"--input_file": [other]}, config, from_teacher=True
        )
