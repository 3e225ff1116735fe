"""The README's commands and programs, run as they stand there (in a folder of their own instead of /tmp)."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import TINY_CONFIG

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """BERT_BASE_DIR with a tiny model in the form of a released one, and `python` on the path."""
    from bert_tf import checkpoints
    from bert_tf.config import BertConfig
    from bert_tf.heads import BertForPreTraining

    folder = tmp_path_factory.mktemp("model")
    (folder / "vocab.txt").write_bytes((ROOT / "tests" / "golden" / "vocab.txt").read_bytes())
    config = {**TINY_CONFIG, "vocab_size": 30522, "max_position_embeddings": 512}
    (folder / "bert_config.json").write_text(json.dumps(config))
    model = BertForPreTraining(BertConfig.from_dict(config))
    model.build()
    checkpoints.write_bundle(str(folder / "bert_model.ckpt"), checkpoints.model_variables(model))
    glue = tmp_path_factory.mktemp("glue") / "MRPC"
    glue.mkdir()
    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    for name, first, count in (("train", "Quality", 70), ("dev", "Quality", 20), ("test", "index", 70)):
        rows = [[str(number % 2), "1", "2", f"Sentence {number}.", "Another."] for number in range(count)]
        lines = ["\t".join(row) + "\r\n" for row in [[first, *header[1:]], *rows]]
        (glue / f"{name}.tsv").write_text("".join(lines), encoding="utf-8-sig", newline="")
    squad = tmp_path_factory.mktemp("squad")
    for version, count in (("1.1", 24), ("2.0", 48)):
        questions = []
        for number in range(count):
            impossible = version == "2.0" and number % 2 == 1
            answers = [] if impossible else [{"text": "Ada Brown", "answer_start": 15}]
            question = {"id": f"q{number}", "question": f"Who sold house {number}?", "answers": answers}
            questions.append(question | ({"is_impossible": impossible} if version == "2.0" else {}))
        paragraph = {"context": "It was sold by Ada Brown in 1840.", "qas": questions}
        for name in ("train", "dev"):
            content = {"version": f"v{version}", "data": [{"title": "House", "paragraphs": [paragraph]}]}
            (squad / f"{name}-v{version}.json").write_text(json.dumps(content))
    ner = tmp_path_factory.mktemp("ner")
    sentence = "Anna\tB-PER\nlives\tO\nin\tO\nNew\tB-LOC\nYork\tI-LOC\n\n"
    for name, count in (("train", 40), ("dev", 8), ("test", 8)):
        (ner / f"{name}.conll").write_text(sentence.replace("\t", " ") * count)
    swag = tmp_path_factory.mktemp("swag")
    header = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    for name, count in (("train", 24), ("val", 8)):
        rows = [f"{k},v,{k},x,She opens a box.,She,gold,sings.,shuts it.,runs.,sleeps.,{k % 4}\n" for k in range(count)]
        (swag / f"{name}.csv").write_text(header + "".join(rows))
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "BERT_BASE_DIR": str(folder),
        "GLUE_DIR": str(glue.parent),
        "SQUAD_DIR": str(squad),
        "NER_DIR": str(ner),
        "SWAG_DIR": str(swag),
        "PATH": path,
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def run(text, environment, folder, *program):
    text = text.replace("/tmp/", f"{folder}/")
    result = subprocess.run([*program, text], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    return result


@pytest.mark.slow
def test_shell_commands_and_python_programs(environment, tmp_path):
    shell, python = blocks("shell"), blocks("python")
    assert [text.split()[1] for text in shell] == [
        "create_pretraining_data.py",
        "run_pretraining.py",
        "create_pretraining_data.py",
        "run_pretraining.py",
        "create_vocab.py",
        "-m",
        "Google's",
        "run_classifier.py",
        "run_classifier.py",
        "run_squad.py",
        "run_squad.py",
        "run_ner.py",
        "run_swag.py",
        "extract_features.py",
        "export_saved_model.py",
    ]
    data, training, wiki_data, wiki_training, vocabulary, ablations, conversions, classifier, *others = shell
    predictions, squad, squad_2, ner, swag, features, export = others
    run(data, environment, tmp_path, "bash", "-c")
    summary = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert summary["documents"] == 3
    log = run(training, environment, tmp_path, "bash", "-c").stderr
    assert re.search(r"Initialised 46 of 46 variables", log)
    results = (tmp_path / "pretraining_output" / "eval_results.txt").read_text()
    assert "global_step = 20\n" in results
    (tmp_path / "wiki" / "AA").mkdir(parents=True)
    article = "The first sentence of {0}. Another one follows it here. " * 6 + "\nA paragraph more, about {0}. It ends."
    records = [json.dumps({"id": str(k), "title": f"T{k}", "text": article.format(f"house {k}")}) for k in range(90)]
    (tmp_path / "wiki" / "AA" / "wiki_00").write_text("\n".join(records[:50]) + "\n")
    (tmp_path / "wiki" / "AA" / "wiki_01").write_text("\n".join(records[50:]) + "\n")
    run(wiki_data, environment, tmp_path, "bash", "-c")
    summary = json.loads((tmp_path / "wiki_records" / "pretraining_data.wiki.json").read_text())
    assert (summary["documents"], summary["sentences"]) == (90, 90 * 14)
    assert summary["padding_share"] < summary["padding_share_unpacked"] - 0.05
    run(wiki_training, environment, tmp_path, "bash", "-c")
    assert (tmp_path / "wiki_model" / "model.ckpt-4.index").exists()
    run(vocabulary, environment, tmp_path, "bash", "-c")
    assert len((tmp_path / "vocab.txt").read_text().splitlines()) <= 600
    (tmp_path / "novels").mkdir()
    for name in ("train-00", "train-01", "heldout"):
        (tmp_path / "novels" / f"{name}.txt").write_text((ROOT / "sample_text.txt").read_text())
    small = {"SST-2": "MRPC", "5,6,8": "6", "tiny,L-4_H-128,L-2_H-256": "tiny", "steps=1500": "steps=4", "0.3": "1"}
    small["vocab_size=4000"] = "vocab_file=$BERT_BASE_DIR/vocab.txt"
    for old, new in small.items():
        assert old in ablations
        ablations = ablations.replace(old, new)
    run(ablations, environment, tmp_path, "bash", "-c")
    assert (tmp_path / "ablations" / "ablations.md").read_text().startswith("## Table 6: model sizes")
    (cell,) = json.loads((tmp_path / "ablations" / "ablations.json").read_text())["cells"]
    assert cell["layers"] == 2 and cell["pretraining"]["token_loss"] > 1
    out = run(conversions, environment, tmp_path, "bash", "-ec").stdout
    assert out.count("each with the same bits as in the source") == 4
    first, last = (tmp_path / name / "tokenizer_config.json" for name in ("bert_hf", "bert"))
    assert json.loads(first.read_text())["do_lower_case"] is json.loads(last.read_text())["do_lower_case"] is True
    run(classifier, environment, tmp_path, "bash", "-c")
    results = (tmp_path / "mrpc_output" / "eval_results.txt").read_text()
    assert [line.split(" = ")[0] for line in results.splitlines()] == [
        "eval_accuracy",
        "eval_f1",
        "eval_loss",
        "global_step",
        "loss",
    ]
    run(predictions, environment, tmp_path, "bash", "-c")
    assert (tmp_path / "mrpc_predictions" / "test_results.tsv").read_text().count("\n") == 70
    run(squad, environment, tmp_path, "bash", "-c")
    assert len(json.loads((tmp_path / "squad_base" / "predictions.json").read_text())) == 24
    assert "eval_f1 = " in (tmp_path / "squad_base" / "eval_results.txt").read_text()
    run(squad_2, environment, tmp_path, "bash", "-c")
    assert len(json.loads((tmp_path / "squad_v2" / "null_odds.json").read_text())) == 48
    assert (tmp_path / "squad_v2" / "best_model" / "question_answering.json").exists()
    run(ner, environment, tmp_path, "bash", "-c")
    lines = (tmp_path / "ner_output" / "predictions.conll").read_text().splitlines()
    assert [len(line.split()) for line in lines[:4]] == [3, 3, 3, 3]
    assert (tmp_path / "ner_output" / "eval_results.txt").exists()
    run(swag, environment, tmp_path, "bash", "-c")
    assert "eval_accuracy = " in (tmp_path / "swag_output" / "eval_results.txt").read_text()
    run(features, environment, tmp_path, "bash", "-c")
    lines = [json.loads(line) for line in (tmp_path / "output.jsonl").read_text().splitlines()]
    assert len(lines) == len((ROOT / "sample_text.txt").read_text().splitlines())
    assert lines[0]["features"][0]["token"] == "[CLS]"
    run(export, environment, tmp_path, "bash", "-c")
    assert json.loads((tmp_path / "serving" / "squad" / "1" / "export.json").read_text())["task"] == "squad"
    assert len(python) == 5
    # The programs go on in one notebook.
    run("\n".join(python), environment, tmp_path, sys.executable, "-c")
    assert (tmp_path / "model.keras").exists()
    assert (tmp_path / "classifier" / "model.safetensors").exists()


def test_make_targets_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_files_named_in_the_readme_exist():
    for name in re.findall(r"\]\((docs/[a-z_]+\.md)\)", README):
        assert (ROOT / name).exists(), name
    table = README.split("## Where things are")[1].split("## How exact")[0]
    for row in table.splitlines():
        folder = re.match(r"\| `([a-z_/]*/|)", row)
        for name in re.findall(r"`([a-z_/]+\.py)`", row):
            assert (ROOT / name).exists() or (ROOT / folder[1] / name).exists(), name
