"""Added tokens: the ids and offsets of transformers' tokenizers, whichever file names them."""

import json
import random
import unicodedata

import pytest
import tokenizers
from helpers.basics import directory_of
from helpers.texts import assert_kept, learned_pieces
from helpers.tiny import save_albert_tokenizer
from tokenizers import AddedToken as LibraryToken

from bert_tf.tasks.squad.answers import AnswerTexts
from bert_tf.tasks.squad.data import Paragraph, SquadExample
from bert_tf.tasks.squad.windows import WindowSettings, build_windows
from bert_tf.text.characters import SPLITS, WHITESPACE, is_word_character, split_words
from bert_tf.text.graph_wordpiece import NoGraphError, graph_of
from bert_tf.text.library_tokenizer import ByteBpeTokenizer
from bert_tf.text.sentence_piece import HuggingFaceSentencePiece, SentencePieceTokenizer
from bert_tf.text.wordpiece import FullTokenizer

transformers = pytest.importorskip("transformers")

PIECES = [*"abcde[]/1은는성삼전자한국中ασς", *("##" + char for char in "abcde1은는성삼전자한국σς")]
PIECES += ["삼성", "전자", "e1", "É"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(PIECES)]
TOKENS = [
    LibraryToken("[E1]", special=True, normalized=False),
    LibraryToken("[/E1]", special=True, normalized=False),
    LibraryToken("[E1]x", normalized=False),  # longer than another that it begins with
    LibraryToken("[Ent]", normalized=True),
    LibraryToken("한국", normalized=True, single_word=True),
    LibraryToken("LEFT", lstrip=True, normalized=False),
    LibraryToken("Right", rstrip=True, normalized=True),
    LibraryToken("both", lstrip=True, rstrip=True, single_word=True, normalized=True),
    LibraryToken("中b", normalized=True),
    LibraryToken("New York", normalized=True),
    LibraryToken("한", normalized=True),  # in the vocabulary; without accents also the beginning of 각
    LibraryToken("É1", normalized=True),
    LibraryToken("\u0308y", normalized=False),  # no mark of what is before it
]
ATOMS = [
    *(token.content for token in TOKENS), *"ab1_-[]/x. \t\n", "[e1]", "[ENT]", "left", "RIGHT", "Both", "삼성", "은",
    "é1", "e\u0301", "\u0301", "  ", "\u3000", "한국인", "中", "new york", "\u200d", "\u24b6", "\u00a0", "각",
    "E1", " the",
]  # fmt: skip
SENTENCES = ["[E1]삼성[/E1]은", "[E1] 삼성 [/E1]은 전자", "a[E1][E1]x[/E1]", "", " ", "LEFT LEFT", "Right  both  both"]


def texts_of(seed: int, number: int) -> list[str]:
    draw = random.Random(seed)
    return SENTENCES + ["".join(draw.choice(ATOMS) for _ in range(draw.randint(1, 9))) for _ in range(number)]


def save(folder, tokenizer, vocabulary=()) -> str:
    """What transformers saves, and a vocab.txt of the vocabulary without added tokens."""
    tokenizer.save_pretrained(folder)
    if vocabulary:
        (folder / "vocab.txt").write_text("".join(token + "\n" for token in vocabulary), encoding="utf-8")
    return str(folder)


def assert_equal(ours, theirs, texts, offsets=True) -> None:
    wanted = theirs(texts, add_special_tokens=False, return_offsets_mapping=True)
    for text, wanted_ids, wanted_places in zip(texts, wanted["input_ids"], wanted["offset_mapping"], strict=True):
        ids, places = ours.encode_with_offsets(text)
        assert wanted_ids == ids == ours.encode(text), text
        assert [ours.vocab.get(token, ours.unk_id) for token in ours.tokenize(text)] == ids
        # A mark belongs to the character before it here.
        if offsets and not any(unicodedata.category(char)[0] == "M" for char in text):
            assert wanted_places == places, text
    assert ours.encode_batch(texts) == [ours.encode(text) for text in texts]


def bert(**settings):
    tokenizer = transformers.BertTokenizer(vocab={token: number for number, token in enumerate(VOCABULARY)}, **settings)
    tokenizer.add_tokens(TOKENS)
    return tokenizer


@pytest.mark.parametrize("casing", [(False, None), (False, True), (True, None), (True, False)])
def test_word_pieces(tmp_path, casing):
    theirs = bert(do_lower_case=casing[0], strip_accents=casing[1])
    ours = FullTokenizer(save(tmp_path, theirs, VOCABULARY) + "/vocab.txt", *casing)
    assert ours.vocab_size == len(theirs) and ours.vocab["[E1]"] == len(VOCABULARY)
    assert_equal(ours, theirs, texts_of(1, 200))


@pytest.mark.parametrize("split", SPLITS)
def test_words_of_a_string(tmp_path, split):
    """Each token is a word, whose pieces are those of the token alone."""
    tokenizer = FullTokenizer(save(tmp_path, bert(), VOCABULARY) + "/vocab.txt", True)
    wanted = {
        "[E1]삼성[/E1]은": (["[E1]", "삼성", "[/E1]", "은"], ["[E1]", "삼", "성", "[/E1]", "은"]),
        "a[E1][E1]x.b LEFT": (["a", "[E1]", "[E1]x", ".", "b", "LEFT"],) * 2,
        "both ab": (["both", "ab"], ["both", "a", "b"]),
        "boths": (["boths"], list("boths")),
        "in new york": (["in", "new york"], ["i", "n", "new york"]),
    }
    for text, of_split in wanted.items():
        words = [text[a:b] for a, b in split_words(text, split, tokenizer.added_tokens.spans(text))]
        assert [word for word in words if not word.isspace()] == of_split[split != "words"]
        spaces = text.count(" ") - ("york" in text) if split == "characters_and_spaces" else 0
        assert words.count(" ") == sum(map(str.isspace, words)) == spaces
        assert all(len(tokenizer.encode(word)) == 1 for word in words if tokenizer.added_tokens.spans(word))
    with pytest.raises(NoGraphError, match=r"vocab.txt: added tokens \(.*\) can't be cut out .* take ids\.$"):
        graph_of(tokenizer)


def test_answers_by_words(tmp_path):
    """--answer_from=words: a marker is one piece in a word, and answers beside one, or of one, are found."""
    tokenizer = FullTokenizer(save(tmp_path, bert(), VOCABULARY) + "/vocab.txt", True, strip_accents=False)
    context = "ab [E1]삼성[/E1]은 전자, 한국 c"
    paragraph = Paragraph.from_context(context)
    for answer in ("삼성", "[E1]삼성[/E1]", "전자", "한국"):
        start = context.index(answer)
        first, last = paragraph.word_at(start), paragraph.word_at(start + len(answer) - 1)
        example = SquadExample("1", "a", paragraph, answer, first, last, False, start)
        windows = build_windows([example], tokenizer, WindowSettings(32, 8, 4), True)
        assert windows.ids[3:-1].tolist() == tokenizer.encode(context)
        ((begin,), (end,)) = windows.labels.values()
        assert AnswerTexts([example], windows, tokenizer, "words").of(0, begin, end)[0] == answer


def decoder_of(tokenizer) -> dict:
    return {str(index): token.__getstate__() for index, token in tokenizer.added_tokens_decoder.items()}


def test_every_file_that_names_added_tokens(tmp_path):
    """Those of older releases, too, which transformers reads as well."""
    size, role = len(VOCABULARY), {"cls_token": "[CLS]", "mask_token": {"content": "[MASK]", "lstrip": False}}
    normal = {"lstrip": False, "rstrip": False, "single_word": False, "special": False, "content": "[Ent]"}
    cases = [
        {"tokenizer_config": {"added_tokens_decoder": {size: {**normal, "normalized": True}}}},
        {"tokenizer_config": {}, "added_tokens": {"[E1]": size, "[Ent]": size + 1}},
        {"special_tokens_map": {**role, "additional_special_tokens": ["[E1]"]}, "added_tokens": {"[E1]": size}},
        {"tokenizer_config": {"additional_special_tokens": ["[E1]", "[Ent]"]}},
        {"tokenizer_config": {"extra_special_tokens": ["[Ent]"], "bos_token": "e1"}, "special_tokens_map": {}},
    ]
    for number, files in enumerate(cases):
        config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **files.get("tokenizer_config", {})}
        contents = {f"{name}__json": values for name, values in {**files, "tokenizer_config": config}.items()}
        folder = directory_of(tmp_path / str(number), vocab__txt="\n".join([*VOCABULARY, ""]), **contents)
        theirs, ours = transformers.BertTokenizer.from_pretrained(folder), FullTokenizer(folder + "/vocab.txt")
        texts = ["[E1]삼성[/E1]", "[ent] a [Ent]", "[e1]b[E1]b"]
        wanted = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
        assert wanted == ours.encode_batch(texts), files
        assert size in ours.encode_batch(["[Ent][E1]"])[0]


@pytest.fixture(scope="module")
def byte_bpe_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bpe")
    (folder / "text").write_text("\n".join([*texts_of(4, 500), *["the quick brown fox don't"] * 30]), encoding="utf-8")
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train([str(folder / "text")], 600, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    trained.save_model(str(folder))
    return folder


@pytest.mark.parametrize("add_prefix_space", [False, True])
def test_byte_level_bpe(byte_bpe_files, tmp_path, add_prefix_space):
    theirs = transformers.RobertaTokenizer.from_pretrained(byte_bpe_files, add_prefix_space=add_prefix_space)
    theirs.add_tokens(TOKENS)
    ours = ByteBpeTokenizer(save(tmp_path, theirs) + "/tokenizer.json")
    # With add_prefix_space, offsets behind a token are ours: the library leaves a character out there.
    assert_equal(ours, theirs, texts_of(5, 300), offsets=not add_prefix_space)
    assert ours.encode_with_offsets("[E1]the")[1][0] == (0, 4) and ours.encode_with_offsets("[E1]the")[1][1][0] == 4
    files = (byte_bpe_files / name for name in ("vocab.json", "merges.txt"))
    config = {"added_tokens_decoder": decoder_of(theirs), "add_prefix_space": add_prefix_space}
    older = ByteBpeTokenizer(directory_of(tmp_path / "older", *files, tokenizer_config__json=config) + "/vocab.json")
    assert older.encode_batch(texts_of(5, 100)) == ours.encode_batch(texts_of(5, 100))
    assert not older.continues_word(older.encode("a[E1]b"))[1:].any()
    written = json.loads(older.files()["tokenizer.json"])["added_tokens"]
    assert {token["content"]: token["special"] for token in written}["[E1]"]


def test_sentence_piece(tmp_path):
    lines = ["the quick brown fox 2019, [ ] / a b 1 left right both e1 york"] * 50
    model = tmp_path / "spiece.model"
    model.write_bytes(learned_pieces(lines, 70, pad_id=0, unk_id=1, control_symbols=["[CLS]", "[SEP]", "[MASK]"]))
    plain, theirs = SentencePieceTokenizer(str(model)), save_albert_tokenizer(model, tmp_path / "json")
    theirs.add_tokens(TOKENS)
    ours = HuggingFaceSentencePiece(save(tmp_path / "json", theirs) + "/tokenizer.json")
    assert_equal(ours, theirs, texts_of(7, 200), offsets=False)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder_of(theirs)}))
    tokenizer = SentencePieceTokenizer(str(model))
    wanted = ["[E1]", *plain.tokenize("fox"), "[/E1]", *plain.tokenize("a"), "[Ent]"]
    assert tokenizer.tokenize("[E1]Fox[/E1] a [ENT]") == wanted
    assert not tokenizer.continuations[tokenizer.vocab["[E1]"]]
    assert tokenizer.decode(tokenizer.encode("[E1]fox[/E1]")) == "[E1] fox [/E1]"
    texts = ["[E1]the dog[/E1] met a [Ent] [ent]. 2019, don't", "[E1]", ""]
    for one in (ours, tokenizer):
        assert_kept(one, tmp_path / type(one).__name__, texts)
        assert one.encode("[E1]") == [one.vocab["[E1]"]]
    library = transformers.AutoTokenizer.from_pretrained(tmp_path / "HuggingFaceSentencePiece")
    assert library(texts, add_special_tokens=False)["input_ids"] == ours.encode_batch(texts)


def test_word_characters_and_whitespace_are_the_librarys():
    chars = [chr(code) for code in range(0x20000) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
    chars.remove("\ue000")
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    library.add_tokens([LibraryToken("\ue000", single_word=True, normalized=False)])
    found = library.encode("".join(f"\n{char}\ue000" for char in chars))
    alone = {end - 1 for index, (_, end) in zip(found.ids, found.offsets, strict=True) if index}
    assert [char for number, char in enumerate(chars) if (3 * number + 2 in alone) == is_word_character(char)] == []
    library.add_tokens([LibraryToken("\ue001", lstrip=True, normalized=False)])
    spaces = filter(str.isspace, chars)
    assert [c for c in spaces if library.encode(f"a{c}\ue001").offsets[-1] == (1, 3)] == sorted(WHITESPACE)


def test_save_pretrained_of_byte_level_bpe(tmp_path, byte_bpe_files):
    """Of word pieces: test_tokenizer_choice.py."""
    folder, tokenizer = tmp_path / "bpe", ByteBpeTokenizer(str(byte_bpe_files / "vocab.json"))
    for _ in range(2):
        assert_kept(tokenizer, folder, SENTENCES)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs(SENTENCES, add_special_tokens=False)["input_ids"] == tokenizer.encode_batch(SENTENCES)
    ours = FullTokenizer(save(tmp_path / "bert", bert(), VOCABULARY) + "/vocab.txt")
    with pytest.raises(FileExistsError, match=r"has merges\.txt, tokenizer\.json, vocab\.json of another tokenizer"):
        ours.save_pretrained(str(folder))
