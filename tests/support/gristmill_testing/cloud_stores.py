"""Google's and Azure's stores for tests: a small server that follows Google's XML interface, and Azurite."""

import base64
import hashlib
import hmac
import shutil
import threading
import types
import urllib.error
import urllib.parse
import urllib.request
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

from gristmill_testing.server_processes import ServerProcess, find_free_ports

AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and key that every Azurite has."""
_PAGE = 3


class GoogleServer:
    """Objects in memory, behind the part of the XML interface of Google Cloud Storage that clients use.

    https://cloud.google.com/storage/docs/xml-api/reference-methods. Unlike S3 it replaces an object only by the number
    of its generation (`x-goog-if-generation-match`, 0 for none), not by its etag.
    """

    def __init__(self):
        self.objects = {}
        self.uploads = {}
        self.tokens = set()
        self.lock = threading.Lock()
        self._generation = 0
        handler = type("Handler", (_GoogleHandler,), {"google": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def store(self, path, data):
        self._generation += 1
        self.objects[path] = (data, f'"{hashlib.md5(data).hexdigest()}"', str(self._generation))


class _GoogleHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if "Content-Length" not in dict(headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_request(self):
        url = urllib.parse.urlsplit(self.path)
        self.query = {key: values[0] for key, values in urllib.parse.parse_qs(url.query, True).items()}
        self.key = urllib.parse.unquote(url.path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.google.lock:
            self.google.tokens.add(self.headers.get("Authorization"))
            getattr(self, f"answer_{self.command.lower()}")()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

    def answer_get(self):
        if "list-type" in self.query:
            return self.answer_list()
        if self.key not in self.google.objects:
            return self.answer(404)
        data, etag, generation = self.google.objects[self.key]
        if self.headers.get("If-Match", etag) != etag:
            return self.answer(412)
        headers = {"ETag": etag, "x-goog-generation": generation, "Last-Modified": formatdate(0, usegmt=True)}
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or len(data)) + 1, len(data))
            if start >= len(data):
                return self.answer(416)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            return self.answer(206, data[start:stop], headers)
        return self.answer(200, data, headers | {"Content-Length": str(len(data))})

    answer_head = answer_get

    def answer_list(self):
        prefix, after = self.query.get("prefix", ""), self.query.get("start-after", "")
        after = max(after, self.query.get("continuation-token", ""))
        start = len(self.key.rstrip("/")) + 1
        keys = sorted(path[start:] for path in self.google.objects if path.startswith(f"{self.key.rstrip('/')}/"))
        keys = [key for key in keys if key.startswith(prefix) and key > after]
        parts = [
            f"<NextContinuationToken>{escape(key)}</NextContinuationToken>" for key in keys[:-1][_PAGE - 1 : _PAGE]
        ]
        for key in keys[:_PAGE]:
            data, etag, _ = self.google.objects[f"{self.key.rstrip('/')}/{key}"]
            parts.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>{escape(etag)}</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        self.answer(200, f"<ListBucketResult>{''.join(parts)}</ListBucketResult>".encode())

    def answer_put(self):
        if "partNumber" in self.query:
            self.google.uploads[self.query["uploadId"]][int(self.query["partNumber"])] = self.body
            return self.answer(200, headers={"ETag": f'"{hashlib.md5(self.body).hexdigest()}"'})
        _, _, generation = self.google.objects.get(self.key, (b"", "", "0"))
        if self.headers.get("x-goog-if-generation-match", generation) != generation:
            return self.answer(412)
        source = self.headers.get("x-goog-copy-source")
        data = self.body if source is None else self.google.objects["/" + urllib.parse.unquote(source).lstrip("/")][0]
        return self.answer_stored(data)

    def answer_post(self):
        if "uploads" in self.query:
            name = f"upload-{len(self.google.uploads)}"
            self.google.uploads[name] = {}
            parts = f"<Bucket>b</Bucket><Key>k</Key><UploadId>{name}</UploadId>"
            return self.answer(200, f"<InitiateMultipartUploadResult>{parts}</InitiateMultipartUploadResult>".encode())
        parts = self.google.uploads.pop(self.query["uploadId"])
        return self.answer_stored(b"".join(parts[number] for number in sorted(parts)))

    def answer_stored(self, data):
        self.google.store(self.key, data)
        _, etag, generation = self.google.objects[self.key]
        body = f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>".encode()
        self.answer(200, body, {"ETag": etag, "x-goog-generation": generation})

    def answer_delete(self):
        if "uploadId" in self.query:
            self.google.uploads.pop(self.query["uploadId"], None)
            return self.answer(204)
        return self.answer(204 if self.google.objects.pop(self.key, None) else 404)


def make_google_modules(token):
    """Make the part of google-auth that is used, as modules: it finds this token, for the scopes that are asked for."""

    class Credentials:
        expiry = None

        def __init__(self, scopes):
            self._scopes = scopes

        def refresh(self, request):
            self.token = token if self._scopes else None  # keys of service accounts get none without a scope

    modules = {name: types.ModuleType(name) for name in ("google", "google.auth", "google.auth.transport")}
    modules |= {
        name: types.ModuleType(name) for name in ("google.auth._default_async", "google.auth.transport.requests")
    }
    modules["google"].auth = modules["google.auth"]
    modules["google.auth"].default = lambda scopes=None: (Credentials(scopes), "project")
    modules["google.auth._default_async"].default_async = None
    modules["google.auth.transport.requests"].Request = object
    return modules


def find_azurite():
    """The program of Azure's emulator; None if it is not installed."""
    return shutil.which("azurite-blob")


class AzuriteServer:
    """Azurite on a free port of this machine, with one container."""

    def __init__(self, container):
        [port] = find_free_ports(1)
        options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
        options += ["--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence"]
        self.endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
        self._process = ServerProcess([find_azurite(), *options], lambda: self._create(container))

    def close(self):
        self._process.close()

    def _create(self, container):
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        text = f"PUT{12 * chr(10)}{lines}/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{container}\nrestype:container"
        digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
        headers |= {
            "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Length": "0",
        }
        url = f"{self.endpoint}/{container}?restype=container"
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()
        except urllib.error.URLError as error:
            if isinstance(error, urllib.error.HTTPError):
                raise
            return False
        return True
