"""Small chat templates, each with a way of its own."""

_BEGIN = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
_END = "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

CHATML = f"{_BEGIN}{{{{ m.content + '<|im_end|>\\n' }}}}{_END}"
TAGGED = (
    f"{_BEGIN}{{% if m.role == 'assistant' %}}{{% generation %}}{{{{ m.content }}}}{{% endgeneration %}}"
    f"{{% else %}}{{{{ m.content }}}}{{% endif %}}{{{{ '<|im_end|>\\n' }}}}{_END}"
)
"""The tags leave out the end of the turn."""
FORGETFUL = (
    "{%- for m in messages %}{{ m.role }}:"
    "{% if m.role == 'assistant' and not loop.last %}(old){% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Answers are not repeated once they are history, and nothing ends a turn."""
