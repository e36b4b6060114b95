"""Finds the files of patterns: local paths and URLs, wildcards, braces, folders, and lists of these.

The result is sorted by `relative`, contains no file twice, and never silently misses a file: a name without wildcards
must exist, each number of a range must match, and an unreadable folder is an error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from stat import S_ISDIR
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.storage import listing
from gristmill.storage.patterns import PathPattern, expand_braces, find_fixed_folder, has_range, is_wild
from gristmill.storage.urls import OBJECT_STORES, find_protocol, local_path, refuse_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.storage.listing import RemoteFile

_MAX_SHOWN = 5
"""The number of names that an error lists before it counts the rest."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that matches a pattern."""

    path: str
    """The absolute local path or URL to open it by."""
    relative: str
    """The path below the root of the patterns, with forward slashes."""
    num_bytes: int
    version: str
    """Modification time in nanoseconds, or the store's etag."""


@dataclass(frozen=True, slots=True)
class FileListing:
    """The files that match patterns, and the links that were not followed."""

    files: list[ListedFile]
    links_outside: list[str]
    """Symbolic links to folders outside of the listed folder, which are not followed."""
    duplicate_links: list[str]
    """Symbolic links to files that are read under another name; they are skipped."""
    link_targets: list[str]
    """The targets of the links that were followed."""


def find_files(patterns: str | Sequence[str], *, base: str | None = None) -> list[ListedFile]:
    """Return the files that match patterns, sorted by relative path.

    Args:
        patterns: Paths, folders, patterns with `*`, `**`, `?`, `[..]`, `{a,b}`, `{0000..0099}`, URLs; one or several.
        base: The folder that relative local patterns start at; the current one if None.
    """
    return list_files(patterns, base=base).files


def list_files(patterns: str | Sequence[str], *, base: str | None = None) -> FileListing:
    """Like `find_files`, with the links that were and were not followed."""
    pattern_list = [patterns] if isinstance(patterns, str) else list(patterns)
    if not pattern_list or not all(pattern_list):
        raise UsageError("there is no path to read from", help="pass a file, a folder or a pattern")
    for pattern in pattern_list:
        if find_protocol(pattern) in OBJECT_STORES:  # the secret would be sent as a part of the bucket's name
            refuse_secrets(pattern)
    real_folders: dict[str, str] = {}
    searches = [_Search(pattern, base, real_folders) for pattern in pattern_list]
    root = _find_common_root([search.root for search in searches], pattern_list)
    by_identity: dict[str, tuple[str, int, str]] = {}
    for search in searches:
        for path, identity, num_bytes, version in search.files():
            if identity not in by_identity:
                by_identity[identity] = (path, num_bytes, version)
    links = [link for search in searches for link in search.links]
    files = [
        ListedFile(path, path[len(root) :], num_bytes, version) for path, num_bytes, version in by_identity.values()
    ]
    files.sort(key=lambda file: file.relative)
    _check_names(files)
    return FileListing(
        files,
        sorted({link for search in searches for link in search.links_outside}),
        sorted({link for link, real in links if by_identity[real][0] != link}),
        sorted({real for _, real in links}),
    )


class _Search:
    """The search for the files of one pattern."""

    def __init__(self, pattern: str, base: str | None, real_folders: dict[str, str]) -> None:
        """Create a search. Several searches share the cache `real_folders` of resolved folders."""
        self.pattern = pattern
        self.protocol = find_protocol(pattern)
        self.links_outside: list[str] = []
        self.links: list[tuple[str, str]] = []
        """Links to files, and their targets."""
        self._folders: list[str] = []
        self._real_folders = real_folders
        self._remote_folders: dict[str, dict[str, RemoteFile | None]] = {}
        self._is_named = False
        if self.protocol is None:
            self._set_local_root(pattern, base)
        else:
            self._set_remote_root(pattern)

    def files(self) -> Iterator[tuple[str, str, int, str]]:
        """Yield path, identity, size and version of each file."""
        missing: list[str] = []
        num_files = 0
        # `*.{txt,md}` may match no .md file; but each name of a range, and each name without wildcards, must exist.
        needs_all = has_range(self.pattern)
        for pattern in [self.rest] if self._is_named else expand_braces(self.rest):
            num_before = num_files
            for file in self._find_local_matches(pattern) if self.protocol is None else self._find_remote(pattern):
                num_files += 1
                yield file
            if num_files == num_before and (needs_all or not is_wild(pattern)):
                missing.append(pattern)
        if missing and (num_files or len(missing) > 1):
            raise self._make_missing_error(missing)
        if not num_files:
            raise self._make_no_match_error()

    def _set_local_root(self, pattern: str, base: str | None) -> None:
        path = os.path.join(base or "", os.path.expanduser(local_path(pattern)))  # noqa: PTH118, PTH111
        status = listing.stat_path(path)
        self._is_named = status is not None
        if status is not None:  # it exists, so it is no pattern: a file may be called `[1].txt`
            is_folder = S_ISDIR(status.st_mode)
            folder = path if is_folder else path[: path.rfind("/") + 1]
            self.rest = "" if is_folder else path[len(folder) :]
        else:
            folder = find_fixed_folder(path)
            self.rest = path[len(folder) :]
        # `link/..` is not the folder that contains the link: only the system can resolve it.
        make_absolute = os.path.realpath if ".." in folder.split("/") else os.path.abspath
        self.root = make_absolute(folder or ".").rstrip("/") + "/"

    def _set_remote_root(self, pattern: str) -> None:
        if pattern.startswith("http") and "*" in pattern:
            raise UsageError(f"{pattern}: a web server cannot be listed", help="use braces, as in {0000..0099}")
        url = listing.name_root(pattern)
        protocol, _, name = url.partition("://")
        if protocol in OBJECT_STORES and "//" in name:
            raise UsageError(f"{pattern}: an empty name between slashes cannot be read", help="write one slash")
        is_pattern = _is_wild_url(url) or "{" in url
        file, is_folder = None, False
        if not is_pattern or "[" in url:  # a file may be called `[1].txt`
            file, is_folder = listing.find_remote(url)
            self._is_named = not is_pattern or is_folder or file is not None
        if self._is_named:
            self.root = url.rstrip("/") + "/" if is_folder else url[: url.rfind("/") + 1]
        else:
            self.root = find_fixed_folder(url)
        self.rest = url[len(self.root) :]

    def _find_local_matches(self, pattern: str) -> Iterator[tuple[str, str, int, str]]:
        path = self.root + pattern
        if not self._is_named and is_wild(pattern):
            yield from self._list_folder(self.root, PathPattern.below(pattern))
        elif (stat := listing.stat_path(path)) is not None:
            if S_ISDIR(stat.st_mode):
                yield from self._list_folder(path, PathPattern.everything())
            else:
                yield path, self._resolve_path(path), stat.st_size, listing.version_of(stat)

    def _list_folder(self, folder: str, pattern: PathPattern) -> Iterator[tuple[str, str, int, str]]:
        if listing.stat_path(folder) is None:
            return
        listed = listing.list_local(folder, pattern)
        self.links_outside += listed.links_outside
        self.links += [(path, real) for path, real, _, _ in listed.links]
        self._folders += listed.folders
        yield from listed.files

    def _resolve_path(self, path: str) -> str:
        """Like `realpath`, but resolves each folder once: a range names thousands of files in one folder."""
        folder, _, name = path.rpartition("/")
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(folder or "/").rstrip("/")
        return os.path.realpath(path) if os.path.islink(path) else f"{self._real_folders[folder]}/{name}"  # noqa: PTH114

    def _find_remote(self, pattern: str) -> Iterator[tuple[str, str, int, str]]:
        url = self.root + pattern
        files: Iterable[RemoteFile] = ()
        if not self._is_named and _is_wild_url(pattern):
            files = listing.list_remote(self.root, PathPattern.below(pattern))
        else:
            file, is_folder = self._look_up(url)
            if is_folder:
                files = listing.list_remote(url, PathPattern.everything())
            elif file is not None:
                files = [file]
        for name, num_bytes, version in files:
            yield name, name, num_bytes, version

    def _look_up(self, url: str) -> tuple[RemoteFile | None, bool]:
        if self._is_named or url.startswith("http"):
            return listing.find_remote(url)
        folder = url[: url.rfind("/") + 1]  # braces name many files: one listing instead of a thousand requests
        if folder not in self._remote_folders:
            self._remote_folders[folder] = listing.list_names(folder)
        names = self._remote_folders[folder]
        return names.get(url), url in names and names[url] is None

    def _make_missing_error(self, missing: list[str]) -> UsageError:
        shown = ", ".join(missing[:_MAX_SHOWN]) + (
            f" and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
        )
        return UsageError(
            f"{self.pattern} names files that do not exist: {shown}",
            help=f"compare the braces with the files in {self.root}",
            missing=missing,
        )

    def _make_no_match_error(self) -> UsageError:
        hint = "check the path and the pattern"
        if self.links_outside:
            hint = (
                f"{len(self.links_outside)} symbolic links lead to folders outside {self.root} and are not followed, "
                f"the first is {self.links_outside[0]}: add the folder it leads to"
            )
        elif self.protocol == "hf":
            hint = "check the name and the pattern; a private or gated dataset needs `hf auth login` or HF_TOKEN"
        elif self._folders:
            hint = f"folders match, the first is {self._folders[0]}: add /** for the files in them"
        return UsageError(
            f"no file matches {self.pattern}: looked for {self.rest or 'files'} in {self.root}", help=hint
        )


def _is_wild_url(url: str) -> bool:
    return is_wild(url) and not url.startswith("http")


def _find_common_root(roots: list[str], patterns: list[str]) -> str:
    """Return the deepest folder that contains all roots, with a slash at the end."""
    if len({find_protocol(root) for root in roots}) > 1:
        raise UsageError(
            f"one source cannot be read from different stores: {', '.join(patterns)}",
            help="use one source for each store",
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
