"""A real object store on this machine for the contests of remote streams: SeaweedFS, ended with the harness."""

import atexit
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from gristmill_testing.buckets import CREDENTIALS, Bucket, SeaweedServer

BUCKET = "bench"


@cache
def start_store():
    """Start the store once; return the variables of processes that use it."""
    folder = tempfile.TemporaryDirectory(prefix="gristmill-store-")
    server = SeaweedServer(folder.name)
    atexit.register(folder.cleanup)
    atexit.register(server.close)
    Bucket(server.endpoint, BUCKET).create()
    return {
        **CREDENTIALS,
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ENDPOINT_URL_S3": server.endpoint,
        "S3_ENDPOINT_URL": server.endpoint,  # mosaicml-streaming's own
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def upload_dataset(folder, name):
    """Put the files of a dataset into the bucket; return its URL."""
    import obstore
    from obstore.store import S3Store

    variables = start_store()
    store = S3Store(
        BUCKET,
        endpoint=variables["AWS_ENDPOINT_URL"],
        region="us-east-1",
        access_key_id=variables["AWS_ACCESS_KEY_ID"],
        secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        client_options={"allow_http": True},
    )
    folder = Path(folder)  # next to the dataset are the same rows in the formats of peers
    found = [folder / "manifest.json", *(folder / "index").rglob("*"), *(folder / "train").rglob("*")]
    files = [path for path in found if path.is_file()]

    def put(path):
        obstore.put(store, f"{name}/{path.relative_to(folder)}", path.read_bytes())

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(put, files):
            pass
    return f"s3://{BUCKET}/{name}"


def list_variables():
    """Return the variables of the store, and that of the paths on which Python finds this project."""
    return {**start_store(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
