"""Pages in WARC records: HTTP responses to text, whatever the transfer, the compression and the encoding."""

from __future__ import annotations

import codecs
import io
import re
import zlib
from dataclasses import dataclass

from gristmill.core.errors import CorruptStreamError
from gristmill.steps.read.web_archives.warc_records import parse_headers
from gristmill.storage.codecs.compression import decompress

_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_HEAD_BYTES = 4096
# What pages mean when they say so: every browser reads these names as the larger sets.
_ALIASES = {"iso-8859-1": "cp1252", "latin-1": "cp1252", "latin1": "cp1252", "ascii": "cp1252", "us-ascii": "cp1252"}
_ALIASES |= {"gb2312": "gb18030", "gbk": "gb18030", "x-gbk": "gb18030", "shift_jis": "cp932", "x-sjis": "cp932"}
_ALIASES |= {"ks_c_5601-1987": "cp949", "euc-kr": "cp949", "iso-8859-9": "cp1254", "tis-620": "cp874"}
# Python's own: no browser knows them, and the time of the first two grows with the square of the page.
_NOT_FOR_PAGES = ("punycode", "idna", "unicode-escape", "raw-unicode-escape", "utf-7")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response: its status, its headers, and its body as it was sent."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        """The type of the body without its parameters, in lower case; empty if it is not given."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


def parse_response(content: bytes) -> HttpResponse | None:
    r"""Parse an HTTP response; None if it is none.

    >>> parse_response(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>hi")
    HttpResponse(status=200, headers={'content-type': 'text/html'}, body=b'<p>hi')
    """
    end = re.search(rb"\r?\n\r?\n", content)
    head, body = (content, b"") if end is None else (content[: end.start()], content[end.end() :])
    line, _, rest = head.partition(b"\n")
    match = re.match(rb"HTTP/\d(?:\.\d)? +(\d{3})", line)
    return None if match is None else HttpResponse(int(match[1]), parse_headers(rest), body)


def unpack_body(response: HttpResponse, max_bytes: int) -> bytes:
    """Return the body without chunks and compression; `ValueError` if it is damaged or too large.

    Crawlers that store unpacked bodies leave the headers as they were. So a body that does not look packed stays.
    """
    body = response.body
    if "chunked" in response.headers.get("transfer-encoding", "").lower():
        body = _join_chunks(body)
    for packing in reversed(
        response.headers.get("content-encoding", "").lower().split(",")
    ):  # the last was applied last
        body = _unpack(body, packing.strip(), max_bytes)
    return body


def _unpack(body: bytes, packing: str, max_bytes: int) -> bytes:
    if packing in ("gzip", "x-gzip") and body.startswith(b"\x1f\x8b"):
        return _inflate(body, zlib.MAX_WBITS | 16, max_bytes)
    if packing == "deflate" and body[:1] not in (b"<", b" ", b"\n", b"\r"):
        return _inflate(body, zlib.MAX_WBITS if body[:1] == b"\x78" else -zlib.MAX_WBITS, max_bytes)
    if packing in _UNPACKERS and not _looks_like_text(body):
        return _check_size(_UNPACKERS[packing](body, max_bytes), max_bytes)
    return body


def _looks_like_text(body: bytes) -> bool:
    return body.lstrip()[:1] in (b"<", b"") or body[:512].isascii()


def _inflate(body: bytes, bits: int, max_bytes: int) -> bytes:
    try:
        unpacked = zlib.decompressobj(bits).decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"the body cannot be unpacked: {error}") from error
    return _check_size(unpacked, max_bytes)


def _check_size(unpacked: bytes, max_bytes: int) -> bytes:
    if len(unpacked) > max_bytes:
        raise ValueError(f"the body has more than {max_bytes} bytes")
    return unpacked


def _unpack_zstd(body: bytes, max_bytes: int) -> bytes:
    pieces, num_bytes = list[bytes](), 0
    try:
        for piece in decompress(io.BytesIO(body), "zstd"):
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > max_bytes:
                break
    except CorruptStreamError as error:
        raise ValueError(f"the body cannot be unpacked: {error}") from error
    return b"".join(pieces)


def _unpack_brotli(body: bytes, max_bytes: int) -> bytes:
    try:
        import brotli  # noqa: PLC0415  (few archives need it)
    except ImportError:
        raise ValueError("the body is compressed with br: to read it, pip install 'gristmill[web]'") from None
    decompressor = brotli.Decompressor()
    try:
        unpacked: bytes = decompressor.process(body, output_buffer_limit=max_bytes + 1)
        while len(unpacked) <= max_bytes and not decompressor.is_finished():
            piece = decompressor.process(b"", output_buffer_limit=max_bytes + 1 - len(unpacked))
            if not piece:
                raise ValueError("the body cannot be unpacked: it ends too early")
            unpacked += piece
    except brotli.error as error:
        raise ValueError(f"the body cannot be unpacked: {error}") from error
    return unpacked


_UNPACKERS = {"br": _unpack_brotli, "zstd": _unpack_zstd}


def _join_chunks(body: bytes) -> bytes:
    """Join the chunks of a body; one that has none was joined by the crawler, and stays."""
    pieces, position = list[bytes](), 0
    while match := re.compile(rb"([0-9A-Fa-f]{1,8})[^\r\n]{0,100}\r\n").match(body, position):
        size = int(match[1], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(body[match.end() : match.end() + size])
        position = match.end() + size + 2
    return b"".join(pieces) if pieces and position >= len(body) else body


def decode_page(body: bytes, content_type: str) -> str:
    """Decode a page: by its byte order mark, the header, its own `meta`, UTF-8, and last as Western European.

    A name that Python does not know is skipped. Bytes that do not fit become U+FFFD.
    """
    for mark, encoding in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, "replace")
    names = [match[1] if (match := _CHARSET.search(content_type)) else ""]
    if match_meta := _META_CHARSET.search(body[:_HEAD_BYTES]):
        names.append(match_meta[1].decode())
    for name in filter(None, names):
        encoding = _ALIASES.get(name.lower(), name.lower())
        if encoding.replace("_", "-").startswith("utf-16") and _META_CHARSET.search(body[:_HEAD_BYTES]):
            encoding = "utf-8"  # the `meta` could be read, so it is not in UTF-16
        try:
            codec = codecs.lookup(encoding)
            if not codec._is_text_encoding or codec.name in _NOT_FOR_PAGES:  # the first: such as hex or zlib
                continue
            return body.decode(encoding, "replace")
        except (LookupError, ValueError):
            continue
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")
