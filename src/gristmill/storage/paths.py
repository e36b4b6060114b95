"""From patterns to files: local paths and URLs, wildcards, braces, folders, lists of these.

The result is sorted by `relative`, holds no file twice, and is never silently less than what was asked for: a name
written out in full must exist, each number of a range must match, an unreadable folder is an error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from stat import S_ISDIR
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.storage import local_files, remote_files
from gristmill.storage.patterns import PathPattern, expand_braces, find_fixed_folder, has_range, is_wild

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX_SHOWN = 5
"""How many names an error lists before it counts the rest."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One input file."""

    path: str
    """Where to open it: an absolute local path or a URL."""
    relative: str
    """Its path below the root of the patterns, with forward slashes."""
    num_bytes: int
    version: str
    """Modification time in nanoseconds, or the store's etag."""


@dataclass(frozen=True, slots=True)
class FileListing:
    """The files that patterns stand for, and what matched but was not followed."""

    files: list[ListedFile]
    links_outside: list[str]
    """Symbolic links to folders that lead out of the folder they were found in: not followed."""
    duplicate_links: list[str]
    """Symbolic links to files that are read under another name: left out."""
    link_targets: list[str]
    """What the links lead to that were followed."""


def find_files(patterns: str | Sequence[str], *, base: str | None = None) -> list[ListedFile]:
    """The files that patterns stand for, sorted by relative path.

    Args:
        patterns: Paths, folders, patterns with `*`, `**`, `?`, `[..]`, `{a,b}`, `{0000..0099}`, URLs; one or several.
        base: The folder that relative local patterns start from; the current one if None.
    """
    return list_files(patterns, base=base).files


def list_files(patterns: str | Sequence[str], *, base: str | None = None) -> FileListing:
    """The same, with the links that were not followed."""
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    if not given or not all(given):
        raise UsageError("there is no path to read from", help="name a file, a folder or a pattern")
    real_folders: dict[str, str] = {}
    searches = [_Search(pattern, base, real_folders) for pattern in given]
    root = _find_common_root([search.root for search in searches], given)
    found: dict[str, tuple[str, int, str]] = {}
    for search in searches:
        for path, identity, num_bytes, version in search.files():
            if identity not in found:
                found[identity] = (path, num_bytes, version)
    links = [link for search in searches for link in search.links]
    files = [ListedFile(path, path[len(root) :], num_bytes, version) for path, num_bytes, version in found.values()]
    files.sort(key=lambda file: file.relative)
    _check_names(files)
    return FileListing(
        files,
        sorted({link for search in searches for link in search.links_outside}),
        sorted({link for link, real in links if found[real][0] != link}),
        sorted({real for _, real in links}),
    )


class _Search:
    """One pattern and where it starts."""

    def __init__(self, pattern: str, base: str | None, real_folders: dict[str, str]) -> None:
        """Several searches share what they have found out about folders in `real_folders`."""
        self.given = pattern
        self.protocol = remote_files.protocol_of(pattern)
        self.links_outside: list[str] = []
        self.links: list[tuple[str, str]] = []
        """Links to files that were met, and what they lead to."""
        self._folders: list[str] = []
        self._real_folders = real_folders
        self._remote_folders: dict[str, dict[str, remote_files.RemoteFile | None]] = {}
        self._is_named = False
        if self.protocol is None:
            self._set_local_root(pattern, base)
        else:
            self._set_remote_root(pattern)

    def files(self) -> Iterator[tuple[str, str, int, str]]:
        """Path, identity, size, version of each file."""
        missing: list[str] = []
        num_found = 0
        # `*.{txt,md}` may find no .md file; a range or a name without wildcards says that something is there.
        all_needed = has_range(self.given)
        for pattern in self._patterns():
            before = num_found
            for file in self._matches(pattern):
                num_found += 1
                yield file
            if num_found == before and (all_needed or not is_wild(pattern)):
                missing.append(pattern)
        if missing and (num_found or len(missing) > 1):
            raise self._make_missing_error(missing)
        if not num_found:
            raise self._make_no_match_error()

    def _set_local_root(self, pattern: str, base: str | None) -> None:
        path = os.path.join(base or "", os.path.expanduser(remote_files.local_path(pattern)))  # noqa: PTH118, PTH111
        named = local_files.stat_path(path)
        self._is_named = named is not None
        if named is not None:  # a file may be called `[1].txt`
            is_folder = S_ISDIR(named.st_mode)
            folder = path if is_folder else path[: path.rfind("/") + 1]
            self.rest = "" if is_folder else path[len(folder) :]
        else:
            folder = find_fixed_folder(path)
            self.rest = path[len(folder) :]
        # `link/..` is not the folder that holds the link: only the system can tell.
        real = os.path.realpath if ".." in folder.split("/") else os.path.abspath
        self.root = real(folder or ".").rstrip("/") + "/"

    def _set_remote_root(self, pattern: str) -> None:
        if pattern.startswith("http") and "*" in pattern:
            raise UsageError(f"{pattern}: a web server cannot be searched", help="use braces, as {0000..0099}")
        fs, path = remote_files.open_file_system(pattern)
        url = fs.unstrip_protocol(path)
        if not _is_wild_url(url) and "{" not in url:
            self._is_named = True
            _, is_folder = remote_files.find_remote(url)
            self.root = url.rstrip("/") + "/" if is_folder else url[: url.rfind("/") + 1]
        else:
            self.root = find_fixed_folder(url)
        self.rest = url[len(self.root) :]

    def _patterns(self) -> list[str]:
        return [self.rest] if self._is_named else expand_braces(self.rest)

    def _matches(self, pattern: str) -> Iterator[tuple[str, str, int, str]]:
        if self.protocol is None:
            return self._local_matches(pattern)
        return ((url, url, num_bytes, version) for url, num_bytes, version in self._remote_matches(pattern))

    def _local_matches(self, pattern: str) -> Iterator[tuple[str, str, int, str]]:
        path = self.root + pattern
        if not self._is_named and is_wild(pattern):
            yield from self._list_folder(self.root, PathPattern.below(pattern))
        elif (stat := local_files.stat_path(path)) is not None:
            if S_ISDIR(stat.st_mode):
                yield from self._list_folder(path, PathPattern.everything())
            else:
                yield path, self._real_path(path), stat.st_size, local_files.version_of(stat)

    def _list_folder(self, folder: str, pattern: PathPattern) -> Iterator[tuple[str, str, int, str]]:
        if local_files.stat_path(folder) is None:
            return
        listing = local_files.list_local(folder, pattern)
        self.links_outside += listing.links_outside
        self.links += [(path, real) for path, real, _, _ in listing.links]
        self._folders += listing.folders
        yield from listing.files

    def _real_path(self, path: str) -> str:
        """`realpath`, with the folders looked up once: a range names thousands of files in one folder."""
        folder, _, name = path.rpartition("/")
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(folder or "/").rstrip("/")
        return os.path.realpath(path) if os.path.islink(path) else f"{self._real_folders[folder]}/{name}"  # noqa: PTH114

    def _remote_matches(self, pattern: str) -> Iterator[remote_files.RemoteFile]:
        url = self.root + pattern
        if not self._is_named and _is_wild_url(pattern):
            yield from remote_files.list_remote(self.root, PathPattern.below(pattern))
            return
        file, is_folder = self._find_remote(url)
        if is_folder:
            yield from remote_files.list_remote(url, PathPattern.everything())
        elif file is not None:
            yield file

    def _find_remote(self, url: str) -> tuple[remote_files.RemoteFile | None, bool]:
        if self._is_named or url.startswith("http"):
            return remote_files.find_remote(url)
        folder = url[: url.rfind("/") + 1]  # braces: one listing instead of a request for each of a thousand names
        if folder not in self._remote_folders:
            self._remote_folders[folder] = remote_files.list_names(folder)
        names = self._remote_folders[folder]
        return names.get(url), url in names and names[url] is None

    def _make_missing_error(self, missing: list[str]) -> UsageError:
        shown = ", ".join(missing[:_MAX_SHOWN]) + (
            f" and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
        )
        return UsageError(
            f"{self.given} stands for names that do not exist: {shown}",
            help=f"check the braces against what is in {self.root}",
            missing=missing,
        )

    def _make_no_match_error(self) -> UsageError:
        hint = "check the path and the pattern"
        if self.links_outside:
            hint = (
                f"{len(self.links_outside)} symbolic links lead to folders outside {self.root} and are not followed, "
                f"the first is {self.links_outside[0]}: name the folder it leads to"
            )
        elif self.protocol == "hf":
            hint = "check the name and the pattern; a private or gated dataset needs `hf auth login` or HF_TOKEN"
        elif self._folders:
            hint = f"folders match, the first is {self._folders[0]}: add /** for the files in them"
        return UsageError(f"no file matches {self.given}: looked for {self.rest or 'files'} in {self.root}", help=hint)


def _is_wild_url(url: str) -> bool:
    return is_wild(url) and not url.startswith("http")


def _find_common_root(roots: list[str], given: list[str]) -> str:
    """The deepest folder that holds all roots, with its last slash."""
    if len({remote_files.protocol_of(root) for root in roots}) > 1:
        raise UsageError(
            f"one source cannot be read from different stores: {', '.join(given)}", help="make a source for each store"
        )
    shared = roots[0]
    while not all(root.startswith(shared) for root in roots):
        shared = shared[: shared.rfind("/", 0, -1) + 1]
    return shared


def _check_names(files: list[ListedFile]) -> None:
    for file in files:
        if not file.relative.isascii():
            try:
                file.relative.encode()
            except UnicodeEncodeError as error:
                raise UsageError(
                    f"the name of {os.fsencode(file.path)!r} is not UTF-8",
                    help="rename it: names are part of a record's identity",
                ) from error
