"""The English prose in the installed Python packages, so that real text is available on every machine."""

import ast
import concurrent.futures
import hashlib
import inspect
import multiprocessing
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence

from bert_tf.pretraining.corpus import sentence_splitter
from bert_tf.pretraining.documents import Document, documents_of_lines, marked_held_out
from bert_tf.system.messages import progress_bar
from bert_tf.system.text_files import read_text_lines

_FILES_PER_TASK = 50

# --- documentation in Python packages --------------------------------------------------------------------------------

_SKIPPED_FOLDERS = {"tests", "test", "testing", "__pycache__", "site-packages", "dist-packages"}
# `x`, ``x``, :class:`x`, :ref:`x <target>`: the text shown is x.
_MARKUP = re.compile(r"(?::[\w:.+-]+:)?(?P<ticks>`{1,2})~?([^`<]+?)(?:\s*<[^`]*>)?(?P=ticks)_{0,2}")
_EMPHASIS = re.compile(r"\*{1,2}([\w ]+)\*{1,2}")
_WORD = re.compile(r"[\"'(\[]*[A-Za-z]+(?:['’-][A-Za-z]+)*[\"')\].,;:!?]*$")
_ENGLISH = re.compile(
    r"\b(the|an?|of|to|is|in|and|for|if|this|that|with|be|as|are|by|from|or|it|on|not|which|when|can|will)\b"
)


def docstring_documents(max_bytes: int, show_progress: bool = True) -> list[Document]:
    """English prose from the docstrings of the standard library and the installed packages, one document per module.

    The files are parsed, never imported. Tests, examples, tables, lists of parameters and repeated sentences are left
    out. The same packages give the same documents in the same order, in which neighbours are modules of different
    packages; the collection ends at max_bytes.
    """
    paths = _module_files()
    documents, seen, total = [], set(), 0
    workers = min(4, os.cpu_count() or 1)
    # "spawn" on every system: forking a process that may have threads (TensorFlow's) is unsafe.
    context = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool,
        progress_bar(
            total=max_bytes, desc="reading docstrings", unit="B", unit_scale=True, disable=not show_progress
        ) as bar,
    ):
        for sentences in pool.map(_module_sentences, paths, chunksize=_FILES_PER_TASK):
            document = []
            for sentence in sentences:
                key = sentence.lower()
                if key not in seen:
                    seen.add(key)
                    document.append(sentence)
            if len(document) < 2:  # next sentence prediction needs two
                continue
            documents.append(document)
            length = sum(len(sentence.encode()) + 1 for sentence in document)
            bar.update(length)
            total += length
            if total >= max_bytes:
                pool.shutdown(cancel_futures=True)
                break
    return documents


def _module_files() -> list[str]:
    """All modules, shuffled by the digest of their path in the packages' folder."""
    checksums = {}
    paths = sysconfig.get_paths()
    for root in (paths["stdlib"], paths["purelib"], paths["platlib"]):
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
            for name in names:
                if name.endswith(".py") and not name.startswith("test_") and not name.endswith("_test.py"):
                    path = os.path.join(folder, name)
                    checksums[path] = hashlib.sha256(os.path.relpath(path, root).encode()).digest()
    return sorted(checksums, key=lambda path: (checksums[path], path))


def _module_sentences(path: str) -> Document:
    """The prose sentences of all docstrings of a module, in order; none if it can't be read."""
    try:
        with open(path, "rb") as file:
            source = file.read()
        if b'"""' not in source and b"'''" not in source:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return []
    sentences, split = [], sentence_splitter()
    for docstring in _docstrings(tree):
        for paragraph in _prose_paragraphs(docstring):
            sentences += [sentence for sentence in split(_plain(paragraph)) if _is_english(sentence)]
    return sentences


def _docstrings(node: ast.AST) -> Iterator[str]:
    docstring = ast.get_docstring(node, clean=False)
    if docstring:
        yield docstring
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _docstrings(child)


def _prose_paragraphs(docstring: str) -> Iterator[str]:
    """Unindented paragraphs: indented ones are code, or lists of parameters."""
    after_code_mark = False
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = block.split("\n")
        is_code = after_code_mark and lines[0].startswith((" ", "\t"))
        after_code_mark = is_code or lines[-1].rstrip().endswith("::")
        indented = any(line.startswith((" ", "\t")) for line in lines)
        drawn = any(re.fullmatch(r"\W{3,}", line.strip()) for line in lines)  # headings, tables
        if is_code or indented or drawn or ">>>" in block or "```" in block or lines[0].startswith((".. ", "|", "#")):
            continue
        yield " ".join(lines)


def _plain(paragraph: str) -> str:
    paragraph = _MARKUP.sub(r"\2", paragraph).replace("::", ":")
    return " ".join(_EMPHASIS.sub(r"\1", paragraph).split())


def _is_english(sentence: str) -> bool:
    """Whether this is a complete sentence of mostly plain words, at least one of them a common English one."""
    words = sentence.split()
    if not 4 <= len(words) <= 80 or not sentence[0].isupper() or sentence[-1] not in ".!?:":
        return False
    plain = sum(_WORD.match(word) is not None for word in words)
    return plain >= 0.8 * len(words) and _ENGLISH.search(sentence) is not None


# Indic, Thai and Lao, Hangul letters, kana, Hangul syllables.
_HURT_BY_STRIPPING = re.compile("[\u0900-\u0dff\u0e01-\u0eff\u1100-\u11ff\u3041-\u30ff\uac00-\ud7a3]")


def needs_accents(text: str) -> bool:
    """Whether stripping accents would break letters, as in Korean, Japanese, Thai and Indic scripts."""
    return len(_HURT_BY_STRIPPING.findall(text)) > 0.001 * len(text)


# --- a user's text ---------------------------------------------------------------------------------------------------


def text_documents(files: Sequence[str], max_bytes: int) -> list[Document]:
    """Documents of plain text files, from the beginning of each file in equal shares, up to max_bytes.

    files: paths, see `bert_tf.system.text_files.list_files`.
    """
    import tensorflow as tf

    sizes = {path: tf.io.gfile.stat(path).length for path in files}
    # Smallest first: whatever a file leaves of its share goes to the others.
    shares, left = {}, max_bytes
    for number, path in enumerate(sorted(sizes, key=sizes.get)):
        shares[path] = min(sizes[path], left // (len(sizes) - number))
        left -= shares[path]
    documents = []
    for path, share in shares.items():
        lines = []
        for line in read_text_lines(path):
            share -= len(line.encode()) + 1
            if share < -1:  # the last line may have no newline
                break
            lines.append(line.strip())
        documents.extend(documents_of_lines(lines))
    return documents


def split_held_out(documents: Iterable[Document], every: int = 20) -> tuple[list[Document], list[Document]]:
    parts: tuple[list[Document], list[Document]] = ([], [])
    for document, is_held_out in marked_held_out(documents, every):
        parts[is_held_out].append(document)
    return parts
