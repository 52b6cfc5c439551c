"""Fit a folder of features with workers that Kubernetes starts.

    python fit_kubernetes.py /data/features /data/labels.csv /data/model.bagwise \
        --image registry.example.org/bagwise:0.3 --claim slides --workers 8

Run it in a pod that mounts the volume as the workers do. The cluster needs the Dask operator, the
image bagwise with the extra ``dask``, and this pod ``dask-kubernetes``.
"""

import argparse

from dask_kubernetes.operator import KubeCluster, make_cluster_spec
from distributed import Client

from bagwise import VGPMIL, save
from bagwise.files import read_training


def specification(image: str, claim: str, mount: str, n_workers: int, memory: str) -> dict:
    """Workers of one core each, which see the volume where this pod does."""
    limits = {"cpu": "1", "memory": memory}
    spec = make_cluster_spec(
        name="bagwise",
        image=image,
        n_workers=n_workers,
        resources={"requests": limits, "limits": limits},
        env={"OMP_NUM_THREADS": "1"},
        worker_command="dask-worker --nthreads 1",
    )
    pod = spec["spec"]["worker"]["spec"]
    pod["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": mount}]
    return spec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bags")
    parser.add_argument("labels")
    parser.add_argument("out")
    parser.add_argument("--image", required=True)
    parser.add_argument("--claim", required=True, help="volume with the features")
    parser.add_argument("--mount", default="/data")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--memory", default="8G", help="of a worker")
    arguments = parser.parse_args()
    spec = specification(
        arguments.image, arguments.claim, arguments.mount, arguments.workers, arguments.memory
    )
    with KubeCluster(custom_cluster_spec=spec) as cluster, Client(cluster) as client:
        client.wait_for_workers(arguments.workers, timeout=3600)
        # The features stay on the volume: every worker reads its own files.
        data = read_training(arguments.bags, arguments.labels, lazy=True)
        model = VGPMIL(random_state=0).fit(data.bags, data.y)  # finds the client by itself
    save(model, arguments.out)


if __name__ == "__main__":
    main()
