"""A rule that a tiny random model can learn."""


def is_even(text: str) -> bool:
    """Whether a response has an even number of characters, its control tokens not counted."""
    return len(text.replace("<pad>", "").replace("<unk>", "")) % 2 == 0
