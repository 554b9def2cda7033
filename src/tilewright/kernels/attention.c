/* Attention, softmax(scale q k' + mask) v, streamed: the scores of a block of queries with a block
   of keys are made, used and forgotten, so that nothing of the size of their matrix is ever held
   (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Dao et al.,
   FlashAttention, 2022).

   Forward, queries are the lanes of vectors: the largest score of each so far, the sum of its
   powers and its result are vectors, and no step goes across lanes.  Backward, keys are the lanes,
   and the probabilities are made again from the logarithm of each row's sum.  All products are
   tiles summed in registers as in contraction.c; what they read is copied to the stack first, where
   it lies as they read it: so strides are of any kind.  Blocks that lie wholly above the diagonal
   are not visited.

   Tiles read words (`pairs.c`).  What they read of bfloat16 is rounded to it, probabilities and the
   gradients of scores too; all else is float32, and gradients of queries are left in it. */

#define BLOCK 128                                 /* keys of a block, at most; backward, queries */
#define QUERIES 256                               /* queries of a block, forward */
#define WIDTH ((long)(1024 / BYTES))          /* of a head, at most */
#define HELD (BLOCK / 2 * WIDTH)                  /* elements of a block, at most */
#define STEP (BLOCK / PAIR + LANES)               /* words from row to row of a block of scores */

typedef INTEGER I __attribute__((vector_size(VECTOR)));
typedef unsigned INTEGER U __attribute__((vector_size(VECTOR)));
#if defined(__clang__)
#define apart __attribute__((noinline))
#else
#define apart __attribute__((noinline, noclone))
#endif
#define INFINITE ((T)__builtin_inf())

inlined long most(long a, long b) { return a > b ? a : b; }
/* x, or the nearest from 0 to n. */
inlined long within(long x, long n) { return most(0, least(x, n)); }
inlined V all(T x) { return x - (V){}; }          /* x in all lanes; x - 0 is x, -0 too */
inlined V load(const T *x) { return *(const V *)x; }
/* Words that hold n elements. */
inlined long words(long n) { return (n + PAIR - 1) / PAIR; }
/* n, or the next multiple of a vector's lanes. */
inlined long whole(long n) { return (n + LANES - 1) / LANES * LANES; }
inlined V choose(I which, V a, V b) { return (V)(((I)a & which) | ((I)b & ~which)); }

inlined V higher(V a, V b) { return choose(a > b, a, b); }

#define BESIDE 4                                  /* powers that are computed at a time */
#define EACH unrolled for (int k = 0; k < count; k++)

/* e^x for each of `count` x that are at most a little above 0: 0 below the smallest normal number,
   NaN for NaN.  Adding 1.5 * 2^23 (2^52) rounds x / ln 2 to the integer k that then stands in the
   low bits; the 127 (1023) added to it too make these the exponent of 2^k, and 0 where that is too
   small.

   Each step is a long chain: step by step for all of them, since a processor that has to look a
   chain's length ahead for the next finds little to do meanwhile. */
inlined void power(const int count, V *x) {
  V z[BESIDE], n[BESIDE], r[BESIDE], q[BESIDE];
#if SINGLE
  const T low = -88.25f, magic = 12583039.0f;
  EACH x[k] = choose(x[k] < low, all(low), x[k]);
  EACH z[k] = x[k] * 1.44269504f + magic;
  EACH n[k] = z[k] - magic;
  EACH r[k] = n[k] * -0.693145752f + x[k];
  EACH r[k] = n[k] * -1.42860677e-6f + r[k];
  EACH q[k] = r[k] * 1.3821425e-3f + 8.368673e-3f;
  EACH q[k] = q[k] * r[k] + 4.166826e-2f;
  EACH q[k] = q[k] * r[k] + 1.6666521e-1f;
  EACH q[k] = q[k] * r[k] + 4.9999994e-1f;
  EACH q[k] = q[k] * r[k] + 1.0f;
  EACH q[k] = q[k] * r[k] + 1.0f;
  EACH x[k] = q[k] * (V)((U)z[k] << 23);
#else
  const T low = -709.0895657128241, magic = 6755399441056767.0;
  EACH x[k] = choose(x[k] < low, all(low), x[k]);
  EACH z[k] = x[k] * 1.4426950408889634 + magic;
  EACH n[k] = z[k] - magic;
  EACH r[k] = n[k] * -0.6931471803691238 + x[k];
  EACH r[k] = n[k] * -1.9082149292705877e-10 + r[k];
  EACH q[k] = r[k] / 6227020800.0 + 1 / 479001600.0;       /* 1 / 13!, 1 / 12!, ... */
  EACH q[k] = q[k] * r[k] + 1 / 39916800.0;
  EACH q[k] = q[k] * r[k] + 1 / 3628800.0;
  EACH q[k] = q[k] * r[k] + 1 / 362880.0;
  EACH q[k] = q[k] * r[k] + 1 / 40320.0;
  EACH q[k] = q[k] * r[k] + 1 / 5040.0;
  EACH q[k] = q[k] * r[k] + 1 / 720.0;
  EACH q[k] = q[k] * r[k] + 1 / 120.0;
  EACH q[k] = q[k] * r[k] + 1 / 24.0;
  EACH q[k] = q[k] * r[k] + 1 / 6.0;
  EACH q[k] = q[k] * r[k] + 0.5;
  EACH q[k] = q[k] * r[k] + 1.0;
  EACH q[k] = q[k] * r[k] + 1.0;
  EACH x[k] = q[k] * (V)((U)z[k] << 52);
#endif
}

inlined V power_of(V x) {
  power(1, &x);
  return x;
}

/* x[i] = e^(x[i] - less) for `count` vectors, a vector every `step`; returns their sum. */
inlined V powers_of(long count, T *x, long step, V less) {
  V total = {};
  long i = 0;
  for (; i + BESIDE <= count; i += BESIDE) {
    V e[BESIDE];
    unrolled for (int k = 0; k < BESIDE; k++) e[k] = load(x + (i + k) * step) - less;
    power(BESIDE, e);
    unrolled for (int k = 0; k < BESIDE; k++) {
      *(V *)(x + (i + k) * step) = e[k];
      total += e[k];
    }
  }
  for (; i < count; i++) {
    const V e = power_of(load(x + i * step) - less);
    *(V *)(x + i * step) = e;
    total += e;
  }
  return total;
}

/* ---------------------------------------------------------------------------------- products */

/* How sums go into what is there: times `factor` instead of it, added to it, or added to it times
   `keep`. */
enum { STORE, ADD, KEEP };

inlined void tile(const int rows, const int wide, long depth, const T *a, long ai, long at,
                  const T *b, long bt, T *c, long ci, int how, const T *keep, T factor) {
  V sum[ROWS][WIDE];
  unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++) {
    sum[i][j] = (V){};
  }
  for (long t = 0; t < depth; t++) unrolled for (int p = 0; p < PARTS; p++) {
    V right[WIDE];
    unrolled for (int j = 0; j < wide; j++) right[j] = part(p, load(b + t * bt + j * LANES));
    unrolled for (int j = 0; j < wide; j++) in_register(right[j]);
    unrolled for (int i = 0; i < rows; i++) {
      const V left = part(p, in_all_lanes(a[i * ai + t * at]));
      unrolled for (int j = 0; j < wide; j++) add_product(sum[i][j], left, right[j]);
    }
    if (rows * wide == 1) in_register(sum[0][0]);
  }
  unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++) {
    V *to = (V *)(c + i * ci + j * LANES);
    if (how == KEEP) *to = *to * load(keep + j * LANES) + sum[i][j];
    else if (how == ADD) *to += sum[i][j];
    else *to = sum[i][j] * factor;
  }
}

#define CASE(R, W) \
  case R * 4 + W: \
    if (R <= ROWS) tile(R, W, depth, a, ai, at, b, bt, c, ci, how, keep, factor); \
    break;
#define CASES(R) CASE(R, 1) CASE(R, 2)

static apart void any_tile(long rows, long wide, long depth, const T *a, long ai, long at,
                           const T *b, long bt, T *c, long ci, int how, const T *keep,
                           T factor) {
  switch (rows * 4 + wide) {
    CASES(1) CASES(2) CASES(3) CASES(4) CASES(5) CASES(6) CASES(7)
    CASES(8) CASES(9) CASES(10) CASES(11) CASES(12) CASES(13) CASES(14)
  }
}

/* ------------------------------------------------------------------------------------ copies */

typedef O Near __attribute__((may_alias));
typedef T Row __attribute__((vector_size(VECTOR), aligned(sizeof(O)), may_alias));

/* y[i, j] = x[i, j] with rows of y `step` words apart, zeros between the last j and `step`. */
static void copy(long rows, long columns, const O *x, long xi, long xj, T *restrict y, long step) {
  for (long i = 0; i < rows; i++) {
    const O *from = x + i * xi;
    Near *to = (Near *)(y + i * step);
    long j = 0;
    if (xj == 1)
      for (; j + LANES * PAIR <= columns; j += LANES * PAIR) *(Row *)(to + j) = *(const Row *)(from + j);
    for (; j < columns; j++) to[j] = from[j * xj];
    for (; j < step * PAIR; j++) to[j] = 0;
  }
}

/* As `copy`, but words are of a column's elements: of each PAIR of rows. */
static void copy_words(long rows, long columns, const O *x, long xi, long xj, T *restrict y,
                       long step) {
#if PAIR == 1
  copy(rows, columns, x, xi, xj, y, step);
#else
  for (long i = 0; i < rows; i += 2) {
    const O *first = x + i * xi, *second = i + 1 < rows ? first + xi : first;
    const unsigned mask = i + 1 < rows ? ~0u : 0xffffu;
    T *to = y + i / 2 * step;
    if (xj == 1) match_rows(columns, first, second, mask, to);
    else for (long j = 0; j < columns; j++) match1(1, first + j * xj, second + j * xj, mask, to + j);
    for (long j = columns; j < step; j++) to[j] = 0;
  }
#endif
}

/* y[j, i] = x[i, j] for up to PANEL rows, as a panel; zeros in lanes without a row. */
static void turn_in(long rows, long columns, const T *x, long xi, T *restrict y) {
  for (long i = 0; i < PANEL; i += LANES) {
    const long some = least(most(rows - i, 0), LANES);
    long j = 0;
    for (; j + LANES <= columns; j += LANES) {
      V r[LANES];
      unrolled for (int n = 0; n < LANES; n++)
        r[n] = n < some ? load(x + (i + n) * xi + j) : (V){};
      turn(r);
      unrolled for (int n = 0; n < LANES; n++) *(V *)(y + (j + n) * PANEL + i) = r[n];
    }
    for (; j < columns; j++)
      for (long r = 0; r < LANES; r++)
        y[j * PANEL + i + r] = r < some ? x[(i + r) * xi + j] : 0;
  }
}

/* y[j, i] = factor * x[i, j] for the first columns j of a panel: rows of a tensor. */
static void turn_out(long rows, long columns, const T *x, T factor, O *restrict y, long yj,
                     long yi) {
  for (long j = 0; j < columns; j += LANES) {
    const long some = least(columns - j, LANES);
    for (long i = 0; i < rows; i += LANES) {
      const long high = least(rows - i, LANES);
      V r[LANES];
      O rest[LANES];
      unrolled for (int n = 0; n < LANES; n++)
        r[n] = (n < high ? load(x + (i + n) * PANEL + j) : (V){}) * factor;
      turn(r);
      unrolled for (int n = 0; n < LANES; n++) if (n < some) {
        O *to = y + (j + n) * yj + i * yi;
        if (yi == 1 && high == LANES) store(to, r[n]);
        else {
          store(rest, r[n]);
          for (long c = 0; c < high; c++) to[c * yi] = rest[c];
        }
      }
    }
  }
}

/* 0, 1, 2, ... */
inlined V counted(void) {
  V n;
  unrolled for (int i = 0; i < LANES; i++) n[i] = i;
  return n;
}

/* ------------------------------------------------------------------------ products of all sizes */

#ifdef SIDE
#define DEEPEST (WIDTH / PAIR)                    /* words of a product, at most */

/* Rows of a as squares of words, 0 where there are no more rows or words. */
static void lay_squares(long rows, long depth, const T *a, long ai, long at, T *to) {
  for (long i = 0; i < rows; i += SIDE)
    for (long t = 0; t < depth; t += SIDE, to += SQUARE) {
      V r[SIDE];
      const long have = at == 1 ? rows - i : depth - t, rest = depth - t;
      const T *from = a + i * ai + t * at;
      const V zero = {};
      const I inside = (I)(counted() < all((T)rest));
      unrolled for (int k = 0; k < SIDE; k++) {
        if (k >= have) r[k] = zero;
        else if (at != 1) r[k] = load(from + k * at);
        else if (rest >= SIDE) r[k] = load(from + k * ai);
        else r[k] = (V)((I)load(from + k * ai) & inside);
      }
      if (at != 1) turn(r);
      unrolled for (int k = 0; k < SIDE; k++) *(V *)(to + k * SIDE) = r[k];
    }
}

/* `product` in squares of sums (`amx.c`). */
static apart void in_squares(long rows, long columns, long depth, const T *a, long ai, long at,
                             const T *b, long bt, T *c, long ci, int how, const T *keep, T factor) {
  T laid[2 * SIDE * DEEPEST] __attribute__((aligned(VECTOR)));
  T last[SQUARE * WIDE] __attribute__((aligned(VECTOR))), sums[SQUARE * 2 * WIDE];
  const long whole = depth / SIDE, squares = (depth + SIDE - 1) / SIDE, rest = depth - whole * SIDE;
  const int wide = columns > SIDE;
  for (long t = 0; rest && t < SIDE; t++) for (long j = 0; j <= wide; j++) {
    V *to = (V *)(last + t * PANEL + j * LANES);
    *to = (V){};
    if (t < rest) *to = load(b + (whole * SIDE + t) * bt + j * LANES);
  }
  for (long i = 0; i < rows; i += 2 * SIDE) {
    const long high = least(rows - i, 2 * SIDE);
    const int near = at == 1 && !rest && high % SIDE == 0, full = high % SIDE == 0;
    const int direct = full && (how == ADD || (how == STORE && factor == 1)), more = how == ADD;
    if (!near) lay_squares(high, depth, a + i * ai, ai, at, laid);
    const Rows x = near ? (Rows){a + i * ai, ai, SIDE, SIDE * ai}
                        : (Rows){laid, SIDE, SQUARE, SIDE * SIDE * squares};
    T *there = c + i * ci, *to = direct ? there : sums;
    const long row = direct ? ci : PANEL;
    for (long r = 0; more && !direct && r < high; r++) for (long j = 0; j <= wide; j++)
      *(V *)(sums + r * PANEL + j * LANES) = load(there + r * ci + j * LANES);
    if (whole) add_all(high > SIDE, wide, more, whole, x, (Columns){b, bt, SIDE}, to, row);
    const Rows end = {x.at + whole * x.next, x.row, x.next, x.lower};
    if (rest) add_all(high > SIDE, wide, more || whole, 1, end, (Columns){last, PANEL, SIDE}, to, row);
    if (direct) continue;
    for (long r = 0; r < high; r++) for (long j = 0; j <= wide; j++) {
      const V sum = load(sums + r * PANEL + j * LANES);
      V *into = (V *)(there + r * ci + j * LANES);
      if (how == KEEP) *into = *into * load(keep + j * LANES) + sum;
      else if (how == ADD) *into = sum;
      else *into = sum * factor;
    }
  }
}
#else
#define begin_tiles() ((void)0)
#define end_tiles() ((void)0)
#define are_allowed() 0
#define in_squares(...) ((void)0)
#endif

/* c[i, j] = sum over words t of a[i, t] * b[t, j] for at most PANEL columns, in whole vectors. */
static void product(long rows, long columns, long depth, const T *a, long ai, long at, const T *b,
                    long bt, T *c, long ci, int how, const T *keep, T factor) {
  if (are_allowed()) {
    in_squares(rows, columns, depth, a, ai, at, b, bt, c, ci, how, keep, factor);
    return;
  }
  const long tiles = (rows + ROWS - 1) / ROWS, wide = (columns + LANES - 1) / LANES;
  for (long q = 0; q < tiles; q++) {
    const long i = rows * q / tiles, high = rows * (q + 1) / tiles - i;
    any_tile(high, wide, depth, a + i * ai, ai, at, b, bt, c + i * ci, ci, how, keep, factor);
  }
}

/* ------------------------------------------------------------------------------------ scores */

/* What the kernels of all shapes are told; strides are in elements. */
typedef struct { long row, column; } Lies;
typedef struct {
  long queries, keys, width, depth;               /* of q and k, and of v, in elements */
  long causal, mask;                              /* mask: NONE, ADDED or KEPT where true */
  Lies q, k, v, m, y;                             /* y: the result */
  long l;                                         /* the logarithms */
  Lies dy, dq, dk, dv;
  long heads;                                     /* that share k and v, with the strides: */
  long next_q, next_m, next_y, next_l, next_dy, next_dq;
} Shape;
enum { NONE, ADDED, KEPT };

/* What is added to n scores for the mask's elements from `start` on. */
inlined void read_mask(const Shape *s, long n, const void *mask, long start, T *restrict y) {
  const long step = s->m.column;
  const char *kept = (const char *)mask + start;
  if (s->mask == ADDED)
    for (long j = 0; j < n; j++) y[j] = number(((const O *)mask)[start + j * step]);
  else if (step == 1) for (long j = 0; j < n; j++) y[j] = kept[j] ? 0 : -INFINITE;
  else for (long j = 0; j < n; j++) y[j] = kept[j * step] ? 0 : -INFINITE;
}

/* A mask that keeps or not decides alone, one that is added adds. */
inlined V with_mask(const Shape *s, V score, V mask) {
  if (s->mask == ADDED) return score + mask;
  return choose(mask < 0, mask, score);
}

#if !BACKWARD
/* --------------------------------------------------------------------------------- forward */

/* What is known of a block of queries: panels of q' and of the result, and of each query the
   largest score and the sum of powers; and a block of keys with a panel of them. */
typedef struct {
  T q[HELD], y[HELD], top[QUERIES], sum[QUERIES];
  T k[HELD], v[HELD], scores[BLOCK * PANEL], keep[PANEL];
  T added[BLOCK * PANEL], kept[BLOCK * PANEL];    /* the mask */
} Forward;

/* Scores of n keys from `key` on with a panel of queries from `query` on --> words of their powers. */
static void powers(const Shape *s, Forward *f, long n, long key, long query, long have,
                   const void *mask, T *top, T *sum) {
  const long start = query * s->m.row + key * s->m.column;
  if (PAIR == 1 && s->mask == ADDED && s->m.column == 1)
    turn_in(have, n, (const T *)mask + start, s->m.row, f->added);
  else if (s->mask) {
    for (long j = 0; j < have; j++)
      read_mask(s, n, mask, start + j * s->m.row, f->kept + j * BLOCK);
    turn_in(have, n, f->kept, BLOCK, f->added);
  }
  for (long j = 0; j < PANEL; j += LANES) {
    const V lane = counted() + (T)(query + j - key), before = load(top + j);
    T *at = f->scores + j;
    /* Keys that all lanes see, and those that some do. */
    const long clear = s->causal ? within(query + j + 1 - key, n) : n;
    const long seen = s->causal ? within(query + j + LANES - key, n) : n;
    for (long i = 0; s->mask && i < seen; i++)
      *(V *)(at + i * PANEL) =
          with_mask(s, load(at + i * PANEL), load(f->added + i * PANEL + j));
    for (long i = clear; i < seen; i++)
      *(V *)(at + i * PANEL) = choose(lane < (T)i, all(-INFINITE), load(at + i * PANEL));
    V highs[4] = {before, before, before, before};  /* of each fourth key: none waits for others */
    long i = 0;
    for (; i + 4 <= seen; i += 4)
      unrolled for (int c = 0; c < 4; c++) highs[c] = higher(load(at + (i + c) * PANEL), highs[c]);
    for (; i < seen; i++) highs[0] = higher(load(at + i * PANEL), highs[0]);
    const V high = higher(higher(highs[0], highs[1]), higher(highs[2], highs[3]));
    /* Where all is forbidden so far, powers of -inf less anything are 0. */
    const V less = choose(high == -INFINITE, (V){}, high), keep = power_of(before - less);
    const V total = powers_of(seen, at, PANEL, less);
    for (i = seen; i < words(n) * PAIR; i++) *(V *)(at + i * PANEL) = (V){};
#if PAIR == 2
    for (i = 0; i < n; i += 2)
      *(V *)(at + i / 2 * PANEL) = in_words(load(at + i * PANEL), load(at + (i + 1) * PANEL));
#endif
    *(V *)(top + j) = high;
    *(V *)(sum + j) = load(sum + j) * keep + total;
    *(V *)(f->keep + j) = keep;
  }
}

/* The result and the logarithms of the queries from `first` to before `last`, QUERIES at most. */
void NAME(const long *shape, long first, long last, const O *q, const O *k, const O *v,
          const void *mask, O *y, T *l, T scale) {
  const Shape *s = (const Shape *)shape;
  Forward f __attribute__((aligned(VECTOR)));
  if (are_allowed()) begin_tiles();
  const long rows = last - first, panels = (rows + PANEL - 1) / PANEL, width = words(s->width);
  const long size = width * PANEL, result = s->depth * PANEL;
  for (long p = 0; p < panels; p++) {
    const long query = first + p * PANEL, have = least(last - query, PANEL);
    copy(have, s->width, q + query * s->q.row, s->q.row, s->q.column, f.k, width);
    turn_in(have, width, f.k, width, f.q + p * size);
  }
  for (long i = 0; i < panels * PANEL; i++) f.top[i] = -INFINITE, f.sum[i] = 0;
  const long end = s->causal ? least(s->keys, last) : s->keys;
  const long some = least(BLOCK, HELD / most(most(s->width, s->depth), 1));
  for (long key = 0; key < end; key += some) {
    const long n = least(end - key, some);
    copy(n, s->width, k + key * s->k.row, s->k.row, s->k.column, f.k, width);
    copy_words(n, s->depth, v + key * s->v.row, s->v.row, s->v.column, f.v, s->depth);
    for (long p = 0; p < panels; p++) {
      const long query = first + p * PANEL, have = least(last - query, PANEL);
      const long seen = s->causal ? least(n, query + have - key) : n;
      if (seen <= 0) continue;
      product(seen, PANEL, width, f.k, width, 1, f.q + p * size, PANEL, f.scores, PANEL, STORE, 0,
              scale);
      powers(s, &f, seen, key, query, have, mask, f.top + p * PANEL, f.sum + p * PANEL);
      product(s->depth, PANEL, words(seen), f.v, 1, s->depth, f.scores, PANEL, f.y + p * result,
              PANEL, key ? KEEP : STORE, f.keep, 1);        /* every query sees the first key */
    }
  }
  for (long p = 0; p < panels; p++) {
    const long query = first + p * PANEL, have = least(last - query, PANEL);
    T *sum = f.sum + p * PANEL, *at = f.y + p * result;
    for (long j = 0; j < PANEL; j += LANES) {
      const V total = load(sum + j), inverse = choose(total == 0, (V){}, 1 / total);
      for (long i = 0; i < s->depth; i++) *(V *)(at + i * PANEL + j) *= inverse;
    }
    turn_out(s->depth, have, at, 1, y + query * s->y.row, s->y.row, s->y.column);
    for (long i = 0; i < have; i++)
      l[(query + i) * s->l] = sum[i] == 0 ? -INFINITE : LOGARITHM(sum[i]) + f.top[p * PANEL + i];
  }
  if (are_allowed()) end_tiles();
}

#else
/* -------------------------------------------------------------------------------- backward */

/* What is known of a block of keys: panels of k' and v', words of k, and panels of dk' and dv'; and
   of a block of queries: q and dy, words of them, y or dq, the logarithm of each sum, and the sum of
   dy * y.  Where a word is one element, words of q and dy are q and dy. */
typedef struct {
  T kt[HELD], vt[HELD], k[HELD], dk[HELD], dv[HELD];
  T q[HELD], dy[HELD], y[HELD], log[BLOCK], inner[BLOCK];
  T p[BLOCK * PANEL], ds[BLOCK * STEP], added[PANEL];
#if PAIR == 2
  T q_words[HELD], dy_words[HELD], dp[BLOCK * PANEL];
#endif
} Backward;

/* Scores of n queries from `query` on with a panel of keys from `key` on --> probabilities. */
static void probabilities(const Shape *s, Backward *b, long from, long n, long query, long key,
                          long have, const void *mask) {
  for (long i = from; i < n; i++) {
    if (s->mask) read_mask(s, have, mask, (query + i) * s->m.row + key * s->m.column, b->added);
    const int hides = s->causal && key + have - 1 > query + i;
    for (long j = 0; j < PANEL; j += LANES) {
      V score = load(b->p + i * PANEL + j);
      if (s->mask) score = with_mask(s, score, load(b->added + j));
      if (hides) score = choose(counted() > (T)(query + i - key - j), all(-INFINITE), score);
      /* The last word of a row may have no second key. */
      if (have % PAIR) score = choose(counted() >= (T)(have - j), all(-INFINITE), score);
      *(V *)(b->p + i * PANEL + j) = score - b->log[i];
    }
  }
  powers_of((n - from) * WIDE, b->p + from * PANEL, LANES, (V){});
}

/* ds = p * (dp - inner) for n queries and a panel of keys, dp being there; of words that hold two of
   them, dp and p become those of a column's elements. */
static void score_gradients(long n, T *p, T *dp, const T *inner, T *ds) {
#if PAIR == 1
  for (long i = 0; i < n; i++)
    for (long j = 0; j < PANEL; j += LANES) {
      V *to = (V *)(ds + i * STEP + j);
      *to = load(p + i * PANEL + j) * (*to - inner[i]);
    }
#else
  for (long i = 0; i < n; i += 2) {
    V share[2][WIDE], made[2][WIDE];
    unrolled for (int r = 0; r < 2; r++) unrolled for (int j = 0; j < WIDE; j++) {
      const long at = (i + r) * PANEL + j * LANES;
      share[r][j] = i + r < n ? load(p + at) : (V){};
      if (i + r < n) made[r][j] = share[r][j] * (load(dp + at) - inner[i + r]);
      else made[r][j] = (V){};
    }
    unrolled for (int r = 0; r < 2; r++)
      if (i + r < n) *(V *)(ds + (i + r) * STEP) = in_halves(made[r][0], made[r][1]);
    unrolled for (int j = 0; j < WIDE; j++) {
      *(V *)(p + i / 2 * PANEL + j * LANES) = in_words(share[0][j], share[1][j]);
      *(V *)(dp + i / 2 * PANEL + j * LANES) = in_words(made[0][j], made[1][j]);
    }
  }
#endif
}

/* Read a block of queries: what backward knows of it. */
static void read_queries(const Shape *s, Backward *b, long query, long n, long width, long depth,
                         const O *q, const O *dy, const O *y, const T *l) {
  const long deep = whole(words(s->depth));
  q += query * s->q.row, dy += query * s->dy.row;
  copy(n, s->width, q, s->q.row, s->q.column, b->q, whole(words(s->width)));
  copy(n, s->depth, dy, s->dy.row, s->dy.column, b->dy, deep);
  copy(n, s->depth, y + query * s->y.row, s->y.row, s->y.column, b->y, deep);
#if PAIR == 2
  copy_words(n, s->width, q, s->q.row, s->q.column, b->q_words, width);
  copy_words(n, s->depth, dy, s->dy.row, s->dy.column, b->dy_words, depth);
#endif
  for (long i = 0; i < n; i++) {
    V sum = {};
    for (long j = 0; j < deep; j += LANES) unrolled for (int p = 0; p < PARTS; p++) {
      const V left = part(p, load(b->dy + i * deep + j)), right = part(p, load(b->y + i * deep + j));
      add_product(sum, left, right);
      in_register(sum);
    }
    T total = 0;
    for (int j = 0; j < LANES; j++) total += sum[j];
    b->inner[i] = total;
    const T log = l[(query + i) * s->l];
    b->log[i] = log == -INFINITE ? 0 : log;       /* all its powers are 0 */
  }
}

/* Gradients of the keys and values from `first` to before `last`, and what these keys add to that
   of the queries, which is written to dq: zeros for queries that see none of them. */
void NAME(const long *shape, long first, long last, const O *q, const O *k, const O *v,
          const void *mask, const O *y, const T *l, const O *dy, T *dq, O *dk, O *dv, T scale) {
  const Shape *s = (const Shape *)shape;
  Backward b __attribute__((aligned(VECTOR)));
  if (are_allowed()) begin_tiles();
  const long width = whole(s->width), depth = whole(s->depth);
  const long wide = whole(words(s->width)), deep = whole(words(s->depth));      /* in words */
  const long some = least(BLOCK, HELD / most(width, depth)) / PANEL * PANEL;
#if PAIR == 1
  T *const q_words = b.q, *const dy_words = b.dy;
#else
  T *const q_words = b.q_words, *const dy_words = b.dy_words;
#endif
  for (long h = 0; h < s->heads && s->causal; h++)
    for (long i = 0; i < least(first, s->queries); i++)
      for (long j = 0; j < s->width; j++)
        dq[h * s->next_dq + i * s->dq.row + j * s->dq.column] = 0;
  for (long key = first; key < last; key += some) {
    const long n = least(last - key, some), panels = (n + PANEL - 1) / PANEL;
    copy_words(n, s->width, k + key * s->k.row, s->k.row, s->k.column, b.k, width);
    for (long p = 0; p < panels; p++) {
      const long at = key + p * PANEL, have = least(n - p * PANEL, PANEL);
      copy(have, s->width, k + at * s->k.row, s->k.row, s->k.column, b.y, wide);
      turn_in(have, words(s->width), b.y, wide, b.kt + p * wide * PANEL);
      copy(have, s->depth, v + at * s->v.row, s->v.row, s->v.column, b.y, deep);
      turn_in(have, words(s->depth), b.y, deep, b.vt + p * deep * PANEL);
    }
    for (long i = 0; i < panels * PANEL * width; i += LANES) *(V *)(b.dk + i) = (V){};
    for (long i = 0; i < panels * PANEL * depth; i += LANES) *(V *)(b.dv + i) = (V){};
    for (long h = 0; h < s->heads; h++) {
      const void *own = mask;
      if (s->mask) own = (const char *)mask + h * s->next_m * (s->mask == ADDED ? sizeof(O) : 1);
      for (long query = s->causal ? key / some * some : 0; query < s->queries; query += some) {
        const long rows = least(s->queries - query, some);
        read_queries(s, &b, query, rows, width, depth, q + h * s->next_q, dy + h * s->next_dy,
                     y + h * s->next_y, l + h * s->next_l);
        for (long p = 0; p < panels; p++) {
          const long at = key + p * PANEL, have = least(n - p * PANEL, PANEL);
          const long from = s->causal ? most(at - query, 0) : 0, seen = rows - from;
          if (seen <= 0) continue;
          const T *kt = b.kt + p * wide * PANEL, *vt = b.vt + p * deep * PANEL;
          T *prob = b.p + from * PANEL, *ds = b.ds + from * STEP + p * PANEL / PAIR;
#if PAIR == 1
          T *const dp = ds;
          const long step = STEP;
#else
          T *const dp = b.dp;
          const long step = PANEL;
#endif
          product(seen, have, words(s->width), b.q + from * wide, wide, 1, kt, PANEL, prob, PANEL,
                  STORE, 0, scale);
          probabilities(s, &b, from, rows, query, at, have, own);
          product(seen, have, words(s->depth), b.dy + from * deep, deep, 1, vt, PANEL, dp, step,
                  STORE, 0, 1);
          score_gradients(seen, prob, dp, b.inner + from, ds);
          product(s->depth, have, words(seen), dy_words + from / PAIR * depth, 1, depth, prob, PANEL,
                  b.dv + p * depth * PANEL, PANEL, ADD, 0, 1);
          product(s->width, have, words(seen), q_words + from / PAIR * width, 1, width, dp, step,
                  b.dk + p * width * PANEL, PANEL, ADD, 0, 1);
        }
        for (long i = 0; i < rows; i += PANEL) {
          const long high = least(rows - i, PANEL);
          const long seen = s->causal ? least(n, query + i + high - key) : n;
          if (seen <= 0) continue;
          for (long j = 0; j < width; j += PANEL)
            product(high, least(width - j, PANEL), words(seen), b.ds + i * STEP, STEP, 1, b.k + j,
                    width, b.y + j, width, STORE, 0, scale);
          T *to = dq + h * s->next_dq + (query + i) * s->dq.row;
          for (long r = 0; r < high; r++)
            for (long e = 0; e < s->width; e++) {
              T *one = to + r * s->dq.row + e * s->dq.column;
              *one = key > first ? *one + b.y[r * width + e] : b.y[r * width + e];
            }
        }
      }
    }
    for (long p = 0; p < panels; p++) {
      const long at = key + p * PANEL, have = least(n - p * PANEL, PANEL);
      turn_out(s->width, have, b.dk + p * width * PANEL, scale, dk + at * s->dk.row, s->dk.row,
               s->dk.column);
      turn_out(s->depth, have, b.dv + p * depth * PANEL, 1, dv + at * s->dv.row, s->dv.row,
               s->dv.column);
    }
  }
  if (are_allowed()) end_tiles();
}
#endif
