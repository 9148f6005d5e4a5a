"""The form of an answer: it is a value, and not the way to it."""

from collections import Counter

from pubswap_protocol.verifiers.math.grammar import Node, number, symbols

# What may stand once more in an answer whose reference has it, too.
_LEFT = ("root", "constant", "log")


def in_form(gold: Node, answer: Node) -> bool:
    """Whether an answer has the gold's form, and no operations left that the gold has not."""
    wanted, given = operations(gold), operations(answer)
    return given["factored"] >= wanted["factored"] and all(
        count <= wanted[name] + (name in _LEFT and wanted[name] > 0)
        for name, count in given.items()
    )


def operations(node: Node) -> Counter[str]:
    """The operations of a formula that are left to be carried out, by their kind.

    A number as a factor is none, but sums of unknowns that are factors count, and so does what
    changes nothing: adding 0, or multiplying by 1.
    """
    if is_literal(node):
        return Counter()
    counted = sum((operations(part) for part in node.parts), Counter[str]())
    counted["idle"] += _is_idle(node)
    if node.op in ("symbol", "unit"):
        counted["constant"] += not symbols(node) if node.op == "symbol" else "degree" in node.name
    elif node.op == "sum":
        counted["sum"] += len(node.parts) - 1
    elif node.op == "product":
        numbers = sum(map(is_literal, node.parts))
        counted["number"] += max(numbers - 1, 0)
        counted["product"] += max(len(node.parts) - numbers - 1, 0)
        whole = [part for part in node.parts if not is_literal(part) or core(part).op != "quotient"]
        counted["factored"] += sum(map(_is_open, whole)) if len(whole) > 1 else 0
    elif node.op == "quotient":
        counted["divided"] += all(map(is_literal, node.parts))
        counted["divided"] += any(core(part).op == "quotient" for part in node.parts)
    elif node.op == "function":
        counted["log" if node.name in ("ln", "log") else "function"] += 1
    elif node.op != "negative":
        counted[node.op] += 1
        counted["factored"] += node.op == "power" and _is_open(node.parts[0])
    return counted


def _is_idle(node: Node) -> bool:
    """Whether an operation changes nothing."""
    last = node.parts[-1] if node.parts else node
    return (
        (node.op == "sum" and any(core(part) == number(0) for part in node.parts))
        or (node.op == "product" and any(core(part) == number(1) for part in node.parts))
        or (node.op in ("quotient", "power") and last == number(1))
        or (node.op == "negative" and last.op == "negative")
    )


def _is_open(node: Node) -> bool:
    """Whether a factor is a sum of unknowns, which could be multiplied out."""
    return core(node).op == "sum" and bool(symbols(node))


def is_literal(node: Node) -> bool:
    """Whether the node is a number as it is written: 2, -2, 2/3, 10^6 or 2 * 10^6."""
    node = core(node)
    if node.op == "quotient":
        return all(core(part).op == "number" and not core(part).name for part in node.parts)
    if node.op == "product" and len(node.parts) == 2:
        return node.parts[0].op == "number" and _is_power_of_ten(node.parts[1])
    return node.op == "number" or _is_power_of_ten(node)


def _is_power_of_ten(node: Node) -> bool:
    return node.op == "power" and node.parts[0] == number(10) and is_whole(node.parts[1])


def is_whole(node: Node) -> bool:
    """Whether the node is an integer as it is written."""
    node = core(node)
    return node.op == "number" and not node.name and node.value.denominator == 1


def core(node: Node) -> Node:
    """The node without its minus sign."""
    return node.parts[0] if node.op == "negative" else node
