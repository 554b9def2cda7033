/* Products of a few rows whose terms lie together in both operands: terms are summed in the lanes of
   vectors, so that b is read once, as it lies, and only the rows are packed.  What a lane sums is told
   by the terms alone.  This stands after `contraction.c`, which calls it. */

#ifdef SQUARES_TURN
/* The sums of the elements of LANES vectors: lane l has that of v[l].  Each round adds the halves of
   two vectors, of their halves and so on, and lays the sums side by side in one. */
inlined V sums_of(V *v) {
#if VECTOR == 64
#define HALVED(many)                                                                              \
  unrolled for (int i = 0; i < many; i++)                                                         \
    v[i] = MIX(v[i], v[i + many], LOW) + MIX(v[i], v[i + many], HIGH);
  HALVED(8) HALVED(4) HALVED(2) HALVED(1)
  return v[0];
#else
  unrolled for (int i = 0; i < 4; i++)
    v[i] = MIX(v[i], v[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) + MIX(v[i], v[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  unrolled for (int i = 0; i < 2; i++)
    v[i] = MIX(v[i], v[i + 2], 0, 1, 8, 9, 4, 5, 12, 13) + MIX(v[i], v[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  const V sums = MIX(v[0], v[1], 0, 2, 8, 10, 4, 6, 12, 14) + MIX(v[0], v[1], 1, 3, 9, 11, 5, 7, 13, 15);
  return MIX(sums, sums, 0, 2, 1, 3, 4, 6, 5, 7);
#endif
}

#define FEW_ALONG 16            /* rows at most that sum terms in lanes, */
#define MOST_DOTS (VECTOR == 64 ? 8 : 6)        /* and so many at a time, */
#define MOST_ALONG 4            /* with so many columns at most: */
/* as many as there are registers for sums. */
#if VECTOR == 64
#define ALONG(rows) (rows <= 4 ? MOST_ALONG : 3)
#define HELD 32                 /* sums of a tile, in whole vectors of results */
#else
#define ALONG(rows) (rows <= 2 ? MOST_ALONG : rows == 3 ? 3 : 2)
#define HELD 16
#endif
#define TERMS (LANES * PAIR)    /* of a vector */
#define BESIDES (ABREAST * PANEL + 2 * MOST_ALONG)      /* tiles go beyond the last column */

/* A tile of a few rows and columns: each sum is a vector's, of every LANES-th term to a lane.  a: a
   vector of each row, then the next ones, with zeros behind the last term.  Memory of the columns that
   follow is asked for on the way. */
inlined void dot_tile(const int rows, long depth, const V *a, const O *b, const int *bj, T *to) {
  const int wide = ALONG(rows);
  V sum[HELD] = {}, right[MOST_ALONG];
  T sums[HELD];
#define ADD_DOTS                                                                                  \
  unrolled for (int i = 0; i < rows; i++) {                                                       \
    const V words = *a++;                                                                         \
    unrolled for (int p = 0; p < PARTS; p++) {                                                    \
      const V left = part(p, words);                                                              \
      unrolled for (int j = 0; j < wide; j++)                                                     \
        multiply_add(sum[i * wide + j], left, part(p, right[j]));                                 \
    }                                                                                             \
  }
  long t = 0;
  for (; t + TERMS <= depth; t += TERMS) {
    unrolled for (int j = 0; j < wide; j++) {
      right[j] = LOADED(b + bj[j] + t);
      __builtin_prefetch(b + bj[j + wide] + t);
    }
    ADD_DOTS
  }
  if (t < depth) {
    unrolled for (int j = 0; j < wide; j++) {
      right[j] = (V){};
      __builtin_memcpy(&right[j], b + bj[j] + t, (depth - t) * sizeof(O));
    }
    ADD_DOTS
  }
  unrolled for (int k = 0; k < (rows * wide + LANES - 1) / LANES; k++)
    *(V *)(sums + k * LANES) = sums_of(sum + k * LANES);
  unrolled for (int i = 0; i < rows; i++)
    __builtin_memcpy(to + i * BESIDES, sums + i * wide, wide * sizeof(T));
}

#ifdef __SANITIZE_ADDRESS__
#define DOTS(rows, ...) dot_tile(rows, __VA_ARGS__)
#else
#define DEFINE_DOTS(R)                                                                            \
  static __attribute__((noinline)) void dots_##R(long depth, const V *a, const O *b,              \
                                                 const int *bj, T *to) {                          \
    if (R <= MOST_DOTS) dot_tile(R, depth, a, b, bj, to);                                         \
  }
EACH(DEFINE_DOTS)
#define NAMES_DOTS(R) dots_##R,
static void (*const dots[])(long, const V *, const O *, const int *, T *) = {EACH(NAMES_DOTS)};
#define DOTS(rows, ...) dots[rows - 1](__VA_ARGS__)
#endif

/* Tiles of a differ by a row at most; one of fewer rows may take a column more, which the next tile
   computes again. */
static __attribute__((noinline)) void sum_along(const long *down, const long *across, long length,
                                                long top, long bottom, long left, long right,
                                                const O *a, const O *b, T *c, T scale, Then *then,
                                                const void *with) {
  V packed[PACKED_A / LANES] __attribute__((aligned(VECTOR)));
  T block[FEW_ALONG * BESIDES] __attribute__((aligned(VECTOR)));
  int ai[FEW_ALONG], ci[FEW_ALONG], bj[BESIDES], cj[ABREAST * PANEL];
  const long rows = bottom - top, tiles = (rows + MOST_DOTS - 1) / MOST_DOTS;
  const long height = (rows + tiles - 1) / tiles, wide = ALONG(height);
  const long deep = least(PACKED_A / rows / LANES, IN_A_ROW) * TERMS;
  walk(down, top, rows, ai, ci);
  for (long t = 0; t < length; t += deep) {
    const long depth = least(length - t, deep), vectors = (depth + TERMS - 1) / TERMS;
    const int last = t + depth == length, taken = last && then;
    const T factor = last ? scale : 1;
    for (long i = 0; i < rows; i++) {
      const long first = i / height * height, high = least(height, rows - first);
      for (long s = 0; s < vectors; s++) {
        V *to = packed + first * vectors + s * high + i - first;
        const O *from = a + ai[i] + t + s * TERMS;
        const long rest = depth - s * TERMS;
        *to = (V){};
        if (rest >= TERMS) *to = LOADED(from);
        else __builtin_memcpy(to, from, rest * sizeof(O));
      }
    }
    for (long n = left, some; n < right; n += some) {
      some = least(right - n, ABREAST * PANEL);
      const int near = walk(across, n, some, bj, cj) && across[3 * across[0]] == 1;
      for (long j = some; j < some + 2 * MOST_ALONG; j++) bj[j] = bj[some - 1];
      for (long j = 0; j < some; j += wide)
        for (long i = 0; i < rows; i += height)
          DOTS(least(height, rows - i), depth, packed + i * vectors, b + t, bj + j,
               block + i * BESIDES + j);
      for (long i = 0; i < rows && !(taken && !t && factor == 1); i++) {
        T *sum = block + i * BESIDES, *there = c ? c + ci[i] : 0;
        if (near && !taken) {
          T *to = there + cj[0];
          for (long s = 0; s < some; s++) to[s] = (t ? to[s] + sum[s] : sum[s]) * factor;
        } else
          for (long s = 0; s < some; s++) {
            T *to = there + cj[s];
            *(taken ? sum + s : to) = (t ? *to + sum[s] : sum[s]) * factor;
          }
      }
      if (taken) then(with, block, BESIDES, top, bottom, n, n + some);
    }
  }
}
#endif

static int few_rows(const long *down, const long *across, const long *along, long top, long bottom,
                    long left, long right, const O *a, const O *b, T *c, T scale, Then *then,
                    const void *with) {
#ifdef SQUARES_TURN
  const long rows = bottom - top;
  const int lie_along = along[0] == 1 && along[2] == 1 && along[3] == 1;
  if (lie_along && rows <= FEW_ALONG && along[1] >= least(rows, MOST_DOTS) * TERMS) {
    sum_along(down, across, along[1], top, bottom, left, right, a, b, c, scale, then, with);
    return 1;
  }
#endif
  return 0;
}
