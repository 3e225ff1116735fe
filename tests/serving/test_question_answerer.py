"""QuestionAnswerer on a tiny model: spans index into the context, whatever the length. ChoicePredictor on directories
and exports makes the same choices as run_swag.py."""

import json

import keras
import numpy as np
import pytest
from helpers import exports
from helpers.exports import show_progress_at_once
from helpers.tiny import TINY_CONFIG

from bert_tf import BertConfig, BertForMultipleChoice, BertForQuestionAnswering, ChoicePredictor, QuestionAnswerer
from bert_tf.serving import export, predictor
from bert_tf.tasks.choice.data import ChoiceExample, encode_examples
from bert_tf.tasks.choice.task import ChoiceTask
from bert_tf.tasks.task import ExampleSet, predict_logits

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "which", "?", "gold", *(f"w{number}" for number in range(92))]


def save(folder, settings=None):
    """Saves a model whose best answer is the token "gold", or "no answer" without it."""
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES), encoding="utf-8")
    keras.utils.set_random_seed(0)
    model = BertForQuestionAnswering(BertConfig.from_dict({**TINY_CONFIG, "num_hidden_layers": 1}))
    model.build()
    weights = {variable.path.split("/", 1)[1]: variable for variable in model.trainable_variables}
    table = 0.3 * np.random.default_rng(0).normal(size=(100, 32))
    table[:, :2] = 0.0
    table[PIECES.index("gold"), 0] = table[PIECES.index("[CLS]"), 1] = 20.0
    weights["bert/embeddings/word_embeddings"].assign(table)
    for name in ("attention/output", "output"):  # the parts that a layer adds to its input
        for part in ("kernel", "bias"):
            variable = weights[f"bert/encoder/layer_0/{name}/dense/{part}"]
            variable.assign(np.zeros(variable.shape))
    head = np.full((2, 32), 0.05)
    head[:, 0], head[:, 1] = 2.0, 1.0
    weights["cls_squad/output_weights"].assign(head)
    vocab, folder = folder / "vocab.txt", folder / "model"
    model.save_pretrained(str(folder), vocab_file=str(vocab), do_lower_case=True)
    if settings:
        (folder / "question_answering.json").write_text(json.dumps(settings))
    return str(folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return save(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def version_2(tmp_path_factory):
    stored = {"version_2_with_negative": True, "max_seq_length": 24, "max_query_length": 5, "doc_stride": 7}
    stored |= {"null_score_diff_threshold": 0.5, "answer_from": "words"}
    return save(tmp_path_factory.mktemp("version2"), stored)


def check_spans(result, context):
    """All entries of the n-best list are in the context at their offsets."""
    for entry in [{"text": result["answer"], **result}, *result["nbest"]]:
        if entry["start"] is None:
            assert entry["end"] is None and entry["text"] == ""
        else:
            assert context[entry["start"] : entry["end"]] == entry["text"] != ""


def test_an_answer(plain):
    context, answerer = "w1 w2 (Gold), w3.", QuestionAnswerer(plain)
    result = answerer("Which?", context)
    assert (result["answer"], result["start"], result["end"]) == ("Gold", 7, 11)
    check_spans(result, context)
    scores = [entry["score"] for entry in result["nbest"]]
    assert scores == sorted(scores, reverse=True) and sum(scores) == pytest.approx(1.0) and result["score"] == scores[0]
    assert 1 < len(scores) <= 20 and scores[0] > 0.5
    assert answerer.predict([]) == [] == answerer([])
    row = {"context": context, "question": "Which?"}  # as for the pipeline of transformers 4
    assert answerer(row) == result and answerer([row, ("Which?", context)]) == answerer.predict([row, row])


def test_several_questions_of_any_length_in_one_call(plain):
    generator = np.random.default_rng(1)
    questions = []
    for length in (1, 400, 17, 90, 3, 250):
        words = [f"w{number}" for number in generator.integers(0, 40, length)]
        words.insert(int(generator.integers(0, length + 1)), "GOLD")
        questions.append(("which ?", "  ".join(words)))
    questions.append(("which ?" * 50, questions[1][1]))
    answerer = QuestionAnswerer(plain, batch_size=3, doc_stride=8)
    results = answerer.predict(questions)
    assert len(results) == 7
    for (_, context), result in zip(questions, results, strict=True):
        assert (result["answer"], result["start"]) == ("GOLD", context.index("GOLD"))
        check_spans(result, context)
    # One at a time the answers are the same.
    for one, many in zip((answerer(*question) for question in questions[:3]), results, strict=False):
        assert (one["answer"], one["start"]) == (many["answer"], many["start"])
        assert one["score"] == pytest.approx(many["score"], abs=1e-5)


def test_progress_shows_only_where_it_takes_long(plain, monkeypatch, capfd):
    questions = [("which ?", "w1 gold")] * 5
    answerer = QuestionAnswerer(plain, batch_size=2)
    answers = answerer.predict(questions)
    assert capfd.readouterr().err == ""
    given = show_progress_at_once(monkeypatch, predictor)
    assert answerer.predict(questions) == answers
    assert [options["delay"] >= 5 for options in given] == [True]
    assert "answer" in (shown := capfd.readouterr().err) and "/3 " in shown  # batches


def test_a_model_that_may_find_no_answer(version_2):
    answerer = QuestionAnswerer(version_2)
    assert answerer.windows.doc_stride == 7 and answerer.windows.max_seq_length == 24
    assert answerer.predictions.version_2_with_negative and answerer.predictions.null_score_diff_threshold == 0.5
    assert answerer.windows.answer_from == answerer.predictions.answer_from == "offsets"
    there, missing = "w1 " * 40 + "gold", "w1 " * 40 + "w2"
    found, none, empty = answerer.predict([("which ?", there), ("which ?", missing), ("which ?", "")])
    assert (found["answer"], found["start"]) == ("gold", 120)
    assert (none["answer"], none["start"], none["end"]) == ("", None, None) and none["score"] > 0.5
    assert empty["answer"] == "" and empty["start"] is None
    for result, context in ((found, there), (none, missing)):
        assert "" in [entry["text"] for entry in result["nbest"]]
        check_spans(result, context)
    # The caller's settings take precedence over stored ones.
    assert QuestionAnswerer(version_2, null_score_diff_threshold=1e6)("which ?", missing)["start"] is not None
    assert QuestionAnswerer(version_2, null_score_diff_threshold=-1e6)("which ?", there)["answer"] == ""
    assert QuestionAnswerer(version_2, version_2_with_negative=False)("which ?", missing)["answer"] != ""


def test_settings(plain):
    short = QuestionAnswerer(plain, max_seq_length=16, max_query_length=4, max_answer_length=1, n_best_size=3)
    result = short("which ?", "w1 w2 w3 gold w4 " * 9)
    assert result["answer"] == "gold" and result["start"] % 17 == 9 and len(result["nbest"]) <= 3
    assert all(" " not in entry["text"] for entry in result["nbest"])
    # Without stored settings, the model's own length is the limit.
    assert (QuestionAnswerer(plain).windows.max_seq_length, QuestionAnswerer(plain).windows.max_query_length) == (32, 8)


def test_what_is_lost_or_missing_is_reported_once(version_2, caplog):
    answerer = QuestionAnswerer(version_2)
    for _ in range(2):
        answerer("w1 w2 w3 w1 w2 w3 w1", "w1 w2 gold w3")
    found = answerer.predict([("which ?", "w1 gold w2"), ("which ?", " "), ("", "gold")])
    assert [(row["answer"], row["start"]) for row in found] == [("gold", 3), ("", None), ("gold", 0)]
    assert [message.split(" (Logged")[0] for message in caplog.messages] == [
        "Longer than max_query_length=5 tokens, of which the last are lost: 1 of 1 questions.",
        "Questions without text, whose answers come from the context alone: 1 of 3, the first is questions[2].",
        "Contexts without text, which hold no answer: 1 of 3, first in questions[1].",
    ]


# ---- choices ---------------------------------------------------------------------------------------------------------

CHOICES = [
    ("It rained all day.", ["went in.", "went out to play.", "\u200b\u0007."], "So they"),
    ("x " * 100, ["a", "b b b"]),
    ("", ["one", "c " * 90, "서울"], ""),
    ("A door.", ("opened", "closed", "was blue")),
    ("Élodie", ["a", "b"], "김철수"),
]


def choices_of_the_script(chooser, questions, folder) -> list[dict]:
    """predictions.jsonl of run_swag.py, whose examples all have the same number of choices."""
    examples = [
        ChoiceExample(str(number), context, *beginning or [""], tuple(choices))
        for number, (context, choices, *beginning) in enumerate(questions)
    ]
    rows = encode_examples(examples, chooser.tokenizer, 64)
    settings = {"batch_size": 2, "max_seq_length": 64, "static_padding": False}
    logits = predict_logits(lambda batches: map(chooser.runtime.compute, batches), rows, **settings)
    ChoiceTask(None).write_predictions(str(folder), ExampleSet("test", rows, examples), logits)
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]


def test_choices_are_the_scripts(tmp_path):
    path = exports.save(tmp_path / "model", BertForMultipleChoice, {"num_hidden_layers": 1})
    chooser, expected = ChoicePredictor(path, batch_size=2), [None] * len(CHOICES)
    for numbers in ([0, 2, 3], [1, 4]):
        found = choices_of_the_script(chooser, [CHOICES[number] for number in numbers], tmp_path)
        for number, record in zip(numbers, found, strict=True):
            expected[number] = record
    assert len({row["choice"] for row in expected}) > 1
    exported = export.export_saved_model(path, str(tmp_path / "out"), warm_up=False)
    for one in (chooser, ChoicePredictor(exported, batch_size=1)):
        assert one.max_seq_length == 64
        found = one.predict(CHOICES)
        for mine, theirs in zip(found, expected, strict=True):
            assert set(mine) == {"choice", "text", "probabilities"}
            assert (mine["choice"], mine["text"]) == (theirs["choice"], theirs["text"])
            np.testing.assert_allclose(mine["probabilities"], theirs["probabilities"], atol=1e-5)
        assert one(*CHOICES[0])["choice"] == found[0]["choice"]
        assert one("x " * 100, ["a", "b b b"])["text"] == found[1]["text"]
        assert one.predict([]) == []
    with pytest.raises(TypeError, match="choices must be a list of strings, not a str"):
        chooser("a", "bc")
