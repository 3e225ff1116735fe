"""Functions compiled by Numba, kept on disk for the next process.

Compilation takes seconds, once; what would take less as plain Python need not be compiled: see `interpreted`.
"""

import contextlib
import contextvars
import functools
import hashlib
import pathlib
import time
from collections.abc import Callable, Iterator

import numpy as np
from numba.core import event, types
from numba.core.registry import CPUDispatcher

from bert_tf.system import progress

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
    """Whether compiled functions run as Python."""
    return _interpreting.get()


def compiled(function: Callable) -> "_Loop":
    """Compiles a function on its first call, and again after any of the compiled modules of its folder has changed.

    Numba itself looks only at the function's own file, although what it calls is compiled into it.
    """
    loop = _Loop(function)
    loop.enable_caching()
    file = loop._cache._cache_file
    file._source_stamp = (file._source_stamp, _checksum(pathlib.Path(function.__code__.co_filename).parent))
    _announcer.dispatchers.add(loop)
    return loop


def inner(function: Callable) -> "_InnerLoop":
    """A function for compiled functions to call: compiled only as part of them. Called from Python it runs as such."""
    return _InnerLoop(function, no_cpython_wrapper=True)


class _Loop(CPUDispatcher):
    """What Numba makes of a function."""

    def __init__(self, function: Callable, **options: bool):
        options = {"nopython": True, "nogil": True, "boundscheck": False, "no_cfunc_wrapper": True, **options}
        super().__init__(py_func=function, targetoptions=options)

    def __call__(self, *arguments):
        return self.py_func(*arguments) if _interpreting.get() else super().__call__(*arguments)

    def get_call_template(self, arguments, named):
        # A variable that begins with 0 is first taken for the constant, and what it is passed to would be compiled for
        # the constant, too, which nothing calls: a third of the time of compilation.
        return super().get_call_template(
            [types.unliteral(kind) for kind in arguments], {name: types.unliteral(kind) for name, kind in named.items()}
        )


class _InnerLoop(_Loop):
    def __call__(self, *arguments):
        return self.py_func(*arguments)


@functools.cache
def _checksum(folder: pathlib.Path) -> str:
    """A checksum over all modules of a folder that import this one."""
    sources = [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.py"))]
    name = __name__.encode()
    return hashlib.sha256(repr([source for source in sources if name in source[1]]).encode()).hexdigest()


class _Announcer(event.Listener):
    """Has it logged, once in a process, that functions are being compiled, if all of that together takes long."""

    def __init__(self):
        self.dispatchers, self._depth, self._seconds, self._context = set(), 0, 0.0, None

    def on_start(self, event):
        self._depth += 1
        dispatcher = event.data["dispatcher"]
        left = progress.SLOW_SECONDS - self._seconds
        if self._depth == 1 and dispatcher in self.dispatchers and left > 0:
            module = dispatcher.py_func.__module__
            self._context, self._begun = contextlib.ExitStack(), time.monotonic()
            self._context.enter_context(progress.announced(
                f"Compiling the loops of {module.rpartition('.')[0] or module} for this processor, which is done once: "
                f"later runs take them from {dispatcher._cache.cache_path}.", left,
            ))  # fmt: skip

    def on_end(self, event):
        self._depth -= 1
        if self._depth == 0 and self._context:
            self._context.close()
            self._context = None
            self._seconds += time.monotonic() - self._begun


_announcer = _Announcer()
event.register("numba:compile", _announcer)
