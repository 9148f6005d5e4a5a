"""A prompt: the user's text, or a conversation that ends with the user's message.

Who shows, compares, bounds or encodes prompts reads them through these functions. A list of one
user message is the same prompt as its text, and becomes that.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, WrapValidator
from pydantic_core import PydanticCustomError, PydanticKnownError

from pubswap_protocol.bounds import Strict

MAX_TEXT = 1 << 20  # characters of a prompt, or of an answer
MAX_MESSAGES = 64
MAX_PREAMBLE = 100_000  # characters of system_prompt and few_shot, which every view of a run has

Role = Literal["system", "user", "assistant"]
_ROLES: tuple[str, ...] = get_args(Role)
_TOOLS = {"tool", "function", "ipython", "tool_calls", "tool_call_id", "function_call"}
_FORM = 'text, in quotes, or a list of messages such as {"role": "user", "content": "2 + 2 ="}'


class Message(Strict):
    """One message of a prompt. A system message can only be the first, and the last is a user's."""

    role: Role
    content: str = Field(min_length=1, max_length=MAX_TEXT)


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("it is blank; write it, or leave it out")
    return text


# Without NUL, which PostgreSQL cannot read in JSON.
SettingText = Annotated[
    str, Field(max_length=MAX_PREAMBLE, pattern=r"^[^\x00]*$"), AfterValidator(_said)
]


class Shot(Strict):
    """An example in a run's `few_shot`."""

    prompt: SettingText = Field(description="What the user says.")
    answer: SettingText = Field(description="The whole reply, as the model is to write one.")


def _checked(value: Any, read: Callable[[Any], Any]) -> Any:
    """A prompt, or one clear error instead of those of all alternatives."""
    if isinstance(value, str):
        if not value:
            raise PydanticKnownError("string_too_short", {"min_length": 1})
        if len(value) > MAX_TEXT:
            raise PydanticKnownError("string_too_long", {"max_length": MAX_TEXT})
        return read(value)
    if not isinstance(value, list | tuple):
        raise _fault(f"it must be {_FORM}")
    for fault in _faults(value):
        raise _fault(fault)
    messages: tuple[Message, ...] = read(value)
    if (size := sum(len(message.content) for message in messages)) > MAX_TEXT:
        raise _fault(f"its messages have {size:,} characters; at most {MAX_TEXT:,} are allowed")
    return messages[0].content if len(messages) == 1 else messages


def _fault(text: str) -> PydanticCustomError:
    return PydanticCustomError("prompt", "{text}", {"text": text})


def _faults(messages: list[Any] | tuple[Any, ...]) -> Iterable[str]:
    """What is wrong with a list of messages, as JSON has it."""
    if not 0 < len(messages) <= MAX_MESSAGES:
        yield f"it has {len(messages)} messages; give 1 to {MAX_MESSAGES}"
        return
    for number, each in enumerate(messages, start=1):
        message = each.model_dump() if isinstance(each, Message) else each
        if not isinstance(message, dict):
            yield f"message {number} is not one; it must be {_FORM}"
            return
        role, content = str(message.get("role", "")), message.get("content")
        if role in _TOOLS or message.keys() & _TOOLS:
            yield (
                f"message {number} belongs to a tool, and tools are not supported: the model "
                "answers a prompt once, in text"
            )
        elif role not in _ROLES:
            yield f"message {number} has the role {role!r}; the roles are {', '.join(_ROLES)}"
        elif isinstance(content, list | dict):
            yield f"message {number} has parts, such as images, which are not supported; give text"
        elif not isinstance(content, str) or not content.strip():
            yield f"message {number} is empty; give it content, which is text"
        elif further := sorted(map(str, message.keys() - {"role", "content"})):
            yield f"message {number} has the field {further[0]!r}; it takes role and content only"
        elif role == "system" and number > 1:
            yield f"message {number} is a system message, and only the first can be one"
    if role != "user":
        yield f"the last message is the {role}'s, and must be the user's, for the model to answer"


Messages = Annotated[tuple[Message, ...], Field(min_length=1, max_length=MAX_MESSAGES)]
Prompt = Annotated[
    Annotated[str, Field(min_length=1, max_length=MAX_TEXT)] | Messages, WrapValidator(_checked)
]


def messages_of(prompt: Prompt) -> tuple[Message, ...]:
    """A prompt as messages."""
    return (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt


def text_of(prompt: Prompt) -> str:
    """A prompt as one text, with the roles of its messages: to show it, and to compare it."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"[{message.role}]\n{message.content}" for message in prompt)


def question_of(prompt: Prompt) -> str:
    """What the user says, which verifiers may read beside the response."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(message.content for message in prompt if message.role == "user")
