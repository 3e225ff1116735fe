"""The READMEs and the pages of docs/: their commands and programs run, and the files and flags they name exist.

Commands run as they are written, with a temporary folder instead of runs/.
"""

import json
import os
import re
import shlex
import shutil
import string
import sys

import pytest
from helpers import warm
from helpers.descendants import save_model
from helpers.pages import PAGES, blocks
from helpers.paths import ROOT
from helpers.tiny import ONE_LAYER, TINY_CONFIG, write_encoder

from bert_tf.models.config import BertConfig
from bert_tf.models.directory import read_config
from bert_tf.models.families import family_named
from bert_tf.text.library_tokenizer import ByteBpeTokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer

# For each page: the first words of every command, and the number of Python programs.
COMMANDS = {
    "README": (["run_classifier.py", "run_classifier.py"], 1),
    "README.ko": (["run_classifier.py"] * 3, 2),  # a Korean one, then those of README, see below
    "checkpoints": (["Google's"], 1),
    "choice": (["run_swag.py"], 1),
    "classification": (["run_classifier.py"] * 4, 2),
    "data-at-scale": (["create_pretraining_data.py", "run_pretraining.py"], 0),
    "distillation": (["run_classifier.py", "create_pretraining_data.py"], 0),
    "domain": (["run_domain.py"], 0),
    "features": (["extract_features.py"], 0),
    "fit": ([], 1),
    "from-transformers": ([], 5),  # tests/test_from_transformers.py
    "korean": (
        ["run_classifier.py", "run_classifier.py", "run_similarity.py", "run_ner.py", "run_squad.py", "run_squad.py"],
        0,
    ),
    "lora": (["run_classifier.py"], 1),
    "models": (["run_classifier.py"], 0),
    "onnx": (["export_saved_model.py"], 2),
    "paper-recipe": ([*["create_pretraining_data.py"] * 2, *["run_pretraining.py"] * 2, "-m"], 0),
    "pretraining": (["create_pretraining_data.py", "run_pretraining.py", "-m"], 1),
    "pretraining-descendants": (["create_pretraining_data.py", *["create_vocab.py"] * 2], 0),
    "questions": (["run_squad.py", "run_squad.py"], 1),
    "sentences": (["run_similarity.py"], 2),
    "serving": (["export_saved_model.py"], 2),
    "settings-search": (["run_classifier.py"], 1),
    "tagging": (["run_ner.py"], 1),
    "vocabulary": (["create_vocab.py"] * 2, 1),
}
ON_THE_HUB = "google/bert_uncased_L-4_H-256_A-4"  # BERT_BASE_DIR takes its place


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder that replaces runs/."""
    return tmp_path_factory.mktemp("documentation")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """BERT_BASE_DIR with a tiny model in the form of a released one, and small datasets."""
    from bert_tf.models import initialize
    from bert_tf.models.task_models import BertForPreTraining
    from bert_tf.training import checkpoints

    model_folder = tmp_path_factory.mktemp("model")
    (model_folder / "vocab.txt").write_bytes((ROOT / "tests" / "golden" / "vocab.txt").read_bytes())
    config = {**TINY_CONFIG, "vocab_size": 30522, "max_position_embeddings": 512}
    (model_folder / "bert_config.json").write_text(json.dumps(config))
    model = BertForPreTraining(BertConfig.from_dict(config))
    model.build()
    checkpoints.write_bundle(str(model_folder / "bert_model.ckpt"), initialize.model_variables(model))
    glue = tmp_path_factory.mktemp("glue") / "MRPC"
    glue.mkdir()
    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    for name, first, count in (("train", "Quality", 70), ("dev", "Quality", 20), ("test", "index", 70)):
        rows = [[str(number % 2), "1", "2", f"Sentence {number}.", "Another."] for number in range(count)]
        lines = ["\t".join(row) + "\r\n" for row in [[first, *header[1:]], *rows]]
        (glue / f"{name}.tsv").write_text("".join(lines), encoding="utf-8-sig", newline="")
    (glue.parent / "STS-B").mkdir()
    for name in ("train", "dev"):
        rows = [f"{k}\tSentence {k}.\tAnother {k}.\t{k % 6}\n" for k in range(64)]
        (glue.parent / "STS-B" / f"{name}.tsv").write_text("index\tsentence1\tsentence2\tscore\n" + "".join(rows))
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
    return {
        **os.environ,
        "BERT_BASE_DIR": str(model_folder),
        "GLUE_DIR": str(glue.parent),
        "SQUAD_DIR": str(squad),
        "NER_DIR": str(ner),
        "SWAG_DIR": str(swag),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def replaced(text, parts):
    """The text with each of some parts, all of which it has, replaced by another."""
    for old, new in parts.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def run_commands(text, environment, folder):
    """Runs the commands of a block one after the other; returns what they wrote to both streams."""
    written = ""
    text = text.replace(ON_THE_HUB, environment["BERT_BASE_DIR"])
    for line in text.replace("runs/", f"{folder}/").replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(string.Template(line).substitute(environment), comments=True) or ["python"]
        assert program == "python"
        if arguments:
            written += run(arguments, environment)
    return written


def run(arguments, environment):
    result = warm.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, stdout=warm.PIPE, stderr=warm.STDOUT, text=True
    )
    assert result.returncode == 0, result.stdout[-5000:]
    return result.stdout


def run_python(page, environment, folder, check=""):
    """All programs of a page, one after the other in one process, as in a notebook; then a check of them."""
    program = "\n".join(blocks(page, "python")).replace(ON_THE_HUB, environment["BERT_BASE_DIR"])
    return run(["-c", program.replace("runs/", f"{folder}/") + check], environment)


@pytest.fixture(scope="module")
def squad_v2(environment, folder):
    """The folder of the second command of the page on questions, which the page on serving exports."""
    run_commands(blocks("questions", "shell")[1], environment, folder)
    return folder / "squad_v2"


def test_every_command_of_every_page_is_run():
    commands = {page: [text.split()[1] for text in blocks(page, "shell")] for page in PAGES}
    found = {page: (commands[page], len(blocks(page, "python"))) for page in PAGES}
    assert {page: counts for page, counts in found.items() if counts != ([], 0)} == COMMANDS


@pytest.mark.slow
def test_readme(environment, folder):
    reviews = folder / "reviews"
    reviews.mkdir()
    for name, count in (("train", 40), ("dev", 8)):
        words = [("bad", "negative"), ("good", "positive")] * (count // 2)
        rows = [f'"Film {k}, a {kind} one.",{label}' for k, (kind, label) in enumerate(words)]
        (reviews / f"{name}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (reviews / "new.csv").write_text("text\nA warm film.\nTwo hours.\n")
    train, predict = (text.replace("reviews/", "runs/reviews/") for text in blocks("README", "shell"))
    run_commands(train, environment, folder)
    assert "eval_accuracy = " in (reviews / "model" / "eval_results.txt").read_text()
    run_commands(predict, environment, folder)
    lines = (reviews / "predictions" / "predictions.jsonl").read_text().splitlines()
    assert [set(json.loads(line)["probabilities"]) for line in lines] == [{"negative", "positive"}] * 2
    (python,) = blocks("README", "python")
    here = {'bert_tf.download("uncased_L-4_H-256_A-4")': repr(environment["BERT_BASE_DIR"])}
    written = run(["-c", replaced(python, here)], environment)
    assert [float(line.split()[1]) > 0 for line in written.splitlines()[-5:]] == [True] * 5


@pytest.mark.slow
def test_korean(environment, folder):
    """On files of the published layouts; a model in which no character is unknown has the place of klue/bert-base."""
    home, texts = folder / "korean", ["배우들의 연기가 좋다.", "지루하고 재미없다!", "서울은 한국의 수도다."]
    (home / "nsmc").mkdir(parents=True)
    letters = sorted({*"".join(texts), '"'} - {" "})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    sizes = {**ONE_LAYER, "vocab_size": len(pieces), "max_position_embeddings": 512}
    write_encoder(home, pieces, sizes, do_lower_case=False)
    ner = "## klue-ner-v1_dev_00000-wikitree\t<서울:LC>은\n서\tB-LC\n울\tI-LC\n은\tO\n \tO\n한\tO\n\n"
    answers = [{"text": "서울", "answer_start": 0}]
    about = {"question": "한국의 수도", "answers": answers, "is_impossible": False}
    questions = [{"id": f"{k}", "guid": f"{k}", **about} for k in range(24)]
    squad = {"version": "KorQuAD_v1.0_dev", "data": [{"paragraphs": [{"context": texts[2], "qas": questions}]}]}
    for kind, count in (("train", 36), ("dev", 9)):
        pairs = [{"premise": text, "hypothesis": texts[0], "gold_label": label}
                 for text, label in zip(texts, ("entailment", "neutral", "contradiction"), strict=True)]  # fmt: skip
        scores = [{"sentence1": text, "sentence2": texts[k], "labels": {"label": 5.0 * (text == texts[k])}}
                  for k in range(3) for text in texts]  # fmt: skip
        titles = [
            {"title": text, "label": label} for text, label in zip(texts, ("IT과학", "사회", "세계"), strict=True)
        ]
        for name, rows in (("klue-nli", pairs), ("ynat", titles), ("klue-sts", scores)):
            rows = rows * (count // len(rows))
            (home / f"{name}-v1.1_{kind}.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1))
        (home / f"klue-ner-v1.1_{kind}.tsv").write_text(ner * count)
        for name in ("KorQuAD_v1.0", "klue-mrc-v1.1"):
            (home / f"{name}_{kind}.json").write_text(json.dumps(squad))
        rows = [f"{k}\t{texts[k % 2]}\t{1 - k % 2}\n" for k in range(count)]
        name = {"train": "train", "dev": "test"}[kind]
        (home / "nsmc" / f"ratings_{name}.txt").write_text("id\tdocument\tlabel\n" + "".join(rows))
    environment = {**environment, "KLUE_DIR": str(home)}
    for command in (blocks("README.ko", "shell")[0], *blocks("korean", "shell")):
        command = command.replace("klue/bert-base", f"{home}/encoder").replace("nsmc/", f"{home}/nsmc/")
        written = run_commands(command, environment, folder)
        assert "are [UNK]" not in written
        assert "run_ner.py" not in command or '("서울은 한")' in written
    run(["-c", blocks("README.ko", "python")[0].replace("nsmc/", f"{home}/nsmc/")], environment)
    assert "eval_f1" in (folder / "klue_ner" / "eval_results.txt").read_text()
    card = (home / "nsmc" / "model" / "best_model" / "README.md").read_text()
    assert '"대한민국의 수도는 서울이다."' in card and texts[0] not in card


@pytest.mark.slow
def test_pretraining(environment, folder):
    data, training, ablations = blocks("pretraining", "shell")
    run_commands(data, environment, folder)
    summary = json.loads(next(folder.glob("*.json")).read_text())
    assert summary["documents"] == 3
    log = run_commands(training, environment, folder)
    assert re.search(r"Initialised 46 of 46 variables", log)
    results = (folder / "pretraining_output" / "eval_results.txt").read_text()
    assert "global_step = 20\n" in results
    (folder / "novels").mkdir()
    for name in ("train-00", "train-01", "heldout"):
        (folder / "novels" / f"{name}.txt").write_text((ROOT / "sample_text.txt").read_text())
    small = {
        "SST-2": "MRPC",
        "5,6,8": "6",
        "tiny,L-4_H-128,L-2_H-256": "tiny",
        "steps=1000": "steps=4",
        "0.3": "1",
    }
    small["vocab_size=4000"] = "vocab_file=$BERT_BASE_DIR/vocab.txt"
    run_commands(replaced(ablations, small), environment, folder)
    assert (folder / "ablations" / "ablations.md").read_text().startswith("## Table 6: model sizes")
    (cell,) = json.loads((folder / "ablations" / "ablations.json").read_text())["cells"]
    assert cell["layers"] == 2 and cell["pretraining"]["token_loss"]["mean"] > 1
    run_python("pretraining", environment, folder)
    assert (folder / "model.keras").exists()


def test_small_configurations_are_of_the_family_that_the_files_name_says(tmp_path):
    found = re.findall(r"^`((\w+)_config\.json)`\n```json\n(.*?)```", PAGES["pretraining-descendants"], re.M | re.S)
    assert [family for _, family, _ in found] == ["albert", "electra", "roberta", "distilbert"]
    for name, family, text in found:
        (tmp_path / name).write_text(text)
        config = read_config(str(tmp_path / name))
        assert type(config) is family_named(family).config_class
        assert (config.num_hidden_layers, config.hidden_size) == (4, 256)
        assert config.max_length == (128 if family == "roberta" else 512)
        assert ("embedding_size" in json.loads(text)) is (family in ("albert", "electra"))
        (tmp_path / name).write_text(json.dumps({**json.loads(text), "model_type": family}))
        assert read_config(str(tmp_path / name)) == config
        (tmp_path / name).write_text(json.dumps({**json.loads(text), "model_type": "bert"}))
        with pytest.raises(ValueError, match=f"model_type .* is '{family}'"):
            read_config(str(tmp_path / name))
    (tmp_path / "small.json").write_text(found[-1][2])
    assert type(read_config(str(tmp_path / "small.json"))) is BertConfig


@pytest.mark.slow
def test_pretraining_descendants(environment, folder):
    tiny = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    sizes = {"electra_small": ("electra", 30522), "albert_base_v2": ("albert", 250), "roberta_base": ("roberta", 450)}
    for (size, (family, tokens)), text in zip(sizes.items(), blocks("pretraining-descendants", "shell"), strict=True):
        config_class = family_named(family).config_class
        positions = 128 + 2 * config_class.padding_has_a_position
        path = folder / f"{family}_config.json"
        config = {**tiny, "vocab_size": tokens, "max_position_embeddings": positions}
        config_class.from_dict(config).save(str(path))
        text = replaced(text, {f"--bert_size={size}": f"--bert_config_file={path}"})
        run_commands(text, environment, folder)
    assert {"discriminator", "generator"} < {path.name for path in (folder / "electra").iterdir()}
    assert "sentence_order_accuracy = " in (folder / "albert" / "model" / "eval_results.txt").read_text()
    assert "masked_lm_loss = " in (folder / "roberta" / "model" / "eval_results.txt").read_text()


@pytest.mark.slow
def test_paper_recipe(environment, folder):
    *data, short, long, hours = blocks("paper-recipe", "shell")
    (folder / "corpus").mkdir()
    (folder / "corpus" / "a.txt").write_text((ROOT / "sample_text.txt").read_text() * 4)
    for command in data:
        run_commands(command.replace("=100", "=2"), environment, folder)
    small = {"=base": "=tiny", "=256": "=2", "=1000000": "=4", "=10000 ": "=1 ", "=10000\n": "=1\n", "=900000": "=3"}
    assert "Resuming at step 3" in run_commands(replaced(short + long, small), environment, folder)
    assert (folder / "base" / "model.ckpt-4.index").exists()
    table = run_commands(hours, environment, folder).splitlines()[-4:]
    assert table[0].startswith("| size |") and "\n".join(table) in PAGES["paper-recipe"]


@pytest.mark.slow
def test_data_at_scale(environment, folder):
    data, training = blocks("data-at-scale", "shell")
    (folder / "wiki" / "AA").mkdir(parents=True)
    article = "The first sentence of {0}. Another one follows it here. " * 6 + "\nA paragraph more, about {0}. It ends."
    records = [json.dumps({"id": str(k), "title": f"T{k}", "text": article.format(f"house {k}")}) for k in range(90)]
    (folder / "wiki" / "AA" / "wiki_00").write_text("\n".join(records[:50]) + "\n")
    (folder / "wiki" / "AA" / "wiki_01").write_text("\n".join(records[50:]) + "\n")
    run_commands(data, environment, folder)
    summary = json.loads((folder / "wiki_records" / "pretraining_data.wiki.json").read_text())
    assert (summary["documents"], summary["sentences"]) == (90, 90 * 14)
    assert summary["padding_share"] < summary["padding_share_unpacked"] - 0.05
    run_commands(training, environment, folder)
    assert (folder / "wiki_model" / "model.ckpt-4.index").exists()


@pytest.mark.slow
def test_vocabulary(environment, folder):
    for command in blocks("vocabulary", "shell"):
        run_commands(command, environment, folder)
    assert len((folder / "vocab.txt").read_text().splitlines()) <= 600
    assert len(ByteBpeTokenizer.from_pretrained(str(folder / "roberta_vocab")).vocab) == 450
    assert len(SentencePieceTokenizer.from_pretrained(str(folder / "albert_vocab")).vocab) == 250


@pytest.mark.slow
def test_settings_search(environment, folder):
    (search,) = blocks("settings-search", "shell")
    search = replaced(search, {"2e-5,3e-5,5e-5": "2e-5,3e-5", "16,32": "32"})
    log = run_commands(search, environment, folder)
    table = (folder / "mrpc_search" / "search.md").read_text()
    assert table in log and table.count("\n") == 6
    assert (folder / "mrpc_search" / "best_model" / "README.md").exists()


@pytest.mark.slow
def test_tuner(environment, folder):
    (program,) = blocks("settings-search", "python")
    own = {
        "glue/MRPC": f"{environment['GLUE_DIR']}/MRPC",
        "uncased_L-12_H-768_A-12": environment["BERT_BASE_DIR"],
        "sqlite:///mrpc.db": f"sqlite:///{folder}/mrpc.db",
        "write_tf_records=False,": "write_tf_records=False, max_seq_length=24, num_train_epochs=1.0,",
        "n_trials=20": "n_trials=2",
        "runs/": f"{folder}/",
    }
    for trials in (2, 4):  # the second start goes on with the first one's study
        last = run(["-c", replaced(program, own)], environment).splitlines()[-1]
        assert (folder / "tuned" / str(trials - 1) / "best_model" / "README.md").exists()
        assert not (folder / "tuned" / str(trials)).exists()
    assert re.match(r"[0-3] \{'learning_rate': .*\} [0-9.]+$", last), last


@pytest.mark.slow
def test_checkpoints(environment, folder):
    (conversions,) = blocks("checkpoints", "shell")
    out = run_commands(conversions, environment, folder)
    assert out.count("each with the same bits as in the source") == 3
    first, last = (folder / name / "tokenizer_config.json" for name in ("bert_hf", "bert"))
    assert json.loads(first.read_text())["do_lower_case"] is json.loads(last.read_text())["do_lower_case"] is True
    run_python("checkpoints", environment, folder)
    assert (folder / "classifier" / "model.safetensors").exists()


@pytest.mark.slow
def test_classification(environment, folder):
    own, training, prediction, windows = blocks("classification", "shell")
    (folder / "films").mkdir()
    for name, count in (("train", 40), ("dev", 8), ("new", 4)):
        rows = [f"{17 + k},Film {k}.,{('positive', 'negative')[k % 4 == 0]}" for k in range(count)]
        (folder / "films" / f"{name}.csv").write_text("\n".join(["id,text,label", *rows]) + "\n")
    run_commands(own, environment, folder)
    (answer, *_) = (folder / "films" / "model" / "predictions.jsonl").read_text().splitlines()
    assert json.loads(answer)["id"] == "17"
    assert 'best_model")("Sentence 0.", "Another.")' in run_commands(training, environment, folder)
    results = (folder / "mrpc_output" / "eval_results.txt").read_text()
    names = ["eval_accuracy", "eval_f1", "eval_loss", "global_step", "loss"]
    assert [line.split(" = ")[0] for line in results.splitlines()] == names
    run_commands(prediction, environment, folder)
    assert (folder / "mrpc_predictions" / "test_results.tsv").read_text().count("\n") == 70
    (folder / "reports").mkdir()
    for name, count in (("train", 40), ("dev", 8)):
        texts = [
            (f"Report {k}. " + "The river was high. " * (k % 9) * 10, ("flood", "ship")[k % 2]) for k in range(count)
        ]
        (folder / "reports" / f"{name}.csv").write_text("".join(f"{a},{b}\n" for a, b in [("text", "topic"), *texts]))
    assert "texts are longer than --max_seq_length=128" in run_commands(windows, environment, folder)
    head = json.loads((folder / "reports" / "model" / "best_model" / "head_config.json").read_text())
    assert (head["window_pooling"], head["window_stride"], head["max_windows"]) == ("attention", 63, 16)
    run(["-c", blocks("classification", "python")[0].replace("runs/", f"{folder}/")], environment)


def test_the_mean_of_several_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, share in (("a", 0.9), ("b", 0.2), ("c", 0.3)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        rows = ({"yes": share, "no": 1 - share}, {"no": share, "yes": 1 - share})  # labels in any order
        lines = "".join(json.dumps({"probabilities": row}) + "\n" for row in rows)
        (tmp_path / "runs" / name / "predictions.jsonl").write_text(lines)
    names = {}
    exec(blocks("classification", "python")[1], names)
    assert names["answers"] == ["no", "yes"] and names["probabilities"].shape == (3, 2, 2)


@pytest.mark.slow
def test_fit(environment, folder):
    run_python("fit", environment, folder)
    assert json.loads((folder / "fit_model" / "head_config.json").read_text())["labels"][1] == "positive"
    assert (folder / "fit.keras").exists()


@pytest.mark.slow
def test_questions(environment, folder, squad_v2):
    run_commands(blocks("questions", "shell")[0], environment, folder)
    assert len(json.loads((folder / "squad_base" / "predictions.json").read_text())) == 24
    assert "eval_f1 = " in (folder / "squad_base" / "eval_results.txt").read_text()
    assert len(json.loads((squad_v2 / "null_odds.json").read_text())) == 48
    assert (squad_v2 / "best_model" / "question_answering.json").exists()
    run_python("questions", environment, folder)


@pytest.mark.slow
def test_tagging(environment, folder):
    (command,) = blocks("tagging", "shell")
    run_commands(command, environment, folder)
    lines = (folder / "ner_output" / "predictions.conll").read_text().splitlines()
    assert [len(line.split()) for line in lines[:4]] == [3, 3, 3, 3]
    assert (folder / "ner_output" / "eval_results.txt").exists()
    run_python("tagging", environment, folder)


@pytest.mark.slow
def test_choice(environment, folder):
    (command,) = blocks("choice", "shell")
    run_commands(command, environment, folder)
    assert "eval_accuracy = " in (folder / "swag_output" / "eval_results.txt").read_text()
    run_python("choice", environment, folder)


@pytest.mark.slow
def test_models(environment, folder, tmp_path):
    from bert_tf.models.task_models import BertModel

    families = {
        f"{name.upper()}_DIR": save_model(tmp_path / name, name, BertModel, max_length=512)
        for name in ("electra", "albert", "roberta", "distilbert")
    }
    (commands,) = blocks("models", "shell")
    run_commands(commands, {**environment, **families}, folder)
    for name in ("electra_mrpc", "roberta_ner", "distilbert_swag"):
        assert (folder / name / "eval_results.txt").exists()
    assert len(json.loads((folder / "albert_squad" / "predictions.json").read_text())) == 24


def test_the_table_of_recipes_is_the_codes():
    """Each number in the table of recipes is what the configuration of the family has."""
    from bert_tf.models.families import FAMILIES

    rows = [line.strip("|").split("|") for line in PAGES["models"].splitlines() if line.startswith("| `--")]
    columns = {"bert": 1, "albert": 1, "distilbert": 1, "electra": 2, "roberta": 3}
    checked = 0
    for row in rows:
        flag = row[0].strip(" `-")
        for family in FAMILIES:
            config = family.config_class(vocab_size=10)
            value = getattr(config if flag == "classifier_dropout" else config.recipe, flag)
            written = row[columns[family.model_type]]
            if flag == "classifier_dropout" and family.model_type == "distilbert":
                written = written.split("DistilBERT")[1]
            if isinstance(value, bool | None):
                assert written.strip() == ("on" if value else "off"), (flag, family)
            else:
                assert float(re.match(r" *([\d.e-]+)", written)[1]) == value, (flag, family)
            checked += 1
    assert checked == 8 * len(FAMILIES)


@pytest.mark.slow
def test_distillation(environment, folder):
    layers = "--student_layers=0,2,4,7,9,11"
    fine_tuning, pretraining = (text.replace(layers, "--student_layers=1") for text in blocks("distillation", "shell"))
    run_commands(fine_tuning, environment, folder)
    for name in ("mrpc_student", "mrpc_teacher"):
        assert "eval_accuracy = " in (folder / name / "eval_results.txt").read_text()
    sizes = [
        json.loads((folder / name / "bert_config.json").read_text())["num_hidden_layers"]
        for name in ("squad_teacher", "squad_student")
    ]
    assert sizes == [2, 1]
    run_commands(pretraining, environment, folder)
    assert "divergence = " in (folder / "distilbert" / "eval_results.txt").read_text()
    assert (folder / "mrpc_distilbert" / "best_model" / "distilbert_config.json").exists()


@pytest.mark.slow
def test_lora(environment, folder):
    (command,) = blocks("lora", "shell")
    assert "LoRA of rank 8, alpha 16: " in run_commands(command, environment, folder)
    (program,) = blocks("lora", "python")
    program = program.replace("uncased_L-12_H-768_A-12", environment["BERT_BASE_DIR"])
    run(["-c", program.replace("runs/", f"{folder}/")], environment)
    assert (folder / "mrpc_merged" / "bert_model.safetensors").exists()


@pytest.mark.slow
def test_sentences(environment, folder):
    program = "".join(blocks("sentences", "python")).replace("runs/", f"{folder}/")
    program = program.replace("sentence-transformers/all-MiniLM-L6-v2", environment["BERT_BASE_DIR"])
    run(["-c", f"{program}assert vectors.shape == (3, 32)"], environment)


@pytest.mark.slow
def test_domain(environment, folder):
    home = folder / "of_the_domain"
    (home / "texts").mkdir(parents=True)
    for name in ("texts/a.txt", "texts/b.txt", "texts/c.txt", "news.txt"):
        (home / name).write_text((ROOT / "sample_text.txt").read_text())
    for name in ("train", "dev"):
        (home / f"{name}.csv").write_text("text,label\n" + "A good one.,up\nA bad one.,down\n" * 6)
    (command,) = blocks("domain", "shell")
    own = {name: f"{home}/{name}" for name in ("texts/*.txt", "news.txt", "train.csv", "dev.csv")}
    printed = run_commands(replaced(command, {**own, "=1000": "=4"}), environment, folder)
    assert "the other text, masked_lm_loss: " in printed and "fine-tuned from domain: eval_accuracy" in printed
    page = PAGES["domain"]
    written = set(re.findall(r"`(\w+/|\w+\.\w+)`", page.split("## Reading")[0].split("| 1 |")[1]))
    written -= {"run_pretraining.py", "run_classifier.py"}
    assert {name for name in written if not (folder / "domain" / name).exists()} <= {"words.txt"}


@pytest.mark.slow
def test_features(environment, folder):
    (command,) = blocks("features", "shell")
    run_commands(command, environment, folder)
    lines = [json.loads(line) for line in (folder / "output.jsonl").read_text().splitlines()]
    assert len(lines) == len((ROOT / "sample_text.txt").read_text().splitlines())
    assert lines[0]["features"][0]["token"] == "[CLS]"


@pytest.mark.slow
@pytest.mark.usefixtures("squad_v2")
def test_serving(environment, folder):
    from bert_tf.models.task_models import BertForSequenceClassification

    (command,) = blocks("serving", "shell")
    run_commands(command, environment, folder)
    assert json.loads((folder / "serving" / "squad" / "1" / "export.json").read_text())["task"] == "squad"
    model = str(folder / "mrpc_output" / "best_model")
    shutil.rmtree(model, ignore_errors=True)  # another page's
    save_model(folder / "mrpc_output" / "best_model", "bert", BertForSequenceClassification, max_length=128)
    check = """
import numpy as np
ids = dict.fromkeys(inputs, np.ones([1, 128], np.int32))
found = tf.lite.Interpreter(model_content=lite).get_signature_runner()(**ids)["logits"]
np.testing.assert_allclose(found, model(ids), atol=0.1)
assert np.abs(found - model(ids)).max() > 1e-6  # 8 bits
"""
    run_python("serving", environment, folder, check)


@pytest.mark.slow  # in small: test_export_onnx.py
def test_onnx(environment, folder):
    from bert_tf.models.task_models import BertForSequenceClassification

    shutil.rmtree(folder / "mrpc_output", ignore_errors=True)  # another page's
    save_model(folder / "mrpc_output" / "best_model", "bert", BertForSequenceClassification, max_length=128)
    (command,) = blocks("onnx", "shell")
    run_commands(command, environment, folder)
    exported = folder / "onnx" / "mrpc" / "1"
    assert json.loads((exported / "export.json").read_text())["task"] == "classification"
    assert (exported / "model.onnx").stat().st_size > 1000 and (exported / "vocab.txt").exists()
    run_python("onnx", environment, folder)
