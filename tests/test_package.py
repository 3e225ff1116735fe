"""What `import bert_tf` provides, the help of scripts, what a wheel installs, and slices of the long tests."""

import argparse
import importlib.metadata
import importlib.util
import json
import pathlib
import pydoc
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile

import pytest
from helpers import slices, warm
from helpers.basics import GOLDEN, PAGES, ROOT, TESTS
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bert_tf
from bert_tf.system.checks import EXTRAS

SCRIPTS = sorted(path.stem for path in ROOT.glob("*.py"))


def test_import_is_light():
    code = "import gc, sys; before = [*sys.meta_path], gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()\n"
    code += "import bert_tf; assert 'Predictor' in bert_tf.__doc__ and 'Predictor' in dir(bert_tf)\n"
    code += "bert_tf.BertConfig, bert_tf.FullTokenizer; assert 'bert_tf.families' in sys.modules\n"
    code += "assert before == ([*sys.meta_path], gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())\n"
    code += "print([m for m in ('tensorflow', 'keras') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_every_public_name_is_there_and_help_has_a_line_for_it():
    described = dict(re.findall(r"^  (\w+)  +(\S.*)$", bert_tf.__doc__, re.MULTILINE))
    assert sorted(described) == sorted(bert_tf.__all__) == sorted(set(bert_tf.__all__))
    assert set(bert_tf.__all__) <= set(dir(bert_tf))
    page = pydoc.render_doc(bert_tf, renderer=pydoc.plaintext)
    for name, line in described.items():
        assert re.search(rf"^      {name}  +{re.escape(line)}$", page, re.MULTILINE), name
        assert not line.endswith(".") and len(line) < 80
        assert callable(getattr(bert_tf, name)) and getattr(bert_tf, name).__doc__, name


@pytest.mark.parametrize("script", SCRIPTS)
def test_missing_flags(script):
    result = warm.run([sys.executable, str(ROOT / f"{script}.py")], capture_output=True, text=True)
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(f"{script}.py: error: give --") and line.endswith("; --help lists all flags.")
    assert ("--output_dir" in line) == script.startswith("run_")


@pytest.mark.parametrize(("words", "said"), [
    ("bert_tf --version", f"{bert_tf.__version__}\n"),
    ("bert_tf run_glue", "bert-tf: error: there is no script 'run_glue'.\n"),
    ("bert_tf run_sqad", "bert-tf: error: there is no script 'run_sqad'. Did you mean run_squad?\n"),
    ("bert_tf.cli.run_ner --help",
     "run_ner.py: error: start it with `bert-tf run_ner`, or in a checkout with `python run_ner.py`.\n"),
])  # fmt: skip
def test_the_command_says_its_version_and_which_script_is_meant(words, said):
    command = [sys.executable, "-m", *words.split()]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (result.stderr or result.stdout, result.returncode) == (said, "error" in said)


def requirements_in(file: str) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines())
    return [Requirement(line) for line in lines if line]


REQUIRED = {requirement.name: requirement for requirement in requirements_in("requirements.txt")}


of_the_lock = pytest.mark.skipif(
    f"tensorflow=={importlib.metadata.version('tensorflow')}" not in (ROOT / "constraints.txt").read_text(),
    reason="another TensorFlow than that of constraints.txt, see the Makefile",
)


@of_the_lock
def test_installation_for_a_tpu_leaves_out_what_asks_for_tensorflow():
    """docs/tpu.md installs these packages without dependencies, since pip would put tensorflow over tensorflow-tpu."""
    needed = {name: importlib.metadata.requires(name) or [] for name in REQUIRED}
    needed = {name: [Requirement(line).name for line in needed[name] if "extra ==" not in line] for name in needed}
    asking = {name for name in needed if "tensorflow" in needed[name]}
    command = re.search(r"named='\^\((\S+)\)=='", PAGES["tpu"])
    assert set(command[1].split("|")) == asking


@of_the_lock
def test_tests_run_on_the_versions_that_users_get():
    """`make install` and `make test` install by constraints.txt, which `make lock` renews."""
    locked = {
        canonicalize_name(requirement.name): requirement.specifier
        for requirement in requirements_in("constraints.txt")
        if requirement.marker is None or requirement.marker.evaluate()
    }
    installed = {canonicalize_name(found.name): found.version for found in importlib.metadata.distributions()}
    other = [
        f"{name} {installed[name]}, not {locked[name]}"
        for name in installed.keys() & locked.keys()
        if not locked[name].contains(installed[name], prereleases=True)
    ]
    assert not other, other
    for name, requirement in REQUIRED.items():
        (pinned,) = locked[canonicalize_name(name)]
        assert requirement.specifier.contains(pinned.version), f"constraints.txt has {name}=={pinned.version}"


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def required_by(requirements) -> set[str]:
    """The distributions that requirements install, with what these require themselves."""
    found, left = set(), [(Requirement(line), {""}) for line in requirements]
    while left:
        requirement, asked = left.pop()
        if not requirement.marker or any(requirement.marker.evaluate({"extra": extra}) for extra in asked):
            name, extras = canonicalize_name(requirement.name), {"", *requirement.extras}
            if (name, *sorted(extras)) not in found:
                found.add((name, *sorted(extras)))
                left += [(Requirement(line), extras) for line in importlib.metadata.requires(name) or ()]
    return {name for name, *_ in found}


@of_the_lock
def test_extras_are_what_the_code_asks_for():
    lines = PROJECT["optional-dependencies"]
    extras = {name: {Requirement(line).name for line in lines[name]} for name in lines}
    (everything,) = lines["all"]
    assert Requirement(everything).extras == EXTRAS.keys() == extras.keys() - {"all"}
    providers = importlib.metadata.packages_distributions()
    for extra, modules in EXTRAS.items():
        for module in modules:
            assert {*map(canonicalize_name, providers[module])} <= required_by(lines[extra])
    core = {Requirement(line).name for line in PROJECT["dependencies"]}
    optional = set().union(*(extras[name] for name in ("onnx", "beam", "dask", "chinese", "japanese")))
    assert REQUIRED.keys() == core | set().union(*(extras[name] for name in EXTRAS)) - optional


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    """Built from a copy of the files that git knows, without tests and pages."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked("*.py", "*.md", "*.toml", "*.typed", "LICENSE"):
        if not name.startswith(("tests/", "docs/")):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, folder / "source"]
    subprocess.run([sys.executable, "-m", "pip", "-q", *build], check=True)
    (file,) = folder.glob("*.whl")
    return file


def tracked(*patterns: str) -> list[str]:
    command = ["git", "ls-files", *patterns]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def test_the_wheel_has_every_module_of_the_package_and_no_other(wheel):
    has = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".py", ".typed"))}
    assert has == {name for name in tracked("*.py", "*.typed") if name.startswith("bert_tf/")}


@pytest.mark.slow  # in small: the two above
def test_the_wheel_trains_predicts_and_exports_with_the_core_alone(wheel, tmp_path):
    environment = wheel.parent / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    install = ["--python", environment / "bin" / "python", "install", "--no-deps", "--no-index", wheel]
    subprocess.run([sys.executable, "-m", "pip", "-q", *install], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    for name in required_by(PROJECT["dependencies"]):
        for file in importlib.metadata.files(name):
            # Several distributions have a part of the folder `google`.
            link = site.joinpath(*file.parts[: 2 if file.parts[0] == "google" else 1])
            if not (".." in file.parts or link.exists()):
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(pathlib.Path(sysconfig.get_path("purelib")) / link.relative_to(site))
    installed = environment / "bin"  # with what the wheel requires, without any extra
    environment = {"PATH": str(installed), "TF_CPP_MIN_LOG_LEVEL": "2", "HOME": str(tmp_path)}

    def run(command, *arguments):
        line = [installed / command, *arguments]
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    (tmp_path / "train.csv").write_text("text,label\n" + "a good film,yes\na bad film,no\n" * 8)
    size = len((GOLDEN / "vocab.txt").read_text(encoding="utf-8").splitlines())
    config = {"vocab_size": size, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config |= {"intermediate_size": 8, "max_position_embeddings": 16}
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    table = ["--task_name=custom", "--text_a=text", "--label=label", "--train_file=train.csv", "--dev_file=train.csv"]
    model = ["--bert_config_file=bert_config.json", f"--vocab_file={GOLDEN / 'vocab.txt'}", "--max_seq_length=16"]
    # The run and the export in one process, which imports TensorFlow once.
    use = "import bert_tf; from bert_tf.__main__ import main; from bert_tf.serving.export import export_saved_model\n"
    use += "try: main()\nexcept SystemExit as end: assert not end.code\n"
    use += "print('answer:', bert_tf.Predictor(export_saved_model('out/best_model', 'export'))('a film')['label'])"
    given = [*table, *model, "--do_train", "--do_eval", "--output_dir=out"]
    code, said = run("python", "-c", use, "run_classifier", *given)
    assert code == 0 and re.search(r"^answer: (yes|no)$", said, re.MULTILINE), said
    assert "plot_training_log draws nothing: pip install 'bert-tf[plots]'" in said, said
    assert (tmp_path / "export" / "1" / "assets.extra" / "tf_serving_warmup_requests").stat().st_size
    data = ["--input_file=train.csv", "--vocab_file=v", "--output_file=o"]
    code, said = run("bert-tf", "create_pretraining_data", *data)
    needed = "needs sentencex: pip install 'bert-tf[pretraining]'"
    assert code == 1 and said.strip().endswith(needed) and "Traceback" not in said, said
    code, said = run("bert-tf", "classify")
    assert code == 1 and "run_classifier " in said and "there is no script 'classify'" in said


@pytest.mark.parametrize("count", [1, 4, 11])
def test_they_are_all_tests_once_and_take_about_the_same_time(count):
    """A new file, or a selection of tests, moves no other file."""
    seconds = slices.recorded()
    files = {*seconds, "tests/test_new.py", "tests/models/test_new.py"}
    parts = slices.divide(files, seconds, count)
    assert len(parts) == count and sorted(file for part in parts for file in part) == sorted(files)
    sums = [sum(seconds.get(file, 30) for file in part) for part in parts]
    assert max(sums) <= 1.1 * sum(sums) / count
    few = {*list(seconds)[::3]}
    assert slices.divide(few, seconds, count) == [part & few for part in parts]


def test_pytest_collects_the_tests_of_a_slice():
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--collect-only", "-q", "tests/store", "--slice=1/2"]
    result = warm.run(command, cwd=ROOT, capture_output=True, text=True)
    found = {*re.findall(r"^(tests/\S+)::", result.stdout, re.MULTILINE)}
    assert {f"tests/store/{path.name}" for path in (ROOT / "tests" / "store").glob("test_*.py")} > found != set()
    with pytest.raises(argparse.ArgumentTypeError, match="3/2: expected a slice and their number, as in 2/4"):
        slices.parse("3/2")


def test_commits_add_what_mirrors_their_files_and_never_too_much():
    for path, room in {
        "bert_tf/models/albert/layers.py": "models",  # there is no such folder of tests
        "bert_tf/models/bert/layers.py": "models/bert",
        "bert_tf/cli/run_ner.py": "scripts",
        "demo/__main__.py": "demo",
        "docs/data.md": "",
    }.items():
        assert slices.room_of(path) == TESTS / room
    long, changed, short = files = [f"tests/models/test_{name}.py" for name in ("long", "changed", "short")]
    seconds = {long: slices.MOST_SECONDS, changed: slices.MOST_SECONDS - 30}
    found = slices.touched([*files, "tests/text/test_other.py"], seconds, ["bert_tf/models/changed.py"])
    assert found == {changed, short}


def test_a_slice_and_what_commits_add_to_it(monkeypatch):
    files = list(slices.recorded())
    monkeypatch.setattr(slices, "changed_files", lambda commits: ["bert_tf/text/wordpiece.py"] if commits == 3 else [])
    alone, more = slices.chosen(files, (2, 7), 0), slices.chosen(files, (2, 7), 3)
    assert alone < more and {file for file in more - alone if not file.startswith("tests/text/")} == set()
    assert slices.chosen(files, (2, 7), 9) == alone
    monkeypatch.undo()
    assert set(slices.changed_files(2)) >= set(slices.changed_files(1)) != set()
