/* Squares of LANES x LANES numbers.  `vectors.c` stands before this text. */

#if SINGLE
#define NUMBERS (VECTOR / 4)    /* LANES, for the preprocessor */
typedef int Index __attribute__((vector_size(VECTOR)));
#else
#define NUMBERS (VECTOR / 8)
typedef long Index __attribute__((vector_size(VECTOR)));
#endif

/* Numbers of two vectors, those of the second counted from LANES on. */
#if defined(__clang__)
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX(a, b, ...) __builtin_shuffle(a, b, (Index){__VA_ARGS__})
#endif

/* Interleave the first halves of two vectors, and the second ones. */
#if NUMBERS == 16
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif NUMBERS == 4
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#elif NUMBERS == 2
#define LOW 0, 2
#define HIGH 1, 3
#endif

/* Rows become columns. */
inlined void turn(V *r) {
#if NUMBERS == 8                /* with AVX2 two instructions cross halves, but of whole ones one */
  unrolled for (int i = 0; i < 4; i++) {
    const V a = r[i], b = r[i + 4];
    r[i] = MIX(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = MIX(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
  unrolled for (int i = 0; i < 8; i += 4) {             /* squares of four by four, two in each */
    const V a = MIX(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    const V b = MIX(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    const V c = MIX(r[i + 2], r[i + 3], 0, 8, 1, 9, 4, 12, 5, 13);
    const V d = MIX(r[i + 2], r[i + 3], 2, 10, 3, 11, 6, 14, 7, 15);
    r[i] = MIX(a, c, 0, 1, 8, 9, 4, 5, 12, 13);
    r[i + 1] = MIX(a, c, 2, 3, 10, 11, 6, 7, 14, 15);
    r[i + 2] = MIX(b, d, 0, 1, 8, 9, 4, 5, 12, 13);
    r[i + 3] = MIX(b, d, 2, 3, 10, 11, 6, 7, 14, 15);
  }
#else
  V s[LANES];
  unrolled for (int n = 1; n < LANES; n *= 2) {
    unrolled for (int i = 0; i < LANES / 2; i++) {
      s[2 * i] = MIX(r[i], r[i + LANES / 2], LOW);
      s[2 * i + 1] = MIX(r[i], r[i + LANES / 2], HIGH);
    }
    unrolled for (int i = 0; i < LANES; i++) r[i] = s[i];
  }
#endif
}
