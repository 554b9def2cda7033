/* Runs launches and loops over launches: on the calling thread, or on a team.

   Each thread of a team has its own of a launch's parts, so that data stay near, takes most of what
   is left at a time, and then half of what the others have not begun.  Between launches nobody waits
   for a thread, only for parts: one that the system has put aside holds up no more than it holds, but
   the first, which computes what has one part, and the end of a run, where the team meets. */

/* Computes the parts from `part` to before `end`, of `parts`. */
typedef int Kernel(char **p, long part, long end, long parts);
/* Pointer i is at `offset` bytes from the start of buffer `buffer`; `moves` says for each pointer by
   how many bytes it moves with each iteration of each loop, outermost first. */
typedef struct { long buffer, offset; } Place;
/* A launch: its pointers begin at `first`; `barrier`: all before it must be complete.
   Without a kernel: the begin of the loop at depth `first`, `parts` iterations to the step
   `pointers`; there `parts` is negative, and `pointers` is the begin. */
typedef struct { Kernel *kernel; long first, pointers, parts, barrier; } Step;
/* asked: by the clock, when the team was last asked for or last ran. */
typedef struct {
  void (*parallel)(void (*work)(void *), void *argument, unsigned threads, unsigned flags);
  int (*size)(void), (*rank)(void);
  long asked;
} Team;
/* What a stretch is worth, 0: one thread, AWAKE: a team that is awake, ALWAYS: a team, else one where it is
   faster; and what is learned of it: how long a run takes, alone and shared; by the clock, when the other
   way is tried next; and how long the first of two trials took, or 0. */
typedef struct { long width, alone, shared, next, first; } Pace;
/* clock: 0, or for each of `threads` two numbers for each step, to which the nanoseconds are added
   that it worked there, and that it waited before: for the others, or to be woken. */
typedef struct {
  char **buffers;
  Team *team;
  long threads;
  const long *index;
  long *clock;
} Call;
/* What is left of a thread's own parts of the launch that was last begun of: that launch's number,
   the first, the end; one word, so that whoever takes some replaces it. */
typedef struct { _Alignas(64) unsigned long long word; } Rest;
/* All that the threads of one run share; it lives on the caller's stack, so runs may overlap. */
typedef struct {
  const Step *steps;
  long count;
  char **pointers;                              /* moved by the loops around all this */
  const long *moves;
  long depth, outer;
  const Team *team;
  unsigned long control;                        /* how the caller computes */
  long *clock, start;                           /* start: of the run, by the clock */
  Rest *rests;                                  /* of each thread */
  long failure;                                 /* 256 * step + code of the first that failed */
  _Alignas(64) long done;                       /* parts, of all launches */
  int sleepers;
} Run;

#define NONE (-1L)
#define AWAKE 1
#define ALWAYS 3
/* Waking a thread takes as long as many a launch, so that only who waits for long goes to sleep. */
#define SPIN_NANOSECONDS 200000
/* Runs that follow each other so closely find the team awake: OpenMP's threads spin for longer. */
#define CLOSE_NANOSECONDS 1000000
/* Cores may be so far from each other, or so busy, that a team takes longer than one thread.  So short work
   is tried the other way from time to time, twice: the first run may have to wake threads, the second is
   told.  For REST times as long as both took nothing is tried.  What is tried is learned fast, what is
   usual as the mean of many runs, so that a rare wait counts for what it costs. */
#define REST 200
#define OF_TRIALS 8
#define UNTOLD (-1)
#define OF_MANY 1024            /* and so many parts of a nanosecond are told apart */
/* A launch is cut into as many slots as it has parts, but not more than fit so many bits. */
#define SLOT_BITS 12
#define MOST_SLOTS ((1L << SLOT_BITS) - 1)

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

static long longer(long one, long other) { return one > other ? one : other; }

static void pause_a_little(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int are_done(Run *run, long parts) {
  return __atomic_load_n(&run->done, __ATOMIC_SEQ_CST) >= parts;
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

/* Wait until so many parts are done: spin a while, since most waits are short, then sleep. */
static void wait_for(Run *run, long parts) {
  if (are_done(run, parts)) return;
  long start = now();
  do {
    for (int i = 0; i < 16; i++) {
      if (are_done(run, parts)) return;
      pause_a_little();
    }
  } while (now() - start < SPIN_NANOSECONDS);
  __atomic_add_fetch(&run->sleepers, 1, __ATOMIC_SEQ_CST);
  for (long done; (done = __atomic_load_n(&run->done, __ATOMIC_SEQ_CST)) < parts;)
    sleep_while((int *)&run->done, (int)done);  /* its low half: memory is little-endian */
  __atomic_sub_fetch(&run->sleepers, 1, __ATOMIC_SEQ_CST);
}

static void add_done(Run *run, long parts) {
  __atomic_add_fetch(&run->done, parts, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&run->sleepers, __ATOMIC_SEQ_CST)) wake_all((int *)&run->done);
}

/* Take some of a launch's slots that are left in `rest`, of which `low` to `high` are the owner's: the
   owner the first ones, others the last half.  Return how many, from *first.

   The owner takes seven eighths, which is all of up to seven: some kernels do as much again in each
   call, as products that pack an operand. */
static long take_slots(Rest *rest, long launch, long low, long high, int own, long *first) {
  unsigned long long before = __atomic_load_n(&rest->word, __ATOMIC_SEQ_CST), after;
  long some;
  do {
    const long last = (long)(before >> 2 * SLOT_BITS);
    if (last > launch) return 0;                /* all is begun, and who asks is late */
    const long begin = last < launch ? low : (long)(before >> SLOT_BITS) & MOST_SLOTS;
    const long end = last < launch ? high : (long)before & MOST_SLOTS;
    if (begin == end) return 0;
    some = own ? (7 * (end - begin) + 7) / 8 : (end - begin + 1) / 2;
    *first = own ? begin : end - some;
    after = (unsigned long long)launch << 2 * SLOT_BITS |
            (unsigned long long)(own ? begin + some : begin) << SLOT_BITS |
            (unsigned long long)(own ? end : end - some);
  } while (!__atomic_compare_exchange_n(&rest->word, &before, after, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST));
  return some;
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

/* Compute parts of a launch, unless something has failed. */
static void compute(Run *run, long i, char **p, long part, long end) {
  if (__atomic_load_n(&run->failure, __ATOMIC_RELAXED) != NONE) return;
  const int code = run->steps[i].kernel(p, part, end, run->steps[i].parts);
  if (code) fail(run, i, code & -code);         /* of several errors the one named first */
}

/* Compute of a launch first what is a thread's own, then what is left of the others'; return how
   many parts that was. */
static long take_part(Run *run, long i, char **p, long launch, long rank, long size) {
  const long parts = run->steps[i].parts, slots = parts < MOST_SLOTS ? parts : MOST_SLOTS;
  long computed = 0;
  for (long k = 0; k < size; k++) {
    const long owner = (rank + k) % size, low = slots * owner / size;
    const long high = slots * (owner + 1) / size;
    long first, some;
    while (low < high && (some = take_slots(run->rests + owner, launch, low, high, k == 0, &first))) {
      const long part = parts * first / slots, end = parts * (first + some) / slots;
      compute(run, i, p, part, end);
      computed += end - part;
    }
  }
  return computed;
}

/* One thread's share of all launches.  A launch of one part is thread 0's.  After a failure the
   threads go on, but compute nothing more. */
static void share(Run *run, long rank, long size) {
  long index[run->depth + 1], launch = 0, before = 0;   /* launches, and parts before this one */
  long *clock = run->clock ? run->clock + 2 * rank * run->count : 0, since = run->start;
  for (long loop = 0; loop < run->depth; loop++) index[loop] = 0;
  for (long i = 0; i < run->count; i++) {
    const Step *step = run->steps + i;
    if (!step->kernel) {
      if (step->parts > 0) index[step->first] = 0;
      else if (step->parts == 0 || ++index[step->first] < run->steps[step->pointers].parts)
        i = step->pointers;                     /* behind the end, or the first of the loop again */
      continue;
    }
    if (step->barrier && size > 1) wait_for(run, before);
    if (clock) lap(clock + 2 * i + 1, &since);
    before += step->parts;
    launch++;
    if (step->parts == 1 && rank > 0) continue;
    char *moved[step->pointers + 1];
    char **p = run->depth > run->outer ? move(run, step, index, moved) : run->pointers + step->first;
    if (size == 1)
      compute(run, i, p, 0, step->parts);
    else if (step->parts == 1) {
      compute(run, i, p, 0, 1);
      add_done(run, 1);
    } else {
      const long computed = take_part(run, i, p, launch, rank, size);
      if (computed) add_done(run, computed);
    }
    if (clock) lap(clock + 2 * i, &since);
  }
}

/* How a thread rounds, and whether it takes subnormal numbers as 0 (`torch.set_flush_denormal`): of x86
   without the flags of what has been. */
#if defined(__SSE__)
static unsigned long control(void) { return __builtin_ia32_stmxcsr() & ~63u; }
static void compute_as(unsigned long control) { __builtin_ia32_ldmxcsr((unsigned)control); }
#elif defined(__aarch64__)
static unsigned long control(void) {
  unsigned long word;
  __asm__ volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}
static void compute_as(unsigned long control) { __asm__ volatile("msr fpcr, %0" : : "r"(control)); }
#else
static unsigned long control(void) { return 0; }
static void compute_as(unsigned long control) { (void)control; }
#endif

/* All threads compute as the caller does, so that the bits of a result do not tell how many there are. */
static void work(void *argument) {
  Run *run = argument;
  const unsigned long own = control();
  const int differs = own != run->control;
  if (differs) compute_as(run->control);
  /* The team may be smaller than asked for: only inside does it know its size. */
  share(run, run->team->rank(), run->team->size());
  if (differs) compute_as(own);
}

/* Say whether the team may be awake, as it is a moment after a run: little work is not worth waking it.
   Whether sharing pays, where others use the cores too, the pace tells. */
static int is_awake(Team *team) {
  const long time = now();
  return time - __atomic_exchange_n(&team->asked, time, __ATOMIC_RELAXED) < CLOSE_NANOSECONDS;
}

/* Say whether a run is shared: where that is faster, but for those that try.  weight: of how many runs
   its time will be one. */
static int is_shared(Pace *pace, long *weight) {
  const long alone = __atomic_load_n(&pace->alone, __ATOMIC_RELAXED);
  const long shared = __atomic_load_n(&pace->shared, __ATOMIC_RELAXED);
  const int pays = !alone || shared < alone;
  *weight = OF_MANY;
  if (now() < __atomic_load_n(&pace->next, __ATOMIC_RELAXED)) return pays;
  long none = 0;
  const int first = __atomic_compare_exchange_n(&pace->first, &none, 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  *weight = first ? UNTOLD : OF_TRIALS;
  return !shared || !pays;
}

/* Learn from a run how long one takes, and from a trial when the next one is due: how long nobody called
   between its two runs is nothing to it.  Until both ways are known the next is due at once: where others
   want the cores a first trial may take a thousand times as long as the other way.  As long as what is tried is faster, trying goes on: it costs
   nothing, and one wait of many milliseconds would else take dozens of trials to be forgotten.  What is
   left because its waits were dear is tried again when as many runs as its mean looks back would be over. */
static void learn(Pace *pace, long *mean, long start, long weight) {
  const long before = __atomic_load_n(mean, __ATOMIC_RELAXED), end = now();
  if (weight == UNTOLD) {
    __atomic_store_n(&pace->first, longer(1, end - start), __ATOMIC_RELAXED);
    return;
  }
  const long other = __atomic_load_n(mean == &pace->shared ? &pace->alone : &pace->shared, __ATOMIC_RELAXED);
  const long taken = (end - start) * OF_MANY, after = before ? before + (taken - before) / weight : taken;
  __atomic_store_n(mean, after, __ATOMIC_RELAXED);
  if (weight == OF_MANY && before < other && other <= after) {
    const long next = __atomic_load_n(&pace->next, __ATOMIC_RELAXED);
    __atomic_store_n(&pace->next, longer(next, end + after), __ATOMIC_RELAXED);
  }
  if (weight == OF_MANY || (taken < other && other <= after)) return;
  const long first = __atomic_exchange_n(&pace->first, 0, __ATOMIC_RELAXED);
  if (first && other) __atomic_store_n(&pace->next, end + REST * (first + end - start), __ATOMIC_RELAXED);
}

/* Returns NONE, or 256 * step + code of the launch that failed. */
long tilewright_run(const Step *steps, long count, const Place *places, long pointers, Pace *pace,
                    const long *moves, long depth, long outer, const Call *call) {
  char *p[pointers + 1];
  for (long i = 0; i < pointers; i++) {
    p[i] = call->buffers[places[i].buffer] + places[i].offset;
    for (long loop = 0; loop < outer; loop++) p[i] += moves[i * depth + loop] * call->index[loop];
  }
  int any = pace->width && call->team && call->threads > 1;
  if (any && pace->width == AWAKE) any = is_awake(call->team);
  long weight = 0;
  const int shared = any && (pace->width == ALWAYS || is_shared(pace, &weight));
  const long threads = shared ? call->threads : 1;
  Rest rests[threads];
  for (long i = 0; i < threads; i++) rests[i].word = 0;
  const long start = call->clock || weight ? now() : 0;
  Run run = {.steps = steps, .count = count, .pointers = p, .moves = moves, .depth = depth,
             .outer = outer, .team = call->team, .control = control(), .clock = call->clock,
             .start = start, .rests = rests, .failure = NONE};
  if (threads > 1) {
    call->team->parallel(work, &run, (unsigned)threads, 0);
    __atomic_store_n(&call->team->asked, now(), __ATOMIC_RELAXED);
  } else
    share(&run, 0, 1);
  if (weight) learn(pace, threads > 1 ? &pace->shared : &pace->alone, start, weight);
  return run.failure;
}
