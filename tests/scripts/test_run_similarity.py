"""run_similarity.py and run_swag.py on tiny models: learning, files in and out, other libraries, and refusals."""

import json
import shutil

import numpy as np
import pytest
import scipy
from helpers.basics import lines_of
from helpers.script_cases import results_of, run_and_refuse
from helpers.tiny import ONE_LAYER, write_encoder

from bert_tf import BertForMultipleChoice, ChoicePredictor, Embedder, FullTokenizer
from bert_tf.conversion.convert import convert
from bert_tf.store.description import SentenceSettings, read_sentence_settings, settings_files

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"{letter}{n}" for letter in "wv" for n in range(60))]


def texts_of(count, seed):
    """(text, partner, other text): v7 translates w7; the partner is the translation, the other one of another text."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        words = generator.choice(60, 4, replace=False)
        other = generator.choice(np.setdiff1d(np.arange(60), words), 4, replace=False)
        one = " ".join(f"w{word}" for word in words)
        yield one, *(" ".join(f"v{word}" for word in generator.permutation(of)) for of in (words, other))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("similarity")
    write_encoder(folder, PIECES, {**ONE_LAYER, "vocab_size": len(PIECES), "max_position_embeddings": 24})
    for seed, (name, count) in enumerate((("train", 96), ("dev", 24), ("test", 9))):
        triplets = list(texts_of(count, seed))
        lines = ["anchor,positive,negative", *(",".join(texts) for texts in triplets)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
        lines = ["번호\tsentence1\tsentence2\tscore"]
        for number, (one, near, far) in enumerate(triplets):
            lines.append(f"{number}\t{one}\t{(near, far)[number % 2]}\t{5 * (1 - number % 2)}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="cp949")
        pairs = [{"title": one, "body": near} for one, near, _ in triplets]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    shutil.copytree(folder / "encoder", folder / "dotted")
    for name, content in settings_files(SentenceSettings("", similarity="dot", truncate_dim=8), 32).items():
        (folder / "dotted" / name).parent.mkdir(exist_ok=True)
        (folder / "dotted" / name).write_text(content)
    return folder


@pytest.fixture(scope="module")
def ran(folder):
    training = {"init_checkpoint": folder / "encoder", "max_seq_length": 12, "train_batch_size": 16, "do_train": True}
    training |= {"predict_batch_size": 8, "learning_rate": 4e-3, "seed": 3, "deterministic": True, "do_eval": True}
    training["static_padding"] = True
    triplets, scored, pairs = (
        training | {f"{name}_file": folder / f"{name}.{suffix}" for name in ("train", "dev", "test")}
        for suffix in ("csv", "tsv", "jsonl")
    )
    pairs |= {"text_a": "title", "text_b": "body"}
    scored |= {"score_range": "0,5", "encoding": "cp949", "pooling": "cls"}
    best = folder / "out" / "ranked" / "best_model"
    once = {"num_train_epochs": 1, "write_tf_records": False, "init_checkpoint": best}
    done = {
        "ranked": {**triplets, "num_train_epochs": 8, "eval_every_steps": 48, "do_predict": True},
        "scored": {**scored, **once, "do_predict": True, "keep_checkpoint_max": 1, "normalize": True},
        "mined": {**pairs, **once, "mine_hard_negatives": 2, "negatives_margin": 0.01},
    }
    untrained = {name: value for name, value in scored.items() if name not in ("do_train", "pooling", "train_file")}
    untrained["test_file"] = untrained["dev_file"]
    done["dotted"] = {**untrained, "init_checkpoint": folder / "dotted", "do_predict": True}
    other = {**done["scored"], "pooling": "max", "output_dir": folder / "out" / "scored"}
    few = "--loss=ranking needs other examples as negatives: the batch is too small."
    refused = {
        "another pooling": (other, "--pooling=max: the run in --output_dir=*scored began with cls. Choose another"),
        "few negatives": ({**pairs, "negatives_batch_size": 1}, few),
    }
    return folder / "out", run_and_refuse("run_similarity", folder / "out", done, refused)


def test_a_ranking_is_learned(out, logs):
    after = results_of(out / "ranked")
    retrieval = ("accuracy_1", "accuracy_5", "accuracy_10", "mrr_10", "ndcg_10", "triplet_accuracy")
    assert set(after) == {*(f"eval_{name}" for name in retrieval), "global_step"} and after["global_step"] == 48
    assert after["eval_mrr_10"] > 0.7 and after["eval_triplet_accuracy"] > 0.8  # by chance 0.1 and 0.5
    assert "--loss=ranking, since --train_file has no scores." in logs["ranked"]
    assert "Negatives of a text are those of 16 examples." in logs["ranked"]
    assert f'Embedder("{out}/ranked/best_model").encode(' in logs["ranked"]
    assert "96 examples of 3 texts" in logs["ranked"] and "Pooling: mean, the default" in logs["ranked"]


def test_the_best_model_is_opened_and_converted(out, folder):
    best = str(out / "ranked" / "best_model")
    settings = read_sentence_settings(best)
    assert settings.described and (settings.pooling, settings.normalize, settings.max_seq_length) == ("mean", False, 12)
    embedder = Embedder(str(out / "ranked"))  # the last step's, which predicted
    triplets = list(texts_of(9, 2))
    first, second = (embedder.encode([texts[k] for texts in triplets], normalize=True) for k in (0, 1))
    cosines = (first * second).sum(-1)
    lines = [json.loads(line) for line in (out / "ranked" / "predictions.jsonl").read_text().splitlines()]
    assert [line["guid"] for line in lines] == [*map(str, range(9))]
    np.testing.assert_allclose([line["cosine"] for line in lines], cosines, atol=1e-5)
    table = (out / "ranked" / "test_results.tsv").read_text().split()
    np.testing.assert_allclose([float(value) for value in table], cosines, atol=1e-5)
    report = convert(best, str(folder / "theirs"), "huggingface")
    assert "1_Pooling/config.json" in report.written.files and "Vectors of texts: mean." in report.notes
    assert read_sentence_settings(str(folder / "theirs")).described


def test_a_finished_model_is_trained_on_files_with_scores(out):
    assert set(results_of(out / "scored")) == {"eval_spearman", "eval_pearson", "global_step"}
    assert "test_spearman = " in (out / "scored" / "test_results.txt").read_text()
    settings = read_sentence_settings(str(out / "scored" / "best_model"))
    assert settings.normalize and settings.pooling == "cls"


def test_a_model_that_compares_by_products_is_evaluated_by_them(out, folder):
    lines = [json.loads(line) for line in (out / "dotted" / "predictions.jsonl").read_text().splitlines()]
    pairs = [line.split("\t")[1:3] for line in (folder / "dev.tsv").read_text("cp949").splitlines()[1:]]
    first, second = map(Embedder(str(folder / "dotted")).encode, map(list, zip(*pairs, strict=True)))
    products = [line["dot"] for line in lines]
    np.testing.assert_allclose(products, (first * second).sum(-1), rtol=1e-5)
    pearson = scipy.stats.pearsonr(products, [line["score"] for line in lines]).statistic
    assert results_of(out / "dotted")["eval_pearson"] == pytest.approx(pearson, abs=1e-4)


def test_hard_negatives_are_mined_and_trained_on(out, logs):
    lines = [json.loads(line) for line in (out / "mined" / "hard_negatives.jsonl").read_text().splitlines()]
    partners = {one: near for one, near, _ in texts_of(96, 0)}
    assert lines and all(partners[line["anchor"]] == line["positive"] != line["negative"] for line in lines)
    assert {line["negative"] for line in lines} <= set(partners.values())
    assert f"{len(lines)} examples of 3 texts" in logs["mined"]
    assert f"; {len(lines)} rows in {out}/mined/hard_negatives.jsonl, which is trained on." in logs["mined"]
    assert (out / "mined" / "best_model" / "modules.json").exists()


CHOICE_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "right", *(f"w{number}" for number in range(94))]


def examples_of(count, num_choices, seed):
    """(context, question, choices, label): the correct choice has the word `right`."""
    generator = np.random.default_rng(seed)

    def words(most):
        return [f"w{number}" for number in generator.integers(0, 94, generator.integers(1, most))]

    for _ in range(count):
        choices, label = [words(8) for _ in range(num_choices)], int(generator.integers(num_choices))
        choices[label].insert(int(generator.integers(len(choices[label]) + 1)), "right")
        yield " ".join(words(10)), " ".join(words(4)), [" ".join(choice) for choice in choices], label


def write_csv(path, count, seed, labels=True):
    lines = ["number,sent1,sent2,ending0,ending1,ending2,ending3" + ",label" * labels]
    for number, (context, question, choices, label) in enumerate(examples_of(count, 4, seed)):
        lines.append(",".join([str(number), context, question, *choices, *[str(label)] * labels]))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choice")
    write_encoder(folder, CHOICE_PIECES)
    write_csv(folder / "train.csv", 64, 0)
    write_csv(folder / "dev.csv", 30, 1)
    write_csv(folder / "test.csv", 9, 2, labels=False)
    six = (
        {"premise": context, "answers": choices, "gold": "ABCDEF"[label]}
        for context, _, choices, label in examples_of(20, 6, 3)
    )
    (folder / "six.jsonl").write_text("".join(json.dumps(row) + "\n" for row in six))
    two = (["가", context, *choices, f"{label + 1}\n"] for context, _, choices, label in examples_of(24, 2, 4))
    (folder / "numbered.tsv").write_text("".join(map("\t".join, two)), encoding="cp949")
    short = {"max_seq_length": 24, "predict_batch_size": 4, "num_virtual_cpus": 2, "do_predict": True}
    predict = {**short, "init_checkpoint": folder / "out" / "trained" / "best_model"}
    six = {"test_file": folder / "six.jsonl", "context": "premise", "choices": "answers", "label": "gold"}
    two = {"test_file": folder / "numbered.tsv", "context": 1, "choices": "2,3", "label": 4, "encoding": "cp949"}
    two |= {**predict, "first_label": 1}
    files = {f"{name}_file": folder / f"{name}.csv" for name in ("train", "dev", "test")}
    training = {"do_train": True, "do_eval": True, "num_train_epochs": 6, "train_batch_size": 8, "learning_rate": 2e-3}
    training |= {"init_checkpoint": folder / "encoder", "seed": 3, "deterministic": True, "eval_every_steps": 24}
    training["static_padding"] = True
    done = {"trained": {**short, **files, **training}, "six": {**predict, **six, "first_label": "A"}, "two": two}
    done |= {"two otherwise": {**two, "distribution_strategy": "mirrored", "static_padding": True}}
    return folder / "out", run_and_refuse("run_swag", folder / "out", done, {})


def test_choices_are_learned(chosen):
    out, logs = chosen
    results = results_of(out / "trained")
    assert set(results) == {"eval_accuracy", "eval_loss", "loss", "global_step"}
    assert results["eval_accuracy"] >= 0.9 and results["global_step"] == 48
    head = json.loads((out / "trained" / "best_model" / "head_config.json").read_text())
    assert head == {"architecture": "BertForMultipleChoice"} and (out / "trained" / "train.tf_record").exists()
    assert "Example 0, choice " in logs["trained"] and "(right): [CLS]" in logs["trained"]


def test_probabilities_are_those_of_each_choice_alone(chosen):
    """Rows written by hand, one at a time without padding, through the model as a notebook would load it."""
    trained = chosen[0] / "trained"
    assert not (trained / "test_results.txt").exists()
    model = BertForMultipleChoice.from_pretrained(str(trained))
    tokenizer = FullTokenizer.from_pretrained(str(trained))
    found, table = lines_of(trained / "predictions.jsonl"), np.loadtxt(trained / "test_results.tsv")
    asked = [(text, choices, of) for text, of, choices, _ in examples_of(9, 4, 2)]
    chooser = ChoicePredictor(str(trained))
    answers = chooser.predict(asked)
    assert chooser(*asked[0])["text"] == answers[0]["text"] and chooser.predict([]) == []
    with pytest.raises(TypeError, match="choices must be a list of strings, not a str"):
        chooser("a", "bc")
    assert [(answer["choice"], answer["text"]) for answer in answers] == [(row["choice"], row["text"]) for row in found]
    for record, values, (context, question, choices, _) in zip(found, table, examples_of(9, 4, 2), strict=True):
        scores = []
        for choice in choices:
            first, second = tokenizer.encode(context), tokenizer.encode(f"{question} {choice}")
            ids = np.array([[[2, *first, 3, *second, 3]]])
            segments = np.array([[[0] * (len(first) + 2) + [1] * (len(second) + 1)]])
            scores.append(float(model({"input_ids": ids, "segment_ids": segments})[0, 0]))
        expected = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(record["probabilities"], expected, atol=1e-5)
        np.testing.assert_allclose(values, expected, atol=1e-5)
        assert (record["choice"], record["text"]) == (expected.argmax(), choices[expected.argmax()])
        assert "label" not in record


def test_any_number_of_choices_in_any_batches(chosen):
    """A model trained on four choices predicts one of six and of two; padding and devices change nothing."""
    out, logs = chosen
    records = lines_of(out / "six" / "predictions.jsonl")
    assert {len(record["probabilities"]) for record in records} == {6}
    assert [record["label"] for record in records] == [label for *_, label in examples_of(20, 6, 3)]
    accuracy = np.mean([record["choice"] == record["label"] for record in records])
    results = results_of(out / "six", "test_results.txt")
    assert set(results) == {"test_accuracy", "test_loss", "loss", "global_step"}
    assert results["test_accuracy"] == pytest.approx(accuracy) and accuracy >= 0.8
    found, other = (np.loadtxt(out / name / "test_results.tsv") for name in ("two", "two otherwise"))
    assert found.shape == (24, 2) and "replicas: 2" in logs["two otherwise"]
    np.testing.assert_allclose(found, other, atol=1e-5)
