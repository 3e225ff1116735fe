"""run_similarity.py on a tiny model: learning, files in and out, other libraries, and what it refuses."""

import json

import keras
import numpy as np
import pytest
from helpers.script_cases import assert_in_order, results_of, run_cases, selected_cases
from helpers.tiny import ONE_LAYER

from bert_tf import Embedder
from bert_tf.conversion.convert import convert
from bert_tf.models.config import BertConfig
from bert_tf.models.sentence_settings import read_settings
from bert_tf.models.task_models import BertModel

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(60)),
          *(f"v{number}" for number in range(60))]  # fmt: skip


def texts_of(count, seed):
    """(text, partner, other text): v7 translates w7; the partner is the translation, the other one of another text."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        words = generator.choice(60, 4, replace=False)
        other = generator.choice(np.setdiff1d(np.arange(60), words), 4, replace=False)
        one = " ".join(f"w{word}" for word in words)
        yield one, *(" ".join(f"v{word}" for word in generator.permutation(of)) for of in (words, other))


def write_files(folder):
    for seed, (name, count) in enumerate((("train", 96), ("dev", 24), ("test", 9))):
        triplets = list(texts_of(count, seed))
        lines = [",".join(texts) for texts in triplets]
        (folder / f"{name}.csv").write_text("\n".join(["anchor,positive,negative", *lines]) + "\n")
        pairs = [
            (one, (near, far)[number % 2], 5 * (1 - number % 2)) for number, (one, near, far) in enumerate(triplets)
        ]
        lines = ["\t".join([str(number), *map(str, pair)]) for number, pair in enumerate(pairs)]
        (folder / f"{name}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tscore", *lines]) + "\n")
        with (folder / f"{name}.jsonl").open("w") as file:
            for one, near, _ in triplets:
                file.write(json.dumps({"title": one, "body": near}) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("similarity")
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
    keras.utils.set_random_seed(0)
    config = BertConfig.from_dict({**ONE_LAYER, "vocab_size": len(PIECES), "max_position_embeddings": 24})
    model = BertModel(config)
    model.build()
    model.save_pretrained(str(folder / "encoder"), vocab_file=str(folder / "vocab.txt"), do_lower_case=True)
    write_files(folder)
    return folder


SHORT = {
    "max_seq_length": 12, "train_batch_size": 16, "predict_batch_size": 8, "learning_rate": 3e-3, "seed": 3,
    "deterministic": True, "num_virtual_cpus": 2,
}  # fmt: skip


def cases_of(folder) -> dict:
    """Case -> flags, in the order in which they run; later cases build on earlier ones."""
    training = {**SHORT, "init_checkpoint": folder / "encoder", "do_train": True, "do_eval": True}
    triplets = {**training, **{f"{name}_file": folder / f"{name}.csv" for name in ("train", "dev", "test")}}
    pairs = {**training, "text_a": "title", "text_b": "body"}
    pairs |= {f"{name}_file": folder / f"{name}.jsonl" for name in ("train", "dev", "test")}
    scored = {**training, **{f"{name}_file": folder / f"{name}.tsv" for name in ("train", "dev", "test")},
              "score_range": "0,5"}  # fmt: skip
    ranked = {"init_checkpoint": folder / "out" / "ranked" / "best_model"}
    once = {"num_train_epochs": 1, "write_tf_records": False}
    return {
        "before": {**triplets, "do_train": False},
        "ranked": {**triplets, "num_train_epochs": 12, "eval_every_steps": 24, "do_predict": True},
        "again": {**triplets, **ranked, "do_train": False},
        "pairs": {**pairs, "num_train_epochs": 12, "pooling": "max", "normalize": True},
        "scored": {**scored, "num_train_epochs": 30, "do_predict": True},
        "triplets": {**triplets, "num_train_epochs": 12, "loss": "triplet", "static_padding": True},
        "two devices": {**triplets, **once, "distribution_strategy": "mirrored", "negatives_batch_size": 8},
        "two parts": {**triplets, **once, "gradient_accumulation_steps": 2, "keep_checkpoint_max": 1},
        "another": {**triplets, **once, **ranked, "dev_file": folder / "dev.tsv", "score_range": "0,5"},
        # --- refused
        "resumed with more": {**triplets, "num_train_epochs": 2, "gradient_accumulation_steps": 4,
                              "keep_checkpoint_max": 1, "output_dir": folder / "out" / "two parts"},
        "another pooling": {**triplets, "pooling": "cls", "output_dir": folder / "out" / "ranked"},
        "no scores": {**triplets, "loss": "cosine"},
        "scores": {**scored, "loss": "ranking"},
        "pairs only": {**pairs, "loss": "triplet"},
        "scale of triplets": {**triplets, "loss": "triplet", "ranking_scale": 3},
        "margin": {**triplets, "triplet_margin": -1},
        "negatives of scores": {**scored, "loss": "cosine", "negatives_batch_size": 4},
        "negatives of a file with scores": {**scored, "negatives_batch_size": 4},
        "negatives": {**triplets, "negatives_batch_size": 5},
        "range": {**scored, "score_range": "5,0"},
        "words as range": {**scored, "score_range": "low,high"},
        "out of range": {**scored, "score_range": "0,1"},
        "one column": {**pairs, "text_b": ""},
        "score alone": {**scored, "score": "score"},
        "no such column": {**pairs, "text_b": "text"},
        "no dev file": {key: value for key, value in triplets.items() if key != "dev_file"},
        "too long": {**triplets, "max_seq_length": 64},
        "no room": {**triplets, "max_seq_length": 2},
        "alone": {**pairs, "train_batch_size": 1},
    }  # fmt: skip


@pytest.fixture(scope="module")
def ran(request, folder):
    """Output folder, outcomes by case, and what each wrote to stderr."""
    slow = {
        "pairs",
        "scored",
        "triplets",
        "two devices",
        "two parts",
        "another",
        "resumed with more",
        "another pooling",
    }
    cases = selected_cases(request, cases_of(folder), slow=slow)
    cases = {name: {"output_dir": folder / "out" / name, **values} for name, values in cases.items()}
    return folder / "out", *run_cases("run_similarity", cases)


RETRIEVAL = {"eval_accuracy_1", "eval_accuracy_5", "eval_accuracy_10", "eval_mrr_10", "eval_ndcg_10",
             "eval_triplet_accuracy", "global_step"}  # fmt: skip


def test_a_run_learns(ran, folder):
    out, outcomes, logs = ran
    assert outcomes["before"] == outcomes["ranked"] == outcomes["again"] == "done", logs
    before, after = results_of(out / "before"), results_of(out / "ranked")
    assert set(before) == set(after) == RETRIEVAL and after["global_step"] == 72
    assert before["eval_mrr_10"] < 0.4 < 0.7 < after["eval_mrr_10"] and after["eval_triplet_accuracy"] > 0.8
    best = json.loads((out / "ranked" / "best_model" / "eval_results.json").read_text())
    again = results_of(out / "again")
    assert all(again[name] == pytest.approx(best[name], abs=1e-6) for name in RETRIEVAL - {"global_step"})
    assert "--loss=ranking, since --train_file has no scores." in logs["ranked"]
    assert "Negatives of a text are those of 16 examples." in logs["ranked"]
    assert f'Embedder("{out}/ranked/best_model").encode(' in logs["ranked"]
    assert "96 examples of three texts" in logs["ranked"] and "Pooling: mean, the default" in logs["ranked"]


def test_the_best_model_is_opened_and_converted(ran, folder):
    """Predictions are the cosines of Embedder's vectors; sentence-transformers gives the same vectors."""
    out, *_ = ran
    best = str(out / "ranked" / "best_model")
    settings = read_settings(best)
    assert settings.described and (settings.pooling, settings.normalize, settings.max_seq_length) == ("mean", False, 12)
    embedder = Embedder(str(out / "ranked"))  # the last step's, which predicted
    triplets = list(texts_of(9, 2))
    first, second = (embedder.encode([texts[k] for texts in triplets], normalize=True) for k in (0, 1))
    cosines = (first * second).sum(-1)
    lines = [json.loads(line) for line in (out / "ranked" / "predictions.jsonl").read_text().splitlines()]
    assert [line["guid"] for line in lines] == [str(number) for number in range(9)]
    np.testing.assert_allclose([line["cosine"] for line in lines], cosines, atol=1e-5)
    table = (out / "ranked" / "test_results.tsv").read_text().split()
    np.testing.assert_allclose([float(value) for value in table], cosines, atol=1e-5)
    report = convert(best, str(folder / "theirs"), "huggingface")
    assert "1_Pooling/config.json" in report.written.files and "Vectors of texts: mean." in report.notes
    convert(best, str(folder / "theirs"), "huggingface", overwrite=True)
    assert read_settings(str(folder / "theirs")).described
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    theirs = library.SentenceTransformer(str(folder / "theirs"), device="cpu")
    texts = [text for texts in triplets for text in texts]
    np.testing.assert_allclose(theirs.encode(texts), Embedder(best).encode(texts), atol=1e-5)


@pytest.mark.slow
def test_other_files(ran, folder):
    out, outcomes, logs = ran
    assert all(outcomes[name] == "done" for name in ("pairs", "scored", "triplets")), logs
    assert results_of(out / "pairs")["eval_mrr_10"] > 0.6
    assert read_settings(str(out / "pairs" / "best_model")).normalize
    scored = results_of(out / "scored")
    assert set(scored) == {"eval_spearman", "eval_pearson", "global_step"} and scored["eval_spearman"] > 0.5
    assert (out / "scored" / "similarity.png").read_bytes()[:4] == b"\x89PNG"
    assert "test_spearman = " in (out / "scored" / "test_results.txt").read_text()
    assert results_of(out / "triplets")["eval_triplet_accuracy"] > 0.7
    # A finished model is trained again, and evaluated on another kind of file.
    assert outcomes["another"] == "done" and "eval_spearman" in results_of(out / "another")


@pytest.mark.slow
def test_two_devices_and_two_parts_make_the_same_steps(ran):
    from helpers.script_cases import weights_of

    out, outcomes, logs = ran
    assert outcomes["two devices"] == outcomes["two parts"] == "done", logs
    one, two = (weights_of(out / name / "model.ckpt-6") for name in ("two parts", "two devices"))
    for name, value in two.items():
        if "key/bias" not in name:  # the gradient of key biases is only rounding errors
            np.testing.assert_allclose(one[name], value, atol=1e-3, err_msg=name)


REFUSED = {
    "no scores": "ValueError: --loss=cosine is for two texts and a score; --train_file has 3 texts and no scores.",
    "scores": "ValueError: --loss=ranking is for two or three texts without a score; --train_file has 2 texts and",
    "pairs only": "ValueError: --loss=triplet is for three texts without a score; --train_file has 2 texts and no",
    "scale of triplets": "ValueError: --ranking_scale is for --loss=ranking; this is --loss=triplet.",
    "margin": "ValueError: --triplet_margin=-1 must be more than 0.",
    "negatives of scores": "ValueError: --negatives_batch_size is for --loss=ranking; this is --loss=cosine.",
    "negatives of a file with scores": "ValueError: --negatives_batch_size is for --loss=ranking; this is",
    "negatives": "ValueError: --negatives_batch_size=5: a device computes 16 examples at once, which can't be divided",
    "range": "ValueError: --score_range=5,0 must be two numbers, the lower one first, as 0,5.",
    "words as range": "ValueError: --score_range=low,high must be two numbers",
    "out of range": "ValueError: --train_file: *train.tsv, line 2: the score 5 is not in --score_range=0,1.",
    "one column": "ValueError: --text_a and --text_b: name both columns",
    "score alone": "ValueError: --score needs --text_a and --text_b beside it.",
    "no such column": "ValueError: --train_file: *train.jsonl, line 1: no 'text'; found 'title', 'body'",
    "no dev file": "ValueError: --do_eval needs --dev_file.",
    "too long": "ValueError: --max_seq_length=64 is more than max_position_embeddings=24",
    "no room": "ValueError: max_seq_length=2 has no room for a token beside 2 special ones.",
    "alone": "ValueError: --loss=ranking needs other examples as negatives: --train_batch_size is too small.",
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(ran, case):
    out, outcomes, _ = ran
    assert_in_order(REFUSED[case], outcomes[case])
    assert "\n" not in outcomes[case] and not (out / case).exists()


@pytest.mark.slow
def test_a_run_goes_on_as_it_began(ran):
    _, outcomes, _ = ran
    assert_in_order(
        "ValueError: --negatives_batch_size=8, as this run began: a device computes 4 examples at once",
        outcomes["resumed with more"],
    )
    assert_in_order("ValueError: --pooling=cls: the run in *ranked began with mean.", outcomes["another pooling"])
