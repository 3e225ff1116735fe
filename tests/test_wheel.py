"""The wheel outside the source folder, where of all packages only those that it requires can be imported."""

import importlib.metadata
import json
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile

import pytest
from helpers.paths import GOLDEN, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bert_tf.system.checks import EXTRAS

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
    named = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    named = {Requirement(line.partition("#")[0]).name for line in named if line and line[0] != "#"}
    optional = set().union(*(extras[name] for name in ("onnx", "beam", "dask", "chinese", "japanese")))
    assert named == core | set().union(*(extras[name] for name in EXTRAS)) - optional


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
    return subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()


def test_the_wheel_has_every_module_of_the_package_and_no_other(wheel):
    has = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".py", ".typed"))}
    assert has == {name for name in tracked("*.py", "*.typed") if name.startswith("bert_tf/")}


@pytest.fixture(scope="module")
def installed(wheel) -> pathlib.Path:
    """The folder of commands of an environment with the wheel and what it requires, without any extra."""
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
    return environment / "bin"


@pytest.mark.slow  # in small: the two above
def test_the_wheel_trains_predicts_and_exports_with_the_core_alone(installed, tmp_path):
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
