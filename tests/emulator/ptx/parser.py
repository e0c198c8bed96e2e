"""PTX text to a Module."""

from __future__ import annotations

import math
import re

from .errors import PTXError
from .operands import parse_immediate, parse_operand, split_operands
from .program import Function, Instruction, Label, Module, Parameter, Register, Variable

HEADER = re.compile(r"\.(entry|func)\b\s*(?:\(([^()]*)\)\s*)?([\w$.]+)\s*(?:\(([^()]*)\))?")
PARAMETER = re.compile(r"\.param\s+(.*?)([\w$.]+)\s*(?:\[(\d*)\])?\s*$", re.S)
VARIABLE = re.compile(
    r"\.(shared|global|const)\s+(?:\.align\s+(\d+)\s+)?(?:\.attribute\([^)]*\)\s*)?"
    r"\.(\w+)\s+([\w$.]+)\s*((?:\[\d*\])*)\s*(?:=\s*(.+?))?\s*$",
    re.S,
)
REGISTERS = re.compile(r"^\.reg\s+\.(\w+)\s+(.*)$", re.S)
LABEL = re.compile(r"^([\w$.]+)\s*:(?!:)")
GUARD = re.compile(r"^@(!?)([%\w$.]+)\s+")


def parse(text: str) -> Module:
    return _ModuleParser(_without_comments(text)).parse()


def _without_comments(text: str) -> str:
    """Remove comments and line directives, and keep every line where it was."""
    text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r"(?m)^\s*\.(loc|file)\b[^\n]*", "", text)


class _ModuleParser:
    def __init__(self, text: str):
        self.text = text
        self.module = Module()

    def parse(self) -> Module:
        position = 0
        while header := HEADER.search(self.text, position):
            self._module_variables(position, header.start())
            position = self._function(header)
        self._module_variables(position, len(self.text))
        if not self.module.entries:
            raise PTXError("the PTX has no .entry")
        return self.module

    def _module_variables(self, start: int, end: int) -> None:
        outside = self.text[start:end].partition(".section")[0]
        for statement in outside.split(";"):
            found = re.search(r"\.(shared|global|const)\b", statement)
            if found:
                variable = parse_variable(statement[found.start() :].strip())
                self.module.variables[variable.name] = variable

    def _function(self, header: re.Match) -> int:
        """Parse one function and return the position after it."""
        role, results, name, parameters = header.groups()
        function = Function(name, parse_parameters(parameters), parse_parameters(results))
        brace = self.text.find("{", header.end())
        function.thread_limits = _thread_limits(self.text[header.end() : brace])
        semicolon = self.text.find(";", header.end())
        if semicolon >= 0 and (brace < 0 or semicolon < brace):
            return semicolon + 1  # a declaration without a body
        end = _matching_brace(self.text, brace)
        line = self.text.count("\n", 0, brace) + 1
        _BodyParser(self.module, function, self.text[brace + 1 : end], line).parse()
        (self.module.entries if role == "entry" else self.module.functions)[name] = function
        return end + 1


def _thread_limits(text: str) -> dict[str, int]:
    """`.reqntid` and `.maxntid`, as the product of their extents."""
    found = re.findall(r"\.(reqntid|maxntid)\s+(\d+(?:\s*,\s*\d+)*)", text)
    return {name: math.prod(int(n) for n in extents.split(",")) for name, extents in found}


def _matching_brace(text: str, start: int) -> int:
    depth = 0
    for found in re.finditer(r"[{}]", text[start:]):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return start + found.start()
    raise PTXError("a function body has no closing brace")


def parse_parameters(text: str | None) -> list[Parameter]:
    parameters = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        found = PARAMETER.match(part.strip())
        if not found:
            raise PTXError(f"cannot parse parameter {part.strip()!r}")
        types, name, count = found.groups()
        kind = re.search(r"\.([a-z]+\d+)\b", types)[1]
        # `.ptr .global .align 16` speaks of the pointee, not of the parameter itself.
        align = re.search(r"\.align\s+(\d+)", types.partition(".ptr")[0])
        parameters.append(
            Parameter(name, kind, int(align[1]) if align else 0, int(count) if count else None)
        )
    return parameters


def parse_variable(statement: str) -> Variable:
    found = VARIABLE.match(statement)
    if not found:
        raise PTXError(f"cannot parse variable {statement[:80]!r}")
    space, align, kind, name, shape, values = found.groups()
    count = 1
    for extent in re.findall(r"\[(\d*)\]", shape):
        count *= int(extent or 0)
    literals = None
    if values:
        literals = [parse_immediate(v) for v in re.findall(r"[^\s,{}]+", values)]
        if None in literals:
            raise PTXError(f"the initialiser of {name} is not a list of numbers")
    return Variable(name, space, kind, int(align or 0), count, literals)


class _BodyParser:
    """Statements of one body; nested scopes may declare registers of the same name."""

    def __init__(self, module: Module, function: Function, text: str, line: int):
        self.module = module
        self.function = function
        self.text = text
        self.line = line
        self.scopes: list[dict[str, str]] = [{}]
        self.scope_count = 0

    def parse(self) -> None:
        line = self.line
        for chunk in self.text.split(";"):
            statement = chunk.lstrip()
            start = line + chunk[: len(chunk) - len(statement)].count("\n")
            line += chunk.count("\n")
            self._statement(statement, start)

    def _statement(self, statement: str, line: int) -> None:
        while statement:
            if statement[0] == "{":
                self.scope_count += 1
                self.scopes.append({})
                rest = statement[1:]
            elif statement[0] == "}":
                self.scopes.pop()
                rest = statement[1:]
            elif found := LABEL.match(statement):
                self._label(found[1], statement[found.end() :].strip())
                rest = statement[found.end() :]
            else:
                break
            line += rest[: len(rest) - len(rest.lstrip())].count("\n")
            statement = rest.lstrip()
        statement = " ".join(statement.split())
        if not statement:
            return
        try:
            self._directive(statement) if statement[0] == "." else self._code(statement, line)
        except PTXError as error:
            raise PTXError(f"line {line}: {error}") from None

    def _label(self, name: str, rest: str) -> None:
        if rest.startswith(".branchtargets"):
            targets = rest.removeprefix(".branchtargets").replace(",", " ").split()
            self.function.branch_targets[name] = targets
        else:
            self.function.body.append(Label(name))

    def _directive(self, statement: str) -> None:
        if found := REGISTERS.match(statement):
            for name in found[2].split(","):
                self._declare(name.strip(), found[1])
        elif statement.startswith(".local"):
            self.function.local_memory = statement
        elif statement.startswith((".shared", ".const", ".global")):
            variable = parse_variable(statement)
            self.module.variables[variable.name] = variable
        elif not statement.startswith((".param", ".pragma", ".branchtargets")):
            raise PTXError(f"directive {statement.split()[0]} is not implemented")

    def _declare(self, name: str, kind: str) -> None:
        numbered = re.match(r"^(.*)<(\d+)>$", name)
        names = [f"{numbered[1]}{i}" for i in range(int(numbered[2]))] if numbered else [name]
        suffix = f"@{self.scope_count}" if len(self.scopes) > 1 else ""
        for plain in names:
            self.scopes[-1][plain] = plain + suffix
            self.function.registers[plain + suffix] = kind

    def _resolve(self, name: str) -> str | None:
        """The unique name of a register that is visible here."""
        return next((s[name] for s in reversed(self.scopes) if name in s), None)

    def _code(self, statement: str, line: int) -> None:
        guard = None
        text = statement
        if found := GUARD.match(statement):
            name = self._resolve(found[2])
            if name is None:
                raise PTXError(f"undeclared predicate {found[2]}")
            guard = Register(name, negated=found[1] == "!")
            statement = statement[found.end() :]
        opcode, _, rest = statement.partition(" ")
        name, *modifiers = re.split(r"\.(?!:)", opcode)
        operands = tuple(parse_operand(part, self._resolve) for part in split_operands(rest))
        self.function.body.append(Instruction(name, tuple(modifiers), operands, guard, line, text))
