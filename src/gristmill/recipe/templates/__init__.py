"""Recipes for common jobs, each with sample data that it runs on: `gristmill init --template NAME`.

The comments say how many records of the sample data each step keeps; a test runs the recipes and compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.recipe.templates import chats, code, dedup, fineweb, images

if TYPE_CHECKING:
    from collections.abc import Mapping

TEMPLATES = {"fineweb": fineweb, "chats": chats, "code": code, "images": images, "dedup": dedup}


def make_files(name: str) -> Mapping[str, bytes]:
    """Make the files of a template: path -> content, the recipe first."""
    template = TEMPLATES[name]
    return {"recipe.yaml": template.RECIPE.encode(), **template.make_data()}
