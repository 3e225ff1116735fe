"""Words to token rows: every word is learned and predicted once, where it has the most context; scores of tags."""

import json

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import encode as ner_encode
from bert_tf.tasks.ner import metrics as ner_metrics
from bert_tf.tasks.ner.data import Layout, NerSettings, Sentence, read_conll
from bert_tf.tasks.ner.encode import encode_sentences
from bert_tf.tasks.ner.metrics import SETTINGS_FILE, TaggingSettings
from bert_tf.tasks.ner.task import NerTask, labels_of
from bert_tf.tasks.task import ExampleSet
from bert_tf.text.wordpiece import FullTokenizer

# xyz: three pieces; a word of control characters has none.
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "x", "##y", "##z"]
LABELS = {"O": 0, "B-A": 1, "I-A": 2}


def tagging(labels, **settings) -> NerTask:
    task = NerTask(NerSettings(**settings))
    task.labels, task.tagging, task.main_metric = labels, TaggingSettings(), "eval_f1"
    return task


def sentence(words, tags=None, document=0):
    words = words.split(" ")
    return Sentence(words, tags.split() if tags else None, list(range(len(words))), document)


def test_first_pieces_have_the_labels(small):
    sentences = [sentence("xyz a \u0001 strange xyz", "B-A O I-A O B-A"), sentence("b", "O")]
    rows = encode_sentences(sentences, small, 16, label_ids=LABELS)
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
    found = predicted("B-LC", "O", "B-QT", "I-QT", "I-QT", "O", "O", "O")
    assert found == "O B-LC I-LC O O B-QT I-QT I-QT I-QT I-QT O O O O O"
    found = predicted("I-LC", "O", "I-QT", "O", "I-QT", "B-QT", "O", "I-LC")
    assert found == "O I-LC I-LC O O I-QT I-QT O O I-QT B-QT O O I-LC I-LC"
    assert predicted("O", "B-LC", "I-QT", "O", "O", "O", "O", "O").startswith("O O O B-LC O I-QT I-QT O")


def sentences_of(text: str) -> list[list[str]]:
    return [sentence.split() for sentence in text.split("|")]


# Precision, recall and F1 of all entities as conlleval counts them (seqeval's default), and KLUE's mean F1 over types
# (mode="strict", scheme=IOB2).
@pytest.mark.parametrize(("gold", "predicted", "scores", "by_type"), [
    ("B-PS I-PS O B-LC I-LC O O", "I-PS I-PS O B-LC I-LC O O", (1, 1, 1), 0.5),
    ("B-PS I-PS O B-LC I-LC O I-PS", "B-PS I-PS O B-LC I-LC O O", (1, 2 / 3, 0.8), 1.0),
    ("B-PS I-LC B-PS I-PS O | O O B-QT", "B-PS I-PS B-PS O O | O I-QT B-QT", (1 / 4, 1 / 4, 1 / 4), 0.5),
    ("B-A I-A O B-B | O B-A B-A | O", "B-A O O B-A | O B-A B-A | B-B", (2 / 5, 2 / 4, 4 / 9), 2 / 7),
    ("B-A I-A O B-B | O B-A B-A | O", "B-A I-A O B-B | O B-A I-A | O", (2 / 3, 2 / 4, 4 / 7), 0.7),
    ("B-A I-A B-A | B-C", "B-A I-A I-A | I-C", (1 / 2, 1 / 3, 0.4), 0.0),
    ("B-A | I-A", "B-A | B-A", (1, 1, 1), 2 / 3),
    ("B-creative-work I-creative-work", "B-creative-work I-creative-x", (0, 0, 0), 0.0),
    ("B-A O", "O O", (0, 0, 0), 0.0),
    ("O O", "O B-A", (0, 0, 0), 0.0),
    ("O O", "O O", (0, 0, 0), 0.0),
])  # fmt: skip
def test_entities(gold, predicted, scores, by_type):
    gold, predicted = sentences_of(gold), sentences_of(predicted)
    right = [one == other for tags in zip(gold, predicted, strict=True) for one, other in zip(*tags, strict=True)]
    expected = dict(zip(("precision", "recall", "f1", "accuracy"), (*scores, np.mean(right)), strict=True))
    assert ner_metrics.evaluate(gold, predicted) == pytest.approx(expected)
    assert ner_metrics.klue(gold, predicted, ["O"])["entity_macro_f1"] == pytest.approx(by_type)


@pytest.mark.parametrize(("gold", "predicted", "expected"), [
    ("B-PS I-PS O B-LC I-LC O O", "I-PS I-PS O B-LC I-LC O O", (50.0, 73.33)),
    ("B-PS I-PS O B-LC I-LC O I-PS", "B-PS I-PS O B-LC I-LC O O", (100.0, 89.33)),
    # PS: 2 of 3 predicted and 2 of 2 found, LC: none. O: 3 of 4 and 3 of 4; I-LC does not occur.
    ("B-PS I-PS O B-LC | O O B-PS O", "B-PS I-PS O O | O O B-PS B-PS", (40.0, 71.0)),
])  # fmt: skip
def test_the_scores_of_klue(gold, predicted, expected):
    """By hand; issued by the model's logits, with spaces between the characters, which don't count."""
    labels = ["O", "B-LC", "I-LC", "B-PS", "I-PS"]
    gold, predicted = sentences_of(gold), sentences_of(predicted)
    scores = ner_metrics.klue(gold, predicted, labels)
    values = tuple(round(100 * scores[name], 2) for name in ("entity_macro_f1", "character_macro_f1"))
    assert values == expected
    sentences, chosen = [], []
    for tags, own in zip(gold, predicted, strict=True):
        words = [*"가나다라마바사"[: len(tags)]]
        words.insert(1, " ")
        repaired = ["B-PS" if tag == "I-PS" and number == 6 else tag for number, tag in enumerate(tags)]
        sentences.append(Sentence(words, [repaired[0], "O", *repaired[1:]], [], 0, "", [tags[0], "O", *tags[1:]]))
        chosen += [own[0], "I-LC", *own[1:]]
    logits = np.eye(len(labels))[[labels.index(tag) for tag in chosen]]
    results, _ = tagging(labels, metric="klue").scores_of("eval", sentences, logits)
    assert tuple(round(100 * results[f"eval_{name}_macro_f1"], 2) for name in ("entity", "character")) == expected
    pairs = [pair for tags in zip(gold, predicted, strict=True) for pair in zip(*tags, strict=True)]
    assert results["eval_accuracy"] == pytest.approx(sum(one == other for one, other in pairs) / len(chosen))


def test_report():
    gold, predicted = sentences_of("B-A I-A O B-B | O B-A B-A | O"), sentences_of("B-A O O B-A | O B-A B-A | B-B")
    assert ner_metrics.report(gold, predicted) == (
        "              precision    recall  f1-score   support\n\n"
        "           A     0.5000    0.6667    0.5714         3\n"
        "           B     0.0000    0.0000    0.0000         1\n\n"
        "   micro avg     0.4000    0.5000    0.4444         4\n"
        "   macro avg     0.2500    0.3333    0.2857         4\n"
        "weighted avg     0.3750    0.5000    0.4286         4\n"
    )
    assert "creative-work     0.0000" in ner_metrics.report([["B-creative-work", "O"]], [["O", "B-x"]])
    assert "No entities" in ner_metrics.report([["O"]], [["O"]])
    gold, predicted = [["NN", "VB"], ["NN", "JJ"]], [["NN", "NN"], ["NN", "JJ"]]
    assert ner_metrics.evaluate(gold, predicted, plain=True) == {"accuracy": 0.75}
    assert "VB" in ner_metrics.report(gold, predicted, plain=True)


def test_an_entity_has_the_mean_probability_of_its_words(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("aa\nb\nc\nd\n")
    logits = np.log(np.array([[0.9, 0.06, 0.04], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.75, 0.2, 0.05]], np.float32))
    file = read_conll(str(path), Layout(), has_tags=False)
    tagging(["O", "B-A", "I-A"]).write_predictions(str(tmp_path), ExampleSet("test", None, file), logits)
    (record,) = map(json.loads, (tmp_path / "predictions.jsonl").read_text().splitlines())
    assert record["entities"] == [{"type": "A", "start": 1, "end": 3, "text": "b c", "score": 0.7}]


def test_a_model_that_tags_everything_alike(tmp_path, caplog):
    task, dev = tagging(["O", "B-A", "I-A"]), ExampleSet("eval", None, [Sentence(["a", "b"], ["B-A", "O"], [])])
    for tags, warnings in (([0, 1], 0), ([0, 0], 1), ([1, 2], 2)):
        task.write_analysis(str(tmp_path), dev, np.eye(3)[tags], {"eval_f1": 0.0, "global_step": 1})
        assert caplog.text.count("All 2 words are tagged ") == warnings


def test_settings_stay_with_the_model(tmp_path):
    assert TaggingSettings.read(str(tmp_path)) is None
    settings = TaggingSettings("bioes", True)
    path = tmp_path / SETTINGS_FILE
    path.write_text(settings.to_json())
    assert TaggingSettings.read(str(tmp_path)) == settings
    earlier = {"features": None, "lstm_size": 768, "lstm_layers": 2}
    path.write_text(json.dumps({**json.loads(settings.to_json()), **earlier}))
    assert TaggingSettings.read(str(tmp_path)) == settings
    path.write_text('{"features": "last"}')
    with pytest.raises(ValueError, match=r"token_classification\.json: a model of frozen features on top was removed"):
        TaggingSettings.read(str(tmp_path))


def test_labels_do_not_depend_on_chance():
    sentences = [Sentence(["a", "b"], ["B-y", "O"], [1, 2]), Sentence(["c"], ["S-x"], [4])]
    assert labels_of(sentences[:1], "iob2") == ["O", "B-y", "I-y"]
    assert len(labels_of(sentences, "bioes")) == 9
    assert labels_of(sentences, "plain") == ["B-y", "O", "S-x"]
    cased = [Sentence(["a", "b"], ["B-PER", "B-per"], [1, 2])]
    assert labels_of(cased, "iob2") == ["O", "B-PER", "I-PER", "B-per", "I-per"]
    with pytest.raises(ValueError, match="--tag_column: each of the 5 words has a tag of its own, as '11'"):
        labels_of([Sentence([*"abcde"], ["11", "12", "13", "14", "15"], [*range(5)])], "plain")


def test_scores_from_logits():
    labels = ["O", "B-a", "I-a"]
    sentences = [Sentence(["1", "2", "3"], ["B-a", "I-a", "O"], []), Sentence(["4"], ["B-god"], [])]
    logits = np.log(np.array([[0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.3, 0.1, 0.6], [0.9, 0.05, 0.05]]))
    results, report = tagging(labels).scores_of("eval", sentences, logits)
    assert results["eval_loss"] == pytest.approx(-np.mean(np.log([0.8, 0.6, 0.3])))
    assert results["eval_accuracy"] == 0.5 and results["eval_f1"] == 0.0 and "god" in report
    # I- after O begins an entity, as in conlleval.
    raw = np.log(np.array([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.1, 0.1, 0.8], [0.9, 0.05, 0.05]]))
    assert ner_data.predicted_tags(sentences, raw, labels, "iob2") == [["O", "B-a", "I-a"], ["O"]]
    assert ner_data.predicted_tags(sentences, raw, labels, "iob1") == [["O", "I-a", "I-a"], ["O"]]
    assert ner_data.predicted_tags(sentences, raw, labels, "bilou") == [["O", "B-a", "L-a"], ["O"]]
    assert ner_data.predicted_tags(sentences, raw, labels, "plain") == [["O", "I-a", "I-a"], ["O"]]
