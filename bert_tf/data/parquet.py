"""Rows of Parquet files, by pyarrow, with the names of classes that Hugging Face's `datasets` writes into them."""

import contextlib
import re
from collections.abc import Callable, Generator, Iterator

from absl import logging

from bert_tf.system.checks import check_extra
from bert_tf.system.messages import abbreviated_list, is_first
from bert_tf.system.storage import is_remote
from bert_tf.system.text_files import local_file, naming_file, parse_json, read_bytes

_MOST = 1_000_000  # rows, of a file with fewer bytes than rows: it would fill the memory
_OF_JSON = re.compile("u?int|float|double|halffloat|bool|large_string|string|null")


def rows(path: str) -> Iterator[dict]:
    """The rows by the names of their columns, in the values of JSON; dates and the like are strings.

    Columns of bytes, such as images, are left out. A number that `datasets` takes for a class (ClassLabel) becomes the
    name that the file's metadata give it, and -1, which stands for none, becomes None.
    """
    with _opened(path) as file, naming_file(path):
        schema = file.schema_arrow
        kinds = {field.name: list(map(str, _leaves(field.type))) for field in schema}
        left_out = [name for name, leaves in kinds.items() if any("binary" in leaf for leaf in leaves)]
        if left_out and is_first("bytes", path):
            logging.info("%s: left out columns of bytes: %s.", path, abbreviated_list(left_out))
        changed = {name: str for name, leaves in kinds.items() if not all(map(_OF_JSON.match, leaves))}
        changed |= _named_classes(schema, path)
        columns = [name for name in kinds if name not in left_out] if left_out else None
        for batch in file.iter_batches(1000, columns=columns):
            for row in batch.to_pylist():
                for name, change in changed.items():
                    if row.get(name) is not None:
                        row[name] = change(row[name])
                yield row


@contextlib.contextmanager
def _opened(path: str) -> Generator:
    """The file for pyarrow, whose errors become a ValueError that names it."""
    check_extra("parquet", path)
    import pyarrow
    from pyarrow import parquet

    try:
        source = pyarrow.BufferReader(read_bytes(path)) if is_remote(path) else pyarrow.OSFile(local_file(path))
        with parquet.ParquetFile(source) as file:
            if (count := file.metadata.num_rows) > max(_MOST, source.size()):
                raise ValueError(f"{path} has {count:,} rows in {source.size():,} bytes: no texts are that much alike.")
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} can't be read as Parquet: {' '.join(str(error).split()):.200}") from None


def _leaves(kind) -> list:
    kind = getattr(kind, "value_type", kind) if not kind.num_fields else kind  # of a dictionary
    return [leaf for k in range(kind.num_fields) for leaf in _leaves(kind.field(k).type)] or [kind]


def _named_classes(schema, path: str) -> dict[str, Callable]:
    """The columns of classes, and what turns their numbers into names."""
    text = (schema.metadata or {}).get(b"huggingface")
    features = parse_json(text.decode(), path)["info"]["features"] if text else {}
    namers = {}
    for column, feature in features.items():
        names: list[str] = []
        if column in schema.names and (namer := _namer(feature, names)):
            namers[column] = namer
            shown = abbreviated_list([f"{number} {name}" for number, name in enumerate(names)])
            if is_first("classes", column, shown):
                logging.info("%s: the file names the numbers in %r, and the names are read: %s.", path, column, shown)
    return namers


def _namer(feature, all_names: list[str]) -> Callable | None:
    """A function that puts names for the numbers of classes in a value, if it has some; appends them to all_names."""
    if isinstance(feature, list):  # as older versions write a list
        feature = {"feature": feature[0]}
    if feature.get("_type") == "ClassLabel":
        names = feature["names"]
        all_names += names
        return lambda value: None if value in (None, -1) else names[value]
    if "_type" not in feature and "feature" not in feature:  # an object
        inner = {name: namer for name, of_item in feature.items() if (namer := _namer(of_item, all_names))}
        if not inner:
            return None
        return lambda value: value and value | {name: namer(value[name]) for name, namer in inner.items()}
    of_item = _namer(feature["feature"], all_names) if isinstance(feature.get("feature"), dict) else None
    return of_item and (lambda values: values and list(map(of_item, values)))
