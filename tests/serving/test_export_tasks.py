"""Exported taggers and question answerers compared with the results of run_ner.py and QuestionAnswerer."""

import json

import numpy as np
import pytest
from helpers.exports import save
from helpers.taggers import SENTENCES, tagger, tags_of_the_script

from bert_tf.models import task_models
from bert_tf.serving import compare_export, detect_task
from bert_tf.serving import export as serving_export
from bert_tf.serving.question_answerer import QuestionAnswerer
from bert_tf.tasks.squad.answers import PredictionSettings
from bert_tf.tasks.squad.outputs import SETTINGS_FILE, QuestionAnsweringSettings
from bert_tf.tasks.squad.windows import WindowSettings


@pytest.mark.slow  # in small: test_export.py, test_the_script
def test_what_an_export_of_tags_costs(tmp_path):
    path, labels = tagger(tmp_path / "model", "iob2")
    tags, _ = tags_of_the_script(path, labels, "iob2")
    tags[0][-1] = next(tag for tag in ("B-LOC", "B-PER") if tag != tags[0][-1])  # one of the words is then wrong
    lines = [
        "".join(f"{word} {tag}\n" for word, tag in zip(*pair, strict=True))
        for pair in zip(SENTENCES, tags, strict=True)
    ]
    gold = tmp_path / "dev.conll"
    gold.write_text("\n".join(lines))
    words = sum(map(len, SENTENCES))
    for settings, closest, farthest in (({}, 0.0, 1e-5), ({"dtype": "bfloat16", "freeze": True}, 1e-6, 0.1)):
        export = serving_export.export_saved_model(path, str(tmp_path / "out"), **settings)
        cost = compare_export.compare(export, path, str(gold))
        assert cost.examples == len(SENTENCES)
        assert cost.model["accuracy"] == pytest.approx((words - 1) / words)
        assert 0.0 < cost.model["f1"] < 1.0
        assert closest <= cost.largest_difference < farthest
    assert cost.same > 0.5
    gold.write_text("one\ntwo\n")
    with pytest.raises(ValueError, match="dev.conll has no column of tags"):
        compare_export.compare(export, path, str(gold))


@pytest.mark.slow  # in small: test_graph_squad.py, test_export.py
@pytest.mark.parametrize(("freeze", "lstm_on_top"), [(None, False), (True, True)])
def test_answers_are_the_question_answerers(tmp_path, clean_process, freeze, lstm_on_top):
    folder = tmp_path / "model"
    save(folder, task_models.BertForQuestionAnswering, lstm_on_top=lstm_on_top)
    settings = QuestionAnsweringSettings(
        WindowSettings(max_seq_length=48, doc_stride=16, max_query_length=10),
        PredictionSettings(n_best_size=5, max_answer_length=8, version_2_with_negative=True),
    )
    (folder / SETTINGS_FILE).write_text(settings.to_json())
    assert detect_task.task_in(str(folder)) == "squad"
    export = serving_export.export_saved_model(str(folder), str(tmp_path / "out"), freeze=freeze)
    description = json.loads((tmp_path / "out/1/export.json").read_text())
    assert description["max_seq_length"] == 48
    assert description["frozen"] == bool(freeze)  # not by default for questions in float32
    pairs = [
        ("Who met Ada?", "Her teacher met Ada Brown (1801-1852) in London, where she was born. " * 4),
        ("누가 왔나요?", "김철수는 서울에 왔다. 이영희는 부산에 갔다."),
        ("Empty?", ""),
    ]
    questions, contexts = zip(*pairs, strict=True)
    found = clean_process(export, question=questions, context=contexts)
    expected = QuestionAnswerer(str(folder)).predict(pairs)
    for row, answer in enumerate(expected):
        assert found["answer"][row].numpy().decode() == answer["answer"]
        assert found["start"][row].numpy() == (-1 if answer["start"] is None else answer["start"])
        assert found["end"][row].numpy() == (-1 if answer["end"] is None else answer["end"])
    np.testing.assert_allclose(found["score"][:2], [answer["score"] for answer in expected[:2]], atol=1e-4)
    # The export loaded again by QuestionAnswerer.
    loaded = QuestionAnswerer(str(tmp_path / "out"), batch_size=2)
    for mine, theirs in zip(loaded.predict(pairs), expected, strict=True):
        assert [mine[name] for name in ("answer", "start", "end")] == [
            theirs[name] for name in ("answer", "start", "end")
        ]
        assert [entry["text"] for entry in mine["nbest"]] == [entry["text"] for entry in theirs["nbest"]]
    with pytest.raises(ValueError, match="is an export, whose settings are fixed: doc_stride"):
        QuestionAnswerer(str(tmp_path / "out"), doc_stride=3)
    ids = np.array([[101, 2040, 102, 2016, 102]], np.int32)
    scores = loaded.export.signatures["serve_ids"](
        input_ids=ids, input_mask=np.ones_like(ids), segment_ids=np.array([[0, 0, 0, 1, 1]], np.int32)
    )
    assert scores["start_logits"].shape == scores["end_logits"].shape == (1, 5)
