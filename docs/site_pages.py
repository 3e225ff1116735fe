"""Writes the folder that the site is built from: the READMEs, the pages of docs/, and api.md from the public names.

python docs/site_pages.py build/pages
"""

import importlib
import inspect
import pathlib
import re
import shutil
import sys

DOCS = pathlib.Path(__file__).resolve().parent
# The first name of each section, in the order of the names in bert_tf/__init__.py.
SECTIONS = {
    "download": "Released models and text",
    "BertConfig": "Models",
    "as_dataset": "Data, weights and training",
    "Predictor": "Prediction",
    "LinearHead": "Heads and objectives",
    "checkpoints": "Modules",
}


def entry(name: str, path: str) -> str:
    """A heading, the signature, and a line that the site replaces by the docstring."""
    try:
        value, shown = importlib.import_module(path), name
    except ModuleNotFoundError:
        module, _, _ = path.rpartition(".")
        value = getattr(importlib.import_module(module), name)
        is_class = inspect.isclass(value)
        parameters = [*inspect.signature(value.__init__ if is_class else value).parameters.values()][is_class:]
        bare = inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in parameters])
        shown = name + re.sub(r" at 0x\w+", "", str(bare))
    return f"### {name}\n`{shown}`\n\n::: {path}\n"


def api_page() -> str:
    """The page of all public names, each where it is defined."""
    import bert_tf

    paths = {name: f"bert_tf.{module}.{name}" for name, (module, _) in bert_tf._PUBLIC.items()}
    paths |= {name: f"bert_tf.{module}" for name, module in bert_tf._SUBMODULES.items()}
    page = "# Python API\n\nImport every class and function below with `from bert_tf import ...`.\n"
    for name, path in paths.items():
        page += f"\n## {SECTIONS[name]}\n" if name in SECTIONS else "\n"
        page += entry(name, path)
    return page


def write(folder: pathlib.Path) -> None:
    """Links to the list of public names, which GitHub shows, lead to api.md on the site."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name, page in (("README", "index"), ("README.ko", "index-ko")):
        text = (DOCS.parent / f"{name}.md").read_text().replace("](docs/", "](")
        (folder / f"{page}.md").write_text(
            text.replace("](README.ko.md)", "](index-ko.md)").replace("](README.md)", "](index.md)")
        )
    for path in folder.glob("*.md"):
        path.write_text(re.sub(r"\]\((\.\./)?bert_tf/__init__\.py\)", "](api.md)", path.read_text()))
    (folder / "api.md").write_text(api_page())


if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))
    write(pathlib.Path(sys.argv[1]))
