"""Finding a tokenizer's files, in a folder, as a file, or by a name on the Hugging Face Hub; and their identity.

A tokenizer is its `tokenizer.json`. `tokenizer_config.json` beside it says which tokens begin, end and pad a document.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from gristmill.core.errors import GristmillError, UsageError

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
_CARRIED = (TOKENIZER, CONFIG, SPECIAL_TOKENS, ADDED_TOKENS, "chat_template.jinja", "chat_template.json")
"""The files of a tokenizer that are copied into a dataset."""
_ROLES = ("bos_token", "eos_token", "pad_token")
_OTHER_KINDS = ("vocab.json", "vocab.txt", "tokenizer.model", "tiktoken.model", "spiece.model")
_HUB_SECONDS = 10
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class TokenizerFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a tokenizer, with their checksums."""

    path: str
    """The path of `tokenizer.json`, whatever its name is; the other files are beside it."""
    files: dict[str, str]
    """The xxh3 of each file, by its usual name."""
    roles: dict[str, str]
    """`bos_token`, `eos_token` and `pad_token`, as far as `tokenizer_config.json` names them."""
    content: str
    """A hash over all that ids depend on: `tokenizer.json` and the roles."""

    def location(self, name: str) -> Path:
        """Return the path of one of its `files`."""
        return Path(self.path) if name == TOKENIZER else Path(self.path).parent / name

    def read(self) -> bytes:
        """Read `tokenizer.json`, and check that it has not changed since it was found."""
        data = Path(self.path).read_bytes()
        if xxhash.xxh3_64_hexdigest(data) != self.files[TOKENIZER]:
            raise GristmillError(
                f"{self.path} has changed since the run was planned",
                help="run the same command again: it plans again, and reuses what has not changed",
            )
        return data


def find_tokenizer(name: str, folder: str = ".") -> TokenizerFiles:
    """Find a tokenizer by its path (relative ones start at `folder`), else by its name on the Hub.

    The Hub is asked only for what the local Hugging Face cache does not hold.
    """
    path = Path(folder, Path(name).expanduser())
    if path.is_dir():
        file = path / TOKENIZER
        if not file.is_file():
            raise _make_missing_tokenizer_error(path)
    elif path.is_file():
        file = path
    elif _HUB_NAME.fullmatch(name) and not name.endswith(".json"):
        file = _download_from_hub(name, path)
    else:
        raise UsageError(
            f"there is no tokenizer {name}: looked for {path}", help=f"name a folder that holds {TOKENIZER}"
        )
    return _describe_files(file.absolute())


def _describe_files(path: Path) -> TokenizerFiles:
    files = {}
    for name in _CARRIED:
        file = path if name == TOKENIZER else path.parent / name
        if file.is_file():
            files[name] = xxhash.xxh3_64_hexdigest(file.read_bytes())
    roles = _read_roles(path.parent / CONFIG) if CONFIG in files else {}
    content = xxhash.xxh3_64_hexdigest(msgspec.json.encode([files[TOKENIZER], roles], order="sorted"))
    return TokenizerFiles(path=str(path), files=files, roles=roles, content=content)


def _read_roles(config: Path) -> dict[str, str]:
    try:
        values = msgspec.json.decode(config.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{config} is not a JSON object: {error}", help="fix it, or download it again") from error
    roles = {}
    for role in _ROLES:
        value = values.get(role)
        if isinstance(value, dict):  # written by older versions of transformers
            value = value.get("content")
        if isinstance(value, str):
            roles[role] = value
    return roles


def _make_missing_tokenizer_error(folder: Path) -> UsageError:
    other = next((name for name in _OTHER_KINDS if (folder / name).exists()), None)
    if other is None:
        return UsageError(f"{folder} holds no {TOKENIZER}", help="name the folder that does")
    return UsageError(
        f"{folder} holds {other} but no {TOKENIZER}",
        help=f'let transformers make one: AutoTokenizer.from_pretrained("{folder}").save_pretrained("{folder}")',
    )


def _download_from_hub(name: str, path: Path) -> Path:
    # Slow to import, and needed for names only.
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url  # noqa: PLC0415
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        try:
            return Path(hf_hub_download(name, TOKENIZER, local_files_only=True))
        except LocalEntryNotFoundError:
            # A download retries for half a minute before it fails; this request fails immediately.
            get_hf_file_metadata(hf_hub_url(name, TOKENIZER), timeout=_HUB_SECONDS)
        for other in _CARRIED[1:]:
            try:
                hf_hub_download(name, other)
            except EntryNotFoundError:
                continue
        return Path(hf_hub_download(name, TOKENIZER))
    except Exception as error:  # wrong name, network, server, disk: a dozen types from three libraries
        raise UsageError(
            f"there is no tokenizer {name}: {path} does not exist, the local Hugging Face cache does not hold it, "
            f"and it cannot be downloaded from the Hub ({_take_first_line(error)})",
            help=f"download it elsewhere and name its folder: tokenizer: path/to/folder (it must hold {TOKENIZER})",
        ) from error


def _take_first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]:.200}" if lines else type(error).__name__
