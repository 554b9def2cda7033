/* Runs a program without Python, each of its buffers apart between two pages that nobody may touch:
   once each buffer begins right behind its first page, once it ends right before its last.  What is
   only read cannot be written.  Then it compares what was made with what was expected.

   Usage: check DATA.  Returns 0 if all is as expected. */

#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "program.h"

#define UNTOUCHED 0xA5                          /* what memory holds that nobody has written */
#define THREADS 3
#define MOST_THREADS 16

/* ---- a team of threads, as segments.c asks for one */

static _Thread_local int my_rank;
static int team_size;

typedef struct { void (*work)(void *); void *argument; int rank; } Member;

static void *start_member(void *given) {
  Member *member = given;
  my_rank = member->rank;
  member->work(member->argument);
  return NULL;
}

static void parallel(void (*work)(void *), void *argument, unsigned threads, unsigned flags) {
  pthread_t handles[MOST_THREADS];
  Member members[MOST_THREADS];
  (void)flags;
  team_size = (int)threads;
  for (int i = 0; i < team_size; i++) {
    members[i] = (Member){work, argument, i};
    if (pthread_create(&handles[i], NULL, start_member, &members[i])) {
      fprintf(stderr, "a thread cannot be started\n");
      exit(2);
    }
  }
  for (int i = 0; i < team_size; i++) pthread_join(handles[i], NULL);
}

static int size(void) { return team_size; }
static int rank(void) { return my_rank; }

/* ---- memory between walls */

typedef struct { char *low, *start; long inside, page; } Place;

static Place *places;

static Place place(const Buffer *buffer, int at_end) {
  const long page = sysconf(_SC_PAGESIZE), inside = (buffer->bytes + page - 1) / page * page;
  char *low = mmap(NULL, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (low == MAP_FAILED || (inside && mprotect(low + page, inside, PROT_READ | PROT_WRITE))) {
    fprintf(stderr, "there is no memory for %s\n", buffer->name);
    exit(2);
  }
  memset(low + page, UNTOUCHED, inside);
  return (Place){low, low + page + (at_end ? inside - buffer->bytes : 0), inside, page};
}

static struct sigaction before;

/* Say beside which buffer the program went; whose handler was there before tells where it was. */
static void tell_wall(int signal, siginfo_t *info, void *context) {
  const char *address = info->si_addr;
  (void)context;
  for (long i = 0; i < buffer_count; i++) {
    const Place *at = &places[i];
    if (address < at->low || address >= at->low + at->inside + 2 * at->page) continue;
    const long offset = address - at->start;
    const char *what = offset >= 0 && offset < buffers[i].bytes ? "writes what it may only read"
                                                                 : "goes beyond its memory";
    fprintf(stderr, "buffer %s of %ld bytes: the program %s, at byte %ld\n", buffers[i].name,
            buffers[i].bytes, what, offset);
  }
  sigaction(signal, &before, NULL);             /* the access happens again */
}

/* ---- one run */

/* Numbers are equal if their bits are, or if both are NaN. */
static int is_equal(const Buffer *buffer, const char *found, const char *wanted) {
  unsigned long one = 0, other = 0;
  if (memcmp(found, wanted, buffer->width) == 0) return 1;
  if (!buffer->infinity) return 0;
  memcpy(&one, found, buffer->width);
  memcpy(&other, wanted, buffer->width);
  const unsigned long number = ~0UL >> (65 - 8 * buffer->width);
  return (one & number) > buffer->infinity && (other & number) > buffer->infinity;
}

static int compare(const Buffer *buffer, const char *found, const char *wanted) {
  for (long at = 0; at < buffer->bytes; at += buffer->width) {
    if (is_equal(buffer, found + at, wanted + at)) continue;
    fprintf(stderr, "buffer %s differs at element %ld of %ld: found 0x", buffer->name,
            at / buffer->width, buffer->bytes / buffer->width);
    for (long k = buffer->width; k-- > 0;) fprintf(stderr, "%02x", (unsigned char)found[at + k]);
    fprintf(stderr, ", expected 0x");
    for (long k = buffer->width; k-- > 0;) fprintf(stderr, "%02x", (unsigned char)wanted[at + k]);
    fprintf(stderr, "\n");
    return 1;
  }
  return 0;
}

static int check(const char *data, int at_end, long threads) {
  Team team = {parallel, size, rank, 0};
  const char *next = data;
  int bad = 0;
  char **starts = malloc((buffer_count + 1) * sizeof(char *));
  places = malloc((buffer_count + 1) * sizeof(Place));
  for (long i = 0; i < buffer_count; i++) {
    places[i] = place(&buffers[i], at_end);
    starts[i] = places[i].start;
    if (buffers[i].given) memcpy(starts[i], next, buffers[i].bytes), next += buffers[i].bytes;
    if (buffers[i].given && !buffers[i].expected && places[i].inside)
      mprotect(places[i].low + places[i].page, places[i].inside, PROT_READ);
  }
  const char *whose = "", *failure = run_program(starts, &team, threads, &whose);
  if (failure) fprintf(stderr, "%s fails: %s\n", whose, failure), bad = 1;
  for (long i = 0; i < buffer_count; i++) {
    if (buffers[i].expected && !failure) bad |= compare(&buffers[i], starts[i], next);
    if (buffers[i].expected) next += buffers[i].bytes;
    munmap(places[i].low, places[i].inside + 2 * places[i].page);
  }
  free(starts);
  free(places);
  return bad;
}

static char *read_all(const char *path, long *size) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END) || (*size = ftell(file)) < 0) return NULL;
  char *data = malloc(*size + 1);
  rewind(file);
  if (!data || fread(data, 1, *size, file) != (size_t)*size) return NULL;
  fclose(file);
  return data;
}

int main(int count, char **words) {
  long wanted = 0, size = 0;
  for (long i = 0; i < buffer_count; i++)
    wanted += buffers[i].bytes * (buffers[i].given + buffers[i].expected);
  char *data = count == 2 ? read_all(words[1], &size) : NULL;
  if (!data || size != wanted) {
    fprintf(stderr, "usage: %s DATA, a file of %ld bytes\n", words[0], wanted);
    return 2;
  }
  struct sigaction action = {.sa_sigaction = tell_wall, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGSEGV, &action, &before);
  int bad = 0;
  for (int at_end = 0; at_end < 2; at_end++)
    for (long threads = 1; threads <= THREADS; threads += THREADS - 1)
      bad |= check(data, at_end, threads);
  free(data);
  return bad;
}
