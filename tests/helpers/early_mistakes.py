"""Runs scripts with wrong flags, to see what they say and whether TensorFlow was imported before."""

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
from helpers.basics import GOLDEN, ROOT
from helpers.script_cases import arguments_of, pattern_of

# Each main runs in a fork, since flags and messages that are told once stay.
_PROGRAM = """
import importlib, json, os, sys
name = sys.argv[1]
sys.path.insert(0, sys.argv[2])
main = importlib.import_module(name).main
from bert_tf.system import script
for arguments in json.load(sys.stdin):
    if os.fork():
        os.wait()
        continue
    print("CASE", file=sys.stderr)
    sys.argv = [name + ".py", *arguments]
    try:
        script.run(main)
    finally:
        print("tensorflow" in sys.modules or "keras" in sys.modules)
"""


def refusals(script: str, commands: Sequence[Sequence[str]], is_warm: bool = False) -> list[str]:
    """The message of each command: all that it says, before TensorFlow is imported unless it `is_warm`."""
    run = warm.run if is_warm else subprocess.run
    command = [sys.executable, "-c", _PROGRAM, script, str(ROOT)]
    result = run(command, input=json.dumps(commands), capture_output=True, text=True, check=True)
    cases = re.sub(r"^I\d{4} .*\n", "", result.stderr, flags=re.MULTILINE).split("CASE\n")[1:]  # without what it logs
    said, start = [case.splitlines() for case in cases], f"{script}.py: error: "
    assert len(said) == len(commands) and all(lines[-1].startswith(start) for lines in said), said
    assert is_warm or ([*map(len, said)], result.stdout) == ([1] * len(said), "False\n" * len(said)), said
    return [lines[-1].removeprefix(start) for lines in said]


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


MODEL = {"model/vocab.txt": "\n".join(TOKENS), "model/bert_model.safetensors": "x"}
GIVEN = {"init_checkpoint": "model", "output_dir": "out"}
FILES = ("_file", "_dir", "_checkpoint", "teacher", "from", "to")
WITH_A_MODEL = ("run_classifier", "run_pretraining")


def check_cases(script: str, cases: Sequence[tuple[str, dict, dict]], tmp_path, is_warm: bool = False) -> None:
    """Checks that a script says what is wrong and writes nothing, before TensorFlow is imported unless it `is_warm`.

    cases: what it says, with * for any text; files to write; flags beside or instead of the usual ones.
    """
    usual = GIVEN if script in WITH_A_MODEL else {}
    commands = []
    for number, (_, files, given) in enumerate(cases):
        folder = tmp_path / str(number)
        for name, content in (MODEL | files).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        values = {
            name: folder / value if isinstance(value, str) and name.endswith(FILES) else value
            for name, value in {**usual, **given}.items()
        }
        commands.append(arguments_of({name: value for name, value in values.items() if value is not None}))
    said = zip(cases, refusals(script, commands, is_warm), strict=True)
    wrong = [(message, line) for (message, *_), line in said if not re.match(pattern_of(message), line)]
    assert not wrong, "\n".join(map(str, wrong))
    for number, (_, files, _) in enumerate(cases):
        names = {path.name for path in (tmp_path / str(number)).iterdir()}
        assert names == {"model", *(name.split("/")[0] for name in files)}
