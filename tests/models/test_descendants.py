"""Every family as transformers and sentence-transformers open it: silently, with the same outputs for the same texts.

What transformers writes of it comes back as it was, and huggingface_hub understands the cards. tests/golden/descendants
has the outputs of transformers 5.23 for random weights: all heads of a family have one encoder there.
"""

import contextlib
import json
import logging
import pathlib
import shutil
import warnings

import huggingface_hub
import keras
import numpy as np
import pytest
import safetensors.numpy
from helpers import tiny
from helpers.basics import slow
from helpers.outputs import assert_close, enlarge

from bert_tf import BertForSimilarity, ElectraDiscriminator, Embedder, read_tokenizer
from bert_tf.conversion import convert
from bert_tf.models import task_models
from bert_tf.store.description import SentenceSettings, read_model_files, read_sentence_settings, settings_files


@pytest.mark.parametrize("family", ["distilbert", "roberta"])
def test_positions_restart_in_packed_rows(family):
    """Two sequences in one row give what each gives alone; of a RoBERTa, padding is not counted."""
    encoder = enlarge(task_models.BertModel(tiny.tiny_config(family)))
    first, second = np.array([[0, 9, 12, 2]]), np.array([[0, 30, 7, 8, 2]])
    packed = {"input_ids": np.concatenate([first, second], 1), "sequence_ids": np.array([[1] * 4 + [2] * 5])}
    packed |= {"position_ids": np.array([[*range(4), *range(5)]]), "pooled_positions": np.array([[0, 4]])}
    together = encoder(packed)
    alone = [encoder({"input_ids": ids}) for ids in (first, second)]
    for name, place in (("sequence_output", 0), ("pooled_output", slice(None))):
        expected = np.concatenate([np.asarray(outputs[name])[place] for outputs in alone])
        assert_close(together[name][0], expected)


TEXTS, SECOND = ["A man eats food.", "김철수는 서울에 산다, hello there!"], ["Which?", "A man."]
LABELS = {"num_labels": 3, "labels": ["가", "나", "다"]}
# Head -> our class, transformers' class, arguments.
HEADS = {
    "encoder": (task_models.BertModel, "AutoModel", {}),
    "masked": (task_models.BertForMaskedLM, "AutoModelForMaskedLM", {}),
    "classifier": (task_models.BertForSequenceClassification, "AutoModelForSequenceClassification", LABELS),
    "tagger": (task_models.BertForTokenClassification, "AutoModelForTokenClassification", LABELS),
    "questions": (task_models.BertForQuestionAnswering, "AutoModelForQuestionAnswering", {}),
    "choice": (task_models.BertForMultipleChoice, "AutoModelForMultipleChoice", {}),
    "pretraining": (task_models.BertForPreTraining, "AutoModelForPreTraining", {}),
    "next": (task_models.BertForNextSentencePrediction, "AutoModelForNextSentencePrediction", {}),
    "discriminator": (ElectraDiscriminator, "AutoModelForPreTraining", {}),
}
USUAL = ("encoder", "masked", "classifier", "tagger", "questions", "choice")
OF_FAMILY = {"bert": ("pretraining", "next"), "albert": ("pretraining",), "electra": ("discriminator",)}
CASES = [(family, head) for family in tiny.NAMES for head in (*USUAL, *OF_FAMILY.get(family, ()))]
AT_ONCE = [("bert", "pretraining"), ("bert", "tagger"), ("electra", "classifier"), ("electra", "discriminator")]
AT_ONCE += [("roberta", "encoder"), ("albert", "encoder"), ("albert", "pretraining"), ("distilbert", "questions")]
AT_ONCE += [("xlm-roberta", "masked"), ("xlm-roberta", "choice")]


@contextlib.contextmanager
def silently():
    """Fails if a library warns, by warnings or by its log."""
    records, handler = [], logging.Handler(logging.WARNING)
    handler.emit = lambda record: records.append(record.getMessage())
    loggers = [logging.getLogger(name) for name in (None, "transformers", "sentence_transformers", "huggingface_hub")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(action="error"):
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert records == []


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("torch", reason="torch is not installed (requirements-dev.txt)")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (requirements-dev.txt)")
    transformers.logging.set_verbosity_warning()
    return transformers


def outputs_of_theirs(library, folder: pathlib.Path, written: pathlib.Path, auto_class: str, choices: bool) -> dict:
    """What transformers' model of a folder gives for pairs of texts, by names; it is written to another folder."""
    import torch

    with silently():
        model = getattr(library, auto_class).from_pretrained(folder, attn_implementation="eager").eval()
        tokenizer = library.AutoTokenizer.from_pretrained(folder)
        inputs = tokenizer(TEXTS, SECOND, padding=True, return_tensors="pt")
        asked = {"output_hidden_states": True, "output_attentions": True} if auto_class == "AutoModel" else {}
        with torch.no_grad():
            outputs = model(**{name: value[None] if choices else value for name, value in inputs.items()}, **asked)
        model.save_pretrained(written)
    assert type(model).__name__ == model.config.architectures[0]
    outputs = {name: value for name, value in outputs.items() if name != "cross_attentions"}
    return keras.tree.map_structure(lambda value: value.numpy(), outputs)


@pytest.mark.parametrize(("family", "head"), [*AT_ONCE, *slow(*(case for case in CASES if case not in AT_ONCE))])
def test_transformers_opens_it_silently_and_writes_the_same(library, tmp_path, family, head):
    model_class, auto_class, arguments = HEADS[head]
    folder, written = tmp_path / "model", tmp_path / "theirs"
    tiny.save_model(folder, family, model_class, format="huggingface", max_length=128, **arguments)
    with silently():
        card = huggingface_hub.ModelCard.load(folder / "README.md")
    assert card.data.library_name == "transformers" and card.data.tags[0] == "bert_tf"
    assert huggingface_hub.ModelCard(str(card)).data.to_dict() == card.data.to_dict()
    assert card.data.pipeline_tag is None or "\n\npipeline(" in card.text or f"\n{auto_class}.from_p" in card.text
    expected = outputs_of_theirs(library, folder, written, auto_class, head == "choice")
    model = model_class.from_pretrained(str(folder), trained=True)
    inputs = {name: np.asarray(value) for name, value in read_tokenizer(str(folder))(TEXTS, SECOND).items()}
    mask = inputs["input_mask"] > 0
    if head == "choice":
        inputs = {name: value[None] for name, value in inputs.items()}
    if head == "pretraining":
        inputs["masked_lm_positions"] = np.arange(mask.shape[1])[None].repeat(2, 0)
    found = model(inputs, **dict.fromkeys(("return_all_layers", "return_attention"), True) if head == "encoder" else {})
    for name, theirs in expected.items():
        for ours, value in zip(*map(keras.tree.flatten, (getattr(found, name), theirs)), strict=True):
            ours = np.asarray(ours)
            if name == "pooler_output" and not model.config.has_pooler:  # theirs is tanh of the first token
                ours = np.tanh(ours)
            if name == "attentions":  # of the queries
                ours, value = (np.moveaxis(each, 1, 2) for each in (ours, value))
            real = mask if ours.shape[:2] == mask.shape else slice(None)
            np.testing.assert_allclose(ours[real], value[real], atol=1e-4, err_msg=name)
    if arguments:
        assert list(model.labels) == LABELS["labels"]
    model.save_pretrained(str(tmp_path / "again"), format="huggingface")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (folder / file).read_bytes()
    for source, target, format in ((written, "ours", "bert_tf"), (tmp_path / "ours", "back", "huggingface")):
        convert.convert(str(source), str(tmp_path / target), format)
    old, new = (safetensors.numpy.load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    np.testing.assert_equal(new, old)
    theirs, ours = (json.loads((path / "config.json").read_text()) for path in (written, tmp_path / "back"))
    assert len(theirs.keys() & ours.keys()) > len(theirs) - 14
    assert all(ours[key] == value for key, value in theirs.items() if key in ours)


@pytest.mark.parametrize("name", ["albert", "distilbert", "electra", "roberta"])
def test_outputs_of_version_5(golden, tmp_path, name):
    stored = golden / "descendants" / name
    expected = dict(np.load(stored / "arrays.npz"))
    names = ("input_ids", "input_mask", "segment_ids")
    inputs = {name: expected[name] for name in names if name in expected}
    mask = expected["input_mask"].astype(bool)

    def of(head: str, model_class: type):
        folder = tmp_path / head
        folder.mkdir()
        tensors = [
            safetensors.numpy.load_file(stored / part) for part in ("encoder.safetensors", f"{head}/head.safetensors")
        ]
        safetensors.numpy.save_file(tensors[0] | tensors[1], folder / "model.safetensors", {"format": "pt"})
        shutil.copy(stored / head / "config.json", folder)
        return model_class.from_pretrained(str(folder))

    masked = of("masked_lm", task_models.BertForMaskedLM)
    encoded = masked.encode(inputs, return_all_layers=True)
    for output in ("embedding_output", "sequence_output"):
        assert_close(encoded[output], expected[output], mask)
    first = expected.get("pooled_output", np.asarray(encoded["sequence_output"])[:, 0])
    assert_close(encoded["pooled_output"], first)
    assert_close(masked(inputs)[:3], expected["masked_lm_logits"], mask[:3])
    assert_close(of("classifier", HEADS["classifier"][0])(inputs), expected["classifier_logits"])
    assert_close(of("token_classifier", HEADS["tagger"][0])(inputs), expected["token_logits"], mask)
    choices = {name: value.reshape(2, 3, -1) for name, value in inputs.items()}
    assert_close(of("multiple_choice", HEADS["choice"][0])(choices), expected["choice_logits"])
    spans = of("question_answering", HEADS["questions"][0])(inputs)
    for output in ("start_logits", "end_logits"):
        assert_close(spans[output], expected[output], mask)
    if name == "electra":
        assert_close(of("pretraining", ElectraDiscriminator)(inputs), expected["replaced_token_logits"], mask)
    if name == "albert":
        assert_close(of("pretraining", HEADS["next"][0])(inputs), expected["next_sentence_logits"])


def test_heads_that_transformers_does_not_have(tmp_path):
    for head in ("pretraining", "next"):
        with pytest.raises(ValueError, match=r"transformers has no DistilBERT with the heads of"):
            tiny.save_model(tmp_path / "model", "distilbert", HEADS[head][0], format="huggingface")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("family", ["bert", "xlm-roberta", *slow("distilbert", "roberta", "electra", "albert")])
def test_sentence_transformers_opens_it_silently(library, tmp_path, family):
    """Also what is loaded and saved again: prompts and the length of vectors stay."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    first, second = tmp_path / "model", tmp_path / "again"
    tiny.save_model(first, family, BertForSimilarity, format="huggingface", pooling="cls")
    settings = SentenceSettings("", "cls", True, 32, prompts={"query": "query: "}, truncate_dim=7)
    for name, content in settings_files(settings, 32).items():
        (first / name).write_text(content)
    model = BertForSimilarity.from_pretrained(str(first))
    assert model.pooling == "cls"
    model.save_pretrained(str(second), format="huggingface")
    for folder in (first, second):
        with silently():
            theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
            expected = theirs.encode(TEXTS, prompt_name="query")
        np.testing.assert_allclose(Embedder(str(folder)).encode(TEXTS, prompt_name="query"), expected, atol=1e-6)
    again = read_sentence_settings(str(second))
    assert (again.pooling, again.normalize, again.prompts) == ("cls", True, {"query": "query: "})
    assert again.truncate_dim == expected.shape[1] == 7
    assert read_model_files(str(second)).vocab_file
