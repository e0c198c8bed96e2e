"""Ways to damage a small run, and commands that then have to answer in one line."""

from bwt.runs.config import TrainConfig

CONFIG = TrainConfig(
    task="bijection",
    task_options=dict(num_symbols=4),
    model_options=dict(layers=1, heads=2, width=16),
    steps=4,
    batch_size=4,
    evaluations=2,
    eval_sequences=16,
    threads=1,
)
COMMANDS = {
    "eval": lambda run: ["eval", run, "--sequences", "16", "--device", "cpu"],
    "resume": lambda run: ["train", "--resume", run],
    "report": lambda run: ["report", run],
    "geometry": lambda run: ["geometry", run, "--sequences", "16", "--device", "cpu"],
}
LAST = "checkpoints/step_00000004"
FILES = [
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "evaluation.json",
    "geometry.json",
    f"{LAST}.safetensors",
    f"{LAST}.state.safetensors",
]


def become_a_directory(path):
    path.unlink()
    path.mkdir()


def flip(path, where):
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 4
    path.write_bytes(data)


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "directory": become_a_directory,
    "flipped at the start": lambda path: flip(path, 0),
    "flipped early": lambda path: flip(path, 0.05),
    "flipped in the middle": lambda path: flip(path, 0.5),
    "flipped late": lambda path: flip(path, 0.9),
    "a list": lambda path: path.write_text("[1, 2]"),
    "a number": lambda path: path.write_text("7"),
    "an empty object": lambda path: path.write_text("{}"),
    "deeply nested": lambda path: path.write_text("[" * 100_000),
    "a long header": lambda path: path.write_bytes(b"\xff" * 7 + b"\x0f" + b"{}"),
}
