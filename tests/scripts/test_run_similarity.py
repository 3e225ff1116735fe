"""run_similarity.py on a tiny model: learning, files in and out, other libraries, and what it refuses."""

import json

import keras
import numpy as np
import pytest
from helpers.script_cases import assert_refused, results_of, run_and_refuse
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
    "max_seq_length": 12, "train_batch_size": 16, "predict_batch_size": 8, "learning_rate": 4e-3, "seed": 3,
    "deterministic": True, "num_virtual_cpus": 2,
}  # fmt: skip


def cases_of(folder) -> tuple[dict, dict]:
    """Case -> flags, in the order in which they run, later ones built on earlier ones; and refused, with messages."""
    training = {**SHORT, "init_checkpoint": folder / "encoder", "do_train": True, "do_eval": True}
    triplets = {**training, **{f"{name}_file": folder / f"{name}.csv" for name in ("train", "dev", "test")}}
    pairs = {**training, "text_a": "title", "text_b": "body"}
    pairs |= {f"{name}_file": folder / f"{name}.jsonl" for name in ("train", "dev", "test")}
    scored = {**training, **{f"{name}_file": folder / f"{name}.tsv" for name in ("train", "dev", "test")},
              "score_range": "0,5"}  # fmt: skip
    ranked = {"init_checkpoint": folder / "out" / "ranked" / "best_model"}
    once = {"num_train_epochs": 1, "write_tf_records": False}
    done = {
        "before": {**triplets, "do_train": False},
        "ranked": {**triplets, "num_train_epochs": 8, "eval_every_steps": 24, "do_predict": True},
        "again": {**triplets, **ranked, "do_train": False},
        "scored": {**scored, **once, **ranked, "do_predict": True, "keep_checkpoint_max": 1, "pooling": "cls",
                   "normalize": True},
        "mined": {**pairs, **once, **ranked, "mine_hard_negatives": 2, "negatives_margin": 0.01},
    }  # fmt: skip
    refused = {
        "another pooling": ({**done["scored"], "pooling": "max", "output_dir": folder / "out" / "scored"},
                            "*scored holds a finished run with other settings (--pooling: cls there, max now)"),
        "no scores": ({**triplets, "loss": "cosine"},
                      "--loss=cosine is for two texts and a score; --train_file has 3 texts and no scores."),
        "scores": ({**scored, "loss": "ranking"},
                   "--loss=ranking is for two or three texts without a score; --train_file has 2 texts and"),
        "scale of triplets": ({**triplets, "loss": "triplet", "ranking_scale": 3},
                              "--ranking_scale is for --loss=ranking; this is --loss=triplet."),
        "margin": ({**triplets, "triplet_margin": -1}, "--triplet_margin=-1 must be more than 0."),
        "negatives of scores": ({**scored, "loss": "cosine", "negatives_batch_size": 4},
                                "--negatives_batch_size is for --loss=ranking; this is --loss=cosine."),
        "range": ({**scored, "score_range": "5,0"}, "--score_range=5,0 must be two numbers, the lower one first"),
        "one column": ({**pairs, "text_b": ""}, "--text_a and --text_b: name both columns"),
        "score alone": ({**scored, "score": "score"}, "--score needs --text_a and --text_b beside it."),
        "mined triplets": ({**triplets, "mine_hard_negatives": 1},
                           "--mine_hard_negatives is for pairs that belong together, and --train_file has a third tex"),
        "mined by nothing": ({**pairs, "init_checkpoint": None, "bert_config_file": folder / "encoder/bert_config.json",
                              "vocab_file": folder / "vocab.txt", "mine_hard_negatives": 1},
                             "--mine_hard_negatives needs a model that finds them: give --init_checkpoint."),
        "margin of nothing": ({**pairs, "negatives_margin": 0.1}, "--negatives_margin is for --mine_hard_negatives."),
    }  # fmt: skip
    return done, refused


@pytest.fixture(scope="module")
def ran(folder):
    """Output folder, outcomes by case, what each wrote to stderr, the messages expected."""
    return folder / "out", *run_and_refuse("run_similarity", folder / "out", *cases_of(folder))


RETRIEVAL = {"eval_accuracy_1", "eval_accuracy_5", "eval_accuracy_10", "eval_mrr_10", "eval_ndcg_10",
             "eval_triplet_accuracy", "global_step"}  # fmt: skip


def test_a_run_learns(ran, folder):
    out, _, logs, _ = ran
    before, after = results_of(out / "before"), results_of(out / "ranked")
    assert set(before) == set(after) == RETRIEVAL and after["global_step"] == 48
    assert before["eval_mrr_10"] < 0.4 < 0.7 < after["eval_mrr_10"] and after["eval_triplet_accuracy"] > 0.8
    best = json.loads((out / "ranked" / "best_model" / "eval_results.json").read_text())
    again = results_of(out / "again")
    assert all(again[name] == pytest.approx(best[name], abs=1e-6) for name in RETRIEVAL - {"global_step"})
    assert "--loss=ranking, since --train_file has no scores." in logs["ranked"]
    assert "Negatives of a text are those of 16 examples." in logs["ranked"]
    assert f'Embedder("{out}/ranked/best_model").encode(' in logs["ranked"]
    assert "96 examples of three texts" in logs["ranked"] and "Pooling: mean, the default" in logs["ranked"]


def test_the_best_model_is_opened_and_converted(ran, folder):
    """Predictions are the cosines of Embedder's vectors."""
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


@pytest.mark.slow  # in small: the settings above, serving/test_embedder.py
def test_sentence_transformers_makes_the_same_vectors(ran, folder):
    best = str(ran[0] / "ranked" / "best_model")
    convert(best, str(folder / "for others"), "huggingface")
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    theirs = library.SentenceTransformer(str(folder / "for others"), device="cpu")
    texts = [text for texts in texts_of(9, 2) for text in texts]
    np.testing.assert_allclose(theirs.encode(texts), Embedder(best).encode(texts), atol=1e-5)


def test_a_finished_model_is_trained_on_files_with_scores(ran):
    out, *_ = ran
    assert set(results_of(out / "scored")) == {"eval_spearman", "eval_pearson", "global_step"}
    assert "test_spearman = " in (out / "scored" / "test_results.txt").read_text()
    settings = read_settings(str(out / "scored" / "best_model"))
    assert settings.normalize and settings.pooling == "cls"


def test_hard_negatives_are_mined_and_trained_on(ran):
    out, _, logs, _ = ran
    lines = [json.loads(line) for line in (out / "mined" / "hard_negatives.jsonl").read_text().splitlines()]
    partners = {one: near for one, near, _ in texts_of(96, 0)}
    assert lines and all(partners[line["anchor"]] == line["positive"] != line["negative"] for line in lines)
    assert {line["negative"] for line in lines} <= set(partners.values())
    assert f"{len(lines)} examples of three texts" in logs["mined"]
    assert f"; {len(lines)} rows in {out}/mined/hard_negatives.jsonl, which is trained on." in logs["mined"]
    assert (out / "mined" / "best_model" / "modules.json").exists()


def test_what_is_refused(ran):
    out, outcomes, _, messages = ran
    assert_refused(out, outcomes, messages)
