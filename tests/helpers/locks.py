"""Lock files as other runs leave them."""

import dataclasses
import json

from bert_tf.system import run_lock


def leave_lock(path, **values) -> None:
    """Writes the lock of this process, changed, as if it were that of another run."""
    owner = dataclasses.replace(run_lock._this_process(), **values)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(dataclasses.asdict(owner)))
