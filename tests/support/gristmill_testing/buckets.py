"""Object stores for tests: SeaweedFS, a real store, and what tests do to its buckets behind the library's back."""

import json
import os
import shutil
import sys
from pathlib import Path

from gristmill_testing.server_processes import ServerProcess, find_free_ports

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "gristmill-test-key", "AWS_SECRET_ACCESS_KEY": "gristmill-test-secret"}
_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")


class Bucket:
    """A bucket through botocore: another client than the one that is tested."""

    def __init__(self, endpoint, name):
        import botocore.session

        self.name = name
        self.url = f"s3://{name}"
        self.client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )

    def create(self):
        self.client.create_bucket(Bucket=self.name)
        return self

    def put(self, key, data):
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def get(self, key):
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def list_keys(self, prefix=""):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def delete(self, *keys):
        for key in keys:
            self.client.delete_object(Bucket=self.name, Key=key)

    def unfinished_uploads(self):
        return [upload["Key"] for upload in self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])]


def find_weed():
    """The server's program, which pip puts beside Python; None if it is not installed."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


class SeaweedServer:
    """SeaweedFS with its S3 gateway on free ports of this machine."""

    def __init__(self, folder):
        ports = find_free_ports(2 * len(_PORTS))
        config = Path(folder, "s3.json")
        key, secret = CREDENTIALS.values()
        identity = {"name": "test", "credentials": [{"accessKey": key, "secretKey": secret}], "actions": ["Admin"]}
        config.write_text(json.dumps({"identities": [identity]}))
        data = Path(folder, "data")
        data.mkdir()
        arguments = [f"-{name}={port}" for name, port in zip(_PORTS, ports, strict=False)]
        arguments += [f"-{name}.grpc={port}" for name, port in zip(_PORTS, ports[len(_PORTS) :], strict=False)]
        arguments += [f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={config}"]
        arguments += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
        arguments += ["-master.volumeSizeLimitMB=64", "-volume.max=20000"]
        self.port = ports[_PORTS.index("s3.port")]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process = ServerProcess(
            [find_weed(), "server", *arguments],
            self._is_ready,
            log=Path(folder, "log"),
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},
        )

    def close(self):
        self._process.close()

    def _is_ready(self):
        try:
            Bucket(self.endpoint, "ready").create()
        except Exception:  # botocore has many for a server that is not there yet, or not all of it
            return False
        return True
