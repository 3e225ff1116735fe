"""The layers of the code: imports go only downwards, there are no cycles, and private names stay private.

Every import counts, including those inside functions: a deferred import is still a dependency.
"""

import ast
import functools
import graphlib
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterable

import mutants
import pytest
from helpers.basics import GOLDEN, PAGES, ROOT, TESTS

# Packages of bert_tf in each layer, from the bottom up. A module imports from its own package and from lower layers.
FLOORS = (
    ("system",),
    ("text",),
    ("families",),
    ("store",),
    ("data", "models"),
    ("pretraining", "conversion"),
    ("training",),
    ("tasks",),
    ("serving",),
    ("cli",),
)
FLOOR = {package: number for number, packages in enumerate(FLOORS) for package in packages}
# The public entrances: `from bert_tf import X`, the command `bert-tf`, the original's module names, and those of
# transformers. No module inside uses them.
ORIGINAL_MODULES = ("__main__", "modeling", "optimization", "run_classifier", "run_squad", "tokenization")
DOORS = {"bert_tf", "bert_tf.transformers", *(f"bert_tf.{name}" for name in ORIGINAL_MODULES)}


def module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "bert_tf").rglob("*.py"))}
SCRIPTS = {path.stem: path for path in sorted(ROOT.glob("*.py"))}


@functools.cache  # by several tests, none of which changes it
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def imports_of(path: pathlib.Path) -> list[tuple[int, str, str | None]]:
    """(line, module of bert_tf, name or None for the module itself) of every import in a file."""
    found = []
    for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, None) for alias in node.names if alias.name.split(".")[0] == "bert_tf"]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            if not node.module or node.module.split(".")[0] != "bert_tf":
                continue
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append((node.lineno, whole, None) if whole in MODULES else (node.lineno, node.module, alias.name))
    return found


def names_imported_by(node: ast.AST) -> list[str]:
    """Modules and `module.name`s."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    return names + ([f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else [])


def package_of(module: str) -> str:
    return module.split(".")[1]


def test_every_package_has_a_floor():
    packages = {package_of(module) for module in MODULES if module not in DOORS}
    assert packages == set(FLOOR)


def test_imports_go_down():
    wrong = []
    for module, path in MODULES.items():
        if module in DOORS:
            continue
        for line, imported, _ in imports_of(path):
            place = f"{module}:{line} imports {imported}"
            if imported in DOORS:
                wrong.append(f"{place}: a front door")
                continue
            here, there = package_of(module), package_of(imported)
            if here != there and FLOOR[there] >= FLOOR[here]:
                wrong.append(f"{place}: up or across")
    assert not wrong, "\n".join(wrong)


def test_there_is_no_circle():
    graph = {
        module: {imported for _, imported, _ in imports_of(path)} - {module}
        for module, path in MODULES.items()
        if module not in DOORS
    }
    assert graph.keys() <= {*graphlib.TopologicalSorter(graph).static_order()}  # whose error names a circle


def test_private_names_stay_in_their_module():
    wrong = []
    for module, path in {**MODULES, **SCRIPTS}.items():
        tree = parsed(path.read_text(encoding="utf-8"))
        imported = imports_of(path)
        wrong += [f"{module}:{line} takes {name} from {whole}" for line, whole, name in imported if f"{name}"[0] == "_"]
        aliases = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if f"{node.module}.{alias.name}" in MODULES
        }
        for node in ast.walk(tree):
            private = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
            if private and isinstance(node.value, ast.Name) and node.value.id in aliases:
                wrong.append(f"{module}:{node.lineno} takes {node.value.id}.{node.attr}")
    assert not wrong, "\n".join(wrong)


# Optional requirements; an error says so if one is missing. Tests need them, so they are in requirements-dev.txt.
OPTIONAL = {"transformers", "apache-beam", "dask", "jieba", "fugashi", "unidic-lite"}
IMPORTED_BY_OTHERS = {"tf-keras"}  # by tf-models-official
# They share a name, or are not installed with every TensorFlow.
SHARED_NAMES = {"google.protobuf": "protobuf", "official": "tf-models-official"}


@functools.cache  # it reads every file of every package
def distributions_by_module() -> dict[str, list[str]]:
    return importlib.metadata.packages_distributions()


def distribution_of(module: str) -> str:
    """The distribution that provides a module, as spelled in requirements.txt."""
    for name, distribution in SHARED_NAMES.items():
        if module == name or module.startswith(name + "."):
            return distribution
    (distribution,) = set(distributions_by_module()[module.split(".")[0]])
    return distribution.lower().replace("_", "-")


def requirements_of(name: str) -> set[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return {re.match(r"[\w-]+", line)[0].lower() for line in lines if line and not line.startswith(("#", "-"))}


def test_requirements_are_what_is_imported():
    imported, optional_at_the_top = {}, []
    for module, path in {**MODULES, **SCRIPTS}.items():
        tree = parsed(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            for name in names_imported_by(node):
                top = name.split(".")[0]
                if top in sys.stdlib_module_names or top in ("bert_tf", "_typeshed") or top in SCRIPTS:
                    continue
                imported.setdefault(distribution_of(name), f"{module}:{node.lineno}")
                if node in tree.body and distribution_of(name) in OPTIONAL:
                    optional_at_the_top.append(f"{module}:{node.lineno} imports {name}")
    assert not optional_at_the_top, "\n".join(optional_at_the_top)
    required = requirements_of("requirements.txt")
    assert {name: place for name, place in imported.items() if name not in required | OPTIONAL} == {}
    assert required - imported.keys() == IMPORTED_BY_OTHERS, "requirements that nothing imports"
    assert requirements_of("requirements-dev.txt") >= OPTIONAL


# --- what only one room says -----------------------------------------------------------------------------------------


def strings_of(path: pathlib.Path) -> list[tuple[int, str]]:
    """(line, string) of every string in a file that is neither a docstring nor in the declaration of a setting."""
    tree = parsed(path.read_text(encoding="utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        has_body = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if has_body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
            docstrings.add(node.body[0].value)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("setting", "inherited_setting"):
            docstrings |= {*ast.walk(node)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [(node.lineno, node.value) for node in strings if node not in docstrings]


def saying(pattern: str, modules: Iterable[str]) -> list[str]:
    strings = ((module, *said) for module in modules for said in strings_of(MODULES[module]))
    return [f"{module}:{line} says {string!r}" for module, line, string in strings if re.search(pattern, string)]


def test_special_tokens_are_the_tokenizers():
    """Rows, padding and continuations come from the `Tokenizer`, since they differ between families."""
    others = [name for name in MODULES.keys() - DOORS if not name.startswith("bert_tf.text.")]
    assert saying(r"##|\[(CLS|SEP|MASK|PAD|UNK)\]", others) == []


def test_names_of_variables_are_the_familys():
    others = MODULES.keys() - {"bert_tf.families.albert"}  # ALBERT's original has BERT's scope
    assert saying(r"(?<!google-)\bbert/", others) == []


def test_planted_faults_are_where_code_and_tests_are():
    """Who moves one of them moves it in mutants.py, too, so that `make mutants` says what it did."""
    texts = {path: path.read_text(encoding="utf-8") for path in (*MODULES.values(), *TESTS.rglob("test_*.py"))}
    for (file, tests), pairs in mutants.MUTANTS.items():
        counts = {old: texts.get(ROOT / "bert_tf" / file, "").count(old) for old, _ in pairs}
        assert {old: count for old, count in counts.items() if count != 1} == {}, file
        for name, _, function in (test.partition("::") for test in tests.split()):
            assert f"def {function}" in texts.get(TESTS / name, ""), (name, function)


def test_only_main_reads_flags():
    """And the modules that define them and parse them for every script."""
    wrong = []
    for module, path in MODULES.items():
        if re.fullmatch(r"bert_tf\.(system\.(declare|script|removed)|cli\.\w+)", module):
            continue
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
            if name in ("FLAGS", "FlagValues"):
                wrong.append(f"{module}:{node.lineno} says {name}")
    assert not wrong, "\n".join(wrong)


# --- imports that leave the rules ------------------------------------------------------------------------------------

# module -> why it imports by string. The package itself loads its public names on first use.
IMPORTS_BY_STRING = {
    "bert_tf": "public names, on first use",
    "bert_tf.__main__": "the script that is called",
    "bert_tf.text.japanese": "a dictionary's own folder",
}
# A foundation without a public form -> the modules that may import it; one each is the aim.
PRIVATE_FOUNDATIONS = {
    "keras.src": {"bert_tf.models.keras_internals"},
    "tensorflow.python": {"bert_tf.system.tensorflow_internals"},
    "numba.core": {"bert_tf.system.numba_compile"},
}


def test_nothing_is_imported_by_string():
    calls = {
        module
        for module, path in {**MODULES, **SCRIPTS}.items()
        for node in ast.walk(parsed(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", None) or getattr(node.func, "attr", None)) in ("import_module", "__import__")
    }
    assert calls <= IMPORTS_BY_STRING.keys()


def test_private_foundations_have_a_module_each():
    importers = {name: set() for name in PRIVATE_FOUNDATIONS}
    for module, path in {**MODULES, **SCRIPTS}.items():
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            for foundation in importers:
                if any(f"{name}.".startswith(f"{foundation}.") for name in names_imported_by(node)):
                    importers[foundation].add(module)
    assert {name: extra for name, modules in importers.items() if (extra := modules - PRIVATE_FOUNDATIONS[name])} == {}


# --- the weight of the house -----------------------------------------------------------------------------------------

# What there is at most, so that weight does not come back: lower a number when the house gets lighter.
AT_MOST = {
    "lines of bert_tf/ and the scripts": 37_210,
    "of these code": 25_461,
    "lines of tests/": 28_500,
    "words of docs/*.md": 22_418,
    "paragraphs of more than 90 words in the pages": 0,
    "fmt: skip outside tables of data, in bert_tf/ and the scripts": 26,
    "fmt: skip outside tables of data, elsewhere": 117,
    "flags of run_classifier": 80,
    "modules that a fine-tuning run loads, within functions too": 87,
    "modules that Predictor loads, within functions too": 71,
    "lines of a file": 451,
    "lines of a function": 60,
}


def code_lines(text: str) -> int:
    """Lines without blank ones, comments and docstrings."""
    tree, docstrings = parsed(text), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstrings |= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    lines = enumerate(text.splitlines(), start=1)
    return sum(number not in docstrings and line.strip() != "" and line.strip()[0] != "#" for number, line in lines)


def loaded_by(*modules: str) -> set[str]:
    """The modules of bert_tf that code in these may load: all that their files import, but for annotations."""
    loaded, waiting = set(), list(modules)
    while waiting:
        module = waiting.pop()
        if module in loaded:
            continue
        loaded.add(module)
        waiting += [parent for parent in (module.rpartition(".")[0],) if parent]
        tree = parsed(MODULES[module].read_text(encoding="utf-8"))
        annotations = {
            node
            for block in ast.walk(tree)
            if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING"
            for node in ast.walk(block)
        }
        for node in ast.walk(tree):
            if node in annotations:
                continue
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bert_tf"):
                waiting.append(node.module)
                waiting += [name for alias in node.names if (name := f"{node.module}.{alias.name}") in MODULES]
            elif isinstance(node, ast.Constant) and node.value in MODULES:  # an import by string
                waiting.append(node.value)
    return loaded


def long_paragraphs(page: str) -> int:
    """How many paragraphs and points of a list have more than 90 words, code and tables left out."""
    prose = re.sub(r"^```.*?^```|^[|#].*?$", "\n", page, flags=re.MULTILINE | re.DOTALL)
    return sum(len(part.split()) > 90 for part in re.split(r"\n\s*(?=\n|- |\d+\. )", prose))


def is_data(node: ast.expr | None) -> bool:
    """Whether an expression is a literal container, which has nothing but constants and names in it."""
    if isinstance(node, ast.BinOp):
        return is_data(node.left) and is_data(node.right)
    parts = (ast.Constant, ast.Name, ast.Attribute, ast.Starred, ast.UnaryOp, ast.operator, ast.unaryop, ast.Load)
    containers = (ast.Tuple, ast.List, ast.Set, ast.Dict)
    return isinstance(node, containers) and all(isinstance(part, parts + containers) for part in ast.walk(node))


def skips_outside_of_tables(text: str) -> int:
    """How often a file says `# fmt: skip` behind anything but a table of data or the rows of a parametrised test."""
    tables = set()
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_data(node.value):
            tables.add(node.end_lineno)
        elif isinstance(node, ast.For) and is_data(node.iter):
            tables.add(node.iter.end_lineno)
        elif isinstance(node, ast.FunctionDef):
            tables |= {line.end_lineno for line in node.decorator_list if "parametrize" in ast.unparse(line)}
    lines = enumerate(text.splitlines(), start=1)
    return sum(line.endswith("# fmt: skip") and number not in tables for number, line in lines)


def test_skips_of_tables_are_free():
    table = "A = {\n  'b': -1, 'c': (d, e.f),\n}  # fmt: skip\nfor x in (\n  1, 2):  # fmt: skip\n    pass\n"
    rows = "@pytest.mark.parametrize('x', [\n  f(1), 2])  # fmt: skip\ndef test(x):\n    pass\n"
    assert skips_outside_of_tables(table + rows) == 0
    assert skips_outside_of_tables("def f(\n  a, b):  # fmt: skip\n    x = {\n  1: f(2)}  # fmt: skip\n") == 2


def test_the_house_stays_light():
    texts = {name: path.read_text(encoding="utf-8") for name, path in {**MODULES, **SCRIPTS}.items()}
    others = [path for folder in ("tests", "benchmarks", "experiments") for path in (ROOT / folder).rglob("*.py")]
    functions = [
        node.end_lineno - node.lineno + 1
        for text in texts.values()
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.FunctionDef)
    ]
    run = ("bert_tf.tasks.script", "bert_tf.tasks.classification.task")
    weights = {
        "lines of bert_tf/ and the scripts": sum(text.count("\n") for text in texts.values()),
        "of these code": sum(map(code_lines, texts.values())),
        "lines of tests/": sum(path.read_bytes().count(b"\n") for path in TESTS.rglob("*.py")),
        "words of docs/*.md": sum(len(path.read_bytes().split()) for path in (ROOT / "docs").glob("*.md")),
        "paragraphs of more than 90 words in the pages": sum(map(long_paragraphs, PAGES.values())),
        "fmt: skip outside tables of data, in bert_tf/ and the scripts": sum(
            map(skips_outside_of_tables, texts.values())
        ),
        "fmt: skip outside tables of data, elsewhere": sum(
            skips_outside_of_tables(path.read_text(encoding="utf-8")) for path in others
        ),
        "flags of run_classifier": len(json.loads((GOLDEN / "flags.json").read_text())["run_classifier"]),
        "modules that a fine-tuning run loads, within functions too": len(loaded_by(*run)),
        "modules that Predictor loads, within functions too": len(loaded_by("bert_tf.serving.predictor")),
        "lines of a file": max(text.count("\n") for text in texts.values()),
        "lines of a function": max(functions),
    }
    assert weights.keys() == AT_MOST.keys()
    assert {name: weight for name, weight in weights.items() if weight > AT_MOST[name]} == {}


def at_most_of(text: str) -> dict[str, int]:
    """`AT_MOST` as a version of this file has it; nothing from before it was held."""
    values = [
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "AT_MOST"
    ]
    return values[0] if values and "def at_most_of(" in text else {}


def test_no_commit_raises_a_number():
    """Of `AT_MOST`, since the history is held; a number under a new name is a new one."""

    def git(*words: str) -> str:
        result = subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True)
        if result.returncode:
            pytest.skip(f"no history to read: {result.stderr.strip() or result}")
        return result.stdout

    here = pathlib.Path(__file__).resolve().relative_to(ROOT).as_posix()
    if git("rev-parse", "--is-shallow-repository") == "true\n":
        pytest.skip("a shallow clone: its history is cut")
    history = [line.split() for line in git("log", "--format=%H %P", "--full-history", "--", here).splitlines()]
    raised = []
    for commit, *parents in [("", "HEAD"), *history]:  # what is not committed comes first
        numbers = at_most_of(git("show", f"{commit}:{here}") if commit else (ROOT / here).read_text(encoding="utf-8"))
        if not numbers:
            break  # as in all that came before
        for parent in parents:
            earlier = at_most_of(git("show", f"{parent}:{here}"))
            raised += [(commit, name) for name, number in numbers.items() if number > earlier.get(name, number)]
    assert raised == []
