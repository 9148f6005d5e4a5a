"""Every error that crosses the wire or reaches a user.

* PubSwapError
  + Unauthenticated             unauthenticated            401
  + Forbidden                   forbidden                  403
    - Suspended                 suspended                  403   (worth a retry)
  + NotFound                    not_found                  404
    - UnknownRun                unknown_run                404
    - UnknownBlob               unknown_blob               404
    - UnknownUpload             unknown_upload             404
  + TooSlow                     too_slow                   408   (worth a retry)
  + Conflict                    conflict                   409
    - WrongState                wrong_state                409
    - RoundClosed               round_closed               409
    - RunCancelled              run_cancelled              409
    - RunPaused                 run_paused                 409
    - IdempotencyMismatch       idempotency_mismatch       409
    - BaseModelMismatch         base_model_mismatch        409
    - OtherTerms                other_terms                409
    - HelloNeeded               hello_needed               409
    - NameTaken                 name_taken                 409
    - TooManyAdapters           too_many_adapters          409
    - StateInUse                state_in_use               409
  + Gone                        gone                       410
    - InviteExpired             invite_expired             410
    - InviteUsed                invite_used                410
  + TooLarge                    too_large                  413
  + UnsupportedEncoding         unsupported_encoding       415
  + UnsupportedType             unsupported_type           415
  + WrongOffset                 wrong_offset               416
  + OutOfRange                  out_of_range               416
  + Invalid                     invalid                    422
    - InvalidAdapter            invalid_adapter            422
    - InvalidUpdate             invalid_update             422
    - InvalidResponses          invalid_responses          422
    - InvalidProblems           invalid_problems           422
    - InvalidSettings           invalid_settings           422
    - DigestMismatch            digest_mismatch            422
    - LengthMismatch            length_mismatch            422
  + ProtocolMismatch            protocol_mismatch          426
    - UnknownSetting            unknown_setting            426
  + TooManyRequests             too_many_requests          429   (worth a retry)
  + Unavailable                 unavailable                503   (worth a retry)
    - Unreachable               unreachable                503   (worth a retry)
    - Fenced                    fenced                     503   (worth a retry)
    - DamagedBlob               damaged_blob               503   (worth a retry)
  + NoSpace                     no_space                   507   (worth a retry)
  + ServerFault                 server_fault               500   (worth a retry)
    - ProxyFault                proxy_fault                502   (worth a retry)
  + LocalFault                  local_fault                500
    - OutOfMemory               out_of_memory              500
    - Diverged                  diverged                   500
    - LedgerDamaged             ledger_damaged             500
    - PrivacySpent              privacy_spent              500
    - NotSaved                  not_saved                  507
    - RefusedByPolicy           refused_by_policy          403
    - BackupFault               backup_fault               500
    - EngineFault               engine_fault               500
      + StaleAdapter            stale_adapter              500
    - VerifierFault             verifier_fault             500

The server sends an error as RFC 9457 problem+json, and the client raises the same class again, but
never a LocalFault, because that concerns the client's own machine.
`code` is stable; the detail is for people and says what to do next.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, Field, ValidationError

from pubswap_protocol.bounds import NAME_FORM, NAME_PATTERN, safe_text
from pubswap_protocol.command_line.removed import removal, removed_value


class ProblemDetails(BaseModel, extra="ignore"):
    """The RFC 9457 body of a refused request."""

    type: str = "about:blank"
    title: str
    status: int = Field(ge=100, le=599)
    detail: str
    code: str
    request_id: str | None = None


class PubSwapError(Exception):
    """The request could not be carried out."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, status: int | None = None, retryable: bool | None = None) -> None:
        """The code is the class's name in snake_case; other attributes are inherited by default."""
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        cls.status = cls.status if status is None else status
        cls.retryable = cls.retryable if retryable is None else retryable

    def __init__(self, detail: str | None = None, *, retry_after: float | None = None) -> None:
        """`retry_after` is the minimum time in seconds to wait before a retry, if known."""
        self.detail = detail or self.title()
        self.retry_after = retry_after
        super().__init__(self.detail)

    @classmethod
    def title(cls) -> str:
        """The first line of the class's docstring, which describes the error in general."""
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0]

    def problem(self, request_id: str | None = None) -> ProblemDetails:
        """The problem+json body for this error."""
        return ProblemDetails(
            type=f"urn:pubswap:error:{self.code}",
            title=self.title(),
            status=self.status,
            detail=self.detail,
            code=self.code,
            request_id=request_id,
        )


class Unauthenticated(PubSwapError, status=401):
    """The token is missing or not valid."""


class Forbidden(PubSwapError, status=403):
    """The token does not allow this."""


class Suspended(Forbidden, retryable=True):  # a daemon keeps running, and continues once reinstated
    """The operator has suspended this member for now."""


class NotFound(PubSwapError, status=404):
    """The resource does not exist."""


class UnknownRun(NotFound):
    """There is no such run, or this token does not belong to it."""


class UnknownBlob(NotFound):
    """No blob with this digest is stored for this run."""


class UnknownUpload(NotFound):
    """The upload is finished, was abandoned, or has expired."""


class TooSlow(PubSwapError, status=408, retryable=True):
    """The request did not arrive fast enough."""


class Conflict(PubSwapError, status=409):
    """The request contradicts what is already recorded."""


class WrongState(Conflict):
    """The state of the run does not allow this."""


class RoundClosed(Conflict):
    """The round or public step is closed."""


class RunCancelled(Conflict):
    """The operator has cancelled the run; stop training."""


class RunPaused(Conflict):
    """The operator has paused the run; hold this until it is resumed, and then send it."""


class IdempotencyMismatch(Conflict):
    """This was already submitted with different contents."""


class BaseModelMismatch(Conflict):
    """The base model's files differ from the run's."""


class OtherTerms(Conflict):
    """The run has no terms that can be read, or the coordinator shows something else than them."""


class HelloNeeded(Conflict):
    """The member has not yet reported its base model and verifier in a hello.

    Restart its daemon, and fix whatever it is then refused for.
    """


class NameTaken(Conflict):
    """The name is already in use."""


class TooManyAdapters(Conflict):
    """The member has stored the maximum number of adapters in this round."""


class StateInUse(Conflict):
    """Another daemon is using this state folder."""


class Gone(PubSwapError, status=410):
    """This is no longer available."""


class InviteExpired(Gone):
    """The invite has expired."""


class InviteUsed(Gone):
    """The invite was already used."""


class TooLarge(PubSwapError, status=413):
    """The body is larger than allowed."""


class UnsupportedEncoding(PubSwapError, status=415):
    """The body is compressed or otherwise encoded."""


class UnsupportedType(PubSwapError, status=415):
    """The body's Content-Type is not accepted here."""


class WrongOffset(PubSwapError, status=416):
    """The chunk does not start where the stored bytes end."""


class OutOfRange(PubSwapError, status=416):
    """The requested range is beyond the end of the file."""


class Invalid(PubSwapError, status=422):
    """The request is not well formed."""


class InvalidAdapter(Invalid):
    """The adapter does not fit this run."""


class InvalidUpdate(Invalid):
    """The update does not follow the run's settings."""


class InvalidResponses(Invalid):
    """The responses do not belong to this public step."""


class InvalidProblems(Invalid):
    """The problem file has a line that cannot be used."""


class InvalidSettings(Invalid):
    """The settings contradict each other or are out of range."""


class DigestMismatch(Invalid):
    """The bytes received do not have the announced digest."""


class LengthMismatch(Invalid):
    """The body is longer or shorter than declared."""


class ProtocolMismatch(PubSwapError, status=426):
    """Client and coordinator speak different protocol versions."""


class UnknownSetting(ProtocolMismatch):
    """The run has a setting that this version of pubswap does not know."""


class TooManyRequests(PubSwapError, status=429, retryable=True):
    """The member has too many requests or open uploads."""


class Unavailable(PubSwapError, status=503, retryable=True):
    """The coordinator cannot answer now."""


class Unreachable(Unavailable):
    """The coordinator cannot be reached."""


class Fenced(Unavailable):
    """Another replica of the coordinator has changed the run; nothing was changed here."""


class NoSpace(PubSwapError, status=507, retryable=True):
    """The coordinator has no space for these bytes now."""


class DamagedBlob(Unavailable):
    """The stored bytes differ from those that were sent; they are requested again."""


class ServerFault(PubSwapError, retryable=True):
    """The coordinator failed; its log names the request id."""


class ProxyFault(ServerFault, status=502):
    """A proxy or another server answered instead of the coordinator."""


class LocalFault(PubSwapError):
    """Something on this machine prevents the operation."""


class OutOfMemory(LocalFault):
    """Memory ran out even for the smallest steps."""


class Diverged(LocalFault):
    """Training diverged: a gradient or factor is not a number."""


class NotSaved(LocalFault, status=507):
    """A file could not be written to the local disk."""


class RefusedByPolicy(LocalFault, status=403):
    """This organisation's own policy does not allow it."""


class LedgerDamaged(LocalFault):
    """The end of the ledger differs from what was written."""


class PrivacySpent(LocalFault):
    """One more round would reveal more about a private prompt than the run allows."""


class BackupFault(LocalFault):
    """The backup cannot be made, or cannot be used."""


class EngineFault(LocalFault):
    """The rollout engine failed, or gave an unusable answer."""


class StaleAdapter(EngineFault):
    """The rollout engine does not serve the policy's current adapter."""


class VerifierFault(LocalFault):
    """This machine cannot run a verifier, so nothing is known about any response."""


def tree(root: type[PubSwapError]) -> list[type[PubSwapError]]:
    """A class and all its subclasses."""
    return [root, *(descendant for child in root.__subclasses__() for descendant in tree(child))]


def error_for(problem: ProblemDetails, retry_after: float | None = None) -> PubSwapError:
    """The error described by a problem+json body.

    A code that is unknown, or a LocalFault's, becomes ServerFault or Invalid, depending on the
    status. `retry_after` is the response's Retry-After header in seconds, if it had one.
    """
    by_code = {error.code: error for error in tree(PubSwapError)}
    error_class = by_code.get(problem.code)
    if error_class is None or issubclass(error_class, LocalFault):
        error_class = ServerFault if problem.status >= 500 else Invalid
    return error_class(safe_text(problem.detail), retry_after=retry_after)


def first_fault(error: ValidationError) -> str:
    """The first error of a validation as text: `key: message`."""
    return fault_text(error.errors()[0])


# pydantic's own words take its vocabulary for granted.
_PLAIN = {
    "extra_forbidden": "there is no such field",
    "missing": "it is missing",
    "string_type": "it must be text, in quotes",
}


def _setting(key: str) -> str:
    return key.removeprefix("body.").removeprefix("settings.")


def fault_text(fault: Mapping[str, Any]) -> str:
    """A validation error as text: `key: message`, or the message alone if it has no key."""
    key = ".".join(map(str, fault["loc"]))
    unknown = fault["type"] == "extra_forbidden"
    if unknown and isinstance(fault.get("input"), Mapping):
        inner = (f"{key}.{name}" for name in fault["input"])
        key = next((each for each in inner if removal(_setting(each))), key)
    setting = _setting(key)
    if gone := removal(setting) if unknown else removed_value(setting, fault.get("input")):
        return f"{key}: {gone}"
    message = _PLAIN.get(fault["type"]) or fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "string_too_short" and not fault["input"]:
        message = "it is empty"
    if fault.get("ctx", {}).get("pattern") == NAME_PATTERN:
        message = f"{fault['input']!r} is not a valid name: a name is {NAME_FORM}"
    return f"{key}: {message}" if key else message
