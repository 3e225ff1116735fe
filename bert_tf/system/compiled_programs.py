"""What XLA compiled for this machine, and which kernels it measured to be fastest on its GPU, kept on disk, so that the
next start of a script does not do it again.

TensorFlow's own caches do the work, but one damaged file ends a run: programs are written under their final names, and
processes delete each other's temporary files of measurements. So every process has a folder of its own, into which
sound files of the user's cache folder are copied; what it adds is moved there when it ends. Folders are separate by
version of TensorFlow, NVIDIA's libraries, processor, GPU, driver, and the variables that change how XLA compiles.
Programs for several GPUs, of which each would write the same file, are not kept.
"""

import atexit
import contextlib
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import re
import stat
from collections.abc import Generator

from absl import logging

from bert_tf.system.example_bytes import fields
from bert_tf.system.storage import PRIVATE, private_folder, remove_left_behind, write_files

VARIABLE = "BERT_TF_COMPILED"
_MOST_BYTES = {"CPU": 1 << 25, "CPU,GPU": 1 << 28}  # of a folder; a program has a tenth of a million, or one
_FLAG = "tf_xla_persistent_cache_directory"
# XLA ends the process for a flag that it does not know, so it is set for these versions only. Compilation in parallel
# (--xla_gpu_enable_llvm_module_compilation_parallelism) is not: without nvlink, every compilation fails.
_MEASURED, _MEASURED_IN = "--xla_gpu_per_fusion_autotune_cache_dir", ("2.20.", "2.21.")
_NVIDIA = pathlib.Path("/proc/driver/nvidia")


@contextlib.contextmanager
def keep_programs(deterministic: bool = False) -> Generator[None]:
    """If TensorFlow is imported and looks for devices in this context, it uses earlier programs and keeps new ones.

    BERT_TF_COMPILED names the folder, by default bert_tf/compiled in the user's cache folder; empty, nothing is kept.
    Nor is it if TF_XLA_FLAGS already says where, or, which is logged, if the folder can't be used. On a GPU,
    deterministic runs have a folder of their own: they measure no kernels, but would keep the first of each.
    """
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if os.environ.get(VARIABLE) == "" or _FLAG in flags:
        yield
        return
    # A process that started this one may have its folder in XLA_FLAGS.
    xla = re.sub(rf"{_MEASURED}=\S*/{PRIVATE}\S* ", "", os.environ.get("XLA_FLAGS", ""))
    driver = "".join(file.read_text(errors="replace") for file in _NVIDIA.glob("version"))
    texts = [file.read_text(errors="replace") for file in _NVIDIA.glob("gpus/*/information")]
    gpus = sorted("".join(re.findall(r"^Model:.*", text, re.MULTILINE)) + driver for text in texts)
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        gpus = gpus[: len(list(filter(None, visible.split(","))))]
    devices = "CPU,GPU" if len(gpus) == 1 else "CPU"  # as TensorFlow calls their types
    try:
        folder = _folder([*gpus, "deterministic"] if gpus and deterministic else gpus, xla)
        remove_left_behind()  # a killed process leaves up to a few hundred million bytes
        private = private_folder()
        known = _copy_sound(folder, private.name)
    except (OSError, RuntimeError, ImportError) as error:  # no home directory, or TensorFlow is tensorflow-tpu
        logging.info("Compiled programs are not kept for the next start: %s", error)
        yield
        return
    atexit.register(_move_new, private, folder, known, _MOST_BYTES[devices])
    # No check of the whole source: the file's name holds its hash.
    os.environ["TF_XLA_FLAGS"] = (
        f"{flags} --{_FLAG}={private.name} --tf_xla_persistent_cache_device_types={devices} "
        "--tf_xla_disable_strict_signature_checks=true"
    )
    is_known = importlib.metadata.version("tensorflow").startswith(_MEASURED_IN)
    if gpus and is_known and xla.lstrip()[:1] in ("", "-"):  # else it is the name of a file with flags
        os.environ["XLA_FLAGS"] = f"{_MEASURED}={private.name} {xla}"  # the last wins; XLA reads it when it compiles
        logging.info("XLA keeps in %s which kernels it measured to be the fastest.", folder)
    try:
        yield
    finally:  # TensorFlow has read it; processes started from here have their own folders
        del os.environ["TF_XLA_FLAGS"]
        if flags:
            os.environ["TF_XLA_FLAGS"] = flags


def _folder(gpus: list[str], xla: str) -> str:
    """The folder of programs that fit this machine, made for this user only; its name is a hash of what they fit."""
    first, _, _ = pathlib.Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")
    kinds = "vendor_id|cpu family|model|model name|stepping|flags|Features|CPU part"
    processor = re.findall(rf"^(?:{kinds})\s*:.*", first, re.MULTILINE)
    no_matter = ("TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL", "TF_CPU_", "XLA_FLAGS")
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(("TF_", "XLA_"))]
    variables = [text for text in variables if not text.startswith(no_matter)] + [xla] * bool(xla)
    package = importlib.metadata.distribution("tensorflow")
    packages = pathlib.Path(str(package.locate_file("")))
    libraries = sorted(path.name for path in packages.glob("nvidia_*.dist-info")) if gpus else []
    parts = [package.version, platform.platform(), str(os.cpu_count()), *processor, *gpus, *libraries, *variables]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(pathlib.Path.home(), ".cache")
    root = os.environ.get(VARIABLE) or os.path.join(home, "bert_tf", "compiled")
    folder = os.path.join(root, f"tensorflow-{package.version}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}")
    for path in (root, folder):
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.stat(path)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise PermissionError(f"{path} belongs to another user, or others may write into it.")
    return folder


def _copy_sound(folder: str, target: str) -> set[str]:
    """Copies the files whose checksums are right; returns their names."""
    copied = set()
    for path in pathlib.Path(folder).glob("*.*"):
        content = path.read_bytes()
        first, _, rest = content.partition(b"\n")
        if first == _checksum(rest):
            pathlib.Path(target, path.name).write_bytes(content)
            copied.add(path.name)
    return copied


def _move_new(tmp, folder: str, known: set[str], most: int) -> None:
    """Adds what a process compiled into its own folder to that of the user; if that is full, the oldest go."""
    with contextlib.suppress(OSError):
        new = [path for path in pathlib.Path(tmp.name).glob("*.*") if path.name not in known]
        made = {path.name: _as_text(path.read_bytes()) if path.suffix == ".pb" else path.read_bytes() for path in new}
        texts = {os.path.join(folder, name): _checksum(text) + b"\n" + text for name, text in made.items() if text}
        size = sum(map(len, texts.values()))
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime, reverse=True):
            size += entry.stat().st_size
            if texts and size > most:
                os.remove(entry.path)
        if texts:
            write_files(texts)


def _checksum(content: bytes) -> bytes:
    """A checksum, as a comment in a protocol buffer's text form, so that TensorFlow still reads the program."""
    return b"# " + hashlib.sha256(content).hexdigest().encode()


def _as_text(content: bytes) -> bytes | None:
    """A program in the text form that TensorFlow tries first; in the other, each is logged as an error.

    Without the program's source, which is up to a hundred times as large. None if the content is not complete.
    """
    from google.protobuf.text_encoding import CEscape

    def literal(value: int | bytes) -> str:
        return str(value) if isinstance(value, int) else f'"{CEscape(value, as_utf8=False)}"'

    try:  # XlaSerializedCacheEntry of TensorFlow's xla_compilation_cache.proto
        entry = dict(fields(content))
        key, executable = dict(fields(entry[1])), entry[3]
    except (LookupError, TypeError, ValueError):
        return None
    names = ("signature_fingerprint", "cluster_fingerprint", "device_type", "prefix")
    values = [f"{name}: {literal(key[number])}\n" for number, name in enumerate(names, 1) if number in key]
    return f"key {{\n{''.join(values)}}}\nexecutable: {literal(executable)}\n".encode() if executable else None
