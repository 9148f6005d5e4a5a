"""The sets of a recipe: made where it says how, and checked as they lie on the disk."""

from collections.abc import Iterator
from pathlib import Path

from pubswap_client.base_model import local_folder, model_folder, prompt_limit
from pubswap_client.data.manifest import check_files, local_parts, read_manifest
from pubswap_client.recipes.recipe import Recipe, set_sizes
from pubswap_client.recipes.sources import DataFiles
from pubswap_protocol.errors import Invalid, InvalidProblems, InvalidSettings
from pubswap_protocol.problems import read_problems
from pubswap_protocol.settings import RunSettings


def make_sets(recipe: Recipe, folder: Path | None = None) -> DataFiles:
    """The recipe's files, of which `data.prepare` makes a folder first, unless it is there.

    Raises InvalidSettings for a folder with a recipe that makes none, and what making raises.
    """
    spec = recipe.data.prepare
    if spec is None:
        if folder is not None:
            raise InvalidSettings(
                f"{recipe.name} has no data.prepare, so that no split is made in {folder}; "
                f"--set data.folder={folder} takes the one that is there."
            )
        return recipe.data.files(recipe.clients)
    from pubswap_client.data.prepare import prepare

    limit = prompt_limit(model_folder(recipe.model.location, recipe.model.revision), recipe)
    made = prepare(spec, folder or Path(f"{recipe.name}-data"), limit)
    return recipe.data.files(recipe.clients, made)


def check_lengths(model: Path, run: RunSettings, files: DataFiles) -> None:
    """Raises InvalidProblems, with a list, for a prompt that some step could not take."""
    limit = prompt_limit(model, run)
    public = [files.public] if run.method == "pubswap" else []  # nobody else draws from it
    for path in (*public, files.test, *files.private):
        if path.exists():
            limit.check(read_problems(path), str(path))


def check_sets(recipe: Recipe, files: DataFiles) -> None:
    """Raises InvalidProblems for a set that cannot be read, or holds too few problems."""
    public = len(read_problems(files.public))
    read_problems(files.test)
    private = {str(path): len(read_problems(path)) for path in files.private if path.exists()}
    for fault in set_sizes(recipe, public, private):
        raise InvalidProblems(f"{recipe.name}: {fault} (grpo.prompts_per_step).")


def set_faults(recipe: Recipe) -> Iterator[str]:
    """What is wrong with the sets that are there already, or with what they are made from."""
    data, spec = recipe.data, recipe.data.prepare
    try:
        if spec is not None:
            if spec.from_ is not None:
                local_parts(spec.from_)
            return
        if data.folder is not None:
            check_files(data.folder, read_manifest(data.folder))
        files = data.files(recipe.clients)
        for path in files.private:
            if not path.is_file():
                yield f"data: there is no {path}"
        check_sets(recipe, files)
        if (model := _model_here(recipe)) is not None:
            check_lengths(model, recipe, files)
    except Invalid as error:
        yield f"data: {error.detail}"


def _model_here(recipe: Recipe) -> Path | None:
    try:
        return local_folder(recipe.model.location, recipe.model.revision)
    except InvalidSettings:
        return None  # a fault of the model, and no set's
