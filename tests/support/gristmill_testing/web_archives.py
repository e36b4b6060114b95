"""WARC files for tests, record by record."""

import gzip


def warc_record(
    kind, content, *, url="https://example.com/", content_type="application/http; msgtype=response", **headers
):
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        f"WARC-Target-URI: {url}",
        "WARC-Date: 2026-01-31T12:00:00Z",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(content)}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content + b"\r\n\r\n"


def http_page(body, content_type="text/html; charset=utf-8", status="200 OK", **headers):
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def crawl(count, *, words=200):
    """The records of a small crawl: for each page a request, the response and its metadata."""
    records = [warc_record("warcinfo", b"software: test\r\n", content_type="application/warc-fields")]
    for number in range(count):
        url = f"https://site{number % 7}.example.com/page/{number}"
        text = f"Page {number} says {'word ' * words}&amp; more."
        body = f"<html><body><nav>Menu</nav><main><p>{text}</p></main></body></html>"
        records.append(warc_record("request", b"GET / HTTP/1.1\r\n\r\n", url=url))
        records.append(warc_record("response", http_page(body.encode()), url=url))
        records.append(warc_record("metadata", b"fetchTimeMs: 5\r\n", url=url, content_type="application/warc-fields"))
    return records


def pack_members(records):
    return b"".join(gzip.compress(record, mtime=0) for record in records)
