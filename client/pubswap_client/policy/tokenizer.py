"""The base model's tokenizer: templates for prompts, plain decoding for responses.

Only the template makes control tokens. The text of a problem that spells one, such as
`<|im_end|>`, is encoded as text.
"""

import datetime
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType

import transformers
from jinja2 import TemplateError
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from transformers import AutoTokenizer

from pubswap_protocol.base.tokenizer import load_tokenizer
from pubswap_protocol.errors import BaseModelMismatch, InvalidProblems, InvalidSettings
from pubswap_protocol.model import SAMPLE_TOKENS, ModelCard, PromptSample, model_vocabulary
from pubswap_protocol.problems import PromptLimit
from pubswap_protocol.prompts import Message, Prompt, messages_of
from pubswap_protocol.settings import RunSettings

_PROBE, _REPLY, _THOUGHT = "PubSwapQuestion", "PubSwapReply", "PubSwapThought"
_DATE_CODES = [f"%{flag}{code}" for code in "aAbBcdHIjmMpSuUVwWxXyYFTe" for flag in ("", "-")]
_EXAMPLE = "What is 12 + 30?"  # not a member's: reports of it are passed on
_ENDS = 400  # characters shown of the beginning and the end of a longer text
_SAMPLE = "What is 12 + 30?\n\n  Naïve λ ≤ ½, 北京 🙂\tif (x[0] == 'a'): pass"
_SPELLED = (
    "The prompt spells one of the model's control tokens, which this tokenizer cannot read as "
    "text. Change its text."
)

Options = Mapping[str, bool | int | str]
Turn = dict[str, str]
NO_OPTIONS: Options = MappingProxyType({})


class PromptTokenizer:
    """transformers' tokenizer for prompts (templates), the bare tokenizer.json for responses."""

    def __init__(
        self, folder: Path, date: datetime.date | None = None, vocabulary: int | None = None
    ) -> None:
        """Read the folder's tokenizer, for a model with a `vocabulary` of this many tokens.

        Templates that write today's date get `date`, if given. A run has one, because else its
        prompts would change at midnight and with the time zone.
        """
        self._vocabulary = vocabulary
        self.date = date or datetime.datetime.now(datetime.UTC).date()
        # None would ask at the terminal whether to run the folder's own code.
        self._full = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self.plain = load_tokenizer((folder / "tokenizer.json").read_bytes())
        self._made: dict[str, Counter[int]] = {}

    @property
    def has_template(self) -> bool:
        return self._full.chat_template is not None

    def encode(self, prompt: Prompt, chat: bool, options: Options = NO_OPTIONS) -> list[int]:
        """A prompt's token ids. With `chat`, apply the template, if there is one, with `options`.

        Raises InvalidSettings if the template fails or has no place for a message, and
        InvalidProblems if the prompt spells a control token that cannot be read as text.
        """
        chat = chat and self.has_template
        if not (chat or isinstance(prompt, str)):
            raise InvalidSettings(
                "The model has no chat template, and so no place for system_prompt, few_shot, or "
                "prompts that are lists of messages. Write them into the prompts' text, or use the "
                "instruct model's files."
            )
        messages = messages_of(prompt)
        tokens = self._encode(self._written(messages, chat, options), chat)
        key = json.dumps([chat, sorted(options.items()), [each.role for each in messages]])
        if key not in self._made:
            self._made[key] = self._template_control(messages, chat, options)
        if self._control(tokens) != self._made[key]:
            tokens = self._encode_as_text(messages, chat, options)
            if self._control(tokens) != self._made[key]:
                raise InvalidProblems(_SPELLED)
        return tokens

    def encode_for(self, run: RunSettings, prompt: Prompt) -> list[int]:
        """A prompt's token ids as all members of a run encode it: the one place that does so.

        Raises InvalidProblems if the run, its template or its model cannot take it, and
        InvalidSettings if they could not take any prompt.
        """
        whole = run.conversation(prompt)
        try:
            tokens = self.encode(whole, run.chat_template == "auto", run.chat_template_options)
        except InvalidSettings as error:
            if isinstance(prompt, str):
                raise
            raise InvalidProblems(error.detail) from None
        last = max(tokens, default=0)
        if self._vocabulary is not None and last >= self._vocabulary:
            raise InvalidProblems(
                f"The prompt has the token {self.token_text(last)!r} ({last}), and the model has "
                f"only the first {self._vocabulary}. Remove it, or use the chat template that was "
                "published with the model."
            )
        return tokens

    def example(self, run: RunSettings, public: Prompt | None = None) -> str:
        """The first `public` prompt as a run's model gets it: number of tokens, text, token ids.

        Without it a fixed prompt. Raises what `encode_for` does.
        """
        tokens = self.encode_for(run, public or _EXAMPLE)
        text = repr(self.plain.decode(tokens, skip_special_tokens=False))
        if len(text) > 2 * _ENDS:
            text = f"{text[:_ENDS]} … {text[-_ENDS:]}"
        ids = [*map(str, tokens)]
        if len(ids) > _ENDS:
            ids = [*ids[: _ENDS // 2], "…", *ids[-_ENDS // 2 :]]
        which = "the first public problem" if public else repr(_EXAMPLE)
        return f"{which} is {len(tokens)} tokens: {text}; ids {' '.join(ids)}"

    def prompt_sample(self, run: RunSettings) -> PromptSample:
        """What this tokenizer makes of a fixed text in a run's prompts."""
        tokens = self.encode_for(run, _SAMPLE)[:SAMPLE_TOKENS]
        return PromptSample(
            date=self.date, token_ids=tuple(tokens), transformers=transformers.__version__
        )

    def check_prompts(self, card: ModelCard, run: RunSettings) -> None:
        """Raises BaseModelMismatch unless prompts are encoded as by the run's operator."""
        theirs = card.prompt_sample
        if theirs is None:
            return
        ours = self.prompt_sample(run)
        pairs = enumerate(zip_longest(ours.token_ids, theirs.token_ids), start=1)
        differing = next((each for each in pairs if each[1][0] != each[1][1]), None)
        if differing is None:
            return
        place, tokens = differing
        own, other = ("missing" if t is None else f"{t} {self.token_text(t)!r}" for t in tokens)
        raise BaseModelMismatch(
            f"Prompts are encoded differently from the run's: token {place} of a fixed prompt is "
            f"{own}, and the operator's is {other}. Use the tokenizer_config.json and "
            f"chat_template.jinja of {card.source}. The operator has transformers "
            f"{theirs.transformers}, and this machine has {ours.transformers}."
        )

    def limit(self, run: RunSettings) -> PromptLimit:
        return PromptLimit(
            run.grpo.max_prompt_tokens, lambda prompt: len(self.encode_for(run, prompt))
        )

    def response_length(self, text: str) -> int:
        """The tokens of a response, without the one that ends it."""
        return len(self.plain.encode(text, add_special_tokens=False))

    def turn_end(self) -> list[int]:
        """The token ids that the chat template puts after a reply."""
        turns = [_turn("user", "?"), _turn("assistant", _REPLY)]
        return self._encode(self._render(turns).rpartition(_REPLY)[2], chat=True)

    def token_text(self, token: int) -> str:
        """One token as text, special ones too."""
        return str(self.plain.decode([token], skip_special_tokens=False))

    def unknown_end(self, ends: Collection[int]) -> int | None:
        """The token with which the template ends a reply if `ends` has none of these.

        A control token, if there is one.
        """
        tokens = self.turn_end()
        if not tokens or set(tokens) & set(ends):
            return None
        return next(filter(self.is_control, tokens), tokens[0])

    def is_control(self, token: int) -> bool:
        return token in self._special

    def turn_tokens(self, chat: bool = True) -> tuple[int, ...]:
        """The control tokens that the template writes between messages, begin of text, and padding.

        Not those that it writes inside a reply, such as marks of reasoning and channels. Without
        `chat` the template is not asked. Raises InvalidSettings if it fails.
        """
        own = {self._full.bos_token_id, self._full.pad_token_id} - {None}
        if not (chat and self.has_template):
            return tuple(sorted(own))
        question = [_turn("user", _PROBE)]
        replied = [*question, _turn("assistant", _REPLY)]
        between = self._encode(self._render([*replied, *question], reply=True), chat=True)
        opening = self._render(question, reply=True)
        thought = {"reasoning_content": _THOUGHT, "thinking": _THOUGHT}
        whole = self._render([*question, _turn("assistant", _REPLY) | thought])
        reply = whole.removeprefix(opening).rpartition(_REPLY)[0]
        inside = self._control(self._encode(reply if whole.startswith(opening) else "", chat=True))
        return tuple(sorted(own | (self._control(between).keys() - inside.keys())))

    def _render(
        self, turns: list[Turn], options: Options = NO_OPTIONS, *, reply: bool = False
    ) -> str:
        """The template's text; with `reply`, up to where the model's reply begins."""
        try:
            text = self._full.apply_chat_template(
                turns,
                chat_template=self._dated,
                tokenize=False,
                add_generation_prompt=reply,
                **options,
            )
        except TemplateError as error:
            if turns[0]["role"] == "system":
                self._render(turns[1:], options, reply=reply)  # if that fails, it is the reason
                raise _no_place("system") from None
            raise InvalidSettings(
                f"The model's chat template fails ({error}). Change chat_template_options or the "
                "messages, or set chat_template = 'none'."
            ) from None
        return str(text)

    def _written(self, messages: Sequence[Message], chat: bool, options: Options) -> str:
        """The text of a prompt's messages; without `chat` there is one."""
        if not chat:
            return messages[0].content
        return self._render([each.model_dump() for each in messages], options, reply=True)

    def _template_control(
        self, messages: Sequence[Message], chat: bool, options: Options
    ) -> Counter[int]:
        """The control tokens that a template writes around messages of these roles.

        Raises InvalidSettings if it leaves one of them out, as some do with a system message.
        """
        probes = [
            Message(role=each.role, content=f"{_PROBE}{number:04}")
            for number, each in enumerate(messages)
        ]
        text = self._written(probes, chat, options)
        for probe in probes:
            if probe.content not in text:
                raise _no_place(probe.role)
        return self._control(self._encode(text, chat))

    def _encode(self, text: str, chat: bool) -> list[int]:
        """Token ids, with whatever the tokenizer adds by itself unless a template has done so."""
        return [int(token) for token in self._full(text, add_special_tokens=not chat)["input_ids"]]

    def _control(self, tokens: list[int]) -> Counter[int]:
        """How often each control token occurs."""
        return Counter(token for token in tokens if token in self._special)

    @cached_property
    def _dated(self) -> str | None:
        """The template with the run's date instead of today's; None if it writes no date.

        transformers passes no functions to a template, so a macro hides its `strftime_now`.
        """
        template = str(self._full.get_chat_template())
        if "strftime_now" not in template:
            return None
        written = ((code, self.date.strftime(code)) for code in _DATE_CODES)
        filters = "".join(f"|replace({json.dumps(c)}, {json.dumps(text)})" for c, text in written)
        macro = "{% macro strftime_now(format) %}{{ format" + filters + " }}{% endmacro %}"
        return f"{macro}\n{template}"  # jinja removes this line feed

    @cached_property
    def _special(self) -> dict[int, str]:
        """The text of each control token, but for one that stands for unknown characters."""
        full, backend = self._full, self._full.backend_tokenizer
        pieces = isinstance(backend.model, Unigram)  # the only model that does not name it
        unknown = {full.unk_token if pieces else backend.model.unk_token}
        unknown -= {full.bos_token, full.eos_token, full.pad_token}
        return {
            number: token.content
            for number, token in backend.get_added_tokens_decoder().items()
            if token.special and token.content not in unknown
        }

    def _encode_as_text(
        self, messages: Sequence[Message], chat: bool, options: Options
    ) -> list[int]:
        """Encode messages that spell control tokens.

        In a copy of the tokenizer the control tokens have other texts. The template's own get
        these, and so only they are found. What the messages spell is masked meanwhile.
        """
        renamed, tokenizer, numbers = self._disguised
        masks = {text: f"\ue002{number}\ue003" for number, text in self._special.items()}
        longest_first = sorted(renamed, key=len, reverse=True)
        if any("\ue002" in each.content for each in messages):
            raise InvalidProblems(_SPELLED)
        masked = [
            Message(role=each.role, content=_replaced(each.content, longest_first, masks))
            for each in messages
        ]
        text = _replaced(self._written(masked, chat, options), longest_first, renamed)
        for spelled, mask in masks.items():
            text = text.replace(mask, spelled)
        tokens = tokenizer.encode(text, add_special_tokens=not chat).ids
        return [numbers.get(token, token) for token in tokens]

    @cached_property
    def _disguised(self) -> tuple[dict[str, str], Tokenizer, dict[int, int]]:
        """New texts of control tokens, a tokenizer that knows these, and its ids as our own."""
        data = json.loads(self._full.backend_tokenizer.to_str())
        renamed = {text: f"\ue000{number}\ue001" for number, text in self._special.items()}
        for token in data["added_tokens"]:
            token["content"] = renamed.get(token["content"], token["content"])
        # Some vocabularies hold them too; a Unigram model would find them in any text.
        vocabulary = data["model"]["vocab"]
        if isinstance(vocabulary, dict):
            vocabulary = {renamed.get(text, text): number for text, number in vocabulary.items()}
        else:
            vocabulary = [[renamed.get(text, text), score] for text, score in vocabulary]
        data["model"]["vocab"] = vocabulary
        tokenizer = Tokenizer.from_str(json.dumps(data))
        # Added tokens may have got other ids than before.
        old = {token["content"]: int(token["id"]) for token in data["added_tokens"]}
        new = tokenizer.get_added_tokens_decoder()
        return renamed, tokenizer, {number: old[t.content] for number, t in new.items()}


def readable_tokenizer(folder: Path) -> PromptTokenizer:
    """The tokenizer in a model's folder; raises InvalidSettings if there is none."""
    try:
        return PromptTokenizer(folder, vocabulary=model_vocabulary(folder))
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidSettings(f"{folder} has no readable tokenizer: {reason}") from None


def _replaced(text: str, found: Sequence[str], others: Mapping[str, str]) -> str:
    for each in found:
        text = text.replace(each, others[each])
    return text


def _no_place(role: str) -> InvalidSettings:
    setting = "system_prompt" if role == "system" else "few_shot"
    return InvalidSettings(
        f"The model's chat template has no place for {role} messages ({setting}, or those of a "
        "prompt). Write their text into the user's."
    )


def _turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}
