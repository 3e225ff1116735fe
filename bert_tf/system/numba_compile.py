"""Functions compiled by Numba, kept on disk for the next process.

Compilation takes seconds, once; what would take less as plain Python need not be compiled: see `interpreted`.

numba.core is not public: its dispatcher is subclassed here, and nowhere else, since `numba.njit` looks for changes in
the function's own file only, and compiles for constants. If it moves, `compiled` and `inner` may return its functions.
"""

import contextlib
import contextvars
import functools
import hashlib
import pathlib
import time
from collections.abc import Callable, Iterator

import numpy as np
from numba.core import types
from numba.core.registry import CPUDispatcher

from bert_tf.system import messages

_interpreting = contextvars.ContextVar("interpreting", default=False)


@contextlib.contextmanager
def interpreted(condition: bool = True) -> Iterator[None]:
    """In this context, if the condition holds, compiled functions run as the Python that they are written in."""
    token = _interpreting.set(condition)
    try:
        with np.errstate(over="ignore"):  # as in compiled code
            yield
    finally:
        _interpreting.reset(token)


def is_interpreting() -> bool:
    return _interpreting.get()


def compiled(function: Callable) -> "_CachedLoop":
    """Compiles a function on its first call, and again after any of the compiled modules of its folder has changed."""
    loop = _CachedLoop(function)
    loop.enable_caching()
    file = loop._cache._cache_file
    file._source_stamp = (file._source_stamp, _checksum(pathlib.Path(function.__code__.co_filename).parent))
    return loop


def inner(function: Callable, in_python: Callable | None = None) -> "_InnerLoop":
    """A function that is compiled only as a part of compiled functions; called from Python, `in_python` runs, or it."""
    loop = _InnerLoop(function, no_cpython_wrapper=True)
    loop.in_python = in_python or function
    return loop


class _Loop(CPUDispatcher):
    def __init__(self, function: Callable, **options: bool):
        options = {"nopython": True, "nogil": True, "boundscheck": False, "no_cfunc_wrapper": True, **options}
        super().__init__(py_func=function, targetoptions=options)

    def __call__(self, *arguments):
        return self.py_func(*arguments) if _interpreting.get() else super().__call__(*arguments)

    def get_call_template(self, arguments, named):
        # A variable that begins with 0 is first taken for the constant, and what it is passed to would be compiled for
        # the constant, too, which nothing calls: a third of the time of compilation.
        named = {name: types.unliteral(kind) for name, kind in named.items()}
        return super().get_call_template([types.unliteral(kind) for kind in arguments], named)


class _CachedLoop(_Loop):
    is_announced = False  # whether a message has said that compilation takes long

    def compile(self, signature):
        """Compiles for types, or takes it from the disk; it is logged, once in a process, if that takes long."""
        package, begun = self.py_func.__module__, time.monotonic()
        message = (
            f"Compiling the loops of {package.rpartition('.')[0] or package} for this processor, which is done once: "
            f"later runs take them from {self._cache.cache_path}."
        )
        with contextlib.nullcontext() if _CachedLoop.is_announced else messages.announced(message):
            entry = super().compile(signature)
        _CachedLoop.is_announced |= time.monotonic() - begun > messages.SLOW_SECONDS
        return entry


class _InnerLoop(_Loop):
    def __call__(self, *arguments):
        return self.in_python(*arguments)


@functools.cache
def _checksum(folder: pathlib.Path) -> str:
    """A checksum over all modules of a folder that import this one."""
    sources = [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.py"))]
    return hashlib.sha256(repr([one for one in sources if __name__.encode() in one[1]]).encode()).hexdigest()
