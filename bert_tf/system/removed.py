"""What earlier versions had: each is refused in one line that says what to do instead."""

# Flags, as they were called in any script.
FLAGS = {
    "verify": "what is written is always read back, every bit compared",
}
# Names of the package, as in `from bert_tf import NAME`.
NAMES: dict[str, str] = {}
