"""A chat template with its tokenizer: opening prompts, and turns joined token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from asyncopd.errors import UserError
from asyncopd.records import Message, ToolSpec
from asyncopd.text.special import SpecialText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBE = "probe"


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """The next prompt. Unless `broken`, it begins with all earlier ids, untouched."""

    ids: list[int]
    broken: bool


class Chat:
    """Renders messages and tools into ids for one tokenizer and template.

    Sampled ids are never decoded and tokenised again as long as the template allows: the next prompt is
    the previous ids, exactly as sampled, with ids appended for the text that follows the assistant's turn.
    Text of special tokens in any message that is not the assistant's own stays plain text.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, tools: Sequence[ToolSpec], chat_template: str | None = None
    ) -> None:
        template = chat_template or tokenizer.chat_template
        if not template:
            raise UserError(
                "chat_template",
                f"the tokenizer {tokenizer.name_or_path!r} has none",
                "give one, such as package:asyncopd/text/templates/tools.jinja",
            )
        self._tokenizer = tokenizer
        self._template = template
        self._tools: list[dict[Any, Any] | Callable[..., Any]] | None = [tool.for_template() for tool in tools] or None
        self._special = SpecialText(tokenizer)
        self._end_id = self._find_end()
        self._end_text = self._text([self._end_id])
        ends = {self._end_id} if tokenizer.eos_token_id is None else {self._end_id, tokenizer.eos_token_id}
        self.stop_ids: tuple[int, ...] = tuple(sorted(ends))
        """Ids after any of which an assistant turn is complete."""

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of an opening prompt, up to where the assistant begins to speak."""
        return self._special.encode(self._render(messages, open_turn=True))

    def extend(self, ids: Sequence[int], history: Sequence[Message], new_messages: Sequence[Message]) -> Extension:
        """Return the prompt that follows a turn.

        `ids` are all ids so far: the previous prompt and what was sampled on it. `history` are the
        messages they stand for, the assistant's last; `new_messages` is what follows. The prefix is broken
        where the template renders the history differently once more follows, or renders the assistant's
        turn without all of its content. A turn cut short by its length is closed with the end token.
        """
        before_turn = self._render(history[:-1], open_turn=True)
        before = self._render(history, open_turn=False)
        after = self._render([*history, *new_messages], open_turn=True)
        end = before.rfind(self._end_text, len(before_turn))
        cut = len(before) if end < 0 else end + len(self._end_text)
        whole = before.startswith(before_turn) and _squash(history[-1].content) in _squash(before[len(before_turn) :])
        if not (whole and after.startswith(before[:cut])):
            return Extension(ids=self._special.encode(after), broken=True)
        closing = [self._end_id] if end >= 0 and ids[-1] not in self.stop_ids else []
        return Extension(ids=[*ids, *closing, *self._special.encode(after[cut:])], broken=False)

    def turn_ids(self, history: Sequence[Message], message: Message) -> list[int]:
        """Return the ids with which a model would have said `message`, its end token included.

        Raises `ValueError` where the template cannot say so: it renders the turn differently than it
        opens one.
        """
        before_turn = self._render(history, open_turn=True)
        text = self._render([*history, message], open_turn=False)
        end = text.rfind(self._end_text, len(before_turn))
        if end < 0 or not text.startswith(before_turn):
            raise ValueError(
                "the chat template does not render an assistant turn as the continuation of its own generation "
                "prompt, so nothing can be demonstrated with it; use another chat_template"
            )
        return self._special.encode(text[len(before_turn) : end + len(self._end_text)])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a sampled turn: special tokens kept, a final stop token left off."""
        said = ids[:-1] if len(ids) and ids[-1] in self.stop_ids else ids
        return self._text(said)

    def _text(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def _render(self, messages: Sequence[Message], *, open_turn: bool) -> str:
        text = self._tokenizer.apply_chat_template(
            [self._for_template(message) for message in messages],
            tools=self._tools,
            chat_template=self._template,
            add_generation_prompt=open_turn,
            tokenize=False,
        )
        assert isinstance(text, str)
        return text

    def _for_template(self, message: Message) -> dict[str, Any]:
        rendered = message.for_template()
        if message.role != "assistant":
            for field in ("content", "name"):
                if field in rendered:
                    rendered[field] = self._special.disarm(rendered[field])
        return rendered

    def _find_end(self) -> int:
        """Return the id that the template writes after an assistant's content, or else the tokenizer's own."""
        turn = [Message(role="user", content=PROBE), Message(role="assistant", content=PROBE)]
        following = self._special.encode(self._render(turn, open_turn=False).rpartition(PROBE)[2])
        if following and following[0] in self._tokenizer.added_tokens_decoder:
            return following[0]
        if self._tokenizer.eos_token_id is None:
            raise UserError(
                "chat_template",
                "neither it nor the tokenizer says how an assistant turn ends",
                "set the tokenizer's eos_token",
            )
        return self._tokenizer.eos_token_id


def _squash(text: str) -> str:
    """Return the text without white space, which templates trim and add as they like."""
    return "".join(text.split())
