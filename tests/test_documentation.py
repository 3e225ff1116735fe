"""The READMEs and the pages of docs/: their commands and programs run, and the files and flags they name exist.

Commands run as they are written, with a temporary folder instead of runs/.
"""

import itertools
import json
import os
import re
import shlex
import string
import sys

import pytest
from helpers import warm
from helpers.basics import PAGES, ROOT, blocks
from helpers.tiny import ONE_LAYER, save_model, texts_of, write_encoder, write_questions

import bert_tf
from bert_tf.families import family_named
from bert_tf.store.description import read_config

# BERT_BASE_DIR takes their place.
MODELS = ("google/bert_uncased_L-4_H-256_A-4", "uncased_L-12_H-768_A-12", "sentence-transformers/all-MiniLM-L6-v2")


def written(path, text, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, **options)


def numbered(line, count):
    """The line with each number in place of {k}, and its remainders by 2, 4 and 6."""
    return "".join(line.format(k=k, two=k % 2, four=k % 4, six=k % 6) for k in range(count))


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """BERT_BASE_DIR with a tiny model in the form of a released one, and small datasets."""
    home = tmp_path_factory.mktemp("home")
    folders = {name: home / name for name in ("BERT_BASE", "GLUE", "SQUAD", "NER", "SWAG")}
    save_model(folders["BERT_BASE"], "bert", bert_tf.BertForPreTraining, format="tf1", max_length=512)
    for name in ("README.md", "tokenizer_config.json"):  # released ones have none
        (folders["BERT_BASE"] / name).unlink()
    for name, first, count in (("train", "Quality", 70), ("dev", "Quality", 20), ("test", "index", 70)):
        rows = f"{first}\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
        rows += numbered("{two}\t1\t2\tSentence {k}.\tAnother.\r\n", count)
        written(folders["GLUE"] / "MRPC" / f"{name}.tsv", rows, encoding="utf-8-sig", newline="")
    for name in ("train", "dev"):
        rows = "index\tsentence1\tsentence2\tscore\n" + numbered("{k}\tSentence {k}.\tAnother {k}.\t{six}\n", 64)
        written(folders["GLUE"] / "STS-B" / f"{name}.tsv", rows)
    folders["SQUAD"].mkdir()
    for name, version in itertools.product(("train", "dev"), ("1.1", "2.0")):
        write_questions(folders["SQUAD"] / f"{name}-v{version}.json", list(texts_of(48, 0)), version == "2.0")
    for name, count in (("train", 40), ("dev", 8), ("test", 8)):
        written(folders["NER"] / f"{name}.conll", "Anna B-PER\nlives O\nin O\nNew B-LOC\nYork I-LOC\n\n" * count)
    header = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    for name, count in (("train", 24), ("val", 8)):
        rows = numbered("{k},v,{k},x,She opens a box.,She,gold,sings.,shuts it.,runs.,sleeps.,{four}\n", count)
        written(folders["SWAG"] / f"{name}.csv", header + rows)
    for name in ("electra", "albert", "roberta", "distilbert"):
        folders[name.upper()] = save_model(home / name, name, bert_tf.BertModel, max_length=512)
    return os.environ | {f"{name}_DIR": str(path) for name, path in folders.items()}


def in_place(text, environment, folder):
    for name in MODELS:
        text = text.replace(name, environment["BERT_BASE_DIR"])
    return text.replace("$GLUE_DIR", environment["GLUE_DIR"]).replace("runs/", f"{folder}/")


def run_commands(text, environment, folder):
    said = ""
    for line in in_place(text, environment, folder).replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(string.Template(line).substitute(environment), comments=True) or ["python"]
        assert program == "python"
        if arguments:
            said += run(arguments, environment)
    return said


def run(arguments, environment):
    streams = {"stdout": warm.PIPE, "stderr": warm.STDOUT, "text": True}
    result = warm.run([sys.executable, *arguments], env=environment, cwd=ROOT, **streams)
    assert result.returncode == 0, result.stdout[-5000:]
    return result.stdout


def write_films(folder):
    for name, count in (("train", 40), ("dev", 8), ("new", 4)):
        rows = [f"{17 + k},Film {k}.,{('positive', 'negative')[k % 4 == 0]}\n" for k in range(count)]
        for home in ("films", "reviews"):
            written(folder / home / f"{name}.csv", "id,text,label\n" + "".join(rows))
        rows = [f"Report {k}. {'The river rose. ' * (k % 9) * 10},{('flood', 'ship')[k % 2]}\n" for k in range(count)]
        written(folder / "reports" / f"{name}.csv", "text,topic\n" + "".join(rows))
    for name in "abc":
        written(folder / name / "predictions.jsonl", '{"probabilities": {"no": 0.4, "yes": 0.6}}\n')


def write_wiki(folder):
    article = "The first sentence of {0}. Another one follows it here. " * 6 + "\nA paragraph more, about {0}. It ends."
    records = [json.dumps({"id": str(k), "title": f"T{k}", "text": article.format(f"house {k}")}) for k in range(90)]
    written(folder / "wiki" / "AA" / "wiki_00", "\n".join(records[:50]) + "\n")
    written(folder / "wiki" / "AA" / "wiki_01", "\n".join(records[50:]) + "\n")


def write_samples(folder):
    for name in ("novels/train-00", "novels/train-01", "novels/heldout", "texts/a", "texts/b", "texts/c", "texts/news"):
        written(folder / f"{name}.txt", (ROOT / "sample_text.txt").read_text())
    written(folder / "corpus" / "a.txt", (ROOT / "sample_text.txt").read_text() * 4)
    for name in ("train", "dev"):
        written(folder / f"{name}.csv", "text,label\n" + "A good one.,up\nA bad one.,down\n" * 6)


def save_models(folder):
    kinds = {"mrpc_output": "BertForSequenceClassification", "squad_v2": "BertForQuestionAnswering"}
    for name, kind in kinds.items():
        save_model(folder / name / "best_model", "bert", getattr(bert_tf, kind), max_length=128)
    save_model(folder / "xlmr", "xlm-roberta", bert_tf.BertModel, format="huggingface")


SMALL_RECIPE = {
    "=1000000": "=4", "=900000": "=3", "=10000 ": "=1 ", "=10000\n": "=1\n", "=100\n": "=2\n", "=256": "=2",
    "bert_size=base": "bert_size=tiny",
}  # fmt: skip
SMALL_ABLATIONS = {
    "SST-2": "MRPC", "5,6,8": "6", "tiny,L-4_H-128,L-2_H-256": "tiny", "steps=1000": "steps=4", "=0.3": "=1",
    "vocab_size=4000": "vocab_file=$BERT_BASE_DIR/vocab.txt",
}  # fmt: skip
SMALL_SEARCH = {
    "2e-5,3e-5,5e-5": "2e-5,3e-5", "=16,32": "=32", "glue/MRPC": "$GLUE_DIR/MRPC", "mrpc.db": "runs/mrpc.db",
    "write_tf_records=False,": "write_tf_records=False, max_seq_length=24, num_train_epochs=1.0,",
    "n_trials=20": "n_trials=2",
}  # fmt: skip
README_CHANGES = {"reviews/": "runs/reviews/", 'bert_tf.download("uncased_L-4_H-256_A-4")': repr(MODELS[0])}
OF_THE_DOMAIN = {
    "texts/*.txt": "runs/texts/?.txt", "=news.txt": "=runs/texts/news.txt", "=train.csv": "=runs/train.csv",
    "=dev.csv": "=runs/dev.csv", "=1000": "=4",
}  # fmt: skip
# page -> what its commands and programs leave in runs/; what takes the place of parts of them; what writes its files.
RUNS = {
    "README": ("reviews/model/best_model/README.md reviews/predictions/predictions.jsonl", README_CHANGES, write_films),
    "checkpoints": ("bert_hf/tokenizer_config.json bert/tokenizer_config.json classifier/model.safetensors", {}),
    "choice": ("swag_output/eval_results.txt", {}),
    "classification": ("films/model/predictions.jsonl mrpc_output/eval_results.txt mrpc_predictions/test_results.tsv "
                       "reports/model/best_model/head_config.json", {}, write_films),
    "data-at-scale": ("wiki_records/pretraining_data.wiki.json wiki_model/model.ckpt-4.index", {}, write_wiki),
    "distillation": ("mrpc_student/eval_results.txt squad_student/predictions.json distilbert/eval_results.txt "
                     "mrpc_distilbert/best_model/distilbert_config.json", {"=0,2,4,7,9,11": "=1"}),
    "domain": ("domain/domain.md", OF_THE_DOMAIN, write_samples),
    "features": ("output.jsonl", {}),
    "fit": ("fit.keras fit_model/head_config.json", {}),
    "lora": ("mrpc_lora/eval_results.txt mrpc_merged/bert_model.safetensors", {}),
    "models": ("electra_mrpc/eval_results.txt albert_squad/predictions.json roberta_ner/eval_results.txt "
               "distilbert_swag/eval_results.txt",
               {'"FacebookAI/xlm-roberta-base"': '"runs/xlmr"', "corpus.txt": "sample_text.txt"}, save_models),
    "onnx": ("onnx/mrpc/1/model.onnx onnx/mrpc/1/vocab.txt", {}, save_models),
    "paper-recipe": ("base/model.ckpt-4.index", SMALL_RECIPE, write_samples),
    "pretraining": ("pretraining_output/eval_results.txt ablations/ablations.md model.keras", SMALL_ABLATIONS,
                    write_samples),
    "questions": ("squad_base/predictions.json squad_base/eval_results.txt squad_v2/null_odds.json "
                  "squad_v2/best_model/question_answering.json", {}),
    "sentences": ("sts/eval_results.txt kitchen", {}),
    "serving": ("serving/squad/1/export.json", {}, save_models),
    "settings-search": ("mrpc_search/search.md mrpc_search/best_model/README.md tuned/1/best_model/README.md",
                        SMALL_SEARCH),
    "tagging": ("ner_output/predictions.conll ner_output/eval_results.txt", {}),
    "vocabulary": ("vocab.txt roberta_vocab/merges.txt albert_vocab/spiece.model my_bert/bert_model.ckpt.index",
                   {'"my_bert"': '"runs/my_bert"'}),
}  # fmt: skip
# Of pages: what their programs define is as it should be.
CHECKS = {
    "README": """
import json
lines = open("runs/reviews/predictions/predictions.jsonl").read().splitlines()
assert [set(json.loads(line)["probabilities"]) for line in lines] == [{"positive", "negative"}] * 4
assert 0 < probability < 1 and len(bert_tf.fill_mask(model, tokenizer, ["A [MASK]."])[0][0]) == 5
""",
    "models": """
import numpy as np
from bert_tf import Embedder
whole, small = (Embedder(path).encode(["A house"]) for path in ("runs/xlmr", folder))
assert len(kept) < len(pieces) and np.abs(small - whole).max() < 1e-6
""",
    "sentences": "assert vectors.shape == (3, 32)",
    "serving": """
import numpy as np
ids = dict.fromkeys(inputs, np.ones([1, 128], np.int32))
found = tf.lite.Interpreter(model_content=lite).get_signature_runner()(**ids)["logits"]
np.testing.assert_allclose(found, model(ids), atol=0.1)
assert np.abs(found - model(ids)).max() > 1e-6  # 8 bits
""",
}


def test_every_page_with_commands_is_run():
    others = {"README.ko", "korean", "pretraining-descendants", "from-transformers"}
    assert {page for page in PAGES if blocks(page, "shell") + blocks(page, "python")} == RUNS.keys() | others


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNS)
def test_commands_and_programs(page, environment, tmp_path):
    files, changes, *data = RUNS[page]
    for write in data:
        write(tmp_path)
    texts = ["".join(blocks(page, language)) for language in ("shell", "python")]
    for old, new in changes.items():
        assert old in "".join(texts), old
        texts = [text.replace(old, new) for text in texts]
    said = run_commands(texts[0], environment, tmp_path)
    run(["-c", in_place(texts[1] + CHECKS.get(page, ""), environment, tmp_path)], environment)
    assert [name for name in files.split() if not (tmp_path / name).exists()] == []
    if page == "paper-recipe":
        table = said.splitlines()[-4:]
        assert "Resuming at step 3" in said and table[0].startswith("| size |") and "\n".join(table) in PAGES[page]


@pytest.mark.slow
def test_korean(environment, tmp_path):
    """On files of the published layouts; a model in which no character is unknown has the place of klue/bert-base."""
    home, texts = tmp_path / "korean", ["배우들의 연기가 좋다.", "지루하고 재미없다!", "서울은 한국의 수도다."]
    home.mkdir()
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
        labels = zip(texts, ("entailment", "neutral", "contradiction"), ("IT과학", "사회", "세계"), strict=True)
        rows = [
            {"premise": text, "hypothesis": texts[0], "gold_label": label, "title": text, "label": topic,
             "sentence1": text, "sentence2": texts[0], "labels": {"label": 5.0 * (text == texts[0])}}
            for text, label, topic in labels
        ]  # fmt: skip
        content = json.dumps(rows * (count // 3), ensure_ascii=False, indent=1)
        files = {f"{name}-v1.1_{kind}.json": content for name in ("klue-nli", "ynat", "klue-sts")}
        files |= {f"{name}_{kind}.json": json.dumps(squad) for name in ("KorQuAD_v1.0", "klue-mrc-v1.1")}
        rows = "".join(f"{k}\t{texts[k % 2]}\t{1 - k % 2}\n" for k in range(count))
        files[f"nsmc/ratings_{kind.replace('dev', 'test')}.txt"] = "id\tdocument\tlabel\n" + rows
        for name, text in (files | {f"klue-ner-v1.1_{kind}.tsv": ner * count}).items():
            written(home / name, text)
    environment = {**environment, "KLUE_DIR": str(home)}
    for command in (blocks("README.ko", "shell")[0], *blocks("korean", "shell")):
        command = command.replace("klue/bert-base", f"{home}/encoder").replace("nsmc/", f"{home}/nsmc/")
        said = run_commands(command, environment, tmp_path)
        assert "are [UNK]" not in said
        assert "run_ner.py" not in command or '("서울은 한")' in said
    run(["-c", blocks("README.ko", "python")[0].replace("nsmc/", f"{home}/nsmc/")], environment)
    assert "eval_f1" in (tmp_path / "klue_ner" / "eval_results.txt").read_text()
    card = (home / "nsmc" / "model" / "best_model" / "README.md").read_text()
    assert '"대한민국의 수도는 서울이다."' in card and texts[0] not in card


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
    assert type(read_config(str(tmp_path / "small.json"))) is bert_tf.BertConfig


@pytest.mark.slow
def test_pretraining_descendants(environment, tmp_path):
    tiny = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    sizes = {"electra_small": ("electra", 30522), "albert_base_v2": ("albert", 250), "roberta_base": ("roberta", 450)}
    for (size, (family, tokens)), text in zip(sizes.items(), blocks("pretraining-descendants", "shell"), strict=True):
        config_class, path = family_named(family).config_class, tmp_path / f"{family}_config.json"
        positions = 128 + 2 * config_class.padding_has_a_position
        config_class.from_dict({**tiny, "vocab_size": tokens, "max_position_embeddings": positions}).save(str(path))
        assert f"--bert_size={size}" in text
        run_commands(text.replace(f"--bert_size={size}", f"--bert_config_file={path}"), environment, tmp_path)
    assert {"discriminator", "generator"} < {path.name for path in (tmp_path / "electra").iterdir()}
    assert "sentence_order_accuracy = " in (tmp_path / "albert" / "model" / "eval_results.txt").read_text()
    assert "masked_lm_loss = " in (tmp_path / "roberta" / "model" / "eval_results.txt").read_text()


def test_the_mean_of_several_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, share in (("a", 0.9), ("b", 0.2), ("c", 0.3)):
        rows = ({"yes": share, "no": 1 - share}, {"no": share, "yes": 1 - share})  # labels in any order
        lines = "".join(json.dumps({"probabilities": row}) + "\n" for row in rows)
        written(tmp_path / "runs" / name / "predictions.jsonl", lines)
    names = {}
    exec(blocks("classification", "python")[1], names)
    assert names["answers"] == ["no", "yes"] and names["probabilities"].shape == (3, 2, 2)


def test_the_table_of_recipes_is_the_codes():
    from bert_tf.families import FAMILIES

    rows = [line.strip("|").split("|") for line in PAGES["models"].splitlines() if line.startswith("| `--")]
    columns = {"bert": 1, "albert": 1, "distilbert": 1, "electra": 2, "roberta": 3, "xlm-roberta": 3}
    assert len(rows) == 8
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
