/* Vectors as wide as the processor has them, and the tile of sums that its registers hold.  This
   stands before the text of whatever computes with such tiles. */

/* A product and the sum that it goes into are rounded once. */
#if defined(__clang__)
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#if !defined(TRANSFORMS) && !defined(__SANITIZE_ADDRESS__)
/* A third to a half less time to compile, and tiles are as fast: they are unrolled and in registers
   as the text says.  Winograd's transforms are plain loops, and take a few percent longer so. */
#pragma GCC optimize("O2", "no-tree-vrp", "vect-cost-model=dynamic")
#endif
#endif

typedef ELEMENT T;

/* ROWS * WIDE sums, WIDE vectors of b and one of a fill the vector registers. */
#if defined(__AVX512F__)
#define VECTOR 64
#define ROWS 14
#elif defined(__AVX__)
#define VECTOR 32
#define ROWS 6
#else
#define VECTOR 16
#define ROWS 4
#endif
#define WIDE 2
#define LANES ((long)(VECTOR / sizeof(T)))
#define PANEL (WIDE * LANES)    /* columns of a tile */

typedef T V __attribute__((vector_size(VECTOR), aligned(sizeof(T)), may_alias));
#define inlined static inline __attribute__((always_inline))
#ifdef __SANITIZE_ADDRESS__
#define unrolled                /* sums are not in registers then, whatever is unrolled */
#else
#define unrolled _Pragma("GCC unroll 16")
#endif

/* Held in a register here.  Of a vector that is loaded: once, however often it is read, else GCC may
   load it again for every row of a tile.  Of a lone sum in a loop: so that its products are rounded
   with it whatever the processor and the level of optimisation, else GCC rounds them apart for Zen,
   where it takes that to be faster. */
#if defined(__x86_64__) && !defined(__clang__)
#define in_register(vector) __asm__("" : "+v"(vector))
#else
#define in_register(vector) ((void)0)
#endif

inlined long least(long a, long b) { return a < b ? a : b; }
