"""Functions compiled by Numba, kept on disk for the next process."""

import functools
import hashlib
import pathlib

import numba


def compiled(function):
    """Compiles a function on its first call, and again after any of the compiled modules of its folder has changed.

    Numba itself looks only at the function's own file, although what it calls is compiled into it.
    """
    dispatcher = numba.njit(cache=True, nogil=True, boundscheck=False)(function)
    file = dispatcher._cache._cache_file
    file._source_stamp = (file._source_stamp, _checksum(pathlib.Path(function.__code__.co_filename).parent))
    return dispatcher


@functools.cache
def _checksum(folder: pathlib.Path) -> str:
    """A checksum over all modules of a folder that import this one."""
    sources = [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.py"))]
    name = __name__.encode()
    return hashlib.sha256(repr([source for source in sources if name in source[1]]).encode()).hexdigest()
