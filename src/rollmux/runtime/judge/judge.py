"""The judge of a reward pool: tasks in, log-probabilities of their answers out.

Invariant: a task that this model can't take gets a text that says so; the others of its pass are judged all the same.
"""

from collections.abc import Sequence
from itertools import chain

from rollmux.runtime.judge.model import JudgeHasNoRoom, ModelJudge, Question
from rollmux.runtime.judge.texts import Encode, prompt_tokens
from rollmux.runtime.rewards.judging import Judge
from rollmux.runtime.rewards.tasks import JudgeTask


class TextJudge(Judge):
    """A model behind its tokenizer."""

    def __init__(self, model: ModelJudge, encode: Encode) -> None:
        self._model, self._encode = model, encode

    def said(self, tasks: Sequence[JudgeTask]) -> Sequence[list[float] | str]:
        questions = [self._question(task) for task in tasks]
        judged = iter(self._judged([each for each in questions if isinstance(each, Question)]))
        return [next(judged) if isinstance(each, Question) else each for each in questions]

    def _judged(self, questions: Sequence[Question]) -> Sequence[list[float] | str]:
        """Judges all questions in one pass, or in several if there is not room for one."""
        try:
            return self._model.judge(questions)
        except JudgeHasNoRoom as refused:
            if len(questions) == 1:
                return [str(refused)]
        half = len(questions) // 2
        return [*self._judged(questions[:half]), *self._judged(questions[half:])]

    def close(self) -> None:
        self._model.close()

    def _question(self, task: JudgeTask) -> Question | str:
        try:
            prompt = prompt_tokens(self._encode, task.template, task.fields)
            answers = tuple(tuple(self._encode(answer, True)) for answer in task.answers)
        except (ValueError, TypeError) as error:  # half of a surrogate pair
            return f"its text is none to this tokenizer: {error}"
        length = len(prompt) + max(map(len, answers)) - 1
        if not prompt or not all(answers):
            return "the prompt or an answer has no token: write more of it"
        if any(one != other and other[: len(one)] == one for one in answers for other in answers):
            return "an answer begins with another one, so that both may be given at once: choose others"
        if len(set(answers)) < len(answers):
            return "two answers are the same to this tokenizer: choose others"
        if max((*prompt, *chain(*answers))) >= self._model.vocabulary:
            return f"the model has {self._model.vocabulary} tokens, its tokenizer more: give it its own"
        if length > self._model.max_length:
            return f"{length} tokens with the answer: must be at most {self._model.max_length}; shorten the fields"
        return Question(prompt, answers)
