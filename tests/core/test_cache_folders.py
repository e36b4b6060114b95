from gristmill.core.cache_folders import choose_cache_folder


def test_caches_lie_where_the_system_keeps_them():
    assert choose_cache_folder("/home/ada", "linux", "plans") == "/home/ada/.cache/gristmill/plans"
    assert choose_cache_folder("/Users/ada", "darwin", "plans") == "/Users/ada/Library/Caches/gristmill/plans"
