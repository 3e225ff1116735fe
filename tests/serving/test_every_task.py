"""SavedModels of every task and family answer like the model that they were made of, also in a process with only
TensorFlow; of ONNX files test_onnx_runtime.py shows it."""

import numpy as np
import pytest
import tensorflow as tf
from helpers.basics import slow
from helpers.exports import KINDS, TEXTS, check_answers, save_kind
from helpers.tiny import save_model

from bert_tf import Embedder, fill_mask, read_tokenizer
from bert_tf.data.token_rows import rows_of_pairs
from bert_tf.models import task_models
from bert_tf.serving import export
from bert_tf.serving.onnx_export import export_onnx
from bert_tf.serving.onnx_runtime import open_file
from bert_tf.store.open import open_model
from bert_tf.tasks import table


def check_near(found, expected) -> None:
    for name, value in expected.items():
        if np.asarray(value).dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, atol=1e-5)
        else:
            np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("bert", "classes"), ("bert", "choices"),
        *slow(  # in small: test_tagger.py, test_graph_squad.py
            ("roberta", "classes"), ("electra", "classes"), ("distilbert", "classes"), ("albert", "classes"),
            ("bert", "several labels"), ("bert", "a number"), ("bert", "mean"), ("bert", "max"), ("bert", "attention"),
            ("bert", "answers"), ("roberta", "answers"),
            ("albert", "tags"), ("roberta", "tags"), ("albert", "choices"), ("roberta", "choices"),
        ),
    ],
)  # fmt: skip
def test_answers_are_the_models(tmp_path, clean_process, family, kind):
    task, _, _, answerer, asked, columns = KINDS[kind]
    path = save_kind(tmp_path / "model", family, kind)
    assert table.task_in(open_model(path)) == task
    expected = answerer(path).predict(asked)
    assert len({str(row) for row in expected}) > 2
    saved_model = export.export_saved_model(path, str(tmp_path / "out"), freeze=False, warm_up=False)
    if family in ("roberta", "albert"):
        signatures = tf.saved_model.load(saved_model).signatures
        served = export.create_served_model(*export.open_for(path, task), ids_only=True)
        features = {name: tf.constant(value) for name, value in read_tokenizer(path)(TEXTS, max_length=48).items()}
        if task == "multiple_choice":
            features = {name: value[:, None] for name, value in features.items()}
        assert signatures.keys() == {"serving_default", "serve_ids", "serve_examples"}
        check_near(signatures["serving_default"](**features), served.outputs(features))
    else:
        opened = answerer(saved_model)
        check_answers(opened.predict(asked), expected, 1e-4)
        mine = opened.export.signatures["serving_default"](**{name: tf.constant(of) for name, of in columns.items()})
        assert opened.description["lowest_serving_version"] == "2.7"
        check_near(mine, clean_process(saved_model, **columns))
    files = read_tokenizer(path).files()
    assets = tmp_path / "out" / "1" / "assets"
    assert {name: (assets / name).read_bytes() for name in files} == files


@pytest.mark.parametrize("family", slow("bert", "roberta", "albert"))
def test_masks_and_vectors(tmp_path, clean_process, family):
    path = save_model(tmp_path / "model", family, task_models.BertForMaskedLM)
    model, tokenizer = task_models.BertForPreTraining.from_pretrained(path), read_tokenizer(path)
    mask = tokenizer.mask_token
    texts = [f"The capital \u3000{mask} is {mask}.", f"{mask} {mask}", f" a{mask}b "]
    arguments = {"freeze": False, "warm_up": False}
    exported = export.export_saved_model(path, str(tmp_path / "out"), top_k=3, **arguments)
    takes_texts = family == "bert"
    rows, _ = rows_of_pairs([(tokenizer.encode_masked(text), ()) for text in texts], tokenizer, 64)
    features = rows.batch(np.arange(len(texts)), int(rows.lengths.max()))
    ids = features["input_ids"]
    onnx = open_file(f"{export_onnx(path, str(tmp_path / 'onnx'), top_k=3)}/model.onnx")
    found = [onnx.run(features), *([clean_process(exported, text=texts)] if takes_texts else ())]
    nothing = onnx.run({**features, "input_ids": np.where(ids == tokenizer.mask_id, 5, 6)})
    assert (nothing["positions"] == -1).all() and nothing["tokens"].tolist() == [[[""] * 3]] * 3
    for outputs in found:
        for row, masks in enumerate(fill_mask(model, tokenizer, texts, top_k=3)):
            for place, guesses in enumerate(masks):
                tokens = [one.decode() if isinstance(one, bytes) else one for one in outputs["tokens"][row, place]]
                assert tokens == [token for token, _ in guesses]
                np.testing.assert_allclose(outputs["scores"][row, place], [p for _, p in guesses], atol=1e-5)
        places = np.where(ids == tokenizer.mask_id)
        assert outputs["positions"].tolist() == [[*places[1][:2]], [*places[1][2:4]], [places[1][4], -1]]
    vectors = export.export_saved_model(path, str(tmp_path / "vectors"), task="encoder", **arguments)
    features = tokenizer(TEXTS, max_length=64)
    embedded = Embedder(path).encode(TEXTS)
    if takes_texts:
        outputs = clean_process(vectors, text=TEXTS)
        np.testing.assert_array_equal(outputs["input_ids"], features["input_ids"])
        np.testing.assert_allclose(clean_process(vectors, "embed", text=TEXTS)["vector"], embedded, atol=1e-5)
        np.testing.assert_allclose(Embedder(str(tmp_path / "vectors")).encode(TEXTS), embedded, atol=1e-5)
        with pytest.raises(ValueError, match="pooling=cls: what an export computes is decided"):
            Embedder(vectors, pooling="cls")
    else:
        outputs = tf.saved_model.load(vectors).signatures["serve_ids"](**features)
    own = task_models.BertModel.from_pretrained(path)(features)
    real = features["input_mask"].astype(bool)
    sequences = (np.asarray(part["sequence_output"])[real] for part in (outputs, own))
    np.testing.assert_allclose(*sequences, atol=1e-5)
    np.testing.assert_allclose(outputs["pooled_output"], own["pooled_output"], atol=1e-4)
    vectors = export_onnx(path, str(tmp_path / "onnx vectors"), task="encoder")
    for pooling in ("mean", "cls"):
        expected = Embedder(path, pooling=pooling).encode(TEXTS)
        np.testing.assert_allclose(Embedder(vectors, pooling=pooling).encode(TEXTS), expected, atol=1e-5)
