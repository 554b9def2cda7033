/* Runs random tables of launches on teams of threads, some of which come late or are put aside, and
   checks that every part is computed once, and after all that it has to wait for.

   Usage: sharing ROUNDS.  Returns 0 if all is as it should be; ThreadSanitizer tells what races. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* As in segments.c, which is compiled beside this. */
typedef int Kernel(char **p, long part, long end, long parts);
typedef struct { long buffer, offset; } Place;
typedef struct { Kernel *kernel; long first, pointers, parts, barrier; } Step;
typedef struct {
  void (*parallel)(void (*work)(void *), void *argument, unsigned threads, unsigned flags);
  int (*size)(void), (*rank)(void);
  long asked;
} Team;
typedef struct {
  char **buffers;
  Team *team;
  long threads;
  const long *index;
  long *clock;
} Call;
typedef struct { long width, alone, shared, next, first; } Pace;
extern long tilewright_run(const Step *steps, long count, const Place *places, long pointers,
                           Pace *pace, const long *moves, long depth, long outer, const Call *call);
#define NONE (-1L)

#define MOST_THREADS 6
#define MOST_STEPS 12
#define FEW_PARTS 40
#define MOST_PARTS 9000         /* segments.c takes several at a time where there are so many */
#define LOOP 3
#define FAILING 6
#define FUTURE (1L << 62)       /* of the clock: whatever was then is a moment ago, or still to come */

static unsigned seed;
static long draw(long below) { return rand_r(&seed) % below; }

/* ---- a team, whose threads come when they come */

static _Thread_local int my_rank;
static int team_size;

typedef struct { void (*work)(void *); void *argument; int rank; long late; } Member;

static void *start_member(void *given) {
  Member *member = given;
  my_rank = member->rank;
  if (member->late) usleep((unsigned)member->late);
  member->work(member->argument);
  return NULL;
}

static void parallel(void (*work)(void *), void *argument, unsigned threads, unsigned flags) {
  pthread_t handles[MOST_THREADS];
  Member members[MOST_THREADS];
  (void)flags;
  team_size = (int)(draw(8) ? threads : 1 + draw(threads));     /* OpenMP may give fewer */
  for (int i = 0; i < team_size; i++) {
    members[i] = (Member){work, argument, i, draw(3) ? 0 : draw(400)};
    if (pthread_create(&handles[i], NULL, start_member, &members[i])) exit(2);
  }
  for (int i = 0; i < team_size; i++) pthread_join(handles[i], NULL);
}

static int size(void) { return team_size; }
static int rank(void) { return my_rank; }

/* ---- kernels: each part counts in memory of its own how often it was computed */

typedef struct {
  long slow;                                    /* microseconds, of some parts */
  long fails;                                   /* the part that does, from 1 on */
  const long *complete;                         /* what must be equal: counts of one launch before */
  long counted;
  int wrong;
} Law;

static int count(char **p, long part, long end, long parts) {
  long *counts = (long *)p[0];
  Law *law = (Law *)p[1];
  for (long k = 0; k < law->counted; k++)
    if (law->complete[k] != law->complete[0]) __atomic_store_n(&law->wrong, 1, __ATOMIC_RELAXED);
  for (long k = part; k < end; k++) {
    if (law->slow && parts <= FEW_PARTS && k % 7 == 3) usleep((unsigned)law->slow);
    counts[k]++;
  }
  return part < law->fails && law->fails <= end ? FAILING : 0;
}

/* ---- one random table */

static int check(void) {
  static long counts[MOST_STEPS][MOST_PARTS];
  static Law laws[MOST_STEPS];
  static Step steps[2 * MOST_STEPS + 2];
  Place places[2 * MOST_STEPS];
  long moves[2 * MOST_STEPS] = {0};
  const long launches = 1 + draw(MOST_STEPS), looped = draw(2), failing = draw(6) ? -1 : draw(launches);
  memset(counts, 0, sizeof counts);
  memset(laws, 0, sizeof laws);
  long rows = 0;
  if (looped) steps[rows++] = (Step){0, 0, 0, LOOP, 0};
  for (long i = 0; i < launches; i++) {
    const long parts = draw(3) ? 1 + draw(draw(40) ? FEW_PARTS : MOST_PARTS) : 1;
    const long barrier = i == 0 ? looped : draw(2);
    laws[i].slow = draw(6) ? 0 : 1 + draw(300);
    laws[i].fails = i == failing ? 1 + draw(parts) : 0;
    if (barrier && i > 0) {                     /* all parts of a launch before, as often computed */
      const long other = draw(i);
      laws[i].complete = counts[other];
      laws[i].counted = steps[other + looped].parts;
    }
    steps[rows++] = (Step){count, 2 * i, 2, parts, barrier};
    places[2 * i] = (Place){0, (long)((char *)counts[i] - (char *)counts)};
    places[2 * i + 1] = (Place){1, (long)((char *)&laws[i] - (char *)laws)};
  }
  if (looped) steps[0].pointers = rows, steps[rows++] = (Step){0, 0, 0, -1, 0};
  char *buffers[2] = {(char *)counts, (char *)laws};
  /* For little work the team may be awake, or not. */
  Team team = {parallel, size, rank, draw(2) ? FUTURE : 0};
  const long index[1] = {0};
  const Call call = {buffers, &team, 1 + draw(MOST_THREADS), index, 0};
  Pace pace = {1 + draw(3), draw(3), draw(3), draw(2) ? FUTURE : 0, draw(2)};
  const long found = tilewright_run(steps, rows, places, 2 * launches, &pace, moves, looped, 0, &call);
  int bad = 0;
  for (long i = 0; i < launches; i++) {
    bad |= laws[i].wrong;
    for (long k = 0; k < MOST_PARTS; k++) {
      const long wanted = k < steps[i + looped].parts ? looped ? LOOP : 1 : 0;
      bad |= failing < 0 ? counts[i][k] != wanted : counts[i][k] > wanted;
    }
  }
  return bad | (found != (failing < 0 ? NONE : 256 * (failing + looped) + (FAILING & -FAILING)));
}

/* ---- little work: by a team that is awake */

static int meetings;
static long late;                               /* microseconds that a meeting takes */

static void meet(void (*work)(void *), void *argument, unsigned threads, unsigned flags) {
  (void)threads, (void)flags;
  meetings++;
  my_rank = 0, team_size = 1;
  work(argument);
  if (late) usleep((unsigned)late);
}

/* Run once, at a pace; say whether the team was asked. */
static int is_asked_at(Pace *pace, Team *team, long threads) {
  long counts[2] = {0};
  Law law = {0};
  char *buffers[2] = {(char *)counts, (char *)&law};
  const Place places[2] = {{0, 0}, {1, 0}};
  const Step steps[1] = {{count, 0, 2, 2, 0}};
  const long moves[1] = {0};
  const Call call = {buffers, team, threads, moves, 0};
  const int before = meetings;
  if (tilewright_run(steps, 1, places, 2, pace, moves, 0, 0, &call) != NONE) exit(2);
  if (counts[0] != 1 || counts[1] != 1) exit(2);
  return meetings - before;
}

/* The same, of a stretch of which nothing is known but what it is worth. */
static int is_asked(Team *team, long width, long threads) {
  Pace pace = {width, 0, 0, 0, 0};
  return is_asked_at(&pace, team, threads);
}

static int check_little(void) {
  Team team = {meet, size, rank, 0};
  int bad = 0;
  bad |= is_asked(&team, 0, 2) || is_asked(&team, 1, 1) || is_asked(&team, 2, 1);
  bad |= is_asked(&team, 1, 2);                 /* the first: nobody is awake */
  bad |= !is_asked(&team, 2, 2);
  team.asked = FUTURE;
  bad |= !is_asked(&team, 1, 2) || team.asked == FUTURE;
  int found = 0;                                /* a moment ago, unless the system is slow */
  for (int k = 0; k < 50 && !found; k++) found = is_asked(&team, 1, 2);
  bad |= !found;
  usleep(2000);
  bad |= is_asked(&team, 1, 2);
  return bad;
}

/* ---- short work: shared where that was faster, but for two runs at times, which try */

#define SLOW (500000L * 1024)   /* nanoseconds, of each 1024 parts */

static Team ready = {meet, size, rank, 0};

/* Say whether the team is asked where runs of late took so long; tries: the other way is to be tried. */
static int is_asked_after(long alone, long shared, int tries) {
  Pace pace = {2, alone, shared, tries ? 0 : FUTURE, 0};
  return is_asked_at(&pace, &ready, 2);
}

static long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000L + time.tv_nsec;
}

static int check_pace(void) {
  int bad = 0;
  for (int tries = 0; tries < 2; tries++) {
    bad |= is_asked_after(1000, 900, tries) == tries || is_asked_after(900, 1000, tries) != tries;
    bad |= !is_asked_after(0, 0, tries) || is_asked_after(0, 1000, tries) == tries;
  }
  Pace pace = {2, 0, 0, 0, 0};                  /* the second run is told */
  bad |= !is_asked_at(&pace, &ready, 2) || pace.shared || !pace.first || pace.next;
  bad |= !is_asked_at(&pace, &ready, 2) || !pace.shared || pace.first;
  bad |= pace.next != 0;                        /* and at once one thread alone, twice */
  bad |= is_asked_at(&pace, &ready, 2) || pace.alone || !pace.first || pace.next;
  const long first = pace.first;
  usleep(50000);                                /* nobody calls */
  const long second = now();
  bad |= is_asked_at(&pace, &ready, 2) || !pace.alone || pace.first;
  const long both = 200 * (first + pace.alone / 1024);  /* then nothing is tried for a while */
  bad |= pace.next < second + both || pace.next > now() + both;
  const long before = 1L << 50, least = before - before / 1024;
  pace = (Pace){2, before + 1, before, FUTURE, 0};      /* one of many counts for little */
  bad |= !is_asked_at(&pace, &ready, 2) || pace.alone != before + 1 || pace.next != FUTURE;
  bad |= pace.shared < least || pace.shared > least + before / 4096;
  const long faster = SLOW - SLOW / 16;
  for (int k = 0; k < 50 && pace.shared > faster; k++) {        /* unless the system is slow, too */
    pace = (Pace){2, 1, SLOW, 0, 1};            /* a trial counts for an eighth */
    bad |= !is_asked_at(&pace, &ready, 2) || pace.alone != 1 || pace.shared < SLOW - SLOW / 8;
  }
  bad |= pace.shared > faster;
  pace = (Pace){2, before, before + before / 2, 0, 1};  /* what is faster is tried until its mean is */
  for (int k = 0; k < 4; k++) {
    bad |= pace.shared <= pace.alone || !pace.first || pace.next;
    bad |= !is_asked_at(&pace, &ready, 2) || pace.alone != before;
  }
  bad |= pace.shared >= pace.alone || pace.first || pace.next < now();
  const long usual = 1000000L * 1024;
  pace = (Pace){2, usual + 1, usual, now() + 100000000L, 0};    /* what became too slow is left for a while */
  late = 2000;
  bad |= !is_asked_at(&pace, &ready, 2) || pace.shared < pace.alone || pace.next < now() + usual - 100000000L;
  late = 0;
  bad |= is_asked_at(&pace, &ready, 2);
  for (long width = 0; width < 4; width += 3) { /* what is never or always shared is not measured */
    pace = (Pace){width, 1, 2, 0, 0};
    bad |= is_asked_at(&pace, &ready, 2) != (width == 3) || pace.alone != 1 || pace.shared != 2;
    bad |= pace.next || pace.first;
  }
  return bad;
}

int main(int number, char **words) {
  const long rounds = number == 2 ? atol(words[1]) : 0;
  if (check_little()) {
    fprintf(stderr, "little work is shared where it should not be, or alone where it should\n");
    return 1;
  }
  if (check_pace()) {
    fprintf(stderr, "short work is not shared as runs of late say\n");
    return 1;
  }
  for (long round = 0; round < rounds; round++) {
    seed = (unsigned)round;
    if (!check()) continue;
    fprintf(stderr, "round %ld: a part is not computed once, or too early\n", round);
    return 1;
  }
  return 0;
}
