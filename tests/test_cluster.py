"""The scripts of the cluster page, with stand-ins for SLURM and Kubernetes on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bagwise import VGPMIL, load
from bagwise.files import read_training
from tests.filing import make_folder

pytest.importorskip("distributed", reason="the dask extra is missing")

SCRIPTS = Path(__file__).parent.parent / "examples" / "cluster"
SBATCH = """#!/bin/sh
for script; do :; done  # the last argument
cp "$script" "$STAND_IN/job-$$.sh"
sh "$STAND_IN/job-$$.sh" > "$STAND_IN/job-$$.log" 2>&1 &
echo $! >> "$STAND_IN/jobs"
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/sh
for job; do kill "$job" 2> /dev/null; pkill -P "$job" 2> /dev/null; done
exit 0
"""
# What `dask_kubernetes.operator` has, with local processes for pods.
KUBERNETES = """
import contextlib, json, os, pathlib, distributed

def make_cluster_spec(name, image, n_workers, resources, env, worker_command):
    container = {"name": "worker", "image": image, "args": worker_command.split(" "),
                 "resources": resources, "env": [{"name": k, "value": v} for k, v in env.items()]}
    worker = {"replicas": n_workers, "spec": {"containers": [container]}}
    return {"kind": "DaskCluster", "metadata": {"name": name}, "spec": {"worker": worker}}

def KubeCluster(custom_cluster_spec):
    pathlib.Path(os.environ["STAND_IN"], "spec.json").write_text(json.dumps(custom_cluster_spec))
    return distributed.LocalCluster(
        n_workers=custom_cluster_spec["spec"]["worker"]["replicas"], threads_per_worker=1,
        dashboard_address=None)
"""


def write_stand_ins(folder: Path) -> dict[str, str]:
    """Commands and a module in a folder, and the environment in which they are found."""
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    (folder / "dask_kubernetes").mkdir()
    (folder / "dask_kubernetes" / "__init__.py").touch()
    (folder / "dask_kubernetes" / "operator.py").write_text(KUBERNETES, encoding="utf-8")
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        "STAND_IN": str(folder),
        "OMP_NUM_THREADS": "1",
    }


def run(script: str, words: list[str], tmp_path: Path) -> Path:
    """Run a script on a small folder; the folder of the stand-ins."""
    bags, labels = make_folder(tmp_path)
    stand_ins = tmp_path / "stand-ins"
    stand_ins.mkdir()
    out = tmp_path / "model.bagwise"
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), str(bags), str(labels), str(out), *words],
        env=write_stand_ins(stand_ins),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "large graph" not in done.stderr
    data = read_training(bags, labels)
    here = VGPMIL(random_state=0, execution="serial").fit(data.bags, data.y)
    np.testing.assert_allclose(
        load(out).predict_proba(data.bags), here.predict_proba(data.bags), atol=1e-8
    )
    return stand_ins


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")
def test_slurm(tmp_path):
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is missing")
    words = ["--jobs", "2", "--cores", "1", "--memory", "1GB", "--partition", "short"]
    stand_ins = run("fit_slurm.py", words, tmp_path)
    jobs = [path.read_text(encoding="utf-8") for path in stand_ins.glob("job-*.sh")]
    assert len(jobs) == 2
    for job in jobs:
        assert "#SBATCH -p short" in job
        assert "#SBATCH -t 02:00:00" in job
        assert "export OMP_NUM_THREADS=1" in job


def test_kubernetes(tmp_path):
    import json

    words = ["--image", "registry/bagwise:0.3", "--claim", "slides", "--workers", "2"]
    spec = json.loads((run("fit_kubernetes.py", words, tmp_path) / "spec.json").read_text())
    worker = spec["spec"]["worker"]
    (container,) = worker["spec"]["containers"]
    assert worker["replicas"] == 2
    assert container["image"] == "registry/bagwise:0.3"
    assert container["args"] == ["dask-worker", "--nthreads", "1"]
    assert container["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    (volume,) = worker["spec"]["volumes"]
    assert volume == {"name": "data", "persistentVolumeClaim": {"claimName": "slides"}}
