/* Depthwise convolutions, in which each channel has a kernel of its own, and their gradients:

       y[n, c, h, w] = sum over i, j of x[n, c, h*SH + i*DH - PH, w*SW + j*DW - PW] * k[c, i, j]

   Rows are copied to the stack, where they have a border and lie as vectors read them: columns that
   are SW apart lie together.  Sums stay in registers while the taps go by.  What is made is cut into
   `BLOCK` rows of a channel, whose copies stay in the first cache.

   KIND: 0 makes y, 1 the gradient of x, 2 that of k.  H, W: of x; OH, OW: of y; XN .. XW, YN .. YW,
   KC, KI, KJ: strides in elements.  In the gradient of x, h*SH + q has taps of its own for each q,
   and so have columns. */

#define UP(n, m) (((n) + (m) - 1) / (m))
#define VECTORS(n) UP(n, LANES)
#define FAR (KH * DH + KW * DW)         /* makes what is divided positive; more than any tap moves */
#define DOWN(n, m) (((n) + FAR * (m)) / (m) - FAR)

#if KIND == 1
#define PHASES 1                        /* of columns that lie together, in what is read */
#define MADE UP(W, SW)                  /* columns of a phase, in what is made */
#define TALL OH                         /* rows and columns of what is read */
#define LONG OW
#define LEFT DOWN((KW - 1) * DW - PW + SW - 1, SW)
#define BORDER (LEFT > 0 ? LEFT : 0)
#define ROWS_READ (((BLOCK - 1) + (KH - 1) * DH) / SH + 2)
#define BEHIND ((SW - 1 + PW) / SW)
#define FROM_ROW YH
#define FROM_COLUMN YW
#else
#define PHASES SW
#define MADE OW
#define TALL H
#define LONG W
#define BORDER PW
#define ROWS_READ ((BLOCK - 1) * SH + (KH - 1) * DH + 1)
#define BEHIND ((KW - 1) * DW / SW)
#define FROM_ROW XH
#define FROM_COLUMN XW
#endif
#define ROW (VECTORS(MADE + BEHIND + (KIND == 1 ? BORDER : 0)) * LANES + LANES)

/* rows[r][q][b] = from[top + r][b * PHASES + q - BORDER], 0 where that is outside.  Beside the image
   nothing is written: there all rows have been 0 from the beginning. */
static void copy_rows(const T *from, long top, long count, T *restrict rows) {
  for (long r = 0; r < count; r++, rows += PHASES * ROW) {
    const long h = top + r;
    if (h < 0 || h >= TALL) {
      for (long b = 0; b < PHASES * ROW; b++) rows[b] = 0;
      continue;
    }
    for (long q = 0; q < PHASES; q++) {
      const long first = q < BORDER ? UP(BORDER - q, PHASES) : 0;
      const long end = least(ROW, UP(LONG + BORDER - q, PHASES));
      T *to = rows + q * ROW;
      for (long b = first; b < end; b++)
        to[b] = from[h * FROM_ROW + (b * PHASES + q - BORDER) * FROM_COLUMN];
    }
  }
}

#if KIND != 2
/* Where a tap's columns begin in a row that was copied, for the phase q of what is made; -1 where
   they have no part in it. */
inlined long column_of(long q, long j) {
#if KIND == 1
  const long moved = q + PW - j * DW;
  return (moved + FAR * SW) % SW ? -1 : DOWN(moved, SW) + BORDER;
#else
  return j * DW % SW * ROW + j * DW / SW;
#endif
}

/* So many vectors of a line that is made; `n` rows of taps have a part in it. */
inlined void sums(const int vectors, const long q, long n, const T *const *from,
                  const T *const *factors, T *line) {
  V sum[4];
  unrolled for (int v = 0; v < vectors; v++) sum[v] = (V){};
  for (long t = 0; t < n; t++) unrolled for (long j = 0; j < KW; j++) {
    const long column = column_of(q, j);
    if (column < 0) continue;
    const V factor = factors[t][j] - (V){};
    unrolled for (int v = 0; v < vectors; v++)
      sum[v] += factor * *(const V *)(from[t] + column + v * LANES);
  }
  unrolled for (int v = 0; v < vectors; v++) *(V *)(line + v * LANES) = sum[v];
}

/* A line of the phase q: as many columns as it has, to the next multiple of LANES. */
inlined void line_of(const long q, long n, const T *const *from, const T *const *factors,
                     T *line) {
  const T *at[KH];
  for (long t = 0; t < n; t++) at[t] = from[t];
  long left = VECTORS(MADE);
  for (; left >= 4; left -= 4, line += 4 * LANES) {
    sums(4, q, n, at, factors, line);
    for (long t = 0; t < n; t++) at[t] += 4 * LANES;
  }
  if (left == 3) sums(3, q, n, at, factors, line);
  if (left == 2) sums(2, q, n, at, factors, line);
  if (left == 1) sums(1, q, n, at, factors, line);
}

/* Units from `unit` to before `last`: blocks of rows, of all channels of all images. */
void NAME(long unit, long last, const T *one, const T *k, T *made) {
  T rows[ROWS_READ * PHASES * ROW] __attribute__((aligned(VECTOR))) = {0};
  T line[VECTORS(MADE) * LANES] __attribute__((aligned(VECTOR)));
  T taps[KH][KW];
  const T *from[KH], *factors[KH];
  const long height = KIND == 1 ? H : OH, blocks = UP(height, BLOCK);
  for (; unit < last; unit++) {
    const long n = unit / blocks / CHANNELS, c = unit / blocks % CHANNELS;
    const long begin = unit % blocks * BLOCK, end = least(height, begin + BLOCK);
    for (long i = 0; i < KH; i++)
      for (long j = 0; j < KW; j++) taps[i][j] = k[c * KC + i * KI + j * KJ];
#if KIND == 1
    const T *x = one + n * YN + c * YC;
    T *to = made + n * XN + c * XC;
    const long top = DOWN(begin + PH - (KH - 1) * DH, SH);
    copy_rows(x, top, (end - 1 + PH) / SH - top + 1, rows);
#else
    const T *x = one + n * XN + c * XC;
    T *to = made + n * YN + c * YC;
    const long top = begin * SH - PH;
    copy_rows(x, top, (end - 1 - begin) * SH + (KH - 1) * DH + 1, rows);
#endif
    for (long h = begin; h < end; h++) {
      long count = 0;
      for (long i = 0; i < KH; i++) {
#if KIND == 1
        const long moved = h + PH - i * DH;
        if ((moved + FAR * SH) % SH) continue;
        from[count] = rows + (DOWN(moved, SH) - top) * ROW;
#else
        from[count] = rows + ((h - begin) * SH + i * DH) * PHASES * ROW;
#endif
        factors[count++] = taps[i];
      }
#if KIND == 1
      unrolled for (long q = 0; q < SW; q++) {
        line_of(q, count, from, factors, line);
        for (long w = q, t = 0; w < W; w += SW, t++) to[h * XH + w * XW] = line[t];
      }
#else
      line_of(0, count, from, factors, line);
      for (long w = 0; w < OW; w++) to[h * YH + w * YW] = line[w];
#endif
    }
  }
}
#else

#if SINGLE
typedef int I __attribute__((vector_size(VECTOR)));
#else
typedef long I __attribute__((vector_size(VECTOR)));
#endif

/* Adds what a block of rows of y adds to TAPS taps, the chunk's. */
inlined void add_taps(const long chunk, const T *rows, const T *lines, long count, V *total) {
  const long width = VECTORS(OW) * LANES;
  V sum[TAPS];
  I there;
  for (long l = 0; l < LANES; l++) there[l] = -(width - LANES + l < OW);
  unrolled for (int t = 0; t < TAPS; t++) sum[t] = (V){};
  for (long h = 0; h < count; h++)
    for (long w = 0; w < width; w += LANES) {
      const V y = *(const V *)(lines + h * width + w);
      const T *from = rows + h * SH * PHASES * ROW + w;
      /* Behind the last column y is 0, but what x has there need not be finite. */
      const I mask = w + LANES < width ? ~(I){} : there;
      unrolled for (int t = 0; t < TAPS; t++) {
        const long p = least(chunk * TAPS + t, KH * KW - 1), i = p / KW, j = p % KW;
        const V x = *(const V *)(from + (i * DH * PHASES + j * DW % SW) * ROW + j * DW / SW);
        sum[t] += y * (OW % LANES ? (V)((I)x & mask) : x);
      }
    }
  unrolled for (int t = 0; t < TAPS; t++) total[chunk * TAPS + t] += sum[t];
}

/* Channels from `unit` to before `last`. */
void NAME(long unit, long last, const T *one, const T *y, T *made) {
  T rows[ROWS_READ * PHASES * ROW] __attribute__((aligned(VECTOR))) = {0};
  T lines[BLOCK * VECTORS(OW) * LANES] __attribute__((aligned(VECTOR)));
  V total[CHUNKS * TAPS];
  for (; unit < last; unit++) {
    for (long t = 0; t < CHUNKS * TAPS; t++) total[t] = (V){};
    for (long n = 0; n < IMAGES; n++)
      for (long begin = 0; begin < OH; begin += BLOCK) {
        const long count = least(OH - begin, BLOCK), width = VECTORS(OW) * LANES;
        copy_rows(one + n * XN + unit * XC, begin * SH - PH, (count - 1) * SH + (KH - 1) * DH + 1,
                  rows);
        for (long h = 0; h < count; h++)
          for (long w = 0; w < width; w++)
            lines[h * width + w] = w < OW ? y[n * YN + unit * YC + (begin + h) * YH + w * YW] : 0;
        unrolled for (long chunk = 0; chunk < CHUNKS; chunk++)
          add_taps(chunk, rows, lines, count, total);
      }
    for (long t = 0; t < KH * KW; t++) {
      T sum = 0;
      for (long l = 0; l < LANES; l++) sum += total[t][l];
      made[unit * KC + t / KW * KI + t % KW * KJ] = sum;
    }
  }
}
#endif
