"""Models of huggingface.co by their names: owner/name, owner/name@revision, hf://owner/name or the address of its page;
files of data sets.

`huggingface_hub` fetches them, and is imported when a name is used: its cache, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and
HF_ENDPOINT hold here. A name is replaced by the folder in that cache once, where a flag or an argument is read
(`declare.settings_of`, `checks.path_of`); all other code sees a local folder, whose path holds the commit.
"""

import contextlib
import fnmatch
import functools
import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from absl import logging
from tqdm import tqdm

from bert_tf.system.messages import did_you_mean, named_by, some, unheard
from bert_tf.system.storage import COMMIT, HUB, NAME, PAGE, PAGES, PREFIX, is_name

# What the hub has -> what a name may mean that is none, and what it is if it isn't there.
_KINDS = {
    "model": ("directory, weight file or checkpoint, and no such model", "neither a path nor"),
    "dataset": ("data set", "not"),
}
# The files of a model that are fetched: what describes it, and the first kind of weights that is there.
_SMALL = ("*config.json", ".gitattributes")  # with which the list of all files comes
_DESCRIPTION = re.compile(
    r"([^/]+/)?[\w.-]*config\.json|vocab\.(txt|json)|merges\.txt|[^/]+\.model|(README|LICENSE)(\.\w+)?|"
    r"(tokenizer|added_tokens|special_tokens_map|modules|config_sentence_transformers|token_classification|"
    r"question_answering)\.json"
)
_WEIGHTS = (
    r"bert_model\.safetensors", r"model\.safetensors", r"model(\.safetensors\.index\.json|-\d+-of-\d+\.safetensors)",
    r"pytorch_model\.bin", r"pytorch_model(\.bin\.index\.json|-\d+-of-\d+\.bin)",
    r"[^/]+\.ckpt(-\d+)?\.(index|data-\d+-of-\d+)",
)  # fmt: skip


def local(
    path: str,
    flag: str = "",
    output_dir: str | None = None,
    cache_dir: str | None = None,
    with_weights: bool = True,
    check: Callable[[str], object] | None = None,
) -> str:
    """A path as it is, or for the name of a model the local folder with its files, fetched unless the cache has them.

    Args:
      flag: that gave the path, for messages. output_dir: of a run; if it began with a commit of this model, that one
        is taken, unless the name has a revision. cache_dir: instead of the hub's.
      with_weights: False: only what describes the model, as its tokenizer.
      check: gets the folder when only configurations are there, and refuses what is none of our models.

    Raises:
      ValueError: hf:// and no name follow, or the model has no weights in a known format. FileNotFoundError: there is
        no such model or revision. PermissionError: its terms are to be accepted. OSError: the hub can't be reached.
    """
    if not is_name(path):
        return path
    start = f"{flag}={path}" if flag else path
    found = NAME.fullmatch(path.removeprefix(PREFIX).removeprefix(PAGE))
    if not found:
        raise ValueError(f"{start}: a model on the hub is hf://OWNER/NAME[@REVISION]; download others.")
    revision = found[2] or (output_dir and _recorded(found[1], output_dir))
    with _told(start, "model", *found.groups()):
        asked = _asked("model", found[1], revision, cache_dir)
        sizes = _sizes(asked)
        if check:
            folder = _folder(asked)
            with named_by(start), unheard():
                try:
                    check(folder)
                except ValueError as error:
                    raise ValueError(str(error).replace(f"{folder}/", "")) from None
        return _fetched(asked, sizes, _chosen(sizes, with_weights, start))


def _asked(kind: str, name: str, revision: str | None, cache_dir: str | None = None) -> dict:
    """What is meant, a "model" or "dataset" at a commit, as the library's functions take it."""
    from huggingface_hub import constants

    commit = _commit(kind, name, revision, cache_dir)
    return {"repo_type": kind, "repo_id": name, "revision": commit, "cache_dir": cache_dir or constants.HF_HUB_CACHE}


@functools.cache
def _commit(kind: str, name: str, revision: str | None, cache_dir: str | None):
    """The commit of a revision, the same for the whole process."""
    from huggingface_hub import HfApi, constants, errors

    resolved = functools.partial(HfApi().resolve_revision, name, repo_type=kind, revision=revision, cache_dir=cache_dir)
    try:
        return resolved(local_files_only=constants.HF_HUB_OFFLINE)
    except errors.RepositoryNotFoundError:
        raise
    except errors.HfHubHTTPError as error:  # too many requests, say
        with contextlib.suppress(errors.RevisionResolutionError):
            commit = resolved(local_files_only=True)
            logging.warning("%s: %s; what the cache has is used.", name, _first_line(error))
            return commit
        raise


def _folder(asked: dict) -> str:
    """The folder of a commit in the cache."""
    name = f"{asked['repo_type']}s--{asked['repo_id'].replace('/', '--')}"
    return os.path.join(asked["cache_dir"], name, "snapshots", asked["revision"].resolved)


def _sizes(asked: dict) -> dict[str, int]:
    """The files of a commit, with their bytes; they are listed once, and the list stays in the cache."""
    from huggingface_hub import errors, get_cached_repo_tree, snapshot_download

    for _ in range(2):
        try:
            return {file.path: file.size for file in get_cached_repo_tree(**asked)}
        except errors.CachedRepoTreeNotFoundError:
            folder = snapshot_download(**asked, allow_patterns=[*_SMALL], tqdm_class=_Silent)
    # Without a network: what another program has fetched.
    walk = ((posixpath.relpath(at, folder), names) for at, _, names in os.walk(folder))
    return {posixpath.normpath(posixpath.join(at, file)): 0 for at, names in walk for file in names}


def _fetched(asked: dict, sizes: Mapping[str, int], files: Iterable[str]) -> str:
    """The folder of a commit, once these of its files are there."""
    from huggingface_hub import constants, snapshot_download

    folder = _folder(asked)
    if missing := [file for file in files if not os.path.exists(os.path.join(folder, file))]:
        tell = logging.info if logging.level_info() else logging.warning  # nothing comes by surprise
        tell(
            "Downloading %s@%s, commit %s: %s MB in %d files from %s to %s.", asked["repo_id"], asked["revision"],
            asked["revision"].resolved, f"{sum(sizes[file] for file in missing) / 1e6:,.1f}", len(missing),
            constants.ENDPOINT, folder,
        )  # fmt: skip
        snapshot_download(**asked, allow_patterns=missing)
    return folder


def _chosen(files: Collection[str], with_weights: bool, start: str) -> list[str]:
    """Those of a repository's files that are needed."""
    of_each = ([file for file in files if re.fullmatch(pattern, file)] for pattern in _WEIGHTS)
    weights = next(filter(None, of_each), []) if with_weights else []
    if with_weights and not weights:
        raise ValueError(
            f"{start} has no weights in a format that is read here (model.safetensors, pytorch_model.bin, "
            f"bert_model.ckpt). It has {', '.join(sorted(files)[:20])}."
        )
    return [file for file in files if _DESCRIPTION.fullmatch(file)] + weights


def _recorded(name: str, output_dir: str) -> str | None:
    """The commit of a model that a run in output_dir, or in a folder there, has noted, if any."""
    noted, walk, opened = re.compile(rf'"{re.escape(name)}@({COMMIT.pattern})"'.encode()), os.walk, open
    if "://" in output_dir:  # only TensorFlow opens it
        import tensorflow as tf

        walk, opened = tf.io.gfile.walk, tf.io.gfile.GFile
    for folder, _, files in walk(output_dir):
        for file in {"run.json", "settings.json"} & {*files}:
            with opened(posixpath.join(folder, file), "rb") as content:
                if found := noted.search(content.read()):
                    return found[1].decode()
    return None


@contextlib.contextmanager
def _told(start: str, kind: str, name: str, revision: str | None) -> Iterator[None]:
    """Says in one line what the hub or its library has against a model or data set."""
    from huggingface_hub import constants, errors

    endpoint, (meant, elsewhere) = constants.ENDPOINT, _KINDS[kind]
    page = f"{endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}"
    try:
        with unheard("httpx2"):  # which logs each request
            yield
    except errors.GatedRepoError:
        raise PermissionError(
            f"{start} is gated: accept its terms at {page}, and set HF_TOKEN to a token of that account (or call "
            "`hf auth login`)."
        ) from None
    except errors.RevisionNotFoundError:
        raise FileNotFoundError(f"{start}: {page} has no revision {revision}.") from None
    except errors.HFValidationError as error:
        raise ValueError(f"{start}: {_first_line(error)}.") from None
    except Exception as error:  # of the library, its own libraries, the network or the disk
        if type(error).__module__ == "builtins" and not isinstance(error, OSError | RuntimeError):
            raise
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403, 404):
            raise FileNotFoundError(
                f"{start}: there is no such {meant} on {endpoint}. "
                "If it is private, set HF_TOKEN to a token that may read it (or call `hf auth login`)."
            ) from None
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _first_line(error.__cause__ or error)
        raise OSError(
            f"{start} is {elsewhere}, with all its files, in the cache ({constants.HF_HUB_CACHE}), and can't be "
            f"fetched from {endpoint}: {reason}."
        ) from None


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")


class _Silent(tqdm):
    """A progress bar that is not shown."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options | {"disable": True})


# --- files of data sets -----------------------------------------------------------------------------------------------
# By addresses that begin with hf://datasets/, or those of the files' pages, through the hub's own cache, too.

# OWNER/NAME, perhaps @REVISION, and a file, which may be a glob. ~parquet is what the hub calls refs/convert/parquet.
_ADDRESS = re.compile(
    f"(?:{HUB}|{PAGES})([^/@]+/[^/@]+)(?:(?:@|/(?:blob|raw|resolve)/)((?:refs/(?:convert|pr)/)?[^/@]+))?/(.+?)"
    r"(?:\?download=true)?"
)


@functools.cache
def matching(pattern: str) -> dict[str, str]:
    """Downloads files into the hub's cache, where they are not there yet, which the log tells; once in a process.

    If the hub can't be reached (or HF_HUB_OFFLINE=1), those of the cache are taken.

    Args:
      pattern: hf://datasets/OWNER/NAME[@REVISION]/FILE, where FILE may have * and ?, as train-*.parquet.

    Returns:
      the address of each file, sorted, and its path in the cache; at least one.

    Raises:
      ValueError: no such address or file. Others: see `local`. Names the pattern.
    """
    if not (parts := _ADDRESS.fullmatch(pattern)):
        raise ValueError(f"{pattern}: an address on the hub is {HUB}OWNER/NAME/FILE, or {HUB}OWNER/NAME@REVISION/FILE.")
    name, revision, file = parts.groups()
    revision = revision and revision.replace("~parquet", "refs/convert/parquet").replace("%2F", "/")
    with _told(pattern, "dataset", name, revision):
        asked = _asked("dataset", name, revision)
        sizes = _sizes(asked)
        if not (found := _matches(file, [*sizes])):
            known = [one for one in sizes if not one.startswith(".")]
            raise ValueError(
                f"{pattern}: no file matches; there are {some(known) or 'none'}{did_you_mean(file, known)}"
            )
        folder = _fetched(asked, sizes, found)
    return {pattern[: parts.start(3)] + one: os.path.join(folder, one) for one in sorted(found)}


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
