"""An object store on this machine: SeaweedFS with its S3 gateway, and a delay in front of every request if wanted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEY, _SECRET = "benchmark-key", "benchmark-secret"
_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")


@contextlib.contextmanager
def start_store() -> Iterator[int]:
    """Run a store with an empty bucket `bench` and give the port of its gateway."""
    import botocore.session

    program = Path(sys.executable).with_name("weed")
    with tempfile.TemporaryDirectory() as folder:
        identity = {"name": "bench", "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}], "actions": ["Admin"]}
        Path(folder, "s3.json").write_text(json.dumps({"identities": [identity]}))
        Path(folder, "data").mkdir()
        ports = _find_free_ports(2 * len(_PORTS))
        arguments = [f"-{name}={port}" for name, port in zip(_PORTS, ports, strict=False)]
        arguments += [f"-{name}.grpc={port}" for name, port in zip(_PORTS, ports[len(_PORTS) :], strict=False)]
        arguments += [f"-dir={folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
        arguments += [f"-s3.config={folder}/s3.json", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        arguments += ["-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=20000"]
        process = subprocess.Popen(
            [str(program) if program.exists() else str(shutil.which("weed")), "server", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "HOME": folder},
        )
        try:
            port = ports[_PORTS.index("s3.port")]
            client = botocore.session.get_session().create_client(
                "s3",
                endpoint_url=f"http://127.0.0.1:{port}",
                region_name="us-east-1",
                aws_access_key_id=_KEY,
                aws_secret_access_key=_SECRET,
            )
            while True:
                try:
                    client.create_bucket(Bucket="bench")
                    break
                except Exception:
                    if process.poll() is not None:
                        raise
                    time.sleep(0.1)
            yield port
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def delay_requests(port: int, seconds: float) -> Iterator[int]:
    """Forward connections to a port, each request that much later; give the port to use instead.

    A request begins where the client speaks after the server has: its clients send one request at a time.
    """
    loop = asyncio.new_event_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
        is_new = True

        async def send_requests() -> None:
            nonlocal is_new
            while data := await reader.read(1 << 20):
                if is_new:
                    is_new = False
                    await asyncio.sleep(seconds)
                upstream_writer.write(data)
                await upstream_writer.drain()
            upstream_writer.close()

        async def send_answers() -> None:
            nonlocal is_new
            while data := await upstream_reader.read(1 << 20):
                is_new = True
                writer.write(data)
                await writer.drain()
            writer.close()

        with contextlib.suppress(ConnectionError):
            await asyncio.gather(send_requests(), send_answers())

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def make_environment(port: int) -> dict[str, str]:
    """Return the variables by which processes find the store."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def _find_free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
