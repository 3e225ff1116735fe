"""Segmenters: they find the words of text whose spaces don't show them.

Every one is an extra, imported when it is asked for; to add one, add a line to SEGMENTERS. Nothing here needs
TensorFlow.
"""

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable

# Text without whitespace -> its words, in order; what is left between two words counts as a word.
Segment = Callable[[str], list[str]]


def _load_jieba() -> Segment:
    import jieba

    tokenizer = jieba.Tokenizer()
    # Jieba would load (marshal) a dictionary that any user may have put into the shared temporary folder.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer.lcut


def load_mecab(dictionary: str):
    """MeCab with the dictionary of a Python package: a `fugashi.GenericTagger`."""
    import fugashi

    folder = importlib.import_module(dictionary).DICDIR
    return fugashi.GenericTagger(f'-r "{folder}/mecabrc" -d "{folder}"')


def _load_fugashi() -> Segment:
    tagger = load_mecab("unidic_lite")
    return lambda text: [word.surface for word in tagger(text)]


@dataclasses.dataclass(frozen=True)
class _Segmenter:
    """One segmenter.

    Attributes:
      language: what it is for. modules: what it imports. load: makes the function; takes up to seconds.
    """

    language: str
    modules: tuple[str, ...]
    load: Callable[[], Segment]


# By name, which is also that of the extra: pip install 'bert-tf[NAME]'.
SEGMENTERS = {
    "jieba": _Segmenter("Chinese", ("jieba",), _load_jieba),
    "fugashi": _Segmenter("Japanese", ("fugashi", "unidic_lite"), _load_fugashi),
}


def check_segmenter(name: str) -> None:
    """Refuses a segmenter that is unknown or not installed.

    Raises:
      ValueError: names the flag, and the command that installs it.
    """
    if name not in SEGMENTERS:
        raise ValueError(f"--segmenter={name} is not one of {', '.join(SEGMENTERS)}.")
    missing = [module for module in SEGMENTERS[name].modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ValueError(f"--segmenter={name} needs {' and '.join(missing)}: pip install 'bert-tf[{name}]'")
