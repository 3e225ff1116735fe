"""Models of huggingface.co by their names: owner/name, owner/name@revision, or hf://owner/name.

`huggingface_hub` fetches them, and is imported when a name is used: its cache, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and
HF_ENDPOINT hold here. A name is replaced by the folder in that cache once, where a flag or an argument is read
(`declare.settings_of`, `checks.path_of`); all other code sees a local folder, whose path holds the commit.
"""

import contextlib
import functools
import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping

from absl import logging
from tqdm import tqdm

_PREFIX = "hf://"
_NAME = re.compile(r"([a-zA-Z0-9_][a-zA-Z0-9_.-]*/[a-zA-Z0-9_.-]+)(?:@([a-zA-Z0-9_./-]+))?")
_FILE = re.compile(r".*\.(ckpt(-\d+)?|index|safetensors|bin|pth?|json|txt|zip|gz|keras|h5|onnx|pb|model)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Where the cache keeps a commit of a model.
_CACHED = re.compile(rf"(?:^|/)models--([\w.-]+?)--([\w.-]+)/snapshots/({_COMMIT.pattern})(?:/|$)")
# The files of a model that are fetched: what describes it, and the first kind of weights that is there.
_CONFIGURATION = "*config.json"  # small ones, also those of the modules of sentence-transformers
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


def is_name(path: str) -> bool:
    """Whether a path names a model on the hub, and nothing here: owner/name where there is no folder owner."""
    if path.startswith(_PREFIX):
        return True
    found = _NAME.fullmatch(path)
    return bool(found) and not _FILE.fullmatch(path) and not os.path.lexists(path.partition("/")[0])


def name_of(path: str) -> str:
    """The name of the model of a path in the hub's cache, with its commit: owner/name@commit; another path as it is."""
    found = _CACHED.search(path)
    return f"{found[1]}/{found[2]}@{found[3]}" if found else path


def with_names(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings with `name_of` their texts, as a run notes them."""
    return {name: name_of(value) if isinstance(value, str) else value for name, value in settings.items()}


def local(
    path: str, flag: str = "", output_dir: str | None = None, cache_dir: str | None = None, with_weights: bool = True
) -> str:
    """A path as it is, or for the name of a model the local folder with its files, fetched unless the cache has them.

    Args:
      flag: that gave the path, for messages. output_dir: of a run; if it began with a commit of this model, that one
        is taken, unless the name has a revision. cache_dir: instead of the hub's.
      with_weights: False: only what describes the model, as its tokenizer.

    Raises:
      ValueError: hf:// and no name follow, or the model has no weights in a known format. FileNotFoundError: there is
        no such model or revision. PermissionError: its terms are to be accepted. OSError: the hub can't be reached.
    """
    if not is_name(path):
        return path
    start = f"{flag}={path}" if flag else path
    found = _NAME.fullmatch(path.removeprefix(_PREFIX))
    if not found:
        raise ValueError(f"{start}: a model on the hub is hf://OWNER/NAME, or hf://OWNER/NAME@REVISION.")
    revision = found[2] or (output_dir and _recorded(found[1], output_dir))
    with _told(start, *found.groups()):
        return _folder(found[1], revision, cache_dir, with_weights, start)


@functools.cache
def _commit(name: str, revision: str | None, cache_dir: str | None):
    """The commit of a revision, the same for the whole process."""
    from huggingface_hub import HfApi, constants, errors

    resolved = functools.partial(HfApi().resolve_revision, name, revision=revision, cache_dir=cache_dir)
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


def _folder(name: str, revision: str | None, cache_dir: str | None, with_weights: bool, start: str) -> str:
    """The folder of a commit in the cache, once all files that are needed are there."""
    from huggingface_hub import constants, snapshot_download

    commit, cache_dir = _commit(name, revision, cache_dir), cache_dir or constants.HF_HUB_CACHE
    fetch = functools.partial(snapshot_download, name, revision=commit, cache_dir=cache_dir)
    folder = os.path.join(cache_dir, f"models--{name.replace('/', '--')}", "snapshots", commit.resolved)
    sizes = _sizes(name, commit, cache_dir, fetch)
    missing = [file for file in _chosen(sizes, with_weights, start) if not os.path.exists(os.path.join(folder, file))]
    if missing:
        logging.info(
            "Downloading %s@%s, commit %s: %s MB in %d files from %s to %s.", name, commit, commit.resolved,
            f"{sum(sizes[file] for file in missing) / 1e6:,.1f}", len(missing), constants.ENDPOINT, folder,
        )  # fmt: skip
        fetch(allow_patterns=missing)
    return folder


def _sizes(name: str, commit: str, cache_dir: str, fetch: Callable) -> dict[str, int]:
    """The files of a commit, with their bytes; they are listed once, and the list stays in the cache.

    Args:
      fetch: fetches files by patterns, and lists them all.
    """
    from huggingface_hub import errors, get_cached_repo_tree

    for _ in range(2):
        try:
            return {file.path: file.size for file in get_cached_repo_tree(name, revision=commit, cache_dir=cache_dir)}
        except errors.CachedRepoTreeNotFoundError:
            folder = fetch(allow_patterns=[_CONFIGURATION], tqdm_class=_Silent)
    # Without a network: what another program has fetched.
    walk = ((posixpath.relpath(at, folder), names) for at, _, names in os.walk(folder))
    return {posixpath.normpath(posixpath.join(at, file)): 0 for at, names in walk for file in names}


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
    """The commit of a model that a run in a local output_dir, or in a folder there, has noted, if any."""
    noted = re.compile(rf'"{re.escape(name)}@({_COMMIT.pattern})"')
    for folder, _, files in os.walk(output_dir):
        for file in {"run.json", "settings.json"} & {*files}:
            with open(posixpath.join(folder, file), encoding="utf-8", errors="replace") as text:
                if found := noted.search(text.read()):
                    return found[1]
    return None


@contextlib.contextmanager
def _told(start: str, name: str, revision: str | None) -> Iterator[None]:
    """Says in one line what the hub or its library has against a name."""
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    try:
        yield
    except errors.GatedRepoError:
        raise PermissionError(
            f"{start}: the model is gated: accept its terms at {endpoint}/{name}, and set HF_TOKEN to a token of that "
            "account (or call `hf auth login`)."
        ) from None
    except errors.RevisionNotFoundError:
        raise FileNotFoundError(f"{start}: {endpoint}/{name} has no revision {revision}.") from None
    except errors.HFValidationError as error:
        raise ValueError(f"{start}: {_first_line(error)}.") from None
    except Exception as error:  # of the library, its own libraries, the network or the disk
        if type(error).__module__ == "builtins" and not isinstance(error, OSError | RuntimeError):
            raise
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403, 404):
            raise FileNotFoundError(
                f"{start}: there is no such directory, weight file or checkpoint, and no such model on {endpoint}. "
                "If it is private, set HF_TOKEN to a token that may read it (or call `hf auth login`)."
            ) from None
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _first_line(error.__cause__ or error)
        raise OSError(
            f"{start} is neither a path nor, with all its files, in the cache ({constants.HF_HUB_CACHE}), and can't be "
            f"fetched from {endpoint}: {reason}."
        ) from None


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")


class _Silent(tqdm):
    """A progress bar that is not shown."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options | {"disable": True})
