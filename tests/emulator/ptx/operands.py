"""The text of one operand to a value of `program`."""

from __future__ import annotations

import re
from collections.abc import Callable

from .errors import PTXError
from .program import Address, Immediate, Pair, Register, Symbol, Vector

INTEGER = re.compile(r"^([+-]?)(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
FLOAT_BITS = re.compile(r"^(-?)0([fFdD])([0-9a-fA-F]+)$")
OFFSET = re.compile(r"^(.+?)\s*\+\s*(-?\w+)$|^(.+?)\s*(-\s*\w+)$")

Resolver = Callable[[str], "str | None"]


def split_operands(text: str) -> list[str]:
    """Split at the commas that are outside of braces, brackets and parentheses."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "{[(") - (character in "}])")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return [*parts, current.strip()] if current.strip() else parts


def parse_immediate(text: str) -> Immediate | None:
    if found := FLOAT_BITS.match(text):
        width = 32 if found[2] in "fF" else 64
        bits = int(found[3], 16)
        return Immediate(bits ^ (1 << (width - 1)) if found[1] else bits, width)
    if found := INTEGER.match(text):
        digits = found[2]
        octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
        value = int(digits, 8) if octal else int(digits, 0)
        return Immediate(-value if found[1] == "-" else value)
    return None


def parse_operand(text: str, resolve: Resolver):
    if text[0] in "{(":
        return Vector(tuple(parse_operand(part, resolve) for part in split_operands(text[1:-1])))
    if text[0] == "[":
        return _parse_address(text[1:-1].strip(), resolve)
    if "|" in text:
        return Pair(*(parse_operand(part.strip(), resolve) for part in text.split("|")))
    if text[0] == "!":
        return Register(_atom(text[1:].strip(), resolve).name, negated=True)
    return _atom(text, resolve)


def _parse_address(text: str, resolve: Resolver) -> Address:
    found = OFFSET.match(text)
    if not found:
        return Address(_atom(text, resolve), 0)
    base, offset = (found[1], found[2]) if found[1] else (found[3], found[4])
    literal = parse_immediate(offset.replace(" ", ""))
    if literal is None:
        raise PTXError(f"cannot parse address [{text}]")
    return Address(_atom(base, resolve), literal.bits)


def _atom(text: str, resolve: Resolver) -> Register | Immediate | Symbol:
    if name := resolve(text):
        return Register(name)
    if (literal := parse_immediate(text)) is not None:
        return literal
    if text[0] == "%":
        return Register(text)  # a special register, or an undeclared one: decided at binding
    return Symbol(text)
