"""Chats to text with its trained ranges. A recipe has a `Render`, which the plan resolves to a `ResolvedRender`."""

from gristmill.steps.render.render import Render, ResolvedRender

__all__ = ["Render", "ResolvedRender"]
