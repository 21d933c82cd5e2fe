"""How commands read the files of clusters."""

from pathlib import Path

import typer

from rollmux.cli.refusals import refusals
from rollmux.mux.hardware import PAPER_CLUSTER, Cluster
from rollmux.protocol.cluster_file import ClusterFile, read_cluster_file


def load_cluster(path: Path | None) -> Cluster:
    """The cluster of this file; without a file, the paper's cluster."""
    return load_cluster_file(path).cluster


def load_cluster_file(path: Path | None) -> ClusterFile:
    """The cluster with what its nodes have of their machines, which is not known of the paper's cluster."""
    if path is None:
        return ClusterFile(PAPER_CLUSTER)
    with refusals():
        found = read_cluster_file(path)
    if found.unused:
        typer.echo(f"{path}: nothing is done with {', '.join(found.unused)}: leave that out.", err=True)
    return found
