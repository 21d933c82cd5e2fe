"""How answers are written: what is rewritten before math-verify reads an answer.

Invariant: a rule makes two ways to write one answer the same, and never two answers. A long text makes no rule slow.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from unicodedata import normalize

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
# No words: commands, subscripts, and names of points, such as the AB of `|AB| =`.
_NO_WORD = re.compile(
    r"\\(?:begin|end)\{\w+\*?\}|\\[A-Za-z]+|_\{(?:\\\w+\{)?[^{}]*\}|(?<![A-Za-z])[A-Z]{2,}(?=[]})|\s]*=)"
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_LETTERS = 3  # a word has at least so many
_TEXT = r"\\(?:text|mathrm|mbox)\w*\s*\{\s*"
_WORDS = re.compile(rf"(?:{_TEXT})?([A-Za-z]{{2,}}(?: +[A-Za-z]{{2,}})*)\s*\}}?")
_OR = re.compile(rf"{_TEXT}or\s*\}}|\bor\b")
_ZEROS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_AMOUNT = r"\\\$(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_ANOTHER = re.compile(r"\W{0,9}(?:or|and)\b")
_NUMERAL = rf"(?:{'|'.join(_ZEROS)})s?\b"
_SIGNS = str.maketrans(
    {"°": r"^\circ ", "∞": r"\infty ", "·": r"\cdot ", "−": "-", **dict.fromkeys("€£¥₹", r"\$")}
    | {"½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}"}
)
_DEGREES = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree)(?![A-Za-z])")
_SINE = re.compile(
    r"\\(?:sin|cos|tan|cot|sec|csc)(?:\s*\^\s*(?:\d|\{\d\}))?\s*(?:\\left\s*)?"
    rf"(?:\([^()]*\)|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|-?{_DEGREES.pattern})"
)
# A unit behind a number at the end of a box. Percent is read in its own way; `18 xy` and `6 abc` are products.
_UNIT = re.compile(
    r"(?<=[\d}])\s+(?!percent|pct)((?:[A-Za-z]{4,}|men|mph|kmh|min|lbs|day|hrs?|[ckm]m|ft|in|yd|mi|[AaPp]\.?[Mm])(?:[\s/]+[A-Za-z]+)*)"
    r"(?:\^(?:\d|\{\d\}))?\s*(?=\})"
)
# Words that count on behind a number, or reckon with it: `5 squared`, `3 plus four`, `2 dozen`, `3 theta`.
_COUNTS = re.compile(
    r"\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty"
    r"|dozens?|half|halves|thirds?|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand|million)ths?|repeating|recurring"
    r"|plus|minus|times|over|divided|multiplied|squared|cubed|factorial|choose|mod|modulo|root|sqrt|infinity|infty|and|or|not|maybe"
    r"|alpha|beta|gamma|delta|epsilon|theta|kappa|lambda|sigma|omega)\b",
    re.IGNORECASE,
)
_ONE_LETTER = re.compile(rf"\s*(?:{_TEXT})?\(?[A-Z]\)?\s*\}}?\s*")
_ANSWER = re.compile(r"(?<!wrong )(?<!incorrect )answer(?: is|[ *]*:)", re.IGNORECASE)
_ANSWER_OR_HASHES = re.compile(f"{_ANSWER.pattern}|####", re.IGNORECASE)  # as in GSM8K
# A letter alone on its line. As a choice it counts only if no list of letters goes on below it.
_LETTER = rf"[*$]*(?:{_TEXT})?\(?[A-Z]\)?\}}?[.*$ ]*$"
_CHOICE = re.compile(rf"[\s:*$]*(?:{_TEXT})?\(?([A-Z])\)?\}}?[.*$ ]*$(?!\s*(?:(?:or|and)\b|{_LETTER}))", re.MULTILINE)
_IN_BASE = re.compile(r"(?<![\w.])(\d{1,99})_(?:\{(\d{1,2})\}|(\d{1,2})(?!\d))")
_EMPHASIS = " *:"  # around a line's last words; a point behind them is a full stop, one before them a decimal point
# The letter of a choice, such as `(A)`, before the choice itself.
_LISTED = re.compile(r"^\([A-H]\)\s+(?=\(?[-−]?(?:[.√\d]|\\[dt]?frac|\\sqrt))")
_PLEASED = re.compile(r"(?<=\d)\s*!+$")
# Units that math-verify drops when it looks for numbers, and takes for factors in a box.
_MEASURED = re.compile(
    r"[-−]?[\d.,/]*\d\s+(?:[JKLNVWΩ]|°\s?[CF]|[ckm]?m(?:\^\{?[23]\}?|[²³])|(?:[ckm]?m|mi|ft|k?g|m?L)/(?:s|h|hr|min))"
)
# A decimal comma, for gold answers with parts. Else a comma parts a list, or thousands if three digits follow.
_DECIMAL = re.compile(r"[-−]?(?:0,\d{3}|\d+,(?!\d{3}\Z)\d+)")
_PARTS = re.compile(r"[-−]?(?:\d*\.\d+|\d+/\d+|\\[dt]?frac\s*(?:\d|\{\d+\})\s*(?:\d|\{\d+\}))")
_SAYS = re.compile(r"[^\W_]")
_NO_PROSE = re.compile(r"[\d$\\]")
_DISPLAYED = re.compile(r"\$|\\[(\[]|\n|" + _BOX.pattern)
_OTHER_HALF = {"a": "p", "p": "a"}
_OF_DAY = re.compile(r"(?<=:\d\d)\s*([ap])\.?\s?m\b\.?", re.IGNORECASE)
# A time of day as people spell it: `3:30 pm`, `$3:30$ am`, `7 \text{ p.m.}`.
_TIME = re.compile(r"(?<![\d.:])0?(\d{1,2}(?::\d\d){0,2})[\s$]{0,9}(?:\\[a-z]{1,9}\s{0,9}\{\s{0,9})?([ap])\.?\s?m\b")


def spelled(text: str) -> str:
    """The last box alone, with whatever math-verify would misread written so that it reads what is meant."""
    text = _last_boxes(text).translate(_SIGNS)
    for written, read in _READ:
        text = written.sub(read, text)
    return text


def _fraction(mixed: re.Match[str]) -> str:
    whole, part, parts = map(int, mixed.groups())
    return f"{whole * parts + part}/{parts}" if part < parts else mixed[0]


def _repeating(decimal: re.Match[str]) -> str:
    whole, once, within, alone = decimal.groups(default="")
    again = within or alone
    number = int(f"{whole}{once}{again}") - int(f"0{whole}{once}")
    return f"\\frac{{{number}}}{{{(10 ** len(again) - 1) * 10 ** len(once)}}}"


def _amount(amounts: re.Match[str]) -> str:
    before, _, last = amounts[0].rpartition("\\$")
    alone = not before or before.rstrip().endswith("=")
    return before + last if alone and not _ANOTHER.match(amounts.string, amounts.end()) else amounts[0]


def _power(numerals: re.Match[str]) -> str:
    zeros = sum(_ZEROS[each.removesuffix("s")] for each in numerals[2].lower().split())
    return f"*{10**zeros} {numerals[1]}"


_READ: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # LaTeX's blanks are blanks, and a full stop at the end is dropped.
    (re.compile(r"(?<!\\)\\[ ,;:]|~(?!=)"), " "),
    (re.compile(r"(?<!\.)\.(?=\s*(?:\}|$))"), ""),
    # math-verify knows `7:05 pm`, and takes the letters of `PM` and `p.m.` for factors.
    (_OF_DAY, lambda found: f" {found[1].lower()}m"),
    # math-verify takes `\text{3:30 pm}` for a name.
    (re.compile(rf"{_TEXT}(\d{{1,2}}:\d\d(?: [ap]m)?)\s*\}}"), r"\1"),
    # `\text{€}5` is as good as `€5`.
    (re.compile(rf"{_TEXT}\\\$\s*\}}"), r"\\$"),
    # `The answer is \$18` is 18. Of several amounts in a sentence none is the answer, except the last behind `=`.
    (re.compile(rf"(?<!\\)(?<!or )(?<!and ){_AMOUNT}(?:(?:(?![.!?]\s)[^\n]){{0,80}}?{_AMOUNT})*"), _amount),
    # √10 and √(2) need braces, and so do x² and 10⁻³.
    (re.compile(r"√\s*(?:\(([^()]*)\)|(\d{1,99}|[^\W\d_]))"), lambda found: f"\\sqrt{{{found[1] or found[2]}}}"),
    (re.compile("√"), r"\\sqrt"),
    (re.compile("[⁰¹²³⁴-⁹⁻]+"), lambda found: f"^{{{normalize('NFKC', found[0]).replace('−', '-')}}}"),
    # `1 234` and `7 3/4` are numbers, unless a command takes the first digit.
    (
        re.compile(r"(?<![\w.,^/\\}])(?<![A-Za-z] )[1-9]\d{0,2}(?: \d{3})+(?!\w)"),
        lambda found: found[0].replace(" ", ""),
    ),
    (re.compile(r"(?<![\w.,^/\\}])(?<!frac )(?<!sqrt )(\d{1,9}) (\d{1,9})/(\d{1,9})(?![\w./^])"), _fraction),
    # `2.5e-3` is no product with e.
    (
        re.compile(r"(?<![\w.])\d{1,9}(?:\.\d{1,9})?[eE][+-]?\d{1,2}(?![\w^]|\.\d)"),
        lambda found: f"{Decimal(found[0]):f}",
    ),
    # math-verify can't read `0.\overline{3}`.
    (re.compile(r"(?<![\w.,}])(\d{0,9})\.(\d{0,9})\\(?:overline|bar)\s*(?:\{(\d{1,9})\}|(\d))"), _repeating),
    # In `3 \text{ million}` and `3 hundred thousand` the numeral is no unit.
    (
        re.compile(rf"(?<=[\d}}])\s*((?:{_TEXT})?)({_NUMERAL}(?:\s+{_NUMERAL}){{0,3}})", re.IGNORECASE),
        _power,
    ),
    # Degrees alone are plain numbers, but within a sine they must not be read as radians.
    (_SINE, lambda found: _DEGREES.sub(r"\\frac{\1\\pi}{180}", found[0])),
    # math-verify takes `\text{A, C}` for one name, and the last comma of `A, B, and C` is one too many.
    (re.compile(r"(?<=[A-Za-z]),(?=\s+and\b)"), ""),
    (re.compile(rf"{_TEXT}([A-Z](?:(?:\s*,|\s+and\b)\s*[A-Z])+)\s*\}}"), r"\1"),
)


def _last_boxes(text: str) -> str:
    """The text from its last box on, with boxes before it if only `and` and `or` stand between: they are one answer."""
    before, *boxes = _BOX.split(text)
    apart = [number for number, box in enumerate(boxes[:-1], 1) if _has_words(_halves(box)[1])]
    return "\\boxed{".join(["", *boxes[apart[-1] :]] if apart else [before, *boxes])


def _has_words(between: str) -> bool:
    return not {"and", "or"}.issuperset(_WORD.findall(_NO_WORD.sub(" ", between).lower()))


def _halves(box: str) -> tuple[str, str]:
    """The content of a box, and the text behind it."""
    within = 1
    for at, letter in enumerate(box):
        within += (letter == "{") - (letter == "}")
        if not within:
            return box[:at], box[at + 1 :]
    return box, ""


def words(text: str) -> str | None:
    """The content of the only box in lower case, if it is words of three letters or more; else None."""
    _, *boxes = _BOX.split(text)
    found = _WORDS.fullmatch(_halves(boxes[0])[0].strip()) if len(boxes) == 1 else None
    return found[1].lower() if found and len(found[1]) >= _LETTERS else None


def parted_by_or(text: str) -> int:
    """How many parts the last box has, if only `or` stands between them; else 1."""
    box = _halves(_BOX.split(text)[-1])[0]
    return 1 if "," in box or "and" in box else len(_OR.split(box))


def without_unit(text: str) -> str:
    """Without a unit in plain letters: math-verify drops some units, and reads others as products of their letters."""
    return _UNIT.sub(lambda found: found[0] if _COUNTS.search(found[1]) else "", text)


def without_thoughts(response: str) -> str:
    """The text behind the last thoughts; if thoughts have no end, the text before them."""
    _, is_over, said = response.rpartition("</think>")
    return said if is_over else response.partition("<think>")[0]


def untagged(response: str) -> str:
    """What stands in the last `<answer>` tags and behind them: an earlier answer, thought better of, is dropped.

    It becomes a box, or `Answer:` if it has words. Words alone may say "as above"; one word at the end is an answer.
    """
    said, end, behind = response.rpartition("<answer>")[2].partition("</answer>")
    said = said.strip("* \n")
    if end and _SAYS.search(said) and not _DISPLAYED.search(said) and _halves(said + "}")[0] == said:
        is_word = said.isalpha() and not _SAYS.search(behind)
        if is_word or not _has_words(_OF_DAY.sub("", said)):
            return f"\\boxed{{{said}}}\n{behind}"
    if end and _NO_PROSE.search(said):
        return f"Answer: {said}\n{behind}"
    return response.replace("<answer>", "\nAnswer: ").replace("</answer>", "\n")


def with_answer_boxed(response: str, gold: str = "") -> str:
    """Boxes what the last `answer is` or `Answer:` names, a letter or a formula without dollars, if there is no box.

    math-verify reads only bare numbers there, and so took 3 for `3\\sqrt{2}`, and for `3 or 4`.
    """
    if _BOX.search(response):
        return response
    named = _choice(response) if _ONE_LETTER.fullmatch(gold) else _last_formula(response, gold)
    return f"{response}\n\\boxed{{{named}}}" if named else response


def _choice(response: str) -> str | None:
    behind = [found.end() for found in _ANSWER.finditer(response)]
    named = _CHOICE.match(response, behind[-1]) if behind else None
    return named and named[1]


def _last_formula(response: str, gold: str) -> str | None:
    """A formula that the last line names: lines behind it might take it back. `42!` is 42, unless gold has a `!`."""
    line = response.rstrip().rpartition("\n")[2]
    behind = [found.end() for found in _ANSWER_OR_HASHES.finditer(line)]
    said = line[behind[-1] :].lstrip(_EMPHASIS).rstrip(f"{_EMPHASIS}.") if behind else ""
    said = _LISTED.sub("", said if "!" in gold else _PLEASED.sub("", said))
    is_formula = _SAYS.search(said) and not _DISPLAYED.search(said) and _halves(said + "}")[0] == said
    is_number = _MEASURED.fullmatch(said) and not any(map(str.isalpha, gold))
    if _DECIMAL.fullmatch(said) and _PARTS.fullmatch(gold.strip("$ ")):
        return said.replace(",", ".")
    return said if is_formula and not (is_number or _has_words(said)) else None


def has_base(text: str) -> bool:
    return bool(_IN_BASE.search(text))


def has_sine_of_degrees(*texts: str) -> bool:
    return any(_DEGREES.search(found[0]) for text in texts for found in _SINE.finditer(text.translate(_SIGNS)))


def with_bases_told(text: str) -> str:
    """Writes `101_3` as 10103: each pair of digits and base becomes a number of its own, whatever it is worth."""
    return _IN_BASE.sub(lambda number: f"{int(number[1])}{int(number[2] or number[3]):02}", text)


def of_other_halves(text: str, gold: str) -> bool:
    """Whether one says AM and the other PM: math-verify drops both, as it does units."""
    said, known = ({*_TIME.findall(_answered(each).lower())} for each in (text, gold))
    return any((time, _OTHER_HALF[half]) in said for time, half in known - said)


def _answered(text: str) -> str:
    """The contents of all boxes; the whole text if there are none."""
    before, *boxes = _BOX.split(text)
    return " ".join(_halves(box)[0] for box in boxes) if boxes else before
