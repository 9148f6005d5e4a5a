"""From a run's file, which is a recipe, to a run that is open for members."""

from dataclasses import dataclass

from pubswap_client.base_model import model_folder
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.recipes.recipe import Recipe
from pubswap_client.recipes.sets import check_lengths, check_sets
from pubswap_client.recipes.sources import DataFiles
from pubswap_protocol import paths
from pubswap_protocol.messages import CreateRun, RunView, SetKind
from pubswap_protocol.model import model_card


@dataclass(frozen=True)
class Prepared:
    """What a coordinator is sent for a run."""

    create: CreateRun
    tokenizer: bytes
    sets: dict[SetKind, bytes]


def prepare(recipe: Recipe, files: DataFiles) -> Prepared:
    """Read the sets and the model's card.

    Raises InvalidSettings or InvalidProblems before anything is sent.
    """
    check_sets(recipe, files)  # before a model is downloaded
    folder = model_folder(recipe.model.location, recipe.model.revision)
    settings = recipe.run_settings
    model = recipe.model
    card = model_card(folder, settings.lora, model.source, model.revision, model.stop_token_ids)
    check_lengths(folder, settings, files)
    sets = {SetKind.PUBLIC: files.public.read_bytes(), SetKind.TEST: files.test.read_bytes()}
    create = CreateRun(name=recipe.name, settings=settings, model=card)
    return Prepared(create, (folder / "tokenizer.json").read_bytes(), sets)


def create_and_open(api: CoordinatorClient, prepared: Prepared) -> RunView:
    """Create the run, send its tokenizer and sets, and open it for members."""
    run = api.create_run(prepared.create)
    api.put_tokenizer(run.id, prepared.tokenizer)
    for kind, data in prepared.sets.items():
        api.put_set(run.id, kind, data)
    return api.move_run(run.id, paths.RUN_OPEN)
