"""BERT's descendants: outputs are those of transformers, and files come back as they were.

Oracles: tests/golden/descendants, made with transformers 5.23 (random weights, 2 layers). All classes of a family have
one encoder there. What we write, transformers and sentence-transformers open silently and compute the same from the
same texts; huggingface_hub understands the cards.
"""

import contextlib
import json
import logging
import pathlib
import shutil
import warnings

import huggingface_hub
import numpy as np
import pytest
import safetensors.numpy
from helpers import descendants
from helpers.outputs import assert_close
from helpers.slow import slow

from bert_tf import BertForSimilarity, ElectraDiscriminator, Embedder, read_tokenizer
from bert_tf.conversion import convert
from bert_tf.families import FAMILIES
from bert_tf.models import task_models
from bert_tf.store.description import SentenceSettings, read_model_files, read_settings, settings_files

CLASSES = {
    "masked_lm": task_models.BertForMaskedLM, "classifier": task_models.BertForSequenceClassification,
    "question_answering": task_models.BertForQuestionAnswering,
    "token_classifier": task_models.BertForTokenClassification, "multiple_choice": task_models.BertForMultipleChoice,
}  # fmt: skip
HAVE_PRETRAINING = ("electra", "albert")
NAMES = [family.model_type for family in FAMILIES if family.model_type != "bert"]


def oracle_of(family: str) -> str:
    return "roberta" if family == "xlm-roberta" else family  # whose layers and names of tensors it has


@pytest.fixture(params=NAMES)
def family(request):
    return request.param


@pytest.fixture
def directory(golden, tmp_path, family):
    """directory(kind): a directory of Hugging Face with the encoder and this head."""

    def make(kind: str) -> str:
        source, target = golden / "descendants" / oracle_of(family), tmp_path / "theirs" / kind
        target.mkdir(parents=True)
        tensors = safetensors.numpy.load_file(source / "encoder.safetensors")
        tensors |= safetensors.numpy.load_file(source / kind / "head.safetensors")
        safetensors.numpy.save_file(tensors, str(target / "model.safetensors"), {"format": "pt"})
        config = (source / kind / "config.json").read_text()
        if oracle_of(family) != family:
            config = config.replace('"roberta"', f'"{family}"').replace('"Roberta', '"XLMRoberta')
        (target / "config.json").write_text(config)
        for file in () if oracle_of(family) != family else (*source.glob("vocab.json"), *source.glob("merges.txt")):
            shutil.copy(file, target)
        return str(target)

    return make


@pytest.fixture
def expected(golden, family):
    return dict(np.load(golden / "descendants" / oracle_of(family) / "arrays.npz"))


def inputs_of(expected, kind="") -> dict:
    shape = (2, 3, -1) if kind == "multiple_choice" else expected["input_ids"].shape
    names = ("input_ids", "input_mask", "segment_ids")
    return {name: expected[name].reshape(shape) for name in names if name in expected}


def test_encoder_and_masked_lm(directory, expected):
    model = task_models.BertForMaskedLM.from_pretrained(directory("masked_lm"))
    mask = expected["input_mask"].astype(bool)
    outputs = model.encode(inputs_of(expected), return_all_layers=True)
    assert_close(outputs["embedding_output"], expected["embedding_output"], mask)
    assert_close(outputs["sequence_output"], expected["sequence_output"], mask)
    if model.config.has_pooler:
        assert_close(outputs["pooled_output"], expected["pooled_output"])
    else:
        np.testing.assert_array_equal(outputs["pooled_output"], outputs["sequence_output"][:, 0])
    assert_close(model(inputs_of(expected))[:3], expected["masked_lm_logits"], mask[:3])


def test_heads(directory, expected, family):
    mask = expected["input_mask"].astype(bool)
    names = {"classifier": "classifier_logits", "token_classifier": "token_logits", "multiple_choice": "choice_logits"}
    for kind, name in names.items():
        logits = CLASSES[kind].from_pretrained(directory(kind))(inputs_of(expected, kind))
        assert_close(logits, expected[name], mask if kind == "token_classifier" else slice(None))
    spans = task_models.BertForQuestionAnswering.from_pretrained(directory("question_answering"))(inputs_of(expected))
    for name in ("start_logits", "end_logits"):
        assert_close(spans[name], expected[name], mask)
    if family == "electra":
        model = ElectraDiscriminator.from_pretrained(directory("pretraining"))
        assert_close(model(inputs_of(expected)), expected["replaced_token_logits"], expected["input_mask"].astype(bool))
    elif family == "albert":
        model = task_models.BertForNextSentencePrediction.from_pretrained(directory("pretraining"))
        assert_close(model(inputs_of(expected)), expected["next_sentence_logits"])


@pytest.mark.parametrize("family", ["distilbert", "roberta"])
def test_positions_restart_in_packed_rows(directory, expected, family):
    """Two sequences in one row give what each gives alone; of a RoBERTa, padding is not counted."""
    encoder = task_models.BertModel.from_pretrained(directory("masked_lm"))
    first, second = np.array([[0, 9, 12, 2]]), np.array([[0, 30, 7, 8, 2]])
    packed = {"input_ids": np.concatenate([first, second], 1), "sequence_ids": np.array([[1] * 4 + [2] * 5])}
    packed |= {"position_ids": np.array([[*range(4), *range(5)]]), "pooled_positions": np.array([[0, 4]])}
    together = encoder(packed)
    alone = [encoder({"input_ids": ids}) for ids in (first, second)]
    for name, place in (("sequence_output", 0), ("pooled_output", slice(None))):
        expected = np.concatenate([np.asarray(outputs[name])[place] for outputs in alone])
        assert_close(together[name][0], expected)


def test_files_come_back_as_they_were(directory, tmp_path, family):
    for kind in [*CLASSES, *(["pretraining"] if family in HAVE_PRETRAINING else [])]:
        source = directory(kind)
        for number, format in enumerate(("bert_tf", "huggingface")):
            target = tmp_path / f"{kind}-{number}"
            convert.convert(source, str(target), format)
            source = str(target)
        old = safetensors.numpy.load_file(tmp_path / "theirs" / kind / "model.safetensors")
        new = safetensors.numpy.load_file(target / "model.safetensors")
        # transformers' classes for these have no pooler, which the oracles' encoder has.
        without = kind in ("masked_lm", "question_answering", "token_classifier") and family == "albert"
        assert old.keys() - new.keys() == ({"albert.pooler.weight", "albert.pooler.bias"} if without else set())
        for name, value in new.items():
            np.testing.assert_array_equal(value, old[name], err_msg=name)
        config = json.loads((target / "config.json").read_text())
        expected = json.loads((tmp_path / "theirs" / kind / "config.json").read_text())
        assert len(expected) - 14 < len(config.keys() & expected.keys())
        assert all(config[key] == value for key, value in expected.items() if key in config)


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


@pytest.mark.parametrize("family", ["bert", "xlm-roberta", *slow("distilbert", "roberta", "electra", "albert")])
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
