"""From a recipe, or run file, to its problem sets, and to a run that is open for members."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pubswap_client.base_model import model_folder, prompt_limit, tokenizer_of
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.data.fault_list import fault_list, write_fault_list
from pubswap_client.data.golds import contradictions, text_faults, too_long
from pubswap_client.data.manifest import check_files, local_files, read_manifest
from pubswap_client.recipes.recipe import Recipe, set_sizes
from pubswap_client.recipes.tables import DataFiles
from pubswap_protocol import paths
from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import Invalid, InvalidProblems, InvalidSettings
from pubswap_protocol.messages import CreateRun, RunView, SetKind
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import read_problems
from pubswap_protocol.sent_prompts import check_sent_prompts
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.peft_folder import read_peft_folder

if TYPE_CHECKING:
    from pubswap_client.policy.tokenizer import PromptTokenizer


@dataclass(frozen=True)
class Prepared:
    """The data that a coordinator receives for a run."""

    create: CreateRun
    tokenizer: bytes
    sets: dict[SetKind, bytes]
    initial_adapter: bytes | None = None


def prepare(recipe: Recipe, files: DataFiles, initial_adapter: Path | None = None) -> Prepared:
    """Read the sets, the model's card, and the PEFT folder of an initial adapter if there is one.

    Raises InvalidSettings, InvalidProblems or InvalidAdapter before anything is sent.
    """
    check_sets(recipe, files)  # before a model is downloaded
    folder = model_folder(recipe.model.location, recipe.model.revision)
    settings = recipe.run_settings
    card = recipe.model.card(folder, settings.lora, settings.grpo.longest_row)
    tokenizer = tokenizer_of(folder)
    card = run_card(card, tokenizer, settings)
    check_lengths(tokenizer, settings, files)
    initial = None
    if initial_adapter is not None:
        initial = read_peft_folder(initial_adapter, card, settings.lora)
        settings = settings.model_copy(update={"initial_adapter": digest_of(initial)})
    elif settings.initial_adapter is not None:
        raise InvalidSettings(
            "initial_adapter: only `pubswap run create` takes one; give its folder with "
            "--initial-adapter."
        )
    sets = {SetKind.PUBLIC: files.public.read_bytes(), SetKind.TEST: files.test.read_bytes()}
    create = CreateRun(name=recipe.name, settings=settings, model=card)
    return Prepared(create, (folder / "tokenizer.json").read_bytes(), sets, initial)


def run_card(card: ModelCard, tokenizer: "PromptTokenizer", run: RunSettings) -> ModelCard:
    """The model's card with what its tokenizer makes of the run's prompts, today.

    Raises InvalidSettings if its template ends a reply with a token that ends no response.
    """
    chat = run.chat_template == "auto"
    end = tokenizer.unknown_end(card.eos_token_ids) if chat and tokenizer.has_template else None
    if end is not None and tokenizer.is_control(end):
        raise InvalidSettings(
            f"The model's chat template ends a reply with {tokenizer.token_text(end)!r}, which by "
            f"its generation config ends no response. Set model.stop_token_ids = [{end}]."
        )
    turns, sample = tokenizer.turn_tokens(chat), tokenizer.prompt_sample(run)
    return card.model_copy(update={"turn_token_ids": turns, "prompt_sample": sample})


def create_and_open(api: CoordinatorClient, prepared: Prepared) -> RunView:
    """Create the run, send its files, and open it for members."""
    run = api.create_run(prepared.create)
    api.put_tokenizer(run.id, prepared.tokenizer)
    for kind, data in prepared.sets.items():
        api.put_set(run.id, kind, data)
    if prepared.initial_adapter is not None:
        api.put_initial_adapter(run.id, prepared.initial_adapter)
    return api.move_run(run.id, paths.RUN_OPEN)


def make_sets(recipe: Recipe, folder: Path | None = None) -> DataFiles:
    """The recipe's files; `data.prepare` makes their folder first, unless it exists.

    Raises what `prepare` raises, and InvalidSettings for a `folder` if the recipe makes none.
    """
    spec = recipe.data.prepare
    if spec is None:
        if folder is not None:
            raise InvalidSettings(
                f"{recipe.name} has no data.prepare, so no split can be made in {folder}; "
                f"--set data.folder={folder} uses an existing one."
            )
        return recipe.data.files(recipe.clients)
    from pubswap_client.data.prepare import prepare

    limit = prompt_limit(model_folder(recipe.model.location, recipe.model.revision), recipe)
    prepared = prepare(spec, folder or Path(f"{recipe.name}-data"), limit)
    return recipe.data.files(recipe.clients, prepared)


def check_lengths(tokenizer: "PromptTokenizer", run: RunSettings, files: DataFiles) -> None:
    """Raises InvalidProblems, with a list, if prompts or answers are too long for a step.

    Also if members could not read the public prompts.
    """
    limit, most = tokenizer.limit(run), run.grpo.max_response_tokens
    public = [files.public] if run.exchange else []  # other methods never use it
    for path in (*public, files.test, *files.private):
        if not path.exists():
            continue
        problems = read_problems(path)
        limit.check(problems, str(path))
        if path in public:
            check_sent_prompts(problems, run.grpo.prompts_per_step, str(path))
        long = too_long(problems, most, tokenizer.response_length)
        if 2 * len(long) > len(problems):
            raise InvalidProblems(
                f"{path}: {len(long)} of {len(problems)} answers do not fit in a response, such as "
                f"that of {long[0].problem.id}: {long[0].reason} (grpo.max_response_tokens). Raise "
                "that, or shorten the answers."
            )


def check_sets(recipe: Recipe, files: DataFiles) -> None:
    """Raises InvalidProblems if a set cannot be read, has answers that no response can earn, or
    has too few problems.
    """
    own = [path for path in files.private if path.exists()]
    counts = {path: _count(path, recipe) for path in (files.public, files.test, *own)}
    public, private = counts[files.public], {str(path): counts[path] for path in own}
    for fault in set_sizes(recipe, public, private):
        raise InvalidProblems(f"{recipe.name}: {fault} (grpo.prompts_per_step).")


def _count(path: Path, recipe: Recipe) -> int:
    problems = read_problems(path)
    places = {problem.id: f"line {n}" for n, problem in enumerate(problems, start=1)}
    faults = [*text_faults(problems, recipe.verifier), *contradictions(problems)]
    write_fault_list(fault_list(path), faults, places)
    if faults:
        named = (f"{places[fault.problem.id]} ({fault.reason})" for fault in faults)
        raise InvalidProblems(
            f"{path}: {len(faults)} answers that no response could earn: {first_few(named)}. "
            f"All are in {fault_list(path)}. Correct these lines, or remove them."
        )
    return len(problems)


def set_faults(recipe: Recipe, tokenizer: "PromptTokenizer | None") -> Iterator[str]:
    """The faults of the sets that exist already, or of the files that they are made from.

    `tokenizer` is the base model's, if that is here.
    """
    data, spec = recipe.data, recipe.data.prepare
    try:
        if spec is not None:
            if spec.from_ is not None:
                local_files(spec.from_)
            return
        if data.folder is not None:
            check_files(data.folder, read_manifest(data.folder))
        files = data.files(recipe.clients)
        for path in files.private:
            if not path.is_file():
                yield f"data: there is no {path}"
        check_sets(recipe, files)
        if tokenizer is not None:
            check_lengths(tokenizer, recipe, files)
    except Invalid as error:
        yield f"data: {error.detail}"
