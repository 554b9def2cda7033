/* Calls of a Program without the interpreter, where all is as it was found to be before: a call looks
   at its inputs, enters where they lie, makes its outputs and enters the native code.

   It knows nothing that the Python beside it does not: what is not exactly as expected is answered by
   None, with nothing done, and then that Python runs.  Everything here happens under the interpreter's
   lock but the native code itself. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* What extensions compiled for NumPy read of an array, unchanged since NumPy 1.7; `looked` lets Python
   make sure of it. */
typedef struct {
  PyObject_HEAD
  char *data;
  int rank;
  Py_ssize_t *shape, *strides;
  PyObject *base, *dtype;
  int flags;
} Array;
#define ALIGNED 0x0100
#define WRITEABLE 0x0400

/* As in `segments.c`, whose kernels read it. */
typedef struct {
  char **buffers;
  void *team;
  long threads;
  const void *index;
  long *clock;
} Call;
#define NONE (-1L)
typedef long Function(const Call *call);

#define NEW(type, count) ((type *)PyMem_Calloc((size_t)(count) + 1, sizeof(type)))

/* ---- a frame: what one run at a time uses ------------------------------------------------------ */

/* The memory is a context's, which holds the frame and outlives it.
   makers: of the outputs, at `numbers` among the buffers; `order`: the results among them.
   threads: says how many there are, or None where one is enough.  failure: makes an outcome an error. */
typedef struct {
  PyObject_HEAD
  Call call;
  Function *function;
  PyObject *makers, *threads, *failure;
  Py_ssize_t results;
  long *numbers, *order;
} Frame;

static int longs(PyObject *values, long *out) {
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(values); k++) {
    out[k] = PyLong_AsLong(PyTuple_GET_ITEM(values, k));
    if (out[k] == -1 && PyErr_Occurred()) return -1;
  }
  return 0;
}

static PyObject *frame_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  (void)named;
  unsigned long long function, team, index;
  PyObject *addresses, *makers, *numbers, *order, *threads, *failure;
  if (!PyArg_ParseTuple(arguments, "KKKO!O!O!O!OO", &function, &team, &index, &PyTuple_Type, &addresses,
                        &PyTuple_Type, &makers, &PyTuple_Type, &numbers, &PyTuple_Type, &order, &threads,
                        &failure))
    return NULL;
  Frame *frame = (Frame *)type->tp_alloc(type, 0);
  if (!frame) return NULL;
  frame->function = (Function *)(uintptr_t)function;
  frame->makers = Py_NewRef(makers);
  frame->threads = Py_NewRef(threads);
  frame->failure = Py_NewRef(failure);
  frame->results = PyTuple_GET_SIZE(order);
  frame->numbers = NEW(long, PyTuple_GET_SIZE(numbers));
  frame->order = NEW(long, frame->results);
  char **buffers = NEW(char *, PyTuple_GET_SIZE(addresses));
  frame->call = (Call){buffers, (void *)(uintptr_t)team, 1, (const void *)(uintptr_t)index, NULL};
  if (!frame->numbers || !frame->order || !buffers) {
    Py_DECREF(frame);
    return PyErr_NoMemory();
  }
  int failed = longs(numbers, frame->numbers) || longs(order, frame->order);
  for (Py_ssize_t k = 0; !failed && k < PyTuple_GET_SIZE(addresses); k++) {
    buffers[k] = (char *)PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, k));
    failed = buffers[k] == NULL && PyErr_Occurred();
  }
  if (failed) Py_CLEAR(frame);
  return (PyObject *)frame;
}

static int frame_traverse(PyObject *self, visitproc visit, void *arg) {
  Frame *frame = (Frame *)self;
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(frame->makers);
  Py_VISIT(frame->threads);
  Py_VISIT(frame->failure);
  return 0;
}

static int frame_clear(PyObject *self) {
  Frame *frame = (Frame *)self;
  Py_CLEAR(frame->makers);
  Py_CLEAR(frame->threads);
  Py_CLEAR(frame->failure);
  return 0;
}

static void frame_free(PyObject *self) {
  Frame *frame = (Frame *)self;
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  frame_clear(self);
  PyMem_Free(frame->call.buffers);
  PyMem_Free(frame->numbers);
  PyMem_Free(frame->order);
  type->tp_free(self);
  Py_DECREF(type);
}

static PyType_Slot frame_slots[] = {
    {Py_tp_new, frame_new},     {Py_tp_traverse, frame_traverse}, {Py_tp_clear, frame_clear},
    {Py_tp_dealloc, frame_free}, {0, NULL},
};
static PyType_Spec frame_spec = {
    "tilewright.runtime.calls.Frame", sizeof(Frame), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, frame_slots};

/* Raise what an outcome of the native code means. */
static void raise_failure(Frame *frame, long outcome) {
  PyObject *error = PyObject_CallFunction(frame->failure, "l", outcome);
  if (!error) return;
  PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  Py_DECREF(error);
}

/* Return the outputs of a run whose inputs have been entered. */
static PyObject *frame_run(Frame *frame) {
  Py_ssize_t count = PyTuple_GET_SIZE(frame->makers);
  PyObject *outputs[count + 1], *results = NULL;
  Py_ssize_t made = 0;
  for (; made < count; made++) {
    PyObject *output = PyObject_CallNoArgs(PyTuple_GET_ITEM(frame->makers, made));
    if (!output) goto end;
    outputs[made] = output;
    frame->call.buffers[frame->numbers[made]] = ((Array *)output)->data;
  }
  if (frame->threads != Py_None) {
    PyObject *threads = PyObject_CallNoArgs(frame->threads);
    if (!threads) goto end;
    frame->call.threads = PyLong_AsLong(threads);
    Py_DECREF(threads);
    if (frame->call.threads == -1 && PyErr_Occurred()) goto end;
  }
  long outcome;
  Py_BEGIN_ALLOW_THREADS
  outcome = frame->function(&frame->call);
  Py_END_ALLOW_THREADS
  if (outcome != NONE) {
    raise_failure(frame, outcome);
    goto end;
  }
  results = PyTuple_New(frame->results);
  for (Py_ssize_t k = 0; results && k < frame->results; k++)
    PyTuple_SET_ITEM(results, k, Py_NewRef(outputs[frame->order[k]]));
end:
  while (made) Py_DECREF(outputs[--made]);
  return results;
}

/* ---- a call on arrays -------------------------------------------------------------------------- */

/* What an input must be.  same: the very array, or NULL for any.  number: of its buffer, or -1 where
   the run does not read it.  flags: those that it must have.  low, high: the bytes that it covers.
   form: its shape, then its strides. */
typedef struct {
  PyObject *dtype, *same;
  long number;
  int rank, flags;
  Py_ssize_t low, high, *form;
} Expected;

/* idle: contexts, of which each has a `frame`.  keeper: has `record` as `_last` while what is kept is
   current; None where nothing is kept.  places: where what is kept lies, in pairs of a buffer's number
   and an address.  any_written: whether an input is. */
typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *type, *idle, *keeper, *record;
  Expected *expected;
  Py_ssize_t inputs, kept;
  unsigned long long *places;
  int any_written;
} ArrayCall;

static PyObject *name_frame, *name_last;

static int is_expected(const ArrayCall *call, PyObject *value, const Expected *wanted) {
  if ((PyObject *)Py_TYPE(value) != call->type || (wanted->same && value != wanted->same)) return 0;
  const Array *array = (const Array *)value;
  if (array->dtype != wanted->dtype || array->rank != wanted->rank) return 0;
  if ((array->flags & wanted->flags) != wanted->flags) return 0;
  for (int k = 0; k < wanted->rank; k++)
    if (array->shape[k] != wanted->form[k] || array->strides[k] != wanted->form[wanted->rank + k]) return 0;
  return 1;
}

/* Say whether an input that is written may share memory with another one. */
static int any_shared(const ArrayCall *call, PyObject *const *values) {
  for (Py_ssize_t k = 0; k < call->inputs; k++) {
    const Expected *one = &call->expected[k];
    if (!(one->flags & WRITEABLE)) continue;
    const char *start = ((Array *)values[k])->data;
    for (Py_ssize_t j = 0; j < call->inputs; j++) {
      const Expected *other = &call->expected[j];
      const char *begin = ((Array *)values[j])->data;
      if (j != k && start + one->low < begin + other->high && begin + other->low < start + one->high) return 1;
    }
  }
  return 0;
}

static int is_current(const ArrayCall *call) {
  if (call->keeper == Py_None) return 1;
  PyObject *last = PyObject_GetAttr(call->keeper, name_last);
  int same = last == call->record;
  if (!last) PyErr_Clear();
  Py_XDECREF(last);
  return same;
}

/* Enter where inputs lie, and run; None where a context cannot do this. */
static PyObject *run_in(const ArrayCall *call, PyObject *context, PyObject *const *values) {
  PyObject *found = PyObject_GetAttr(context, name_frame);
  if (!found || found == Py_None) return found;
  Frame *frame = (Frame *)found;
  char **buffers = frame->call.buffers;
  for (Py_ssize_t k = 0; k < call->inputs; k++) {
    const Expected *wanted = &call->expected[k];
    if (wanted->number >= 0) buffers[wanted->number] = ((Array *)values[k])->data;
  }
  for (Py_ssize_t k = 0; k < call->kept; k++)
    buffers[call->places[2 * k]] = (char *)(uintptr_t)call->places[2 * k + 1];
  PyObject *results = frame_run(frame);
  Py_DECREF(found);
  return results;
}

/* Return the outputs for one argument, a tuple or list of inputs; None for others than expected. */
static PyObject *array_call(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *named) {
  const ArrayCall *call = (const ArrayCall *)self;
  if (PyVectorcall_NARGS(flags) != 1 || named) {
    PyErr_SetString(PyExc_TypeError, "a call takes the sequence of its inputs");
    return NULL;
  }
  if (!PyTuple_CheckExact(arguments[0]) && !PyList_CheckExact(arguments[0])) Py_RETURN_NONE;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(arguments[0]);
  Py_ssize_t idle = PyList_GET_SIZE(call->idle);
  if (count != call->inputs || !idle) Py_RETURN_NONE;
  PyObject *const *given = PySequence_Fast_ITEMS(arguments[0]);
  for (Py_ssize_t k = 0; k < count; k++)
    if (!is_expected(call, given[k], &call->expected[k])) Py_RETURN_NONE;
  if ((call->any_written && any_shared(call, given)) || !is_current(call)) Py_RETURN_NONE;
  /* A list may be changed by others while the native code runs. */
  PyObject *values[count + 1];
  for (Py_ssize_t k = 0; k < count; k++) values[k] = Py_NewRef(given[k]);
  PyObject *context = Py_NewRef(PyList_GET_ITEM(call->idle, idle - 1)), *results = NULL;
  if (PyList_SetSlice(call->idle, idle - 1, idle, NULL) == 0) {
    results = run_in(call, context, values);
    if (PyList_Append(call->idle, context)) Py_CLEAR(results);
  }
  Py_DECREF(context);
  for (Py_ssize_t k = 0; k < count; k++) Py_DECREF(values[k]);
  return results;
}

static int expect(Expected *expected, PyObject *row) {
  PyObject *same, *dtype, *form;
  int is_written;
  if (!PyArg_ParseTuple(row, "OOlpO!nn", &same, &dtype, &expected->number, &is_written, &PyTuple_Type, &form,
                        &expected->low, &expected->high))
    return -1;
  expected->same = same == Py_None ? NULL : Py_NewRef(same);
  expected->dtype = Py_NewRef(dtype);
  expected->rank = (int)(PyTuple_GET_SIZE(form) / 2);
  expected->flags = ALIGNED | (is_written ? WRITEABLE : 0);
  expected->form = NEW(Py_ssize_t, 2 * expected->rank);
  if (!expected->form) {
    PyErr_NoMemory();
    return -1;
  }
  for (int k = 0; k < 2 * expected->rank; k++) {
    expected->form[k] = PyLong_AsSsize_t(PyTuple_GET_ITEM(form, k));
    if (expected->form[k] == -1 && PyErr_Occurred()) return -1;
  }
  return 0;
}

static PyObject *array_call_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
  (void)named;
  PyObject *array, *idle, *keeper, *record, *rows, *places;
  if (!PyArg_ParseTuple(arguments, "OO!OOO!O!", &array, &PyList_Type, &idle, &keeper, &record, &PyTuple_Type,
                        &rows, &PyTuple_Type, &places))
    return NULL;
  ArrayCall *call = (ArrayCall *)type->tp_alloc(type, 0);
  if (!call) return NULL;
  call->call = array_call;
  call->type = Py_NewRef(array);
  call->idle = Py_NewRef(idle);
  call->keeper = Py_NewRef(keeper);
  call->record = Py_NewRef(record);
  call->kept = PyTuple_GET_SIZE(places) / 2;
  call->places = NEW(unsigned long long, 2 * call->kept);
  call->expected = NEW(Expected, PyTuple_GET_SIZE(rows));
  if (!call->places || !call->expected) {
    Py_DECREF(call);
    return PyErr_NoMemory();
  }
  int failed = 0;
  for (Py_ssize_t k = 0; !failed && k < 2 * call->kept; k++) {
    call->places[k] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(places, k));
    failed = call->places[k] == (unsigned long long)-1 && PyErr_Occurred();
  }
  for (; !failed && call->inputs < PyTuple_GET_SIZE(rows); call->inputs++) {
    Expected *expected = &call->expected[call->inputs];
    failed = expect(expected, PyTuple_GET_ITEM(rows, call->inputs));
    call->any_written |= (expected->flags & WRITEABLE) != 0;
  }
  if (failed) Py_CLEAR(call);
  return (PyObject *)call;
}

static int array_call_traverse(PyObject *self, visitproc visit, void *arg) {
  ArrayCall *call = (ArrayCall *)self;
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(call->type);
  Py_VISIT(call->idle);
  Py_VISIT(call->keeper);
  Py_VISIT(call->record);
  for (Py_ssize_t k = 0; k < call->inputs; k++) {
    Py_VISIT(call->expected[k].same);
    Py_VISIT(call->expected[k].dtype);
  }
  return 0;
}

/* What is cleared runs nothing any more: it expects what nobody has. */
static int array_call_clear(PyObject *self) {
  ArrayCall *call = (ArrayCall *)self;
  Py_ssize_t inputs = call->inputs;
  call->inputs = -1;
  for (Py_ssize_t k = 0; k < inputs; k++) {
    Py_CLEAR(call->expected[k].same);
    Py_CLEAR(call->expected[k].dtype);
    PyMem_Free(call->expected[k].form);
  }
  Py_CLEAR(call->type);
  Py_CLEAR(call->keeper);
  Py_CLEAR(call->record);
  return 0;
}

static void array_call_free(PyObject *self) {
  ArrayCall *call = (ArrayCall *)self;
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  array_call_clear(self);
  Py_CLEAR(call->idle);
  PyMem_Free(call->expected);
  PyMem_Free(call->places);
  type->tp_free(self);
  Py_DECREF(type);
}

static PyMemberDef array_call_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ArrayCall, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot array_call_slots[] = {
    {Py_tp_new, array_call_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, array_call_members},
    {Py_tp_traverse, array_call_traverse},
    {Py_tp_clear, array_call_clear},
    {Py_tp_dealloc, array_call_free},
    {0, NULL},
};
static PyType_Spec array_call_spec = {
    "tilewright.runtime.calls.ArrayCall", sizeof(ArrayCall), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, array_call_slots};

/* ---- what Python finds here -------------------------------------------------------------------- */

#define VISIBLE __attribute__((visibility("default")))

/* Return the two types. */
VISIBLE PyObject *tilewright_types(void) {
  name_frame = PyUnicode_InternFromString("frame");
  name_last = PyUnicode_InternFromString("_last");
  if (!name_frame || !name_last) return NULL;
  PyObject *frame = PyType_FromSpec(&frame_spec), *call = PyType_FromSpec(&array_call_spec);
  PyObject *types = frame && call ? PyTuple_Pack(2, frame, call) : NULL;
  Py_XDECREF(frame);
  Py_XDECREF(call);
  return types;
}

/* Return what is read of an array: address, rank, dtype, the two flags, and shape and strides if the
   rank is as said, as otherwise nothing is where it is thought to be. */
VISIBLE PyObject *tilewright_looked(PyObject *value, long rank) {
  const Array *array = (const Array *)value;
  PyObject *form = PyTuple_New(array->rank == rank ? 2 * rank : 0);
  for (long k = 0; form && k < PyTuple_GET_SIZE(form); k++)
    PyTuple_SET_ITEM(form, k, PyLong_FromSsize_t(k < rank ? array->shape[k] : array->strides[k - rank]));
  if (!form) return NULL;
  return Py_BuildValue("(KiKiN)", (unsigned long long)(uintptr_t)array->data, array->rank,
                       (unsigned long long)(uintptr_t)array->dtype, array->flags & (ALIGNED | WRITEABLE), form);
}
