"""Sweeps on a cluster: two Ray nodes on this machine, one of whose workers dies."""

import os
import re
import signal
import threading
import time

import pytest
import torch

from bwt import train
from bwt.cli import main
from bwt.runs.checkpoints import load_weights
from bwt.runs.directory import RunDirectory
from bwt.sweep.cells import make_cell
from bwt.sweep.sweep import Sweep

pytestmark = pytest.mark.slow

FIELDS = {"num_symbols": 4, "steps": 1500, "eval_sequences": 32, "batch_size": 4}


@pytest.fixture(autouse=True)
def ray():
    return pytest.importorskip("ray", reason="a ray extra")


@pytest.fixture
def cluster(ray, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def kill_worker(cell, log):
    """As soon as the cell has saved something after its first steps."""
    while not list(RunDirectory(cell.path).checkpoints.glob("step_*[1-9]?.state.safetensors")):
        time.sleep(0.02)
    pid = int(re.findall(r"process (\d+)", log.read_text())[-1])
    os.kill(pid, signal.SIGKILL)


def test_a_cell_survives_the_death_of_its_worker(cluster, tmp_path):
    from bwt.sweep.ray import RayTasks

    cells = [
        make_cell(tmp_path, "quick", "bijection", "transformer", seed=seed, **FIELDS)
        for seed in (0, 1)
    ]
    sweep = Sweep(tmp_path, cells, RayTasks(cluster.address, main))
    log = sweep.log(cells[0])
    killer = threading.Thread(target=kill_worker, args=(cells[0], log))
    killer.start()
    outcomes = sweep.run()
    killer.join()
    assert [x.status for x in outcomes] == ["finished", "finished"]
    text = log.read_text()
    assert len(set(re.findall(r"process (\d+)", text))) == 2
    (step,) = re.findall(r"resuming .* at step (\d+)", text)
    assert 0 < int(step) < FIELDS["steps"]
    alone = load_weights(train.train(cells[0].config, tmp_path / "alone").run)
    for name, weights in load_weights(RunDirectory(cells[0].path)).items():
        assert torch.equal(weights, alone[name])


def test_no_cluster_is_one_line():
    from bwt.sweep.ray import RayTasks

    with pytest.raises(ValueError, match="no cluster answers at 127.0.0.1:1"):
        RayTasks("127.0.0.1:1", main)
