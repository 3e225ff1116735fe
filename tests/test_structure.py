"""The layers of the code: imports go only downwards, there are no cycles, and private names stay private.

Every import counts, including those inside functions: a deferred import is still a dependency.
"""

import ast
import functools
import importlib.metadata
import pathlib
import re
import sys

import mutants
from helpers.paths import ROOT, TESTS

# Packages of bert_tf in each layer, from the bottom up. A module imports from its own package and from lower layers.
FLOORS = (
    ("system",),
    ("weights", "text"),
    ("data", "models"),
    ("pretraining", "conversion"),
    ("training",),
    ("tasks",),
    ("serving",),
)
FLOOR = {package: number for number, packages in enumerate(FLOORS) for package in packages}
# The public entrances: `from bert_tf import X`, the command `bert-tf`, and the original's own module names. No module
# inside uses them.
ORIGINAL_MODULES = ("__main__", "modeling", "optimization", "run_classifier", "run_squad", "tokenization")
DOORS = {"bert_tf", *(f"bert_tf.{name}" for name in ORIGINAL_MODULES)}


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


def package_of(module: str) -> str:
    return module.split(".")[1]


def test_every_package_has_a_floor():
    packages = {package_of(module) for module in MODULES if module not in DOORS}
    assert packages == set(FLOOR)
    assert len(MODULES) > 50


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
    done, on_the_way = set(), []

    def visit(module: str) -> None:
        assert module not in on_the_way, " -> ".join([*on_the_way[on_the_way.index(module) :], module])
        if module in done:
            return
        on_the_way.append(module)
        for imported in sorted(graph.get(module, ())):
            visit(imported)
        on_the_way.pop()
        done.add(module)

    for module in graph:
        visit(module)


def test_private_names_stay_in_their_module():
    wrong = []
    for module, path in {**MODULES, **SCRIPTS}.items():
        tree = parsed(path.read_text(encoding="utf-8"))
        imported = imports_of(path)
        wrong += [
            f"{module}:{line} takes {name} from {whole}" for line, whole, name in imported if (name or "")[:1] == "_"
        ]
        # Local names of modules: `from bert_tf.data import records` or `... as name`.
        aliases = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "bert_tf":
                for alias in node.names:
                    if f"{node.module}.{alias.name}" in MODULES:
                        aliases.add(alias.asname or alias.name)
        for node in ast.walk(tree):
            private = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
            if private and isinstance(node.value, ast.Name) and node.value.id in aliases:
                wrong.append(f"{module}:{node.lineno} takes {node.value.id}.{node.attr}")
    assert not wrong, "\n".join(wrong)


# Optional requirements; an error says so if one is missing. Tests need them, so they are in requirements-dev.txt.
OPTIONAL = {
    "transformers", "apache-beam", "dask", "jieba", "fugashi", "unidic-lite", "onnx", "onnxruntime", "tf2onnx",
}  # fmt: skip
# A package that a requirement (tensorflow-datasets 4.9.10) imports without requiring it, and one that another
# (tf-models-official) requires in any version.
IMPORTED_BY_OTHERS = {"importlib_resources", "tf-keras"}
# Packages of several distributions share the name `google`.
SHARED_NAMES = {"google.protobuf": "protobuf"}


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
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                if top in sys.stdlib_module_names or top == "bert_tf" or top in SCRIPTS:
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
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("setting", "like"):
            docstrings |= {*ast.walk(node)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [(node.lineno, node.value) for node in strings if node not in docstrings]


def test_strings_are_found():
    found = [string for _, string in strings_of(MODULES["bert_tf.text.wordpiece"])]
    assert "##" in found and "[CLS]" in found
    assert not any("The original's" in string for string in found), "a docstring"
    assert any("/embeddings/" in string for _, string in strings_of(MODULES["bert_tf.models.variable_names"]))


def test_special_tokens_are_the_tokenizers():
    """Rows, padding and continuations come from the `Tokenizer`, since they differ between families."""
    tokens = ("##", "[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]")
    wrong = [
        f"{module}:{line} says {string!r}"
        for module, path in MODULES.items()
        if not module.startswith("bert_tf.text.") and module not in DOORS  # which describe the names in words
        for line, string in strings_of(path)
        if any(token in string for token in tokens)
    ]
    assert not wrong, "\n".join(wrong)


def test_names_of_variables_are_the_familys():
    wrong = [
        f"{module}:{line} says {string!r}"
        for module, path in MODULES.items()
        # ALBERT's original has BERT's scope.
        if module != "bert_tf.models.variable_names"
        for line, string in strings_of(path)
        if re.search(r"(?<!google-)\bbert/", string)
    ]
    assert not wrong, "\n".join(wrong)


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
        if module in ("bert_tf.system.declare", "bert_tf.system.script"):
            continue
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
            if name in ("FLAGS", "FlagValues"):
                wrong.append(f"{module}:{node.lineno} says {name}")
    assert not wrong, "\n".join(wrong)


# --- the weight of the house -----------------------------------------------------------------------------------------

# What there is at most, so that weight does not come back: lower a number when the house gets lighter. The aims are
# 27,500 and 18,500 lines, 26,000 of tests, 65 and 50 modules, 500 and 60 lines.
AT_MOST = {
    "lines of bert_tf/ and the scripts": 50_842,
    "of these code": 32_719,
    "lines of tests/": 44_778,
    "modules that a fine-tuning run loads": 65,
    "modules that Predictor loads": 45,
    "lines of a file": 500,
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
    """The modules of bert_tf that are there after these are imported: what their files import outside of functions."""
    found, waiting = set(), list(modules)
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        waiting += [parent for parent in (module.rpartition(".")[0],) if parent]
        tree = parsed(MODULES[module].read_text(encoding="utf-8"))
        inside = {
            node
            for block in ast.walk(tree)
            if isinstance(block, ast.FunctionDef)
            or (isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING")
            for node in ast.walk(block)
        }
        for node in ast.walk(tree):
            if node not in inside and isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bert_tf"):
                waiting.append(node.module)
                waiting += [name for one in node.names if (name := f"{node.module}.{one.name}") in MODULES]
    return found


def test_the_house_stays_light():
    texts = {name: path.read_text(encoding="utf-8") for name, path in {**MODULES, **SCRIPTS}.items()}
    functions = [
        node.end_lineno - node.lineno + 1
        for text in texts.values()
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.FunctionDef)
    ]
    weights = {
        "lines of bert_tf/ and the scripts": sum(text.count("\n") for text in texts.values()),
        "of these code": sum(map(code_lines, texts.values())),
        "lines of tests/": sum(path.read_bytes().count(b"\n") for path in TESTS.rglob("*.py")),
        "modules that a fine-tuning run loads": len(
            loaded_by("bert_tf.tasks.script", "bert_tf.tasks.classification.task")
        ),
        "modules that Predictor loads": len(loaded_by("bert_tf.serving.predictor")),
        "lines of a file": max(text.count("\n") for text in texts.values()),
        "lines of a function": max(functions),
    }
    assert {name: weight for name, weight in weights.items() if weight > AT_MOST[name]} == {}
