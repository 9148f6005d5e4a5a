"""The comparison of a reference with an answer, as trees, for a question."""

from collections.abc import Callable, Sequence

from pubswap_protocol.verifiers.math.form import core, in_form
from pubswap_protocol.verifiers.math.grammar import Node, negative, number, symbols
from pubswap_protocol.verifiers.math.question import Question
from pubswap_protocol.verifiers.math.tokens import Unreadable
from pubswap_protocol.verifiers.math.units import OMITTED, may_name, split_scale
from pubswap_protocol.verifiers.math.value import same_solutions, same_value

MAX_ITEMS = 64


class Comparison:
    """The comparison of a gold with an answer, for a question."""

    def __init__(self, question: Question) -> None:
        self.question = question

    def equal(self, gold: Node, answer: Node) -> bool:
        golds, answers = _items(gold), _items(answer)
        if len(golds) != len(answers):
            return False
        if len(golds) > 1:
            ordered = any(item.op == "relation" and item.name != "=" for item in golds)
            alike = not ordered or gold.name == answer.name
            return alike and _same_names(golds, answers) and self.matched(golds, answers)
        if gold.op == "set" and answer.op != "set":
            return False
        gold, answer = golds[0], answers[0]
        if self.question.repeated(gold, answer):
            return False
        if gold.op == "relation" and answer.op == "relation":
            return self.relations(_turned(gold), _turned(answer))
        if gold.op == "relation":
            return bool(_assigned(gold)) and self.equal(gold.parts[1], answer)
        if answer.op == "relation":
            return self.concluded(gold, answer)
        if {gold.op, answer.op} & {"tuple", "matrix", "row", "union", "list", "set"}:
            return self.composite(gold, answer)
        return self.quantities(gold, answer)

    def matched(self, golds: Sequence[Node], answers: Sequence[Node]) -> bool:
        """Whether the items are equal in some order, each as often."""
        rest = list(answers)
        for gold in golds:
            found = next((at for at, item in enumerate(rest) if self.equal(gold, item)), None)
            if found is None:
                return False
            del rest[found]
        return not rest

    def composite(self, gold: Node, answer: Node) -> bool:
        """Points, vectors, matrices, intervals and unions."""
        if gold.op == answer.op == "union":
            return self.matched(gold.parts, answer.parts)
        golds, answers = _entries(gold), _entries(answer)
        if not golds or not answers:
            golds, answers = gold.parts, answer.parts
            if (gold.op, gold.name) != (answer.op, answer.name):
                return False
        return len(golds) == len(answers) and all(map(self.equal, golds, answers))

    def concluded(self, gold: Node, answer: Node) -> bool:
        """x = 6 for 6; also 2 + 4 = 6, if both sides have this value."""
        if set(answer.name.split()) != {"="}:
            return False
        *before, last = answer.parts
        rest = before[1:] if _is_named(before[0]) else before
        return self.equal(gold, last) and all(
            not symbols(gold) and not symbols(part) and same_value(gold, part) for part in rest
        )

    def relations(self, gold: Node, answer: Node) -> bool:
        """The same sides, or an equation with the same solutions for one in standard form."""
        if gold.name != answer.name or len(gold.parts) != len(answer.parts):
            return False
        if all(map(self.equal, gold.parts, answer.parts)):
            return True
        solved = any(map(_is_named, (*gold.parts, *answer.parts)))
        if solved or gold.name not in ("=", "<", "<=") or not symbols(gold) & symbols(answer):
            return False
        left, right = _difference(gold), _difference(answer)
        return in_form(left, right) and same_solutions(left, right, positive=gold.name != "=")

    def quantities(self, gold: Node, answer: Node) -> bool:
        """The same number with the same unit, which one side may omit."""
        (gold, gold_unit), (answer, unit) = _bare(gold), _bare(answer)
        (gold_scale, gold_rest), (scale, rest) = split_scale(gold_unit), split_scale(unit)
        if rest and not may_name(rest, gold_rest, self.question.prompt):
            return False
        if gold_unit and unit and gold_scale != scale and gold_rest != rest:
            return False
        alike = gold_scale == scale or self.may_scale(gold, gold_scale, scale)
        if alike and _same_number(gold, answer):
            return True
        return gold_scale != scale and _same_number(
            Node("unit", (gold,), gold_scale), Node("unit", (answer,), scale)
        )

    def may_scale(self, gold: Node, gold_scale: str, scale: str) -> bool:
        """Whether one side may omit a scale: 50 is 50%, and 8.5 may be 8.5 million."""
        either = gold_scale or scale
        if (gold_scale and scale) or either not in OMITTED:
            return False
        if either == "percent":
            return core(gold).value >= 1
        return bool(gold_scale) or either == "degree" or either in self.question.prompt.lower()


def _same_number(gold: Node, answer: Node) -> bool:
    same = symbols(gold) == symbols(answer) and in_form(gold, answer)
    return same and same_value(gold, answer)


def _bare(node: Node) -> tuple[Node, str]:
    """A value without its units, and these."""
    inner, unit = _bare(node.parts[0]) if node.op == "unit" else (node, "")
    return inner, f"{unit} {node.name}".strip() if node.op == "unit" else ""


def _items(node: Node) -> list[Node]:
    """The values that an answer lists, or the one that it is; a double sign stands for two."""
    parts = node.parts if node.op in ("list", "set") else (node,)
    items: list[Node] = []
    for part in parts:
        both = [_signed(part, lambda term: term), _signed(part, negative)]
        items += both if both[0] != both[1] else [part]
    if len(items) > MAX_ITEMS:
        raise Unreadable
    return items


def _signed(node: Node, sign: Callable[[Node], Node]) -> Node:
    """A formula with one of the two signs for each double sign."""
    parts = tuple(_signed(part, sign) for part in node.parts)
    if node.op != "either":
        return Node(node.op, parts, node.name, node.value)
    parts = (*parts[:-1], sign(parts[-1]))
    return Node("sum", parts) if len(parts) > 1 else parts[0]


def _is_named(node: Node) -> bool:
    return (
        node.op == "symbol" and node.name not in (r"\infty", r"\emptyset") and " " not in node.name
    )


def _assigned(node: Node) -> str:
    """The name that an equation gives a value to, else ""."""
    if node.op == "relation" and node.name == "=" and _is_named(node.parts[0]):
        return node.parts[0].name
    return ""


def _same_names(golds: Sequence[Node], answers: Sequence[Node]) -> bool:
    """Whether two lists give values to the same names, or one to a single name."""
    ours, theirs = (sorted(map(_assigned, side)) for side in (golds, answers))
    names = {*ours, *theirs}
    return ours == theirs or (len(names) == 2 and "" in names and not (set(ours) & set(theirs)))


def _turned(relation: Node) -> Node:
    """A relation with its smaller side first, or with the name that it gives a value to."""
    names = relation.name.split()
    value_first = not _is_named(relation.parts[0]) and _is_named(relation.parts[-1])
    if set(names) <= {">", ">="} or (names == ["="] and value_first):
        turned = " ".join(reversed(names)).replace(">", "<")
        return Node("relation", relation.parts[::-1], turned)
    return relation


def _difference(relation: Node) -> Node:
    left, right = relation.parts
    terms = left.parts if left.op == "sum" else (left,)
    return left if right == number(0) else Node("sum", (*terms, negative(right)))


def _entries(node: Node) -> tuple[Node, ...]:
    """The entries of a point, a list in brackets, or a column."""
    interval = node.name != "()" and len(node.parts) == 2 and len(set(node.parts)) == 2
    if node.op == "tuple" and node.name in ("()", "[]") and not interval:
        return node.parts
    if node.op == "matrix" and all(len(row.parts) == 1 for row in node.parts):
        return tuple(row.parts[0] for row in node.parts)
    return ()
