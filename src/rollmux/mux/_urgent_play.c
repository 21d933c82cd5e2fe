/* `urgent_play` in C: the same loop on the same numbers, some fifteen times faster.
 *
 * It gives what `rollmux.mux.urgent_play.urgent_play` gives, to the last bit (tests/mux/test_compiled_play.py holds the
 * two against each other), or None where a number is too great for C, or the play would fail: then Python plays.
 * It may be missing: an installation without a compiler plays in Python.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Quotients of times are exact below this, as Python's are, and no sum of two overflows. */
#define MOST ((int64_t)1 << 52)
#define MOST_MS ((int64_t)1 << 36)

enum { TRAIN = 1, SYNC = 2, PAUSING = 3 };

typedef struct {
    int64_t *at; /* its holder, then who waits, by the latest time to begin; codes in the low bits */
    int size;
} Line;

typedef struct {
    int64_t *at_ms; /* when iterations were complete; the start counts as one */
    Py_ssize_t size, room;
} Times;

typedef struct {
    double aim, hopeless, clear;
    long debt, patience, trial_turns, hopeless_from, clear_from, most_iterations;
} Rules;

/* What was seen at the end of a turn. */
typedef struct {
    int64_t *numbers;
    Py_ssize_t *counts;
    int size;
    int64_t now_ms;
} Seen;

typedef struct {
    int jobs, codes, nodes, bits, agenda_size, pausing_size, seen_size, seen_room;
    int64_t mask;
    Line *lines;         /* one for each node, in the order of their first use, then one for each job's sync */
    int **served_at;     /* by code, as the next ten fields: the lines of all places where a step may be served */
    int *places;
    int *holds_at;
    int64_t *takes, *before_due, *off, *on, *ends, *left;
    int *following, *can_pause, *pauses_at; /* the last by the code of the pausing step */
    int64_t *agenda;     /* when each step under way is over, the next one first */
    int *pausing;        /* codes of pausing steps, the longest under way first */
    int64_t *aim, *solo, *due, *may_take, *owed;
    int *hurried, *patient;
    Times *done;
    Seen *seen;
    void *numbers;       /* the memory behind most of the above */
} Play;

/* Sorted arrays: where a number goes, from an index on. All are different, for each has a code of its own. */
static void
into(int64_t *at, int size, int from, int64_t number)
{
    int i = size;
    while (i > from && at[i - 1] > number) {
        at[i] = at[i - 1];
        i--;
    }
    at[i] = number;
}

static void
out_of(int64_t *at, int *size, int index)
{
    memmove(at + index, at + index + 1, (size_t)(*size - index - 1) * sizeof(int64_t));
    (*size)--;
}

static void
line_up(Line *line, int64_t begin)
{
    into(line->at, line->size++, 1, begin);
}

static int64_t
first_of(Line *line)
{
    int64_t begin = line->at[0];
    out_of(line->at, &line->size, 0);
    return begin;
}

static void
forget(int64_t *at, int *size, int64_t number)
{
    for (int i = 0; i < *size; i++) {
        if (at[i] == number) {
            out_of(at, size, i);
            return;
        }
    }
}

static void
hold(Play *play, int code, int line, int64_t end)
{
    play->holds_at[code] = line;
    play->ends[code] = end;
    into(play->agenda, play->agenda_size++, 0, end);
}

/* The first in the line begins, or goes on, and leaves all other lines. */
static void
serve(Play *play, int line, int64_t now)
{
    int64_t begin = play->lines[line].at[0];
    int code = (int)(begin & play->mask);
    for (int i = 0; i < play->places[code]; i++) {
        int other = play->served_at[code][i];
        if (other != line)
            forget(play->lines[other].at, &play->lines[other].size, begin);
    }
    hold(play, code, line, now + play->left[code]);
}

/* The line whose holder makes way, the least urgent of those that can; -1 if none can, or one does so already. */
static int
to_clear(Play *play, int code, int64_t begin, int64_t now)
{
    int found = -1;
    for (int i = 0; i < play->places[code]; i++) {
        Line *line = &play->lines[play->served_at[code][i]];
        if (line->at[1] != begin)
            continue;
        int holder = (int)(line->at[0] & play->mask);
        int64_t free_at = play->ends[holder];
        if (!free_at)
            return -1;
        if (!play->can_pause[holder] || begin > line->at[0])
            continue;
        int64_t soonest = now + play->off[holder] + play->on[holder];
        if (free_at > (begin | play->mask) && free_at > (soonest | play->mask) &&
            (found < 0 || line->at[0] > play->lines[found].at[0]))
            found = play->served_at[code][i];
    }
    return found;
}

/* The step gets a node, or waits at all that it may have; a holder that it makes pause then does the same. */
static void
request(Play *play, int code, int64_t begin, int64_t work, int64_t now)
{
    for (;;) {
        for (int i = 0; i < play->places[code]; i++) {
            Line *line = &play->lines[play->served_at[code][i]];
            if (!line->size) {
                line->at[line->size++] = begin;
                hold(play, code, play->served_at[code][i], now + work);
                return;
            }
        }
        play->left[code] = work;
        for (int i = 0; i < play->places[code]; i++)
            line_up(&play->lines[play->served_at[code][i]], begin);
        int cleared = to_clear(play, code, begin, now);
        if (cleared < 0)
            return;
        int holder = (int)(play->lines[cleared].at[0] & play->mask);
        int64_t free_at = play->ends[holder];
        forget(play->agenda, &play->agenda_size, free_at);
        play->left[holder] = work = free_at - now + play->on[holder];
        if (play->off[holder]) {
            int step = holder | PAUSING;
            play->pauses_at[step] = cleared;
            play->pausing[play->pausing_size++] = step;
            play->ends[holder] = 0;
            into(play->agenda, play->agenda_size++, 0, now + play->off[holder] + step);
            return;
        }
        code = holder;
        begin = first_of(&play->lines[cleared]);
        serve(play, cleared, now);
    }
}

/* The state of a step that makes way is off its node, and the step waits again. */
static void
paused(Play *play, int step, int64_t now)
{
    int at = play->pauses_at[step], mine = at, i = 0;
    Line *line = &play->lines[at];
    play->pauses_at[step] = -1;
    while (play->pausing[i] != step)
        i++;
    memmove(play->pausing + i, play->pausing + i + 1, (size_t)(--play->pausing_size - i) * sizeof(int));
    int64_t begin = first_of(line);
    int code = (int)(begin & play->mask);
    if (line->size && line->at[0] < begin) {
        serve(play, at, now);
        request(play, code, begin, play->left[code], now);
        return;
    }
    for (i = 0; i < play->places[code]; i++) {
        mine = play->served_at[code][i];
        if (mine == at || !play->lines[mine].size)
            break;
    }
    if (mine != at && line->size)
        serve(play, at, now);
    into(play->lines[mine].at, play->lines[mine].size++, 0, begin);
    hold(play, code, mine, now + play->left[code]);
}

static int
complete(Times *done, int64_t now_ms)
{
    if (done->size == done->room) {
        Py_ssize_t room = done->room ? 2 * done->room : 32;
        int64_t *grown = realloc(done->at_ms, (size_t)room * sizeof(int64_t));
        if (!grown)
            return -1;
        done->at_ms = grown;
        done->room = room;
    }
    done->at_ms[done->size++] = now_ms;
    return 0;
}

/* `cautious_means` of one job, whose first completions may not count, in seconds. */
static double
cautious(const Times *done, Py_ssize_t skipped, int64_t now_ms)
{
    Py_ssize_t size = done->size > skipped ? done->size - skipped : 0;
    const int64_t *at_ms = done->at_ms + (size ? skipped : 0);
    if (size < 2)
        return (double)(now_ms - (size ? at_ms[0] : 0)) / 1000;
    Py_ssize_t from = size / 2 < size - 2 ? size / 2 : size - 2, gaps = size - 1 - from;
    double mean = (double)(at_ms[size - 1] - at_ms[from]) / (double)gaps;
    if (gaps > 1) {
        int64_t most = 0;
        for (Py_ssize_t i = from; i + 1 < size; i++) {
            if (at_ms[i + 1] - at_ms[i] > most)
                most = at_ms[i + 1] - at_ms[i];
        }
        mean += ((double)most - mean) / (double)gaps;
    }
    return mean / 1000;
}

/* All that decides the future, with times counted from now; returns an equal one that was seen before, or NULL. */
static Seen *
seen_before(Play *play, int64_t event, int64_t now, int roams, int *failed)
{
    int size = 2 * play->jobs + 2 + (play->nodes + 1) * (play->jobs + 2), count = 0;
    if (play->seen_size == play->seen_room) {
        int room = play->seen_room ? 2 * play->seen_room : 16;
        Seen *grown = realloc(play->seen, (size_t)room * sizeof(Seen));
        if (!grown) {
            *failed = 1;
            return NULL;
        }
        play->seen = grown;
        play->seen_room = room;
    }
    Seen *state = &play->seen[play->seen_size];
    state->numbers = malloc((size_t)size * sizeof(int64_t));
    state->counts = malloc((size_t)play->jobs * sizeof(Py_ssize_t));
    play->seen_size++;
    if (!state->numbers || !state->counts) {
        *failed = 1;
        return NULL;
    }
    int64_t *numbers = state->numbers;
    for (int i = 0; i < play->agenda_size; i++)
        numbers[count++] = play->agenda[i] - now;
    for (int i = 0; i < play->jobs; i++)
        numbers[count++] = play->due[i] - now;
    numbers[count++] = event - now;
    for (int i = 0; i < play->nodes; i++) {
        for (int j = 1; j < play->lines[i].size; j++)
            numbers[count++] = play->left[play->lines[i].at[j] & play->mask];
    }
    for (int i = 0; i < play->pausing_size; i++)
        numbers[count++] = play->left[play->lines[play->pauses_at[play->pausing[i]]].at[0] & play->mask];
    for (int i = 0; roams && i < play->nodes; i++)
        numbers[count++] = play->lines[i].size ? play->lines[i].at[0] & play->mask : play->mask;
    numbers[count++] = play->agenda_size;
    state->size = count;
    state->now_ms = now >> play->bits;
    for (int i = 0; i < play->jobs; i++)
        state->counts[i] = play->done[i].size;
    for (int i = 0; i + 1 < play->seen_size; i++) {
        Seen *other = &play->seen[i];
        if (other->size == count && !memcmp(other->numbers, numbers, (size_t)count * sizeof(int64_t)))
            return other;
    }
    return NULL;
}

/* A number of a job from 0 to MOST_MS; -1 where it is none, with an error set only where that is no number at all. */
static int64_t
number_of(PyObject *job, Py_ssize_t index)
{
    int overflow = 0;
    int64_t number = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(job, index), &overflow);
    return number < 0 || overflow || number > MOST_MS ? -1 : number;
}

static int
node_of(PyObject **names, int *known, PyObject *name)
{
    for (int i = 0; i < *known; i++) {
        int same = names[i] == name ? 1 : PyObject_RichCompareBool(names[i], name, Py_EQ);
        if (same)
            return same < 0 ? -1 : i;
    }
    names[*known] = name;
    return (*known)++;
}

/* Memory for so many items of a size, aligned, out of what is left; NULL at `base` only measures. */
static void *
carve(char *base, size_t *used, size_t count, size_t size)
{
    void *at = base ? base + *used : NULL;
    *used += (count * size + 15) & ~(size_t)15;
    return at;
}

static size_t
lay_out(Play *play, char *base, size_t all_nodes, PyObject ***names, int **rolls, int64_t **line_numbers)
{
    size_t used = 0, jobs = (size_t)play->jobs, codes = (size_t)play->codes, lines = all_nodes + jobs;
    play->lines = carve(base, &used, lines, sizeof(Line));
    *line_numbers = carve(base, &used, lines * (jobs + 2), sizeof(int64_t));
    play->served_at = carve(base, &used, codes, sizeof(int *));
    *rolls = carve(base, &used, all_nodes + jobs, sizeof(int));
    *names = carve(base, &used, all_nodes, sizeof(PyObject *));
    int64_t **by_code[] = {&play->takes, &play->before_due, &play->off, &play->on, &play->ends, &play->left};
    for (size_t i = 0; i < sizeof by_code / sizeof *by_code; i++)
        *by_code[i] = carve(base, &used, codes, sizeof(int64_t));
    int **ints_by_code[] = {&play->places, &play->holds_at, &play->following, &play->can_pause, &play->pauses_at};
    for (size_t i = 0; i < sizeof ints_by_code / sizeof *ints_by_code; i++)
        *ints_by_code[i] = carve(base, &used, codes, sizeof(int));
    int64_t **by_job[] = {&play->aim, &play->solo, &play->due, &play->may_take, &play->owed};
    for (size_t i = 0; i < sizeof by_job / sizeof *by_job; i++)
        *by_job[i] = carve(base, &used, jobs, sizeof(int64_t));
    play->agenda = carve(base, &used, jobs + 1, sizeof(int64_t));
    play->pausing = carve(base, &used, jobs + 1, sizeof(int));
    play->hurried = carve(base, &used, jobs, sizeof(int));
    play->patient = carve(base, &used, jobs, sizeof(int));
    play->done = carve(base, &used, jobs, sizeof(Times));
    return used;
}

/* The start: every job is at the end of a sync, at time 0. Returns 1 where the play can go on, 0 where Python must
 * play, -1 where an error is set. */
static int
set_up(Play *play, PyObject *jobs)
{
    size_t all_nodes = 0;
    PyObject **names;
    int *rolls, known = 0;
    int64_t *line_numbers;
    play->jobs = (int)PyTuple_GET_SIZE(jobs);
    play->codes = 4 * play->jobs;
    while (1 << play->bits < play->codes)
        play->bits++;
    play->mask = ((int64_t)1 << play->bits) - 1;
    for (int i = 0; i < play->jobs; i++) {
        PyObject *job = PyTuple_GET_ITEM(jobs, i);
        if (!PyTuple_Check(job) || PyTuple_GET_SIZE(job) < 12 || !PyTuple_Check(PyTuple_GET_ITEM(job, 3)) ||
            !PyTuple_Check(PyTuple_GET_ITEM(job, 4)) || !PyTuple_GET_SIZE(PyTuple_GET_ITEM(job, 3)) ||
            PyTuple_GET_SIZE(PyTuple_GET_ITEM(job, 4)) != 1) {
            PyErr_SetString(PyExc_TypeError, "a play takes jobs, each with rollout nodes and one training node");
            return -1;
        }
        all_nodes += (size_t)PyTuple_GET_SIZE(PyTuple_GET_ITEM(job, 3)) + 1;
    }
    size_t needed = lay_out(play, NULL, all_nodes, &names, &rolls, &line_numbers);
    play->numbers = calloc(1, needed);
    if (!play->numbers) {
        PyErr_NoMemory();
        return -1;
    }
    lay_out(play, play->numbers, all_nodes, &names, &rolls, &line_numbers);
    for (int i = 0; i < play->jobs; i++) {
        PyObject *job = PyTuple_GET_ITEM(jobs, i), *at_rollout = PyTuple_GET_ITEM(job, 3);
        int64_t rollout_ms = number_of(job, 0), train_ms = number_of(job, 1), sync_ms = number_of(job, 2);
        int64_t aim_ms = number_of(job, 8);
        int code = 4 * i;
        if (PyErr_Occurred())
            return -1;
        if (rollout_ms < 1 || train_ms < 1 || sync_ms < 0 || aim_ms < 1)
            return 0;
        play->served_at[code] = rolls;
        play->places[code] = (int)PyTuple_GET_SIZE(at_rollout);
        for (int j = 0; j < play->places[code]; j++)
            rolls[j] = node_of(names, &known, PyTuple_GET_ITEM(at_rollout, j));
        rolls += play->places[code];
        play->served_at[code + TRAIN] = rolls;
        play->places[code + TRAIN] = 1;
        *rolls++ = node_of(names, &known, PyTuple_GET_ITEM(PyTuple_GET_ITEM(job, 4), 0));
        if (PyErr_Occurred())
            return -1;
        int64_t rollout = rollout_ms << play->bits, train = train_ms << play->bits, sync = sync_ms << play->bits;
        play->takes[code] = rollout + code;
        play->takes[code + TRAIN] = train + code + TRAIN;
        play->takes[code + SYNC] = sync + code + SYNC;
        play->before_due[code] = rollout + train + sync - code;
        play->before_due[code + TRAIN] = train + sync - code - TRAIN;
        play->following[code] = code + TRAIN;
        play->following[code + TRAIN] = sync ? code + SYNC : code;
        play->following[code + SYNC] = code;
        play->aim[i] = aim_ms << play->bits;
        play->solo[i] = rollout_ms + train_ms + sync_ms;
        for (int step = 0; step < 2; step++) {
            PyObject *pause = PyTuple_GET_ITEM(job, 9 + step);
            if (pause == Py_None)
                continue;
            if (!PyTuple_Check(pause) || PyTuple_GET_SIZE(pause) != 2) {
                PyErr_SetString(PyExc_TypeError, "a pause is a pair of times");
                return -1;
            }
            int64_t off_ms = number_of(pause, 0), on_ms = number_of(pause, 1);
            if (PyErr_Occurred())
                return -1;
            if (off_ms < 0 || on_ms < 0)
                return 0;
            play->can_pause[code + step] = 1;
            play->off[code + step] = off_ms << play->bits;
            play->on[code + step] = on_ms << play->bits;
        }
    }
    play->nodes = known;
    for (int line = 0; line < known + play->jobs; line++)
        play->lines[line].at = line_numbers + (size_t)line * (size_t)(play->jobs + 2);
    for (int i = 0; i < play->jobs; i++) { /* a sync has a line of its own; every job begins at its end */
        int code = 4 * i + SYNC;
        *rolls = known + i;
        play->served_at[code] = rolls++;
        play->places[code] = 1;
        play->lines[known + i].at[0] = code;
        play->lines[known + i].size = 1;
        play->agenda[play->agenda_size++] = code;
        play->places[code + 1] = 0;
    }
    for (int code = 0; code < play->codes; code++) {
        play->holds_at[code] = play->places[code] ? play->served_at[code][0] : -1;
        play->pauses_at[code] = -1;
    }
    return 1;
}

/* The jobs that may lose nothing, and those that may lose so much that they are late by limit, not by due times. */
static int
set_limits(Play *play, PyObject *limits, double *limits_ms, const Rules *rules, PyObject *jobs)
{
    int any_hurried = 0;
    for (int i = 0; i < play->jobs; i++) {
        double limit = limits_ms[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(limits, i));
        if (limit == -1.0 && PyErr_Occurred())
            return -1;
        play->hurried[i] = limit * rules->aim + 1 < (double)number_of(PyTuple_GET_ITEM(jobs, i), 8);
        any_hurried |= play->hurried[i];
        play->patient[i] = limit > (double)(rules->patience * play->solo[i]);
        if (play->patient[i]) {
            if (!(limit * rules->aim < (double)MOST_MS) || limit * rules->aim < 1)
                return -2;
            play->may_take[i] = (int64_t)(limit * rules->aim) << play->bits;
        }
    }
    return any_hurried;
}

static PyObject *
answer(const double *paces, int jobs, int exact)
{
    PyObject *found = PyTuple_New(jobs);
    for (int i = 0; found && i < jobs; i++) {
        PyObject *pace = PyFloat_FromDouble(paces[i]);
        if (!pace)
            Py_CLEAR(found);
        else
            PyTuple_SET_ITEM(found, i, pace);
    }
    return found ? Py_BuildValue("(NO)", found, exact ? Py_True : Py_False) : NULL;
}

/* The result after as many iterations as may be played. */
static PyObject *
cut_short(Play *play, int64_t now_ms, int slowest, const double *limits_ms, double *paces)
{
    double least_ms = (double)play->solo[slowest];
    for (int i = 0; i < play->jobs; i++)
        paces[i] = cautious(&play->done[i], 0, now_ms);
    if (limits_ms && 2 * limits_ms[slowest] > least_ms)
        least_ms = 2 * limits_ms[slowest];
    if (least_ms / 1000 > paces[slowest])
        paces[slowest] = least_ms / 1000;
    return answer(paces, play->jobs, 0);
}

static PyObject *
run(Play *play, long max_turns, const double *limits_ms, int any_hurried, const Rules *rules, double *paces)
{
    int slowest = 0, roams = 0, turned = 0, hopeless = -1;
    long turns = -1, to_play = rules->most_iterations, clear_from = any_hurried ? rules->trial_turns : rules->clear_from;
    int64_t now = 0;
    double late = 0.0, late_before = 0.0;
    for (int i = 0; i < play->jobs; i++) {
        slowest = play->solo[i] > play->solo[slowest] ? i : slowest;
        roams |= play->places[4 * i] > 1;
    }
    for (;;) {
        int64_t event = play->agenda[0];
        int code = (int)(event & play->mask);
        if (!play->agenda_size || event > MOST)
            Py_RETURN_NONE;
        out_of(play->agenda, &play->agenda_size, 0);
        if (turned && event - code > now) { /* a turn is over, and all that happened at that instant */
            int64_t now_ms = now >> play->bits;
            turned = 0;
            turns++;
            if (!limits_ms) {
                int failed = 0;
                Seen *then = seen_before(play, event, now, roams, &failed);
                if (failed)
                    return PyErr_NoMemory();
                for (int i = 0; then && i < play->jobs; i++) {
                    if (play->done[i].size == then->counts[i])
                        Py_RETURN_NONE;
                    paces[i] = (double)(now_ms - then->now_ms) / 1000 / (double)(play->done[i].size - then->counts[i]);
                }
                if (then)
                    return answer(paces, play->jobs, 1);
            }
            else if (hopeless >= 0 && turns >= rules->hopeless_from) {
                for (int i = 0; i < play->jobs; i++)
                    paces[i] = cautious(&play->done[i], 0, now_ms);
                double over = limits_ms[hopeless] / 1000 * (1 + rules->hopeless / (double)play->done[hopeless].size);
                paces[hopeless] = over > paces[hopeless] ? over : paces[hopeless];
                return answer(paces, play->jobs, 0);
            }
            else if (turns >= clear_from && late <= (rules->clear < late_before ? rules->clear : late_before)) {
                for (int i = 0; i < play->jobs; i++) {
                    double mean = cautious(&play->done[i], 0, now_ms), limit_s = limits_ms[i] / 1000;
                    paces[i] = limit_s < mean ? limit_s : mean;
                }
                return answer(paces, play->jobs, 0);
            }
            if (turns == max_turns) {
                for (int i = 0; i < play->jobs; i++)
                    paces[i] = cautious(&play->done[i], 1, now_ms);
                return answer(paces, play->jobs, 0);
            }
            late_before = late;
            late = 0.0;
            hopeless = -1;
        }
        now = event - code;
        if (play->pauses_at[code] >= 0) {
            paused(play, code, now);
            continue;
        }
        int line = play->holds_at[code];
        out_of(play->lines[line].at, &play->lines[line].size, 0);
        if (play->lines[line].size)
            serve(play, line, now);
        code = play->following[code];
        int i = code >> 2;
        int64_t begin = play->due[i];
        if (!(code & 3)) { /* an iteration is complete */
            int64_t now_ms = now >> play->bits, aim = play->aim[i];
            Times *done = &play->done[i];
            if (begin > now)
                begin = now + aim;
            else {
                double behind = (double)(now - begin) / (double)aim;
                if (play->patient[i] && done->size) {
                    int64_t took = now - (done->at_ms[done->size - 1] << play->bits);
                    int64_t owed = play->owed[i] + took - play->may_take[i];
                    play->owed[i] = owed > 0 ? owed : 0;
                    behind = (double)play->owed[i] / (double)play->may_take[i];
                }
                if (behind > late) {
                    late = behind;
                    if (late > rules->hopeless)
                        hopeless = i;
                }
                if (behind != 0 && play->hurried[i] && now_ms - done->at_ms[done->size - 1] > play->solo[i])
                    hopeless = i;
                int64_t oldest = now - rules->debt * aim;
                begin = aim + (begin > oldest ? begin : oldest);
            }
            play->due[i] = begin;
            if (complete(done, now_ms) < 0)
                return PyErr_NoMemory();
            if (--to_play <= 0)
                return cut_short(play, now_ms, slowest, limits_ms, paces);
            turned |= i == slowest;
        }
        request(play, code, begin - play->before_due[code], play->takes[code], now);
    }
}

static void
clear_away(Play *play)
{
    for (int i = 0; play->numbers && i < play->jobs; i++)
        free(play->done[i].at_ms);
    for (int i = 0; i < play->seen_size; i++) {
        free(play->seen[i].numbers);
        free(play->seen[i].counts);
    }
    free(play->seen);
    free(play->numbers);
}

static PyObject *
urgent_play(PyObject *module, PyObject *args)
{
    PyObject *jobs, *limits, *found = NULL;
    long max_turns;
    Rules rules;
    Play play = {0};
    double *paces = NULL, *limits_ms = NULL;
    int any_hurried = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!lO(dlldldlll)", &PyTuple_Type, &jobs, &max_turns, &limits, &rules.aim, &rules.debt,
                          &rules.patience, &rules.hopeless, &rules.hopeless_from, &rules.clear, &rules.clear_from,
                          &rules.trial_turns, &rules.most_iterations))
        return NULL;
    if (limits != Py_None && (!PyTuple_Check(limits) || PyTuple_GET_SIZE(limits) != PyTuple_GET_SIZE(jobs))) {
        PyErr_SetString(PyExc_ValueError, "a play takes a limit for each job, or none at all");
        return NULL;
    }
    if (!PyTuple_GET_SIZE(jobs) || PyTuple_GET_SIZE(jobs) > 4096)
        Py_RETURN_NONE;
    int ready = set_up(&play, jobs);
    if (ready > 0) {
        paces = malloc(2 * (size_t)play.jobs * sizeof(double));
        if (!paces)
            PyErr_NoMemory();
        else if (limits != Py_None) {
            limits_ms = paces + play.jobs;
            any_hurried = set_limits(&play, limits, limits_ms, &rules, jobs);
        }
        if (any_hurried == -2)
            ready = 0;
        else if (!PyErr_Occurred())
            found = run(&play, max_turns, limits_ms, any_hurried, &rules, paces);
    }
    if (ready == 0)
        found = Py_NewRef(Py_None);
    free(paces);
    clear_away(&play);
    return found;
}

static PyMethodDef methods[] = {
    {"urgent_play", urgent_play, METH_VARARGS,
     "urgent_play(jobs, max_turns, limits_ms or None, rules): (iteration_s, exact), or None where it is for Python."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_urgent_play", "`rollmux.mux.urgent_play`, compiled.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__urgent_play(void)
{
    return PyModule_Create(&definition);
}
