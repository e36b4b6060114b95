"""Where a user's caches are, as paths: kernels and plans have a folder each, below one of Gristmill's own."""

from __future__ import annotations


def choose_cache_folder(home: str, platform: str, name: str) -> str:
    """Return the path of one of Gristmill's caches.

    >>> choose_cache_folder("/home/ada", "linux", "kernels")
    '/home/ada/.cache/gristmill/kernels'
    """
    return f"{home}/{'Library/Caches' if platform == 'darwin' else '.cache'}/gristmill/{name}"
