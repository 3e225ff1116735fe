"""Entity scores on cases counted by hand."""

import pytest

from bert_tf.tasks.ner import outputs as ner_outputs

GOLD = [["B-A", "I-A", "O", "B-B"], ["O", "B-A", "B-A"], ["O"]]


def evaluate(*predicted, **arguments):
    return ner_outputs.evaluate(GOLD, [tags.split() for tags in predicted], **arguments)


def test_all_right():
    assert evaluate("B-A I-A O B-B", "O B-A B-A", "O") == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "accuracy": 1.0}


def test_only_whole_entities_count():
    """Four gold entities, five predicted: one too short, one of another type, one too many, two right."""
    results = evaluate("B-A O O B-A", "O B-A B-A", "B-B")
    assert results == pytest.approx({"precision": 2 / 5, "recall": 2 / 4, "f1": 4 / 9, "accuracy": 5 / 8})


def test_touching_entities_are_two():
    results = evaluate("B-A I-A O B-B", "O B-A I-A", "O")
    assert results == pytest.approx({"precision": 2 / 3, "recall": 2 / 4, "f1": 4 / 7, "accuracy": 7 / 8})


def test_entities_don_t_reach_over_sentences():
    gold, predicted = [["B-A"], ["I-A"]], [["B-A"], ["B-A"]]
    assert ner_outputs.evaluate(gold, predicted)["f1"] == 1.0


def test_nothing_found_and_nothing_there():
    results = evaluate("O O O O", "O O O", "O")
    assert results == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "accuracy": 3 / 8}
    nothing = ner_outputs.evaluate([["O"]], [["O"]])
    assert nothing == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "accuracy": 1.0}
    assert "No entities" in ner_outputs.report([["O"]], [["O"]])


def test_bioes_scores_as_iob2():
    gold = [["B-A", "E-A", "O", "S-B"], ["O", "S-A", "S-A"], ["O"]]
    predicted = [["S-A", "O", "O", "S-A"], ["O", "S-A", "S-A"], ["S-B"]]
    results = ner_outputs.evaluate(gold, predicted)
    assert (results["precision"], results["recall"]) == (2 / 5, 2 / 4)


def test_types_with_hyphens():
    gold = [["B-creative-work", "I-creative-work", "B-creative-x"]]
    assert ner_outputs.evaluate(gold, gold)["f1"] == 1.0
    other = [["B-creative-work", "I-creative-work", "I-creative-work"]]
    assert ner_outputs.evaluate(gold, other)["f1"] == 0.0


def test_report_has_a_row_for_each_type():
    rows = dict(
        line.rsplit(None, 4)[::4]
        for line in ner_outputs.report(GOLD, [["B-A", "O", "O", "B-B"], ["O"] * 3, ["O"]]).splitlines()
        if line.strip()[:1] in ("A", "B")
    )
    assert {name.strip(): number for name, number in rows.items()} == {"A": "3", "B": "1"}


def test_plain_tags():
    gold, predicted = [["NN", "VB"], ["NN", "JJ"]], [["NN", "NN"], ["NN", "JJ"]]
    assert ner_outputs.evaluate(gold, predicted, plain=True) == {"accuracy": 0.75}
    assert "VB" in ner_outputs.report(gold, predicted, plain=True)


def test_unequal_sentences():
    for predicted in (GOLD[:2], [["O"] * 4, ["O"] * 2, ["O"]]):
        with pytest.raises(ValueError, match="not of the same sentences"):
            ner_outputs.evaluate(GOLD, predicted)
        with pytest.raises(ValueError, match="not of the same sentences"):
            ner_outputs.report(GOLD, predicted)


def test_the_scores_of_klue_by_hand():
    """Means over types and over tags, whatever their numbers."""
    gold = [["B-PS", "I-PS", "O", "B-LC"], ["O", "O", "B-PS", "O"]]
    found = [["B-PS", "I-PS", "O", "O"], ["O", "O", "B-PS", "B-PS"]]
    scores = ner_outputs.klue(gold, found, ["O", "B-LC", "I-LC", "B-PS", "I-PS"])
    # PS: 2 of 3 predicted and 2 of 2 found, LC: none. O: 3 of 4 and 3 of 4; B-PS as PS; I-PS 1; I-LC does not occur.
    assert scores == pytest.approx(
        {"entity_macro_f1": (0.8 + 0) / 2, "character_macro_f1": (0.75 + 0 + 1 + 0.8 + 1) / 5}
    )
    with pytest.raises(ValueError, match="not of the same sentences"):
        ner_outputs.klue(gold, found[:1], ["O"])
