/* Threads that help a caller with one job at a time; they sleep in between.
 *
 * They never touch Python: they are started when first needed, belong to nobody and end with the
 * process, wherever they are. All signals are left to the threads that there were before. */
#ifndef NGS_WORKERS_H
#define NGS_WORKERS_H

#include <stdint.h>
#include <string.h>

#include "ngs_native.h"

#if defined(_MSC_VER)
#include <process.h>
#include <windows.h>
typedef struct {
    SRWLOCK lock;
    CONDITION_VARIABLE woken, left;
} ngs_meeting;
static inline void ngs_meet(ngs_meeting *m) { AcquireSRWLockExclusive(&m->lock); }
static inline void ngs_part(ngs_meeting *m) { ReleaseSRWLockExclusive(&m->lock); }
static inline void ngs_await_wake(ngs_meeting *m) { SleepConditionVariableSRW(&m->woken, &m->lock, INFINITE, 0); }
static inline void ngs_await_left(ngs_meeting *m) { SleepConditionVariableSRW(&m->left, &m->lock, INFINITE, 0); }
static inline void ngs_wake_one(ngs_meeting *m) { WakeConditionVariable(&m->woken); }
static inline void ngs_tell_left(ngs_meeting *m) { WakeConditionVariable(&m->left); }
static inline void ngs_yield(void) { SwitchToThread(); }
#define NGS_MEETING {SRWLOCK_INIT, CONDITION_VARIABLE_INIT, CONDITION_VARIABLE_INIT}
#else
#include <pthread.h>
#include <sched.h>
#include <signal.h>
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t woken, left;
} ngs_meeting;
static inline void ngs_meet(ngs_meeting *m) { pthread_mutex_lock(&m->lock); }
static inline void ngs_part(ngs_meeting *m) { pthread_mutex_unlock(&m->lock); }
static inline void ngs_await_wake(ngs_meeting *m) { pthread_cond_wait(&m->woken, &m->lock); }
static inline void ngs_await_left(ngs_meeting *m) { pthread_cond_wait(&m->left, &m->lock); }
static inline void ngs_wake_one(ngs_meeting *m) { pthread_cond_signal(&m->woken); }
static inline void ngs_tell_left(ngs_meeting *m) { pthread_cond_signal(&m->left); }
static inline void ngs_yield(void) { sched_yield(); }
#define NGS_MEETING {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER}
#endif

/* Part of a job. `lane` tells apart those who work on it: 0 is the caller, others count up from 1. */
typedef void (*ngs_task)(void *job, int lane);

typedef struct {
    ngs_meeting meeting; /* guards all but `used`; words that are looked at without it are written atomically */
    ngs_task task;
    void *job;
    uint32_t open;   /* lanes of the job that nobody has taken */
    uint32_t lane;   /* the next one */
    uint32_t inside; /* workers in the job */
    int asleep;
    int num;  /* workers */
    int used; /* a caller has them */
    int all;  /* for tests: a caller waits until all have come that it called */
    int64_t called;  /* when they were, in ns */
    int shun, left_out; /* jobs to be done without them, since they kept the caller waiting; those still to come */
} ngs_workers;

enum { NGS_LOOKS = 16, NGS_STACK = 1 << 20, NGS_MOST_SHUNNED = 63 };
#define NGS_AWAKE_NS 50000 /* a step has several jobs, one soon after the other */

static ngs_workers ngs_all_workers = {NGS_MEETING, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

/* Wait a little for a word to be (not) 0. Others go first: it may be one of them that will change it. */
static inline void ngs_look(const uint32_t *word, int until_zero) {
    const int64_t start = ngs_now_ns();
    do {
        for (int i = 0; i < NGS_LOOKS; i++) {
            if ((ngs_acquire32(word) == 0) == until_zero) return;
            ngs_relax();
        }
        ngs_yield();
    } while (ngs_now_ns() - start < NGS_AWAKE_NS);
}

static void ngs_work(ngs_workers *w) {
    for (;;) {
        ngs_look(&w->open, 0);
        ngs_meet(&w->meeting);
        while (w->open == 0) {
            w->asleep++;
            ngs_await_wake(&w->meeting);
            w->asleep--;
        }
        const ngs_task task = w->task;
        void *job = w->job;
        const int lane = (int)w->lane++;
        ngs_release32(&w->open, w->open - 1);
        ngs_release32(&w->inside, w->inside + 1);
        ngs_part(&w->meeting);
        task(job, lane);
        ngs_meet(&w->meeting);
        ngs_release32(&w->inside, w->inside - 1);
        if (w->inside == 0) ngs_tell_left(&w->meeting);
        ngs_part(&w->meeting);
    }
}

#if defined(_MSC_VER)
static void __cdecl ngs_worker(void *w) { ngs_work((ngs_workers *)w); }
static int ngs_start_worker(ngs_workers *w) { return _beginthread(ngs_worker, NGS_STACK, w) != (uintptr_t)-1; }
#else
static void *ngs_worker(void *w) {
    ngs_work((ngs_workers *)w);
    return NULL;
}

static int ngs_start_worker(ngs_workers *w) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    int started;
    if (pthread_attr_init(&attributes)) return 0;
    pthread_attr_setstacksize(&attributes, NGS_STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started = pthread_create(&thread, &attributes, ngs_worker, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}
#endif

/* Let up to `lanes` - 1 workers run task(job, lane), each with a lane of its own, from 1 on; the caller does its own
 * part, as lane 0, and then dismisses them. The task takes its parts of the work itself, so that it is done however
 * many come. 0: none will, since another caller has the workers or no thread can be started. */
static int ngs_call_workers(ngs_workers *w, ngs_task task, void *job, int lanes) {
    int i, sleepers;
    if (lanes <= 1 || !ngs_try_lock(&w->used)) return 0;
    if (w->left_out > 0 && !w->all) {
        w->left_out--;
        ngs_keep_bits((uint32_t *)&w->used, 0);
        return 0;
    }
    while (w->num < lanes - 1 && ngs_start_worker(w)) w->num++;
    if (w->num < lanes - 1) lanes = w->num + 1;
    ngs_meet(&w->meeting);
    w->called = ngs_now_ns();
    w->task = task;
    w->job = job;
    w->lane = 1;
    ngs_release32(&w->open, lanes - 1);
    sleepers = w->asleep < lanes - 1 ? w->asleep : lanes - 1;
    ngs_part(&w->meeting);
    for (i = 0; i < sleepers; i++) ngs_wake_one(&w->meeting);
    while (w->all && ngs_acquire32(&w->open)) ngs_yield();
    return 1;
}

/* After a job of which the caller spent `waited` of `took` ns waiting: leave workers out of some of the next jobs if it
 * was much. Then others have their core, and what they began lies there until they have it again. */
static void ngs_judge_workers(ngs_workers *w, int64_t waited, int64_t took) {
    w->shun = waited > took / 3 ? 2 * w->shun + 1 : w->shun / 2;
    if (w->shun > NGS_MOST_SHUNNED) w->shun = NGS_MOST_SHUNNED;
    w->left_out = w->shun;
}

/* After ngs_call_workers returned 1: let no further one come, and wait until none is in the job. */
static void ngs_dismiss_workers(ngs_workers *w) {
    const int64_t done = ngs_now_ns();
    int64_t now = done;
    ngs_meet(&w->meeting);
    ngs_release32(&w->open, 0);
    if (w->inside) {
        ngs_part(&w->meeting);
        ngs_look(&w->inside, 1);
        ngs_meet(&w->meeting);
        while (w->inside) ngs_await_left(&w->meeting);
        now = ngs_now_ns();
    }
    ngs_part(&w->meeting);
    ngs_judge_workers(w, now - done, now - w->called);
    ngs_keep_bits((uint32_t *)&w->used, 0);
}

/* In the child of a fork, which has none of the threads. */
static void ngs_forget_workers(ngs_workers *w) {
    const ngs_workers fresh = {NGS_MEETING, NULL, NULL, 0, 0, 0, 0, 0, 0, w->all, 0, 0, 0};
    memcpy(w, &fresh, sizeof(fresh));
}

#endif
