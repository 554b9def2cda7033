/* c[i, j] (+)= scale * sum over t of a[i, t] * b[t, j], for operands of any strides.

   A tile of ROWS x WIDE vectors of c is summed in registers: each step over t loads WIDE vectors of
   b and multiplies them by ROWS elements of a (Goto and van de Geijn, Anatomy of high-performance
   matrix multiplication, 2008).  The sum over t goes in steps of DEPTH, so that a panel of b stays
   in the first cache; in each element the order of the terms is that of t, whatever the tiles.
   Operands that memory does not hold as the tile reads them are packed first, on the stack: half a
   megabyte of it. */

/* A product and the sum that it goes into are rounded once. */
#if defined(__clang__)
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif

typedef ELEMENT T;

/* ROWS * WIDE sums, WIDE vectors of b and one of a fill the vector registers. */
#if defined(__AVX512F__)
#define VECTOR 64
#define ROWS 14
#define WIDE 2
#elif defined(__AVX__)
#define VECTOR 32
#define ROWS 6
#define WIDE 2
#else
#define VECTOR 16
#define ROWS 4
#define WIDE 2
#endif
#define LANES ((long)(VECTOR / sizeof(T)))
#define SLICE 32                /* columns of b with one stride: a multiple of PANEL */
#define PANEL (WIDE * LANES)    /* columns of a tile */
#define COLUMNS (8 * PANEL)     /* columns of b that are packed at a time */
#define GROUP 8                 /* tiles of rows of a that are packed at a time */
#define DEPTH 256
#define FAR 512                 /* rows further apart fall on the same sets of the first cache */

typedef T V __attribute__((vector_size(VECTOR), aligned(sizeof(T)), may_alias));
#define inlined static inline __attribute__((always_inline))
#define unrolled _Pragma("GCC unroll 16")

inlined long least(long a, long b) { return a < b ? a : b; }

/* One tile; rows and wide are known where it is called. */
inlined void tile(const int rows, const int wide, long depth, const T *a, long ai, long at,
                  const T *b, long bt, T *c, long ci, T scale, int more) {
  V sum[ROWS][WIDE];
  unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++) sum[i][j] = (V){};
  for (long t = 0; t < depth; t++) {
    V right[WIDE];
    unrolled for (int j = 0; j < wide; j++) right[j] = *(const V *)(b + t * bt + j * LANES);
    unrolled for (int i = 0; i < rows; i++) {
      const V left = a[i * ai + t * at] - (V){};        /* in all lanes; x - 0 is x, -0 too */
      unrolled for (int j = 0; j < wide; j++) sum[i][j] += left * right[j];
    }
  }
  unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++) {
    V *to = (V *)(c + i * ci + j * LANES);
    if (scale != 1) sum[i][j] *= scale;
    if (more) *to += sum[i][j];
    else *to = sum[i][j];
  }
}

#define CASE(R, W) \
  case R * 4 + W: \
    if (R <= ROWS && W <= WIDE) tile(R, W, depth, a, ai, at, b, bt, c, ci, scale, more); \
    break;
#define CASES(R) CASE(R, 1) CASE(R, 2)

static void any_tile(long rows, long wide, long depth, const T *a, long ai, long at, const T *b,
                     long bt, T *c, long ci, T scale, int more) {
  switch (rows * 4 + wide) {
    CASES(1) CASES(2) CASES(3) CASES(4) CASES(5) CASES(6) CASES(7)
    CASES(8) CASES(9) CASES(10) CASES(11) CASES(12) CASES(13) CASES(14)
  }
}

/* p[t * step + j] = x[t * xt + j * xj] for j < n.  What lies from there to the next multiple of
   LANES is overwritten with anything.  room: how many columns there are to read. */
static void pack(long depth, long n, long room, const T *x, long xt, long xj, T *p, long step) {
  long t = 0;
  if (xj == 1) {
    const long width = (n + LANES - 1) / LANES * LANES;
    const long whole = width <= room ? width : n / LANES * LANES;
    for (; t < depth; t++) {
      for (long j = 0; j < whole; j += LANES) *(V *)(p + t * step + j) = *(const V *)(x + t * xt + j);
      for (long j = whole; j < n; j++) p[t * step + j] = x[t * xt + j];
    }
    return;
  }
#if VECTOR == 64 && SINGLE && !defined(__clang__)
  typedef int Lanes __attribute__((vector_size(VECTOR)));
  const Lanes low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
  const Lanes high = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  if (xt == 1)                                          /* 16 x 16 elements are turned in registers */
    for (; t + 16 <= depth; t += 16)
      for (long j = 0; j < n; j += 16) {
        V r[16], s[16];
        unrolled for (int i = 0; i < 16; i++)
          r[i] = j + i < n ? *(const V *)(x + t + (j + i) * xj) : (V){};
#define SHUFFLE(to, from)                                           \
  unrolled for (int i = 0; i < 8; i++) {                            \
    to[2 * i] = __builtin_shuffle(from[i], from[i + 8], low);       \
    to[2 * i + 1] = __builtin_shuffle(from[i], from[i + 8], high);  \
  }
        SHUFFLE(s, r) SHUFFLE(r, s) SHUFFLE(s, r) SHUFFLE(r, s)
        unrolled for (int i = 0; i < 16; i++) *(V *)(p + (t + i) * step + j) = r[i];
      }
#endif
  for (; t < depth; t++)
    for (long j = 0; j < n; j++) p[t * step + j] = x[t * xt + j * xj];
}

/* rows x columns elements of a product: the strides of a are ai, at; of c ci and 1; of b bt, bj, and
   bp from every SLICE columns to the next. */
void NAME(long rows, long columns, long length, const T *a, long ai, long at, const T *b, long bt,
          long bj, long bp, T *c, long ci, T scale) {
  T right[DEPTH * COLUMNS + LANES] __attribute__((aligned(VECTOR)));
  T left[GROUP * ROWS * DEPTH + LANES] __attribute__((aligned(VECTOR)));
  T rest[ROWS * PANEL];
  const long tiles = (rows + ROWS - 1) / ROWS;          /* of equal heights, give or take one row */
  /* Memory holds rows of b as tiles want them; but where many tiles read rows that are far apart. */
  const int dense = bj == 1 && (rows <= 2 * ROWS || bt < FAR);
  for (long n = 0; n < columns; n += COLUMNS) {
    const long some = least(columns - n, COLUMNS);
    const int turned = some > 2 * PANEL && (at == 1 ? ai : at) >= FAR;
    for (long t = 0; t < length; t += DEPTH) {
      const long depth = least(length - t, DEPTH);
      for (long j = 0; j < some; j += PANEL) {
        const long have = least(some - j, PANEL), width = (have + LANES - 1) / LANES * LANES;
        if (!dense || have != width)
          pack(depth, have, columns - n - j, b + t * bt + (n + j) / SLICE * bp + (n + j) % SLICE * bj,
               bt, bj, right + j * depth, width);
      }
      for (long group = 0; group < tiles; group += GROUP) {
        const long end = least(group + GROUP, tiles);
        if (turned)
          for (long q = group; q < end; q++) {
            const long i = rows * q / tiles, high = rows * (q + 1) / tiles - i;
            pack(depth, high, rows - i, a + i * ai + t * at, at, ai,
                 left + (q - group) * ROWS * depth, high);
          }
        for (long j = 0; j < some; j += PANEL) {
          const long have = least(some - j, PANEL), width = (have + LANES - 1) / LANES * LANES;
          const int direct = dense && have == width;
          const T *y = direct ? b + t * bt + (n + j) / SLICE * bp + (n + j) % SLICE
                              : right + j * depth;
          for (long q = group; q < end; q++) {
            const long i = rows * q / tiles, high = rows * (q + 1) / tiles - i;
            const T *x = turned ? left + (q - group) * ROWS * depth : a + i * ai + t * at;
            T *to = c + i * ci + n + j;
            any_tile(high, width / LANES, depth, x, turned ? 1 : ai, turned ? high : at, y,
                     direct ? bt : width, have == width ? to : rest, have == width ? ci : PANEL,
                     scale, have == width && t);
            if (have != width)
              for (long r = 0; r < high; r++)
                for (long s = 0; s < have; s++)
                  to[r * ci + s] = t ? to[r * ci + s] + rest[r * PANEL + s] : rest[r * PANEL + s];
          }
        }
      }
    }
  }
}
