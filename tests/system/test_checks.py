"""Flags and names from users: what is wrong appears in one line; settings that are declared once."""

import contextlib
import dataclasses
import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile

import pytest
from absl import flags
from helpers import warm
from helpers.basics import ROOT
from helpers.early_mistakes import refusals

import bert_tf
from bert_tf.system import checks, declare, removed
from bert_tf.system.declare import ORIGINAL, REQUIRED, inherited_setting, setting


@pytest.mark.parametrize(("check", "path", "message"), [
    (checks.check_file, None, None),
    (checks.check_file, "gs://bucket/vocab.txt", None),
    (checks.check_file, "a[1].txt", None),
    (checks.check_file, "folder", "--x=folder: there is no such file"),
    (checks.check_input_files, "a[1].txt, a*.txt,gs://bucket/none*", None),
    (checks.check_input_files, "a[1].txt,b*.txt", "--x: no file matches 'b"),
    (checks.check_input_files, "fold*", "--x: no file matches 'fold"),
    (checks.check_input_files, " , ", "--x names no file"),
    (checks.check_output_dir, "new/run", None), (checks.check_output_dir, "gs://bucket/run", None),
    (checks.check_output_file, "a[1].txt", None), (checks.check_output_file, "vocab.txt", None),
    (checks.check_output_file, "folder", "--x=folder is a directory; name a file in it"),
])  # fmt: skip
def test_paths_of_flags(check, path, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a[1].txt").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises((OSError, ValueError), match=message) if message else contextlib.nullcontext():
        check(path, "--x")
    assert sorted(os.listdir(tmp_path)) == ["a[1].txt", "folder"]


def test_a_folder_that_can_not_be_written(tmp_path, monkeypatch):
    def denied(dir):
        code = errno.EACCES if dir == str(tmp_path) else os.rmdir(dir) or errno.ENOENT  # another worker removes it
        raise OSError(code, os.strerror(code), dir)

    (tmp_path / "new").mkdir()
    monkeypatch.setattr(tempfile, "TemporaryFile", denied)  # the tests may run as root
    with pytest.raises(OSError, match="--x=.*/new: .*Permission denied"):
        checks.check_output_dir(str(tmp_path / "new"), "--x")


@pytest.mark.parametrize(("statement", "code", "line"), [
    ("raise training.loop.NonFiniteLossError('step 3 is NaN')", 1, "work.py: error: step 3 is NaN"),
    ("np.zeros(10**17)", 1, "work.py: error: out of memory: this machine has too little (Unable to allo"),
    ("shutil.copyfile('work.py', '/dev/full')", 1, "work.py: error: [Errno 28] No space left on device"),
    ("raise ValueError('two\\nlines \\x1b[2J')", 1, "work.py: error: two lines \\u001b[2J"),
    ("training.distribution.set_up_devices(training.settings.DeviceSettings(use_tpu=True))", 1,
     "work.py: error: no TPU 'local' (--tpu_name, --tpu_zone"),
    ("raise KeyboardInterrupt", 130, "work.py: interrupted"),
    ("1 / 0", 1, "ZeroDivisionError: division by zero"),
])  # fmt: skip
def test_errors_of_users_and_machines_are_one_line(tmp_path, statement, code, line):
    (tmp_path / "work.py").write_text(
        "import shutil\nimport numpy as np\nfrom bert_tf import training\n"
        "import bert_tf.training.distribution, bert_tf.training.loop, bert_tf.training.settings\n"
        f"from bert_tf.system import script\n\ndef main(_):\n    {statement}\n\nscript.run(main)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    result = warm.run([sys.executable, "work.py"], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == code
    assert result.stderr.splitlines()[-1].startswith(line), result.stderr
    assert ("Traceback" in result.stderr) == (statement == "1 / 0")


@pytest.mark.parametrize("command", ["work.py --help", "work.py", "-m bert_tf", "-m bert_tf --version"])
def test_a_reader_that_has_left(tmp_path, command):
    """`... | head`: no message, and the exit code of a program that SIGPIPE ended."""
    (tmp_path / "work.py").write_text(
        "from bert_tf.system import script\n\ndef main(_):\n    print('many lines\\n' * 9999)\n\nscript.run(main)\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    given = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True, "cwd": tmp_path}
    result = subprocess.run([sys.executable, *command.split()], stdout=writer, stderr=subprocess.PIPE, **given)
    os.close(writer)
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, "")


def test_every_script_starts_tensorflow_quietly():
    """Except serve_client.py, which needs no TensorFlow, and the script that calls another's main."""
    others = ("__init__.py", "serve_client.py", "run_classifier_with_tfhub.py")
    scripts = [path for path in (ROOT / "bert_tf" / "cli").glob("*.py") if path.name not in others]
    assert len(scripts) > 8
    for path in scripts:
        main = path.read_text().partition("\ndef main(")[2]
        before = main.partition("    script.start_tensorflow(")[0]
        assert before != main and "import tensorflow" not in before, path.name


def test_what_was_removed_is_not_there():
    there = {flag for flags in json.loads((ROOT / "tests/golden/flags.json").read_text()).values() for flag in flags}
    there -= {"model"}  # of serve_client.py, and once of run_classifier.py
    assert not there & removed.FLAGS.keys() and not removed.NAMES.keys() & {*bert_tf.__all__}
    for name, instead in removed.NAMES.items():
        with pytest.raises(AttributeError, match=f"^bert_tf has no {name}: {re.escape(instead)}$"):
            getattr(bert_tf, name)


# A script, flags, and how its line begins.
WRONG_FLAGS = [
    ("run_ner", "--output_dir=", "--output_dir is empty: did the command that should have printed its value fail?"),
    ("run_ner", "--output_dir=x --outputdir=y", "Unknown command line flag 'outputdir'. Did you mean: output_dir ?"),
    ("run_ner", "--output_dir=~/x", "--output_dir=~/x: the shell replaces ~ only where"),
    ("run_ner", "--do_train True --output_dir=x", "True is not a flag; the value of a switch is joined"),
    ("run_ner", "--output_dir=x --learning_rate=0,00002", "flag --learning_rate=0,00002: could not convert"),
    ("convert_checkpoint", "--noverify", "--noverify has been removed: what is written is always read back"),
]  # fmt: skip


@pytest.mark.parametrize("name", dict.fromkeys(script for script, *_ in WRONG_FLAGS))
def test_wrong_flags_give_one_line(name):
    cases = [case for script, *case in WRONG_FLAGS if script == name]
    lines = refusals(name, [flags.split() for flags, _ in cases])
    for (_, message), line in zip(cases, lines, strict=True):
        assert line.startswith(message), line


def test_public_names_are_those_of_type_checkers_and_the_one_that_is_meant_is_said():
    names = re.findall(r"\bas (\w+)", (ROOT / "bert_tf" / "__init__.pyi").read_text())
    assert sorted(names) == sorted([*bert_tf.__all__, "checkpoints", "records"])
    with pytest.raises(AttributeError, match="no attribute 'Predicter'; did you mean Predictor?"):
        bert_tf.Predicter  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute '__path_of__'$"):
        bert_tf.__path_of__  # noqa: B018


@pytest.mark.parametrize(("name", "here"), [
    ("TFBertForSequenceClassification", "BertForSequenceClassification"),
    ("TFAutoModelForMaskedLM", "BertForMaskedLM"),
    ("TFRobertaModel", "BertModel"),
    ("TFElectraForPreTraining", "ElectraDiscriminator"),
    ("BertTokenizer", r"read_tokenizer\(path\), or of a vocabulary alone FullTokenizer\(vocab_file\)"),
    ("pipeline", "Predictor, QuestionAnswerer, Tagger, fill_mask or Embedder"),
])  # fmt: skip
def test_imports_of_transformers_are_answered(name, here):
    for module in ("bert_tf", "bert_tf.transformers"):
        with pytest.raises(ImportError, match=f"^bert_tf has no {name}: use {here}, see docs/from-transformers.md$"):
            exec(f"from {module} import {name}")
    with pytest.raises(AttributeError, match=f"^bert_tf has no {name}: use {here}, see "):
        getattr(bert_tf, name)
    assert not hasattr(bert_tf, name)


def _refuse_odd(value, flag):
    if value % 2:
        raise ValueError(f"{flag}={value} is odd.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    rate: float | None = setting(0.5, "Rate. If unset, 0.5.", heading="Speed", unset=True, least=0, below=1)
    size: int = setting(4, "Size.", least=2, check=_refuse_odd)
    no_flag: int = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Base):
    output_dir: str = setting(REQUIRED, "Where.", heading=ORIGINAL)
    kind: str | None = setting(None, "Kind.", choices=("a", "b"))
    names: list[str] | None = setting(None, "Names.", heading="Speed")
    more: tuple[str, ...] = setting((), "More.")
    size: int = inherited_setting(Base, "size", default=8, help="Own size.")
    from_: float = setting(1.0, "From.", above=0)


def test_flags_become_settings():
    declare.define_flags(Own, values=(values := flags.FlagValues()), from_=2.0)
    values(["script", "--output_dir=x", "--names=a,b", "--more=c", "--more=d,e", "--kind=b"])
    settings = declare.settings_of(Own, values)
    assert settings == Own(output_dir="x", names=["a", "b"], more=["c", "d,e"], kind="b", from_=2.0)
    assert (settings.rate, declare.value_of(settings, "rate"), settings.size) == (None, 0.5, 8)
    assert "no_flag" not in values and values.rate == 0.5
    assert declare.flags_given(values) == {"output_dir", "names", "more", "kind"}
    assert declare.required_flags(values) == ["output_dir"]
    values(["script", "--rate=0.25"])
    assert declare.settings_of(Own, values).rate == 0.25
    values(["script", "--names=a", "--size=3"])
    with pytest.raises(ValueError, match="^--size=3 is odd.$"):
        declare.settings_of(Own, values)
    assert declare.non_default_settings(Own(output_dir="x", size=8, rate=0.5), ("size", "rate", "kind")) == ["rate"]
    declare.define_flags(Own, without=("size", "output_dir"), values=(some := flags.FlagValues()))
    assert "size" not in some and "rate" in some and declare.required_flags(some) == []


@pytest.mark.parametrize(("given", "message"), [
    ({"rate": 1.0}, "--rate=1 must be at least 0, less than 1."),
    ({"rate": -0.5}, "--rate=-0.5 must be at least 0, less than 1."),
    ({"rate": math.nan}, "--rate=nan must be at least 0, less than 1."),
    ({"size": 1}, "--size=1 must be at least 2."),
    ({"from_": 0.0}, "--from=0 must be more than 0."),
    ({"from_": math.inf}, "--from=inf must be more than 0."),
    ({"kind": "c"}, "--kind=c must be one of a, b."),
])  # fmt: skip
def test_values_out_of_bounds(given, message):
    with pytest.raises(ValueError) as error:
        declare.check_values(Own(output_dir="x", **given))
    assert str(error.value) == message
    declare.check_values(Own(output_dir="x", rate=0, size=2, from_=1e-9, kind="a"))


def test_help_is_in_groups_with_the_originals_flags_first():
    values = flags.FlagValues()
    assert declare.help_text(values) == ""
    declare.define_flags(Own, values=values, from_=2.0)
    assert declare.setting_group(Own, "Speed") == ("rate", "size", "names", "more", "from_")
    assert declare.help_text(values) == (
        "\nAs in the original:\n"
        "  --output_dir: Where. (required)\n"
        "  --kind <a|b>: Kind.\n"
        "\nSpeed:\n"
        "  --rate: Rate. If unset, 0.5. (at least 0, less than 1)\n"
        "  --size: Own size. (default: 8; at least 2)\n"
        "  --names: Names.\n"
        "  --more: More.\n"
        "  --from: From. (default: 2.0; more than 0)\n"
    )
