"""Numbers as JSON, compiled by Numba: the same characters as `json.dumps` of Python's round(number, 6).

The original rounds and prints number by number in Python (its extract_features.py), which takes longer than the model.
"""

import json

import numpy as np

from bert_tf.system.numba_compile import compiled

# Below this a number of millionths has at most 15 digits, and no two such decimals are the same double: Python's
# shortest form of the rounded number is then its decimal digits without trailing zeros.
_LIMIT = 1e9
_LONGEST = 20  # "-999999999.999999, "

_COMMA, _SPACE, _MINUS, _POINT, _ZERO, _E = (ord(char) for char in ", -.0e")


@compiled
def _write_rows(values, out, ends, first):
    """Rows [N, H] from `first` on as text; returns the row that can't be written, or N. ends: where each row's ends."""
    place = 0 if first == 0 else ends[first - 1]
    for row in range(first, values.shape[0]):
        for column in range(values.shape[1]):
            value = values[row, column]
            if not abs(value) < _LIMIT:  # nor NaN
                return row
            if column:
                out[place], out[place + 1] = _COMMA, _SPACE
                place += 2
            if np.signbit(value):
                out[place] = _MINUS
                place += 1
            # A float32 has 24 bits and a million 14 beside its factor 2^6: the product is exact in a double, and rint
            # decides ties as Python's round does.
            millionths = np.int64(np.rint(np.float64(abs(value)) * 1e6))
            if 0 < millionths < 100:  # 1e-06 to 9.9e-05
                tens = millionths // 10
                ones = millionths - 10 * tens
                out[place] = _ZERO + (tens if tens else ones)
                place += 1
                if tens and ones:
                    out[place], out[place + 1] = _POINT, _ZERO + ones
                    place += 2
                out[place], out[place + 1], out[place + 2] = _E, _MINUS, _ZERO
                out[place + 3] = _ZERO + (5 if tens else 6)
                place += 4
                continue
            whole = millionths // 1000000
            rest = np.uint32(millionths - whole * 1000000)
            size, power = 1, 10
            while power <= whole:
                size, power = size + 1, power * 10
            for digit in range(size - 1, -1, -1):
                following = whole // 10
                out[place + digit] = _ZERO + whole - following * 10
                whole = following
            place += size
            out[place] = _POINT
            for digit in range(6, 0, -1):
                quotient = rest // np.uint32(10)
                out[place + digit] = np.uint8(_ZERO + rest - quotient * np.uint32(10))
                rest = quotient
            place += 7
            while out[place - 1] == _ZERO and out[place - 2] != _POINT:
                place -= 1
        ends[row] = place
    return values.shape[0]


def rows_to_json(values: np.ndarray) -> list[bytes]:
    """For each row of float32 values [N, H] its numbers, rounded to 6 decimals, as in a JSON list without brackets."""
    count, size = values.shape
    values = np.ascontiguousarray(values, np.float32)
    out, ends = np.empty(count * size * _LONGEST, np.uint8), np.zeros(count, np.int64)
    strange = {}
    row = 0
    while (row := _write_rows(values, out, ends, row)) < count:  # very large, infinite or no number at all
        strange[row] = json.dumps([round(number, 6) for number in values[row].tolist()])[1:-1].encode()
        ends[row] = ends[row - 1] if row else 0
        row += 1
    text = out[: ends[-1]].tobytes() if count else b""
    starts = [0, *ends[:-1].tolist()]
    texts = [text[begin:end] for begin, end in zip(starts, ends.tolist(), strict=True)] if count else []
    for row, replacement in strange.items():
        texts[row] = replacement
    return texts
