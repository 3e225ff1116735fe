"""Files of data sets on Hugging Face's hub, by addresses that begin with hf://datasets/, through its own cache."""

import fnmatch
import functools
import os
import re

from absl import logging

from bert_tf.system.messages import did_you_mean, some

HUB = "hf://datasets/"

# OWNER/NAME, perhaps @REVISION, and a file, which may be a glob. ~parquet is what the hub calls refs/convert/parquet.
_ADDRESS = re.compile(f"{HUB}([^/@]+/[^/@]+)(?:@((?:refs/(?:convert|pr)/)?[^/@]+))?/(.+)")
_REVISIONS = {"~parquet": "refs/convert/parquet"}

# Kind of an error -> what it says of a data set, and what helps; the more specific ones first.
_REASONS = {
    "GatedRepoError": "has conditions: accept them on its page at huggingface.co, and set HF_TOKEN",
    "RepositoryNotFoundError": "is not on the hub; if it is private, set HF_TOKEN",
    "RevisionNotFoundError": "has no such revision",
    "LocalEntryNotFoundError": "can't be reached, and the cache does not have all files that are meant",
}
_local_files: dict[str, str] = {}  # address of one file -> its path in the cache


def is_on_hub(path: str) -> bool:
    """Whether a path is that of a data set's file on the hub."""
    return path.startswith(HUB)


@functools.cache
def matching(pattern: str) -> list[str]:
    """Downloads files into the hub's cache, where they are not there yet, which the log tells; once in a process.

    If the hub can't be reached (or HF_HUB_OFFLINE=1), those of the cache are taken.

    Args:
      pattern: hf://datasets/OWNER/NAME[@REVISION]/FILE, where FILE may have * and ?, as train-*.parquet.

    Returns:
      the address of each file, sorted; at least one.

    Raises:
      ValueError: no such address, data set, revision or file. OSError: the transfer failed. Names the pattern.
    """
    if not (parts := _ADDRESS.fullmatch(pattern)):
        raise ValueError(f"{pattern}: an address on the hub is {HUB}OWNER/NAME/FILE, or {HUB}OWNER/NAME@REVISION/FILE.")
    import huggingface_hub

    revision = _REVISIONS.get(parts[2], parts[2])
    asked = {"repo_id": parts[1], "repo_type": "dataset", "revision": revision and revision.replace("%2F", "/")}
    try:
        known = _told_of_download(pattern, parts[3], asked)
        folder = huggingface_hub.snapshot_download(**asked, allow_patterns=[parts[3]])
    except Exception as error:
        reasons = [f"the data set {parts[1]} {why}" for kind, why in _REASONS.items() if _is_a(error, kind)]
        reason = next(iter(reasons), " ".join(str(error).split())[:300])
        raise (ValueError if reasons or isinstance(error, ValueError) else OSError)(f"{pattern}: {reason}") from error
    if known is None:
        paths = (os.path.join(inside, name) for inside, _, names in os.walk(folder) for name in names)
        known = _matches(parts[3], [os.path.relpath(path, folder).replace(os.sep, "/") for path in paths])
    found = {pattern.removesuffix(parts[3]) + name: os.path.join(folder, name) for name in known}
    _local_files.update(found)
    return sorted(found)


def local_file(path: str) -> str:
    """Where a file of the hub is in the cache; other paths as they are.

    Raises:
      ValueError: several files match. Or see `matching`.
    """
    if not is_on_hub(path) or path in _local_files:
        return _local_files.get(path, path)
    found = matching(path)
    if len(found) > 1:
        raise ValueError(f"{path} matches {len(found)} files: {some(found)}; name one. Only .parquet may be several.")
    return _local_files[found[0]]


def _told_of_download(pattern: str, file: str, asked: dict) -> list[str] | None:
    """The names of the files that are meant, whose download is told; None: the hub can't be reached, which is, too.

    Raises:
      ValueError: there is no such file. HfHubHTTPError: no such data set or revision.
    """
    import huggingface_hub

    try:
        info = huggingface_hub.HfApi().repo_info(**asked, files_metadata=True)
    except Exception as error:
        if any(_is_a(error, kind) for kind in _REASONS):
            raise
        reason = " ".join(str(error).split())
        logging.warning("%s: the hub can't be reached, and the files in the cache are taken (%.200s).", pattern, reason)
        return None
    sizes = {one.rfilename: one.size for one in info.siblings}
    if not (found := _matches(file, list(sizes))):
        known = [name for name in sizes if not name.startswith(".")]
        raise ValueError(f"no file matches; there are {some(known)}{did_you_mean(file, known)}")
    new = [
        name for name in found
        if not isinstance(huggingface_hub.try_to_load_from_cache(filename=name, **asked | {"revision": info.sha}), str)
    ]  # fmt: skip
    size = sum(sizes[name] or 0 for name in new) / 1e6
    shown = (pattern, len(found), info.sha[:8], len(new), size)
    logging.info("%s: %d file(s) of commit %s; %d to download from the hub (%.1f MB), others in the cache.", *shown)
    return found


def _matches(file: str, names: list[str]) -> list[str]:
    """The names that a name or glob means; * and ? stand for no slash."""
    if file in names:
        return [file]
    parts = file.split("/")
    return [
        name
        for name in names
        if name.count("/") == file.count("/") and all(map(fnmatch.fnmatchcase, name.split("/"), parts))
    ]


def _is_a(error: Exception, kind: str) -> bool:
    return any(one.__name__ == kind for one in type(error).__mro__)
