"""One answer in the ways that models and data sets write it, and its neighbours: what each rule reads, and what not."""

import importlib

import pytest

from rollmux.runtime.rewards import maths, spelling

# The rule, then what is the same and what is not: `answer :: gold answer`. `The` and `Answer` begin what has no box.
RULES = {
    "what can't be worked out is its text": (
        r"""8:00 :: 8:00 | 10:00 \text{ PM} :: 10:00 \text{ PM} | \frac{1}{0} :: \frac{1}{0} | \csc 0 :: \csc 0
        10:00 :: 10:00 \text{ PM} | 3:30 pm :: 3:30 \text{ p.m.} | 3:30 PM :: 3:30 \text{ p.m.} | 3:30 p.m. :: 3:30PM
        3:30 :: 3:30 PM | \text{3:30 PM} :: 3:30 \text{ p.m.} | 3:30 PM :: \text{3:30 p.m.} | 7 PM :: 7 \text{ p.m.}
        7 p.m. :: 7 \text{ PM} | \boxed{3:30 \text{ PM}}; It left at 9:00 AM. :: 3:30 \text{ p.m.}
        It left at 9:00 AM, the answer is $3:30$ PM. :: 3:30 PM | 2am :: 2am
        \boxed{3:30\text{ PM}} and \boxed{4:30\text{ AM}} :: 3:30\text{ PM}, 4:30\text{ AM}""",
        r"""12:00 :: 8:00 | 5 :: \csc 0 | \frac{2}{0} :: \frac10 | 10:00 \text{ AM} :: 10:00 \text{ PM}
        3:30 am :: 3:30 \text{ p.m.} | 3:30 AM :: 3:30 \text{ p.m.} | 3:30 a.m. :: 3:30 PM
        The answer is $3:30$ AM. :: 3:30 PM | The answer is $3:30\text{ AM}$. :: 3:30 \text{ p.m.}
        \boxed{3:30\text{ AM}}; It left at 3:30 PM. :: 3:30\text{ PM} | 7 \text{ AM} :: 7 \text{ p.m.} | 2am :: 2pm
        \text{3:30 AM} :: 3:30 PM | 3:30\text{ PM}, 4:30\text{ PM} :: 3:30\text{ PM}, 4:30\text{ AM}""",
    ),
    "a command takes the first digit": (
        r"\sqrt 2 1/2 :: \frac{\sqrt2}{2} | \sqrt 2 3/4 :: \frac{3\sqrt2}{4} | 7 3/4 :: 7.75",
        r"\sqrt 2 3/4 :: \frac{\sqrt{11}}{4}",
    ),
    "where both have a base it is the same": (
        r"""101_3 :: 101_{3} | 101 :: 101_3 | x = 101_3 :: 101_3 | 5_6 :: 5 | 12_5 :: 12 | 101_10 :: 101 | 101_3 :: 101
        110_2, 101_2 :: 101_2, 110_2 | 8_5 :: 8_5 | a_1 :: a_1 | -101_2 :: -101_{2} | 101_2 = 5 :: 5
        10_{10} = 101_3 :: 101_3 | The answer is $101_3$. :: 101_3""",
        r"""101_2 :: 101_3 | 12_{7} :: 12_8 | 101_2, 110_3 :: 101_2, 110_2 | 18_7 :: 24_7 | 8_5 :: 7_5 | 101_3 :: 10103
        10_{10} :: 101_3 | 12_5 :: 7 | 2313_4 :: 183 | 5_{10} :: 101_2 | The answer is $101_2$. :: 101_3""",
    ),
    "a numeral is no unit": (
        r"""3{,}000{,}000 :: 3 \text{ million} | 3 Million :: 3\times 10^6 | \$3.5\text{ million dollars} :: 3500000
        3 million :: 3 \text{ million} | \frac12\text{ million} :: 500000
        The answer is 3 million people. :: 3000000
        3 hundred thousand :: 300000 | 2\text{ hundred million} :: 2\cdot 10^8""",
        r"""3 :: 3 \text{ million} | 3 \text{ thousand} :: 3 \text{ million} | 3 million :: 3 | 3 hundred :: 3
        3 hundred thousand :: 300 | 3 \text{ thousandths} :: 3000""",
    ),
    "a decimal that repeats is a fraction": (
        r"""0.\overline{3} :: \frac13 | \frac{8}{11} :: 0.\overline{72} | -0.\bar6 :: -2/3 | 1.2\overline{34} :: 611/495
        0.\overline{36} :: 0.\overline{36} | 33.\overline{3}\% :: \frac{100}{3}\% | The answer is 0.\bar{3}. :: 1/3""",
        r"0.\overline{3} :: 0.3 | 0.33 :: 0.\overline{3} | 0.3\overline{6} :: 0.\overline{36} | 4 :: 0.\overline{36}",
    ),
    "a sine takes no degrees for radians": (
        r"""\sin 50^\circ :: \cos 40^\circ | \frac12 :: \sin 30^\circ | 2\cos 20^\circ :: 2\cos\frac{\pi}{9}
        \sin\left(30^{\circ}\right) :: 0.5 | \tan^2 60^\circ :: 3 | \cos{60°} :: 1/2 | 45 :: 45^\circ
        \sin(180^\circ-x) :: \sin x | \frac{\sin 30^\circ}{\cos 30^\circ} :: \frac{1}{\sqrt3}""",
        r"\sin 50^\circ :: \cos 50^\circ | \sin 30 :: \frac12 | \sin 30 :: \sin 30^\circ | 45^\circ :: \frac{\pi}{4}",
    ),
    "signs of Unicode are LaTeX's": (
        """45° :: 45^\\circ | x² + 2x + 1 :: (x+1)^2 | 10⁻³ :: 0.001 | √10 :: \\sqrt{10} | 2√(3) :: 2\\sqrt3
        √{2} :: \\sqrt2
        2½ :: 5/2 | ¾ :: 0.75 | (-∞,2) :: (-\\infty,2) | 2·3 :: 6 | The answer is ½. :: 1/2
        The answer is −3. :: -3 | −3 :: -3 | (−1,2) :: (-1,2)""",
        "√10 :: 0 | √2 :: 2 | 10² :: 102 | x³ :: x^2 | ½ :: 12 | 2½ :: 1 | −3 :: 3",
    ),
    "an exponent behind e is of ten": (
        r"""1e-3 :: 0.001 | 2.5e3 :: 2500 | 1E6 :: 10^6 | 1e-3 :: 1e-3 | The answer is 1.5e+3. :: 1500 | -2e3 :: -2000
        2e :: 2e | 2e^3 :: 2e^3 | x = 2.5e3 :: 2500""",
        r"1e-3 :: 0.01 | 2e^3 :: 2000 | 2e3 :: 2e^3 | 1e-3 :: 1 | 2e :: 2e3",
    ),
    "words behind a number are its unit": (
        r"""18 dollars :: 18 | 18 people :: 18 | 12 cm^2 :: 12 | 12 cm² :: 12 | 18 km/h :: 18 | 18 miles per hour :: 18
        \$18\ dollars :: 18 | \frac{1}{2} cups :: 0.5 | 7 3/4 hours :: 31/4 | x = 18 dollars :: 18 | 18 percent :: 0.18
        18 men :: 18 | 12 ft :: 12 | 6 abc :: 6abc | The answer is \$18. :: 18
        The answer is \$5 + \$13 = \$18. :: 18 | The answer is \$1,234.50. :: 1234.5
        He has 5 apples and \$3. The answer is \$18. :: 18""",
        r"""17 dollars :: 18 | 18 xy :: 18 | 6 abc :: 6x | 18 or 20 dollars :: 18 | 18 dollars or 20 dollars :: 20
        2 hours 30 minutes :: 2 | 2 hours 30 minutes :: 30 | 3 eggs and 2 apples :: 3 | 6 :: 6 abc | 18 percent :: 0.5
        6 abc :: 6 | 2^{3 abc} :: 8 | 5 theta :: 5 | 5 squared :: 5 | 5 factorial :: 5 | 3 plus four :: 3 | 3 dozen :: 3
        3 halves :: 3 | 3 maybe four :: 3 | 18 degrees below zero :: 18 | 0.3 repeating :: 0.3
        The answer is \$17 or \$18. :: 17 | The answer is \$17, \$18. :: 17
        The answer is \$17 - \$18. :: 18 | The answer is \$17 to \$18. :: 18
        It is 17 or \$18, the answer. :: 18 | The answer is \$17, maybe \$18. :: 17
        The answer is \$17 and \$18. :: 18""",
    ),
    "euros and the like are read as dollars": (
        """€5 :: 5 | 5 :: £5 | 5€ :: 5 | 5 € :: €5 | ¥1,234.50 :: 1234.5 | -₹3 :: -3 | €1.5 \\text{ million} :: 1500000
        \\text{€}5 :: 5 | \\text{£ }1,234.50 :: 1234.5 | \\text{\\$}5 :: 5 | 5\\text{€} :: 5 | 5 :: \\text{€}5
        The answer is €18. :: 18 | The answer is £5 + £13 = £18. :: 18""",
        "€5 :: 6 | -€5 :: 5 | 5€ :: 0.05 | The answer is €17 or €18. :: 18",
    ),
    "a letter that is said to be the answer is": (
        r"""The answer is (B). :: B | Answer: B :: B | The correct **answer: B** :: \text{(B)} | The answer is $B$. :: B
        With $x=2$ the answer is: (E). :: E | Answer: A; no. Answer: B :: B | **Answer:** (C) :: C
        The answer is not A. I think the answer is B :: B | Answer:; ; B :: B
        Answer: A; No, the answer is $\text{B}$. :: B | The answer is B.; A is too large. :: B
        The answer is B.; #### Notes; A is too large. :: B
        The answer is \text{B}. :: \text{(B)} | Answer: \textbf{(C)} :: C""",
        r"""Answer: B or C :: B | Answer: A, B, C, D :: A | Answer: A, B, C, D :: D | The answer is not B :: B
        Answer: A / Answer: B :: A | The answer is A number :: A | The answer is B or C :: C | The answer is a :: A
        The answer is B? No, C :: B | The box is \boxed{A}. The answer is B :: B | The answer is (B). :: C
        Answer:; A; B; C; D :: A | Answer: A; (B) :: A | The answer is A; or B :: A
        A wrong answer is B.; I choose C. :: B | Answer: \text{A}; \text{B} :: A
        Answer: A; No, the answer is $\text{B}$. :: A | Answer: A; So the answer is A or B :: A""",
    ),
    "a formula that is said to be the answer is": (
        r"""Answer: 3\sqrt{2} :: 3\sqrt2 | The answer is \dfrac{1}{2}. :: 0.5 | **Answer:** (1, 2) :: (1,2)
        Answer: 2\pi :: 2\pi | Answer: 2+3i :: 2+3i | Answer: x^2+1 :: 1+x^2 | Answer: 1,2,3 :: 3,2,1
        Answer: 7; The final answer is: (-\infty, 3] :: (-\infty,3] | Answer: 3 or 4 :: 3, 4 | Answer: 3.5 :: 7/2
        Answer: \begin{pmatrix} 1 \\ 2 \end{pmatrix} :: \begin{pmatrix}1\\2\end{pmatrix} | Answer: 1,234. :: 1234
        The answer: so; #### \frac{14}{3} :: 14/3 | The answer is 18 men. :: 18 | Answer: $3$ and no more :: 3
        Answer: .5 :: 1/2 | **Answer:** .25. :: 0.25
        The answer is 42! :: 42 | **Answer: 2.5!** :: 5/2 | Answer: 5! = 120! :: 120 | Answer: 5! :: 5!
        Answer: n! :: n! | The answer is (A) 5 :: 5 | Answer: (B) \frac12 :: \frac12
        Answer: (C) -3\sqrt{2}. :: -3\sqrt2 | Answer: 5 m/s :: 5 | Answer: 5 m/s :: 5 m/s | Answer: 20 °C :: 20
        Answer: 1,200 cm^2 :: 1200 | Answer: 5 L :: 5 | Answer: 1/2 N. :: 0.5 | The answer is -5 Ω. :: -5
        Answer: 5 L :: 5 L | Answer: 5 N :: 5N""",
        r"""Answer: 3\sqrt{2} :: 3 | Answer: 2\pi :: 2 | Answer: n! :: n | Answer: 2^{10} :: 2 | Answer: 2+3i :: 2
        Answer: (1, 2) :: 2 | Answer: 3 or 4 :: 3 | Answer: 1,2,3 :: 3 | Answer: \frac{1}{2}x :: 0.5
        Answer: 7/x :: 7 | Answer: 10^{-3} :: 10 | The answer: so; #### 3\sqrt{2} :: 3 | \boxed{2}; Answer: 3 :: 3
        Answer: (-\infty, 3] :: 3 | The wrong answer is 2\pi :: 2\pi
        Answer: .5 :: 5 | The answer is 42! :: 41 | Answer: 5! :: 5!! | Answer: (A) 5 :: A | Answer: (A) 5 :: 6
        Answer: 5 x/y :: 5 | Answer: 2\pi m^2 :: 2 | Answer: 5 x^2 :: 5 | Answer: 5 x :: 5 | Answer: 5 L :: 6
        Answer: 5 L :: 5 N | Answer: 5 N :: 5x | Answer: 5 L^2 :: 5 | Answer: 5 N or 6 N :: 5""",
    ),
    "a comma is a decimal point where one number is asked for": (
        r"""Answer: 2,5 :: 2.5 | The answer is -0,125. :: -1/8 | **Answer: 2,3456** :: 2.3456 | Answer: 1234,5 :: 1234.5
        Answer: 2,5 :: \frac52 | Answer: 2,5 :: $2.5$ | Answer: 2,5 :: 2,5 | Answer: 2,5 :: 5, 2 | Answer: 1,234 :: 1234
        Answer: 2,5 :: 2 \text{ or } 5 | Answer: 2,5 :: \{2, 5\}""",
        r"""Answer: 2,5 :: 2 | Answer: 2,5 :: 5 | Answer: 2,5 :: 25 | Answer: 2,5 :: 2.6 | Answer: 2, 5 :: 2.5
        Answer: 1,234 :: 1.234 | Answer: 2,5,1 :: 2.51 | \boxed{2,5} :: 2.5 | Answer: 2,5 :: 2.5, 3
        Answer: 2,34 :: 234""",
    ),
    "what is thought is no answer": (
        r"""<think>\boxed{5}?</think> The answer is 6. :: 6 | So \boxed{5}?; </think>; The answer is $6$. :: 6
        <think>It is 5.</think> \boxed{6} :: 6 | <think>5</think><think>4</think>Answer: \sqrt{2} :: \sqrt2
        \boxed{6}<think> That was it. :: 6 | <think>\boxed{5}</think><answer>6</answer> :: 6""",
        r"""<think>\boxed{5}</think> I am not sure. :: 5 | <think>So it is \boxed{5} :: 5
        The answer is 5.</think> :: 5 | <think>\boxed{5}?</think> The answer is 6. :: 5
        <think><answer>5</answer></think>Nothing. :: 5""",
    ),
    "what stands in tags is said to be the answer": (
        r"""<answer>42</answer> :: 42 | <think>The answer is 9.</think><answer>42</answer> :: 42
        <answer>B</answer> :: B | <answer>\boxed{4}</answer> :: 4
        <answer>9</answer>; <answer>\$42</answer>; 9 :: 42 | <answer>$\frac12$</answer> :: 0.5
        <answer>The answer is 42.</answer> :: 42
        <think>The final answer is 9. No.</think><answer>42</answer> :: 42
        \boxed{9}; No.<answer> **42** </answer> :: 42
        So \boxed{9}; No.<answer>The final answer is 42.</answer> :: 42 | \boxed{9}; No.<answer>$42$</answer> :: 42
        <answer>\sqrt{2}</answer> :: \sqrt2 | <answer>(1,2)</answer> :: (1,2) | <answer>Paris</answer> :: Paris
        <answer>3:30 PM</answer> :: 3:30 \text{ p.m.} | <answer>1 \text{ or } 2</answer> :: 1, 2
        \boxed{42}; <answer>as above</answer> :: 42 | Say <answer>answer</answer>.; The answer is 42 :: 42
        \boxed{42}, in <answer>...</answer> :: 42 | The answer is 42.<answer></answer> :: 42""",
        r"""<answer>9</answer> :: 42 | <answer>42</answer>; <answer>9</answer> :: 42 | <answer>C</answer> :: B
        <think>The final answer is 42. No.</think><answer>9</answer> :: 42 | \boxed{42}; No.<answer>9</answer> :: 42
        <answer>2\pi</answer> :: 2 | <answer>3:30 PM</answer> :: 3
        <answer>5 or 6</answer> :: 5 | \boxed{B}; No.<answer>C</answer> :: B""",
    ),
    "letters in a list are several": (
        r"\text{A, C} :: A, C | \text{A and C} :: A,C | A, C :: \text{C, A} | \text{A, B, and C} :: A,B,C",
        r"\text{A, C} :: A, B | \text{A and C} :: A | \text{AC} :: A,C",
    ),
    "inequalities parted by `or` are a union": (
        r"""x<-1 \text{ or } x>1 :: (-\infty,-1)\cup(1,\infty) | (-\infty,-1]\cup[1,\infty) :: x\le -1 or x\ge 1
        1<x<2 or x>3 :: (1,2)\cup(3,\infty) | x=1 or x=2 :: 1, 2 | x<y or x>1 :: x<y or x>1
        \frac{1}{x}>0 or x<1/0 :: \frac{1}{x}>0 or x<1/0""",
        r"""x<-1 \text{ and } x>1 :: (-\infty,-1)\cup(1,\infty) | x<-1, x>1 :: (-\infty,-1)\cup(1,\infty)
        x^4-3x^3+x-7>0 or x>3 :: x<1 or x>2
        1<x<2 or x>3 :: (3,\infty) | x=1 or y>3 :: \{1\}\cup(3,\infty) | x\le-1 or x>1 :: (-\infty,-1)\cup(1,\infty)""",
    ),
}
CASES = [
    (same, *pair.strip().split(" :: "))
    for rules in RULES.values()
    for same, pairs in zip((True, False), rules, strict=True)
    for pair in pairs.replace("\n", " | ").split(" | ")
]


@pytest.mark.parametrize(("same", "answer", "gold"), CASES)
def test_one_answer_is_the_same_in_whatever_spelling_and_its_neighbours_are_others(
    same: bool, answer: str, gold: str
) -> None:
    bare = "nswer" in answer or "\\boxed" in answer
    response = answer.replace(" / ", "\n").replace("; ", "\n") if bare else f"\\boxed{{{answer}}}"
    assert maths.same_answer(response, gold)[0] is same


@pytest.mark.parametrize(
    "part",
    [
        "1",
        "1 ",
        "1 hundred ",
        "1 \n",
        "√(",
        "\\sin{",
        "\\sin(",
        "\\$1",
        "\\$.",
        "1_{",
        "\\text{A,",
        "x} ab",
        "answer:",
        ":00 a",
        "1:00 \\text{",
    ],
)
@pytest.mark.parametrize("end", ["", "{a}", " " * 3000, "." * 3000, "1" * 3000])
def test_no_length_of_a_response_makes_reading_it_slow(part: str, end: str) -> None:
    long = f"\\boxed{{{part * 1000}{end}"
    told = spelling.untagged(f"{part * 1000}<answer>{part * 1000}{end}</answer>{part * 1000}")
    assert "<answer>" not in told
    said = (f"{part * 1000}{end}", f"{'answer: ' * 1000}{part * 1000}{end}")
    text, _ = (spelling.spelled(spelling.with_answer_boxed(each, gold)) for each, gold in zip(said, "A1", strict=True))
    for read in (
        spelling.without_unit,
        spelling.with_bases_told,
        spelling.words,
        spelling.parted_by_or,
        spelling.spelled,
    ):
        read(text), read(long)
    assert not spelling.of_other_halves(long, text)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\sin 1^\circ + \sin 2^\circ", r"\cos 7^\circ\cos 11^\circ"),
        (r"\tan 37°", r"\cot 51^\circ"),
        (r"\cos 40^\circ + i\sin 40^\circ", r"\cos 41^\circ + i\sin 41^\circ"),
    ],
)
def test_that_sines_of_degrees_are_far_apart_is_found_without_algebra(
    answer: str, gold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grader = importlib.import_module("math_verify.grader")
    monkeypatch.setattr(grader, "simplify", lambda _: pytest.fail("it simplifies"))
    assert maths.same_answer(f"\\boxed{{{answer}}}", gold) == (False, "another answer")
