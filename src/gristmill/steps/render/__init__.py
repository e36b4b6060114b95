"""Chats to text, and which of it is trained on. A recipe says `Render`, the plan makes `ResolvedRender`."""

from gristmill.steps.render.render import Render
from gristmill.steps.render.resolved_render import ResolvedRender

__all__ = ["Render", "ResolvedRender"]
