"""The demo's output folder: whose it is, what is written into it, and the scripts that run in it."""

import json
import os
import shlex
import shutil
import subprocess
import sys


class DemoError(Exception):
    """What the user has to be told, without a traceback."""


def claim_output_dir(output_dir: str, settings: dict) -> None:
    """Prepares the folder and says what becomes of what is in it.

    A demo that was interrupted resumes if text and sizes are the same; any other is replaced.

    Raises:
      DemoError: the folder holds something other than a demo.
    """
    state_file = os.path.join(output_dir, "demo.json")
    if os.path.isdir(output_dir) and os.listdir(output_dir):
        if not os.path.exists(state_file):
            raise DemoError(f"{output_dir} holds files, but not a demo. Choose another folder with --output_dir.")
        with open(state_file, encoding="utf-8") as file:
            state = json.load(file)
        if state["settings"] == settings and not state["finished"]:
            print(f"Resuming the demo in {output_dir} that was interrupted.")
            return
        why = "a finished demo" if state["finished"] else "a demo with other text or sizes"
        print(f"{output_dir} holds {why}: starting over, it is replaced.")
        for entry in os.scandir(output_dir):
            # The state file stays until the end, so that a folder half emptied is still known as ours.
            if entry.name != "demo.json":
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.remove(entry.path)
    else:
        print(f"Everything goes to {output_dir}.")
    os.makedirs(output_dir, exist_ok=True)
    write_state(output_dir, settings, finished=False)


def write_state(output_dir: str, settings: dict | None, finished: bool) -> None:
    """Notes in the folder which demo it holds, and whether that one was finished."""
    write_text(os.path.join(output_dir, "demo.json"), json.dumps({"settings": settings, "finished": finished}) + "\n")


def write_text(path: str, text: str) -> None:
    """Writes a local file whole or not at all."""
    with open(path + ".tmp", "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def run_script(script: str, **script_flags) -> None:
    """Runs a script of this project with flags, showing the command; its output and progress bars go to the terminal.

    Raises:
      DemoError: it failed.
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [sys.executable, os.path.join(folder, script)]
    command += [f"--{name}={value}" for name, value in script_flags.items()]
    shown = [shlex.quote(_short_path(part)) for part in command[:2]] + [shlex.quote(part) for part in command[2:]]
    print("$ " + " ".join(shown[:2]) + "".join(f" \\\n    {part}" for part in shown[2:]), flush=True)
    returncode = subprocess.call(command)
    if returncode:
        raise DemoError(f"{script} failed (exit code {returncode}); its own message is above.")


def _short_path(path: str) -> str:
    return min(path, os.path.relpath(path), key=len)
