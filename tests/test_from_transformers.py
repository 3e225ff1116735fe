"""The programs of docs/from-transformers.md: their numbers are those of transformers on PyTorch, with the same weights.

The updates are those of plain gradient descent on both sides, which shows every gradient.
"""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import tiny
from helpers.basics import GOLDEN, blocks, slow
from helpers.outputs import op_by_op

import bert_tf
from bert_tf.transformers import create_optimizer

torch = pytest.importorskip("torch", reason="needs PyTorch (requirements-dev.txt)")
transformers = pytest.importorskip("transformers", reason="needs transformers (requirements-dev.txt)")

RATE = 0.02
NUMBERS = {"atol": 4e-5, "rtol": 2e-5}


def program_of(number, folder, mask="[MASK]"):
    """The program of this number in two parts, before it compiles and from there on, and what both define."""
    before, after = blocks("from-transformers", "python")[number].replace("[MASK]", mask).split("\nmodel.compile(")
    after, found = "model.compile(" + after, {}
    assert before.count('"bert-base-uncased"') == 2 and after.count("optimizers.Adam(") == 1
    exec(before.replace('"bert-base-uncased"', repr(folder)), found)
    rate = after.split("optimizers.Adam(")[1].split(")")[0]
    return found, lambda: exec(after.replace(f"Adam({rate})", f"SGD({RATE})"), found)


@pytest.mark.parametrize(("says", "text", "theirs"), [
    ({"never_split": ["Don't"]}, "Don't", ["don", "'", "t"]),
    ({"do_basic_tokenize": False}, "no,", ["no", ","]),
    ({"max_input_chars_per_word": 3}, "word", ["word"]),
    ({}, "a" * 101, ["[UNK]"]),
    ({}, "\U0002b820a\U0002b91f", ["[UNK]"]),
    ({}, "\U0002b920", ["[UNK]"]),  # for comparison: here it is a word of its own there, too
])  # fmt: skip
def test_what_transformers_5_does_not_do(tmp_path, says, text, theirs):
    (tmp_path / "vocab.txt").write_bytes((GOLDEN / "vocab.txt").read_bytes())
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **says}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert transformers.AutoTokenizer.from_pretrained(str(tmp_path)).tokenize(text) == theirs
    ours = bert_tf.FullTokenizer.from_pretrained(str(tmp_path)).tokenize(text)
    assert (ours == theirs) == (len(text) == 1)
    assert len(transformers.BertTokenizer(vocab_file=str(tmp_path / "vocab.txt"))) == 5


@pytest.fixture(autouse=True)
def run_eagerly():
    """Two steps of a tiny model take less than their graph."""
    with op_by_op():
        yield


@pytest.fixture
def both(request, tmp_path):
    family, kind, arguments = request.param
    model_class = getattr(bert_tf, f"BertFor{kind}" if kind else "BertModel")
    folder = tiny.save_model(tmp_path / "model", family, model_class, format="huggingface", **arguments)
    config = pathlib.Path(folder, "config.json")
    values = json.loads(config.read_text())
    config.write_text(json.dumps({key: 0.0 if "dropout" in key else value for key, value in values.items()}))
    theirs = getattr(transformers, f"AutoModelFor{kind}" if kind else "AutoModel").from_pretrained(folder)
    for part in theirs.modules():
        if isinstance(part, torch.nn.Embedding):
            part.padding_idx = None  # PyTorch's never trains that of [PAD]
    return folder, theirs, transformers.AutoTokenizer.from_pretrained(folder)


def steps(parameters, loss_of, count=2):
    optimizer, losses = torch.optim.SGD(parameters, RATE), []
    for _ in range(count):
        optimizer.zero_grad()
        losses.append(loss_of())
        losses[-1].backward()
        optimizer.step()
    return [loss.item() for loss in losses]


def of_class(kind, first, *others, **arguments):
    """Runs a test with models of a class and of these families; all but the first are for the long tests."""
    cases = [(family, kind, arguments) for family in (first, *others)]
    cases[1:] = slow(*((case,) for case in cases[1:]))
    return pytest.mark.parametrize("both", cases, indirect=True, ids=[first, *others])


def same(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours), theirs.detach().numpy(), **NUMBERS)


def run_both(found, train, theirs, their_inputs):
    logits = ["start_logits", "end_logits"] if hasattr(theirs, "qa_outputs") else ["logits"]
    found["model"].config.span_dropout = 0.0  # of DistilBERT's answers
    names = their_inputs.keys() & {"labels", *found.get("positions", ())}
    labels = {name: their_inputs[name].numpy() for name in names}
    found["model"].dropout_rate = 0.0  # before the output layer; transformers takes it from hidden_dropout_prob

    def compare():
        ours, others = found["model"](found["encoded"], **labels), theirs(**their_inputs)
        predicted = found["model"].predict(dict(found["encoded"]), verbose=0)
        for name in logits:
            same(getattr(ours, name), getattr(others, name))
            same(getattr(predicted, name), getattr(others, name))
        same(ours.loss, others.loss)

    compare()
    losses = steps(theirs.parameters(), lambda: theirs(**their_inputs).loss)
    train()
    np.testing.assert_allclose(found["history"].history["loss"], losses, **NUMBERS)
    assert abs(losses[1] - losses[0]) > 1e-3
    compare()


def test_create_optimizer_has_transformers_numbers():
    """Against the formula, with a gradient far above norm 1; what is named bias is not decayed."""
    rate, steps, warmup, decay, beta_1, beta_2, epsilon = 0.01, 10, 2, 0.1, 0.9, 0.999, 1e-8
    optimizer, schedule = create_optimizer(rate, steps, warmup, weight_decay_rate=decay)
    variables = [keras.Variable([1.0, -2.0], name=name) for name in ("kernel", "bias")]
    expected, gradient, m, v = np.array([[1.0, -2.0]] * 2), np.array([3.0, -40.0]), 0.0, 0.0
    for step in range(6):
        now = rate * step / warmup if step < warmup else rate * (1 - (step - warmup) / (steps - warmup))
        assert float(schedule(step)) == pytest.approx(now, rel=1e-6)
        m, v = beta_1 * m + (1 - beta_1) * gradient, beta_2 * v + (1 - beta_2) * gradient**2
        correction = np.sqrt(1 - beta_2 ** (step + 1)) / (1 - beta_1 ** (step + 1))
        expected -= now * (correction * m / (np.sqrt(v) + epsilon) + np.array([[decay], [0.0]]) * expected)
        optimizer.apply([tf.constant(gradient, tf.float32)] * 2, variables)
        gradient = -0.5 * gradient
        np.testing.assert_allclose([np.array(value) for value in variables], expected, rtol=2e-5)


def test_names_of_labels_as_in_transformers(tmp_path):
    names = {0: "no", 1: "yes", 2: "so"}
    tiny.save_model(tmp_path, "bert", bert_tf.BertModel)
    for arguments in ({"id2label": names}, {"label2id": {name: number for number, name in names.items()}}):
        model = bert_tf.BertForSequenceClassification.from_pretrained(str(tmp_path), **arguments)
        assert model.id2label == names and model.num_labels == 3 and model.labels == list(names.values())
        assert model.config.id2label == names and model.config.num_labels == 3
        assert model.config == model.bert.config == bert_tf.BertModel.from_pretrained(str(tmp_path)).config
    assert not hasattr(bert_tf.BertModel.from_pretrained(str(tmp_path)).config, "num_labels")
    with pytest.raises(AttributeError):  # it would change nothing that is saved
        model.config.id2label = names


@of_class("SequenceClassification", "bert", "distilbert", "electra", "roberta", "albert", num_labels=2)
def test_sequence_classification(both):
    folder, theirs, tokenizer = both
    found, train = program_of(0, folder)
    inputs = tokenizer(found["texts"], truncation=True, padding=True, return_tensors="pt")
    run_both(found, train, theirs, {**inputs, "labels": torch.tensor(found["labels"])})
    assert found["probabilities"].shape == (4, 2)


@of_class("MaskedLM", "distilbert", "bert", "electra")  # in the others' small vocabularies a word is several pieces
def test_masked_lm(both):
    folder, theirs, tokenizer = both
    found, train = program_of(1, folder, tokenizer.mask_token)
    inputs = tokenizer(found["texts"], padding=True, return_tensors="pt")
    masked = inputs["input_ids"] == tokenizer.mask_token_id
    labels = torch.where(masked, tokenizer(found["answers"], padding=True, return_tensors="pt")["input_ids"], -100)
    run_both(found, train, theirs, {**inputs, "labels": labels})
    guesses = theirs(**inputs).logits[masked].argmax(-1)
    assert found["guesses"] == tokenizer.convert_ids_to_tokens(guesses) and len(guesses) == 2


@of_class("TokenClassification", "electra", "bert", "distilbert", "albert", num_labels=3)
def test_token_classification(both):
    folder, theirs, tokenizer = both
    found, train = program_of(2, folder)
    inputs = tokenizer(found["sentences"], is_split_into_words=True, truncation=True, padding=True, return_tensors="pt")
    labels = torch.full(inputs["input_ids"].shape, -100)
    for row, tags in enumerate(found["tags"]):
        words = inputs.word_ids(row)
        for place, word in enumerate(words):
            if word is not None and word != words[place - 1]:
                labels[row, place] = tags[word]
    assert (labels >= 0).sum() == 7 and (labels == -100).sum() >= 7
    run_both(found, train, theirs, {**inputs, "labels": labels})
    assert (found["predicted"] == theirs(**inputs).logits.argmax(-1).numpy()).all()


@of_class("QuestionAnswering", "albert", "bert", "distilbert", "electra")  # RoBERTa has no token types
def test_question_answering(both):
    folder, theirs, tokenizer = both
    found, train = program_of(3, folder)
    asked = {"truncation": "only_second", "max_length": 48, "padding": True, "return_tensors": "pt"}
    inputs = tokenizer(found["questions"], found["contexts"], **asked)
    positions = {"start_positions": [], "end_positions": []}
    for row, (begin, answer) in enumerate(zip(found["begins"], found["answers"], strict=True)):
        positions["start_positions"].append(inputs.char_to_token(row, int(begin), 1))
        positions["end_positions"].append(inputs.char_to_token(row, int(begin) + len(answer) - 1, 1))
    assert {name: list(values) for name, values in found["positions"].items()} == positions
    positions = {name: torch.tensor(values) for name, values in positions.items()}
    run_both(found, train, theirs, {**inputs, **positions})
    assert found["answer"] in found["contexts"][0]


@of_class(None, "roberta", "bert", "distilbert", "electra")  # ALBERT's layers are one
def test_a_functional_model_with_a_frozen_encoder(both):
    folder, theirs, tokenizer = both
    found, train = program_of(4, folder)
    model, encoder = found["model"], found["encoder"]
    frozen = {variable.path: np.array(variable) for variable in encoder.non_trainable_weights}
    assert 0 < len(encoder.trainable_variables) < len(frozen)
    hidden, output = torch.nn.Linear(32, 16), torch.nn.Linear(16, 1)
    for theirs_layer, ours in zip((hidden, output), model.layers[-2:], strict=True):
        with torch.no_grad():
            theirs_layer.weight.copy_(torch.tensor(np.array(ours.kernel).T))
            theirs_layer.bias.copy_(torch.tensor(np.array(ours.bias)))
    first, second = (getattr(theirs, "encoder", None) or theirs.transformer).layer
    for part in (theirs.embeddings, first):
        part.requires_grad_(False)
    inputs = tokenizer(found["texts"], max_length=32, padding="max_length", return_tensors="pt")

    def probabilities():
        first = theirs(**inputs).last_hidden_state[:, 0]
        return torch.sigmoid(output(torch.relu(hidden(first))))

    labels = torch.tensor(found["labels"], dtype=torch.float32)
    same(model.predict(found["encoded"], verbose=0), probabilities())
    trained = [hidden, output, second, getattr(theirs, "embeddings_project", None)]
    parameters = [value for part in filter(None, trained) for value in part.parameters()]
    losses = steps(parameters, lambda: torch.nn.functional.binary_cross_entropy(probabilities(), labels))
    train()
    np.testing.assert_allclose(found["history"].history["loss"], losses, **NUMBERS)
    assert losses[0] - losses[1] > 1e-3
    same(found["probabilities"], probabilities())
    assert all((frozen[variable.path] == np.array(variable)).all() for variable in encoder.non_trainable_weights)
