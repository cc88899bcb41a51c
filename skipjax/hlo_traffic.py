"""How many bytes a compiled program moves to and from main memory, counted from its optimised HLO.

XLA's own cost analysis counts the body of a loop once, whatever its trip count, and a TPU's fast memory like any other.
Here a loop counts as often as it runs, and what lies in fast memory (memory space S(1) and the like) not at all. Sizes
are physical: with the padding of a layout's tiles.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

# Bytes of an element; types of less than a byte do not occur here.
_ITEM_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8"), 1),
    **dict.fromkeys(("bf16", "f16", "s16", "u16"), 2),
    **dict.fromkeys(("f32", "s32", "u32"), 4),
    **dict.fromkeys(("f64", "s64", "u64"), 8),
}
# They name memory or wait for it, and move nothing.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("copy-done", "slice-done", "dynamic-slice-done", "async-done", "async-update", "opt-barrier"),
}
_VIEWS = {"bitcast", "copy", "reshape", "transpose", "convert"}  # of all elements, each once, inside a fusion
_STARTS = {"copy-start", "slice-start", "dynamic-slice-start", "async-start"}

_INSTRUCTION = re.compile(r"\s+(ROOT )?%([\w.\-]+) = ")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)(?::((?:[A-Z]+\([^)]*\)|\([^)]*\))*))?\})?")
_CALLED = re.compile(r"\b(calls|to_apply|condition|body)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=(%[\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class _Array:
    """As printed: kind[dimensions]{order:layout}; `order` lists the minor axes first."""

    kind: str
    dimensions: str
    order: str
    layout: str

    @property
    def in_main(self) -> bool:
        """Whether it lies in main memory, which is space 0 or none."""
        return "S(" not in self.layout or "S(0)" in self.layout

    @functools.cached_property
    def size(self) -> int:
        """Bytes, wherever it lies; the first tile of the layout pads the minor axes."""
        if self.kind not in _ITEM_BYTES:
            return 0
        sizes = [int(size) for size in self.dimensions.split(",") if size]
        major_first = [sizes[int(axis)] for axis in reversed(self.order.split(","))] if self.order else sizes
        tile = re.match(r"T\(([\d,]+)\)", self.layout)
        if tile and major_first:
            tiles = [int(size) for size in tile[1].split(",")]
            major_first = [1] * (len(tiles) - len(major_first)) + major_first
            for axis, size in enumerate(reversed(tiles), 1):
                major_first[-axis] = math.ceil(major_first[-axis] / size) * size
        return math.prod(major_first) * _ITEM_BYTES[self.kind]


@dataclasses.dataclass(frozen=True)
class _Instruction:
    """One line of HLO text.

    Attributes:
      shape: as printed; of several arrays if it is a tuple.
      operands: names.
      called: computations by attribute: calls, to_apply, condition, body.
      branches: computations of a conditional.
      literal: what stands between the parentheses: the index of a parameter, the value of a constant.
      index: of a get-tuple-element.
      trips: of a loop, where XLA says it.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    called: dict[str, str]
    branches: tuple[str, ...]
    literal: str
    index: int
    trips: int | None

    @functools.cached_property
    def arrays(self) -> list[_Array]:
        return [_Array(*found.groups(default="")) for found in _ARRAY.finditer(self.shape)]

    @property
    def size(self) -> int:
        """Bytes wherever they lie: inside a fusion the printed memory space says nothing."""
        return sum(array.size for array in self.arrays)

    @property
    def in_main(self) -> int:
        """Bytes in main memory."""
        return sum(array.size for array in self.arrays if array.in_main)


@dataclasses.dataclass(frozen=True)
class _Computation:
    instructions: dict[str, _Instruction]
    root: _Instruction

    @functools.cached_property
    def parameters(self) -> list[_Instruction]:
        found = [one for one in self.instructions.values() if one.opcode == "parameter"]
        return sorted(found, key=lambda one: int(one.literal))

    def users(self, name: str) -> Iterator[_Instruction]:
        return (one for one in self.instructions.values() if name in one.operands)


class Program:
    """A compiled program's HLO.

    Args:
      text: `compiled.as_text()`.
    """

    def __init__(self, text: str):
        self._computations: dict[str, _Computation] = {}
        self._entry = _parse(text, self._computations)

    def loop_step_bytes(self) -> list[int]:
        """For each loop of the entry computation, in order, the bytes that one run of its body reads and writes.

        A conditional counts as its cheapest branch. An array that a slice is taken of counts as the slice, and one that
        is updated in place as the update.
        Raises ValueError for an inner loop whose trip count is not a constant.
        """
        loops = [one for one in self._computations[self._entry].instructions.values() if one.opcode == "while"]
        return [self._bytes(loop.called["body"]) for loop in loops]

    def total_bytes(self) -> int:
        """Bytes that the program moves, counted as in `loop_step_bytes`; every loop must have a constant trip count."""
        return self._bytes(self._entry)

    def _bytes(self, name: str) -> int:
        computation = self._computations[name]
        return sum(self._moved(one, computation) for one in computation.instructions.values())

    def _moved(self, one: _Instruction, inside: _Computation) -> int:
        if one.opcode in _FREE or (one.opcode == "custom-call" and not one.operands):
            return 0
        if one.opcode == "while":
            return self._trips(one, inside) * self._bytes(one.called["body"])
        if one.opcode == "conditional":
            return min(self._bytes(branch) for branch in one.branches)
        if one.opcode == "call":
            return self._bytes(one.called["to_apply"])
        if one.opcode in _STARTS:
            # The shape lists the two ends and a semaphore. What is copied may be a slice of the larger one.
            source, target, *_ = one.arrays
            return (source.in_main + target.in_main) * min(source.size, target.size)
        read = sum(
            self._read(one, position, inside.instructions[operand]) for position, operand in enumerate(one.operands)
        )
        return read + self._written(one, inside)

    def _read(self, one: _Instruction, position: int, operand: _Instruction) -> int:
        """Bytes that an instruction reads of its operand at `position`."""
        if not operand.in_main:
            return 0
        if one.opcode == "fusion":
            fused = self._computations[one.called["calls"]]
            return min(operand.in_main, self._used(fused, fused.parameters[position]))
        return self._used_by(one, operand, position)

    def _used(self, fused: _Computation, value: _Instruction) -> int:
        """Bytes of a fusion's parameter, or of a view of it, that the fusion reads."""
        total = value.size if value is fused.root else 0
        for user in fused.users(value.name):
            for position in (at for at, name in enumerate(user.operands) if name == value.name):
                inner = self._computations[user.called["calls"]] if user.opcode == "fusion" else None
                if user.opcode in _VIEWS or (inner is not None and _is_view(inner)):
                    total += self._used(fused, user)
                elif inner is not None:
                    total += self._used(inner, inner.parameters[position])
                else:
                    total += self._used_by(user, value, position)
        return total

    @staticmethod
    def _used_by(user: _Instruction, value: _Instruction, position: int) -> int:
        if position == 0 and user.opcode in ("slice", "dynamic-slice", "gather"):
            return min(user.size, value.size)
        if position == 0 and user.opcode in ("dynamic-update-slice", "scatter"):
            return 0  # what is not updated stays where it is
        if user.opcode == "get-tuple-element":
            return 0
        return value.size

    def _written(self, one: _Instruction, inside: _Computation) -> int:
        if not one.in_main:
            return 0
        if one.opcode in ("dynamic-update-slice", "scatter"):
            return inside.instructions[one.operands[1 if one.opcode == "dynamic-update-slice" else 2]].size
        if one.opcode != "fusion":
            return one.in_main
        fused = self._computations[one.called["calls"]]
        roots = [fused.root]
        if fused.root.opcode == "tuple":
            roots = [fused.instructions[name] for name in fused.root.operands]
        if len(roots) != len(one.arrays):  # one instruction that gives several arrays
            return one.in_main
        written = 0
        for root, array in zip(roots, one.arrays, strict=True):
            while root.opcode == "bitcast":
                root = fused.instructions[root.operands[0]]
            if array.in_main:
                updates = root.opcode in ("dynamic-update-slice", "scatter")
                written += min(array.size, self._written(root, fused)) if updates else array.size
        return written

    def _trips(self, loop: _Instruction, inside: _Computation) -> int:
        """How often a loop runs: as XLA says, or as follows from its counting one element of its state up to a constant
        (XLA:TPU does not say)."""
        if loop.trips is not None:
            return loop.trips
        test, body = self._computations[loop.called["condition"]], self._computations[loop.called["body"]]
        compared = [test.instructions[name] for name in test.root.operands]
        if test.root.opcode == "compare" and len(compared) == 2 and compared[0].opcode == "get-tuple-element":
            index = compared[0].index
            state = inside.instructions[loop.operands[0]]
            first = _constant(inside, state.operands[index]) if state.opcode == "tuple" else None
            last = _constant(test, compared[1].name)
            step = _increment(body, body.root.operands[index])
            if first is not None and last is not None and step:
                return math.ceil((last - first) / step)
        raise ValueError(f"the trip count of loop {loop.name} is not a constant")


def _is_view(fused: _Computation) -> bool:
    found = fused.root
    while found.opcode in _VIEWS:
        found = fused.instructions[found.operands[0]]
    return found.opcode == "parameter"


def _constant(inside: _Computation, name: str) -> int | None:
    found = inside.instructions[name]
    while found.opcode in ("copy", "bitcast", "copy-done", "copy-start"):
        found = inside.instructions[found.operands[0]]
    return int(found.literal) if found.opcode == "constant" and found.literal.lstrip("-").isdigit() else None


def _increment(body: _Computation, name: str) -> int | None:
    """What a loop's body adds to a counter."""
    found = body.instructions[name]
    while found.opcode in ("copy", "bitcast", "copy-done", "copy-start"):
        found = body.instructions[found.operands[0]]
    steps = [_constant(body, operand) for operand in found.operands] if found.opcode == "add" else []
    return next((step for step in steps if step is not None), None)


def _parse(text: str, computations: dict[str, _Computation]) -> str:
    """Fills `computations` by name and returns the name of the entry."""
    entry, name = "", ""
    instructions: dict[str, _Instruction] = {}
    root: _Instruction | None = None
    for line in text.splitlines():
        if header := re.match(r"(ENTRY )?%([\w.\-]+) \(.*\{$", line):
            name, instructions = header[2], {}
            entry = name if header[1] else entry
        elif line.startswith("}") and name:
            assert root is not None, "a computation has a root"
            computations[name] = _Computation(instructions, root)
            name = ""
        elif name and (found := _INSTRUCTION.match(line)):
            one = _instruction(found[2], re.sub(r"/\*.*?\*/", "", line[found.end() :]))
            instructions[one.name] = one
            root = one if found[1] else root
    return entry


def _instruction(name: str, rest: str) -> _Instruction:
    shape_end = _balanced(rest) if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:shape_end], rest[shape_end:].lstrip()
    opcode, _, rest = rest.partition("(")
    end = _balanced("(" + rest) - 1
    inner, attributes = rest[: end - 1], rest[end:].split(", metadata={")[0].split(", backend_config={")[0]
    branches = [one for found in _BRANCHES.findall(attributes) for one in re.findall(r"%([\w.\-]+)", "".join(found))]
    index = re.search(r"\bindex=(\d+)", attributes)
    trips = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', rest[end:])
    return _Instruction(
        name=name,
        shape=shape,
        opcode=opcode,
        operands=() if opcode == "constant" else tuple(re.findall(r"%([\w.\-]+)", inner)),
        called=dict(_CALLED.findall(attributes)),
        branches=tuple(branches),
        literal=inner,
        index=int(index[1]) if index else -1,
        trips=int(trips[1]) if trips else None,
    )


def _balanced(text: str) -> int:
    """The length of the parenthesis that `text` begins with."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position + 1
    raise ValueError(f"no closing parenthesis in {text:.80}")
