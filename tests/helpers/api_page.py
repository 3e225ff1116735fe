"""Writes docs/api.md: for each object linked there, a heading, its signature, its docstring's first line and the link.

python tests/helpers/api_page.py
"""

import importlib
import inspect
import pathlib
import re

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "api.md"


def entry(path: str) -> str:
    """The entry of an object. On the site its whole docstring takes the place of the line and the link."""
    module, _, name = path.rpartition(".")
    value = getattr(importlib.import_module(module), name, None) or importlib.import_module(path)
    source = (path if inspect.ismodule(value) else module).replace(".", "/")
    shown, is_class = name, inspect.isclass(value)
    if not inspect.ismodule(value):
        parameters = [*inspect.signature(value.__init__ if is_class else value).parameters.values()][is_class:]
        bare = inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in parameters])
        shown += re.sub(r" at 0x\w+", "", str(bare))
    return f"### {name}\n`{shown}`  \n{inspect.getdoc(value).splitlines()[0]}\n\n[{path}](../{source}.py)\n"


def written_anew(page: str) -> str:
    """The page with its title, introduction, sections and objects, in their order."""
    introduction, *sections = page.split("\n## ")
    anew = [introduction.rstrip() + "\n"]
    for section in sections:
        paths = re.findall(r"^\[(bert_tf\S+)\]", section, re.MULTILINE)
        anew.append(f"## {section.splitlines()[0]}\n" + "\n".join(map(entry, paths)))
    return "\n".join(anew)


if __name__ == "__main__":
    PAGE.write_text(written_anew(PAGE.read_text()))
