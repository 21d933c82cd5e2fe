/* A phase's end and what follows at once, in C: what `Cast._end` does with a machine, without Python in between.
 *
 * It reads and writes the very objects of the cast and its machine, at the offsets of their slots, so that either can
 * go on after the other at any event. `end` says False, and has changed nothing, where anything is to happen that is
 * not written here; what comes later in the same instant is handed to Python piece by piece. tests/sim/test_phases.py
 * holds the outcomes of both against each other. It may be missing: without a compiler all is played in Python.
 *
 * A number that is none leaves an error set, which whoever calls Python next, or hands something back, must look at;
 * numbers beyond 2^63 are such errors. Where memory runs out, what was made in that instant may be lost.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <structmember.h>

/* Class, slot: all that is read or written. */
#define SLOTS(X)                                                                                                       \
    X(Act, lease) X(Act, left) X(Act, bulk) X(Act, nodes) X(Act, since) X(Act, takes_s) X(Act, resumed)                \
    X(Act, ends_at) X(Act, fresh)                                                                                      \
    X(Actor, active_s) X(Actor, acts) X(Actor, ahead_s) X(Actor, asked) X(Actor, attempt) X(Actor, job) X(Actor, kept)                   \
    X(Actor, paused) X(Actor, rank) X(Actor, rolled) X(Actor, synced) X(Actor, trained)                                \
    X(End, cast) X(End, actor) X(End, act) X(End, at)                                                                  \
    X(Lease, job_id) X(Lease, attempt) X(Lease, kind) X(Lease, iteration) X(Lease, epoch) X(Lease, nodes)              \
    X(Lease, load) X(Lease, keep) X(Lease, resumed)                                                                    \
    X(JobRecord, attempt) X(JobRecord, began) X(JobRecord, group_id) X(JobRecord, job) X(JobRecord, progress)          \
    X(JobRecord, state) X(JobRecord, submitted) X(JobRecord, target)                                                   \
    X(Progress, rolled) X(Progress, trained) X(Progress, synced) X(Progress, active_s) X(Progress, since)              \
    X(Progress, recent_s) X(Progress, slowest_s) X(Progress, elapsed_s) X(Progress, synced_since_launch)               \
    X(Progress, pending_s) X(Progress, counted_until) X(Progress, ahead_s) X(Progress, rolled_at)                      \
    X(Progress, synced_at)                                                                                             \
    X(Lane, nodes) X(Lane, wants) X(Lane, place) X(Lane, held) X(Lane, rounds) X(Lane, latest) X(Lane, ends_at)        \
    X(Lane, pause) X(Lane, pausing) X(Lane, alone) X(Lane, asked) X(Lane, can_pause) X(Lane, deadline) X(Lane, done)   \
    X(Lane, epoch) X(Lane, freeing) X(Lane, granted_by) X(Lane, iteration) X(Lane, keep) X(Lane, kind)                 \
    X(Lane, left_ms) X(Lane, load) X(Lane, rest_ms) X(Lane, resumed) X(Lane, seat) X(Lane, started_at)                 \
    X(Lane, state) X(Lane, total) X(Lane, wanted) X(Lane, whole_ms) X(Lane, worked_s)                                  \
    X(Seat, aim_ms) X(Seat, attempt) X(Seat, due_ms) X(Seat, job) X(Seat, lanes) X(Seat, progress)                     \
    X(Weave, leases) X(Weave, plain) X(Weave, seats) X(Weave, timing) X(Weave, turns) X(Weave, urgent)                 \
    X(Turns, holders) X(Turns, queues)                                                                                 \
    X(Ledger, seq) X(Ledger, epoch)                                                                                    \
    X(Timing, lease_s)                                                                                                 \
    X(PoolBook, busy_s) X(PoolBook, switch_s)                                                                          \
    X(PhaseSpec, duration_s) X(PhaseSpec, nodes) X(PhaseSpec, measured_s) X(PhaseSpec, load_s)                         \
    X(PhaseSpec, offload_s) X(PhaseSpec, pause_s)

/* Objects that are known by their identity, or called. */
#define KNOWN(X)                                                                                                       \
    X(Act) X(Actor) X(End) X(Lease) X(JobRecord) X(Progress) X(Lane) X(Weave) X(Ledger) X(PoolBook)                    \
    X(ROLLOUT) X(TRAIN) X(SYNC) X(RUNS) X(IDLE) X(WAITING) X(GRANTED) X(RUNNING) X(PAUSING) X(PARKED)                  \
    X(Grant) X(Pause) X(PhaseRequested) X(PhaseFinished) X(heappush) X(as_planned)

/* Names of attributes and methods. */
#define NAMES(X)                                                                                                       \
    X(id) X(rollout) X(train) X(sync_s) X(iterations) X(staleness) X(limit_s) X(now) X(swaps) X(tell) X(used)          \
    X(watch) X(_ask) X(_carry_out) X(_end) X(_finish) X(_grant) X(_pause) X(_wanted)

/* What one cast is played with. */
#define PARTS(X)                                                                                                       \
    X(cast) X(state) X(ledger) X(jobs) X(weaves) X(actors) X(completed) X(active_s) X(heap) X(numbers) X(takes)        \
    X(mover) X(books) X(rollout_book) X(train_book) X(rollout_wanted) X(train_wanted)

#define AS_OFFSET(class, slot) Py_ssize_t class##_##slot;
#define AS_OBJECT(name) PyObject *name;

static struct { SLOTS(AS_OFFSET) } at;
static struct { KNOWN(AS_OBJECT) } is;
static struct { NAMES(AS_OBJECT) } named;
static PyObject *no_nodes, *never, *nothing_s, *zero, *one, *two;
static double recent_part;
static long long debt;

typedef struct {
    PyObject_HEAD
    PARTS(AS_OBJECT)
    int history;
} Phases;

/* What a weave answers: leases that it grants, and then leases that it asks back. */
typedef struct {
    PyObject *granted, *paused;
} Answer;

/* Later than that no time is played here: its milliseconds are exact. */
#define MOST_S 1e12

#define SLOT(object, slot) (*(PyObject **)((char *)(object) + at.slot))

static int end_of(Phases *self, PyObject *actor, PyObject *act, double now);
static int ask(Phases *self, PyObject *actor, PyObject *kind, long long iteration, double now);

static double
real(PyObject *number)
{
    return PyFloat_CheckExact(number) ? PyFloat_AS_DOUBLE(number) : PyFloat_AsDouble(number);
}

static long long
whole(PyObject *number)
{
    return PyLong_AsLongLong(number);
}

static int
put(PyObject **slot, PyObject *made)
{
    PyObject *before = *slot;
    if (!made)
        return -1;
    *slot = made;
    Py_XDECREF(before);
    return 0;
}

static int
put_known(PyObject **slot, PyObject *value)
{
    return put(slot, Py_NewRef(value));
}

static int
put_real(PyObject **slot, double number)
{
    return put(slot, PyFloat_FromDouble(number));
}

static int
put_whole(PyObject **slot, long long number)
{
    return put(slot, PyLong_FromLongLong(number));
}

/* A method's answer does not matter. */
static int
called(PyObject *answer)
{
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

static int
add_to(PyObject **list, PyObject *made)
{
    int failed = -1;
    if (made && (*list || (*list = PyList_New(0))))
        failed = PyList_Append(*list, made);
    Py_XDECREF(made);
    return failed;
}

static long long
in_ms(double now)
{
    return (long long)rint(now * 1000);
}

/* Of a phase that holds nodes; a new reference. */
static PyObject *
phase_of(PyObject *job, PyObject *kind)
{
    return PyObject_GetAttr(job, kind == is.ROLLOUT ? named.rollout : named.train);
}

/* -- turns ------------------------------------------------------------------------------------------------------ */

static PyObject *
queue_at(PyObject *turns, PyObject *node)
{
    return PyDict_GetItemWithError(SLOT(turns, Turns_queues), node);
}

static PyObject *
next_at(PyObject *turns, PyObject *node)
{
    PyObject *queue = queue_at(turns, node);
    return queue && PyList_GET_SIZE(queue) ? PyList_GET_ITEM(queue, 0) : NULL;
}

static PyObject *
holder_at(PyObject *turns, PyObject *node)
{
    PyObject *holder = PyDict_GetItemWithError(SLOT(turns, Turns_holders), node);
    return holder && holder != Py_None ? holder : NULL;
}

static int
is_before(PyObject *one_lane, PyObject *other)
{
    long long mine = whole(SLOT(one_lane, Lane_latest)), its = whole(SLOT(other, Lane_latest));
    for (int i = 0; mine == its && i < 2; i++) {
        mine = whole(PyTuple_GET_ITEM(SLOT(one_lane, Lane_place), i));
        its = whole(PyTuple_GET_ITEM(SLOT(other, Lane_place), i));
    }
    return mine < its;
}

static int
missing(const char *what)
{
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_KeyError, what);
    return -1;
}

static int
line_up(PyObject *turns, PyObject *lane, int urgent)
{
    PyObject *nodes = SLOT(lane, Lane_nodes);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(nodes); i++) {
        PyObject *queue = queue_at(turns, PyTuple_GET_ITEM(nodes, i));
        if (!queue)
            return missing("a node that is pinned has no queue");
        Py_ssize_t place = PyList_GET_SIZE(queue);
        while (urgent && place && is_before(lane, PyList_GET_ITEM(queue, place - 1)))
            place--;
        if (PyList_Insert(queue, place, lane))
            return -1;
    }
    return 0;
}

static int
leave_queue(PyObject *queue, PyObject *lane)
{
    for (Py_ssize_t i = 0; queue && i < PyList_GET_SIZE(queue); i++) {
        if (PyList_GET_ITEM(queue, i) == lane)
            return PyList_SetSlice(queue, i, i + 1, NULL);
    }
    return missing("a lane that waits is in no queue");
}

static int
is_free_for(PyObject *turns, PyObject *node, PyObject *lane)
{
    return next_at(turns, node) == lane && !holder_at(turns, node);
}

/* Grants the lane what it can have now: 1 if that is something. */
static int
take(PyObject *turns, PyObject *lane)
{
    PyObject *nodes = SLOT(lane, Lane_nodes), *held = nodes;
    Py_ssize_t count = PyTuple_GET_SIZE(nodes), wants = whole(SLOT(lane, Lane_wants)), free = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int mine = is_free_for(turns, PyTuple_GET_ITEM(nodes, i), lane);
        free += mine;
        if (!mine && wants == count)
            return 0;
    }
    if (free < wants)
        return 0;
    if (wants < count) {
        held = PyTuple_New(wants);
        for (Py_ssize_t i = 0, got = 0; held && got < wants; i++) {
            if (is_free_for(turns, PyTuple_GET_ITEM(nodes, i), lane))
                PyTuple_SET_ITEM(held, got++, Py_NewRef(PyTuple_GET_ITEM(nodes, i)));
        }
        if (!held)
            return -1;
    }
    else
        Py_INCREF(held);
    if (put(&SLOT(lane, Lane_held), held) || put_whole(&SLOT(lane, Lane_rounds), whole(SLOT(lane, Lane_rounds)) + 1))
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (leave_queue(queue_at(turns, PyTuple_GET_ITEM(nodes, i)), lane))
            return -1;
    }
    for (Py_ssize_t i = 0; i < wants; i++) {
        if (PyDict_SetItem(SLOT(turns, Turns_holders), PyTuple_GET_ITEM(held, i), lane))
            return -1;
    }
    return 1;
}

/* Adds those who get something to a list, which may be none yet. */
static int
serve(PyObject *turns, PyObject *nodes, PyObject **served)
{
    PyObject *to_serve = PySequence_List(nodes);
    int failed = to_serve ? 0 : -1;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(to_serve); i++) {
        PyObject *node = PyList_GET_ITEM(to_serve, i);
        PyObject *lane = holder_at(turns, node) ? NULL : next_at(turns, node);
        int got = lane ? take(turns, lane) : 0;
        if (got)
            failed = got < 0 ? -1 : add_to(served, Py_NewRef(lane));
        if (got <= 0 || failed)
            continue;
        PyObject *all = SLOT(lane, Lane_nodes);
        long long wants = whole(SLOT(lane, Lane_wants));
        for (Py_ssize_t j = 0; 1 < wants && wants < PyTuple_GET_SIZE(all) && j < PyTuple_GET_SIZE(all); j++) {
            if (holder_at(turns, PyTuple_GET_ITEM(all, j)) != lane) /* it no longer keeps others from this one */
                failed |= PyList_Append(to_serve, PyTuple_GET_ITEM(all, j));
        }
    }
    Py_XDECREF(to_serve);
    return failed;
}

/* The lane gives back all it holds; nobody is served yet. */
static int
let_go(PyObject *turns, PyObject *lane)
{
    PyObject *held = Py_NewRef(SLOT(lane, Lane_held));
    int failed = put_known(&SLOT(lane, Lane_held), no_nodes);
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(held); i++)
        failed = PyDict_SetItem(SLOT(turns, Turns_holders), PyTuple_GET_ITEM(held, i), Py_None);
    Py_DECREF(held);
    return failed;
}

static int
give_way(PyObject *turns, PyObject *lane, int urgent, PyObject **served)
{
    PyObject *nodes = SLOT(lane, Lane_nodes);
    Py_ssize_t count = PyTuple_GET_SIZE(nodes);
    if (let_go(turns, lane))
        return -1;
    if (whole(SLOT(lane, Lane_wants)) < count || count == 1)
        return line_up(turns, lane, urgent) || serve(turns, nodes, served) ? -1 : 0;
    if (serve(turns, nodes, served) || line_up(turns, lane, urgent))
        return -1;
    int got = take(turns, lane);
    return got > 0 ? add_to(served, Py_NewRef(lane)) : got;
}

static int
makes_way(PyObject *holder, PyObject *lane, long long now_ms)
{
    PyObject *pause = SLOT(holder, Lane_pause);
    if (pause == Py_None || !is_before(lane, holder))
        return 0;
    long long back_ms = now_ms + whole(PyTuple_GET_ITEM(pause, 0)) + whole(PyTuple_GET_ITEM(pause, 1));
    long long latest = whole(SLOT(lane, Lane_latest)), ends_at = whole(SLOT(holder, Lane_ends_at));
    return ends_at > latest && ends_at > back_ms;
}

/* Of the holders that make way for a lane that roams the least urgent, until it would lack no node any more. */
static int
some_to_pause(PyObject *turns, PyObject *lane, long long now_ms, PyObject **found)
{
    PyObject *nodes = SLOT(lane, Lane_nodes), *able = NULL;
    long long lacks = whole(SLOT(lane, Lane_wants));
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(nodes); i++) {
        PyObject *node = PyTuple_GET_ITEM(nodes, i), *holder = holder_at(turns, node);
        if (next_at(turns, node) != lane)
            continue;
        if (!holder || SLOT(holder, Lane_pausing) == Py_True)
            lacks--;
        else if (makes_way(holder, lane, now_ms))
            failed = add_to(&able, Py_NewRef(holder)); /* once for each of its nodes */
    }
    while (!failed && lacks > 0 && able && PyList_GET_SIZE(able)) {
        PyObject *least = PyList_GET_ITEM(able, 0);
        for (Py_ssize_t i = 1; i < PyList_GET_SIZE(able); i++)
            least = is_before(least, PyList_GET_ITEM(able, i)) ? PyList_GET_ITEM(able, i) : least;
        failed = add_to(found, Py_NewRef(least));
        for (Py_ssize_t i = PyList_GET_SIZE(able) - 1; !failed && i >= 0; i--) {
            if (PyList_GET_ITEM(able, i) == least) {
                lacks--;
                failed = PyList_SetSlice(able, i, i + 1, NULL);
            }
        }
    }
    if (lacks > 0)
        Py_CLEAR(*found);
    Py_XDECREF(able);
    return failed;
}

/* The holders that shall make way for this lane, which waits. */
static int
to_pause(PyObject *turns, PyObject *lane, long long now_ms, PyObject **found)
{
    PyObject *nodes = SLOT(lane, Lane_nodes);
    Py_ssize_t count = PyTuple_GET_SIZE(nodes);
    if (PyTuple_GET_SIZE(SLOT(lane, Lane_held)))
        return 0;
    if (whole(SLOT(lane, Lane_wants)) < count)
        return some_to_pause(turns, lane, now_ms, found);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *node = PyTuple_GET_ITEM(nodes, i), *holder = holder_at(turns, node);
        int waits = holder && SLOT(holder, Lane_pausing) != Py_True;
        if (next_at(turns, node) != lane || (waits && !makes_way(holder, lane, now_ms))) {
            Py_CLEAR(*found);
            return 0;
        }
        int is_found = waits && *found ? PySequence_Contains(*found, holder) : 0;
        if (is_found < 0 || (waits && !is_found && add_to(found, Py_NewRef(holder))))
            return -1;
    }
    return 0;
}

/* -- the weave -------------------------------------------------------------------------------------------------- */

static long long
next_seq(Phases *self)
{
    long long seq = whole(SLOT(self->ledger, Ledger_seq)) + 1;
    return put_whole(&SLOT(self->ledger, Ledger_seq), seq) ? -1 : seq;
}

static PyObject *
lease_of(PyObject *lane)
{
    PyObject *seat = SLOT(lane, Lane_seat), *id = PyObject_GetAttr(SLOT(seat, Seat_job), named.id);
    PyTypeObject *type = (PyTypeObject *)is.Lease;
    PyObject *lease = id ? type->tp_alloc(type, 0) : NULL;
    if (!lease) {
        Py_XDECREF(id);
        return NULL;
    }
    SLOT(lease, Lease_job_id) = id;
    SLOT(lease, Lease_attempt) = Py_NewRef(SLOT(seat, Seat_attempt));
    SLOT(lease, Lease_kind) = Py_NewRef(SLOT(lane, Lane_kind));
    SLOT(lease, Lease_iteration) = Py_NewRef(SLOT(lane, Lane_iteration));
    SLOT(lease, Lease_epoch) = Py_NewRef(SLOT(lane, Lane_epoch));
    SLOT(lease, Lease_nodes) = Py_NewRef(SLOT(lane, Lane_held));
    SLOT(lease, Lease_load) = Py_NewRef(SLOT(lane, Lane_load));
    SLOT(lease, Lease_keep) = Py_NewRef(SLOT(lane, Lane_keep));
    SLOT(lease, Lease_resumed) = Py_NewRef(SLOT(lane, Lane_resumed));
    return lease;
}

static int
end_lease(PyObject *weave, PyObject *lane)
{
    PyObject *leases = SLOT(weave, Weave_leases), *epoch = SLOT(lane, Lane_epoch);
    int there = PyDict_Contains(leases, epoch);
    if (there < 0 || (there && PyDict_DelItem(leases, epoch)))
        return -1;
    return put_known(&SLOT(lane, Lane_deadline), never) || put_known(&SLOT(lane, Lane_freeing), no_nodes) ||
                   put_known(&SLOT(lane, Lane_pause), Py_None) || put_known(&SLOT(lane, Lane_pausing), Py_False)
               ? -1
               : 0;
}

static int
renew(PyObject *weave, PyObject *lane, double now)
{
    return put_real(&SLOT(lane, Lane_deadline), now + real(SLOT(SLOT(weave, Weave_timing), Timing_lease_s)));
}

static int
grant(Phases *self, PyObject *weave, PyObject *lane, double now, int load, long long seq, Answer *answer)
{
    long long epoch = whole(SLOT(self->ledger, Ledger_epoch)) + 1;
    int has_nodes = PyTuple_GET_SIZE(SLOT(lane, Lane_nodes)) > 0, alone = SLOT(lane, Lane_alone) == Py_True;
    if (put_whole(&SLOT(self->ledger, Ledger_epoch), epoch) || put_known(&SLOT(lane, Lane_state), is.GRANTED) ||
        put_whole(&SLOT(lane, Lane_epoch), epoch) || put_whole(&SLOT(lane, Lane_granted_by), seq) ||
        renew(weave, lane, now) || put_known(&SLOT(lane, Lane_started_at), Py_None) ||
        put_known(&SLOT(lane, Lane_done), zero) || put_known(&SLOT(lane, Lane_total), zero) ||
        put_known(&SLOT(lane, Lane_load), load && has_nodes ? Py_True : Py_False) ||
        put_known(&SLOT(lane, Lane_keep), alone && has_nodes ? Py_True : Py_False))
        return -1;
    if (SLOT(weave, Weave_urgent) == Py_True) {
        int may = !alone && PyTuple_GET_SIZE(SLOT(lane, Lane_held)) == whole(SLOT(lane, Lane_wants));
        if (put_whole(&SLOT(lane, Lane_ends_at), in_ms(now) + whole(SLOT(lane, Lane_left_ms))) ||
            put_known(&SLOT(lane, Lane_pause), may ? SLOT(lane, Lane_can_pause) : Py_None))
            return -1;
    }
    if (PyDict_SetItem(SLOT(weave, Weave_leases), SLOT(lane, Lane_epoch), lane))
        return -1;
    return add_to(&answer->granted, lease_of(lane));
}

/* Grants those who were served their leases; drops the list. */
static int
grant_all(Phases *self, PyObject *weave, PyObject *served, double now, long long seq, Answer *answer)
{
    int failed = 0;
    for (Py_ssize_t i = 0; served && !failed && i < PyList_GET_SIZE(served); i++)
        failed = grant(self, weave, PyList_GET_ITEM(served, i), now, 1, seq, answer);
    Py_XDECREF(served);
    return failed;
}

/* The lane is to do a phase from its beginning: how long, and how urgent that is. */
static int
plan(PyObject *weave, PyObject *lane)
{
    if (put_known(&SLOT(lane, Lane_worked_s), nothing_s) || put_known(&SLOT(lane, Lane_resumed), Py_False))
        return -1;
    if (SLOT(weave, Weave_urgent) != Py_True)
        return 0;
    PyObject *seat = SLOT(lane, Lane_seat);
    long long ahead = whole(SLOT(lane, Lane_iteration)) - whole(SLOT(SLOT(seat, Seat_progress), Progress_synced));
    long long due_ms = whole(SLOT(seat, Seat_due_ms)) + ahead * whole(SLOT(seat, Seat_aim_ms));
    if (put_known(&SLOT(lane, Lane_left_ms), SLOT(lane, Lane_whole_ms)))
        return -1;
    return put_whole(&SLOT(lane, Lane_latest), due_ms - whole(SLOT(lane, Lane_rest_ms)));
}

/* Holders that are less urgent make way for a lane that waits, if it would begin too late else. */
static int
ask_way(PyObject *weave, PyObject *lane, double now, Answer *answer)
{
    PyObject *found = NULL;
    int failed = SLOT(weave, Weave_urgent) == Py_True
                     ? to_pause(SLOT(weave, Weave_turns), lane, in_ms(now), &found)
                     : 0;
    for (Py_ssize_t i = 0; found && !failed && i < PyList_GET_SIZE(found); i++) {
        PyObject *holder = PyList_GET_ITEM(found, i), *pause = SLOT(holder, Lane_pause);
        long long left_ms = whole(SLOT(holder, Lane_ends_at)) - in_ms(now) + whole(PyTuple_GET_ITEM(pause, 1));
        failed = put_whole(&SLOT(holder, Lane_left_ms), left_ms) ||
                         put_known(&SLOT(holder, Lane_state), is.PAUSING) ||
                         put_known(&SLOT(holder, Lane_pause), Py_None) ||
                         put_known(&SLOT(holder, Lane_pausing), Py_True) ||
                         add_to(&answer->paused, lease_of(holder))
                     ? -1
                     : 0;
    }
    Py_XDECREF(found);
    return failed;
}

static PyObject **
committed(PyObject *progress, PyObject *kind)
{
    if (kind == is.ROLLOUT)
        return &SLOT(progress, Progress_rolled);
    return kind == is.TRAIN ? &SLOT(progress, Progress_trained) : &SLOT(progress, Progress_synced);
}

/* An iteration is done. */
static int
sync_done(PyObject *seat, PyObject *progress, double now)
{
    PyObject *since = SLOT(progress, Progress_since), *counted = SLOT(progress, Progress_counted_until);
    PyObject *staleness = PyObject_GetAttr(SLOT(seat, Seat_job), named.staleness);
    PyObject *ahead = SLOT(progress, Progress_ahead_s), *synced = SLOT(progress, Progress_synced_at);
    if (!staleness)
        return -1;
    long long behind = whole(staleness);
    Py_DECREF(staleness);
    if (!PyList_GET_SIZE(ahead))
        return missing("what is synced was not rolled out");
    double active_s = real(SLOT(progress, Progress_active_s)), rolled_at = real(SLOT(progress, Progress_rolled_at));
    if (PyList_Append(synced, SLOT(progress, Progress_active_s)))
        return -1;
    if (PyList_GET_SIZE(synced) > behind) {
        double may_begin = real(PyList_GET_ITEM(synced, 0));
        rolled_at = may_begin > rolled_at ? may_begin : rolled_at;
        if (PyList_SetSlice(synced, 0, 1, NULL))
            return -1;
    }
    rolled_at += real(PyList_GET_ITEM(ahead, 0));
    active_s = (rolled_at > active_s ? rolled_at : active_s) + real(SLOT(progress, Progress_pending_s));
    if (PyList_SetSlice(ahead, 0, 1, NULL) || put_real(&SLOT(progress, Progress_rolled_at), rolled_at) ||
        put_real(&SLOT(progress, Progress_active_s), active_s) ||
        put_known(&SLOT(progress, Progress_pending_s), nothing_s))
        return -1;
    if (counted != Py_None) {
        double elapsed_s = real(SLOT(progress, Progress_elapsed_s)) + (now - real(counted));
        if (put_real(&SLOT(progress, Progress_elapsed_s), elapsed_s))
            return -1;
    }
    if (since != Py_None) {
        int first = SLOT(progress, Progress_synced_since_launch) != Py_True;
        double took_s = now - real(since);
        double recent_s = first ? took_s : real(SLOT(progress, Progress_recent_s));
        double slowest_s = first ? took_s : real(SLOT(progress, Progress_slowest_s));
        recent_s += recent_part * (took_s - recent_s);
        if (put_real(&SLOT(progress, Progress_recent_s), recent_s) ||
            put_real(&SLOT(progress, Progress_slowest_s), took_s > slowest_s ? took_s : slowest_s))
            return -1;
    }
    long long due_ms = whole(SLOT(seat, Seat_due_ms)), aim_ms = whole(SLOT(seat, Seat_aim_ms)), now_ms = in_ms(now);
    long long oldest = now_ms - debt * aim_ms;
    long long next = due_ms > now_ms ? now_ms + aim_ms : aim_ms + (due_ms > oldest ? due_ms : oldest);
    return put_real(&SLOT(progress, Progress_since), now) || put_real(&SLOT(progress, Progress_counted_until), now) ||
                   put_known(&SLOT(progress, Progress_synced_since_launch), Py_True) ||
                   put_whole(&SLOT(seat, Seat_due_ms), next)
               ? -1
               : 0;
}

static int
commit(PyObject *lane, double now)
{
    PyObject *seat = SLOT(lane, Lane_seat), *progress = SLOT(seat, Seat_progress), *kind = SLOT(lane, Lane_kind);
    PyObject *started = SLOT(lane, Lane_started_at), **count = committed(progress, kind);
    double worked_s = real(SLOT(lane, Lane_worked_s)) + (started == Py_None ? 0.0 : now - real(started));
    if (put_whole(count, whole(*count) + 1))
        return -1;
    if (kind == is.ROLLOUT) {
        PyObject *took_s = PyFloat_FromDouble(worked_s);
        int failed = !took_s || PyList_Append(SLOT(progress, Progress_ahead_s), took_s);
        Py_XDECREF(took_s);
        return failed ? -1 : 0;
    }
    if (put_real(&SLOT(progress, Progress_pending_s), real(SLOT(progress, Progress_pending_s)) + worked_s))
        return -1;
    return kind == is.SYNC ? sync_done(seat, progress, now) : 0;
}

/* -- the cast --------------------------------------------------------------------------------------------------- */

/* Nodes were at work from when they last changed until now. */
static int
used(Phases *self, PyObject *act, double now, int last)
{
    PyObject *lease = SLOT(act, Act_lease), *nodes = SLOT(act, Act_nodes), *kind = SLOT(lease, Lease_kind);
    PyObject *id = SLOT(lease, Lease_job_id), *fresh = SLOT(act, Act_fresh);
    double span_s = now - real(SLOT(act, Act_since));
    if (!PyTuple_GET_SIZE(nodes) || !(span_s > 0))
        return put_known(&SLOT(act, Act_fresh), Py_False);
    PyObject *wanted = PyDict_GetItemWithError(kind == is.ROLLOUT ? self->rollout_wanted : self->train_wanted, id);
    if (self->history || !wanted) {
        PyObject *end = PyFloat_FromDouble(now), *method = PyObject_GetAttr(self->books, named.used);
        PyObject *arguments = end ? PyTuple_Pack(4, lease, nodes, SLOT(act, Act_since), end) : NULL;
        PyObject *words = Py_BuildValue("{sOsO}", "first", fresh, "last", last ? Py_True : Py_False);
        int failed = arguments && words && method ? called(PyObject_Call(method, arguments, words)) : -1;
        Py_XDECREF(end);
        Py_XDECREF(method);
        Py_XDECREF(arguments);
        Py_XDECREF(words);
        return failed ? -1 : put_known(&SLOT(act, Act_fresh), Py_False);
    }
    PyObject *record = PyDict_GetItemWithError(self->jobs, id);
    PyObject *phase = record ? phase_of(SLOT(record, JobRecord_submitted), kind) : NULL;
    if (!phase)
        return missing("nodes were used for a job that is not there");
    PyObject *pause = SLOT(phase, PhaseSpec_pause_s);
    double again_s = SLOT(lease, Lease_resumed) == Py_True && pause != Py_None ? real(pause) : 0.0;
    double load_s = fresh == Py_True && SLOT(lease, Lease_load) == Py_True
                        ? real(SLOT(phase, PhaseSpec_load_s)) + again_s
                        : 0.0;
    double off_s = last && SLOT(lease, Lease_keep) != Py_True ? real(SLOT(phase, PhaseSpec_offload_s)) : 0.0;
    Py_DECREF(phase);
    load_s = load_s < span_s ? load_s : span_s;
    off_s = off_s < span_s - load_s ? off_s : span_s - load_s;
    PyObject *book = kind == is.ROLLOUT ? self->rollout_book : self->train_book;
    Py_ssize_t held = PyTuple_GET_SIZE(nodes), most = whole(wanted);
    double switch_s = real(SLOT(book, PoolBook_switch_s)) + (load_s + off_s) * (double)held;
    double busy_s = real(SLOT(book, PoolBook_busy_s)) + (span_s - load_s - off_s) * (double)(held < most ? held : most);
    return put_real(&SLOT(book, PoolBook_switch_s), switch_s) || put_real(&SLOT(book, PoolBook_busy_s), busy_s) ||
                   put_known(&SLOT(act, Act_fresh), Py_False)
               ? -1
               : 0;
}

/* How long the phase takes without switching; a new reference. */
static PyObject *
takes_s(Phases *self, PyObject *job, PyObject *lease)
{
    PyObject *kind = SLOT(lease, Lease_kind);
    if (self->takes != is.as_planned)
        return PyObject_CallFunctionObjArgs(self->takes, job, kind, SLOT(lease, Lease_iteration), NULL);
    if (kind == is.SYNC)
        return PyObject_GetAttr(job, named.sync_s);
    PyObject *phase = phase_of(job, kind);
    if (!phase)
        return NULL;
    PyObject *measured = SLOT(phase, PhaseSpec_measured_s);
    PyObject *planned = Py_NewRef(measured == Py_None ? SLOT(phase, PhaseSpec_duration_s) : measured);
    Py_DECREF(phase);
    return planned;
}

static PyObject *
new_act(PyObject *lease, double left, PyObject *bulk, PyObject *nodes, double now, PyObject *takes, int resumed)
{
    PyTypeObject *type = (PyTypeObject *)is.Act;
    PyObject *act = type->tp_alloc(type, 0);
    if (!act)
        return NULL;
    SLOT(act, Act_lease) = Py_NewRef(lease);
    SLOT(act, Act_left) = PyFloat_FromDouble(left);
    SLOT(act, Act_bulk) = Py_NewRef(bulk);
    SLOT(act, Act_nodes) = Py_NewRef(nodes);
    SLOT(act, Act_since) = PyFloat_FromDouble(now);
    SLOT(act, Act_takes_s) = Py_NewRef(takes);
    SLOT(act, Act_resumed) = Py_NewRef(resumed ? Py_True : Py_False);
    SLOT(act, Act_ends_at) = Py_NewRef(never);
    SLOT(act, Act_fresh) = Py_NewRef(Py_True);
    if (!SLOT(act, Act_left) || !SLOT(act, Act_since))
        Py_CLEAR(act);
    return act;
}

/* The act under this lease; a new reference. */
static PyObject *
act_of(Phases *self, PyObject *actor, PyObject *lease, double now)
{
    PyObject *job = SLOT(actor, Actor_job), *kind = SLOT(lease, Lease_kind), *nodes = SLOT(lease, Lease_nodes);
    double held = (double)PyTuple_GET_SIZE(nodes);
    PyObject *takes = takes_s(self, job, lease), *phase = NULL, *act = NULL;
    double takes_for_s = takes ? PyFloat_AsDouble(takes) : -1.0;
    Py_XDECREF(takes);
    takes = takes_for_s == -1.0 && PyErr_Occurred() ? NULL : PyFloat_FromDouble(takes_for_s);
    if (!takes)
        return NULL;
    if (kind == is.SYNC)
        act = new_act(lease, takes_for_s, nothing_s, no_nodes, now, takes, 0);
    else if (!(phase = phase_of(job, kind)))
        act = NULL;
    else if (SLOT(lease, Lease_resumed) == Py_True) {
        PyObject *before = PyDict_GetItemWithError(SLOT(actor, Actor_paused), kind);
        PyObject *pause = SLOT(phase, PhaseSpec_pause_s);
        if (before) {
            double again_s = real(SLOT(phase, PhaseSpec_load_s)) + (pause == Py_None ? 0.0 : real(pause));
            if (SLOT(SLOT(before, Act_lease), Lease_keep) == Py_True && SLOT(lease, Lease_keep) != Py_True)
                again_s += real(SLOT(phase, PhaseSpec_offload_s)); /* it was to stay on the nodes */
            double left = real(SLOT(before, Act_left)) + again_s * held;
            act = new_act(lease, left, SLOT(before, Act_bulk), nodes, now, SLOT(before, Act_takes_s), 1);
            if (act && PyDict_DelItem(SLOT(actor, Actor_paused), kind))
                Py_CLEAR(act);
        }
    }
    else {
        double load_s = SLOT(lease, Lease_load) == Py_True ? real(SLOT(phase, PhaseSpec_load_s)) : 0.0;
        double off_s = SLOT(lease, Lease_keep) == Py_True ? 0.0 : real(SLOT(phase, PhaseSpec_offload_s));
        double held_s = load_s + takes_for_s + off_s, at_least = (double)whole(SLOT(phase, PhaseSpec_nodes));
        double count = held > at_least ? held : at_least;
        PyObject *bulk = PyFloat_FromDouble((held_s - load_s - held_s) * count);
        if (bulk)
            act = new_act(lease, held_s * count, bulk, nodes, now, takes, 0);
        Py_XDECREF(bulk);
    }
    Py_DECREF(takes);
    Py_XDECREF(phase);
    if (!act && !PyErr_Occurred())
        PyErr_SetString(PyExc_KeyError, "a phase goes on that was not paused");
    return act;
}

static int
plan_end(Phases *self, PyObject *actor, PyObject *act, double now)
{
    Py_ssize_t at_work = PyTuple_GET_SIZE(SLOT(act, Act_nodes));
    double ends_at = now + real(SLOT(act, Act_left)) / (double)(at_work ? at_work : 1);
    PyObject *kind = SLOT(SLOT(act, Act_lease), Lease_kind);
    if (put_real(&SLOT(act, Act_ends_at), ends_at))
        return -1;
    if (ends_at == now && kind == is.SYNC) /* a sync that takes no time is part of the training's end */
        return end_of(self, actor, act, now);
    PyTypeObject *type = (PyTypeObject *)is.End;
    PyObject *end = type->tp_alloc(type, 0), *entry = NULL;
    PyObject *number = Py_TYPE(self->numbers)->tp_iternext(self->numbers);
    if (end) {
        SLOT(end, End_cast) = Py_NewRef(self->cast);
        SLOT(end, End_actor) = Py_NewRef(actor);
        SLOT(end, End_act) = Py_NewRef(act);
        SLOT(end, End_at) = Py_NewRef(SLOT(act, Act_ends_at));
    }
    PyObject *step = kind == is.ROLLOUT ? zero : kind == is.TRAIN ? one : two;
    if (end && number)
        entry = PyTuple_Pack(5, SLOT(act, Act_ends_at), SLOT(actor, Actor_rank), step, number, end);
    Py_XDECREF(end);
    Py_XDECREF(number);
    if (!entry)
        return -1;
    int failed = called(PyObject_CallFunctionObjArgs(is.heappush, self->heap, entry, NULL));
    Py_DECREF(entry);
    return failed;
}

/* The weave in which the job of a lease is, if it is played here; a borrowed reference, or NULL. */
static PyObject *
weave_of(Phases *self, PyObject *id, PyObject **found)
{
    PyObject *record = *found = PyDict_GetItemWithError(self->jobs, id);
    if (!record || Py_TYPE(record) != (PyTypeObject *)is.JobRecord ||
        Py_TYPE(SLOT(record, JobRecord_progress)) != (PyTypeObject *)is.Progress)
        return NULL;
    PyObject *weave = PyDict_GetItemWithError(self->weaves, SLOT(record, JobRecord_group_id));
    int played = weave && Py_TYPE(weave) == (PyTypeObject *)is.Weave && SLOT(weave, Weave_plain) == Py_True;
    return played ? weave : NULL;
}

/* The machine hears that a granted phase has begun. */
static int
begun(Phases *self, PyObject *weave, PyObject *lease, double now)
{
    PyObject *lane = PyDict_GetItemWithError(SLOT(weave, Weave_leases), SLOT(lease, Lease_epoch));
    if (!lane || SLOT(lane, Lane_state) != is.GRANTED)
        return PyErr_Occurred() ? -1 : 0;
    return next_seq(self) < 0 || put_known(&SLOT(lane, Lane_state), is.RUNNING) ||
                   put_real(&SLOT(lane, Lane_started_at), now) || renew(weave, lane, now)
               ? -1
               : 0;
}

static int
carry_out_grant(Phases *self, PyObject *lease, double now)
{
    PyObject *id = SLOT(lease, Lease_job_id), *actor = PyDict_GetItemWithError(self->actors, id), *record;
    PyObject *weave = weave_of(self, id, &record);
    if (!actor || !weave || Py_TYPE(actor) != (PyTypeObject *)is.Actor) {
        PyObject *command = PyErr_Occurred() ? NULL : PyObject_CallOneArg(is.Grant, lease);
        int failed = command ? called(PyObject_CallMethodOneArg(self->cast, named._grant, command)) : -1;
        Py_XDECREF(command);
        return failed;
    }
    if (SLOT(lease, Lease_keep) == Py_True &&
        PyDict_SetItem(SLOT(actor, Actor_kept), SLOT(lease, Lease_kind), lease))
        return -1;
    Py_INCREF(actor);
    PyObject *act = begun(self, weave, lease, now) ? NULL : act_of(self, actor, lease, now);
    int failed = act && !PyDict_SetItem(SLOT(actor, Actor_acts), SLOT(lease, Lease_epoch), act)
                     ? plan_end(self, actor, act, now)
                     : -1;
    Py_XDECREF(act);
    Py_DECREF(actor);
    return failed;
}

static int carry_out(Phases *self, Answer *answer, double now);

/* The machine hears that a phase has paused, and its nodes are free. */
static int
paused(Phases *self, PyObject *weave, PyObject *lane, double now)
{
    Answer answer = {NULL, NULL};
    PyObject *served = NULL, *started = SLOT(lane, Lane_started_at);
    long long seq = next_seq(self);
    int urgent = SLOT(weave, Weave_urgent) == Py_True;
    double worked_s = real(SLOT(lane, Lane_worked_s)) + (started == Py_None ? 0.0 : now - real(started));
    int failed = seq < 0 || put_real(&SLOT(lane, Lane_worked_s), worked_s) ||
                 put_known(&SLOT(lane, Lane_resumed), Py_True) || end_lease(weave, lane) ||
                 put_known(&SLOT(lane, Lane_state), is.WAITING) || put_whole(&SLOT(lane, Lane_asked), seq) ||
                 give_way(SLOT(weave, Weave_turns), lane, urgent, &served) ||
                 grant_all(self, weave, served, now, seq, &answer) ||
                 (!PyTuple_GET_SIZE(SLOT(lane, Lane_held)) && ask_way(weave, lane, now, &answer));
    return failed ? -1 : carry_out(self, &answer, now);
}

/* A phase stops where it is, and is off its nodes at once; Python lets it take its time. */
static int
carry_out_pause(Phases *self, PyObject *lease, double now)
{
    PyObject *id = SLOT(lease, Lease_job_id), *epoch = SLOT(lease, Lease_epoch), *kind = SLOT(lease, Lease_kind);
    PyObject *actor = PyDict_GetItemWithError(self->actors, id), *record, *weave = weave_of(self, id, &record);
    PyObject *act = actor ? PyDict_GetItemWithError(SLOT(actor, Actor_acts), epoch) : NULL;
    PyObject *lane = weave ? PyDict_GetItemWithError(SLOT(weave, Weave_leases), epoch) : NULL;
    PyObject *phase = act && lane ? phase_of(SLOT(actor, Actor_job), kind) : NULL;
    if (phase && real(SLOT(act, Act_ends_at)) <= now) { /* it is done */
        Py_DECREF(phase);
        return 0;
    }
    int here = phase && real(SLOT(phase, PhaseSpec_offload_s)) == 0.0 && SLOT(lane, Lane_state) == is.PAUSING;
    Py_XDECREF(phase);
    if (PyErr_Occurred())
        return -1;
    if (!here) {
        PyObject *command = PyObject_CallFunctionObjArgs(is.Pause, id, epoch, SLOT(lease, Lease_nodes), NULL);
        int failed = command ? called(PyObject_CallMethodOneArg(self->cast, named._pause, command)) : -1;
        Py_XDECREF(command);
        return failed;
    }
    double worked = (double)PyTuple_GET_SIZE(SLOT(act, Act_nodes)) * (now - real(SLOT(act, Act_since)));
    Py_INCREF(act);
    Py_INCREF(lane);
    int failed = used(self, act, now, 0) || put_real(&SLOT(act, Act_left), real(SLOT(act, Act_left)) - worked) ||
                 put_known(&SLOT(act, Act_nodes), no_nodes) || put_known(&SLOT(act, Act_ends_at), never) ||
                 PyDict_DelItem(SLOT(actor, Actor_acts), epoch) ||
                 PyDict_SetItem(SLOT(actor, Actor_paused), kind, act) || paused(self, weave, lane, now);
    Py_DECREF(act);
    Py_DECREF(lane);
    return failed ? -1 : 0;
}

/* What the weave has answered happens: grants first, as they were made first. Takes the lists. */
static int
carry_out(Phases *self, Answer *answer, double now)
{
    int failed = 0;
    for (Py_ssize_t i = 0; answer->granted && !failed && i < PyList_GET_SIZE(answer->granted); i++)
        failed = carry_out_grant(self, PyList_GET_ITEM(answer->granted, i), now);
    for (Py_ssize_t i = 0; answer->paused && !failed && i < PyList_GET_SIZE(answer->paused); i++)
        failed = carry_out_pause(self, PyList_GET_ITEM(answer->paused, i), now);
    Py_CLEAR(answer->granted);
    Py_CLEAR(answer->paused);
    return failed;
}

/* Whether phases of an iteration go in their order. */
static int
is_its_turn(PyObject *progress, PyObject *job, PyObject *kind, long long iteration)
{
    long long rolled = whole(SLOT(progress, Progress_rolled)), trained = whole(SLOT(progress, Progress_trained));
    long long synced = whole(SLOT(progress, Progress_synced));
    if (kind == is.TRAIN)
        return iteration == trained && trained == synced && iteration < rolled;
    if (kind == is.SYNC)
        return iteration == synced && iteration < trained;
    PyObject *staleness = PyObject_GetAttr(job, named.staleness);
    int in_turn = staleness && iteration == rolled && iteration <= synced + whole(staleness);
    Py_XDECREF(staleness);
    return in_turn;
}

/* The machine hears that a job asks for a phase. */
static int
request(Phases *self, PyObject *weave, PyObject *lane, long long iteration, double now)
{
    Answer answer = {NULL, NULL};
    PyObject *progress = SLOT(SLOT(lane, Lane_seat), Seat_progress), *turns = SLOT(weave, Weave_turns);
    long long seq = next_seq(self);
    int parked = SLOT(lane, Lane_state) == is.PARKED, got = 1;
    if (seq < 0 || put_whole(&SLOT(lane, Lane_iteration), iteration) ||
        (SLOT(progress, Progress_since) == Py_None && put_real(&SLOT(progress, Progress_since), now)) ||
        (SLOT(progress, Progress_counted_until) == Py_None && put_real(&SLOT(progress, Progress_counted_until), now)) ||
        (parked && end_lease(weave, lane)) ||
        (parked && put_whole(&SLOT(lane, Lane_rounds), whole(SLOT(lane, Lane_rounds)) + 1)) ||
        plan(weave, lane) || (!parked && put_known(&SLOT(lane, Lane_state), is.WAITING)) ||
        put_whole(&SLOT(lane, Lane_asked), seq))
        return -1;
    if (!parked && PyTuple_GET_SIZE(SLOT(lane, Lane_nodes)))
        got = line_up(turns, lane, SLOT(weave, Weave_urgent) == Py_True) ? -1 : take(turns, lane);
    int failed = got < 0 ? -1
                 : got   ? grant(self, weave, lane, now, !parked, seq, &answer)
                         : ask_way(weave, lane, now, &answer);
    return failed ? -1 : carry_out(self, &answer, now);
}

/* The job asks for what it may do next: here where nothing but a wait or a grant can follow, else in Python. */
static int
ask(Phases *self, PyObject *actor, PyObject *kind, long long iteration, double now)
{
    PyObject *asked = SLOT(actor, Actor_asked), *before = PyDict_GetItemWithError(asked, kind), *id, *record;
    if (!before || whole(before) != iteration)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *number = PyLong_FromLongLong(iteration), *next = PyLong_FromLongLong(iteration + 1);
    int failed = number && next ? PyDict_SetItem(asked, kind, next) : -1;
    Py_XDECREF(next);
    if (failed || !(id = PyObject_GetAttr(SLOT(actor, Actor_job), named.id))) {
        Py_XDECREF(number);
        return -1;
    }
    PyObject *weave = weave_of(self, id, &record), *lane = NULL;
    PyObject *seat = weave ? PyDict_GetItemWithError(SLOT(weave, Weave_seats), id) : NULL;
    if (seat && SLOT(record, JobRecord_state) == is.RUNS &&
        whole(SLOT(record, JobRecord_attempt)) == whole(SLOT(actor, Actor_attempt)) &&
        is_its_turn(SLOT(seat, Seat_progress), SLOT(seat, Seat_job), kind, iteration))
        lane = PyDict_GetItemWithError(SLOT(seat, Seat_lanes), kind);
    if (lane && (SLOT(lane, Lane_state) == is.IDLE || SLOT(lane, Lane_state) == is.PARKED) &&
        SLOT(lane, Lane_wanted) != Py_True)
        failed = request(self, weave, lane, iteration, now);
    else {
        PyObject *event =
            PyErr_Occurred()
                ? NULL
                : PyObject_CallFunctionObjArgs(is.PhaseRequested, id, SLOT(actor, Actor_attempt), kind, number, NULL);
        failed = event ? called(PyObject_CallMethodOneArg(self->cast, named.tell, event)) : -1;
        Py_XDECREF(event);
    }
    Py_DECREF(number);
    Py_DECREF(id);
    return failed;
}

static int
go_on(Phases *self, PyObject *actor, PyObject *id, PyObject *iterations, double now)
{
    if (PyDict_GetItemWithError(self->actors, id) != actor)
        return PyErr_Occurred() ? -1 : 0;
    long long rolled = whole(SLOT(actor, Actor_rolled)), trained = whole(SLOT(actor, Actor_trained));
    long long synced = whole(SLOT(actor, Actor_synced));
    if (trained == synced && trained < rolled && ask(self, actor, is.TRAIN, trained, now))
        return -1;
    PyObject *staleness = PyObject_GetAttr(SLOT(actor, Actor_job), named.staleness);
    rolled = whole(SLOT(actor, Actor_rolled));
    int more = staleness && rolled <= whole(SLOT(actor, Actor_synced)) + whole(staleness) &&
               (iterations == Py_None || rolled < whole(iterations));
    Py_XDECREF(staleness);
    if (PyErr_Occurred())
        return -1;
    return more ? ask(self, actor, is.ROLLOUT, rolled, now) : 0;
}

/* After a sync: what the mover would make of a job that is slower than its limit, if it is. */
static int
watch(Phases *self, PyObject *record, PyObject *lease, double now)
{
    PyObject *job = SLOT(record, JobRecord_job), *progress = SLOT(record, JobRecord_progress);
    PyObject *began = SLOT(record, JobRecord_began), *iterations = PyObject_GetAttr(job, named.iterations);
    if (!iterations)
        return -1;
    int bound = iterations != Py_None && began != Py_None;
    long long all = bound ? whole(iterations) : 0, synced = whole(SLOT(progress, Progress_synced));
    Py_DECREF(iterations);
    if (synced >= all)
        return 0;
    PyObject *limit = PyObject_GetAttr(job, named.limit_s);
    if (!limit)
        return -1;
    double spent_s = real(SLOT(progress, Progress_since)) - real(began);
    double limit_s = (real(limit) * (double)all - spent_s) / (double)(all - synced);
    Py_DECREF(limit);
    if (real(SLOT(progress, Progress_recent_s)) <= limit_s)
        return 0;
    PyObject *out = PyList_New(0), *at_s = PyFloat_FromDouble(now), *event = NULL, *commands = NULL;
    int failed = out && at_s
                     ? called(PyObject_CallMethodObjArgs(self->mover, named.watch, at_s, record, out, NULL))
                     : -1;
    if (!failed && PyList_GET_SIZE(out)) {
        event = PyObject_CallFunctionObjArgs(is.PhaseFinished, SLOT(lease, Lease_job_id), SLOT(lease, Lease_epoch),
                                             NULL);
        commands = PySequence_Tuple(out);
        PyObject *all_s[] = {self->cast, event, commands, nothing_s};
        failed = event && commands ? called(PyObject_VectorcallMethod(named._carry_out, all_s, 4, NULL)) : -1;
    }
    Py_XDECREF(event);
    Py_XDECREF(commands);
    Py_XDECREF(out);
    Py_XDECREF(at_s);
    return failed;
}

/* The actor counts what it has done. */
static int
count(Phases *self, PyObject *actor, PyObject *act, double now)
{
    PyObject *lease = SLOT(act, Act_lease), *kind = SLOT(lease, Lease_kind), *id = SLOT(lease, Lease_job_id);
    PyObject **done = kind == is.ROLLOUT ? &SLOT(actor, Actor_rolled)
                      : kind == is.TRAIN ? &SLOT(actor, Actor_trained)
                                         : &SLOT(actor, Actor_synced);
    PyObject *ahead = SLOT(actor, Actor_ahead_s);
    double takes_s = real(SLOT(act, Act_takes_s));
    if (put_whole(done, whole(*done) + 1))
        return -1;
    if (kind == is.ROLLOUT) /* it is of an iteration that may be synced long after */
        return PyList_Append(ahead, SLOT(act, Act_takes_s));
    if (kind == is.TRAIN) {
        if (!PyList_GET_SIZE(ahead))
            return missing("what is trained was not rolled out");
        takes_s = real(PyList_GET_ITEM(ahead, 0)) + takes_s;
        if (PyList_SetSlice(ahead, 0, 1, NULL))
            return -1;
    }
    double active_s = real(SLOT(actor, Actor_active_s)) + takes_s;
    if (put_real(&SLOT(actor, Actor_active_s), active_s))
        return -1;
    if (kind != is.SYNC)
        return 0;
    PyObject *completed = PyDict_GetItemWithError(self->completed, id), *at_s = PyFloat_FromDouble(now);
    PyObject *before = PyDict_GetItemWithError(self->active_s, id);
    PyObject *total = PyFloat_FromDouble((before ? real(before) : 0.0) + active_s);
    int failed = (!completed && missing("an iteration of no job was done")) || !at_s || !total ||
                 PyList_Append(completed, at_s) ||
                 PyDict_SetItem(self->active_s, id, total) || put_known(&SLOT(actor, Actor_active_s), nothing_s);
    Py_XDECREF(at_s);
    Py_XDECREF(total);
    return failed ? -1 : 0;
}

/* The machine hears that a phase is done, and what it answers happens. */
static int
finished(Phases *self, PyObject *weave, PyObject *lane, PyObject *record, PyObject *lease, double now)
{
    Answer answer = {NULL, NULL};
    PyObject *served = NULL, *turns = SLOT(weave, Weave_turns);
    long long seq = next_seq(self);
    if (seq < 0 || commit(lane, now))
        return -1;
    if (SLOT(lane, Lane_keep) == Py_True) {
        if (put_known(&SLOT(lane, Lane_state), is.PARKED) || put_known(&SLOT(lane, Lane_deadline), never) ||
            put_known(&SLOT(lane, Lane_pause), Py_None))
            return -1;
    }
    else if (end_lease(weave, lane) || put_known(&SLOT(lane, Lane_state), is.IDLE) ||
             (PyTuple_GET_SIZE(SLOT(lane, Lane_nodes)) &&
              (let_go(turns, lane) || serve(turns, SLOT(lane, Lane_nodes), &served) ||
               grant_all(self, weave, served, now, seq, &answer))))
        return -1;
    if (SLOT(lane, Lane_kind) == is.SYNC && watch(self, record, lease, now))
        return -1;
    return carry_out(self, &answer, now);
}

/* 1 if the end of this act was played with what follows, 0 if it is for Python: then nothing has changed. */
static int
end_here(Phases *self, PyObject *actor, PyObject *act, double now)
{
    if (Py_TYPE(actor) != (PyTypeObject *)is.Actor || Py_TYPE(act) != (PyTypeObject *)is.Act)
        return 0;
    PyObject *lease = SLOT(act, Act_lease), *id = SLOT(lease, Lease_job_id), *kind = SLOT(lease, Lease_kind), *record;
    PyObject *weave = weave_of(self, id, &record);
    if (!weave || SLOT(record, JobRecord_target) != Py_None || PyDict_GetItemWithError(self->actors, id) != actor)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *swaps = PyObject_GetAttr(self->state, named.swaps);
    int changes = swaps ? PyDict_Contains(swaps, id) : -1;
    Py_XDECREF(swaps);
    if (changes)
        return changes < 0 ? -1 : 0;
    PyObject *lane = PyDict_GetItemWithError(SLOT(weave, Weave_leases), SLOT(lease, Lease_epoch));
    if (!lane || Py_TYPE(lane) != (PyTypeObject *)is.Lane || SLOT(lane, Lane_state) != is.RUNNING ||
        SLOT(lane, Lane_wanted) == Py_True || (SLOT(lane, Lane_keep) == Py_True && SLOT(lane, Lane_alone) != Py_True))
        return PyErr_Occurred() ? -1 : 0;
    PyObject *iterations = PyObject_GetAttr(SLOT(actor, Actor_job), named.iterations);
    if (!iterations)
        return -1;
    Py_INCREF(lane);
    int failed = PyDict_DelItem(SLOT(actor, Actor_acts), SLOT(lease, Lease_epoch)) || used(self, act, now, 1) ||
                 count(self, actor, act, now) || finished(self, weave, lane, record, lease, now);
    Py_DECREF(lane);
    if (failed)
        failed = -1;
    else if (kind == is.TRAIN)
        failed = ask(self, actor, is.SYNC, whole(SLOT(actor, Actor_synced)), now);
    else if (iterations != Py_None && whole(SLOT(actor, Actor_synced)) == whole(iterations) &&
             PyDict_Contains(self->actors, id))
        failed = called(PyObject_CallMethodOneArg(self->cast, named._finish, actor));
    else
        failed = go_on(self, actor, id, iterations, now);
    Py_DECREF(iterations);
    return failed || PyErr_Occurred() ? -1 : 1;
}

/* What is not for here `Cast._end` asks for here again, is told so again, and plays in Python. */
static int
end_of(Phases *self, PyObject *actor, PyObject *act, double now)
{
    int ended = end_here(self, actor, act, now);
    return ended ? ended > 0 ? 0 : -1
                 : called(PyObject_CallMethodObjArgs(self->cast, named._end, actor, act, NULL));
}

static PyObject *
phases_end(Phases *self, PyObject *args)
{
    PyObject *at_s, *actor, *act;
    if (!PyArg_ParseTuple(args, "O!OO", &PyFloat_Type, &at_s, &actor, &act))
        return NULL;
    if (!self->cast) {
        PyErr_SetString(PyExc_RuntimeError, "of no cast");
        return NULL;
    }
    double now = PyFloat_AS_DOUBLE(at_s);
    PyObject *latest = PyObject_GetAttr(self->state, named.now);
    if (!latest)
        return NULL;
    int goes_on = fabs(now) < MOST_S && now >= real(latest);
    Py_DECREF(latest);
    if (!goes_on) /* Python says what is wrong */
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    int ended = end_here(self, actor, act, now);
    if (ended > 0 && PyObject_SetAttr(self->state, named.now, at_s))
        ended = -1;
    return ended < 0 ? NULL : PyBool_FromLong(ended);
}

/* -- what Python sees ------------------------------------------------------------------------------------------- */

#define VISIT(name) Py_VISIT(self->name);
#define CLEAR(name) Py_CLEAR(self->name);

static int
phases_traverse(Phases *self, visitproc visit, void *arg)
{
    PARTS(VISIT)
    return 0;
}

static int
phases_clear(Phases *self)
{
    PARTS(CLEAR)
    return 0;
}

static void
phases_dealloc(Phases *self)
{
    PyObject_GC_UnTrack(self);
    phases_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int
take_from(PyObject *words, const char *name, PyObject **at_object)
{
    PyObject *found = words ? PyDict_GetItemString(words, name) : NULL;
    if (!found) {
        PyErr_Format(PyExc_TypeError, "%s is missing", name);
        return -1;
    }
    return put_known(at_object, found);
}

static int
phases_init(Phases *self, PyObject *args, PyObject *words)
{
    PyObject *history = NULL;
    (void)args;
    if (!no_nodes) {
        PyErr_SetString(PyExc_RuntimeError, "bind the classes first");
        return -1;
    }
#define TAKE(name)                                                                                                     \
    if (take_from(words, #name, &self->name)) {                                                                        \
        phases_clear(self);                                                                                            \
        return -1;                                                                                                     \
    }
    PARTS(TAKE)
    PyObject *dicts[] = {self->jobs,     self->weaves,         self->actors,      self->completed,
                         self->active_s, self->rollout_wanted, self->train_wanted};
    int right = Py_TYPE(self->ledger) == (PyTypeObject *)is.Ledger && PyList_Check(self->heap) &&
                Py_TYPE(self->rollout_book) == (PyTypeObject *)is.PoolBook &&
                Py_TYPE(self->train_book) == (PyTypeObject *)is.PoolBook && PyIter_Check(self->numbers);
    for (size_t i = 0; i < sizeof dicts / sizeof *dicts; i++)
        right = right && PyDict_CheckExact(dicts[i]);
    if (!right || take_from(words, "history", &history)) {
        phases_clear(self);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "these are no parts of a cast");
        return -1;
    }
    self->history = PyObject_IsTrue(history);
    Py_DECREF(history);
    return 0;
}

static PyMethodDef phases_methods[] = {
    {"end", (PyCFunction)phases_end, METH_VARARGS,
     "end(now, actor, act): False, and nothing has changed, if it is for Python."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject phases_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rollmux.sim._phases.Phases",
    .tp_doc = "Plays the plain phases of one cast.",
    .tp_basicsize = sizeof(Phases),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)phases_init,
    .tp_dealloc = (destructor)phases_dealloc,
    .tp_traverse = (traverseproc)phases_traverse,
    .tp_clear = (inquiry)phases_clear,
    .tp_methods = phases_methods,
};

static int
find_slot(PyObject *known, const char *class, const char *slot, Py_ssize_t *offset)
{
    PyObject *type = PyDict_GetItemString(known, class);
    PyObject *member = type ? PyObject_GetAttrString(type, slot) : NULL;
    int is_slot = member && Py_TYPE(member) == &PyMemberDescr_Type;
    if (is_slot)
        *offset = ((PyMemberDescrObject *)member)->d_member->offset;
    else if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", class, slot);
    Py_XDECREF(member);
    return is_slot ? 0 : -1;
}

/* Where everything lies, by the classes and objects of the Python side. */
static PyObject *
bind(PyObject *module, PyObject *args)
{
    PyObject *known;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!dL", &PyDict_Type, &known, &recent_part, &debt))
        return NULL;
#define FIND(class, slot)                                                                                              \
    if (find_slot(known, #class, #slot, &at.class##_##slot))                                                           \
        return NULL;
#define KNOW(name)                                                                                                     \
    if (take_from(known, #name, &is.name))                                                                             \
        return NULL;
#define NAME(name)                                                                                                     \
    if (put(&named.name, PyUnicode_InternFromString(#name)))                                                           \
        return NULL;
    SLOTS(FIND)
    KNOWN(KNOW)
    NAMES(NAME)
    if (put(&never, PyFloat_FromDouble(Py_HUGE_VAL)) || put(&nothing_s, PyFloat_FromDouble(0.0)) ||
        put(&zero, PyLong_FromLong(0)) || put(&one, PyLong_FromLong(1)) || put(&two, PyLong_FromLong(2)) ||
        put(&no_nodes, PyTuple_New(0)))
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"bind", bind, METH_VARARGS,
     "bind(known, recent_part, debt): before anything else, the classes whose slots are used."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_phases", "Plain phases of `rollmux.sim.cast`, compiled.", -1, methods, NULL, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC
PyInit__phases(void)
{
    PyObject *module = PyType_Ready(&phases_type) ? NULL : PyModule_Create(&definition);
    if (module && PyModule_AddObjectRef(module, "Phases", (PyObject *)&phases_type)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
