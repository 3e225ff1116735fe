"""ELECTRA's tokenizer compared with the original's results, in Python and as a graph."""

import pytest
from helpers.op_by_op import assert_graph_equal, op_by_op
from helpers.paths import GOLDEN, lines_of

from bert_tf.text.graph_wordpiece import graph_of
from bert_tf.text.wordpiece import ElectraTokenizer, FullTokenizer

ORACLE = GOLDEN / "tokenization" / "electra"
VOCAB_FILE = str(ORACLE / "vocab.txt")


@pytest.fixture(scope="module")
def records():
    return lines_of(ORACLE / "tokenization.jsonl.gz")


def chosen(records, do_lower_case, strip_accents):
    return [r for r in records if (r["do_lower_case"], r["strip_accents"]) == (do_lower_case, strip_accents)]


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
def test_all_golden_strings(records, do_lower_case, strip_accents):
    tokenizer = ElectraTokenizer(VOCAB_FILE, do_lower_case, strip_accents)
    records = chosen(records, do_lower_case, strip_accents)
    assert len(records) == 300
    for record in records:
        assert tokenizer.basic_tokenizer.tokenize(record["text"]) == record["basic"], record["index"]
        assert tokenizer.tokenize(record["text"]) == record["tokens"], record["index"]
        assert tokenizer.encode(record["text"]) == record["ids"], record["index"]
        assert tokenizer.encode_with_offsets(record["text"])[0] == record["ids"], record["index"]


def test_it_differs_from_bert(records, tmp_path):
    """The golden strings show both differences."""
    bert, electra = FullTokenizer(VOCAB_FILE), ElectraTokenizer(VOCAB_FILE)
    assert any(bert.encode(record["text"]) != electra.encode(record["text"]) for record in records)
    assert electra.tokenize("a\ue000\U000f0000\U00050000\ud800b") == electra.tokenize("ab")
    assert FullTokenizer(VOCAB_FILE, False, True).basic_tokenizer.tokenize("\u00e9") == ["e"]
    (tmp_path / "vocab.txt").write_bytes((ORACLE / "vocab.txt").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "strip_accents": true}')
    tokenizer = ElectraTokenizer.from_pretrained(str(tmp_path))
    assert type(tokenizer) is ElectraTokenizer and tokenizer.cased
    assert tokenizer.basic_tokenizer.tokenize("\u00e9") == ["\u00e9"]


@pytest.mark.parametrize(("do_lower_case", "strip_accents"), [(True, None), (False, True)])
def test_graph(records, do_lower_case, strip_accents):
    tokenizer = ElectraTokenizer(VOCAB_FILE, do_lower_case, strip_accents)
    texts = [r["text"] for r in chosen(records, True, True)]
    texts += [
        "\u03a3\ue000\u0391\u03a3\U000f0000",
        "a\U00050000b\u0378c",
        *(" ".join(map(chr, range(c, c + 64))) for c in range(0, 0xD800, 64 if do_lower_case else 448)),
    ]
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]  # a tensor holds no surrogates
    graph = graph_of(tokenizer)
    with op_by_op():
        assert_graph_equal(tokenizer, texts, graph)
