"""Models of huggingface.co by their names, and files of data sets.

`huggingface_hub` fetches them, and is imported when a name is used: its cache, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and
HF_ENDPOINT hold here. A name is replaced by the folder in that cache once, where a flag or an argument is read
(`declare.settings_of`, `local`); all other code sees a local folder, whose path holds the commit.
"""

import contextlib
import difflib
import functools
import hashlib
import json
import os
import pathlib
import posixpath
import re
from collections.abc import Generator, Iterable, Mapping

from absl import logging

from bert_tf.system.messages import abbreviated_list, escape_control_characters, naming_flag, without_logging
from bert_tf.system.storage import HUB, PAGE, PAGES, PREFIX, gfile, names_in, sync

WEB = (PREFIX, "https://", "http://")
NAME = re.compile(r"([a-zA-Z0-9_][a-zA-Z0-9_.-]*/[a-zA-Z0-9_.-]+)(?:@([a-zA-Z0-9_./-]+))?")
_FILE = re.compile(r".*\.(ckpt(-\d+)?|index|safetensors|bin|pth?|json|txt|zip|gz|keras|h5|onnx|pb|model)")
COMMIT = re.compile(r"[0-9a-f]{40}")
# Models that the hub once had without an owner, and their owners today.
_OWNERS = {
    r"bert-(base|large)-(un)?cased[\w-]*|bert-base-(chinese|german|multilingual)[\w-]*": "google-bert",
    r"([a-z]{3}-)?roberta-(base|large)(-mnli|-finetuned-[\w-]+)?": "FacebookAI",
    r"distilbert-base-[\w-]+|distilroberta-base": "distilbert",
    r"albert-(x{0,2}large|base)-v[12]": "albert",
    r"electra-(small|base|large)-(discriminator|generator)": "google",
}
# Where the cache keeps a commit of a model.
_CACHED = re.compile(rf"(?:^|/)models--([\w.-]+?)--([\w.-]+)/snapshots/({COMMIT.pattern})(?:/|$)")

# The files of a model that are fetched: what describes it, and the first kind of weights that is there.
_CONFIGURATION = re.compile(r"([^/]+/)?[\w.-]*config\.json")
_DESCRIPTION = re.compile(
    r"([^/]+/)?[\w.-]*config\.json|vocab\.(txt|json)|merges\.txt|[^/]+\.model|(README|LICENSE)(\.\w+)?|"
    r"lora\.safetensors|texts\.jsonl|vectors(_2)?\.npy|"
    r"(tokenizer|added_tokens|special_tokens_map|modules|config_sentence_transformers|token_classification|"
    r"question_answering)\.json"
)
_WEIGHTS = (
    r"bert_model\.safetensors", r"model\.safetensors", r"model(\.safetensors\.index\.json|-\d+-of-\d+\.safetensors)",
    r"pytorch_model\.bin", r"pytorch_model(\.bin\.index\.json|-\d+-of-\d+\.bin)", r"tf_model\.h5",
    r"[^/]+\.ckpt(-\d+)?\.(index|data-\d+-of-\d+)",
)  # fmt: skip
_MOST_DESCRIPTIONS = 200  # files; a model has about ten
_ETAG = re.compile(r"(W/)?[\w.:+\"=-]*")
# Where the cache has a large file, which snapshots link to; its name is its checksum.
_BLOB = re.compile(r".*/(?:model|dataset)s--[^/]+/blobs/([0-9a-f]{64})")


def is_name(path: str) -> bool:
    """Whether a path is the owner/name of a model on the hub, with no folder owner here, or an address in the web.

    So are names without an owner, such as bert-base-uncased, that the hub once had; see `full_name`.
    """
    if path.startswith(WEB):
        return True
    is_named = path != full_name(path) or (NAME.fullmatch(path) and not _FILE.fullmatch(path))
    return bool(is_named) and not os.path.lexists(re.split("[/@]", path)[0])


def full_name(name: str) -> str:
    """A model's name with its owner, where the hub once had it without; another name as it is."""
    owners = [owner for pattern, owner in _OWNERS.items() if re.fullmatch(pattern, name.partition("@")[0])]
    return "/".join([*owners, name])


def name_of(path: str) -> str:
    """The name of the model of a path in the hub's cache, with its commit: owner/name@commit; another path as it is."""
    match = _CACHED.search(path)
    return f"{match[1]}/{match[2]}@{match[3]}" if match else path


def with_hub_names(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings with `name_of` their texts, as a run notes them."""
    return {name: name_of(value) if isinstance(value, str) else value for name, value in settings.items()}


MODEL_TYPES: list[str] = []  # of the families, which `bert_tf.families` enters


def check_model_type(model_type: str, source: str = "config") -> None:
    if model_type not in MODEL_TYPES:
        known = f"the families of this project are {', '.join(MODEL_TYPES)}"
        raise ValueError(f"{source}: model_type is {model_type!r:.80}; {known}.")


def local(
    path, flag: str = "", output_dir: str | None = None, cache_dir: str | None = None, with_weights: bool = True
) -> str:
    """A path as a string, or for the name of a model the local folder with its files, fetched unless the cache has
    them: first the configuration, which says the family.

    flag: that gave the path. output_dir: of a run; the commit of this model that it began with is taken, unless the
      name has a revision.
    """
    if not is_name(path := os.fspath(path)):
        return path
    start = f"{flag}={path}" if flag else path
    match = NAME.fullmatch(full_name(path.removeprefix(PREFIX).removeprefix(PAGE)))
    if not match:
        raise ValueError(f"{start}: a model on the hub is hf://OWNER/NAME[@REVISION]; download others.")
    owner, _, rest = path.partition("/")
    for near in difflib.get_close_matches(owner, names_in("."), 1) if rest and not path.startswith(WEB) else ():
        if os.path.exists(f"{near}/{rest}"):
            raise FileNotFoundError(f"{start}: did you mean {near}/{rest}? On the hub: hf://{path}")
    revision = match[2] or (output_dir and _noted_commit(match[1], output_dir))
    with _requesting(start, "directory, weight file or checkpoint, and no such model"):
        repo = _at_commit("model", match[1], revision, cache_dir)
        listed = _list_files(repo)
        described = [file for file in listed if _DESCRIPTION.fullmatch(file)]
        if len(described) > _MOST_DESCRIPTIONS:
            raise ValueError(f"{start} has {len(described):,} configurations and vocabularies: it is not one model.")
        folder = _fetch(repo, listed, filter(_CONFIGURATION.fullmatch, described), is_silent=True)
        if os.path.exists(config_file := os.path.join(folder, "config.json")):
            source = f"{start}: {config_file}"
            with naming_flag(source), open(config_file, encoding="utf-8-sig") as file:
                values = json.load(file)
            if isinstance(values, dict):
                check_model_type(values.get("model_type", "bert"), source)
        if with_weights:
            kinds = ([file for file in listed if re.fullmatch(pattern, file)] for pattern in _WEIGHTS)
            if not (weights := next(filter(None, kinds), None)):
                there = abbreviated_list(sorted(listed))
                raise ValueError(f"{start} has no weights in a format that is read here. It has {there}.")
            described += weights
        return _fetch(repo, listed, described)


@functools.cache
def _at_commit(kind: str, name: str, revision: str | None, cache_dir: str | None = None) -> dict:
    from huggingface_hub import HfApi, constants, errors

    resolve = functools.partial(HfApi().resolve_revision, name, repo_type=kind, revision=revision, cache_dir=cache_dir)
    try:
        commit = resolve(local_files_only=constants.HF_HUB_OFFLINE)
    except errors.RepositoryNotFoundError:
        raise
    except errors.HfHubHTTPError as error:  # too many requests, say
        try:
            commit = resolve(local_files_only=True)
        except errors.RevisionResolutionError:
            raise error from None
        logging.warning("%s: %s; using the cache.", name, escape_control_characters(_first_line(error)))
    if not COMMIT.fullmatch(commit.resolved):
        raise OSError(f"the commit {commit.resolved!r:.80} is not a hash")
    return {"repo_type": kind, "repo_id": name, "revision": commit, "cache_dir": cache_dir or constants.HF_HUB_CACHE}


def _folder(repo: dict, *inner: str) -> str:
    return os.path.join(repo["cache_dir"], f"{repo['repo_type']}s--{repo['repo_id'].replace('/', '--')}", *inner)


def _list_files(repo: dict) -> dict[str, tuple[int, str]]:
    """The files of a commit, with their bytes and checksums: SHA-256 of large files, Git's of others, "" without a
    network. The list stays in the cache."""
    from huggingface_hub._tree_cache import read_tree_cache  # the public function leaves out SHA-256

    for _ in range(2):
        if (noted := read_tree_cache(_folder(repo), repo["revision"].resolved)) is not None:
            return {path: (file.size, file.lfs_sha256 or file.blob_id) for path, file in noted.items()}
        folder = _download(repo, [".gitattributes", "config.json"], is_silent=True)  # the list comes with any file
    # Without a network: what another program has fetched.
    return {str(path.relative_to(folder)): (0, "") for path in pathlib.Path(folder).rglob("*") if path.is_file()}


def _fetch(repo: dict, listed: Mapping[str, tuple[int, str]], files: Iterable[str], is_silent: bool = False) -> str:
    """The folder of a commit, once these of its files are there, as the hub announced them."""
    from huggingface_hub import constants

    folder, files = _folder(repo, "snapshots", repo["revision"].resolved), [*files]
    for file in files:
        _remove_damaged(os.path.join(folder, file), listed[file][1])
    missing = [file for file in files if not os.path.exists(os.path.join(folder, file))]
    if not missing:
        return folder
    if not is_silent:
        tell = logging.info if logging.level_info() else logging.warning  # nothing comes by surprise
        what = f"{repo['repo_id']}@{repo['revision']}, commit {repo['revision'].resolved}"
        size = f"{sum(listed[file][0] for file in missing) / 1e6:,.1f} MB in {len(missing)} files"
        tell("Downloading %s: %s from %s to %s.", what, size, constants.ENDPOINT, folder)
    _download(repo, missing, is_silent)
    for file in missing:
        if wrong := _remove_damaged(os.path.join(folder, file), listed[file][1]):
            raise OSError(f"{file} arrived with {wrong}")
    return folder


def _remove_damaged(path: str, announced: str) -> str:
    wrong = wrong_checksum(path, announced) if os.path.exists(path) else ""
    if wrong:
        logging.warning("%s is removed: it has %s.", path, wrong)
        for one in {os.path.realpath(path), path}:
            os.remove(one)
    return wrong


def wrong_checksum(path: str, announced: str = "") -> str:
    """What is wrong with a file of the cache; "" if nothing is, or no checksum is known. A note next to it says so
    until it changes; where none can be written, each process computes the checksum."""
    while os.path.islink(path) and not _BLOB.fullmatch(path):
        folder, name = os.path.split(os.path.join(os.path.dirname(path), os.readlink(path)))
        path = os.path.join(os.path.realpath(folder), name)
    blob, status = _BLOB.fullmatch(path), os.stat(path)
    announced = announced or (blob[1] if blob else "")
    return announced and _wrong_checksum(path, announced, status.st_size, status.st_mtime_ns)


@functools.cache
def _wrong_checksum(path: str, announced: str, size: int, changed: int) -> str:
    note, sound = f"{path}.verified", f"{announced} {size} {changed}".encode()
    with contextlib.suppress(OSError), open(note, "rb") as file:
        if file.read() == sound:
            return ""
    digest = hashlib.sha1(b"blob %d\0" % size) if len(announced) == 40 else hashlib.sha256()  # 40: of Git
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: digest).hexdigest()
    if found != announced:
        return f"the checksum {found}, the hub announces {announced}"
    with contextlib.suppress(OSError):
        sync(path)  # a power cut leaves no note of what it damages
        with open(note, "wb") as file:
            file.write(sound)
    return ""


def _noted_commit(name: str, output_dir: str) -> str | None:
    """The commit of a model that a run in output_dir, or in a folder there, has noted, if any."""
    noted, walk, opened = re.compile(rf'"{re.escape(name)}@({COMMIT.pattern})"'.encode()), os.walk, open
    if "://" in output_dir:  # only TensorFlow opens it
        walk, opened = gfile().walk, gfile().GFile
    for folder, _, files in walk(output_dir):
        for file in {"run.json", "settings.json"} & {*files}:
            with opened(posixpath.join(folder, file), "rb") as content:
                if match := noted.search(content.read()):
                    return match[1].decode()
    return None


@contextlib.contextmanager
def _requesting(start: str, meant: str) -> Generator[None]:
    """For requests to the hub. Errors begin with `start`, a name and its flag; `meant` is what the name may mean.

    Raises also for what huggingface_hub takes: an ETag that is a path to a file of the cache, files of another commit.
    """
    from huggingface_hub import constants, get_session

    def check_answer(answer) -> None:
        headers, path = answer.headers, answer.url.path
        commit = re.search(f"/resolve/({COMMIT.pattern})/", path)
        for name, allowed in {"ETag": _ETAG, "X-Linked-Etag": _ETAG, "X-Repo-Commit": commit and commit[1]}.items():
            if allowed and name in headers and not re.fullmatch(allowed, headers[name]):
                raise OSError(f"the {name} of {path} is {headers[name]!r:.80}")

    hooks = get_session().event_hooks["response"]
    hooks.append(check_answer)
    try:
        with without_logging("httpx2"):  # which logs each request
            yield
    except Exception as error:  # of the library, its own libraries, the network or the disk
        if type(error) is ValueError:  # of this project; what the hub sent may be in it
            raise ValueError(escape_control_characters(str(error))) from error.__cause__
        if type(error).__module__ == "builtins" and not isinstance(error, OSError | RuntimeError):
            raise
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403, 404):
            problem = f"{start}: there is no such {meant} on {constants.ENDPOINT}, or not in this revision"
            advice = "accept its terms there, and set HF_TOKEN to a token that may read it (or `hf auth login`)"
            raise FileNotFoundError(f"{problem}. If it is private or gated, {advice}.") from None
        reason = escape_control_characters(_first_line(error.__cause__ or error))
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else reason
        problem = f"{start} is not, with all its files, in the cache ({constants.HF_HUB_CACHE})"
        problem = f"{problem}, and can't be fetched from {constants.ENDPOINT}: {reason}"
        raise OSError(f"{problem}. Without a network give the path of a folder.") from None
    finally:
        hooks.remove(check_answer)


def _first_line(error: BaseException) -> str:
    return (f"{type(error).__name__}: {error}".splitlines() or [""])[0].rstrip(". :")


def _download(repo: dict, files: list[str], is_silent: bool) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    with disable_progress_bars() if is_silent else contextlib.nullcontext():
        return snapshot_download(**repo, allow_patterns=files)


# --- files of data sets -----------------------------------------------------------------------------------------------
# By addresses that begin with hf://datasets/, or those of the files' pages, through the hub's own cache, too.

# OWNER/NAME, perhaps @REVISION, and a file, which may be a glob. ~parquet is what the hub calls refs/convert/parquet.
_ADDRESS = re.compile(
    f"(?:{HUB}|{PAGES})([^/@]+/[^/@]+)(?:(?:@|/(?:blob|raw|resolve)/)((?:refs/(?:convert|pr)/)?[^/@]+))?/(.+?)"
    r"(?:\?download=true)?"
)


@functools.cache
def matching(pattern: str) -> dict[str, str]:
    """The address of each file that hf://datasets/OWNER/NAME[@REVISION]/FILE means, where FILE may have * and ?, and
    its path in the hub's cache, downloaded unless it is there; at least one, sorted."""
    if not (parts := _ADDRESS.fullmatch(pattern)):
        raise ValueError(f"{pattern}: an address on the hub is {HUB}OWNER/NAME/FILE, or {HUB}OWNER/NAME@REVISION/FILE.")
    name, revision, file = parts.groups()
    revision = revision and revision.replace("~parquet", "refs/convert/parquet").replace("%2F", "/")
    with _requesting(pattern, "data set"):
        repo = _at_commit("dataset", name, revision)
        listed = _list_files(repo)
        alike = (path for path in listed if pathlib.PurePosixPath("/", path).match(f"/{file}"))
        if not (paths := [file] if file in listed else sorted(alike)):
            known = [path for path in listed if not path.startswith(".")]
            raise ValueError(f"{pattern}: no file matches; there are {abbreviated_list(known) or 'none'}")
        folder = _fetch(repo, listed, paths)
    return {pattern[: parts.start(3)] + path: os.path.join(folder, path) for path in paths}
