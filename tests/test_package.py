"""What `import bert_tf` provides, and the scripts' help."""

import importlib.metadata
import importlib.util
import pydoc
import re
import subprocess
import sys

import pytest
from helpers import warm
from helpers.paths import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bert_tf

SCRIPTS = sorted(path.stem for path in ROOT.glob("*.py"))


def test_every_public_name_is_there():
    for name in bert_tf.__all__:
        value = getattr(bert_tf, name)
        assert callable(value)
        assert value.__doc__, name
    with pytest.raises(AttributeError, match="no_such_name"):
        bert_tf.no_such_name  # noqa: B018


def test_import_is_light():
    """Importing the package loads neither TensorFlow nor Keras, and changes nothing in its host process."""
    code = "import gc, sys; before = [*sys.meta_path], gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()\n"
    code += "import bert_tf; assert 'Predictor' in bert_tf.__doc__ and 'Predictor' in dir(bert_tf)\n"
    code += "bert_tf.BertConfig\n"
    code += "assert before == ([*sys.meta_path], gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())\n"
    code += "print([m for m in ('tensorflow', 'keras') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_help_has_a_line_for_every_name():
    described = dict(re.findall(r"^  (\w+)  +(\S.*)$", bert_tf.__doc__, re.MULTILINE))
    assert sorted(described) == sorted(bert_tf.__all__) == sorted(set(bert_tf.__all__))
    assert set(bert_tf.__all__) <= set(dir(bert_tf))
    page = pydoc.render_doc(bert_tf, renderer=pydoc.plaintext)
    for name, line in described.items():
        assert re.search(rf"^      {name}  +{re.escape(line)}$", page, re.MULTILINE), name
        assert not line.endswith(".") and len(line) < 80


@pytest.mark.parametrize("script", SCRIPTS)
def test_missing_flags(script):
    result = warm.run([sys.executable, str(ROOT / f"{script}.py")], capture_output=True, text=True)
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(f"{script}.py: error: give --") and line.endswith("; --help lists all flags.")
    assert ("--output_dir" in line) == script.startswith("run_")


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        ("bert_tf --version", f"{bert_tf.__version__}\n", 0),
        ("bert_tf run_glue", "bert-tf: error: there is no script 'run_glue'.\n", 1),
        ("bert_tf run_sqad", "bert-tf: error: there is no script 'run_sqad'. Did you mean run_squad?\n", 1),
        (
            "bert_tf.cli.run_ner --help",
            "run_ner.py: error: start it with `bert-tf run_ner`, or in a checkout with `python run_ner.py`.\n",
            1,
        ),
    ],
)
def test_the_command_says_its_version_and_which_script_is_meant(words, said, code):
    command = [sys.executable, "-m", *words.split()]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (result.stderr if code else result.stdout, result.returncode) == (said, code)


def test_installation_for_a_tpu_leaves_out_what_asks_for_tensorflow():
    """docs/tpu.md installs these packages without dependencies, since pip would put tensorflow over tensorflow-tpu."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    names = [match[0] for line in lines if (match := re.match(r"[\w-]+", line))]
    asking = set()
    for name in names:
        needed = [entry for entry in importlib.metadata.requires(name) or [] if "extra ==" not in entry]
        if "tensorflow" in {re.match(r"[\w.-]+", entry)[0] for entry in needed}:
            asking.add(name)
    command = re.search(r"named='\^\((\S+)\)=='", (ROOT / "docs" / "tpu.md").read_text(encoding="utf-8"))
    assert set(command[1].split("|")) == asking


def test_tests_run_on_the_versions_that_users_get():
    """`make install` and `make test` install by constraints.txt, which `make lock` renews."""
    locked = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate():
                locked[canonicalize_name(requirement.name)] = requirement.specifier
    installed = {canonicalize_name(found.name): found.version for found in importlib.metadata.distributions()}
    other = [
        f"{name} {installed[name]}, not {locked[name]}"
        for name in installed.keys() & locked.keys()
        if not locked[name].contains(installed[name], prereleases=True)
    ]
    assert not other, other
    named = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    for requirement in (Requirement(line.partition("#")[0]) for line in named if line and line[0] != "#"):
        (pinned,) = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned.version), (
            f"constraints.txt has {requirement.name}=={pinned.version}"
        )
