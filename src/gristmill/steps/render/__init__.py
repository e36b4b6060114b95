"""Chats to text with its trained ranges. A recipe has a `Render`, which the plan resolves to a `ResolvedRender`."""

from gristmill.steps.render.render import Render
from gristmill.steps.render.resolved_render import ResolvedRender

__all__ = ["Render", "ResolvedRender"]
