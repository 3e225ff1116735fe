"""CoNLL-style files: reading every layout and scheme, writing, and errors."""

import re

import numpy as np
import pytest

from bert_tf.tasks.ner import data as ner_data
from bert_tf.tasks.ner import metrics as ner_tags
from bert_tf.tasks.ner.data import Layout, read_conll, write_conll
from bert_tf.tasks.ner.metrics import Entity, Notation

# Written for this test, in the published layout of CoNLL-2003: four columns, IOB1, documents.
NEWS = """-DOCSTART- -X- O O

Anna NNP I-NP I-PER
Berg NNP I-NP I-PER
flew VBD I-VP O
from IN I-PP O
Oslo NNP I-NP I-LOC
Bergen NNP I-NP B-LOC
. . O O

Snow NN I-NP O

-DOCSTART- -X- O O

Nordic NNP I-NP I-ORG
Rail NNP I-NP I-ORG
Anna NNP I-NP I-PER
"""
ENTITIES = [
    [Entity("PER", 0, 2), Entity("LOC", 4, 5), Entity("LOC", 5, 6)],
    [],
    [Entity("ORG", 0, 2), Entity("PER", 2, 3)],
]
TAGS = {
    "iob1": ["I-PER I-PER O O I-LOC B-LOC O", "O", "I-ORG I-ORG I-PER"],
    "iob2": ["B-PER I-PER O O B-LOC B-LOC O", "O", "B-ORG I-ORG B-PER"],
    "bioes": ["B-PER E-PER O O S-LOC S-LOC O", "O", "B-ORG E-ORG S-PER"],
    "bilou": ["B-PER L-PER O O U-LOC U-LOC O", "O", "B-ORG L-ORG U-PER"],
}


@pytest.fixture
def write(tmp_path):
    def write(text, name="file.conll"):
        (tmp_path / name).write_bytes(text.encode())
        return str(tmp_path / name)

    return write


def random_entities(generator, length):
    """Entities of three types (one with hyphens in its name) in a sentence; they often touch."""
    entities, place = [], 0
    while place < length:
        size = int(generator.integers(1, 4))
        if generator.random() < 0.7 and place + size <= length:
            entities.append(Entity(("PER", "LOC", "creative-work")[generator.integers(3)], place, place + size))
        place += size
    return entities


def test_the_layout_of_conll_2003(write):
    file = read_conll(write(NEWS), Layout(tag_scheme="iob1"))
    sentences = ["Anna Berg flew from Oslo Bergen .", "Snow", "Nordic Rail Anna"]
    assert [" ".join(sentence.words) for sentence in file.sentences] == sentences
    assert [" ".join(sentence.tags) for sentence in file.sentences] == TAGS["iob2"]  # what is learned
    assert [sentence.document for sentence in file.sentences] == [0, 0, 1]
    assert [sentence.lines for sentence in file.sentences] == [[3, 4, 5, 6, 7, 8, 9], [11], [15, 16, 17]]
    assert file.separator == " " and file.lines == NEWS.splitlines()
    chunks = read_conll(write(NEWS), Layout(tag_column=2, tag_scheme="iob1"))
    assert chunks.sentences[1].tags == ["B-NP"]
    speech = read_conll(write(NEWS), Layout(tag_column=1, tag_scheme="plain"))
    assert speech.sentences[0].tags == ["NNP", "NNP", "VBD", "IN", "NNP", "NNP", "."]


@pytest.mark.parametrize("scheme", TAGS)
def test_entities_to_tags_and_back(scheme):
    generator = np.random.default_rng(0)
    lengths = [len(tags.split()) for tags in TAGS[scheme]] + generator.integers(1, 14, 300).tolist()
    cases = ENTITIES + [random_entities(generator, length) for length in lengths[3:]]
    assert sum(len(entities) > 1 for entities in cases) > 100
    for number, (entities, length) in enumerate(zip(cases, lengths, strict=True)):
        tags = ner_tags.tags_of(entities, length, scheme)
        assert number >= 3 or tags == TAGS[scheme][number].split()
        assert ner_tags.entities_of(tags, scheme) == ner_tags.lenient_entities(tags) == entities, tags
        assert scheme != "iob1" or all(a[2:] == b[2:] for a, b in zip(["O", *tags], tags, strict=False) if b[0] == "B")
        assert ner_tags.valid_tags(ner_tags.tags_of(entities, length, ner_tags.learned_scheme(scheme)), scheme) == tags


def chunks_of_conlleval(tags: list[str]) -> list[Entity]:
    """By conlleval's two rules, of where a chunk ends and where one begins, between each two tags."""
    pairs = [("O", ""), *((tag[0], tag[2:]) for tag in tags), ("O", "")]
    chunks, begin = [], None
    for place in range(1, len(pairs)):
        (before, type_before), (letter, type_) = pairs[place - 1], pairs[place]
        if before in "ES" or (before in "BI" and (letter in "BSO" or type_ != type_before)):
            chunks += [] if begin is None else [Entity(type_before, begin, place - 1)]
            begin = None
        if letter in "BS" or (letter in "IE" and (before in "ESO" or type_ != type_before)):
            begin = place - 1
    return chunks


def test_lenient_reading_is_that_of_conlleval():
    """On tags that mostly violate every scheme."""
    generator = np.random.default_rng(1)
    tags = ["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in ("A", "B-c"))]
    for _ in range(2000):
        sentence = [tags[number] for number in generator.integers(0, len(tags), generator.integers(1, 9))]
        assert ner_tags.lenient_entities(sentence) == chunks_of_conlleval(sentence), sentence


@pytest.mark.parametrize(("scheme", "tags", "place", "words"), [
    ("iob2", "O I-A", 1, "the tag 'I-A' after 'O' breaks the scheme iob2, which has 'B-A' there"),
    ("iob2", "I-A", 0, "at the start of the sentence"),
    ("iob2", "O B", 1, "not part of the scheme iob2 (O, B-TYPE, I-TYPE)"),
    ("iob2", "B-", 0, "not part of the scheme"),
    ("iob2", "S-A", 0, "not part of the scheme"),
    ("iob1", "O B-A", 1, "which has 'I-A' there"),
    ("bioes", "B-A O", 0, "which has 'S-A' there"),
    ("bioes", "B-A I-A", 1, "which has 'E-A' there"),
    ("bioes", "E-A", 0, "which has 'S-A' there"),
    ("bioes", "L-A", 0, "not part of the scheme bioes (O, B-TYPE, I-TYPE, E-TYPE, S-TYPE)"),
    ("bilou", "B-A U-A", 0, "which has 'U-A' there"),
])  # fmt: skip
def test_broken_schemes(write, scheme, tags, place, words):
    text = "fine O\n\n" + "".join(f"word {tag}\n" for tag in tags.split())
    with pytest.raises(ValueError, match=rf"file\.conll, line {3 + place}: .*{re.escape(words)}.* --repair_tags"):
        read_conll(write(text), Layout(tag_scheme=scheme))


@pytest.mark.parametrize(("tags", "notation"), [
    ("B-PER I-PER O B-LOC", {}),
    ("b-PER i-PER o b-LOC", {"lower": True, "outside": "o"}),
    ("PER_B PER_I - LOC_B", {"letter_last": True, "separator": "_", "outside": "-"}),
    ("PER-B PER-I O LOC-B", {"letter_last": True}),
    ("B_PER I_PER _ B_LOC", {"separator": "_", "outside": "_"}),
    ("PER_b PER_i O LOC_b", {"letter_last": True, "separator": "_", "lower": True}),
])  # fmt: skip
def test_spellings_of_tags(write, tmp_path, tags, notation):
    """All mean the same to a model; predictions are spelled as in the file."""
    text = "".join(f"{word}\t{tag}\n" for word, tag in zip("1234", tags.split(), strict=True))
    file = read_conll(write(text), Layout())
    assert file.sentences[0].tags == ["B-PER", "I-PER", "O", "B-LOC"]
    assert file.notation == Notation(**notation)
    write_conll(str(tmp_path / "out"), file, [["O", "B-PER", "I-PER", "B-LOC"]], Layout())
    order = [2, 0, 1, 3]
    written = [line.split("\t")[-1] for line in (tmp_path / "out").read_text().splitlines()]
    assert written == [tags.split()[place] for place in order]
    # Tags that are no entities stay as they are.
    plain = read_conll(write(text), Layout(tag_scheme="plain"))
    assert plain.sentences[0].tags == tags.split() and plain.notation == Notation()


def test_the_layouts_of_naver_and_klue(write):
    """Number, word and tag, separated by tabs; a character a line, spaces among them, and comments, which may have as
    many columns as a word."""
    text = "1\t비토리오\tPER_B\n2\t양일\tDAT_B\n3\t만에\t-\n\n1\t영사관\tORG_B\n2\t\u200b감호\tCVL_B\n"
    sentences = read_conll(write(text), Layout(word_column=1)).sentences
    assert [sentence.tags for sentence in sentences] == [["B-PER", "B-DAT", "O"], ["B-ORG", "B-CVL"]]
    assert sentences[0].words == ["비토리오", "양일", "만에"]
    numbers = write("1\tx\tO\n2\tx\tO\n\nsix\tx\tO\n")  # which may be words
    assert read_conll(numbers, Layout()).sentences[0].words[0] == "1"
    comments = "## 토큰 구분자 : \\n\n## 컬럼명 : CHAR\tNE_TAG\n## klue-ner-v1_00000\t<박:PS>씨 A\n"
    text = "박\tB-PS\n씨\tO\n \tO\nA\tO\n\t\n나\tO\n"
    file = read_conll(write(comments + text), Layout(comment_prefix="## "))
    assert [sentence.words for sentence in file.sentences] == [["박", "씨", " ", "A"], ["나"]]
    assert ner_data.split_of(file.sentences) == "characters_and_spaces"
    assert ner_data.split_of(file.sentences[1:]) == "characters"
    marked = [ner_data.Sentence(["[E1]", "나", "[/E1]"], None, [])]
    assert ner_data.split_of(marked) == "words"
    assert ner_data.split_of(marked, ["[E1]", "[/E1]"]) == "characters"  # added tokens don't count


def test_real_files(shared):
    """Of WNUT-17 the counts from its README and `grep B-`; blank lines of the training file contain a tab."""
    file = read_conll(str(shared / "data" / "ner" / "wnut17" / "wnut17train.conll"), Layout())
    counts = ((len(one.words), len(ner_tags.entities_of(one.tags, "iob2"))) for one in file.sentences)
    assert (len(file.sentences), *map(sum, zip(*counts, strict=True))) == (3394, 62730, 1975)
    path = shared / "data" / "korean" / "klue" / "klue-ner-v1.1_dev.tsv"
    sentences = read_conll(str(path), Layout(comment_prefix="## ")).sentences
    assert len(sentences) == 5000 and ner_data.split_of(sentences) == "characters_and_spaces"
    assert "".join(sentences[0].words).startswith("경찰은 또 성매매 알선 자금을 관리한 박씨의 딸(32)과")
    types = {tag.partition("-")[2] for sentence in sentences for tag in sentence.tags} - {""}
    assert types == {"PS", "LC", "OG", "DT", "TI", "QT"}


def test_separators_columns_and_comments(write, caplog):
    tabs = write("# id 1\nO\tNew York\t x\nB-A\t\u00a0\tx\r\n\t\n#tag\tb\tx\n", "tabs")
    with pytest.raises(ValueError, match=r"tabs, line 2: 4 columns, but line 1 has 3: .* separated by spaces"):
        read_conll(tabs, Layout(tag_column=0, word_column=1, tag_scheme="plain"))
    layout = Layout(tag_column=0, word_column=1, comment_prefix="# ", tag_scheme="plain")
    file = read_conll(tabs, layout)
    assert [sentence.words for sentence in file.sentences] == [["New York", "\u00a0"], ["b"]]
    assert [sentence.tags for sentence in file.sentences] == [["O", "B-A"], ["#tag"]]
    spaces = write("  Ø\u00a0l   O  \n\u2028 \tB-A\n", "spaces")  # only spaces and tabs separate columns
    assert read_conll(spaces, Layout(column_separator="space")).sentences[0].words == ["Ø\u00a0l", "\u2028"]
    words = read_conll(write("one\n\ntwo\n"), Layout())
    assert [sentence.tags for sentence in words.sentences] == [None, None]
    no_tags = read_conll(write("one NN\n"), Layout(), has_tags=False)
    assert no_tags.sentences[0].words == ["one"] and no_tags.sentences[0].tags is None
    assert "of the 2 columns of a line only the word is read" in caplog.text


PLAIN = Layout(tag_scheme="plain")


@pytest.mark.parametrize(("text", "layout", "message"), [
    ("a O\nb x O\n", Layout(), "line 2: 3 columns, but line 1 has 2: 'b x O'. Columns are separated by spaces"),
    ("a\tO\n\nb O\n", Layout(), "line 3: 1 columns, but line 1 has 2: 'b O'. Columns are separated by tabs"),
    ("a\t\n", Layout(), "line 1: the tag is empty"),
    ("\tO\n", Layout(), "line 1: the word is empty"),
    ("a O\n", Layout(word_column=2), "line 1: no column --word_column=2, there are 2"),
    ("a O\n", Layout(word_column=-1), "line 1: --word_column and --tag_column are the same column"),
    ("\n \n\t\n-DOCSTART- O\n", Layout(), "has no words"),
    ("word tag\na NN\nb VB\n", PLAIN, "line 1: 'word', 'tag' is a header"),
    ("a NN\n", Layout(repair_tags=True), "line 1: the tag 'NN' is not part of the scheme"),
    # Not all of them fit a notation: they are read as they are.
    ("word B-PER\nword PER_I\n", Layout(), "line 2: the tag 'PER_I' .* not part of the scheme iob2"),
    ("1\ta\tO\n2\tb\tO\n\n1\tc\tO\n", Layout(), "line 1: column 0 only numbers the words"),
])  # fmt: skip
def test_tags_reader_rejects(write, text, layout, message):
    with pytest.raises(ValueError, match=r"file\.conll.* " + message):
        read_conll(write(text), layout)


def test_lists_of_json_rows_have_names(write):
    first = '{"tokens": ["a\\tb", "b"], "tags": [1.0, true]}\n'
    read = read_conll(write(first + '{"tags": ["c"], "tokens": ["TRUE"]}\n', "a.jsonl"), PLAIN)
    assert [(one.words, one.tags) for one in read.sentences] == [(["a b", "b"], ["1", "true"]), (["TRUE"], ["c"])]
    for second, message in (
        ('{"pos": [1], "tokens": ["c"], "tags": ["d"]}', "the lists are 'pos', 'tokens', 'tags', in the first row 't"),
        ('{"words": ["c"], "tags": ["d"]}', "the lists are 'words', 'tags', in the first row 'tokens', 'tags'"),
        ('{"tokens": [{"text": "c"}], "tags": ["d"]}', "word 0 has {'text': 'c'}, where text is expected"),
        ('{"tokens": ["c", null], "tags": ["d", "e"]}', "the word is empty"),
    ):
        with pytest.raises(ValueError, match=f"a.jsonl, line 2: {message}"):
            read_conll(write(first + second, "a.jsonl"), PLAIN)


def test_what_is_odd_is_reported(write, caplog):
    tags_as_words = read_conll(write("tag tag\nlabel tag\n"), PLAIN)  # no header, since the tag is there twice
    assert tags_as_words.sentences[0].words == ["tag", "label"]
    read_conll(write("a NN\nb O\n"), Layout(tag_scheme="plain"))
    assert not caplog.text
    read_conll(write("a B-PER\nb O\n"), Layout(tag_scheme="plain"))
    assert "file.conll: its tags, such as B-PER, mark entities, which --tag_scheme=plain does not score" in caplog.text
    for length in (200, 201):
        read_conll(write("Ada O\n" * length), Layout())
    assert caplog.text.count("no blank line ends a sentence, so that it is one sentence of 201 words.") == 1


def test_predictions_keep_every_line(write, tmp_path):
    text = NEWS.replace("Snow", "# by hand\nSnow").replace("Rail NNP", "Rail\tNNP")
    layout = Layout(tag_scheme="iob1", comment_prefix="# ")
    file = read_conll(write(text), layout)
    predicted = [["I-LOC", "O", "O", "O", "O", "O", "O"], ["O"], ["I-ORG", "B-ORG", "O"]]
    out = str(tmp_path / "predictions.conll")
    write_conll(out, file, predicted, layout)
    lines = (tmp_path / "predictions.conll").read_text().split("\n")
    assert lines.pop() == ""
    tags = iter(["O", *predicted[0], *predicted[1], "O", *predicted[2]])
    untagged = ("", "# by hand")
    assert lines == [line if line in untagged else f"{line} {next(tags)}" for line in text.splitlines()]
    again = read_conll(out, layout)  # the predictions are the last column
    assert again.sentences[2].tags == ["B-ORG", "B-ORG", "O"]
    empty, before_last = write("Ada\tB-PER\t\n", "empty"), Layout(tag_column=1)
    write_conll(out, read_conll(empty, before_last), [["O"]], before_last)
    assert (tmp_path / "predictions.conll").read_text() == "Ada\tB-PER\t\tO\n"
    with pytest.raises(ValueError):
        write_conll(str(tmp_path / "other"), file, predicted[:2], layout)
    assert not (tmp_path / "other").exists()


def test_words_and_tags_mean_what_they_look_like(write):
    """Byte order marks inside joined files, blanks at the ends of tags, no-break spaces, lines that look blank."""
    begin = "\ufeff-DOCSTART- O\n\n\ufeff"
    joined = f"{begin}Seoul\tB-LOC\u00a0\nis\tO \t\n\u00a0\n{begin} big \t\ufeffO\n \tO\n"
    file = read_conll(write(joined), Layout())
    assert [sentence.words for sentence in file.sentences] == [["Seoul", "is"], ["big", " "]]
    assert [sentence.tags for sentence in file.sentences] == [["B-LOC", "O"], ["O", "O"]]
    assert [sentence.document for sentence in file.sentences] == [0, 1]
    spaces = read_conll(write("New\u00a0York B-LOC\nis\u00a0O\n\ufeffbig O\u00a0\n"), Layout())
    assert spaces.sentences[0].words == ["New\u00a0York", "is", "big"]
    assert spaces.sentences[0].tags == ["B-LOC", "O", "O"]


def test_ranges_and_empty_nodes_of_conll_u_are_no_words(write, tmp_path, caplog):
    rows = [("1", "I", "PRON"), ("2-3", "don't", "_"), ("2", "do", "AUX"), ("3", "n't", "PART"), ("3.1", "it", "PRON")]
    lines = ["\t".join((number, word, word, tag, *"______")) for number, word, tag in rows]
    path = write("# text = I don't\n" + "\n".join(lines) + "\n\n", "ud.conllu")
    layout = Layout(word_column=1, tag_column=3, tag_scheme="plain", comment_prefix="# ")
    file = read_conll(path, layout)
    assert [(one.words, one.tags) for one in file.sentences] == [(["I", "do", "n't"], ["PRON", "AUX", "PART"])]
    assert "ud.conllu: left out 2 lines" in caplog.text and "the first is line 3" in caplog.text
    write_conll(str(tmp_path / "out"), file, [["A", "B", "C"]], layout)
    ends = [line.split("\t")[-1] for line in (tmp_path / "out").read_text().splitlines()[1:6]]
    assert ends == ["A", "_", "B", "C", "_"]
    assert read_conll(str(tmp_path / "out"), layout).sentences[0].words == ["I", "do", "n't"]
