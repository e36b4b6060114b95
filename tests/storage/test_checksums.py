import pytest
import xxhash

from gristmill.storage.checksums import compute_file_checksum


@pytest.mark.parametrize("num_bytes", [0, 1, 2**20 - 1, 2**20, 3 * 2**20 + 17])
def test_the_checksum_is_xxh3_of_the_content(tmp_path, num_bytes):
    data = (bytes(range(251)) * (num_bytes // 251 + 1))[:num_bytes]
    path = tmp_path / "a"
    path.write_bytes(data)
    assert compute_file_checksum(path) == compute_file_checksum(f"file://{path}") == xxhash.xxh3_64_hexdigest(data)


def test_a_checksum_keeps_its_leading_zeros():
    assert len(xxhash.xxh3_64_hexdigest(b"")) == 16
