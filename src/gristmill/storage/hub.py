"""Dataset repositories of the Hugging Face Hub, for writing: all files in one commit, or none.

The commit names the one that it follows, so that two writers cannot mix their files. Repositories that do not exist are
created, and are private: their owner decides who sees the data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from gristmill.core.errors import RemoteStoreError, UsageError
from gristmill.storage.stores.retries import ask_store
from gristmill.storage.urls import HUB

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

_TARGET = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+?)(?:@([\w./-]+?))?/?")
_CONFLICT = 412

T = TypeVar("T")


@dataclass(frozen=True)
class HubRepository:
    """A dataset repository at one of its branches."""

    id: str
    revision: str

    @property
    def url(self) -> str:
        """The address, for messages."""
        return f"{HUB}datasets/{self.id}@{self.revision}"

    def list_files(self) -> tuple[set[str], str]:
        """List the paths of its files, and name the last commit. A repository that is not there is created."""
        from huggingface_hub.errors import RepositoryNotFoundError  # noqa: PLC0415

        def find() -> Any:
            try:
                return self._api.dataset_info(self.id, revision=self.revision)
            except RepositoryNotFoundError:
                self._api.create_repo(self.id, repo_type="dataset", private=True, exist_ok=True)
                return self._api.dataset_info(self.id, revision=self.revision)

        info = self._ask(find)
        return {file.rfilename for file in info.siblings or []}, str(info.sha)

    def commit(self, files: Mapping[str, Path | bytes], removed: Collection[str], after: str, message: str) -> str:
        """Add and remove files in one commit that follows `after`; return the address of the commit."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete  # noqa: PLC0415
        from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

        additions = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=file) for path, file in files.items()]
        removals = [CommitOperationDelete(path_in_repo=path) for path in sorted(removed)]

        def create() -> Any:
            try:
                return self._api.create_commit(
                    self.id,
                    [*additions, *removals],
                    commit_message=message,
                    repo_type="dataset",
                    revision=self.revision,
                    parent_commit=after,
                )
            except HfHubHTTPError as error:
                if error.response.status_code == _CONFLICT:
                    raise RemoteStoreError(
                        f"{self.url} was changed by another writer during the export: nothing was added",
                        help="look at what has changed, then run the same command again",
                    ) from error
                raise

        return str(self._ask(create, tries=1).commit_url)

    def _ask(self, request: Callable[[], T], tries: int = 4) -> T:
        return ask_store(self.url, request, tries)

    @cached_property
    def _api(self) -> Any:
        from huggingface_hub import HfApi  # noqa: PLC0415  (a second to import; few use it)

        return HfApi(library_name="gristmill")


def parse_hub_target(url: str) -> HubRepository:
    """Parse `hf://datasets/OWNER/NAME` or `hf://datasets/OWNER/NAME@BRANCH`."""
    match = _TARGET.fullmatch(url)
    if match is None:
        raise UsageError(
            f"{url} is not a dataset repository of the Hub",
            help="write hf://datasets/OWNER/NAME, or hf://datasets/OWNER/NAME@BRANCH",
        )
    return HubRepository(match[1], match[2] or "main")
