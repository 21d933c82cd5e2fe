"""Chat templates that do what those of known models do, in few words, for the tokenizer of `talking`."""

from tests.trainer.talking import TEMPLATE

SILENT = TEMPLATE.replace("messages %}", "messages if message.role != 'tool' %}")  # as many that know no tools

# As Qwen3's: tools stand in the system's turn, a tool's words in the user's, thoughts only in the newest answer.
QWEN = (
    "{%- if tools %}<|im_start|>system\nTools: {% for tool in tools %}{{ tool | tojson }} {% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{%- else %}<|im_start|>{{ message.role }}\n{{ message.content.split('</think>')[-1] }}<|im_end|>\n{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# As Llama 3's: it tells a date, trims what is said, and writes a tool's words as JSON in a turn of its own.
LLAMA = (
    "{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}"
    "{%- if not tools is defined %}{%- set tools = none %}{%- endif %}"
    "<|im_start|>system\n\nToday is {{ date_string }}.<|im_end|>"
    "{%- for message in messages %}"
    "{%- if message.role in ('tool', 'ipython') %}<|im_start|>ipython\n\n{{ message.content | tojson }}<|im_end|>"
    "{%- else %}<|im_start|>{{ message.role }}\n\n"
    "{%- if loop.first and tools is not none %}{{ tools | tojson }}\n\n{% endif %}"
    "{{ message.content | trim }}<|im_end|>"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
# As Llama 3.1's: what calls a tool of the model's own is no turn that is over, and ends otherwise.
CALL_END = "<|eom_id|>"
LLAMA_CALLS = LLAMA.replace(
    "| trim }}<|im_end|>", "| trim }}{{ '<|eom_id|>' if message.tool_calls and builtin_tools else '<|im_end|>' }}"
)
# As GLM 4's: a turn has no end of its own, and the model ends it by who is to speak next.
GLM = (
    "{% for message in messages %}<|{{ 'eom_id' if message.role == 'tool' else message.role }}|>\n{{ message.content }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# As SmolLM3's: what is set where nothing is said, and Transformers' own tag.
SMOL = (
    "{%- if enable_thinking is not defined %}{%- set enable_thinking = true %}{%- endif %}"
    "<|im_start|>system\n{{ '/think' if enable_thinking else '/no_think' }}<|im_end|>\n"
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' %}<|im_start|>assistant\n"
    "{%- generation %}{{ message.content }}<|im_end|>\n{% endgeneration %}"
    "{%- elif message.role in ('user', 'tool') %}<|im_start|>user\n{{ message.content }}<|im_end|>\n{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n{% endif %}{% endif %}"
)
# As Gemma 2's: there are two roles, and they take turns.
GEMMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n{{ message['content'] | trim }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
