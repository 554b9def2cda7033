/* Blocks of bfloat16 on processors that multiply squares of 16 x 16 sums at once (Intel's AMX): an
   instruction adds to them 16 rows of 16 words of a, times 16 rows of words of b with 16 columns each.
   Both are laid as squares of words, 0 where there are no rows or terms, so that all of them are whole;
   what a sum is made of is told by the terms alone.  This stands after `contraction.c`, which calls
   it. */

#if PAIR == 2 && defined(__AMX_BF16__) && defined(__linux__) && defined(TURNED)
#define SIDE 16                 /* rows, columns and words of a square */
#define SQUARE (SIDE * SIDE)
#define BAND (2 * SIDE)         /* rows that are laid at a time, and meet all columns that are packed: */
#define BROAD 512               /* of them so many at most, and */
#define NEAR 256                /* words at a time: as many as the first cache holds of a band */

#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define TILE_LOAD(t, from, step)                                                                  \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"((step) * (long)sizeof(T)) : "memory")
#define TILE_STORE(t, to, step)                                                                   \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((step) * (long)sizeof(T)) : "memory")
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

/* The sums of two squares below each other, or of one, times as many beside each other; a: squares of
   words, those of the lower rows `lower` on; b: rows of words `step` apart, the other columns `apart`.
   If there is `more` in `to`, it is where they begin. */
inlined void add_squares(const int two_high, const int two_wide, int more, long squares, const T *a,
                         long lower, const T *b, long step, long apart, T *to, long row) {
  if (more) {
    TILE_LOAD(0, to, row);
    if (two_wide) TILE_LOAD(1, to + SIDE, row);
    if (two_high) TILE_LOAD(2, to + SIDE * row, row);
    if (two_high && two_wide) TILE_LOAD(3, to + SIDE * row + SIDE, row);
  } else {
    TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
  }
  for (long s = 0; s < squares; s++, a += SQUARE, b += SIDE * step) {
    TILE_LOAD(4, a, SIDE);
    TILE_LOAD(6, b, step);
    TILE_ADD(0, 4, 6);
    if (two_wide) { TILE_LOAD(7, b + apart, step); TILE_ADD(1, 4, 7); }
    if (two_high) {
      TILE_LOAD(5, a + lower, SIDE);
      TILE_ADD(2, 5, 6);
      if (two_wide) TILE_ADD(3, 5, 7);
    }
  }
  TILE_STORE(0, to, row);
  if (two_wide) TILE_STORE(1, to + SIDE, row);
  if (two_high) TILE_STORE(2, to + SIDE * row, row);
  if (two_high && two_wide) TILE_STORE(3, to + SIDE * row + SIDE, row);
}

static void add_all(int two_high, int two_wide, int more, long squares, const T *a, long lower,
                         const T *b, long step, long apart, T *to, long row) {
  if (two_high && two_wide) add_squares(1, 1, more, squares, a, lower, b, step, apart, to, row);
  else if (two_high) add_squares(1, 0, more, squares, a, lower, b, step, apart, to, row);
  else if (two_wide) add_squares(0, 1, more, squares, a, lower, b, step, apart, to, row);
  else add_squares(0, 0, more, squares, a, lower, b, step, apart, to, row);
}

/* Rows of a as squares: `count` rows of so many terms. */
static void lay_rows(long count, long terms, const O *a, const int *ai, const int *at, T *to) {
  const long words = (terms + 1) / 2, squares = (words + SIDE - 1) / SIDE;
  const int along = terms < 2 || even(at, terms, 1);
  const Lanes low = LOW, high = HIGH;
  T turned[DEPTH * SIDE] __attribute__((aligned(VECTOR)));
  for (long i = 0; i < count; i += SIDE, to += squares * SQUARE) {
    const long have = least(count - i, SIDE);
    if (along) {
      for (long k = 0; k < SIDE; k++) {
        const O *from = a + (k < have ? ai[i + k] : 0) + at[0];
        for (long q = 0; q < squares; q++) {
          V *row = (V *)(to + q * SQUARE + k * SIDE);
          const long rest = terms - q * 2 * SIDE;
          if (k < have && rest >= 2 * SIDE) { *row = LOADED(from + q * 2 * SIDE); continue; }
          *row = (V){};
          if (k < have) __builtin_memcpy(row, from + q * 2 * SIDE, rest * sizeof(O));
        }
      }
      continue;
    }
    if (have < SIDE) __builtin_memset(turned, 0, sizeof(T) * squares * SQUARE);
    else __builtin_memset(turned + words * SIDE, 0, sizeof(T) * (squares * SIDE - words) * SIDE);
    pack_terms(terms, have, a, at, ai + i, turned, SIDE);
    for (long q = 0; q < squares; q++) {
      V r[LANES], s[LANES];
      unrolled for (int k = 0; k < LANES; k++) r[k] = *(V *)(turned + q * SQUARE + k * SIDE);
      SHUFFLE(s, r) SHUFFLE(r, s) SHUFFLE(s, r) SHUFFLE(r, s)
      unrolled for (int k = 0; k < LANES; k++) *(V *)(to + q * SQUARE + k * SIDE) = TURNED[k];
    }
    if (have < SIDE)            /* packing may have left anything beside them */
      for (long q = 0; q < squares; q++)
        for (long k = have; k < SIDE; k++) *(V *)(to + q * SQUARE + k * SIDE) = (V){};
  }
}

static __attribute__((noinline)) void in_squares(const long *down, const long *across, const long *along,
                                                 long top, long bottom, long left, long right,
                                                 const O *a, const O *b, T *c, T scale, Then *then,
                                                 const void *with) {
  T packed_b[BROAD * DEPTH] __attribute__((aligned(VECTOR)));
  T laid_a[BAND * DEPTH] __attribute__((aligned(VECTOR)));
  T block[BAND * BROAD] __attribute__((aligned(VECTOR)));
  int ai[BAND], ci[BAND], bj[BROAD], cj[BROAD], at[2 * DEPTH], bt[2 * DEPTH], pairs[DEPTH];
  long length = 1;
  for (long k = 0; k < along[0]; k++) length *= along[3 * k + 1];
  begin_tiles();
  for (long t = 0; t < length; t += 2 * DEPTH) {
    const long terms = least(length - t, 2 * DEPTH), words = (terms + 1) / 2;
    const long squares = (words + SIDE - 1) / SIDE, deep = squares * SIDE;
    const int last = t + terms == length, taken = last && then;
    const T factor = last ? scale : 1;
    walk(along, t, terms, at, bt);
    /* Memory may hold words of b in rows of whole squares. */
    const int in_words = in_pairs(terms, bt, pairs) && terms == 2 * deep;
    const long next = in_words ? pairs[1] - pairs[0] : 0;
    const int laid = in_words && next % PAIR == 0 && even(pairs, words, next);
    for (long n = left, some; n < right; n += some) {
      some = least(right - n, BROAD);
      const int near_c = walk(across, n, some, bj, cj) && across[3 * across[0]] == 1;
      int direct[BROAD / PANEL];
      for (long j = 0; j < some; j += PANEL) {
        const long have = least(some - j, PANEL);
        int whole = laid && have % SIDE == 0;
        for (long k = j; k < j + have && whole; k += SIDE) whole = even(bj + k, SIDE, PAIR);
        direct[j / PANEL] = whole;
        if (whole) continue;
        T *to = packed_b + j * deep;
        pack_terms(terms, have, b, bt, bj + j, to, PANEL);
        __builtin_memset(to + words * PANEL, 0, sizeof(T) * (deep - words) * PANEL);
      }
      for (long first = top; first < bottom; first += BAND) {
        const long count = least(bottom - first, BAND);
        walk(down, first, count, ai, ci);
        lay_rows(count, terms, a, ai, at, laid_a);
        const long next_c = count > 1 ? ci[1] - ci[0] : 1;
        /* Whole squares of the first sums go where they belong, if nothing takes them. */
        const int there = near_c && count == BAND && c && !taken && !t && even(ci, count, next_c);
        for (long s = 0; s < squares; s += NEAR / SIDE)
          for (long j = 0; j < some; j += PANEL) {
            const long have = least(some - j, PANEL);
            const T *y = direct[j / PANEL] ? (const T *)(b + bt[0] + bj[j]) : packed_b + j * deep;
            const long step = direct[j / PANEL] ? next / PAIR : PANEL;
            const long apart = direct[j / PANEL] && have > SIDE ? (bj[j + SIDE] - bj[j]) / PAIR : SIDE;
            const int inside = there && have == PANEL;
            add_all(count > SIDE, have > SIDE, s > 0, least(squares - s, NEAR / SIDE),
                    laid_a + s * SQUARE, SIDE * deep, y + s * SIDE * step, step, apart,
                    inside ? c + ci[0] + cj[j] : block + j, inside ? next_c : BROAD);
          }
        const long done = there ? some / PANEL * PANEL : 0;     /* columns that are in c */
        for (long i = 0; i < count && !(taken && !t && factor == 1); i++) {
          T *sum = block + i * BROAD, *into = taken ? sum : c + ci[i];
          const T *before = t ? c + ci[i] : sum;
          if (factor != 1)
            for (long k = 0; k < done; k++) into[cj[0] + k] *= factor;
          if (near_c) {
            if (!taken) into += cj[0];
            if (t) before += cj[0];
            for (long k = done; k < some; k++) into[k] = (t ? before[k] + sum[k] : sum[k]) * factor;
          } else
            for (long k = 0; k < some; k++)
              into[taken ? k : cj[k]] = (t ? before[cj[k]] + sum[k] : sum[k]) * factor;
        }
        for (long j = 0; j < some && taken; j += ABREAST * PANEL)
          then(with, block + j, BROAD, first, first + count, n + j,
               n + least(j + ABREAST * PANEL, some));
      }
    }
  }
  end_tiles();
}
#endif

/* Computes a block so if the processor can; returns whether it did. */
static int squares_of(const long *down, const long *across, const long *along, long top, long bottom,
                      long left, long right, const O *a, const O *b, T *c, T scale, Then *then,
                      const void *with) {
#ifdef SIDE
  if (are_allowed()) {
    in_squares(down, across, along, top, bottom, left, right, a, b, c, scale, then, with);
    return 1;
  }
#endif
  return 0;
}
