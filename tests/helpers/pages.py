"""The READMEs and the pages of docs/."""

import re

from helpers.paths import ROOT

READMES = ("README", "README.ko")
PAGES = {path.stem: path.read_text() for home in (ROOT, ROOT / "docs") for path in sorted(home.glob("*.md"))}
PAGES = {page: text for page, text in PAGES.items() if page not in ("CHANGELOG", "CONTRIBUTING", "SECURITY")}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)
