"""Checks of flags before TensorFlow is imported, and of arguments.

Only local paths are checked. Those of other file systems (gs://...) fail when they are opened.
"""

import importlib.util
import json
import math
import numbers
import os
import tempfile
from collections.abc import Iterable, Mapping

from bert_tf.system import hub
from bert_tf.system.messages import naming_flag, without_logging
from bert_tf.system.storage import is_on_hub, is_remote
from bert_tf.system.text_files import is_folder, list_files, size_of


def check_file(path: str | None, flag: str) -> None:
    """Checks that an input file, if one is named, exists and holds anything."""
    download_if_on_hub(path or "", flag)
    if not path or is_remote(path) or is_on_hub(path):
        return
    if not os.path.exists(path) or os.path.isdir(path):
        raise FileNotFoundError(f"{flag}={path}: there is no such file.")
    if os.path.isfile(path):  # not a pipe
        check_not_empty([path], flag)


def check_input_files(patterns: str | None, flag: str) -> list[str]:
    """The local files of a comma-separated list of globs."""
    parts = (patterns or "").split(",")
    for part in parts:
        download_if_on_hub(part.strip(), flag)
    local = [part for part in parts if not is_remote(part)]
    with without_logging():
        return list_files(",".join(local), flag) if local else []


def download_if_on_hub(path: str, flag: str) -> None:
    if path.startswith("hf://") or is_on_hub(path):
        with naming_flag(flag):
            hub.matching(path)


# What each extra adds, `pip install 'bert-tf[EXTRA]'`, by the names that are imported.
EXTRAS = {
    "pretraining": ("sentencex",), "metrics": ("pytrec_eval",),
    "official": ("official",), "plots": ("matplotlib",),
    "parquet": ("pyarrow",),
    "onnx": ("onnx", "onnxruntime"),
    "beam": ("apache_beam",), "dask": ("apache_beam", "distributed"),
    "chinese": ("jieba",), "japanese": ("fugashi", "unidic_lite"),
}  # fmt: skip


def missing_packages(extra: str) -> list[str]:
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def check_extra(extra: str, use: str) -> None:
    """Raises if packages of an extra that a use, say "--do_eval", needs are not installed."""
    if missing := missing_packages(extra):
        raise ValueError(f"{use} needs {' and '.join(missing)}: pip install 'bert-tf[{extra}]'")


def target_directory(directory) -> str:
    """The directory that save_pretrained is to write, as a string."""
    if not (path := os.fspath(directory)):
        raise ValueError("The target names no directory.")
    check_output_dir(path, "directory")
    return path


def check_not_empty(files: list[str], flag: str) -> None:
    if files and not any(map(size_of, files)):
        raise ValueError(f"{flag}: {files[0]} is empty{', and so are the others' if len(files) > 1 else ''}.")


def check_output_dir(path: str, flag: str) -> None:
    """Checks that files can be written into a directory, which need not exist yet."""
    if is_on_hub(path):
        raise ValueError(f"{flag}={path}: data sets on the hub are read, not written; name a directory.")
    if is_remote(path):
        return
    existing = os.path.abspath(path)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    with naming_flag(f"{flag}={path}"):  # os.access knows neither root's limits nor all file systems'
        try:
            tempfile.TemporaryFile(dir=existing).close()
        except FileNotFoundError:
            if os.path.lexists(existing):  # a link to nothing
                raise
            check_output_dir(path, flag)  # another worker, which has failed, removed the folder that it had made


def check_output_file(path: str, flag: str) -> None:
    if is_remote(path):
        return
    if os.path.isdir(path):
        raise ValueError(f"{flag}={path} is a directory; name a file in it.")
    check_output_dir(os.path.dirname(path) or ".", flag)


def check_output_files(paths: Iterable[str], read: Iterable[str], flag: str) -> None:
    """Raises if a path is one of those that are read, named twice, or a directory."""

    def key(path: str) -> str:
        return path if is_remote(path) else os.path.realpath(path)

    read, written = set(map(key, read)), set()
    for path in paths:
        if key(path) in read:
            raise ValueError(f"{flag}: {path} would overwrite a file that is read")
        if key(path) in written:
            raise ValueError(f"{flag}: {path} is named twice")
        if is_folder(path):
            raise ValueError(f"{flag}: {path} is a directory; name a file in it")
        written.add(key(path))


def check_different(columns: Mapping[str, str | None]) -> None:
    """Raises if two flags name one column. columns: flag -> column, if given."""
    flags: dict[str, str] = {}
    for flag, column in columns.items():
        if column is not None and (first := flags.setdefault(column, flag)) != flag:
            raise ValueError(f"{first} and {flag} are both {column!r}: give each its own column.")


_TF_CONFIG = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


def check_tf_config(strategy: str, trains: bool = False) -> None:
    """Raises if TF_CONFIG lacks the machines of multi_worker_mirrored: TensorFlow would train on this alone, or wait
    without end. Also if it names several and this one would train alone, into the folder of all."""
    try:
        content = json.loads(os.environ.get("TF_CONFIG", ""))
        task, cluster = content["task"], content["cluster"]
        is_known = task["type"] in ("chief", "worker")
        is_known &= 0 <= int(task["index"]) < len(cluster[task["type"]])
        count = sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
    except (AttributeError, KeyError, TypeError, ValueError):
        is_known, count = False, 0
    flag = f"--distribution_strategy={strategy}"
    if strategy == "multi_worker_mirrored" and not is_known:
        needs = "needs the environment variable TF_CONFIG, on the first of two machines"
        raise ValueError(f"{flag} {needs} {_TF_CONFIG}")
    if strategy in ("one_device", "mirrored") and trains and is_known and count > 1:
        advice = "give multi_worker_mirrored, or unset TF_CONFIG."
        raise ValueError(f"TF_CONFIG names {count} machines, but {flag} trains on this one alone: {advice}")


# --- arguments of the Python API --------------------------------------------------------------------------------------


def check_integer(value, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name}={value!r:.80} must be a whole number, at least 1")


def check_number(value, name: str, least: float = 0.0, most: float = math.inf) -> None:
    """Raises if it is no number with least <= value < most."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or value < least or not value < most:
        raise ValueError(f"{name}={value!r:.80} must be a number, at least {least:g} and less than {most:g}")


def true_or_false(**values) -> None:
    """Raises if a value is neither True, False nor None: a string such as "false" would count as true."""
    for name, value in values.items():
        if value not in (True, False, None):
            raise TypeError(f"{name} must be True or False, not {value!r:.80}")


def check_list(items, name: str, what: str, line: str | None = None) -> list:
    """`items`, any iterable but a table or a set, as a list. what: the items. line: what to write for one."""
    is_one = not (hasattr(items, "__iter__") or hasattr(items, "__getitem__"))
    if is_one or isinstance(items, str | bytes | Mapping | set | frozenset) or hasattr(items, "columns"):
        advice = f"; for one write {line}" if line else ""
        raise TypeError(f"{name} must be a list of {what}, not a {type(items).__name__}{advice}")
    return list(items)


def list_of_strings(items, name: str, line: str | None = None, kind: type = str) -> list:
    """`check_list` strings, of a kind: str, or str | bytes."""
    texts = check_list(items, name, "strings", line)
    for position, text in enumerate(texts):
        if not isinstance(text, kind):
            raise TypeError(f"{name}[{position}] is {text!r:.80} ({type(text).__name__}), not a string")
    return texts


def list_of_names(names, name: str) -> list[str]:
    """`check_list` different strings, at least one."""
    names = check_list(names, name, "names")
    if not names or len(set(names)) < len(names) or not all(isinstance(text, str) and text for text in names):
        raise ValueError(f"{name}={names!r:.200} must be different names, at least one")
    return names
