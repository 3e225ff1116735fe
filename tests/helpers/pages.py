"""The READMEs and the pages of docs/."""

import re

from helpers.paths import ROOT

PAGES = {
    "README": (ROOT / "README.md").read_text(),
    **{path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))},
}
COPIES = {"index": "README", "index-ko": "README.ko"}  # that `make docs` leaves there
PAGES = {page: text for page, text in PAGES.items() if page not in COPIES}
PAGES["README.ko"] = (ROOT / "README.ko.md").read_text()


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)
