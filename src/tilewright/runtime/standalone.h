/* What a program and the one who runs it know of each other. */

/* given: its bytes are there before a run; expected: what they are after it is known.  width: bytes
   of an element; infinity: the bits of that number if elements are floating, else 0. */
typedef struct {
  const char *name;
  long bytes, width;
  unsigned long infinity;
  int given, expected;
} Buffer;
#ifndef RUNNER                                  /* segments.c, without any header, has its own */
typedef struct {
  void (*parallel)(void (*work)(void *), void *argument, unsigned threads, unsigned flags);
  int (*size)(void), (*rank)(void);
  long asked;
} Team;
#endif

extern const Buffer buffers[];
extern const long buffer_count;

/* Runs the program on these addresses; returns 0, or what failed, and says by whose fault. */
extern const char *run_program(char **starts, Team *team, long threads, const char **whose);
