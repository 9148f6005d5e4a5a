"""The base model's tokenizer: templates for prompts, plain decoding for responses.

Only the template makes control tokens. The text of a problem that spells one, such as
`<|im_end|>`, is encoded as text.
"""

import datetime
import json
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType

import transformers
from jinja2 import TemplateError
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from transformers import AutoTokenizer

from pubswap_protocol.errors import BaseModelMismatch, InvalidProblems, InvalidSettings
from pubswap_protocol.model import SAMPLE_TOKENS, ModelCard, PromptSample, model_vocabulary
from pubswap_protocol.problems import PromptLimit
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tokenizer import load_tokenizer

_PROBE, _REPLY, _THOUGHT = "PubSwapQuestion", "PubSwapReply", "PubSwapThought"
_DATE_CODES = [f"%{flag}{code}" for code in "aAbBcdHIjmMpSuUVwWxXyYFTe" for flag in ("", "-")]
_EXAMPLE = "What is 12 + 30?"  # not a member's: reports of it are passed on
_SAMPLE = "What is 12 + 30?\n\n  Naïve λ ≤ ½, 北京 🙂\tif (x[0] == 'a'): pass"

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

    def encode(self, prompt: str, chat: bool, options: Options = NO_OPTIONS) -> list[int]:
        """A prompt's token ids. With `chat`, apply the template, if there is one, with `options`.

        Raises InvalidSettings if the template fails, and InvalidProblems if the prompt spells a
        control token and cannot be kept apart from the template.
        """
        chat = chat and self.has_template
        text = self._written(prompt, options) if chat else prompt
        tokens = self._encode(text, chat)
        key = json.dumps([chat, sorted(options.items())])
        if key not in self._made:
            probe = self._written(_PROBE, options) if chat else _PROBE
            self._made[key] = self._control(self._encode(probe, chat))
        if self._control(tokens) != self._made[key]:
            tokens = self._encode_as_text(prompt, text, chat, options)
            if self._control(tokens) != self._made[key]:
                raise InvalidProblems(
                    f"The prompt {prompt[:40]!r}... spells one of the model's control tokens, "
                    "which this tokenizer cannot read as text. Change its text."
                )
        return tokens

    def encode_for(self, run: RunSettings, prompt: str) -> list[int]:
        """A prompt's token ids as all members of a run encode it.

        Raises InvalidProblems if the model does not have one of these tokens.
        """
        tokens = self.encode(prompt, run.chat_template == "auto", run.chat_template_options)
        last = max(tokens, default=0)
        if self._vocabulary is not None and last >= self._vocabulary:
            raise InvalidProblems(
                f"The prompt {prompt[:40]!r}... has the token {self.token_text(last)!r} ({last}), "
                f"and the model has only the first {self._vocabulary}. Remove it, or use the chat "
                "template that was published with the model."
            )
        return tokens

    def example(self, run: RunSettings) -> str:
        """A fixed prompt's number of tokens, and its text as a run's model gets it."""
        tokens = self.encode_for(run, _EXAMPLE)
        text = str(self.plain.decode(tokens, skip_special_tokens=False))
        return f"{_EXAMPLE!r} is {len(tokens)} tokens: {text!r}"

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
            raise InvalidSettings(
                f"The model's chat template fails ({error}). Change chat_template_options, or "
                "set chat_template = 'none'."
            ) from None
        return str(text)

    def _written(self, prompt: str, options: Options) -> str:
        return self._render([_turn("user", prompt)], options, reply=True)

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

    def _encode_as_text(self, prompt: str, text: str, chat: bool, options: Options) -> list[int]:
        """Encode the template's `text` of a prompt that spells control tokens.

        In a copy of the tokenizer the control tokens have other texts, and so they get in what the
        template wrote around the prompt: only there are they found.
        """
        before, found, after = "", _PROBE, ""
        if chat:
            before, found, after = self._written(_PROBE, options).partition(_PROBE)
        inner = text.removeprefix(before).removesuffix(after)
        if not found or text != before + inner + after:
            raise InvalidProblems(
                f"The prompt {prompt[:40]!r}... spells one of the model's control tokens, and the "
                "chat template changes it. Change its text."
            )
        renamed, tokenizer, numbers = self._disguised
        for content in sorted(renamed, key=len, reverse=True):
            before = before.replace(content, renamed[content])
            after = after.replace(content, renamed[content])
        tokens = tokenizer.encode(before + inner + after, add_special_tokens=not chat).ids
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


def _turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}
