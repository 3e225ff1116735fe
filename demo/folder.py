"""The demo's output folder: its state, its files, and the scripts that write to it."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

from experiments.script_runs import ending_of, ending_with_this

# What a demo writes: it replaces a folder only if there is nothing else in it.
_WRITTEN = re.compile(
    r"(demo|corpus|results)\.json|(train|heldout)\.(txt|tfrecord)|pretraining_data\.(train|heldout)\..*|"
    r"vocab\.(txt|json)|merges\.txt|tokenizer\.json|spiece\.(model|vocab)|\w+_config\.json|loss_curve\.png|teacher|model|"
    r"\..*\.(lock|tmp)|\w+\.(json|txt)\.tmp"
)


class DemoError(Exception):
    """An error for the user, shown without a traceback."""


def lock_and_record_output_dir(output_dir: str, settings: dict) -> None:
    """Prepares the folder and prints what happens to its content.

    An interrupted demo resumes if text and sizes are the same; any other demo is replaced, and nothing else.
    """
    state_file = os.path.join(output_dir, "demo.json")
    if os.path.isdir(output_dir) and (names := sorted(os.listdir(output_dir))):
        state = _read_state(state_file)
        foreign = [name for name in names if not _WRITTEN.fullmatch(name)] if state else names
        if foreign:
            raise DemoError(
                f"{output_dir} has files that are not a demo's ({foreign[0]}). Choose another folder with --output_dir."
            )
        if state["settings"] == settings and not state["finished"]:
            print(f"Resuming the interrupted demo in {output_dir}.")
            return
        why = "a finished demo" if state["finished"] else "a demo with other text or sizes"
        print(f"{output_dir} has {why}: starting over and replacing it.")
        for entry in os.scandir(output_dir):
            # The state file goes last, so that a half-emptied folder is still recognised as a demo's.
            if entry.name != "demo.json":
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.remove(entry.path)
    else:
        print(f"Writing everything to {output_dir}.")
    os.makedirs(output_dir, exist_ok=True)
    write_state(output_dir, settings, finished=False)


def _read_state(path: str) -> dict | None:
    """What `write_state` wrote; None if it did not write this file."""
    try:
        with open(path, encoding="utf-8") as file:
            state = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return state if isinstance(state, dict) and state.keys() == {"settings", "finished"} else None


def write_state(output_dir: str, settings: dict | None, finished: bool) -> None:
    """Records the demo's settings in the folder, and whether it was finished."""
    write_text(os.path.join(output_dir, "demo.json"), json.dumps({"settings": settings, "finished": finished}) + "\n")


def write_text(path: str, text: str) -> None:
    """Writes a local file, complete or not at all."""
    with open(path + ".tmp", "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def run_script(script: str, **script_flags) -> None:
    """Runs a script of this project with flags, showing the command; its output goes to the terminal."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [sys.executable, os.path.join(folder, script)]
    command += [f"--{name}={value}" for name, value in script_flags.items()]
    short = [min(path, os.path.relpath(path), key=len) for path in command[:2]]
    shown = list(map(shlex.quote, short + command[2:]))
    print("$ " + " ".join(shown[:2]) + "".join(f" \\\n    {part}" for part in shown[2:]), flush=True)
    returncode = subprocess.call(command, **ending_with_this())
    if returncode:
        raise DemoError(f"{script} {ending_of(returncode)}: its output is above.")
