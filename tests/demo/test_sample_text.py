"""Sentences and documents from docstrings."""

import pytest

from bert_tf.pretraining.documents import to_text
from demo import sample_text


@pytest.mark.parametrize(
    ("text", "needed"),
    [("Crème brûlée is good.", False), ("이것은 책입니다", True), ("ひらがな", True), ("中文", False)],
)
def test_needs_accents(text, needed):
    assert sample_text.needs_accents(text) is needed
    assert not sample_text.needs_accents(text + "x" * 10_000)


MODULE = '''"""A module that reads `files` of :class:`~a.Reader` kind.

It has ``two`` sentences in here. This is the second one of them.

    This is code, and it is indented here.

Example of the use in code::

    This is a block that is after the colons.

>>> This is a doctest and it is left out.

=======  =====
This is  a table
=======  =====
"""

def function(x):
    """Return the *first* of the items.

    Args:
      x: This is a parameter that is left out.

    def not_prose(self, x): return the x in it.
    """

class Thing:
    async def method(self):
        """This is the method of a class."""

    def other(self):
        """Dies ist kein englischer Satz."""
'''


def test_module_sentences(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    assert sample_text._module_sentences(str(path)) == [
        "A module that reads files of a.Reader kind.",
        "It has two sentences in here.",
        "This is the second one of them.",
        "Example of the use in code:",
        "Return the first of the items.",
        "This is the method of a class.",
    ]
    path.write_text('"""broken""" (')
    assert sample_text._module_sentences(str(path)) == []
    path.write_bytes(b'"""\xff\xfe"""')
    assert sample_text._module_sentences(str(path)) == []


@pytest.mark.slow
def test_docstring_documents():
    """Repeatable, without repeated sentences, and about as long as requested."""
    documents = sample_text.docstring_documents(100_000, show_progress=False)
    assert documents == sample_text.docstring_documents(100_000, show_progress=False)
    assert 100_000 <= len(to_text(documents)) < 200_000
    sentences = [sentence.lower() for document in documents for sentence in document]
    assert len(sentences) == len(set(sentences))
    assert min(map(len, documents)) >= 2
