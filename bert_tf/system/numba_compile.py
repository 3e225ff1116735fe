"""Functions compiled by Numba, kept on disk for the next process.

Compilation takes seconds, once; what would take less as plain Python need not be compiled: see `interpreted`.

numba.core is not public: its dispatcher and cache are subclassed here, and nowhere else, since `numba.njit` looks for
changes in the function's own file only, compiles for constants, and fails or ends the process where a file of its cache
is damaged. If they move, `compiled` and `inner` may return its functions.
"""

import contextlib
import contextvars
import functools
import hashlib
import pathlib
import pickle
import time
from collections.abc import Callable, Generator

import numba
import numpy as np
from numba.core import types
from numba.core.caching import FunctionCache, NullCache
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps

from bert_tf.system import messages

_interpreting = contextvars.ContextVar("interpreting", default=False)


@contextlib.contextmanager
def interpreted(condition: bool = True) -> Generator[None]:
    """In this context, if the condition holds, compiled functions run as Python."""
    token = _interpreting.set(condition)
    try:
        with np.errstate(over="ignore"):  # as in compiled code
            yield
    finally:
        _interpreting.reset(token)


def is_interpreting() -> bool:
    return _interpreting.get()


def compiled(function: Callable, **options) -> "_CachedLoop":
    """Compiles a function on its first call, and again after any of the compiled modules of its folder has changed."""
    loop = _CachedLoop(function, **options)
    with contextlib.suppress(RuntimeError):  # neither its folder nor the user's cache can be written
        loop._cache = _Cache(function)
    return loop


def inner(function: Callable, in_python: Callable | None = None) -> "_InnerLoop":
    """A function that is compiled only as a part of compiled functions; called from Python, `in_python` runs, or it."""
    loop = _InnerLoop(function, no_cpython_wrapper=True)
    loop.in_python = in_python or function
    return loop


class _Loop(CPUDispatcher):
    def __init__(self, function: Callable, **options):
        options = {"nopython": True, "nogil": True, "boundscheck": False, "no_cfunc_wrapper": True, **options}
        super().__init__(py_func=function, targetoptions=options)

    def __call__(self, *arguments):
        return self.py_func(*arguments) if _interpreting.get() else super().__call__(*arguments)

    def get_call_template(self, args, kws):
        # A variable that begins with 0 is first taken for the constant, and what it is passed to would be compiled for
        # the constant, too, which nothing calls: a third of the time of compilation.
        kws = {name: types.unliteral(kind) for name, kind in kws.items()}
        return super().get_call_template([types.unliteral(kind) for kind in args], kws)


class _CachedLoop(_Loop):
    is_announced = False  # whether a message has said that compilation takes long
    _cache: NullCache | FunctionCache

    def compile(self, sig):
        """Compiles for types, or takes it from the disk; it is logged, once in a process, if that takes long."""
        package, begun, path = self.py_func.__module__, time.monotonic(), self._cache.cache_path
        once = f", which is done once: later runs take them from {path}" if path else ""
        message = f"Compiling the loops of {package.rpartition('.')[0] or package} for this processor{once}."
        with contextlib.nullcontext() if _CachedLoop.is_announced else messages.announced(message):
            entry = super().compile(sig)
        _CachedLoop.is_announced |= time.monotonic() - begun > messages.SLOW_SECONDS
        return entry


class _Cache(FunctionCache):
    """Numba's, but with one file for a function and types, which begins with what it is of and with a checksum.

    Numba's own index and code are two files: killed between them, it later runs the code of older sources.
    """

    def load_overload(self, sig, target_context):
        path, origin = self._place(sig, target_context.codegen())
        try:
            content = path.read_bytes()
            code = content[64:]
            if content[:32] in (b"", origin):  # else of other sources
                if content[32:64] != hashlib.sha256(code).digest():  # damaged code can end the process
                    raise ValueError("it does not match its checksum")
                target_context.refresh()
                return self._impl.rebuild(target_context, pickle.loads(code))
        except FileNotFoundError:
            return None
        except Exception as error:  # a pickle has many ways to fail
            messages.warn_once("damaged loops", "%s is damaged (%s): compiled again.", path, error)

    def save_overload(self, sig, data):
        if not self._impl.check_cachable(data):
            return
        (path, origin), code = self._place(sig, data.codegen), dumps(self._impl.reduce(data))
        try:
            self._impl.locator.ensure_cache_path()
            with self._cache_file._open_for_write(path) as file:
                file.write(origin + hashlib.sha256(code).digest() + code)
        except OSError as error:
            messages.warn_once("unkept loops", "Compiled loops are not kept for the next start: %s.", error)

    def _place(self, sig, codegen) -> tuple[pathlib.Path, bytes]:
        """The file for types, and a hash of what the code in it is made of."""
        key, folder = self._index_key(sig, codegen), pathlib.Path(self._py_func.__code__.co_filename).parent
        made_of = numba.__version__, self._impl.locator.get_source_stamp(), _checksum(folder), key
        key, origin = (hashlib.sha256(repr(value).encode()) for value in (key, made_of))
        return pathlib.Path(self.cache_path, f"{self._impl.filename_base}.{key.hexdigest()[:16]}.nbc"), origin.digest()


class _InnerLoop(_Loop):
    in_python: Callable

    def __call__(self, *arguments):
        return self.in_python(*arguments)


@functools.cache
def _checksum(folder: pathlib.Path) -> str:  # of all its modules that import this one
    sources = [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.py"))]
    return hashlib.sha256(repr([one for one in sources if __name__.encode() in one[1]]).encode()).hexdigest()
