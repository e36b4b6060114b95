"""A small server with the part of the Hub's HTTP interface that uploads use, after huggingface_hub's own requests.

It keeps commits in memory, answers LFS batches, and checks the SHA-256 of what is uploaded. It is no Hub: rights, Xet,
multipart transfers and limits are missing.
"""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_REPOSITORY = r"/(?:api/)?datasets/(?P<id>[^/]+/[^/]+?)"


class FakeHub:
    """Repositories by id: a list of commits, each with all files by path."""

    def __init__(self):
        self.repositories = {}
        self.private = {}
        self.objects = {}
        self.requests = []
        self.before_commit = lambda: None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(self))
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def head(self, id):
        return self.repositories[id][-1]

    def sha(self, id):
        return f"{len(self.repositories[id]):040x}"

    def add_commit(self, id, changes):
        self.repositories[id].append({**self.head(id), **changes})


def _make_handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def _answer(self, status, content=None, **headers):
            body = b"" if content is None else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                **headers,
            }.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def _read(self):
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def do_GET(self):
            hub.requests.append(f"GET {self.path}")
            match = re.match(rf"{_REPOSITORY}/revision/(?P<revision>[^?]+)", self.path)
            if match is None or match["id"] not in hub.repositories:
                self._answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
                return
            files = [{"rfilename": path} for path in hub.head(match["id"])]
            self._answer(200, {"id": match["id"], "sha": hub.sha(match["id"]), "siblings": files, "private": True})

        def do_PUT(self):
            hub.requests.append(f"PUT {self.path}")
            content = self._read()
            oid = self.path.rpartition("/")[2]
            if hashlib.sha256(content).hexdigest() != oid:
                self._answer(400)
                return
            hub.objects[oid] = content
            self._answer(200)

        def do_POST(self):
            hub.requests.append(f"POST {self.path}")
            body = self._read()
            if self.path == "/api/repos/create":
                facts = json.loads(body)
                name = f"{facts.get('organization') or 'me'}/{facts['name']}"
                hub.repositories.setdefault(name, [{}])
                hub.private[name] = facts.get("private") or facts.get("visibility") == "private"
                self._answer(200, {"url": f"{hub.endpoint}/datasets/{name}"})
            elif self.path == "/api/validate-yaml":
                self._answer(200, {"errors": [], "warnings": []})
            elif match := re.match(rf"{_REPOSITORY}/preupload/", self.path):
                files = [
                    {"path": file["path"], "uploadMode": "regular" if file["path"].endswith(".md") else "lfs"}
                    for file in json.loads(body)["files"]
                ]
                self._answer(200, {"files": [{**file, "shouldIgnore": False} for file in files]})
            elif match := re.match(rf"{_REPOSITORY}\.git/info/lfs/objects/batch", self.path):
                objects = [
                    {**entry, "actions": {"upload": {"href": f"{hub.endpoint}/upload/{entry['oid']}"}}}
                    for entry in json.loads(body)["objects"]
                ]
                self._answer(200, {"transfer": "basic", "objects": objects})
            elif match := re.match(rf"{_REPOSITORY}/commit/", self.path):
                self._commit(match["id"], [json.loads(line) for line in body.splitlines()])
            else:
                self._answer(404)

        def _commit(self, id, lines):
            hub.before_commit()
            header = next(line["value"] for line in lines if line["key"] == "header")
            if header.get("parentCommit") not in (None, hub.sha(id)):
                self._answer(412, {"error": "A commit has happened since. Please refresh and try again."})
                return
            files = dict(hub.head(id))
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = hub.objects[value["oid"]]
                elif line["key"] == "deletedFile":
                    del files[value["path"]]
            hub.repositories[id].append(files)
            self._answer(
                200, {"commitUrl": f"{hub.endpoint}/datasets/{id}/commit/{hub.sha(id)}", "commitOid": hub.sha(id)}
            )

    return Handler
