"""Paths and pages of the project, files of texts and JSON, and cases that only `make test-slow` or `test-all` runs."""

import gzip
import json
import pathlib
import re
import shutil

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
READMES = ("README", "README.ko")
PAGES = {path.stem: path.read_text() for home in (ROOT, ROOT / "docs") for path in sorted(home.glob("*.md"))}
PAGES = {page: text for page, text in PAGES.items() if page not in ("CHANGELOG", "CONTRIBUTING", "SECURITY")}


def lines_of(path: pathlib.Path) -> list:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def directory_of(path: pathlib.Path, *copied: pathlib.Path, **texts) -> str:
    """A directory with copies of files, and others: name (__ for .) -> content as JSON or text."""
    path.mkdir(exist_ok=True)
    for file in copied:
        shutil.copy(file, path)
    for name, content in texts.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return str(path)


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def slow(*cases) -> list:
    return _marked(cases, pytest.mark.slow)


def exhaustive(*cases) -> list:
    """As `slow`, for the other cases of a test that has many of one kind: only `make test-all` runs them."""
    return _marked(cases, [pytest.mark.slow, pytest.mark.exhaustive])


def _marked(cases: tuple, marks) -> list:
    return [pytest.param(*case if isinstance(case, tuple) else (case,), marks=marks) for case in cases]
