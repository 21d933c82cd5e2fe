"""How good a model's answers to a task's prompts are: each prompt is asked, and nothing is trained.

Invariants: an answer's tokens depend on the job's seed and the numbers of prompt and answer alone; an answer without a
reward is no zero, and counts in no mean; at most twice as many answers are under way as the engines run at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice, product
from math import sqrt
from statistics import fmean, stdev

from rollmux.checks import Checks
from rollmux.packer import Prompt, Request
from rollmux.plain import plain
from rollmux.runtime.rewards import Reward, Status, Told
from rollmux.trainer.device import berth_of, check_device
from rollmux.trainer.errors import RolloutStuck
from rollmux.trainer.parts import engine_of, model_of, scorer_of
from rollmux.trainer.prompts import looked_through, named
from rollmux.trainer.scoring import Scorer
from rollmux.trainer.settings import JobFile
from rollmux.trainer.tasks import Task, build_task
from rollmux.trainer.turns import Over, Response, Turns, first_turn
from rollmux.trainer.workers import Workers


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `said` are the model's turns and the texts that it was told between them; `failed` says why an answer
    has no reward."""

    prompt: int
    sample: int
    asked: str
    said: tuple[Told, ...]
    tokens: int
    cut: bool
    reward: float | None
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Worth:
    """The result of all answers. `error` is the standard error of `reward`, `best` the mean of each prompt's best."""

    prompts: int
    answers: int
    reward: float | None
    error: float | None
    best: float | None
    tokens_mean: float
    cut: int
    failed: int


def evaluate(job: JobFile, samples: int, heard: Callable[[Answer, int], None]) -> Worth:
    """Asks each prompt `samples` times. Calls `heard` with each answer as it comes, in any order, and the number of all
    answers."""
    checks = Checks("job")
    check_device(checks, job.model.device, False)
    checks.require()
    job = replace(job, rewards=replace(job.rewards, lag=0))
    task = build_task(job.task, job.seed, job.model.path)
    model = model_of(job, task)
    looked_through(job, task, model)
    with ExitStack() as stack:
        berth = stack.enter_context(closing(berth_of(job.model.device, "model", lambda: model, read_only=True)))
        berth.load()
        count = job.rollout.workers
        engines = [stack.enter_context(closing(engine_of(job, model, 0, count))) for _ in range(count)]
        scorer = stack.enter_context(closing(scorer_of(job, task, {})))
        most = min(job.rollout.max_length, model.config.max_position_embeddings)
        answers = list[Answer]()
        for answer in _Asking(job, task, Workers(engines), scorer, most).ask(samples):
            heard(answer, len(task) * samples)
            answers.append(answer)
    return worth(answers)


class _Asking:
    """Launches as many requests as the engines run at once, whenever no more than that are under way. If all were
    launched, each end would cost a look at thousands; launched one by one, they would be drawn alone."""

    def __init__(self, job: JobFile, task: Task, workers: Workers, scorer: Scorer, max_length: int) -> None:
        self._job, self._task, self._scorer = job, task, scorer
        most_turns = job.sampling.max_turns if task.needs.talks else 1
        self._turns = Turns(workers, scorer, task.tokenizer, most_turns, max_length)
        self._at_once = job.rollout.running * job.rollout.workers
        self._under_way: dict[str, Request] = {}
        self._ended: dict[Request, Response] = {}

    def ask(self, samples: int) -> Iterator[Answer]:
        numbers = product(range(len(self._task)), range(samples))
        wanted = (Request(0, Prompt(0, number), sample) for number, sample in numbers)
        while self._launched(wanted):
            heard = self._turns.step()
            for over in heard:
                if isinstance(over, Over):
                    yield from self._over(self._under_way.pop(over.id), over)
            if not heard and self._turns.is_idle and not self._scorer.pending:
                raise RolloutStuck(f"{len(self._under_way)} answers never ended: an engine lost requests")
            for scored in self._scorer.collect(wait=self._turns.is_idle):
                yield self._answer(scored.request, self._ended.pop(scored.request), scored.reward)

    def _launched(self, wanted: Iterator[Request]) -> bool:
        """Launches the requests that are due. Whether any are under way now."""
        if len(self._under_way) + self._scorer.pending <= self._at_once:
            for request in islice(wanted, self._at_once):
                first = first_turn(str(request), request, self._task, self._job.sampling, self._job.seed)
                self._under_way[first.id] = request
                self._turns.launch(request, first)
        return bool(self._under_way or self._scorer.pending)

    def _over(self, request: Request, over: Over) -> Iterator[Answer]:
        if over.failed:
            yield self._answer(request, over.response, Reward(Status.ERROR, None, f"{over.failed}: {over.why}"))
        else:
            self._ended[request] = over.response
            self._scorer.submit(request, *over.response.said)

    def _answer(self, request: Request, response: Response, reward: Reward) -> Answer:
        number = int(request.prompt.id)
        is_score = reward.status is Status.SCORE
        return Answer(
            number,
            request.sample,
            self._task.prompt(number),
            response.said,
            response.drawn,
            response.is_cut,
            reward.value if is_score else None,
            # Why it failed may quote the answer.
            "" if is_score else f"{named(self._task, number)}: {reward.status.value}: {plain(reward.detail)}",
        )


def worth(answers: Sequence[Answer]) -> Worth:
    of_prompts = dict[int, list[float]]()
    for each in answers:
        rewards = of_prompts.setdefault(each.prompt, [])
        if each.reward is not None:
            rewards.append(each.reward)
    scored = [rewards for rewards in of_prompts.values() if rewards]
    means = [fmean(rewards) for rewards in scored]
    return Worth(
        prompts=len(of_prompts),
        answers=len(answers),
        reward=fmean(means) if means else None,
        error=stdev(means) / sqrt(len(means)) if len(means) > 1 else None,
        best=fmean(map(max, scored)) if scored else None,
        tokens_mean=fmean(each.tokens for each in answers),
        cut=sum(each.cut for each in answers),
        failed=sum(each.reward is None for each in answers),
    )


def in_words(found: Worth, samples: int) -> str:
    error = "" if found.error is None else f" ± {found.error:.3f}"
    reward = "no reward" if found.reward is None else f"reward {found.reward:.3f}{error}"
    best = f", the best of each {found.best:.3f}" if samples > 1 and found.best is not None else ""
    asked = f"{found.prompts} prompts" + (f", {samples} answers each" if samples > 1 else "")
    return f"{asked}: {reward}{best}; {found.tokens_mean:.1f} tokens, {found.cut} cut off, {found.failed} failed"
