"""Answers to questions: in a graph as in Python, to the last tie; spans index into the context, whatever the length."""

import json
import types
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from helpers.outputs import enlarge, op_by_op
from helpers.tiny import TINY_CONFIG

from bert_tf import BertConfig, BertForQuestionAnswering, QuestionAnswerer
from bert_tf.serving import export, graph_squad, predictor, safe_graph
from bert_tf.serving.graph_inputs import TextEncoder
from bert_tf.serving.graph_squad import ServedQuestionAnswering
from bert_tf.serving.question_answerer import _describe, _describe_outputs
from bert_tf.tasks.squad.answers import SpanScores, predict_answers
from bert_tf.tasks.squad.data import Paragraph, SquadExample
from bert_tf.tasks.squad.metrics import QuestionAnsweringSettings
from bert_tf.tasks.squad.windows import build_windows
from bert_tf.text.graph_wordpiece import graph_of

LETTERS = "abcdeé京都はのàßșกไ세종"
SCRIPTS = LETTERS + "".join(unicodedata.normalize("NFD", LETTERS))
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "which", "?", ".", "(", "ab", "##ab"]
PIECES += [prefix + char for char in sorted(set(SCRIPTS)) for prefix in ("", "##")]
TEXTS = tf.TensorSpec([None], tf.string)
KEYS = {"answer", "start", "end", "score", "null_score", "nbest_answers", "nbest_scores", "nbest_starts", "nbest_ends"}


def as_dicts(outputs) -> list[dict]:
    arrays = {name: value.numpy() for name, value in outputs.items()}
    assert set(arrays) == KEYS
    rows = [dict(zip(arrays, values, strict=True)) for values in zip(*arrays.values(), strict=True)]
    return [_describe_outputs(row) | {"null_score": float(row["null_score"])} for row in rows]


class Numbers:
    """Replaces a model: integer logits that depend on a token, its position and the sum of the tokens."""

    def __init__(self, limit, null):
        self.config = types.SimpleNamespace(max_length=limit)
        self.weights, self.null = (), null

    def __call__(self, inputs, training=False):
        assert training is False
        ids, mask, segments = (tf.cast(inputs[name], tf.int32) for name in ("input_ids", "input_mask", "segment_ids"))
        places = tf.range(tf.shape(ids)[1])
        some = ids * 7 + places + segments * 3
        bonus = tf.cast(places == 0, tf.int32) * self.null
        logits = some % 5 + tf.reduce_sum(ids * mask, 1)[:, None] % 3 + bonus, (some // 2) % 4 + bonus
        return dict(zip(("start_logits", "end_logits"), (tf.cast(of, tf.float32) for of in logits), strict=True))


def check_spans(result, context):
    """Each entry of the n-best list is in the context at its offsets."""
    for entry in [{"text": result["answer"], **result}, *result["nbest"]]:
        if entry["start"] is None:
            assert entry["end"] is None and entry["text"] == ""
        else:
            assert context[entry["start"] : entry["end"]] == entry["text"] != ""


def random_pairs(count, seed) -> list[tuple[str, str]]:
    generator = np.random.default_rng(seed)
    spaces = [" ", " ", "  ", "\n", "\u3000", "\u202f", "", "\t"]
    odd = ["\u0301", "\u0323", "\u302e\u302f", "\x00", "Σ", "İ", "…", "(", ".", "😀", "\ufeff", "ﷺ", "\u200d", "\u0f71"]

    def text(words):
        parts = []
        for _ in range(words):
            chars = generator.choice(list(SCRIPTS.replace("b", "ab")), int(generator.integers(1, 5)))
            parts += [*chars, str(generator.choice(spaces))]
            if generator.random() < 0.2:
                parts.insert(int(generator.integers(len(parts))), str(generator.choice(odd)))
        return "".join(parts)

    lengths = generator.choice([0, 1, 2, 5, 12, 30, 80], count)
    return [(text(int(generator.integers(0, 9))), text(int(length))) for length in lengths]


SIZES = {"max_seq_length": 24, "doc_stride": 5, "max_query_length": 6, "max_answer_length": 7, "n_best_size": 6}


@pytest.mark.parametrize(("null", "values"), [
    (0, {"n_best_size": 20, "max_answer_length": 30, "doc_stride": 128}),
    (0, {"n_best_size": 40, "max_answer_length": 1, "doc_stride": 1}),
    (2, {"version_2_with_negative": True, "n_best_size": 1, "null_score_diff_threshold": 4.0}),
    (9, {"version_2_with_negative": True, "n_best_size": 2, "null_score_diff_threshold": 17.0}),
])  # fmt: skip
def test_equal_to_the_last_tie(small, null, values):
    settings, model = QuestionAnsweringSettings.of(SIZES | values | {"answer_from": "offsets"}), Numbers(24, null)
    pairs = [("which?", "ab " * 60), ("", "(((" * 30), ("which?", "a" + " " * 30 + "b"), *random_pairs(15, seed=null)]
    with op_by_op():  # traced below
        encoder = TextEncoder(small, 24, graph_of(small, split_unknown=True))
        served = ServedQuestionAnswering(model, encoder, settings, window_batch=16)
        outputs = as_dicts(served.answer(*zip(*pairs, strict=True)))
    examples = [SquadExample(f"{k}", pair[0], Paragraph.from_context(pair[1])) for k, pair in enumerate(pairs)]
    windows = build_windows(examples, small, settings.windows, False, num_processes=1)
    plain = [model(windows.batch([row], int(length))) for row, length in enumerate(windows.lengths)]
    scores = ([output[name][0].numpy() for output in plain] for name in ("start_logits", "end_logits"))
    found = predict_answers(examples, windows, SpanScores(*scores), small, settings.predictions)
    wanted = [_describe(prediction) | {"null_score": prediction.null_odds or 0.0} for prediction in found]
    for (_, context), one, other in zip(pairs, outputs, wanted, strict=True):
        numbers = [[r.pop("score"), r.pop("null_score"), *(e.pop("score") for e in r["nbest"])] for r in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-6) and one == other
        check_spans(one, context)
    assert {bool(result["answer"]) for result in wanted} == {True, False}
    if values.get("n_best_size") in (1, 2):  # an answer from outside the n-best
        assert any(r["answer"] and r["answer"] not in [e["text"] for e in r["nbest"]] for r in wanted)


def test_spans_without_characters():
    """Of the first question: a, a again, a span without characters, b, and "no answer"; of the second "no answer"."""
    scores, texts = tf.constant([9.0, 8.0, 7.0, 6.0, 5.0, 1.0], tf.float64), tf.constant(["a", "a", "", "b", "", ""])
    starts = tf.where(tf.equal(texts, ""), -1, tf.range(6))
    answers = graph_squad._Answers(scores, starts, starts + 1, texts)
    is_extra = tf.constant([False] * 4 + [True] * 2)
    for size, *wanted in (
        (2, b"a  -", b" - -"),  # the span without characters is "no answer" already
        (3, b"a  b -", b" - - -"),
        (4, b"a  b  -", b" - - - -"),  # "no answer" itself counts, too
        (1, b"a ", b" -"),
    ):
        found = graph_squad._nbest(tf.constant([0] * 5 + [1]), answers, is_extra, tf.constant(2), size, True)
        listed = tf.where(tf.math.is_finite(found.scores), found.texts, "-").numpy().tolist()
        assert [b" ".join(row) for row in listed] == wanted


@pytest.fixture(scope="module")
def answerer(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    config = BertConfig.from_dict({**TINY_CONFIG, "vocab_size": len(PIECES), "max_position_embeddings": 64})
    enlarge(BertForQuestionAnswering(config)).save_pretrained(folder, vocab_file=small.vocab_file, do_lower_case=True)
    settings = {"max_seq_length": 48, "max_query_length": 12, "doc_stride": 13, "n_best_size": 10}
    settings |= {"max_answer_length": 12, "version_2_with_negative": True, "null_score_diff_threshold": 0.5}
    (folder / "question_answering.json").write_text(json.dumps(settings))
    return QuestionAnswerer(str(folder), batch_size=7)


@pytest.fixture(scope="module")
def answer(answerer):
    settings = QuestionAnsweringSettings(answerer.windows, answerer.predictions)
    encoder = TextEncoder(answerer.tokenizer, 48, graph_of(answerer.tokenizer, split_unknown=True))
    model = QuestionAnswerer(answerer.path, runtime="tensorflow").model
    served = ServedQuestionAnswering(model, encoder, settings, window_batch=8)
    return tf.function(served.answer, input_signature=[TEXTS, TEXTS])


def check_equal(outputs, wanted) -> None:
    """The same scores, and the same answer, unless two are closer than rounding. Lists are compared above."""
    for one, other in zip(outputs, wanted, strict=True):
        scores = [entry["score"] for entry in other["nbest"]]
        assert [entry["score"] for entry in one["nbest"]] == pytest.approx(scores, abs=1e-4)
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)
        if len(scores) < 2 or scores[0] - scores[1] > 1e-5:
            assert all(one[name] == other[name] for name in ("answer", "start", "end"))


def test_equal_to_the_answerer(answerer, answer):
    pairs = random_pairs(30, seed=5)
    wanted = answerer.predict(pairs)
    check_equal(as_dicts(answer(*zip(*pairs, strict=True))), wanted)
    assert {bool(result["answer"]) for result in wanted} == {True, False}


def test_bad_input(answerer, answer):
    """Meaningless input has a result, and does not affect other rows."""
    good = ("which?", "ab cd (e) " * 9)
    broken = b"\xff ab\xe4\xba cd \xf0\x9f\xe4\xba\xac \xed\xa0\x80e\xc3"
    bad = [("", ""), ("which?", ""), ("which?", " \n\u3000\u202f"), ("", "ab cd"), ("\x00", "\u200d\x00")]
    bad += [(b"\xff\xfe", broken), ("which? " * 9000, "ab"), ("which?", "x" * 500)]
    pairs = [good]
    for pair in bad:
        pairs += [pair, good]
    outputs = as_dicts(answer(*zip(*pairs, strict=True)))
    texts = [
        tuple(text.decode("utf-8", "ignore") if isinstance(text, bytes) else text for text in pair) for pair in pairs
    ]
    check_equal(outputs, answerer.predict(texts))
    (alone,) = as_dicts(answer(*([text] for text in good)))
    for result in outputs[::2]:
        check_equal([result], [alone])
    for place in (1, 3, 5, 9):  # nothing to read
        nothing = {"text": "", "score": 1.0, "start": None, "end": None}
        assert outputs[place]["answer"] == "" and outputs[place]["nbest"] == [nothing]
        assert outputs[place]["null_score"] == 1e6 and outputs[place]["score"] == 1.0
    assert any(entry["text"] for entry in outputs[11]["nbest"])
    check_spans(outputs[11], texts[11][1])


def test_servers_have_all_ops_and_batches_may_be_empty_but_not_uneven(answer):
    ops = export.used_ops({"serving_default": answer.get_concrete_function()})
    assert safe_graph.lowest_version(ops) == "2.7" and "FastWordpieceTokenizeWithOffsets" in ops
    outputs = answer(tf.zeros([0], tf.string), tf.zeros([0], tf.string))
    assert {name: tuple(value.shape) for name, value in outputs.items()} == {
        name: (0, 11) if name.startswith("nbest") else (0,) for name in KEYS
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match="questions and contexts must be equally many"):
        answer(["which?", "ab?"], ["ab"])


def test_a_long_context(answerer, answer):
    generator = np.random.default_rng(2)
    words = ["".join(generator.choice(list("abcde"), int(generator.integers(1, 9)))) for _ in range(2_000)]
    context = " ".join(words)
    pairs = [("which?", context), ("", " " * 100_000), ("a", "ab" + " " * 99_996 + "ab")]
    outputs = as_dicts(answer(*zip(*pairs, strict=True)))
    check_spans(outputs[0], context)
    assert max(entry["start"] or 0 for entry in outputs[0]["nbest"]) > 1_000
    check_equal(outputs[1:], answerer.predict(pairs[1:]))


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "which", "?", "gold", *(f"w{n}" for n in range(92))]


def save(folder, settings=None):
    """Saves a model whose best answer is the token "gold", or "no answer" without it."""
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in WORDS), encoding="utf-8")
    model = BertForQuestionAnswering(BertConfig.from_dict({**TINY_CONFIG, "num_hidden_layers": 1}))
    model.build()
    weights = {variable.path.split("/", 1)[1]: variable for variable in model.trainable_variables}
    for name, variable in weights.items():  # layers add nothing to their input
        variable.assign(np.full(variable.shape, float("gamma" in name)))
    table = 0.3 * np.random.default_rng(0).normal(size=(100, 32))
    table[:, :2] = 0.0
    table[WORDS.index("gold"), 0] = table[WORDS.index("[CLS]"), 1] = 20.0
    weights["bert/embeddings/word_embeddings"].assign(table)
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
    monkeypatch.setattr(predictor, "_SECONDS_WITHOUT_PROGRESS", 0)
    assert answerer.predict(questions) == answers
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
