"""`rollmux simulate --job-tier`: the workload's jobs packed by a recorded profile before they are replayed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import typer
from rich.console import Console

from rollmux.cli.inputs import load_setup
from rollmux.cli.refusals import require_name
from rollmux.mux.job import JobSpec
from rollmux.sim.job.setup import Setup
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.system import ROLLMUX, SYSTEMS
from rollmux.sim.packed import ByName, Packing, packed_workload, production_setup
from rollmux.sim.profile import CYCLES, Profile, recorded
from rollmux.sim.realised import BOUND
from rollmux.sim.replay import Fidelity
from rollmux.sim.workload import Workload

PRODUCTION = "production"
SHOWN_JOBS = 5


class SloOf(Enum):
    """What the SLO of a packed job compares it with: itself alone, or the synchronous job that its owner knows."""

    PACKED = "packed"
    PROMISED = "promised"


JobTierOption = Annotated[
    str | None,
    typer.Option(
        metavar="SETUP[:SYSTEM]",
        help=f"Pack the jobs' rounds like this setup's: a YAML file, {', '.join(SETUPS)}, or {PRODUCTION} for the "
        f"nearest by job name; by one of {', '.join(SYSTEMS)}.",
    ),
]
SloOfOption = Annotated[
    SloOf | None, typer.Option(help="SLOs of packed jobs: against the packed job alone, or as promised before.")
]
StaggerOption = Annotated[
    bool | None, typer.Option("--stagger/--no-stagger", help="Packed neighbours keep out of each other's long rounds.")
]


@dataclass(frozen=True)
class JobTier:
    """A workload whose jobs are packed, and by which setup and system."""

    name: str
    system: str
    slo_of: SloOf
    stagger: bool | None  # None if single rounds are not played
    workload: Workload
    profile_of: Callable[[JobSpec], Profile | None]

    @property
    def packing(self) -> Packing | None:
        """How rounds are played; None if single rounds are not played."""
        return None if self.stagger is None else Packing(self.profile_of, self.stagger)

    def as_data(self) -> dict[str, Any]:
        """What was applied, as plain data."""
        found = [profile for arrival in self.workload.arrivals if (profile := self.profile_of(arrival.job))]
        jobs = Counter(profile.name for profile in found)
        profiles = {profile.name: profile for profile in found}
        return {
            "setup": self.name,
            "system": self.system,
            "slo_of": self.slo_of.value,
            "stagger": self.stagger,
            "profiles": {name: {"jobs": jobs[name], **_profile_data(of)} for name, of in sorted(profiles.items())},
        }


def _profile_data(profile: Profile) -> dict[str, Any]:
    return {
        "mean": profile.mean._asdict(),
        "worst": profile.worst._asdict(),
        "period": profile.period,
        "rounds": {"short": len(profile.short), "long": len(profile.long)},
    }


def load_job_tier(
    text: str | None,
    workload: Workload,
    *,
    slo_of: SloOf | None,
    stagger: bool | None,
    fidelity: Fidelity,
    realised: str,
    seed: int,
) -> JobTier | None:
    """The workload packed as `--job-tier` says; None without that option. Raises BadParameter if that can't be."""
    if text is None:
        if slo_of is not None or stagger is not None:
            raise typer.BadParameter("--slo-of and --stagger are about packed jobs: say with --job-tier how they pack")
        return None
    if realised != BOUND:
        raise typer.BadParameter(f"--job-tier and --realised {realised} both say how long phases take: leave one out")
    if fidelity is Fidelity.PACE and stagger is not None:
        raise typer.BadParameter("--fidelity pace plays no single round: --stagger needs --fidelity phase")
    name, system = _parts(text)
    profile_of = _profiles(name, system, workload, seed)
    slo_of = slo_of or SloOf.PACKED
    played = None if fidelity is Fidelity.PACE else stagger is True
    packed = packed_workload(workload, profile_of, promised=slo_of is SloOf.PROMISED)
    return JobTier(name, system, slo_of, played, packed, profile_of)


def _parts(text: str) -> tuple[str, str]:
    """The setup and the system that the option names; a setup may also be a file."""
    name, colon, system = text.rpartition(":")
    if not colon:
        name, system = system, ROLLMUX.name
    if not name:
        raise typer.BadParameter(
            f"--job-tier {text!r} names no setup; choose {', '.join(SETUPS)}, {PRODUCTION} or a file"
        )
    require_name("system", system, tuple(SYSTEMS))
    return name, system


def _profiles(name: str, system: str, workload: Workload, seed: int) -> Callable[[JobSpec], Profile | None]:
    if name != PRODUCTION:
        profile = _record({name: load_setup(name)}, system, seed)[name]
        return lambda job: profile
    names = {arrival.job.id: production_setup(arrival.job.id) for arrival in workload.arrivals}
    strange = [job_id for job_id, setup in names.items() if setup is None]
    if strange:
        some = ", ".join(strange[:SHOWN_JOBS]) + (" …" if len(strange) > SHOWN_JOBS else "")
        raise typer.BadParameter(
            f"--job-tier {PRODUCTION} goes by names like 14B-8K-single, which {some} is not; name one setup for all: "
            f"{', '.join(SETUPS)}, or a file"
        )
    return ByName(_record({setup: SETUPS[setup] for setup in SETUPS if setup in names.values()}, system, seed))


def _record(setups: dict[str, Setup], system: str, seed: int) -> dict[str, Profile]:
    """Records a profile of each setup; in a terminal it says meanwhile which one."""
    screen, found = Console(stderr=True), {}
    for name, setup in setups.items():
        with screen.status(f"recording {CYCLES} cycles of {system} on {setup.name}"):
            found[name] = recorded(setup, SYSTEMS[system], CYCLES, seed)
    return found
