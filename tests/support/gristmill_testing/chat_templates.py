"""Small chat templates, each with a way of its own."""

_BEGIN = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
_END = "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

CHATML = f"{_BEGIN}{{{{ m.content + '<|im_end|>\\n' }}}}{_END}"
TAGGED = (
    f"{_BEGIN}{{% if m.role == 'assistant' %}}{{% generation %}}{{{{ m.content }}}}{{% endgeneration %}}"
    f"{{% else %}}{{{{ m.content }}}}{{% endif %}}{{{{ '<|im_end|>\\n' }}}}{_END}"
)
FORGETFUL = (
    "{%- for m in messages %}{{ m.role }}:"
    "{% if m.role == 'assistant' and not loop.last %}(old){% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

THINKING_PROMPT = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
EMPTY_THOUGHT = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}<think>{{ m.reasoning_content or '' }}</think>{% endif %}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>\n{% endif %}"
    "{% endif %}"
)
TAGGED_END_OF_TEXT = (
    _BEGIN
    + "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>\\n' }}{% endgeneration %}"
    + "{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% elif messages[-1].role == 'assistant' %}"
    + "{% generation %}{{ '<|endoftext|>' }}{% endgeneration %}{% else %}{{ '<|endoftext|>' }}{% endif %}"
)
CLOSED_THOUGHT = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<|channel>thought\n<channel|>{% endif %}"
)
OPEN_THOUGHT = f"{_BEGIN}{{{{ m.content + '<|im_end|>\\n' }}}}{_END}".replace(
    "assistant\\n' }}", "assistant\\n<think>\\n' }}"
)
TAGGED_HEADER = (
    "{%- for m in messages %}{% if m.role == 'assistant' %}{% generation %}<|im_start|>assistant\n"
    "{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
UNTAGGED_CALLS = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% if m.role == 'assistant' and m.content %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NESTED_ENDS = (
    "{{ bos_token }}{% for m in messages %}<|turn|>{{ m.role }}"
    "{% if m.role == 'assistant' %}<|start_response|>{{ m.content }}<|end_response|>"
    "{% else %}{{ m.content }}{% endif %}<|end_turn|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant<|start_response|>{% endif %}"
)
LAST_END = (
    "{%- for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content }}"
    "{% if m.role == 'assistant' %}<|end|>{{ '<|return|>' if loop.last else '' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NEXT_HEADER = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if messages[-1].role == 'assistant' %}<|im_start|>user\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LINE_BEFORE_HEADER = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ '\n' if m.role == 'tool' and not loop.last else '' }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ONE_CALL = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.tool_calls %}<tool_call>{{ m.tool_calls[0].function | tojson }}</tool_call>"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_ARGUMENTS = ONE_CALL.replace(
    "m.tool_calls[0].function | tojson", "m.tool_calls | map(attribute='function.name') | join"
)
SWITCHED_THOUGHT = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined %}<think>\n{{ '' if enable_thinking else '\n</think>\n' }}{% endif %}{% endif %}"
)
NO_END = (
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
END_BETWEEN = (
    "{%- for m in messages %}{{ eos_token if m.role == 'user' and not loop.first else '' }}"
    "<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

ABOUT = {
    "CHATML": "The simplest template: a header, the content, an end.",
    "TAGGED": "The tags leave out the end of the turn.",
    "FORGETFUL": "Earlier answers are replaced by a placeholder, and nothing ends a turn.",
    "THINKING_PROMPT": "The prompt begins a thought; the rendering cuts the thought from the answer.",
    "EMPTY_THOUGHT": "The prompt begins a thought, the rendering has an empty one; a variable makes them agree.",
    "CLOSED_THOUGHT": "The prompt has an empty thought, and the rendering has none.",
    "OPEN_THOUGHT": "The prompt begins a thought that the template does not handle anywhere else.",
    "TAGGED_HEADER": "The tags also contain the header, and the prompt begins a thought.",
    "NESTED_ENDS": "Answers end with two tokens, other messages with one of them.",
    "LAST_END": "The last answer is followed by one more token than the others.",
    "NEXT_HEADER": "The header of the next turn follows even the last answer.",
    "LINE_BEFORE_HEADER": "A tool result that is not the last message has one more line end than in the prompt.",
    "ONE_CALL": "Only the first of several calls is written, without the text beside it.",
    "NO_ARGUMENTS": "Calls are written without their arguments.",
    "SWITCHED_THOUGHT": "A variable makes the prompt begin a thought or supply an empty one.",
    "NO_END": "Only the next turn ends an answer.",
    "END_BETWEEN": "The next question ends an answer; nothing ends the last one.",
}
"""What is particular about each."""
