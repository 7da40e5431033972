"""What a compiled XLA program really multiplies with, read off its text (`compiled.as_text()`). No JAX."""

import re
from dataclasses import dataclass

#: Custom calls that multiply their first two operands: cuBLAS and cuBLASLt, cuDNN with block scales, oneDNN.
_MULTIPLYING_CALLS = ("__cublas$", "__cudnn$blockScaledDot", "__op$block_scaled_dot", "__onednn$matmul")
#: XLA for TPU writes a dot as a convolution.
_MULTIPLYING_OPS = ("dot", "scaled-dot", "convolution")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CALLED = re.compile(r"\bcalls=%?([\w.\-]+)")
_FUSION_KIND = re.compile(r'"kind":"([^"]*)"')
_LOOP_KIND = re.compile(r"\bkind=(\w+)")


@dataclass(frozen=True)
class HloSummary:
    """What runs, and whether it is what was asked for.

    calls:  custom calls and dots, in the order of the text, each once, with the dtypes of what they multiply, such as
            «__cublas$lt$matmul$f8(f8e4m3fn, f8e4m3fn) -> bf16» or «__triton_gemm: dot(bf16, bf16) -> f32».
    upcast: whether a multiply takes operands wider than the program's own, or, where those are not told, than every
            matrix that it is given; None where no multiply
            shows in the text, as for a kernel that is one opaque custom call.
    """

    calls: tuple[str, ...]
    upcast: bool | None


@dataclass(frozen=True)
class _Instruction:
    """One line: where it stands, its result's dtype and rank, its operation, and what it is applied to."""

    computation: str
    dtype: str
    rank: int
    operation: str
    operands: tuple[str, ...]
    line: str


def summarize(text: str, operand_bits: int | None = None) -> HloSummary:
    """Summary of the text of one compiled program.

    operand_bits: of an element of the wider operand; block scales in FP32 are matrices too, and wider.

    Raises ValueError for a text without an entry computation.
    """
    entry, instructions = _parse(text)
    if entry is None:
        raise ValueError(f"no ENTRY computation in the text given as HLO, which begins {text[:40]!r}")
    wrappers = _fusion_kinds(instructions)
    given = [
        _bits(i.dtype)
        for i in instructions.values()
        if i.computation == entry and i.operation == "parameter" and i.rank >= 2
    ]
    calls: list[str] = []
    multiplied: list[int] = []
    for instruction in instructions.values():
        target = _TARGET.search(instruction.line) if instruction.operation == "custom-call" else None
        if target is None and instruction.operation not in _MULTIPLYING_OPS:
            continue
        multiplies = target is None or target[1].startswith(_MULTIPLYING_CALLS)
        dtypes = [instructions[f"{instruction.computation}/{name}"].dtype for name in instruction.operands]
        if multiplies:
            multiplied += [_bits(dtype) for dtype in dtypes[:2]]
        name = instruction.operation if target is None else target[1]
        call = f"{name}({', '.join(dtypes[:2] if multiplies else dtypes)}) -> {instruction.dtype}"
        wrapper = wrappers.get(instruction.computation)
        calls.append(call if wrapper is None else f"{wrapper}: {call}")
    widest = max(given, default=None) if operand_bits is None else operand_bits
    upcast = max(multiplied) > widest if multiplied and widest is not None else None
    return HloSummary(tuple(dict.fromkeys(calls)), upcast)


def _parse(text: str) -> tuple[str | None, dict[str, _Instruction]]:
    """Name of the entry computation, and the instructions by computation and name, in order."""
    entry, computation = None, ""
    instructions: dict[str, _Instruction] = {}
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            computation = header[2]
            entry = computation if header[1] else entry
        elif match := _INSTRUCTION.match(line):
            instructions[f"{computation}/{match[1]}"] = _instruction(computation, match[2])
    return entry, instructions


def _instruction(computation: str, line: str) -> _Instruction:
    """From «f32[8,16]{1,0} dot(%a, %b), …»; the dtype and rank of a tuple are those of its first part."""
    end = _closing(line) + 1 if line.startswith("(") else line.index(" ")
    kind, rest = line[:end], line[end:].lstrip()
    operation, _, arguments = rest.partition("(")
    arguments = arguments[: _closing("(" + arguments) - 1]
    dtype, _, extents = kind.lstrip("(").partition("[")
    extents = extents.partition("]")[0]
    operands = tuple(re.findall(r"%([\w.\-]+)", arguments))
    return _Instruction(computation, dtype, len(extents.split(",")) if extents else 0, operation, operands, line)


def _closing(text: str) -> int:
    """Position of the parenthesis that closes the first one."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and character == ")":
            return position
    return len(text)


def _fusion_kinds(instructions: dict[str, _Instruction]) -> dict[str, str]:
    """Computation -> the kind of the fusion that calls it, a backend's own name where there is one."""
    kinds: dict[str, str] = {}
    for instruction in instructions.values():
        if instruction.operation == "fusion" and (called := _CALLED.search(instruction.line)):
            kind = _FUSION_KIND.search(instruction.line) or _LOOP_KIND.search(instruction.line)
            kinds[called[1]] = kind[1] if kind else "fusion"
    return kinds


def _bits(dtype: str) -> int:
    digits = re.match(r"[a-z]+(\d+)", dtype)
    return int(digits[1]) if digits else 1
