"""Progress bars without a delay."""

from bert_tf.system.messages import progress_bar


def show_progress_at_once(monkeypatch, module) -> list[dict]:
    """Removes the delay of a module's progress bars; returns a list that collects the options of each."""
    given = []

    def without_delay(iterable, **options):
        given.append(options)
        return progress_bar(iterable, **{**options, "delay": 0})

    monkeypatch.setattr(module, "progress_bar", without_delay)
    return given
