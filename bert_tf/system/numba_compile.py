"""Functions compiled by Numba, kept on disk for the next process."""

import numba

compiled = numba.njit(cache=True, nogil=True, boundscheck=False)
