"""The sets of a recipe as they lie on the disk."""

from pubswap_client.recipes.consistency import set_sizes
from pubswap_client.recipes.recipe import Recipe
from pubswap_client.recipes.sources import DataFiles
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import read_problems


def check_sets(recipe: Recipe, files: DataFiles) -> None:
    """Raises InvalidProblems for a set that cannot be read, or holds too few problems."""
    public = len(read_problems(files.public))
    read_problems(files.test)
    private = {str(path): len(read_problems(path)) for path in files.private if path.exists()}
    for fault in set_sizes(recipe, public, private):
        raise InvalidProblems(f"{recipe.name}: {fault} (grpo.prompts_per_step).")
