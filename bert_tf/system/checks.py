"""Checks of paths that flags name and of TF_CONFIG, before TensorFlow is imported, of arguments and of the families of
models: a mistake fails at once.

Only local paths are checked. Those of other file systems (gs://...) fail when they are opened.
"""

import importlib.util
import json
import math
import numbers
import os
import posixpath
import tempfile
from collections.abc import Callable, Iterable, Mapping

from bert_tf.system import storage
from bert_tf.system.messages import naming_flag, without_logging
from bert_tf.system.storage import is_on_hub, is_remote
from bert_tf.system.text_files import is_folder, list_files, read_json_if_there, size_of


def check_file(path: str | None, flag: str) -> None:
    """Checks that an input file, if one is named, exists and holds anything."""
    check_no_web_address(path or "", flag)
    if not path or is_remote(path) or is_on_hub(path):
        return
    if not os.path.exists(path):
        advice = "; name one, not several" if any(sign in path for sign in "*?,") else ""
        if storage.is_name(path) and "." not in path:
            advice = f"; that of a data set on the hub is hf://datasets/{path}/FILE"
        raise FileNotFoundError(f"{flag}={path}: there is no such file{advice}.")
    if os.path.isdir(path):
        raise FileNotFoundError(f"{flag}={path} is a directory; a file is needed.")
    if os.path.isfile(path):  # not a pipe
        check_not_empty([path], flag)


def check_input_files(patterns: str | None, flag: str) -> list[str]:
    """The local files of a comma-separated list of globs; see `text_files.list_files`."""
    parts = (patterns or "").split(",")
    for part in parts:
        check_no_web_address(part.strip(), flag)
    local = [part for part in parts if not is_remote(part)]
    with without_logging():
        return list_files(",".join(local), flag) if local else []


def check_no_web_address(path: str, flag: str) -> None:
    """Refuses what TensorFlow can't open, which would only say so after its import; downloads what is on the hub."""
    if path.startswith("hf://") or is_on_hub(path):
        from bert_tf.system.hub import matching

        with naming_flag(flag):
            matching(path)
    elif path.startswith(("http://", "https://")):
        raise ValueError(f"{flag}={path} is in the web: download it first, and name the file.")


# What each extra adds, `pip install 'bert-tf[EXTRA]'`, by the names that are imported.
EXTRAS = {
    "pretraining": ("numba", "sentencex"), "metrics": ("pytrec_eval",),
    "official": ("official",), "plots": ("matplotlib",),
    "parquet": ("pyarrow",),
    "onnx": ("onnx", "onnxruntime", "tf2onnx"),
    "beam": ("apache_beam",), "dask": ("apache_beam", "distributed"),
    "chinese": ("jieba",), "japanese": ("fugashi", "unidic_lite"),
}  # fmt: skip


def missing_packages(extra: str) -> list[str]:
    """The packages of an extra that are not installed, as they are imported."""
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def check_extra(extra: str, use: str) -> None:
    """Refuses a use, say "--do_eval", for which packages of an extra are not installed."""
    if missing := missing_packages(extra):
        raise ValueError(f"{use} needs {' and '.join(missing)}: pip install 'bert-tf[{extra}]'")


def path_of(path, reader: str, check: Callable[[str], object] | None = None, with_weights: bool = True) -> str:
    """A path, also a `pathlib.Path`, as a string, or the local folder of a model that it names on the hub.

    Args:
      check, with_weights: see `hub.local`. Without a check, no weights are needed.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"{reader} takes the path of a model, not {path!r:.80}: give the directory that save_pretrained wrote."
        )
    path = os.fspath(path)
    if not path:
        raise ValueError(f"{reader} is given an empty path.")
    if not storage.is_name(path):
        return path
    from bert_tf.system import hub

    return hub.local(path, with_weights=with_weights and bool(check), check=check)


def folder_of(directory) -> str:
    """The directory, also a `pathlib.Path`, that save_pretrained is to write, as a string."""
    if not isinstance(directory, str | os.PathLike):
        raise TypeError(f"save_pretrained takes the path of a directory, not {directory!r:.80}.")
    if not os.fspath(directory):
        raise ValueError("The target names no directory.")
    check_output_dir(os.fspath(directory), "directory")
    return os.fspath(directory)


def check_not_empty(files: list[str], flag: str) -> None:
    """Refuses local files that are all empty."""
    if files and not any(map(size_of, files)):
        raise ValueError(f"{flag}: {files[0]} is empty{', and so are the others' if len(files) > 1 else ''}.")


def check_output_dir(path: str, flag: str) -> None:
    """Checks that files can be written into a directory, which need not exist yet."""
    if is_remote(path):
        return
    if is_on_hub(path):
        raise ValueError(f"{flag}={path}: data sets on the hub are read, not written; name a directory.")
    there = os.path.abspath(path)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise NotADirectoryError(f"{flag}={path}: {there} is a file; a directory is needed.")
    try:  # os.access knows neither root's limits nor all file systems'
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise PermissionError(f"{flag}={path}: {there} can't be written into: {error.strerror}.") from None


def check_other_folder(output_dir: str, model_dir: str) -> None:
    """Refuses to write into the folder of the model that a run begins with, unless a run has begun in it."""
    folder = os.path.realpath(output_dir)
    is_run = os.path.exists(f"{folder}/run.json") or os.path.exists(f"{folder}/checkpoint")
    if not is_run and folder == os.path.realpath(model_dir):
        raise ValueError(f"--output_dir={output_dir} is the folder of --init_checkpoint: choose another one.")


def check_outside(path: str, flag: str, folder: str, folder_flag: str) -> None:
    """Refuses to write into a folder, or one in it."""
    if not is_remote(path) and f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(folder)}/"):
        raise ValueError(f"{flag}={path} is in the folder of {folder_flag}, {folder}: choose another one.")


def check_output_file(path: str, flag: str) -> None:
    """Checks that a file can be written, or replaced; see `check_output_dir`."""
    if is_remote(path):
        return
    if os.path.isdir(path):
        raise ValueError(f"{flag}={path} is a directory; name a file in it.")
    check_output_dir(os.path.dirname(path) or ".", flag)


def check_output_files(paths: Iterable[str], read: Iterable[str], flag: str) -> None:
    """Refuses to write files that are read or named twice, and directories."""

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
    """Refuses two flags that name one column. columns: flag -> column; None: not given."""
    flags: dict[str, str] = {}
    for flag, column in columns.items():
        if column is not None and (first := flags.setdefault(column, flag)) != flag:
            raise ValueError(f"{first} and {flag} are both {column!r}: give each its own column.")


# --- the environment --------------------------------------------------------------------------------------------------

_TF_CONFIG = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


def check_tf_config(strategy: str) -> None:
    """Refuses a TF_CONFIG that TensorFlow can't read, or that does not say which machines there are and which is this.

    Only the strategy multi_worker_mirrored needs the variable; mirrored looks into it, too.
    """
    text, readers = os.environ.get("TF_CONFIG", ""), {"multi_worker_mirrored": _check_machines, "mirrored": json.loads}
    if strategy not in readers or (strategy == "mirrored" and not text):
        return
    asked = f"--distribution_strategy={strategy} reads the environment variable TF_CONFIG"
    if not text.strip():
        raise ValueError(f"{asked}, which is not set; on the first of two machines it is {_TF_CONFIG}")
    try:
        readers[strategy](text)
    except KeyError as error:
        raise ValueError(f"{asked}, in which {error} is missing: {text}; it should be like {_TF_CONFIG}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{asked}, which is malformed ({error}): {text}; it should be like {_TF_CONFIG}") from error


def _check_machines(text: str) -> None:
    content = json.loads(text)
    cluster, task = content["cluster"], content["task"]
    machines, number = cluster[task["type"]], int(task["index"])
    if not all(isinstance(names, list) and names for names in cluster.values()):
        raise ValueError("each job of the cluster needs a list of host:port")
    if not 0 <= number < len(machines):
        raise ValueError(f"task index {number}, but {len(machines)} of type {task['type']!r}")
    if task["type"] not in ("chief", "worker"):
        raise ValueError(f"task type {task['type']!r} takes no part in the training")


# --- arguments of the Python API --------------------------------------------------------------------------------------


def whole_number(value, name: str, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, not {value!r:.80}")
    if value < least:
        raise ValueError(f"{name}={value} must be at least {least}")


def number(value, name: str, least: float = 0.0, most: float = math.inf) -> None:
    """Refuses what is no number, or outside of least <= value < most."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, not {value!r:.80}")
    if not least <= value < most:
        limit = f"at least {least:g} and " if least > -math.inf else ""
        raise ValueError(f"{name}={value} must be {limit}{'finite' if most == math.inf else f'less than {most:g}'}")


def true_or_false(**values) -> None:
    """Refuses values, by name, that are neither True, False nor None: a string such as "false" would count as true."""
    for name, value in values.items():
        if value not in (True, False, None):
            raise TypeError(f"{name} must be True or False, not {value!r:.80}")


def list_of(items, name: str, what: str, line: str | None = None) -> list:
    """`items`, any iterable but a table or a set, as a list. what: the items. line: what to write for one."""
    problem = None
    if isinstance(items, str | bytes):
        problem = "a single string"
    elif isinstance(items, Mapping) or hasattr(items, "columns"):
        problem = f"a {type(items).__name__}: give one of its columns"
    elif not isinstance(items, Iterable) or isinstance(items, set | frozenset) or getattr(items, "shape", None) == ():
        problem = f"{items!r:.80}"
    if problem:
        raise TypeError(f"{name} must be a list of {what}, not {problem}{f'; for one write {line}' if line else ''}")
    return list(items)


def list_of_strings(items, name: str, line: str | None = None, kind: type = str) -> list:
    """`list_of` strings, of a kind: str, or str | bytes."""
    texts = list_of(items, name, "strings", line)
    for place, text in enumerate(texts):
        if not isinstance(text, kind):
            raise TypeError(f"{name}[{place}] is {text!r:.80} ({type(text).__name__}), not a string")
    return texts


def strings_of(texts, name: str) -> list[str | bytes]:
    """One string, or `list_of_strings`."""
    return [texts] if isinstance(texts, str | bytes) else list_of_strings(texts, name, kind=str | bytes)


def list_of_names(names, name: str) -> list[str]:
    """`list_of` different strings, at least one."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        advice = f": write {[part.strip() for part in names.split(',')]}" if isinstance(names, str) else ""
        advice = f"; num_labels={names} says how many" if isinstance(names, int) else advice
        raise TypeError(f"{name} must be a list of names, not {names!r:.80}{advice}")
    names = list_of(names, name, "names")
    if any(not isinstance(one, str) or not one for one in names):
        raise TypeError(f"{name} must be names, not {names!r:.80}: write {list(map(str, names))!r:.80}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{name}={names!r:.200} must be different names, at least one")
    return names


# --- families of models -----------------------------------------------------------------------------------------------

# The families of models: model_type in config.json -> title.
TITLES = {"bert": "BERT", "distilbert": "DistilBERT", "roberta": "RoBERTa", "electra": "ELECTRA", "albert": "ALBERT"}


def check_model_type(model_type: str, source: str = "config") -> None:
    """Refuses a `model_type` that is none of ours; the error names its source."""
    if model_type not in [*TITLES]:
        known = ", ".join(TITLES.values())
        raise ValueError(f"{source}: model_type is {model_type!r:.80}; the families of this project are {known}.")


def check_family(directory: str) -> None:
    """Refuses a model's directory whose config.json, if it has one, is of another family; see `check_model_type`."""
    config_file = posixpath.join(directory, "config.json")
    check_model_type((read_json_if_there(config_file) or {}).get("model_type", "bert"), config_file)
