"""Setups in YAML files (JSON is a part of YAML), from scratch or on top of a shipped one (`like: 14B/16k`).

Units are in the names of the keys. Every problem of a file is reported at once. An unknown key is a problem: its report
names the nearest known key.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rollmux.checks import one_of
from rollmux.errors import InvalidSpec, Problem
from rollmux.protocol.plain_yaml import read_plain
from rollmux.sim.job import setup_data as data
from rollmux.sim.job.lengths import LengthQuantiles
from rollmux.sim.job.machine import DEVICES, MODELS, Device, Model, rates
from rollmux.sim.job.setup import Domain, Reward, Scoring, Setup, Training
from rollmux.sim.job.setup_data import Number
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.sizes import SIZES

ALL = "the file"
EXAMPLE = "see examples/job-setup.yaml"
REWARDS = tuple(reward.value for reward in Reward)
PARTS = (data.MODEL, data.DEVICE, data.LENGTHS)


def read_setup(path: str | Path) -> Setup:
    """The setup of a YAML file, or InvalidSpec with all that is wrong. Without a name it gets the file's."""
    path = Path(path)
    subject = f"setup file {str(path)!r}"
    read = _Read()
    setup = read.setup(read_plain(path, subject), path.stem)
    if read.problems:
        raise InvalidSpec(subject, tuple(read.problems.values()))
    return setup


@dataclass(slots=True)
class _Read:
    """Reads a file's content, and collects its problems by path. A harmless value replaces each bad one."""

    problems: dict[str, Problem] = field(default_factory=dict)

    def report(self, path: str, value: object, limit: str, remedy: str) -> None:
        self.problems.setdefault(path, Problem(path, value, limit, remedy))

    def is_sound(self, *paths: str) -> bool:
        """Whether there are no problems at these paths or below."""
        return not any(found == path or found.startswith(f"{path}.") for found in self.problems for path in paths)

    def setup(self, content: object, name: str) -> Setup:
        found = self._part("", content, data.SETUP_KEYS)
        base = self._base(found)
        self._whole("", base | found, data.NEEDED_OF_SETUP)
        numbers = self._numbers("", base | found, data.SETUP_NUMBERS)
        setup = Setup(
            name=self._text(data.NAME, found.get(data.NAME, name)),
            model=self._model(base.get(data.MODEL, {}), found),
            device=self._device(base.get(data.DEVICE, {}), found),
            domains=self._domains(base.get(data.DOMAINS, {}), found),
            scoring=Scoring(**_below("scoring", numbers)),
            training=Training(**_below("training", numbers)),
            **{target: value for target, value in numbers.items() if "." not in target},
        )
        self._check(setup)
        return setup

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _base(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The plain data of the shipped setup that the file builds on; empty if it names none."""
        if data.LIKE not in found:
            return {}
        name = self._choice(data.LIKE, found[data.LIKE], tuple(SETUPS))
        return data.setup_data(SETUPS[name])

    def _model(self, base: Mapping[str, Any], found: Mapping[str, Any]) -> Model:
        known = {name: data.model_data(model) for name, model in MODELS.items()}
        part = self._machine(data.MODEL, base, found, known, data.MODEL_NUMBERS)
        name = self._text(f"{data.MODEL}.{data.NAME}", part.get(data.NAME, "model"))
        return Model(name, **self._numbers(data.MODEL, part, data.MODEL_NUMBERS))

    def _device(self, base: Mapping[str, Any], found: Mapping[str, Any]) -> Device:
        known = {name: data.device_data(device) for name, device in DEVICES.items()}
        part = self._machine(data.DEVICE, base, found, known, data.DEVICE_NUMBERS)
        name = self._text(f"{data.DEVICE}.{data.NAME}", part.get(data.NAME, "device"))
        return Device(name, **self._numbers(data.DEVICE, part, data.DEVICE_NUMBERS))

    def _machine(
        self,
        path: str,
        base: Mapping[str, Any],
        found: Mapping[str, Any],
        known: Mapping[str, dict[str, Any]],
        numbers: Mapping[str, Number],
    ) -> dict[str, Any]:
        """The data of the file's model or device. A name alone stands for a known one."""
        given = found.get(path)
        if isinstance(given, str):
            return known[self._choice(path, given, tuple(known))]
        return self._over(path, base, given, (data.NAME, *numbers), tuple(numbers))

    def _domains(self, base: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[Domain, ...]:
        """The domains that the file names, each on top of the base's of that name; all of the base if it names none."""
        given = found.get(data.DOMAINS, {name: {} for name in base})
        if not isinstance(given, dict) or (not given and data.DOMAINS in found):
            self.report(data.DOMAINS, given, "domains by their names", EXAMPLE)
            return ()
        return tuple(self._domain(name, base.get(name, {}), part) for name, part in given.items())

    def _domain(self, name: Any, base: Mapping[str, Any], given: Any) -> Domain:
        path = f"{data.DOMAINS}.{name}"
        known_as = self._text(path, name)
        part = self._over(path, base, {} if given is None else given, data.DOMAIN_KEYS, data.DOMAIN_KEYS)
        return Domain(
            name=known_as,
            lengths=self._lengths(f"{path}.{data.LENGTHS}", base.get(data.LENGTHS, {}), given),
            reward=Reward(self._choice(f"{path}.{data.REWARD}", part.get(data.REWARD, REWARDS[0]), REWARDS)),
            **self._numbers(path, part, data.DOMAIN_NUMBERS),
        )

    def _lengths(self, path: str, base: Mapping[str, Any], domain: Any) -> LengthQuantiles:
        given = domain.get(data.LENGTHS) if isinstance(domain, dict) else None
        part = self._over(path, base, given, data.LENGTH_KEYS, data.LENGTH_KEYS)
        row = self._numbers(path, part, data.LENGTH_NUMBERS)
        quantiles = self._quantiles(f"{path}.{data.QUANTILES}", part.get(data.QUANTILES, [[0.5, 1]]))
        if self.is_sound(path) and len(part) == len(data.LENGTH_KEYS):
            self._check_tail(path, quantiles, row)
        return data.lengths_of(quantiles, row)

    def _quantiles(self, path: str, value: Any) -> list[tuple[float, int]]:
        """Pairs of a share of responses and the length that they do not exceed, both rising."""
        pairs = value if isinstance(value, list) else []
        if pairs and all(_is_quantile(pair) for pair in pairs):
            if all(one[0] < other[0] and one[1] <= other[1] for one, other in pairwise(pairs)):
                return [(share, tokens) for share, tokens in pairs]
            self.report(path, value, "in ascending order", "sort the pairs: longer lengths have larger shares")
        else:
            limit = "a list of pairs of a share between 0 and 1 and a whole number of tokens"
            self.report(path, value, limit, "write [[0.5, 600], [0.9, 2000]] for a median of 600 tokens")
        return [(0.5, 1)]

    # -- values --------------------------------------------------------------------------------------------------------

    def _part(self, path: str, value: Any, known: Collection[str]) -> dict[str, Any]:
        """The known keys of a part, with their values. A model, device or lengths without content count as missing."""
        if not isinstance(value, dict):
            self.report(path or ALL, value, f"keys and values: {', '.join(known)}", EXAMPLE)
            return {}
        for key in value:
            if key not in known:
                self.report(_join(path, key), value[key], *one_of(known, key))
        return {key: each for key, each in value.items() if key in known and (each is not None or key not in PARTS)}

    def _over(
        self, path: str, base: Mapping[str, Any], given: Any, known: Collection[str], needed: Collection[str]
    ) -> dict[str, Any]:
        """A part on top of the base's. If the file has no such part, its absence is reported where it is needed."""
        if given is None:
            return dict(base)
        part = {**base, **self._part(path, given, known)}
        self._whole(path, part, needed)
        return part

    def _whole(self, path: str, part: Mapping[str, Any], needed: Collection[str]) -> None:
        missing = ", ".join(key for key in needed if key not in part)
        if missing:
            remedy = EXAMPLE if path else f"or begin with `{data.LIKE}: {next(iter(SETUPS))}`"
            self.report(path or ALL, list(part), f"with {missing}", f"add what is missing, {remedy}")

    def _numbers(self, path: str, part: Mapping[str, Any], keys: Mapping[str, Number]) -> dict[str, Any]:
        """The numbers of a part, by the names of their fields."""
        return {key.target: self._number(_join(path, name), part.get(name, key.low), key) for name, key in keys.items()}

    def _number(self, path: str, value: Any, key: Number) -> Any:
        kinds = int if key.whole else int | float
        if not isinstance(value, kinds) or isinstance(value, bool) or not key.low <= value <= key.high:
            limit = f"a {'whole ' if key.whole else ''}number from {key.low:.10g} to {key.high:.10g}"
            self.report(path, value, limit, f"give the {key.meaning}, in digits and without quotes")
            value = key.low
        return value * key.unit if key.unit != 1 else value

    def _choice(self, path: str, value: Any, known: tuple[str, ...]) -> str:
        if isinstance(value, str) and value in known:
            return value
        self.report(path, value, *one_of(known, value))
        return known[0]

    def _text(self, path: str, value: Any) -> str:
        if isinstance(value, str) and value and value.isprintable():
            return value
        self.report(path, value, "a printable name", "put it in quotes if it looks like a number")
        return "unnamed"

    # -- what must fit together ----------------------------------------------------------------------------------------

    def _check_tail(self, path: str, quantiles: list[tuple[float, int]], row: Mapping[str, Any]) -> None:
        share, tokens = quantiles[-1]
        checks: tuple[tuple[str, bool, str], ...] = (
            ("tail_tokens", row["tail_tokens"] >= tokens, f"at least {tokens}, the last of the quantiles"),
            ("tail_share", row["tail_share"] < 1 - share, f"below {1 - share:.6g}, what the last quantile leaves"),
            ("cut_tokens", row["cut_tokens"] > row["tail_tokens"], f"above tail_tokens = {row['tail_tokens']}"),
            ("cut_share", row["cut_share"] < row["tail_share"], f"below tail_share = {row['tail_share']}"),
        )
        for name, is_right, limit in checks:
            if not is_right:
                self.report(f"{path}.{name}", row[name], limit, "fewer responses are longer than a greater length")

    def _check(self, setup: Setup) -> None:
        """Checks that parallel sizes fill servers, that a response fits, and that quotas add up to a step."""
        if not self.is_sound(ALL):
            return
        tp, server = setup.tp, setup.device.per_server
        size = "tensor_parallel"
        if self.is_sound("gpus", size, data.DEVICE) and (tp not in SIZES or setup.gpus % tp or server % tp):
            limit = f"{', '.join(map(str, SIZES))}, and a divisor of {setup.gpus} GPUs and of the {server} of a server"
            self.report(size, tp, limit, "choose a size that makes whole replicas within servers")
        elif self.is_sound(size, data.DEVICE, data.MODEL, "cap_tokens", "prompt_tokens"):
            room, needed = rates(setup.model, setup.device, tp).room_tokens, setup.cap + setup.prompt_tokens
            if room <= needed:
                limit = f"enough for the weights and {needed} tokens of one request (beside the weights {room} fit)"
                self.report(size, tp, limit, "take a larger size, a smaller model or a lower cap_tokens")
        total = sum(domain.quota for domain in setup.domains)
        if setup.domains and self.is_sound("prompts", data.DOMAINS) and total != setup.prompts:
            limit = f"{setup.prompts} in sum, the prompts of a step"
            self.report(f"{data.DOMAINS} (quotas)", total, limit, "mend the quotas or prompts")


def _is_quantile(pair: Any) -> bool:
    if not isinstance(pair, list) or len(pair) != 2 or any(isinstance(each, bool) for each in pair):
        return False
    share, tokens = pair
    return isinstance(share, int | float) and 0 < share < 1 and isinstance(tokens, int) and 1 <= tokens <= 10**6


def _below(prefix: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an object inside a setup, such as `scoring`."""
    return {target.partition(".")[2]: v for target, v in numbers.items() if target.startswith(f"{prefix}.")}


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
