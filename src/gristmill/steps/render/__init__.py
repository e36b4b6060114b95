"""Chats to text, and which of it is trained on. `Render` is what a recipe says, `RenderChats` what the plan makes of it."""

from gristmill.steps.render.render import Render
from gristmill.steps.render.render_chats import RenderChats

__all__ = ["Render", "RenderChats"]
