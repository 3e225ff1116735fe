"""The READMEs and the pages of docs/: links, names, flags and figures in them, and the site."""

import ast
import collections
import datetime
import doctest
import json
import re
import shlex
import shutil
import types

import measured
import picture
import pytest
import site_pages
from helpers.pages import PAGES, READMES, blocks
from helpers.paths import GOLDEN, ROOT

import bert_tf

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
    """The same commands and outputs, links, code in the text, headings, and numbers in the tables."""
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
    packages = {
        path.parent.relative_to(ROOT / "bert_tf").as_posix() for path in (ROOT / "bert_tf").rglob("*/__init__.py")
    }
    assert set(re.findall(r"(\w+)/\s", house.split("bert_tf/\n")[1])) == {path.rpartition("/")[2] for path in packages}


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
        module, _, name = path.rpartition(".")
        source = ROOT / f"{path.replace('.', '/')}.py"
        if not source.exists():  # not a module but a class or function in one
            tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
            names = {getattr(node, "name", None) for node in tree.body}
            assigned = (target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets)
            names |= {getattr(target, "id", None) for target in assigned}
            assert name in names, path


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
        sources = [ROOT / program, *(ROOT / program).parent.glob("measured.py"), *(ROOT / "experiments").glob("*.py")]
        defined = {name for path in sources for name in re.findall(r'DEFINE_\w+\(\s*"(\w+)"', path.read_text())}
        defined |= {f"no{name}" for name in defined} | {*golden.get((ROOT / program).stem, ())}
        named = {word[2:].partition("=")[0] for word in words if word.startswith("--")}
        assert named <= defined, command
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
