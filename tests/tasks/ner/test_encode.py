"""Words to token rows: every word is learned and predicted exactly once, where it has the most context."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import encode as ner_encode
from bert_tf.tasks.ner.data import Sentence
from bert_tf.tasks.ner.encode import encode_sentences
from bert_tf.text.wordpiece import FullTokenizer

# xyz: three pieces; a word of control characters has none.
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "x", "##y", "##z"]
LABELS = {"O": 0, "B-A": 1, "I-A": 2}


def sentence(words, tags=None, document=0):
    words = words.split(" ")
    return Sentence(words, tags.split() if tags else None, list(range(len(words))), document)


def test_first_pieces_have_the_labels(small):
    rows = encode_sentences(
        [sentence("xyz a \u0001 strange xyz", "B-A O I-A O B-A"), sentence("b", "O")], small, 16, label_ids=LABELS
    )
    assert rows.ids.tolist() == [2, 8, 9, 10, 5, 1, 1, 8, 9, 10, 3, 2, 6, 3]
    assert rows.offsets.tolist() == [0, 11, 14] and rows.second_starts.tolist() == [11, 3]
    labels = rows.labels["label_ids"]
    assert labels.shape == (2, 16) and labels.dtype == np.int16
    assert labels[0].tolist() == [-1, 1, -1, -1, 0, 2, 0, 1, *[-1] * 8]
    assert labels[1].tolist() == [-1, 0, *[-1] * 14]
    assert rows.word_rows.tolist() == [0, 0, 0, 0, 0, 1]
    assert rows.word_positions.tolist() == [1, 4, 5, 6, 7, 1]
    batch = rows.batch([1, 0], 16)
    assert batch["segment_ids"].sum() == 0 and batch["input_mask"].sum(1).tolist() == [3, 11]


def test_long_sentences_are_cut_where_words_see_most(small, caplog):
    """Ten words, windows of six pieces with a stride of three: the middle of the overlap changes hands."""
    words, tags = ["a", "b", "c", "a", "b", "c", "a", "b", "c", "a"], ["O"] * 10
    rows = encode_sentences([sentence(" ".join(words), " ".join(tags))], small, 8, label_ids=LABELS, doc_stride=3)
    # Windows 0-5, 3-8, 6-9. Piece 3: 2 from the edge of the first, 0 from the second; piece 4: 1 and 1; piece 5: 0 and
    # 2; piece 7: 1 from the second and 1 from the third; piece 8: 0 and 1.
    assert rows.word_rows.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]
    assert rows.word_positions.tolist() == [1, 2, 3, 4, 5, 3, 4, 5, 3, 4]
    assert (rows.labels["label_ids"] >= 0).sum(1).tolist() == [5, 3, 2]
    assert rows.lengths.tolist() == [8, 8, 6]
    half = encode_sentences([sentence(" ".join(words))], small, 8)
    assert half.word_rows.tolist() == rows.word_rows.tolist()  # half a window is the default
    assert half.labels == {}
    for text, stride, told in (("a b c", 7, 0), (" ".join(words), 6, 0), (" ".join(words), 7, 1)):
        encode_sentences([sentence(text)], small, 8, doc_stride=stride)
        assert caplog.text.count("doc_stride=7 is more than a window holds: of max_seq_length=8 tokens, 6") == told


@pytest.mark.parametrize("document_context", [False, True])
def test_every_word_counts_once(small, document_context):
    generator = np.random.default_rng(0)
    sentences = []
    for number in range(60):
        words = [("a", "b", "xyz", "unknown", "\u0001")[kind] for kind in generator.integers(0, 5, 1 + number % 40)]
        tags = [("O", "B-A")[kind] for kind in generator.integers(0, 2, len(words))]
        sentences.append(Sentence(words, tags, [], number // 7))
    rows = encode_sentences(sentences, small, 20, label_ids=LABELS, document_context=document_context, doc_stride=5)
    count = sum(len(sentence.words) for sentence in sentences)
    places = set(zip(rows.word_rows.tolist(), rows.word_positions.tolist(), strict=True))
    assert len(places) == len(rows.word_rows) == count
    assert (rows.labels["label_ids"] >= 0).sum() == count
    first = {"a": 5, "b": 6, "xyz": 8}
    tagged = [pair for one in sentences for pair in zip(one.words, one.tags, strict=True)]
    for row, position, (word, tag) in zip(rows.word_rows, rows.word_positions, tagged, strict=True):
        assert rows.ids[rows.offsets[row] + position] == first.get(word, 1)
        assert rows.labels["label_ids"][row, position] == LABELS[tag]
    assert rows.lengths.max() == 20 and set(rows.ids[rows.offsets[:-1]]) == {2}
    assert (rows.labels["label_ids"] >= 0).any(1).all()


def test_document_context_joins_sentences_of_a_document(small):
    sentences = [sentence("a", "O", 0), sentence("b c", "O O", 0), sentence("xyz", "O", 1)]
    rows = encode_sentences(sentences, small, 16, document_context=True)
    assert rows.ids.tolist() == [2, 5, 6, 7, 3, 2, 8, 9, 10, 3]
    assert rows.word_rows.tolist() == [0, 0, 0, 1]
    assert len(encode_sentences(sentences, small, 16)) == 3


def test_a_word_longer_than_a_window(small):
    """Its first piece is tagged; windows inside the word, which no word needs, are left out."""
    rows = encode_sentences([sentence("a " + "x" + "yz" * 15 + " b", "O B-A O")], small, 8, label_ids=LABELS)
    assert rows.word_rows.tolist() == [0, 0, 1]
    assert rows.lengths.tolist()[0] == 8 and len(rows) == 2
    assert rows.ids[rows.offsets[1] + rows.word_positions[2]] == 6
    assert encode_sentences([sentence("a b")], small, 3).word_rows.tolist() == [0, 1]


def test_batches_have_labels_as_wide_as_their_ids(small):
    sentences = [sentence(" ".join(["a"] * n), " ".join(["B-A"] * n)) for n in (3, 40, 90, 4)]
    rows = encode_sentences(sentences, small, 100, label_ids=LABELS)
    widths = set()
    arguments = {"batch_size": 2, "seed": 1, "max_seq_length": 100}
    for batch in ner_encode.training_batches(rows, start_step=0, **arguments).take(6):
        assert batch["label_ids"].shape == batch["input_ids"].shape and batch["label_ids"].dtype == tf.int32
        real = batch["input_mask"].numpy().sum(1) - 2
        assert ((batch["label_ids"].numpy() >= 0).sum(1) == real).all()
        widths.add(batch["label_ids"].shape[1])
    assert len(widths) > 1
    fixed = ner_encode.training_batches(rows, start_step=0, static_padding=True, **arguments)
    assert fixed.element_spec["label_ids"].shape == (2, 100)


@pytest.mark.parametrize("static_padding", [False, True])
def test_logits_come_back_word_by_word(small, static_padding):
    """A model that scores a token by its id and position; rows of all lengths, batches of three."""
    generator = np.random.default_rng(2)
    sentences = [
        sentence(" ".join("abc"[kind] for kind in generator.integers(0, 3, n))) for n in (1, 30, 4, 70, 9, 9, 12)
    ]
    rows = encode_sentences(sentences, small, 24, doc_stride=7)

    def predict(batches):
        for batch in batches:
            ids = batch["input_ids"].numpy()
            assert "label_ids" not in batch
            yield np.stack([ids, np.broadcast_to(np.arange(ids.shape[1]), ids.shape)], -1).astype(np.float32)

    logits = ner_encode.predict_logits(predict, rows, batch_size=3, max_seq_length=24, static_padding=static_padding)
    words = [word for one in sentences for word in one.words]
    assert logits[:, 0].tolist() == [5 + "abc".index(word) for word in words]
    assert logits[:, 1].tolist() == rows.word_positions.tolist()
    cut = ner_data.tags_by_sentence(sentences, words)
    assert cut == [one.words for one in sentences]


def test_records(small, tmp_path):
    rows = encode_sentences([sentence("xyz a", "B-A O")], small, 8, label_ids=LABELS)
    ner_encode.write_records(str(tmp_path / "train.tf_record"), rows, 8)
    (record,) = tf.data.TFRecordDataset(str(tmp_path / "train.tf_record"))
    features = tf.train.Example.FromString(record.numpy()).features.feature
    values = {name: list(feature.int64_list.value) for name, feature in features.items()}
    assert values == {
        "input_ids": [2, 8, 9, 10, 5, 3, 0, 0],
        "input_mask": [1] * 6 + [0] * 2,
        "segment_ids": [0] * 8,
        "label_ids": [0, 1, 0, 0, 0, 0, 0, 0],
        "label_mask": [0, 1, 0, 0, 1, 0, 0, 0],
    }


def test_characters_are_read_as_the_pieces_of_their_text(tmp_path):
    """Pieces as of KLUE's baseline, each with the tag of its first character; spaces and [UNK] need no piece."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "서울", "##은", "한국", "##의", "수", "##도", "."]
    (tmp_path / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=False)
    labels = {"O": 0, "B-LC": 1, "I-LC": 2, "B-QT": 3, "I-QT": 4}
    text = " 서울은 한국의 수도. 큰뛟"
    tags = ["O", "B-LC", "I-LC", "O", "O", "B-LC", "I-LC", "O", "O", "O", "O", "O", "O", "B-QT", "I-QT"]
    sentences = [Sentence([*text], tags, []), Sentence([" "], ["O"], [])]
    rows = encode_sentences(sentences, tokenizer, 16, label_ids=labels, of_pieces=True)
    assert rows.ids.tolist() == [2, 5, 6, 7, 8, 9, 10, 11, 1, 3, 2, 1, 3]
    assert rows.labels["label_ids"][0].tolist() == [-1, 1, 0, 1, 0, 0, 0, 0, 3, *[-1] * 7]
    assert (rows.labels["label_ids"][1] == -1).all()
    assert rows.word_positions.tolist() == [1, 1, 1, 2, 3, 3, 3, 4, 5, 5, 6, 7, 8, 8, 8, 1]
    assert rows.word_kinds.tolist() == [3, 0, 1, 0, 2, 0, 1, 0, 2, 0, 0, 0, 2, 0, 1, 3]

    def predicted(*tags_of_pieces):
        logits = np.eye(5, dtype=np.float32)[[0, *(labels[tag] for tag in tags_of_pieces)]]
        chosen = ner_encode.character_logits(rows, logits[[*rows.word_positions[:15], 1]], list(labels)).argmax(-1)
        return " ".join(list(labels)[number] for number in chosen[:15])

    assert predicted("B-LC", "O", "B-LC", "O", "O", "O", "O", "B-QT") == " ".join(tags)
    # A space is in an entity that goes on after it; an I-X that breaks the scheme begins none with a space.
    assert predicted("B-LC", "O", "B-QT", "I-QT", "I-QT", "O", "O", "O") == (
        "O B-LC I-LC O O B-QT I-QT I-QT I-QT I-QT O O O O O"
    )
    assert predicted("I-LC", "O", "I-QT", "O", "I-QT", "B-QT", "O", "I-LC") == (
        "O I-LC I-LC O O I-QT I-QT O O I-QT B-QT O O I-LC I-LC"
    )
    assert predicted("O", "B-LC", "I-QT", "O", "O", "O", "O", "O").startswith("O O O B-LC O I-QT I-QT O")
