"""Finding a tokenizer's files, in a folder, as a file, or by a name on the Hugging Face Hub; and their identity.

A tokenizer is its `tokenizer.json`. `tokenizer_config.json` next to it says which tokens begin, end and pad a document.

Facts about a vocabulary, read from a tokenizer's files without an engine.

About 50 ms for 150,000 tokens, once.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from gristmill.core.errors import GristmillError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    """The path of `tokenizer.json`, which may have another name; the other files are next to it."""
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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


_MAX_GROWTH = 256
"""How many characters the rules of a tokenizer may make of one. Real ones make up to 33 (U+FDFA is 18 letters)."""
_MAX_PREPENDED = 1 << 16
_USUAL_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>")


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The vocabulary in numbers, and the tokens that have a role."""

    vocab_size: int
    """The largest id + 1, added tokens included."""
    added_tokens: dict[str, int]
    """Tokens that are searched before the text is cut into words."""
    special_tokens: dict[str, int]
    """The control tokens: those that `tokenizer.json` marks as special."""
    eos_id: int | None = None
    bos_id: int | None = None
    pad_id: int | None = None
    eos_token: str | None = None
    eos_by_name: bool = False
    """Whether `tokenizer_config.json` names no end token, and this is the only one with a usual name."""


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[Any]
    dropout: float | None = None


class _Tokenizer(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] | None = None
    normalizer: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None


def read_facts(files: TokenizerFiles) -> TokenizerFacts:
    """Read the facts from `tokenizer.json`."""
    try:
        tokenizer = msgspec.json.decode(files.read(), type=_Tokenizer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise make_not_a_tokenizer_error(files, error) from error
    if tokenizer.model.dropout:
        raise UsageError(
            f"{files.path} has a dropout of {tokenizer.model.dropout}: the same text would get other ids each time",
            help='write "dropout": null in its model; it is meant for the training of translators',
        )
    for rules in (tokenizer.normalizer, tokenizer.decoder):
        growth, num_prepended = measure_growth(rules)
        if growth > _MAX_GROWTH or num_prepended > _MAX_PREPENDED:
            raise UsageError(
                f"{files.path} is hostile or damaged: its rules make {max(growth, num_prepended):,.3g} letters of one",
                help="look at the Replace and Prepend rules of its normalizer and decoder, or name another tokenizer",
            )
    added = {token.content: token.id for token in tokenizer.added_tokens or ()}
    special = {token.content: token.id for token in tokenizer.added_tokens or () if token.special}
    vocab = tokenizer.model.vocab
    if isinstance(vocab, list):  # Unigram: pairs of piece and score, in the order of their ids
        largest = len(vocab) - 1
        vocab = {entry[0]: index for index, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    else:
        largest = max(vocab.values(), default=-1)
    ids = {role: _find_id(files, role, token, added, vocab) for role, token in files.roles.items()}
    eos_token, by_name = files.roles.get("eos_token"), False
    usual = [name for name in _USUAL_ENDS if name in special]
    if eos_token is None and len(usual) == 1:
        [eos_token], by_name = usual, True
        ids["eos_token"] = special[eos_token]
    return TokenizerFacts(
        vocab_size=max([largest, *added.values()]) + 1,
        added_tokens=added,
        special_tokens=special,
        eos_id=ids.get("eos_token"),
        bos_id=ids.get("bos_token"),
        pad_id=ids.get("pad_token"),
        eos_token=eos_token,
        eos_by_name=by_name,
    )


def measure_growth(rules: dict[str, Any] | None) -> tuple[float, float]:
    """Find how many characters a normalizer makes of one character at most, and how many it puts before a text.

    Nine rules that each write a hundred of the next rule's letter make 10^18 of one, which ends the process that
    encodes it, and no limit of time or memory would say why. From the last rule to the first, this follows what becomes
    of each character; a regular expression may match any.

    >>> replace = lambda old, new: {"type": "Replace", "pattern": {"String": old}, "content": new}
    >>> measure_growth({"type": "Sequence", "normalizers": [replace("a", "bbb"), replace("b", "cc")]})
    (6.0, 0.0)
    """
    sizes: dict[str, float] = {}
    largest, num_prepended = 1.0, 0.0

    def measure(text: str) -> float:
        return sum(sizes.get(char, least) for char in text)

    least = 1.0
    for rule in reversed([*_list_rules(rules)]):
        match rule:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
                share = measure(new) / len(old)
                sizes |= {char: max(sizes.get(char, least), share) for char in old}
            case {"type": "Replace", "content": str(new)}:
                least = max(least, measure(new))
                sizes = {char: max(size, least) for char, size in sizes.items()}
            case {"type": "Precompiled", "precompiled_charsmap": str(encoded)}:
                least = max(least, _find_longest_replacement(encoded) * largest)
                sizes = {}
            case {"type": "Prepend", "prepend": str(new)}:
                num_prepended += measure(new)
        largest = max(least, *sizes.values(), 1.0)
        if largest > _MAX_GROWTH:  # no need for numbers that no float holds
            break
    return largest, num_prepended


def _list_rules(rules: Any) -> Iterator[dict[str, Any]]:
    if isinstance(rules, dict):
        yield rules
        for name in ("normalizers", "decoders"):
            for rule in rules.get(name) or ():
                yield from _list_rules(rule)


def _find_longest_replacement(encoded: str) -> int:
    """Find the longest text in SentencePiece's table of replacements: a trie, then texts that end in 0."""
    try:
        table = base64.b64decode(encoded)
    except binascii.Error:  # whoever loads the tokenizer says so
        return 1
    texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
    return max(len(text.decode(errors="replace")) for text in texts)


def make_not_a_tokenizer_error(files: TokenizerFiles, error: Exception) -> UsageError:
    """Make the error for a file that is damaged, or no tokenizer."""
    return UsageError(
        f"{files.path} cannot be read as a tokenizer: {error}",
        help="it may be cut short or be another kind of file: download it again, or name another",
    )


def _find_id(files: TokenizerFiles, role: str, token: str, added: dict[str, int], vocab: dict[str, int]) -> int:
    token_id = added.get(token, vocab.get(token))
    if token_id is None:
        raise UsageError(
            f"{files.location(CONFIG)} names {token!r} as {role}, but {files.path} has no such token",
            help="name a token of the vocabulary, or remove the line",
        )
    return token_id
