/* Squares of sums of bfloat16: on processors of Intel's that have AMX an instruction adds to 16 x 16
   sums 16 rows of 16 words of a, times 16 rows of words of b with 16 columns each.  A word is a pair of
   terms (`pairs.c`).  This stands before the tiles of bfloat16. */

#if PAIR == 2 && VECTOR == 64 && defined(__AMX_BF16__) && defined(__linux__)
#define SIDE 16                 /* rows, columns and words of a square */
#define SQUARE (SIDE * SIDE)

#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define TILE_LOAD(t, from, step)                                                                  \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"((step) * (long)sizeof(T))     \
                   : "memory")
#define TILE_STORE(t, to, step)                                                                   \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((step) * (long)sizeof(T))   \
                   : "memory")
#define TILE_ADD(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

/* Whether this process may use them: Linux wants to be asked, as threads have more to save then. */
static int are_allowed(void) {
  static volatile int known;    /* 1 if they are, -1 if not */
  if (!known) {
    long answer = 158;          /* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) */
    __asm__ volatile("syscall" : "+a"(answer) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    known = answer == 0 ? 1 : -1;
  }
  return known > 0;
}

/* Eight whole squares. */
static void begin_tiles(void) {
  unsigned char shapes[64] __attribute__((aligned(64))) = {1};
  for (int t = 0; t < 8; t++) {
    shapes[16 + 2 * t] = SIDE * sizeof(T);
    shapes[48 + t] = SIDE;
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
}
static void end_tiles(void) { __asm__ volatile("tilerelease" ::: "memory"); }

/* Words of a, whose rows are `row` apart, squares of them `next`, and those of other rows `lower`; of b,
   whose rows are `row` apart and other columns `apart`. */
typedef struct { const T *at; long row, next, lower; } Rows;
typedef struct { const T *at; long row, apart; } Columns;

/* The sums of two squares below each other, or of one, times as many beside each other, over so many
   squares of words.  If there is `more` in `to`, it is where they begin. */
inlined void add_squares(const int two_high, const int two_wide, int more, long squares, Rows a,
                         Columns b, T *to, long row) {
  if (more) {
    TILE_LOAD(0, to, row);
    if (two_wide) TILE_LOAD(1, to + SIDE, row);
    if (two_high) TILE_LOAD(2, to + SIDE * row, row);
    if (two_high && two_wide) TILE_LOAD(3, to + SIDE * row + SIDE, row);
  } else {
    TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
  }
  for (long s = 0; s < squares; s++, a.at += a.next, b.at += SIDE * b.row) {
    TILE_LOAD(4, a.at, a.row);
    TILE_LOAD(6, b.at, b.row);
    TILE_ADD(0, 4, 6);
    if (two_wide) { TILE_LOAD(7, b.at + b.apart, b.row); TILE_ADD(1, 4, 7); }
    if (two_high) {
      TILE_LOAD(5, a.at + a.lower, a.row);
      TILE_ADD(2, 5, 6);
      if (two_wide) TILE_ADD(3, 5, 7);
    }
  }
  TILE_STORE(0, to, row);
  if (two_wide) TILE_STORE(1, to + SIDE, row);
  if (two_high) TILE_STORE(2, to + SIDE * row, row);
  if (two_high && two_wide) TILE_STORE(3, to + SIDE * row + SIDE, row);
}

inlined void add_all(int two_high, int two_wide, int more, long squares, Rows a, Columns b, T *to,
                     long row) {
  if (two_high && two_wide) add_squares(1, 1, more, squares, a, b, to, row);
  else if (two_high) add_squares(1, 0, more, squares, a, b, to, row);
  else if (two_wide) add_squares(0, 1, more, squares, a, b, to, row);
  else add_squares(0, 0, more, squares, a, b, to, row);
}
#endif
