"""A bucket with a million objects is listed in the memory of one page."""

import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
PAGE = 1000
SCRIPT = """
import resource, sys
from gristmill.storage.folders import open_folder
from gristmill.storage.locations import StorePath

number = size = 0
for number, (path, num_bytes) in enumerate(open_folder(StorePath(sys.argv[1])).list_below(), 1):
    size += num_bytes
print(number, size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def make_page(prefix, first, count, last):
    entries = "".join(
        f"<Contents><Key>{prefix}/part-{n:08d}.jsonl</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f'<ETag>"{n:032x}"</ETag><Size>{n % 7 + 1}</Size><StorageClass>STANDARD</StorageClass></Contents>'
        for n in range(first, first + count)
    )
    more = f"<NextContinuationToken>{first + count}</NextContinuationToken>" if first + count < last else ""
    is_truncated = "true" if more else "false"
    return (
        f"<ListBucketResult><Name>bucket</Name><Prefix>{prefix}</Prefix><KeyCount>{count}</KeyCount>"
        f"<MaxKeys>{PAGE}</MaxKeys><IsTruncated>{is_truncated}</IsTruncated>{more}{entries}</ListBucketResult>"
    ).encode()


@pytest.fixture
def endpoint():
    """A server that answers only listings: of the folder `N`, which has N objects."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            last = int(re.search(r"prefix=(\d+)", self.path)[1])
            token = re.search(r"continuation-token=(\d+)", self.path)
            first = int(token[1]) if token else 0
            body = make_page(str(last), first, min(PAGE, last - first), last)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def list_objects(endpoint, count):
    """The number and the size of all objects, and the most memory that it took, in KiB."""
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": endpoint}
    command = [sys.executable, "-c", SCRIPT, f"s3://bucket/{count}"]
    run = subprocess.run(command, env={**os.environ, **keys}, check=True, capture_output=True, text=True)
    return [int(word) for word in run.stdout.split()]


def test_memory_does_not_grow_with_the_number_of_objects(endpoint):
    pytest.importorskip("obstore")
    few, few_bytes, few_memory = list_objects(endpoint, 10_000)
    many, many_bytes, many_memory = list_objects(endpoint, 1_000_000)
    print(f"10,000 objects: {few_memory >> 10} MiB; 1,000,000: {many_memory >> 10} MiB")
    assert (few, many) == (10_000, 1_000_000)
    assert (few_bytes, many_bytes) == (sum(n % 7 + 1 for n in range(10_000)), sum(n % 7 + 1 for n in range(1_000_000)))
    assert many_memory < few_memory + (16 << 10)
