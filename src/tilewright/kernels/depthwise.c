/* Depthwise convolutions, in which each channel has a kernel of its own, and their gradients:

       y[n, c, h, w] = sum over i, j of x[n, c, h*SH + i*DH - PH, w*SW + j*DW - PW] * k[c, i, j]

   Lanes are columns and A is rows; or lanes are channels, where these lie innermost (LAST), and A is
   columns.  The third dim is B.  A tile is TALL neighbours in A.  The taps in A are in registers
   together, those in B go by: a vector that is loaded meets all taps that want it, and nothing asks
   whether it is inside the image.  For rows are copied to the stack, GROUP channels side by side,
   where they have a border and lie as vectors read them: columns that are SW apart lie together.
   What is made is cut into `BLOCK` rows, whose copies stay near.

   KIND: 0 makes y, 1 the gradient of x, 2 that of k.  H, W: of x; OH, OW: of y; XN .. XW, YN .. YW,
   KC, KI, KJ: strides in elements.  In the gradient of x, h*SH + q has taps of its own for each q, a
   phase, and so have columns.  APART: taps from one of a phase to the next; BACK: places. */

#define UP(n, m) (((n) + (m) - 1) / (m))
#define VECTORS(n) UP(n, LANES)
#define FAR (KH * DH + KW * DW)         /* makes what is divided positive; more than any tap moves */
#define DOWN(n, m) (((n) + FAR * (m)) / (m) - FAR)

#if KIND == 1
#define FROM(dim) Y##dim
#define TO(dim) X##dim
#define HIGH_READ OH                    /* rows and columns of what is read */
#define LONG_READ OW
#define HIGH H                          /* and of what is made */
#define LONG W
#define PHASES_H SH
#define PHASES_W SW
#define STEP_H 1                        /* from place to place, in what was copied */
#define STEP_W 1
#define SPLIT 1                         /* columns that lie together there */
#define TOP DOWN(PH - (KH - 1) * DH, SH)        /* what the first row and column of it are */
#define LEFT DOWN(PW - (KW - 1) * DW, SW)
#define ROWS_READ(n) (UP(n, SH) + DOWN(SH - 1 + PH, SH) - TOP)
#define COLUMNS_READ (UP(W, SW) + DOWN(SW - 1 + PW, SW) - LEFT)
#else
#define FROM(dim) X##dim
#define TO(dim) Y##dim
#define HIGH_READ H
#define LONG_READ W
#define HIGH OH
#define LONG OW
#define PHASES_H 1
#define PHASES_W 1
#define STEP_H SH
#define STEP_W SW
#define SPLIT (LAST ? 1 : SW)
#define TOP (-PH)
#define LEFT (-PW)
#define ROWS_READ(n) (((n) - 1) * SH + (KH - 1) * DH + 1)
#define COLUMNS_READ ((OW - 1) * SW + (KW - 1) * DW + 1)
#endif
#define MADE UP(LONG, PHASES_W)         /* columns of a phase */

/* How many vectors side by side a tile has, so that its sums are many and few of them are wasted. */
#define WASTE(broad, tall) ((broad) > 1 && (LAST || (broad) * LANES > MADE) ? 1L << 60 : \
  UP(MADE, (broad) * LANES) * UP(UP(HIGH, PHASES_H), tall) * \
  ((tall) * (broad) < 8 ? 8 : (tall) * (broad)))
#if KIND == 2
enum { BROAD = 1, TALL = TALL_1 };
#else
enum {
  FIRST = WASTE(2, TALL_2) < WASTE(1, TALL_1) ? 2 : 1,
  SECOND = WASTE(8, TALL_8) < WASTE(4, TALL_4) ? 8 : 4,
  BROAD = WASTE(SECOND, SECOND == 8 ? TALL_8 : TALL_4) < WASTE(FIRST, FIRST == 2 ? TALL_2 : TALL_1)
    ? SECOND : FIRST,
  TALL = BROAD == 8 ? TALL_8 : BROAD == 4 ? TALL_4 : BROAD == 2 ? TALL_2 : TALL_1
};
#endif
#define COLUMNS (BROAD * LANES)         /* of a tile, where lanes are columns */

/* rows[r][b][lane], or rows[r][q][b].  The last tile in A reads beyond what is copied. */
#if LAST
#define ROW ((COLUMNS_READ + TALL * STEP_W) * GROUP)
#define COPIED ROWS_READ(BLOCK)
#define STEP_A GROUP
#define STEP_B ROW
#define BY_A STEP_W
#define BY_B STEP_H
#define BACK_A BACK_W
#define TAPS_A KW
#define TAPS_B KH
#define TAP_A GROUP                     /* from tap to tap, where a kernel lies */
#define TAP_B (KW * GROUP)
#else
#define ROW ((UP(COLUMNS_READ, SPLIT) + COLUMNS) * SPLIT)
#define COPIED (ROWS_READ(BLOCK) + TALL * STEP_H)
#define STEP_A ROW
#define STEP_B 1L
#define BY_A STEP_H
#define BY_B 1L
#define BACK_A BACK_H
#define TAPS_A KH
#define TAPS_B KW
#define TAP_A KI
#define TAP_B KJ
#endif

#if SINGLE
typedef int I __attribute__((vector_size(VECTOR)));
#else
typedef long I __attribute__((vector_size(VECTOR)));
#endif

/* Where a tap's vectors lie, of those in B. */
inlined long across(long j) {
#if LAST
  return j * BACK_H * ROW;
#elif KIND == 1
  return j * BACK_W;
#else
  return j * DW % SW * (ROW / SW) + j * DW / SW;
#endif
}

inlined void copy(const T *from, const long n, T *to) {
  long l = 0;
  for (; l + LANES <= n; l += LANES) *(V *)(to + l) = *(const V *)(from + l);
  if (n < LANES) __builtin_memcpy(to, from, n * sizeof(T));
  else if (l < n) *(V *)(to + n - LANES) = *(const V *)(from + n - LANES);
}

/* Copies rows of `channels` channels, 0 where they are outside.  Beside the image nothing is written:
   there all rows have been 0 from the beginning. */
static void copy_rows(const T *from, long top, long count, long channels, T *restrict rows) {
  const long begin = LEFT < 0 ? -LEFT : 0, end = least(COLUMNS_READ, LONG_READ - LEFT);
  (void)channels;
  for (long r = 0; r < count; r++, rows += ROW) {
    const long h = top + r;
    const T *row = from + h * FROM(H);
    if (h < 0 || h >= HIGH_READ) {
      for (long b = 0; b < ROW; b++) rows[b] = 0;
      continue;
    }
#if LAST
    if (channels == GROUP)
      for (long b = begin; b < end; b++) copy(row + (b + LEFT) * FROM(W), GROUP, rows + b * GROUP);
    else
      for (long b = begin; b < end; b++)
        copy(row + (b + LEFT) * FROM(W), CHANNELS % GROUP, rows + b * GROUP);
#else
    if (SPLIT == 1 && FROM(W) == 1) {
      if (begin < end) copy(row + begin + LEFT, end - begin, rows + begin);
    } else
      for (long q = 0; q < SPLIT; q++) {
        T *to = rows + q * (ROW / SPLIT);
        const T *at = row + (q + LEFT) * FROM(W);
        for (long b = UP(begin - q + SPLIT, SPLIT) - 1; b < UP(end - q, SPLIT); b++)
          to[b] = at[b * SPLIT * FROM(W)];
      }
#endif
  }
}

/* Calls `meet` for each pair of a place and a tap of a tile, those of a vector together after `load`. */
#define PAIRS(tall, taps, load, meet) \
  unrolled for (int i = 0; i < (taps); i++) unrolled for (int a = 0; a < (tall); a++) { \
    int seen = 0; \
    unrolled for (int m = 1; m <= i; m++) \
      seen |= m * BACK_A % BY_A == 0 && a + m * BACK_A / BY_A < (tall); \
    if (seen) continue; \
    const long place = (a * BY_A + i * BACK_A) * STEP_A; \
    load; \
    unrolled for (int tap = i; tap < (taps); tap++) { \
      const long back = (tap - i) * BACK_A, at = a - back / BY_A; \
      if (back % BY_A == 0 && at >= 0) { meet; } \
    } \
  }

#if KIND != 2
/* Writes all lanes or, where there are fewer columns or channels left, those. */
inlined void put(V sum, long left, T *to) {
  if (left >= LANES) *(V *)to = sum;
  else copy((const T *)&sum, LAST ? CHANNELS % LANES : MADE, to);
}

/* The taps of a dim that meet its phase `q`: how many; which is first in what is read, and where. */
inlined long taps_of(long q, long taps, long s, long p, long d, long low, long *tap, long *place) {
  *tap = *place = 0;
#if KIND == 1
  long count = 0;
  for (long i = 0; i < taps; i++) {
    const long moved = q + p - i * d;
    if ((moved + FAR * s) % s) continue;
    *tap = i, *place = DOWN(moved, s) - low;
    count++;
  }
  return count;
#else
  (void)q, (void)s, (void)p, (void)d, (void)low;
  return taps;
#endif
}

/* The sums of a tile, over so many taps in A and `count` in B. */
inlined void sums(const int taps, const T *from, long count, const T *k, V *sum) {
  unrolled for (int v = 0; v < TALL * BROAD; v++) sum[v] = (V){};
  unrolled for (int first = 0; first < taps; first += HELD)
    for (long j = 0; j < count; j++) {
      const int held = taps - first < HELD ? taps - first : HELD;
      const T *x = from + first * BACK_A * STEP_A + across(j);
      const T *factors = k + first * APART_A * TAP_A + j * APART_B * TAP_B;
      V factor[HELD];
      unrolled for (int i = 0; i < held; i++) {
        const T *one = factors + i * APART_A * TAP_A;
#if LAST
        factor[i] = *(const V *)one;
#else
        factor[i] = *one - (V){};
#endif
        in_register(factor[i]);
      }
      PAIRS(TALL, held,
        V read[BROAD];
        unrolled for (int v = 0; v < BROAD; v++) {
          read[v] = *(const V *)(x + place + v * LANES);
          in_register(read[v]);
        },
        unrolled for (int v = 0; v < BROAD; v++) sum[at * BROAD + v] += factor[tap] * read[v])
    }
}

inlined void sums_of(long taps, const T *from, long count, const T *k, V *sum) {
  if (taps == MOST_TAPS) sums(MOST_TAPS, from, count, k, sum);
  else if (LEAST_TAPS < MOST_TAPS && taps == LEAST_TAPS) sums(LEAST_TAPS, from, count, k, sum);
  else unrolled for (int v = 0; v < TALL * BROAD; v++) sum[v] = (V){};
}

#if LAST
/* Rows of a block that are made, of GROUP channels or as many as there are. */
inlined void make(long height, const T *rows, const T *k, long channels, T *to) {
  long down, right, low, first;
  for (long q = 0; q < PHASES_H; q++) {
    const long count = taps_of(q, KH, SH, PH, DH, TOP, &down, &low);
    for (long p = 0; p < PHASES_W; p++) {
      const long taps = taps_of(p, KW, SW, PW, DW, LEFT, &right, &first);
      for (long h = 0; h < UP(height - q, PHASES_H); h++)
        for (long w = 0, width = UP(LONG - p, PHASES_W); w < width; w += TALL)
          for (long v = 0; v < channels; v += LANES) {
            V sum[TALL];
            sums_of(taps, rows + (low + h * BY_B) * STEP_B + (first + w * BY_A) * STEP_A + v, count,
                    k + down * TAP_B + right * TAP_A + v, sum);
            T *at = to + (h * PHASES_H + q) * TO(H) + (w * PHASES_W + p) * TO(W) + v;
            unrolled for (int a = 0; a < TALL; a++)
              if (w + a < width) put(sum[a], channels - v, at + a * PHASES_W * TO(W));
          }
    }
  }
}
#else
#define DIRECT (PHASES_W == 1 && TO(W) == 1)

inlined void make(long height, const T *rows, const T *k, T *to) {
  T lines[DIRECT ? 1 : TALL][PHASES_W][DIRECT ? 1 : UP(MADE, COLUMNS) * COLUMNS];
  long down, right, low, first;
  for (long q = 0; q < PHASES_H; q++) {
    const long taps = taps_of(q, KH, SH, PH, DH, TOP, &down, &low), end = UP(height - q, PHASES_H);
    for (long h = 0; h < end; h += TALL) {
      T *row = to + (h * PHASES_H + q) * TO(H);
      for (long p = 0; p < PHASES_W; p++) {
        const long count = taps_of(p, KW, SW, PW, DW, LEFT, &right, &first);
        for (long t = 0; t < MADE; t += COLUMNS) {
          /* The last vectors of a line are made twice, where they would go beyond it. */
          const long w = DIRECT && MADE >= COLUMNS ? least(t, MADE - COLUMNS) : t;
          V sum[TALL * BROAD];
          sums_of(taps, rows + (low + h * BY_A) * STEP_A + first + w, count,
                  k + down * TAP_A + right * TAP_B, sum);
          unrolled for (int a = 0; a < TALL; a++) unrolled for (int v = 0; v < BROAD; v++)
            if (!DIRECT) *(V *)(lines[a][p] + w + v * LANES) = sum[a * BROAD + v];
            else if (h + a < end)
              put(sum[a * BROAD + v], MADE, row + a * PHASES_H * TO(H) + w + v * LANES);
        }
      }
      for (long a = 0; !DIRECT && a < TALL && h + a < end; a++) {
        T *line = row + a * PHASES_H * TO(H);
        for (long b = 0; b < LONG / PHASES_W; b++)
          unrolled for (long p = 0; p < PHASES_W; p++)
            line[(b * PHASES_W + p) * TO(W)] = lines[a][p][b];
        for (long p = 0; p < LONG % PHASES_W; p++)
          line[(LONG / PHASES_W * PHASES_W + p) * TO(W)] = lines[a][p][LONG / PHASES_W];
      }
    }
  }
}
#endif

/* Units from `unit` to before `last`: blocks of rows, of all channels of all images. */
void NAME(long unit, long last, const T *one, const T *k, T *made) {
  T rows[COPIED * ROW] __attribute__((aligned(VECTOR))) = {0};
  const long blocks = UP(HIGH, BLOCK);
#if LAST
  T taps[KH * KW * GROUP];
  long own = -1;                        /* the channel whose taps these are */
#endif
  for (; unit < last; unit++) {
    const long begin = unit % blocks * BLOCK, height = least(HIGH - begin, BLOCK);
    const long top = KIND == 1 ? begin / SH : begin * SH;
#if LAST
    const long n = unit / blocks % IMAGES, c = unit / blocks / IMAGES * GROUP;
    const long channels = least(CHANNELS - c, GROUP);
    for (long t = 0; t < KH * KW && own != c; t++)
      for (long l = 0; l < channels; l++)
        taps[t * GROUP + l] = k[(c + l) * KC + t / KW * KI + t % KW * KJ];
    own = c;
    copy_rows(one + n * FROM(N) + c, top + TOP, ROWS_READ(height), channels, rows);
    make(height, rows, taps, channels, made + n * TO(N) + c + begin * TO(H));
#else
    const long n = unit / blocks / CHANNELS, c = unit / blocks % CHANNELS;
    copy_rows(one + n * FROM(N) + c * FROM(C), top + TOP, ROWS_READ(height), 1, rows);
    make(height, rows, k + c * KC, made + n * TO(N) + c * TO(C) + begin * TO(H));
#endif
  }
}
#else

#if LAST
#define LINE (OW * GROUP)
#define LINE_A GROUP
#define LINE_B LINE
#define END_A OW
#else
#define LINE (VECTORS(OW) * LANES)
#define LINE_A LINE
#define LINE_B LANES
#define END_A OH
#endif

/* What `tall` vectors of y in A add to `taps` taps in A, of each of `wide` in B. */
inlined void terms(const int tall, const int taps, const int wide, const int masked, const T *x,
                   const long *offsets, const T *y, V *sum) {
  V line[TALL];
  I there;
  for (long l = 0; l < LANES; l++) there[l] = -(l < OW % LANES);
  unrolled for (int a = 0; a < tall; a++) {
    line[a] = *(const V *)(y + a * LINE_A);
    in_register(line[a]);
  }
  unrolled for (int t = 0; t < wide; t++)
    PAIRS(tall, taps,
      V read = *(const V *)(x + offsets[t] + place);
      /* Behind the last column y is 0, but what x has there need not be finite. */
      if (masked) read = (V)((I)read & there);
      in_register(read),
      sum[t * taps + tap] += line[at] * read)
}

/* Adds what some rows of y add to taps, `taps` in A from `i` on and `wide` in B from `j` on. */
inlined void add_terms(const int taps, const int wide, long i, long j, const T *rows,
                       const T *lines, long height, V *total) {
  const long end_a = LAST ? OW : height, end_b = LAST ? height : OW / LANES;
  long offsets[ACROSS];
  V sum[HELD * ACROSS];
  unrolled for (int t = 0; t < wide; t++) offsets[t] = across(j + t) + i * BACK_A * STEP_A;
  unrolled for (int s = 0; s < taps * wide; s++) sum[s] = (V){};
  for (long b = 0; b < end_b; b++) {
    const T *x = rows + b * (LAST ? BY_B * STEP_B : LANES), *y = lines + b * LINE_B;
    long a = 0;
    for (; a + TALL <= end_a; a += TALL, x += TALL * BY_A * STEP_A, y += TALL * LINE_A)
      terms(TALL, taps, wide, 0, x, offsets, y, sum);
    if (END_A % TALL && a < end_a) terms(END_A % TALL, taps, wide, 0, x, offsets, y, sum);
  }
  if (!LAST && OW % LANES) {
    const T *x = rows + end_b * LANES, *y = lines + end_b * LINE_B;
    long a = 0;
    for (; a + TALL <= end_a; a += TALL, x += TALL * BY_A * STEP_A, y += TALL * LINE_A)
      terms(TALL, taps, wide, 1, x, offsets, y, sum);
    if (END_A % TALL && a < end_a) terms(END_A % TALL, taps, wide, 1, x, offsets, y, sum);
  }
  unrolled for (int t = 0; t < wide; t++) unrolled for (int tap = 0; tap < taps; tap++)
    total[(j + t) * TAPS_A + i + tap] += sum[t * taps + tap];
}

inlined void add_all(const int taps, long i, const T *rows, const T *lines, long height, V *total) {
  long j = 0;
  for (; j + ACROSS <= TAPS_B; j += ACROSS)
    add_terms(taps, ACROSS, i, j, rows, lines, height, total);
  if (TAPS_B % ACROSS) add_terms(taps, TAPS_B % ACROSS, i, j, rows, lines, height, total);
}

/* Units from `unit` to before `last`: channels, or GROUP of them. */
void NAME(long unit, long last, const T *one, const T *y, T *made) {
  const long side = LAST ? GROUP : 1, each = LAST ? LANES : 1;
  T rows[COPIED * ROW] __attribute__((aligned(VECTOR))) = {0};
  T lines[BLOCK * LINE] __attribute__((aligned(VECTOR))) = {0};
  V total[LAST ? GROUP / LANES : 1][KH * KW];
  for (; unit < last; unit++) {
    const long c = unit * side, channels = least(CHANNELS - c, side);
    for (long v = 0; v < channels; v += each)
      for (long t = 0; t < KH * KW; t++) total[v / each][t] = (V){};
    for (long n = 0; n < IMAGES; n++)
      for (long begin = 0; begin < OH; begin += BLOCK) {
        const long height = least(OH - begin, BLOCK), run = LAST ? RUN : BLOCK;
        copy_rows(one + n * XN + c * XC, begin * SH + TOP, ROWS_READ(height), channels, rows);
        const T *from = y + n * YN + c * YC + begin * YH;
        for (long h = 0; h < height; h++, from += YH)
#if LAST
          for (long w = 0; w < OW; w++)
            if (channels == GROUP) copy(from + w * YW, GROUP, lines + h * LINE + w * GROUP);
            else copy(from + w * YW, CHANNELS % GROUP, lines + h * LINE + w * GROUP);
#else
          if (YW == 1) copy(from, OW, lines + h * LINE);
          else for (long w = 0; w < OW; w++) lines[h * LINE + w] = from[w * YW];
#endif
        for (long h = 0; h < height; h += run)
          for (long v = 0; v < channels; v += each) {
            const T *x = rows + h * SH * ROW + v, *line = lines + h * LINE + v;
            const long some = least(height - h, run);
            long i = 0;
            for (; i + HELD <= TAPS_A; i += HELD) add_all(HELD, i, x, line, some, total[v / each]);
            if (TAPS_A % HELD) add_all(TAPS_A % HELD, i, x, line, some, total[v / each]);
          }
      }
    for (long l = 0; l < channels; l++)
      for (long t = 0; t < KH * KW; t++) {
        const long i = t / KW, j = t % KW;
        T sum = 0;
#if LAST
        sum = total[l / LANES][i * KW + j][l % LANES];
#else
        for (long lane = 0; lane < LANES; lane++) sum += total[0][j * KH + i][lane];
#endif
        made[(c + l) * KC + i * KI + j * KJ] = sum;
      }
  }
}
#endif
