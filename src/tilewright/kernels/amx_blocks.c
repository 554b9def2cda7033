/* Blocks of bfloat16 in squares of sums (`amx.c`).  Both operands are laid as whole squares of words, 0
   where there are no terms; what a sum is made of is told by the terms alone.  This stands after
   `contraction.c`, which calls it. */

#if defined(SIDE) && defined(SQUARES_TURN)
#define BAND (2 * SIDE)         /* rows that are laid at a time, and meet all columns that are packed */
#define BROAD 512               /* columns that are, at most */
#define NEAR 256                /* words at a time: as many as the first cache holds of a band */

/* Rows of a as squares: `count` rows of so many terms.  Below the last one may be anything. */
static void lay_rows(long count, long terms, const O *a, const int *ai, const int *at, T *to) {
  const long words = (terms + 1) / 2, squares = (words + SIDE - 1) / SIDE;
  const int along = terms < 2 || even(at, terms, 1);
  T turned[DEPTH * SIDE] __attribute__((aligned(VECTOR)));
  for (long i = 0; i < count; i += SIDE, to += squares * SQUARE) {
    const long have = least(count - i, SIDE);
    for (long k = 0; along && k < have; k++)
      for (long q = 0; q < squares; q++) {
        const O *from = a + ai[i + k] + at[0] + q * 2 * SIDE;
        V *row = (V *)(to + q * SQUARE + k * SIDE);
        const long rest = terms - q * 2 * SIDE;
        *row = (V){};
        if (rest >= 2 * SIDE) *row = LOADED(from);
        else __builtin_memcpy(row, from, rest * sizeof(O));
      }
    if (along) continue;
    __builtin_memset(turned + words * SIDE, 0, sizeof(T) * (squares * SIDE - words) * SIDE);
    pack_terms(terms, have, a, at, ai + i, turned, SIDE);
    for (long q = 0; q < squares; q++) {
      V r[LANES];
      unrolled for (int k = 0; k < LANES; k++) r[k] = *(V *)(turned + q * SQUARE + k * SIDE);
      turn(r);
      unrolled for (int k = 0; k < LANES; k++) *(V *)(to + q * SQUARE + k * SIDE) = r[k];
    }
  }
}

static __attribute__((noinline)) void in_squares(const long *down, const long *across,
                                                 const long *along, long top, long bottom, long left,
                                                 long right, const O *a, const O *b, T *c, T scale,
                                                 Then *then, const void *with) {
  T packed_b[BROAD * DEPTH] __attribute__((aligned(VECTOR)));
  T laid_a[BAND * DEPTH] __attribute__((aligned(VECTOR)));
  T block[BAND * BROAD] __attribute__((aligned(VECTOR)));
  int ai[BAND], ci[BAND], bj[BROAD], cj[BROAD], at[2 * DEPTH], bt[2 * DEPTH], pairs[DEPTH];
  const long length = steps_of(along);
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
        if (whole && have > SIDE) whole = (bj[j + SIDE] - bj[j]) % PAIR == 0;
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
                    (Rows){laid_a + s * SQUARE, SIDE, SQUARE, SIDE * deep},
                    (Columns){y + s * SIDE * step, step, apart},
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
#ifdef BAND
  if (are_allowed()) {
    in_squares(down, across, along, top, bottom, left, right, a, b, c, scale, then, with);
    return 1;
  }
#endif
  return 0;
}
