"""Models that are given back: transformers and sentence-transformers open what we write silently, and compute the
same from the same texts; huggingface_hub understands the cards.
"""

import contextlib
import logging
import pathlib
import warnings

import huggingface_hub
import numpy as np
import pytest
from helpers import descendants
from helpers.slow import slow

from bert_tf import BertForSimilarity, ElectraDiscriminator, Embedder, read_tokenizer
from bert_tf.models import task_models
from bert_tf.store.description import SentenceSettings, read_model_files, read_settings, settings_files

TEXTS = ["A man eats food.", "김철수는 서울에 산다, hello there!"]
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
CASES = [(family, head) for family in descendants.NAMES for head in (*USUAL, *OF_FAMILY.get(family, ()))]
AT_ONCE = [("bert", "pretraining"), ("bert", "tagger"), ("electra", "classifier"), ("roberta", "encoder")]


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


def outputs_of_theirs(library, folder: pathlib.Path, auto_class: str, choices: bool) -> dict[str, np.ndarray]:
    import torch

    with silently():
        model = getattr(library, auto_class).from_pretrained(folder).eval()
        tokenizer = library.AutoTokenizer.from_pretrained(folder)
        inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
        with torch.no_grad():
            outputs = model(**{name: value[None] if choices else value for name, value in inputs.items()})
    assert type(model).__name__ == model.config.architectures[0]
    return {name: value.numpy() for name, value in outputs.items()}


@pytest.mark.parametrize(("family", "head"), [*AT_ONCE, *slow(*(case for case in CASES if case not in AT_ONCE))])
def test_transformers_opens_it_silently(library, tmp_path, family, head):
    model_class, auto_class, arguments = HEADS[head]
    folder = tmp_path / "model"
    descendants.save_model(folder, family, model_class, format="huggingface", **arguments)
    with silently():
        card = huggingface_hub.ModelCard.load(folder / "README.md")
    assert card.data.library_name == "transformers" and card.data.tags[0] == "bert_tf"
    assert huggingface_hub.ModelCard(str(card)).data.to_dict() == card.data.to_dict()
    assert card.data.pipeline_tag is None or "\n\npipeline(" in card.text or f"\n{auto_class}.from_p" in card.text
    expected = outputs_of_theirs(library, folder, auto_class, head == "choice")
    model = model_class.from_pretrained(str(folder), trained=True)
    inputs = {name: np.asarray(value) for name, value in read_tokenizer(str(folder))(TEXTS).items()}
    mask = inputs["input_mask"] > 0
    if head == "choice":
        inputs = {name: value[None] for name, value in inputs.items()}
    if head == "pretraining":
        inputs["masked_lm_positions"] = np.arange(mask.shape[1])[None].repeat(2, 0)
    found = model(inputs)
    for name, theirs in expected.items():
        ours = np.asarray(getattr(found, name))
        if name == "pooler_output" and not model.config.has_pooler:  # theirs is tanh of the first token
            ours = np.tanh(ours)
        by_token = ours.shape[:2] == mask.shape
        np.testing.assert_allclose(ours[mask] if by_token else ours, theirs[mask] if by_token else theirs, atol=1e-4)
    if arguments:
        assert list(model.labels) == LABELS["labels"]
    model.save_pretrained(str(tmp_path / "again"), format="huggingface")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (folder / file).read_bytes()


def test_heads_that_transformers_does_not_have(tmp_path):
    for head in ("pretraining", "next"):
        with pytest.raises(ValueError, match=r"transformers has no DistilBERT with the heads of"):
            descendants.save_model(tmp_path / "model", "distilbert", HEADS[head][0], format="huggingface")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("family", ["bert", *slow("distilbert", "roberta", "electra", "albert")])
def test_sentence_transformers_opens_it_silently(library, tmp_path, family):
    """Also what is loaded and saved again: prompts and the length of vectors stay."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    first, second = tmp_path / "model", tmp_path / "again"
    descendants.save_model(first, family, BertForSimilarity, format="huggingface", pooling="cls")
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
    again = read_settings(str(second))
    assert (again.pooling, again.normalize, again.prompts) == ("cls", True, {"query": "query: "})
    assert again.truncate_dim == expected.shape[1] == 7
    assert read_model_files(str(second)).vocab_file
