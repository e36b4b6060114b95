"""The paths of a user's caches, all below one folder: a function of strings, because `core` does no I/O."""

from __future__ import annotations


def choose_cache_folder(home: str, platform: str, name: str) -> str:
    """Return the path of one of Gristmill's caches.

    >>> choose_cache_folder("/home/ada", "linux", "kernels")
    '/home/ada/.cache/gristmill/kernels'
    """
    return f"{home}/{'Library/Caches' if platform == 'darwin' else '.cache'}/gristmill/{name}"
