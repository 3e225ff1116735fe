"""Runs a script's main with wrong flags, to see what it says and whether TensorFlow was imported before."""

import json
import re
import struct
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
from safetensors.numpy import save

from bert_tf.families import family_named
from bert_tf.families.family import expected_shapes
from bert_tf.system.example_bytes import masked_crc32c
from helpers import warm
from helpers.paths import GOLDEN, ROOT
from helpers.script_cases import arguments_of

# Each main runs in a fork, since flags and messages that are told once stay.
_PROGRAM = """
import importlib, json, os, sys
sys.path.insert(0, sys.argv[2])
module = importlib.import_module("bert_tf.cli." + sys.argv[1])
for arguments in json.load(sys.stdin):
    if os.fork():
        os.wait()
        continue
    outcome = "done"
    try:
        module.FLAGS([sys.argv[1], *arguments])
        module.main([])
    except BaseException as error:
        outcome = type(error).__name__ + ": " + str(error)
    print(json.dumps([outcome, "tensorflow" in sys.modules or "keras" in sys.modules]), flush=True)
    os._exit(0)
"""

_RUNS = """
import importlib, json, os, sys
name = sys.argv[1]
main = importlib.import_module(name).main
from bert_tf.system import script
for arguments in json.load(sys.stdin):
    if not (process := os.fork()):
        sys.argv = [name + ".py", *arguments]
        script.run(main)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1
"""


def outcomes(script: str, commands: Sequence[Sequence[str]], is_warm: bool = False) -> list[tuple[str, bool]]:
    run = warm.run if is_warm else subprocess.run
    command = [sys.executable, "-c", _PROGRAM, script, str(ROOT)]
    result = run(command, input=json.dumps(commands), capture_output=True, text=True, check=True)
    return [tuple(json.loads(line)) for line in result.stdout.splitlines() if line.startswith("[")]


def refusals(script: str, commands: Sequence[Sequence[str]]) -> list[str]:
    command = [sys.executable, "-c", _RUNS, script]
    result = subprocess.run(command, input=json.dumps(commands), capture_output=True, text=True, check=True, cwd=ROOT)
    lines = result.stderr.splitlines()
    start = f"{script}.py: error: "
    assert not result.stdout and len(lines) == len(commands) and all(line.startswith(start) for line in lines), lines
    return [line.removeprefix(start) for line in lines]


CSV = "text,label\n" + "good film,up\nbad film,down\n" * 3
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
CONFIG = {"vocab_size": len(TOKENS), "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 1,
          "intermediate_size": 8, "max_position_embeddings": 128, "type_vocab_size": 2}  # fmt: skip


def model(outputs=0, head: dict | None = None, name="whole", family="bert", **config) -> dict[str, str | bytes]:
    kind = family_named(family).config_class
    shapes = expected_shapes(kind.from_dict(CONFIG))
    shapes |= {"output_weights": (outputs, 4), "output_bias": (outputs,)} if outputs else {}
    files = {kind.file_name: json.dumps(CONFIG | config), "vocab.txt": "\n".join(TOKENS),
             "bert_model.safetensors": save({key: np.zeros(shape, np.float32) for key, shape in shapes.items()}),
             }  # fmt: skip
    files |= {"head_config.json": json.dumps(head)} if head else {}
    return {f"{name}/{file}": content for file, content in files.items()}


def checkpoint(name: str, prefix: str) -> dict[str, bytes]:
    folder, suffixes = GOLDEN / "model" / "config1", (".index", ".data-00000-of-00001")
    files = {f"{prefix}{suffix}": (folder / f"squad.ckpt{suffix}").read_bytes() for suffix in suffixes}
    files["bert_config.json"] = (folder / "bert_config.json").read_bytes()
    return {f"{name}/{file}": content for file, content in files.items()}


def record(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in (length, payload))


GIVEN = {"init_checkpoint": "model", "output_dir": "out"}
FILES = ("_file", "_dir", "_checkpoint", "teacher", "from", "to")
WITH_A_MODEL = ("run_classifier", "run_pretraining")


KINDS = r"(ValueError|ServingError|BlockingIOError|\w*(NotFound|Exists|Directory|Permission)Error|OSError): "


def check_cases(script: str, cases: Sequence[tuple[str, dict, dict]], tmp_path, is_warm: bool = False) -> None:
    """Checks that a script says what is wrong and writes nothing, before TensorFlow is imported unless it `is_warm`.

    cases: what it says, with * for any text; files to write; flags beside or instead of the usual ones.
    """
    usual = GIVEN if script in WITH_A_MODEL else {}
    commands = []
    for number, (_, files, given) in enumerate(cases):
        folder = tmp_path / str(number)
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "vocab.txt").write_text("\n".join(TOKENS))
        (folder / "model" / "bert_model.safetensors").write_text("x")
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        values = {
            name: folder / value if isinstance(value, str) and name.endswith(FILES) else value
            for name, value in {**usual, **given}.items()
        }
        commands.append(arguments_of({name: value for name, value in values.items() if value is not None}))
    results = outcomes(script, commands, is_warm)
    assert len(results) == len(cases)
    wrong = []
    for number, ((message, files, _), (outcome, heavy)) in enumerate(zip(cases, results, strict=True)):
        pattern = KINDS + ".*".join(map(re.escape, message.split("*")))
        if not re.match(pattern, outcome) or (heavy and not is_warm):
            wrong.append((message, outcome, heavy))
        names = {path.name for path in (tmp_path / str(number)).iterdir()}
        assert names == {"model", *(name.split("/")[0] for name in files)}
    assert not wrong, "\n".join(map(str, wrong))
