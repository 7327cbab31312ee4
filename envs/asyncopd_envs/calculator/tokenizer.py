"""A word-level tokenizer for the calculator's language, and its chat template.

Every chunk of JSON that a tool call always has is one token, which keeps episodes short. The two tools
are not rendered into the prompt: models with this tokenizer are trained with them built in.
"""

from __future__ import annotations

import re
from itertools import chain

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from asyncopd_envs.calculator.tasks import ITEMS

PAD, UNKNOWN, END = "<|pad|>", "<|unknown|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CALL = ("<tool_call>", "</tool_call>")
CHUNKS = (
    '{"name": "calc", "arguments": {"expression": "',
    '{"name": "price", "arguments": {"item": "',
    '"}}',
)
SENTENCES = (
    "What is does do the price of a cost How much are",
    "Compute Multiply the sum of and by difference Start with add multiply then",
    "friends share How many does each get I pay for a What is my change",
    "error bad expression division by zero out of bounds unknown item tool",
)
CHARACTERS = "0123456789+-*/().,:?! \n\"'{}"
MAX_CONTEXT = 512

TEMPLATE = """\
{%- for message in messages -%}
{{- '<|' + message.role + '|>' + (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}
{%- set arguments = call.function.arguments -%}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' -}}
{{- arguments if arguments is string else arguments | tojson -}}
{{- '}</tool_call>' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""


def vocabulary() -> list[str]:
    """Return all tokens, ids in order."""
    words = dict.fromkeys(" ".join(SENTENCES).split())
    spaced = [form for word in words for form in (word, f" {word}")]
    goods = [form for item in ITEMS for form in (item, f" {item}", f" {item}s", f"{item}s")]
    return list(dict.fromkeys(chain((PAD, UNKNOWN, END), ROLES, CALL, CHUNKS, CHARACTERS, spaced, goods)))


def build() -> PreTrainedTokenizerFast:
    """Return the tokenizer; text outside its vocabulary becomes the unknown token."""
    tokenizer = Tokenizer(
        models.WordLevel({token: index for index, token in enumerate(vocabulary())}, unk_token=UNKNOWN)
    )
    pieces = "|".join([*(re.escape(chunk) for chunk in CHUNKS), " ?[A-Za-z]+", r"[\s\S]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (PAD, UNKNOWN, END, *ROLES)])
    # Added, so that the text of a call in a question is told from a call; not special, so that it is decoded.
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in CALL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_CONTEXT,
    )
