"""The commands of docs/data.md read ten rows in the layout of each published data set, by the scripts' own flags.

The texts are made up; names, order and types of fields, quotation marks and odd values are those of the publications.
"""

import json
import re
import shlex

import pytest
from helpers.basics import PAGES
from helpers.hub_server import hub_of, parquet_of
from helpers.script_cases import run_main

from bert_tf.system.declare import settings_of
from bert_tf.system.text_files import list_files
from bert_tf.tasks.choice import data as choice
from bert_tf.tasks.classification.settings import read_sets
from bert_tf.tasks.ner import data as ner
from bert_tf.tasks.similarity import data as similarity
from bert_tf.tasks.squad import data as squad
from bert_tf.training import settings
from bert_tf.training.settings import FineTuningSettings

COMMANDS = re.findall(r"`(run_\w+\.py .*?)` \|", PAGES["data"])
TEN = range(10)
NLI = ["entailment", "neutral", "contradiction"]
TOPICS = ["IT과학", "경제", "사회", "생활문화", "세계", "스포츠", "정치"]
TAGS = [f"{place}-{kind}" for kind in ("DT", "LC", "OG", "PS", "QT", "TI") for place in "BI"] + ["O"]
OCNLI = [*NLI, *NLI, *NLI, "-"]  # where the annotators did not agree
SCORES = [k / 2 for k in TEN]


def lines_of(*rows, separator="\t") -> bytes:
    return ("\n".join(separator.join(map(str, row)) for row in rows) + "\n").encode()


def json_lines(rows) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def array(rows) -> bytes:
    return json.dumps(list(rows), ensure_ascii=False, indent=4).encode()


def pair(k: int, first="sentence1", second="sentence2") -> dict:
    return {first: f'그는 "{k}번이라고 말했다.', second: f"{k}번이다, 라고."}


def sts(k: int, binary) -> dict:
    labels = {"label": SCORES[k], "real-label": SCORES[k] + 1 / 7, "binary-label": binary}
    return {"guid": f"klue-sts-v1_train_{k:05}", "source": "airbnb-rtt", **pair(k), "labels": labels}


def sentence_of(k: int) -> list[tuple[str, str]]:
    return [("박", "B-PS"), (str(k), "I-PS"), (" ", "O"), ("씨", "O")]


def question(k: int, name="id", **more) -> dict:
    return {name: f"q-{k}", "question": f"{k}번은?", "answers": [{"text": "서울", "answer_start": 3}], **more}


def squad_file(**more) -> bytes:
    entry = {"context": "답은 서울이다.", "qas": [question(k, **more) for k in TEN]}
    return json.dumps({"version": "KorQuAD_v1.0_train", "data": [{"title": "도시", "paragraphs": [entry]}]}).encode()


def squad_rows(**more) -> list[dict]:
    answers = {"text": ["서울"], "answer_start": [3]}
    about = {"title": "도시", "context": "답은 서울이다.", "answers": answers}
    return [{"id": f"q-{k}", "question": f"{k}번은?", **about, **more} for k in TEN]


def mrc_rows() -> list[dict]:
    rows = [{"guid": row.pop("id"), "is_impossible": k > 7, **row} for k, row in enumerate(squad_rows())]
    return rows[:8] + [row | {"answers": {"text": [], "answer_start": []}} for row in rows[8:]]


NSMC = [("id", "document", "label"), *((k, "" if k == 4 else f'"{k}점! 굿ㅋㅋ', k % 2) for k in TEN)]
KORNLI = [("sentence1", "sentence2", "gold_label"), ("그는 말했다.", "neutral"),
          *((*pair(k).values(), NLI[k % 3]) for k in TEN)]  # fmt: skip
KORSTS = [("genre", "filename", "year", "id", "score", "sentence1", "sentence2"),
          *(("main-captions", "MSRvid", "2012test", f"{k:04}", f"{SCORES[k]:.3f}", *pair(k).values())
            for k in TEN)]  # fmt: skip
PAWS = [("id", "sentence1", "sentence2", "label"), *((k + 1, *pair(k).values(), k % 2) for k in TEN)]
NER = ["## 컬럼명 : CHAR\tNE_TAG"]
for k in TEN:
    NER += [f"## klue-ner-v1_train_{k:05}-nsmc\t<박{k}:PS> 씨", *map("\t".join, sentence_of(k)), ""]
KLUE_NER = {"feature": {"names": TAGS, "_type": "ClassLabel"}, "length": -1, "_type": "Sequence"}

# The first file of a command -> its content (also that of the dev set), and what is read of it.
CASES = {
    "klue-nli-v1.1_train.json": (
        array({"guid": f"klue-nli-v1_train_{k:05}", "source": "airbnb", **pair(k, "premise", "hypothesis"),
               "gold_label": NLI[k % 3], "author": NLI[k % 3], "label2": NLI[0]} for k in TEN), NLI * 3 + NLI[:1]),
    "hf://datasets/klue/klue/nli/train-*.parquet": (
        parquet_of([{"guid": str(k), "source": "airbnb", **pair(k, "premise", "hypothesis"), "label": k % 3}
                    for k in TEN], label=NLI), NLI * 3 + NLI[:1]),
    "klue-sts-v1.1_train.json": (array(sts(k, k % 2) for k in TEN), SCORES),
    "hf://datasets/klue/klue/sts/train-*.parquet": (
        parquet_of([sts(k, k % 2) for k in TEN], labels={
            "label": {"dtype": "float64", "_type": "Value"}, "real-label": {"dtype": "float64", "_type": "Value"},
            "binary-label": {"names": ["negative", "positive"], "_type": "ClassLabel"}}), SCORES),
    "ynat-v1.1_train.json": (
        array({"guid": f"ynat-v1_train_{k:05}", "title": f"‘{k}’…유튜브 공간 운영",
               "label": TOPICS[k % 7], "annotations": {"annotators": ["08"], "annotations": {"first-scope": ["사회"]}},
               "url": "https://news.example", "date": "2016.06.30. 오전 10:36"} for k in TEN),
        [TOPICS[k % 7] for k in TEN]),
    "klue-ner-v1.1_train.tsv": (("\n".join(NER) + "\n").encode(), [tag for k in TEN for _, tag in sentence_of(k)]),
    "hf://datasets/klue/klue/ner/train-*.parquet": (
        parquet_of([{"sentence": f"<박{k}:PS> 씨", "tokens": [char for char, _ in sentence_of(k)],
                     "ner_tags": [TAGS.index(tag) for _, tag in sentence_of(k)]} for k in TEN], ner_tags=KLUE_NER),
        [tag for k in TEN for _, tag in sentence_of(k)]),
    "klue-mrc-v1.1_train.json": (squad_file(name="guid", question_type=1, is_impossible=False), ["서울"] * 10),
    "hf://datasets/klue/klue/mrc/train-*.parquet": (parquet_of(mrc_rows()), ["서울"] * 8 + [""] * 2),
    "ratings_train.txt": (lines_of(*NSMC), ["0", "1"] * 5),
    "hf://datasets/e9t/nsmc@~parquet/default/train/*.parquet": (
        parquet_of([dict(zip(NSMC[0], (str(row[0]), *row[1:]), strict=True)) for row in NSMC[1:]],
                   label=["negative", "positive"]), ["negative", "positive"] * 5),
    "multinli.train.ko.tsv": (lines_of(*KORNLI), NLI * 3 + NLI[:1]),
    "sts-train.tsv": (lines_of(*KORSTS), SCORES),
    "KorQuAD_v1.0_train.json": (squad_file(), ["서울"] * 10),
    "hf://datasets/KorQuAD/squad_kor_v1/squad_kor_v1/train-*.parquet": (parquet_of(squad_rows()), ["서울"] * 10),
    "marc_ja-v1.1/train-v1.0.json": (
        json_lines({"review_id": f"R{k}", "text": f"{k}回\u3000買う。\nよい", "label": ["positive", "negative"][k % 2]}
                   for k in TEN), ["positive", "negative"] * 5),
    "jsts-v1.1/train-v1.1.json": (
        json_lines({"sentence_pair_id": str(k), "yjcaptions_id": "10005_480796-10996", **pair(k), "label": SCORES[k]}
                   for k in TEN), SCORES),
    "jnli-v1.1/train-v1.1.json": (
        json_lines({"sentence_pair_id": str(k), "yjcaptions_id": "1-g2", **pair(k), "label": NLI[k % 3]} for k in TEN),
        NLI * 3 + NLI[:1]),
    "jsquad-v1.1/train-v1.1.json": (squad_file(is_impossible=False), ["서울"] * 10),
    "jcommonsenseqa-v1.1/train-v1.1.json": (
        json_lines({"q_id": k, "question": f"{k}は？", **{f"choice{n}": f"{n}番" for n in range(5)}, "label": k % 5}
                   for k in TEN), [k % 5 for k in TEN]),
    "tnews_public/train.json": (
        json_lines({"label": str(108 + k % 2), "label_desc": ["news_edu", "news_tech"][k % 2], "sentence": f"第{k}个",
                    "keywords": "" if k else "手机,响"} for k in TEN), ["news_edu", "news_tech"] * 5),
    "afqmc_public/train.json": (json_lines(pair(k) | {"label": str(k % 2)} for k in TEN), ["0", "1"] * 5),
    "cmnli_public/train.json": (json_lines(pair(k) | {"label": OCNLI[k]} for k in TEN), NLI * 3),
    "ocnli_public/train.50k.json": (
        json_lines({"level": "medium", **pair(k), "label": OCNLI[k], "label0": "neutral", "genre": "lit",
                    "prem_id": "l_1", "id": k} for k in TEN), NLI * 3),
    "iflytek_public/train.json": (
        json_lines({"label": str(k % 2), "label_des": ["打车", "地图导航"][k % 2], "sentence": f"应{k}"} for k in TEN),
        ["打车", "地图导航"] * 5),
    "hf://datasets/clue/clue/tnews/train-*.parquet": (
        parquet_of([{"sentence": f"第{k}个", "label": k % 2, "idx": k} for k in TEN], label=["100", "101"]),
        ["100", "101"] * 5),
    "XNLI": (lines_of(("premise", "hypo", "label"), *((f"第{k}句 \"", "第二句", [*NLI[:2], "contradictory"][k % 3])
                                                     for k in TEN)), NLI * 3 + NLI[:1]),
    "hf://datasets/facebook/xnli/zh/train-*.parquet": (
        parquet_of([pair(k, "premise", "hypothesis") | {"label": k % 3} for k in TEN], label=NLI), NLI * 3 + NLI[:1]),
    "x-final/ko/translated_train.tsv": (lines_of(*PAWS), ["0", "1"] * 5),
    "hf://datasets/google-research-datasets/paws-x/ko/train-*.parquet": (
        parquet_of([{"id": k + 1, **pair(k), "label": k % 2 if k else -1} for k in TEN], label=["0", "1"]),
        (["0", "1"] * 5)[1:]),
}  # fmt: skip


class Checked(Exception):
    """Ends a main when its settings are checked."""


def settings_from(command: str, patch):
    """The task's settings that a script's main makes of a command, after all checks of the files."""

    def check(kind, values, *_):
        own = settings_of(kind, values)
        own.check(settings_of(FineTuningSettings, values))
        raise Checked(own)

    patch.setattr(settings, "checked_settings", check)
    script, *arguments = shlex.split(command)
    run = ["--do_train", "--do_eval", "--output_dir=out", "--train_batch_size=8"]
    with pytest.raises(Checked) as checked:
        run_main(script.removesuffix(".py"), [*arguments, *run])
    return checked.value.args[0]


def labels_in(script: str, own, name: str) -> list:
    file = getattr(own, f"{name}_file", None)
    if script == "run_squad.py":
        read = squad.read_squad_examples(list_files(file), True, own.version_2_with_negative)
        return [one.orig_answer_text for one in read.examples]
    if script == "run_ner.py":
        [path] = list_files(file)
        return [tag for one in ner.read_conll(path, own).sentences for tag in one.tags]
    if script == "run_swag.py":
        return [one.label for one in choice.read_examples(file, own.columns, first_label=own.first_label)]
    if script == "run_similarity.py":
        examples = similarity.read_examples(file, own.columns, score_range=own.scores_between)
        return [5 * one.score for one in examples]
    _, sets = read_sets(own, FineTuningSettings(output_dir="", do_train=True, do_eval=True))
    return [one.label for one in sets[name][name]]


def write(path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("command", COMMANDS)
def test_ten_rows(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script, *arguments = shlex.split(command)
    given = dict(argument.removeprefix("--").split("=", 1) for argument in arguments if "=" in argument)
    first = given.get("train_file", given.get("data_dir"))
    content, expected = CASES[first]
    files = {}
    if first == "XNLI":
        write(tmp_path / "XNLI/multinli/multinli.train.zh.tsv", content)
        header = ["language", "gold_label", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse",
                  "sentence2_parse", "sentence1", "sentence2", "promptID", "pairID", "genre", "label1"]  # fmt: skip
        rows = [["zh" if k else "ur", NLI[k % 3], "", "", "", "", f"第{k}句", "第二句", k, k, "x", NLI[k % 3]]
                for k in range(11)]  # fmt: skip
        write(tmp_path / "XNLI/xnli.dev.tsv", lines_of(header, *rows))
    elif match := re.fullmatch("hf://datasets/([^/]+/[^/@]+)(?:@~parquet)?/(.*)", first):
        dev = given["dev_file"].partition(match[1])[2].removeprefix("@~parquet").removeprefix("/")
        files = {match[1]: {name.replace("*", "00000-of-00001"): content for name in (match[2], dev)}}
    else:
        write(tmp_path / first, content)
        write(tmp_path / given["dev_file"], content)
    # Of XNLI's dev set those of its language.
    of_dev = [NLI[k % 3] for k in range(1, 11)] if first == "XNLI" else expected
    with hub_of(monkeypatch, tmp_path, files):
        own = settings_from(command, monkeypatch)
        for name, labels in {"train": expected, "dev": of_dev}.items():
            assert labels_in(script, own, name) == pytest.approx(labels)


def test_the_page_has_every_case():
    named = [re.search(r"--(?:train_file|data_dir)=(\S+)", command)[1] for command in COMMANDS]
    assert sorted(named) == sorted(CASES)
