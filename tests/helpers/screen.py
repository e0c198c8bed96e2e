"""A terminal as small as a test needs: a command runs in it, and its lines can be read."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

CONTROL = re.compile(r"\x1b\[(\d*)([A-Za-z])|([\r\n])|([^\x1b\r\n])")


def run(command, *, columns=80, rows=24, **options):
    """(exit code, all that was printed) of a command whose output is a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, **options)
    os.close(theirs)
    chunks = []
    try:
        while chunk := _read(ours):
            chunks.append(chunk)
        return process.wait(timeout=60), b"".join(chunks).decode()
    finally:
        process.kill()
        os.close(ours)


def _read(handle):
    try:
        return os.read(handle, 65536)
    except OSError:  # how Linux says that nobody has the other end any more
        return b""


def lines(text):
    """What is to be seen in the end, from the first line on; scrolling loses nothing here."""
    grid, row, column = [[]], 0, 0
    for match in CONTROL.finditer(text):
        number, letter, newline, character = match.groups()
        if newline == "\r":
            column = 0
        elif newline:
            row, column = row + 1, 0  # a terminal makes \r\n of it
            grid += [[] for _ in range(row + 1 - len(grid))]
        elif letter == "F":
            row, column = row - int(number or 1), 0
            assert row >= 0, "above the top"
        elif letter == "K":
            del grid[row][column:]
        elif letter == "J":
            del grid[row][column:], grid[row + 1 :]
        elif character:
            grid[row] += " " * (column - len(grid[row]))
            grid[row][column : column + 1] = [character]
            column += 1
        else:
            raise AssertionError(f"unknown: {match[0]!r}")
    return ["".join(line).rstrip() for line in grid]
