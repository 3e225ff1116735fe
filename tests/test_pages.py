"""The READMEs and pages of docs/: links, flags, figures and the site; docs/names.md and the original's names."""

import collections
import datetime
import doctest
import gzip
import importlib
import json
import operator
import pydoc
import re
import shlex
import shutil
import subprocess
import sys
import types

import measured
import numpy as np
import picture
import pytest
import site_pages
from helpers.basics import GOLDEN, PAGES, READMES, ROOT, blocks, lines_of
from helpers.tiny import SQUAD_SIZES

import bert_tf
from bert_tf import modeling, optimization, run_classifier, run_squad

# Examples, and files of a run, a model or the reference scripts.
USERS_FILES = {
    "text/", "start/", "records/", "evaluation/", "fine_tuning/", "pretrained/", "logs/", "run_NAME.py", "squad_hf.py",
    "ner_hf.py", "best_model/", "variables/", "module/", "results/",
}  # fmt: skip
# Of docker, systemd-run, TensorFlow Serving, wikiextractor, TensorBoard, Beam and XLA.
OTHER_PROGRAMS_FLAGS = {
    "no",  # pip --no-deps
    "zone",
    "allow_version_labels_for_unavailable_models", "batching_parameters_file", "enable_batching", "json", "logdir",
    "model_config_file", "model_config_file_poll_wait_seconds", "rm", "scope", "tensorflow_inter_op_parallelism",
    "tensorflow_intra_op_parallelism", "project", "region", "temp_location", "sdk_container_image", "flink_master",
    "environment_type", "environment_config", "spark_master_url", "help", "direct_running_mode", "direct_num_workers",
    "xla_cpu_max_isa", "dask_client_address", "dask_scheduler_file", "nthreads", "nworkers", "local", "accelerator",
}  # fmt: skip


@pytest.mark.parametrize("page", READMES)
def test_readme_is_short(page):
    assert len(PAGES[page].split()) <= 950
    table = re.search(r"^## (?:Where to find what|문서 찾아보기)\n(.*?)^## ", PAGES[page], re.MULTILINE | re.DOTALL)[1]
    assert len(re.findall(r"^\| .*\]\(", table, re.MULTILINE)) <= 14
    assert not re.search(r"^[IWE]\d{4} \d\d:", PAGES[page], re.MULTILINE), "a log's prefix"


def fenced(page):
    return re.findall(r"^```(\w*\n.*?)^```$", common(page), re.MULTILINE | re.DOTALL)


def common(page):
    """A README without the section that only the Korean one has."""
    return re.sub(r"^## 한국어 모델로 .*?(?=^## )", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)


def prose(page):
    return re.sub(r"^```.*?^```", "", common(page), flags=re.MULTILINE | re.DOTALL)


def test_the_korean_readme_says_what_the_english_one_says():
    assert fenced("README.ko") == fenced("README")
    links, code, tables = {}, {}, {}
    for page in READMES:
        links[page] = set(re.findall(r"\]\(([^)\s]+)\)", common(page)))
        code[page] = set(re.findall(r"`([^`\n]+)`", prose(page)))
        rows = re.findall(r"^\|.*\|$", prose(page), re.MULTILINE)
        tables[page] = [collections.Counter(re.findall(r"\d+(?:[.,]\d+)*", row)) for row in rows]
    translated = {"README.ko.md": "README.md"}
    assert {translated.get(link, link) for link in links["README"]} == links["README.ko"]
    assert code["README"] - code["README.ko"] == set()
    assert len(tables["README.ko"]) == len(tables["README"]), "a row of a table to translate or to remove"
    for english, korean in zip(*(tables[page] for page in READMES), strict=True):
        assert english - korean == collections.Counter(), "numbers that the Korean table lacks"
    english, korean = (re.findall(r"^(#+) (.*)$", prose(page), re.MULTILINE) for page in READMES)
    assert [level for level, _ in korean] == [level for level, _ in english]


def test_the_korean_examples_of_tokenization(monkeypatch):
    monkeypatch.chdir(GOLDEN)
    examples = "\n".join(blocks("korean", "pycon"))
    test = doctest.DocTestParser().get_doctest(examples, {}, "korean.md", None, 0)
    assert len(test.examples) == 12
    report = []
    assert doctest.DocTestRunner().run(test, out=report.append).failed == 0, "".join(report)


def test_make_targets_are_there():
    makefile = (ROOT / "Makefile").read_text()
    targets = {target for page in PAGES.values() for target in re.findall(r"(?:^|`)make ([a-z-]+)", page, re.MULTILINE)}
    assert {"demo", "docs", "test"} <= targets
    for target in targets:
        assert re.search(rf"^(.* )?{target}( .*)?:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    home = ROOT if page in READMES else ROOT / "docs"
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        assert not path or (home / path).is_file(), target
        text = PAGES[page] if not path else (home / path).read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)  # anchors as GitHub and `make docs` make them
        anchors = {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}
        assert not anchor or anchor in anchors, target


@pytest.mark.parametrize("page", PAGES)
def test_files_named_in_pages_exist(page):
    """`a/b.py` or `a/`; a bare `c.py` may also be in a folder named earlier on the page."""
    folders = [ROOT]
    for name in re.findall(r"`(?:python )?([\w/.-]+(?:\.py|\.ipynb|/))(?= |`)", PAGES[page]):
        if name in USERS_FILES:
            continue
        assert any((folder / name).exists() for folder in folders), name
        folders.append(ROOT / name if name.endswith("/") else (ROOT / name).parent)


def test_the_picture_of_the_house_has_every_package():
    house = PAGES["architecture"].split("```")[1]
    packages = {path.parent.name for path in (ROOT / "bert_tf").rglob("*/__init__.py")}
    assert set(re.findall(r"(\w+)/\s", house.split("bert_tf/\n")[1])) == packages


def test_flags_named_in_pages_exist():
    defined = set()
    for path in [*ROOT.glob("*.py"), *(ROOT / "bert_tf").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py"),
                 *(ROOT / "experiments").glob("*.py"), ROOT / "tests" / "kill_campaign.py"]:  # fmt: skip
        text = path.read_text()
        defined |= set(re.findall(r"DEFINE_\w+\(\s*\"(\w+)\"", text)) | set(re.findall(r"\"--(\w+)\"", text))
    defined |= {name for script in json.loads((GOLDEN / "flags.json").read_text()).values() for name in script}
    defined |= {f"no{name}" for name in defined}
    for page, text in PAGES.items():
        named = set(re.findall(r"(?<![\w-])--([a-z]\w*)", text))
        assert named - defined - OTHER_PROGRAMS_FLAGS == set(), page


def test_every_task_is_two_clicks_away():
    others = PAGES.keys() - {*READMES}
    for readme in READMES:
        first = {*re.findall(r"\]\(docs/([\w-]+)\.md", PAGES[readme])}
        assert first | {page for name in first for page in re.findall(r"\]\(([\w-]+)\.md", PAGES[name])} == others
    text = "".join(PAGES[page] for page in others)
    assert [path.name for path in ROOT.glob("*.py") if path.name not in text] == []


def test_the_site_has_every_page():
    settings = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    assert sorted(re.findall(r"([\w-]+)\.md", settings)) == sorted({"index", "index-ko", "api", *PAGES} - {*READMES})


def test_the_api_page_has_every_public_name_where_it_is_defined():
    page = site_pages.api_page()
    paths = re.findall(r"^::: (bert_tf\S+)$", page, re.MULTILINE)
    names = [*bert_tf.__all__, "checkpoints", "records"]
    assert [path.rpartition(".")[2] for path in paths] == re.findall(r"^### (\w+)$", page, re.MULTILINE) == names
    assert len(re.findall(r"^## ", page, re.MULTILINE)) == len(site_pages.SECTIONS)
    assert "`WordpieceTokenizer(vocab, unk_token='[UNK]', max_input_chars_per_word=200, never_split=())`\n" in page
    for path in paths:
        module, _, name = path.replace(".", "/").rpartition("/")
        if not (ROOT / module / f"{name}.py").exists():  # not a module but a class or function in one
            assert re.search(rf"^(class |def )?{name}\b", (ROOT / f"{module}.py").read_text(), re.MULTILINE), path


def test_links_of_the_site_stay_in_it(tmp_path):
    site_pages.write(tmp_path / "pages")
    text = "".join(page.read_text() for page in (tmp_path / "pages").glob("*.md"))
    links = {link for link in re.findall(r"\]\(([^)\s#]+)", text) if not link.startswith("https://")}
    assert {"api.md", "index-ko.md", "results.md"} < links
    assert [link for link in links if not (tmp_path / "pages" / link).is_file()] == []


@pytest.mark.parametrize("page", measured.PAGES)
def test_tables_of_measurements_are_written_from_the_records(page):
    for path, text in measured.written_anew(page).items():
        assert path.read_text() == text, f"python benchmarks/measured.py writes {path.name} anew"


@pytest.mark.parametrize("page", measured.PAGES)
def test_commands_of_measurements_name_scripts_and_flags(page):
    golden = json.loads((GOLDEN / "flags.json").read_text())
    for command in {record["command"] for record in measured.read_records(page) if "command" in record}:
        words = [word for word in shlex.split(command) if "=" not in word or word.startswith("--")]
        program = words[1].replace(".", "/") + ".py" if words[0] == "-m" else words[0]
        shared = [ROOT / "benchmarks" / name for name in ("measured.py", "serving.py", "random_xlm_roberta.py")]
        sources = [ROOT / program, *shared, *(ROOT / "experiments").glob("*.py")]
        defined = {name for path in sources for name in re.findall(r'DEFINE_\w+\(\s*"(\w+)"', path.read_text())}
        defined |= {f"no{name}" for name in defined} | {*golden.get((ROOT / program).stem, ())}
        assert {word[2:].partition("=")[0] for word in words if word.startswith("--")} <= defined, command
        assert not re.search(r"(?<![\w.*-])/|~", command), f"{command}: a path of one machine"


def test_a_new_measurement_takes_the_place_of_the_last_one_of_its_machine(monkeypatch, tmp_path):
    shutil.copytree(measured.RECORDS, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(measured, "RECORDS", tmp_path)
    monkeypatch.setattr(measured, "FLAGS", types.SimpleNamespace(measured=True, machine="A"))
    monkeypatch.setattr("sys.argv", ["finetune.py", "--data_dir=glue/MRPC", "--measured", "--machine=A"])
    for variables, ratios in (({"OMP_NUM_THREADS": "2"}, [1.7, 1.4, 1.5]), ({}, [1.4])):
        with monkeypatch.context() as patch:
            patch.setattr("os.environ", variables)
            figures = {"bert_tf, s": 100.0444, "transformers, s": 150}
            measured.add("fine-tuning", "MRPC, 3 epochs", figures, ratios=ratios)
    texts = measured.written_anew("benchmarks").items()
    new = {line for path, text in texts for line in {*text.splitlines()} - {*path.read_text().splitlines()}}
    ours, other = sorted(line for line in new if line.startswith("| MRPC, 3 epochs"))
    today = datetime.date.today().isoformat()
    assert ours.startswith(f"| MRPC, 3 epochs | 100.0 | 150 | 80.2 | 77.2 | 87.5 | **1.4** | A, {today} (")
    assert "; A, 2026-11-24 (bert_tf, dev accuracy, transformers, dev" in ours
    assert other == f"| MRPC, 3 epochs, OMP_NUM_THREADS=2 | 100.0 | 150 | | | | **1.5** (1.4 to 1.7) | A, {today} |"
    assert "OMP_NUM_THREADS=2 python benchmarks/finetune.py --data_dir=glue/MRPC" in new


def test_the_picture_shows_the_measurements():
    losses, ratios = picture.measurements(measured.read_rows("benchmarks"))
    assert [step for step, *_ in losses] == [500, 1000, 1500] and len(ratios) == 8 and min(ratios.values()) > 1
    drawn = picture.draw(losses, ratios)
    assert len(drawn.axes[1].patches) == 8
    assert (ROOT / "docs" / "images" / "same_numbers_faster.svg").read_text().count("<svg ") == 1


# Every public function and class of the original's files, and three others that people import.
NAMES = json.loads((GOLDEN / "names.json").read_text())
PAGE = (ROOT / "docs" / "names.md").read_text()


def rows_of(file: str) -> dict[str, str]:
    """The table of a file: the original's name -> what the page says of it."""
    section = PAGE.split(f"\n## {file}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \| (.*) \|$", section, re.MULTILINE)
    return {name: text for names, text in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("file", NAMES)
def test_the_page_has_every_name(file):
    assert sorted(rows_of(file)) == sorted(NAMES[file])


def test_what_the_page_names_can_be_imported():
    paths = set(re.findall(r"`(bert_tf(?:\.\w+)+)", PAGE))
    for file in NAMES:
        rows = rows_of(file).items()
        paths |= {f"bert_tf.{file.removesuffix('.py')}.{name}" for name, text in rows if text.startswith("the same")}
    assert len(paths) > 60 and [path for path in paths if pydoc.locate(path) is None] == []


@pytest.mark.parametrize("file", [file for file in NAMES if (ROOT / "bert_tf" / file).exists()])
def test_a_name_that_is_there_is_said_to_be(file):
    """ "The same" in the row of `gelu`, if and only if bert_tf/modeling.py has it."""
    here = importlib.import_module(f"bert_tf.{file.removesuffix('.py')}").__all__
    for name, text in rows_of(file).items():
        assert text.startswith("the same") == (name in here), name


@pytest.mark.parametrize("script", ["run_classifier", "run_squad"])
def test_the_scripts_have_the_names_too(script):
    code = f"""
import sys, {script} as script
print("bert_tf.{script}" in sys.modules)
from bert_tf import {script} as names
print(all(getattr(script, name) is getattr(names, name) for name in names.__all__), hasattr(script, "none"))
print([module for module in ("tensorflow", "keras") if module in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.splitlines() == ["False", "True False", "[]"]


def test_activations():
    x = np.array([-3.0, 0.0, 1.0], np.float32)
    np.testing.assert_allclose(modeling.gelu(x), [-0.00363739, 0.0, 0.84119199], atol=1e-6)
    for name in ("gelu", "GELU"):
        np.testing.assert_array_equal(modeling.get_activation(name)(x), modeling.gelu(x))
    np.testing.assert_array_equal(modeling.get_activation("ReLU")(x), [0, 0, 1])
    np.testing.assert_allclose(modeling.get_activation("tanh")(x), np.tanh(x), rtol=1e-6)
    assert modeling.get_activation(np.sin) is np.sin
    assert [modeling.get_activation(name) for name in ("linear", "", None)] == [None] * 3
    with pytest.raises(ValueError, match="Unsupported activation: 'swish'"):
        modeling.get_activation("swish")


def test_assignment_map(golden):
    folder = golden / "model" / "config1"
    model = modeling.BertModel(modeling.BertConfig.from_json_file(str(folder / "bert_config.json")))
    model.build()
    assignment, initialized = modeling.get_assignment_map_from_checkpoint(
        model.trainable_variables, str(folder / "bert_model.ckpt")
    )
    assert len(assignment) == 5 + 16 * 2 + 2 and all(key == value for key, value in assignment.items())
    assert "bert/encoder/layer_1/output/LayerNorm/gamma" in assignment  # and no cls/..., which the encoder lacks
    assert all(name.startswith("bert/") for name in assignment)
    assert set(initialized) == {spelling for name in assignment for spelling in (name, name + ":0")}
    assert set(initialized.values()) == {1}
    some = model.pooler.trainable_variables
    found = modeling.get_assignment_map_from_checkpoint(some, str(folder / "bert_model.ckpt"))[0]
    assert list(found) == ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
    with pytest.raises(FileNotFoundError):
        modeling.get_assignment_map_from_checkpoint(some, str(folder / "none.ckpt"))


def test_optimizer_class():
    import keras

    variable, found = keras.Variable([0.5], name="weights"), []
    optimizer = optimization.AdamWeightDecayOptimizer(0.1, weight_decay_rate=0.01)
    for gradient in (0.1, -0.2, 0.05):
        optimizer.apply_gradients([(keras.ops.convert_to_tensor([gradient]), variable)])
        found.append(float(variable[0]))
    np.testing.assert_allclose(found, [0.18337220237, 0.33874587942, 0.40606288601], rtol=2e-6)
    assert optimization.AdamWeightDecayOptimizer(0.1).weight_decay_rate == 0.0
    assert optimizer.global_clipnorm is None and optimizer.name == "AdamWeightDecayOptimizer"
    excluded = optimization.AdamWeightDecayOptimizer(0.1, 0.01, exclude_from_weight_decay=["bias"])
    excluded.build([keras.Variable([0.5], name="bias"), keras.Variable([0.5], name="kernel")])
    assert excluded.decayed == [False, True]
    again = keras.optimizers.deserialize(keras.optimizers.serialize(excluded))
    assert type(again) is type(excluded) and again.get_config() == excluded.get_config()


def test_create_optimizer(golden):
    tables = json.loads((golden / "optimizer" / "lr_schedule.json").read_text())
    for table in tables:
        arguments = {name: table[name] for name in ("init_lr", "num_train_steps", "num_warmup_steps")}
        optimizer = optimization.create_optimizer(**arguments)
        assert (optimizer.weight_decay_rate, optimizer.global_clipnorm) == (0.01, 1.0)
        assert optimizer.excluded_patterns == ("LayerNorm", "layer_norm", "bias")
        for step, rate in table["step_and_lr"]:
            optimizer.iterations.assign(step)
            assert float(optimizer.learning_rate) == pytest.approx(rate, rel=1e-6)


KINDS = [(name, kind) for name in ("Cola", "Mnli", "Mrpc", "Xnli") for kind in ("train", "dev", "test")]
KINDS.remove(("Xnli", "test"))  # not in the original


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_processors_and_features_equal_the_originals(golden, english, name, kind):
    folder, length = golden / "classifier" / name.lower(), 32
    expected = lines_of(folder / f"features_{kind}_{length}.jsonl.gz")
    processor = getattr(run_classifier, f"{name}Processor")()
    examples = getattr(processor, f"get_{kind}_examples")(str(folder))
    if kind == "dev":
        examples.append(run_classifier.PaddingInputExample())
    features = run_classifier.convert_examples_to_features(examples, processor.get_labels(), length, english)
    for example, feature, record in zip(examples, features, expected, strict=True):
        for key in ("guid", "text_a", "text_b", "label"):
            assert getattr(example, key, None) == record[key], key
        for key in ("input_ids", "input_mask", "segment_ids", "label_id", "is_real_example"):
            assert getattr(feature, key) == record[key], (record["guid"], key)


def test_a_processor_of_ones_own(tmp_path, english, caplog):
    class ReviewProcessor(run_classifier.DataProcessor):
        def get_dev_examples(self, data_dir):
            rows = self._read_tsv(f"{data_dir}/dev.tsv")
            return [run_classifier.InputExample(guid=f"dev-{k}", text_a=a, label=b) for k, (b, a) in enumerate(rows)]

        def get_labels(self):
            return ["bad", "good"]

    (tmp_path / "dev.tsv").write_text('good\tA "quoted warm film\n\nbad\tTwo hours\n')
    processor = ReviewProcessor()
    with pytest.raises(NotImplementedError, match="ReviewProcessor does not define get_train_examples"):
        processor.get_train_examples(str(tmp_path))
    examples = processor.get_dev_examples(str(tmp_path))
    assert [example.text_a for example in examples] == ['A "quoted warm film', "Two hours"]
    with caplog.at_level("INFO"):
        feature = run_classifier.convert_single_example(0, examples[0], ["bad", "good"], 6, english)
        run_classifier.convert_single_example(5, examples[1], ["bad", "good"], 6, english)
    assert [record.message for record in caplog.records] == ['Example dev-0, label good: [CLS] a " quoted warm [SEP]']
    assert feature == run_classifier.InputFeatures([101, 1037, 1000, 9339, 4010, 102], [1] * 6, [0] * 6, 1, True)


def features_of(examples, tokenizer, is_training) -> list:
    features = []
    sizes = dict(zip(("max_seq_length", "doc_stride", "max_query_length"), SQUAD_SIZES["S64"], strict=True))
    run_squad.convert_examples_to_features(
        examples=examples, tokenizer=tokenizer, is_training=is_training, output_fn=features.append, **sizes
    )
    return features


@pytest.mark.parametrize("version", ["v1.1", "v2.0"])
@pytest.mark.parametrize("mode", ["train", "predict"])
def test_squad_features_equal_the_originals(golden, english, mode, version):
    """Also of examples that are made with the original's arguments."""
    folder, is_training = golden / "squad", mode == "train"
    examples = run_squad.read_squad_examples(str(folder / f"{mode}-{version}.json"), is_training, version == "v2.0")
    names = ("qas_id", "question_text", "doc_tokens", "orig_answer_text", "start_position", "end_position")
    values = operator.attrgetter(*names, "is_impossible")
    made = [run_squad.SquadExample(*values(example)) for example in examples]
    assert [example.doc_tokens for example in made] == [example.doc_tokens for example in examples]
    paragraph = made[0].paragraph
    for word, start in zip(paragraph.words, paragraph.word_starts, strict=True):
        assert paragraph.context.startswith(word, start)
    features = features_of(examples, english, is_training)
    assert features_of(made, english, is_training) == features
    expected = lines_of(folder / f"features-{mode}-{version}-S64.jsonl.gz")
    for feature, record in zip(features, expected, strict=True):
        for key in ("token_to_orig_map", "token_is_max_context"):
            record[key] = {int(place): value for place, value in record[key].items()}
        assert vars(feature) == {**record, "is_impossible": bool(record["is_impossible"])}


@pytest.mark.parametrize("name", sorted(path.name for path in (GOLDEN / "squad").glob("output-*")))
def test_squad_answers_equal_the_originals(golden, english, tmp_path, name):
    folder, expected, version = golden / "squad", golden / "squad" / name, name.split("-")[1]
    settings = json.loads((expected / "settings.json").read_text())
    examples = run_squad.read_squad_examples(str(folder / f"predict-{version}.json"), False, version == "v2.0")
    features = features_of(examples, english, False)
    with np.load(folder / f"logits-{version}-S64.npz") as logits:
        columns = (logits[column].tolist() for column in ("unique_ids", "start_logits", "end_logits"))
        results = list(map(run_squad.RawResult, *columns))
    files = [tmp_path / f"{kind}.json" for kind in ("predictions", "nbest_predictions", "null_odds")]
    numbers = (settings.pop(key) for key in ("n_best_size", "max_answer_length", "do_lower_case"))
    run_squad.write_predictions(examples, features, results[::-1], *numbers, *map(str, files), **settings)
    assert [file.name for file in files if file.exists()] == [file.name for file in files][: 2 + (version == "v2.0")]
    for file in filter(lambda file: file.exists(), files):
        packed = expected / f"{file.name}.gz"
        original = gzip.decompress(packed.read_bytes()) if packed.exists() else (expected / file.name).read_bytes()
        assert file.read_bytes() == original
