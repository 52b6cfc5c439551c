"""Fit a folder of features with workers that SLURM starts.

    python fit_slurm.py features/ labels.csv model.bagwise --jobs 4 --partition short

Run it on a node that may submit jobs. The folder must have the same path on every node. Needs
``dask-jobqueue`` beside the extra ``dask``.
"""

import argparse

from dask_jobqueue import SLURMCluster
from distributed import Client

from bagwise import VGPMIL, save
from bagwise.files import read_training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bags")
    parser.add_argument("labels")
    parser.add_argument("out")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cores", type=int, default=4, help="of a job; a worker has one")
    parser.add_argument("--memory", default="16GB", help="of a job")
    parser.add_argument("--partition")
    parser.add_argument("--walltime", default="02:00:00")
    arguments = parser.parse_args()
    cluster = SLURMCluster(
        cores=arguments.cores,
        processes=arguments.cores,
        memory=arguments.memory,
        queue=arguments.partition,
        walltime=arguments.walltime,
        job_script_prologue=["export OMP_NUM_THREADS=1"],
    )
    with cluster, Client(cluster) as client:
        cluster.scale(jobs=arguments.jobs)
        client.wait_for_workers(arguments.jobs * arguments.cores, timeout=3600)
        # The features stay on disk: every worker reads its own files.
        data = read_training(arguments.bags, arguments.labels, lazy=True)
        model = VGPMIL(random_state=0).fit(data.bags, data.y)  # finds the client by itself
    save(model, arguments.out)


if __name__ == "__main__":
    main()
