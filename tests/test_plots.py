"""What plots show: read back from the figures, and that files are whole or not there. (Of training: test_demo.py.)"""

import numpy as np
import pytest

from bert_tf.plots import plot_attention, plot_confusion_matrix, plot_masked_words

PNG_HEADER = b"\x89PNG\r\n\x1a\n"


def texts_of(labels) -> list[str]:
    return [label.get_text() for label in labels]


def random_attention(heads, length, seed=0):
    values = np.random.default_rng(seed).random((heads, length, length))
    return values / values.sum(-1, keepdims=True)


@pytest.mark.parametrize(("heads", "grid"), [(1, (1, 1)), (4, (1, 4)), (6, (2, 4))])
def test_attention_panels(tmp_path, heads, grid):
    tokens = ["[CLS]", "the", "light", "##house", "[SEP]"]
    values = random_attention(heads, 5)
    png = tmp_path / "attention.png"
    figure = plot_attention(values, tokens, str(png), title="Layer 3")
    assert len(figure.axes) == heads
    assert figure.get_suptitle() == "Layer 3"
    for number, axes in enumerate(figure.axes):
        (image,) = axes.get_images()
        np.testing.assert_allclose(image.get_array(), values[number], rtol=1e-6)
        assert image.get_clim() == (0, 1)  # one scale, so that panels can be compared
        assert texts_of(axes.get_xticklabels()) == texts_of(axes.get_yticklabels()) == tokens
        assert axes.get_title() == f"head {number}"
        # The first query is the top row, the first key the left column.
        assert axes.get_ylim()[0] > axes.get_ylim()[1] and axes.get_xlim()[0] < axes.get_xlim()[1]
    assert figure.axes[-1].get_subplotspec().get_gridspec().get_geometry() == grid
    assert png.read_bytes().startswith(PNG_HEADER)
    assert [path.name for path in tmp_path.iterdir()] == ["attention.png"]


def test_attention_of_one_head_without_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    figure = plot_attention(np.eye(3), ["a", "b", "c"])
    np.testing.assert_array_equal(figure.axes[0].get_images()[0].get_array(), np.eye(3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full((2, 3, 3), 1 / 3), r"of 2 tokens must be \[heads, 2, 2\] or \[2, 2\], not \[2, 3, 3\]"),
        (np.full((1, 2, 2, 2), 0.5), r"not \[1, 2, 2, 2\]. One layer and one example at a time"),
        (np.zeros((0, 2, 2)), r"not \[0, 2, 2\]"),
        (np.array([[-1.5, 2.5], [0.5, 0.5]]), r"between 0 and 1, these are between -1.5 and 2.5"),
        (np.array([[np.nan, 1], [0.5, 0.5]]), r"between 0 and 1"),
    ],
)
def test_attention_that_is_none(tmp_path, values, message):
    with pytest.raises(ValueError, match=message):
        plot_attention(values, ["a", "b"], str(tmp_path / "attention.png"))
    assert not list(tmp_path.iterdir())


def test_masked_words(tmp_path):
    text = "The [MASK] costs $5 or $6 in [MASK]."
    guesses = [[("house", 0.6), ("##s", 0.25), ("$a$", 0.05)], [("1840", 0.9), ("may", 0.1)]]
    png = tmp_path / "words.png"
    figure = plot_masked_words(text, guesses, str(png))
    assert figure.get_suptitle() == text
    assert [axes.get_title() for axes in figure.axes] == ["[MASK] 1", "[MASK] 2"]
    for axes, mask in zip(figure.axes, guesses, strict=True):
        assert [bar.get_width() for bar in axes.patches] == [probability for _, probability in mask]
        assert texts_of(axes.get_yticklabels()) == [token for token, _ in mask]
        assert texts_of(axes.texts) == [f"{probability:.0%}" for _, probability in mask]
        heights = [bar.get_y() for bar in axes.patches]
        assert heights == sorted(heights) and axes.get_ylim()[0] > axes.get_ylim()[1]  # the best on top
    # What stands between dollar signs is text, also when a notebook draws the figure later.
    assert not figure._suptitle.get_parse_math()
    assert not any(label.get_parse_math() for label in figure.axes[0].get_yticklabels())
    assert png.read_bytes().startswith(PNG_HEADER)
    one = plot_masked_words("A [MASK].", [[("dog", 1.0)]])
    assert [axes.get_title() for axes in one.axes] == [""]


@pytest.mark.parametrize(
    ("text", "guesses", "message"),
    [
        ("No mask.", [], r"'No mask.' has 0 \[MASK\], but guesses are there for 0"),
        ("A [MASK].", [[("a", 0.5)], [("b", 0.5)]], r"has 1 \[MASK\], but guesses are there for 2 \(\[1, 1\]\)"),
        ("A [MASK].", [[]], r"guesses are there for 1 \(\[0\]\)"),
    ],
)
def test_masked_words_that_do_not_fit(tmp_path, text, guesses, message):
    with pytest.raises(ValueError, match=message):
        plot_masked_words(text, guesses, str(tmp_path / "words.png"))
    assert not list(tmp_path.iterdir())


def test_letters_that_no_font_has_become_numbers(caplog):
    # Linear A is in hardly any font.
    tokens = ["[CLS]", "\U00010600"]
    figure = plot_attention(np.eye(2), tokens)
    assert texts_of(figure.axes[0].get_xticklabels()) == ["0", "1"]


def test_confusion_matrix(tmp_path):
    png = tmp_path / "confusion.png"
    figure = plot_confusion_matrix([0, 0, 1, 2, 2, 2], [0, 1, 1, 2, 2, 0], ["no", "yes", "$x$"], str(png))
    (axes,) = figure.axes
    np.testing.assert_array_equal(axes.get_images()[0].get_array(), [[1, 1, 0], [0, 1, 0], [1, 0, 2]])
    assert texts_of(axes.get_xticklabels()) == ["no", "yes", "$x$"]
    assert texts_of(axes.texts) == ["1", "1", "0", "0", "1", "0", "1", "0", "2"]
    assert not any(label.get_parse_math() for label in axes.get_yticklabels())
    assert png.read_bytes().startswith(PNG_HEADER)
