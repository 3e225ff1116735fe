"""How every script starts: a user's mistake gives a one-line message, and TensorFlow is quiet."""

import contextlib
import ctypes
import errno
import gc
import os
import platform
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Generator

from absl import app, flags, logging

from bert_tf.system import compiled_programs, removed, tensorflow_internals, workers
from bert_tf.system.declare import declared_flags, help_text, required_flags
from bert_tf.system.messages import escape_control_characters, without_lines

_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Packages that TensorFlow and Keras import if they are there, for what no script uses: nearly half of the time of their
# import. Scripts that need one themselves (plots) import it later.
_NEEDLESS = ("cv2", "jax", "matplotlib", "pandas", "scipy", "sklearn")
# What TensorFlow 2.20 and 2.21 write if there is no CUDA driver.
_WITHOUT_A_DRIVER = b"failed call to cuInit", b"Could not find cuda drivers", b"before absl::InitializeLog()"
_POOL = "TF_CPU_ALLOCATOR_USE_BFC"  # TensorFlow's own variable: it has a pool for the memory of tensors on the CPU
_FINDS_TPUS = "googleapiclient"  # by name, in Google's cloud
# FloatingPointError: the loss is NaN or infinite. Python itself never raises it.
_USER_ERRORS = ValueError | FloatingPointError | RuntimeError
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)
# They may be empty, as commands pass on variables that are set on Google's cloud only.
_OF_THE_CLOUD = ("tpu_name", "tpu_zone", "gcp_project", "master")
# In the environment of a script that must not outlive the process that started it: that holds the other end of stdin.
ENDS_WITH_STDIN = "BERT_TF_ENDS_WITH_STDIN"


def run(main) -> None:
    """`absl.app.run(main)`, but a user's mistake, see `_user_error_message`, gives a one-line message and exit code 1.

    Other errors are shown with their traceback, as are all with --verbosity=1.
    """

    def end_with_stdin() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    if os.environ.pop(ENDS_WITH_STDIN, None):
        threading.Thread(target=end_with_stdin, daemon=True).start()
    # Hides TensorFlow's notes on how it was built; errors are still shown.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    def guarded(argv):
        show_all = logging.get_verbosity() >= logging.DEBUG
        logging.set_verbosity(logging.INFO)
        try:
            main(argv)
        except KeyboardInterrupt:
            if show_all:
                raise
            print(f"{os.path.basename(sys.argv[0])}: interrupted", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        except Exception as error:
            has_left, message = False, _user_error_message(error)
            if isinstance(error, BrokenPipeError):
                poll = select.poll()
                poll.register(sys.stdout.fileno(), 0)
                has_left = any(event & select.POLLERR for _, event in poll.poll(0))
            if has_left or message is None or show_all:
                raise
            message = escape_control_characters(" ".join(message.splitlines()))
            sys.exit(f"{os.path.basename(sys.argv[0])}: error: {message}")

    sys.modules["__main__"].__doc__ = sys.modules[main.__module__].__doc__  # for absl's --helpfull
    if {"--help", "-help", "--helpshort", "-?", "-h"} & set(sys.argv[1:]) and (text := help_text(flags.FLAGS)):
        with exit_quietly_on_broken_pipe():
            print(f"{sys.modules['__main__'].__doc__}{text}\n--helpfull lists the flags of all packages.")
        sys.exit(0)
    flags.FLAGS.set_gnu_getopt(True)  # a loose word does not end the flags
    with exit_quietly_on_broken_pipe():
        app.run(guarded, flags_parser=_parse)


@contextlib.contextmanager
def exit_quietly_on_broken_pipe() -> Generator[None]:
    """Ends the script silently where the reader of its output has left, as in `--help | head`."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush at the end
        sys.exit(128 + signal.SIGPIPE)


def _user_error_message(error: Exception) -> str | None:
    """The message for an error that the user, the system or memory caused; none if it is the program's fault."""
    innermost = os.path.abspath(traceback.extract_tb(error.__traceback__)[-1].filename)
    ours = innermost.startswith(_PACKAGE_FOLDER) or innermost == os.path.abspath(sys.argv[0])
    errors = getattr(sys.modules.get("tensorflow"), "errors", None)  # if that is imported, errors may be its own
    of_tensorflow = errors is not None and isinstance(error, errors.OpError)
    message = error.message if of_tensorflow else str(error)
    # TensorFlow's file functions name the file and the problem; from its writers come the system's words.
    if isinstance(error, OSError) or innermost.endswith(os.path.join("lib", "io", "file_io.py")):
        return message
    if of_tensorflow and any(os.strerror(number) in message for number in _OF_THE_DISK):
        return message
    if isinstance(error, MemoryError) or (of_tensorflow and isinstance(error, errors.ResourceExhaustedError)):
        lower = [f"--{name}" for name in declared_flags(flags.FLAGS) if re.search("batch_size|max_seq_length", name)]
        advice = f"lower {', '.join(lower)}" if lower else "this machine has too little"
        return f"out of memory: {advice} ({message[:200]})"
    return message if ours and isinstance(error, _USER_ERRORS) and not isinstance(error, RecursionError) else None


def _parse(argv: list[str]) -> list[str]:
    """Reads the flags; a wrong one ends the script with one line that names it. So do empty texts, since a command that
    failed would otherwise go unnoticed."""
    try:
        rest = flags.FLAGS(argv)
        if len(rest) > 1:
            raise flags.Error(f"{rest[1]} is not a flag; the value of a switch is joined: --do_train=false.")
        if missing := [f"--{name}" for name in required_flags(flags.FLAGS) if flags.FLAGS[name].value is None]:
            raise flags.Error(f"give {', '.join(missing)}; --help lists all flags.")
        for name, value in flags.FLAGS.flag_values_dict().items():
            for path in value if isinstance(value, list | tuple) else [value]:
                if re.match(r"~\w*/", str(path)):  # a folder of this name is ./~
                    raise flags.Error(f"--{name}={path}: the shell replaces ~ only where a word begins: write $HOME.")
            if value in ("", [], [""]) and value != flags.FLAGS[name].default and name not in _OF_THE_CLOUD:
                raise flags.Error(f"--{name} is empty: did the command that should have printed its value fail?")
    except flags.Error as error:
        unknown = getattr(error, "flagname", "")  # of an UnrecognizedFlagError
        if instead := removed.FLAGS.get(unknown.removeprefix("no")):
            error = f"--{unknown} has been removed: {instead}."
        lines = [f"{word} has been removed: {removed.VALUES[word]}." for word in argv if word in removed.VALUES]
        sys.exit(f"{os.path.basename(sys.argv[0])}: error: {'; '.join(lines or str(error).splitlines())}")
    return rest


def start_tensorflow(num_virtual_cpus: int | None = None, trains: bool = True, on_tpu: bool = False) -> None:
    """Imports TensorFlow and makes it look for devices, hiding the error that it logs if there is no CUDA driver.

    Each script's main calls this after checking its flags and before importing anything else. What XLA compiles is kept
    for the next start, except with virtual CPUs, of which one could read the file that another is writing. Products on
    a CPU are oneDNN's; TensorFlow has it on by default only where the processor has AVX512_VNNI.
    """
    if (backend := os.environ.get("KERAS_BACKEND") or "tensorflow") != "tensorflow":
        raise ValueError(f"KERAS_BACKEND={backend}: the scripts run on TensorFlow; unset it. Models take any backend.")
    values, gpu = flags.FLAGS, False
    with contextlib.suppress(OSError):
        gpu = bool(ctypes.CDLL("libcuda.so.1"))
    deterministic = "deterministic" in values and values.deterministic
    tpu = on_tpu or ("use_tpu" in values and (values.use_tpu or values.distribution_strategy == "tpu"))
    needless = _NEEDLESS if tpu else (*_NEEDLESS, _FINDS_TPUS)
    if not gpu and platform.machine() in ("x86_64", "AMD64"):
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    with (
        contextlib.nullcontext() if num_virtual_cpus else compiled_programs.keep_programs(deterministic),
        contextlib.nullcontext() if gpu else without_lines(*_WITHOUT_A_DRIVER),
        _not_found(*needless),
        _made_to_stay(),
    ):
        import tensorflow as tf

        if not tensorflow_internals.has_mkl() and _POOL not in os.environ:
            # The C library would give each large tensor back to the system, which clears its pages for the next one.
            os.environ[_POOL] = "1"
            os.environ.setdefault("TF_CPU_BFC_MEM_LIMIT_IN_MB", str(1 << 30))  # no limit; by default it is 64 GB
            logging.debug("Memory of tensors is kept for the next ones; %s=0 gives it back.", _POOL)
        if not (trains or tpu or gpu or num_virtual_cpus):
            workers.share_among_batches()
        tf.config.list_physical_devices()


@contextlib.contextmanager
def _made_to_stay() -> Generator[None]:
    """Python's garbage collector ignores what is made in this context: a quarter of the time of an import, which makes
    hundreds of thousands of objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _not_found(*names: str) -> Generator[None]:
    """In this context, importing one of these packages fails as if it were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # pyrefly: ignore[unsupported-operation]  # which its type does not know
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
