/* What tiles of sums read and write.  This stands before `contraction.c`, which has the two functions
   that are declared here, and before the text of whoever calls them. */

/* Where a tile of c lies: how far it is from a row to the next, and from a vector to the next. */
typedef struct { T *at; long row, vector; } Tile;

/* What of memory is packed next: so many `lines`, of which tiles ask for `each` at a time.  A `run` of
   them lies together; `left` are left of the one that is asked for, and `skip` bytes on is the next. */
typedef struct { long at, lines, each, run, left, skip; } Coming;

/* What tiles below each other share: terms, strides of a (`below`: from a tile to the next), and b,
   whose vectors are `apart`.  If there is `more` in c, it is added; the sums go to `to`.  Tiles ask
   for the memory of their sums, and what comes in turns with it, if `asks`. */
typedef struct {
  long depth, below, ai, at;
  const T *b;
  long bt, apart;
  Tile c, to;
  T scale;
  int more, asks;
  Coming *coming;
} Stack;

#define pack PACK
#define any_tiles TILES

/* p[t * step + j] = x[xt[t] + xj[j]] for j < n; what lies from there to the next multiple of LANES
   may be overwritten with anything.  Of pairs, these are all that x holds: where they begin. */
void pack(long depth, long n, const O *x, const int *xt, const int *xj, T *restrict p, long step);

/* `count` tiles of so many rows, of a kind, below each other; a: where the first has its rows. */
void any_tiles(long rows, long kind, long count, const Stack *stack, const T *a);

/* p[t * step + j] = x[xt[t] + j] for j < n, so many bytes at a time: not more than there are. */
#define COPY(BYTES)                                                                              \
  typedef char Bytes##BYTES __attribute__((vector_size(BYTES), aligned(1), may_alias));          \
  inlined void copy##BYTES(long depth, long n, const O *x, const int *xt, T *restrict p,         \
                           long step) {                                                          \
    const long size = n * sizeof(T);                                                             \
    for (long t = 0; t < depth; t++) {                                                           \
      const char *from = (const char *)(x + xt[t]);                                              \
      char *to = (char *)(p + t * step);                                                         \
      for (long k = 0; k + BYTES <= size; k += BYTES)                                            \
        *(Bytes##BYTES *)(to + k) = *(const Bytes##BYTES *)(from + k);                           \
      if (size % BYTES)                                                                          \
        *(Bytes##BYTES *)(to + size - BYTES) = *(const Bytes##BYTES *)(from + size - BYTES);     \
    }                                                                                            \
  }
COPY(4) COPY(8) COPY(16) COPY(32) COPY(64)
