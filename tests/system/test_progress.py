"""Progress bars whose first call compiles: rate and remaining time don't include it."""

import io

from bert_tf.system import messages


def test_the_clock_starts_after_the_first_call():
    bar = messages.progress_bar(total=11, unit="step", smoothing=0, file=io.StringIO())
    for name in ("start_t", "last_print_t"):  # the first call took a hundred seconds
        setattr(bar, name, getattr(bar, name) - 100)
    messages.start_clock(bar, 1)
    bar.start_t -= 5
    bar.update(5)
    state = bar.format_dict
    assert (state["n"], state["initial"]) == (6, 1)
    assert 5 <= state["elapsed"] < 10
    shown = bar.format_meter(**state)
    assert "6/11 [00:05<00:05, " in shown
    messages.start_clock(messages.progress_bar(total=3, disable=True), 1)
