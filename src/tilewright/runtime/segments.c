/* Runs launches and loops over launches: on the calling thread, or on a team with barriers between. */

/* Computes the parts from `part` to before `end`, of `parts`. */
typedef int Kernel(char **p, long part, long end, long parts);
/* Pointer i is at `offset` bytes from the start of buffer `buffer`; `moves` says for each pointer by
   how many bytes it moves with each iteration of each loop, outermost first. */
typedef struct { long buffer, offset; } Place;
/* A launch: its pointers begin at `first`; `barrier`: all before it must be complete.
   Without a kernel: the begin of the loop at depth `first`, `parts` iterations to the step
   `pointers`; there `parts` is negative, and `pointers` is the begin. */
typedef struct { Kernel *kernel; long first, pointers, parts, barrier; } Step;
typedef struct {
  void (*parallel)(void (*work)(void *), void *argument, unsigned threads, unsigned flags);
  int (*size)(void), (*rank)(void);
} Team;
/* clock: 0, or for each of `threads` two numbers for each step, to which the nanoseconds are added
   that it worked there, and that it waited for the others before. */
typedef struct {
  char **buffers;
  const Team *team;
  long threads;
  const long *index;
  long *clock;
} Call;
/* All that the threads of one run share; it lives on the caller's stack, so runs may overlap. */
typedef struct {
  const Step *steps;
  long count;
  char **pointers;                              /* moved by the loops around all this */
  const long *moves;
  long depth, outer;
  const Team *team;
  long *clock;
  long failure;                                 /* 256 * step + code of the first that failed */
  _Alignas(64) int arrived;
  _Alignas(64) int generation;                  /* also what sleepers sleep on */
  int sleepers;
} Run;

#define NONE (-1L)
/* Waking a thread takes as long as many a launch, so that only who waits for long goes to sleep. */
#define SPIN_NANOSECONDS 200000

#ifdef __linux__
extern long syscall(long number, ...);
#if defined(__x86_64__)
#define FUTEX 202
#elif defined(__aarch64__) || defined(__riscv)
#define FUTEX 98
#endif
#endif
extern int sched_yield(void);
typedef struct { long seconds, nanoseconds; } Time;
extern int clock_gettime(int clock, Time *time);

static long now(void) {
  Time time;
  clock_gettime(1, &time);                      /* CLOCK_MONOTONIC */
  return time.seconds * 1000000000L + time.nanoseconds;
}

static void pause_a_little(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void sleep_while(int *word, int value) {
#ifdef FUTEX
  syscall(FUTEX, word, 128, value, (void *)0);  /* FUTEX_WAIT_PRIVATE */
#else
  (void)word, (void)value;
  sched_yield();
#endif
}

static void wake_all(int *word) {
#ifdef FUTEX
  syscall(FUTEX, word, 129, 0x7fffffff);        /* FUTEX_WAKE_PRIVATE */
#else
  (void)word;
#endif
}

static int passed(Run *run, int generation) {
  return __atomic_load_n(&run->generation, __ATOMIC_SEQ_CST) != generation;
}

/* Wait until all `size` threads are here: spin a while, since most waits are short, then sleep. */
static void meet(Run *run, int size) {
  int generation = __atomic_load_n(&run->generation, __ATOMIC_SEQ_CST);
  if (__atomic_add_fetch(&run->arrived, 1, __ATOMIC_SEQ_CST) == size) {
    __atomic_store_n(&run->arrived, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&run->generation, generation + 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&run->sleepers, __ATOMIC_SEQ_CST)) wake_all(&run->generation);
    return;
  }
  long start = now();
  do {
    for (int i = 0; i < 16; i++) {
      if (passed(run, generation)) return;
      pause_a_little();
    }
  } while (now() - start < SPIN_NANOSECONDS);
  __atomic_add_fetch(&run->sleepers, 1, __ATOMIC_SEQ_CST);
  while (!passed(run, generation)) sleep_while(&run->generation, generation);
  __atomic_sub_fetch(&run->sleepers, 1, __ATOMIC_SEQ_CST);
}

/* Keep the failure of the earliest step, whichever thread is first to fail. */
static void fail(Run *run, long step, int code) {
  long failure = 256 * step + (code & 255);
  long before = __atomic_load_n(&run->failure, __ATOMIC_SEQ_CST);
  while (before == NONE || failure < before)
    if (__atomic_compare_exchange_n(&run->failure, &before, failure, 0, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST))
      return;
}

/* Where a launch's pointers are in this iteration of the loops from `outer` on. */
static char **move(const Run *run, const Step *step, const long *index, char **moved) {
  for (long k = 0; k < step->pointers; k++) {
    moved[k] = run->pointers[step->first + k];
    for (long loop = run->outer; loop < run->depth; loop++)
      moved[k] += run->moves[(step->first + k) * run->depth + loop] * index[loop];
  }
  return moved;
}

/* Add the time since `since` to a sum. */
static void lap(long *sum, long *since) {
  long time = now();
  *sum += time - *since;
  *since = time;
}

/* One thread's share: of each launch the parts from rank/size to (rank+1)/size of them.  A launch
   of one part is thread 0's.  After a failure the threads still meet, but do nothing more. */
static void share(Run *run, long rank, long size) {
  long index[run->depth + 1];
  long *clock = run->clock ? run->clock + 2 * rank * run->count : 0, since = clock ? now() : 0;
  for (long loop = 0; loop < run->depth; loop++) index[loop] = 0;
  for (long i = 0; i < run->count; i++) {
    const Step *step = run->steps + i;
    if (!step->kernel) {
      if (step->parts > 0) index[step->first] = 0;
      else if (step->parts == 0 || ++index[step->first] < run->steps[step->pointers].parts)
        i = step->pointers;                     /* behind the end, or the first of the loop again */
      continue;
    }
    if (step->barrier && size > 1) meet(run, (int)size);
    if (clock) lap(clock + 2 * i + 1, &since);
    if (__atomic_load_n(&run->failure, __ATOMIC_RELAXED) != NONE) continue;
    long parts = step->parts;
    long part = parts == 1 ? rank : parts * rank / size;
    long end = parts == 1 ? 1 : parts * (rank + 1) / size;
    if (part >= end) continue;
    char *moved[step->pointers + 1];
    char **p = run->depth > run->outer ? move(run, step, index, moved) : run->pointers + step->first;
    int code = step->kernel(p, part, end, parts);
    if (code) fail(run, i, code);
    if (clock) lap(clock + 2 * i, &since);
  }
}

static void work(void *argument) {
  Run *run = argument;
  /* The team may be smaller than asked for: only inside does it know its size. */
  share(run, run->team->rank(), run->team->size());
}

/* Returns NONE, or 256 * step + code of the launch that failed. */
long tilewright_run(const Step *steps, long count, const Place *places, long pointers, long wide,
                    const long *moves, long depth, long outer, const Call *call) {
  char *p[pointers + 1];
  for (long i = 0; i < pointers; i++) {
    p[i] = call->buffers[places[i].buffer] + places[i].offset;
    for (long loop = 0; loop < outer; loop++) p[i] += moves[i * depth + loop] * call->index[loop];
  }
  Run run = {steps, count, p, moves, depth, outer, call->team, call->clock, NONE, 0, 0, 0};
  if (wide && call->threads > 1 && call->team)
    call->team->parallel(work, &run, (unsigned)call->threads, 0);
  else
    share(&run, 0, 1);
  return run.failure;
}
