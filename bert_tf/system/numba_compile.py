"""Functions compiled by Numba, kept on disk for the next process."""

import functools
import hashlib
import pathlib
import time

import numba
from numba.core import event, types

from bert_tf.system import first_use


def compiled(function):
    """Compiles a function on its first call, and again after any of the compiled modules of its folder has changed.

    Numba itself looks only at the function's own file, although what it calls is compiled into it.
    """
    dispatcher = numba.njit(cache=True, nogil=True, boundscheck=False, no_cfunc_wrapper=True)(function)
    file = dispatcher._cache._cache_file
    file._source_stamp = (file._source_stamp, _checksum(pathlib.Path(function.__code__.co_filename).parent))
    # A variable that begins with 0 is first taken for the constant, and what it is passed to would be compiled for the
    # constant, too, which nothing calls: a third of the time of compilation.
    template = dispatcher.get_call_template
    dispatcher.get_call_template = lambda arguments, named: template(
        [types.unliteral(kind) for kind in arguments], {name: types.unliteral(kind) for name, kind in named.items()}
    )
    _announcer.add(dispatcher)
    return dispatcher


@functools.cache
def _checksum(folder: pathlib.Path) -> str:
    """A checksum over all modules of a folder that import this one."""
    sources = [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.py"))]
    name = __name__.encode()
    return hashlib.sha256(repr([source for source in sources if name in source[1]]).encode()).hexdigest()


class _Announcer(event.Listener):
    """Has it logged, once in a process, that functions are being compiled, if all of that together takes long."""

    def __init__(self):
        self._dispatchers, self._depth, self._seconds, self._begun, self._context = set(), 0, 0.0, 0.0, None

    def add(self, dispatcher) -> None:
        self._dispatchers.add(dispatcher)

    def on_start(self, event):
        self._depth += 1
        dispatcher = event.data["dispatcher"]
        if self._depth == 1 and dispatcher in self._dispatchers and self._seconds < first_use.SECONDS:
            module = dispatcher.py_func.__module__
            self._context = first_use.announced(
                f"Compiling the loops of {module.rpartition('.')[0] or module} for this processor, which is done once: "
                f"later runs take them from {dispatcher._cache.cache_path}.",
                first_use.SECONDS - self._seconds,
            )
            self._begun = time.monotonic()
            self._context.__enter__()

    def on_end(self, event):
        self._depth -= 1
        if self._depth == 0 and self._context:
            self._context.__exit__(None, None, None)
            self._context = None
            self._seconds += time.monotonic() - self._begun


_announcer = _Announcer()
event.register("numba:compile", _announcer)
